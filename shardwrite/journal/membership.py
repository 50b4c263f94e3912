"""Working on a run: from the lease to the last line in the journal."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from shardwrite.journal.jobs import note_job
from shardwrite.journal.lease import Lease
from shardwrite.journal.writer import admit, close_journals

__all__ = ["taking_part"]


@contextlib.contextmanager
def taking_part(run_path: str | os.PathLike[str], driver: str) -> Iterator[None]:
    """Hold a lease on a run, and the token that allows commits; a batch job leaves its number.

    Parameters
    ----------
    run_path : path
        Directory of the run.
    driver : str
        Name of this process in the run, which no other has.

    Raises
    ------
    StoreError
        If the run's directory is gone, or cannot be written to.
    """
    path = Path(run_path)
    with Lease(path, driver):
        try:
            admit(path, driver)
            note_job(path)
            yield
        finally:
            close_journals(driver)

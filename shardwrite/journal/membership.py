"""Participation of a process in a run, from its lease to its last journal line."""

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
    """Hold a lease on a run, and leave the token that allows its tasks to commit.

    In a batch job, the number of the job is noted, too. At the end of the block, the journals of
    the driver that this process has open are closed, and the lease is removed. The token stays.

    Parameters
    ----------
    run_path : path
        Directory of the run.
    driver : str
        Unique name of this process in the run.

    Raises
    ------
    SpecError
        If dask's configuration holds an invalid setting for leases.
    RunEndedError
        If the run's directory is gone.
    StoreError
        If the run's directory cannot be written to.
    """
    path = Path(run_path)
    with Lease(path, driver):
        try:
            admit(path, driver)
            note_job(path)
            yield
        finally:
            close_journals(driver)

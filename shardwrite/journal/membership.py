"""Participation of a process in a run, from its lease to its last journal line."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from shardwrite.errors import RunEndedError
from shardwrite.journal.lease import Lease
from shardwrite.journal.lines import admit, close_journals
from shardwrite.seams import resolve
from shardwrite.stores.looking import as_store_error

_drivers: set[str] = set()  # of this process, that take part in a run now


@contextlib.contextmanager
def taking_part(run_path: str | os.PathLike[str], driver: str) -> Iterator[None]:
    """Hold a lease on a run, and leave the token that allows its tasks to commit.

    In a batch job, the number of the job is noted, too. At the end of the block, open journals of
    this driver and of drivers that have gone before are closed. Then the lease is removed. The
    token stays.

    - Raises RunEndedError if the run's directory is gone.
    """
    path = Path(run_path)
    with Lease(path, driver):
        _drivers.add(driver)
        try:
            admit(path, driver)
            if os.environ.get("ENVIRONMENT") == "BATCH":  # SLURM sets this in jobs of sbatch
                with contextlib.suppress(LookupError):  # then nothing looks for notes, either
                    resolve("job", "slurm")(path)
            yield
        finally:
            _drivers.discard(driver)
            close_journals(but_of=_drivers)


def begun_at(run_path: str | os.PathLike[str]) -> int:
    """Time in nanoseconds at which a run began, by the clock of the file system with its state.

    - Raises RunEndedError if another process has ended the run.
    """
    path = Path(run_path) / "plan.json"
    with as_store_error(str(path), "cannot look at"):
        try:
            return path.stat().st_mtime_ns
        except FileNotFoundError as error:
            raise RunEndedError("another process has ended this run", path=str(run_path)) from error

"""Whether a run whose state lies in the bucket still goes on, as its tasks ask before they commit.

The directory of such a run belongs to its driver. What a task can ask depends on where it runs:

- In the driver's process it looks at the token in the directory.
- In another process on the driver's host it looks at the token, and whether the driver lives. A
  process that takes the run over on this host does not wait for the lease of a dead driver to run
  out.
- On another host it reads the lease in the bucket, with one request before each commit. It cannot
  write the journal either. Its report goes to the driver, which writes the journal in its place.

A run may also be written by several processes at a time, or later. Then nobody holds the lease
meanwhile, and a `SharedFence` asks whether the state in the bucket still has the run.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from functools import lru_cache

from shardwrite.errors import JournalError, RunEndedError, StoreError
from shardwrite.journal.bucket_lease import LEASE, read_lease
from shardwrite.journal.bucket_logs import Logs
from shardwrite.journal.lease import lives, this_process
from shardwrite.journal.process import Process
from shardwrite.journal.writer import ensure_current
from shardwrite.stores import BucketStore, is_there

_runs: dict[str, frozenset[str]] = {}  # by the holder that has left them


@lru_cache(maxsize=64)
def _distance(driver: Process, directory: str, pid: int) -> str:  # noqa: ARG001 (forks differ)
    """Where this process runs, which is found out once: ``"here"``, ``"near"`` or ``"far"``.

    It is near if it runs on the driver's host, and sees its directory.
    """
    me = this_process()
    if me.is_same(driver):
        return "here"
    is_same_host = bool(me.boot) and (me.boot, me.pids) == (driver.boot, driver.pids)
    return "near" if is_same_host and is_there(directory) else "far"


@dataclass(frozen=True, slots=True)
class BucketFence:
    """The way from a task to the lease of its run in a bucket. It travels with the tasks."""

    store: BucketStore  # store of the array's objects
    holder: str  # unique name of the lease's holder
    driver: Process
    directory: str  # directory of run state of the driver's process
    label: str  # text that names the array in messages

    @property
    def is_near(self) -> bool:
        """Whether this process runs on the driver's host, and sees its directory."""
        return self._distance != "far"

    @property
    def _distance(self) -> str:
        return _distance(self.driver, self.directory, os.getpid())

    def check(self, run_path: str, driver: str) -> None:
        """Refuse to go on with a run that has ended or was taken over.

        - Raises RunEndedError if it has.
        """
        if self._distance == "far":
            found = read_lease(self.store)
            if found is None or found[0].holder != self.holder:
                raise _ended(self.label, "it has ended, or another process has taken it over")
            return
        if self._distance == "near" and not lives(self.driver, this_process(), 0.0):
            raise _ended(self.label, "its driver is gone")
        ensure_current(run_path, driver)

    def probe(self) -> tuple[str, int | None] | None:
        """Check that this process finds the lease of the run in the bucket.

        - Returns: message and error number of what went wrong, or None.
        """
        try:
            found = read_lease(self.store)
        except StoreError as error:
            return error.message, error.errno
        except JournalError as error:
            return error.message, None
        if found is not None and found[0].holder == self.holder:
            return None
        return f"{LEASE} is missing here, so this may be another bucket or service", errno.ENOENT


@dataclass(frozen=True, slots=True)
class SharedFence:
    """The way from a task to a run that nobody holds the lease of; it travels with the tasks.

    The check is one request. The first one of a process reads the state, too.
    """

    store: BucketStore  # store of the array's objects
    # Directory of run state that the tasks write their journal into; empty if there is none
    directory: str
    label: str  # text that names the array in messages

    @property
    def is_near(self) -> bool:
        """Whether this process sees the directory."""
        return bool(self.directory) and is_there(self.directory)

    def check(self, run_path: str, driver: str) -> None:
        """Refuse to go on with a run that has ended, or that another process works on alone.

        - Raises RunEndedError if it has.
        """
        self.check_run(os.path.basename(run_path).removeprefix("run-"))
        if self.is_near:
            ensure_current(run_path, driver)

    def check_run(self, run: str) -> str:
        """Refuse to go on as `check` does, and return the name of the last holder of the lease."""
        found = read_lease(self.store)
        why = ""
        if found is None:
            why = "it has ended"
        elif found[0].holder:
            why = f"another process works on it alone ({found[0].process.name})"
        elif run not in _runs_after(self.store, found[0].state):
            why = "it has ended, or was given up"
        if why or found is None:
            raise _ended(self.label, why)
        return found[0].state

    def probe(self) -> tuple[str, int | None] | None:
        """See :meth:`BucketFence.probe`; each task asks anyway."""
        return None


def _runs_after(store: BucketStore, state: str) -> frozenset[str]:
    """Names of the runs that a holder has left, whose log does not change any more."""
    if state not in _runs:
        _runs[state] = Logs(store).runs_of(state)
    return _runs[state]


Fence = BucketFence | SharedFence


def _ended(label: str, why: str) -> RunEndedError:
    return RunEndedError(f"the run on {label} does not go on: {why}", path=label)

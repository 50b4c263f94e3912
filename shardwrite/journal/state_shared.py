"""Work of several processes at a time on a run whose state lies in the bucket of its array.

A process with the lease has begun the run, and has given the lease back. Then any number of
processes write shards, each in these steps. The text in italics says what a crash leaves:

1. Look at the lease, and make a directory from the log that it names, and from those beside it. If
   the lease is held by a process that is gone, take it and settle the state first. *Nothing.*
2. Work as with any directory. Before a task commits, it reads the lease (`SharedFence`). It stops
   if anybody holds the lease, or if the run is over.
3. Every few seconds, put what this process has added to its journal. Its log stands beside that of
   the last holder, and nobody else writes it. *Shards of the last seconds are written again, or
   found when the run ends.*
4. At the end, put the rest, and look at the lease again. If nobody holds it, whoever takes it later
   reads this log. *The log, which the next holder of the lease takes over and removes.*

Whoever takes the lease to end the run therefore knows all that was written, if it takes the lease
after all others have come to their end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from shardwrite.errors import JournalError, RunEndedError, ShardwriteError
from shardwrite.host.stopping import has_ended
from shardwrite.journal.begin import tidied_run
from shardwrite.journal.rundir import holding
from shardwrite.journal.state_lease import read_lease
from shardwrite.journal.state_log import Step, encode
from shardwrite.journal.state_work import (
    SharedFence,
    Work,
    begin_private,
    beside_others,
    refuse_alone,
    runs_in,
)
from shardwrite.place.run_state import private_directory
from shardwrite.place.target import UPDATES, Target
from shardwrite.stores.looking import as_store_error

_MAX_TRIES = 8
_OVER = ("ended-", "taken-")
_KEPT = ("directory", "file", "append")


@contextlib.contextmanager
def sharing(target: Target) -> Iterator[Target]:
    """Take part in the runs on an array whose state lies in its bucket, beside other processes.

    - Yields: the same array, with a directory of run state of this process. It is empty if there
      is no run. Blocks for several arrays of one run share it.
    - Raises RunEndedError at the end, if another process has taken the lease meanwhile.
    """
    holder = target.holder
    directory = Path(private_directory(os.getpid())) / f"part-{uuid.uuid4().hex}"
    with beside_others(holder, lambda: _Shared(holder, directory)) as work:
        yield target.in_directory(work.target.beside)


class _Shared(Work):
    """Work of this process on a state that others add to, too."""

    def __init__(self, holder: Target, directory: Path) -> None:
        super().__init__(holder, directory)
        self.given = holder
        self._name, self._state, self._run = uuid.uuid4().hex, "", ""
        self._added: dict[str, bytes | None] = {}  # files and their content; None: a directory
        self._is_all_due = False

    @property
    def fence(self) -> SharedFence:
        """See `Work`."""
        return SharedFence(self._store, str(self.target.beside), self.target.label)

    def open(self) -> None:
        """Make the directory from what is in the bucket."""
        refuse_alone(self.given)
        begin_private(self.target.beside.parent)
        try:
            self._restore()
        except BaseException:
            shutil.rmtree(self.target.beside, ignore_errors=True)
            raise
        if self._run:
            self._thread.start()

    def _restore(self) -> None:
        beside = self.target.beside
        for _ in range(_MAX_TRIES):
            shutil.rmtree(beside, ignore_errors=True)
            with as_store_error(str(beside), "cannot make"):
                beside.mkdir()
            found = read_lease(self._store)
            if found is None:
                return
            if not found[0].holder:
                self._state = found[0].state
                self._log.restore(self._state, beside)
                if not any(runs_in(beside, state) for state in _OVER):
                    break
            with holding(self.given):
                tidied_run(self.given)
        else:
            raise JournalError(
                f"runs on {self.target.label} begin and end all the time", path=self.target.label
            )
        runs = (run for run in runs_in(beside) if run.parent.parent.name != UPDATES)
        self._run = next((run.name.removeprefix("run-") for run in runs), "")
        self._changes.since_last()

    def check(self) -> None:
        """See `Work`."""
        if self._run:
            self.fence.check_run(self._run)

    def confirm(self, *, puts: bool = True, in_group: bool = False) -> None:  # noqa: ARG002
        """See `Work`; the lease is read each time."""
        if puts:
            self.put()
        self.check()

    def begin_group(self) -> None:
        """See `Work`; each `confirm` looks."""

    def put(self) -> None:
        """Put what was added, unless another process works alone now.

        - Raises RunEndedError if one does, or the run is over.
        """
        if not self._run:
            return
        with self._work:
            state = self.fence.check_run(self._run)
            new = self._new()
            if state != self._state:
                # Somebody has held the lease, and may have removed this log without the last lines.
                self._state, self._n_put, self._is_all_due = state, 0, True
            if not new and not (self._is_all_due and self._added):
                return
            steps = new if not self._is_all_due else [_whole(*one) for one in self._added.items()]
            self._is_all_due = True
            name = self._log.share(self._state, self._name)
            self._log.put(name, self._n_put, encode(steps))
            self._n_put, self._is_all_due = self._n_put + 1, False

    def _new(self) -> list[Step]:
        """Changes that count since the last call, which are noted."""
        steps = [step for step in self._changes.since_last() if step.what in _KEPT]
        for step in steps:
            if step.what == "directory":
                self._added[step.path] = None
            else:
                before = self._added.get(step.path) if step.what == "append" else b""
                self._added[step.path] = (before or b"") + step.data
        return steps

    def finish(self, *, is_last: bool, has_failed: bool) -> None:
        """Put the rest, and verify that whoever takes the lease later will find it.

        With the last block, the directory is removed, and the log if the run is over.
        """
        try:
            if not is_last and not has_failed:
                self.confirm()
            elif has_failed:
                self.put()
            elif self._end():
                self._put_last()
        finally:
            if is_last and self._end():
                self._discard()

    def _put_last(self) -> None:
        self.put()
        with self._work:
            while self._run and self.fence.check_run(self._run) != self._state:
                self.put()

    def _discard(self) -> None:
        shutil.rmtree(self.target.beside, ignore_errors=True)
        if self._n_put:
            with contextlib.suppress(ShardwriteError):  # it is in nobody's way
                if read_lease(self._store) is None:
                    name = self._log.share(self._state, self._name)
                    self._log.remove(self._log.found_of(name))

    def _end(self) -> bool:
        """Have the thread end; False if the interpreter ends."""
        self._stop.set()
        return has_ended(self._thread)

    def _put_rest(self) -> None:
        self.put()

    def _step(self, pause: float) -> bool:  # noqa: ARG002
        """Put what was added, until the end."""
        try:
            self.put()
        except RunEndedError:
            return False  # the tasks find that out themselves
        return True


def _whole(path: str, data: bytes | None) -> Step:
    """The step that makes a file or directory, whatever was there."""
    return Step("directory", path) if data is None else Step("file", path, data=data)

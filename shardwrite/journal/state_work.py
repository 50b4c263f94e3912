"""Runs whose state lies in the bucket of their array.

Such a run works on a directory that belongs to its process alone. While it works, it holds the
lease of the array (`journal.state_lease`). A thread puts what changes in the directory into the
bucket (`journal.state_log`), at most one small object in some seconds. These are the steps of a
process:

1. Take the lease. It names the holder whose log counts. *A lease without a state of its own.*
2. Make the directory again from that log, and go on as with any directory.
3. Renew the lease, and put all of the directory as the first object of a new log, before anything
   else is changed. From now on this log counts. *The next process begins with it.* Renew the lease
   again, and remove the old log. A lease that is gone by then is lost, because another process may
   have taken it and ended its run.
4. Put what has changed, every few seconds. Before each step that cannot be repeated, such as
   publishing a document, put everything and renew the lease.
5. At the end of the run, when the directory is empty: note in the lease that there is no state,
   remove the log, and then the lease. *A lease without a state, which the next process removes.* If
   the run has not ended, the log stays, and the lease is given back.

Between two such processes, others may add to the state at a time (`journal.state_shared`).

The text in italics says what a crash leaves. A process that has lost its lease puts nothing more:
its directory is moved away, so that all of its tasks stop as those of a run that has ended. A log
that is put too late belongs to no lease, and is not read.

The directory of such a run belongs to its driver. What a task can ask depends on where it runs:

- In the driver's process it looks at the token in the directory.
- In another process on the driver's host it looks at the token, and whether the driver lives. A
  process that takes the run over on this host does not wait for the lease of a dead driver to run
  out.
- On another host it reads the lease in the bucket, with one request before each commit. It cannot
  write the journal either. Its report goes to the driver, which writes the journal in its place.

A run may also be written by several processes at a time, or later. Then nobody holds the lease
meanwhile, and a `SharedFence` asks whether the state in the bucket still has the run.

The directory lies among the temporary files of the host. Its process removes it at the end. If the
process is killed, the directory stays with its encoded units. So it names its process, and the next
process of the same user on the same host removes it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import math
import os
import shutil
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

from shardwrite._dataclass import dataclass
from shardwrite.errors import JournalError, RunEndedError, ShardwriteError, StoreError
from shardwrite.host.stopping import TAKEOVERS, has_ended, on_leaving, tell
from shardwrite.journal.lease import lease_times, lives, this_process
from shardwrite.journal.lines import ensure_current
from shardwrite.journal.process import Process, forget_deadline, now, process_in, set_deadline
from shardwrite.journal.state_lease import LEASE, StateLease, read_lease
from shardwrite.journal.state_log import Changes, Logs, encode
from shardwrite.place.run_state import state_name
from shardwrite.place.target import (
    ARRAYS,
    TOGETHER,
    UPDATES,
    StateInBucket,
    Target,
    ways_to,
)
from shardwrite.stores.looking import as_store_error, is_there, listed

if TYPE_CHECKING:
    from shardwrite.journal.state_lease import LeaseRecord
    from shardwrite.place.objects import InStore
    from shardwrite.stores.whole import WholeStore


# ---- Fences: whether a run still goes on, as its tasks ask before they commit


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
class AloneFence:
    """The way from a task to the lease of its run in a bucket. It travels with the tasks."""

    store: WholeStore  # store of the array's objects
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

    store: WholeStore  # store of the array's objects
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
        """See :meth:`AloneFence.probe`; each task asks anyway."""
        return None


def _runs_after(store: WholeStore, state: str) -> frozenset[str]:
    """Names of the runs that a holder has left, whose log does not change any more."""
    from shardwrite.journal.state_log import Logs  # for buckets only

    if state not in _runs:
        _runs[state] = Logs(store).runs_of(state)
    return _runs[state]


Fence = AloneFence | SharedFence


def _ended(label: str, why: str) -> RunEndedError:
    return RunEndedError(f"the run on {label} does not go on: {why}", path=label)


# ---- Directories of processes that were killed


_OWNER = "process.json"


def begin_private(directory: Path) -> None:
    """Begin to use the private directory of this process, which may be in use already."""
    owner = directory / _OWNER
    if is_there(owner):
        return
    me = this_process()
    with as_store_error(str(directory), "cannot write to"):
        directory.mkdir(parents=True, exist_ok=True)
        owner.write_text(json.dumps(me.to_dict()))
    with contextlib.suppress(StoreError):  # where nothing can be listed, nothing is removed
        for other in listed(directory.parent, f"{directory.name.partition('-')[0]}-"):
            if _is_left_over(other, me):
                shutil.rmtree(other, ignore_errors=True)


def is_private(directory: Path) -> bool:
    """Whether a directory is that of a process, for states that lie in buckets."""
    return is_there(directory / _OWNER)


def _is_left_over(directory: Path, me: Process) -> bool:
    """Whether a process of this user on this host has made a directory, and is gone."""
    found = _owner_of(directory)
    if found is None or not me.boot or (found.boot, found.pids) != (me.boot, me.pids):
        return False
    return not lives(found, me, 0.0)


def _owner_of(directory: Path) -> Process | None:
    """The process of such a directory of this user; None if it is another one."""
    try:
        if directory.lstat().st_uid != os.geteuid():
            return None
        return process_in((directory / _OWNER).read_bytes())
    except OSError:  # it has no such file, or is being removed
        return None


# ---- Runs held by this process


_STATES = ("run-", "ended-", "taken-")

PUT_SECONDS = 5.0

_LEAVE_SECONDS = 5.0

_NEW_SECONDS = 1.0  # since a renewal, for which the lease is only looked at; and since a look

_lock = threading.Lock()


class Work(ABC):
    """Work of this process on the run state of an array in a bucket, be it alone or with others.

    A thread puts what changes in the directory of the state, every few seconds.

    - `turn`: held while the work begins or ends.
    """

    resumed: frozenset[str] = frozenset()  # runs that were there when the lease was taken
    is_late = False  # whether the lease may have run out

    def __init__(self, holder: Target, directory: Path) -> None:
        self.key, self.target = holder.beside, holder.in_directory(directory)
        self.turn = threading.Lock()
        self.n_users, self.is_closed = 0, False
        self._store = store_of(holder)
        self._log, self._changes, self._n_put = Logs(self._store), Changes(directory), 0
        self._work = threading.RLock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="shardwrite-state", daemon=True)

    @property
    @abstractmethod
    def fence(self) -> Fence:
        """What tasks need to ask whether the run goes on."""

    @abstractmethod
    def open(self) -> None:
        """Make the directory again from what is in the bucket."""

    @abstractmethod
    def check(self) -> None:
        """Raise if the run does not go on, as far as is known without asking."""

    @abstractmethod
    def confirm(self, *, puts: bool = True, in_group: bool = False) -> None:
        """Put all of the state, and raise if the run does not go on; see `rundir.confirm`."""

    @abstractmethod
    def begin_group(self) -> None:
        """Have the next `confirm` look; see `rundir.begin_group`."""

    @abstractmethod
    def finish(self, *, is_last: bool, has_failed: bool) -> None:
        """End the work of one block, and all of it with the last one."""

    def leave(self) -> None:
        """Put what can be put, and let others go on, as the process ends at once."""
        thread = threading.Thread(target=self._leave, daemon=True)
        thread.start()
        thread.join(_LEAVE_SECONDS)

    def _leave(self) -> None:
        with contextlib.suppress(ShardwriteError), self._work:  # the process ends anyway
            self._put_rest()

    @abstractmethod
    def _put_rest(self) -> None:
        """Put what is left, while no other thread works on the state."""

    def _go_on(self) -> None:
        """What the thread does: put changes every few seconds, until the work is over."""
        pause = min(PUT_SECONDS, lease_times()[0])
        while not self._stop.wait(pause):
            try:
                with self._work:
                    if self._stop.is_set() or not self._step(pause):
                        return
            except ShardwriteError as error:
                told = f"the state is not in the bucket yet: {error}"
                tell(TAKEOVERS, logging.WARNING, told, run=self.target.label)

    @abstractmethod
    def _step(self, pause: float) -> bool:
        """Put what has changed; False if the work is over."""


_works: dict[Path, Work] = {}
"""Work of this process, by the directory of the state while it works on that alone."""

_beside: dict[Path, Work] = {}
"""Work that this process does beside others, by the same directory."""


@contextlib.contextmanager
def held(target: Target) -> Iterator[None]:
    """Hold the lease of a target whose run state lies in its bucket.

    - `target`: as `Target.holder` gives it.
    """
    with working(_works, target, lambda: _Alone(target, target.beside)):
        yield


@contextlib.contextmanager
def working(works: dict[Path, Work], holder: Target, make: Callable[[], Work]) -> Iterator[Work]:
    """Work on the state of an array, and share that with other blocks of this process."""
    work = _entered(works, holder.beside, make)
    try:
        with on_leaving(work.leave):
            yield work
    except BaseException:
        with contextlib.suppress(ShardwriteError):  # the first error is the one to report
            _left(works, work, has_failed=True)
        raise
    _left(works, work, has_failed=False)


def _entered(works: dict[Path, Work], key: Path, make: Callable[[], Work]) -> Work:
    while True:
        with _lock:
            work = works.setdefault(key, make())
        with work.turn:
            if work.is_closed:
                continue  # another thread has just closed it
            if not work.n_users:
                try:
                    work.open()
                except BaseException:
                    _forget(works, work)
                    raise
            work.n_users += 1
            return work


def _left(works: dict[Path, Work], work: Work, *, has_failed: bool) -> None:
    with work.turn:
        work.n_users -= 1
        try:
            work.finish(is_last=not work.n_users, has_failed=has_failed)
        finally:
            if not work.n_users:
                _forget(works, work)


def _forget(works: dict[Path, Work], work: Work) -> None:
    work.is_closed = True
    with _lock:
        works.pop(work.key, None)


@contextlib.contextmanager
def beside_others(holder: Target, make: Callable[[], Work]) -> Iterator[Work]:
    """Work on a state that other processes may add to at the same time."""
    with working(_beside, holder, make) as work:
        yield work


def refuse_alone(target: Target) -> None:
    """Refuse to work beside others if a call of this process works alone."""
    if target.holder.beside in _works:
        raise JournalError(
            f"{target.label} is being written by another call of this process; wait for it",
            path=target.label,
        )


def current_work(target: Target) -> Work | None:
    """What this process does on a run state in a bucket; None if it does nothing there."""
    directory = target.holder.beside
    with _lock:
        own = (work for work in _beside.values() if work.target.beside == directory)
        return _works.get(directory) or next(own, None)


def fetched(target: Target) -> Target:
    """Target for a look at runs whose state lies in the bucket, without the lease.

    Its directory of run state is a copy, which nobody else sees. A process that works on the run
    has a lease there, too. Other targets are returned as they are.
    """
    if target.state is None or target.state.directory in _works:
        return target
    found = read_lease(store_of(target))
    if found is None or not (found[0].holder or found[0].state):  # such a lease may be left over
        target = located(target)
        found = read_lease(store_of(target))
    if found is None or target.state is None:
        return target
    store, copy = store_of(target), target.state.directory.with_name(f"look-{uuid.uuid4().hex}")
    begin_private(copy.parent)
    with as_store_error(str(copy), "cannot make"):
        copy.mkdir(parents=True)
    log = Logs(store)
    log.restore(log.state_after(found[0]), copy)
    if found[0].holder:
        _note_holder(copy, found[0], store.changed_at(LEASE))
    return target.in_directory(copy)


def _note_holder(copy: Path, lease: LeaseRecord, renewed: float | None) -> None:
    """Leave the lease of a bucket in the directories of runs, where looks at runs expect it.

    - `renewed`: time at which the lease was renewed, in seconds since 1970; None if it is gone by
      now.
    """
    for run in runs_in(copy):
        path = run / f"lease-{lease.holder[:12]}.json"
        with as_store_error(str(path), "cannot write"):
            path.write_text(json.dumps(lease.process.to_dict()))
            if renewed is not None:
                os.utime(path, (renewed, renewed))


def runs_in(beside: Path, state: str = "run-") -> list[Path]:
    """Directories of all runs on an array that are in a state: by default, that go on."""
    places = [beside, beside / TOGETHER, *listed(beside / UPDATES), *listed(beside / ARRAYS)]
    return [run for place in places for run in listed(place, state)]


def store_of(target: Target) -> WholeStore:
    """Store that the run state of a target lies in, which lies in a bucket."""
    return cast("WholeStore", target.holder.place.store)


# ---- Runs on several arrays, whose state lies in one of them


def in_one_state(targets: Sequence[Target], *, begins: bool) -> list[Target]:
    """The same targets. New arrays of one hierarchy in a bucket have their run state in one place.

    That is inside the first of them by name. So the same call finds it there again, and excludes
    other calls that write this array. Marks keep others away from the other arrays, and say where
    the state of their run lies. A call for some of the arrays, and for others, joins that run.

    - `begins`: look at the marks.
    """
    groups: dict[tuple[str, int], list[Target]] = {}
    for target, way in zip(targets, ways_to(targets), strict=True):
        if target.state is not None and target.home is not None:
            groups.setdefault((state_name(cast("InStore", target.top)), way), []).append(target)
    states: dict[Target, StateInBucket] = {}
    for group in groups.values():
        placed = {one: state for one in group if (state := _placed(one, begins=begins))}
        first = min(placed or group, key=lambda target: target.name)
        own = placed.get(first) or cast("StateInBucket", first.state)
        states |= {one: placed.get(one, own) for one in group}
    return [target.kept_in(states[target]) if target in states else target for target in targets]


def _placed(target: Target, *, begins: bool) -> StateInBucket | None:
    """Where the run state of a target lies already, if that is known."""
    if target.state is None or target.is_kept_elsewhere or target.state.directory in _works:
        return target.state
    return _marked_state(target) if begins else None


def _marked_state(target: Target) -> StateInBucket | None:
    """State of the run that makes an array in a bucket, as the mark of that run says, if any."""
    state, place = target.state, cast("InStore", target.place)
    if state is None or target.update or target.recovers:
        return None
    mark = place.mark
    if not mark.keeper:
        return state if mark.run else None
    keeper = place.sibling(mark.array, mark.keeper)
    return StateInBucket(keeper, state.directory.with_name(state_name(keeper)))


def located(target: Target) -> Target:
    """The target with its run state where a run on several arrays keeps it, as its mark says."""
    state = None if target.is_kept_elsewhere else _marked_state(target)
    return target if state is None else target.kept_in(state)


class _Alone(Work):
    """Work of this process on the runs of an array, under the lease."""

    def __init__(self, holder: Target, directory: Path) -> None:
        super().__init__(holder, directory)
        self._is_lost = False
        self._lease = StateLease(self._store, holder.label)
        self._waiting: bytes | None = None
        self._state, self._older = "", ""
        self._renewed = -math.inf  # time of the last renewal, by the clock of `process.now`
        self._looked = -math.inf  # time of the last look at it, or of that renewal
        self._has_log = False  # the lease was renewed after the first object of the log was put

    def open(self) -> None:
        """See `Work`: take the lease first."""
        beside = self.target.beside
        begun = now()
        self._state = self._lease.take(self._log.state_after)
        self._renewed = begun
        self._prolong()
        try:
            shutil.rmtree(beside, ignore_errors=True)
            begin_private(beside.parent)
            self._log.restore(self._state, beside)
            found = [run for state in _STATES for run in runs_in(beside, state)]
            self.resumed = frozenset(run.name.partition("-")[2] for run in found)
            self._thread.start()
        except BaseException:
            with contextlib.suppress(StoreError):  # the first error is the one to report
                self._lease.release(self._state)
            raise

    def check(self) -> None:
        """Raise if the lease is lost.

        - Raises RunEndedError if it is.
        """
        if self._is_lost:
            raise RunEndedError(
                f"another process has taken over the run on {self.target.label}",
                path=str(self.target.run_path),
            )

    @property
    def fence(self) -> AloneFence:
        """What tasks in other processes need to ask for the lease."""
        above = str(self.target.beside.parent)
        holder, label = self._lease.holder, self.target.label
        return AloneFence(self._store, holder, this_process(), above, label)

    @property
    def is_late(self) -> bool:  # type: ignore[override]
        """See `Work`."""
        return now() > self._lease.deadline

    def confirm(self, *, puts: bool = True, in_group: bool = False) -> None:
        """See `Work`."""
        with self._work:
            self.check()
            if not self._has_log:  # a process that was frozen until now must not begin a log
                self._renew()
                self.check()
            if puts or not self._has_log:
                self._put()
            if not (in_group and self._has_log and self._is_new(self._looked)):
                self._look()
            self.check()

    def begin_group(self) -> None:
        """See `Work`."""
        self._looked = -math.inf

    def _look(self) -> None:
        """Look whether this process still holds the lease, which is renewed after some time."""
        begun = now()
        if self._has_log and self._is_new(self._renewed) and self._lease.is_as_put():
            self._looked = begun
        else:
            self._renew()

    @staticmethod
    def _is_new(since: float) -> bool:
        """Whether a look or a renewal was a moment ago."""
        return now() - since < min(_NEW_SECONDS, lease_times()[0] / 2)

    def finish(self, *, is_last: bool, has_failed: bool) -> None:  # noqa: ARG002
        """Put the rest of the state, or remove it if no run is left, and give the lease back."""
        if is_last:
            self._close()

    def _close(self) -> None:
        self._stop.set()
        if not has_ended(self._thread):
            return
        beside = self.target.beside
        try:
            with self._work:
                if self._is_lost:
                    return
                is_over = self._changes.is_empty
                if not is_over:
                    self._put()
                # Listed now, as another process may begin as soon as the lease is given back.
                # Without a state in the lease, a log that is left in part is not read.
                left = self._log.found() if is_over else []
                if not self._lease.release("" if is_over else self._state):
                    self._remove_own_log()
                elif is_over:
                    self._log.remove(left)
                    self._lease.remove()
                elif not self._has_log:
                    self._remove_older_log()
        finally:
            self._lease.forget()
            forget_deadline(beside)
            shutil.rmtree(beside, ignore_errors=True)

    def _put_rest(self) -> None:
        self._stop.set()
        if not self._is_lost and not self._changes.is_empty:
            self._put()
            self._lease.release(self._state)

    def _step(self, pause: float) -> bool:
        """Put what changes, and renew the lease, until the end."""
        if self._is_lost:
            return False
        heartbeat, _ = lease_times()
        if now() - self._renewed >= heartbeat - pause / 2:
            self._renew()
        if self._n_put and not self._is_lost:  # the first is put by `confirm`
            self._put()
        return True

    def _put(self) -> None:
        """Put what has changed. What could not be put is put again, as it was, before the rest."""
        if self._waiting is None:
            steps = self._changes.since_last()
            if not steps and (self._n_put or not self._state):
                return
            self._waiting = encode(steps)
        self._log.put(self._lease.holder, self._n_put, self._waiting)
        self._waiting = None
        self._n_put += 1
        if self._n_put == 1:
            self._older, self._state = self._state, self._lease.holder

    def _renew(self) -> None:
        """Renew the lease, and remove the log that the own one goes on from, once it is there."""
        own = self._log.key(self._lease.holder, 0)
        begun = now()
        if not self._lease.renew(self._state, own if self._has_log else None):
            self._lose()
            return
        self._renewed = self._looked = begun
        self._prolong()
        if self._n_put and not self._has_log:
            self._has_log = True
            self._remove_older_log()

    def _remove_older_log(self) -> None:
        """Remove the log that this one goes on from, now that the lease names this one."""
        if self._older:
            with contextlib.suppress(StoreError):  # at the end it is removed, too
                own = set(self._log.found_of(self._lease.holder))
                self._log.remove(key for key in self._log.found() if key not in own)

    def _remove_own_log(self) -> None:
        """Remove the log of this process, unless the one that took over has its state from it."""
        holder = self._lease.holder
        with contextlib.suppress(ShardwriteError):  # it is in nobody's way
            found = read_lease(self._store)
            if found is None or holder not in (found[0].holder, found[0].state):
                self._log.remove(self._log.found_of(holder))

    def _prolong(self) -> None:
        beside = self.target.beside
        tokens = [token for run in runs_in(beside) for token in listed(run, "token-")]
        set_deadline(beside, self._lease.deadline, tokens)

    def _lose(self) -> None:
        """Move the directory away, so that all tasks of this process stop."""
        self._is_lost = True
        beside = self.target.beside
        tell(TAKEOVERS, logging.WARNING, "another process has taken over", run=self.target.label)
        with contextlib.suppress(FileNotFoundError):
            gone = beside.with_name(f"lost-{uuid.uuid4().hex}")
            os.rename(beside, gone)
            shutil.rmtree(gone, ignore_errors=True)
        self._remove_own_log()

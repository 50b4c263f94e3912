"""Leases: files that say which processes work on a run, and that these processes are alive.

A lease appears whole, under a name that only its holder uses. Its holder touches it at the interval
that `lease_times` gives. File locks are not used, because some cluster file systems grant them to
everybody.

A holder counts as alive as long as its lease is touched. On its own host, a process that is gone is
known to be dead at once. That a machine has started anew is believed only if its identifier is the
same, because two machines may have one host name. Ages are measured by the file system's clock, so
that the clocks of hosts need not agree. Each lease or claim states the age in seconds at which its
holder counts as dead. Processes with other settings therefore judge it as its holder does. The
time of a lease may lie so far in the future that its age says nothing. Such a lease is watched for
that many seconds, in which a holder that lives touches it.
"""

from __future__ import annotations

import contextlib
import errno
import getpass
import hashlib
import json
import logging
import math
import os
import socket
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from urllib.parse import quote, unquote

from shardwrite.config.table import HEARTBEAT, TTL, refused, value_of
from shardwrite.errors import RunEndedError
from shardwrite.host.stopping import TAKEOVERS, has_ended, tell
from shardwrite.journal.process import Holder, Process, process_in
from shardwrite.seams import resolve
from shardwrite.stores.looking import (
    as_store_error,
    is_there,
    listed,
    opened,
    parse_json,
    read_file,
    write_new,
)
from shardwrite.stores.posix import NO_ROOM
from shardwrite.stores.removal import TEMPORARY_SUFFIX, is_open_temporary

CLOCK = "clock-"
_CUT = ("in-", "-parts")
_JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")
_DAY = 86400.0
_held: set[Path] = set()
_failed: set[Path] = set()
_watched: dict[Path, int | None] = {}


def lease_times() -> tuple[float, float]:
    """Heartbeat and lifetime of a lease in seconds, from dask's configuration.

    The settings are ``shardwrite.lease.heartbeat`` and ``shardwrite.lease.ttl``.

    - Raises SpecError if a setting is not a positive number, or if the lifetime is not more than
      twice the heartbeat, because a living process could then count as dead.
    """
    heartbeat, ttl = value_of(HEARTBEAT), value_of(TTL)
    if ttl <= 2 * heartbeat:
        raise refused(
            TTL,
            ttl,
            "lets a living process count as dead",
            f"give more than twice {HEARTBEAT.path}, which is {heartbeat:g} s",
        )
    return heartbeat, ttl


def _read(path: str) -> str:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return os.fsdecode(file.read()).strip()  # names of processes hold any bytes
    return ""


def _started(pid: int) -> str:
    """Time at which a process started, in clock ticks since boot, or an empty text.

    It distinguishes the process from a later one with the same pid.
    """
    stat = _read(f"/proc/{pid}/stat")
    return stat.rpartition(")")[2].split()[19] if stat else ""


@cache
def boot_id() -> str:
    """Identifier of the current boot of this machine; empty where it cannot be read."""
    return _read("/proc/sys/kernel/random/boot_id")


@cache
def machine_id() -> str:
    """Digest of this machine's identifier; empty where it has none, as in many containers."""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        found = _read(path)
        if found:
            return hashlib.sha256(b"shardwrite " + found.encode()).hexdigest()[:12]
    return ""


def _pid_namespace() -> str:
    """Name of this process's pid namespace; empty where it cannot be read."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


@cache
def _since_its_start(pid: int) -> tuple[str, str]:
    """Pid namespace and start of this process; its pid makes a process forked from it another.

    The system needs longer to tell the start of a process, the more threads it has.
    """
    return _pid_namespace(), _started(pid)


@cache
def _user(number: int) -> str:  # noqa: ARG001 (a process may become that of another user)
    """Name of the user of this process; empty if it has none, as in a container.

    On clusters, a server may have to be asked for it.
    """
    with contextlib.suppress(KeyError, OSError):
        return getpass.getuser()
    return ""


def this_process() -> Process:
    """Identity of this process, with all fields but the token of a claim."""
    job = next((f"{name}={os.environ[name]}" for name in _JOBS if name in os.environ), "")
    pids, started = _since_its_start(os.getpid())
    return Process(
        host=socket.gethostname(),
        pid=os.getpid(),
        boot=boot_id(),
        machine=machine_id(),
        pids=pids,
        started=started,
        ttl=lease_times()[1],
        job=job,
        user=_user(os.getuid()),
    )


class Lease:
    """A context manager that holds a lease while a process works on a run.

    A thread touches the lease until the block ends. Then the lease is removed.

    - Raises RunEndedError on entry, if the run's directory is gone.
    """

    def __init__(self, run_path: str | os.PathLike[str], driver: str) -> None:
        self.path = Path(run_path) / f"lease-{driver}.json"
        self._heartbeat, _ = lease_times()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"lease-{driver}", daemon=True)

    def __enter__(self) -> Lease:
        draft = self.path.with_name(f"draft-{uuid.uuid4().hex}")
        try:
            # An empty lease would count as held by an unknown process that is alive. Syncing
            # prevents one after a power cut; renaming makes the lease appear whole.
            write_new(draft, json.dumps(this_process().to_dict()).encode(), is_durable=True)
            os.rename(draft, self.path)
        except OSError as error:
            # The first error is the one to report. A draft is not a lease, and goes with the run.
            with contextlib.suppress(OSError):
                os.unlink(draft)
            if error.errno == errno.ENOENT and not is_there(self.path.parent):
                raise RunEndedError(
                    "another process has ended this run", path=str(self.path.parent)
                ) from error
            with as_store_error(str(self.path), "cannot take the lease"):
                raise
        _held.add(self.path)
        try:
            self._thread.start()
        except BaseException:  # as where the system allows no more threads
            self._give_back()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        has_ended(self._thread)
        self._give_back()

    def _give_back(self) -> None:
        _held.discard(self.path)
        # The run may have ended. A lease that cannot be removed is later found to be dead.
        with contextlib.suppress(OSError):
            os.unlink(self.path)

    def _beat(self) -> None:
        while not self._stop.wait(self._heartbeat):
            try:
                os.utime(self.path)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ENOTDIR):
                    return  # the run has ended, which tasks find out themselves


def release_all() -> None:
    """Remove all leases of this process, which is about to end."""
    for path in list(_held):
        # The process ends anyway, and a lease that is left behind is found to be dead.
        with contextlib.suppress(OSError):
            os.unlink(path)


def part_name(index: int, count: int) -> str:
    """Path of the directory of a part, in that of the run."""
    return f"{_CUT[0]}{count}{_CUT[1]}/{index}"


def is_cut(name: str) -> bool:
    """Whether a name in the directory of a run is that of the directory of its parts."""
    return name.startswith(_CUT[0]) and name.endswith(_CUT[1])


def work_files(
    run_path: str | os.PathLike[str],
    prefix: str = "",
    suffix: str = "",
    among: Sequence[Path] | None = None,
) -> list[Path]:
    """Files that processes have in the directory of a run, and in those of its parts.

    - `among`: directories in which they are looked for; by default, all of these.
    """
    if among is not None:
        return [path for each in among for path in listed(each, prefix, suffix)]
    there = listed(run_path)
    own = [path for path in there if path.name.startswith(prefix) and path.name.endswith(suffix)]
    parts = [part for path in there if is_cut(path.name) for part in listed(path)]
    return own + work_files(run_path, prefix, suffix, parts)


def live_holders(
    run_path: str | os.PathLike[str],
    *,
    looking: bool = False,
    among: Sequence[Path] | None = None,
) -> list[Holder]:
    """Holders of a run's leases that are alive, or may be.

    - `looking`: whether nothing may be written there. Ages are then measured by this host's clock.
      If that clock is wrong by more than a lease's lifetime, a process on another host can be
      reported as alive or dead by mistake. And a process of another host is left out if its job is
      over, as SLURM says. So only messages to people may depend on the result.
    """
    leases = work_files(run_path, "lease-", ".json", among)
    found, ahead = [], {}
    now, me = None, this_process()
    for path in leases:
        with (
            as_store_error(str(path), "cannot read"),
            contextlib.suppress(FileNotFoundError),  # it was given back meanwhile
        ):
            now = _now(Path(run_path), looking=looking) if now is None else now
            age = now - path.stat().st_mtime
            data = read_file(path)
            if data is None:
                continue  # it was given back meanwhile
            process = process_in(data) or Process()
            if (path in _held or not process.is_same(me)) and lives(process, me, age):
                # The clock of a file system or of another host may be ahead of that of this host.
                holder = Holder(process, path.stem.removeprefix("lease-"), max(0.0, age))
                found.append(holder)
                if age < -_ttl_of(process):
                    ahead[path] = holder
    if looking:
        return _without_ended(found, me)
    if ahead and len(ahead) == len(found):
        return _touched(ahead)
    return found


def _without_ended(holders: list[Holder], me: Process) -> list[Holder]:
    """Holders without those on other hosts whose jobs are over, as far as SLURM tells."""
    jobs = {
        holder.driver: job
        for holder in holders
        if (job := slurm_job(holder.process.job)) and not _is_near(holder.process, me)
    }
    if not jobs:
        return holders
    try:
        over, doubt = resolve("job", "over")(sorted({*jobs.values()}))
    except LookupError:  # nobody else knows how to ask
        return holders
    return [
        replace(holder, doubt=doubt if holder.driver in jobs else "")
        for holder in holders
        if jobs.get(holder.driver) not in over
    ]


def slurm_job(job: str | None) -> str:
    """Number of the job that a lease or a journal names; empty if it is not one of SLURM."""
    name, _, number = (job or "").partition("=")
    return number if name == _JOBS[0] and number.isdigit() else ""


def _is_near(process: Process, me: Process) -> bool:
    """Whether a process is one of this host and its container, which can be looked at."""
    is_here = process.host == me.host and bool(me.boot)
    return is_here and (process.boot, process.pids) == (me.boot, me.pids)


def _touched(ahead: Mapping[Path, Holder]) -> list[Holder]:
    """Watch leases whose times lie in the future; the holders of those that are touched.

    A lease that was watched before, and was not touched since, is not watched again.
    """
    before = {path: _touched_at(path) for path in ahead}
    if all(_watched.get(path, -1) == time_ns for path, time_ns in before.items()):
        return []
    seconds = max(_ttl_of(holder.process) for holder in ahead.values())
    told = f"waiting for {seconds:.0f} s at most, to see whether a lease from the future is renewed"
    tell(TAKEOVERS, logging.INFO, told, run=next(iter(ahead)).parent)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(min(seconds / 20, 1.0))
        now = {path: _touched_at(path) for path in ahead}
        if any(now[path] not in (None, before[path]) for path in ahead):
            return [ahead[path] for path in ahead if now[path] not in (None, before[path])]
    _watched.update(before)
    return []


def _touched_at(path: Path) -> int | None:
    """Time of a file in nanoseconds; None if it is gone."""
    with as_store_error(str(path), "cannot look at"), contextlib.suppress(FileNotFoundError):
        return path.stat().st_mtime_ns
    return None


def is_alive(path: Path, data: bytes) -> bool:
    """Whether the holder that a claim, lock or note names is alive, or may be.

    A holder counts as dead once its file has not been touched for the time that the file states.
    Such files appear whole. So a torn one was left by a power cut, and has no holder.
    """
    holder = process_in(data)
    if holder is None:
        return False
    age = _age(path)
    if age is None or not lives(holder, this_process(), age):
        return False
    return age >= -_ttl_of(holder) or bool(_touched({path: Holder(holder, "", age)}))


def is_this_process(process: Process) -> bool:
    """Whether an identity is that of this process."""
    return process.is_same(this_process())


def lives(holder: Process, me: Process, age: float) -> bool:
    """Whether a holder is alive, or may be, by its identity and the age of its file in seconds."""
    if holder.host == me.host and me.boot:
        if holder.boot != me.boot and holder.machine and holder.machine == me.machine:
            return False  # the machine has started anew since then
        if _is_near(holder, me) and holder.pid is not None:
            is_running = bool(holder.started) and _started(holder.pid) == holder.started
            # A process that exists may be frozen, or may have failed to give its lease back.
            return is_running and age < _ttl_of(holder)
    return age < _ttl_of(holder)


def _ttl_of(holder: Process) -> float:
    """Age in seconds at which a lease counts as dead.

    It is stated in the lease, or else is this process's setting.
    """
    return lease_times()[1] if holder.ttl is None else float(holder.ttl)


def signature() -> str:
    """Identity of this process as text, for the name of a directory or a temporary.

    `is_left_behind` and `is_abandoned` read it.
    """
    me = this_process()
    namespace = "".join(filter(str.isdigit, me.pids or ""))
    machine = (me.boot or "", namespace, str(me.pid), me.started or "", me.machine or "")
    return ",".join((quote(me.host or "", safe=""), *machine))


def note_failed(*drafts: Path) -> None:
    """Note that this process has failed to make something of its drafts.

    Where they could not even be removed, they are left behind although the process lives.
    """
    _failed.update(drafts)


def is_left_behind(path: Path) -> bool:
    """Whether a directory still exists but the process that made it is gone, or has failed.

    The name of the directory, or the plan in it, identifies the process. A process on another host
    counts as gone once nothing was created, renamed or removed in the directory for the lifetime
    of a lease.
    """
    age = _age(path)
    if path in _failed:
        return age is not None
    return age is not None and not lives(_maker(path), this_process(), age)


def is_abandoned(path: Path) -> bool:
    """Whether a temporary whose name ends in a `signature` was left by a process that is gone.

    Nobody touches a temporary while a value is made that will be written to it. So the age counts
    only if the process cannot be looked at, because it is on another host, and is then a day. The
    clocks of hosts agree well enough for that.
    """
    maker = _signed_by(path.name.removesuffix(TEMPORARY_SUFFIX))
    if maker is None:
        return False
    me = this_process()
    if maker.is_same(me):
        return not is_open_temporary(str(path))
    if not lives(replace(maker, ttl=math.inf), me, 0):
        return True
    is_near = (maker.host, maker.boot, maker.pids) == (me.host, me.boot, me.pids)
    return not is_near and time.time() - path.lstat().st_mtime > _DAY


def _signed_by(name: str) -> Process | None:
    """Identity of the process whose `signature` is the end of a name; None if there is none."""
    _, *signed = name.split(",")
    if len(signed) not in (5, 6):  # older versions named no machine
        return None
    host, boot, namespace, pid, started = signed[:5]
    return Process(
        host=unquote(host),
        boot=boot,
        pids=f"pid:[{namespace}]" if namespace else "",
        pid=int(pid) if pid.isdigit() else None,
        started=started,
        machine="".join(signed[5:]),
    )


def _maker(path: Path) -> Process:
    """Identity of the process that made a directory; all fields are None where it is unknown."""
    signed = _signed_by(path.name)
    if signed is not None:
        return signed
    try:
        plan = parse_json(read_file(path / "plan.json") or b"{}")
    except ValueError:  # it is torn
        return Process()
    return Process.from_dict(plan.get("begun_by") if isinstance(plan, dict) else None)


def _age(path: Path) -> float | None:
    """Seconds since a file or directory was last changed; None where it is gone."""
    with as_store_error(str(path), "cannot look at"), contextlib.suppress(FileNotFoundError):
        return file_system_time(path.parent) - path.stat().st_mtime
    return None


def _now(directory: Path, *, looking: bool) -> float:
    """Current time in seconds, for the age of a lease: by this host's clock when only looking."""
    return time.time() if looking else file_system_time(directory)


def file_system_time(directory: Path) -> float:
    """Current time in seconds, by the clock that stamps the files of a directory.

    A file is created there for a moment. Where a full disk has no room for it, the directory is
    touched, which the creation of a file does, too.
    """
    path = directory / f"{CLOCK}{uuid.uuid4().hex}"
    flags = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_WRONLY
    try:
        fd = opened(path, flags, 0o666)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        os.utime(directory)
        return directory.stat().st_mtime
    try:
        # The descriptor works even if another process has removed the file as a leftover.
        return os.fstat(fd).st_mtime
    finally:
        os.close(fd)
        path.unlink(missing_ok=True)

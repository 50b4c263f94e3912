"""Leases: files that say who works on a run, and that they still do.

A lease appears whole, under a name that only its holder has, and is touched at the interval that
`lease_times` gives. File locks are not used, because some cluster file systems grant them to
everybody. A holder lives as long as its lease is touched; on its own host, a process that is gone is
known to be dead at once. Ages are taken from the file system's clock, so that the clocks of hosts
need not agree. A lease or claim says itself after how many seconds it is old: processes with other
settings judge it as its holder does.
"""

from __future__ import annotations

import contextlib
import errno
import getpass
import json
import math
import os
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard
from urllib.parse import quote, unquote

import dask

from shardwrite.errors import SpecError, StoreError
from shardwrite.stores import as_store_error, listed, parse_json, read_file, write_new

__all__ = [
    "CLOCK",
    "HEARTBEAT_SECONDS",
    "TTL_SECONDS",
    "Lease",
    "holder_in",
    "identity",
    "is_alive",
    "is_left_behind",
    "is_this_process",
    "lease_times",
    "live_holders",
    "release_all",
    "signature",
]

HEARTBEAT_SECONDS = 15.0
TTL_SECONDS = 120.0
CLOCK = "clock-"
_JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")
_held: set[Path] = set()


def lease_times() -> tuple[float, float]:
    """Heartbeat and lifetime of a lease in seconds, as dask's configuration sets them.

    Raises
    ------
    SpecError
        If a setting is no positive number, or a living process would count as dead.
    """
    heartbeat, ttl = _configured("heartbeat", HEARTBEAT_SECONDS), _configured("ttl", TTL_SECONDS)
    if (heartbeat, ttl) != (HEARTBEAT_SECONDS, TTL_SECONDS) and ttl <= 2 * heartbeat:
        remedy = f"give more than twice shardwrite.lease.heartbeat, which is {heartbeat:g} s"
        raise SpecError(
            "a living process could count as dead",
            field="shardwrite.lease.ttl",
            value=ttl,
            remedy=remedy,
        )
    return heartbeat, ttl


def _configured(name: str, default: float) -> float:
    seconds = dask.config.get(f"shardwrite.lease.{name}", None)
    if seconds is None:
        return default
    if not _is_duration(seconds):
        remedy = "give a positive number of seconds in dask's configuration"
        raise SpecError(
            "is no time", field=f"shardwrite.lease.{name}", value=seconds, remedy=remedy
        )
    return float(seconds)


def _is_duration(seconds: object) -> TypeGuard[float]:
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool):
        return False
    return math.isfinite(seconds) and seconds > 0


def _read(path: str) -> str:
    with contextlib.suppress(OSError), open(path) as file:
        return file.read().strip()
    return ""


def _started(pid: int) -> str:
    """When a process started, in ticks since boot; tells it from a later one of the same number."""
    stat = _read(f"/proc/{pid}/stat")
    return stat.rpartition(")")[2].split()[19] if stat else ""


def boot_id() -> str:
    """Names the time since this machine was started."""
    return _read("/proc/sys/kernel/random/boot_id")


def _pid_namespace() -> str:
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def identity() -> dict[str, Any]:
    """Who this process is: host, pid, and what tells it from others of the same pid; job and user for people.

    ``ttl`` is the age in seconds at which its leases and locks count as dead.
    """
    job = next((f"{name}={os.environ[name]}" for name in _JOBS if name in os.environ), "")
    user = ""
    with contextlib.suppress(KeyError, OSError):  # a container may have no name for its user
        user = getpass.getuser()
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "boot": boot_id(),
        "pids": _pid_namespace(),
        "started": _started(os.getpid()),
        "ttl": lease_times()[1],
        "job": job,
        "user": user,
    }


class Lease:
    """Held while a process works on a run.

    Parameters
    ----------
    run_path : path
        Directory of the run.
    driver : str
        Name of the process in this run.
    """

    def __init__(self, run_path: str | os.PathLike[str], driver: str) -> None:
        self.path = Path(run_path) / f"lease-{driver}.json"
        self._heartbeat, _ = lease_times()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"lease-{driver}", daemon=True)

    def __enter__(self) -> Lease:
        draft = self.path.with_name(f"draft-{uuid.uuid4().hex}")
        try:
            # After a power cut, an empty lease would have to be taken for a living one.
            write_new(draft, json.dumps(identity()).encode(), is_durable=True)
            os.rename(
                draft, self.path
            )  # whole from the beginning: an empty lease would be a living one, of nobody
        except OSError as error:
            with contextlib.suppress(
                OSError
            ):  # the first error is the one to tell; a draft is no lease, and goes with the run
                os.unlink(draft)
            raise StoreError(
                f"cannot take a lease: {error.strerror}", key=str(self.path), errno=error.errno
            ) from error
        _held.add(self.path)
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()
        _held.discard(self.path)
        with contextlib.suppress(
            OSError
        ):  # the run has ended; or it cannot be removed, and is found to be dead
            os.unlink(self.path)

    def _beat(self) -> None:
        while not self._stop.wait(self._heartbeat):
            try:
                os.utime(self.path)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ENOTDIR):
                    return  # the run has ended; tasks find out for themselves


def release_all() -> None:
    """Give back what this process holds, at once; for a process about to end."""
    for path in list(_held):
        with contextlib.suppress(
            OSError
        ):  # it ends anyway, and a lease left behind is found to be dead
            os.unlink(path)


def live_holders(
    run_path: str | os.PathLike[str], *, looking: bool = False
) -> list[dict[str, Any]]:
    """Holders of a run's leases that live, or may: ``host``, ``pid``, ``job``, ``driver`` and ``age_seconds``.

    Parameters
    ----------
    run_path : path
        Directory of the run.
    looking : bool
        Whether nothing may be written there. The ages of leases are then taken from this host's clock.
        If it is wrong by more than a lease's lifetime, a process on another host can be reported alive
        or dead by mistake, so only what is told to people may depend on it.
    """
    leases = listed(run_path, "lease-", ".json")
    found = []
    now, me = None, identity()
    for path in leases:
        with (
            as_store_error(str(path), "cannot read"),
            contextlib.suppress(FileNotFoundError),
        ):  # given back meanwhile
            now = _now(Path(run_path), looking=looking) if now is None else now
            age = now - path.stat().st_mtime
            data = read_file(path)
            if data is None:
                continue  # given back meanwhile
            holder = holder_in(data)
            if (path in _held or not _is_me(holder, me)) and _lives(holder, me, age):
                driver = path.stem.removeprefix("lease-")
                found.append({**holder, "driver": driver, "age_seconds": age})
    return found


def is_alive(path: Path, data: bytes) -> bool:
    """Whether the holder that a lock names lives, or may; one that is not touched is old after the time that it says.

    A lock appears whole, so that one which is torn is what a power cut has left.
    """
    holder = holder_in(data)
    if not holder:
        return False
    age = _age(path)
    return age is not None and _lives(holder, identity(), age)


def holder_in(data: bytes) -> dict[str, Any]:
    """Who holds a lease or a claim, as it says; one that is torn says nothing."""
    try:
        holder = parse_json(data)
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def _is_me(holder: dict[str, Any], me: dict[str, Any]) -> bool:
    """Whether a lease is this process's, which knows what it holds."""
    return all(holder.get(name) == me[name] for name in ("host", "boot", "pids", "pid", "started"))


def is_this_process(holder: Mapping[str, Any]) -> bool:
    """Whether an identity is this process's own."""
    return _is_me(dict(holder), identity())


def _lives(holder: dict[str, Any], me: dict[str, Any], age: float) -> bool:
    if holder.get("host") == me["host"] and me["boot"]:
        if holder.get("boot") != me["boot"]:
            return False
        if holder.get("pids") == me["pids"] and isinstance(holder.get("pid"), int):
            lives = bool(holder.get("started")) and _started(holder["pid"]) == holder["started"]
            return lives and age < _ttl_of(
                holder
            )  # it may be frozen, or have failed to give the lease back
    return age < _ttl_of(holder)


def _ttl_of(holder: dict[str, Any]) -> float:
    """Age in seconds at which a lease counts as dead: what it says itself, or else this process's setting."""
    seconds = holder.get("ttl")
    return float(seconds) if _is_duration(seconds) else lease_times()[1]


def signature() -> str:
    """Identity of this process, as text for the name of a directory; see `is_left_behind`."""
    me = identity()
    namespace = "".join(filter(str.isdigit, me["pids"]))
    return ",".join(
        (quote(me["host"], safe=""), me["boot"], namespace, str(me["pid"]), me["started"])
    )


def is_left_behind(path: Path) -> bool:
    """Whether the process that made a directory is gone, and the directory is still there.

    The directory's name or the plan in it tells which process that was. A process on another host counts as gone
    once nothing was made or renamed in the directory for as long as it takes a lease to run out.
    """
    age = _age(path)
    return age is not None and not _lives(_maker(path), identity(), age)


def _maker(path: Path) -> dict[str, Any]:
    """Who made a directory; nothing where neither its name nor its plan tells."""
    _, *signed = path.name.split(",")
    if len(signed) == 5:
        host, boot, namespace, pid, started = signed
        pids = f"pid:[{namespace}]" if namespace else ""
        return {
            "host": unquote(host),
            "boot": boot,
            "pids": pids,
            "pid": int(pid) if pid.isdigit() else None,
            "started": started,
        }
    found = holder_in(read_file(path / "plan.json") or b"{}").get("begun_by")
    return found if isinstance(found, dict) else {}


def _age(path: Path) -> float | None:
    """Seconds since something was changed, None where it is gone."""
    with as_store_error(str(path), "cannot look at"), contextlib.suppress(FileNotFoundError):
        return file_system_time(path.parent) - path.stat().st_mtime
    return None


def _now(directory: Path, *, looking: bool) -> float:
    """The time to which the age of a lease is counted."""
    return time.time() if looking else file_system_time(directory)


def file_system_time(directory: Path) -> float:
    """The time by the clock that stamps files in a directory."""
    path = directory / f"{CLOCK}{uuid.uuid4().hex}"
    flags = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_WRONLY
    fd = os.open(path, flags, 0o666)
    try:
        return os.fstat(
            fd
        ).st_mtime  # also where another process takes the file for one that was left behind
    finally:
        os.close(fd)
        path.unlink(missing_ok=True)

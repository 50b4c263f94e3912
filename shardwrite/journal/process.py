"""The identity of a process, as leases, claims, journals and plans hold it, and its deadline.

A process that holds the lease of a run in a bucket must know by itself when the lease may have run
out. Another process then goes on in its place. The deadline stands in the tokens of the holder, at
which every task looks before it commits. The clock is that of the host. It goes on while the host
sleeps, and nobody sets it.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Annotated

from shardwrite._dataclass import dataclass
from shardwrite.codecs.documents import JSON
from shardwrite.errors import JournalError
from shardwrite.records import POSITIVE, Record
from shardwrite.stores.looking import opened, parse_json

# ---- Identities


@dataclass(frozen=True, slots=True, kw_only=True)
class Process(Record):
    """Identity of a process. A field is None where it is not known."""

    _lenient = True

    host: str | None = None  # name of the host
    pid: int | None = None  # number of the process
    boot: str | None = None  # identifier of the host's boot; empty where the host has none
    # Digest of the machine's identifier, which stays when it starts anew; empty where it has none.
    # It distinguishes the machine from others of the same host name.
    machine: str | None = None
    pids: str | None = None  # name of the pid namespace; empty where it cannot be read
    # Time at which the process started, in clock ticks since boot. `boot`, `pids` and `started`
    # distinguish the process from others with the same pid.
    started: str | None = None
    ttl: Annotated[float, POSITIVE] | None = (
        None  # age in seconds at which its leases and claims count as dead
    )
    job: str | None = None  # batch job and user, which are only shown to people
    user: str | None = None
    token: str | None = None  # unique name of a claim's holder

    @property
    def name(self) -> str:
        """Host and pid, for people."""
        return f"host {self.host or 'unknown'}, pid {self.pid or 'unknown'}"

    def is_same(self, other: Process) -> bool:
        """Whether both are identities of one process."""
        return self._place == other._place and self.pid is not None

    @property
    def _place(self) -> tuple[str | int | None, ...]:
        return self.host, self.boot, self.pids, self.pid, self.started


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds a lease."""

    process: Process  # its identity; nothing is known if the lease is torn
    driver: str  # its name in the run
    age_seconds: float  # age of its lease, 0 or more
    # Why it is not known whether its job goes on; empty if it does, or nobody had to be asked
    doubt: str = ""

    @property
    def told(self) -> str:
        """What people are told of it: where it runs, its job, and when it was last alive."""
        job = f" {self.process.job}" if self.process.job else ""
        doubt = f"; {self.doubt}" if self.doubt else ""
        return f"{self.process.host}, pid {self.process.pid}{job}, {self.last_sign}{doubt}"

    @property
    def last_sign(self) -> str:
        """When it was last alive, in words."""
        return f"last sign of life {self.age_seconds:.0f} s ago"

    def error(self, label: str, by: str, path: str) -> JournalError:
        """Error that says which process works on an array.

        - `by`: what works on it, as ``"another plan"``.
        """
        job = f", job {self.process.job}" if self.process.job else ""
        return JournalError(
            f"{label} is being written by {by}: {self.process.name}{job}; {self.last_sign}. "
            "Wait for it, or end that process first",
            path=path,
            holder=self.to_dict(),
        )

    def to_dict(self) -> dict[str, JSON]:
        """Return all that is known, as the field `holder` of an error."""
        return {
            **self.process.to_dict(),
            "driver": self.driver,
            "age_seconds": self.age_seconds,
        }


def process_in(data: bytes) -> Process | None:
    """Identity in the content of a lease, claim or lock; None where the content is torn."""
    try:
        found = parse_json(data)
    except ValueError:
        return None
    return Process.from_dict(found) if isinstance(found, dict) and found else None


# ---- Deadlines of leases in a bucket


_NBYTES = 32

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

_deadlines: dict[str, float] = {}


def now() -> float:
    """Seconds since this host was started."""
    return time.clock_gettime(_CLOCK)


def deadline_text(run_path: Path) -> bytes:
    """Content of a new token of a run; empty if the run needs no deadline."""
    for above in run_path.parents:
        if str(above) in _deadlines:
            return _text(_deadlines[str(above)])
    return b""


def set_deadline(beside: Path, deadline: float, tokens: list[Path]) -> None:
    """Put off the deadline of all runs in a directory.

    - `deadline`: time in seconds, by the clock of `now`.
    """
    _deadlines[str(beside)] = deadline
    for token in tokens:
        with contextlib.suppress(FileNotFoundError):  # its run has ended
            fd = opened(token, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.pwrite(fd, _text(deadline), 0)
            finally:
                os.close(fd)


def forget_deadline(beside: Path) -> None:
    """Forget the deadline of the runs in a directory."""
    _deadlines.pop(str(beside), None)


def is_past(token: int) -> bool:
    """Whether the deadline in a token has passed."""
    text = os.read(token, _NBYTES)
    try:
        return bool(text) and now() > float(text)
    except ValueError:  # it is damaged
        return True


def _text(deadline: float) -> bytes:
    return f"{deadline:<{_NBYTES}.3f}".encode()

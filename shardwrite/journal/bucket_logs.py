"""The logs of run state in a bucket: which objects there are, and which of them count.

Each holder of the lease has a log of its own (`journal.bucket_log`), whose first object has all of
the state that the holder found. Only then are the objects of earlier logs removed. The lease names
the holder whose log counts (`journal.bucket_lease`).

Once a lease was given back, several processes may add to the state at a time
(`journal.bucket_shares`). Each of them has a log beside that of the last holder, with the name of
that holder before its own. Such logs have the journals of their processes and nothing else, so they
can be read in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from shardwrite.errors import JournalError
from shardwrite.journal.bucket_lease import LEASE, LeaseRecord
from shardwrite.journal.bucket_log import Step, decode, restore
from shardwrite.place.base import STATE_PREFIX
from shardwrite.stores import BucketStore, as_store_error

_SHARE = "."  # between the name of a holder and that of a process that adds to its state


class Logs:
    """Logs of an array in its bucket, one for each holder of the lease."""

    def __init__(self, store: BucketStore) -> None:
        self._store = store

    def found(self) -> list[str]:
        """Keys of all objects of run state but the lease, in the order of each log."""
        return sorted(set(self._store.list_keys(STATE_PREFIX)) - {LEASE})

    def found_of(self, holder: str) -> list[str]:
        """Keys of the log of a holder, in its order."""
        return [key for key in self.found() if key.startswith(f"{STATE_PREFIX}{holder}-")]

    def key(self, holder: str, number: int) -> str:
        """Key of an object of a log."""
        return f"{STATE_PREFIX}{holder}-{number:08d}"

    def state_after(self, lease: LeaseRecord | None) -> str:
        """Name of the holder whose log counts, after a lease; empty if there is none."""
        if lease is None:
            firsts = [
                key for key in self.found() if key.endswith(f"-{0:08d}") and _SHARE not in key
            ]
            newest = max(firsts, key=lambda key: self._store.changed_at(key) or 0.0, default="")
            return newest.removeprefix(STATE_PREFIX).partition("-")[0]
        has_own = lease.holder and self._store.version(self.key(lease.holder, 0)) is not None
        return lease.holder if has_own else lease.state

    def restore(self, holder: str, directory: Path) -> None:
        """Make a directory again from the log of a holder, and from those beside it, if any."""
        if not holder:
            return
        beside = f"{STATE_PREFIX}{holder}{_SHARE}"
        shares = {key.rpartition("-")[0] for key in self.found() if key.startswith(beside)}
        for name in (holder, *sorted(share.removeprefix(STATE_PREFIX) for share in shares)):
            for key, steps in self._steps(name):
                with as_store_error(key, "cannot take the state from"):
                    restore(directory, steps)

    def runs_of(self, holder: str) -> frozenset[str]:
        """Names of the runs that go on by the log of a holder."""
        there: set[str] = set()
        for _, steps in self._steps(holder) if holder else ():
            for step in steps:
                inside = {path for path in there if f"{path}/".startswith(f"{step.path}/")}
                if step.what == "directory":
                    there.add(step.path)
                elif step.what in ("rename", "remove"):
                    there -= inside
                if step.what == "rename":
                    there |= {step.to + path[len(step.path) :] for path in inside}
        names = {path.rpartition("/")[2] for path in there}
        return frozenset(name.removeprefix("run-") for name in names if name.startswith("run-"))

    def share(self, holder: str, name: str) -> str:
        """Name of the log of a process that adds to the state of a holder."""
        return f"{holder}{_SHARE}{name}"

    def _steps(self, holder: str) -> Iterator[tuple[str, list[Step]]]:
        """Key and steps of each object of a log."""
        for number, key in enumerate(self.found_of(holder)):
            if key != self.key(holder, number):
                raise JournalError(
                    f"{self.key(holder, number)} is missing, without which the state of the run "
                    "is not known. Move what is there away after a look",
                    path=key,
                )
            data = self._store.read_whole(key, 2**40)
            yield key, decode(data or b"", key)

    def put(self, holder: str, number: int, data: bytes) -> None:
        """Put an object of a log. It may be there already, because an answer was lost."""
        self._store.put_object(self._store.prefix + self.key(holder, number), data)

    def remove(self, keys: Iterable[str]) -> None:
        """Remove some objects."""
        for key in keys:
            self._store.remove_object(self._store.prefix + key)

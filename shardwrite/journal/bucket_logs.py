"""The logs of run state in a bucket: which objects there are, and which of them count.

Each holder of the lease has a log of its own (`journal.bucket_log`), whose first object has all of
the state that the holder found. Only then are the objects of earlier logs removed. The lease names
the holder whose log counts (`journal.bucket_lease`).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from shardwrite.errors import JournalError
from shardwrite.journal.bucket_lease import LEASE, LeaseRecord
from shardwrite.journal.bucket_log import decode, restore
from shardwrite.place.base import STATE_PREFIX
from shardwrite.stores import BucketStore, as_store_error

__all__ = ["Logs"]


class Logs:
    """Logs of an array in its bucket, one for each holder of the lease.

    Parameters
    ----------
    store : BucketStore
        Store of the array's objects.
    """

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
            firsts = [key for key in self.found() if key.endswith(f"-{0:08d}")]
            newest = max(firsts, key=lambda key: self._store.changed_at(key) or 0.0, default="")
            return newest.removeprefix(STATE_PREFIX).partition("-")[0]
        has_own = lease.holder and self._store.version(self.key(lease.holder, 0)) is not None
        return lease.holder if has_own else lease.state

    def restore(self, holder: str, directory: Path) -> None:
        """Make a directory again from the log of a holder, if there is one."""
        if not holder:
            return
        found = self.found_of(holder)
        for number, key in enumerate(found):
            if key != self.key(holder, number):
                raise JournalError(
                    f"{self.key(holder, number)} is missing, without which the state of the run "
                    "is not known. Move what is there away after a look",
                    path=key,
                )
            data = self._store.read_whole(key, 2**40)
            with as_store_error(key, "cannot take the state from"):
                restore(directory, decode(data or b"", key))

    def put(self, holder: str, number: int, data: bytes) -> None:
        """Put an object of a log. It may be there already, because an answer was lost."""
        self._store.put_object(self._store.prefix + self.key(holder, number), data)

    def remove(self, keys: Iterable[str]) -> None:
        """Remove some objects."""
        for key in keys:
            self._store.remove_object(self._store.prefix + key)

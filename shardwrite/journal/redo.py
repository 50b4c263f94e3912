"""Changes of a shard where it stands, so that a crash leaves the old one or the new one, after recovery.

The order of effects, under a lock of the shard, and what a crash after each leaves behind:

1. Write what goes where nothing stands that the index refers to, and sync it. *The old shard.*
2. Write a record of the change into the run's directory, durably. *The old shard.*
3. Write the other bytes into the shard, and sync it. *A shard that may be torn. Recovery makes the change again; or, where it only
   appends, keeps it if all of it is there, and else cuts the shard back to its old size.*
4. Remove the record. *The new shard.*

A record of an append holds no data, only its checksum; any other holds all that is written.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crc32c import crc32c

from shardwrite.codecs.stages import Buffer
from shardwrite.errors import JournalError, StoreError
from shardwrite.journal.lock import exclusive
from shardwrite.stores import Store, check_key, listed, parse_json, read_file, write_file

__all__ = ["Change", "change_in_place", "recover_change", "recover_changes", "shard_lock"]

_RECORD = "redo-"
_MOST_NBYTES = 2**36  # of a record, which holds what is written into one shard


@dataclass(frozen=True, slots=True)
class Change:
    """What to write into a shard, and where.

    Attributes
    ----------
    key : str
        Of the shard.
    old_nbytes : int
        Its size before.
    writes : sequence of (int, buffer)
        Offsets and data.
    free : iterable of (int, buffer)
        The same, of what goes where nobody reads before the index says so; taken one by one.
    """

    key: str
    old_nbytes: int
    writes: Sequence[tuple[int, Buffer]]
    free: Iterable[tuple[int, Buffer]] = ()

    @property
    def is_append(self) -> bool:
        """Whether nothing is overwritten."""
        return all(offset >= self.old_nbytes for offset, _ in self.writes)

    def encode(self) -> bytes:
        """As a record."""
        data = b"".join(data for _, data in self.writes)
        head = json.dumps(
            {
                "key": self.key,
                "old_nbytes": self.old_nbytes,
                "writes": [[offset, len(data)] for offset, data in self.writes],
                "append": self.is_append,
                "crc32c": crc32c(data),
            }
        ).encode()
        return b"%08x %s\n" % (crc32c(head), head) + (b"" if self.is_append else data)


def _name(key: str) -> str:
    return key.replace("/", ".")


def shard_lock(run_path: str, key: str) -> contextlib.AbstractContextManager[None]:
    """Held while a shard is changed in place: tasks may run twice at once."""
    return exclusive(Path(run_path) / f"lock-{_name(key)}.json", Path(run_path))


def change_in_place(run_path: str, store: Store, change: Change, durability: str, version: Any, guard: Callable[[], None]) -> None:
    """Change a shard, under its lock.

    Parameters
    ----------
    run_path : str
        Directory of the run.
    store : Store
        Of the array.
    change : Change
        What to do.
    durability : str
        Whether anything is synced.
    version : object
        Of the shard as the change takes it to be.
    guard : callable
        Called right before the shard is written to; what it raises stops that.
    """

    def check() -> None:
        guard()
        if store.version(change.key) != version:
            raise StoreError(f"{change.key!r} was changed by another writer meanwhile", key=change.key, errno=errno.ESTALE)

    check()
    if _write(store, change.key, change.free, durability):
        version = store.version(change.key)
    record = Path(run_path) / f"{_RECORD}{_name(change.key)}"
    write_file(record, change.encode(), durability=durability, attempt=uuid.uuid4().hex)
    try:
        check()
    except StoreError:
        os.unlink(record)  # nothing was written
        raise
    _write(store, change.key, change.writes, durability)
    with contextlib.suppress(FileNotFoundError):  # the run has ended meanwhile, and somebody has made the change again
        os.unlink(record)


def _write(store: Store, key: str, writes: Iterable[tuple[int, Buffer]], durability: str) -> bool:
    """Write into an object, durably; whether there was anything to write."""
    n = 0
    with store.edit(key) as editor:
        for offset, data in writes:
            editor.write_at(offset, data)
            n += 1
        if n and durability != "none":
            editor.sync()
    return n > 0


def recover_changes(run_path: Path, store: Store) -> None:
    """Bring every shard that a crash has left amid a change to its old or new state.

    Parameters
    ----------
    run_path : path
        Directory of the run.
    store : Store
        Of the array.
    """
    for record in listed(run_path, _RECORD):
        name = record.name.removeprefix(_RECORD)
        with exclusive(run_path / f"lock-{name}.json", run_path):
            _follow(record, store)


def recover_change(run_path: Path, store: Store, key: str) -> None:
    """The same for one shard, whose lock the caller holds."""
    _follow(run_path / f"{_RECORD}{_name(key)}", store)


def _follow(record: Path, store: Store) -> None:
    """Do what a record says, and remove it; where there is none, its writer is alive and has finished."""
    data = read_file(record, _MOST_NBYTES)
    if data is None:
        return
    try:
        found = _decode(data)
        if found is not None and _name(found["key"]) != record.name.removeprefix(_RECORD):
            raise ValueError("it is of another shard")  # noqa: TRY301 (one refusal for all that is wrong)
    except (KeyError, TypeError, ValueError) as error:
        message = f"{record} is no record of a change ({error}); remove it after a look, and verify the shard"
        raise JournalError(message, path=str(record)) from error
    if found is not None and store.version(found["key"]) is not None:  # a torn record means a shard that was not touched
        _recover(store, found, data)
    record.unlink()


def _decode(data: bytes) -> dict[str, Any] | None:
    head, _, rest = data.partition(b"\n")
    if head[:8] != b"%08x" % crc32c(head[9:]):
        return None
    found: dict[str, Any] = parse_json(head[9:])
    numbers = [found["old_nbytes"], *(number for offset, nbytes in found["writes"] for number in (offset, nbytes))]
    if not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
        raise ValueError("offsets and sizes that are none")
    check_key(found["key"])
    if found["append"]:
        return found
    return found if crc32c(rest) == found["crc32c"] and sum(numbers[2::2]) == len(rest) else None


def _recover(store: Store, found: dict[str, Any], data: bytes) -> None:
    with store.edit(found["key"]) as editor:
        if found["append"]:
            written = b"".join(editor.read(offset, nbytes) for offset, nbytes in found["writes"])
            if crc32c(written) != found["crc32c"]:
                editor.truncate(found["old_nbytes"])
        else:
            at = data.index(b"\n") + 1
            for offset, nbytes in found["writes"]:
                editor.write_at(offset, data[at : at + nbytes])
                at += nbytes
        editor.sync()

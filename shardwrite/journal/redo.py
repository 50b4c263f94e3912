"""Records of changes in place by the first version of shardwrite. They are read, never written.

- The record of an overwrite holds the new bytes. Recovery writes them again.
- The record of an append holds sizes and a checksum. Recovery cuts the append off.
- A lock without a record was left by a process that may have written, but only into bytes that the
  shard's index did not refer to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c

from shardwrite.errors import JournalError
from shardwrite.journal.composed import Composed, parse_record, ranges_of, shard_of
from shardwrite.stores import ObjectReader, Store, listed, read_file

_RECORD, _LOCK, _LOCK_SUFFIX = "redo-", "lock-", ".json"


@dataclass(frozen=True, slots=True)
class Redo:
    """An interrupted change in place by the first version."""

    path: Path  # file of the record or lock; to be removed once the shard is whole
    key: str  # key of the shard
    # Size of the shard before the change, in bytes. Negative if the shard is kept as it is.
    nbytes: int
    # Offsets and bytes of the interrupted overwrite; empty for an append
    writes: list[tuple[int, bytes]]

    def compose(self, reader: ObjectReader) -> ObjectReader:
        """The recovered shard, as an object to read."""
        if self.nbytes < 0:
            return reader
        ends = [
            reader.nbytes if self.writes else 0,
            *(offset + len(data) for offset, data in self.writes),
        ]
        return Composed(reader, max(self.nbytes, *ends), self.writes)


def old_records(
    run_path: Path, store: Store, limit_nbytes: int
) -> Iterator[tuple[Path, Redo | None]]:
    """Records and locks that the first version left in a run's directory.

    - Yields: the interrupted change. None if the file can be removed.
    """
    recorded = set()
    for path in listed(run_path, _RECORD):
        found = _decode(path, limit_nbytes)
        recorded.add(path.name.removeprefix(_RECORD))
        yield path, found
    for path in listed(run_path, _LOCK, _LOCK_SUFFIX):
        name = path.name.removeprefix(_LOCK).removesuffix(_LOCK_SUFFIX)
        keys = [
            key
            for key in dict.fromkeys((name.replace(".", "/"), name))
            if store.version(key) is not None
        ]
        yield path, Redo(path, keys[0], -1, []) if keys and name not in recorded else None


def _decode(path: Path, limit_nbytes: int) -> Redo | None:
    """Read a record; None if it is torn, since the shard was not changed in that case."""
    try:
        parsed = parse_record(read_file(path, limit_nbytes) or b"")
        if parsed is None:
            return None
        head, data = parsed
        key, nbytes = shard_of(head)
        if head["append"]:
            return Redo(path, key, nbytes, [])
        if crc32c(data) != head["crc32c"]:
            return None
        return Redo(path, key, nbytes, ranges_of(head["writes"], data))
    except (ArithmeticError, KeyError, TypeError, ValueError, RecursionError) as error:
        message = f"{path} is not a record of a change ({error}). Keep the file, and report it"
        raise JournalError(message, path=str(path)) from error

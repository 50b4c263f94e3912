"""Records of changes in place that the first version left: read, never written.

The record of an overwrite holds what was to be written, and the change is made again. The record
of an append holds sizes and a checksum, and the append is cut off. A lock without a record is
what a process left that may have written where nothing was referred to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c

from shardwrite.errors import JournalError
from shardwrite.journal.composed import Composed, parse_record, ranges_of
from shardwrite.stores import ObjectReader, Store, listed, read_file

__all__ = ["Redo", "old_records"]

_RECORD, _LOCK, _LOCK_SUFFIX = "redo-", "lock-", ".json"


@dataclass(frozen=True, slots=True)
class Redo:
    """A change of the first version that was interrupted.

    Attributes
    ----------
    path : pathlib.Path
        What tells of it; to be removed once the shard is whole.
    key : str
        Of the shard.
    nbytes : int
        The shard's size after the change; after an append is cut off, its old one. Negative
        where it stays as it is.
    writes : list of (int, bytes)
        What was to be written.
    """

    path: Path
    key: str
    nbytes: int
    writes: list[tuple[int, bytes]]

    def compose(self, reader: ObjectReader) -> ObjectReader:
        """The whole shard, given what is there."""
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
    """What the first version left in a run: paths, and the change; None for what can just be removed.

    Parameters
    ----------
    run_path : path
        Directory of the run.
    store : Store
        Of the array.
    limit_nbytes : int
        Most bytes of a record.

    Raises
    ------
    JournalError
        If a record is none.
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
    """A record, or None where it is torn: then the shard was not touched."""
    try:
        parsed = parse_record(read_file(path, limit_nbytes) or b"")
        if parsed is None:
            return None
        head, data = parsed
        if head["append"]:
            return Redo(path, str(head["key"]), int(head["old_nbytes"]), [])
        if crc32c(data) != head["crc32c"]:
            return None
        return Redo(
            path, str(head["key"]), int(head["old_nbytes"]), ranges_of(head["writes"], data)
        )
    except (ArithmeticError, KeyError, TypeError, ValueError, RecursionError) as error:
        message = f"{path} is not a record of a change ({error}). Keep the file, and report it"
        raise JournalError(message, path=str(path)) from error

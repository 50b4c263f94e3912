"""Changes of a shard in place, such that a crash leaves either the old shard or the new one.

A process makes a change while it holds the shard's claim. The steps in order, and in italics what a
crash after each step leaves behind:

1. Write a record into the claim, durably: the bytes that the change will overwrite. *The old
   shard.*
2. Open the shard for writing. Check that it is the file whose old content was recorded, that the
   run has not ended, and that the claim is still held. *The old shard.*
3. Reserve blocks for all that will be written. *The old shard.*
4. Write into the shard, and sync it. *A shard that may be torn.*
5. Make the record void, durably, and remove it. *The new shard.*

If a write fails all the same, the process puts the old content back at once. It cuts the file to
its old size, and writes the old bytes into the blocks that it has. That needs no room, and readers
find the old shard. After a failed sync it does not do so; see below.

A process that finds a record gives the shard its old content back, in a **new file** that is
renamed over the old one. There are two reasons for a new file. First, after a failed sync the
system can hold bytes in memory that are not on disk and are no longer marked as unwritten: reading
them back proves nothing. Second, a process that was frozen amid a change still has the old file
open. What it writes after it thaws goes into a file that no longer has a name.

The old content is copied through this process, because a copy inside the system may share blocks
that were never written to disk. It is compared with the checksums of the index and of the inner
chunks.

A record is a crc32c in hexadecimal, a head in JSON that it is the checksum of, a newline, and the
bytes of the ranges. The metadata and the shard that is there bound how much of a record is read,
and how large the shard that it describes can have been.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import math
import os
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from crc32c import crc32c

from shardwrite._dataclass import dataclass
from shardwrite.codecs.stages import Buffer, Ranges
from shardwrite.errors import CorruptShardError, JournalError, StoreError
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.host.stopping import TAKEOVERS, tell
from shardwrite.journal.lines import CLAIM
from shardwrite.records import Record
from shardwrite.stores.base import ObjectEditor, ObjectReader, Store
from shardwrite.stores.looking import (
    as_store_error,
    is_there,
    listed,
    open_plain,
    parse_json,
    read_file,
    read_limit,
)
from shardwrite.stores.posix import NO_ROOM, telling_room_for

if TYPE_CHECKING:
    from shardwrite.journal.lock import Claim
    from shardwrite.read.stored_shard import ExistingShard


# ---- Records, and shards composed of a file and the byte ranges of a record


_MOST_NBYTES = 2**36  # most bytes of ranges; reached only by inner chunks of variable length

_RANGE_NBYTES = 64  # bytes of an offset and a size in the head

_SMALL_NBYTES = 2**20


def record_limit(metadata: ArrayMetadata) -> int:
    """Largest size in bytes of a record for one shard.

    It is twice what all inner chunks and the index of a shard can take, or 64 GiB if that is less,
    and room for the head.
    """
    n_chunks, codec = metadata.grid.n_chunks_per_shard, metadata.index_codec
    most = 2 * (n_chunks * metadata.pipeline.most_encoded_nbytes + codec.encoded_nbytes)
    return min(_MOST_NBYTES, most) + n_chunks * _RANGE_NBYTES + read_limit()


def check_fits(metadata: ArrayMetadata, reader: ObjectReader, composed: ObjectReader) -> None:
    """Refuse a composed shard that is larger than the shard can have been.

    A change in place never makes a file smaller. But a file that was not synced can be shorter
    after a power cut. The limit therefore includes the bytes in the record and the decoded size of
    a shard, too.
    """
    grid = metadata.grid
    decoded = grid.n_chunks_per_shard * math.prod(grid.chunks) * metadata.itemsize
    held = composed.held_nbytes if isinstance(composed, Composed) else 0
    most = (
        reader.nbytes + held + 2 * decoded + 2 * metadata.index_codec.encoded_nbytes + _SMALL_NBYTES
    )
    if composed.nbytes > most:
        raise ValueError(
            f"its shard would have {composed.nbytes} bytes where at most {most} can be"
        )


@dataclass(frozen=True, slots=True)
class UndoHead(Record):
    """What stands in a record before the bytes of its ranges."""

    _format = 1

    key: str  # of the shard
    old_nbytes: int  # size of the shard before the change, in bytes
    saved: tuple[tuple[int, int], ...]  # offset and size in bytes of each range
    crc32c: int  # of the bytes of all ranges, one after the other

    def encode(self) -> bytes:
        """Content of a file up to the bytes of the ranges."""
        head = self.to_json()
        return b"%08x %s\n" % (crc32c(head), head)

    def ranges(self, data: bytes) -> list[tuple[int, bytes]]:
        """Offsets and bytes of the ranges, from the bytes of all of them."""
        end = max((offset + nbytes for offset, nbytes in self.saved), default=0)
        if sum(nbytes for _, nbytes in self.saved) != len(data) or end > self.old_nbytes:
            raise ValueError("the ranges do not fit")
        ranges, at = [], 0
        for offset, nbytes in self.saved:
            ranges.append((offset, data[at : at + nbytes]))
            at += nbytes
        return ranges


def parse_record(data: bytes) -> tuple[UndoHead, bytes] | None:
    """Split a record into its head and the bytes after it; None where the head is torn.

    The checksum of the bytes after the head is not compared, as a later format may have another.
    """
    head, _, rest = data.partition(b"\n")
    if head[:8] != b"%08x" % crc32c(head[9:]):
        return None
    return UndoHead.from_dict(json.loads(head[9:])), rest


def read_over(
    source: Ranges, ranges: Iterable[tuple[int, bytes]], offset: int, nbytes: int
) -> bytes:
    """Bytes of an object in which those of some ranges are replaced, or follow its end.

    - `ranges`: their offsets and bytes. Bytes that are nowhere read as zeros.
    """
    stop = offset + nbytes
    there = max(0, min(stop, source.nbytes) - offset)
    data = bytearray(source.read(offset, there) if there else b"")
    data.extend(bytes(nbytes - there))
    for start, new in ranges:
        a, b = max(offset, start), min(stop, start + len(new))
        if a < b:
            data[a - offset : b - offset] = new[a - start : b - start]
    return bytes(data)


class Composed(ObjectReader):
    """A readable object that is composed of another object and of ranges that replace its bytes.

    - `nbytes`: size in bytes of the composed object: that of the shard before the change, or after
      it.
    - `ranges`: offsets and bytes of the ranges that replace those of `reader`.
    """

    def __init__(
        self, reader: ObjectReader, nbytes: int, ranges: Sequence[tuple[int, bytes]]
    ) -> None:
        self.nbytes = nbytes
        self.version = reader.version
        self.held_nbytes = sum(len(data) for _, data in ranges)
        self._reader, self._ranges = reader, ranges

    def read(self, offset: int, nbytes: int) -> bytes:
        """Read `nbytes` bytes from byte `offset` on, as :meth:`ObjectReader.read` does.

        Bytes that are neither in the shard nor in a range read as zeros. Checksums reveal them.
        """
        return read_over(self._reader, self._ranges, offset, nbytes)

    def __enter__(self) -> Composed:
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass


# ---- Changes in place, and recovery


_COPY_NBYTES = 2**22

_RECOVERY = "recovery-"


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a shard in place, with the old bytes that undo it."""

    key: str  # key of the shard
    old_nbytes: int  # size of the shard before the change, in bytes
    writes: Iterable[tuple[int, Buffer]]  # offsets and data, in the order in which they are written
    # Offsets and old bytes of all that the old shard needs and the change overwrites: inner chunks
    # to which the old index refers, and the index itself
    saved: Sequence[tuple[int, bytes]] | OldBytes
    # Where the ranges begin and end that are written, in bytes
    spans: Sequence[tuple[int, int]] = ()

    def record(self) -> Iterator[Buffer]:
        """Content of the record that undoes the change, in pieces.

        What is saved is gone through twice, since its checksum stands before it.

        - Raises StoreError with the number ``ESTALE``, if another program has changed it in
          between.
        """
        pairs: list[tuple[int, int]] = []
        checksum = again = 0
        for offset, data in self.saved:
            pairs.append((offset, len(data)))
            checksum = crc32c(data, checksum)
        head = UndoHead(self.key, self.old_nbytes, tuple(pairs), checksum)
        held, held_nbytes = [head.encode()], 0
        for _, data in self.saved:
            again = crc32c(data, again)
            held.append(data)
            held_nbytes += len(data)
            if held_nbytes >= _COPY_NBYTES:
                yield b"".join(held)
                held, held_nbytes = [], 0
        if again != checksum:
            message = f"{self.key!r} was changed by another program meanwhile"
            raise StoreError(message, key=self.key, errno=errno.ESTALE)
        yield b"".join(held)

    def undone(self, reader: ObjectReader) -> ObjectReader:
        """The shard as it was before the change, as an object to read."""
        return Composed(reader, self.old_nbytes, list(self.saved))


@dataclass(frozen=True, slots=True)
class OldBytes:
    """Byte ranges of an object and their offsets, which are read again each time.

    Together they may be half of a large shard, so they are not kept in memory.
    """

    reader: ObjectReader
    spans: Sequence[tuple[int, int]]  # where the ranges begin and end, in bytes

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        for start, stop in self.spans:
            for at in range(start, stop, _COPY_NBYTES):
                yield at, self.reader.read(at, min(_COPY_NBYTES, stop - at))


def _decode(data: bytes, path: str) -> Change | None:
    """Parse a record; None if it is torn, since the shard was not changed in that case."""
    try:
        parsed = parse_record(data)
        if parsed is None or crc32c(parsed[1]) != parsed[0].crc32c:
            return None
        head, rest = parsed
        return Change(head.key, head.old_nbytes, (), head.ranges(rest))
    except (ValueError, RecursionError) as error:
        message = (
            f"{path} is not a record that this version of shardwrite can read ({error}). "
            "Use the version that wrote it"
        )
        raise JournalError(message, path=path) from error


def shard_claim(run_path: str, key: str) -> contextlib.AbstractContextManager[Claim]:
    """Hold the claim of a shard that may be changed in place.

    The claim is needed because dask may run the same task twice at the same time.
    """
    from shardwrite.journal.lock import exclusive  # for shards that are changed in place

    return exclusive(Path(run_path) / f"{CLAIM}{key.replace('/', '.')}", Path(run_path))


def change_in_place(
    claim: Claim,
    store: Store,
    change: Change,
    durability: str,
    version: Any,
    guard: Callable[[], None],
) -> None:
    """Change a shard in place, while holding its claim.

    - `durability`: durability level. With ``"none"``, nothing is synced.
    - `guard`: called right before the shard is written to. If it raises, the shard stays as it is.
    - Raises StoreError if a read or write fails. Its `errno` is ``ESTALE`` if another writer has
      replaced the shard, or another process has taken the claim over.
    """
    is_durable = durability != "none"
    claim.record(change.record(), is_durable=is_durable)
    with store.edit(change.key) as editor:
        try:
            editor.check_version(version)
            guard()
            claim.check()
            editor.reserve(change.spans)
        except BaseException:
            claim.settle()  # nothing was written, so there is nothing to undo
            raise
        try:
            for offset, data in change.writes:
                editor.write_at(offset, data)
        except BaseException as error:
            _put_back(claim, editor, change, error, is_durable=is_durable)
            raise
        if is_durable:
            editor.sync()
    claim.settle()


def _put_back(
    claim: Claim, editor: ObjectEditor, change: Change, error: BaseException, *, is_durable: bool
) -> None:
    """Give a shard its old content back after a failed write, in the blocks that it has.

    Where that fails, too, the record stays for the next process.

    - Raises StoreError if it fails. The number is that of `error`, if it has one.
    """
    try:
        claim.check()
        old = _decode(claim.recorded(), str(claim.path))
        if old is not None:
            _overwrite(editor, old)
        if is_durable:
            editor.sync()
        claim.settle()
    except StoreError as second:
        message = (
            f"{error}; and {change.key!r} may be torn until the same call, or abandon, has given "
            f"it its old content back: {second}"
        )
        number = getattr(error, "errno", None) or second.errno
        raise StoreError(message, key=change.key, errno=number) from error


def _overwrite(editor: ObjectEditor, change: Change) -> None:
    """Undo a change in the object itself: cut it to its old size, and write its old bytes."""
    editor.cut(change.old_nbytes)
    for offset, data in change.saved:
        editor.write_at(offset, data)


def recover_shard(claim: Claim, store: Store, metadata: ArrayMetadata) -> None:
    """Undo an interrupted change in place of one shard, while holding its claim."""
    from shardwrite.journal.lock import FENCED, UNDO  # for shards that are changed in place

    for path in [*listed(claim.path, UNDO), *listed(claim.path, FENCED)]:
        fenced = path.with_name(FENCED + path.name.removeprefix(UNDO).removeprefix(FENCED))
        if path != fenced:
            with as_store_error(str(path), "cannot take over"):
                try:
                    os.rename(path, fenced)
                except FileNotFoundError:
                    continue  # the writer has finished its change
        data = read_file(fenced, record_limit(metadata))
        found = None if data is None else _decode(data, str(fenced))
        if found is not None:
            _restore(store, metadata, found, fenced)
            told = "an interrupted change in place was undone"
            tell(TAKEOVERS, logging.INFO, told, run=claim.path.parent, shard=found.key)
        _forget(fenced, store, _key_of_void(data) if found is None else found.key)


def _key_of_void(data: bytes | None) -> str | None:
    """Key of the shard in a void record; None if the record is torn or not void.

    Another process may have begun to recover the shard before the record became void, and may be
    about to publish the old shard. The key tells where its temporary file lies, so that the file
    can be removed.
    """
    from shardwrite.journal.lock import VOID  # for shards that are changed in place

    if data is None or not data.startswith(VOID):
        return None
    head, _, _ = data.partition(b"\n")
    try:
        return UndoHead.from_dict(parse_json(head[len(VOID) :])).key
    except ValueError:
        return None


def _forget(record: Path, store: Store, key: str | None) -> None:
    """Make a record void and remove it, then remove temporary files of recoveries that used it.

    Without the record, no process may publish such a file any more.
    """
    from shardwrite.journal.lock import make_void  # for shards that are changed in place

    with as_store_error(str(record), "cannot remove"), contextlib.suppress(FileNotFoundError):
        fd = open_plain(record, os.O_WRONLY)
        try:
            make_void(fd, is_durable=True)
        finally:
            os.close(fd)
        os.unlink(record)
    if key is not None:
        store.discard_scope(key, f"{_RECOVERY}{record.name}")


def _restore(store: Store, metadata: ArrayMetadata, change: Change, record: Path) -> None:
    """Write the old content of a shard into a new file, and publish it if its record still exists.

    Where there is no room for a new file, the shard itself gets its old content back, for the sake
    of its readers. The record stays until the next process finds room, because one that was frozen
    amid the change may yet go on.
    """
    key = change.key

    def require_record() -> None:
        if not is_there(record):
            raise StoreError(
                "another process has recovered this shard", key=key, errno=errno.ESTALE
            )

    reader = store.open(key)
    if reader is None:
        return  # the array was replaced meanwhile
    with reader:
        old = _checked_old(store, metadata, change, record, reader)
        try:
            with (
                telling_room_for(old.nbytes, key),
                store.transaction(
                    "full", f"{_RECOVERY}{record.name}.{uuid.uuid4().hex}"
                ) as transaction,
            ):
                writer = transaction.create(key)
                for offset in range(0, old.nbytes, _COPY_NBYTES):
                    writer.write([old.read(offset, min(_COPY_NBYTES, old.nbytes - offset))])
                writer.finish(require_record)
        except StoreError as error:
            if error.errno in NO_ROOM:
                with store.edit(key) as editor:
                    editor.check_version(reader.version)
                    require_record()
                    _overwrite(editor, change)
                    editor.sync()
            raise  # told all the same: the record stays


def _checked_old(
    store: Store, metadata: ArrayMetadata, change: Change, record: Path, reader: ObjectReader
) -> ObjectReader:
    """The old content of a shard that was changed; bad inner chunks are warned of.

    - Raises JournalError if the record cannot be of this shard.
    - Raises CorruptShardError if the index of the old content is not valid.
    """
    from shardwrite.read.stored_shard import ExistingShard  # for a shard that was changed in place

    old = change.undone(reader)
    try:
        check_fits(metadata, reader, old)
    except ValueError as error:
        message = (
            f"{record} cannot be a record of {change.key!r}: {error}. "
            "Move it away after a look, and verify the array deep"
        )
        raise JournalError(message, path=str(record)) from error
    _check_chunks(ExistingShard(metadata, change.key, store, old))
    return old


def _check_chunks(shard: ExistingShard) -> None:
    """Warn if inner chunks of a recovered shard are bad.

    The shard is published all the same, since its other inner chunks are good and no better copy
    exists.
    """
    bad = []
    for rank in np.flatnonzero(~shard.index.is_empty).tolist():
        try:
            shard.chunk(rank)
        except CorruptShardError as error:
            bad.append(str(error))
    if bad:
        warnings.warn(
            f"{len(bad)} inner chunks of {shard.key!r} are bad, first: {bad[0]}. "
            "Run verify --deep, and repair from the source",
            UserWarning,
            stacklevel=2,
        )

"""The storage transformer of 2022 as a store of zarr-python.

A view has one key for each chunk, and the store below has one object for each shard. A read asks
that store twice: for the indexes, and for the chunks. A write reads the shard, changes it, and puts
it again as a whole.

Changes of chunks wait in the `ShardChanges` of their shard. All views of its store in this process
share it, and reads look into it first. The steps of a change:

1. It is entered there, and may replace one that still waits.
2. Coroutines of one event loop that write the same shard take turns. Whoever has the turn writes
   all that waits, so that changes which are made at once cost one write.
3. What is written waits no more. Only then does the call return.

Inside a ``with`` statement, a view is a stream: a call returns after the first step. Shards are
written when all of their chunks wait, when memory runs short, at a flush, and at the end. A crash
loses what waits, and leaves each shard as it was written last.

Nothing is known of the size of a shard whose index alone was read. So the second call of a read
also asks for the last byte of an index behind the chunks that it reads. Stores in memory say which
values are missing. A directory or a store of obstore raises an error for the whole call instead.
Only then are the values of several objects asked for one by one.

Only keys that are plain paths exist. zarr-python's directories take any text for a path, so that
``"../x"`` and ``"/x"`` would be files outside of the store. Such keys never go to the store below.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, Literal, Self, TypeVar
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

import numpy as np
from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.buffer import default_buffer_prototype
from zarr.buffer.cpu import Buffer as CpuBuffer
from zarr.core.sync import sync
from zarr.storage import FsspecStore, LocalStore, MemoryStore, StorePath, WrapperStore

from shardwrite._dataclass import dataclass
from shardwrite.checks import is_whole
from shardwrite.entry.public import public
from shardwrite.errors import CorruptShardError, SpecError, damage_in
from shardwrite.format.index import IndexCodec, ShardIndex
from shardwrite.grid import Shape, unravel
from shardwrite.legacy.transformer import ChunkKeys, ChunkPlace, checked_counts
from shardwrite.plan.options import memory_limit_of
from shardwrite.stores.base import check_key, is_plain_key
from shardwrite.stores.bucket import BucketStore
from shardwrite.stores.bucket_kinds import is_bucket
from shardwrite.stores.looking import is_file, local_path
from shardwrite.stores.zarr_store import kind_of
from shardwrite.stream.backlog import Pending

# ---- Shards that change, which all views of a store in this process share


_Data = bytes | memoryview | None  # an encoded chunk; None removes it

_Changes = Mapping[int, _Data]  # by the rank of the chunk

_ENTRY_NBYTES = 128
"""Memory that a change takes beside its bytes."""


@dataclass(slots=True, eq=False)
class _Change:
    """A change that waits; no two are equal."""

    data: _Data
    before: _Change | None  # what it replaces, until it is written or may wait for a flush
    is_over: bool = False  # whether it was written or given up

    @property
    def nbytes(self) -> int:
        return _ENTRY_NBYTES + len(self.data or b"")


class ShardChanges:
    """What waits to be written to one shard, and the turn of the coroutines that write it."""

    def __init__(self) -> None:
        self.waiting: dict[int, _Change] = {}
        self.nbytes = 0  # memory of what waits
        self.n_steps = 0  # one more when a write begins, and when it ends
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]
        self._locks = WeakKeyDictionary()

    @property
    def lock(self) -> asyncio.Lock:
        """Lock of the shard in the running event loop."""
        return self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())

    @contextlib.contextmanager
    def entered(self, changes: _Changes) -> Iterator[None]:
        """Let changes wait; if the block fails to write them, those wait again that were there."""
        entries = {rank: _Change(data, self.waiting.get(rank)) for rank, data in changes.items()}
        for rank, entry in entries.items():
            self._replace(rank, entry)
        try:
            yield
        except BaseException:
            for rank, entry in entries.items():
                entry.is_over, last = True, entry.before
                while last is not None and last.is_over:
                    last = last.before
                if self.waiting.get(rank) is entry:
                    self._replace(rank, last)
            raise
        for entry in entries.values():
            entry.before = None

    def drop(self, entries: Mapping[int, _Change]) -> None:
        """Let entries wait no more, unless others have replaced them."""
        for rank, entry in entries.items():
            entry.is_over, entry.before = True, None
            if self.waiting.get(rank) is entry:
                self._replace(rank, None)

    def _replace(self, rank: int, entry: _Change | None) -> None:
        old = self.waiting.pop(rank, None)
        self.nbytes -= 0 if old is None else old.nbytes
        if entry is not None:
            self.waiting[rank] = entry
            self.nbytes += entry.nbytes


_shards: WeakValueDictionary[tuple[object, str], ShardChanges] = WeakValueDictionary()


def shard_of(store: Store, key: str) -> ShardChanges:
    """What waits for an object; it exists as long as somebody uses it.

    - `store`: the store of the object. Two stores of zarr-python give the same if they are known to
      hold the same object: the same directory, the same memory, or the same place of a bucket.
    """
    return _shards.setdefault(_identity(store, key), ShardChanges())


def _identity(store: Store, key: str) -> tuple[object, str]:
    """What two stores share that hold the same object."""
    while isinstance(store, WrapperStore):
        store = store._store  # noqa: SLF001 (subclasses use it, too)
    if isinstance(store, LocalStore):
        return "file", os.path.realpath(store.root / key)
    if isinstance(store, MemoryStore):
        return id(store._store_dict), key  # noqa: SLF001 (all copies of the store have this one)
    below = getattr(store, "store", None)
    if is_bucket(below):
        return BucketStore(below).token, key
    if type(store) is FsspecStore:
        return kind_of(store).identity, key
    return id(store), key


# ---- Reads of chunks in shards, in two calls


_INDEX_CODECS = ({"name": "bytes", "configuration": {"endian": "little"}},)

_LARGE_NBYTES = 2**26
"""A chunk of more bytes is read only after the shard was seen to be that long."""

_READS_AT_ONCE = 64
"""Values that are asked for one by one at a time."""

_MISSING = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
"""Errors that zarr-python's own stores turn into None where one value is asked for."""

_Values = TypeVar("_Values")

Asked = tuple[str, ChunkPlace | None, ByteRequest | None]

_Chunk = tuple[int, int, int]  # rank, offset and size of a chunk in its shard


class ShardReads:
    """Reader of the shards in a store."""

    def __init__(self, store: Store, counts: Shape) -> None:
        self._store, self._counts = store, counts
        self.codec = IndexCodec(_INDEX_CODECS, counts, "end")

    async def values(
        self, prototype: BufferPrototype, asked: Sequence[Asked]
    ) -> list[Buffer | None]:
        """Values of keys or parts of them; None for those that are missing.

        - Raises CorruptShardError if the index of a shard cannot be right.
        """
        indexes = await self.indexes([place.shard for _, place, _ in asked if place is not None])
        results: list[Buffer | None] = [None] * len(asked)
        below: list[tuple[str, ByteRequest | None]] = []
        origins: list[int] = []
        used: dict[str, list[_Chunk]] = {}
        for n, (key, place, wanted) in enumerate(asked):
            if place is None:
                below.append((key, wanted))
                origins.append(n)
                continue
            index = indexes[place.shard]
            if index is None or index.is_empty[place.rank]:
                continue
            offset, nbytes = index.table[place.rank].tolist()
            start, stop = _range_in(wanted, nbytes)
            used.setdefault(place.shard, []).append((place.rank, offset, nbytes))
            if start == stop:
                results[n] = prototype.buffer.from_bytes(b"")
            else:
                below.append((place.shard, RangeByteRequest(offset + start, offset + stop)))
                origins.append(n)
        for n, value in zip(origins, await self._ranges(prototype, below, used), strict=True):
            results[n] = value
        return results

    async def indexes(self, shards: Iterable[str]) -> dict[str, ShardIndex | None]:
        """Indexes of shards by their keys, from one call; None for a shard that is missing."""
        keys = list(dict.fromkeys(shards))
        if not keys:
            return {}
        asked = [(key, SuffixByteRequest(self.codec.encoded_nbytes)) for key in keys]
        parts = await self._asked(default_buffer_prototype(), asked)
        return {
            key: None if data is None else self.decoded(key, data.to_bytes(), None)
            for key, data in zip(keys, parts, strict=True)
        }

    def decoded(self, shard: str, data: bytes, shard_nbytes: int | None) -> ShardIndex:
        """Index of a shard, checked; some errors are found only if the shard's size is known."""
        nbytes = self.codec.encoded_nbytes
        with damage_in(key=shard):
            if len(data) != nbytes:
                raise CorruptShardError(f"{len(data)} bytes are too few for an index of {nbytes}")
            return self.codec.decode(data, shard_nbytes)

    async def _asked(
        self, prototype: BufferPrototype, asked: Sequence[tuple[str, ByteRequest | None]]
    ) -> Sequence[Buffer | None]:
        """Parts of objects, by one call unless an object is missing; None for those that are."""
        try:
            return await self._store.get_partial_values(prototype, asked)
        except _MISSING:
            if len({key for key, _ in asked}) == 1:
                return [None] * len(asked)
        turns = asyncio.Semaphore(_READS_AT_ONCE)

        async def one(key: str, wanted: ByteRequest | None) -> Buffer | None:
            async with turns:
                return await self._store.get(key, prototype, wanted)

        return await asyncio.gather(*(one(key, wanted) for key, wanted in asked))

    async def _ranges(
        self,
        prototype: BufferPrototype,
        asked: list[tuple[str, ByteRequest | None]],
        used: Mapping[str, list[_Chunk]],
    ) -> list[Buffer | None]:
        """Ranges of objects, by one call, which also asks for the last byte of what is needed.

        A shard is long enough if it has the last byte of an index behind the chunks.

        - `used`: the chunks that are needed, by the keys of their shards.
        """
        ends = {
            shard: max(offset + nbytes for _, offset, nbytes in chunks) + self.codec.encoded_nbytes
            for shard, chunks in used.items()
        }
        probes = [(shard, RangeByteRequest(end - 1, end)) for shard, end in ends.items()]
        if not (asked or probes):
            return []
        try:
            if any(nbytes > _LARGE_NBYTES for chunks in used.values() for _, _, nbytes in chunks):
                self._check_ends(used, await self._asked(prototype, probes))
            parts = await self._asked(prototype, [*asked, *probes])
        except CorruptShardError:
            raise
        except Exception:  # a store may refuse a range that an object does not have
            for shard, chunks in used.items():
                with contextlib.suppress(FileNotFoundError):  # which is what the call has told
                    if await self._store.getsize(shard) < ends[shard]:
                        raise self._past_the_end(shard, chunks) from None
            raise
        self._check_ends(used, parts[len(asked) :])
        return list(parts[: len(asked)])

    def _check_ends(self, used: Mapping[str, list[_Chunk]], found: Sequence[Buffer | None]) -> None:
        """Refuse the index of each shard whose last byte was not found."""
        for (shard, chunks), last in zip(used.items(), found, strict=True):
            if last is not None and not len(last):
                raise self._past_the_end(shard, chunks)

    def _past_the_end(self, shard: str, chunks: Sequence[_Chunk]) -> CorruptShardError:
        rank, offset, nbytes = max(chunks, key=lambda chunk: chunk[1] + chunk[2])
        return CorruptShardError(
            "lies past the end, or inside the index",
            key=shard,
            inner_chunk=unravel(rank, self._counts),
            offset=offset,
            nbytes=nbytes,
        )

    async def chunks(self, shard: str) -> dict[int, memoryview]:
        """Encoded chunks of a shard by their ranks; none if it is missing."""
        shard_object = await self._store.get(shard, default_buffer_prototype())
        if shard_object is None:
            return {}
        data = memoryview(shard_object.to_bytes())
        index = self.decoded(shard, bytes(data[-self.codec.encoded_nbytes :]), len(data))
        (ranks,) = np.nonzero(~index.is_empty)
        return {
            rank: data[offset : offset + nbytes]
            for rank, (offset, nbytes) in zip(
                ranks.tolist(), index.table[ranks].tolist(), strict=True
            )
        }


def _range_in(wanted: ByteRequest | None, nbytes: int) -> tuple[int, int]:
    """Start and stop of a range in a value of `nbytes` bytes."""
    match wanted:
        case None:
            start, stop = 0, nbytes
        case RangeByteRequest():
            start, stop = wanted.start, wanted.end
        case OffsetByteRequest():
            start, stop = wanted.offset, nbytes
        case SuffixByteRequest():
            start, stop = nbytes - wanted.suffix, nbytes
        case _:
            raise SpecError(
                f"Unexpected byte_range, got {type(wanted).__name__}",
                field="byte_range",
                value=wanted,
                remedy="give a RangeByteRequest, OffsetByteRequest or SuffixByteRequest",
            )
    start = min(max(start, 0), nbytes)
    return start, max(start, min(stop, nbytes))


# ---- The view: a store of zarr-python


_AT_ONCE = 64
"""Indexes that a listing asks for at a time."""

_WRITES_AT_ONCE = 2
"""Shards that a flush writes at a time."""

_DEFAULT_NBYTES = 2**28
"""Memory of the chunks that wait in a stream, if a user does not say it."""


class _Stream(Pending[str, ShardChanges]):
    """Shards whose chunks wait, of a view and of those that are made of it."""

    view: TransformerView | None = None  # the one that is, or was, used in a `with` statement
    is_open = False  # whether it is

    def count(self) -> None:
        """Leave out the shards of which nothing waits; other views may have written some."""
        self.shards = {key: shard for key, shard in self.shards.items() if shard.waiting}
        self.nbytes = sum(shard.nbytes for shard in self.shards.values())


_streams: WeakSet[_Stream] = WeakSet()


class TransformerView(Store):
    """A store that presents the shards of arrays as one key for each chunk."""

    def __init__(
        self,
        store: Store,
        counts: Shape,
        path: str = "",
        *,
        read_only: bool = False,
        limit_nbytes: int = _DEFAULT_NBYTES,
    ) -> None:
        super().__init__(read_only=read_only or store.read_only)
        self._store = store
        self._keys = ChunkKeys(path, counts)
        self._reads = ShardReads(store, counts)
        self._stream = _Stream(limit_nbytes)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_stream": _Stream(self._stream.limit_nbytes)}

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, TransformerView)
            and (self._keys, self.read_only) == (other._keys, other.read_only)
            and self._store == other._store
        )

    def __str__(self) -> str:
        return f"chunks-in-{self._store}"

    def __repr__(self) -> str:
        return f"TransformerView({self._store!r}, {self._keys.counts}, {self._keys.path!r})"

    async def _open(self) -> None:
        await super()._open()
        await StorePath.open(self._store, "")  # opens it

    def __enter__(self) -> Self:
        self._stream.view, self._stream.is_open = self, True
        _streams.add(self._stream)
        return self

    def close(self) -> None:
        """Write what waits, and close the view and the store below."""
        try:
            self._stream.count()
            if self._stream.shards:
                _refuse_waiting_in_loop()
                sync(self.flush())
        finally:
            self._stream.is_open = False
            super().close()
            self._store.close()

    async def flush(self) -> None:
        """Write all that waits, since the view is used in a ``with`` statement.

        On return it is in the store below. After an error, what was not written still waits.
        """
        turns = asyncio.Semaphore(_WRITES_AT_ONCE)

        async def one(key: str, shard: ShardChanges) -> None:
            async with turns, shard.lock:
                await self._write(key, shard)

        shards = self._stream.shards.items()
        results = await asyncio.gather(*(one(*item) for item in shards), return_exceptions=True)
        self._stream.count()
        for error in results:
            if error is not None:
                raise error

    def with_read_only(self, read_only: bool = False) -> TransformerView:
        """The same view, which can be written or not."""
        below = self._store
        if below.read_only and not read_only:
            below = below.with_read_only(read_only=False)
        view = TransformerView(below, self._keys.counts, self._keys.path, read_only=read_only)
        view._stream = self._stream
        return view

    @property
    def supports_writes(self) -> bool:
        """Whether the store below can be written."""
        return self._store.supports_writes

    @property
    def supports_partial_writes(self) -> Literal[False]:
        """Whether zarr-python may ask for partial writes: its older versions name this."""
        return False

    @property
    def supports_deletes(self) -> bool:
        """Whether the store below can remove objects."""
        return self._store.supports_deletes

    @property
    def supports_listing(self) -> bool:
        """Whether the store below can list its objects."""
        return self._store.supports_listing

    @property
    def supports_consolidated_metadata(self) -> bool:
        """Whether the store below wants consolidated metadata."""
        return self._store.supports_consolidated_metadata

    # ---- reading

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Value of a key, or a part of it; None if it is missing.

        - Raises CorruptShardError if the index of the shard cannot be right.
        """
        if is_plain_key(key) and not self._keys.is_of_grid(key):
            return await self._store.get(key, prototype, byte_range)
        (value,) = await self.get_partial_values(prototype, [(key, byte_range)])
        return value

    async def get_partial_values(
        self,
        prototype: BufferPrototype,
        key_ranges: Iterable[tuple[str, ByteRequest | None]],
    ) -> list[Buffer | None]:
        """Values of keys, or parts of them, by two calls to the store below.

        - Raises CorruptShardError if the index of a shard cannot be right.
        """
        wanted = [(key, part, is_plain_key(key)) for key, part in key_ranges]
        asked = [(key, self._keys.place(key), part) for key, part, is_plain in wanted if is_plain]
        names = {place.shard for _, place, _ in asked if place is not None}
        shards = {name: shard_of(self._store, name) for name in names}
        values = iter(
            await _read_unchanged(shards.values(), lambda: self._values(prototype, asked, shards))
        )
        return [next(values) if is_plain else None for _, _, is_plain in wanted]

    async def _values(
        self, prototype: BufferPrototype, asked: Sequence[Asked], shards: Mapping[str, ShardChanges]
    ) -> list[Buffer | None]:
        """Values that wait in shards, and those of the store below."""
        results: list[Buffer | None] = [None] * len(asked)
        stored = []
        for n, (_, place, part) in enumerate(asked):
            if place is None or place.rank not in shards[place.shard].waiting:
                stored.append(n)
                continue
            data = shards[place.shard].waiting[place.rank].data
            if data is not None:
                results[n] = prototype.buffer.from_bytes(data[slice(*_range_in(part, len(data)))])
        values = await self._reads.values(prototype, [asked[n] for n in stored])
        for n, value in zip(stored, values, strict=True):
            results[n] = value
        return results

    async def exists(self, key: str) -> bool:
        """Whether there is a value."""
        if not is_plain_key(key):
            return False
        place = self._keys.place(key)
        if place is None:
            ask = self._store.exists  # of zarr's interface, and no question to a file system
            return await ask(key)
        return await self._nbytes(place) is not None

    async def getsize(self, key: str) -> int:
        """Size of a value in bytes.

        - Raises FileNotFoundError if it is missing.
        """
        if not is_plain_key(key):
            raise FileNotFoundError(key)
        place = self._keys.place(key)
        if place is None:
            return await self._store.getsize(key)
        nbytes = await self._nbytes(place)
        if nbytes is None:
            raise FileNotFoundError(key)
        return nbytes

    async def _nbytes(self, place: ChunkPlace) -> int | None:
        """Size of a chunk in bytes; None if it is missing."""
        shard = shard_of(self._store, place.shard)
        if place.rank in shard.waiting:
            data = shard.waiting[place.rank].data
            return None if data is None else len(data)
        index = (await self._reads.indexes([place.shard]))[place.shard]
        if index is None or index.is_empty[place.rank]:
            return None
        return int(index.table[place.rank, 1])

    # ---- writing

    async def set(self, key: str, value: Buffer) -> None:
        """Put a value; that of a chunk by writing its shard again, in a stream not at once."""
        await self._set(key, value, replaces=True)

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """Put a value unless there is one."""
        await self._set(key, value, replaces=False)

    async def _set(self, key: str, value: Buffer, *, replaces: bool) -> None:
        self._check_writable()
        if not isinstance(value, Buffer):  # in the words of zarr-python's stores
            raise TypeError(
                f"TransformerView.{'set' if replaces else 'set_if_not_exists'}(): `value` must be "
                f"a Buffer instance. Got an instance of {type(value)} instead."
            )
        place = self._keys.place(check_key(key))
        if place is None:
            put = self._store.set if replaces else self._store.set_if_not_exists
            await put(key, value)
            return
        changes = {place.rank: value.to_bytes()}
        if replaces:
            await self._change(place.shard, changes)
            return

        async def unless_there(_shard: ShardChanges) -> _Changes:
            return {} if await self._nbytes(place) is not None else changes

        await self._change_alone(place.shard, unless_there)

    async def _change(self, key: str, changes: _Changes) -> None:
        """Change chunks of a shard; see the head of this module."""
        shard = shard_of(self._store, key)
        with shard.entered(changes):
            if not self._stream.is_open:
                async with shard.lock:
                    await self._write(key, shard)
        await self._write_due(key, shard, changes)

    async def _change_alone(
        self, key: str, changes_of: Callable[[ShardChanges], Awaitable[_Changes]]
    ) -> None:
        """Change chunks of a shard by what is there, while nobody else changes it."""
        shard = shard_of(self._store, key)
        async with shard.lock:
            changes = await changes_of(shard)
            with shard.entered(changes):
                if changes and not self._stream.is_open:
                    await self._write(key, shard)
        await self._write_due(key, shard, changes)

    async def _write_due(self, key: str, shard: ShardChanges, changes: _Changes) -> None:
        """In a stream, let a shard wait, and write the one that is due."""
        stream = self._stream
        if not stream.is_open or not changes:
            return
        stream.shards[key] = shard
        stream.nbytes += sum(_ENTRY_NBYTES + len(data or b"") for data in changes.values())
        if stream.nbytes > stream.limit_nbytes:
            stream.count()
        due = stream.due(key, is_whole=self._is_whole(shard))
        if due is not None:
            shard = stream.shards[due]
            async with shard.lock:
                await self._write(due, shard)
            stream.count()

    def _is_whole(self, shard: ShardChanges) -> bool:
        return len(shard.waiting) == math.prod(self._keys.counts)

    async def _write(self, key: str, shard: ShardChanges) -> None:
        """Write a shard with all that waits; the caller has the lock."""
        entries, stored = dict(shard.waiting), dict[int, memoryview]()
        if not entries:
            return
        if all(entry.data is None for entry in entries.values()):
            index = (await self._reads.indexes([key]))[key]
            there = set() if index is None else set(np.flatnonzero(~index.is_empty).tolist())
            if index is None or (there and there.isdisjoint(entries)):
                shard.drop(entries)
                return
            if not there <= entries.keys():
                stored = await self._reads.chunks(key)
        elif not self._is_whole(shard):
            stored = await self._reads.chunks(key)
        entries = dict(shard.waiting)
        changed: dict[int, _Data] = {**stored, **{r: entry.data for r, entry in entries.items()}}
        chunks = {rank: data for rank, data in changed.items() if data is not None}
        shard.n_steps += 1
        try:
            await (self._put(key, chunks) if chunks else self._delete_object(key))
        finally:
            shard.n_steps += 1
        shard.drop(entries)

    async def set_partial_values(
        self, key_start_values: Iterable[tuple[str, int, bytes | bytearray | memoryview]]
    ) -> None:
        """Overwrite parts of values; each object of the store below is written once.

        - `key_start_values`: key, first byte, and the new bytes, which may go beyond the end of the
          old value. A negative first byte counts from the end, and the new bytes replace all that
          follows.
        """
        self._check_writable()
        changes: dict[str, list[tuple[str, int, bytes]]] = {}
        for key, start, value in key_start_values:
            place = self._keys.place(check_key(key))
            changes.setdefault(key if place is None else place.shard, []).append(
                (key, _first_byte(start), _new_bytes(value))
            )
        await asyncio.gather(*(self._patch(name, parts) for name, parts in changes.items()))

    async def _patch(self, name: str, parts: Sequence[tuple[str, int, bytes]]) -> None:
        """Overwrite parts of one object, or of chunks of one shard."""
        if not self._keys.is_of_grid(name):
            async with shard_of(self._store, name).lock:
                object_below = await self._store.get(name, default_buffer_prototype())
                value = None if object_below is None else object_below.to_bytes()
                for key, start, data in parts:
                    value = _patched(key, value, start, data)
                await self._store.set(name, CpuBuffer.from_bytes(value or b""))
                return

        async def patched(shard: ShardChanges) -> _Changes:
            values: dict[int, _Data] = {**await self._reads.chunks(name)}
            values |= {rank: entry.data for rank, entry in shard.waiting.items()}
            changed = set[int]()
            for key, start, data in parts:
                place = self._keys.place(key)
                if place is not None:
                    values[place.rank] = _patched(key, values.get(place.rank), start, data)
                    changed.add(place.rank)
            return {rank: values[rank] for rank in changed}

        await self._change_alone(name, patched)

    async def delete(self, key: str) -> None:
        """Remove a value, which may be missing."""
        await self.erase_values([key])

    async def erase_values(self, keys: Iterable[str]) -> None:
        """Remove values, which may be missing; each shard is written or removed once."""
        self._check_writable()
        if isinstance(keys, str):
            raise SpecError(
                "one text, and not several keys",
                field="keys",
                value=keys,
                remedy="give a list of keys, or use delete",
            )
        others, shards = [], dict[str, set[int]]()
        for key in filter(is_plain_key, keys):
            place = self._keys.place(key)
            if place is None:
                others.append(key)
            else:
                shards.setdefault(place.shard, set()).add(place.rank)
        await asyncio.gather(
            *(self._delete_object(key) for key in others),
            *(self._change(shard, dict.fromkeys(ranks)) for shard, ranks in shards.items()),
        )

    async def _delete_object(self, key: str) -> None:
        """Remove an object of the store below, if it is one.

        A directory of zarr-python would remove all that lies in a directory of this name.
        """
        there = self._store.exists  # of zarr's interface, and no question to a file system
        if await there(key):
            await self._store.delete(key)

    async def erase_prefix(self, prefix: str) -> None:
        """Remove all values whose keys begin with `prefix`."""
        self._check_writable()
        if not _begins_plain(prefix):
            return
        self._drop_waiting(prefix)
        await _flush_streams()
        if self._keys.is_one_directory(prefix):
            async for _ in self._below(prefix):  # some stores would take an object for a directory
                await self._store.delete_dir(prefix)
                break
            return
        wholes, parts = list[str](), list[str]()
        async for key in self._below(prefix):
            (wholes if self._keys.starts_with(key, prefix) else parts).append(key)
        chunks = [
            key
            for n in range(0, len(parts), _AT_ONCE)
            for key in await self._chunk_keys(parts[n : n + _AT_ONCE])
            if key.startswith(prefix)
        ]
        await asyncio.gather(*(self._remove(key) for key in wholes), self.erase_values(chunks))

    async def _remove(self, key: str) -> None:
        """Remove an object of the store below."""
        async with shard_of(self._store, key).lock:
            await self._store.delete(key)

    def _drop_waiting(self, prefix: str) -> None:
        """Drop what waits for shards that are removed, and that may be damaged."""
        for key, shard in self._stream.shards.items():
            if self._keys.starts_with(key, prefix):
                shard.drop(dict(shard.waiting))

    async def delete_dir(self, prefix: str) -> None:
        """Remove all values below a path."""
        _check_prefix(prefix)
        await self.erase_prefix(prefix if not prefix or prefix.endswith("/") else f"{prefix}/")

    async def clear(self) -> None:
        """Remove all values."""
        self._check_writable()
        self._drop_waiting("")
        await _flush_streams()
        await self._store.clear()

    async def _put(self, shard: str, chunks: Mapping[int, bytes | memoryview]) -> None:
        """Write a shard from its encoded chunks, in row-major order."""
        codec = self._reads.codec
        nbytes = np.full(codec.encoded_nbytes // 16, -1, np.int64)
        for rank, chunk in chunks.items():
            nbytes[rank] = len(chunk)
        sizes = nbytes.clip(0)
        seal = codec.seal(ShardIndex.build(sizes.cumsum() - sizes, nbytes))
        data = b"".join([*(chunks[rank] for rank in sorted(chunks)), bytes(seal.suffix)])
        await self._store.set(shard, CpuBuffer.from_bytes(data))

    # ---- listing

    async def list(self) -> AsyncIterator[str]:
        """All keys."""
        async for key in self.list_prefix(""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """All keys that begin with `prefix`."""
        _check_prefix(prefix)
        await _flush_streams()
        async for key in self._expanded(self._below(prefix)):
            if key.startswith(prefix):
                yield key

    async def _below(self, prefix: str) -> AsyncIterator[str]:
        """Keys of the store below that begin with `prefix`, or whose chunks may."""
        if not _begins_plain(prefix):
            return
        for directory in self._keys.directories(prefix):
            async for key in self._store.list_prefix(directory):
                if self._keys.starts_with(key, prefix) or self._keys.may_hold(key, prefix):
                    yield key

    async def _expanded(self, keys: AsyncIterator[str]) -> AsyncIterator[str]:
        """Keys of the store below, with the keys of its chunks for each shard."""
        shards: list[str] = []
        async for key in keys:
            if not self._keys.is_of_grid(key):
                yield key
                continue
            shards.append(key)
            if len(shards) == _AT_ONCE:
                for chunk in await self._chunk_keys(shards):
                    yield chunk
                shards = []
        for chunk in await self._chunk_keys(shards):
            yield chunk

    async def _chunk_keys(self, shards: Iterable[str]) -> Sequence[str]:
        """Keys of the chunks that shards hold."""
        return [
            self._keys.chunk_key(shard, rank)
            for shard, index in (await self._reads.indexes(shards)).items()
            if index is not None
            for rank in np.flatnonzero(~index.is_empty).tolist()
        ]

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Names of what lies directly in a directory; only those of keys that exist."""
        _check_prefix(prefix)
        path = prefix.rstrip("/")
        directory = f"{path}/" if path else ""
        if not _begins_plain(directory):
            return
        await _flush_streams()
        is_whole = self._keys.is_one_directory(directory)
        names = [name async for name in self._store.list_dir(path)] if is_whole else [path]
        if path in names or any(self._keys.holds_chunks(directory + name) for name in names):
            keys = [key async for key in self.list_prefix(directory)]
            names = list(dict.fromkeys(k.removeprefix(directory).split("/")[0] for k in keys))
        for name in names:
            yield name


async def _flush_streams() -> None:
    """Write what waits in this process, as the store below is asked which keys it has."""
    for stream in list(_streams):
        if stream.is_open and stream.view is not None:
            await stream.view.flush()


async def _read_unchanged(
    shards: Collection[ShardChanges], read: Callable[[], Awaitable[_Values]]
) -> _Values:
    """What `read` reads of shards, again and alone if one of them was written meanwhile."""
    shards = sorted({*shards}, key=id)  # in one order, as others may wait for the same locks
    before = [shard.n_steps for shard in shards]
    try:
        if not any(n % 2 for n in before):
            values = await read()
            if before == [shard.n_steps for shard in shards]:
                return values
    except Exception:
        if before == [shard.n_steps for shard in shards]:
            raise
    async with contextlib.AsyncExitStack() as stack:
        for shard in shards:
            await stack.enter_async_context(shard.lock)
        return await read()


def _refuse_waiting_in_loop() -> None:
    """Refuse to wait for a flush in the thread of an event loop, which would stand still."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise SpecError(
        "a coroutine closes it, and chunks wait to be written",
        field="view",
        value="close()",
        remedy="await view.flush() first",
    )


def _begins_plain(prefix: str) -> bool:
    """Whether a key that is a relative path of plain names can begin so."""
    _check_prefix(prefix)
    directory = prefix.rpartition("/")[0]
    return is_plain_key(directory) if "/" in prefix else "\0" not in prefix


def _check_prefix(prefix: object) -> None:
    """Refuse what is no text, as the beginning of keys."""
    if not isinstance(prefix, str):
        raise TypeError(f"`prefix` must be a str. Got an instance of {type(prefix)} instead.")


def _first_byte(start: object) -> int:
    """A first byte that a user gives."""
    if not is_whole(start):
        raise SpecError(
            "not the number of a byte", field="start", value=start, remedy="give an integer"
        )
    return int(start)


def _new_bytes(value: object) -> bytes:
    """New bytes that a user gives.

    - Raises SpecError if they are no bytes, such as a number, which `bytes` would take for a
      length.
    """
    if isinstance(value, Buffer):
        return value.to_bytes()
    try:
        return memoryview(value).tobytes()  # type: ignore[arg-type]
    except TypeError:
        raise SpecError(
            "not bytes", field="value", value=value, remedy="give bytes, or a buffer of zarr-python"
        ) from None


def _patched(key: str, old: bytes | memoryview | None, start: int, data: bytes) -> bytes:
    """A value in which bytes from `start` on are replaced."""
    size = len(old or b"")
    if not -size <= start <= size:
        raise SpecError(
            f"outside of the value of {key!r}, which has {size} bytes",
            field="start",
            value=start,
            remedy="give a byte of the value, or its end",
        )
    value = bytearray(old or b"")
    value[start : (start + len(data)) if start >= 0 else None] = data
    return bytes(value)


# ---- The function that opens a view


@public
def transformer_view(
    store: Any,
    chunks_per_shard: Any,
    *,
    path: str = "",
    read_only: bool = False,
    memory_limit: int | str | None = None,
) -> TransformerView:
    """View the shards of an array as a store with one key for each chunk.

    This is the storage transformer of 2022, on the interface of zarr-python's stores. A chunk key
    ends in ``c/0/1``, ``c.0.1``, ``c0/1`` or ``c0.1``. The numbers of a shard's key are those of
    its chunks, divided by `chunks_per_shard`. All other keys are those of the store below.

    Parameters
    ----------
    store : zarr.abc.store.Store, str or path
        The store below, which holds the shards, or its directory.
    chunks_per_shard : int, sequence of int, or array of integers
        Number of chunks in a shard along each axis.
    path : str, optional
        Path of the array in the store, for instance ``"data/root/x"``. By default every key that
        ends as those of chunks, with one number for each axis, is that of a chunk.
    read_only : bool, optional
        Refuse all changes.
    memory_limit : int or str, optional
        Bytes of chunks that may wait to be written in a ``with`` statement, as a number or a text
        such as ``"1 GiB"``; 256 MiB by default. Writing a shard takes about three times its size
        besides.

    Returns
    -------
    TransformerView
        A store. Besides the methods of `zarr.abc.store.Store` it has those of the document of 2022:
        ``set_partial_values``, ``erase_values`` and ``erase_prefix``.

    Raises
    ------
    SpecError
        If an argument has a wrong value.

    Notes
    -----
    To write a chunk is to write its whole shard again. So write many chunks in a ``with``
    statement. A shard is then written when all of its chunks were given, or when `memory_limit` is
    reached. ``await view.flush()`` and the end of the statement write the rest. Until then, only
    this process sees what was given, through any view of the store, and a crash loses it.

    The coroutines of one event loop take turns, so that zarr-python can write the chunks of a
    shard at once, also through several views of one store. Two processes must not write chunks of
    the same shard at the same time.

    A shard whose index cannot be right raises `CorruptShardError`.

    Examples
    --------
    >>> import numpy as np, shardwrite, zarr
    >>> objects = {}
    >>> below = zarr.storage.MemoryStore(objects)
    >>> view = shardwrite.transformer_view(below, (2, 2))
    >>> x = zarr.create_array(view, shape=(8, 8), chunks=(2, 2), dtype="u1", compressors=None)
    >>> with view:
    ...     x[...] = np.arange(64).reshape(8, 8)
    >>> int(x[5, 3])
    43
    >>> sorted(key for key in objects if key != "zarr.json")
    ['c/0/0', 'c/0/1', 'c/1/0', 'c/1/1']
    """
    if isinstance(store, str | os.PathLike):
        store = LocalStore(_directory(os.fspath(store)), read_only=read_only)
    if not isinstance(store, Store):
        raise SpecError(
            "not a store",
            field="store",
            value=type(store).__name__,
            remedy="give a store of zarr-python, or the path of a directory",
        )
    is_plain = isinstance(path, str) and path == path.strip("/") and "//" not in path
    if not is_plain:
        remedy = 'give the path of an array, for instance "data/root/x"'
        raise SpecError("not a path in a store", field="path", value=path, remedy=remedy)
    counts = checked_counts(chunks_per_shard)
    limit = memory_limit_of(memory_limit) or _DEFAULT_NBYTES
    return TransformerView(store, counts, path, read_only=read_only, limit_nbytes=limit)


def _directory(given: Any) -> str:
    """Path of the directory that a user gives for a store."""
    path = local_path(given) if isinstance(given, str) else ""
    if not path or "\0" in path or "://" in path or is_file(path):
        raise SpecError(
            "not the path of a directory",
            field="store",
            value=given,
            remedy="give a directory, or a store of zarr-python, such as "
            "zarr.storage.ZipStore(...) or zarr.storage.FsspecStore.from_url(...)",
        )
    return path

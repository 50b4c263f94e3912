"""The storage transformer of 2022 as a store of zarr-python.

A view has one key for each chunk, and the store below has one object for each shard. A read asks
that store twice: for the indexes, and for the chunks. A write reads the shard, changes it, and puts
it again as a whole. The coroutines of one event loop that write to the same shard take turns, also
through different views of its store.

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
import os
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal
from weakref import WeakValueDictionary

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
from zarr.storage import FsspecStore, LocalStore, MemoryStore, StorePath, WrapperStore

from shardwrite.checks import is_whole
from shardwrite.entry.public import public
from shardwrite.errors import CorruptShardError, SpecError, damage_in
from shardwrite.format.index import IndexCodec, ShardIndex
from shardwrite.grid import Shape, unravel
from shardwrite.legacy.transformer import ChunkKeys, ChunkPlace, checked_counts
from shardwrite.stores.base import check_key, is_plain_key
from shardwrite.stores.bucket import BucketStore
from shardwrite.stores.bucket_kinds import is_bucket
from shardwrite.stores.looking import is_file, local_path
from shardwrite.stores.zarr_store import kind_of

_Which = tuple[int, object, str]

_locks: WeakValueDictionary[_Which, asyncio.Lock] = WeakValueDictionary()


# ---- Locks of shards, which all views of a store in one event loop share


def lock_of(store: Store, key: str) -> asyncio.Lock:
    """Lock of an object in the running event loop, which exists as long as somebody uses it.

    - `store`: the store of the object. Two stores of zarr-python give the same lock if they are
      known to hold the same object: the same directory, the same memory, or the same place of a
      bucket.
    """
    which = (id(asyncio.get_running_loop()), *_identity(store, key))
    return _locks.setdefault(which, asyncio.Lock())


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
        return BucketStore(below, is_read=True).token, key
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

    async def chunks(self, shard: str) -> dict[int, bytes]:
        """Encoded chunks of a shard by their ranks; none if it is missing."""
        shard_object = await self._store.get(shard, default_buffer_prototype())
        if shard_object is None:
            return {}
        data = shard_object.to_bytes()
        index = self.decoded(shard, data[-self.codec.encoded_nbytes :], len(data))
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


class TransformerView(Store):
    """A store that presents the shards of arrays as one key for each chunk."""

    def __init__(
        self, store: Store, counts: Shape, path: str = "", *, read_only: bool = False
    ) -> None:
        super().__init__(read_only=read_only or store.read_only)
        self._store = store
        self._keys = ChunkKeys(path, counts)
        self._reads = ShardReads(store, counts)

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

    def close(self) -> None:
        """Close the view, and the store below."""
        super().close()
        self._store.close()

    def with_read_only(self, read_only: bool = False) -> TransformerView:
        """The same view, which can be written or not."""
        below = self._store
        if below.read_only and not read_only:
            below = below.with_read_only(read_only=False)
        return TransformerView(below, self._keys.counts, self._keys.path, read_only=read_only)

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
        values = iter(await self._reads.values(prototype, asked))
        return [next(values) if is_plain else None for _, _, is_plain in wanted]

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
        index = (await self._reads.indexes([place.shard]))[place.shard]
        if index is None or index.is_empty[place.rank]:
            return None
        return int(index.table[place.rank, 1])

    # ---- writing

    async def set(self, key: str, value: Buffer) -> None:
        """Put a value; that of a chunk by writing its shard again."""
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
        async with lock_of(self._store, place.shard):
            chunks = await self._reads.chunks(place.shard)
            if replaces or place.rank not in chunks:
                chunks[place.rank] = value.to_bytes()
                await self._put(place.shard, chunks)

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
        async with lock_of(self._store, name):
            if not self._keys.is_of_grid(name):
                object_below = await self._store.get(name, default_buffer_prototype())
                value = None if object_below is None else object_below.to_bytes()
                for key, start, data in parts:
                    value = _patched(key, value, start, data)
                await self._store.set(name, CpuBuffer.from_bytes(value or b""))
                return
            chunks = await self._reads.chunks(name)
            for key, start, data in parts:
                place = self._keys.place(key)
                if place is not None:
                    chunks[place.rank] = _patched(key, chunks.get(place.rank), start, data)
            await self._put(name, chunks)

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
            *(self._erase(shard, ranks) for shard, ranks in shards.items()),
        )

    async def _delete_object(self, key: str) -> None:
        """Remove an object of the store below, if it is one.

        A directory of zarr-python would remove all that lies in a directory of this name.
        """
        there = self._store.exists  # of zarr's interface, and no question to a file system
        if await there(key):
            await self._store.delete(key)

    async def _erase(self, shard: str, ranks: Collection[int]) -> None:
        async with lock_of(self._store, shard):
            index = (await self._reads.indexes([shard]))[shard]
            stored = set() if index is None else set(np.flatnonzero(~index.is_empty).tolist())
            if index is None or (stored and stored.isdisjoint(ranks)):
                return
            if stored <= set(ranks):
                await self._store.delete(shard)
                return
            chunks = await self._reads.chunks(shard)
            await self._put(shard, {r: data for r, data in chunks.items() if r not in ranks})

    async def erase_prefix(self, prefix: str) -> None:
        """Remove all values whose keys begin with `prefix`."""
        self._check_writable()
        if not _begins_plain(prefix):
            return
        if self._keys.is_whole(prefix):
            async for _ in self._below(prefix):  # some stores would take an object for a directory
                await self._store.delete_dir(prefix)
                break
            return
        wholes, parts = list[str](), list[str]()
        async for key in self._below(prefix):
            (wholes if self._keys.is_begun(key, prefix) else parts).append(key)
        chunks = [
            key
            for n in range(0, len(parts), _AT_ONCE)
            for key in await self._chunk_keys(parts[n : n + _AT_ONCE])
            if key.startswith(prefix)
        ]
        await asyncio.gather(*(self._remove(key) for key in wholes), self.erase_values(chunks))

    async def _remove(self, key: str) -> None:
        """Remove an object of the store below."""
        async with lock_of(self._store, key):
            await self._store.delete(key)

    async def delete_dir(self, prefix: str) -> None:
        """Remove all values below a path."""
        _check_prefix(prefix)
        await self.erase_prefix(prefix if not prefix or prefix.endswith("/") else f"{prefix}/")

    async def clear(self) -> None:
        """Remove all values."""
        self._check_writable()
        await self._store.clear()

    async def _put(self, shard: str, chunks: Mapping[int, bytes]) -> None:
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
        async for key in self._expanded(self._below(prefix)):
            if key.startswith(prefix):
                yield key

    async def _below(self, prefix: str) -> AsyncIterator[str]:
        """Keys of the store below that begin with `prefix`, or whose chunks may."""
        if not _begins_plain(prefix):
            return
        for directory in self._keys.directories(prefix):
            async for key in self._store.list_prefix(directory):
                if self._keys.is_begun(key, prefix) or self._keys.may_hold(key, prefix):
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
        is_whole = self._keys.is_whole(directory)
        names = [name async for name in self._store.list_dir(path)] if is_whole else [path]
        if path in names or any(self._keys.holds_chunks(directory + name) for name in names):
            keys = [key async for key in self.list_prefix(directory)]
            names = list(dict.fromkeys(k.removeprefix(directory).split("/")[0] for k in keys))
        for name in names:
            yield name


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


def _patched(key: str, old: bytes | None, start: int, data: bytes) -> bytes:
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
    store: Any, chunks_per_shard: Any, *, path: str = "", read_only: bool = False
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
    To write a chunk is to write its whole shard again. The coroutines of one event loop take
    turns, so that zarr-python can write the chunks of a shard at once, also through several views
    of one store. Two processes must not write chunks of the same shard at the same time.

    A shard whose index cannot be right raises `CorruptShardError`.

    Examples
    --------
    >>> import numpy as np, shardwrite, zarr
    >>> objects = {}
    >>> below = zarr.storage.MemoryStore(objects)
    >>> view = shardwrite.transformer_view(below, (2, 2))
    >>> x = zarr.create_array(view, shape=(8, 8), chunks=(2, 2), dtype="u1", compressors=None)
    >>> x[...] = np.arange(64).reshape(8, 8)
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
    return TransformerView(store, counts, path, read_only=read_only)


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

"""Reads of chunks in shards through the interface of zarr-python's stores, in two calls.

Nothing is known of the size of a shard whose index alone was read. So the second call also asks for
the last byte of an index behind the chunks that it reads.

Stores in memory say which values are missing. A directory or a store of obstore raises an error for
the whole call instead. Only then are the values of several objects asked for one by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.buffer import default_buffer_prototype

from shardwrite.errors import CorruptShardError, SpecError
from shardwrite.format.index import IndexCodec, ShardIndex
from shardwrite.format.transformer_keys import ChunkPlace
from shardwrite.grid import Shape, unravel

_INDEX_CODECS = ({"name": "bytes", "configuration": {"endian": "little"}},)
_LARGE_NBYTES = 2**26
"""A chunk of more bytes is read only after the shard was seen to be that long."""
_AT_ONCE = 64
"""Values that are asked for one by one at a time."""
_MISSING = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
"""Errors that zarr-python's own stores turn into None where one value is asked for."""

Asked = tuple[str, ChunkPlace | None, ByteRequest | None]


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
        used: dict[str, list[int]] = {}
        for n, (key, place, wanted) in enumerate(asked):
            if place is None:
                below.append((key, wanted))
                origins.append(n)
                continue
            index = indexes[place.shard]
            if index is None or index.is_empty[place.rank]:
                continue
            offset, nbytes = (int(v) for v in index.table[place.rank])
            start, stop = _range_in(wanted, nbytes)
            used.setdefault(place.shard, []).append(place.rank)
            if start == stop:
                results[n] = prototype.buffer.from_bytes(b"")
            else:
                below.append((place.shard, RangeByteRequest(offset + start, offset + stop)))
                origins.append(n)
        found = await self._ranges(prototype, below, used, indexes)
        for n, value in zip(origins, found, strict=True):
            results[n] = value
        return results

    async def indexes(self, shards: Iterable[str]) -> dict[str, ShardIndex | None]:
        """Indexes of shards by their keys, from one call; None for a shard that is missing."""
        keys = list(dict.fromkeys(shards))
        if not keys:
            return {}
        nbytes = self.codec.encoded_nbytes
        found = await self._asked(
            default_buffer_prototype(), [(key, SuffixByteRequest(nbytes)) for key in keys]
        )
        return {
            key: None if data is None else self.decoded(key, data.to_bytes(), None)
            for key, data in zip(keys, found, strict=True)
        }

    def decoded(self, shard: str, data: bytes, shard_nbytes: int | None) -> ShardIndex:
        """Index of a shard, checked; some errors are found only if the shard's size is known."""
        nbytes = self.codec.encoded_nbytes
        try:
            if len(data) != nbytes:
                raise CorruptShardError(  # noqa: TRY301
                    f"{len(data)} bytes are too few for an index of {nbytes}"
                )
            return self.codec.decode(data, shard_nbytes)
        except CorruptShardError as error:
            raise error.located(key=shard) from error

    async def _asked(
        self, prototype: BufferPrototype, asked: Sequence[tuple[str, ByteRequest | None]]
    ) -> Sequence[Buffer | None]:
        """Parts of objects, by one call unless an object is missing; None for those that are."""
        try:
            return await self._store.get_partial_values(prototype, asked)
        except _MISSING:
            if len({key for key, _ in asked}) == 1:
                return [None] * len(asked)
        turns = asyncio.Semaphore(_AT_ONCE)

        async def one(key: str, wanted: ByteRequest | None) -> Buffer | None:
            async with turns:
                return await self._store.get(key, prototype, wanted)

        return await asyncio.gather(*(one(key, wanted) for key, wanted in asked))

    async def _ranges(
        self,
        prototype: BufferPrototype,
        asked: list[tuple[str, ByteRequest | None]],
        used: Mapping[str, list[int]],
        indexes: Mapping[str, ShardIndex | None],
    ) -> list[Buffer | None]:
        """Ranges of objects, by one call, which also asks for the last byte of what is needed.

        A shard is long enough if it has the last byte of an index behind the chunks.
        """
        ends: dict[str, int] = {}
        is_large = False
        for shard, ranks in used.items():
            table = _table(indexes[shard])[ranks]
            ends[shard] = int(table.sum(axis=1).max()) + self.codec.encoded_nbytes
            is_large |= bool(table[:, 1].max() > _LARGE_NBYTES)
        probes = [(shard, RangeByteRequest(end - 1, end)) for shard, end in ends.items()]
        try:
            if is_large:
                seen = await self._asked(prototype, probes)
                self._check_ends(used, indexes, seen)
            if not (asked or probes):
                return []
            found = await self._asked(prototype, [*asked, *probes])
        except CorruptShardError:
            raise
        except Exception:  # a store may refuse a range that an object does not have
            await self._check_sizes(used, indexes, ends)
            raise
        self._check_ends(used, indexes, found[len(asked) :])
        return list(found[: len(asked)])

    def _check_ends(
        self,
        used: Mapping[str, list[int]],
        indexes: Mapping[str, ShardIndex | None],
        found: Sequence[Buffer | None],
    ) -> None:
        """Refuse the index of each shard whose last byte was not found."""
        for (shard, ranks), last in zip(used.items(), found, strict=True):
            if last is not None and not len(last):
                raise self._past_the_end(shard, ranks, _table(indexes[shard]))

    async def _check_sizes(
        self,
        used: Mapping[str, list[int]],
        indexes: Mapping[str, ShardIndex | None],
        ends: Mapping[str, int],
    ) -> None:
        """Refuse the index of each shard that is too short, after a call that has failed."""
        for shard, ranks in used.items():
            try:
                nbytes = await self._store.getsize(shard)
            except FileNotFoundError:
                continue  # removed meanwhile, which is what the call has told
            if nbytes < ends[shard]:
                raise self._past_the_end(shard, ranks, _table(indexes[shard]))

    def _past_the_end(
        self, shard: str, ranks: Collection[int], table: npt.NDArray[np.int64]
    ) -> CorruptShardError:
        rank = max(ranks, key=lambda rank: int(table[rank].sum()))
        return CorruptShardError(
            "lies past the end, or inside the index",
            key=shard,
            inner_chunk=unravel(rank, self._counts),
            offset=int(table[rank, 0]),
            nbytes=int(table[rank, 1]),
        )

    async def chunks(self, shard: str) -> dict[int, bytes]:
        """Encoded chunks of a shard by their ranks; none if it is missing."""
        found = await self._store.get(shard, default_buffer_prototype())
        if found is None:
            return {}
        data = found.to_bytes()
        index = self.decoded(shard, data[-self.codec.encoded_nbytes :], len(data))
        table = index.table
        return {
            rank: data[int(table[rank, 0]) : int(table[rank].sum())]
            for rank in np.flatnonzero(~index.is_empty).tolist()
        }


def _table(index: ShardIndex | None) -> npt.NDArray[np.int64]:
    """Entries of an index as signed integers, whose sums cannot wrap after the index's check."""
    return np.zeros((0, 2), np.int64) if index is None else index.table.astype(np.int64)


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

"""Reading of a shard of the format ``neuroglancer_uint64_sharded_v1``.

No size that the shard itself tells is trusted: ranges are checked in whole numbers before they are
read, and what is decoded has a limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwrite.codecs.limits import chunk_limit
from shardwrite.codecs.stages import Buffer
from shardwrite.encode.reader import Ranges
from shardwrite.errors import CorruptShardError
from shardwrite.format.precomputed.parameters import ShardingParameters
from shardwrite.format.precomputed.shard import (
    ENTRY_NBYTES,
    Contents,
    Minishard,
    check_ranges,
    check_shard_index,
    contents_of,
    decode_minishard,
    most_gzip_nbytes,
    parse_entries,
    stage_of,
)

_PIECE_NBYTES = 2**20
_ALL = -1  # in place of the number of a minishard
Cached = Callable[[int, Callable[[], Any]], Any]


@dataclass(frozen=True, slots=True)
class Joined:
    """Two objects that are read as one: the index and the data of the obsolete format."""

    index: Ranges
    data: Ranges

    @property
    def nbytes(self) -> int:
        """Size of both."""
        return self.index.nbytes + self.data.nbytes

    def read(self, offset: int, nbytes: int) -> Buffer:
        """See :meth:`Ranges.read`."""
        split = self.index.nbytes
        if offset >= split:
            return self.data.read(offset - split, nbytes)
        if offset + nbytes <= split:
            return self.index.read(offset, nbytes)
        head = self.index.read(offset, split - offset)
        return b"".join((head, self.data.read(0, offset + nbytes - split)))


class UInt64ShardReader:
    """Reader of the chunks of a shard.

    To find a chunk, it reads 16 bytes of the shard index and the index of one minishard.

    - `cached`: called with the number of a minishard, or -1 for all of them, and a function that
      reads the index. It returns the index, from a cache if it has one.
    - Raises CorruptShardError if the object is too short for the shard index.
    """

    def __init__(
        self,
        sharding: ShardingParameters,
        shard: int,
        source: Ranges,
        limit_nbytes: int,
        cached: Cached | None = None,
    ) -> None:
        self.sharding, self.shard, self.source = sharding, shard, source
        self.key = sharding.key_of(shard)
        self._limit_nbytes = limit_nbytes
        self._cached = cached
        self._stage = stage_of(sharding.data_encoding)
        if source.nbytes < sharding.shard_index_nbytes:
            raise CorruptShardError(
                f"{source.nbytes} bytes are too few for an index of {sharding.shard_index_nbytes}",
                key=self.key,
            )

    @property
    def data_nbytes(self) -> int:
        """Size of all that follows the shard index."""
        return self.source.nbytes - self.sharding.shard_index_nbytes

    def minishard(self, number: int) -> Minishard:
        """Chunks of a minishard.

        - Raises CorruptShardError if its index is damaged.
        """

        def load() -> Minishard:
            (entry,) = parse_entries(self.source.read(ENTRY_NBYTES * number, ENTRY_NBYTES))
            return self._load(number, int(entry[0]), int(entry[1]))

        found: Minishard = load() if self._cached is None else self._cached(number, load)
        return found

    def contents(self) -> Contents:
        """All chunks, and the bytes that no index names; read anew, and not from the cache.

        - Raises CorruptShardError if an index is damaged, or the indexes of two minishards overlap.
        """
        entries, base = self._entries(), self.sharding.shard_index_nbytes
        indexes = np.array([[base + a, base + b] for _, a, b in entries], np.uint64)
        minishards = [self._load(*entry) for entry in entries]
        return contents_of(minishards, indexes.reshape(-1, 2), base, self.source.nbytes)

    def owned_contents(self) -> Contents:
        """See :meth:`contents`; each byte must be one of an index or a chunk, or lie before one."""
        contents = self._apart()
        n_unowned, offset = contents.unowned
        if n_unowned:
            raise CorruptShardError(
                f"{n_unowned} bytes, the first at {offset}, belong to no chunk and to no index, as "
                "if a part of the index was lost. A change of this shard would lose them, and is "
                'refused; existing="replace" makes it anew from the chunks that you give',
                key=self.key,
            )
        return contents

    def _apart(self) -> Contents:
        contents = self.contents()
        try:
            check_ranges(contents.ranges, self.source.nbytes, "chunk or index")
        except CorruptShardError as error:
            raise error.located(key=self.key) from error
        return contents

    def _load(self, number: int, start: int, end: int) -> Minishard:
        what = f"index of minishard {number}"
        try:
            entry = np.array([[start, end]], np.uint64)
            if not len(check_ranges(entry, self.data_nbytes, what)):
                nothing = np.zeros(0, np.uint64)
                return Minishard(nothing, nothing, nothing)
            if end - start > self._limit_nbytes:
                raise CorruptShardError(  # noqa: TRY301
                    f"{what} takes {end - start} bytes, and {self._limit_nbytes} are allowed; "
                    "if that is right, raise index_limit. For a volume, raise "
                    "shardwrite.precomputed.index-limit in dask's configuration"
                )
            return decode_minishard(
                self.sharding,
                self.source.read(start + self.sharding.shard_index_nbytes, end - start),
                self.source.nbytes,
                (self.shard, number),
                self._limit_nbytes,
            )
        except CorruptShardError as error:
            raise error.located(key=self.key) from error

    def minishards(self) -> Iterator[Minishard]:
        """Chunks of all minishards that have some, one minishard after the other.

        - Raises CorruptShardError if an index is damaged, or the indexes of two minishards overlap.
        """
        for entry in self._entries():
            yield self._load(*entry)

    def _entries(self) -> list[tuple[int, int, int]]:
        """Number, start and end of the index of each minishard that has one."""
        nbytes = self.sharding.shard_index_nbytes
        check_shard_index(self.sharding, self._limit_nbytes)
        found: list[tuple[int, int, int]] = []
        for at in range(0, nbytes, _PIECE_NBYTES):
            piece = parse_entries(self.source.read(at, min(_PIECE_NBYTES, nbytes - at)))
            for i in np.flatnonzero(piece[:, 0] != piece[:, 1]).tolist():
                start, end = piece[i].tolist()
                found.append((at // ENTRY_NBYTES + i, start, end))
        ranges = np.array([entry[1:] for entry in found], np.uint64).reshape(-1, 2)
        try:
            check_ranges(ranges, self.data_nbytes, "index of a minishard")
        except CorruptShardError as error:
            raise error.located(key=self.key) from error
        return found

    def chunk(self, chunk_id: int, most_nbytes: int | None = None) -> bytes | None:
        """Decoded bytes of a chunk; None if the shard does not have it.

        - `most_nbytes`: most bytes that a chunk can have, if that is known.
        - Raises CorruptShardError if an index or the chunk is damaged, or the chunk is larger than
          `most_nbytes` or than ``shardwrite.read.chunk-limit`` in dask's configuration allows.
        """
        _, minishard = self.sharding.locate([chunk_id])
        place = self.minishard(int(minishard[0])).find(chunk_id)
        return None if place is None else self.value(*place, most_nbytes)

    def value(self, offset: int, nbytes: int, most_nbytes: int | None = None) -> bytes:
        """Decoded bytes of the chunk at a place in the shard, which must lie in it.

        - Raises CorruptShardError as :meth:`chunk` does.
        """
        allowed = chunk_limit()
        limit = allowed if most_nbytes is None else min(allowed, most_nbytes)
        try:
            if most_nbytes is not None:
                most = most_nbytes if self._stage is None else most_gzip_nbytes(most_nbytes)
                if nbytes > most:
                    raise CorruptShardError(  # noqa: TRY301
                        f"takes {nbytes} bytes where at most {most} can be"
                    )
            data = self._limited(offset, nbytes)
            return bytes(data if self._stage is None else self._stage.decode(data, limit))
        except CorruptShardError as error:
            raise error.located(key=self.key, offset=offset, nbytes=nbytes) from error

    def fragments(self, chunk_id: int) -> bytes | None:
        """Bytes that lie immediately before a chunk; None if the shard does not have the chunk."""
        load = self.contents
        contents: Contents = load() if self._cached is None else self._cached(_ALL, load)
        position = contents.position(chunk_id)
        if position is None:
            return None
        nbytes = int(contents.before[position])
        offset = int(contents.offsets[position]) - nbytes
        try:
            return bytes(self._limited(offset, nbytes))
        except CorruptShardError as error:
            raise error.located(key=self.key, offset=offset, nbytes=nbytes) from error

    def _limited(self, offset: int, nbytes: int) -> Buffer:
        if nbytes > (allowed := chunk_limit()):
            raise CorruptShardError(
                f"takes {nbytes} bytes, and {allowed} are allowed; if that is right, raise "
                "shardwrite.read.chunk-limit in dask's configuration"
            )
        return self.source.read(offset, nbytes)

    def check(self, *, deep: bool = False) -> tuple[int, int, int]:
        """Check all indexes, and that no two chunks overlap. Several may have the same bytes.

        - `deep`: whether to decode each chunk, too.
        """
        contents = self._apart()
        if deep:
            for position in np.argsort(contents.offsets, kind="stable").tolist():
                self.value(int(contents.offsets[position]), int(contents.nbytes[position]))
        # Chunks that have the same bytes have the same bytes before them.
        has_some = contents.before > 0
        _, first = np.unique(contents.offsets[has_some], return_index=True)
        before_nbytes = int(contents.before[has_some][first].sum())
        return len(contents.ids), before_nbytes, contents.unowned[0]

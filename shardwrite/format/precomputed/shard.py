"""The bytes of a shard around its chunks, and what can be read from them.

A shard begins with its index: for each minishard, start and end of the index of this minishard.
The chunks follow, by minishard and by id, and then the indexes of the minishards. All offsets count
from the end of the shard index. Bytes that no index names may lie before a chunk and belong to it:
the fragments of a mesh lie there, and the chunk is its manifest. Whoever writes knows the shard
index last, since it depends on the sizes of all that follows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.limits import index_limit
from shardwrite.codecs.stages import Buffer, BytesStage, build_stage
from shardwrite.errors import CorruptShardError, SpecError
from shardwrite.format.precomputed.parameters import ShardingParameters

Ids = npt.NDArray[np.uint64]

ENTRY_NBYTES = 16
GZIP_LEVEL = 6
_COLUMN_NBYTES = 24
_FEWER_OR_MORE = "give fewer minishard_bits, or raise index_limit"
_FEWER_OR_CONFIGURED = (
    "give fewer minishard_bits, or raise shardwrite.precomputed.index-limit in dask's configuration"
)
_RUN = 4096  # minishards of which one piece of the shard index tells


@dataclass(frozen=True, slots=True)
class Minishard:
    """Chunks of a minishard, in ascending order of their ids."""

    ids: Ids  # id of each chunk, its offset from the start of the shard, and its encoded size
    offsets: Ids
    nbytes: Ids

    def find(self, chunk_id: int) -> tuple[int, int] | None:
        """Offset and size of a chunk; None if there is none with this id."""
        position = self.position(chunk_id)
        return (
            None if position is None else (int(self.offsets[position]), int(self.nbytes[position]))
        )

    def position(self, chunk_id: int) -> int | None:
        """Position of a chunk in the vectors; None if there is none with this id."""
        position = int(np.searchsorted(self.ids, np.uint64(chunk_id)))
        is_there = position < len(self.ids) and int(self.ids[position]) == chunk_id
        return position if is_there else None

    @property
    def memory_nbytes(self) -> int:
        """Bytes of memory that the three vectors take."""
        return _COLUMN_NBYTES * len(self.ids)


@dataclass(frozen=True, slots=True)
class Contents(Minishard):
    """All chunks of a shard, in ascending order of their ids, and the bytes that no index names."""

    before: Ids  # number of such bytes that lie immediately before each chunk
    ranges: Ids  # start and end of the shard index, of the indexes of minishards and of the chunks
    # Number of bytes that no index names and that lie before no chunk, and offset of the first
    unowned: tuple[int, int]

    @property
    def memory_nbytes(self) -> int:
        """Bytes of memory that the vectors take."""
        return sum(
            each.nbytes for each in (self.ids, self.offsets, self.nbytes, self.before, self.ranges)
        )


@dataclass(frozen=True, slots=True)
class Sealed:
    """What stands around the chunks of a shard."""

    # Number of each minishard that has chunks, and start and end of its index, as the shard index
    # tells them
    table: npt.NDArray[np.uint64]
    suffix: bytearray  # indexes of the minishards, which follow the last chunk

    @property
    def entries(self) -> tuple[tuple[int, bytes], ...]:
        """Pieces of the shard index that are not zero, each with its offset in the shard."""
        return tuple(self._pieces())

    def _pieces(self) -> Iterator[tuple[int, bytes]]:
        runs = self.table[:, 0] // np.uint64(_RUN)
        edges = [0, *(np.flatnonzero(np.diff(runs)) + 1).tolist(), len(runs)]
        for first, last in itertools.pairwise(edges):
            if first < last:
                rows = self.table[first:last]
                piece = bytearray(ENTRY_NBYTES * int(rows[-1, 0] - rows[0, 0] + np.uint64(1)))
                self._enter(piece, rows)
                yield ENTRY_NBYTES * int(rows[0, 0]), bytes(piece)

    def prefix(self, nbytes: int) -> bytearray:
        """The shard index, of a size in bytes."""
        made = bytearray(nbytes)
        if len(self.table):
            self._enter(memoryview(made)[ENTRY_NBYTES * int(self.table[0, 0]) :], self.table)
        return made

    @staticmethod
    def _enter(piece: bytearray | memoryview, rows: npt.NDArray[np.uint64]) -> None:
        """Enter minishards into a piece of the shard index, which begins with the first of them."""
        entries = np.frombuffer(piece, "<u8").reshape(-1, 2)
        entries[(rows[:, 0] - rows[0, 0]).astype(np.int64)] = rows[:, 1:]


def stage_of(encoding: str) -> BytesStage | None:
    """Codec of an encoding, which writes no time; None if bytes stay as they are."""
    if encoding == "raw":
        return None
    stage = build_stage("gzip", {"level": GZIP_LEVEL}, 1)
    assert stage is not None
    return stage


def most_gzip_nbytes(nbytes: int) -> int:
    """Most bytes that so many bytes take after any gzip."""
    return nbytes + nbytes // 8 + 65536


def sequence(sharding: ShardingParameters, ids: Ids) -> npt.NDArray[np.int64]:
    """Order in which the chunks of a shard are written: by minishard, and by id in each.

    - `ids`: uint64, shape (n,). Ids of the chunks of one shard.
    """
    order: npt.NDArray[np.int64] = np.lexsort((ids, sharding.locate(ids)[1]))
    return order


def seal(sharding: ShardingParameters, ids: Ids, nbytes: Ids, starts: Ids | None = None) -> Sealed:
    """What stands around the chunks of a shard.

    - `ids`, `nbytes`: uint64, shape (n,). Id and encoded size of each chunk, in the order of
      :func:`sequence`.
    - `starts`: uint64, shape (n,), optional. Offset of each chunk from the end of the shard index.
      By default they lie end to end.
    """
    minishards = sharding.locate(ids)[1]
    edges = np.append(np.flatnonzero(np.diff(minishards, prepend=minishards[:1] ^ 1)), len(ids))
    if starts is None:
        starts = np.cumsum(nbytes, dtype=np.uint64) - nbytes
    ends = starts + nbytes
    stage = stage_of(sharding.minishard_index_encoding)
    at = int(ends.max()) if len(ids) else 0
    suffix = bytearray()
    table = np.empty((len(edges) - 1, 3), np.uint64)
    for row, (first, last) in enumerate(itertools.pairwise(edges)):
        columns = np.zeros((3, last - first), dtype="<u8")
        columns[0] = np.diff(ids[first:last], prepend=np.uint64(0))
        # Differences wrap around at 2^64 where a chunk lies before the last one.
        columns[1] = starts[first:last] - np.append(np.uint64(0), ends[first : last - 1])
        columns[2] = nbytes[first:last]
        encoded: Buffer = columns.tobytes()
        if stage is not None:
            (encoded,) = stage.encode([encoded])
        suffix += encoded
        table[row] = minishards[first], at, at + len(encoded)
        at += len(encoded)
    return Sealed(table, suffix)


def check_shard_index(
    sharding: ShardingParameters, limit_nbytes: int, remedy: str = _FEWER_OR_MORE
) -> None:
    """Refuse parameters whose shard index is too large to be written or read as a whole."""
    nbytes = sharding.shard_index_nbytes
    if nbytes > limit_nbytes:
        raise SpecError(
            f"the index of each shard takes {nbytes} bytes, and {limit_nbytes} are allowed",
            field="minishard_bits",
            value=sharding.minishard_bits,
            remedy=remedy,
        )


def check_minishards(sharding: ShardingParameters, ids: Ids, limit_nbytes: int) -> None:
    """Refuse chunks of which one minishard would have so many that its index is not read again.

    - `ids`: uint64, shape (n,). Ids of all chunks that the shards will have.
    """
    places = np.stack(sharding.locate(ids), axis=1)
    counts = np.unique(places, axis=0, return_counts=True)[1]
    nbytes = _COLUMN_NBYTES * int(counts.max(initial=0))
    if nbytes > limit_nbytes:
        raise SpecError(
            f"the index of a minishard would take {nbytes} bytes, and {limit_nbytes} are allowed",
            field="minishard_bits",
            value=sharding.minishard_bits,
            remedy="give more minishard_bits or shard_bits, or raise index_limit",
        )


def check_volume_index(sharding: ShardingParameters) -> None:
    """Refuse parameters of a volume whose shard index is too large, as `check_shard_index` does."""
    check_shard_index(sharding, index_limit(), _FEWER_OR_CONFIGURED)


def parse_entries(data: Buffer) -> npt.NDArray[np.uint64]:
    """Start and end of the indexes of minishards, shape (n, 2), from a piece of the shard index."""
    return np.frombuffer(data, "<u8").astype(np.uint64, copy=False).reshape(-1, 2)


def check_ranges(
    ranges: npt.NDArray[np.uint64], data_nbytes: int, what: str
) -> npt.NDArray[np.uint64]:
    """Check that ranges lie in a shard and share no byte, and return them in order.

    Ranges of no bytes are left out, as they cannot be read.

    - `ranges`: uint64, shape (n, 2). Start and end of each range.
    - Raises CorruptShardError if a range ends before it starts or past the end, or overlaps
      another.
    """
    starts, ends = ranges.T
    if (bad := np.flatnonzero(starts > ends)).size:
        start, end = ranges[bad[0]].tolist()
        raise CorruptShardError(f"{what} ends before it starts, at {end} and {start}")
    solid = ranges[starts < ends]
    if (bad := np.flatnonzero(solid[:, 1] > np.uint64(data_nbytes))).size:
        start, end = solid[bad[0]].tolist()
        raise CorruptShardError(f"{what} lies at {start} to {end}, past the end at {data_nbytes}")
    solid = np.asarray(solid[np.argsort(solid[:, 0], kind="stable")], np.uint64)
    if (bad := np.flatnonzero(solid[1:, 0] < solid[:-1, 1])).size:
        start, end = solid[bad[0] + 1].tolist()
        raise CorruptShardError(f"{what} at {start} to {end} overlaps another")
    return solid


def contents_of(
    minishards: Sequence[Minishard], indexes: Ids, base: int, shard_nbytes: int
) -> Contents:
    """All chunks of a shard, and what lies between chunks and indexes.

    A chunk of no bytes has no place, so that nothing lies before it.

    - `indexes`: uint64, shape (m, 2). Start and end of the index of each of them.
    """
    vectors = [(each.ids, each.offsets, each.nbytes) for each in minishards]
    ids, offsets, nbytes = (
        np.concatenate(parts) for parts in zip(*vectors or [(indexes[:0, 0],) * 3], strict=True)
    )
    order = np.argsort(ids, kind="stable")
    ids, offsets, nbytes = ids[order], offsets[order], nbytes[order]
    is_solid = nbytes > 0
    chunks = np.stack([offsets, offsets + nbytes], axis=1)[is_solid]
    head = np.array([[0, base]], np.uint64)
    ranges = np.concatenate([head, indexes, np.unique(chunks, axis=0)])
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    starts = np.append(ranges[:, 0], np.uint64(shard_nbytes))
    reached = np.maximum.accumulate(ranges[:, 1])  # ranges of damaged shards may overlap
    gaps = starts[1:] - np.minimum(reached, starts[1:])
    before = np.zeros_like(nbytes)
    first = np.searchsorted(starts, chunks[:, 0])  # of ranges that start there, the first
    before[is_solid] = gaps[first - 1]
    gaps[first - 1] = 0
    (left,) = np.nonzero(gaps)
    where = int(reached[left[0]]) if len(left) else 0
    return Contents(ids, offsets, nbytes, before, ranges, (int(gaps.sum()), where))


def decode_minishard(
    sharding: ShardingParameters,
    data: Buffer,
    shard_nbytes: int,
    place: tuple[int, int],
    limit_nbytes: int,
) -> Minishard:
    """Decode the index of a minishard, and check it.

    - Raises CorruptShardError if it cannot be decoded or has more than `limit_nbytes` bytes. Also
      if it names a chunk twice or one of another minishard, or places a chunk beyond the end.
    """
    stage = stage_of(sharding.minishard_index_encoding)
    if stage is not None:
        data = stage.decode(data, limit_nbytes)
    nbytes = len(memoryview(data))
    name = f"index of minishard {place[1]}"
    if nbytes > limit_nbytes:
        raise CorruptShardError(f"{name} has {nbytes} bytes, and {limit_nbytes} are allowed")
    if nbytes % _COLUMN_NBYTES:
        raise CorruptShardError(f"{name} has {nbytes} bytes, which is no multiple of 24")
    columns = np.frombuffer(data, "<u8").astype(np.uint64).reshape(3, -1)
    # Sums wrap around at 2^64, as those of all readers do: a chunk may lie before the last one.
    ids = np.cumsum(columns[0], dtype=np.uint64)
    ends = np.cumsum(columns[1] + columns[2], dtype=np.uint64)
    order = np.argsort(ids, kind="stable")
    ids, starts, sizes = ids[order], (ends - columns[2])[order], columns[2][order]
    if (twice := np.flatnonzero(ids[1:] == ids[:-1])).size:
        raise CorruptShardError(f"{name} names chunk {int(ids[twice[0]])} twice")
    shards, minishards = sharding.locate(ids)
    strays = (shards != np.uint64(place[0])) | (minishards != np.uint64(place[1]))
    if strays.any():
        raise CorruptShardError(
            f"{name} names chunk {int(ids[strays][0])}, which belongs elsewhere"
        )
    room = np.uint64(shard_nbytes - sharding.shard_index_nbytes)
    # A sum could wrap. A smaller value subtracted from a larger one cannot.
    past = (starts > room) | (sizes > room - np.minimum(starts, room))
    if past.any():
        at = int(np.flatnonzero(past)[0])
        raise CorruptShardError(
            f"chunk {int(ids[at])} lies past the end, {shard_nbytes} bytes",
            offset=int(starts[at]) + sharding.shard_index_nbytes,
            nbytes=int(sizes[at]),
        )
    return Minishard(ids, starts + np.uint64(sharding.shard_index_nbytes), sizes)

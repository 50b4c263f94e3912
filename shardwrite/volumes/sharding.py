"""The sharded format of Neuroglancer: hashes, ids, parameters, and the bytes around the chunks.

A shard begins with its index: for each minishard, start and end of the index of this minishard.
The chunks follow, by minishard and by id, and then the indexes of the minishards. All offsets count
from the end of the shard index. Bytes that no index names may lie before a chunk and belong to it:
the fragments of a mesh lie there, and the chunk is its manifest. Whoever writes knows the shard
index last, since it depends on the sizes of all that follows.

Chunks of volumes are numbered by a compressed Morton code. It takes the lowest bit of x, then of y,
then of z, then the next bit of each, and so on. An axis has as many bits as its largest position
needs, and is left out once they are used up.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.checks import choice, whole
from shardwrite.codecs.documents import Document
from shardwrite.codecs.stages import Buffer, BytesStage, build_stage, index_limit
from shardwrite.errors import CorruptShardError, SpecError
from shardwrite.grid import Shape, ceil_div, counts_of

Ids = npt.NDArray[np.uint64]

_Words = npt.NDArray[np.uint32]

HASHES = ("identity", "murmurhash3_x86_128")

_C1, _C2, _C3 = np.uint32(0x239B961B), np.uint32(0xAB0E9789), np.uint32(0x38B34AE5)

_M1, _M2 = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)

_KEY_NBYTES = np.uint32(8)


# ---- Hashes of ids: the identity, and the 128-bit MurmurHash3 for x86


def murmurhash3_x86_128(ids: Ids) -> Ids:
    """Low 64 bits of MurmurHash3_x86_128 of ids, with seed 0.

    Each id is hashed as its eight little-endian bytes.

    - `ids`: uint64, shape (n,). The ids.

    Examples
    --------
    >>> int(murmurhash3_x86_128(np.array([0], np.uint64))[0])
    5148371408780832321
    """
    low = (ids & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    high = (ids >> np.uint64(32)).astype(np.uint32)
    # Eight bytes are less than one block of 16, so only the steps for the tail and the end count.
    # The state h2 takes the second word, h1 the first, and h3 and h4 begin equal.
    h1 = _rotated(low * _C1, 15) * _C2 ^ _KEY_NBYTES
    h2 = _rotated(high * _C2, 16) * _C3 ^ _KEY_NBYTES
    h3 = np.full_like(h1, _KEY_NBYTES)
    h1 = h1 + h2 + h3 + h3
    h2, h3 = h2 + h1, h3 + h1
    h1, h2, h3 = _mixed(h1), _mixed(h2), _mixed(h3)
    h1 = h1 + h2 + h3 + h3
    h2 = h2 + h1
    return h1.astype(np.uint64) | h2.astype(np.uint64) << np.uint64(32)


def _rotated(words: _Words, n_bits: int) -> _Words:
    result: _Words = words << np.uint32(n_bits) | words >> np.uint32(32 - n_bits)
    return result


def _mixed(words: _Words) -> _Words:
    words = (words ^ words >> np.uint32(16)) * _M1
    words = (words ^ words >> np.uint32(13)) * _M2
    return words ^ words >> np.uint32(16)


# ---- Parameters: which shard and which minishard hold a chunk


TYPE = "neuroglancer_uint64_sharded_v1"

ENCODINGS = ("raw", "gzip")

_ID_BITS = 64

ENTRY_NBYTES = 16
"""Bytes that the index of a shard has for each minishard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingParameters:
    """How 64-bit chunk ids are spread over shards, and over minishards inside of them.

    An id is shifted by `preshift_bits` and hashed. The lowest `minishard_bits` bits of the result
    are the number of the minishard, and the next `shard_bits` bits are that of the shard.

    Parameters
    ----------
    preshift_bits : int
        Number of low bits of an id that do not count, so that neighbours share a minishard.
    hash : {"identity", "murmurhash3_x86_128"}
        The hash function.
    minishard_bits, shard_bits : int
        There are ``2**minishard_bits`` minishards in a shard, and ``2**shard_bits`` shards.
    minishard_index_encoding, data_encoding : {"raw", "gzip"}
        Encoding of the indexes of minishards, and of the chunks.

    Raises
    ------
    SpecError
        If a value is none of these, or both numbers need more than the 64 bits of an id.

    Examples
    --------
    >>> from shardwrite.volumes.sharding import ShardingParameters
    >>> sharding = ShardingParameters(preshift_bits=2, minishard_bits=3, shard_bits=5)
    >>> shard, minishard = sharding.locate([0b10111010])
    >>> sharding.key_of(int(shard[0])), int(minishard[0])
    ('05.shard', 6)
    """

    preshift_bits: int = 0
    hash: str = "identity"
    minishard_bits: int = 0
    shard_bits: int = 0
    minishard_index_encoding: str = "raw"
    data_encoding: str = "raw"

    def __post_init__(self) -> None:
        for field in ("preshift_bits", "minishard_bits", "shard_bits"):
            value = whole(field, getattr(self, field), "a number of bits", least=0, most=_ID_BITS)
            object.__setattr__(self, field, value)  # numpy's cannot be written as JSON
        for field, known in (
            ("hash", HASHES),
            ("minishard_index_encoding", ENCODINGS),
            ("data_encoding", ENCODINGS),
        ):
            choice(field, getattr(self, field), known)
        if self.minishard_bits + self.shard_bits > _ID_BITS:
            raise SpecError(
                f"with minishard_bits={self.minishard_bits} these are more than the {_ID_BITS} "
                "bits of a hashed id",
                field="shard_bits",
                value=self.shard_bits,
                remedy=f"give at most {_ID_BITS - self.minishard_bits}",
            )

    @classmethod
    def from_dict(cls, document: object) -> Self:
        """Make parameters from the member ``sharding`` of an ``info`` document.

        Encodings that are missing are raw, as all readers have it.

        Raises
        ------
        SpecError
            If the document is not one of the format, a member is missing or unknown, or a value is
            not valid.
        """
        if not isinstance(document, Mapping):
            remedy = "give a mapping with the parameters of the format"
            raise SpecError("not a mapping", field="sharding", value=document, remedy=remedy)
        members: Document = dict(document)
        if members.pop("@type", None) != TYPE:
            value, remedy = document.get("@type"), f'give "@type": "{TYPE}"'
            raise SpecError("not the sharded format", field="@type", value=value, remedy=remedy)
        required = {"preshift_bits", "hash", "minishard_bits", "shard_bits"}
        known = required | {"minishard_index_encoding", "data_encoding"}
        if missing := sorted(required - set(members)):
            remedy = "give these members, too"
            raise SpecError("members are missing", field="sharding", value=missing, remedy=remedy)
        if unknown := sorted(map(str, set(members) - known)):
            remedy = f"use only {sorted(known)}"
            raise SpecError("unknown members", field="sharding", value=unknown, remedy=remedy)
        return cls(**members)

    def to_dict(self) -> Document:
        """Member ``sharding`` of an ``info`` document."""
        return {"@type": TYPE, **asdict(self)}

    @property
    def n_minishards(self) -> int:
        """Number of minishards in each shard."""
        return 1 << self.minishard_bits

    @property
    def shard_index_nbytes(self) -> int:
        """Size of the index at the start of each shard."""
        return ENTRY_NBYTES << self.minishard_bits

    def covers(self, n_bits: int) -> bool:
        """Whether no bit of ids is left out, so that ids of one shard differ in low bits only.

        Parameters
        ----------
        n_bits : int
            Number of bits of the largest id.
        """
        return self.preshift_bits + self.minishard_bits + self.shard_bits >= n_bits

    def locate(self, ids: npt.ArrayLike) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
        """Numbers of the shards and of the minishards that hold chunks.

        Parameters
        ----------
        ids : array_like of uint64, shape (n,)
            The chunk ids.

        Returns
        -------
        shards, minishards : numpy.ndarray of uint64, shape (n,)
            The numbers.
        """
        codes = _shifted(np.asarray(ids, np.uint64), self.preshift_bits)
        if self.hash != "identity":
            codes = murmurhash3_x86_128(codes)
        shards = _low(_shifted(codes, self.minishard_bits), self.shard_bits)
        return shards, _low(codes, self.minishard_bits)

    def key_of(self, shard: int, ending: str = "shard") -> str:
        """Key of a shard: its number in hexadecimal, of a fixed width, and an ending.

        Parameters
        ----------
        shard : int
            Number of the shard.
        ending : str
            What follows the dot.
        """
        return f"{shard:0{self._n_digits}x}.{ending}"

    def shard_of(self, key: str) -> int | None:
        """Number of the shard with a key; None if no shard has this key.

        Parameters
        ----------
        key : str
            Key of an object.
        """
        match = re.fullmatch(r"([0-9a-f]+)\.shard", key)
        if match is None or len(match[1]) != max(1, self._n_digits):
            return None
        shard = int(match[1], 16)
        return shard if shard >> self.shard_bits == 0 else None

    @property
    def _n_digits(self) -> int:
        return ceil_div(self.shard_bits, 4)


def by_shard(sharding: ShardingParameters, ids: Ids) -> list[tuple[int, npt.NDArray[np.int64]]]:
    """Numbers of the shards of some chunks, ascending, each with the positions of its ids."""
    shards = sharding.locate(ids)[0]
    order = np.argsort(shards, kind="stable")
    numbers, firsts = np.unique(shards[order], return_index=True)
    return list(zip(numbers.tolist(), np.split(order, firsts[1:]), strict=False))


def _shifted(values: npt.NDArray[np.uint64], n_bits: int) -> npt.NDArray[np.uint64]:
    """Values without their lowest bits. numpy leaves shifts by 64 undefined."""
    return values >> np.uint64(n_bits) if n_bits < _ID_BITS else np.zeros_like(values)


def _low(values: npt.NDArray[np.uint64], n_bits: int) -> npt.NDArray[np.uint64]:
    """The lowest bits of values."""
    return values & np.uint64((1 << n_bits) - 1)


# ---- Indexes of shards and minishards


GZIP_LEVEL = 6

COLUMN_NBYTES = 24
"""Bytes that the index of a minishard has for each chunk, before it is compressed."""

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
        row = self.position(chunk_id)
        return None if row is None else (int(self.offsets[row]), int(self.nbytes[row]))

    def position(self, chunk_id: int) -> int | None:
        """Position of a chunk in the vectors; None if there is none with this id."""
        position = int(np.searchsorted(self.ids, np.uint64(chunk_id)))
        is_there = position < len(self.ids) and int(self.ids[position]) == chunk_id
        return position if is_there else None

    @property
    def memory_nbytes(self) -> int:
        """Bytes of memory that the three vectors take."""
        return COLUMN_NBYTES * len(self.ids)


@dataclass(frozen=True, slots=True)
class Contents(Minishard):
    """All chunks of a shard, in ascending order of their ids, and the bytes that no index names."""

    before: Ids  # number of such bytes that lie immediately before each chunk
    ranges: Ids  # start and end of the shard index, of the indexes of minishards and of the chunks
    # Number of bytes that no index names and that lie before no chunk, and offset of the first
    unowned: tuple[int, int]
    index_nbytes: int  # size of the shard index and of the indexes of minishards

    @property
    def memory_nbytes(self) -> int:
        """Bytes of memory that the vectors take."""
        vectors = (self.ids, self.offsets, self.nbytes, self.before, self.ranges)
        return sum(vector.nbytes for vector in vectors)


@dataclass(frozen=True, slots=True)
class Sealed:
    """What stands around the chunks of a shard."""

    # Number of each minishard that has chunks, and start and end of its index, as the shard index
    # tells them
    table: npt.NDArray[np.uint64]
    suffix: bytearray  # indexes of the minishards, which follow the last chunk

    @property
    def entries(self) -> list[tuple[int, bytes]]:
        """Pieces of the shard index that are not zero, each with its offset in the shard."""
        pieces = []
        runs = self.table[:, 0] // np.uint64(_RUN)
        edges = [0, *(np.flatnonzero(np.diff(runs)) + 1).tolist(), len(runs)]
        for first, last in itertools.pairwise(edges):
            if first < last:
                rows = self.table[first:last]
                piece = bytearray(ENTRY_NBYTES * int(rows[-1, 0] - rows[0, 0] + np.uint64(1)))
                self._enter(piece, rows)
                pieces.append((ENTRY_NBYTES * int(rows[0, 0]), bytes(piece)))
        return pieces

    def prefix(self, nbytes: int) -> bytearray:
        """The shard index, of a size in bytes."""
        index = bytearray(nbytes)
        if len(self.table):
            self._enter(memoryview(index)[ENTRY_NBYTES * int(self.table[0, 0]) :], self.table)
        return index

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
    return np.lexsort((ids, sharding.locate(ids)[1]))


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
    nbytes = COLUMN_NBYTES * int(counts.max(initial=0))
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
    apart = chunks[np.lexsort(chunks.T[::-1])]  # several chunks may have the same bytes
    apart = apart[np.append(True, (apart[1:] != apart[:-1]).any(axis=1))[: len(apart)]]
    ranges = np.concatenate([head, indexes, apart])
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
    index_nbytes = base + int((indexes[:, 1] - indexes[:, 0]).sum())
    return Contents(ids, offsets, nbytes, before, ranges, (int(gaps.sum()), where), index_nbytes)


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
    if nbytes % COLUMN_NBYTES:
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


# ---- Compressed Morton codes


@dataclass(frozen=True)
class MortonCode:
    """The code of a grid of chunks.

    Examples
    --------
    >>> MortonCode((8, 8, 2)).encode(np.array([[5, 5, 0]]))
    array([99], dtype=uint64)
    """

    grid: Shape  # number of chunks along x, y and z. Other numbers of axes work alike.

    @classmethod
    def of(cls, size: Sequence[int], chunk: Sequence[int]) -> Self:
        """The code of a volume of a size in voxels, which is cut into chunks."""
        return cls(counts_of(size, chunk))

    def __post_init__(self) -> None:
        if any(n < 1 for n in self.grid):
            remedy = "give an axis at least one chunk"
            raise SpecError("an axis without chunks", field="grid", value=self.grid, remedy=remedy)
        if self.n_bits > _ID_BITS:
            raise SpecError(
                f"the chunk ids of this grid need {self.n_bits} bits, and they have 64",
                field="grid",
                value=self.grid,
                remedy="choose larger chunks",
            )

    @cached_property
    def axis_of_bit(self) -> tuple[int, ...]:
        """Axis from which each bit of the code comes, lowest bit first."""
        bits = [(n - 1).bit_length() for n in self.grid]
        return tuple(
            axis
            for level in range(max(bits, default=0))
            for axis in range(len(bits))
            if level < bits[axis]
        )

    def _bits(self) -> Iterator[tuple[int, np.uint64, np.uint64]]:
        """Axis of each bit of the code, the lowest first, and its number in code and position."""
        n_taken = [0] * len(self.grid)
        for bit, axis in enumerate(self.axis_of_bit):
            yield axis, np.uint64(bit), np.uint64(n_taken[axis])
            n_taken[axis] += 1

    @property
    def n_bits(self) -> int:
        """Number of bits of the code."""
        return len(self.axis_of_bit)

    def encode(self, positions: npt.ArrayLike) -> npt.NDArray[np.uint64]:
        """Codes of grid positions."""
        grid_positions = np.asarray(positions).reshape(-1, len(self.grid))
        outside = ((grid_positions < 0) | (grid_positions >= np.array(self.grid))).any(axis=1)
        if outside.any():
            raise SpecError(
                f"not a position in a grid of {self.grid}",
                field="positions",
                value=tuple(grid_positions[outside][0].tolist()),
                remedy="count chunks from 0",
            )
        cells = grid_positions.astype(np.uint64)
        codes = np.zeros(len(cells), np.uint64)
        for axis, bit, of_axis in self._bits():
            codes |= (cells[:, axis] >> of_axis & np.uint64(1)) << bit
        return codes

    def decode(self, codes: npt.ArrayLike) -> npt.NDArray[np.uint64]:
        """Positions of codes; the inverse of :meth:`encode`."""
        code_vector = np.asarray(codes, np.uint64).reshape(-1)
        cells = np.zeros((len(code_vector), len(self.grid)), np.uint64)
        for axis, bit, of_axis in self._bits():
            cells[:, axis] |= (code_vector >> bit & np.uint64(1)) << of_axis
        outside = (cells >= np.array(self.grid, np.uint64)).any(axis=1)
        if self.n_bits < _ID_BITS:
            outside |= code_vector >> np.uint64(self.n_bits) != 0
        if outside.any():
            raise SpecError(
                f"not the code of a chunk in a grid of {self.grid}",
                field="codes",
                value=int(code_vector[outside][0]),
                remedy="give the ids of chunks of this grid",
            )
        return cells

    def low_codes(self, n_bits: int) -> npt.NDArray[np.uint64]:
        """Lowest `n_bits` bits of the codes in a box of `low_box`, an array of the box's shape."""
        box = self.low_box(n_bits)
        codes = np.zeros(box, np.uint64)
        for axis, bit, of_axis in itertools.islice(self._bits(), n_bits):
            cells = np.arange(box[axis], dtype=np.uint64) >> of_axis
            shape = [-1 if other == axis else 1 for other in range(len(box))]
            codes |= ((cells & np.uint64(1)) << bit).reshape(shape)
        return codes

    def low_box(self, n_bits: int) -> Shape:
        """Shape of the box of chunks whose codes differ only in the lowest `n_bits` bits."""
        low = self.axis_of_bit[:n_bits]
        return tuple(2 ** low.count(axis) for axis in range(len(self.grid)))


# ---- Ids as users give them


def as_ids(ids: Iterable[Any]) -> npt.NDArray[np.uint64]:
    """Ids as a vector, in ascending order, each of them once.

    - Raises SpecError if one of them is no whole number of 64 bits.
    """
    if isinstance(ids, np.ndarray) and ids.ndim and ids.dtype.kind == "u":
        return np.unique(ids.astype(np.uint64))
    is_one = isinstance(ids, np.ndarray) and not ids.ndim
    if is_one or not isinstance(ids, Iterable) or isinstance(ids, str | bytes):
        remedy = "give several ids, such as [7, 8]"
        raise SpecError("no collection of ids", field="ids", value=ids, remedy=remedy)
    return np.unique(np.array([as_id(one, "ids") for one in ids], np.uint64))


def as_id(one: Any, field: str) -> int:
    """An id, or the number of a shard, as a whole number.

    - Raises SpecError if it is no whole number of 64 bits.
    """
    try:
        number = operator.index(one)
    except TypeError:
        number = -1
    if isinstance(one, bool) or not 0 <= number < 2**64:
        what = "an id" if field == "ids" else "a number"
        remedy = "give whole numbers from 0 to 2**64 - 1"
        raise SpecError(f"not {what} of 64 bits", field=field, value=one, remedy=remedy)
    return number

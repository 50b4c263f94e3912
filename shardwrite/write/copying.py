"""Tasks that write shards from encoded inner chunks that another array has.

The two arrays have the same inner chunks, except for checksums at their ends; see
:mod:`shardwrite.format.passage`. Their shards may differ in shape and form, so that the inner
chunks of one shard come from many. There are three ways to write a shard:

- Ranges are copied to where they belong. The system copies them from file to file, and inner chunks
  that lie end to end are one copy.
- Inner chunks are read, looked at, and written one after the other.
- The same through a payload, for strategies that must know all sizes first.
"""

from __future__ import annotations

import errno
import itertools
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.codecs.stages import Buffer
from shardwrite.encode.unit import EncodedBatch, decode_tile, encode_tiles
from shardwrite.errors import CorruptShardError, StoreError
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.order import Ranks, permutation
from shardwrite.format.passage import Passage, check_size, has_checksum
from shardwrite.format.sharding import ScatteredChunks
from shardwrite.grid import Box, Shape, ShardGrid, ravel, unravel
from shardwrite.host.stopping import Turn
from shardwrite.read.array import ShardedArray
from shardwrite.read.stored_shard import ExistingShard, open_afresh, open_shard, read_again
from shardwrite.stores.base import ObjectWriter, Store, Transaction
from shardwrite.stores.posix import can_copy_between
from shardwrite.stores.removal import TEMPORARY_SUFFIX
from shardwrite.write.assemble import EncodedUnit, OpenedShard, revise_from
from shardwrite.write.commit import commit_shards, has_small_shards, in_turns
from shardwrite.write.context import GroupReport, WriteSpec, Written
from shardwrite.write.emitter import Emitter
from shardwrite.write.spool import Payload

# ---- Donors: arrays that give their encoded inner chunks to another


Check = bool | Literal["twice"]

TWICE: Check = "twice"

# decoded bytes of a chunk from which a copy by the system is faster than one through this process
_LARGE_NBYTES = 2**20


class Listing(Protocol):
    """Objects that an array must have."""

    def has(self, rank: int) -> bool:
        """Whether the array must have the object of the shard of a row-major rank."""

    def missing(self, key: str) -> StoreError:
        """The error that such an object is missing."""


@dataclass(frozen=True, slots=True)
class Donor:
    """Array whose encoded inner chunks are copied into another array."""

    array: ShardedArray
    passage: Passage  # how the bytes of an inner chunk change
    # Decode each inner chunk before it is copied. ``"twice"`` also reads those that have no
    # checksum a second time, and compares.
    check: Check = False
    drop_empty: bool = False  # leave out inner chunks that hold only the fill value
    # Objects that the array must have. One of them that is missing is an error.
    listed: Listing | None = None
    # The other array, if inner chunks at the edges are decoded and encoded again
    into: ArrayMetadata | None = None

    @property
    def is_compared(self) -> bool:
        """Whether each inner chunk is read twice, and what was read is compared."""
        return self.check == TWICE and not has_checksum(self.array.metadata)

    def copies_ranges(self, store: Store, shard: Box) -> bool:
        """Whether ranges are copied without a look at the bytes, by the system where it can.

        Small objects are read and written instead, because each of them would be opened twice.
        """
        metadata = self.array.metadata
        if not self.passage.is_plain or self.check or self.drop_empty:
            return False
        if self.into is not None and not self._is_inside(shard.intersect(metadata.grid.whole)):
            return False
        is_large = metadata.chunk_nbytes >= _LARGE_NBYTES
        return metadata.is_sharded or (is_large and can_copy_between(self.array.store, store))

    def passed(self, data: Buffer, index: Shape, place: Shape) -> Buffer | None:
        """Bytes of an inner chunk in the other array; None if the chunk is left out.

        - `data`: encoded bytes of the chunk.
        - Raises CorruptShardError if the bytes cannot be those of an inner chunk. The error names
          the shard.
        """
        metadata = self.array.metadata
        try:
            check_size(metadata, len(memoryview(data)))
            region = metadata.grid.chunk_box(index, place)
            into = None if self._is_inside(region) else self.into
            if self.check or self.drop_empty or into is not None:
                rank = ravel(place, metadata.grid.chunks_per_shard)
                chunk = decode_tile(metadata, metadata.shard_key(index), rank, data)
                if self.drop_empty and self.is_empty(chunk, index, place):
                    return None
                if into is not None:
                    return encode_tiles(into, chunk[np.newaxis], None, region)[0]
            return self.passage.apply(data)
        except CorruptShardError as error:
            raise error.located(key=metadata.shard_key(index), inner_chunk=place) from error

    def _is_inside(self, region: Box) -> bool:
        """Whether no inner chunk of a region reaches beyond the array."""
        grid = self.array.metadata.grid
        return all(
            stop <= n - n % c
            for stop, n, c in zip(region.stop, grid.shape, grid.chunks, strict=True)
        )

    def is_empty(self, chunk: npt.NDArray[Any], index: Shape, place: Shape) -> bool:
        """Whether the elements of a chunk that lie in the array hold only the fill value."""
        metadata = self.array.metadata
        starts = metadata.grid.chunk_box(index, place).start
        inside: Any = tuple(
            slice(0, max(0, n - a)) for n, a in zip(metadata.grid.shape, starts, strict=True)
        )
        part = chunk[(*inside, ...)].astype(metadata.pipeline.stored_dtype, copy=False)
        return bool(metadata.fill_pattern.empty(np.ascontiguousarray(part).reshape(1, -1))[0])


# ---- The tasks


# shards of the other array that a task has open at a time
_MAX_OPEN = 64
# inner chunks that are written in one call
_BATCH_CHUNKS = 1024
# small objects that a thread reads in one turn, and seconds for each: twice as long as on a memory
# file system
_READS_A_TURN = 64

_READ_SECONDS = 5e-5
# encoded bytes of a shard that a task keeps in memory before it places them
_PAYLOAD_NBYTES = 64 * 2**20


def copy_group(spec: WriteSpec, donor: Donor, group: Box, skip: frozenset[Shape]) -> GroupReport:
    """Write the shards of a group from the inner chunks of another array.

    Inner chunks that the other array does not store stay empty.

    - `donor`: the other array, and how its bytes change.
    - Raises CorruptShardError if the index of a shard of the other array is not valid, or an inner
      chunk is looked at and is not valid.
    - Raises StoreError if the storage refuses. The error number is ESTALE if the other array has
      changed in the meantime.
    - Raises RunEndedError if the run has ended, or was taken over.
    """

    def write(transaction: Transaction, index: Shape) -> Written:
        return _copy_shard(spec, transaction, index, donor, shards)

    wanted = [index for index in spec.metadata.grid.shards_in(group) if index not in skip]
    # Where shards are small, `in_turns` takes turns for reading and writing together.
    reads_in_turns = has_small_shards(donor.array.metadata) and not has_small_shards(spec.metadata)
    with (
        spec.at_work(),
        Turn() as turn,
        Shards(donor.array, turn if reads_in_turns else None, donor.listed) as shards,
        in_turns(spec, len(wanted), write) as write_in_turn,
    ):
        return commit_shards(spec, group, wanted, write_in_turn)


def gathered_nbytes(metadata: ArrayMetadata, n_shards: int) -> int:
    """Encoded bytes of a shard that a task holds while it gathers the inner chunks, at most."""
    if n_shards <= _MAX_OPEN:
        return 0  # ranges are copied from one file to the other
    return min(metadata.shard_nbytes, _PAYLOAD_NBYTES)


class Shards:
    """Shards of an array, of which the last few that were asked for are open.

    - `listed`: objects that the array must have.
    """

    def __init__(
        self, array: ShardedArray, turn: Turn | None = None, listed: Listing | None = None
    ) -> None:
        self.array, self.metadata = array, array.metadata
        self.store = array.store
        self._listed = listed
        self._turn, self._n_reads = turn, 0
        self._open: OrderedDict[int, ExistingShard] = OrderedDict()
        self._sizes: dict[int, Ranks] = {}
        self._versions: dict[int, Any] = {}

    def __enter__(self) -> Shards:
        return self

    def __exit__(self, *exc_info: object) -> None:
        while self._open:
            self._open.popitem()[1].__exit__(*exc_info)

    def get(self, number: int) -> ExistingShard | None:
        """The shard of a row-major rank, as it was when it was first asked for.

        - Raises StoreError with ESTALE, if it has changed since then.
        """
        if number in self._open:
            self._open.move_to_end(number)
            return self._open[number]
        index = unravel(number, self.metadata.grid.counts)
        opener = open_afresh if self.array.is_afresh else open_shard
        shard = opener(self.metadata, self.store, index)
        if shard is None:
            check_missing(self._listed, self.metadata, index, number)
        version = None if shard is None else shard.reader.version
        if self._versions.setdefault(number, version) != version:
            if shard is not None:
                shard.__exit__(None, None, None)
            key = self.metadata.shard_key(index)
            raise StoreError(f"{key!r} was changed meanwhile", key=key, errno=errno.ESTALE)
        if shard is not None:
            self._open[number] = shard
        if len(self._open) > _MAX_OPEN:
            oldest, closed = self._open.popitem(last=False)
            self._sizes.pop(oldest, None)
            with closed:
                closed.reader.check_same()
        return shard

    def check_same(self) -> None:
        """See :meth:`ObjectReader.check_same`; what was read is used only after that."""
        for shard in self._open.values():
            shard.reader.check_same()

    def sizes(self, number: int) -> Ranks | None:
        """Encoded sizes of the inner chunks of a shard; None if it has no object.

        A size is -1 where there is no chunk.

        - Raises CorruptShardError if no inner chunk can have one of the sizes.
        """
        shard = self.get(number)
        if shard is None:
            return None
        if number not in self._sizes:
            self._sizes[number] = sizes_in(self.metadata, shard)
        return self._sizes[number]

    def encoded(self, number: int, index: Shape, rank: int) -> Buffer | None:
        """Encoded bytes of an inner chunk; None if it is not stored.

        - Raises CorruptShardError if it takes more bytes than it can.
        """
        if not self.metadata.is_sharded:
            data = self._object(index)
            if data is None:
                check_missing(self._listed, self.metadata, index, number)
            return data
        shard = self.get(number)
        if shard is None or shard.index.is_empty[rank]:
            return None
        offset, nbytes = (int(v) for v in shard.index.table[rank])
        self._check_size(nbytes, shard.key)
        return shard.reader.read(offset, nbytes)

    def encoded_again(self, number: int, index: Shape, rank: int) -> Buffer:
        """Encoded bytes of an inner chunk that is stored, read again from the storage.

        - Raises StoreError with ESTALE, if its shard has changed meanwhile.
        - Raises CorruptShardError see `encoded`.
        """
        with Shards(self.array.afresh(), None, self._listed) as again:
            again._versions = self._versions
            data = again.encoded(number, index, rank)
        if data is None:
            key = self.metadata.shard_key(index)
            raise StoreError(f"{key!r} was removed meanwhile", key=key, errno=errno.ESTALE)
        return data

    def span(self, number: int, rank: int) -> dict[str, int]:
        """Offset and size of an inner chunk in its shard, by the names that errors have."""
        shard = self.get(number) if self.metadata.is_sharded else None
        if shard is None:
            return {}
        return dict(zip(("offset", "nbytes"), map(int, shard.index.table[rank]), strict=True))

    def _object(self, index: Shape) -> Buffer | None:
        """The object of an array without shards, which is read at once."""
        if self._turn is not None and self._n_reads % _READS_A_TURN == 0:
            self._turn.take(_READS_A_TURN * _READ_SECONDS)
        self._n_reads += 1
        most = self.metadata.pipeline.most_encoded_nbytes
        key = self.metadata.shard_key(index)
        data = (self._read_afresh if self.array.is_afresh else self.store.read_whole)(key, most)
        if data is not None and len(data) > most:
            self._check_size(self.store.size(key) or len(data), key)
        return data

    def _read_afresh(self, key: str, most_nbytes: int) -> Buffer | None:
        reader = self.store.open_again(key)
        if reader is None:
            return None
        with reader:
            return reader.read(0, min(reader.nbytes, most_nbytes + 1))

    def _check_size(self, nbytes: int, key: str) -> None:
        try:
            check_size(self.metadata, nbytes)
        except CorruptShardError as error:
            raise error.located(key=key) from error


def check_missing(
    listed: Listing | None, metadata: ArrayMetadata, index: Shape, number: int
) -> None:
    """Refuse to take an object for empty that is missing, and that an array must have.

    - `listed`: objects that the array must have.
    """
    if listed is not None and listed.has(number):
        raise listed.missing(metadata.shard_key(index))


def _copy_shard(
    spec: WriteSpec, transaction: Transaction, index: Shape, donor: Donor, shards: Shards
) -> Written:
    """Write one shard from inner chunks of others."""
    grid, placed = spec.metadata.grid, spec.metadata.placed
    copies_ranges = donor.copies_ranges(spec.store, grid.shard_box(index))
    if isinstance(placed, ScatteredChunks):
        found = placed.origins(index, shards.metadata.grid)
        if len(np.unique(found[0])) > _MAX_OPEN and copies_ranges:
            # In the order of the other shards, so that each of them is opened once.
            by_shard = np.lexsort(found[::-1])
            batches = _batches(_passed(donor, shards, by_shard, *found), spec.batch_nbytes)
            return _assemble(spec, transaction, index, batches)
    else:
        found = origins(grid, index, shards.metadata.grid)
    if copies_ranges:
        return _copy_ranges(spec, transaction, index, shards, *found)
    order = spec.strategy.streaming_order if spec.streams else "C"
    sequence = permutation(grid.chunks_per_shard, order)
    batches = _batches(_passed(donor, shards, sequence, *found), spec.batch_nbytes)
    if spec.streams:
        return Emitter(spec, transaction, index).stream(batches)
    return _assemble(spec, transaction, index, batches)


def _copy_ranges(
    spec: WriteSpec,
    transaction: Transaction,
    index: Shape,
    shards: Shards,
    numbers: Ranks,
    ranks: Ranks,
) -> Written:
    """Copy inner chunks to where they belong, without a look at their bytes."""
    sizes = np.full(spec.metadata.grid.n_chunks_per_shard, -1, dtype=np.int64)
    for number in np.unique(numbers[numbers >= 0]).tolist():
        stored = shards.sizes(number)
        if stored is not None:
            here = numbers == number
            sizes[here] = stored[ranks[here]]
    placement = spec.lay_out(sizes, [np.arange(len(sizes))])
    is_same_store = can_copy_between(shards.store, spec.store)

    def write(writer: ObjectWriter, wanted: Ranks) -> None:
        breaks = np.flatnonzero(np.diff(numbers[wanted])) + 1
        for first, last in itertools.pairwise([0, *breaks.tolist(), len(wanted)]):
            shard = shards.get(int(numbers[wanted[first]]))
            if shard is None:
                raise TypeError("an inner chunk that has a size lies in a shard")
            shard.copy_to(writer, ranks[wanted[first:last]], is_same_store=is_same_store)
        shards.check_same()

    return Emitter(spec, transaction, index).place(placement, sizes, write)


def sizes_in(metadata: ArrayMetadata, shard: ExistingShard) -> Ranks:
    """Encoded sizes of the inner chunks of a shard, after a check; -1 where there is none.

    - Raises CorruptShardError if no inner chunk can have one of the sizes.
    """
    sizes = shard.stored().nbytes
    held = np.unique(sizes[sizes >= 0]).tolist()
    for nbytes in {*held[:1], *held[-1:]}:
        try:
            check_size(metadata, nbytes)
        except CorruptShardError as error:
            place = unravel(int(np.flatnonzero(sizes == nbytes)[0]), metadata.grid.chunks_per_shard)
            raise error.located(key=shard.key, inner_chunk=place) from error
    return sizes


def _passed(
    donor: Donor, shards: Shards, sequence: Ranks, numbers: Ranks, ranks: Ranks
) -> Iterator[tuple[int, Buffer]]:
    """Rank and encoded bytes of each inner chunk that is stored, in a sequence of ranks."""
    counts = shards.metadata.grid.counts
    number, index = -1, (0,) * len(counts)
    wanted = sequence[numbers[sequence] >= 0]
    triples = zip(wanted.tolist(), numbers[wanted].tolist(), ranks[wanted].tolist(), strict=True)
    for rank, in_shard, source_rank in triples:
        if in_shard != number:
            number, index = in_shard, unravel(in_shard, counts)
        data = _passed_on(donor, shards, number, index, source_rank)
        if data is not None:
            yield rank, data
    shards.check_same()


def _passed_on(donor: Donor, shards: Shards, number: int, index: Shape, rank: int) -> Buffer | None:
    """Bytes of an inner chunk in the other array; None if it is not stored, or is left out.

    If the chunk is wrong, it is read again from the storage once.
    """
    key = shards.metadata.shard_key(index)
    place = unravel(rank, shards.metadata.grid.chunks_per_shard)

    def passed(data: Buffer | None) -> Buffer | None:
        if data is None:
            return None
        copied = donor.passed(data, index, place)
        if donor.is_compared and bytes(data) != shards.encoded_again(number, index, rank):
            raise CorruptShardError("two reads gave different bytes", key=key, inner_chunk=place)
        return copied

    try:
        return passed(shards.encoded(number, index, rank))
    except CorruptShardError as error:
        read_again(shards.store, key, error)
    try:
        return passed(shards.encoded_again(number, index, rank))
    except CorruptShardError as error:
        span = shards.span(number, rank)
        raise error.located(key=key, inner_chunk=place, **span) from error


def _batches(chunks: Iterator[tuple[int, Buffer]], batch_nbytes: int) -> Iterator[EncodedBatch]:
    """Batches of encoded inner chunks, of about a number of bytes."""
    ranks: list[int] = []
    buffers: list[Buffer] = []
    sizes: list[int] = []
    room = batch_nbytes

    def batch(*, is_last: bool) -> EncodedBatch:
        return EncodedBatch(
            np.array(ranks, np.int64), np.array(sizes, np.int64), list(buffers), is_last
        )

    for rank, data in chunks:
        ranks.append(rank)
        buffers.append(data)
        sizes.append(len(memoryview(data)))
        room -= sizes[-1]
        if room <= 0 or len(ranks) >= _BATCH_CHUNKS:
            yield batch(is_last=False)
            ranks, buffers, sizes, room = [], [], [], batch_nbytes
    if ranks:
        yield batch(is_last=True)


def _assemble(
    spec: WriteSpec, transaction: Transaction, index: Shape, batches: Iterator[EncodedBatch]
) -> Written:
    """Collect inner chunks in a payload, and have the strategy place them."""
    n_chunks = spec.metadata.grid.n_chunks_per_shard
    sizes, starts = np.full(n_chunks, -1, dtype=np.int64), np.zeros(n_chunks, np.int64)
    n_collected = 0
    path = Path(spec.parts) / f"{spec.attempt()}{TEMPORARY_SUFFIX}"
    with Payload(path, _PAYLOAD_NBYTES) as payload:
        for batch in batches:
            ends = n_collected + np.cumsum(batch.nbytes)
            sizes[batch.ranks], starts[batch.ranks] = batch.nbytes, ends - batch.nbytes
            n_collected = int(ends[-1])
            payload.extend(batch.buffers)
        encoded = EncodedUnit(np.arange(n_chunks, dtype=np.int64), sizes, starts, 0)
        return revise_from(spec, transaction, index, encoded, payload, OpenedShard(None, None))


def origins(grid: ShardGrid, index: Shape, other: ShardGrid) -> tuple[Ranks, Ranks]:
    """Where another array of the same inner chunks has those of a shard.

    - Returns: for each inner chunk of the shard by rank, the row-major rank of the other array's
      shard and the chunk's rank in it. The first is -1 for inner chunks beyond the end of the
      array.
    """
    n, per_shard = grid.n_chunks_per_shard, grid.chunks_per_shard
    numbers, ranks = np.zeros(n, np.int64), np.zeros(n, np.int64)
    is_inside = np.ones(n, dtype=bool)
    local = np.unravel_index(np.arange(n), per_shard) if per_shard else ()
    for axis, place in enumerate(local):
        chunk = index[axis] * per_shard[axis] + place
        shard, inside = np.divmod(chunk, other.chunks_per_shard[axis])
        numbers = numbers * other.counts[axis] + shard
        ranks = ranks * other.chunks_per_shard[axis] + inside
        is_inside &= chunk * grid.chunks[axis] < grid.shape[axis]
    return np.where(is_inside, numbers, -1), ranks

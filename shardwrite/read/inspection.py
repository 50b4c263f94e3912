"""Inspection of arrays: of shards by their indexes, and of all objects by their sizes.

Many shards are inspected in parallel on an engine. A survey lists an array once. Its sizes and
chunks are those of all objects, or of a sample of a large array.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from dask.highlevelgraph import HighLevelGraph

from shardwrite._dataclass import dataclass
from shardwrite.encode.reader import ShardReader
from shardwrite.engines.local import Engine
from shardwrite.errors import CorruptShardError, ShardwriteError, StoreError
from shardwrite.format.order import permutation
from shardwrite.grid import Shape, unravel
from shardwrite.plan.partition import check_whole
from shardwrite.read.array import ShardedArray
from shardwrite.read.present import BATCH_INDEXES, Coords, coords_in, ranks_with_objects, together
from shardwrite.read.signatures import signature_of
from shardwrite.seams import resolve
from shardwrite.stores.base import Capability, Store, require

ORDERS_FOUND = ("any", "C", "F", "morton", "other")

_BATCH_SHARDS = 256

_N_BATCHES_AIMED_AT = 64

_BATCH_OBJECTS = 4096

_FEW_OBJECTS = 64  # files that are looked at sooner than tasks are made of them

_MOST_BATCHES = 256  # tasks of one graph, whose results are kept until all of them have ended


# ---- Tasks that look at shards in batches


_Part = TypeVar("_Part")


def look_in_batches(
    engine: Engine,
    array: ShardedArray,
    look: Callable[..., _Part],
    ranks: Sequence[int] | npt.NDArray[np.int64],
    most: int,
    collect: Callable[[int, _Part], None],
    *arguments: object,
) -> None:
    """Look at shards of an array in tasks of at most `most` shards, and collect what they find.

    Memory does not grow with the number of shards: there are some hundred tasks at a time.

    - `look`: function of the array, some of the ranks, and the `arguments`.
    - `collect`: is called with the position of the first of these ranks, and what `look` returns.
    """
    if not engine.shares_memory:
        require(array.store, Capability.SHARED, field="store", value=repr(array.store))
    step = max(1, min(most, len(ranks) // _N_BATCHES_AIMED_AT))
    name = f"shardwrite-{look.__name__.strip('_')}-{id(collect)}"
    batches = range(0, len(ranks), step)
    n_at_once = max(_MOST_BATCHES, 4 * engine.n_processes * engine.n_threads)
    for some in (batches[i : i + n_at_once] for i in range(0, len(batches), n_at_once)):
        layer: dict[Any, Any] = {
            (name, first): (_look, look, array, ranks[first : first + step], *arguments)
            for first in some
        }
        graph = HighLevelGraph({name: layer}, {name: set()})
        engine.run(graph, list(layer), lambda key, part: collect(key[1], part))


def _look(look: Callable[..., _Part], array: ShardedArray, *arguments: object) -> _Part:
    with array.decided.holds():
        return look(array, *arguments)


# ---- Shards by their indexes


class Differences(NamedTuple):
    """Ranks of shards that are not what was noted of them."""

    missing: npt.NDArray[np.int64]  # there should be an object, and there is none
    changed: npt.NDArray[np.int64]  # there is a good object, and it is another one
    bad: npt.NDArray[np.int64]  # there is a bad object

    @property
    def all(self) -> npt.NDArray[np.int64]:
        """Ranks of all of them, in order."""
        return np.sort(np.concatenate(self))


@dataclass(slots=True)
class ShardTable:
    """Facts about many shards from their indexes, as columns of one length.

    - `stored_nbytes`, `used_nbytes`, `index_nbytes`: size in bytes of the object, of its inner
      chunks, and of its index.
    - `n_chunks`: number of inner chunks that hold data.
    - `index_crcs`: crc32c of the index table, as in a journal.
    - `n_shared`: number of inner chunks that have the same bytes as another one.
    - `orders`: order of the inner chunks, as its position in `ORDERS_FOUND`; see `_order_of`.
    """

    ranks: npt.NDArray[np.int64]  # row-major ranks of the shards in the shard grid
    columns: npt.NDArray[np.int64]  # 0 where a shard has no object or a bad one
    is_present: npt.NDArray[np.bool_]  # whether the shard has an object, be it good or bad
    problems: list[tuple[int, str]]  # rank and error message of each bad shard
    # Rank of each of these shards that the storage refused to read, and the system's number of the
    # error
    errnos: dict[int, int] = field(default_factory=dict)

    @classmethod
    def empty(cls, ranks: npt.NDArray[np.int64]) -> ShardTable:
        """Table of the shards with these ranks, without any facts yet."""
        return cls(ranks, np.zeros((7, len(ranks)), np.int64), np.zeros(len(ranks), bool), [])

    @classmethod
    def of_sizes(cls, ranks: npt.NDArray[np.int64], nbytes: npt.NDArray[np.int64]) -> ShardTable:
        """Table of shards of which only the sizes are known; see `stored_sizes`."""
        table = cls.empty(ranks)
        table.columns[0], table.is_present = nbytes.clip(0), nbytes >= 0
        return table

    stored_nbytes = property(lambda self: self.columns[0])
    used_nbytes = property(lambda self: self.columns[1])
    index_nbytes = property(lambda self: self.columns[2])
    n_chunks = property(lambda self: self.columns[3])
    index_crcs = property(lambda self: self.columns[4])
    n_shared = property(lambda self: self.columns[5])
    orders = property(lambda self: self.columns[6])

    @property
    def bad(self) -> list[int]:
        """Ranks of the bad shards."""
        return [rank for rank, _ in self.problems]

    def against(
        self, nbytes: npt.NDArray[np.int64], index_crcs: npt.NDArray[np.uint32] | None = None
    ) -> Differences:
        """Compare the shards with what was noted of all shards of the array, by rank.

        - `nbytes`: size of the object; 0 for none, -1 for one of unknown size, and -2 where nothing
          was noted.
        - `index_crcs`: checksums of the indexes of these objects.
        """
        noted, ranks = nbytes[self.ranks], self.ranks
        is_other = self.stored_nbytes != noted
        if index_crcs is not None:
            is_other |= self.index_crcs != index_crcs[ranks]
        bad = np.array(self.bad, dtype=np.int64)
        return Differences(
            ranks[~self.is_present & (noted != 0) & (noted > -2)],
            np.setdiff1d(ranks[self.is_present & (noted >= 0) & is_other], bad),
            bad,
        )

    def forget(self, is_other: npt.NDArray[np.bool_]) -> None:
        """Take some of all shards for absent."""
        self.columns[:, is_other], self.is_present[is_other] = 0, False
        self.problems[:] = [pair for pair in self.problems if not is_other[pair[0]]]
        for rank in [rank for rank in self.errnos if is_other[rank]]:
            del self.errnos[rank]

    def fill(self, first: int, part: ShardTable) -> None:
        """Copy the rows of another table into this one, from row `first` on."""
        where = slice(first, first + len(part.ranks))
        self.columns[:, where] = part.columns
        self.is_present[where] = part.is_present
        self.problems += part.problems
        self.errnos |= part.errnos

    def unread(self, label: str) -> dict[int, StoreError]:
        """Errors of the shards that the storage has refused to read, by rank; none need be bad."""
        text = f"shards of {label} cannot be looked at: "
        return {
            rank: StoreError(text + message, key=label, errno=self.errnos[rank])
            for rank, message in self.problems
            if rank in self.errnos
        }

    def refuse_unread(self, label: str) -> None:
        """Raise StoreError if the storage has refused to read a shard, which need not be bad."""
        for error in self.unread(label).values():
            raise error

    def refuse_bad(self, label: str) -> None:
        """Raise as `refuse_unread` does, and CorruptShardError if a shard is bad."""
        self.refuse_unread(label)
        if self.problems:
            n = len(self.problems)
            raise CorruptShardError(f"{n} shards of {label} are bad: {self.problems[0][1]}")


def _order_of(
    offsets: npt.NDArray[np.uint64], present: npt.NDArray[np.bool_], chunks_per_shard: Shape
) -> str:
    """Which of `ORDERS_FOUND` the offsets of a shard follow.

    It is the first that fits, `any` below two chunks, and `other` if none fits.
    """
    if present.sum() < 2:
        return "any"
    for order in ORDERS_FOUND[1:-1]:
        sequence = permutation(chunks_per_shard, order)
        in_turn = offsets[sequence[present[sequence]]]
        if (in_turn[1:] >= in_turn[:-1]).all():
            return order
    return "other"


def _inspect_shard(
    array: ShardedArray, index: Shape, *, deep: bool, in_full: bool = True
) -> tuple[int, ...] | None:
    """Check one shard, and return its row of a `ShardTable`; None if it has no object.

    - `in_full`: whether it is told what the chunks share, and in which order they lie.
    - Raises CorruptShardError if the shard is damaged.
    """
    metadata = array.metadata
    key = metadata.shard_key(index)
    reader = array.store.open(key)
    if reader is None:
        return None
    with reader:
        shard = ShardReader(metadata, key, reader)
        if deep:
            begun = None  # what was read of the start, where a signature stands
            for group in shard.groups(np.array(shard.present(), np.int64)):
                loaded = group.read()
                for rank in group.ranks:
                    loaded.chunk(rank)
                begun = begun or loaded.source
            signature = signature_of(metadata, begun or reader)
            if signature is not None:
                why_unreadable = resolve("deep check", signature.strategy)
                reason = why_unreadable(metadata, reader, shard.index)
                if reason:
                    raise CorruptShardError(reason).located(key=key)
        table = shard.index
        if not in_full:
            sizes = (reader.nbytes, 0, shard.index_nbytes, table.n_present)
            return (*sizes, table.checksum, 0, 0)
        order = _order_of(table.table[:, 0], ~table.is_empty, metadata.grid.chunks_per_shard)
        return (
            reader.nbytes,
            table.used_nbytes,
            shard.index_nbytes,
            table.n_present,
            table.checksum,
            table.n_shared,
            ORDERS_FOUND.index(order),
        )


def _inspect(
    array: ShardedArray, ranks: npt.NDArray[np.int64], deep: bool, in_full: bool
) -> ShardTable:
    table = ShardTable.empty(ranks)
    for row, rank in enumerate(ranks.tolist()):
        try:
            index = unravel(rank, array.metadata.grid.counts)
            facts = _inspect_shard(array, index, deep=deep, in_full=in_full)
        except ShardwriteError as error:
            table.is_present[row] = True
            table.problems.append((rank, str(error)))
            if isinstance(error, StoreError) and error.errno is not None:
                table.errnos[rank] = error.errno
            continue
        if facts is not None:
            table.is_present[row] = True
            table.columns[:, row] = facts
    return table


def inspect_shards(
    engine: Engine,
    array: ShardedArray,
    ranks: npt.NDArray[np.int64],
    *,
    deep: bool,
    in_full: bool = True,
    on_shards: Callable[[int], None] | None = None,
) -> ShardTable:
    """Check shards in parallel, and return a table of facts about them.

    - `in_full`: fill all columns. Otherwise only sizes, numbers of chunks and checksums of indexes
      are told, which takes half of the time.
    - `deep`: decode every inner chunk as well. Of a shard that is a file of another format, also
      look whether programs of that format can open it.
    - Returns: one row for each rank. Errors of single shards are in its `problems`, sorted by rank.
    """
    table = ShardTable.empty(ranks)

    def collect(first: int, part: ShardTable) -> None:
        table.fill(first, part)
        if on_shards is not None:
            on_shards(len(part.ranks))

    look_in_batches(engine, array, _inspect, ranks, _BATCH_SHARDS, collect, deep, in_full)
    table.problems.sort()
    return table


def stored_sizes(
    engine: Engine, array: ShardedArray, ranks: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Sizes of the objects of some shards, without reading them; -1 where there is none."""
    return of_objects(engine, array, ranks, _size_of)


def _size_of(store: Store, key: str) -> int:
    size = store.size(key)
    return -1 if size is None else size


def change_times(
    engine: Engine, array: ShardedArray, ranks: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """When the files of some shards were changed, as `os.stat` tells it; 0 where there is none."""
    seconds, nanoseconds = np.divmod(of_objects(engine, array, ranks, change_time_of), 10**9)
    return seconds + 1e-9 * nanoseconds


def change_time_of(store: Store, key: str) -> int:
    """See :meth:`Store.change_time`."""
    return store.change_time(key)


def of_objects(
    engine: Engine,
    array: ShardedArray,
    ranks: npt.NDArray[np.int64],
    number_of: Callable[[Store, str], int],
) -> npt.NDArray[np.int64]:
    """One number for the object of each shard, which tasks find out in batches.

    That of a few files is found out here.
    """
    if len(ranks) <= _FEW_OBJECTS and array.store.local_root is not None:
        return _look(_numbers, array, ranks, number_of)
    numbers = np.zeros(len(ranks), dtype=np.int64)

    def collect(first: int, part: npt.NDArray[np.int64]) -> None:
        numbers[first : first + len(part)] = part

    look_in_batches(engine, array, _numbers, ranks, _BATCH_OBJECTS, collect, number_of)
    return numbers


def _numbers(
    array: ShardedArray, ranks: npt.NDArray[np.int64], number_of: Callable[[Store, str], int]
) -> npt.NDArray[np.int64]:
    metadata, store = array.metadata, array.store
    keys = (metadata.key_of_rank(rank) for rank in ranks.tolist())
    return np.fromiter((number_of(store, key) for key in keys), np.int64, len(ranks))


# ---- All inner chunks that an array stores, from the indexes of its shards


def stored_coords(
    engine: Engine, array: ShardedArray, on_shards: Callable[[int], None] | None = None
) -> Coords:
    """Positions of the inner chunks that an array stores. Nothing but indexes is read.

    Where the array can be listed, those of shards that have an object are read.

    - Returns: positions in the grid of inner chunks, in row-major order. Chunks that a shard stores
      outside of the array are left out.
    - Raises CorruptShardError if an index is not valid.
    """
    metadata, store = array.metadata, array.store
    n_shards = metadata.grid.n_shards
    ranks = ranks_with_objects(metadata, store)
    if on_shards is not None and len(ranks) < n_shards:
        on_shards(n_shards - len(ranks))
    parts: list[Coords] = []

    def collect(_: int, part: tuple[int, Coords]) -> None:
        parts.append(part[1])
        if on_shards is not None:
            on_shards(part[0])

    look_in_batches(engine, array, _chunks, ranks, BATCH_INDEXES, collect)
    return together(parts, metadata.grid.ndim)


def _chunks(array: ShardedArray, ranks: Sequence[int]) -> tuple[int, Coords]:
    return len(ranks), coords_in(array.metadata, array.store, ranks)


# ---- Survey of an array before its conversion


@dataclass(frozen=True, slots=True)
class Survey:
    """What an array consists of."""

    # Row-major ranks of the shards that have an object. None if any may have one.
    ranks: npt.NDArray[np.int64] | None
    n_chunks: int  # number of inner chunks that hold data
    nbytes: int  # size of all objects, in bytes
    is_estimate: bool  # whether the last two are estimated from a sample
    # Number of objects, if these hold other chunks than the shards of the array
    n_files: int | None = None

    @property
    def n_objects(self) -> int:
        """Number of objects."""
        if self.n_files is not None:
            return self.n_files
        return 0 if self.ranks is None else len(self.ranks)


def ranks_of_objects(array: ShardedArray, label: str) -> npt.NDArray[np.int64]:
    """List an array, and return the row-major ranks of the shards that have an object.

    Of an array that cannot be listed, all shards may have one.
    """
    metadata = array.metadata
    check_whole(metadata.grid, label)
    return np.array(ranks_with_objects(metadata, array.store), np.int64)

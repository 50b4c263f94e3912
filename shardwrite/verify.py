"""Is it all there, and right? From the shards' indexes, and deep, by decoding."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from shardwrite.errors import CorruptShardError, ShardwriteError
from shardwrite.grid import Shape
from shardwrite.order import permutation
from shardwrite.plan.render import human, table_html, table_text
from shardwrite.shard import decode_chunk, decode_shard, read_index
from shardwrite.view import ShardedArray, open_sharded

__all__ = ["Problem", "Report", "ShardFacts", "inspect_shard", "verify"]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with a shard.

    Attributes
    ----------
    key : str
        Storage key of the shard.
    index : tuple of int
        Its position in the shard grid.
    message : str
        What is wrong, naming the inner chunk and the bytes.
    remedy : str
        What to do.
    """

    key: str
    index: tuple[int, ...]
    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class ShardFacts:
    """What a shard's index tells.

    Attributes
    ----------
    stored_nbytes, used_nbytes, index_nbytes : int
        Bytes of the object, of its inner chunks, and of its index.
    n_chunks : int
        Inner chunks that hold data.
    order : str
        ``C``, ``F``, ``morton``, or ``other``; ``any`` where fewer than two hold data or orders agree.
    """

    stored_nbytes: int
    used_nbytes: int
    index_nbytes: int
    n_chunks: int
    order: str

    @property
    def unused_nbytes(self) -> int:
        """Bytes that belong to nothing."""
        return self.stored_nbytes - self.used_nbytes - self.index_nbytes


@dataclass(frozen=True, slots=True)
class Report:
    """What was found.

    Attributes
    ----------
    path : str
        The array.
    n_shards : int
        Shards of the grid.
    n_present, n_absent : int
        Shards with an object, and without: these read as the fill value.
    n_inner_chunks : int
        In-bounds inner chunks of the array.
    n_stored_chunks : int
        Those that hold data.
    raw_nbytes, stored_nbytes, used_nbytes, unused_nbytes : int
        Decoded bytes of the array; bytes of the objects, of inner chunks in them, and of nothing.
    orders : dict of str to int
        Shards by the order of their inner chunks.
    deep : bool
        Whether every inner chunk was decoded.
    problems : tuple of Problem
        Empty where all is well.
    """

    path: str
    n_shards: int
    n_present: int
    n_absent: int
    n_inner_chunks: int
    n_stored_chunks: int
    raw_nbytes: int
    stored_nbytes: int
    used_nbytes: int
    unused_nbytes: int
    orders: dict[str, int]
    deep: bool
    problems: tuple[Problem, ...]

    @property
    def is_good(self) -> bool:
        """Whether no problem was found."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        return {**asdict(self), "is_good": self.is_good}

    def _rows(self) -> list[tuple[str, str]]:
        ratio = self.raw_nbytes / self.stored_nbytes if self.stored_nbytes else 0.0
        rows = [
            ("array", self.path),
            ("shards", f"{self.n_present:,} of {self.n_shards:,} present; absent ones read as the fill value"),
            ("inner chunks", f"{self.n_stored_chunks:,} of {self.n_inner_chunks:,} hold data"),
            ("bytes", f"{human(self.raw_nbytes)} decoded, {human(self.stored_nbytes)} stored ({ratio:.2f}x)"),
            ("unused", human(self.unused_nbytes)),
            ("order", ", ".join(f"{name}: {count:,}" for name, count in sorted(self.orders.items())) or "none"),
            ("checked", "indexes, and every inner chunk decoded" if self.deep else "indexes"),
            ("problems", "none" if self.is_good else str(len(self.problems))),
        ]
        return rows + [(problem.key, f"{problem.message}\n{problem.remedy}") for problem in self.problems[:50]]

    def __str__(self) -> str:
        return table_text("verified", self._rows())

    def _repr_html_(self) -> str:
        return table_html("verified", self._rows())


def _order_of(offsets: np.ndarray[Any, Any], present: np.ndarray[Any, Any], chunks_per_shard: Shape) -> str:
    """The order in which inner chunks lie; the simplest that fits."""
    if present.sum() < 2:
        return "any"
    for order in ("C", "F", "morton"):
        sequence = permutation(chunks_per_shard, order)
        if (np.diff(offsets[sequence[present[sequence]]].astype(np.int64)) >= 0).all():
            return order
    return "other"


def inspect_shard(array: ShardedArray, index: Shape, *, deep: bool) -> ShardFacts | None:
    """Check one shard.

    Parameters
    ----------
    array : ShardedArray
        The array.
    index : tuple of int
        Position of the shard.
    deep : bool
        Decode every inner chunk, too.

    Returns
    -------
    ShardFacts or None
        None where the shard has no object.

    Raises
    ------
    CorruptShardError, StoreError
        What is wrong with it.
    """
    metadata = array.metadata
    key = metadata.shard_key(index)
    reader = array.store.open(key)
    if reader is None:
        return None
    with reader:
        if any(metadata.codecs_around):
            decode_shard(metadata, key, reader.read(0, reader.nbytes))  # nothing less tells anything
            return ShardFacts(reader.nbytes, reader.nbytes, 0, metadata.grid.n_chunks_per_shard, "other")
        try:
            start, stop = metadata.index_codec.span(reader.nbytes)
        except CorruptShardError as error:
            raise error.located(key=key) from error
        table = read_index(metadata, key, reader.read(start, stop - start), reader.nbytes)
        present = ~table.is_empty
        if deep:
            for rank in np.flatnonzero(present).tolist():
                offset, nbytes = (int(v) for v in table.table[rank])
                decode_chunk(metadata, key, table, rank, reader.read(offset, nbytes))
        order = _order_of(table.table[:, 0], present, metadata.grid.chunks_per_shard)
        return ShardFacts(reader.nbytes, table.used_nbytes, stop - start, int(present.sum()), order)


def verify(
    store: Any,
    *,
    name: str | None = None,
    deep: bool = False,
    n_threads: int | None = None,
    on_shard: Callable[[int], None] | None = None,
) -> Report:
    """Check every shard of an array.

    Parameters
    ----------
    store : str or path
        A directory or ``file://`` URL.
    name : str, optional
        Path of the array in it.
    deep : bool
        Decode every inner chunk, too: finds what only an inner checksum or a codec can tell.
    n_threads : int, optional
        Shards checked at a time; as many as there are cores by default.
    on_shard : callable, optional
        Called with 1 after each shard.

    Returns
    -------
    Report
        With `is_good` and `problems`.

    Raises
    ------
    SpecError
        If no sharded array is there.

    Examples
    --------
    >>> import dask.array as da, shardwrite, tempfile
    >>> path = tempfile.mkdtemp() + "/x.zarr"
    >>> _ = da.arange(100, chunks=10).to_sharded_zarr(path, shards=40, chunks=8)
    >>> shardwrite.verify(path, deep=True).is_good
    True
    """
    array = open_sharded(store, name)
    grid = array.metadata.grid
    facts: list[ShardFacts] = []
    problems: list[Problem] = []
    with ThreadPoolExecutor(n_threads or os.cpu_count() or 1) as pool:
        for index, outcome in _checked(pool, array, deep):
            if isinstance(outcome, ShardFacts):
                facts.append(outcome)
            elif outcome is not None:
                key = array.metadata.shard_key(index)
                problems.append(
                    Problem(key, index, str(outcome), "write this shard again from its source, or restore it from a copy")
                )
            if on_shard is not None:
                on_shard(1)
    orders: dict[str, int] = {}
    for fact in facts:
        orders[fact.order] = orders.get(fact.order, 0) + 1
    n_present = len(facts) + len(problems)
    return Report(
        path=str(getattr(array.store, "root", store)),
        n_shards=grid.n_shards,
        n_present=n_present,
        n_absent=grid.n_shards - n_present,
        n_inner_chunks=grid.n_inner_chunks,
        n_stored_chunks=sum(fact.n_chunks for fact in facts),
        raw_nbytes=array.metadata.raw_nbytes,
        stored_nbytes=sum(fact.stored_nbytes for fact in facts),
        used_nbytes=sum(fact.used_nbytes for fact in facts),
        unused_nbytes=sum(fact.unused_nbytes for fact in facts),
        orders=orders,
        deep=deep,
        problems=tuple(problems),
    )


def _checked(
    pool: ThreadPoolExecutor, array: ShardedArray, deep: bool
) -> Iterator[tuple[Shape, ShardFacts | ShardwriteError | None]]:
    """Every shard and what was found, a bounded number at a time."""

    def check(index: Shape) -> tuple[Shape, ShardFacts | ShardwriteError | None]:
        try:
            return index, inspect_shard(array, index, deep=deep)
        except ShardwriteError as error:
            return index, error

    window = []
    for index in array.metadata.grid.shards_in(array.metadata.grid.whole):
        window.append(pool.submit(check, index))
        if len(window) >= 1024:
            yield from (future.result() for future in window[:512])
            del window[:512]
    yield from (future.result() for future in window)

"""Upper limits of what can be planned, and of what can be read shard by shard.

The checks raise at once, before memory is allocated or a loop begins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from shardwrite.errors import PlanError, SpecError
from shardwrite.grid import Box, Shape, ShardGrid, ceil_div

MAX_SHARDS = 2**26
"""Most shards of one run, or of one read of all indexes of an array.

The state of so many shards takes gigabytes of memory.
"""

_MAX_EXTENT = 2**62  # the sum of two extents still fits into 64 bits
_MAX_NBYTES = _MAX_END = 2**63 - 1
_MAX_CHUNKS_PER_SHARD = 2**27  # an index of 2 GiB
_MAX_EDGES = 2**25  # tasks along one axis
_MAX_TASKS = 2**32
# memory for an inner chunk's entry while an index is made: offset and size, table, encoded table
_INDEX_NBYTES = 48
_ENTRY_NBYTES = 16  # an inner chunk's entry in an index
_FREE_INDEX_NBYTES = 2**24  # an index that costs little, however small its file is
_MAX_INDEX_SHARE = 4  # most bytes of indexes for each byte of the files that get them


# numpy has 64, and an array that is cut into inner chunks has two for each axis
_MAX_AXES = 32


def check_extents(field: str, value: Any, sizes: Sequence[int]) -> None:
    """Refuse more axes than can be cut into inner chunks, and sizes too large for 64 bits."""
    if len(sizes) > _MAX_AXES:
        raise SpecError(
            f"has {len(sizes)} axes, and at most {_MAX_AXES} can be written",
            field=field,
            value=value,
            remedy="reshape the array, so that axes of one element go",
        )
    if any(size > _MAX_EXTENT for size in sizes):
        raise SpecError(
            "is too large", field=field, value=value, remedy=f"give sizes up to {_MAX_EXTENT:,}"
        )


def check_new(shape: Shape, itemsize: int, shards: Shape, chunks: Shape) -> None:
    """Refuse the shapes of a new array if it cannot be planned.

    - Raises SpecError if the array, an inner chunk, the index of a shard or the number of shards is
      too large.
    """
    if itemsize * math.prod(shape) > _MAX_NBYTES:
        raise SpecError(
            f"holds more than {_MAX_NBYTES:,} bytes",
            field="shape",
            value=shape,
            remedy="give a smaller array",
        )
    if itemsize * math.prod(chunks) > _MAX_NBYTES:
        raise SpecError(
            f"holds more than {_MAX_NBYTES:,} bytes",
            field="chunks",
            value=chunks,
            remedy="give smaller inner chunks",
        )
    if math.prod(shards) // math.prod(chunks) > _MAX_CHUNKS_PER_SHARD:
        remedy = (
            "give smaller shards, or larger inner chunks: "
            f"a shard holds at most {_MAX_CHUNKS_PER_SHARD:,}"
        )
        raise SpecError("holds too many inner chunks", field="shards", value=shards, remedy=remedy)
    n_shards = _n_shards(shape, shards)
    if n_shards > MAX_SHARDS:
        remedy = f"give larger shards: at most {MAX_SHARDS:,} can be planned"
        raise SpecError(f"makes {n_shards:,} shards", field="shards", value=shards, remedy=remedy)


def check_whole(grid: ShardGrid, path: str) -> None:
    """Refuse to read every shard of an array that has too many shards.

    - Raises SpecError if the array has more than `MAX_SHARDS` shards. The error names their number.
    """
    if grid.n_shards > MAX_SHARDS:
        remedy = f"at most {MAX_SHARDS:,} can be looked at; read and write it by region"
        raise SpecError(f"has {grid.n_shards:,} shards", field="store", value=path, remedy=remedy)


def check_region(box: Box, shards: Shape) -> None:
    """Refuse a region that touches too many shards, or whose end does not fit into 64 bits."""
    check_extents("region", box.bounds, (0,) * len(box.stop))
    if any(b > _MAX_END for b in box.stop):
        raise SpecError(
            "lies too far out",
            field="region",
            value=box.bounds,
            remedy=f"give one that ends at {_MAX_END:,} or before",
        )
    n_shards = math.prod(
        ceil_div(b, s) - a // s for a, b, s in zip(box.start, box.stop, shards, strict=True)
    )
    if box.size and n_shards > MAX_SHARDS:
        remedy = f"give a smaller region: at most {MAX_SHARDS:,} can be planned"
        raise SpecError(
            f"touches {n_shards:,} shards", field="region", value=box.bounds, remedy=remedy
        )


def check_chunks(shape: Shape, chunks: Shape) -> None:
    """Refuse to make a dask array of too many chunks.

    - Raises SpecError if there were more than `MAX_SHARDS` chunks. The error names their number.
    """
    n_chunks = _n_shards(shape, chunks)
    if n_chunks > MAX_SHARDS:
        remedy = (
            f"give larger ones, at most {MAX_SHARDS:,}; "
            "or read a region with open_sharded(...)[...]"
        )
        raise SpecError(f"makes {n_chunks:,} chunks", field="chunks", value=chunks, remedy=remedy)


def check_growth(grid: ShardGrid, shape: Sequence[int]) -> None:
    """Refuse to let an array grow beyond the number of shards that can be read."""
    check_extents("shape", tuple(shape), shape)
    n_shards = _n_shards(shape, grid.shards)
    if n_shards > max(MAX_SHARDS, grid.n_shards):
        remedy = f"write nearer to the array's end: at most {MAX_SHARDS:,} can be looked at"
        raise SpecError(
            f"would have {n_shards:,} shards", field="shape", value=tuple(shape), remedy=remedy
        )


def check_indexes(grid: ShardGrid, files: Sequence[str], nbytes: int) -> None:
    """Refuse files that store few of their chunks, and whose indexes would be far larger."""
    n_chunks = grid.n_chunks_per_shard
    each = _ENTRY_NBYTES * n_chunks
    if each > _FREE_INDEX_NBYTES and each * len(files) > _MAX_INDEX_SHARE * nbytes:
        raise SpecError(
            f"the dataset has {n_chunks:,} chunks, of which few are stored. The index of Zarr has "
            f"an entry for each of them, and would take {each:,} bytes in each shard. All files "
            f"together have {nbytes:,} bytes",
            field="files",
            value=files[0],
            remedy="write the values in larger chunks, with shardwrite write --chunks",
        )


def check_memory(grid: ShardGrid, itemsize: int, allowed_nbytes: int) -> None:
    """Refuse inner chunks or shard indexes that do not fit into the memory of a process."""
    for what, value, nbytes in (
        ("an inner chunk", f"chunks={grid.chunks}", itemsize * math.prod(grid.chunks)),
        ("the index of a shard", f"shards={grid.shards}", _INDEX_NBYTES * grid.n_chunks_per_shard),
    ):
        if nbytes > allowed_nbytes:
            raise PlanError(
                f"{value}: {what} takes {nbytes:,} bytes, and a process may use {allowed_nbytes:,}",
                needed_nbytes=nbytes,
                allowed_nbytes=allowed_nbytes,
                remedy=(
                    "use smaller inner chunks, and fewer of them in a shard, or raise memory_limit"
                ),
            )


def check_n_tasks(shape: Shape, n_tasks: int) -> None:
    """Refuse more tasks than a plan can hold.

    - Raises PlanError if there are more than 2**32 tasks. The error names their number.
    """
    if n_tasks > _MAX_TASKS:
        raise _too_many_tasks(shape, n_tasks)


def check_cut(shape: Shape, counts: Sequence[int]) -> None:
    """Refuse to cut an array into more tasks than a plan can hold.

    - Raises PlanError if there are more than 2**32 tasks, or more than 2**25 along one axis. The
      error names their number.
    """
    n_tasks = math.prod(counts)
    if n_tasks > _MAX_TASKS or max(counts, default=0) > _MAX_EDGES:
        raise _too_many_tasks(shape, n_tasks)


def _too_many_tasks(shape: Shape, n_tasks: int) -> PlanError:
    return PlanError(
        f"shape={shape}: {n_tasks:,} tasks are more than a plan can hold",
        needed_nbytes=0,
        allowed_nbytes=0,
        remedy="make the array with create(), and write it region by region",
    )


def _n_shards(shape: Sequence[int], shards: Shape) -> int:
    return math.prod(ceil_div(n, s) for n, s in zip(shape, shards, strict=True))

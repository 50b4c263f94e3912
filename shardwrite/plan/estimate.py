"""How much memory a plan needs, before anything runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from shardwrite.grid import Shape, boundaries, ceil_div
from shardwrite.plan.partition import Partition

__all__ = ["BATCH_NBYTES", "MemoryEstimate", "Resources", "estimate_memory", "overlap"]

BATCH_NBYTES = 2 * 2**20
"""Decoded inner chunks that a thread cuts and encodes at a time, in bytes."""

_RESULT_SHARE = 0.25  # of a process's memory for encoded blocks that wait for their commit


@dataclass(frozen=True, slots=True)
class Resources:
    """What a worker process offers.

    Parameters
    ----------
    n_threads : int
        Threads that run tasks in one process.
    memory_limit_nbytes : int
        Memory that one process may use.
    n_processes : int
        Processes.
    """

    n_threads: int
    memory_limit_nbytes: int
    n_processes: int = 1


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Memory of one worker process, in bytes, without the interpreter and its libraries.

    Attributes
    ----------
    source_nbytes : int
        Source chunks of the tasks that run.
    border_nbytes : int
        Source chunks that a task has used and another still needs.
    encode_nbytes : int
        Batches and, unless tasks stream, encoded blocks, of all threads.
    waiting_nbytes : int
        Encoded blocks that wait for the rest of their shard; beyond it they are spooled to disk.
    spool_ratio : float
        Encoded over decoded size above which a block is spooled; infinite where nothing ever is.
    """

    source_nbytes: int
    border_nbytes: int
    encode_nbytes: int
    waiting_nbytes: int
    spool_ratio: float

    @property
    def total_nbytes(self) -> int:
        """Everything together."""
        return self.source_nbytes + self.border_nbytes + self.encode_nbytes + self.waiting_nbytes


def overlap(edges: Sequence[int], source_edges: Sequence[int]) -> tuple[int, int]:
    """How pieces and source chunks cut each other along an axis.

    Returns
    -------
    longest : int
        Elements of the source chunks under a piece, at most.
    cuts : int
        Pieces that a source chunk is cut into, at most.
    """
    own, source = np.asarray(edges), np.asarray(source_edges)
    first, last = (
        np.searchsorted(source, own[:-1], "right") - 1,
        np.searchsorted(source, own[1:], "left"),
    )
    longest = int((source[last] - source[first]).max(initial=0))
    starts, stops = source[:-1], source[1:]
    holds = starts < stops
    cuts = np.searchsorted(own, stops[holds], "left") - (
        np.searchsorted(own, starts[holds], "right") - 1
    )
    return longest, max(1, int(cuts.max(initial=0)))


def _thickness(edges: Sequence[int], source_edges: Sequence[int]) -> int:
    """Of the source chunks along an axis that reach from one piece into another and hold neither, the longest."""
    own, source = np.asarray(edges, dtype=np.int64), np.asarray(source_edges, dtype=np.int64)
    inner = own[1:-1]
    first = np.searchsorted(source, inner, "right") - 1
    starts, stops = source[first], source[first + 1]
    is_across = (starts < inner) & ~(np.isin(starts, own) & np.isin(stops, own))
    return int((stops - starts)[is_across].max(initial=0))


@lru_cache(maxsize=16)
def _along(edges: tuple[int, ...], source_sizes: tuple[int, ...]) -> tuple[int, int, int, int]:
    """What :func:`overlap` and `_thickness` say of an axis, and the source's extent; an axis may have a million edges."""
    source = boundaries(source_sizes)
    return (*overlap(edges, source), _thickness(edges, source), source[-1])


def _border(
    partition: Partition, thickness: Sequence[int], source_shape: Sequence[int], wave: Shape
) -> int:
    """Elements of the source chunks across the borders between what is done of a wave and what is not: one layer for each axis."""
    extent = [min(n + t, whole) for n, t, whole in zip(wave, thickness, source_shape, strict=True)]
    crossed = [
        axis
        for axis, (n, block) in enumerate(zip(wave, partition.largest_block, strict=True))
        if n > block
    ]
    return sum(thickness[axis] * math.prod(extent[:axis] + extent[axis + 1 :]) for axis in crossed)


def estimate_memory(
    partition: Partition,
    source_chunks: Sequence[Sequence[int]],
    itemsize: int,
    resources: Resources,
    *,
    wave: Shape,
    staged: bool,
    compression_ratio: float,
) -> MemoryEstimate:
    """Peak memory of one process.

    Parameters
    ----------
    partition : Partition
        Groups and blocks.
    source_chunks : sequence of sequence of int
        The source's chunk sizes for each axis.
    itemsize : int
        Bytes of an element.
    resources : Resources
        Threads and memory of a process.
    wave : tuple of int
        Elements along each axis of the largest box that is one graph.
    staged : bool
        Whether every encoded block goes to a part file.
    compression_ratio : float
        Decoded over encoded size; 1 is the worst case.

    Notes
    -----
    A source chunk that several blocks need stays until the last of them is encoded, so
    those blocks run beside one another on one set of source chunks, and the next set is begun while they end. A source chunk
    that lies across the border of two blocks stays from the first to the second, and in which order they come is dask's choice.
    """
    axes = [
        _along(tuple(edges), tuple(sizes))
        for edges, sizes in zip(partition.block_edges, source_chunks, strict=True)
    ]
    longest, cuts, thickness, shape = zip(*axes, strict=True) if axes else ((), (), (), ())
    set_nbytes = itemsize * math.prod(longest)
    is_shared = any(n > 2 for n in cuts)  # cut in two, a source chunk is shared at its border only
    n_sharing = math.prod(cuts)
    n_tasks = min(resources.n_threads, max(1, partition.n_blocks))
    n_sets = n_tasks if not is_shared else ceil_div(n_tasks, n_sharing) + 0.25
    block_nbytes = itemsize * math.prod(partition.largest_block)
    batches_nbytes = n_tasks * 2 * min(BATCH_NBYTES, block_nbytes)
    source_nbytes = int(min(n_sets, max(1, partition.n_blocks)) * set_nbytes)
    border_nbytes = (
        0
        if is_shared
        else ceil_div(itemsize * _border(partition, thickness, shape, wave), resources.n_processes)
    )
    if partition.is_fused or staged:
        return MemoryEstimate(
            source_nbytes, border_nbytes, batches_nbytes, 0, 0.0 if staged else math.inf
        )
    allowed = int(resources.memory_limit_nbytes * _RESULT_SHARE)
    waiting_nbytes = min(partition.n_groups, 2) * itemsize * math.prod(partition.largest_group)
    spool_ratio = allowed / max(1, waiting_nbytes)
    kept = min(1 / compression_ratio, spool_ratio)
    return MemoryEstimate(
        source_nbytes=source_nbytes,
        border_nbytes=border_nbytes,
        encode_nbytes=batches_nbytes + int(n_tasks * block_nbytes * kept),
        waiting_nbytes=int(waiting_nbytes * kept),
        spool_ratio=spool_ratio if spool_ratio < 1.1 else math.inf,
    )

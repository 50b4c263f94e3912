"""Estimates of what a run needs, made before anything runs: memory, requests and bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.codecs.documents import JSON
from shardwrite.grid import Box, Shape, ceil_div
from shardwrite.plan.edges import Edges, condensed
from shardwrite.plan.partition import Partition

# ---- Requests and bytes


@dataclass(frozen=True, slots=True)
class Requests:
    """Number of requests to an object store, as far as nothing must be repeated."""

    # Number of objects that are put, of objects and ranges that are read or looked at (GET and
    # HEAD), and of lists. A list names up to 1,000 objects. Removals are not counted: services take
    # nothing for them.
    n_put: int = 0
    n_get: int = 0
    n_list: int = 0

    def __add__(self, other: Requests) -> Requests:
        return Requests(
            self.n_put + other.n_put, self.n_get + other.n_get, self.n_list + other.n_list
        )

    def times(self, n: int) -> Requests:
        """As many requests for each of `n` things."""
        return Requests(n * self.n_put, n * self.n_get, n * self.n_list)

    def __str__(self) -> str:
        return f"{self.n_put:,} PUT, {self.n_get:,} GET or HEAD, {self.n_list:,} LIST"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What a run asks of an object store, at most, if nothing must be repeated."""

    requests: Requests  # requests that do not depend on how long the run takes
    # Requests that keep the state of the run, for each hour that it takes
    hourly: Requests = Requests()
    put_nbytes: int  # bytes that are put and read
    get_nbytes: int = 0
    # Whether the bytes are those expected at the compression that was given, and not the most
    is_expected: bool = False

    def to_dict(self) -> dict[str, JSON]:
        """All facts as values that JSON can hold."""
        return asdict(self)


# ---- Memory


BATCH_NBYTES = 2 * 2**20
"""Size of the decoded inner chunks that a thread cuts and encodes at a time, in bytes."""

HELD_NBYTES = 64 * 2**20
"""Encoded bytes of a shard that a task keeps in memory before it places them."""


# objects that a task puts at a time into a store that answers late, and their decoded bytes
_N_AT_ONCE = 8

_AT_ONCE_NBYTES = 8 * 2**20
# memory of a task for an inner chunk of a shard: rank, size, offset, and its part of the index
_ENTRY_NBYTES = 128

_FEW_ENTRIES = 2**13
# the same for an update of a shard that exists: its old index, and where the new chunks go
_REVISED_NBYTES = 96
# share of the next set of source chunks that is loaded while the last tasks of a set end, at least
_BEGUN_SHARE = 0.25
# share of a process's memory that encoded blocks may take while they wait for their commit
_RESULT_SHARE = 0.25

# ratio of encoded to decoded size that no block exceeds, as codecs add a few bytes at most
_LARGEST_RATIO = 1.1

# What a process takes beside data: for itself, for each thread, for each task of a source and for
# each source chunk that a task takes; and the share of source chunks by which allocators grow
_PROCESS_NBYTES, _THREAD_NBYTES = 4 * 2**20, 2**20
_SOURCE_TASK_NBYTES, _INPUT_NBYTES = 2**10, 700
_WORKER_TASK_NBYTES = 3 * 2**10  # for a task and its inputs in a worker process
_ALLOCATOR_SHARE = 0.06
# Where several processes share source chunks: most chunks of a process, in those of the mean, and
# the share of the input of its tasks that comes from the others
_UNEVEN, _FROM_OTHERS = 1.25, 0.75
_MORE_WORK = 0.1  # share of data by which one of these processes has more at work than the mean
_LARGE_NBYTES = 32 * 2**20  # glibc gives back at once what is as large as this


@dataclass(frozen=True, slots=True)
class Resources:
    """Threads and memory of the worker processes, and what waits in memory for the store."""

    n_threads: int  # threads that run tasks in one process
    memory_limit_nbytes: int  # memory that one process may use, in bytes
    n_processes: int = 1  # number of worker processes
    # Whether results of tasks pass through a parent process. Encoded units then go from task to
    # task in part files.
    returns_through_parent: bool = False
    # Bytes of a shard that wait in memory until the store takes them; 0 if it takes them while they
    # are written
    held_nbytes: int = 0
    # Directory on a worker's own disk in which shards wait until the store takes them
    scratch: str | None = None
    # Whether tasks take source chunks from this process without a copy
    shares_memory: bool = True


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Memory of one worker process at most, in bytes above what it had when the run began."""

    source_nbytes: int  # source chunks of the tasks that are running
    border_nbytes: int  # source chunks that one task has used and another task still needs
    # Batches of all threads and, unless the layout is fused or staged, the blocks that they are
    # encoding
    encode_nbytes: int
    # Encoded blocks that wait for the rest of their shard. Further blocks are spooled to disk.
    waiting_nbytes: int
    # Ratio of encoded to decoded size above which a block is spooled to disk. It is 0 if every
    # block is spooled, and infinite if none is.
    spool_ratio: float
    held_nbytes: int = 0  # shards, or parts of large ones, that wait until the store takes them
    tasks_nbytes: int = 0  # tasks and their messages, threads, and what allocators keep

    @property
    def total_nbytes(self) -> int:
        """Sum of all parts, in bytes."""
        return sum(nbytes for nbytes, _ in self.parts)

    @property
    def parts(self) -> list[tuple[int, str]]:
        """Bytes of each part, and what they are for."""
        return [
            (self.source_nbytes, "source chunks"),
            (self.border_nbytes, "source chunks that a later task needs, too"),
            (self.encode_nbytes, "encoding"),
            (self.waiting_nbytes, "encoded data that wait for their shard"),
            (self.held_nbytes, "shards that wait until they are put"),
            (self.tasks_nbytes, "tasks, threads and allocators"),
        ]


def n_at_once(shard_nbytes: int) -> int:
    """Shards of a decoded size that a task puts at a time into a store that answers late.

    With 0 or 1, it puts each shard before it begins the next one.
    """
    return min(_N_AT_ONCE, _AT_ONCE_NBYTES // max(1, shard_nbytes))


def entries_nbytes(n_chunks: int, *, is_revised: bool = False) -> int:
    """Memory of a task for what is known of the inner chunks of a shard, in bytes.

    The first 8,192 inner chunks are not counted. They take 1 MiB at most.

    - `is_revised`: whether the shard exists, and only a part of it is written.
    """
    each_nbytes = _ENTRY_NBYTES + (_REVISED_NBYTES if is_revised else 0)
    return each_nbytes * max(0, n_chunks - _FEW_ENTRIES)


def _n_waiting(partition: Partition, n_threads: int, *, is_slow: bool) -> int:
    """Largest number of groups whose encoded blocks are in memory at the same time.

    One group is committed, and another one waits for its last blocks, while the other threads begin
    the blocks of the next ones. A store that answers late keeps all threads at their commits.
    """
    if is_slow:
        return min(partition.n_groups, n_threads + 1)
    per_group = max(1, partition.n_blocks // max(1, partition.n_groups))
    return min(partition.n_groups, 2 + ceil_div(max(0, n_threads - 2), per_group))


def overlap(edges: Edges, source_edges: Edges) -> tuple[int, int, int]:
    """Overlap of pieces and source chunks along an axis."""
    some, chunks, _ = condensed(edges, source_edges)
    own, source = some.positions, chunks.positions
    first, last = (
        np.searchsorted(source, own[:-1], "right") - 1,
        np.searchsorted(source, own[1:], "left"),
    )
    longest = int((source[last] - source[first]).max(initial=0))
    cuts = pieces_of_chunks(own, source)
    n_chunks = int((last - first).max(initial=0))
    return longest, max(1, int(cuts.max(initial=0))), max(1, n_chunks)


def pieces_of_chunks(
    edges: npt.NDArray[np.int64], source_edges: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Number of pieces that overlap each source chunk along an axis. Empty chunks are left out."""
    starts, stops = source_edges[:-1], source_edges[1:]
    holds = starts < stops
    n_before = np.searchsorted(edges, starts[holds], "right") - 1
    n_pieces: npt.NDArray[np.int64] = np.searchsorted(edges, stops[holds], "left") - n_before
    return n_pieces


def mean_pieces(edges: Edges, source_edges: Edges) -> float:
    """Number of pieces that overlap a source chunk along an axis, on average."""
    chunks, some, gaps = condensed(source_edges, edges)
    source = chunks.positions
    starts = source[:-1][source[:-1] < source[1:]]
    n_alike = np.ones(len(starts))
    for gap in gaps:
        n_alike[(starts >= gap.at) & (starts < gap.at + gap.period)] += gap.n_periods
    pieces = pieces_of_chunks(some.positions, source)
    return float(np.average(pieces, weights=n_alike)) if len(pieces) else math.nan


def _thickness(edges: Edges, source_edges: Edges) -> int:
    """Length of the longest source chunk that crosses an inner edge, in elements.

    Source chunks that consist of whole pieces are not counted.
    """
    some, chunks, _ = condensed(edges, source_edges)
    own, source = some.positions, chunks.positions
    inner = own[1:-1]
    first = np.searchsorted(source, inner, "right") - 1
    starts, stops = source[first], source[first + 1]
    is_across = (starts < inner) & ~(np.isin(starts, own) & np.isin(stops, own))
    return int((stops - starts)[is_across].max(initial=0))


@lru_cache(maxsize=16)
def _along(
    edges: Edges, source_edges: Edges, bounds: tuple[int, int] | None
) -> tuple[int, int, int, int, int]:
    """Results of `overlap` and `_thickness` for an axis, and the extent of the source.

    They are cached because an axis may have a million edges. What lies outside of the bounds of a
    region does not count: there is no source.
    """
    own, source = _inside(edges, bounds), _inside(source_edges, bounds)
    return (*overlap(own, source), _thickness(own, source), source.stop - source.start)


def _inside(edges: Edges, bounds: tuple[int, int] | None) -> Edges:
    return edges if bounds is None else edges.clipped(*bounds)


def _largest(edges: Sequence[Edges], box: Box | None) -> int:
    """Elements of the largest piece, as far as pieces lie in a box."""
    bounds = [None] * len(edges) if box is None else box.bounds
    return math.prod(
        _inside(along, pair).longest for along, pair in zip(edges, bounds, strict=True)
    )


def _border(
    partition: Partition, thickness: Sequence[int], source_shape: Sequence[int], wave: Shape
) -> int:
    """Elements of the source chunks that cross from the finished part of a wave into the rest.

    Each axis along which a wave has several blocks counts one layer of source chunks.
    """
    extent = [min(n + t, whole) for n, t, whole in zip(wave, thickness, source_shape, strict=True)]
    crossed = [
        axis
        for axis, (n, block) in enumerate(zip(wave, partition.largest_block, strict=True))
        if n > block
    ]
    return sum(thickness[axis] * math.prod(extent[:axis] + extent[axis + 1 :]) for axis in crossed)


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What an estimate assumes of a run."""

    wave: Shape  # largest extent of a wave along each axis, in elements
    is_staged: bool  # whether every encoded block goes to a part file
    compression_ratio: float  # ratio of decoded to encoded size; 1 is the worst case
    chunk_nbytes: int  # decoded size of an inner chunk, in bytes. A batch holds at least one.
    # Bytes of a shard that a task holds while it writes the shard; 0 if it streams
    shard_nbytes: int = 0
    region: Box | None = None  # elements that the source covers. All of the partition by default.
    touched: Box | None = None  # the same, rounded out to whole inner chunks
    held_nbytes: int = 0  # bytes of a shard that wait in memory until the store takes them
    n_chunks: int = 0  # inner chunks of a shard
    loaded_nbytes: int = 0  # bytes that a task of the source holds beside its result
    is_held: bool = False  # whether source chunks lie in memory anyway
    n_layers: int = 1  # tasks that make a source chunk


def _source_elements(
    partition: Partition,
    source_edges: Sequence[Edges],
    resources: Resources,
    wave: Shape,
    region: Box | None = None,
) -> tuple[int, int]:
    """Elements of source chunks: of the tasks that run, and of those that border on other tasks.

    A source chunk that several blocks need stays in memory until the last of these blocks is
    encoded. So these blocks run at the same time on one set of source chunks, and the next set is
    begun while they end. A source chunk that crosses the border of two blocks stays in memory from
    the first block to the second; dask chooses the order of the blocks.
    """
    bounds = [None] * len(source_edges) if region is None else region.bounds
    axes = [
        _along(*along) for along in zip(partition.block_edges, source_edges, bounds, strict=True)
    ]
    longest, cuts, n_chunks, thickness, shape = zip(*axes, strict=True) if axes else [()] * 5
    # a source chunk that only two blocks overlap is counted at their border
    is_shared = any(n > 2 for n in cuts)
    n_sharing = math.prod(cuts)
    n_tasks = min(resources.n_threads, max(1, partition.n_blocks))
    # Each thread may have loaded two chunks of the next set.
    n_begun = min(1.0, max(_BEGUN_SHARE, 2 * n_tasks / math.prod(n_chunks)))
    n_sets = n_tasks if not is_shared else ceil_div(n_tasks, n_sharing) + n_begun
    running = int(min(n_sets, max(1, partition.n_blocks)) * math.prod(longest))
    border = 0 if is_shared else _border(partition, thickness, shape, wave)
    return running, border


def data_memory(
    partition: Partition,
    source_edges: Sequence[Edges],
    itemsize: int,
    resources: Resources,
    assumed: Assumptions,
) -> MemoryEstimate:
    """Upper bound of the data in the memory of one process; plans are chosen by it.

    Source chunks of which a task needs only a part are counted whole.
    """
    region = assumed.region
    n_tasks = min(resources.n_threads, max(1, partition.n_blocks))
    running, border = _source_elements(partition, source_edges, resources, assumed.wave, region)
    block_nbytes = itemsize * _largest(partition.block_edges, assumed.touched)
    batches_nbytes = n_tasks * _batch_nbytes(block_nbytes, assumed)
    held_nbytes = n_tasks * assumed.held_nbytes
    source_nbytes = itemsize * running + n_tasks * assumed.loaded_nbytes
    border_nbytes = ceil_div(itemsize * border, resources.n_processes)
    if partition.is_fused or assumed.is_staged:
        spool_ratio = 0.0 if assumed.is_staged else math.inf
        return MemoryEstimate(
            source_nbytes=source_nbytes,
            border_nbytes=border_nbytes,
            encode_nbytes=batches_nbytes,
            waiting_nbytes=0,
            spool_ratio=spool_ratio,
            held_nbytes=held_nbytes,
        )
    is_slow = held_nbytes > 0
    n_waiting = _n_waiting(partition, resources.n_threads, is_slow=is_slow)
    waiting_nbytes = n_waiting * itemsize * _largest(partition.group_edges, assumed.touched)
    allowed = int(resources.memory_limit_nbytes * _RESULT_SHARE)
    if is_slow:  # part files may need a directory that all machines see
        others_nbytes = source_nbytes + border_nbytes + held_nbytes
        others_nbytes += batches_nbytes + n_tasks * block_nbytes
        allowed = max(allowed, resources.memory_limit_nbytes - others_nbytes)
    spool_ratio = allowed / max(1, waiting_nbytes)
    kept_share = min(1 / assumed.compression_ratio, spool_ratio)
    return MemoryEstimate(
        source_nbytes=source_nbytes,
        border_nbytes=border_nbytes,
        encode_nbytes=batches_nbytes + int(n_tasks * block_nbytes * kept_share),
        waiting_nbytes=int(waiting_nbytes * kept_share),
        spool_ratio=spool_ratio if spool_ratio < _LARGEST_RATIO else math.inf,
        held_nbytes=held_nbytes,
    )


def _batch_nbytes(block_nbytes: int, assumed: Assumptions) -> int:
    """Memory of one thread while it encodes a batch of inner chunks and places them in a shard."""
    chunk_nbytes = assumed.chunk_nbytes
    # inner chunks of a batch, and the same encoded; those at the edge of the array are padded
    nbytes = 2 * max(chunk_nbytes, min(BATCH_NBYTES, block_nbytes))
    if chunk_nbytes > BATCH_NBYTES:  # and once more, as each codec makes a copy
        nbytes += chunk_nbytes
    nbytes += assumed.shard_nbytes
    nbytes += entries_nbytes(assumed.n_chunks, is_revised=assumed.region is not None)
    if assumed.touched != assumed.region:  # an old inner chunk, and the same encoded
        nbytes += 2 * chunk_nbytes
    return nbytes


def expected_peak(
    bound: MemoryEstimate,
    partition: Partition,
    source_edges: Sequence[Edges],
    itemsize: int,
    resources: Resources,
    assumed: Assumptions,
) -> MemoryEstimate:
    """Peak memory of one process that a user can expect to measure.

    The order of tasks that share source chunks is simulated. Tasks, threads and allocators are
    counted, too.

    - `bound`: what `data_memory` gives for the same run.
    """
    bounds = [(0, n) for n in assumed.wave]
    if assumed.region is not None:
        bounds = [
            (max(a, c), min(b, d))
            for (a, b), (c, d) in zip(bounds, assumed.region.bounds, strict=True)
        ]
        if any(a >= b for a, b in bounds):  # the region lies behind the first wave
            bounds = list(assumed.region.bounds)
    chunks, groups, blocks = (
        [edges.clipped(*pair) for edges, pair in zip(axes, bounds, strict=True)]
        for axes in (source_edges, partition.group_edges, partition.block_edges)
    )
    if any(not edges.n_pieces for axes in (chunks, groups) for edges in axes):
        return bound
    n_threads = min(resources.n_threads, max(1, partition.n_blocks))
    loaded_nbytes = n_threads * assumed.loaded_nbytes
    nests = all(own.include(cut) for own, cut in zip(chunks, blocks, strict=True))
    if assumed.is_held and resources.shares_memory:
        source_nbytes = loaded_nbytes
    elif nests:
        source_nbytes = bound.source_nbytes
        if assumed.is_held:  # what comes to a worker is there twice while it is unpacked
            source_nbytes += n_threads * itemsize * math.prod(edges.longest for edges in chunks)
    else:
        # The order of dask is imported late: a run of chunks that nest in shards does without it.
        from shardwrite.plan.schedule import corner, peak_elements

        n_running = resources.n_threads * resources.n_processes
        part = corner(groups, blocks, chunks, n_running)
        played = peak_elements(part, n_running, is_staged=assumed.is_staged)
        whole = _source_elements(
            Partition(*map(tuple, (groups, blocks))), chunks, resources, assumed.wave
        )
        own = [
            [Edges.from_positions(axis) for axis in axes]
            for axes in (part.groups, part.blocks, part.chunks)
        ]
        small = _source_elements(
            Partition(tuple(own[0]), tuple(own[1])),
            own[2],
            resources,
            tuple(axis.stop - axis.start for axis in own[0]),
        )
        larger = max(1.0, sum(whole) / max(1, sum(small)))
        source_nbytes = int(itemsize * played * larger / resources.n_processes) + loaded_nbytes
        if resources.n_processes > 1:
            # What comes from another process is there as well until the task has ended.
            elements = math.prod(edges.longest for edges in blocks)
            if max(map(_most_inputs, blocks, chunks), default=1) > 1:
                source_nbytes = int(_UNEVEN * source_nbytes)
            source_nbytes += int(_FROM_OTHERS * n_threads * itemsize * elements)
            source_nbytes += int(_MORE_WORK * (source_nbytes + bound.waiting_nbytes))
    n_chunks = math.prod(edges.n_pieces for edges in chunks)
    n_inputs = math.prod(map(_n_overlaps, blocks, chunks))
    tasks_nbytes = _PROCESS_NBYTES + _THREAD_NBYTES * n_threads
    chunk_nbytes = itemsize * math.prod(edges.longest for edges in chunks)
    if source_nbytes and chunk_nbytes < _LARGE_NBYTES:  # freed ones stay for a while
        tasks_nbytes += n_threads * chunk_nbytes // 2 + int(_ALLOCATOR_SHARE * source_nbytes)
    if resources.shares_memory:
        n_made = 0 if assumed.is_held else n_chunks * assumed.n_layers
        tasks_nbytes += _SOURCE_TASK_NBYTES * n_made + _INPUT_NBYTES * n_inputs
    else:
        n_here = ceil_div(n_chunks * assumed.n_layers + n_inputs, resources.n_processes)
        tasks_nbytes += _WORKER_TASK_NBYTES * n_here
    encode_nbytes = bound.encode_nbytes
    if bound.waiting_nbytes:  # blocks that are encoded belong to shards that wait, but for one
        kept = min(1 / assumed.compression_ratio, bound.spool_ratio)
        block_nbytes = itemsize * _largest(partition.block_edges, assumed.touched)
        encode_nbytes -= int((n_threads - 1) * kept * block_nbytes)
    return replace(
        bound,
        source_nbytes=source_nbytes,
        border_nbytes=0,
        encode_nbytes=encode_nbytes,
        tasks_nbytes=tasks_nbytes,
    )


def _most_inputs(blocks: Edges, chunks: Edges) -> int:
    """Most source chunks that a block overlaps along an axis."""
    return overlap(blocks, chunks)[2]


def _n_overlaps(blocks: Edges, chunks: Edges) -> int:
    """Overlaps of blocks and source chunks along an axis."""
    if chunks.include(blocks):
        return chunks.n_pieces
    if blocks.include(chunks):
        return blocks.n_pieces
    return blocks.n_pieces + chunks.n_pieces - 1

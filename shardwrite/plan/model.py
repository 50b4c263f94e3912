"""The plan of a run: how an array will be written, known before anything runs."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from shardwrite._dataclass import dataclass
from shardwrite.errors import PlanError
from shardwrite.format.frame import framing_of
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.strategies import Strategy
from shardwrite.grid import Box, Shape, ceil_div, ravel
from shardwrite.options import PlanKeywords
from shardwrite.plan.edges import Edges
from shardwrite.plan.estimate import (
    BATCH_NBYTES,
    HELD_NBYTES,
    Assumptions,
    MemoryEstimate,
    Resources,
    data_memory,
    entries_nbytes,
    expected_peak,
    mean_pieces,
    n_at_once,
    overlap,
)
from shardwrite.plan.identity import Identity
from shardwrite.plan.partition import Partition, check_memory
from shardwrite.seams import Ref

if TYPE_CHECKING:
    from shardwrite.plan.estimate import Traffic
    from shardwrite.plan.regions import ShardRef


# ---- Waves: boxes of groups that are small enough for one task graph


_FIRST_SHARE = 10  # the first of several waves has a tenth of the thickness of the others


@dataclass(frozen=True, slots=True)
class Wave:
    """Box of groups that is one task graph."""

    groups: Box  # the box in the grid of groups
    box: Box  # the box in elements, in the coordinates of the partition
    counts: Shape  # shape of the grid of groups

    def ranks(self) -> Iterator[int]:
        """Iterate over the row-major ranks of the wave's groups."""
        axes = (range(a, b) for a, b in self.groups.bounds)
        return (ravel(index, self.counts) for index in itertools.product(*axes))


def cut_waves(
    partition: Partition, n_tasks: int, max_tasks: int, *, n_thin: int, thickness: int = 1
) -> tuple[Wave, ...]:
    """Cut the groups into boxes of at most about `max_tasks` tasks.

    The first axis is cut first. If there are several waves and `n_thin` is 0, the first wave is
    smaller than the others.

    - `n_thin`: number of leading axes along which a wave is one group thick. Fewer source chunks
      and units then wait between groups.
    - `thickness`: groups of such a wave along the first axis, at most.
    """
    counts = partition.group_counts
    n_left = ceil_div(max(1, n_tasks), max(1, max_tasks))
    steps = []
    for n in counts:
        pieces = min(n, n_left) or 1
        steps.append(max(1, ceil_div(n, pieces)))
        n_left = ceil_div(n_left, pieces)
    most = [thickness, *[1] * n_thin][:n_thin]
    steps[:n_thin] = map(min, steps, most)
    boxes = [
        Box(
            corner,
            tuple(min(a + step, n) for a, step, n in zip(corner, steps, counts, strict=True)),
        )
        for corner in itertools.product(
            *(range(0, n, step) for n, step in zip(counts, steps, strict=True))
        )
    ]
    axis = next(
        (a for a, (step, n) in enumerate(zip(steps, counts, strict=True)) if step < n), None
    )
    if axis is not None and not n_thin:
        boxes[:1] = _begin_small(boxes[0], axis)
    edges = partition.group_edges
    return tuple(
        Wave(
            groups,
            Box(
                *(
                    tuple(e[i] for e, i in zip(edges, at, strict=True))
                    for at in (groups.start, groups.stop)
                )
            ),
            counts,
        )
        for groups in boxes
    )


def wave_thickness(groups: Edges, source: Edges, most_reruns: float) -> int:
    """Groups along an axis that a wave needs, so that few source chunks lie in several waves.

    - `groups`: edges of groups of equal length; the last may be shorter.
    """
    n_groups = groups.n_pieces
    # Waves that are as thick as several whole source chunks may share none.
    spanned = overlap(groups, source)[1]
    doubled = [2**n for n in range(max(1, n_groups).bit_length())]
    for n in sorted({m * k for m in doubled for k in (1, spanned) if m * k < n_groups}):
        if mean_pieces(Edges.regular(groups.stop, n * groups.longest), source) <= most_reruns:
            return int(n)
    return max(1, n_groups)


def _begin_small(groups: Box, axis: int) -> list[Box]:
    """Split the first wave in two.

    Nothing is committed before the scheduler has received a whole graph, so a small first graph
    commits its first shards earlier. The cut lies along an axis along which waves are cut in any
    case, so that no further axis has source chunks that are needed twice.
    """
    cut = groups.stop[axis] // _FIRST_SHARE
    if not cut:
        return [groups]
    start, stop = groups.start, groups.stop
    return [
        Box(start, (*stop[:axis], cut, *stop[axis + 1 :])),
        Box((*start[:axis], cut, *start[axis + 1 :]), stop),
    ]


# ---- The plan


@dataclass(frozen=True)
class SourceLayout:
    """Chunks, tasks and identity of a source."""

    chunks: tuple[tuple[int, ...], ...]  # chunk sizes for each axis, in elements, as in dask
    n_tasks: int  # number of tasks of the source's graph
    # Name of the source's data. A run can be resumed only with a source of equal identity.
    identity: str
    is_stable: bool = False  # whether the user guarantees that equal identities mean equal data
    # Bytes that a task of the source holds beside its result, as far as they are known
    loaded_nbytes: int = 0
    is_encoded: bool = False  # whether inner chunks are copied as they are stored in another array
    ref: Ref | None = None  # where any process can open it; None if only this one has it
    is_held: bool = False  # whether its chunks lie in the memory of this process anyway

    @property
    def n_chunks(self) -> int:
        """Number of source chunks."""
        return math.prod(len(sizes) for sizes in self.chunks)

    @cached_property
    def edges(self) -> tuple[Edges, ...]:
        """Edges of the chunks along each axis."""
        return tuple(Edges.from_sizes(sizes) for sizes in self.chunks)


@dataclass(frozen=True, kw_only=True)
class PlanFacts:
    """Facts of a plan, and the numbers that follow from them, without any presentation.

    The fields are described in :class:`shardwrite.Plan`.
    """

    metadata: ArrayMetadata
    strategy: Strategy
    source: SourceLayout
    partition: Partition
    resources: Resources
    is_staged: bool = False
    write_empty_chunks: bool = False
    max_graph_tasks: int = PlanKeywords.max_graph_tasks
    max_source_reruns: float = PlanKeywords.max_source_reruns
    source_reruns: float = 1.0
    compression_ratio: float | None = None
    notes: tuple[str, ...] = field(default=())
    region: Box | None = None
    append_axis: int | None = None
    staged_with: str | None = None
    traffic: Traffic | None = None

    @property
    def first_shard(self) -> Shape:
        """Position of the plan's first shard in the shard grid of the array."""
        return self.metadata.first_shard

    @property
    def origin(self) -> Shape:
        """First element of the plan's first shard, in the array's coordinates."""
        return tuple(
            i * s for i, s in zip(self.first_shard, self.metadata.grid.shards, strict=True)
        )

    @property
    def array_region(self) -> Box | None:
        """The region in the array's coordinates, or None if the plan writes a whole array."""
        return None if self.region is None else self.region.shift(tuple(-o for o in self.origin))

    @property
    def n_shards(self) -> int:
        """Number of shards that the source touches.

        Each becomes a file, except shards without a stored inner chunk.
        """
        return self.metadata.grid.n_shards

    @property
    def n_inner_chunks(self) -> int:
        """Number of inner chunks that overlap the array, or the window of an update."""
        return self.metadata.grid.n_inner_chunks

    @property
    def raw_nbytes(self) -> int:
        """Decoded size of the data that the source provides, in bytes."""
        return (
            self.metadata.raw_nbytes
            if self.region is None
            else self.region.size * self.metadata.itemsize
        )

    @property
    def kept_nbytes(self) -> int:
        """Decoded size of the values that are kept until all shards are written, in bytes."""
        return 0 if self.staged_with is None else self.raw_nbytes

    @property
    def layout(self) -> str:
        """Scheme of the tasks.

        It is ``fused`` if a task encodes and commits, ``direct`` if units are passed from encode
        tasks to commit tasks, and ``staged`` if units go through part files.
        """
        return "fused" if self.partition.is_fused else "staged" if self.is_staged else "direct"

    @property
    def n_units(self) -> int:
        """Number of units.

        A unit is a box of whole inner chunks in one shard, encoded by one task.
        """
        return (
            self.n_shards
            if self.partition.is_fused
            else max(self.partition.n_blocks, self.n_shards)
        )

    @property
    def n_tasks(self) -> int:
        """Number of tasks of all graphs together, including those of the source."""
        own = self.partition.n_groups + (0 if self.partition.is_fused else self.partition.n_blocks)
        return self.source.n_tasks + own

    @cached_property
    def memory(self) -> MemoryEstimate:
        """Worst-case memory of a worker process, in which no data can be compressed."""
        return self._expected_peak(1.0, self.bound)

    @cached_property
    def bound(self) -> MemoryEstimate:
        """Upper bound of the data in memory, by which waves and cuts are chosen."""
        return self._data_memory(1.0, self.waves)

    @cached_property
    def least_memory(self) -> MemoryEstimate:
        """Worst-case memory without source chunks at borders: a lower bound for all waves."""
        return data_memory(*self._assumed(1.0, self.partition.largest_block))

    @cached_property
    def expected_memory(self) -> MemoryEstimate:
        """Memory of a worker process at the given `compression_ratio`, or at 1 if it is None."""
        ratio = self.compression_ratio or 1.0
        return self._expected_peak(ratio, self._data_memory(ratio, self.waves))

    def _data_memory(self, ratio: float, waves: Sequence[Wave]) -> MemoryEstimate:
        return data_memory(*self._assumed(ratio, self._extent(waves)))

    def _expected_peak(self, ratio: float, bound: MemoryEstimate) -> MemoryEstimate:
        return expected_peak(bound, *self._assumed(ratio, self._extent(self.waves)))

    def _extent(self, waves: Sequence[Wave]) -> Shape:
        """Largest extent of waves along each axis, in elements."""
        shapes = [wave.box.shape for wave in waves]
        return tuple(map(max, zip(*shapes, strict=True))) if shapes else self.metadata.grid.shape

    def _assumed(
        self, ratio: float, wave: Shape
    ) -> tuple[Partition, Sequence[Edges], int, Resources, Assumptions]:
        """What estimates are made of."""
        chunk_nbytes, source = self.metadata.chunk_nbytes, self.source
        return (
            self.partition,
            source.edges,
            self.metadata.itemsize,
            self.resources,
            Assumptions(
                wave,
                self.is_staged,
                ratio,
                chunk_nbytes,
                self._shard_nbytes(ratio),
                self.region,
                self._touched,
                self._held_nbytes(ratio),
                self.metadata.grid.n_chunks_per_shard,
                source.loaded_nbytes,
                source.is_held,
                max(1, ceil_div(source.n_tasks, max(1, source.n_chunks))),
            ),
        )

    @cached_property
    def _touched(self) -> Box | None:
        """Elements of the inner chunks that the region of an update touches."""
        return None if self.region is None else self.metadata.grid.rounded_out(self.region)

    @property
    def _streams(self) -> bool:
        """Whether a task writes whole shards, and each while it is encoded."""
        if self.region is None:
            return self.strategy.streams(None)
        return self.region == self.metadata.grid.whole and self.strategy.streams(
            self.metadata.pipeline.encoded_nbytes
        )

    def _shard_nbytes(self, ratio: float) -> int:
        """Bytes of a shard that a task holds.

        A fused task that does not stream holds the encoded inner chunks up to a limit, above which
        they go to a file. All tasks hold what a frame has around the inner chunks, or the indexes
        of a shard of a volume.
        """
        framing = framing_of(self.strategy)
        around = self._sealing_nbytes if framing is None else framing.around_nbytes(self.metadata)
        if not self.partition.is_fused or self._streams:
            return around
        written = self.metadata.grid.whole if self._touched is None else self._touched
        n_elements = math.prod(map(min, self.metadata.grid.shards, written.shape))
        return around + int(min(n_elements * self.metadata.itemsize / ratio, HELD_NBYTES))

    @property
    def _sealing_nbytes(self) -> int:
        """Bytes of indexes of a volume that a task holds: of one shard, or of many small ones."""
        each, grid = self.metadata.sealing_nbytes, self.metadata.grid
        shard_nbytes = self.metadata.shard_nbytes + each
        groups = zip(self.partition.largest_group, grid.shards, strict=True)
        per_group = math.prod(ceil_div(n, k) for n, k in groups)
        return each * max(1, min(per_group, BATCH_NBYTES // max(1, shard_nbytes)))

    def _held_nbytes(self, ratio: float) -> int:
        """Bytes of a shard that wait in memory until the store takes them."""
        held = self.resources.held_nbytes
        return held and min(held, int(self.metadata.most_nbytes / ratio))

    @property
    def scratch_nbytes(self) -> int:
        """Bytes that a worker process keeps on its own disk until the store takes them, at most.

        A `compression_ratio` that is given counts.
        """
        if self.resources.scratch is None:
            return 0
        together = n_at_once(self.metadata.shard_nbytes + self.metadata.sealing_nbytes)
        n_files = min(self.resources.n_threads, max(1, self.partition.n_groups))
        n_files *= 1 + together if together > 1 else 1
        nbytes = n_files * self.metadata.most_nbytes / (self.compression_ratio or 1.0)
        return math.ceil(nbytes)

    @property
    def staged_nbytes(self) -> int:
        """Bytes of encoded blocks that lie in part files at a time, at most; 0 if it is not staged.

        A `compression_ratio` that is given counts.
        """
        if not self.is_staged:
            return 0
        largest = max((wave.box.size for wave in self.waves), default=0)
        return math.ceil(largest * self.metadata.itemsize / (self.compression_ratio or 1.0))

    @property
    def held_nbytes(self) -> int:
        """Bytes of a shard that a task holds while it writes the shard, at worst."""
        return self._shard_nbytes(1.0)

    @property
    def memory_per_thread_nbytes(self) -> int:
        """Worst-case memory of a worker process divided by its threads, in bytes."""
        return ceil_div(self.memory.total_nbytes, self.resources.n_threads)

    @cached_property
    def waves(self) -> tuple[Wave, ...]:
        """Boxes of groups, each with a task graph of its own.

        They are small enough for the scheduler. If waves of full thickness do not fit into the
        memory and thinner waves do, the thinner ones are used.
        """
        # Staged waves are thin along the first axis, which bounds the part files on disk. Source
        # chunks that are longer than a group would then lie in several waves, so these are thicker.
        fewest, thickness = int(self.is_staged), 1
        if self.is_staged and self.metadata.grid.ndim:
            thickness = wave_thickness(
                self.partition.group_edges[0], self.source.edges[0], self.max_source_reruns
            )
        thinner = range(fewest + int(thickness == 1), max(fewest, self.metadata.grid.ndim) + 1)
        cut = partial(cut_waves, self.partition, self.n_tasks, self.max_graph_tasks)
        first = cut(n_thin=fewest, thickness=thickness)
        choices = (cut(n_thin=n) for n in thinner)
        allowed = self.resources.memory_limit_nbytes
        if self.least_memory.total_nbytes > allowed:
            return first
        fitting = (
            waves
            for waves in itertools.chain([first], choices)
            if self._data_memory(1.0, waves).total_nbytes <= allowed
        )
        return next(fitting, first)

    def shards_for(self, region: Any) -> list[ShardRef]:
        """List the shards that a region touches.

        Parameters
        ----------
        region : tuple of slice or int, slice, int, Ellipsis or Box
            Region in the array's coordinates, with steps of 1.

        Returns
        -------
        list of ShardRef
            Shards of this plan that the region touches, in row-major order.

        Raises
        ------
        SpecError
            If the region is not a box of the array.
        """
        from shardwrite.plan.regions import ShardRef, as_box  # for people who look at a plan

        grid, origin = self.metadata.grid, self.origin
        box = (
            region
            if isinstance(region, Box)
            else as_box(region, tuple(self.metadata.document["shape"]))
        ).shift(origin)
        refs = []
        for index in grid.shards_in(box.intersect(grid.whole)):
            inside = grid.shard_box(index).intersect(grid.whole)
            place = tuple(i + f for i, f in zip(index, self.first_shard, strict=True))
            in_array = inside.shift(tuple(-o for o in origin))
            refs.append(
                ShardRef(place, self.metadata.shard_key(index), in_array, box.contains(inside))
            )
        return refs

    @cached_property
    def shared_shards(self) -> list[ShardRef]:
        """Shards that the source covers only in part.

        An update of the rest of such a shard must wait until this run has ended.
        """
        region = self.array_region
        return (
            [] if region is None else [ref for ref in self.shards_for(region) if not ref.is_whole]
        )

    @cached_property
    def digest(self) -> str:
        """Hash that names the run.

        It is equal for plans that write the same bytes from the same source.
        """
        text = json.dumps(self.identity.to_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def identity(self) -> Identity:
        """What the plan writes."""
        blocks = self.partition.block_edges if self.strategy.depends_on_cut else ()
        region = self.array_region
        document, window = self.metadata.document, None
        if region is not None and self.metadata.window is not None:
            # The array may grow elsewhere in the meantime.
            document = {name: value for name, value in document.items() if name != "shape"}
            window = self.metadata.window
        return Identity(
            metadata=document,
            window=window,
            strategy=self.strategy.label,
            units=tuple(tuple(edges) for edges in blocks) or None,
            write_empty_chunks=bool(self.write_empty_chunks),
            source=self.source.identity,
            region=None if region is None else region.bounds,
            append_axis=None if region is None else self.append_axis,
            staged=self.staged_with,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the facts of the plan, without the digest, as values that JSON can hold."""
        return {
            "format": 1,
            "identity": self.identity.to_dict(),
            "shards": self.n_shards,
            "inner_chunks": self.n_inner_chunks,
            "units": self.n_units,
            "tasks": self.n_tasks,
            "waves": len(self.waves),
            "groups": list(self.partition.group_counts),
            "layout": self.layout,
            "raw_nbytes": self.raw_nbytes,
            "index_nbytes_per_shard": self.metadata.index_codec.encoded_nbytes,
            "overhang_fraction": self.metadata.grid.overhang_fraction,
            "source_chunks": self.source.n_chunks,
            "source_reruns": self.source_reruns,
            "memory_nbytes": self.memory.total_nbytes,
            "expected_memory_nbytes": self.expected_memory.total_nbytes,
            "memory_per_thread_nbytes": self.memory_per_thread_nbytes,
            "memory_limit_nbytes": self.resources.memory_limit_nbytes,
            "threads_per_process": self.resources.n_threads,
            **({"scratch_nbytes": self.scratch_nbytes} if self.resources.scratch else {}),
            **({"staged_nbytes": self.staged_nbytes} if self.is_staged else {}),
            **({"kept_nbytes": self.kept_nbytes} if self.staged_with else {}),
            "notes": list(self.notes),
            **({} if self.traffic is None else {"traffic": self.traffic.to_dict()}),
        }

    def to_json(self, indent: int | None = 2) -> str:
        """Return the facts of :meth:`to_dict` and the digest as JSON text."""
        return json.dumps({**self.to_dict(), "digest": self.digest}, indent=indent)

    @property
    def fits(self) -> bool:
        """Whether the plan fits into the memory of a worker process."""
        allowed = self.resources.memory_limit_nbytes
        return self.least_memory.total_nbytes <= allowed and self.bound.total_nbytes <= allowed

    def check_fits(self) -> None:
        """Refuse the plan if it needs more memory than a worker process may use.

        Raises
        ------
        PlanError
            If it does. The error holds the bytes needed and allowed, and names the argument that
            would help.
        """
        check_memory(self.metadata.grid, self.metadata.itemsize, self.resources.memory_limit_nbytes)
        if self.fits:
            return
        needed, allowed = self.bound.total_nbytes, self.resources.memory_limit_nbytes
        if self.bound.source_nbytes + self.bound.border_nbytes > allowed / 2:
            remedy = (
                "make the source's chunks smaller, or make the inner chunks thinner along the axis "
                "in which the source comes in slabs"
            )
        elif entries_nbytes(self.metadata.grid.n_chunks_per_shard) > allowed / 4:
            remedy = "use larger inner chunks, so that a shard has fewer"
        else:
            remedy = "use smaller shards"
        n_threads = self.resources.n_threads
        if n_threads > 1:
            remedy = f"use fewer threads per process, or {remedy}"
        threads = "1 thread" if n_threads == 1 else f"{n_threads} threads"
        shares = [f"{nbytes:,} for {what}" for nbytes, what in self.bound.parts if nbytes]
        listed = " and ".join(filter(None, [", ".join(shares[:-1]), shares[-1]]))
        raise PlanError(
            f"a worker process of {threads} needs {needed:,} bytes and may use {allowed:,}; "
            f"it needs {listed}",
            needed_nbytes=needed,
            allowed_nbytes=allowed,
            remedy=f"{remedy}, or raise memory_limit",
        )

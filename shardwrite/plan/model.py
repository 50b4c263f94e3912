"""The plan: everything that is known before anything runs."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.errors import PlanError, SpecError
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.strategies import AppendOnly, Strategy
from shardwrite.grid import Box, Shape, ceil_div
from shardwrite.plan.estimate import MemoryEstimate, Resources, estimate_memory
from shardwrite.plan.limits import check_memory
from shardwrite.plan.partition import Partition
from shardwrite.plan.regions import ShardRef, as_box
from shardwrite.plan.render import plan_html, plan_text
from shardwrite.plan.waves import Wave, cut_waves

__all__ = ["Part", "Plan", "ShardRef", "SourceLayout"]

MAX_GRAPH_TASKS = 100_000
MAX_SOURCE_RERUNS = 1.25


@dataclass(frozen=True, slots=True)
class SourceLayout:
    """What a plan knows of its source.

    Parameters
    ----------
    chunks : tuple of tuple of int
        Chunk sizes for each axis, as dask gives them.
    n_tasks : int
        Tasks of the source's graph.
    identity : str
        What must be equal for another run to be the same run.
    is_stable : bool
        Whether the user vouches that equal identities mean equal data.
    """

    chunks: tuple[tuple[int, ...], ...]
    n_tasks: int
    identity: str
    is_stable: bool = False

    @property
    def n_chunks(self) -> int:
        """Number of source chunks."""
        return math.prod(len(sizes) for sizes in self.chunks)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How an array will be written. Make one with :func:`shardwrite.plan`.

    Attributes
    ----------
    metadata : ArrayMetadata
        The array to be.
    strategy : FixedOrder or AppendOnly
        The write strategy.
    source : SourceLayout
        Where the data comes from.
    partition : Partition
        The cut into tasks.
    resources : Resources
        What a worker process offers.
    is_staged : bool
        Whether every unit is encoded into a part file first, and shards are committed from these.
    write_empty_chunks : bool
        Whether inner chunks of the fill value only are stored.
    max_graph_tasks : int
        Tasks that the scheduler may hold at a time.
    source_reruns : float
        How often a source task runs, on average; 1 unless waves share source tasks.
    notes : tuple of str
        Choices that were left to the planner, explained.
    region : Box, optional
        What the source covers, where it is a part of an array that exists. `metadata` is then that of the part of the array whose
        shards the region touches, and the region lies in that part's coordinates.
    """

    metadata: ArrayMetadata
    strategy: Strategy
    source: SourceLayout
    partition: Partition
    resources: Resources
    is_staged: bool = False
    write_empty_chunks: bool = False
    max_graph_tasks: int = MAX_GRAPH_TASKS
    source_reruns: float = 1.0
    compression_ratio: float | None = None
    notes: tuple[str, ...] = field(default=())
    region: Box | None = None
    append_axis: int | None = None

    @property
    def first_shard(self) -> Shape:
        """Position, in the array's shard grid, of the first shard of this plan's."""
        return self.metadata.window[0] if self.metadata.window else (0,) * self.metadata.grid.ndim

    @property
    def origin(self) -> Shape:
        """First element of that shard, in the array's coordinates."""
        return tuple(
            i * s for i, s in zip(self.first_shard, self.metadata.grid.shards, strict=True)
        )

    @property
    def array_region(self) -> Box | None:
        """The region in the array's coordinates."""
        return None if self.region is None else self.region.shift(tuple(-o for o in self.origin))

    @property
    def n_shards(self) -> int:
        """Shards that the source touches; as many files, less those that are all fill value."""
        return self.metadata.grid.n_shards

    @property
    def n_inner_chunks(self) -> int:
        """Inner chunks that overlap the array."""
        return self.metadata.grid.n_inner_chunks

    @property
    def raw_nbytes(self) -> int:
        """Decoded bytes of what is written."""
        return (
            self.metadata.raw_nbytes
            if self.region is None
            else self.region.size * self.metadata.itemsize
        )

    @property
    def layout(self) -> str:
        """``fused`` (a task encodes and commits), ``direct`` (units, then commits) or ``staged`` (units by way of part files)."""
        return "fused" if self.partition.is_fused else "staged" if self.is_staged else "direct"

    @property
    def n_units(self) -> int:
        """Units: boxes of whole inner chunks in one shard, encoded by one task."""
        return (
            self.n_shards
            if self.partition.is_fused
            else max(self.partition.n_blocks, self.n_shards)
        )

    @property
    def n_tasks(self) -> int:
        """Tasks of all graphs together, the source's included."""
        own = self.partition.n_groups + (0 if self.partition.is_fused else self.partition.n_blocks)
        return self.source.n_tasks + own

    @cached_property
    def memory(self) -> MemoryEstimate:
        """Worst-case memory of a worker process: nothing compresses."""
        return self._memory(1.0, self.waves)

    @cached_property
    def least_memory(self) -> MemoryEstimate:
        """The same without the source chunks at borders, that is for any waves."""
        return self._estimate(1.0, self.partition.largest_block)

    @cached_property
    def expected_memory(self) -> MemoryEstimate:
        """Memory of a worker process at the given `compression_ratio`."""
        return self._memory(self.compression_ratio or 1.0, self.waves)

    def _memory(self, ratio: float, waves: Sequence[Wave]) -> MemoryEstimate:
        shapes = [wave.box.shape for wave in waves]
        return self._estimate(
            ratio,
            tuple(map(max, zip(*shapes, strict=True))) if shapes else self.metadata.grid.shape,
        )

    def _estimate(self, ratio: float, wave: Shape) -> MemoryEstimate:
        return estimate_memory(
            self.partition,
            self.source.chunks,
            self.metadata.itemsize,
            self.resources,
            wave=wave,
            staged=self.is_staged,
            compression_ratio=ratio,
        )

    @property
    def memory_per_thread_nbytes(self) -> int:
        """Worst-case memory of a worker process over its threads."""
        return ceil_div(self.memory.total_nbytes, self.resources.n_threads)

    @cached_property
    def waves(self) -> tuple[Wave, ...]:
        """Sets of groups, each a graph of its own: small enough for the scheduler, and for the memory where thinner ones help."""
        fewest = int(
            self.is_staged
        )  # so that no more part files lie about than one row of groups makes
        choices = (
            cut_waves(self.partition, self.n_tasks, self.max_graph_tasks, n_thin=n)
            for n in range(fewest, max(fewest, self.metadata.grid.ndim) + 1)
        )
        first = next(choices)
        allowed = self.resources.memory_limit_nbytes
        if self.least_memory.total_nbytes > allowed:
            return first
        fitting = (
            waves
            for waves in itertools.chain([first], choices)
            if self._memory(1.0, waves).total_nbytes <= allowed
        )
        return next(fitting, first)

    def shards_for(self, region: Any) -> list[ShardRef]:
        """The shards that a region touches.

        Parameters
        ----------
        region : tuple of slice or int, slice, int, Ellipsis or Box
            In array coordinates, steps of 1.

        Returns
        -------
        list of ShardRef
            Row-major.

        Raises
        ------
        SpecError
            If the region is none.
        """
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
            at = inside.shift(tuple(-o for o in origin))
            refs.append(ShardRef(place, self.metadata.shard_key(index), at, box.contains(inside)))
        return refs

    @cached_property
    def shared_shards(self) -> list[ShardRef]:
        """Shards that the source covers only in part: whoever writes the other part must wait for this one."""
        region = self.array_region
        return (
            [] if region is None else [ref for ref in self.shards_for(region) if not ref.is_whole]
        )

    def part(self, index: int, count: int) -> Part:
        """Part `index` of `count`: whole groups, balanced by bytes, a pure function of the plan and the two numbers.

        Raises
        ------
        SpecError
            Unless ``0 <= index < count``.
        """
        if isinstance(index, bool) or isinstance(count, bool) or not 0 <= index < count:
            raise SpecError(
                "no such part",
                field="part",
                value=(index, count),
                remedy="give index i of count n with 0 <= i < n",
            )
        first, last = self._part_edges(count)[index : index + 2]
        return Part(self, index, count, range(first, last))

    def _part_edges(self, count: int) -> list[int]:
        """First group of each part, and the end of the last."""
        sizes = np.ones((), dtype=np.float64)
        for edges in self.partition.group_edges:
            sizes = np.multiply.outer(sizes, np.diff(np.asarray(edges, dtype=np.float64)))
        ends = np.cumsum(sizes.ravel())
        total = ends[-1] if len(ends) else 0.0
        # a group belongs to the part in which its middle falls
        middles = ends - sizes.ravel() / 2
        found = np.searchsorted(middles, total * np.arange(count, dtype=np.float64) / count)
        return [*(int(first) for first in found), len(ends)]

    def parts_with(self, n_left: npt.NDArray[np.int64], count: int) -> list[int]:
        """Which of `count` parts have something left, where `n_left` says so of each group."""
        edges = self._part_edges(count)
        return [
            k
            for k, (first, last) in enumerate(itertools.pairwise(edges))
            if n_left[first:last].any()
        ]

    @cached_property
    def digest(self) -> str:
        """Names the run: equal for plans that write the same bytes from the same source."""
        facts = self.to_dict()["identity"]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Everything worth keeping, as JSON can hold it."""
        units = self.partition.block_edges if isinstance(self.strategy, AppendOnly) else None
        return {
            "format": 1,
            "identity": {
                "metadata": self._metadata_identity(),
                "strategy": self.strategy.label,
                "units": [list(edges) for edges in units] if units else None,
                "write_empty_chunks": self.write_empty_chunks,
                "source": self.source.identity,
                **self._of_region(),
            },
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
            "notes": list(self.notes),
        }

    def _metadata_identity(self) -> dict[str, Any]:
        """The array's metadata; of an update without the shape, which may grow elsewhere meanwhile, but with that of its part."""
        document, window = self.metadata.document, self.metadata.window
        if self.region is None or window is None:
            return document
        return {
            **{field: value for field, value in document.items() if field != "shape"},
            "window": [list(part) for part in window],
        }

    def _of_region(self) -> dict[str, Any]:
        """Where an update goes; nothing for a whole array."""
        region = self.array_region
        if region is None:
            return {}
        append = {} if self.append_axis is None else {"append_axis": self.append_axis}
        return {"region": [list(pair) for pair in region.bounds], **append}

    def to_json(self, indent: int | None = 2) -> str:
        """:meth:`to_dict` and the digest, as JSON."""
        return json.dumps({**self.to_dict(), "digest": self.digest}, indent=indent)

    def __str__(self) -> str:
        return plan_text(self)

    def _repr_html_(self) -> str:
        return plan_html(self)

    @property
    def fits(self) -> bool:
        """Whether a worker process has the memory for it."""
        allowed = self.resources.memory_limit_nbytes
        return self.least_memory.total_nbytes <= allowed and self.memory.total_nbytes <= allowed

    def check_fits(self) -> None:
        """Refuse a plan over its limits.

        Raises
        ------
        PlanError
            With the bytes needed and allowed, and the knob to turn.
        """
        check_memory(self.metadata.grid, self.metadata.itemsize, self.resources.memory_limit_nbytes)
        if self.fits:
            return
        needed, allowed = self.memory.total_nbytes, self.resources.memory_limit_nbytes
        if self.memory.source_nbytes + self.memory.border_nbytes > allowed / 2:
            knob = "make the source's chunks smaller, or the inner chunks thinner along the axis in which the source comes in slabs"
            if self.resources.n_threads > 1:
                knob = f"use fewer threads per process, or {knob}"
        else:
            knob = "use fewer threads per process, or smaller shards"
        raise PlanError(
            f"a worker process of {self.resources.n_threads} threads needs {needed:,} bytes ({self.memory.source_nbytes:,} for the "
            f"source's chunks, {self.memory.border_nbytes:,} for those that wait for a second task, "
            f"{self.memory.encode_nbytes:,} for units that are encoded, {self.memory.waiting_nbytes:,} for units that wait for "
            f"their shard), and may use {allowed:,}",
            needed_nbytes=needed,
            allowed_nbytes=allowed,
            knob=f"{knob}, or raise memory_limit",
        )


@dataclass(frozen=True, slots=True)
class Part:
    """Some of a plan's groups: what one rank writes.

    Attributes
    ----------
    plan : Plan
        The whole.
    index, count : int
        This is part `index` of `count`.
    groups : range
        Row-major ranks of its groups.
    """

    plan: Plan
    index: int
    count: int
    groups: range

    @property
    def raw_nbytes(self) -> int:
        """Decoded bytes of this part."""
        return sum(box.size for box in self.boxes()) * self.plan.metadata.itemsize

    def boxes(self) -> Iterator[Box]:
        """Its groups."""
        return (self.plan.partition.group_box(rank) for rank in self.groups)

    @property
    def shards(self) -> list[ShardRef]:
        """Its shards."""
        return [
            ref
            for box in self.boxes()
            for ref in self.plan.shards_for(box.shift(tuple(-o for o in self.plan.origin)))
        ]

    def __str__(self) -> str:
        of = self.plan.partition.n_groups
        return f"part {self.index} of {self.count}: {len(self.groups)} groups of {of}, {self.raw_nbytes:,} bytes"

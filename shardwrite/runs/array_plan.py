"""Plans for new arrays, made from a dask array and checked keywords.

Nothing is read or written here.

Values of a dask array are a source of chunks. If tasks do not share this process's memory, a task
of its own cuts each chunk that reaches beyond a task's box. So only the elements that are needed
are sent. Otherwise each task cuts its chunks itself, because that copies nothing.
Thin slabs are made and cut a few at a time.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import operator
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from dask.base import tokenize
from dask.blockwise import Blockwise
from dask.core import istask
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import DataNode, GraphNode, List, Task, TaskRef

import shardwrite._dask as dask
from shardwrite.config.table import (
    ADVICE,
    COMPRESSORS,
    INNER_CHUNKS,
    SHARDS,
    Setting,
    refused,
    value_of,
)
from shardwrite.engines.local import Engine
from shardwrite.errors import PlanError, SpecError, redacted
from shardwrite.format.document import ArrayOptions, make_metadata
from shardwrite.format.frame import framing_of
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.strategies import Strategy
from shardwrite.grid import Box, Shape, ShardGrid
from shardwrite.plan.edges import Edges
from shardwrite.plan.estimate import Resources
from shardwrite.plan.model import SourceLayout
from shardwrite.plan.options import PlanOptions, flaws_of, resolve_shapes
from shardwrite.plan.partition import Partition, check_new
from shardwrite.plan.plan import Plan, Update, make_plan
from shardwrite.results import counted
from shardwrite.runs.source_array import ref_of
from shardwrite.stores.base import Store
from shardwrite.write.tasks import Row, SourcePieces, cut_block, encode_block, write_group

if TYPE_CHECKING:
    from shardwrite.runs.job import Key, TaskBox

__all__ = ["ArrayChunks", "waves_reruns"]


# ---- Values as a source of chunks


SMALL_NBYTES = 2**20
"""Bytes that a task copies in about the time that it takes to schedule it."""

_ROWS_FOR_THREAD = 4  # at least, so that all threads make rows of chunks


class ArrayChunks:
    """Values of a dask array."""

    is_encoded = False

    def __init__(self, x: dask.array.Array, region: Box | None = None) -> None:
        self.x, self.region = x, region
        self._spans: dict[tuple[int, int, int], list[tuple[int, int, int]]] = {}
        self._rows: dict[str, tuple[int, int]] = {}  # axis and chunks of rows, by the name of tasks

    @property
    def dtype(self) -> np.dtype[Any]:
        """See :class:`ChunkSource`."""
        found: np.dtype[Any] = self.x.dtype
        return found

    @cached_property
    def edges(self) -> list[Edges]:
        """Edges of the chunks along each axis, in the coordinates of the plan's grid."""
        start = (0,) * self.x.ndim if self.region is None else self.region.start
        return [
            Edges.from_sizes(sizes).shifted(a)
            for a, sizes in zip(start, self.x.chunks, strict=True)
        ]

    def write(self, at: TaskBox) -> dict[Key, Any]:
        """See :class:`ChunkSource`."""
        return self._tasks(write_group, self.specified(at))

    def encode(self, at: TaskBox) -> dict[Key, Any]:
        """See :class:`ChunkSource`."""
        return self._tasks(encode_block, self.specified(at))

    def specified(self, at: TaskBox) -> TaskBox:
        """What tasks are told, to which a subclass may add something."""
        return at

    def graph(self, name: str, tasks: dict[Key, Any]) -> HighLevelGraph:
        """See :class:`ChunkSource`."""
        layer: Any = tasks
        source: Any = self.x
        return HighLevelGraph.from_collections(name, layer, dependencies=[source])

    def shares_nothing(self, plan: Plan) -> bool:
        """See :class:`CanSplit`."""
        edges = zip(self.edges, plan.partition.group_edges, strict=True)
        return _is_by_chunks(self.x) and all(chunks.include(groups) for chunks, groups in edges)

    def box_of(self, key: Any) -> Box | None:
        """See :class:`ChunkSource`."""
        index = key[1:] if isinstance(key, tuple) else ()
        if len(index) != self.x.ndim or not all(
            isinstance(i, int) and i < n for i, n in zip(index, self.x.numblocks, strict=True)
        ):
            return None
        spans = [(edges[i], edges[i + 1]) for edges, i in zip(self.edges, index, strict=True)]
        if key[0] in self._rows:
            axis, n = self._rows[key[0]]
            ((_, start, stop),) = self._spans_of_rows(axis, n, [index[axis]])
            spans[axis] = start, stop
        return Box(tuple(a for a, _ in spans), tuple(b for _, b in spans))

    def _tasks(self, function: Any, at: TaskBox) -> dict[Key, Any]:
        """A task that takes the chunks under a box, and the tasks that cut chunks for it.

        Chunks that touch only shards in `at.skip` are left out.
        """
        tasks: dict[Key, Any] = {}
        pieces, keys = [], []
        spans = [self._overlapped(axis, a, b) for axis, (a, b) in enumerate(at.box.bounds)]
        axis, n_in_row = self._row(at)
        name = self.x.name
        if n_in_row > 1:
            numbers = dict.fromkeys(span[0] // n_in_row for span in spans[axis])
            spans[axis] = self._spans_of_rows(axis, n_in_row, numbers)
            name = f"{self.x.name}-rows-{axis}-{n_in_row}"
            self._rows[name] = axis, n_in_row
        grid = at.spec.metadata.grid
        for number, combination in enumerate(itertools.product(*spans)):
            chunk = Box(tuple(c[1] for c in combination), tuple(c[2] for c in combination))
            if at.skip and all(
                index in at.skip for index in grid.shards_in(chunk.intersect(at.box))
            ):
                continue
            key: Key = (name, *(c[0] for c in combination))
            if n_in_row > 1:
                tasks[key] = self._row_task(key, axis, n_in_row)
            if n_in_row > 1 or not (at.shares_memory or at.box.contains(chunk)):
                inside = chunk.intersect(at.box)
                cut_key = (f"shardwrite-cut-{at.name}", *at.key[1:], number)
                tasks[cut_key] = Task(cut_key, cut_block, TaskRef(key), chunk, inside, self.dtype)
                chunk, key = inside, cut_key
            pieces.append(chunk)
            keys.append(TaskRef(key))
        where = SourcePieces(at.box, tuple(pieces), at.skip)
        tasks[at.key] = Task(at.key, function, at.spec, where, List(*keys))
        return tasks

    def _row(self, at: TaskBox) -> tuple[int, int]:
        """Axis along which one task makes several chunks, from which others cut, and how many.

        Slabs that are thinner than an inner chunk would otherwise take a task for each slab and
        box.
        """
        if at.shares_memory:
            return 0, 1
        grid, block, resources = (
            at.spec.metadata.grid,
            at.plan.partition.largest_block,
            at.plan.resources,
        )
        longest = [edges.longest for edges in self.edges]
        thin = [axis for axis, n in enumerate(longest) if 0 < n < grid.chunks[axis]]
        if not thin or all(map(operator.le, longest, block)):
            return 0, 1
        axis, n_threads = thin[0], resources.n_processes * resources.n_threads
        piece_nbytes = max(1, self.dtype.itemsize * math.prod(map(min, longest, block)))
        most = min(
            grid.chunks[axis] // longest[axis],
            SMALL_NBYTES // piece_nbytes,
            math.prod(self.x.numblocks) // (_ROWS_FOR_THREAD * n_threads),
        )
        # No row reaches into another wave, which would make it once more.
        nested = (n for n in range(most, 1, -1) if block[axis] % (n * longest[axis]) == 0)
        return axis, next(nested, 1)

    def _row_task(self, key: Key, axis: int, n: int) -> Task:
        """Task that makes the chunks of a row."""
        index = list(key[1:])
        sizes = self.x.chunks[axis][index[axis] * n : (index[axis] + 1) * n]
        index[axis] *= n
        keys = [
            TaskRef((self.x.name, *index[:axis], index[axis] + i, *index[axis + 1 :]))
            for i in range(len(sizes))
        ]
        return Task(key, Row, List(*keys), axis, tuple(map(int, sizes)))

    def _spans_of_rows(
        self, axis: int, n: int, numbers: Iterable[int]
    ) -> list[tuple[int, int, int]]:
        """Number, start and stop of some rows of chunks."""
        edges = self.edges[axis]
        return [(i, edges[i * n], edges[min((i + 1) * n, edges.n_pieces)]) for i in numbers]

    def _overlapped(self, axis: int, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Number, start and stop of each chunk under an interval, along one axis."""
        known = (axis, start, stop)
        if known not in self._spans:
            edges = self.edges[axis]
            # No task needs the block of a chunk without elements.
            self._spans[known] = [
                (i, edges[i], edges[i + 1])
                for i in edges.touched(start, stop)
                if edges[i] < edges[i + 1]
            ]
        return self._spans[known]


def waves_reruns(plan: Plan, x: dask.array.Array) -> Plan:
    """The plan with `source_reruns` counted on the graph of the source `x`.

    A task that several waves need runs once in each of them. The chunks alone do not show that:
    every wave of ``x - x.mean()`` needs all of ``x``.
    """
    # If each chunk is made from one chunk, the count by chunks that the plan has already is exact.
    if len(plan.waves) == 1 or len(x.dask.layers) == 1 or _is_by_chunks(x):
        return plan
    edges = ArrayChunks(x, plan.region).edges
    seen: set[Any] = set()
    n_run = 0
    for wave in plan.waves:
        spans = [e.touched(a, b) for e, (a, b) in zip(edges, wave.box.bounds, strict=True)]
        needed = x.dask.cull({(x.name, *index) for index in itertools.product(*spans)})
        # The tasks themselves are not made.
        layers = needed.layers.values()
        keys = set(itertools.chain.from_iterable(layer.get_output_keys() for layer in layers))
        n_run += len(keys)
        seen |= keys
    return replace(plan, source_reruns=n_run / len(seen) if seen else 1.0)


def _is_by_chunks(x: dask.array.Array) -> bool:
    """Whether each task makes one chunk from one chunk of each array before it.

    So it is with ``x.transpose()`` and ``x + 1``, but not with ``x + x.transpose()``, which takes
    two chunks of `x`. A layer with nothing but the array that is read has no tasks. This is seen
    without making the tasks, of which there may be millions.
    """
    n_chunks = math.prod(x.numblocks)
    taken: set[str] = set()
    for layer_name, layer in x.dask.layers.items():
        if not isinstance(layer, Blockwise):
            if (
                len(layer) == 1
                and not x.dask.dependencies[layer_name]
                and _is_value(*layer.values())
            ):
                continue
            return False
        for name, found in layer.indices:
            if found is None:  # not an array
                continue
            if not isinstance(name, str) or name in taken:
                return False
            n_taken = math.prod(int(n) for n in layer.numblocks[name])
            if set(found) != set(layer.output_indices) or n_taken != n_chunks:
                return False
            taken.add(name)
    return True


def _is_value(node: Any) -> bool:
    """Whether a node of a graph is no task, but what is read or passed on."""
    return isinstance(node, DataNode) or not (isinstance(node, GraphNode) or istask(node))


# ---- Plans


_OF_ARRAYS: dict[str, Setting[Any]] = {
    "shards": SHARDS,
    "chunks": INNER_CHUNKS,
    "compressors": COMPRESSORS,
}

BY_CHUNKS = "chunks:"
"""Beginning of the identity of a source that has no lasting name."""


def warn_of_unnamed(identity: str, kept: str, remedy: str) -> None:
    """Warn of what is kept from an earlier call, if nothing names its source.

    - `kept`: what that is, as a clause.
    - `remedy`: what to do if the data are others now.
    """
    if identity.startswith(BY_CHUNKS):
        warnings.warn(
            f"{kept}. Nothing names its source but dtype and chunks, which are the same: if the "
            f"data are others now, {remedy}. source_id= tells sources apart",
            UserWarning,
            stacklevel=3,
        )


_RANDOM_NAME = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def plan_into(
    metadata: ArrayMetadata,
    source: SourceLayout,
    engine: Engine,
    options: PlanOptions,
    store: Store | None = None,
    *,
    update: Update | None = None,
    notes: Sequence[str] = (),
    x: dask.array.Array | None = None,
    by_groups: bool = False,
) -> Plan:
    """Plan how a source becomes an array, or a part of one, on an engine. All plans are made here.

    - `store`: where the array will lie. If it is not known, nothing waits for it in memory.
    - `x`: the source's values, if tasks are counted that several waves need.
    - `by_groups`: whether each group has one task, so that no units wait for their shard. What that
      holds in memory depends on the source, and is checked by whoever knows it.
    - Raises PlanError if the plan exceeds the memory or the number of tasks.
    """
    resources = waiting(resources_of(engine, options.memory_limit_nbytes), store, metadata)
    made = make_plan(metadata, source, resources, options, update, notes)
    if by_groups:
        edges = made.partition.group_edges
        return replace(made, partition=Partition(edges, edges), is_staged=False)
    if x is not None:
        made = waves_reruns(made, x)
    made.check_fits()
    return made


def layout_of(x: dask.array.Array, source_id: str | None = None) -> SourceLayout:
    """What a plan says of values as a source."""
    identity, is_stable = identity_of(x, source_id), source_id is not None
    return SourceLayout(x.chunks, n_tasks_of(x), identity, is_stable, is_held=_is_held(x))


def _is_held(x: dask.array.Array) -> bool:
    """Whether the chunks lie in memory, as those of a numpy array do, and no task makes them."""
    layer = x.dask.layers.get(x.name)
    if layer is None or not layer.is_materialized():
        return False
    return all(map(_is_value, itertools.islice(layer.values(), 1)))


def plan_array(
    x: dask.array.Array,
    engine: Engine,
    array: ArrayOptions,
    options: PlanOptions,
    store: Store | None = None,
) -> Plan:
    """Make the plan of a new array for an engine, and check that it fits.

    - `store`: where the array will lie. If it is not known, nothing waits for it in memory.
    - Raises PlanError if the plan exceeds the memory, the number of tasks, or `max_source_reruns`.
    """
    metadata, notes = new_metadata(x.shape, x.dtype, x.chunks, array, options.strategy)
    layout = replace(layout_of(x, options.source_id), ref=ref_of(x))
    made = plan_into(metadata, layout, engine, options, store, notes=notes, x=x)
    if made.source_reruns > options.max_source_reruns:
        raise PlanError(
            f"{len(made.waves)} waves would run each source task {made.source_reruns:.2f} times "
            f"on average, and max_source_reruns allows {options.max_source_reruns}",
            needed_nbytes=0,
            allowed_nbytes=0,
            remedy="persist or store what the waves share, raise max_graph_tasks or memory_limit, "
            "or allow it with max_source_reruns",
        )
    return made


def advised(plan: Plan, array: ArrayOptions) -> Plan:
    """The plan of a new array, after a warning if shapes that were given hurt, once for each."""
    grid, itemsize = plan.metadata.grid, plan.metadata.itemsize or 1
    is_chosen = isinstance(array.shards, str) and array.shards == "auto"
    if is_chosen or not grid.n_shards or not value_of(ADVICE):
        return plan
    chunks, memory = plan.source.chunks, plan.resources.memory_limit_nbytes
    flaws = flaws_of(grid, itemsize, chunks, memory)
    if flaws:
        from shardwrite.plan.design import auto_shapes  # for shapes that hurt

        shards, inner, _ = auto_shapes(grid.shape, itemsize, chunks)
        better = ShardGrid(grid.shape, shards, inner)
        if len(flaws_of(better, itemsize, chunks, memory)) < len(flaws):
            _warn_once(
                f"{'; '.join(flaws)}. Better: shards={shards}, chunks={inner}, which make "
                f"{counted(better.n_shards, 'file')}. `shardwrite design` compares shapes, and "
                f"{ADVICE.path}: false silences this"
            )
    return plan


@functools.cache
def _warn_once(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=4)


def new_metadata(
    shape: Shape,
    dtype: np.dtype[Any],
    source_chunks: tuple[tuple[int, ...], ...],
    array: ArrayOptions,
    strategy: Any,
) -> tuple[ArrayMetadata, Sequence[str]]:
    """Metadata of a new array, and explanations of the shapes that were chosen."""
    itemsize, given = dtype.itemsize or 1, array
    array = _framed(with_configured(array), strategy)
    with naming_settings(given, array):
        shards, chunks, notes = resolve_shapes(
            shape, itemsize, array.shards, array.chunks, source_chunks, array.dimension_names
        )
        check_new(shape, itemsize, shards, chunks)
        sharded = None if array.shards is None else shards
        return make_metadata(shape, dtype, sharded, chunks, array), notes


def plan_without_data(
    shape: Shape, dtype: np.dtype[Any], array: ArrayOptions, strategy: Strategy, engine: Engine
) -> Plan:
    """Plan of a new array of which nothing is written, so that nothing is cut."""
    whole, edges = tuple((n,) for n in shape), tuple(Edges.regular(n, max(1, n)) for n in shape)
    metadata, _ = new_metadata(shape, dtype, whole, array, strategy)
    return Plan(
        metadata=metadata,
        strategy=strategy,
        source=SourceLayout(whole, 0, "nothing", is_stable=True),
        partition=Partition(edges, edges),
        resources=resources_of(engine),
    )


def _framed(array: ArrayOptions, strategy: Strategy) -> ArrayOptions:
    """Keywords of a new array, of which those that are left to choose fit frames of its shards.

    An array of 2022 keeps its own default of compressors.
    """
    framing = framing_of(strategy)
    if framing is None:
        return array
    location = None if array.index_location == "end" else array.index_location
    compressors, location = framing.choose(array.compressors, location)
    if array.format is None:
        array = replace(array, compressors=compressors)
    return array if location is None else replace(array, index_location=location)


def with_configured(array: ArrayOptions) -> ArrayOptions:
    """Keywords of a new array, with what the configuration says in place of ``"auto"``."""

    def chosen(field: str) -> Any:
        given = getattr(array, field)
        return value_of(_OF_ARRAYS[field]) if isinstance(given, str) and given == "auto" else given

    return replace(array, **{field: chosen(field) for field in _OF_ARRAYS})


@contextlib.contextmanager
def naming_settings(given: ArrayOptions, array: ArrayOptions) -> Iterator[None]:
    """Have errors about keywords that come from the configuration name the setting."""
    try:
        yield
    except SpecError as error:
        field = error.fields["field"]
        setting = _OF_ARRAYS.get(field)
        if setting is None or getattr(given, field) is getattr(array, field):
            raise  # it has no setting, or the user gave the keyword
        if value_of(setting) == "auto":
            raise
        raise refused(setting, value_of(setting), error.message, error.fields["remedy"]) from None


def resources_of(engine: Engine, memory_limit_nbytes: int | None = None) -> Resources:
    """Threads and memory of an engine's workers.

    - `memory_limit_nbytes`: bytes that a worker process may use. The engine's limit by default.
    """
    return Resources(
        engine.n_threads,
        memory_limit_nbytes or engine.memory_limit_nbytes,
        engine.n_processes,
        returns_through_parent=engine.returns_through_parent,
        shares_memory=engine.shares_memory,
    )


def waiting(resources: Resources, store: Store | None, metadata: ArrayMetadata) -> Resources:
    """Resources with what is known of shards that wait until a store takes them."""
    if store is None:
        return resources
    held = store.held_nbytes(metadata.most_nbytes)
    return replace(resources, held_nbytes=held, scratch=store.scratch)


def n_tasks_of(x: dask.array.Array) -> int:
    """Number of tasks of the source's graph.

    The tasks are not made for this. A layer that is not materialised yet counts as the number of
    blocks of `x`.
    """
    return sum(
        len(layer) if layer.is_materialized() else math.prod(x.numblocks)
        for layer in x.dask.layers.values()
    )


def identity_of(x: dask.array.Array, source_id: str | None = None) -> str:
    """Identity of a source: plans with different identities belong to different runs.

    It is the user's `source_id` without the credentials in it, because the identity is stored on
    disk. Without a `source_id`, it is derived from dask's name of `x`, or from the dtype and the
    chunks if a name in the graph of `x` is random.
    """
    if source_id:
        return redacted(source_id)
    if any(_RANDOM_NAME.search(layer) for layer in x.dask.layers):
        return f"{BY_CHUNKS}{tokenize(x.dtype, x.chunks)}"
    return f"dask:{tokenize(x.name)}"

"""Plans for new arrays, made from a dask array and checked keywords.

Nothing is read or written here.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from dask.base import tokenize

import shardwrite._dask as dask
from shardwrite.config.table import COMPRESSORS, INNER_CHUNKS, SHARDS, Setting
from shardwrite.config.values import refused, value_of
from shardwrite.engines import Engine
from shardwrite.errors import PlanError, SpecError, redacted
from shardwrite.format.bounds import most_nbytes_of
from shardwrite.format.document import ArrayOptions, make_metadata
from shardwrite.format.frame import framing_of
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.strategy import Strategy
from shardwrite.plan import (
    Partition,
    Plan,
    PlanOptions,
    Resources,
    SourceLayout,
    make_plan,
    resolve_shapes,
)
from shardwrite.plan.limits import check_new
from shardwrite.runs.array_chunks import waves_reruns
from shardwrite.stores import Store

_OF_ARRAYS: dict[str, Setting[Any]] = {
    "shards": SHARDS,
    "chunks": INNER_CHUNKS,
    "compressors": COMPRESSORS,
}
BY_CHUNKS = "chunks:"
"""Beginning of the identity of a source that has no lasting name."""
_RANDOM_NAME = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


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
    metadata, notes = new_metadata(x, array, options.strategy)
    made = make_plan(
        metadata,
        SourceLayout(
            x.chunks,
            n_tasks_of(x),
            identity_of(x, options.source_id),
            is_stable=options.source_id is not None,
        ),
        waiting(resources_of(engine, options.memory_limit_nbytes), store, metadata),
        options,
        notes=notes,
    )
    made = waves_reruns(made, x)
    made.check_fits()
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


def new_metadata(
    x: dask.array.Array, array: ArrayOptions, strategy: Any
) -> tuple[ArrayMetadata, Sequence[str]]:
    """Metadata of a new array, and explanations of the shapes that were chosen."""
    itemsize, given = x.dtype.itemsize or 1, array
    array = _framed(with_configured(array), strategy)
    with naming_settings(given, array):
        shards, chunks, notes = resolve_shapes(
            x.shape, itemsize, array.shards, array.chunks, x.chunks
        )
        check_new(x.shape, itemsize, shards, chunks)
        sharded = None if array.shards is None else shards
        return make_metadata(x.shape, x.dtype, sharded, chunks, array), notes


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


def by_groups(plan: Plan) -> Plan:
    """The plan with one task for each group, so that no units wait for their shard."""
    edges = plan.partition.group_edges
    return replace(plan, partition=Partition(edges, edges), is_staged=False)


def resources_of(engine: Engine, memory_limit_nbytes: int | None = None) -> Resources:
    """Threads and memory of an engine's workers.

    - `memory_limit_nbytes`: bytes that a worker process may use. The engine's limit by default.
    """
    return Resources(
        engine.n_threads,
        memory_limit_nbytes or engine.memory_limit_nbytes,
        engine.n_processes,
        returns_through_parent=engine.returns_through_parent,
    )


def waiting(resources: Resources, store: Store | None, metadata: ArrayMetadata) -> Resources:
    """Resources with what is known of shards that wait until a store takes them."""
    if store is None:
        return resources
    held = store.held_nbytes(most_nbytes_of(metadata))
    return replace(resources, held_nbytes=held, scratch=store.scratch)


def plan_into(
    x: dask.array.Array, metadata: ArrayMetadata, engine: Engine, options: PlanOptions
) -> Plan:
    """Plan how `x` would be written into an existing array of the same shape."""
    made = make_plan(
        metadata,
        SourceLayout(x.chunks, n_tasks_of(x), identity_of(x)),
        resources_of(engine, options.memory_limit_nbytes),
        options,
    )
    made.check_fits()
    return made


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

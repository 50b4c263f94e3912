"""From a dask array and a region to the plan of an update of an array that exists."""

from __future__ import annotations

from typing import Any

import numpy as np

import shardwrite._dask as dask
from shardwrite.engines import Engine
from shardwrite.errors import JournalError, SpecError
from shardwrite.format.metadata import ArrayMetadata, parse_metadata
from shardwrite.format.strategies import Strategy, as_strategy
from shardwrite.grid import Box, Shape
from shardwrite.journal import read_receipt, unfinished_append
from shardwrite.plan import Plan, SourceLayout, as_box, make_plan
from shardwrite.plan.limits import check_growth, check_region
from shardwrite.read.array import open_sharded
from shardwrite.read.compare import check_source
from shardwrite.runs.array_plan import identity_of, n_tasks_of, resources_of
from shardwrite.target import Target

__all__ = ["APPEND", "check_axis", "check_can_update", "check_cast", "region_plan"]

APPEND = "append"


def region_plan(
    x: Any,
    target: Target,
    region: Any,
    engine: Engine,
    *,
    axis: int,
    strategy: Any,
    casting: str,
    write_empty_chunks: bool,
    memory_limit: int | str | None,
    source_id: str | None,
    max_graph_tasks: int,
) -> tuple[dask.array.Array, Plan]:
    """How `x` would be written into a region of an array, and `x` in the array's dtype.

    Raises
    ------
    SpecError
        No array is there, it cannot be updated with this strategy, or `x` does not fit the region.
    PlanError
        If the plan does not fit the memory.
    """
    metadata = parse_metadata(
        open_sharded(target.root, target.name or None).metadata.text, writing=True
    )
    chosen = as_strategy(strategy)
    check_can_update(metadata, chosen)
    source = _cast(check_source(x), metadata.dtype, casting)
    identity = identity_of(x, source_id)
    if isinstance(region, str):
        if region != APPEND:
            raise SpecError(
                "no region",
                field="region",
                value=region,
                remedy=f'give slices, or "{APPEND}" and an axis',
            )
        axis = check_axis(axis, metadata.grid.ndim)
        box = _appended(
            target,
            metadata.grid.shape,
            source.shape,
            axis,
            identity,
            is_stable=source_id is not None,
        )
        grown = tuple(max(pair) for pair in zip(metadata.grid.shape, box.stop, strict=True))
        check_growth(metadata.grid, grown)
        metadata = metadata if grown == metadata.grid.shape else metadata.with_shape(grown)
    else:
        axis = -1
        box = as_box(region, metadata.grid.shape)
    if source.shape != box.shape:
        remedy = f"give an array of shape {box.shape}, or another region"
        raise SpecError("is not the region's", field="x.shape", value=source.shape, remedy=remedy)
    if not box.size:
        raise SpecError(
            "holds no elements",
            field="region",
            value=box.bounds,
            remedy="give a region of one element or more",
        )
    check_region(box, metadata.grid.shards)
    part, inside = metadata.part(box)
    made = make_plan(
        part,
        chosen,
        SourceLayout(
            _with_margins(source, inside, part.grid.shape),
            n_tasks_of(x),
            identity,
            is_stable=source_id is not None,
        ),
        resources_of(engine, memory_limit),
        write_empty_chunks=write_empty_chunks,
        stage_units=engine.kind == "processes",
        max_graph_tasks=max_graph_tasks,
        region=inside,
        append_axis=axis if axis >= 0 else None,
    )
    made.check_fits()
    return source, made


def check_can_update(metadata: ArrayMetadata, strategy: Strategy) -> None:
    """Refuse to change shards in place where nobody could tell what a crash leaves.

    Raises
    ------
    SpecError
        If the index has no checksum, or if the array has no shards.
    """
    if not metadata.is_sharded and not strategy.replaces:
        raise SpecError(
            "changes shards, and the array has none: its chunks are replaced one by one",
            field="strategy",
            value=strategy.label,
            remedy='give "fixed-order"',
        )
    if strategy.in_place and not metadata.index_codec.has_checksum:
        raise SpecError(
            "changes shards in place, and without a checksum nobody could tell an index that is torn",
            field="strategy",
            value=strategy.label,
            remedy="give the same without in_place=True, or an array whose index_codecs end with crc32c",
        )


def _cast(x: dask.array.Array, dtype: np.dtype[Any], casting: str) -> dask.array.Array:
    """`x` in the array's dtype, if the casting rule allows it."""
    check_cast(x.dtype, dtype, casting, "x")
    return x if x.dtype == dtype else x.astype(dtype, casting="unsafe")


def check_cast(given: np.dtype[Any], dtype: np.dtype[Any], casting: str, what: str) -> None:
    """Refuse elements that cannot become the array's by a casting rule."""
    if casting not in ("no", "equiv", "safe", "same_kind", "unsafe"):
        raise SpecError(
            "no such rule",
            field="casting",
            value=casting,
            remedy='use "safe", "same_kind" or "unsafe", as numpy does',
        )
    if not np.can_cast(given, dtype, casting=casting):  # type: ignore[arg-type]
        raise SpecError(
            f"cannot be cast to the array's {dtype} by the rule {casting!r}",
            field=f"{what}.dtype",
            value=str(given),
            remedy=f'convert it with astype("{dtype}"), or allow what is lost with casting="unsafe"',
        )


def check_axis(axis: int, ndim: int) -> int:
    """An axis of the array, counted from the first."""
    if isinstance(axis, bool) or not isinstance(axis, int) or not -ndim <= axis < ndim:
        raise SpecError(
            "no such axis", field="axis", value=axis, remedy=f"the array has {ndim} axes"
        )
    return axis % ndim


def _appended(
    target: Target, shape: Shape, given: Shape, axis: int, identity: str, *, is_stable: bool
) -> Box:
    """Where an append goes: behind the end, unless the same append was begun, or with a name for its source is done, already."""
    found = unfinished_append(target, identity, axis)
    receipt = read_receipt(target) if found is None and is_stable else None
    for update in reversed(receipt.updates if receipt is not None else []):
        known = update["identity"]
        if known.get("append_axis") == axis and known.get("source") == identity:
            found = known["region"]
            break
    if found is not None:
        if len(found) != len(shape):
            message = f"what stands beside {target.path} tells of an append to another array; remove it after a look"
            raise JournalError(message, path=str(target.path))
        return Box(tuple(a for a, _ in found), tuple(b for _, b in found))
    if (
        len(given) != len(shape)
        or given[:axis] + given[axis + 1 :] != shape[:axis] + shape[axis + 1 :]
    ):
        wanted = (*shape[:axis], "any", *shape[axis + 1 :])
        raise SpecError(
            "does not fit the array",
            field="x.shape",
            value=given,
            remedy=f"give an array of shape {wanted}",
        )
    start = tuple(n if i == axis else 0 for i, n in enumerate(shape))
    return Box(start, tuple(n + given[axis] if i == axis else n for i, n in enumerate(shape)))


def _with_margins(
    source: dask.array.Array, inside: Box, shape: Shape
) -> tuple[tuple[int, ...], ...]:
    """The source's chunks, and what lies beside it in the shards that it touches, so that all of them is cut into tasks."""
    return tuple(
        tuple(size for size in (a, *sizes, n - b) if size)
        for a, b, n, sizes in zip(inside.start, inside.stop, shape, source.chunks, strict=True)
    )

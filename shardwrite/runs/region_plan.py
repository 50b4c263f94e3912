"""Plans for updates, made from a dask array and a region of an existing array.

A scalar is repeated over the region, and axes that an integer of the region has dropped come back
with length 1.
"""

from __future__ import annotations

import itertools
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

import shardwrite._dask as dask
from shardwrite._dataclass import dataclass
from shardwrite.checks import is_whole
from shardwrite.codecs.datatypes import are_same_times, is_same_type
from shardwrite.engines.local import Engine
from shardwrite.errors import JournalError, SpecError
from shardwrite.format.frame import check_fits
from shardwrite.format.metadata import ArrayMetadata, parse_metadata
from shardwrite.format.strategies import Strategy
from shardwrite.grid import Box, Shape
from shardwrite.journal.neighbours import unfinished, unfinished_append
from shardwrite.journal.receipt import read_receipt
from shardwrite.place.target import Target
from shardwrite.plan.model import SourceLayout
from shardwrite.plan.options import PlanOptions
from shardwrite.plan.partition import check_growth, check_region
from shardwrite.plan.plan import Plan, Update
from shardwrite.plan.regions import Region, as_region
from shardwrite.read.array import open_at
from shardwrite.runs.array_plan import layout_of, plan_into
from shardwrite.runs.begin import check_updatable
from shardwrite.runs.old_shards import for_update
from shardwrite.runs.source_array import SourceArray, as_source_array, check_meaning

# ---- Values for a region, as a dask array of its box


def scalar(x: Any, dtype: np.dtype[Any], casting: str) -> npt.NDArray[Any] | None:
    """Make an array without axes of a scalar; None if `x` is not a scalar.

    A number of Python has no dtype of its own, as in numpy: it is taken in the dtype of the array
    if that can hold it.

    - `x`: A number, text or bytes, a scalar of numpy, or a numpy array without axes.
    - Raises SpecError if the array cannot hold the number of Python.
    """
    value: npt.NDArray[Any]
    if isinstance(x, bool | int | float | complex) and not isinstance(x, np.generic):
        value = _python_number(x, dtype, casting)
    elif isinstance(x, str | bytes | np.generic) or _is_array_without_axes(x):
        value = np.asarray(x)
    else:
        return None
    if value.dtype.kind in "US" and dtype.hasobject:
        try:
            value = np.array(x, dtype=dtype)
        except UnicodeError as error:
            remedy = "give a text"
            raise SpecError(f"is no text ({error})", field="x", value=x, remedy=remedy) from None
    if may_overflow(value.dtype, dtype, casting):
        try:
            _cast_times(value, dtype)
        except ValueError as error:
            remedy = "give a time that it can hold"
            raise SpecError(str(error), field="x", value=str(x), remedy=remedy) from None
    return value


def _is_array_without_axes(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.ndim == 0 and not isinstance(x, np.ma.MaskedArray)


def _python_number(x: complex, dtype: np.dtype[Any], casting: str) -> npt.NDArray[Any]:
    """A number of Python in the array's dtype; in its own if only a cast can make that of it."""
    value = np.asarray(x)
    if dtype.kind not in "biufc" or np.result_type(dtype, x) != dtype:
        return value
    try:
        with np.errstate(over="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
            held = np.asarray(x, dtype=dtype)
    except OverflowError:
        held = None
    is_lost = held is None or (np.isfinite(x) and not np.isfinite(held))
    if held is None or is_lost or (isinstance(x, int) and int(held.real) != x):
        if casting == "unsafe" and value.dtype != object:
            return value
        raise SpecError(
            f"cannot be held by the array's {dtype}",
            field="x",
            value=x,
            remedy="give a number that it can hold",
        )
    return held


def fitted(x: dask.array.Array, region: Region, shards: Shape) -> dask.array.Array:
    """Lay a source into the box of a region.

    - `x`: the source: without axes, or of the region's shape, with or without the axes that
      integers have dropped.
    - `shards`: shape of a shard, in elements. A scalar is repeated in chunks of this shape.
    """
    box = region.box
    if not region.accepts(x.shape):
        why = "is not the region's"
        remedy = f"give an array of shape {region.shape}, a scalar, or another region"
        if region.beyond:
            axes = " and ".join(map(str, region.beyond))
            why += f": along axis {axes}, the array ends before the region does"
            remedy += ', or let the array grow with region="append"'
        raise SpecError(why, field="x.shape", value=x.shape, remedy=remedy)
    if x.shape == box.shape:
        return x
    if x.ndim == 0:
        check_region(box, shards)
        laid = dask.array.broadcast_to(x, box.shape, chunks=_cut_at_shards(box, shards))
    else:
        laid = x[tuple(slice(None) if keeps else None for keeps in region.keeps)]
    found: dask.array.Array = laid
    return found


def _cut_at_shards(box: Box, shards: Shape) -> tuple[tuple[int, ...], ...]:
    """Sizes of the pieces of a box, cut at the borders of shards."""
    sizes = []
    for a, b, n in zip(box.start, box.stop, shards, strict=True):
        edges = [a, *range((a // n + 1) * n, b, n), b]
        sizes.append(tuple(y - x for x, y in itertools.pairwise(edges)))
    return tuple(sizes)


# ---- Plans


APPEND = "append"


@dataclass(frozen=True, slots=True)
class Where:
    """Region of an existing array that a source goes to."""

    region: Any  # the region in array coordinates, or `APPEND` to append the source along an axis
    axis: int = 0  # axis of an append; without an append it is ignored
    casting: str = "safe"  # rule of numpy by which the source may be cast to the array's dtype
    start: int | None = None  # where an append begins; by default at the end of the array


def region_plan(
    x: Any,
    target: Target,
    where: Where,
    engine: Engine,
    options: PlanOptions,
    *,
    drop_hdf5: bool = False,
) -> tuple[dask.array.Array, Plan]:
    """Plan how `x` would be written into a region of an existing array.

    - `x`: the source; see `take`. A scalar is repeated in the whole region.
    - `drop_hdf5`: whether shards that are files of another format may become plain shards.
    - Raises PlanError if the plan exceeds the memory or the number of tasks.
    """
    metadata = parse_metadata(open_at(target.place).metadata.text, writing=True)
    check_can_update(metadata, options.strategy)
    check_updatable(target.store, options.strategy)
    repeated = scalar(x, metadata.dtype, where.casting)
    given = as_source_array(x) if repeated is None else SourceArray(dask.array.from_array(repeated))
    _check_names(given, metadata)
    check_meaning(given.known, metadata, "x")
    source = _cast(given.array, metadata.dtype, where.casting)
    layout = layout_of(given.array, options.source_id)
    region = where.region
    if isinstance(region, str):
        if region != APPEND:
            raise SpecError(
                "no region",
                field="region",
                value=region,
                remedy=f'give slices, or "{APPEND}" and an axis',
            )
        axis = check_axis(where.axis, metadata.grid.ndim)
        box = _appended(target, metadata.grid.shape, source.shape, axis, layout, where.start)
        grown = tuple(max(pair) for pair in zip(metadata.grid.shape, box.stop, strict=True))
        check_growth(metadata.grid, grown)
        metadata = metadata if grown == metadata.grid.shape else metadata.with_shape(grown)
    else:
        axis = None
        parsed = as_region(region, metadata.grid.shape)
        box, source = parsed.box, fitted(source, parsed, metadata.grid.shards)
    # An append to an array that has another axis of length 0 only makes it longer.
    if not (box.size if axis is None else source.shape[axis]):
        raise SpecError(
            "holds no elements",
            field="region",
            value=box.bounds,
            remedy=f"give a region of one element or more, inside of {metadata.grid.shape}",
        )
    check_region(box, metadata.grid.shards)
    strategy = for_update(target, metadata, options.strategy, box, drops=drop_hdf5)
    options = replace(options, strategy=strategy)
    part, inside = metadata.window_of(box)
    layout = replace(layout, chunks=_with_margins(source, inside, part.grid.shape))
    update = Update(inside, axis)
    return source, plan_into(part, layout, engine, options, target.store, update=update)


def check_can_update(metadata: ArrayMetadata, strategy: Strategy) -> None:
    """Refuse to update an array by a strategy that does not fit it.

    Without a checksum, an index that a crash has torn cannot be recognised. Without shards, chunks
    can only be replaced.
    """
    if metadata.placed is not None:
        raise SpecError(
            "its shards depend on the shape of the whole volume, and are not updated",
            field="store",
            value=metadata.document["codecs"][0]["name"],
            remedy="write the volume again, under another key",
        )
    check_fits(strategy, metadata)
    if not metadata.is_sharded and not strategy.replaces:
        raise SpecError(
            "changes shards, and the array has none: its chunks are replaced one by one",
            field="strategy",
            value=strategy.label,
            remedy='give "fixed-order"',
        )
    if strategy.in_place and not metadata.index_codec.has_checksum:
        raise SpecError(
            "changes shards in place, and without a checksum nobody could tell an index that is "
            "torn",
            field="strategy",
            value=strategy.label,
            remedy="give the same without in_place=True, or an array whose index_codecs end with "
            "crc32c",
        )


def _check_names(given: SourceArray, metadata: ArrayMetadata) -> None:
    """Refuse a source whose axes have the array's names in another order."""
    names, of_array = given.known.dimension_names, metadata.document.get("dimension_names")
    if not names or not of_array or None in names or names == tuple(of_array):
        return
    if sorted(map(str, names)) == sorted(map(str, of_array)):
        raise SpecError(
            f"the array's axes are {tuple(of_array)}, in this order",
            field="x.dims",
            value=names,
            remedy=f"transpose it: x.transpose{tuple(of_array)}",
        )


def _cast(x: dask.array.Array, dtype: np.dtype[Any], casting: str) -> dask.array.Array:
    """`x` in the array's dtype, if the casting rule allows it.

    Objects stay what they are, so that those which are no text are found when they are encoded.
    """
    check_cast(x.dtype, dtype, casting, "x")
    if x.dtype == dtype or (x.dtype.hasobject and is_same_type(x.dtype, dtype)):
        return x
    source: Any = x
    cast: dask.array.Array = (
        source.map_blocks(_cast_times, to=dtype, dtype=dtype, meta=np.empty((0,) * x.ndim, dtype))
        if may_overflow(x.dtype, dtype, casting)
        else source.astype(dtype, casting="unsafe")
    )
    return cast


def may_overflow(given: np.dtype[Any], dtype: np.dtype[Any], casting: str) -> bool:
    """Whether times that a cast must not change get a finer unit, whose range is shorter.

    numpy calls such a cast safe, and makes another time of one that is out of the range.
    """
    return casting != "unsafe" and dtype.kind in "mM" and given.kind == dtype.kind


def _cast_times(block: npt.NDArray[Any], to: np.dtype[Any]) -> npt.NDArray[Any]:
    """A block of times in another unit.

    - Raises ValueError if it holds a time that is out of the range of that unit.
    """
    cast: npt.NDArray[Any] = block.astype(to, casting="unsafe")
    if np.can_cast(block.dtype, to, casting="safe"):
        is_other = ~are_same_times(block, cast)
        if is_other.any():
            raise ValueError(f"{block[is_other][0]} is out of the range of the array's {to}")
    return cast


def check_cast(given: np.dtype[Any], dtype: np.dtype[Any], casting: str, what: str) -> None:
    """Refuse a dtype that a casting rule does not allow to become the array's."""
    if casting not in ("no", "equiv", "safe", "same_kind", "unsafe"):
        raise SpecError(
            "no such rule",
            field="casting",
            value=casting,
            remedy='use "safe", "same_kind" or "unsafe", as numpy does',
        )
    is_text = np.issubdtype(given, np.str_) and dtype.kind == "T"
    if casting not in ("no", "equiv") and (
        is_text or (given.hasobject and is_same_type(given, dtype))
    ):
        return  # without loss; objects that are no text are found when they are encoded
    if not np.can_cast(given, dtype, casting=casting):  # type: ignore[arg-type]
        raise SpecError(
            f"cannot be cast to the array's {dtype} by the rule {casting!r}",
            field=f"{what}.dtype",
            value=str(given),
            remedy=f'convert it with astype("{dtype}"), or allow what is lost with '
            'casting="unsafe"',
        )


def cast_block(block: npt.NDArray[Any], dtype: np.dtype[Any], casting: str) -> npt.NDArray[Any]:
    """A block of values in the array's dtype, if the casting rule allows it."""
    check_cast(block.dtype, dtype, casting, "block")
    if block.dtype == dtype:
        return block
    try:
        text = block.astype(np.dtypes.StringDType(coerce=False)) if dtype.kind == "T" else block
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"holds objects that are no text ({error})",
            field="block",
            value=str(block.dtype),
            remedy="convert them to text first",
        ) from None
    if may_overflow(block.dtype, dtype, casting):
        try:
            return _cast_times(block, dtype)
        except ValueError as error:
            raise SpecError(
                str(error),
                field="block",
                value=str(block.dtype),
                remedy="give times that the array can hold",
            ) from None
    cast: npt.NDArray[Any] = text.astype(dtype, casting="unsafe")
    return cast


def check_axis(axis: int, ndim: int) -> int:
    """The axis as a non-negative number."""
    if not is_whole(axis, -ndim, ndim - 1):
        raise SpecError(
            "no such axis", field="axis", value=axis, remedy=f"the array has {ndim} axes"
        )
    return int(axis) % ndim


def _appended(
    target: Target,
    shape: Shape,
    given: Shape,
    axis: int,
    source: SourceLayout,
    begins: int | None,
) -> Box:
    """Region of an append.

    It begins at the end of the array, or where it is told to. If the same append was begun before
    and is not finished, its region is returned instead. With a `source_id`, this holds for a
    finished append, too.
    """
    run = None if begins is not None else unfinished_append(target, source.identity, axis)
    found = None if run is None else run.record.identity.region
    if found is not None and len(found) == len(shape) and found[axis][0] > shape[axis]:
        found = None  # another program has cut off the slices before it
    is_named = source.is_stable and begins is None
    receipt, ends = read_receipt(target) if found is None and is_named else None, list(shape)
    for update in reversed(receipt.updates if receipt is not None else ()):
        known = update.identity
        if update.given_up or update.is_cut_off(ends):  # cut off by another program
            continue
        if known.append_axis != axis or known.region is None:
            continue
        if known.source == source.identity:
            found = known.region
            break
        ends[axis] = known.region[axis][0]  # where the array ended when this one began
    if found is not None:
        if len(found) != len(shape):
            message = (
                f"what stands beside {target.label} tells of an append to another array; remove it "
                "after a look"
            )
            raise JournalError(message, path=target.label)
        box = Box(tuple(a for a, _ in found), tuple(b for _, b in found))
        if given != box.shape:
            if run is not None:
                raise unfinished(run)
            raise SpecError(
                f"an append of this source was made before, of shape {box.shape}, and this one is "
                f"of shape {given}",
                field="source_id",
                value=source.identity,
                remedy="give each append another source_id",
            )
        return box
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
    first = shape[axis] if begins is None else begins
    start = tuple(first if i == axis else 0 for i in range(len(shape)))
    return Box(start, tuple(first + given[axis] if i == axis else n for i, n in enumerate(shape)))


def _with_margins(
    source: dask.array.Array, inside: Box, shape: Shape
) -> tuple[tuple[int, ...], ...]:
    """The source's chunks, with the margins of the touched shards as further chunks.

    So the partition covers these shards completely.
    """
    return tuple(
        tuple(size for size in (a, *sizes, n - b) if size)
        for a, b, n, sizes in zip(inside.start, inside.stop, shape, source.chunks, strict=True)
    )

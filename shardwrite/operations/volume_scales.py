"""Arrays of users, and the scales of a volume that they become."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import shardwrite._dask as dask
from shardwrite.engines import Engine, active_engine
from shardwrite.errors import SpecError
from shardwrite.format.document import ArrayOptions
from shardwrite.format.precomputed.new import (
    NewScale,
    ScaleOptions,
    checked_axes,
    new_scale,
    row_major,
)
from shardwrite.format.precomputed.stored import with_source_axes
from shardwrite.operations.scale_copies import alike, plan_copies
from shardwrite.operations.scattered import SPOOL, array_options, gathered_metadata, spooled_notes
from shardwrite.plan import Plan, PlanOptions
from shardwrite.read.stored_array import StoredArray
from shardwrite.results import counted, human
from shardwrite.runs.array_chunks import ArrayChunks
from shardwrite.runs.array_plan import new_metadata, plan_array
from shardwrite.runs.gathered import plan_gathering
from shardwrite.runs.given import take
from shardwrite.runs.source import ChunkSource
from shardwrite.runs.stored_behind import Behind, behind
from shardwrite.stores import Store


@dataclass(frozen=True, slots=True)
class ScaleOfArray:
    """An array with its axes in the order of the bytes in a chunk, and its scale."""

    array: dask.array.Array  # the values, with the axes z, y and x, or channel, z, y and x
    # The scale, and what the array is first written as. They differ if the chunks are scattered:
    # they are then spooled in shards that are boxes.
    wanted: NewScale
    new: NewScale
    axes: str  # axes of the array that the user has given
    stored: Behind = None  # the Zarr array that has the values, or why its chunks cannot be copied

    @property
    def options(self) -> ArrayOptions:
        """Keywords of the array that is planned and written."""
        made = alike(array_options(self.new, self.array.ndim), self.stored)
        return replace(made, attributes=SPOOL) if self.wanted.is_scattered else made

    def planned(self, options: PlanOptions, store: Store | None = None) -> tuple[ChunkSource, Plan]:
        """Source and plan of the run, with the parameters of the shards among its notes.

        - `store`: where the volume will lie. If it is not known, nothing waits for it in memory.
        """
        engine, why = active_engine(), self.stored
        if isinstance(why, StoredArray):
            metadata, _ = new_metadata(self.array, self.options, options.strategy)
            copied = plan_copies(why, metadata, engine, options, store)
            if not isinstance(copied, str):
                chunks, made = copied
                return chunks, self._told(made, engine, store)
            why = copied
        made = plan_array(self.array, engine, self.options, options, store)
        if why is not None:
            made = replace(made, notes=(f"all chunks are decoded: {why}", *made.notes))
        return ArrayChunks(self.array), self._told(made, engine, store)

    def _told(self, made: Plan, engine: Engine, store: Store | None) -> Plan:
        """The plan with what the parameters of the shards mean, and with that of gathering."""
        if not self.wanted.is_scattered:
            return replace(made, notes=(*self._notes, *made.notes))
        gathering = plan_gathering(gathered_metadata(self.wanted), made, engine, store)
        of_spool, of_scale = spooled_notes(self.wanted, made, gathering)
        gathering = replace(gathering, notes=(*of_scale, *gathering.notes))
        return replace(made, notes=(*of_spool, *made.notes), gathering=gathering)

    @property
    def _notes(self) -> tuple[str, ...]:
        """What the parameters of the shards mean, for the plan."""
        sharding, scale = self.new.sharding, self.new.scale
        nbytes = math.prod(scale.chunk_size) * self.new.volume.n_channels
        nbytes *= math.prod(self.new.box) * self.array.dtype.itemsize
        is_lossy = scale.encoding.name == "jpeg"
        per_minishard = min(2**sharding.preshift_bits, math.prod(self.new.box))
        files = math.prod(-(-n // k) for n, k in zip(scale.grid, self.new.box, strict=True))
        return (
            (
                f"preshift_bits {sharding.preshift_bits}, minishard_bits "
                f"{sharding.minishard_bits}, shard_bits {sharding.shard_bits}: up to "
                f"{counted(files, 'file')} of {human(nbytes)} decoded"
            ),
            (
                f"index per read: 16 B, and up to {human(24 * per_minishard)} for a minishard of "
                f"{counted(per_minishard, 'chunk')}"
            ),
            f"each file begins with an index of {human(sharding.shard_index_nbytes)}",
            *(("values change, since the encoding is jpeg",) if is_lossy else ()),
        )


def scales_of(x: Any, axes: Any, options: ScaleOptions, others: Any) -> list[ScaleOfArray]:
    """Check what a user gives, and put the axes of the arrays into order.

    - `axes`: its axes. By default the names of its dimensions tell them.
    - `others`: other arrays that become scales of the same volume, by the sizes of their voxels.
      They get the same options, except for resolution, offset and key.
    """
    found = [first := _described(*_in_order(x, axes), options)]
    if others is None:
        return found
    if not isinstance(others, Mapping):
        remedy = "give a mapping of resolutions to arrays, such as {(8, 8, 40): half}"
        raise SpecError("not a mapping", field="scales", value=others, remedy=remedy)
    for resolution, other in others.items():
        with _naming(resolution):
            array, letters, stored = _in_order(other, axes, f"scales[{resolution!r}]")
            own = replace(options, resolution=resolution, voxel_offset=(0, 0, 0), key=None)
            at_zero = _described(array, letters, None, own).wanted
            _check_same(first.wanted, at_zero)
            own = replace(own, voxel_offset=_offset(first.wanted, at_zero))
            made = _described(array, letters, stored, own)
        if made.wanted.scale.key in [each.wanted.scale.key for each in found]:
            raise SpecError(
                "two scales of one name",
                field="scales",
                value=made.wanted.scale.key,
                remedy="give each scale another resolution, or give key= for the first one",
            )
        found.append(made)
    return found


@contextlib.contextmanager
def _naming(resolution: Any) -> Iterator[None]:
    """Have the errors of the block name the array among `scales` that they are about."""
    try:
        yield
    except SpecError as error:
        field, value, remedy = (error.fields[name] for name in ("field", "value", "remedy"))
        about = field.removeprefix(f"scales[{resolution!r}]").removeprefix("x").lstrip(".")
        is_told = about in ("", "resolution", "scales")
        message = error.message if is_told else f"{about}={value!r}: {error.message}"
        raise SpecError(message, field="scales", value=resolution, remedy=remedy) from None


def _in_order(x: Any, axes: Any, field: str = "x") -> tuple[dask.array.Array, str, Behind]:
    """The array with its axes in the order of the bytes in a chunk.

    With it come its axes as they were, and the stored array behind it.
    """
    given = take(x, field)
    array = given.array
    if 0 in array.shape:
        remedy = "give an array with at least one element along each axis"
        raise SpecError("no voxels", field=f"{field}.shape", value=array.shape, remedy=remedy)
    letters = checked_axes(axes, given.known.dimension_names, array.ndim)
    order = row_major(letters)
    is_ordered = order == list(range(array.ndim))
    ordered = array if is_ordered else array.transpose(order)
    stored = behind(x)
    if isinstance(stored, StoredArray) and not is_ordered:
        stored = "the order of the axes differs"
    return ordered, letters, stored


def _described(
    array: dask.array.Array, axes: str, stored: Behind, options: ScaleOptions
) -> ScaleOfArray:
    """The scale that an array becomes whose axes are in order, and were not before."""
    channels = array.shape[:-3] or (1,)
    shape = (*array.shape[:-4:-1], *channels)
    wanted = new_scale(shape, array.dtype, options)
    if not wanted.is_scattered:
        return ScaleOfArray(array, wanted, wanted, axes, stored)
    new = wanted.spooled(options.shard_nbytes, options.index_nbytes)
    return ScaleOfArray(array, wanted, new, axes, stored)


def noting_axes(plan: Plan, axes: str) -> Plan:
    """The plan of a scale in whose document stands which axes the given array has.

    Those of an array that is in order already are not noted. Then the plan stays as it is.
    """
    if plan.gathering is None:
        return replace(plan, metadata=with_source_axes(plan.metadata, axes))
    return replace(plan, gathering=noting_axes(plan.gathering, axes))


def _check_same(first: NewScale, other: NewScale) -> None:
    """Check that two scales show the same box in space with values of one kind.

    A scale may end within its last voxel, or leave out a part that fills no voxel.
    """
    for what, wanted, found in (
        ("dtype", first.volume.dtype.name, other.volume.dtype.name),
        ("number of channels", first.volume.n_channels, other.volume.n_channels),
    ):
        if wanted != found:
            remedy = f"give an array whose {what} is {wanted}, as that of the first one"
            raise SpecError(f"another {what}", field=what, value=found, remedy=remedy)
    one, two = first.scale, other.scale
    for axis, n, size, n_other, size_other in zip(
        "xyz", one.size, one.resolution, two.size, two.resolution, strict=True
    ):
        if abs(n * size - n_other * size_other) >= max(size, size_other):
            raise SpecError(
                f"along {axis} it is {n_other * size_other:g} nm long, and the first array is "
                f"{n * size:g} nm long",
                field="scales",
                value=tuple(two.resolution),
                remedy="give the size of its voxels along x, y and z in nanometres, or write it "
                "by a call of its own",
            )


def _offset(first: NewScale, other: NewScale) -> tuple[int, ...]:
    """Position of the first voxel of another scale, which begins where the first scale does."""
    one, two = first.scale, other.scale
    exact = [
        n * size / size_other
        for n, size, size_other in zip(
            one.voxel_offset, one.resolution, two.resolution, strict=True
        )
    ]
    if not all(math.isclose(n, round(n), rel_tol=1e-14, abs_tol=1e-6) for n in exact):
        raise SpecError(
            f"the volume begins between two of its voxels, at {tuple(exact)}",
            field="scales",
            value=tuple(two.resolution),
            remedy="write this scale by a call of its own, with its own voxel_offset",
        )
    return tuple(round(n) for n in exact)

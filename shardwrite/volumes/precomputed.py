"""Writing of volumes of Neuroglancer precomputed, in shards.

A scale is an array whose shards have the format of Neuroglancer. It is planned, written, resumed
and verified as all arrays are. Its directory also holds a ``zarr.json`` that describes it to this
package, and the receipt. The ``info`` of the volume is written last, so that no reader finds a
scale that is not whole.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import reduce
from typing import Any

import shardwrite._dask as dask
from shardwrite._dataclass import dataclass
from shardwrite.convert.run import plan_of_copies
from shardwrite.engines import active_engine
from shardwrite.engines.local import Engine
from shardwrite.entry.public import taking
from shardwrite.errors import SpecError
from shardwrite.format.document import ArrayOptions
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.passage import passage_between, what_differs
from shardwrite.grid import counts_of
from shardwrite.options import options_from
from shardwrite.place.base import at_url, without_kind
from shardwrite.place.target import resolve_target
from shardwrite.plan.options import PlanOptions, parse_nbytes
from shardwrite.plan.plan import Plan
from shardwrite.read.stored_array import StoredArray
from shardwrite.results import human
from shardwrite.runs.array_plan import ArrayChunks, new_metadata, plan_array
from shardwrite.runs.execute import execute
from shardwrite.runs.job import ChunkSource, Job, RunOptions, for_new_array
from shardwrite.runs.result import VolumeResult, WriteResult, volume_result
from shardwrite.runs.source_array import as_source_array
from shardwrite.runs.stored_chunks import Behind, StoredChunks, behind, check_nothing_lost
from shardwrite.stores.base import Capability, Store
from shardwrite.volumes.documents import ScaleTargets, change_info, has_spool, read_volume
from shardwrite.volumes.hashed import (
    SPOOL,
    array_options,
    gathered_metadata,
    plan_gathering,
    remove_spool,
    spooled_notes,
    write_scattered,
)
from shardwrite.volumes.keywords import PlanPrecomputedArguments, PrecomputedArguments
from shardwrite.volumes.new import (
    NewScale,
    ScaleOptions,
    checked_axes,
    loss_notes,
    merged_info,
    new_scale,
    row_major,
    shard_notes,
    with_source_axes,
)
from shardwrite.write.context import GroupReport

# ---- Encoded inner chunks that become chunks of a scale without being decoded


def alike(options: ArrayOptions, stored: Behind) -> ArrayOptions:
    """Keywords of a scale with the gzip of a stored array, whatever its level is."""
    if not isinstance(stored, StoredArray):
        return options
    gzips = [c for c in stored.array.metadata.inner_codecs if c["name"] == "gzip"]
    if len(gzips) != 1 or not options.compressors:
        return options
    return replace(options, compressors=(dict(gzips[0]),))


def plan_copies(
    stored: StoredArray,
    metadata: ArrayMetadata,
    engine: Engine,
    options: PlanOptions,
    store: Store | None,
) -> tuple[StoredChunks, Plan] | str:
    """Plan how the chunks of a stored array become those of a scale; or why they must be decoded.

    - Raises ChangedError if the stored array has lost objects.
    """
    array = stored.array
    passage = passage_between(array.metadata, metadata)
    if passage is None:
        return f"{' and '.join(what_differs(array.metadata, metadata))} differ"
    if options.write_empty_chunks:
        return "write_empty_chunks needs their values"
    if not engine.shares_memory and Capability.SHARED not in array.store.capabilities:
        return "other processes cannot open the store of the array"
    check_nothing_lost(stored)
    decodes = passage.n_encoded > 0
    made, nbytes = plan_of_copies(stored, metadata, engine, options, store, decodes=decodes)
    notes = [f"encoded chunks are copied, {passage}"]
    if passage.n_encoded:
        notes.append(passage.about_edges)
    notes.append(f"a process takes up to {human(nbytes)} of memory while it copies chunks")
    return StoredChunks(metadata, None, array), replace(made, notes=(*notes, *made.notes))


# ---- Arrays of users, and the scales that they become


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
        options = alike(array_options(self.new, self.array.ndim), self.stored)
        return replace(options, attributes=SPOOL) if self.wanted.is_scattered else options

    def planned(self, options: PlanOptions, store: Store | None = None) -> tuple[ChunkSource, Plan]:
        """Source and plan of the run, with the parameters of the shards among its notes.

        - `store`: where the volume will lie. If it is not known, nothing waits for it in memory.
        """
        engine, why = active_engine(), self.stored
        if isinstance(why, StoredArray):
            x = self.array
            metadata, _ = new_metadata(x.shape, x.dtype, x.chunks, self.options, options.strategy)
            copied = plan_copies(why, metadata, engine, options, store)
            if not isinstance(copied, str):
                chunks, plan = copied
                return chunks, self._told(plan, engine, store)
            why = copied
        plan = plan_array(self.array, engine, self.options, options, store)
        if why is not None:
            plan = replace(plan, notes=(f"all chunks are decoded: {why}", *plan.notes))
        return ArrayChunks(self.array), self._told(plan, engine, store)

    def _told(self, made: Plan, engine: Engine, store: Store | None) -> Plan:
        """The plan with what the parameters of the shards mean, and with that of gathering."""
        if not self.wanted.is_scattered:
            new, n_chunks = self.new, math.prod(self.new.box)
            n_files = math.prod(counts_of(new.scale.grid, new.box))
            per_minishard = min(2**new.sharding.preshift_bits, n_chunks)
            notes = shard_notes(new, n_files, n_chunks * new.chunk_nbytes, per_minishard)
            return replace(made, notes=(*notes, *loss_notes(new), *made.notes))
        gathering = plan_gathering(gathered_metadata(self.wanted), made, engine, store)
        of_spool, of_scale = spooled_notes(self.wanted, made, gathering)
        gathering = replace(gathering, notes=(*of_scale, *gathering.notes))
        return replace(made, notes=(*of_spool, *made.notes), gathering=gathering)


def scales_of(given: PlanPrecomputedArguments | PrecomputedArguments) -> list[ScaleOfArray]:
    """Check what a user gives, and put the axes of the arrays into order.

    Other arrays that become scales of the same volume get the same options, except for resolution,
    offset and key.
    """
    options = options_from(
        given,
        ScaleOptions,
        shard_nbytes=parse_nbytes(f"{given.shard_nbytes}", "shard_nbytes"),
        index_nbytes=parse_nbytes(f"{given.index_nbytes}", "index_nbytes"),
    )
    others: Any = given.scales
    found = [first := _described(*_in_order(given.x, given.axes), options)]
    if others is None:
        return found
    if not isinstance(others, Mapping):
        remedy = "give a mapping of resolutions to arrays, such as {(8, 8, 40): half}"
        raise SpecError("not a mapping", field="scales", value=others, remedy=remedy)
    for resolution, other in others.items():
        with _naming(resolution):
            array, letters, stored = _in_order(other, given.axes, f"scales[{resolution!r}]")
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
    source = as_source_array(x, field)
    array = source.array
    if 0 in array.shape:
        remedy = "give an array with at least one element along each axis"
        raise SpecError("no voxels", field=f"{field}.shape", value=array.shape, remedy=remedy)
    letters = checked_axes(axes, source.known.dimension_names, array.ndim)
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


def in_order(x: Any, axes: str) -> Any:
    """A source whose axes, of these letters, have the order of a scale that is written in parts."""
    order = row_major(checked_axes(axes, None, len(x.shape)))
    return x if order == sorted(order) else as_source_array(x).array.transpose(order)


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


# ---- Planning and writing


@taking(PlanPrecomputedArguments)
def plan_precomputed(given: PlanPrecomputedArguments) -> Plan:
    """Plan how an array would be written as a scale of a Neuroglancer volume.

    Nothing is computed, read or written. The plan shows how many files there will be, how many
    bytes of index a reader fetches before a chunk, and the memory of a process.

    Returns
    -------
    Plan
        The plan, which can be printed. If `scales` are given, it also holds their plans. If the
        chunks of a shard are scattered, it is the plan of the spool, and so is its number of
        shards. Its `gathering` is then the plan of the shards of the scale.

    Raises
    ------
    SpecError
        If an argument is not valid. The error has the field, its value and a remedy.
    PlanError
        If the plan exceeds the memory, the number of tasks, or `max_source_reruns`.

    Examples
    --------
    >>> import dask.array as da, shardwrite
    >>> x = da.zeros((100, 512, 512), chunks=64, dtype="uint8")
    >>> p = shardwrite.plan_precomputed(x, axes="zyx", resolution=(4, 4, 40), shard_nbytes="8MB")
    >>> p.n_shards, p.shards_for((0, 0, 0))[0].key
    (8, '0.shard')
    """
    volume, store = scales_of(given), None
    if given.path is not None:
        store = resolve_target(_volume_of(given), None, is_read=True).store
    options = options_from(given, PlanOptions)
    first, *others = (each.planned(options, store)[1] for each in volume)
    return replace(first, scales=tuple(others))


@taking(PrecomputedArguments)
def to_precomputed(given: PrecomputedArguments) -> VolumeResult:
    """Write an array as a scale of a volume of Neuroglancer precomputed, in shards.

    `x` may have any chunks. Each shard is committed by exactly one task, and becomes visible only
    when it is whole. The ``info`` of the volume is written last. An interrupted call goes on when
    it is made again.

    Returns
    -------
    VolumeResult
        What was written of `x`. Its path is that of the scale. It also holds the results of
        `scales`.

    Raises
    ------
    SpecError, PlanError, StoreError, JournalError
        Before any shard is written, if an argument does not fit, or something else stands there. A
        JournalError says that another plan was begun for the scale, and what differs or who works
        on it.
    IncompleteError
        If the process was asked to stop and shards are missing.
    SourceError, CodecError, StoreError
        If a task fails. Its shard is not committed, and the scale does not enter ``info``.
    RunEndedError
        If another process took over the run, or ended it.
    WorkersLostError
        If a cluster has lost its workers.

    See Also
    --------
    plan_precomputed : Shows what would be written.
    from_precomputed : Reads volumes.

    Notes
    -----
    Besides the shards, the directory of the scale holds a ``zarr.json`` and a receipt, by which
    :func:`verify` and this function know what was written. Readers of volumes ignore both. To give
    up a call that was interrupted, use :func:`abandon` on the scale.

    If the chunks of a shard are scattered, they are first encoded into a *spool* beside the scale,
    whose name begins with a dot. Then each shard is gathered out of it. The spool takes about as
    many bytes as the scale, and is removed at the end. Its ``zarr.json`` describes an array that
    has the chunks of the volume one after the other, so read the values by
    :func:`from_precomputed`. :func:`verify` and :func:`repair` take a source in the shape of the
    volume. To repair a shard, they read all of it.

    Encoded chunks of a `zarr.Array` are copied if it has the axes zyx or czyx, the same chunks, the
    fill value 0, and no compression or gzip as `encoding` says. A crc32c after it is verified and
    dropped. Chunks that reach beyond the array are decoded and re-encoded, since a volume cuts
    them. The plan says how many these are, or why all chunks are decoded. Chunks of zeros that the
    array stores are copied, too. The gzip keeps the level that it has there.

    Examples
    --------
    >>> import dask.array as da, shardwrite, tempfile
    >>> x = da.arange(100 * 80 * 60, chunks=50_000, dtype="uint32").reshape(60, 80, 100)
    >>> path = tempfile.mkdtemp() + "/volume"
    >>> shardwrite.to_precomputed(x, path, axes="zyx", resolution=(4, 4, 40)).n_shards
    1
    >>> int(shardwrite.from_precomputed(path, axes="zyx")[1, 2, 3].compute())
    8203

    Write two scales, and compute `x` once:

    >>> scales = {(8, 8, 40): x[:, ::2, ::2]}
    >>> path = tempfile.mkdtemp() + "/volume"
    >>> result = shardwrite.to_precomputed(
    ...     x, path, axes="zyx", resolution=(4, 4, 40), scales=scales
    ... )
    >>> [each.path.rpartition("/")[2] for each in (result, *result.scales)]
    ['4_4_40', '8_8_40']
    """
    volume = scales_of(given)
    where = resolve_target(_volume_of(given), None, given.run_dir)
    places = [ScaleTargets.of(where, each.wanted.scale.key, given.run_dir) for each in volume]
    remedy = "give another key, or remove that scale yourself"
    run = for_new_array(options_from(given, RunOptions, remedy_if_there=remedy))
    planned = options_from(given, PlanOptions)
    jobs = [
        Job(
            chunks,
            noting_axes(plan, each.axes),
            place.spool if each.wanted.is_scattered else place.scale,
            run,
        )
        for each, place in zip(volume, places, strict=True)
        for chunks, plan in [each.planned(planned, where.store)]
    ]

    def entered(old: Any) -> Any:
        return reduce(merged_info, (each.wanted for each in volume), old)

    entered(read_volume(where.place))  # What cannot be entered is refused before a run.
    engine = active_engine()
    results = _results(volume, places, jobs, engine, given.progress)
    change_info(where, entered, jobs[0].durability)
    for each, place in zip(volume, places, strict=True):
        if each.wanted.is_scattered and has_spool(place.spool):
            remove_spool(place.spool)
    return volume_result(results)


def _results(
    volume: list[ScaleOfArray],
    places: list[ScaleTargets],
    jobs: list[Job],
    engine: Engine,
    progress: bool | Callable[[GroupReport], None],
) -> list[WriteResult]:
    """Write all scales: first those whose shards are boxes, together, and then the others."""
    boxes = [job for each, job in zip(volume, jobs, strict=True) if not each.wanted.is_scattered]
    together = iter(execute(boxes, engine, progress) if boxes else ())
    return [
        write_scattered(each.wanted, job, place.scale, engine, progress)
        if each.wanted.is_scattered
        else next(together)
        for each, place, job in zip(volume, places, jobs, strict=True)
    ]


def _volume_of(given: PlanPrecomputedArguments | PrecomputedArguments) -> Any:
    return at_url(without_kind(given.path), given.storage_options)

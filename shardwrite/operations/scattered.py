"""Scales whose hash scatters the chunks of each shard: they are written by way of a spool."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from shardwrite.engines import Engine
from shardwrite.errors import SpecError
from shardwrite.format.document import ArrayOptions, make_metadata
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.placed import ScatteredChunks
from shardwrite.format.precomputed.boxes import PrecomputedShards
from shardwrite.format.precomputed.new import ROW_MAJOR, NewScale
from shardwrite.format.precomputed.shard import GZIP_LEVEL
from shardwrite.journal import holding, refuse_other_run, take_away, tidied_run
from shardwrite.place.base import Place
from shardwrite.place.directory import Directory
from shardwrite.place.objects import InStore
from shardwrite.place.target import Target, resolve_new, resolve_target
from shardwrite.place.transformer import TransformerPlace
from shardwrite.plan import Plan
from shardwrite.plan.render import counted, human
from shardwrite.runs.begin import check_place
from shardwrite.runs.execute import execute
from shardwrite.runs.gathered import plan_gathering, spooled
from shardwrite.runs.job import Job, intent_of
from shardwrite.runs.kept import kept
from shardwrite.runs.progress import OnReport, reporting, tell_found
from shardwrite.runs.result import WriteResult
from shardwrite.runs.source import NoChunks
from shardwrite.stores import is_there

__all__ = [
    "SPOOL",
    "ScaleTargets",
    "abandon_scattered",
    "around",
    "array_options",
    "counted_as",
    "has_spool",
    "is_scattered",
    "places_around",
    "refuse_parts",
    "refuse_spool",
    "refuse_waiting",
    "spooled_notes",
    "write_scattered",
]

SPOOL = {"shardwrite": "encoded chunks of a volume, which wait until their shards are gathered"}
"""Attributes of a spool."""

_NAMES = {"c": "channel"}
_GZIP = {"name": "gzip", "configuration": {"level": GZIP_LEVEL}}


def array_options(new: NewScale, ndim: int) -> ArrayOptions:
    """Keywords of the array that a scale is.

    Parameters
    ----------
    new : NewScale
        The scale. Its shards are boxes.
    ndim : int
        Number of axes: 3, or 4 with channels.
    """
    chunks = new.scale.chunk_size[::-1]
    shards = tuple(n * c for n, c in zip(new.box[::-1], chunks, strict=True))
    channels = (new.volume.n_channels,) * (ndim - 3)
    return replace(
        _options(new),
        shards=(*channels, *shards),
        chunks=(*channels, *chunks),
        shard_format=PrecomputedShards(new.sharding),
        dimension_names=[_NAMES.get(axis, axis) for axis in ROW_MAJOR[-ndim:]],
    )


def _options(new: NewScale) -> ArrayOptions:
    """Keywords that do not depend on the shape of the array."""
    return ArrayOptions(
        filters=(),
        serializer=new.scale.encoding.codec,
        compressors=(_GZIP,) if new.sharding.data_encoding == "gzip" else (),
        fill_value=0,
        attributes={
            "precomputed": {
                "type": new.volume.kind,
                "resolution": new.entry["resolution"],
                "voxel_offset": new.entry["voxel_offset"],
            }
        },
    )


def _gathered(new: NewScale) -> ArrayMetadata:
    """Metadata of the array that has the chunks of a scale one after the other."""
    ids, scale, n_channels = new.scattered, new.scale, new.volume.n_channels
    chunks = (n_channels, *scale.chunk_size[::-1])
    n = ids.n_slots * n_channels
    options = replace(
        _options(new),
        shard_format=PrecomputedShards(new.sharding, scale.size),
        dimension_names=["chunk", "z", "y", "x"],
    )
    shape = (len(ids.numbers) * n, *chunks[1:])
    return make_metadata(shape, new.volume.dtype, (n, *chunks[1:]), chunks, options)


def spooled_notes(new: NewScale, spooling: Plan) -> tuple[str, ...]:
    """What a plan says of a scale whose chunks are scattered.

    Parameters
    ----------
    new : NewScale
        The scale.
    spooling : Plan
        Plan of the run that writes the spool.
    """
    sharding, ids = new.sharding, new.scattered
    is_lossy = new.scale.encoding.name == "jpeg"
    per_minishard = ids.most_in_a_minishard(sharding)
    chunk_nbytes = math.prod(new.scale.chunk_size) * new.volume.n_channels
    chunk_nbytes *= new.volume.dtype.itemsize
    return (
        (
            f"{sharding.hash} scatters the chunks, so they are written twice. Up to "
            f"{human(spooling.raw_nbytes)} are spooled beside the scale, less what compression "
            "saves. The spool is removed at the end"
        ),
        (
            f"preshift_bits {sharding.preshift_bits}, minishard_bits {sharding.minishard_bits}, "
            f"shard_bits {sharding.shard_bits}: up to {counted(len(ids.numbers), 'file')} of "
            f"{human(ids.n_slots * chunk_nbytes)} decoded"
        ),
        (
            f"index per read: 16 B, and up to {human(24 * per_minishard)} for a minishard of "
            f"{counted(per_minishard, 'chunk')}"
        ),
        f"each file begins with an index of {human(sharding.shard_index_nbytes)}",
        *(("values change, since the encoding is jpeg",) if is_lossy else ()),
    )


@dataclass(frozen=True, slots=True)
class ScaleTargets:
    """Where a scale goes.

    Attributes
    ----------
    volume : Target
        The volume, in which ``info`` lies.
    scale : Target
        The array that the scale is.
    spool : Target
        Where encoded chunks wait, if the hash scatters them.
    """

    volume: Target
    scale: Target
    spool: Target

    @classmethod
    def of(cls, volume: Target, key: str, run_dir: Any) -> ScaleTargets:
        """Find the places of a scale in a volume.

        Raises
        ------
        SpecError
            If no state of a run can lie there.
        """
        place, spool = volume.place, f".{key}.spool"  # no key of a scale begins with a dot
        if isinstance(place, InStore):
            # As arrays of their own, so that the volume does not become a group of Zarr.
            found = [resolve_new(place.store.at(name), None, run_dir) for name in (key, spool)]
        else:
            path = volume.directory.path
            found = [resolve_new(str(path / name), None, run_dir) for name in (key, spool)]
        return cls(volume, *found)


def write_scattered(
    new: NewScale, spool: Job, scale: Target, engine: Engine, progress: bool | OnReport
) -> WriteResult:
    """Write a scale whose hash scatters the chunks: all into the spool, and then into their shards.

    The spool stays. `remove_spool` takes it away once the scale is in the ``info`` of its volume.

    Parameters
    ----------
    new : NewScale
        The scale.
    spool : Job
        The spool.
    scale : Target
        Place of the scale.
    engine : Engine
        The engine that runs the tasks.
    progress : bool or callable
        See `reporting`.

    Raises
    ------
    ShardwriteError
        See :func:`shardwrite.to_precomputed`.
    """
    plan = plan_gathering(_gathered(new), spool.plan, engine)
    job = Job(NoChunks(), plan, scale, spool.options)
    raw_nbytes = spool.plan.raw_nbytes
    with holding(scale), reporting(progress, raw_nbytes + plan.raw_nbytes) as on_report:
        found = kept(job, engine)
        if found.result is not None and found.there is None:
            tell_found(on_report, raw_nbytes + plan.raw_nbytes)
            return counted_as(found.result, new)
        # What is in the way is refused before anything is spooled.
        if found.result is None:
            check_place(job)
        if not spool.options.restart:
            mode = spool.options.mode if found.there is None else "r+"
            refuse_other_run(scale, intent_of(plan, mode))
        with spooled(spool, engine, on_report) as chunks:
            (result,) = execute([replace(job, source=chunks)], engine, on_report)
    return counted_as(result, new)


def counted_as(result: WriteResult, new: NewScale) -> WriteResult:
    """The result with numbers of the volume, in which each chunk has its place but once.

    Parameters
    ----------
    result : WriteResult
        Result of the run that has gathered the chunks.
    new : NewScale
        The scale.
    """
    scale = new.scale
    n_chunks = math.prod(scale.grid)
    n_stored = result.n_chunks - result.n_empty_chunks
    raw_nbytes = math.prod(scale.size) * new.volume.n_channels * new.volume.dtype.itemsize
    resumed = raw_nbytes * result.resumed_nbytes // max(1, result.raw_nbytes)
    return replace(
        result,
        n_chunks=n_chunks,
        n_empty_chunks=n_chunks - n_stored,
        raw_nbytes=raw_nbytes,
        resumed_nbytes=resumed,
    )


def abandon_scattered(target: Target, run_dir: Any) -> bool:
    """Give up a scale whose chunks wait in a spool, and remove what was written of it.

    A scale that is whole stays, and the spool alone is removed. If it was being repaired, each of
    its shards stays as it is, old or new.

    Parameters
    ----------
    target : Target
        Place of an array.
    run_dir : str or path, optional
        See `resolve_target`.

    Returns
    -------
    bool
        Whether there was a spool.

    Raises
    ------
    JournalError
        If a process works on it.
    StoreError
        If something cannot be removed.
    """
    targets = places_around(target, run_dir)
    if targets is None or not has_spool(targets.spool):
        return False
    with holding(targets.scale, targets.spool):
        for each in (targets.scale, targets.spool):
            run = tidied_run(each)
            if run is not None:
                take_away(run)
    return True


def is_scattered(target: Target, run_dir: Any) -> bool:
    """Whether `abandon_scattered` would give something up."""
    targets = places_around(target, run_dir)
    return targets is not None and has_spool(targets.spool)


def has_spool(spool: Target) -> bool:
    """Whether something stands at the place of a spool, or of the state of its run."""
    return spool.place.is_occupied() or (not spool.in_store and is_there(spool.beside))


def places_around(target: Target, run_dir: Any) -> ScaleTargets | None:
    """Places of the scale that an array may be; None if it lies in nothing.

    Parameters
    ----------
    target : Target
        Place of the array.
    run_dir : str or path, optional
        See `resolve_target`.
    """
    found = around(target.place)
    if found is None:
        return None
    volume, above, key = found
    return ScaleTargets.of(resolve_target(volume, above or None, run_dir), key, run_dir)


def around(place: Place) -> tuple[Any, str, str] | None:
    """Store, path and key of a scale, by the place of its array; None if it lies in nothing.

    Parameters
    ----------
    place : Place
        Place of the array.
    """
    if isinstance(place, Directory):
        return str(place.path.parent), "", place.path.name
    if not isinstance(place, InStore) or isinstance(place, TransformerPlace):
        return None
    if place.name:
        above, _, key = place.name.rpartition("/")
        return place.base, above, key
    volume, _, key = (place.store.url or "").rpartition("/")
    return (volume, "", key) if "://" in volume.rstrip("/") and key else None


def refuse_waiting(target: Target, run_dir: Any) -> None:
    """Refuse to open a scale of which nothing is there but its spool.

    Raises
    ------
    SpecError
        If it is one. The error says how to go on.
    """
    if not target.is_published and is_scattered(target, run_dir):
        raise SpecError(
            "no array yet: a call has spooled its encoded chunks, and has not ended",
            field="store",
            value=target.label,
            remedy="make the same call again to finish it, or give it up by abandon "
            "(shardwrite abandon)",
        )


def refuse_parts(metadata: ArrayMetadata) -> None:
    """Refuse to write an array in parts whose chunks come from a spool, or are to go there.

    Raises
    ------
    SpecError
        If it is one.
    """
    refuse_spool(metadata)
    if isinstance(metadata.placed, ScatteredChunks):
        raise SpecError(
            "is that of a scale whose hash scatters the chunks, which is not written in parts",
            field="run",
            value="gathering",
            remedy="make the call of to_precomputed (shardwrite precomputed) again to finish it, "
            "or give it up by abandon (shardwrite abandon)",
        )


def refuse_spool(metadata: ArrayMetadata) -> None:
    """Refuse to write the plan of a spool as an array.

    Raises
    ------
    SpecError
        If it is one.
    """
    if metadata.document.get("attributes") == SPOOL:
        raise SpecError(
            "is that of a scale whose hash scatters the chunks, which is not written in parts",
            field="plan",
            value="spool",
            remedy="write it in one job by to_precomputed (shardwrite precomputed), or give "
            '"hash": "identity"',
        )

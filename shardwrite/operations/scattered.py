"""Scales whose chunks are scattered over the shards: they are written by way of a spool.

A hash scatters them, or too few bits of the shards.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from shardwrite.engines import Engine
from shardwrite.errors import SpecError
from shardwrite.format.document import ArrayOptions, make_metadata
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.precomputed.boxes import PrecomputedShards
from shardwrite.format.precomputed.new import ROW_MAJOR, NewScale
from shardwrite.format.precomputed.shard import GZIP_LEVEL
from shardwrite.journal import (
    fetched,
    find_run,
    holding,
    refuse_other_run,
    take_away,
    tidied_run,
)
from shardwrite.place.scale import ScaleTargets, has_spool, places_around
from shardwrite.place.target import Target
from shardwrite.plan import Plan
from shardwrite.results import counted, human
from shardwrite.runs.begin import check_place
from shardwrite.runs.execute import execute
from shardwrite.runs.gathered import gathering_nbytes, makes_scale, spooled
from shardwrite.runs.job import Job, intent_of
from shardwrite.runs.kept import kept
from shardwrite.runs.progress import OnReport, reporting, tell_found
from shardwrite.runs.result import WriteResult
from shardwrite.runs.source import NoChunks

SPOOL = {"shardwrite": "encoded chunks of a volume, which wait until their shards are gathered"}
"""Attributes of a spool."""

_NAMES = {"c": "channel"}
_GZIP = {"name": "gzip", "configuration": {"level": GZIP_LEVEL}}


def array_options(new: NewScale, ndim: int) -> ArrayOptions:
    """Keywords of the array that a scale is.

    - `new`: the scale. Its shards are boxes.
    - `ndim`: number of axes: 3, or 4 with channels.
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


def gathered_metadata(new: NewScale) -> ArrayMetadata:
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


def spooled_notes(
    new: NewScale, spooling: Plan, gathering: Plan
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What plans say of a scale whose chunks are scattered: of its spool, and of its shards."""
    sharding, ids = new.sharding, new.scattered
    is_lossy = new.scale.encoding.name == "jpeg"
    per_minishard = ids.most_in_a_minishard(sharding)
    chunk_nbytes = math.prod(new.scale.chunk_size) * new.volume.n_channels
    chunk_nbytes *= new.volume.dtype.itemsize
    scatters = (
        f"{sharding.hash} scatters"
        if sharding.hash != "identity"
        else f"shard_bits {sharding.shard_bits} are too few for boxes and scatter"
    )
    of_spool = (
        (
            f"{scatters} the chunks, so they are written twice. Up to "
            f"{human(spooling.raw_nbytes)} are spooled beside the scale, less what compression "
            "saves. The spool is removed at the end"
        ),
    )
    of_scale = (
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
        (
            f"a process takes up to {human(gathering_nbytes(gathering, spooling.n_shards))} of "
            "memory while it gathers chunks out of the spool"
        ),
        *(("values change, since the encoding is jpeg",) if is_lossy else ()),
    )
    return of_spool, of_scale


def write_scattered(
    new: NewScale, spool: Job, scale: Target, engine: Engine, progress: bool | OnReport
) -> WriteResult:
    """Write a scale whose hash scatters the chunks: all into the spool, and then into their shards.

    The spool stays. `remove_spool` takes it away once the scale is in the ``info`` of its volume.
    """
    plan = spool.plan.gathering
    if plan is None:
        raise TypeError("the plan of a spool says how its chunks are gathered")
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
    """The result with numbers of the volume, in which each chunk has its place but once."""
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


def abandon_scale(target: Target, run_dir: Any) -> bool:
    """Give up a scale that is being made or has a spool, and remove what was written of it.

    A scale that is whole stays, and the spool alone is removed. If it was being repaired, each of
    its shards stays as it is, old or new.
    """
    targets = places_around(target, run_dir)
    if targets is None or not _is_begun(targets):
        return False
    with holding(targets.scale, targets.spool):
        for each in (targets.scale, targets.spool):
            run = tidied_run(each)
            if run is not None:
                take_away(run)
    return True


def is_abandonable(target: Target, run_dir: Any) -> bool:
    """Whether `abandon_scale` would give something up."""
    targets = places_around(target, run_dir)
    return targets is not None and _is_begun(targets)


def _is_begun(targets: ScaleTargets) -> bool:
    """Whether a scale is being made, or has a spool."""
    if has_spool(targets.spool):
        return True
    run = find_run(fetched(targets.scale))
    return run is not None and makes_scale(run)


def refuse_waiting(target: Target, run_dir: Any) -> None:
    """Refuse to open a scale of which nothing is there but its spool."""
    targets = None if target.is_published else places_around(target, run_dir)
    if targets is not None and has_spool(targets.spool):
        raise SpecError(
            "no array yet: a call has spooled its encoded chunks, and has not ended",
            field="store",
            value=target.label,
            remedy="make the same call again to finish it, or give it up by abandon (shardwrite "
            "abandon). If it is written in parts, write these, and then call finalize",
        )


def refuse_spool(metadata: ArrayMetadata) -> None:
    """Refuse to take the spool of a scale for an array of its own."""
    if metadata.document.get("attributes") == SPOOL:
        raise SpecError(
            "is the spool of a scale, in which encoded chunks wait, and no array",
            field="store",
            value="spool",
            remedy="give the path of the scale, which the spool lies beside",
        )

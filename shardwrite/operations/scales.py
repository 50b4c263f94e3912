"""Scales of volumes that are written in parts, and the ``info`` that they enter in the end."""

from __future__ import annotations

from typing import Any

import shardwrite._dask as dask
from shardwrite.engines import Engine
from shardwrite.errors import SpecError
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.placed import ScatteredChunks
from shardwrite.format.precomputed.new import NewScale, merged_info
from shardwrite.format.precomputed.stored import has_scattered_chunks, stored_scale
from shardwrite.journal import RunDirectory
from shardwrite.journal.volume_info import change_info, read_volume
from shardwrite.operations.scattered import counted_as, refuse_spool
from shardwrite.operations.scattered_parts import ScatteredRun, prepare_scattered
from shardwrite.operations.scattered_repair import gather_again
from shardwrite.operations.steps import ArraySteps, BadShards, RepairOptions
from shardwrite.place.scale import around, has_spool, places_around
from shardwrite.place.target import Target, resolve_target
from shardwrite.runs.gathered import remove_spool
from shardwrite.runs.job import Job
from shardwrite.runs.result import WriteResult


class ScaleSteps(ArraySteps):
    """See :class:`ArraySteps`; a scale is listed in the ``info`` of its volume."""

    def check_new(self, target: Target, metadata: ArrayMetadata, run_dir: Any) -> None:
        """See :meth:`ArraySteps.check_new`: its volume must take it."""
        found = _scale_at(target, metadata, run_dir)
        if found is not None:
            merged_info(read_volume(found[0].place), found[1])

    def prepare(
        self, job: Job, target: Target, engine: Engine, run_dir: Any, stripe_count: int | None
    ) -> None:
        """See :meth:`ArraySteps.prepare`."""
        if job.plan.gathering is None:
            super().prepare(job, target, engine, run_dir, stripe_count)
        else:
            prepare_scattered(job, target, engine, run_dir, stripe_count)

    def in_parts(
        self, run: RunDirectory, metadata: ArrayMetadata, engine: Engine, run_dir: Any, limit: Any
    ) -> ScatteredRun | None:
        """See :meth:`ArraySteps.in_parts`: it goes by way of a spool if chunks are scattered."""
        refuse_spool(metadata)
        scattered = has_scattered_chunks(metadata)
        targets = places_around(run.target, run_dir) if scattered else None
        return None if targets is None else ScatteredRun(run, targets, engine, limit)

    def enter(self, target: Target, metadata: ArrayMetadata, run_dir: Any) -> None:
        """See :meth:`ArraySteps.enter`. Its spool is then removed, if it has one."""
        found = _scale_at(target, metadata, run_dir)
        if found is not None:
            volume, scale = found
            change_info(volume, lambda old: merged_info(old, scale), volume.durability())
            if scale.is_scattered:
                _remove_left_spool(target, run_dir)

    def counted(self, target: Target, metadata: ArrayMetadata, result: WriteResult) -> WriteResult:
        """See :meth:`ArraySteps.counted`."""
        scale = stored_scale(metadata, (around(target.place) or ("", "", ""))[2])
        return result if scale is None or not scale.is_scattered else counted_as(result, scale)

    def write_again(
        self, x: dask.array.Array, bad: BadShards, options: RepairOptions
    ) -> WriteResult:
        """See :meth:`ArraySteps.write_again`."""
        if isinstance(bad.metadata.placed, ScatteredChunks):
            return gather_again(x, bad, options)
        return super().write_again(x, bad, options)

    def end_repair(self, target: Target, metadata: ArrayMetadata, run_dir: Any) -> None:
        """See :meth:`ArraySteps.end_repair`: a spool that was left right before the end."""
        if isinstance(metadata.placed, ScatteredChunks):
            _remove_left_spool(target, run_dir)


def _remove_left_spool(target: Target, run_dir: Any) -> None:
    places = places_around(target, run_dir)
    if places is not None and has_spool(places.spool):
        remove_spool(places.spool)


def _scale_at(
    target: Target, metadata: ArrayMetadata, run_dir: object
) -> tuple[Target, NewScale] | None:
    """The volume of an array, and the scale that it is; None if it is none."""
    refuse_spool(metadata)
    volume, above, key = around(target.place) or (None, "", "")
    scale = stored_scale(metadata, key)
    if scale is None:
        return None
    if not key:
        raise SpecError(
            "a scale lies in a volume",
            field="store",
            value=target.label,
            remedy="give a URL that ends in the key of the scale, or that key as name=",
        )
    return resolve_target(volume, above or None, run_dir), scale

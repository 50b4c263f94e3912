"""Repair of scales whose hash scatters the chunks: the chunks of the bad shards are spooled again.

The source is read as a whole, because the chunks of a shard lie everywhere in it. Only the chunks
of the bad shards are encoded and spooled.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from dask.base import tokenize

import shardwrite._dask as dask
from shardwrite.engines import active_engine
from shardwrite.errors import SpecError
from shardwrite.format.placed import ScatteredChunks
from shardwrite.format.precomputed.stored import stored_scale
from shardwrite.grid import Box
from shardwrite.journal import holding, refuse_other_run, tidied_run
from shardwrite.operations.scattered import SPOOL, array_options, counted_as
from shardwrite.operations.steps import BadShards, RepairOptions
from shardwrite.place.scale import around, places_around
from shardwrite.plan import PlanOptions
from shardwrite.plan.sizes import parse_nbytes
from shardwrite.runs.array_chunks import ArrayChunks
from shardwrite.runs.array_plan import identity_of, plan_array
from shardwrite.runs.execute import execute_missing
from shardwrite.runs.gathered import plan_gathering, remove_spool, spooled
from shardwrite.runs.job import Job, intent_of
from shardwrite.runs.progress import reporting
from shardwrite.runs.result import WriteResult
from shardwrite.runs.source import Key, TaskBox

_SHARD_NBYTES, _INDEX_NBYTES = parse_nbytes("128 MiB", "shard"), parse_nbytes("12.5 kB", "index")


@dataclass(frozen=True, slots=True)
class _IsOfThese:
    """Whether an inner chunk of a spool belongs to some of the shards."""

    placed: ScatteredChunks  # all shards
    ranks: frozenset[int]  # ranks of these

    def __call__(self, box: Box) -> bool:
        """See `EncodeOptions`."""
        shape = self.placed.origin_shape
        inside = box.intersect(Box((0,) * len(shape), shape))
        return any(rank in self.ranks for rank, _ in self.placed.chunks_in(inside))


class _AllOfThese(ArrayChunks):
    """Values of a volume, of which a spool also keeps the empty chunks of some shards."""

    def __init__(self, x: dask.array.Array, kept: _IsOfThese) -> None:
        super().__init__(x)
        self._kept = kept

    def write(self, at: TaskBox) -> dict[Key, Any]:
        """See :class:`ChunkSource`."""
        return super().write(self._keeping(at))

    def encode(self, at: TaskBox) -> dict[Key, Any]:
        """See :class:`ChunkSource`."""
        return super().encode(self._keeping(at))

    def _keeping(self, at: TaskBox) -> TaskBox:
        return replace(at, spec=replace(at.spec, kept=self._kept))


def gather_again(x: dask.array.Array, bad: BadShards, options: RepairOptions) -> WriteResult:
    """Spool the chunks of bad shards, and write these shards again."""
    placed, engine = bad.metadata.placed, active_engine()
    key = (around(bad.target.place) or ("", "", ""))[2]
    targets, scale = places_around(bad.target, options.run_dir), stored_scale(bad.metadata, key)
    if targets is None or scale is None or not isinstance(placed, ScatteredChunks):
        raise SpecError(
            "is no scale in a volume any more",
            field="store",
            value=bad.target.label,
            remedy="write the volume again: shardwrite.to_precomputed, with another path",
        )
    identity = bad.identity_prefix + identity_of(x)
    wanted = hashlib.sha256(np.sort(list(bad.ranks)).astype("<i8").tobytes()).hexdigest()[:16]
    only = _only(x, placed, bad.ranks, wanted)
    plan = plan_array(
        only,
        engine,
        replace(
            array_options(scale.spooled(_SHARD_NBYTES, _INDEX_NBYTES), x.ndim), attributes=SPOOL
        ),
        # A spool of other shards has other chunks, so their ranks belong to its identity.
        PlanOptions(memory_limit=options.memory_limit, source_id=f"{identity}:{wanted}"),
    )
    with holding(targets.spool):
        run = tidied_run(targets.spool)
        is_other = run is not None and run.digest != intent_of(plan, "w-").digest
    kept = _IsOfThese(placed, bad.ranks)
    values = _AllOfThese(only, kept) if options.stores_empty else ArrayChunks(only)
    spool = Job(values, plan, targets.spool, replace(options.run, mode="w-", restart=is_other))
    source = replace(plan.source, identity=identity, is_stable=False)
    gathering = plan_gathering(bad.metadata, replace(plan, source=source), engine)
    refuse_other_run(bad.target, intent_of(gathering, "r+"))  # before anything is spooled
    nbytes = plan.raw_nbytes + gathering.raw_nbytes
    with (
        reporting(options.progress, nbytes) as on_report,
        spooled(spool, engine, on_report) as chunks,
    ):
        job = Job(chunks, gathering, bad.target, options.run)
        result = execute_missing(job, engine, on_report, bad.look)
    remove_spool(targets.spool)
    return counted_as(result, scale)


def _only(
    x: dask.array.Array, placed: ScatteredChunks, ranks: frozenset[int], wanted: str
) -> dask.array.Array:
    """The source with zeros in all chunks of other shards, so that these are not stored."""
    made: dask.array.Array = dask.array.map_blocks(
        partial(_only_of_block, placed=placed, ranks=ranks),
        x,
        dtype=x.dtype,
        meta=np.empty((0,) * x.ndim, x.dtype),
        name=f"shardwrite-only-{tokenize(x.name, wanted)}",
    )
    return made


def _only_of_block(
    block: npt.NDArray[Any],
    placed: ScatteredChunks,
    ranks: frozenset[int],
    block_info: Any = None,
) -> npt.NDArray[Any]:
    bounds = block_info[0]["array-location"]
    region = Box(tuple(int(a) for a, _ in bounds), tuple(int(b) for _, b in bounds))
    made = np.zeros_like(block)
    for rank, chunks in placed.chunks_in(region):
        if rank in ranks:
            for _, box in chunks:
                part = box.intersect(region).shift(region.start).slices
                made[part] = block[part]
    return made

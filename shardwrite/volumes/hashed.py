"""Scales whose chunks are scattered over the shards by a hash: written, repaired, and in parts.

The hash of a volume may scatter the chunks of each shard over the volume, and so do parameters that
leave too few bits for the shards. The chunks are then written twice. A first run encodes them into
shards that are boxes of the volume, the *spool*, and is never finished. A second run gathers them
into their own shards. Both are runs as all others are, so each goes on where it stopped, and can be
written in parts. In the end, the first run is given up, and takes the spool away.

A repair reads the source as a whole, because the chunks of a shard lie everywhere in it. Only the
chunks of the bad shards are encoded and spooled.

In parts, `prepare` begins both runs. In a first round, each part spools its share of the chunks. In
a second one, each part gathers its share of the shards out of the spool. `finalize` gathers what is
left, so that the second round may be left out.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from dask.base import tokenize
from dask.task_spec import Task

import shardwrite._dask as dask
from shardwrite._dataclass import dataclass
from shardwrite.engines import active_engine
from shardwrite.engines.local import Engine
from shardwrite.errors import JournalError, RunEndedError, SpecError, StoreError
from shardwrite.format.document import ArrayOptions, make_metadata
from shardwrite.format.metadata import ArrayMetadata, metadata_of_document
from shardwrite.format.passage import Passage
from shardwrite.format.sharding import ScatteredChunks
from shardwrite.grid import Box
from shardwrite.journal.begin import find_run, refuse_other_run, tidied_run
from shardwrite.journal.lease import live_holders
from shardwrite.journal.replay import replay
from shardwrite.journal.rundir import RunDirectory, holding
from shardwrite.journal.state_work import fetched
from shardwrite.journal.takeover import discard_run
from shardwrite.operations.steps import (
    ArraySteps,
    BadShards,
    Progress,
    RepairOptions,
    Share,
    check_fits,
)
from shardwrite.place.objects import InStore
from shardwrite.place.target import Target, resolve_target
from shardwrite.plan.estimate import Resources
from shardwrite.plan.model import SourceLayout
from shardwrite.plan.options import PlanOptions, parse_nbytes
from shardwrite.plan.plan import Part, Plan, check_copying, copying_nbytes
from shardwrite.read.array import ShardedArray
from shardwrite.results import human
from shardwrite.runs.array_plan import (
    ArrayChunks,
    identity_of,
    plan_array,
    plan_into,
    resources_of,
)
from shardwrite.runs.begin import check_place
from shardwrite.runs.begun import plan_begun
from shardwrite.runs.execute import Mode, OnReport, Run, execute, reporting, tell_earlier
from shardwrite.runs.in_parts import prepare_jobs, refuse_missing, refuse_unwritten, runs_on
from shardwrite.runs.job import Job, Key, NoChunks, TaskBox, digest_of, intent_of
from shardwrite.runs.kept import FinishedArray, check_finished_array, check_kept
from shardwrite.runs.result import WriteResult, finished
from shardwrite.runs.session import Session
from shardwrite.runs.stored_chunks import EncodedChunks
from shardwrite.stores.base import Store
from shardwrite.volumes.documents import (
    ScaleTargets,
    change_info,
    has_spool,
    read_volume,
    scale_targets_of,
    volume_and_key,
)
from shardwrite.volumes.info import AXIS_NAMES, scale_attributes
from shardwrite.volumes.new import (
    ROW_MAJOR,
    NewScale,
    has_scattered_chunks,
    is_scale,
    loss_notes,
    merged_info,
    shard_notes,
    stored_scale,
)
from shardwrite.volumes.scale import PrecomputedShards
from shardwrite.volumes.sharding import GZIP_LEVEL
from shardwrite.write.copying import Donor, copy_group, gathered_nbytes

_ID_NBYTES = 40  # of each chunk of the volume, while a process finds out which shard has it


# ---- The spool as a source of chunks


@dataclass(frozen=True, slots=True)
class _Committed:
    """Shards that a run has committed."""

    bits: bytes  # A bit for each shard by its row-major rank: whether it has an object

    def has(self, rank: int) -> bool:
        """Whether the shard of a row-major rank has an object."""
        return bool(self.bits[rank // 8] >> (7 - rank % 8) & 1)

    def missing(self, key: str) -> StoreError:
        """The error that one of these objects is missing."""
        return StoreError(
            f"{key!r} is missing, in which encoded chunks wait. It is not taken for empty. Make "
            "the same call again with restart=True",
            key=key,
            errno=errno.ENOENT,
        )


@dataclass(frozen=True, slots=True)
class GatheredChunks(EncodedChunks):
    """Encoded inner chunks in the spool."""

    spool: ShardedArray
    listed: _Committed  # the shards that it has

    @property
    def dtype(self) -> np.dtype[Any]:
        """See :class:`ChunkSource`."""
        return self.spool.dtype

    @property
    def region(self) -> None:
        """See :class:`ChunkSource`."""
        return

    def write(self, at: TaskBox) -> dict[Key, Any]:
        """See :class:`ChunkSource`."""
        donor = Donor(self.spool, Passage(), listed=self.listed)
        return {at.key: Task(at.key, copy_group, at.spec, donor, at.box, at.skip)}


def is_gathering(run: RunDirectory) -> bool:
    """Whether a run makes a scale of a volume whose hash scatters the chunks.

    - Raises SpecError if the document in its record is none of an array.
    """
    return run.makes_array and has_scattered_chunks(metadata_of_document(run.document))


def makes_scale(run: RunDirectory) -> bool:
    """Whether a run makes a scale of a volume; see `is_gathering` for what it raises."""
    return run.makes_array and is_scale(metadata_of_document(run.document))


def plan_gathering(
    metadata: ArrayMetadata, spooling: Plan, engine: Engine, store: Store | None = None
) -> Plan:
    """Plan of the run that gathers chunks out of the spool.

    - `metadata`: metadata of the array that has the chunks one after the other.
    - `store`: where the volume will lie. If it is not known, nothing waits for it in memory.
    """
    source, limit = spooling.source, spooling.resources.memory_limit_nbytes
    layout = SourceLayout(metadata.grid.sizes, 0, source.identity, source.is_stable)
    options = PlanOptions(write_empty_chunks=spooling.write_empty_chunks, memory_limit=limit)
    made = plan_into(metadata, layout, engine, options, store, by_groups=True)
    _check_fits(made, spooling.n_shards)
    return made


def gathering_nbytes(plan: Plan, n_shards: int) -> int:
    """Memory of a process that gathers chunks out of a spool, in bytes, at most."""
    needed = copying_nbytes(plan, gathered_nbytes(plan.metadata, n_shards) + plan.held_nbytes)
    return needed + _ID_NBYTES * plan.n_inner_chunks


def _check_fits(plan: Plan, n_shards: int) -> None:
    remedy = "use fewer threads per process, or give more shard_bits, or raise memory_limit"
    needed = gathering_nbytes(plan, n_shards)
    check_copying(plan, needed, "gathers chunks out of the spool", remedy)


@contextlib.contextmanager
def spooled(job: Job, engine: Engine, on_report: OnReport) -> Iterator[GatheredChunks]:
    """Write the spool, and hold its run while the block gathers chunks out of it.

    - Raises IncompleteError if shards of the spool are missing at the end.
    """
    with Run.open([job], engine, on_report, "again") as run:
        run.execute(publish=False)
        yield _chunks_in(run.session)


@contextlib.contextmanager
def whole_spool(
    job: Job, engine: Engine, n_parts: int | None, mode: Mode
) -> Iterator[GatheredChunks]:
    """Take part in the run of a spool that is whole, while the block gathers chunks out of it.

    The index of every shard of the spool is looked at first.

    - `job`: the spool. Its source is not asked for chunks.
    - `mode`: ``"join"`` or ``"end"``.
    - Raises IncompleteError if shards of the spool are missing or damaged.
    - Raises RunEndedError if the run has ended in the meantime.
    """
    with Run.open([job], engine, mode=mode) as run:
        run.session.refuse_unread()
        refuse_missing(job, run.session.ledger, n_parts)
        yield _chunks_in(run.session)


def _chunks_in(session: Session) -> GatheredChunks:
    """The chunks in a spool all of whose shards are done."""
    job, is_there = session.job, session.ledger.nbytes > 0
    array = ShardedArray(job.plan.metadata, job.target.store)
    return GatheredChunks(array, _Committed(np.packbits(is_there).tobytes()))


def remove_spool(target: Target) -> bool:
    """Give up the run that writes a spool, which takes the spool away.

    If another process works on the run, that process does so in the end.
    """
    with holding(target):
        run = tidied_run(target)
        if run is not None and not live_holders(run.shared):
            discard_run(run)
    return run is not None


# ---- Writing by way of a spool


SPOOL = {"shardwrite": "encoded chunks of a volume, which wait until their shards are gathered"}
"""Attributes of a spool."""

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
        dimension_names=[AXIS_NAMES[axis] for axis in ROW_MAJOR[-ndim:]],
    )


def _options(new: NewScale) -> ArrayOptions:
    """Keywords that do not depend on the shape of the array."""
    return ArrayOptions(
        filters=(),
        serializer=new.scale.encoding.codec,
        compressors=(_GZIP,) if new.sharding.data_encoding == "gzip" else (),
        fill_value=0,
        attributes=scale_attributes(
            new.volume.kind, new.entry["resolution"], new.entry["voxel_offset"]
        ),
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
    shard_nbytes, per_minishard = ids.n_slots * new.chunk_nbytes, ids.most_in_a_minishard(sharding)
    of_scale = (
        *shard_notes(new, len(ids.numbers), shard_nbytes, per_minishard),
        (
            f"a process takes up to {human(gathering_nbytes(gathering, spooling.n_shards))} of "
            "memory while it gathers chunks out of the spool"
        ),
        *loss_notes(new),
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
        result = finished([job])[0]
        found = FinishedArray() if result is None else check_finished_array(job, result, engine)
        if found.result is not None and found.good_shards is None:
            tell_earlier(on_report, raw_nbytes + plan.raw_nbytes)
            return counted_as(found.result, new)
        # What is in the way is refused before anything is spooled.
        if found.result is None:
            check_place(job)
        if not spool.options.restart:
            mode = spool.options.mode if found.good_shards is None else "r+"
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
    targets = scale_targets_of(target, run_dir)
    if targets is None or not _is_begun(targets):
        return False
    with holding(targets.scale, targets.spool):
        for each in (targets.scale, targets.spool):
            run = tidied_run(each)
            if run is not None:
                discard_run(run)
    return True


def is_abandonable(target: Target, run_dir: Any) -> bool:
    """Whether `abandon_scale` would give something up."""
    targets = scale_targets_of(target, run_dir)
    return targets is not None and _is_begun(targets)


def _is_begun(targets: ScaleTargets) -> bool:
    """Whether a scale is being made, or has a spool."""
    if has_spool(targets.spool):
        return True
    run = find_run(fetched(targets.scale))
    return run is not None and makes_scale(run)


def refuse_waiting(target: Target, run_dir: Any) -> None:
    """Refuse to open a scale of which nothing is there but its spool."""
    targets = None if target.is_published else scale_targets_of(target, run_dir)
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


# ---- Repair


_SHARD_NBYTES, _INDEX_NBYTES = parse_nbytes("128 MiB", "shard"), parse_nbytes("12.5 kB", "index")


@dataclass(frozen=True, slots=True)
class _InShards:
    """Whether an inner chunk of a spool belongs to some of the shards."""

    placed: ScatteredChunks  # all shards
    ranks: frozenset[int]  # ranks of these

    def __call__(self, box: Box) -> bool:
        """See `EncodeOptions`."""
        shape = self.placed.origin_shape
        inside = box.intersect(Box((0,) * len(shape), shape))
        return any(rank in self.ranks for rank, _ in self.placed.chunks_in(inside))


class _KeepEmptyChunksOf(ArrayChunks):
    """Values of a volume, of which a spool also keeps the empty chunks of some shards."""

    def __init__(self, x: dask.array.Array, placed: ScatteredChunks, ranks: frozenset[int]) -> None:
        super().__init__(x)
        self._kept = partial(_InShards, placed, ranks)

    def specified(self, at: TaskBox) -> TaskBox:
        """See :meth:`ArrayChunks.specified`."""
        return replace(at, spec=replace(at.spec, kept=self._kept))


def gather_again(x: dask.array.Array, bad: BadShards, options: RepairOptions) -> WriteResult:
    """Spool the chunks of bad shards, and write these shards again."""
    placed, engine = bad.metadata.placed, active_engine()
    targets = scale_targets_of(bad.target, options.run_dir)
    scale = _stored_at(bad.target, bad.metadata)
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
        PlanOptions(memory_limit=options.planned.memory_limit, source_id=f"{identity}:{wanted}"),
    )
    with holding(targets.spool):
        run = tidied_run(targets.spool)
        is_other = run is not None and run.digest != digest_of(plan, "w-")
    values = (
        _KeepEmptyChunksOf(only, placed, bad.ranks)
        if options.planned.write_empty_chunks
        else ArrayChunks(only)
    )
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
        with Run.open([job], engine, on_report, "again") as again:
            again.session.resume_from(bad.look())
            (result,) = again.execute()
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


# ---- Writing in parts: two rounds, and one end


def prepare_scattered(
    job: Job, scale: Target, engine: Engine, run_dir: object, stripe_count: int | None
) -> None:
    """Begin the runs of a scale whose hash scatters the chunks.

    - `job`: the spool, at the place of the scale. Its plan says how the chunks are gathered.
    """
    if isinstance(scale.place, InStore) and scale.place.name:
        raise SpecError(
            "a scale whose hash scatters the chunks has two runs, which are found by its URL only",
            field="name",
            value=scale.place.name,
            remedy='leave it out, and give the URL of the scale, such as "s3://bucket/brain/4_4_40"',
        )
    plan, targets = job.plan.gathering, scale_targets_of(scale, run_dir)
    if plan is None or targets is None:
        raise TypeError("it was checked that this is a scale, and how it is gathered")
    gathering = replace(job, source=NoChunks(is_encoded=True), plan=plan, target=targets.scale)
    with holding(targets.scale):
        if finished([gathering])[0] is not None:
            check_kept(targets.scale, engine)
            return
        # What is in the way is refused before anything is begun.
        check_place(gathering)
        if not job.options.restart:
            refuse_other_run(targets.scale, intent_of(plan, job.options.mode))
        spool = replace(job, target=targets.spool, options=replace(job.options, mode="w-"))
        prepare_jobs([spool, gathering], engine, stripe_count)


@dataclass(frozen=True, slots=True)
class ScatteredRun:
    """The runs of a scale whose hash scatters the chunks; see :class:`RunInParts`."""

    run: RunDirectory  # the run that gathers the chunks
    targets: ScaleTargets  # places of the scale
    engine: Engine  # the engine that runs the graphs
    # Bytes that this process may use. The engine's limit by default.
    memory_limit_nbytes: int | None = None

    def write(self, share: Share, progress: Progress) -> WriteResult:
        """Spool the chunks of a part. If nothing of that is left in any part, gather its shards."""
        try:
            result = self._write(share, progress)
        except StoreError as error:
            if not self.targets.scale.is_published:
                raise
            # The spool of a bucket may be gone before this process is told why.
            raise self._ended() from error
        finally:
            if self.run.has_ended:  # whoever ended it has left the spool to this process
                remove_spool(self.targets.spool)
        return replace(result, path=self.run.target.label)

    def _write(self, share: Share, progress: Progress) -> WriteResult:
        with self._spool(ends=False) as spool_run:
            job = self._spool_job(spool_run, share)
            part = job.plan.part(share.index, share.count)
            check_fits(job)
            result = self._write_part(replace(job, part=part), progress)
            n_left = result.n_shards + result.n_empty_shards - result.n_resumed_shards
            if n_left or len(replay(spool_run, job.plan.metadata).ledger.missing):
                return result
            # If only this look finds damage in other parts, the error names them.
            with whole_spool(job, self.engine, share.count, "join") as chunks:
                return self._gather(chunks, share, job.plan, progress)

    def _gather(
        self, chunks: GatheredChunks, share: Share, spooling: Plan, progress: Progress
    ) -> WriteResult:
        """Gather the shards of a part."""
        plan = self._gathering(spooling, spooling.source.identity)
        part = plan.part(*share.number)
        return self._write_part(Job.of_run(self.run, chunks, plan, part), progress)

    def _write_part(self, job: Job, progress: Progress) -> WriteResult:
        with Run.open([job], self.engine, progress, "part") as own:
            return own.execute()[0]

    def finish(self, n_parts: int | None, progress: Progress, *, keep_report: bool) -> WriteResult:
        """Gather the shards that no part has gathered, and publish the scale."""
        with self._spool(ends=True) as spool_run, contextlib.ExitStack() as stack:
            job = self._spool_job(spool_run)
            plan = self._gathering(job.plan)
            chunks = stack.enter_context(whole_spool(job, self.engine, n_parts, "end"))
            scale = Job.of_run(self.run, chunks, plan, keep_report=keep_report)
            own = stack.enter_context(Run.open([scale], self.engine, progress, "end"))
            return own.execute()[0]

    def check(self, n_parts: int | None) -> None:
        """Raise what `finish` raises if chunks are missing in the spool, as journals tell.

        - Raises IncompleteError if chunks are missing.
        """
        with self._spool(ends=False) as spool_run:
            refuse_unwritten(self._spool_job(spool_run), spool_run, n_parts)

    def part(self, share: Share) -> Part:
        """The part that `write` would write now, by the journals. Nothing is changed."""
        spool_run = find_run(fetched(self.targets.spool))
        if spool_run is None:
            raise self._lost()
        plan = self._spool_job(spool_run, share).plan
        if not len(replay(spool_run, plan.metadata, looking=True).ledger.missing):
            plan = self._gathering(plan, plan.source.identity)
        return plan.part(*share.number)

    def _gathering(self, spooling: Plan, identity: str | None = None) -> Plan:
        """The plan of the run that gathers chunks out of a spool, read back.

        - `identity`: that of the source; by default as the run was begun.
        """
        made = plan_begun(self.run, self._resources, identity=identity)
        made = replace(made, source=replace(made.source, chunks=made.metadata.grid.sizes))
        _check_fits(made, spooling.n_shards)
        return made

    @property
    def _resources(self) -> Resources:
        return resources_of(self.engine, self.memory_limit_nbytes)

    def _spool_job(self, spool_run: RunDirectory, share: Share | None = None) -> Job:
        """The job that writes the spool; without a source, it is only looked at."""
        if share is None:
            return Job.of_run(spool_run, NoChunks(), plan_begun(spool_run, self._resources))
        return Job.of_run(spool_run, *share.source.planned(spool_run, self._resources))

    @contextlib.contextmanager
    def _spool(self, *, ends: bool) -> Iterator[RunDirectory]:
        """The run of the spool, for a process that writes a part, or ends the run of the scale."""
        with runs_on([self.targets.spool], (lambda _: None) if ends else None) as runs:
            if not runs:
                raise self._lost()
            yield runs[0]

    def _ended(self) -> RunEndedError:
        """The error that another process has finished the scale."""
        return RunEndedError("another process has ended this run", path=str(self.run.path))

    def _lost(self) -> JournalError | RunEndedError:
        """The error that there is no spool."""
        if self.run.has_ended or self.targets.scale.is_published:
            return self._ended()
        label = self.run.target.label
        return JournalError(
            f"the spool of {label} is gone, in which its encoded chunks wait. Begin again by "
            "prepare with restart=True (shardwrite precomputed --submit --restart)",
            path=str(self.run.path),
        )


# ---- Steps of runs that make or repair a scale


class ScaleSteps(ArraySteps):
    """See :class:`ArraySteps`; a scale is listed in the ``info`` of its volume."""

    def check_new(self, target: Target, metadata: ArrayMetadata, run_dir: Any) -> None:
        """See :meth:`ArraySteps.check_new`: its volume must take it."""
        found = _scale_at(target, metadata, run_dir)
        if found is not None:
            merged_info(read_volume(found[0].place), found[1])

    def among_others(self, target: Target, run_dir: Any) -> Target:
        """See :meth:`ArraySteps.among_others`: its volume is no group of Zarr."""
        places = scale_targets_of(target, run_dir)
        return target if places is None else places.scale

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
        targets = scale_targets_of(run.target, run_dir) if scattered else None
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
        scale = _stored_at(target, metadata)
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


def _stored_at(target: Target, metadata: ArrayMetadata) -> NewScale | None:
    """The scale that an array is, with the key that its place says; None if it is none."""
    _, _, key = volume_and_key(target.place) or (None, "", "")
    return stored_scale(metadata, key)


def _remove_left_spool(target: Target, run_dir: Any) -> None:
    places = scale_targets_of(target, run_dir)
    if places is not None and has_spool(places.spool):
        remove_spool(places.spool)


def _scale_at(
    target: Target, metadata: ArrayMetadata, run_dir: object
) -> tuple[Target, NewScale] | None:
    """The volume of an array, and the scale that it is; None if it is none."""
    refuse_spool(metadata)
    volume, above, key = volume_and_key(target.place) or (None, "", "")
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

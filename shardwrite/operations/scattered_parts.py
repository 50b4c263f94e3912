"""Scales whose hash scatters the chunks, written in parts: two rounds, and one end.

`prepare` begins two runs: that of the spool, and that of the scale. In a first round, each part
spools its share of the chunks. In a second one, each part gathers its share of the shards out of
the spool. `finalize` gathers what is left, so that the second round may be left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardwrite.engines import Engine
from shardwrite.errors import JournalError, RunEndedError, SpecError, StoreError
from shardwrite.journal import (
    RunDirectory,
    fetched,
    find_run,
    holding,
    refuse_other_run,
    replay,
)
from shardwrite.operations.part_sources import check_fits
from shardwrite.operations.steps import Progress, Share
from shardwrite.place.objects import InStore
from shardwrite.place.scale import ScaleTargets, places_around
from shardwrite.place.target import Target
from shardwrite.plan import Part, Plan, Resources
from shardwrite.runs.array_plan import resources_of
from shardwrite.runs.begin import check_place
from shardwrite.runs.begun import plan_begun
from shardwrite.runs.finished import finished
from shardwrite.runs.gathered import (
    GatheredChunks,
    finish_gathering,
    gathering_begun,
    remove_spool,
    whole_spool,
)
from shardwrite.runs.in_parts import (
    execute_part,
    options_of_run,
    prepare_jobs,
    refuse_unwritten,
    run_on,
)
from shardwrite.runs.job import Job, intent_of
from shardwrite.runs.kept import check_kept
from shardwrite.runs.progress import reporting
from shardwrite.runs.result import WriteResult
from shardwrite.runs.source import NoChunks


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
    plan, targets = job.plan.gathering, places_around(scale, run_dir)
    if plan is None or targets is None:
        raise TypeError("it was checked that this is a scale, and how it is gathered")
    gathering = replace(job, source=NoChunks(is_encoded=True), plan=plan, target=targets.scale)
    with holding(targets.scale):
        if finished(gathering) is not None:
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
            with reporting(progress, part.raw_nbytes) as on_report:
                result = execute_part(job, spool_run, part, self.engine, on_report)
            n_left = result.n_shards + result.n_empty_shards - result.n_resumed_shards
            if n_left or len(replay(spool_run, job.plan.metadata).ledger.missing):
                return result
            # If only this look finds damage in other parts, the error names them.
            whole = whole_spool(job, spool_run, self.engine, share.count, may_list=False)
            with whole as chunks:
                return self._gather(chunks, share, job.plan, progress)

    def _gather(
        self, chunks: GatheredChunks, share: Share, spooling: Plan, progress: Progress
    ) -> WriteResult:
        """Gather the shards of a part."""
        run, plan = self.run, self._gathering(spooling)
        job, part = Job(chunks, plan, run.target, options_of_run(run)), plan.part(*share.number)
        with reporting(progress, part.raw_nbytes) as on_report:
            return execute_part(job, run, part, self.engine, on_report)

    def finish(self, n_parts: int | None, progress: Progress, *, keep_report: bool) -> WriteResult:
        """Gather the shards that no part has gathered, and publish the scale."""
        with self._spool(ends=True) as spool_run, contextlib.ExitStack() as stack:
            job = self._spool_job(spool_run)
            plan = gathering_begun(self.run, self._resources, job.plan.n_shards)
            chunks = stack.enter_context(
                whole_spool(job, spool_run, self.engine, n_parts, may_list=True)
            )
            on_report = stack.enter_context(reporting(progress, plan.raw_nbytes))
            options = replace(options_of_run(self.run), keep_report=keep_report)
            scale = Job(chunks, plan, self.run.target, options)
            return finish_gathering(scale, self.run, self.engine, on_report)

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
            plan = self._gathering(plan)
        return plan.part(*share.number)

    def _gathering(self, spooling: Plan) -> Plan:
        """Plan of the run that gathers the chunks of a spool, with the source of its plan."""
        identity = spooling.source.identity
        return gathering_begun(self.run, self._resources, spooling.n_shards, identity)

    @property
    def _resources(self) -> Resources:
        return resources_of(self.engine, self.memory_limit_nbytes)

    def _spool_job(self, spool_run: RunDirectory, share: Share | None = None) -> Job:
        """The job that writes the spool; without a source, it is only looked at."""
        options = options_of_run(spool_run)
        if share is None:
            plan = plan_begun(spool_run, self._resources)
            return Job(NoChunks(), plan, spool_run.target, options)
        chunks, plan = share.source.planned(spool_run, self._resources)
        return Job(chunks, plan, spool_run.target, options)

    @contextlib.contextmanager
    def _spool(self, *, ends: bool) -> Iterator[RunDirectory]:
        """The run of the spool, for a process that writes a part, or ends the run of the scale."""
        with run_on(self.targets.spool, (lambda _: None) if ends else None) as found:
            if found is None:
                raise self._lost()
            yield found

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
            "prepare with restart=True (shardwrite slurm precomputed --restart)",
            path=str(self.run.path),
        )

"""A run while a process works on it: begun or joined, caught up with from the journals, published, ended."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dask.array
import numpy as np

from shardwrite._version import __version__
from shardwrite.commit import GroupReport, WriteSpec
from shardwrite.engines import Engine
from shardwrite.errors import IncompleteError, RunEndedError, SpecError, StoreError
from shardwrite.graph import GroupGraph
from shardwrite.grid import unravel
from shardwrite.inspection import inspect_shards
from shardwrite.journal import (
    Lease,
    Ledger,
    Receipt,
    RunDirectory,
    as_runs,
    begin_run,
    close_journals,
    differences,
    find_run,
    interrupted_end,
    probe,
    read_receipt,
    replay,
    sweep,
    sweep_after_workers,
)
from shardwrite.metadata import ArrayMetadata, parse_metadata
from shardwrite.plan import BATCH_NBYTES, Plan
from shardwrite.result import WriteResult, result_from_receipt, result_of
from shardwrite.stores import DURABILITIES, PosixStore, as_store_error
from shardwrite.target import Target, check_surroundings, check_target, kind_of
from shardwrite.view import ShardedArray

__all__ = ["Job", "Options", "Session", "begin", "finished", "incomplete", "join", "options_for_new"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to run, as against what to write.

    Attributes
    ----------
    mode : {"w-", "w", "r+"}
        Whether an array in the place may be replaced, or is written into; looked at only where a run begins.
    publish : {"last", "first"}
        When ``zarr.json`` appears.
    durability : {"full", "batch", "none"}
        When a shard counts as committed.
    restart : bool
        Take away what was begun and not ended.
    recheck : bool
        Decode what the journal says is committed before going on from there.
    """

    mode: str = "w-"
    publish: str = "last"
    durability: str = "full"
    restart: bool = False
    recheck: bool = False

    def __post_init__(self) -> None:
        choices = (("mode", ("w-", "w", "r+")), ("publish", ("last", "first")), ("durability", DURABILITIES))
        for field, allowed in (*choices, ("restart", (False, True)), ("recheck", (False, True))):
            value = getattr(self, field)
            if value not in allowed:
                shown = [choice for choice in allowed if choice != "r+"]  # which is for our own use
                raise SpecError("no such choice", field=field, value=value, remedy=f"use one of {shown}")


def options_for_new(**given: Any) -> Options:
    """Options of a run that makes an array.

    Raises
    ------
    SpecError
        If it is to write into one that exists: that has checks of its own.
    """
    options = Options(**given)
    if options.mode == "r+":
        raise SpecError("no such choice", field="mode", value="r+", remedy=f"use one of {['w-', 'w']}")
    return options


@dataclass(frozen=True, slots=True)
class Job:
    """One array to write; without a source where it is only to be finished."""

    source: dask.array.Array | None
    plan: Plan
    target: Target
    options: Options


def _source(job: Job) -> dask.array.Array:
    if job.source is None:
        raise TypeError("this job has no source to write from")
    return job.source


@dataclass(slots=True, eq=False)
class Session:
    """A job that was begun, and how far it is."""

    job: Job
    directory: RunDirectory
    driver: str
    ledger: Ledger
    n_resumed: int = 0

    def spec(self) -> WriteSpec:
        """What its tasks need to know."""
        plan, source = self.job.plan, _source(self.job)
        return WriteSpec(
            metadata=plan.metadata,
            strategy=plan.strategy,
            store=PosixStore(self.job.target.path),
            run_path=str(self.directory.path),
            parts=str(self.directory.parts(self.driver)),
            driver=self.driver,
            durability=self.job.options.durability,
            write_empty_chunks=plan.write_empty_chunks,
            batch_nbytes=BATCH_NBYTES,
            spool_ratio=plan.memory.spool_ratio,
            source_dtype=source.dtype,
            in_place=self.job.options.mode == "r+",
        )

    def graph(self, name: str, engine: Engine) -> GroupGraph:
        """The builder of its graphs."""
        cut = engine.kind not in ("threads", "sync")
        return GroupGraph(self.job.plan, self.spec(), _source(self.job), self.ledger, f"{self.driver}-{name}", cut_source=cut)

    def region_of(self, key: Any) -> str:
        """What a task's key says of where it is in the array; nothing where it says nothing."""
        source, partition = _source(self.job), self.job.plan.partition
        if not (isinstance(key, tuple) and len(key) > 1 and isinstance(key[0], str) and all(isinstance(i, int) for i in key[1:])):
            return ""
        if key[0].startswith("shardwrite-"):
            if self.driver not in key[0]:
                return ""
            bounds: Any = partition.group_box(key[1]).bounds
        elif len(key) - 1 == source.ndim and all(i < n for i, n in zip(key[1:], source.numblocks, strict=True)):
            ends = [sum(sizes[: i + 1]) for i, sizes in zip(key[1:], source.chunks, strict=True)]
            bounds = [(end - sizes[i], end) for end, i, sizes in zip(ends, key[1:], source.chunks, strict=True)]
        else:
            return ""
        return f"region [{', '.join(f'{a}:{b}' for a, b in bounds)}]"

    def enter(self, report: GroupReport) -> None:
        """Note what a task committed; its part files are no longer needed."""
        for path in report.part_files:
            with as_store_error(path, "cannot remove"):
                Path(path).unlink(missing_ok=True)
        self.ledger.enter(report.entry, report.process)

    def result(self, seconds: float, n_tasks: int | None = None) -> WriteResult:
        """What was written, all told."""
        plan = self.job.plan
        return result_of(
            str(self.job.target.path),
            self.ledger,
            plan.metadata.itemsize,
            seconds=seconds,
            n_tasks=plan.n_tasks if n_tasks is None else n_tasks,
            layout=plan.layout,
            n_resumed=self.n_resumed,
        )

    def finish(self, seconds: float) -> WriteResult:
        """Check that every shard is committed, publish, leave a receipt."""
        plan, target = self.job.plan, self.job.target
        if len(self.ledger.missing):
            raise incomplete(plan.metadata, target, self.ledger.missing, "run the same command again to go on")
        result = self.result(seconds)
        with as_store_error(str(target.path), "cannot finish"):
            sweep_after_workers(self.directory, plan.metadata, self.driver)
            self.publish(result)
        return result

    def publish(self, result: WriteResult) -> None:
        """Steps 5 and 6 of a run; where another process took them meanwhile, its receipt says so."""
        directory, options = self.directory, self.job.options
        made_by = read_receipt(directory.target) if options.mode == "r+" else None
        receipt = Receipt(
            digest=directory.digest if made_by is None else made_by.digest,
            run=directory.run,
            identity=directory.facts["identity"] if made_by is None else made_by.identity,
            durability=options.durability,
            finished=datetime.now(UTC).isoformat(timespec="seconds"),
            version=__version__,
            result=result.to_dict(),
            empty=as_runs(self.ledger.empty),
        )
        try:
            with as_store_error(str(directory.target.path), "cannot publish"):
                if options.mode != "r+":
                    directory.publish(options.durability, self.driver)
                directory.end(receipt, options.durability, self.driver)
        except StoreError as error:
            ended = read_receipt(directory.target)
            if not directory.has_ended or ended is None or ended.digest != directory.digest:
                raise
            if ended.run != directory.run:
                raise RunEndedError("another run has taken this one's place", path=str(directory.path)) from error

    def catch_up(self, engine: Engine, *, may_list: bool) -> None:
        """Learn from the journals what is done, check what a power cut may have taken, and sweep.

        Parameters
        ----------
        engine : Engine
            Who checks.
        may_list : bool
            Whether the array may be listed to find what was left behind.
        """
        metadata = self.job.plan.metadata
        found = replay(self.directory, metadata)
        if self.job.options.recheck:
            found.untrusted |= set(np.flatnonzero(found.ledger.is_done).tolist())
        if found.untrusted:
            array = ShardedArray(metadata, PosixStore(self.job.target.path))
            ranks = np.array(sorted(found.untrusted), dtype=np.int64)
            table = inspect_shards(engine, array, ranks, deep=True)
            lost = (table.stored_nbytes != found.ledger.nbytes[ranks]) | (table.index_crcs != found.ledger.index_crcs[ranks])
            found.ledger.forget([*ranks[lost].tolist(), *(rank for rank, _ in table.problems)])
        sweep(self.directory, metadata, found, may_list=may_list)
        self.ledger = found.ledger
        self.n_resumed = found.ledger.n_done
        self.directory.parts(self.driver).mkdir(exist_ok=True)

    def discard_parts(self) -> None:
        """Remove this process's part files."""
        parts = self.directory.parts(self.driver)
        with contextlib.suppress(OSError):  # a straggler may be writing one; the next run, or the end of this one, removes it
            for path in parts.iterdir():
                path.unlink(missing_ok=True)
            parts.rmdir()


@contextlib.contextmanager
def _ended_or(directory: RunDirectory) -> Iterator[None]:
    """Where storage fails because another process has ended the run meanwhile, say that."""
    try:
        yield
    except OSError as error:
        if not directory.has_ended:
            raise
        raise RunEndedError("another process has ended this run", path=str(directory.path)) from error


@contextlib.contextmanager
def _open(job: Job, directory: RunDirectory) -> Iterator[Session]:
    """Work on a run under a lease."""
    session = Session(job, directory, uuid.uuid4().hex[:12], Ledger(job.plan.metadata.grid))
    with _ended_or(directory), Lease(directory.path, session.driver):
        try:
            yield session
        finally:
            session.discard_parts()
            close_journals(session.driver)


def incomplete(metadata: ArrayMetadata, target: Target, missing: Any, remedy: str) -> IncompleteError:
    """The error that says which shards are missing."""
    grid = metadata.grid
    names = [metadata.shard_key(unravel(int(rank), grid.counts)) for rank in missing[:1000]]
    listed = ", ".join(names[:8]) + (", ..." if len(missing) > 8 else "")
    return IncompleteError(
        f"{target.path} is not whole: {len(missing):,} of {grid.n_shards:,} shards are not committed ({listed}); {remedy}",
        missing=names,
    )


def finished(job: Job, joined: str = "") -> WriteResult | None:
    """The result of a run of the same plan that has ended, if the array is still as that run left it.

    Parameters
    ----------
    job : Job
        What to write.
    joined : str
        Name of a run that this process had joined.
    """
    ending = interrupted_end(job.target) or joined
    if job.options.restart or find_run(job.target) is not None or kind_of(job.target.path) != "array":
        return None
    receipt = read_receipt(job.target)
    if receipt is None or receipt.digest != job.plan.digest:
        return None
    if job.options.mode == "w" and not job.plan.source.is_stable and receipt.run != ending:
        return None  # the same name may stand for other data by now, and the user said to replace
    found = parse_metadata((job.target.path / "zarr.json").read_text())
    if found.document != job.plan.metadata.document:
        return None
    return result_from_receipt(receipt)


def begin(jobs: Sequence[Job], engine: Engine, stack: contextlib.ExitStack) -> list[Session]:
    """Look at every target, and only if all are good, begin or join a run at each, under leases that `stack` holds.

    Raises
    ------
    SpecError, JournalError, StoreError
        Something stands in a place, another plan was begun there, or a worker cannot write there.
    """
    paths = [str(job.target.path) for job in jobs]
    if len(set(paths)) < len(paths):
        raise SpecError("two arrays cannot go to one place", field="stores", value=paths, remedy="give each its own path or name")
    for job in jobs:
        check_surroundings(job.target)
        if find_run(job.target) is None:
            _refuse_another(job)
            check_target(job.target, job.options.mode)
    sessions = []
    for job in jobs:
        directory, is_new = _begin_one(job)
        if is_new:
            _probe_new(directory, engine)
        else:
            with _ended_or(directory):
                _probe(directory, engine)
        sessions.append(stack.enter_context(_open(job, directory)))
    for session in sessions:
        with _ended_or(session.directory), as_store_error(str(session.directory.path), "cannot go on with"):
            session.directory.make_room(session.job.options.durability)
            if session.job.options.publish == "first" and session.job.options.mode != "r+":
                session.directory.publish(session.job.options.durability, session.driver)
            session.catch_up(engine, may_list=True)
    return sessions


def _refuse_another(job: Job) -> None:
    """Refuse an array in the place, naming the fields in which it is another than the one to be written."""
    if job.options.mode == "w-" and kind_of(job.target.path) == "array":
        found = json.loads((job.target.path / "zarr.json").read_bytes())
        changed = differences(found, job.plan.metadata.document)
        what = f"an array exists there; it differs in {'; '.join(changed)}" if changed else "an array exists there, of another run"
        raise SpecError(what, field="store", value=str(job.target.path), remedy='give mode="w" to replace it')


def _begin_one(job: Job) -> tuple[RunDirectory, bool]:
    return begin_run(
        job.target,
        _run_plan(job.plan, job.options.mode),
        job.plan.metadata.text,
        mode=job.options.mode,
        restart=job.options.restart,
        durability=job.options.durability,
    )


def _probe(directory: RunDirectory, engine: Engine) -> None:
    """Have every worker write there."""
    outcomes = engine.on_every_worker(probe, str(directory.path), "zarr.json")
    troubles = [(worker, trouble) for worker, trouble in outcomes.items() if trouble is not None]
    if troubles:
        worker, (message, number) = troubles[0]
        raise StoreError(
            f"store={str(directory.target.path)!r}: {len(troubles)} of {len(outcomes)} workers cannot write there; {worker}: "
            f"{message}; give a directory that every worker can write to",
            key=str(directory.path),
            errno=number,
        )


def _probe_new(directory: RunDirectory, engine: Engine) -> None:
    """The same for a run that has only begun; it is taken back if a worker cannot write there."""
    try:
        _probe(directory, engine)
    except BaseException:
        directory.take_back(is_claimed=True)
        raise


def _run_plan(plan: Plan, mode: str) -> dict[str, Any]:
    """A plan as a run keeps it; a run that writes into an array is another than the one that made it."""
    facts = plan.to_dict()
    if mode == "r+":
        facts["identity"] = {**facts["identity"], "mode": "r+"}
    return {**facts, "digest": plan.digest + ("+" if mode == "r+" else ""), "mode": mode}


@contextlib.contextmanager
def join(job: Job, engine: Engine, *, may_list: bool) -> Iterator[Session]:
    """Work on a run that another process has begun.

    Raises
    ------
    JournalError
        If another plan was begun.
    IncompleteError
        If none was.
    """
    if find_run(job.target) is None:
        raise IncompleteError(f"nothing was begun for {job.target.path}; call prepare first", missing=[str(job.target.run_path)])
    directory, _ = _begin_one(job)
    with _open(job, directory) as session:
        session.catch_up(engine, may_list=may_list)
        yield session

"""Runs that are written in parts by processes without a scheduler: begin them, find them again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

from shardwrite.engines.local import Engine
from shardwrite.host.resources import set_stripes
from shardwrite.journal.begin import find_run, tidied_run
from shardwrite.journal.ledger import Ledger
from shardwrite.journal.neighbours import tidy
from shardwrite.journal.parts import run_of_part
from shardwrite.journal.replay import replay
from shardwrite.journal.rundir import RunDirectory, holding
from shardwrite.journal.state_shared import sharing
from shardwrite.place.target import Target
from shardwrite.plan.plan import Stretch
from shardwrite.read.array import ShardedArray
from shardwrite.read.inspection import ranks_of_objects
from shardwrite.runs.execute import Run
from shardwrite.runs.job import Job
from shardwrite.runs.result import incomplete


def prepare_jobs(jobs: Sequence[Job], engine: Engine, stripe_count: int | None = None) -> None:
    """Begin or join runs that are written in parts, and make the directories of their shards.

    - `stripe_count`: number of Lustre targets over which each shard is spread. By default, the
      setting of the directory is kept.
    - Raises ChangedError if a job was finished before, and the array is not what its last run left.
    """
    if stripe_count is not None:
        for job in jobs:
            _ = job.target.directory  # which refuses what is no directory, before a run begins
    with Run.open(jobs, engine, mode="prepare") as run:
        for session in run.sessions:
            path = session.directory.place.local_path
            if stripe_count is not None and path is not None:
                # This comes first, because new directories inherit the setting.
                set_stripes(path, stripe_count)
            session.make_shard_directories()


def refuse_unwritten(
    job: Job, run: RunDirectory, n_parts: int | None, among: Stretch | None = None
) -> None:
    """Raise what `refuse_missing` raises, without a look at the indexes of shards.

    Shards that are there, but in no journal, are taken for written.
    """
    metadata = job.plan.metadata
    ledger = replay(run, metadata).ledger
    if len(ledger.missing) and metadata.is_sharded:
        array = ShardedArray(metadata, run.store)
        ledger.is_done[ranks_of_objects(array, job.target.label)] = True
    refuse_missing(job, ledger, n_parts, among)


def refuse_missing(
    job: Job, ledger: Ledger, n_parts: int | None, among: Stretch | None = None
) -> None:
    """Refuse to publish an array that is written in parts if shards are missing in a ledger.

    - Raises IncompleteError if shards are missing. The error names them, and their parts if
      `n_parts` is given.
    """
    plan, missing = job.plan, ledger.missing
    if len(missing):
        left = ledger.left_in_groups(plan.partition.group_edges)
        parts = [] if n_parts is None else plan.parts_with(left, n_parts, among)
        remedy = remedy_of_parts(parts, n_parts)
        raise incomplete(plan.metadata, job.target, missing, remedy, parts=parts)


def remedy_of_parts(parts: Sequence[int], n_parts: int | None) -> str:
    """Text that says which parts must be written again."""
    if n_parts is None:
        return "write their parts again; give the number of parts to be told which"
    listed = f"{', '.join(map(str, parts[:20]))}{', ...' if len(parts) > 20 else ''}"
    return f"part{'s' if len(parts) > 1 else ''} {listed} of {n_parts} must be written again"


@contextlib.contextmanager
def runs_on(
    targets: Sequence[Target], check: Callable[[Mapping[int, RunDirectory]], None] | None
) -> Iterator[Mapping[int, RunDirectory]]:
    """The unfinished runs that make some arrays, by their numbers.

    - `check`: given by a process that ends the runs. It is called with those whose state lies in
      their bucket, before their leases are taken, because that stops all others. None for a
      process that writes a part; several of these work at a time.
    """
    with contextlib.ExitStack() as stack:
        shared = {
            number: find_run(stack.enter_context(sharing(target)))
            for number, target in enumerate(targets)
            if target.in_store
        }
        if check is None:
            beside = {n: _run_of_part(t) for n, t in enumerate(targets) if not t.in_store}
            yield _making(shared | beside)
            return
        check(_making(shared))
    with holding(*targets):
        yield _making(dict(enumerate(_found(targets))))


def _run_of_part(target: Target) -> RunDirectory | None:
    found = run_of_part(target)
    if found is None:
        tidy(target)
        found = run_of_part(target)
    return found


def _making(runs: Mapping[int, RunDirectory | None]) -> dict[int, RunDirectory]:
    return {n: run for n, run in runs.items() if run is not None and run.makes_array}


def _found(targets: Sequence[Target]) -> Iterator[RunDirectory | None]:
    """The run of each array. A run on several arrays is looked for once."""
    known = dict[Target, RunDirectory]()
    for target in targets:
        if target not in known:
            tidy(target)
            run = tidied_run(target)
            if run is not None:
                outputs = run.outputs() if len(targets) > 1 else [run]
                known |= {one.target: one for one in outputs}
        yield known.get(target)

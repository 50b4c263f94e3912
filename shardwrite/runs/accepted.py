"""Sources that a user says to be the same, although their names or times have changed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

from shardwrite.config.table import ACCEPT_SOURCE
from shardwrite.config.values import value_of
from shardwrite.host.events import RUNS, tell
from shardwrite.journal import find_run, neighbours, read_receipt
from shardwrite.plan import Plan
from shardwrite.runs.job import Job, intent_of, target_of_update


def accepts_source() -> bool:
    """Whether the user says that the data of the source are those of the run that was begun."""
    return value_of(ACCEPT_SOURCE)


def as_begun(plan: Plan, mode: str, identity: str | None, digest: str) -> Plan | None:
    """The plan with the source of a run, if that run differs in nothing else."""
    if identity is None:
        return None
    found = replace(plan, source=replace(plan.source, identity=identity))
    return found if intent_of(found, mode).digest == digest else None


def accepted(job: Job) -> Job:
    """The job, with the source of the run that it goes on with if `accepts_source`."""
    if not accepts_source():
        return job
    for identity, digest in _recorded(job):
        plan = as_begun(job.plan, job.options.mode, identity, digest)
        if plan is not None and plan.source.identity != job.plan.source.identity:
            told = f"goes on with the source {identity!r}, as the user says"
            tell(RUNS, logging.WARNING, told, run=job.target.run_path)
            target = target_of_update(job.target, plan) if job.is_update else job.target
            return replace(job, plan=plan, target=target)
    return job


def _recorded(job: Job) -> Iterator[tuple[str | None, str]]:
    """Identity of the source and digest of each run that the job may go on with, or that ended."""
    runs = neighbours(job.target) if job.is_update else (find_run(job.target),)
    for run in runs:
        if run is not None:
            yield run.record.identity.source, run.digest
    # An update that has ended is none to go on with: what is given now may be the next one.
    if not job.is_update and job.target.place.kind() == "array":
        receipt = read_receipt(job.target)
        if receipt is not None:
            yield receipt.identity.source, receipt.digest

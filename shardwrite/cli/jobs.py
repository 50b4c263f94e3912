"""Work that SLURM jobs do: the tasks of a job array, or dask workers that are jobs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import dask

import shardwrite
from shardwrite._dataclass import dataclass
from shardwrite.cli.common import engine
from shardwrite.cli.options import MEMORY_OF_A_THREAD, of_group
from shardwrite.cli.terminal import echo, emit, exact
from shardwrite.config.table import RUN_DIR, STORAGE, VIA, value_of
from shardwrite.convert.convert import preview_loss
from shardwrite.convert.keywords import PlanReshardArguments, PrepareConversionArguments
from shardwrite.convert.plan import Conversion
from shardwrite.errors import SpecError
from shardwrite.host.resources import USABLE_SHARE
from shardwrite.journal.begin import find_run
from shardwrite.journal.rundir import refuse_in_store
from shardwrite.operations.keywords import PlanArguments
from shardwrite.operations.together import stretches_of
from shardwrite.options import options_from
from shardwrite.place.base import without_kind
from shardwrite.place.target import Target, no_bucket, resolve_new, resolve_target, target_via
from shardwrite.plan.options import parse_nbytes
from shardwrite.plan.plan import Plan, Stretch
from shardwrite.runs.result import WriteResult
from shardwrite.slurm.client import cancel, max_array_size, root_of, submit_chain
from shardwrite.slurm.elastic import opened, workers_of
from shardwrite.slurm.jobs import (
    ARRAY,
    FINALIZE,
    check_directory,
    default_directory,
    refuse_second_submission,
    runs_at,
    spool_at,
    submitting,
    targets_at,
    write_scripts,
)
from shardwrite.slurm.keywords import ClusterArguments, SubmitArguments
from shardwrite.slurm.notes import record_jobs
from shardwrite.slurm.script import (
    ArrayJob,
    Settings,
    array_script,
    finalize_script,
    memory_nbytes,
    parts_for,
)
from shardwrite.stores.looking import is_bucket_url, is_store_url, local_path

# ---- Job arrays


def settings_of(asked: SubmitArguments, dst: str, via: str | None) -> Settings:
    """Settings of jobs that write DST.

    If DST is in a bucket, the jobs keep the state of the run where this process does.
    """
    if via is not None and not is_bucket_url(dst):
        raise no_bucket(dst, via)
    run_dir = value_of(RUN_DIR) if is_store_url(dst) else None
    via = via if via is not None or not is_bucket_url(dst) else value_of(VIA)
    provider = value_of(STORAGE).get("credential_provider") if is_bucket_url(dst) else None
    given = {name: getattr(asked, name) for name in ("cores", "memory", "time")}
    return options_from(
        asked,
        Settings,
        **{name: value or getattr(Settings, name) for name, value in given.items()},
        run_dir="" if run_dir is None else os.path.abspath(local_path(run_dir, "run_dir")),
        via=via or "",
        credential_provider=provider if isinstance(provider, str) else "",
    )


def need_directory(target: Target) -> None:
    """Refuse jobs that write a target whose run state would lie in a bucket."""
    refuse_in_store(
        target,
        "job arrays leave notes about their jobs in a directory, so the state of the run must lie "
        "in one, too, and none is named",
    )


def absolute(src: str) -> str:
    """Path or pattern of a source as the nodes find it; a URL stays."""
    src = local_path(without_kind(src), "src")
    return src if "://" in src else os.path.abspath(src)


_LEAST_NBYTES = 256 * 2**20
"""Memory of the smallest job; the interpreter and its libraries take about half of that."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A job array for a target, as a user asks for it, and the job after it."""

    asked: SubmitArguments
    settings: Settings
    dry_run: bool
    as_json: bool

    @classmethod
    def of(cls, given: dict[str, Any], dst: str, options: dict[str, Any]) -> Submission:
        """What is asked for; options that only a command needs are removed from `options`."""
        asked = SubmitArguments(**given)
        settings = settings_of(asked, dst, options.pop("via", None))
        return cls(asked, settings, options.pop("dry_run"), options.pop("as_json"))

    def planned(self, plan: Callable[..., Plan], *args: Any, **options: Any) -> Plan:
        """A plan for tasks, which does not depend on this machine."""
        limit = self.memory_limit
        options["memory_limit"] = options["memory_limit"] or limit
        with engine(self.settings.cores, None, None):
            return plan(*args, **options)

    @property
    def memory_limit(self) -> int:
        """Bytes that a task may use, if the user does not say it: what it will have in its job."""
        size, of_threads = self.settings.memory, self.settings.cores * MEMORY_OF_A_THREAD
        if not size.strip("0"):  # all memory of the node, which nobody knows here
            return of_threads
        nbytes = memory_nbytes(size)
        if nbytes < _LEAST_NBYTES:
            remedy = "give 256M or more"
            raise SpecError("too little for a task", field="memory", value=size, remedy=remedy)
        limit = int(nbytes * USABLE_SHARE)
        return limit if self.asked.memory else min(limit, of_threads)

    def submit_new(
        self,
        src: str | tuple[str, ...],
        x: Any,
        store: str,
        plan: Plan | list[Plan],
        target: Target,
        arguments: tuple[str, ...],
        options: dict[str, Any],
    ) -> None:
        """Begin a run on new arrays or a scale, and submit the jobs; or print what would be done.

        - `src`: see `ArrayJob`.
        - `x`, `plan`, `options`: those of :func:`shardwrite.prepare`. The plans of several arrays
          are a list.
        - `target`: place of the array, or of what several arrays lie in.
        - `arguments`: those of `write-part` that say how the source is read.
        """
        plans = plan if isinstance(plan, list) else [plan]
        names, sizes = options.get("names") or (), [each.raw_nbytes for each in plans]

        def runs() -> Mapping[Target, Stretch | None]:
            if not names:
                return dict.fromkeys(targets_at(target))
            targets = [resolve_target(store, name) for name in names]
            return dict(zip(targets, stretches_of(sizes), strict=True))

        self.submit(
            src,
            target,
            arguments,
            name=options.get("name") or "",
            names=names,
            nbytes=sum(sizes),
            n_groups=sum(each.partition.n_groups for each in plans),
            begin=lambda: shardwrite.prepare(x, store, plan, **options),
            runs=runs,
            n_rounds=1 if plans[0].gathering is None else 2,
        )

    def submit(
        self,
        src: str | tuple[str, ...],
        target: Target,
        arguments: tuple[str, ...],
        *,
        name: str = "",
        names: Sequence[str | None] = (),
        conversion: str = "",
        nbytes: int,
        n_groups: int,
        begin: Callable[[], object],
        runs: Callable[[], Mapping[Target, Stretch | None]],
        n_rounds: int = 1,
    ) -> None:
        """Begin a run, and submit the jobs; or print what would be done.

        - `arguments`: words for how each task reads the source, or converts it.
        - `name`, `names`, `conversion`: see `ArrayJob`.
        - `nbytes`: decoded bytes of all parts.
        - `n_groups`: number of groups of shards, which are not divided.
        - `runs`: the runs that begin, and the place of each among all.
        - `n_rounds`: how often the array is submitted.
        """
        asked = self.asked
        n_parts = asked.n_parts or parts_for(
            nbytes, n_groups, parse_nbytes(asked.throughput, "throughput"), max_array_size()
        )
        if n_parts > n_groups:
            has, group = ("has", "group") if n_groups == 1 else ("have", "groups")
            _tell(
                f"only {n_groups} of {n_parts} parts {has} work, because the plan has {n_groups} "
                f"{group}; give --parts {n_groups}, or smaller source chunks"
            )
        job = ArrayJob(
            src=absolute(src) if isinstance(src, str) else tuple(map(absolute, src)),
            dst=root_of(target),
            n_parts=n_parts,
            at_once=asked.at_once,
            source_options=arguments,
            name=name,
            names=tuple(each or "" for each in names),
            conversion=conversion,
        )
        scripts = {
            ARRAY: exact(array_script(job, self.settings)),
            FINALIZE: exact(finalize_script(job, self.settings)),
        }
        where = Path(asked.directory or default_directory(target)).absolute()
        check_directory(where, target)
        if self.dry_run:
            echo(f"# in {where}, with a directory logs:")
            show_chain("sbatch --parsable array.sbatch", n_rounds)
            for leaf, text in scripts.items():
                emit(f"\n# {leaf}\n{text}", nl=False)
            return
        cancel(refuse_second_submission(target))  # before a run begins
        begin()
        submit_scripts(target, runs(), where, n_parts, self.as_json, scripts)


def show_chain(first: str, n_rounds: int) -> None:
    """Print the commands that submit a job array for each round, and the job after them."""
    echo(first)
    for script in (*[ARRAY] * (n_rounds - 1), FINALIZE):
        echo(f"sbatch --parsable --dependency=afterany:<id of the array> {script}")


def submit_scripts(
    target: Target,
    runs: Mapping[Target, Stretch | None],
    where: Path,
    n_parts: int,
    as_json: bool,
    scripts: Mapping[str, str],
    tasks: str = "",
) -> None:
    """Submit a job array and the job after it, note both beside the runs, and print their ids.

    If the target has a spool, the array is submitted twice: to spool, and to gather.
    """

    def record(arrays: Sequence[str], last: str) -> None:
        for run, among in runs.items():
            for number in arrays:
                record_jobs(run, number, last, n_parts, among)

    with submitting(target):
        write_scripts(where, target, scripts)
        n_rounds = n_rounds_of(target)
        arrays, last = submit_chain(where / ARRAY, where / FINALIZE, record, tasks, n_rounds)
    if as_json:
        ids = dict(zip(("array", "gather"), arrays, strict=False))
        facts = {**ids, "finalize": last, "parts": n_parts, "directory": str(where)}
        echo(json.dumps(facts, indent=2))
    else:
        which = f"tasks {tasks} of {n_parts}" if tasks else f"{n_parts} tasks"
        then = "".join(f", then array {number} to gather shards" for number in arrays[1:])
        told = f"job array {arrays[0]} of {which}{then}, then job {last}"
        echo(f"{told}; scripts and logs in {where}")


def n_rounds_of(target: Target) -> int:
    """How often a job array is submitted: twice if its first tasks only spool chunks."""
    return 1 if spool_at(target) is None else 2


# ---- Workers


def _tell(text: str) -> None:
    echo(f"shardwrite: {text}", err=True)


def write_with_jobs(
    x: Any, dst: str, given: dict[str, Any], identity: str, progress: bool, **options: Any
) -> WriteResult:
    """Begin a run in this process, and write it with workers that are SLURM jobs.

    The run begins first, so that what cannot be planned is refused before any job waits in the
    queue. No job is submitted if the array is written already.
    """
    workers = workers_of(ClusterArguments(**given))
    options["memory_limit"] = options["memory_limit"] or workers.memory_limit_nbytes
    of_plan = of_group(PlanArguments, options)
    how = {key: options[key] for key in ("name", "durability", "format")}
    target = resolve_new(dst, options["name"], layout=options["format"])
    target = target_via(target, options["via"])
    cancel(refuse_second_submission(target))  # before a run begins
    with engine(workers.settings.cores, None, None):
        plan = shardwrite.plan(x, source_id=identity, store=dst, **of_plan)
        mode, restart = "w" if options["overwrite"] else "w-", options.pop("restart")
        shardwrite.prepare(x, dst, plan, mode=mode, restart=restart, **how)
    if find_run(target) is None:  # it was written before
        with dask.config.set(scheduler="threads"):
            return shardwrite.to_sharded_zarr(  # type: ignore[no-any-return]
                x, dst, source_id=identity, **options
            )
    with opened(workers, target, _tell):
        return shardwrite.to_sharded_zarr(  # type: ignore[no-any-return]
            x, dst, source_id=identity, progress=progress, **options
        )


def convert_with_jobs(
    src: str, dst: str | None, given: dict[str, Any], progress: bool, **options: Any
) -> Conversion:
    """Convert as :func:`shardwrite.reshard` does, with workers that are SLURM jobs.

    A conversion into another place begins in this process, so that what cannot be planned is
    refused before any job waits in the queue. One in its place is planned first. No job is
    submitted if there is nothing left to do.
    """
    workers = workers_of(ClusterArguments(**given))
    options["memory_limit"] = options["memory_limit"] or workers.memory_limit_nbytes
    target = resolve_target(src if dst is None else dst, None)
    cancel(refuse_second_submission(target))  # before a run begins
    with engine(workers.settings.cores, None, None):
        if dst is not None:
            begin = of_group(PrepareConversionArguments, options)
            shardwrite.prepare_conversion(src, dst, **begin)
            is_done, options["restart"] = not runs_at(target), False
        else:
            made = shardwrite.plan_reshard(src, **of_group(PlanReshardArguments, options))
            is_done = all(array.how == "skipped" for array in made.arrays)
            if not options["drop_hdf5"]:
                preview_loss(src, made, "fixed-order", is_consumed=False)
        if is_done:
            return shardwrite.reshard(src, dst, **options)
    with opened(workers, target, _tell):
        return shardwrite.reshard(src, dst, progress=progress, **options)

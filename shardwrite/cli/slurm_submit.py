"""What the commands for SLURM share: their options, and how they write scripts and submit parts."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

import shardwrite
from shardwrite.cli.common import command, engine, open_to_write
from shardwrite.cli.completion import directories, files
from shardwrite.cli.convert_options import accept_arguments
from shardwrite.cli.options import (
    SOURCE_NAMES,
    arguments_of,
    dry_run_option,
    durability_option,
    json_option,
    layout_options,
    name_option,
    overwrite_option,
    restart_option,
    source_options,
    stripe_option,
    via_option,
)
from shardwrite.cli.parts import MEMORY_OF_A_THREAD
from shardwrite.cli.terminal import Grouped, echo, emit, exact
from shardwrite.config.table import RUN_DIR, STORAGE, VIA, value_of
from shardwrite.errors import IncompleteError, SpecError
from shardwrite.journal.rundir import refuse_in_store
from shardwrite.operations.keywords import LayoutKeywords
from shardwrite.options import names
from shardwrite.place.base import without_kind
from shardwrite.place.target import Target, no_bucket, resolve_new, resolve_target
from shardwrite.plan.options import parse_nbytes
from shardwrite.plan.plan import Stretch
from shardwrite.slurm.client import max_array_size, root_of, submit_chain
from shardwrite.slurm.jobs import (
    check_directory,
    default_directory,
    read_scripts,
    record_jobs,
    refuse_second,
    runs_at,
    spool_at,
    submitting,
    targets_at,
    write_scripts,
)
from shardwrite.slurm.script import ArrayJob, Settings, array_script, finalize_script, parts_for
from shardwrite.stores.looking import is_bucket_url, local_path
from shardwrite.stores.opening import is_store_url

# ---- Options, and the arguments that scripts repeat


def settings_options(function: Any) -> Any:
    """Add the options that `settings_from` reads to a command."""
    usual = Settings()
    for option in reversed(
        (
            click.option(
                "--job-name",
                "job_name",
                default=usual.name,
                help="Name of the jobs.",
            ),
            click.option(
                "--cores",
                type=click.IntRange(1),
                default=usual.cores,
                help="Number of cores of each task.",
            ),
            click.option(
                "--memory", default=usual.memory, show_default=True, help="Memory of each task."
            ),
            click.option(
                "--time",
                "time_limit",
                default=usual.time,
                help="Time limit of each task.",
            ),
            click.option(
                "--lead",
                type=click.IntRange(1),
                default=usual.lead_seconds,
                help="Seconds before the time limit at which a task finishes its shards and "
                "requeues itself.",
            ),
            click.option(
                "--requeues",
                type=click.IntRange(0),
                default=usual.requeues,
                help="How often a task may put itself back into the queue.",
            ),
            click.option(
                "--at-once",
                type=click.IntRange(0),
                default=0,
                show_default=False,
                help="Number of tasks that may run at a time. Default: all.",
            ),
            click.option(
                "--sbatch",
                "directives",
                multiple=True,
                help="An option for sbatch, such as --sbatch=--partition=main. May be repeated.",
            ),
            click.option(
                "--setup",
                multiple=True,
                help='A shell command before the work, such as --setup "module load python". '
                "May be repeated.",
            ),
        )
    ):
        function = option(function)
    return function


def settings_from(options: dict[str, Any], dst: str) -> Settings:
    """Remove the settings of jobs that write DST from `options`, and return them as one value.

    If DST is in a bucket, the jobs keep the state of the run where this process does.
    """
    run_dir = value_of(RUN_DIR) if is_store_url(dst) else None
    via = options.pop("via", None)
    if via is not None and not is_bucket_url(dst):
        raise no_bucket(dst, via)
    via = via if via is not None or not is_bucket_url(dst) else value_of(VIA)
    provider = value_of(STORAGE).get("credential_provider") if is_bucket_url(dst) else None
    return Settings(
        name=options.pop("job_name"),
        cores=options.pop("cores"),
        memory=options.pop("memory"),
        time=options.pop("time_limit"),
        lead_seconds=options.pop("lead"),
        requeues=options.pop("requeues"),
        directives=tuple(options.pop("directives")),
        setup=tuple(options.pop("setup")),
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


def source_arguments(options: dict[str, Any]) -> tuple[str, ...]:
    """Arguments of a command line for the source options, which stay in `options`."""
    return (*arguments_of(SOURCE_NAMES, options), *accept_arguments())


def write_arguments(options: dict[str, Any]) -> tuple[str, ...]:
    """Arguments of a command line for the name, the source and the layout of an array."""
    of_write = {"name", *SOURCE_NAMES, *names(LayoutKeywords)}
    return (*arguments_of(of_write, options), *accept_arguments())


# ---- Scripts and submission


def parts_settings(function: Any) -> Any:
    """Add the options of a job array to a command that submits one."""
    for option in reversed(
        (
            click.option(
                "--parts",
                "n_parts",
                type=click.IntRange(1),
                help="Number of parts. Default: as many as let each task last at least ten "
                "minutes.",
            ),
            click.option(
                "--throughput",
                default="200MB",
                help="Decoded bytes per second that you expect of a task.",
            ),
            click.option(
                "--directory",
                type=click.Path(file_okay=False),
                help="Directory for scripts and logs. Default: one for each array.",
            ),
        )
    ):
        function = option(function)
    return function


@click.command(cls=Grouped)
@click.argument("src", shell_complete=files)
@click.argument("dst", shell_complete=directories)
@name_option
@source_options
@layout_options
@overwrite_option
@restart_option
@durability_option
@via_option
@stripe_option
@parts_settings
@settings_options
@dry_run_option
@json_option
@command
def submit(
    src: str,
    dst: str,
    name: str | None,
    overwrite: bool,
    restart: bool,
    durability: str | None,
    stripe_count: int | None,
    n_parts: int | None,
    throughput: str,
    directory: str | None,
    at_once: int,
    dry_run: bool,
    as_json: bool,
    memory_limit: str | None,
    **options: Any,
) -> None:
    """Write SRC as DST with a job array.

    This makes the plan, submits a job array that writes the parts, and a job that publishes the
    array after them. If anything was interrupted, run the same command again: tasks whose part is
    complete end at once.
    """
    if options["format"] is not None:
        raise click.UsageError("a job array makes no array of 2022. Run `write` in a job")
    settings = settings_from(options, dst)
    arguments = source_arguments(options)
    target = resolve_new(dst, name)
    need_directory(target)
    x, identity = open_to_write(src, options)
    with engine(settings.cores, None, None):
        plan = shardwrite.plan(
            x,
            source_id=identity,
            memory_limit=memory_limit or settings.cores * MEMORY_OF_A_THREAD,
            store=dst,
            name=name,
            **options,
        )
    n_parts = n_parts or usual_parts(plan.raw_nbytes, plan.partition.n_groups, throughput)
    job = ArrayJob(
        src=absolute(src),
        dst=root_of(target),
        n_parts=n_parts,
        at_once=at_once,
        source_options=arguments,
        name=name or "",
    )
    scripts = scripts_of(job, settings)
    where = scripts_directory(directory, target)
    if dry_run:
        show_scripts(where, scripts)
        return
    refuse_second(target)  # before anything is changed
    mode = "w" if overwrite else "w-"
    shardwrite.prepare(
        x,
        dst,
        plan,
        name=name,
        mode=mode,
        durability=durability,
        restart=restart,
        stripe_count=stripe_count,
    )
    submit_scripts(target, {target: None}, where, n_parts, as_json, scripts)


def usual_parts(nbytes: int, n_groups: int, throughput: str) -> int:
    """Number of parts that let each task last long enough, as far as SLURM takes so many.

    - `nbytes`: decoded bytes of all parts.
    - `n_groups`: number of groups of shards, which are not divided.
    - `throughput`: decoded bytes per second of a task, such as 200MB.
    """
    return parts_for(nbytes, n_groups, parse_nbytes(throughput, "throughput"), max_array_size())


def scripts_directory(directory: str | None, target: Target) -> Path:
    """Directory of scripts and logs: that of the user, or the usual one of the array."""
    where = Path(directory or default_directory(target)).absolute()
    check_directory(where, target)
    return where


def absolute(src: str) -> str:
    """Path or pattern of a source as the nodes find it; a URL stays."""
    src = local_path(without_kind(src), "src")
    return src if "://" in src else os.path.abspath(src)


def scripts_of(job: ArrayJob, settings: Settings) -> dict[str, str]:
    """Texts of the scripts of a job array and of the job after it, by file name."""
    return {
        "array.sbatch": exact(array_script(job, settings)),
        "finalize.sbatch": exact(finalize_script(job, settings)),
    }


def show_scripts(where: Path, scripts: Mapping[str, str], n_rounds: int = 1) -> None:
    """Print what a submission would do."""
    echo(f"# in {where}, with a directory logs:")
    _show_chain("sbatch --parsable array.sbatch", n_rounds)
    for leaf, text in scripts.items():
        emit(f"\n# {leaf}\n{text}", nl=False)


def _show_chain(first: str, n_rounds: int) -> None:
    """Print the commands that submit a job array for each round, and the job after them."""
    echo(first)
    for script in (*["array.sbatch"] * (n_rounds - 1), "finalize.sbatch"):
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
    with submitting(target):
        write_scripts(where, target, scripts)
        array, finalize = where / "array.sbatch", where / "finalize.sbatch"
        arrays, last = submit_chain(array, finalize, tasks, _n_rounds(target))
        for run, among in runs.items():
            for number in arrays:
                record_jobs(run, number, last, n_parts, among)
    if as_json:
        ids = dict(zip(("array", "gather"), arrays, strict=False))
        facts = {**ids, "finalize": last, "parts": n_parts, "directory": str(where)}
        echo(json.dumps(facts, indent=2))
    else:
        which = f"tasks {tasks} of {n_parts}" if tasks else f"{n_parts} tasks"
        then = "".join(f", then array {number} to gather shards" for number in arrays[1:])
        told = f"job array {arrays[0]} of {which}{then}, then job {last}"
        echo(f"{told}; scripts and logs in {where}")


def _n_rounds(target: Target) -> int:
    """How often a job array is submitted: twice if its first tasks only spool chunks."""
    return 1 if spool_at(target) is None else 2


@click.command(cls=Grouped)
@click.argument("dst", shell_complete=directories)
@name_option
@click.option(
    "--array",
    "tasks",
    required=True,
    metavar="1,3-5",
    help="Parts to write again, in the form that sbatch takes.",
)
@click.option(
    "--directory",
    type=click.Path(file_okay=False),
    help="Directory of the scripts. Default: where `submit` puts them.",
)
@dry_run_option
@json_option
@command
def resubmit(
    dst: str,
    name: str | None,
    tasks: str,
    directory: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Submit some parts of DST again.

    A job that publishes the array follows them. If parts are missing, `finalize` prints this
    command.
    """
    target = resolve_target(dst, name)
    need_directory(target)
    where = Path(directory or default_directory(target)).absolute()
    scripts = read_scripts(where)
    if scripts is None:
        raise SpecError(
            "no scripts are there",
            field="directory",
            value=str(where),
            remedy="give where they are, or use submit",
        )
    if re.fullmatch(r"[\d,-]+", tasks) is None:
        raise SpecError(
            "no list of parts", field="array", value=tasks, remedy="give for instance 1,3-5"
        )
    check_directory(where, target)
    if not runs_at(target):
        raise IncompleteError(
            f"nothing was begun for {target.label}, or it is done; use submit", missing=[]
        )
    if dry_run:
        echo(f"# in {where}")
        first = f"sbatch --parsable --array={tasks}{scripts.at_once} array.sbatch"
        _show_chain(first, _n_rounds(target))
        return
    runs = dict.fromkeys(targets_at(target))
    tasks = f"{tasks}{scripts.at_once}"
    submit_scripts(target, runs, where, scripts.n_parts, as_json, {}, tasks)

"""Commands that submit the parts of an array to SLURM."""

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
from shardwrite.cli.helping import Grouped
from shardwrite.cli.options import (
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
from shardwrite.cli.slurm_options import (
    need_directory,
    settings_from,
    settings_options,
    source_arguments,
)
from shardwrite.cli.terminal import echo, emit, exact
from shardwrite.errors import IncompleteError, SpecError
from shardwrite.place.target import Target, resolve_new, resolve_target
from shardwrite.place.url import without_kind
from shardwrite.plan import Stretch, parse_nbytes
from shardwrite.slurm import (
    ArrayJob,
    Settings,
    array_script,
    check_directory,
    default_directory,
    finalize_script,
    max_array_size,
    parts_for,
    read_scripts,
    record_jobs,
    refuse_second,
    root_of,
    runs_at,
    spool_at,
    submit_chain,
    submitting,
    targets_at,
    write_scripts,
)
from shardwrite.stores import local_path


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

"""Commands for SLURM: print job scripts, submit, watch and cancel jobs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

import shardwrite
from shardwrite.cli.common import command, engine, open_as_dask
from shardwrite.cli.options import json_option, layout_options, name_option, source_options
from shardwrite.cli.parts import MEMORY_OF_A_THREAD, stripe_option
from shardwrite.cli.terminal import echo, emit, exact
from shardwrite.errors import IncompleteError, SpecError
from shardwrite.journal import find_run
from shardwrite.plan import parse_nbytes
from shardwrite.runs.outcome import INCOMPLETE
from shardwrite.slurm import (
    AllocationJob,
    ArrayJob,
    ElasticJob,
    Settings,
    allocation_script,
    array_script,
    cancel_all,
    check_directory,
    default_directory,
    doctor,
    elastic_script,
    finalize_script,
    make_run_directory,
    max_array_size,
    parts_for,
    read_scripts,
    record_jobs,
    refuse_second,
    run_scheduler,
    run_worker,
    status,
    submit_chain,
    submitting,
    write_scripts,
)
from shardwrite.target import Target, resolve_target

__all__ = ["slurm"]

_SOURCE_OPTIONS = {"source_format": "format", "source_chunks": "source-chunks"}


def _settings_options(function: Any) -> Any:
    usual = Settings()
    for option in reversed(
        (
            click.option(
                "--job-name",
                "job_name",
                default=usual.name,
                show_default=True,
                help="Name of the jobs.",
            ),
            click.option(
                "--cores",
                type=click.IntRange(1),
                default=usual.cores,
                show_default=True,
                help="Cores of each task.",
            ),
            click.option(
                "--memory", default=usual.memory, show_default=True, help="Memory of each task."
            ),
            click.option(
                "--time",
                "time_limit",
                default=usual.time,
                show_default=True,
                help="Time limit of each task.",
            ),
            click.option(
                "--lead",
                type=click.IntRange(1),
                default=usual.lead_seconds,
                show_default=True,
                help="Seconds before the limit at which a task finishes its shards in flight and "
                "requeues itself.",
            ),
            click.option(
                "--requeues",
                type=click.IntRange(0),
                default=usual.requeues,
                show_default=True,
                help="How often, at most.",
            ),
            click.option(
                "--at-once",
                type=click.IntRange(0),
                default=0,
                help="Tasks that may run at a time; all by default.",
            ),
            click.option(
                "--sbatch",
                "directives",
                multiple=True,
                help="An option for sbatch, such as --sbatch=--partition=main.",
            ),
            click.option(
                "--setup",
                multiple=True,
                help='A line of shell before the work, such as --setup "module load python".',
            ),
        )
    ):
        function = option(function)
    return function


def _settings(options: dict[str, Any]) -> Settings:
    """Remove the settings of jobs from `options`, and return them as one value."""
    return Settings(
        name=options.pop("job_name"),
        cores=options.pop("cores"),
        memory=options.pop("memory"),
        time=options.pop("time_limit"),
        lead_seconds=options.pop("lead"),
        requeues=options.pop("requeues"),
        directives=tuple(options.pop("directives")),
        setup=tuple(options.pop("setup")),
    )


def _source_arguments(options: dict[str, Any]) -> tuple[str, ...]:
    """Arguments of a command line for the source options, which stay in `options`."""
    found = []
    for key in ("source_format", "dataset", "shape", "dtype", "offset", "source_chunks"):
        value = options[key]
        if value not in (None, 0):
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            found += [f"--{_SOURCE_OPTIONS.get(key, key)}", text]
    return tuple(found)


@click.group()
def slurm() -> None:
    """Scripts and submissions for SLURM. None of them needs sacct."""


def _layout_arguments(options: dict[str, Any]) -> tuple[str, ...]:
    """Arguments of a command line for the layout options that the user has given."""
    context = click.get_current_context()
    found = []
    for key in (
        "shards",
        "chunks",
        "compressors",
        "filters",
        "fill_value",
        "index_location",
        "strategy",
        "memory_limit",
    ):
        if context.get_parameter_source(key) is ParameterSource.COMMANDLINE:
            value = options[key]
            is_codecs = key in ("compressors", "filters") and value != "auto"
            text = (
                json.dumps(value)
                if is_codecs
                else ",".join(map(str, value))
                if isinstance(value, tuple)
                else str(value)
            )
            found += [f"--{key.replace('_', '-')}", text]
    return (*found, *(["--write-empty-chunks"] if options["write_empty_chunks"] else []))


@slurm.command()
@click.argument("kind", type=click.Choice(["array", "finalize", "allocation", "elastic"]))
@click.argument("words", nargs=-1, metavar="[SRC DST | ARGUMENTS]...")
@name_option
@source_options
@layout_options
@click.option(
    "--parts", "n_parts", type=click.IntRange(1), help="Parts, and tasks of the job array."
)
@click.option(
    "--nodes",
    "n_nodes",
    type=click.IntRange(1),
    default=4,
    show_default=True,
    help="Nodes of the allocation.",
)
@click.option(
    "--workers-per-node",
    "n_workers",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Tasks on each node.",
)
@click.option(
    "--program",
    help="A script of yours in Python for the allocation to run, with ARGUMENTS; put -- before "
    "them.",
)
@click.option(
    "--jobs", "n_jobs", type=click.IntRange(1), help="Workers of the elastic way, each a job."
)
@click.option(
    "--driver-time",
    default="1-00:00:00",
    show_default=True,
    help="Time limit of the elastic way's driver.",
)
@_settings_options
@command
def script(
    kind: str,
    words: tuple[str, ...],
    name: str | None,
    n_parts: int | None,
    n_nodes: int,
    n_workers: int,
    program: str | None,
    n_jobs: int | None,
    driver_time: str,
    at_once: int,
    **options: Any,
) -> None:
    """Print a script for sbatch that writes SRC to DST.

    ARRAY is a job array whose tasks write the parts, FINALIZE the job that comes after them; `init`
    fixes the layout for both. ALLOCATION is one job with a dask cluster inside, that runs `write`,
    or a program of yours. ELASTIC is a small job that drives workers, which are jobs of their own.
    """
    settings = _settings(options)
    if program is not None and kind == "allocation":
        job = AllocationJob(n_nodes=n_nodes, n_workers=n_workers, program=program, arguments=words)
        emit(allocation_script(job, settings), nl=False)
        return
    if program is not None or len(words) != 2:
        raise click.UsageError("give SRC and DST, or for an allocation --program")
    if (n_parts is not None, n_jobs is not None) != (
        kind in ("array", "finalize"),
        kind == "elastic",
    ):
        raise click.UsageError(
            "array and finalize take --parts, elastic takes --jobs, and allocation --nodes"
        )
    src, dst = words
    source = _source_arguments(options)
    given = (*(("--name", name) if name else ()), *source, *_layout_arguments(options))
    if kind == "allocation":
        text = allocation_script(
            AllocationJob(n_nodes=n_nodes, n_workers=n_workers, src=src, dst=dst, options=given),
            settings,
        )
    elif n_jobs is not None:
        text = elastic_script(
            ElasticJob(src=src, dst=dst, n_jobs=n_jobs, options=given, driver_time=driver_time),
            settings,
        )
    elif n_parts is not None:
        parts = ArrayJob(
            src=src,
            dst=dst,
            n_parts=n_parts,
            at_once=at_once,
            source_options=source,
            name=name or "",
        )
        text = (array_script if kind == "array" else finalize_script)(parts, settings)
    emit(text, nl=False)


@slurm.command("run-directory")
@command
def run_directory() -> None:
    """Make the directory of this start of the job, with keys for its processes, and print its
    path.
    """  # noqa: D205 (help text)
    emit(str(make_run_directory()))


@slurm.command()
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
@command
def scheduler(directory: Path) -> None:
    """Be the dask scheduler of a job whose run DIRECTORY that is."""
    run_scheduler(directory)


@slurm.command()
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
@command
def worker(directory: Path) -> None:
    """Be a dask worker, with all cores and memory that srun gives, of the scheduler in the run
    DIRECTORY.
    """  # noqa: D205 (help text)
    run_worker(directory)


@slurm.command("status")
@click.argument("dst")
@name_option
@json_option
@command
def show_status(dst: str, name: str | None, as_json: bool) -> None:
    """Show how far DST is: shards and bytes done, speed, time left, parts left, failures, and the
    jobs that write it.

    Works after the jobs are gone, and where squeue is not. Exit code 85 as long as the array is not
    published.
    """  # noqa: D205 (help text)
    found = status(resolve_target(dst, name))
    echo(json.dumps(found.to_dict(), indent=2) if as_json else str(found))
    if not found.is_whole:
        raise SystemExit(INCOMPLETE)


@slurm.command("cancel")
@click.argument("dst")
@name_option
@json_option
@command
def cancel_jobs(dst: str, name: str | None, as_json: bool) -> None:
    """Cancel the jobs that write DST: job arrays, allocations, drivers, workers.

    Also after the process that submitted them was killed. A driver on a login node is told to end,
    and submits no more.

    What is written stays, and the same again goes on. Cancelling twice does no harm.
    """
    found = cancel_all(resolve_target(dst, name))
    if as_json:
        echo(json.dumps(asdict(found), indent=2))
        return
    echo(
        f"cancelled {', '.join(found.jobs)}"
        if found.jobs
        else f"nothing to cancel: {found.n_known} jobs known, none in the queue"
    )
    for process in found.alive:
        echo(f"still at it, or ended without a word: {process}")


@slurm.command("doctor")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--patience",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    help="Seconds to wait for the other nodes.",
)
@json_option
@command
def show_doctor(directory: Path, patience: float, as_json: bool) -> None:
    """Look at every node of a job: srun --ntasks-per-node=1 shardwrite slurm doctor DIRECTORY.

    Versions, whether all see the DIRECTORY and how late, what its file system can, cores, memory,
    scratch and network. Exit code 1 if something will not work.
    """
    doctor.check_directory(directory)
    own = doctor.examine(directory, os.environ)
    found = doctor.meet(directory, own, os.environ, patience)
    if own.rank:
        return  # rank 0 reports
    problems = doctor.problems_of(found, int(os.environ.get("SLURM_STEP_NUM_TASKS", 1)))
    warnings = doctor.warnings_of(found)
    if as_json:
        echo(
            json.dumps(
                {
                    "nodes": [asdict(one) for one in found],
                    "problems": problems,
                    "warnings": warnings,
                },
                indent=2,
            )
        )
    else:
        echo(doctor.report(found))
        echo(
            "\n".join(
                [
                    *(f"warning: {text}" for text in warnings),
                    *(f"problem: {text}" for text in problems),
                ]
                or ["all is well"]
            )
        )
    if problems:
        raise SystemExit(1)


@slurm.command()
@click.argument("src")
@click.argument("dst")
@name_option
@source_options
@layout_options
@click.option("--overwrite", is_flag=True, help="Replace an array that exists.")
@click.option(
    "--restart",
    is_flag=True,
    help="Take away what a run that did not end has written, and start over.",
)
@click.option("--durability", type=click.Choice(["full", "batch", "none"]), default="full")
@stripe_option
@click.option(
    "--parts",
    "n_parts",
    type=click.IntRange(1),
    help="Parts; by default so many that a task lasts ten minutes or more.",
)
@click.option(
    "--throughput",
    default="200MB",
    show_default=True,
    help="Decoded bytes that a task is expected to write in a second.",
)
@click.option(
    "--directory",
    type=click.Path(file_okay=False),
    help="Where scripts and logs go; one for each array by default.",
)
@_settings_options
@click.option("--dry-run", is_flag=True, help="Print what would be done, and do nothing.")
@json_option
@command
def submit(
    src: str,
    dst: str,
    name: str | None,
    overwrite: bool,
    restart: bool,
    durability: str,
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
    """Begin writing SRC as DST, submit a job array that writes the parts, and a job that publishes
    after them.

    After any interruption the same command goes on; tasks whose part is done end at once.
    """  # noqa: D205 (help text)
    settings = _settings(options)
    arguments = _source_arguments(options)
    target = resolve_target(dst, name)
    x, identity = open_as_dask(src, options)
    with engine(settings.cores, None, None):
        plan = shardwrite.plan(
            x,
            source_id=identity,
            memory_limit=memory_limit or settings.cores * MEMORY_OF_A_THREAD,
            **options,
        )
    if n_parts is None:
        n_parts = parts_for(
            plan.raw_nbytes,
            plan.partition.n_groups,
            parse_nbytes(throughput, "throughput"),
            max_array_size(),
        )
    job = ArrayJob(
        src=os.path.abspath(src),
        dst=str(target.root),
        n_parts=n_parts,
        at_once=at_once,
        source_options=arguments,
        name=name or "",
    )
    scripts = {
        "array.sbatch": exact(array_script(job, settings)),
        "finalize.sbatch": exact(finalize_script(job, settings)),
    }
    where = Path(directory or default_directory(target)).absolute()
    check_directory(where, target)
    if dry_run:
        echo(f"# in {where}, with a directory logs:")
        echo("""sbatch --parsable array.sbatch
sbatch --parsable --dependency=afterany:<id of the array> finalize.sbatch""")
        for leaf, text in scripts.items():
            emit(f"\n# {leaf}\n{text}", nl=False)
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
    _submit(target, where, n_parts, "", as_json, scripts)


def _submit(
    target: Target, where: Path, n_parts: int, tasks: str, as_json: bool, scripts: Mapping[str, str]
) -> None:
    """Submit a job array and the job after it, note both beside the run, and print their ids.

    `scripts` are written first; if there are none, those in `where` are used. `tasks` is given to
    ``sbatch --array``; if it is empty, all tasks are submitted.
    """
    with submitting(target):
        write_scripts(where, target, scripts)
        array, last = submit_chain(where / "array.sbatch", where / "finalize.sbatch", tasks)
        record_jobs(target, array, last, n_parts)
    if as_json:
        echo(
            json.dumps(
                {"array": array, "finalize": last, "parts": n_parts, "directory": str(where)},
                indent=2,
            )
        )
    else:
        which = f"tasks {tasks} of {n_parts}" if tasks else f"{n_parts} tasks"
        echo(f"job array {array} of {which}, then job {last}; scripts and logs in {where}")


@slurm.command()
@click.argument("dst")
@name_option
@click.option(
    "--array",
    "tasks",
    required=True,
    metavar="1,3-5",
    help="Parts that are to be written again, as sbatch takes them.",
)
@click.option(
    "--directory",
    type=click.Path(file_okay=False),
    help="Where the scripts are; where `submit` puts them by default.",
)
@json_option
@command
def resubmit(dst: str, name: str | None, tasks: str, directory: str | None, as_json: bool) -> None:
    """Submit some parts of DST again, and a job that publishes after them: the line that `finalize`
    prints.
    """  # noqa: D205 (help text)
    target = resolve_target(dst, name)
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
    if find_run(target) is None:
        raise IncompleteError(
            f"nothing was begun for {target.path}, or it is done; use submit", missing=[]
        )
    _submit(target, where, scripts.n_parts, f"{tasks}{scripts.at_once}", as_json, {})

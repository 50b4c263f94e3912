"""Commands for SLURM: print job scripts, submit, watch and cancel jobs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from shardwrite.cli.common import check_sources, command
from shardwrite.cli.completion import directories, files
from shardwrite.cli.convert import reshard, shard, unshard
from shardwrite.cli.jobs import (
    n_rounds_of,
    need_directory,
    settings_of,
    show_chain,
    submit_scripts,
)
from shardwrite.cli.options import (
    SOURCE_NAMES,
    arguments_of,
    dry_run_option,
    jobs_of,
    layout_options,
    name_option,
    names_option,
    of_group,
    option_of,
    options_of,
    refuse,
    source_options,
)
from shardwrite.cli.parts import show_status
from shardwrite.cli.terminal import echo, emit, write_commands
from shardwrite.cli.write import precomputed, write
from shardwrite.errors import IncompleteError, SpecError
from shardwrite.operations.keywords import LayoutKeywords
from shardwrite.options import names
from shardwrite.place.target import resolve_target
from shardwrite.slurm import doctor
from shardwrite.slurm.inside import make_run_directory, run_scheduler, run_worker
from shardwrite.slurm.jobs import (
    cancel_all,
    check_directory,
    default_directory,
    jobs_known,
    read_scripts,
    runs_at,
    targets_at,
)
from shardwrite.slurm.keywords import (
    AllocationKeywords,
    ArrayJobKeywords,
    DriverKeywords,
    SubmitArguments,
    TaskKeywords,
    WorkerKeywords,
)
from shardwrite.slurm.script import (
    AllocationJob,
    ArrayJob,
    ElasticJob,
    allocation_script,
    array_script,
    elastic_script,
    finalize_script,
)

# ---- The group of commands


class Slurm(click.Group):
    """The commands for SLURM, listed with whole sentences."""

    def subcommand(self, name: str | None = None, **how: Any) -> Callable[..., Any]:
        """Make one of the commands; see `command`."""

        def make(function: Callable[..., None]) -> Any:
            made = command(name, **how)(function)
            self.add_command(made)
            return made

        return make

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See :meth:`click.Group.format_commands`."""
        names = self.list_commands(ctx)
        write_commands(formatter, [(name, self.commands[name]) for name in names], {})


@click.group(cls=Slurm)
def slurm() -> None:
    """Write arrays on a SLURM cluster.

    Submit jobs by `write --submit`, and follow the progress with `status`. None of these commands
    needs sacct.
    """


_KINDS_OF = {
    "n_parts": "array and finalize",
    "names": "array and finalize",
    "at_once": "array",
    "jobs": "elastic",
    **dict.fromkeys(names(DriverKeywords), "elastic"),
    **dict.fromkeys(names(AllocationKeywords), "allocation"),
    **dict.fromkeys(names(LayoutKeywords), "init, allocation and elastic"),
}
"""Kinds of scripts that take an option, for each option that not all of them take."""


@slurm.subcommand(prints_json=False)
@click.argument("kind", type=click.Choice(["array", "finalize", "allocation", "elastic"]))
@click.argument("words", shell_complete=files, nargs=-1, metavar="[SRC... DST | ARGUMENTS]...")
@name_option
@names_option
@source_options
@layout_options
@option_of(ArrayJobKeywords, "n_parts", help="Number of parts, each a task of the job array.")
@options_of(AllocationKeywords)
@option_of(WorkerKeywords, "jobs", help="Number of workers of the elastic way, each a job.")
@options_of(DriverKeywords)
@options_of(TaskKeywords, unset=True)
@option_of(ArrayJobKeywords, "at_once", unset=True)
def script(kind: str, words: tuple[str, ...], **options: Any) -> None:
    """Print a script for sbatch that writes SRC to DST.

    `array` is a job array whose tasks write the parts, and `finalize` is the job after it; run
    `shardwrite init` before both. `allocation` is one job with a dask cluster inside; it runs
    `write`, or a program of yours. `elastic` is a small job that submits workers as jobs of their
    own.
    """
    for option, kinds in _KINDS_OF.items():
        if kind not in kinds:
            refuse([option], f"is for {kinds}, and not for {kind}")
    given, nodes = jobs_of(options), of_group(AllocationKeywords, options)
    n_parts, n_jobs = given.pop("n_parts", None), given.pop("jobs", None)
    is_program, asked = nodes["program"] is not None, SubmitArguments(**given)
    settings = settings_of(asked, words[-1] if words and not is_program else "", None)
    of_write = {"name", *SOURCE_NAMES, *names(LayoutKeywords)}
    if is_program:
        refuse(of_write, "is for SRC and DST, and not for --program")
        emit(allocation_script(AllocationJob(**nodes, arguments=words), settings), nl=False)
        return
    if len(words) < 2:
        raise click.UsageError("give SRC and DST, or for an allocation --program")
    several = options.pop("names")
    check_sources(words[:-1], several)
    if (n_parts is not None, n_jobs is not None) != (
        kind in ("array", "finalize"),
        kind == "elastic",
    ):
        raise click.UsageError(
            "array and finalize take --parts, elastic takes --jobs, and allocation --nodes"
        )
    words = tuple(f"./{word}" if word.startswith("-") else word for word in words)
    src, dst = words[0], words[-1]
    arguments = arguments_of(of_write, options)
    if kind == "allocation":
        job = AllocationJob(**nodes, src=src, dst=dst, options=arguments)
        text = allocation_script(job, settings)
    elif kind == "elastic":
        time = options["driver_time"]
        driver = ElasticJob(src=src, dst=dst, n_jobs=n_jobs, options=arguments, driver_time=time)
        text = elastic_script(driver, settings)
    else:
        parts = ArrayJob(
            src=src if several is None else words[:-1],
            dst=dst,
            n_parts=n_parts,
            at_once=asked.at_once,
            source_options=arguments_of(SOURCE_NAMES, options),
            name=options["name"] or "",
            names=tuple(each or "" for each in several or ()),
        )
        text = (array_script if kind == "array" else finalize_script)(parts, settings)
    emit(text, nl=False)


@slurm.subcommand("run-directory", hidden=True, prints_json=False)
def run_directory() -> None:
    """Make a directory with keys for this start of a job, and print its path."""
    emit(str(make_run_directory()))


@slurm.subcommand(hidden=True, prints_json=False)
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
def scheduler(directory: Path) -> None:
    """Run the dask scheduler of the job with this run DIRECTORY."""
    run_scheduler(directory)


@slurm.subcommand(hidden=True, prints_json=False)
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
def worker(directory: Path) -> None:
    """Run a dask worker of the job with this run DIRECTORY.

    It takes all cores and the memory that srun gives it.
    """
    run_worker(directory)


@slurm.subcommand()
@click.argument("dst", shell_complete=directories)
@name_option
def status(dst: str, name: str | None, as_json: bool) -> None:
    """Show how far DST is.

    This shows shards and bytes done, speed, time left, missing parts, failures and jobs. It also
    works after the jobs have ended, and without squeue. The exit code is 85 until the array is
    complete.
    """
    show_status(dst, name, as_json=as_json)


@slurm.subcommand("cancel")
@click.argument("dst", shell_complete=directories)
@name_option
@dry_run_option
def cancel_jobs(dst: str, name: str | None, dry_run: bool, as_json: bool) -> None:
    """Cancel the jobs that write DST.

    This cancels job arrays, allocations, drivers and workers, also after the process that submitted
    them was killed. A driver on a login node is told to end and to submit no more. What is written
    stays, and the same submission continues it. You may cancel twice.
    """
    target = resolve_target(dst, name)
    need_directory(target)
    if dry_run:
        known = jobs_known(target)
        told = f"would cancel those of these jobs that are in the queue: {', '.join(known)}"
        echo(json.dumps({"jobs": known}) if as_json else told if known else "no jobs are known")
        return
    found = cancel_all(target)
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


@slurm.subcommand("doctor")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--patience",
    type=click.FloatRange(0),
    default=60.0,
    help="Seconds to wait for the other nodes.",
)
def show_doctor(directory: Path, patience: float, as_json: bool) -> None:
    """Check the nodes of a job before the first run.

    Run it with srun: `srun --ntasks-per-node=1 shardwrite slurm doctor DIRECTORY`. It compares
    versions, checks whether all nodes see DIRECTORY and what its file system can do, and shows
    cores, memory, scratch and network. The exit code is 1 if something will not work.
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


@slurm.subcommand()
@click.argument("dst", shell_complete=directories)
@name_option
@click.option(
    "--array",
    "tasks",
    required=True,
    metavar="1,3-5",
    help="Parts to write again, in the form that sbatch takes.",
)
@option_of(
    ArrayJobKeywords,
    "directory",
    help="Directory of the scripts. Default: where `submit` puts them.",
)
@dry_run_option
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
    given = [re.fullmatch(r"(\d{1,7})(?:-(\d{1,7}))?", each) for each in tasks.split(",")]
    ranges = [(int(each[1]), int(each[2] or each[1])) for each in given if each is not None]
    if len(ranges) < len(given) or any(first > last for first, last in ranges):
        raise SpecError(
            "no list of parts", field="array", value=tasks, remedy="give for instance 1,3-5"
        )
    if 0 < scripts.n_parts <= max(last for _, last in ranges):
        raise SpecError(
            f"there are {scripts.n_parts} parts",
            field="array",
            value=tasks,
            remedy=f"give some of 0-{scripts.n_parts - 1}",
        )
    check_directory(where, target)
    if not runs_at(target):
        raise IncompleteError(
            f"nothing was begun for {target.label}, or it is done; use submit", missing=[]
        )
    if dry_run:
        echo(f"# in {where}")
        first = f"sbatch --parsable --array={tasks}{scripts.at_once} array.sbatch"
        show_chain(first, n_rounds_of(target))
        return
    runs = dict.fromkeys(targets_at(target))
    tasks = f"{tasks}{scripts.at_once}"
    submit_scripts(target, runs, where, scripts.n_parts, as_json, {}, tasks)


for _command, _name in (
    (write, "submit"),
    (shard, "shard"),
    (unshard, "unshard"),
    (reshard, "reshard"),
    (precomputed, "precomputed"),
):
    slurm.add_command(_command.submitting(_name))

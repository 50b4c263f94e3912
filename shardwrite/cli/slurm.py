"""Commands for SLURM: print job scripts, submit, watch and cancel jobs."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from shardwrite.cli.common import command
from shardwrite.cli.completion import directories, files
from shardwrite.cli.helping import Grouped, write_commands
from shardwrite.cli.options import (
    dry_run_option,
    json_option,
    layout_options,
    name_option,
    source_options,
)
from shardwrite.cli.slurm_convert import reshard, shard, unshard
from shardwrite.cli.slurm_options import (
    need_directory,
    settings_from,
    settings_options,
    source_arguments,
    write_arguments,
)
from shardwrite.cli.slurm_submit import resubmit, submit
from shardwrite.cli.slurm_volume import precomputed
from shardwrite.cli.terminal import echo, emit
from shardwrite.journal import fetched
from shardwrite.place.target import resolve_target
from shardwrite.runs.outcome import INCOMPLETE
from shardwrite.slurm import (
    AllocationJob,
    ArrayJob,
    ElasticJob,
    allocation_script,
    array_script,
    cancel_all,
    doctor,
    elastic_script,
    finalize_script,
    jobs_known,
    make_run_directory,
    run_scheduler,
    run_worker,
    status,
)


class Slurm(click.Group):
    """The commands for SLURM, listed with whole sentences."""

    command_class = Grouped

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See :meth:`click.Group.format_commands`."""
        names = self.list_commands(ctx)
        write_commands(formatter, [(name, self.commands[name]) for name in names], {})


@click.group(cls=Slurm)
def slurm() -> None:
    """Write arrays on a SLURM cluster.

    Begin with `submit`, and follow the progress with `status`. None of these commands needs sacct.
    """


@slurm.command()
@click.argument("kind", type=click.Choice(["array", "finalize", "allocation", "elastic"]))
@click.argument("words", shell_complete=files, nargs=-1, metavar="[SRC DST | ARGUMENTS]...")
@name_option
@source_options
@layout_options
@click.option(
    "--parts",
    "n_parts",
    type=click.IntRange(1),
    help="Number of parts, each a task of the job array.",
)
@click.option(
    "--nodes",
    "n_nodes",
    type=click.IntRange(1),
    default=4,
    help="Number of nodes of the allocation.",
)
@click.option(
    "--workers-per-node",
    "n_workers",
    type=click.IntRange(1),
    default=1,
    help="Number of tasks on each node.",
)
@click.option(
    "--program",
    help="A script of yours in Python for the allocation to run, with ARGUMENTS; put -- before "
    "them.",
)
@click.option(
    "--jobs",
    "n_jobs",
    type=click.IntRange(1),
    help="Number of workers of the elastic way, each a job.",
)
@click.option(
    "--driver-time",
    default="1-00:00:00",
    help="Time limit of the driver of the elastic way.",
)
@settings_options
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

    `array` is a job array whose tasks write the parts, and `finalize` is the job after it; run
    `shardwrite init` before both. `allocation` is one job with a dask cluster inside; it runs
    `write`, or a program of yours. `elastic` is a small job that submits workers as jobs of their
    own.
    """
    settings = settings_from(options, words[-1] if program is None and words else "")
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
    given = write_arguments({"name": name, **options})
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
            source_options=source_arguments(options),
            name=name or "",
        )
        text = (array_script if kind == "array" else finalize_script)(parts, settings)
    emit(text, nl=False)


@slurm.command("run-directory", hidden=True)
@command
def run_directory() -> None:
    """Make a directory with keys for this start of a job, and print its path."""
    emit(str(make_run_directory()))


@slurm.command(hidden=True)
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
@command
def scheduler(directory: Path) -> None:
    """Run the dask scheduler of the job with this run DIRECTORY."""
    run_scheduler(directory)


@slurm.command(hidden=True)
@click.argument("directory", type=click.Path(path_type=Path, exists=True, file_okay=False))
@command
def worker(directory: Path) -> None:
    """Run a dask worker of the job with this run DIRECTORY.

    It takes all cores and the memory that srun gives it.
    """
    run_worker(directory)


@slurm.command("status")
@click.argument("dst", shell_complete=directories)
@name_option
@json_option
@command
def show_status(dst: str, name: str | None, as_json: bool) -> None:
    """Show how far DST is.

    This shows shards and bytes done, speed, time left, missing parts, failures and jobs. It also
    works after the jobs have ended, and without squeue. The exit code is 85 until the array is
    complete.
    """
    found = status(fetched(resolve_target(dst, name, is_read=True)))
    echo(json.dumps(found.to_dict(), indent=2) if as_json else str(found))
    if not found.is_whole:
        raise SystemExit(INCOMPLETE)


@slurm.command("cancel")
@click.argument("dst", shell_complete=directories)
@name_option
@dry_run_option
@json_option
@command
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


@slurm.command("doctor")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--patience",
    type=click.FloatRange(0),
    default=60.0,
    help="Seconds to wait for the other nodes.",
)
@json_option
@command
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


for _command in (submit, resubmit, shard, unshard, reshard, precomputed):
    slurm.add_command(_command)

"""Commands for SLURM: print job scripts, submit, watch and cancel jobs."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

import shardwrite
from shardwrite.cli.common import command, engine
from shardwrite.cli.completion import directories, files
from shardwrite.cli.convert_options import (
    begin_options,
    codec_options,
    conversion_arguments,
    conversion_options,
    in_order,
    index_option,
    open_volume,
    shards_option,
    volume_options,
)
from shardwrite.cli.options import (
    dry_run_option,
    durability_option,
    json_option,
    layout_options,
    name_option,
    restart_option,
    source_options,
    stripe_option,
)
from shardwrite.cli.parts import MEMORY_OF_A_THREAD
from shardwrite.cli.slurm_submit import (
    absolute,
    need_directory,
    parts_settings,
    resubmit,
    scripts_directory,
    scripts_of,
    settings_from,
    settings_options,
    show_scripts,
    source_arguments,
    submit,
    submit_scripts,
    usual_parts,
    write_arguments,
)
from shardwrite.cli.terminal import Grouped, echo, emit, write_commands
from shardwrite.convert.arrays import call_of
from shardwrite.convert.keywords import ReshardArguments
from shardwrite.convert.parts import plan_parts
from shardwrite.engines.local import LocalEngine
from shardwrite.journal.bucket_runs import fetched
from shardwrite.place.base import without_kind
from shardwrite.place.target import resolve_new, resolve_target
from shardwrite.runs.outcome import INCOMPLETE
from shardwrite.slurm import doctor
from shardwrite.slurm.client import root_of
from shardwrite.slurm.inside import make_run_directory, run_scheduler, run_worker
from shardwrite.slurm.jobs import cancel_all, jobs_known, refuse_second, targets_at
from shardwrite.slurm.script import (
    AllocationJob,
    ArrayJob,
    ElasticJob,
    allocation_script,
    array_script,
    elastic_script,
    finalize_script,
)
from shardwrite.slurm.status import status
from shardwrite.stores.opening import is_store_url
from shardwrite.volumes.new import ROW_MAJOR, checked_key
from shardwrite.volumes.precomputed import noting_axes

# ---- Conversions in parts


def _submitting(function: Any) -> Any:
    """Add the options of a conversion by a job array to a command."""
    for option in reversed(
        (
            conversion_options,
            begin_options,
            parts_settings,
            settings_options,
            click.option(
                "--dry-run", is_flag=True, help="Print what would be done, and do nothing."
            ),
            json_option,
        )
    ):
        function = option(function)
    return function


def _submit(
    conversion: str, src: str, dst: str, arguments: tuple[str, ...], options: dict[str, Any]
) -> None:
    """Begin a conversion, and submit a job array for its parts and a job that publishes."""
    settings = settings_from(options, dst)
    target = resolve_target(dst, None)
    need_directory(target)
    run = {name: options.pop(name) for name in ("durability", "restart")}
    run["mode"] = "w" if options.pop("overwrite") else "w-"
    n_parts, throughput = options.pop("n_parts"), options.pop("throughput")
    directory, at_once = options.pop("directory"), options.pop("at_once")
    dry_run, as_json = options.pop("dry_run"), options.pop("as_json")
    options["memory_limit"] = options["memory_limit"] or settings.cores * MEMORY_OF_A_THREAD
    engine = LocalEngine("threads")
    parts = plan_parts(src, call_of(ReshardArguments(src, dst, **run, **options)), engine)
    n_parts = n_parts or usual_parts(parts.raw_nbytes, parts.n_groups, throughput)
    scripts = scripts_of(
        ArrayJob(
            src=absolute(src),
            dst=root_of(target),
            n_parts=n_parts,
            at_once=at_once,
            source_options=arguments,
            conversion=conversion,
        ),
        settings,
    )
    where = scripts_directory(directory, target)
    if dry_run:
        show_scripts(where, scripts)
        return
    refuse_second(target)  # before anything is changed
    parts.begin(engine)
    runs = {parts.target_of(one): among for one, among in parts.stretches()}
    submit_scripts(target, runs, where, n_parts, as_json, scripts)


@click.command(cls=Grouped)
@click.argument("src", shell_complete=files)
@click.argument("dst", shell_complete=directories)
@shards_option
@index_option
@_submitting
@command
def shard(src: str, dst: str, **options: Any) -> None:
    """Put the encoded chunks of SRC into shards of DST, with a job array.

    This begins the conversion, submits a job array that converts the parts, and a job that
    publishes DST after them. The parts are cut over all arrays of SRC. If anything was interrupted,
    run the same command again: tasks whose part is complete end at once.
    """
    if options["shards"] is None:
        raise click.UsageError("shards are needed; unshard makes an array without them")
    _submit("shard", src, dst, conversion_arguments(options), options)


@click.command(cls=Grouped)
@click.argument("src", shell_complete=files)
@click.argument("dst", shell_complete=directories)
@_submitting
@command
def unshard(src: str, dst: str, **options: Any) -> None:
    """Make one file in DST of each encoded chunk of SRC, with a job array.

    The jobs, and what happens after an interruption, are the same as for `slurm shard`.
    """
    arguments = conversion_arguments(options)
    _submit("unshard", src, dst, arguments, {"shards": None, **options})


@click.command(cls=Grouped)
@click.argument("src", shell_complete=files)
@click.argument("dst", shell_complete=directories)
@shards_option
@codec_options
@index_option
@_submitting
@command
def reshard(src: str, dst: str, **options: Any) -> None:
    """Write SRC as DST with other shards or codecs, with a job array.

    The jobs, and what happens after an interruption, are the same as for `slurm shard`.
    """
    _submit("reshard", src, dst, conversion_arguments(options), options)


# ---- Scales of volumes in parts


@click.command(cls=Grouped)
@click.argument("src", shell_complete=files)
@click.argument("dst", shell_complete=directories)
@source_options
@volume_options
@click.option(
    "--memory-limit",
    help="Memory of each task for the plan, such as 4GB. Default: 1 GiB for each core.",
)
@restart_option
@durability_option
@stripe_option
@parts_settings
@settings_options
@dry_run_option
@json_option
@command
def precomputed(
    src: str,
    dst: str,
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
    """Write SRC as a scale of the Neuroglancer volume DST, with a job array.

    This makes the plan, submits a job array that writes the parts, and a job that enters the scale
    into the info file of DST after them. If the hash scatters the chunks, the array is submitted
    twice: its first tasks spool the chunks, and the others gather the shards. Encoded chunks of a
    Zarr array are copied where `shardwrite precomputed` copies them. If anything was interrupted,
    run the same command again: tasks whose part is complete end at once.
    """
    dst = without_kind(dst)
    settings = settings_from(options, dst)
    arguments = source_arguments(options)
    x, identity = open_volume(src, options, as_source=True)
    axes = options["axes"]
    with engine(settings.cores, None, None):
        plan = shardwrite.plan_precomputed(
            x,
            dst,
            source_id=identity,
            memory_limit=memory_limit or settings.cores * MEMORY_OF_A_THREAD,
            **options,
        )
    plan = noting_axes(plan, axes)
    key = checked_key(options["key"], options["resolution"])
    store = f"{dst.rstrip('/')}/{key}" if is_store_url(dst) else os.path.join(dst, key)
    target = resolve_new(store, None)
    need_directory(target)
    n_parts = n_parts or usual_parts(plan.raw_nbytes, plan.partition.n_groups, throughput)
    job = ArrayJob(
        src=absolute(src),
        dst=root_of(target),
        n_parts=n_parts,
        at_once=at_once,
        source_options=(*arguments, *([] if ROW_MAJOR.endswith(axes) else ["--axes", axes])),
    )
    scripts = scripts_of(job, settings)
    where = scripts_directory(directory, target)
    if dry_run:
        show_scripts(where, scripts, 1 if plan.gathering is None else 2)
        return
    refuse_second(target)  # before anything is changed
    shardwrite.prepare(
        in_order(x, axes),
        store,
        plan,
        durability=durability,
        restart=restart,
        stripe_count=stripe_count,
    )
    submit_scripts(target, dict.fromkeys(targets_at(target)), where, n_parts, as_json, scripts)


# ---- The group of commands


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

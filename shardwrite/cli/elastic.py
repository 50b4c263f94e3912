"""Options for workers that are SLURM jobs, and a write with such workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import dask

import shardwrite
from shardwrite.cli.common import engine
from shardwrite.cli.terminal import echo
from shardwrite.convert.convert import preview_loss
from shardwrite.convert.plan import Conversion
from shardwrite.errors import SpecError
from shardwrite.journal.begin import find_run
from shardwrite.operations.keywords import PlanArguments
from shardwrite.options import names
from shardwrite.place.target import resolve_new, resolve_target, target_via
from shardwrite.runs.result import WriteResult
from shardwrite.slurm.elastic import opened
from shardwrite.slurm.jobs import refuse_second, runs_at
from shardwrite.slurm.workers import workers_of

_FIELDS = {
    "jobs": "jobs",
    "minimum_jobs": "minimum_jobs",
    "cores": "cores",
    "memory": "memory",
    "time_limit": "time",
    "job_name": "job_name",
    "directives": "directives",
    "setup": "setup",
    "interface": "interface",
    "scheduler_interface": "scheduler_interface",
    "log_directory": "log_directory",
    "encrypted": "encrypted",
    "patience": "patience_seconds",
    "config_name": "config_name",
}


def cluster_options(function: Any) -> Any:
    """Add the options for workers that are SLURM jobs to a command."""
    said = ". Default: as in dask/jobqueue.yaml"
    for option in reversed(
        (
            click.option(
                "--cluster",
                type=click.Choice(["slurm"]),
                help="Let SLURM jobs do the work. This process submits them.",
            ),
            click.option(
                "--jobs", type=int, help="With --cluster: largest number of workers, each a job."
            ),
            click.option(
                "--minimum-jobs",
                type=int,
                help="Number of workers to keep, once there is one. Default: 1.",
            ),
            click.option(
                "--cores",
                type=click.IntRange(1),
                help=f"Number of cores of each worker{said}, or 4.",
            ),
            click.option("--memory", help=f"Memory of each worker{said}, or 8G."),
            click.option("--time", "time_limit", help=f"Time limit of each worker{said}."),
            click.option("--job-name", help="Name of the jobs. Default: shardwrite."),
            click.option(
                "--sbatch",
                "directives",
                multiple=True,
                help="An option for sbatch, such as --sbatch=--partition=main. May be repeated.",
            ),
            click.option(
                "--setup",
                multiple=True,
                help="A shell command to run before a worker starts. May be repeated.",
            ),
            click.option(
                "--interface",
                help="Network of the workers, such as ib0. Default: SHARDWRITE_INTERFACE.",
            ),
            click.option(
                "--scheduler-interface",
                help="Network of this process, if it has another name here. Default: "
                "SHARDWRITE_SCHEDULER_INTERFACE, or that of the workers.",
            ),
            click.option(
                "--log-directory",
                type=click.Path(file_okay=False),
                help="Directory for the output of the jobs. Default: logs.",
            ),
            click.option(
                "--encrypted/--not-encrypted",
                default=None,
                help="Whether processes talk by TLS. Default: they do.",
            ),
            click.option(
                "--patience",
                type=click.FloatRange(1),
                help="Seconds to wait without any worker. Default: a day.",
            ),
            click.option("--config-name", help="Section of dask/jobqueue.yaml. Default: slurm."),
        )
    ):
        function = option(function)
    return function


def taken(options: dict[str, Any]) -> tuple[bool, dict[str, Any]]:
    """Remove the cluster's options from `options`, and return whether a cluster is wanted, and how.

    The second value holds the options that were given, as keyword arguments of
    :func:`shardwrite.slurm.workers_of`.
    """
    is_wanted = options.pop("cluster") is not None
    given = {
        field: value
        for name, field in _FIELDS.items()
        if (value := options.pop(name)) not in (None, ())
    }
    if given and not is_wanted:
        raise SpecError(
            "is for workers that are jobs",
            field=next(iter(given)),
            value=next(iter(given.values())),
            remedy="give --cluster slurm",
        )
    if is_wanted and "jobs" not in given:
        raise SpecError("how many workers?", field="jobs", value=None, remedy="give --jobs")
    return is_wanted, given


def write_with_jobs(
    x: Any, dst: str, given: dict[str, Any], identity: str, progress: bool, **options: Any
) -> WriteResult:
    """Begin a run in this process, and write it with workers that are SLURM jobs.

    The run begins first, so that what cannot be planned is refused before any job waits in the
    queue. No job is submitted if the array is written already.
    """
    workers = workers_of(**given)
    options["memory_limit"] = options["memory_limit"] or workers.memory_limit_nbytes
    of_plan = {key: options[key] for key in names(PlanArguments) if key in options}
    how = {key: options[key] for key in ("name", "durability", "format")}
    target = resolve_new(dst, options["name"], layout=options["format"])
    target = target_via(target, options["via"])
    refuse_second(target)  # before anything is changed
    with engine(workers.settings.cores, None, None):
        plan = shardwrite.plan(x, source_id=identity, store=dst, **of_plan)
        mode, restart = "w" if options["overwrite"] else "w-", options.pop("restart")
        shardwrite.prepare(x, dst, plan, mode=mode, restart=restart, **how)
    if find_run(target) is None:  # it was written before
        with dask.config.set(scheduler="threads"):
            return shardwrite.to_sharded_zarr(  # type: ignore[no-any-return]
                x, dst, source_id=identity, **options
            )
    with opened(workers, target, lambda text: echo(f"shardwrite: {text}", err=True)):
        return shardwrite.to_sharded_zarr(  # type: ignore[no-any-return]
            x, dst, source_id=identity, progress=progress, **options
        )


def convert_with_jobs(given: dict[str, Any]) -> Callable[..., Conversion]:
    """Function like :func:`shardwrite.reshard` whose workers are SLURM jobs.

    A conversion into another place begins in this process, so that what cannot be planned is
    refused before any job waits in the queue. One in its place is planned first. No job is
    submitted if there is nothing left to do.
    """
    workers = workers_of(**given)

    def convert(
        src: str, dst: str | None, *, restart: bool, recheck: bool, progress: bool, **options: Any
    ) -> Conversion:
        options["memory_limit"] = options["memory_limit"] or workers.memory_limit_nbytes
        target = resolve_target(src if dst is None else dst, None)
        refuse_second(target)  # before anything is changed
        with engine(workers.settings.cores, None, None):
            if dst is not None:
                shardwrite.prepare_conversion(src, dst, restart=restart, **options)
                is_done, restart = not runs_at(target), False
            else:
                of_run = ("mode", "durability", "drop_hdf5", "source_id")
                layout = {k: v for k, v in options.items() if k not in of_run}
                made = shardwrite.plan_reshard(src, **layout)
                is_done = all(array.how == "skipped" for array in made.arrays)
                if not options.get("drop_hdf5"):
                    preview_loss(src, made, "fixed-order", is_consumed=False)
            if is_done:
                return shardwrite.reshard(src, dst, restart=restart, recheck=recheck, **options)
        with opened(workers, target, lambda text: echo(f"shardwrite: {text}", err=True)):
            return shardwrite.reshard(
                src, dst, restart=restart, recheck=recheck, progress=progress, **options
            )

    return convert

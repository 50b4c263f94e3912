"""Options that the commands for SLURM share, and the arguments that scripts repeat."""

from __future__ import annotations

import os
from typing import Any

import click

from shardwrite.cli.convert_options import accept_arguments
from shardwrite.cli.options import SOURCE_NAMES, arguments_of
from shardwrite.config.table import RUN_DIR, STORAGE, VIA
from shardwrite.config.values import value_of
from shardwrite.journal import refuse_in_store
from shardwrite.operations.keywords import LayoutKeywords
from shardwrite.options import names
from shardwrite.place.scratch import no_bucket
from shardwrite.place.target import Target
from shardwrite.slurm import Settings
from shardwrite.stores import is_bucket_url, is_store_url, local_path


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

"""Commands that submit the parts of a conversion to SLURM."""

from __future__ import annotations

from typing import Any

import click

from shardwrite.cli.common import command
from shardwrite.cli.completion import directories, files
from shardwrite.cli.convert_options import (
    begin_options,
    codec_options,
    conversion_arguments,
    conversion_options,
    index_option,
    shards_option,
)
from shardwrite.cli.helping import Grouped
from shardwrite.cli.options import json_option
from shardwrite.cli.parts import MEMORY_OF_A_THREAD
from shardwrite.cli.slurm_options import need_directory, settings_from, settings_options
from shardwrite.cli.slurm_submit import (
    absolute,
    parts_settings,
    scripts_directory,
    scripts_of,
    show_scripts,
    submit_scripts,
    usual_parts,
)
from shardwrite.engines import LocalEngine
from shardwrite.operations.conversion_keywords import ReshardArguments
from shardwrite.operations.convert_parts import plan_parts
from shardwrite.operations.converting import call_of
from shardwrite.place.target import resolve_target
from shardwrite.slurm import (
    ArrayJob,
    refuse_second,
    root_of,
)


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

"""The command that submits the parts of a scale of a Neuroglancer volume to SLURM."""

from __future__ import annotations

import os
from typing import Any

import click

import shardwrite
from shardwrite.cli.common import command, engine
from shardwrite.cli.completion import directories, files
from shardwrite.cli.helping import Grouped
from shardwrite.cli.options import (
    dry_run_option,
    durability_option,
    json_option,
    restart_option,
    source_options,
    stripe_option,
)
from shardwrite.cli.parts import MEMORY_OF_A_THREAD
from shardwrite.cli.slurm_options import (
    need_directory,
    settings_from,
    settings_options,
    source_arguments,
)
from shardwrite.cli.slurm_submit import (
    absolute,
    parts_settings,
    scripts_directory,
    scripts_of,
    show_scripts,
    submit_scripts,
    usual_parts,
)
from shardwrite.cli.volume_options import in_order, open_volume, volume_options
from shardwrite.format.precomputed.new import ROW_MAJOR, checked_key
from shardwrite.operations.volume_scales import noting_axes
from shardwrite.place.target import resolve_new
from shardwrite.place.url import without_kind
from shardwrite.slurm import (
    ArrayJob,
    refuse_second,
    root_of,
    targets_at,
)
from shardwrite.stores import is_store_url


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

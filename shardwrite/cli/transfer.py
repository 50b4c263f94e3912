"""Commands that copy arrays and groups to an object store and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

import shardwrite
from shardwrite.cli.common import command, engine_of, requeueing
from shardwrite.cli.completion import directories
from shardwrite.cli.options import (
    CONSUMED,
    begin_options,
    combined,
    dry_run_option,
    engine_options,
    of_group,
    option_of,
    requeue_option,
)
from shardwrite.cli.terminal import echo, tell
from shardwrite.convert.transfer import PlanTransferArguments, UploadArguments
from shardwrite.runs.outcome import handling_signals

_options = combined(begin_options, dry_run_option, engine_options, requeue_option)
"""Options that both commands have."""


def _transfer(transfer: Callable[..., Any], src: str, dst: str, options: dict[str, Any]) -> None:
    """Copy an array or a group, or show the plan for that."""
    n_requeues, as_json = options.pop("n_requeues"), options.pop("as_json")
    dry_run = options.pop("dry_run")
    with requeueing(n_requeues), handling_signals(), engine_of(options):
        if dry_run:
            where = of_group(PlanTransferArguments, options)
            tell(shardwrite.plan_transfer(src, dst, **where), as_json=as_json)
            if options.get("consume") and not as_json:
                echo(CONSUMED)
            return
        options["mode"] = "w" if options.pop("overwrite") else "w-"
        done = transfer(src, dst, progress=not as_json, **options)
    tell(done, as_json=as_json)


@command()
@click.argument("src", shell_complete=directories)
@click.argument("dst", metavar="URL")
@option_of(UploadArguments, "run_dir")
@option_of(UploadArguments, "via")
@option_of(UploadArguments, "consume")
@_options
def upload(src: str, dst: str, **options: Any) -> None:
    """Copy the array or group SRC to URL as it is, shard by shard.

    URL is a place in an object store, such as s3://bucket/x.zarr. Nothing is decoded: all objects
    and documents stay as they are. The index of each shard is checked, and all objects are compared
    at the end, before the copy is published. If the command was interrupted, run it
    again: it continues where it stopped.
    """
    _transfer(shardwrite.upload, src, dst, options)


@command()
@click.argument("src", metavar="URL")
@click.argument("dst", shell_complete=directories)
@_options
def download(src: str, dst: str, **options: Any) -> None:
    """Copy the array or group at URL to the directory DST, as it is.

    This brings back what `upload` has copied. Nothing is decoded: all objects and documents stay as
    they are. The index of each shard is checked, and all objects are compared at the end, before
    the copy is published. If the command was interrupted, run it again: it continues where it
    stopped.
    """
    _transfer(shardwrite.download, src, dst, options)

"""Commands that copy arrays and groups to an object store and back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import click

import shardwrite
from shardwrite.cli.common import command, engine, requeueing
from shardwrite.cli.completion import directories
from shardwrite.cli.options import (
    begin_options,
    dry_run_option,
    engine_options,
    json_option,
    option_of,
    requeue_option,
)
from shardwrite.cli.terminal import Grouped, echo
from shardwrite.convert.transfer import PlanTransferArguments, UploadArguments
from shardwrite.options import names
from shardwrite.runs.outcome import handling_signals

_CONSUMED = (
    "With --consume, each file of SRC is removed as soon as its copy is durable and was compared "
    "with it. In the end SRC is gone. There is no way back."
)


def _options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that both commands have."""
    for decorate in (json_option, requeue_option, engine_options, dry_run_option, begin_options):
        function = decorate(function)
    return function


def _transfer(transfer: Callable[..., Any], src: str, dst: str, options: dict[str, Any]) -> None:
    """Copy an array or a group, or show the plan for that."""
    threads, workers, address = (options.pop(key) for key in ("threads", "workers", "address"))
    n_requeues, as_json = options.pop("n_requeues"), options.pop("as_json")
    dry_run = options.pop("dry_run")
    with contextlib.ExitStack() as stack:
        stack.enter_context(requeueing(n_requeues))
        stack.enter_context(handling_signals())
        stack.enter_context(engine(threads, workers, address))
        if dry_run:
            where = {
                name: options[name] for name in names(PlanTransferArguments) if name in options
            }
            plan = shardwrite.plan_transfer(src, dst, **where)
            echo(plan.to_json() if as_json else str(plan))
            if options.get("consume") and not as_json:
                echo(_CONSUMED)
            return
        options["mode"] = "w" if options.pop("overwrite") else "w-"
        done = transfer(src, dst, progress=not as_json, **options)
    echo(done.to_json() if as_json else str(done))


@click.command(cls=Grouped)
@click.argument("src", shell_complete=directories)
@click.argument("dst", metavar="URL")
@option_of(UploadArguments, "run_dir")
@option_of(UploadArguments, "via")
@option_of(UploadArguments, "consume")
@_options
@command
def upload(src: str, dst: str, **options: Any) -> None:
    """Copy the array or group SRC to URL as it is, shard by shard.

    URL is a place in an object store, such as s3://bucket/x.zarr. Nothing is decoded: all objects
    and documents stay as they are. The index of each shard is checked, and all objects are compared
    at the end, before the copy is published. If the command was interrupted, run it
    again: it continues where it stopped.
    """
    _transfer(shardwrite.upload, src, dst, options)


@click.command(cls=Grouped)
@click.argument("src", metavar="URL")
@click.argument("dst", shell_complete=directories)
@_options
@command
def download(src: str, dst: str, **options: Any) -> None:
    """Copy the array or group at URL to the directory DST, as it is.

    This brings back what `upload` has copied. Nothing is decoded: all objects and documents stay as
    they are. The index of each shard is checked, and all objects are compared at the end, before
    the copy is published. If the command was interrupted, run it again: it continues where it
    stopped.
    """
    _transfer(shardwrite.download, src, dst, options)

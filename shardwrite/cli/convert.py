"""Commands that convert arrays that exist."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import click

import shardwrite
from shardwrite.cli.common import command, engine, requeueing
from shardwrite.cli.completion import directories, files
from shardwrite.cli.convert_options import (
    begin_options,
    codec_options,
    conversion_options,
    index_option,
    shards_option,
)
from shardwrite.cli.convert_parts import convert_in_parts, is_in_parts, parts_options
from shardwrite.cli.elastic import cluster_options, convert_with_jobs, taken
from shardwrite.cli.options import (
    engine_options,
    json_option,
    option_of,
    placing_option,
    recheck_option,
    requeue_option,
)
from shardwrite.cli.terminal import Grouped, echo
from shardwrite.convert.convert import preview_loss
from shardwrite.convert.keywords import ConvertKeywords
from shardwrite.runs.outcome import handling_signals


def _converting(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that all conversions have."""
    for decorate in reversed(
        (
            conversion_options,
            begin_options,
            click.option(
                "--in-place",
                is_flag=True,
                help="Without DST: give the new data the name of SRC, and remove the old data.",
            ),
            *(
                option_of(ConvertKeywords, name)
                for name in ("consume", "drop_hdf5", "while_growing")
            ),
            click.option("--dry-run", is_flag=True, help="Show the plan, and write nothing."),
            recheck_option,
            engine_options,
            cluster_options,
            parts_options,
            requeue_option,
            json_option,
        )
    ):
        function = decorate(function)
    return function


_IN_PLACE = (
    "With --in-place, the new data take the name of SRC once they are complete and were compared "
    "with the old data, which are then removed. This needs room for both. Where the file system "
    "cannot exchange two names, nothing stands at SRC for a moment."
)
_CONSUMED = (
    "With --consume, each file of SRC is removed as soon as what was made of it is durable and was "
    "compared with it. In the end SRC is gone. There is no way back."
)
_OF_RUNS = ("durability", "restart", "recheck", "overwrite", "consume", "while_growing")


def _check_places(dst: str | None, *, in_place: bool, dry_run: bool) -> None:
    """Refuse to replace SRC unless that is asked for.

    - Raises click.UsageError if it is unclear where the new data go.
    """
    if dst is not None and in_place:
        raise click.UsageError("--in-place goes without DST: give one of the two")
    if dst is None and not in_place and not dry_run:
        raise click.UsageError(
            "nothing says where the new data go. Give DST, the path of a new array; or give "
            "--in-place, so that the new data take the name of SRC, and the old data are removed"
        )


def _convert(src: str, dst: str | None, **options: Any) -> None:
    """Convert an array, show the plan for that, or do one step of a conversion in parts."""
    in_place = options.pop("in_place")
    has_jobs, given = taken(options)
    strategy = options.pop("strategy", "fixed-order")
    is_one_of_many = is_in_parts(options, has_jobs=has_jobs)
    if strategy != "fixed-order" and (has_jobs or is_one_of_many):
        raise click.UsageError("--strategy goes with no parts and no --cluster")
    drop_hdf5 = options.pop("drop_hdf5")
    if drop_hdf5 and (is_one_of_many or (has_jobs and dst is not None)):
        raise click.UsageError("--drop-hdf5 is for a call with --in-place or --consume")
    if is_one_of_many:
        convert_in_parts(src, dst, options)
        return
    _check_places(dst, in_place=in_place, dry_run=options["dry_run"])
    for name in ("begins", "part", "ends", "n_parts", "resubmit"):
        options.pop(name)
    threads, workers, address = (options.pop(key) for key in ("threads", "workers", "address"))
    if has_jobs and (threads, workers, address) != (None, None, None):
        raise click.UsageError("--cluster brings its own workers: give --cores")
    n_requeues, as_json = options.pop("n_requeues"), options.pop("as_json")
    run = {name: options.pop(name) for name in _OF_RUNS}
    if has_jobs and (run.pop("consume"), run.pop("while_growing")) != (False, None):
        raise click.UsageError(
            "--cluster goes with none of --consume and --while-growing. Give --workers instead"
        )
    if (run.get("while_growing") or "").isdigit():
        run["while_growing"] = int(run["while_growing"])
    dry_run = options.pop("dry_run")
    with contextlib.ExitStack() as stack:
        stack.enter_context(requeueing(n_requeues))
        stack.enter_context(handling_signals())
        if not has_jobs or dry_run:
            stack.enter_context(engine(threads, workers, address))
        if dry_run:
            del options["source_id"]
            made = shardwrite.plan_reshard(src, strategy=strategy, dst=dst, **options)
            if (dst is None or run.get("consume")) and not drop_hdf5:
                preview_loss(src, made, strategy, is_consumed=dst is not None)
            echo(made.to_json() if as_json else str(made))
            if dst is None and not as_json:
                echo(_IN_PLACE)
            if run.get("consume") and not as_json:
                echo(_CONSUMED)
            return
        run["mode"] = "w" if run.pop("overwrite") else "w-"
        run |= {"drop_hdf5": True} if drop_hdf5 else {}
        convert = (
            convert_with_jobs(given) if has_jobs else partial(shardwrite.reshard, strategy=strategy)
        )
        done = convert(src, dst, progress=not as_json, **run, **options)
    echo(json.dumps(done.to_dict(), indent=2) if as_json else str(done))


@click.command(cls=Grouped)
@click.argument("src", shell_complete=files)
@click.argument("dst", shell_complete=directories, required=False)
@shards_option
@index_option
@placing_option
@_converting
@command
def shard(src: str, dst: str | None, **options: Any) -> None:
    """Put the encoded chunks of SRC into shards.

    DST is a new array. With --in-place and without DST, SRC is converted in place. If SRC is a
    group, all of its arrays are converted. SRC can also be a file of HDF5 or NetCDF-4, a Zarr store
    in a ZIP file, or a part of one, FILE::PATH.

    Chunks are copied without decoding wherever that is possible. If the command was interrupted,
    run it again: it continues where it stopped. If SRC has these shards already, nothing is done.
    """
    if options["shards"] is None:
        raise click.UsageError("shards are needed; unshard makes an array without them")
    _convert(src, dst, **options)


@click.command(cls=Grouped)
@click.argument("src", shell_complete=files)
@click.argument("dst", shell_complete=directories, required=False)
@_converting
@command
def unshard(src: str, dst: str | None, **options: Any) -> None:
    """Make one file of each encoded chunk of SRC.

    DST is a new array. With --in-place and without DST, SRC is converted in place. If SRC is a
    group, all of its arrays are converted. Nothing is decoded. If the command was interrupted, run
    it again: it continues where it stopped. If SRC has no shards, nothing is done.
    """
    _convert(src, dst, shards=None, **options)


@click.command(cls=Grouped)
@click.argument("src", shell_complete=files)
@click.argument("dst", shell_complete=directories, required=False)
@shards_option
@codec_options
@index_option
@placing_option
@_converting
@command
def reshard(src: str, dst: str | None, **options: Any) -> None:
    """Write SRC again with other shards, inner chunks or codecs.

    DST is a new array. With --in-place and without DST, SRC is converted in place. If SRC is a
    group, all of its arrays are converted. If inner chunks and codecs stay the same, encoded chunks
    are copied. Otherwise all are decoded and encoded again. If the command was interrupted, run it
    again: it continues where it stopped.
    """
    _convert(src, dst, **options)

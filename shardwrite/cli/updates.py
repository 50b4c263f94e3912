"""Commands that change an existing array."""

from __future__ import annotations

import json
from typing import Any

import click

import shardwrite
from shardwrite.cli.common import command, engine, open_as_dask, requeueing
from shardwrite.cli.completion import directories, files, one_of
from shardwrite.cli.options import (
    drop_hdf5_option,
    dry_run_option,
    durability_option,
    engine_options,
    exclusive_option,
    json_option,
    keep_report_option,
    name_option,
    requeue_option,
    source_options,
    via_option,
)
from shardwrite.cli.previews import preview_abandon, preview_compact, preview_erase
from shardwrite.cli.terminal import Grouped, echo
from shardwrite.cli.values import Value
from shardwrite.convert.in_place import abandon_in_place
from shardwrite.operations.region import abandon_of_wings
from shardwrite.place.target import resolve_place, resolve_target
from shardwrite.runs.outcome import handling_signals

_OF_RUNS = ("durability", "exclusive", "restart", "keep_report")


class Region(Value):
    """Option type for a region, such as ``0:64,-1,...``: an index expression as Python has it."""

    name = "region"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return a tuple of slices, integers and ellipses, which is not checked further."""
        try:
            return tuple(_index(part.strip()) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is no region; give for instance 0:64,10:20,:", param, ctx)


def _index(text: str) -> Any:
    """One index of an index expression."""
    if text == "...":
        return ...
    ends = [int(part) if part.strip() else None for part in text.split(":")]
    if len(ends) == 1 and ends[0] is not None:
        return ends[0]
    if len(ends) not in (2, 3):
        raise ValueError("no index")
    return slice(*ends)


strategy_option = click.option(
    "--strategy",
    shell_complete=one_of("fixed-order", "append-only", "C", "F", "morton", "hdf5"),
    default="fixed-order",
    help="How shards that exist are changed: fixed-order, append-only, C, F, morton or hdf5. "
    "hdf5:NAME names the dataset, by default as in the files.",
)
in_place_option = click.option(
    "--in-place",
    is_flag=True,
    help="Change shards in place. This writes less, but readers may see a change half done.",
)
restart_option = click.option(
    "--restart", is_flag=True, help="Give up interrupted updates that stand in the way."
)


def _strategy(name: str, *, in_place: bool) -> Any:
    if not in_place:
        return name
    if name.partition(":")[0] == "hdf5":
        raise click.UsageError("--strategy hdf5 writes whole shards, and nothing in place")
    if name == "append-only":
        return shardwrite.AppendOnly(in_place=True)
    return shardwrite.FixedOrder("C" if name == "fixed-order" else name, in_place=True)


@click.command(cls=Grouped)
@click.argument("src", shell_complete=files)
@click.argument("array", shell_complete=directories)
@name_option
@source_options
@click.option(
    "--region",
    type=Region(),
    help="Region to write: a start and stop, or one index, along each axis, such as 0:64,-1,:.",
)
@click.option(
    "--append", "axis", type=int, help="Append along this axis, counted from 0. The array grows."
)
@click.option(
    "--casting",
    type=click.Choice(["no", "equiv", "safe", "same_kind", "unsafe"]),
    default="safe",
    help="Which conversions of values are allowed, as numpy names them.",
)
@strategy_option
@in_place_option
@drop_hdf5_option
@durability_option
@via_option
@exclusive_option
@restart_option
@keep_report_option
@dry_run_option
@engine_options
@requeue_option
@json_option
@command
def update(
    src: str,
    array: str,
    region: Any,
    axis: int | None,
    strategy: str,
    in_place: bool,
    dry_run: bool,
    threads: int | None,
    workers: int | None,
    address: str | None,
    n_requeues: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Write SRC into a region of ARRAY, or append it.

    Give --region or --append. If the command was interrupted, run it again: it continues where it
    stopped.
    """
    if (region is None) == (axis is None):
        raise click.UsageError("give either --region or --append AXIS")
    x, identity = open_as_dask(src, options)
    where = {"region": region} if axis is None else {"region": "append", "axis": axis}
    options |= {**where, "source_id": identity, "strategy": _strategy(strategy, in_place=in_place)}
    with requeueing(n_requeues), handling_signals(), engine(threads, workers, address):
        if dry_run:
            of_plan = {name: options[name] for name in options if name not in _OF_RUNS}
            made = shardwrite.plan_region(x, array, **of_plan)
            echo(made.to_json() if as_json else str(made))
            return
        result = shardwrite.write_region(x, array, progress=not as_json, **options)
    echo(json.dumps(result.to_dict(), indent=2) if as_json else str(result))


@click.command(cls=Grouped)
@click.argument("array", shell_complete=directories)
@name_option
@click.option(
    "--region",
    type=Region(),
    required=True,
    help="Region to empty: start and stop along each axis, such as 0:64,10:20,:.",
)
@strategy_option
@in_place_option
@drop_hdf5_option
@durability_option
@exclusive_option
@restart_option
@dry_run_option
@engine_options
@json_option
@command
def erase(
    array: str,
    strategy: str,
    in_place: bool,
    dry_run: bool,
    threads: int | None,
    workers: int | None,
    address: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Make a region of ARRAY empty.

    The region then reads as the fill value. Shards that hold nothing are removed from the disk.
    """
    how, region = _strategy(strategy, in_place=in_place), options.pop("region")
    with handling_signals(), engine(threads, workers, address):
        if dry_run:
            of_plan = {name: options[name] for name in ("name", "drop_hdf5")}
            made = preview_erase(array, region, strategy=how, **of_plan)
            echo(made.to_json() if as_json else str(made))
            return
        result = shardwrite.erase(array, region, strategy=how, **options)
    echo(json.dumps(result.to_dict(), indent=2) if as_json else str(result))


@click.command(cls=Grouped)
@click.argument("array", shell_complete=directories)
@name_option
@click.option(
    "--above",
    type=click.FloatRange(0, 1),
    default=0.3,
    help="Rewrite a shard if more than this share of it is unused.",
)
@click.option(
    "--order",
    shell_complete=one_of("C", "F", "morton"),
    default="C",
    help="Order of the inner chunks in the new shards: C, F or morton.",
)
@durability_option
@exclusive_option
@restart_option
@dry_run_option
@engine_options
@json_option
@command
def compact(
    array: str,
    dry_run: bool,
    threads: int | None,
    workers: int | None,
    address: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Rewrite the shards of ARRAY that waste space.

    Updates can leave bytes in a shard that no longer belong to any inner chunk. This command
    rewrites the shards in which their share is large. Nothing is decoded.
    """
    with handling_signals(), engine(threads, workers, address):
        done = (
            preview_compact(array, name=options["name"], above=options["above"])
            if dry_run
            else shardwrite.compact(array, progress=not as_json, **options)
        )
    echo(json.dumps(done.to_dict(), indent=2) if as_json else str(done))


@click.command(cls=Grouped)
@click.argument("array", shell_complete=directories)
@name_option
@dry_run_option
@json_option
@command
def abandon(array: str, name: str | None, dry_run: bool, as_json: bool) -> None:
    """Give up interrupted updates of ARRAY.

    Each shard stays as it is, in its old or in its new state. To finish an update instead, run its
    command again. This also gives up a conversion in place, of an array or a group, and a scale of
    a Neuroglancer volume that is not finished.
    """
    found = preview_abandon(array, name=name) if dry_run else None
    if found.in_place if found else abandon_in_place(resolve_place(array, name)):
        told = "would be given up, or finished if it is nearly done" if dry_run else "was given up"
        echo("[]" if as_json else f"the conversion {told}")
        return
    if found.of_wing if found else abandon_of_wings(resolve_target(array, name), None):
        told = "would be given up" if dry_run else "was given up"
        echo("[]" if as_json else f"what was not finished of the scale {told}")
        return
    regions = found.regions if found else shardwrite.abandon(array, name=name)
    shown = [",".join(f"{a}:{b}" for a, b in region) for region in regions]
    echo(json.dumps(regions) if as_json else "\n".join(shown) or "nothing was interrupted")

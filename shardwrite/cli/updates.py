"""Commands that change an existing array."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import click

import shardwrite
from shardwrite.cli.common import command, engine_of, open_as_dask, requeueing
from shardwrite.cli.completion import directories, files
from shardwrite.cli.options import (
    dry_run_option,
    engine_options,
    name_option,
    of_group,
    options_of,
    requeue_option,
    source_options,
)
from shardwrite.cli.previews import preview_abandon, preview_compact, preview_erase
from shardwrite.cli.terminal import echo, tell
from shardwrite.cli.values import Value
from shardwrite.convert.in_place import abandon_in_place
from shardwrite.operations.compact import CompactArguments
from shardwrite.operations.keywords import EraseArguments, PlanRegionArguments, RegionArguments
from shardwrite.operations.region import abandon_of_wings
from shardwrite.place.target import resolve_place, resolve_target
from shardwrite.runs.outcome import handling_signals


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


in_place_option = click.option(
    "--in-place",
    is_flag=True,
    help="Change shards in place. This writes less, but readers may see a change half done.",
)


def _strategy(name: str, *, in_place: bool) -> Any:
    if not in_place:
        return name
    if name.partition(":")[0] == "hdf5":
        raise click.UsageError("--strategy hdf5 writes whole shards, and nothing in place")
    if name == "append-only":
        return shardwrite.AppendOnly(in_place=True)
    return shardwrite.FixedOrder("C" if name == "fixed-order" else name, in_place=True)


@command()
@click.argument("src", shell_complete=files)
@click.argument("array", shell_complete=directories)
@source_options
@click.option(
    "--region",
    type=Region(),
    help="Region to write: a start and stop, or one index, along each axis, such as 0:64,-1,:.",
)
@click.option(
    "--append", "axis", type=int, help="Append along this axis, counted from 0. The array grows."
)
@options_of(RegionArguments)
@in_place_option
@dry_run_option
@engine_options
@requeue_option
def update(
    src: str,
    array: str,
    region: Any,
    axis: int | None,
    strategy: str,
    in_place: bool,
    dry_run: bool,
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
    where = {"region": region} if axis is None else {"region": "append", "axis": axis}
    where["strategy"] = _strategy(strategy, in_place=in_place)
    with requeueing(n_requeues), handling_signals(), contextlib.ExitStack() as stack:
        x, identity = open_as_dask(src, options)
        stack.enter_context(engine_of(options))
        options |= {**where, "source_id": identity}
        if dry_run:
            of_plan = of_group(PlanRegionArguments, options)
            made = shardwrite.plan_region(x, array, **of_plan)
            tell(made, as_json=as_json)
            return
        result = shardwrite.write_region(x, array, progress=not as_json, **options)
    tell(result, as_json=as_json)


@command()
@click.argument("array", shell_complete=directories)
@click.option(
    "--region",
    type=Region(),
    required=True,
    help="Region to empty: start and stop along each axis, such as 0:64,10:20,:.",
)
@options_of(EraseArguments)
@in_place_option
@dry_run_option
@engine_options
def erase(
    array: str,
    strategy: str,
    in_place: bool,
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Make a region of ARRAY empty.

    The region then reads as the fill value. Shards that hold nothing are removed from the disk.
    """
    how, region = _strategy(strategy, in_place=in_place), options.pop("region")
    with handling_signals(), engine_of(options):
        if dry_run:
            of_plan = {name: options[name] for name in ("name", "drop_hdf5")}
            made = preview_erase(array, region, strategy=how, **of_plan)
            tell(made, as_json=as_json)
            return
        result = shardwrite.erase(array, region, strategy=how, **options)
    tell(result, as_json=as_json)


@command()
@click.argument("array", shell_complete=directories)
@options_of(CompactArguments)
@dry_run_option
@engine_options
def compact(
    array: str,
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Rewrite the shards of ARRAY that waste space.

    Updates can leave bytes in a shard that no longer belong to any inner chunk. This command
    rewrites the shards in which their share is large. Nothing is decoded.
    """
    with handling_signals(), engine_of(options):
        done = (
            preview_compact(array, name=options["name"], above=options["above"])
            if dry_run
            else shardwrite.compact(array, progress=not as_json, **options)
        )
    tell(done, as_json=as_json)


@command()
@click.argument("array", shell_complete=directories)
@name_option
@dry_run_option
def abandon(array: str, name: str | None, dry_run: bool, as_json: bool) -> None:
    """Give up interrupted updates of ARRAY.

    Of a group, those of all its arrays are given up. Each shard of an update stays as it is, in its
    old or in its new state. The old array is put back in place of one that would replace it. To
    finish an update instead, run its command again. This also gives up a conversion in place, of an
    array or a group, and a scale of a Neuroglancer volume that is not finished.
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

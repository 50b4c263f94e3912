"""Commands that change an existing array."""

from __future__ import annotations

import json
from typing import Any

import click

import shardwrite
from shardwrite.cli.common import command, engine, open_as_dask, requeueing
from shardwrite.cli.options import (
    engine_options,
    json_option,
    name_option,
    requeue_option,
    source_options,
)
from shardwrite.cli.terminal import echo
from shardwrite.cli.values import Value
from shardwrite.runs.outcome import handling_signals

__all__ = ["abandon", "compact", "erase", "update"]


class Region(Value):
    """Option type for a region, such as ``0:64,10:20,:``.

    It holds a start and a stop for each axis. Either may be left out.
    """

    name = "region"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return a tuple of slices, one for each axis."""
        try:
            pairs = [part.split(":") for part in str(value).split(",")]
            return tuple(
                slice(int(a) if a.strip() else None, int(b) if b.strip() else None)
                for a, b in pairs
            )
        except ValueError:
            self.fail(f"{value!r} is no region; give for instance 0:64,10:20,:", param, ctx)


strategy_option = click.option(
    "--strategy",
    default="fixed-order",
    help="What becomes of shards that exist: fixed-order, append-only, C, F or morton.",
)
in_place_option = click.option(
    "--in-place",
    is_flag=True,
    help="Change shards where they stand; readers may meet half a change.",
)
durability_option = click.option(
    "--durability", type=click.Choice(["full", "batch", "none"]), default="full"
)
restart_option = click.option(
    "--restart", is_flag=True, help="Give up interrupted updates that are in the way."
)


def _strategy(name: str, *, in_place: bool) -> Any:
    if not in_place:
        return name
    if name == "append-only":
        return shardwrite.AppendOnly(in_place=True)
    return shardwrite.FixedOrder("C" if name == "fixed-order" else name, in_place=True)


@click.command()
@click.argument("src")
@click.argument("array")
@name_option
@source_options
@click.option(
    "--region",
    type=Region(),
    help="Where to, such as 0:64,10:20,: (start and stop along each axis).",
)
@click.option(
    "--append", "axis", type=int, help="Behind the end along this axis, so that the array grows."
)
@click.option(
    "--casting",
    type=click.Choice(["no", "equiv", "safe", "same_kind", "unsafe"]),
    default="safe",
    show_default=True,
)
@strategy_option
@in_place_option
@durability_option
@restart_option
@click.option(
    "--dry-run",
    is_flag=True,
    help="Show the plan, and which shards are shared with the rest of the array.",
)
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
    """Write SRC into a region of ARRAY, or behind its end. After an interruption the same command
    goes on where it was.
    """  # noqa: D205 (help text)
    if (region is None) == (axis is None):
        raise click.UsageError("give --region or --append")
    x, identity = open_as_dask(src, options)
    where = {"region": region} if axis is None else {"region": "append", "axis": axis}
    options |= {**where, "source_id": identity, "strategy": _strategy(strategy, in_place=in_place)}
    with requeueing(n_requeues), handling_signals(), engine(threads, workers, address):
        if dry_run:
            made = shardwrite.plan_region(
                x, array, **{k: v for k, v in options.items() if k not in ("durability", "restart")}
            )
            echo(made.to_json() if as_json else str(made))
            return
        result = shardwrite.write_region(x, array, progress=not as_json, **options)
    echo(json.dumps(result.to_dict(), indent=2) if as_json else str(result))


@click.command()
@click.argument("array")
@name_option
@click.option("--region", type=Region(), required=True, help="What to erase, such as 0:64,10:20,:.")
@strategy_option
@in_place_option
@durability_option
@restart_option
@engine_options
@json_option
@command
def erase(
    array: str,
    strategy: str,
    in_place: bool,
    threads: int | None,
    workers: int | None,
    address: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Make a region of ARRAY empty; shards that hold nothing then are removed."""
    with handling_signals(), engine(threads, workers, address):
        result = shardwrite.erase(
            array, options.pop("region"), strategy=_strategy(strategy, in_place=in_place), **options
        )
    echo(json.dumps(result.to_dict(), indent=2) if as_json else str(result))


@click.command()
@click.argument("array")
@name_option
@click.option(
    "--above",
    type=click.FloatRange(0, 1),
    default=0.3,
    show_default=True,
    help="Share of a shard that is unused.",
)
@click.option(
    "--order",
    default="C",
    show_default=True,
    help="Order of the inner chunks in new shards: C, F or morton.",
)
@durability_option
@restart_option
@engine_options
@json_option
@command
def compact(
    array: str,
    threads: int | None,
    workers: int | None,
    address: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Write anew every shard of ARRAY that holds too much that nobody refers to."""
    with handling_signals(), engine(threads, workers, address):
        done = shardwrite.compact(array, progress=not as_json, **options)
    echo(json.dumps(done.to_dict(), indent=2) if as_json else str(done))


@click.command()
@click.argument("array")
@name_option
@json_option
@command
def abandon(array: str, name: str | None, as_json: bool) -> None:
    """Give up interrupted updates of ARRAY: their shards stay as they are, each old or new."""
    regions = shardwrite.abandon(array, name=name)
    shown = [",".join(f"{a}:{b}" for a, b in region) for region in regions]
    echo(json.dumps(regions) if as_json else "\n".join(shown) or "nothing was interrupted")

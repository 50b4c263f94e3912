"""Commands that write an array in parts, by a job array or `srun`."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

import shardwrite
from shardwrite.cli.common import (
    check_sources,
    command,
    engine,
    open_and_plan,
    open_as_dask,
    requeueing,
)
from shardwrite.cli.completion import directories, files
from shardwrite.cli.options import (
    MEMORY_OF_A_THREAD,
    SOURCE_NAMES,
    dry_run_option,
    durability_option,
    layout_options,
    name_option,
    names_option,
    option_of,
    options_of,
    overwrite_option,
    refuse,
    requeue_option,
    restart_option,
    source_options,
    stripe_option,
)
from shardwrite.cli.terminal import echo, tell
from shardwrite.cli.values import Value
from shardwrite.errors import IncompleteError, SpecError
from shardwrite.journal.state_work import fetched
from shardwrite.operations.parts import FinalizeArguments, PartArguments, refuse_both
from shardwrite.place.target import Target, resolve_target
from shardwrite.results import human
from shardwrite.runs.outcome import INCOMPLETE, handling_signals
from shardwrite.stores.looking import is_store_url
from shardwrite.volumes.keywords import VolumeKeywords

_threads_option = click.option(
    "--threads",
    type=click.IntRange(1),
    help="Number of threads. Default: the cores of this process.",
)
resubmit_option = click.option(
    "--resubmit",
    metavar="DIRECTORY",
    help="Directory of the scripts, so that the command which submits missing parts again can be "
    "printed.",
)


class PartOf(Value):
    """Option type for a part: ``3/20`` is part 3 of 20, counted from 0.

    ``rank/20`` stands for the part of this process's rank under `srun`.
    """

    name = "part"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, int]:
        """Return the index of the part and the number of parts."""
        found = re.fullmatch(r"(\d{1,18}|rank)/(\d{1,18})", str(value))
        if found is None:
            self.fail(
                f"{value!r} is no part; give for instance 3/20 (counted from 0), "
                "or rank/20 under srun",
                param,
                ctx,
            )
        rank = os.environ.get("SLURM_PROCID", "") if found[1] == "rank" else found[1]
        if not rank.isdigit():
            self.fail(
                f"{value!r}: SLURM_PROCID is not set; start it by srun, or give a number",
                param,
                ctx,
            )
        index, count = int(rank), int(found[2])
        if index >= count:
            self.fail(f"there is no part {index} of {count}: parts are counted from 0", param, ctx)
        return index, count


@command()
@click.argument("src", shell_complete=files, nargs=-1, required=True)
@click.argument("dst", shell_complete=directories)
@name_option
@names_option
@source_options
@layout_options
@click.option(
    "--threads",
    type=click.IntRange(1),
    default=1,
    help="Threads that each process will have.",
)
@overwrite_option
@restart_option
@durability_option
@stripe_option
@dry_run_option
def init(
    src: tuple[str, ...],
    dst: str,
    names: tuple[str | None, ...] | None,
    threads: int,
    memory_limit: str | None,
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Begin writing SRC as DST in parts.

    This writes the plan and no data. Then run `write-part` once for each part, and `finalize` at
    the end. The plan does not depend on this machine: it assumes 1 GiB for each thread of a
    process, unless you give --memory-limit.

    With --names, there is a SRC for each of several arrays in DST, which are written together.
    """
    run = {key: options.pop(key) for key in ("name", "durability", "restart", "stripe_count")}
    mode = "w" if options.pop("overwrite") else "w-"
    limit = memory_limit or threads * MEMORY_OF_A_THREAD
    store = dst if is_store_url(dst) else None
    make = partial(shardwrite.plan, memory_limit=limit, store=store, name=run["name"])
    with engine(threads, None, None):
        x, plan = open_and_plan(src, names, options, make)
    if not dry_run:
        shardwrite.prepare(x, dst, plan, names=names, mode=mode, format=options["format"], **run)
    tell(plan, as_json=as_json)


@command("write-part")
@click.argument("src", shell_complete=files, nargs=-1)
@click.argument("dst", shell_complete=directories)
@click.argument("part", type=PartOf(), metavar="K/N")
@name_option
@names_option
@source_options
@option_of(
    VolumeKeywords,
    "axes",
    help="Axes of SRC, as for `precomputed`, if DST is a scale of a Neuroglancer volume. Default: "
    "czyx or zyx.",
)
@_threads_option
@option_of(PartArguments, "memory_limit")
@requeue_option
@dry_run_option
def write_part(
    src: tuple[str, ...],
    dst: str,
    part: tuple[int, int],
    name: str | None,
    names: tuple[str | None, ...] | None,
    axes: str | None,
    threads: int | None,
    memory_limit: str | None,
    n_requeues: int | None,
    dry_run: bool,
    as_json: bool,
    **source: Any,
) -> None:
    """Write part K of N of SRC into DST.

    Run `init` first. K is counted from 0; under srun, `rank` stands for the rank of the process.
    Signals and exit codes are those of `write`. If a part was interrupted, run it again, on this
    machine or another one. You may choose another N each time.

    If DST is a scale of a Neuroglancer volume whose hash scatters the chunks, the parts are written
    twice. The first time, each spools its chunks. When all have done so, run them again to gather
    the shards, or leave that to `finalize`.

    If the plan of such a scale copies encoded chunks of a Zarr array, each part copies its own.
    --source-chunks is refused then.

    Without SRC, the part is read from what `init` was given, if that was a file or a Zarr array.
    With --names, each part writes its share of all arrays.
    """
    if dry_run:
        x, identity = _opened_for_part(src, names, axes, source)
        if names is not None or not src:
            raise click.UsageError("--dry-run shows a part of one array, with its SRC")
        from shardwrite.cli.previews import preview_part

        found = preview_part(x, dst, part, name=name, source_id=identity)
        facts = {"part": part[0], "parts": part[1], "groups": len(found.groups)}
        size = {"raw_nbytes": found.raw_nbytes}
        told = f"part {part[0]} of {part[1]}: {len(found.groups):,} groups of shards, "
        echo(json.dumps({**facts, **size}) if as_json else f"{told}{human(found.raw_nbytes)}")
        return
    with requeueing(n_requeues), handling_signals(), contextlib.ExitStack() as stack:
        x, identity = _opened_for_part(src, names, axes, source)
        stack.enter_context(engine(threads, None, None))
        result = shardwrite.write_part(
            x,
            dst,
            *part,
            name=name,
            names=names,
            source_id=identity,
            memory_limit=memory_limit,
            progress=not as_json,
        )
    tell(result, as_json=as_json)


def _opened_for_part(
    sources: tuple[str, ...],
    several: tuple[str | None, ...] | None,
    axes: str | None,
    options: dict[str, Any],
) -> tuple[Any, Any]:
    """The source of a part and its identity, or lists of them; None if there are none."""
    if not sources:
        refuse({*SOURCE_NAMES, "axes"} - {"accept_source"}, "goes with SRC")
        return None, None
    check_sources(sources, several)
    found = [open_as_dask(source, dict(options), as_source=True) for source in sources]
    if axes is not None:
        from shardwrite.volumes.precomputed import in_order

        found = [(in_order(x, axes), identity) for x, identity in found]
    if several is None:
        ((x, identity),) = found
        return x, identity
    return [x for x, _ in found], [identity for _, identity in found]


@command()
@click.argument("dst", shell_complete=directories)
@options_of(FinalizeArguments)
@resubmit_option
@_threads_option
@dry_run_option
def finalize(
    dst: str,
    resubmit: str | None,
    threads: int | None,
    dry_run: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Publish DST after all parts have been written.

    This checks that every shard is there and removes leftover temporary files. If shards are
    missing, it names the parts to write again, and exits with 85. Shards that wait in the spool of
    a Neuroglancer volume are gathered first. With --dry-run, it shows what the journals say, as
    `slurm status` does.
    """
    name, names = options["name"], options["names"]
    if dry_run:
        refuse_both(name, names)
        show_status(dst, name, names, as_json=as_json)
        return
    with handling_signals(), engine(threads, None, None), resubmitting(resubmit, dst, name):
        result = shardwrite.finalize(dst, progress=not as_json, **options)
    tell(result, as_json=as_json)


def show_status(
    dst: str,
    name: str | None,
    names: tuple[str | None, ...] | None = None,
    *,
    as_json: bool,
) -> None:
    """Print how far an array is, or each of several, and exit with 85 if one is not whole."""
    from shardwrite.slurm.status import status_of_each

    chosen = [name] if names is None else names
    found = status_of_each(fetched(resolve_target(dst, one, is_read=True)) for one in chosen)
    tell(found[0] if names is None else found, as_json=as_json)
    if not all(each.is_whole for each in found):
        raise SystemExit(INCOMPLETE)


@contextlib.contextmanager
def resubmitting(directory: str | None, dst: str, name: str | None) -> Iterator[None]:
    """Tell how parts that are missing are submitted again by the scripts in a directory."""
    try:
        yield
    except IncompleteError as error:
        if directory and error.fields["parts"]:
            target = resolve_target(dst, name)
            error.add_note(_how_to_resubmit(error.fields["parts"], Path(directory), target))
        raise


def _how_to_resubmit(parts: Sequence[int], directory: Path, target: Target) -> str:
    """Command line that submits parts again, or a text that says why there is none.

    There is none if `directory` holds no scripts, or scripts of another array.
    """
    from shardwrite.slurm.client import resubmission
    from shardwrite.slurm.jobs import check_directory, read_scripts

    try:
        if read_scripts(directory) is None:
            return (
                f"{directory} has no scripts to submit them with; "
                "shardwrite slurm script makes them"
            )
        check_directory(directory, target)
    except SpecError as error:
        return f"{error.message}, in {directory}: shardwrite slurm script makes those of this array"
    return resubmission(parts, str(directory), target)

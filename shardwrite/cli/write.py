"""Commands that write a new array or a scale of a volume, or show the plan for it."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import click

import shardwrite
from shardwrite.cli.checks import tell_written
from shardwrite.cli.common import (
    check_sources,
    command,
    engine_of,
    open_and_plan,
    open_to_write,
    requeueing,
)
from shardwrite.cli.completion import directories, files
from shardwrite.cli.options import (
    SOURCE_NAMES,
    Submittable,
    arguments_of,
    array_options,
    check_jobs,
    combined,
    dry_run_option,
    durability_option,
    engine_options,
    jobs_of,
    keep_report_option,
    layout_options,
    names_option,
    of_group,
    option_of,
    options_of,
    page_option,
    recheck_option,
    restart_option,
    source_options,
    worker_options,
)
from shardwrite.cli.terminal import echo, tell
from shardwrite.errors import SpecError
from shardwrite.format.node import DOCUMENT
from shardwrite.journal.begin import find_run
from shardwrite.journal.state_work import fetched
from shardwrite.operations.keywords import PlanArguments, WriteKeywords
from shardwrite.options import MemoryKeywords, StripeKeywords
from shardwrite.place.base import without_kind
from shardwrite.place.target import resolve_new, target_via
from shardwrite.plan.plan import Plan
from shardwrite.runs.outcome import handling_signals
from shardwrite.show.html import page_html
from shardwrite.stores.looking import is_store_url, local_path
from shardwrite.volumes.info import ATTRIBUTE
from shardwrite.volumes.keywords import PlanPrecomputedArguments, ScaleKeywords, VolumeKeywords
from shardwrite.volumes.new import ROW_MAJOR, checked_axes, checked_key


@command(prints_json=False)
@click.argument("src", shell_complete=files)
@click.argument("dst", shell_complete=directories, required=False)
@source_options
@layout_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")  # before the next one
@page_option("the plan as an HTML page")
def plan(
    src: str,
    dst: str | None,
    as_json: bool,
    html_path: str | None,
    **options: Any,
) -> None:
    """Show how SRC would be written, without writing anything.

    The table shows shards, files, tasks and memory. If you give a DST in a bucket, it also shows
    requests and bytes. Any other DST is not looked at.
    """
    x, identity = open_to_write(src, options)
    store = dst if dst is not None and is_store_url(dst) else None
    made = shardwrite.plan(x, source_id=identity, store=store, **options)
    if html_path:
        with open(html_path, "w", encoding="utf-8") as page:
            page.write(page_html("plan", made._repr_html_()))
    tell(made, as_json=as_json)


_STRIPES = option_of(
    StripeKeywords,
    "stripe_count",
    help="With --submit, on Lustre: number of targets for each shard. Default: as the directory "
    "has it.",
)


@command(cls=Submittable, here=("checks", "recheck", "keep_report", "publish"))
@click.argument("src", shell_complete=files, nargs=-1, required=True)
@click.argument("dst", shell_complete=directories)
@source_options
@options_of(WriteKeywords, without=("casting", "exclusive"))
@names_option
@engine_options
@array_options
@worker_options
@_STRIPES
@dry_run_option
@click.option("--verify", "checks", is_flag=True, help="Decode every inner chunk at the end.")
def write(
    src: tuple[str, ...],
    dst: str,
    names: tuple[str | None, ...] | None,
    submit: bool,
    cluster: str | None,
    stripe_count: int | None,
    **options: Any,
) -> None:
    """Write the file SRC as the sharded array DST.

    SRC can be Zarr, HDF5, NetCDF, NumPy, TIFF, NIfTI, Neuroglancer precomputed or raw. FILE::PATH
    names an array in a file. If the command was interrupted, run it again: it continues where it
    stopped.

    Exit codes: 0 complete; 1 an error; 2 wrong usage; 75 storage trouble that may pass, such as a
    full disk; 85 incomplete, so run the command again. The signal USR1 finishes the shards in
    flight and exits with 85; TERM and INT exit with 85 at once.

    With --submit and --names, one job array writes several arrays into DST, one of each SRC.
    """
    check_jobs(submit=submit, cluster=cluster)
    given, own_engine = jobs_of(options), engine_of(options)
    if submit:
        _submit_write(src, dst, names, given, options, stripe_count)
        return
    if names is not None:
        raise click.UsageError("--names goes with --submit. Here, write one array after the other")
    check_sources(src, names)
    n_requeues, as_json = given.pop("n_requeues", None), options.pop("as_json")
    dry_run, checks = options.pop("dry_run"), options.pop("checks")
    with requeueing(n_requeues), handling_signals(), contextlib.ExitStack() as stack:
        x, identity = open_to_write(src[0], options)
        if dry_run:
            with own_engine:
                _show_plan(x, dst, identity, options, as_json=as_json)
            return
        if cluster is not None:
            from shardwrite.cli.jobs import write_with_jobs

            result = write_with_jobs(x, dst, given, identity, progress=not as_json, **options)
        else:
            stack.enter_context(own_engine)
            result = shardwrite.to_sharded_zarr(
                x, dst, source_id=identity, progress=not as_json, **options
            )
    tell_written(result, dst, options["name"], checks=checks, as_json=as_json)


def _submit_write(
    src: tuple[str, ...],
    dst: str,
    several: tuple[str | None, ...] | None,
    given: dict[str, Any],
    options: dict[str, Any],
    stripe_count: int | None,
) -> None:
    """Begin a run in this process, and submit a job array that writes its parts."""
    from shardwrite.cli.jobs import Submission, need_directory

    if options["format"] is not None:
        raise click.UsageError("a job array makes no array of 2022. Run `write` in a job")
    name, arguments = options["name"], arguments_of(SOURCE_NAMES, options)
    submission, target = Submission.of(given, dst, options), resolve_new(dst, name)
    need_directory(target)

    def make(x: Any, *, source_id: str, **own: Any) -> Plan:
        of_plan = of_group(PlanArguments, own)
        return submission.planned(shardwrite.plan, x, source_id=source_id, store=dst, **of_plan)

    x, plan = open_and_plan(src, several, options, make)
    mode = "w" if options["overwrite"] else "w-"
    run = {key: options[key] for key in ("name", "durability", "restart")}
    run |= {"names": several, "mode": mode, "stripe_count": stripe_count}
    sources = src if several is not None else src[0]
    submission.submit_new(sources, x, dst, plan, target, arguments, run)


def _show_plan(x: Any, dst: str, identity: str, options: dict[str, Any], *, as_json: bool) -> None:
    """Print the plan of a new array, and what stands at its place."""
    target = resolve_new(dst, options["name"], layout=options["format"])
    target = target_via(target, options["via"])
    run = find_run(fetched(target))
    of_plan = of_group(PlanArguments, options)
    made = shardwrite.plan(x, source_id=identity, store=dst, **of_plan)
    if as_json:
        echo(made.to_json())
        return
    there = "nothing" if target.place.read(DOCUMENT) is None else "an array or a group"
    if run is not None:
        is_same = run.digest == made.digest
        there = f"an unfinished run, of {'this' if is_same else 'another'} plan"
    echo(f"{made}\n\nat {target.label} there is {there}")


# ---- Scales of volumes


_OF_SOURCE = ("voxel_offset", "type")  # which it may tell, too

_volume_options = combined(
    option_of(VolumeKeywords, "axes"),
    *(option_of(VolumeKeywords, name, default=None) for name in _OF_SOURCE),
    options_of(ScaleKeywords, without=_OF_SOURCE),
    option_of(VolumeKeywords, "write_empty_chunks", help="Also store chunks that hold only zeros."),
)
"""Options that describe a scale."""


def _open_volume(src: str, options: dict[str, Any]) -> Any:
    """Open the source, and take from it what the options leave out."""
    known: dict[str, Any] = {"fill_value": None, "dimension_names": None, "attributes": None}
    options.update(known)
    x, identity = open_to_write(src, options, as_source=True)
    known = {name: options.pop(name) for name in known}
    of_volume = (known["attributes"] or {}).get(ATTRIBUTE)
    of_volume = of_volume if isinstance(of_volume, dict) else {}
    if options["resolution"] is None:
        options["resolution"] = of_volume.get("resolution")
    for name in _OF_SOURCE:
        if options[name] is None:
            options[name] = of_volume.get(name, getattr(ScaleKeywords, name))
    options["axes"] = checked_axes(options["axes"], known["dimension_names"], len(x.shape))
    return x, identity


@command(cls=Submittable, here=("checks", "recheck", "keep_report"))
@click.argument("src", shell_complete=files)
@click.argument("dst", shell_complete=directories)
@source_options
@_volume_options
@option_of(MemoryKeywords, "memory_limit")
@restart_option
@recheck_option
@durability_option
@keep_report_option
@engine_options
@array_options
@_STRIPES
@dry_run_option
@click.option("--verify", "checks", is_flag=True, help="Decode every chunk at the end.")
def precomputed(
    src: str,
    dst: str,
    submit: bool,
    stripe_count: int | None,
    **options: Any,
) -> None:
    """Write SRC as a scale of the Neuroglancer volume DST, in shards.

    If DST has an info file, the scale is added to it. The info file is written last. If the command
    was interrupted, run it again: it continues where it stopped.

    With --submit, the job array is submitted twice if the hash scatters the chunks: its first tasks
    spool the chunks, and the others gather the shards.
    """
    check_jobs(submit=submit)
    _check_apart(src, dst)
    given, own_engine = jobs_of(options), engine_of(options)
    if submit:
        _submit_scale(src, without_kind(dst), given, options, stripe_count)
        return
    n_requeues, as_json = given.pop("n_requeues", None), options.pop("as_json")
    dry_run, checks = options.pop("dry_run"), options.pop("checks")
    with requeueing(n_requeues), handling_signals(), contextlib.ExitStack() as stack:
        x, identity = _open_volume(src, options)
        stack.enter_context(own_engine)
        if dry_run:
            of_plan = of_group(PlanPrecomputedArguments, options)
            tell(
                shardwrite.plan_precomputed(x, dst, source_id=identity, **of_plan), as_json=as_json
            )
            return
        result = shardwrite.to_precomputed(
            x, dst, source_id=identity, progress=not as_json, **options
        )
    tell_written(result, result.path, None, checks=checks, as_json=as_json)


def _submit_scale(
    src: str, dst: str, given: dict[str, Any], options: dict[str, Any], stripe_count: int | None
) -> None:
    """Begin a scale in this process, and submit a job array that writes its parts."""
    from shardwrite.cli.jobs import Submission, need_directory
    from shardwrite.volumes.precomputed import in_order, noting_axes

    arguments, submission = arguments_of(SOURCE_NAMES, options), Submission.of(given, dst, options)
    x, identity = _open_volume(src, options)
    axes = options["axes"]
    of_plan = of_group(PlanPrecomputedArguments, options)
    plan = submission.planned(shardwrite.plan_precomputed, x, dst, source_id=identity, **of_plan)
    plan = noting_axes(plan, axes)
    key = checked_key(options["key"], options["resolution"])
    store = f"{dst.rstrip('/')}/{key}" if is_store_url(dst) else os.path.join(dst, key)
    target = resolve_new(store, None)
    need_directory(target)
    if not ROW_MAJOR.endswith(axes):
        arguments = (*arguments, "--axes", axes)
    run = {name: options[name] for name in ("durability", "restart")}
    run["stripe_count"] = stripe_count
    submission.submit_new(src, in_order(x, axes), store, plan, target, arguments, run)


def _check_apart(src: str, dst: str) -> None:
    """Refuse to add a scale to the volume that it is read from."""
    src, place = (local_path(without_kind(one)) for one in (src, dst))
    volume = src if os.path.exists(src) else src.rpartition("::")[0]
    if os.path.isdir(volume) and os.path.realpath(volume) == os.path.realpath(place):
        raise SpecError(
            "it is the source, which would have the same image twice",
            field="dst",
            value=dst,
            remedy="give another place",
        )

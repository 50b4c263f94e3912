"""Commands that convert arrays that exist."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import click

import shardwrite
from shardwrite.cli.common import command, engine, engine_of, requeueing
from shardwrite.cli.completion import directories, files
from shardwrite.cli.options import (
    CONSUMED,
    MEMORY_OF_A_THREAD,
    Submittable,
    arguments_of,
    array_options,
    begin_options,
    check_jobs,
    combined,
    dry_run_option,
    engine_options,
    given_of,
    jobs_of,
    names_of,
    of_group,
    option_of,
    options_of,
    placing_option,
    recheck_option,
    refuse,
    source_id_option,
    worker_options,
)
from shardwrite.cli.parts import PartOf, resubmit_option, resubmitting
from shardwrite.cli.terminal import echo, tell
from shardwrite.convert.arrays import call_of
from shardwrite.convert.convert import preview_loss
from shardwrite.convert.keywords import (
    CodecKeywords,
    ConvertKeywords,
    CopyKeywords,
    IndexKeywords,
    PartKeywords,
    PlanReshardArguments,
    ReshardArguments,
    ShardArguments,
    TreeKeywords,
)
from shardwrite.convert.parts import plan_parts
from shardwrite.engines.local import LocalEngine
from shardwrite.operations.keywords import FinalizeKeywords
from shardwrite.options import MemoryKeywords
from shardwrite.place.target import resolve_target
from shardwrite.runs.outcome import handling_signals
from shardwrite.write.copying import TWICE

# ---- Options


_TWICE = "shardwrite.check_twice"  # where click keeps that the option is given


def _note_twice(context: click.Context, _: click.Parameter, value: bool) -> None:
    """Note that `--check-twice` is given."""
    context.meta[_TWICE] = value


def _checked(context: click.Context, _: click.Parameter, value: bool) -> bool | str:
    """The value of `check`, which two options give."""
    return TWICE if context.meta[_TWICE] else value


_ARGUMENTS = combined(
    click.argument("src", shell_complete=files),
    click.argument("dst", shell_complete=directories, required=False),
)
_SHARDS = option_of(ShardArguments, "shards")
_INDEX = option_of(IndexKeywords, "index_location")
_CODECS = options_of(CodecKeywords)
_CONVERSION = combined(  # which parts of one conversion have in common
    options_of(CopyKeywords, without=("check",)),
    option_of(CopyKeywords, "check", is_flag=True, callback=_checked),
    click.option(
        "--check-twice",
        is_flag=True,
        is_eager=True,  # before `_checked` asks for it
        expose_value=False,
        callback=_note_twice,
        help="The same, and read chunks that have no checksum twice, and compare.",
    ),
    source_id_option,
    options_of(TreeKeywords),
)
_OF_PARTS = names_of(combined(_SHARDS, _CODECS, _INDEX, _CONVERSION))
_CONVERTING = combined(
    _CONVERSION,
    option_of(MemoryKeywords, "memory_limit"),
    begin_options,
    click.option(
        "--in-place",
        is_flag=True,
        help="Without DST: give the new data the name of SRC, and remove the old data.",
    ),
    *(option_of(ConvertKeywords, name) for name in ("consume", "drop_hdf5", "while_growing")),
    dry_run_option,
    recheck_option,
    engine_options,
    click.option("--init", "begins", is_flag=True, help="Only begin; then convert the parts."),
    click.option(
        "--part",
        type=PartOf(),
        metavar="K/N",
        help="Only convert part K of N, counted from 0; rank/N for the rank under srun.",
    ),
    click.option(
        "--finalize",
        "ends",
        is_flag=True,
        help="Only check all shards and publish, after the parts. With --parts, parts that are "
        "missing are named.",
    ),
    option_of(FinalizeKeywords, "trust_journals"),
    resubmit_option,
    array_options,
    worker_options,
)
_STEPS = {"begins": "--init", "part": "--part", "ends": "--finalize"}
_ALONE = ("recheck", "in_place", "consume", "drop_hdf5", "while_growing")
_NOT_IN_PARTS = ("dry_run", "workers", "address", "cluster", *_ALONE)
_HERE = (*_ALONE, *_STEPS, "resubmit", "trust_journals")  # what does not go with --submit


# ---- What the commands do


_IN_PLACE = (
    "With --in-place, the new data take the name of SRC once they are complete and were compared "
    "with the old data, which are then removed. This needs room for both. Where the file system "
    "cannot exchange two names, nothing stands at SRC for a moment."
)


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


def _step(options: dict[str, Any], *, submit: bool) -> str | None:
    """The step of a conversion in parts that is asked for; None if it is the whole conversion.

    - Raises click.UsageError if options do not go together.
    """
    steps = [flag for name, flag in _STEPS.items() if options[name]]
    if len(steps) > 1:
        raise click.UsageError(f"{' and '.join(steps)} are steps of their own; give one")
    if not options["ends"]:
        refuse(["trust_journals"], "goes with --finalize")
    if not options["ends"] and (given_of(["resubmit"]) or (given_of(["n_parts"]) and not submit)):
        raise click.UsageError(
            "--parts and --resubmit go with --finalize, or --parts with --submit"
        )
    if not steps:
        return None
    refuse(_NOT_IN_PARTS, f"does not go with {steps[0]}")
    if not options["begins"] and (options["overwrite"] or options["restart"]):
        raise click.UsageError(
            "--overwrite and --restart go with --init, which holds for all parts"
        )
    return steps[0]


def _convert(src: str, dst: str | None, **options: Any) -> None:
    """Convert an array, show the plan for that, do one step of it, or submit jobs that do it."""
    submit, cluster = options.pop("submit"), options.pop("cluster")
    step = _step(options, submit=submit)
    check_jobs(submit=submit, cluster=cluster, allowed=["n_parts"] if options["ends"] else ())
    if options.get("strategy", "fixed-order") != "fixed-order" and (submit or cluster or step):
        raise click.UsageError("--strategy goes with no parts and no --cluster")
    if options["drop_hdf5"] and cluster and dst is not None:
        raise click.UsageError("--drop-hdf5 is for a call with --in-place or --consume")
    given = jobs_of(options)
    mode = "w" if options["overwrite"] else "w-"
    if submit:
        _submit(src, dst, mode, given, options)
    elif step is not None:
        _do_step(src, dst, mode, given, options)
    else:
        _do_all(src, dst, mode, cluster, given, options)


def _do_step(
    src: str, dst: str | None, mode: str, given: dict[str, Any], options: dict[str, Any]
) -> None:
    """Do one step of a conversion in parts."""
    threads, as_json = options["threads"], options["as_json"]
    of_part = of_group(PartKeywords, options) | {"shards": options["shards"]}
    of_part.pop("strategy", None)
    if options["begins"]:
        of_part["memory_limit"] = of_part["memory_limit"] or (threads or 1) * MEMORY_OF_A_THREAD
        run = {name: options[name] for name in ("durability", "restart")}
        with handling_signals(), engine(threads or 1, None, None):
            shardwrite.prepare_conversion(src, dst, mode=mode, **run, **of_part)
        echo(json.dumps({"path": str(dst)}) if as_json else f"begun: {dst}; now convert the parts")
        return
    with (
        requeueing(given.get("n_requeues")),
        handling_signals(),
        engine(threads, None, None),
        resubmitting(options["resubmit"], str(dst), None),
    ):
        if options["ends"]:
            how = {"n_parts": given.get("n_parts"), "trust_journals": options["trust_journals"]}
            done = shardwrite.finalize_conversion(src, dst, **how, **of_part)
        else:
            part = options["part"]
            done = shardwrite.convert_part(src, dst, *part, progress=not as_json, **of_part)
    tell(done, as_json=as_json)


def _submit(
    src: str, dst: str | None, mode: str, given: dict[str, Any], options: dict[str, Any]
) -> None:
    """Begin a conversion, and submit a job array that converts its parts."""
    from shardwrite.cli.jobs import Submission, need_directory

    if dst is None:
        raise click.UsageError("a job array needs another place for the new data: give DST")
    arguments, submission = _arguments(options), Submission.of(given, dst, options)
    of_call = of_group(ReshardArguments, options)
    limit = submission.memory_limit
    of_call["memory_limit"] = of_call["memory_limit"] or limit
    engine, target = LocalEngine("threads"), resolve_target(dst, None)
    need_directory(target)
    parts = plan_parts(src, call_of(ReshardArguments(src, dst, mode=mode, **of_call)), engine)
    submission.submit(
        src,
        target,
        arguments,
        conversion=str(click.get_current_context().command.name),
        nbytes=parts.raw_nbytes,
        n_groups=parts.n_groups,
        begin=lambda: parts.begin(engine),
        runs=lambda: {parts.targets[one.name]: among for one, among in parts.stretches()},
    )


def _arguments(options: dict[str, Any]) -> tuple[str, ...]:
    """Words of a command line for what all parts must be given alike."""
    is_twice = options["check"] == TWICE  # which an option of its own has given
    words = arguments_of(_OF_PARTS, {**options, "check": options["check"] and not is_twice})
    return (*words, *(["--check-twice"] if is_twice else []))


def _do_all(
    src: str,
    dst: str | None,
    mode: str,
    cluster: str | None,
    given: dict[str, Any],
    options: dict[str, Any],
) -> None:
    """Convert an array, or show the plan for that."""
    as_json, consumes = options["as_json"], options["consume"]
    of_call = of_group(ReshardArguments, options)
    _check_places(dst, in_place=options["in_place"], dry_run=options["dry_run"])
    if cluster is not None and (consumes or options["while_growing"] is not None):
        raise click.UsageError(
            "--cluster goes with none of --consume and --while-growing. Give --workers instead"
        )
    if (of_call["while_growing"] or "").isdigit():
        of_call["while_growing"] = int(of_call["while_growing"])
    with contextlib.ExitStack() as stack:
        stack.enter_context(requeueing(given.pop("n_requeues", None)))
        stack.enter_context(handling_signals())
        if cluster is None or options["dry_run"]:
            stack.enter_context(engine_of(options))
        if options["dry_run"]:
            made = shardwrite.plan_reshard(src, dst=dst, **of_group(PlanReshardArguments, options))
            if (dst is None or consumes) and not options["drop_hdf5"]:
                strategy = options.get("strategy", "fixed-order")
                preview_loss(src, made, strategy, is_consumed=dst is not None)
            tell(made, as_json=as_json)
            if dst is None and not as_json:
                echo(_IN_PLACE)
            if consumes and not as_json:
                echo(CONSUMED)
            return
        how = {"mode": mode, "progress": not as_json, **of_call}
        if cluster is None:
            done = shardwrite.reshard(src, dst, **how)
        else:
            from shardwrite.cli.jobs import convert_with_jobs

            done = convert_with_jobs(src, dst, given, **how)
    tell(done, as_json=as_json)


# ---- The commands


@command(cls=Submittable, here=_HERE)
@_ARGUMENTS
@_SHARDS
@_INDEX
@placing_option
@_CONVERTING
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


@command(cls=Submittable, here=_HERE)
@_ARGUMENTS
@_CONVERTING
def unshard(src: str, dst: str | None, **options: Any) -> None:
    """Make one file of each encoded chunk of SRC.

    DST is a new array. With --in-place and without DST, SRC is converted in place. If SRC is a
    group, all of its arrays are converted. Nothing is decoded. If the command was interrupted, run
    it again: it continues where it stopped. If SRC has no shards, nothing is done.
    """
    _convert(src, dst, shards=None, **options)


@command(cls=Submittable, here=_HERE)
@_ARGUMENTS
@_SHARDS
@_CODECS
@_INDEX
@placing_option
@_CONVERTING
def reshard(src: str, dst: str | None, **options: Any) -> None:
    """Write SRC again with other shards, inner chunks or codecs.

    DST is a new array. With --in-place and without DST, SRC is converted in place. If SRC is a
    group, all of its arrays are converted. If inner chunks and codecs stay the same, encoded chunks
    are copied. Otherwise all are decoded and encoded again. If the command was interrupted, run it
    again: it continues where it stopped.
    """
    _convert(src, dst, **options)

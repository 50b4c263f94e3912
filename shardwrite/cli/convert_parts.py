"""Conversions in parts: options of the commands that convert, and what they do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

import shardwrite
from shardwrite.cli.common import engine, requeueing
from shardwrite.cli.parts import MEMORY_OF_A_THREAD, PartOf, how_to_resubmit
from shardwrite.cli.terminal import echo
from shardwrite.errors import IncompleteError
from shardwrite.place.target import resolve_target
from shardwrite.runs.outcome import handling_signals

_OF_THE_BEGIN = ("overwrite", "restart", "durability")
_OTHERS = {
    "dry_run": "--dry-run",
    "workers": "--workers",
    "address": "--scheduler",
    "recheck": "--recheck",
    "consume": "--consume",
    "while_growing": "--while-growing",
}


def parts_options(function: Any) -> Any:
    """Add the options for a conversion in parts to a command."""
    for option in reversed(
        (
            click.option(
                "--init", "begins", is_flag=True, help="Only begin; then convert the parts."
            ),
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
                help="Only check all shards and publish, after the parts.",
            ),
            click.option(
                "--parts",
                "n_parts",
                type=click.IntRange(1),
                help="With --finalize: number of parts, so that missing ones can be named.",
            ),
            click.option(
                "--resubmit",
                metavar="DIRECTORY",
                help="With --finalize: directory of the scripts, so that the command to resubmit "
                "can be printed.",
            ),
        )
    ):
        function = option(function)
    return function


def is_in_parts(options: dict[str, Any], *, has_jobs: bool) -> bool:
    """Whether a step of a conversion in parts is asked for.

    - Raises click.UsageError if options do not go together.
    """
    steps = [
        name
        for name, key in (("--init", "begins"), ("--part", "part"), ("--finalize", "ends"))
        if options[key]
    ]
    if len(steps) > 1:
        raise click.UsageError(f"{' and '.join(steps)} are steps of their own; give one")
    if not options["ends"] and (options["n_parts"] or options["resubmit"]):
        raise click.UsageError("--parts and --resubmit go with --finalize")
    if not steps:
        return False
    others = [name for key, name in _OTHERS.items() if options[key]]
    for name in (*others, *(["--cluster"] if has_jobs else [])):
        raise click.UsageError(f"{name} does not go with {steps[0]}")
    if not options["begins"] and (options["overwrite"] or options["restart"]):
        raise click.UsageError(
            "--overwrite and --restart go with --init, which holds for all parts"
        )
    return True


def convert_in_parts(src: str, dst: str | None, options: dict[str, Any]) -> None:
    """Do one step of a conversion in parts."""
    run = {name: options.pop(name) for name in _OF_THE_BEGIN}
    for key in _OTHERS:
        options.pop(key)
    begins, part, ends = options.pop("begins"), options.pop("part"), options.pop("ends")
    n_parts, resubmit = options.pop("n_parts"), options.pop("resubmit")
    threads, n_requeues, as_json = (
        options.pop("threads"),
        options.pop("n_requeues"),
        options.pop("as_json"),
    )
    if begins:
        mode = "w" if run.pop("overwrite") else "w-"
        options["memory_limit"] = options["memory_limit"] or (threads or 1) * MEMORY_OF_A_THREAD
        with handling_signals(), engine(threads or 1, None, None):
            shardwrite.prepare_conversion(src, dst, mode=mode, **run, **options)
        echo(json.dumps({"path": str(dst)}) if as_json else f"begun: {dst}; now convert the parts")
        return
    with requeueing(n_requeues), handling_signals(), engine(threads, None, None):
        if not ends:
            done = shardwrite.convert_part(src, dst, *part, progress=not as_json, **options)
        else:
            try:
                done = shardwrite.finalize_conversion(src, dst, n_parts=n_parts, **options)
            except IncompleteError as error:
                if resubmit and error.fields["parts"]:
                    target = resolve_target(dst, None)
                    error.add_note(how_to_resubmit(error.fields["parts"], Path(resubmit), target))
                raise
    echo(json.dumps(done.to_dict(), indent=2) if as_json else str(done))

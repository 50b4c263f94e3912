"""The command that proposes shapes and codecs."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import click

import shardwrite
from shardwrite.cli.common import command, engine_of, open_as_dask
from shardwrite.cli.completion import files
from shardwrite.cli.options import (
    engine_options,
    option_of,
    options_of,
    source_options,
)
from shardwrite.cli.terminal import echo
from shardwrite.operations.design import Candidate, DesignKeywords

_SHAPE = re.compile(r"[0-9]{1,19}(,[0-9]{1,19})*")


@command()
@click.argument("src_or_shape", metavar="SRC_OR_SHAPE", shell_complete=files)
@options_of(DesignKeywords, without=("memory_limit",))
@option_of(DesignKeywords, "memory_limit", "--memory-limit", "--memory", "memory_limit")
@source_options
@engine_options
def design(
    src_or_shape: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Propose shards, inner chunks and codecs for a new array.

    A sample of SRC is compressed here. A shape such as 1000,2048,2048 takes the place of SRC if
    there is no data yet; give its --dtype, too. Each candidate says how many files it makes, and
    what reads of it cost. Nothing is written.
    """
    own = {
        name: options.pop(name) for name in ("memory_limit", "purpose", "reads", "files", "store")
    }
    with engine_of(options):
        if _SHAPE.fullmatch(src_or_shape) and not os.path.exists(src_or_shape):
            shape = tuple(int(n) for n in src_or_shape.split(","))
            found = shardwrite.design(shape, dtype=options["dtype"], **own)
        else:
            found = shardwrite.design(open_as_dask(src_or_shape, options)[0], **own)
    if as_json:
        echo(found.to_json())
        return
    echo(f"{found}\n\nto take the first: {_as_options(found.best)}")


def _as_options(candidate: Candidate) -> str:
    """The options of commands that make an array of a candidate."""
    shards, chunks = (",".join(map(str, each)) for each in (candidate.shards, candidate.chunks))
    codecs = candidate.compressors
    told = codecs if isinstance(codecs, str) else f"'{json.dumps(codecs)}'"
    return f"--shards {shards} --chunks {chunks} --compressors {told}"

"""Options of commands that convert arrays, and the arguments that scripts repeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from shardwrite.cli.options import (
    accept_source_option,
    arguments_of,
    durability_option,
    manifest_option,
    restart_option,
    source_id_option,
)
from shardwrite.cli.values import Json, Names, Sizes
from shardwrite.write.donor import TWICE

_Command = Callable[..., None]
_TWICE = "shardwrite.check_twice"  # where click keeps that the option is given

shards_option = click.option(
    "--shards",
    type=Sizes(),
    default="auto",
    help="Inner chunks of a shard: 8 along each axis or 4,4,16. Or its decoded size, 256MB. Or the "
    "dimensions that it spans whole, XYZ or lat,lon. Or none.",
)
index_option = click.option(
    "--index-location",
    type=click.Choice(["end", "start"]),
    help="Where a shard holds its index. Default: as in SRC, or at the end.",
)


def codec_options(function: _Command) -> _Command:
    """Add the options of a conversion that re-encodes chunks."""
    function = click.option(
        "--compressors",
        type=Json(),
        default="keep",
        help="A codec's name (a checksum follows), a JSON list of exactly these codecs, none, "
        "auto (zstd with a checksum), or keep.",
    )(function)
    return click.option(
        "--chunks",
        type=Sizes(),
        help="Size of an inner chunk: 64 or 64,64,16 elements, or 512kB. Default: as in SRC.",
    )(function)


def _note_twice(context: click.Context, _: click.Parameter, value: bool) -> None:
    """Note that `--check-twice` is given."""
    context.meta[_TWICE] = value


def _checked(context: click.Context, _: click.Parameter, value: bool) -> bool | str:
    """The value of `check`, which two options give."""
    return TWICE if context.meta[_TWICE] else value


def conversion_options(function: _Command) -> _Command:
    """Add the options that say what a conversion makes of which arrays."""
    for decorate in reversed(
        (
            click.option(
                "--checksum/--no-checksum",
                default=None,
                help="Add a checksum (crc32c) to each chunk, or verify and drop it. "
                "Default: as in SRC.",
            ),
            click.option(
                "--check",
                is_flag=True,
                callback=_checked,
                help="Decode each chunk before it is copied.",
            ),
            click.option(
                "--check-twice",
                is_flag=True,
                is_eager=True,  # before `_checked` asks for it
                expose_value=False,
                callback=_note_twice,
                help="The same, and read chunks that have no checksum twice, and compare.",
            ),
            click.option(
                "--drop-empty",
                is_flag=True,
                help="Leave out chunks that hold only the fill value. This decodes all chunks.",
            ),
            click.option(
                "--dimension-names",
                type=Names(),
                help="Names of the axes, such as time,y,x. Default: those of SRC.",
            ),
            manifest_option,
            source_id_option,
            click.option(
                "--include",
                multiple=True,
                metavar="PATTERN",
                help="Convert only arrays whose paths fit, such as images/*. May be repeated.",
            ),
            click.option(
                "--exclude",
                multiple=True,
                metavar="PATTERN",
                help="Leave out arrays whose paths fit. May be repeated.",
            ),
            click.option(
                "--min-chunks",
                type=click.IntRange(0),
                default=2,
                help="In a group, arrays with fewer inner chunks keep their shards.",
            ),
            click.option(
                "--memory-limit",
                help="Memory of each worker process, such as 4GB. Default: what it may use, or in "
                "a job array, 1 GiB for each thread.",
            ),
        )
    ):
        function = decorate(function)
    return function


_OF_PARTS = {"shards", "chunks", "compressors", "index_location"} | {
    one.name
    for one in click.command()(conversion_options(lambda: None)).params
    if one.name != "memory_limit"  # each process has its own
}


def begin_options(function: _Command) -> _Command:
    """Add the options that say how a conversion begins."""
    for decorate in reversed(
        (
            click.option("--overwrite", is_flag=True, help="Replace an existing destination."),
            restart_option,
            accept_source_option,
            durability_option,
        )
    ):
        function = decorate(function)
    return function


def conversion_arguments(options: dict[str, Any]) -> tuple[str, ...]:
    """Arguments of a command line for the options of a conversion that the user has given.

    The memory of a process is left out, because each has its own.
    """
    twice = options["check"] == TWICE  # which an option of its own has given
    given = arguments_of(_OF_PARTS, {**options, "check": options["check"] and not twice})
    return (*given, *(["--check-twice"] if twice else []), *accept_arguments())


def accept_arguments() -> tuple[str, ...]:
    """Arguments of a command line by which its source is accepted as it is, if the user does."""
    source = click.get_current_context().get_parameter_source("accept_source")
    return ("--accept-source",) if source is ParameterSource.COMMANDLINE else ()

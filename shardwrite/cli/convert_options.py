"""Options of commands that convert arrays or write scales, and arguments that scripts repeat."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from shardwrite.cli.common import open_to_write
from shardwrite.cli.options import (
    accept_source_option,
    arguments_of,
    combined,
    durability_option,
    option_of,
    options_of,
    restart_option,
    source_id_option,
)
from shardwrite.convert.keywords import (
    CodecKeywords,
    CopyKeywords,
    IndexKeywords,
    ShardArguments,
    TreeKeywords,
)
from shardwrite.options import MemoryKeywords
from shardwrite.runs.source_array import as_source_array
from shardwrite.volumes.keywords import ScaleKeywords, VolumeKeywords
from shardwrite.volumes.new import checked_axes, row_major
from shardwrite.write.copying import TWICE

# ---- Scales of volumes


_OF_SOURCE = ("voxel_offset", "type")  # which it may tell, too

volume_options = combined(
    option_of(VolumeKeywords, "axes"),
    *(option_of(VolumeKeywords, name, default=None) for name in _OF_SOURCE),
    options_of(ScaleKeywords, without=_OF_SOURCE),
    option_of(VolumeKeywords, "write_empty_chunks", help="Also store chunks that hold only zeros."),
)
"""Options that describe a scale."""


def open_volume(src: str, options: dict[str, Any], *, as_source: bool = False) -> Any:
    """Open the source, and take from it what the options leave out."""
    known: dict[str, Any] = {"fill_value": None, "dimension_names": None, "attributes": None}
    options.update(known)
    x, identity = open_to_write(src, options, as_source=as_source)
    known = {name: options.pop(name) for name in known}
    of_volume = (known["attributes"] or {}).get("precomputed")
    of_volume = of_volume if isinstance(of_volume, dict) else {}
    if options["resolution"] is None:
        options["resolution"] = of_volume.get("resolution")
    for name in _OF_SOURCE:
        if options[name] is None:
            options[name] = of_volume.get(name, getattr(ScaleKeywords, name))
    options["axes"] = checked_axes(options["axes"], known["dimension_names"], len(x.shape))
    return x, identity


def in_order(x: Any, axes: str | None) -> Any:
    """A source whose axes have the order of a scale that is written in parts.

    - `axes`: letters of its axes; None if they are in order.
    """
    n_axes = len(x.shape)
    order = [*range(n_axes)] if axes is None else row_major(checked_axes(axes, None, n_axes))
    return x if order == [*range(n_axes)] else as_source_array(x).array.transpose(order)


# ---- Conversions


_TWICE = "shardwrite.check_twice"  # where click keeps that the option is given

shards_option = option_of(ShardArguments, "shards")

index_option = option_of(IndexKeywords, "index_location")

codec_options = options_of(CodecKeywords)


def _note_twice(context: click.Context, _: click.Parameter, value: bool) -> None:
    """Note that `--check-twice` is given."""
    context.meta[_TWICE] = value


def _checked(context: click.Context, _: click.Parameter, value: bool) -> bool | str:
    """The value of `check`, which two options give."""
    return TWICE if context.meta[_TWICE] else value


conversion_options = combined(
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
    option_of(MemoryKeywords, "memory_limit"),
)
"""What a conversion makes of which arrays."""

_OF_PARTS = {"shards", "chunks", "compressors", "index_location"} | {
    one.name
    for one in click.command()(conversion_options(lambda: None)).params
    if one.name != "memory_limit"  # each process has its own
}


begin_options = combined(
    click.option("--overwrite", is_flag=True, help="Replace an existing destination."),
    restart_option,
    accept_source_option,
    durability_option,
)
"""How a conversion begins."""


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

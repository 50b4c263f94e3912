"""Options that commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from shardwrite.cli.values import Attributes, Json, Names, Scalar, Sizes

__all__ = [
    "engine_options",
    "json_option",
    "layout_options",
    "name_option",
    "requeue_option",
    "scheduler_option",
    "source_options",
]


def _options(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def decorate(function: Any) -> Any:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


source_options = _options(
    click.option(
        "--format", "source_format", help="Format of SRC; guessed from its name by default."
    ),
    click.option("--dataset", help="Path of the array inside SRC."),
    click.option("--shape", type=Sizes(), help="Shape of a raw file."),
    click.option("--dtype", help="dtype of a raw file."),
    click.option("--offset", type=int, default=0, help="Bytes before the data of a raw file."),
    click.option("--source-chunks", type=Sizes(), help="Read SRC in such chunks."),
)
layout_options = _options(
    click.option(
        "--shards",
        type=Sizes(),
        default="auto",
        help="Shard shape: 256 or 256,256,64 elements, 256MB, auto, or none for an array without "
        "shards.",
    ),
    click.option("--chunks", type=Sizes(), default="auto", help="Inner chunk shape, likewise."),
    click.option(
        "--compressors",
        type=Json(),
        default="auto",
        help="JSON list of codecs, a codec's name, none, or auto (zstd and crc32c).",
    ),
    click.option(
        "--filters", type=Json(), default="auto", help="JSON list of array-to-array codecs."
    ),
    click.option("--fill-value", type=Scalar(), help="Fill value; that of SRC by default."),
    click.option(
        "--dimension-names",
        type=Names(),
        help="Name of each axis, such as time,y,x; those of SRC by default.",
    ),
    click.option(
        "--attributes",
        type=Attributes(),
        help="JSON object of attributes, which are added to those of SRC.",
    ),
    click.option("--index-location", type=click.Choice(["end", "start"]), default="end"),
    click.option(
        "--strategy", default="fixed-order", help="fixed-order, append-only, C, F or morton."
    ),
    click.option(
        "--write-empty-chunks", is_flag=True, help="Store inner chunks of the fill value only, too."
    ),
    click.option("--memory-limit", help="Memory of a worker process, such as 4GB."),
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
name_option = click.option("--name", help="Path of the array in the store.")
scheduler_option = click.option(
    "--scheduler",
    "address",
    help="A running dask scheduler: its address, or the path of its scheduler file.",
)
requeue_option = click.option(
    "--requeue",
    "n_requeues",
    type=click.IntRange(0),
    metavar="N",
    help="In a SLURM job: if USR1 has stopped it and shards were written, put the job back into "
    "the queue, N times at most.",
)
engine_options = _options(
    click.option("--threads", type=click.IntRange(1), help="Threads; as many as cores by default."),
    click.option(
        "--workers",
        type=click.IntRange(1),
        help="Run a local cluster of so many processes instead of threads.",
    ),
    scheduler_option,
)

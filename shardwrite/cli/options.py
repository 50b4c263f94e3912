"""Options that commands share, and the types of their values."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import click

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


class Sizes(click.ParamType[Any]):
    """Option type for sizes: ``64``, ``64,64,32``, ``256MB``, ``auto`` or ``none``."""

    name = "sizes"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: ARG002 (click's signature)
        """Return one integer, a tuple of integers, or None; other text is left for the planner."""
        if value == "none":
            return None
        parts = str(value).split(",")
        if all(part.strip().lstrip("-").isdigit() for part in parts):
            sizes = tuple(int(part) for part in parts)
            return sizes if len(sizes) > 1 else sizes[0]
        return value


class Json(click.ParamType[Any]):
    """Option type for codecs: JSON, a codec's name, ``auto``, or ``none``."""

    name = "json"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: ARG002 (click's signature)
        """Return the value of JSON, None for ``none``, ``auto`` itself, or a list of one codec."""
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except ValueError:
            return (
                None
                if value == "none"
                else value
                if value == "auto"
                else [{"name": value, "configuration": {}}]
            )


class Scalar(click.ParamType[Any]):
    """Option type for a fill value: ``5``, ``0.5``, ``nan``, ``true`` or a text."""

    name = "scalar"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: ARG002 (click's signature)
        """Return a bool, an integer, a float or the text, the first of these that fits.

        Integers may have any number of digits.
        """
        if str(value).lower() in ("true", "false"):
            return str(value).lower() == "true"
        for kind in (int, float):
            with contextlib.suppress(ValueError):
                return kind(value)
        return value


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
    click.option("--fill-value", type=Scalar(), help="Fill value."),
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

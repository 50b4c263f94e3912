"""What the commands share: options, and how they end."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import click
import dask

from shardwrite.engines import Stopped
from shardwrite.errors import (
    ClusterError,
    ClusterLostError,
    IncompleteError,
    RunCancelledError,
    ShardwriteError,
    SubmitError,
)
from shardwrite.host.environment import configured
from shardwrite.host.resources import memory_limit_nbytes, scratch_directory
from shardwrite.host.stopping import n_committed
from shardwrite.runs.outcome import exit_code_of
from shardwrite.slurm import connect, requeue
from shardwrite.sources import as_dask, open_source

__all__ = [
    "command",
    "engine",
    "engine_options",
    "json_option",
    "layout_options",
    "name_option",
    "open_as_dask",
    "requeue_option",
    "requeueing",
    "scheduler_option",
    "source_options",
]


class _Failure(click.ClickException):
    """An error with its exit code."""

    def __init__(self, error: BaseException) -> None:
        super().__init__("\n".join([str(error), *getattr(error, "__notes__", [])]))
        setattr(self, "exit_code", exit_code_of(error))  # noqa: B010 (click declares it on the class)


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Every command tells its outcome by its exit code."""

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            function(*args, **kwargs)
        except (ShardwriteError, OSError, Stopped) as error:
            raise _Failure(error) from error

    return wrapped


def _options(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def decorate(function: Any) -> Any:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


class Sizes(click.ParamType[Any]):
    """``64``, ``64,64,32``, ``256MB`` or ``auto``."""

    name = "sizes"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: ARG002 (click's signature)
        """Integers where there are only integers; else the text, for the planner to read."""
        parts = str(value).split(",")
        if all(part.strip().lstrip("-").isdigit() for part in parts):
            sizes = tuple(int(part) for part in parts)
            return sizes if len(sizes) > 1 else sizes[0]
        return value


class Json(click.ParamType[Any]):
    """JSON, or a bare word, which stands for itself; ``none`` is None."""

    name = "json"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: ARG002 (click's signature)
        """JSON's value; a codec's bare name becomes a list of one."""
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except ValueError:
            return None if value == "none" else value if value == "auto" else [{"name": value, "configuration": {}}]


class Scalar(click.ParamType[Any]):
    """``5``, ``0.5``, ``nan``, ``true`` or a text; whole numbers stay whole, however long."""

    name = "scalar"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: ARG002 (click's signature)
        """The narrowest of integer, float, bool and text that the value is."""
        if str(value).lower() in ("true", "false"):
            return str(value).lower() == "true"
        for kind in (int, float):
            with contextlib.suppress(ValueError):
                return kind(value)
        return value


source_options = _options(
    click.option("--format", "source_format", help="Format of SRC; guessed from its name by default."),
    click.option("--dataset", help="Path of the array inside SRC."),
    click.option("--shape", type=Sizes(), help="Shape of a raw file."),
    click.option("--dtype", help="dtype of a raw file."),
    click.option("--offset", type=int, default=0, help="Bytes before the data of a raw file."),
    click.option("--source-chunks", type=Sizes(), help="Read SRC in such chunks."),
)
layout_options = _options(
    click.option("--shards", type=Sizes(), default="auto", help="Shard shape: 256 or 256,256,64 elements, 256MB, or auto."),
    click.option("--chunks", type=Sizes(), default="auto", help="Inner chunk shape, likewise."),
    click.option(
        "--compressors", type=Json(), default="auto", help="JSON list of codecs, a codec's name, none, or auto (zstd and crc32c)."
    ),
    click.option("--filters", type=Json(), default="auto", help="JSON list of array-to-array codecs."),
    click.option("--fill-value", type=Scalar(), help="Fill value."),
    click.option("--index-location", type=click.Choice(["end", "start"]), default="end"),
    click.option("--strategy", default="fixed-order", help="fixed-order, append-only, C, F or morton."),
    click.option("--write-empty-chunks", is_flag=True, help="Store inner chunks of the fill value only, too."),
    click.option("--memory-limit", help="Memory of a worker process, such as 4GB."),
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
name_option = click.option("--name", help="Path of the array in the store.")
scheduler_option = click.option(
    "--scheduler", "address", help="A running dask scheduler: its address, or the path of its scheduler file."
)
requeue_option = click.option(
    "--requeue",
    "n_requeues",
    type=click.IntRange(0),
    metavar="N",
    help="In a SLURM job: if USR1 has stopped it and shards were written, put the job back into the queue, N times at most.",
)
engine_options = _options(
    click.option("--threads", type=click.IntRange(1), help="Threads; as many as cores by default."),
    click.option("--workers", type=click.IntRange(1), help="Run a local cluster of so many processes instead of threads."),
    scheduler_option,
)


def open_as_dask(source: str, options: dict[str, Any]) -> Any:
    """A source as a dask array, and its identity; takes the source options out of `options`."""
    shape = options.pop("shape")
    opened = open_source(
        source,
        format=options.pop("source_format"),
        dataset=options.pop("dataset"),
        shape=(shape,) if isinstance(shape, int) else shape,
        dtype=options.pop("dtype"),
        offset=options.pop("offset"),
    )
    chunks = options.pop("source_chunks")
    return as_dask(opened, chunks), opened.identity


@contextlib.contextmanager
def engine(threads: int | None, workers: int | None, address: str | None) -> Iterator[None]:
    """The engine that the options ask for; dask's threads without any."""
    if workers is None and address is None:
        with dask.config.set({"scheduler": "threads", "num_workers": threads}):
            yield
        return
    from distributed import Client, LocalCluster

    with contextlib.ExitStack() as stack:
        if address is not None:
            client = stack.enter_context(connect(address))
            stack.enter_context(_telling_of_loss(client))
        else:
            stack.enter_context(configured())
            cluster = LocalCluster(
                n_workers=workers,
                threads_per_worker=threads or 1,
                processes=True,
                dashboard_address=None,
                memory_limit=memory_limit_nbytes() // (workers or 1),
                local_directory=scratch_directory(),
            )
            stack.enter_context(Client(stack.enter_context(cluster)))
        yield


@contextlib.contextmanager
def _telling_of_loss(client: Any) -> Iterator[None]:
    """Say that the scheduler was lost where anything fails for that reason, dask's own calls in a user's program too."""
    try:
        yield
    except (ShardwriteError, Stopped):
        raise
    except Exception as error:
        if client.status == "running":
            raise
        raise ClusterLostError("the connection to dask's scheduler was lost; run the same again to go on") from error


@contextlib.contextmanager
def requeueing(limit: int | None) -> Iterator[None]:
    """If what is inside is stopped, or loses its cluster, have the job come again, `limit` times at most.

    The error tells what came of that.
    """
    before = n_committed()
    try:
        yield
    except (IncompleteError, Stopped, ClusterError, ClusterLostError) as error:
        if isinstance(error, RunCancelledError):  # and stays so
            raise
        if limit is not None:
            is_waiting = isinstance(error, ClusterError)  # for its turn; that is no fault of the plan
            error.add_note(_requeued(limit, is_waiting or n_committed() > before))
        raise


def _requeued(limit: int, is_worth_it: bool) -> str:
    """Have a job that was stopped come again, unless it got nowhere; what came of that."""
    if not is_worth_it:
        return "not one shard was finished since the start, so the job was not requeued: give it more time"
    try:
        return requeue(limit)
    except SubmitError as refusal:
        return f"{refusal}; submit it again to go on"

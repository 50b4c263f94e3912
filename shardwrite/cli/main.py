"""Arguments in, one call, text and an exit code out; the only place that prints.

Exit codes: 0 complete, 1 error or problems found, 2 usage (also what cannot be planned), 75 storage trouble
that may pass, 85 incomplete.
"""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import click
import dask
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import shardwrite
from shardwrite.cli.demo import run_demo
from shardwrite.errors import IncompleteError, PlanError, ShardwriteError, SpecError, StoreError
from shardwrite.sources import as_dask, open_source
from shardwrite.target import resolve_target

__all__ = ["main"]

_MAY_PASS = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EAGAIN, errno.ETIMEDOUT}


class _Failure(click.ClickException):
    """An error with its exit code."""

    def __init__(self, error: Exception, exit_code: int) -> None:
        super().__init__(str(error))
        setattr(self, "exit_code", exit_code)  # noqa: B010 (click declares it on the class)


@contextlib.contextmanager
def _exit_codes() -> Iterator[None]:
    try:
        yield
    except (SpecError, PlanError) as error:
        raise _Failure(error, 2) from error
    except IncompleteError as error:
        raise _Failure(error, 85) from error
    except StoreError as error:
        raise _Failure(error, 75 if error.fields["errno"] in _MAY_PASS else 1) from error
    except (ShardwriteError, OSError) as error:
        raise _Failure(error, 1) from error


def _command(function: Callable[..., None]) -> Callable[..., None]:
    """Every command tells its outcome by its exit code."""

    @wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        with _exit_codes():
            function(*args, **kwargs)

    return wrapped


def _options(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def decorate(function: Any) -> Any:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


class _Sizes(click.ParamType[Any]):
    """``64``, ``64,64,32``, ``256MB`` or ``auto``."""

    name = "sizes"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: ARG002 (click's signature)
        """Integers where there are only integers; else the text, for the planner to read."""
        parts = str(value).split(",")
        if all(part.strip().lstrip("-").isdigit() for part in parts):
            sizes = tuple(int(part) for part in parts)
            return sizes if len(sizes) > 1 else sizes[0]
        return value


class _Json(click.ParamType[Any]):
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


_source_options = _options(
    click.option("--format", "source_format", help="Format of SRC; guessed from its name by default."),
    click.option("--dataset", help="Path of the array inside SRC."),
    click.option("--shape", type=_Sizes(), help="Shape of a raw file."),
    click.option("--dtype", help="dtype of a raw file."),
    click.option("--offset", type=int, default=0, help="Bytes before the data of a raw file."),
    click.option("--source-chunks", type=_Sizes(), help="Read SRC in such chunks."),
)
_layout_options = _options(
    click.option("--shards", type=_Sizes(), default="auto", help="Shard shape: 256 or 256,256,64 elements, 256MB, or auto."),
    click.option("--chunks", type=_Sizes(), default="auto", help="Inner chunk shape, likewise."),
    click.option(
        "--compressors", type=_Json(), default="auto", help="JSON list of codecs, a codec's name, none, or auto (zstd and crc32c)."
    ),
    click.option("--filters", type=_Json(), default="auto", help="JSON list of array-to-array codecs."),
    click.option("--fill-value", type=float, help="Fill value."),
    click.option("--index-location", type=click.Choice(["end", "start"]), default="end"),
    click.option("--strategy", default="fixed-order", help="fixed-order, append-only, C, F or morton."),
    click.option("--write-empty-chunks", is_flag=True, help="Store inner chunks of the fill value only, too."),
    click.option("--memory-limit", help="Memory of a worker process, such as 4GB."),
)
_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_name_option = click.option("--name", help="Path of the array in the store.")


@click.group(name="shardwrite", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(shardwrite.__version__)
def main() -> None:
    """Write large arrays as sharded Zarr v3, in parallel, each shard once and whole."""


def _open(source: str, options: dict[str, Any]) -> Any:
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


@main.command()
@click.argument("src")
@click.argument("dst", required=False)
@_source_options
@_layout_options
@_json_option
@click.option("--html", "html_path", type=click.Path(dir_okay=False, writable=True), help="Also write the plan as an HTML page.")
@_command
def plan(src: str, dst: str | None, as_json: bool, html_path: str | None, **options: Any) -> None:  # noqa: ARG001 (DST stands for symmetry with write)
    """Show how SRC would be written: shards, files, tasks and memory. Nothing is written."""
    x, identity = _open(src, options)
    made = shardwrite.plan(x, source_id=identity, **options)
    if html_path:
        with open(html_path, "w") as page:
            page.write(f"<!doctype html><meta charset='utf-8'><title>plan</title>{made._repr_html_()}")
    click.echo(made.to_json() if as_json else str(made))


@main.command()
@click.argument("src")
@click.argument("dst")
@_name_option
@_source_options
@_layout_options
@click.option("--overwrite", is_flag=True, help="Replace an array that exists.")
@click.option("--restart", is_flag=True, help="Take away what a run that did not end has written, and start over.")
@click.option("--publish", type=click.Choice(["last", "first"]), default="last", help="When zarr.json appears.")
@click.option("--durability", type=click.Choice(["full", "batch", "none"]), default="full")
@click.option("--threads", type=click.IntRange(1), help="Threads; as many as cores by default.")
@click.option("--workers", type=click.IntRange(1), help="Run a local cluster of so many processes instead of threads.")
@click.option("--scheduler", "address", help="Address of a running dask scheduler.")
@click.option("--verify", "check", is_flag=True, help="Decode every inner chunk afterwards.")
@_json_option
@_command
def write(
    src: str,
    dst: str,
    overwrite: bool,
    threads: int | None,
    workers: int | None,
    address: str | None,
    check: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Write SRC (Zarr, HDF5, NetCDF, .npy, TIFF, NIfTI or raw) as the sharded array DST."""
    x, identity = _open(src, options)
    with _engine(threads, workers, address):
        result = shardwrite.to_sharded_zarr(
            x, dst, source_id=identity, mode="w" if overwrite else "w-", progress=not as_json, **options
        )
    report = _check(dst, options["name"], deep=True, quiet=as_json) if check else None
    if as_json:
        click.echo(json.dumps({**result.to_dict(), **({"verify": report.to_dict()} if report else {})}, indent=2))
    else:
        click.echo(f"{result}\n{report}" if report else str(result))
    _exit_unless_good(report)


@contextlib.contextmanager
def _engine(threads: int | None, workers: int | None, address: str | None) -> Iterator[None]:
    """The engine that the options ask for; dask's threads without any."""
    if workers is None and address is None:
        with dask.config.set({"scheduler": "threads", "num_workers": threads}):
            yield
        return
    from distributed import Client, LocalCluster

    with contextlib.ExitStack() as stack:
        where: Any = address
        if where is None:
            cluster = LocalCluster(n_workers=workers, threads_per_worker=threads or 1, processes=True, dashboard_address=None)
            where = stack.enter_context(cluster)
        stack.enter_context(Client(where))
        yield


@main.command()
@click.argument("array")
@_name_option
@_json_option
@_command
def info(array: str, name: str | None, as_json: bool) -> None:
    """Metadata, shards present, sizes, compression, order and unused bytes of a sharded ARRAY."""
    opened = shardwrite.open_sharded(array, name)
    report = shardwrite.verify(array, name=name)
    metadata = opened.metadata
    facts = {
        "shape": list(metadata.grid.shape),
        "dtype": str(metadata.dtype),
        "shards": list(metadata.grid.shards),
        "chunks": list(metadata.grid.chunks),
        "codecs": [codec["name"] for codec in metadata.inner_codecs],
        "fill_value": metadata.document["fill_value"],
        "index_location": metadata.index_codec.location,
        "index_checksum": metadata.index_codec.has_checksum,
        "unfinished": resolve_target(array, name).run_path.exists(),
    }
    if as_json:
        click.echo(json.dumps({**facts, **report.to_dict()}, indent=2))
        return
    for field, value in facts.items():
        click.echo(f"  {field:<15} {value}")
    click.echo(str(report))


@main.command()
@click.argument("array")
@_name_option
@click.option("--deep", is_flag=True, help="Decode every inner chunk, too.")
@_json_option
@_command
def verify(array: str, name: str | None, deep: bool, as_json: bool) -> None:
    """Check every shard of ARRAY: index checksum, bounds and overlaps; exit code 1 if anything is wrong."""
    report = _check(array, name, deep=deep, quiet=as_json)
    click.echo(json.dumps(report.to_dict(), indent=2) if as_json else str(report))
    _exit_unless_good(report)


def _check(array: str, name: str | None, *, deep: bool, quiet: bool) -> shardwrite.Report:
    """Verify under a bar."""
    console = Console(stderr=True)
    columns = (TextColumn("checking"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal or quiet) as progress:
        task = progress.add_task("checking", total=shardwrite.open_sharded(array, name).metadata.grid.n_shards)
        return shardwrite.verify(array, name=name, deep=deep, on_shards=lambda n: progress.update(task, advance=n))


def _exit_unless_good(report: shardwrite.Report | None) -> None:
    if report is not None and not report.is_good:
        raise SystemExit(1)


@main.command()
@click.option("--directory", type=click.Path(file_okay=False), default="demo-output", show_default=True, help="Where to write.")
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True, help="Processes of the local cluster.")
@_json_option
@_command
def demo(directory: str, workers: int, as_json: bool) -> None:
    """Write a real volume (an MRI scan that comes with nibabel) on a local cluster, check it and show it."""
    run_demo(directory, workers, as_json=as_json)

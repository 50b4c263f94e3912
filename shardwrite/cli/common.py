"""What commands share: to open a source, set up an engine, log, and end with an exit code."""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import click
import dask
import numpy as np
from click.core import ParameterSource

from shardwrite.cli.options import ENGINE_NAMES, FILE_NAMES
from shardwrite.cli.terminal import Grouped, echo, telling_warnings
from shardwrite.cli.wording import in_options, text_in_options
from shardwrite.config.table import LOG_LEVEL
from shardwrite.engines.local import Stopped
from shardwrite.entry.public import configured
from shardwrite.errors import (
    ClusterError,
    ClusterLostError,
    IncompleteError,
    RunCancelledError,
    ShardwriteError,
    SpecError,
    StoreError,
    SubmitError,
)
from shardwrite.host.dask_config import check_configuration
from shardwrite.host.environment import configured as configured_workers
from shardwrite.host.resources import memory_limit_nbytes, scratch_directory
from shardwrite.host.stopping import n_committed
from shardwrite.host.terminal import bar_in_terminal
from shardwrite.runs.outcome import exit_code_of, is_of_a_block

if TYPE_CHECKING:  # few commands open an array or a source
    from shardwrite.operations.verify import Opened
    from shardwrite.plan.plan import Plan
    from shardwrite.sources.base import Source


# ---- The log, on standard error


def log_option() -> click.Option:
    """The option that says what of the log is printed; the last one of each command."""
    return click.Option(
        ["--log-level"],
        type=click.Choice(["debug", "info", "warning", "error"]),
        default=LOG_LEVEL.default,
        show_default=True,
        help="Least level of the log, which is printed to standard error.",
    )


def _json_option() -> click.Option:
    return click.Option(["--json", "as_json"], is_flag=True, show_default=True, help="Print JSON.")


class _Handler(logging.Handler):
    """Handler that prints records like all else that commands print."""

    def emit(self, record: logging.LogRecord) -> None:
        """See :meth:`logging.Handler.emit`."""
        try:
            echo(self.format(record), err=True)
        except Exception:  # noqa: BLE001 (a log that cannot be printed ends no run)
            self.handleError(record)


class _Formatter(logging.Formatter):
    """Format of records: time, level, logger, message, and run and shard where they are known."""

    def format(self, record: logging.LogRecord) -> str:
        """See :meth:`logging.Formatter.format`."""
        facts = [(name, getattr(record, name, "")) for name in ("run", "shard")]
        known = [f"{name}={value}" for name, value in facts if value]
        return " ".join([super().format(record), *known])


@contextlib.contextmanager
def logging_to_terminal(level: str) -> Iterator[None]:
    """Print the log of this package to standard error until the block ends."""
    logger, handler = logging.getLogger("shardwrite"), _Handler()
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    before = logger.level
    logger.setLevel(level.upper())
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


# ---- Commands, their sources and their engine


class _Failure(click.ClickException):
    """An error that click prints, with its exit code."""

    def __init__(self, error: BaseException, before: str = "") -> None:
        super().__init__(before + in_options(error, click.get_current_context().command))
        setattr(self, "exit_code", exit_code_of(error))  # noqa: B010 (it is on the class)


def command(
    name: str | None = None,
    *,
    cls: type[Grouped] = Grouped,
    prints_json: bool = True,
    **how: Any,
) -> Callable[[Callable[..., None]], Any]:
    """Make a command: it logs, settings are its defaults, and errors have the right exit code.

    - `name`: by default that of the function.
    - `prints_json`: whether it has the option `--json`, whose value is `as_json`.
    - `how`: more arguments of `cls`.
    """

    def make(function: Callable[..., None]) -> Grouped:
        @wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> None:
            context = click.get_current_context()
            source_of = context.get_parameter_source
            given = {name for name in kwargs if source_of(name) is not ParameterSource.DEFAULT}
            try:
                check_configuration()
                kwargs = {**kwargs, **configured(kwargs, given)}
                with (
                    telling_warnings(partial(text_in_options, command=context.command)),
                    logging_to_terminal(kwargs.pop("log_level")),
                ):
                    function(*args, **kwargs)
            except BrokenPipeError:  # nobody reads the output any more, and click ends in silence
                raise
            except (ShardwriteError, OSError, Stopped) as error:
                raise _Failure(error) from error
            except Exception as error:
                if not is_of_a_block(error):
                    raise
                told = f"the source cannot be read: {type(error).__name__}: "
                raise _Failure(error, told) from error

        made = click.command(name, cls=cls, **how)(wrapped)
        made.params += [*([_json_option()] if prints_json else []), log_option()]
        return made

    return make


def open_as_dask(source: str, options: dict[str, Any], *, as_source: bool = False) -> Any:
    """Open a source, and return it as a dask array with what it says, and with its identity.

    The source options are removed from `options`.

    - `as_source`: return the source itself, and not a dask array, unless the user has given chunks.
    """
    from shardwrite.runs.source_array import SourceArray

    identity = options.pop("source_id")
    opened = _opened(source, options)
    x = _as_given(opened, options, as_source=as_source)
    return x if as_source else SourceArray(x, opened.metadata), identity or opened.identity


def open_to_write(source: str, options: dict[str, Any], *, as_source: bool = False) -> Any:
    """Open a source as `open_as_dask` does, and describe the new array as the source is described.

    What the source says of its fill value, dimensions and attributes becomes an option, unless the
    user has given it.
    """
    identity = options.pop("source_id")
    opened = _opened(source, options)
    known = opened.metadata
    if options["fill_value"] is not None:
        from shardwrite.cli.values import fill_of

        options["fill_value"] = fill_of(options["fill_value"], np.dtype(opened.dtype))
    for field in ("fill_value", "dimension_names"):
        if options[field] is None:
            options[field] = getattr(known, field)
    if options.get("serializer") == "auto" and known.serializer is not None:
        options["serializer"] = known.serializer
    options["attributes"] = {**known.attributes, **(options["attributes"] or {})} or None
    return _as_given(opened, options, as_source=as_source), identity or opened.identity


def open_and_plan(
    sources: Sequence[str],
    several: Sequence[str | None] | None,
    options: dict[str, Any],
    plan: Callable[..., Plan],
) -> tuple[Any, Any]:
    """Open the source of an array, and plan that array; or a list of sources, and one of plans.

    - `several`: names of several arrays; None for one.
    - `plan`: makes a plan of a source, its `source_id`, and the options.
    """
    check_sources(sources, several)
    found, plans = [], []
    for source in sources:
        own = dict(options)
        x, identity = open_to_write(source, own)
        found.append(x)
        plans.append(plan(x, source_id=identity, **own))
    return (found[0], plans[0]) if several is None else (found, plans)


def check_sources(sources: Sequence[str], several: Sequence[str | None] | None) -> None:
    """Refuse other sources than one for each array."""
    if several is not None and len(sources) != len(several):
        raise click.UsageError(f"{len(several)} names are given, and {len(sources)} sources")
    if several is None and len(sources) > 1:
        raise click.UsageError("give --names for the arrays that several sources become")


def _as_given(opened: Source, options: dict[str, Any], *, as_source: bool) -> Any:
    """The source itself or a dask array of it; see `open_as_dask`."""
    from shardwrite.read.source import as_dask

    chunks = options.pop("source_chunks")
    if as_source and chunks is None:
        return opened
    try:
        return as_dask(opened, chunks)
    except SpecError as error:
        raise SpecError(
            error.message,
            field="source_chunks",
            value=chunks,
            remedy="give for instance 64, or 64,64,32, or auto",
        ) from None


def _opened(source: str, options: dict[str, Any]) -> Source:
    """Open a source by its options, which are removed from `options`."""
    from shardwrite.sources.registry import decoded, open_source

    is_decoded, shape = options.pop("decode_cf"), options["shape"]
    options["shape"] = (shape,) if isinstance(shape, int) else shape
    of_file = {name: options.pop(name) for name in FILE_NAMES}
    try:
        opened = open_source(source, format=options.pop("source_format"), **of_file)
    except StoreError as error:
        if error.fields["errno"] not in (errno.ENOENT, errno.ENOTDIR):
            raise
        # A path that is wrong is wrong usage, as a wrong array in a file is.
        raise SpecError(
            "no such file or directory", field="source", value=source, remedy="check the path"
        ) from None
    return decoded(opened) if is_decoded else opened


@contextlib.contextmanager
def engine(threads: int | None, workers: int | None, address: str | None) -> Iterator[None]:
    """Set up the engine that the options ask for, as long as the block lasts.

    With `address`, dask uses a running scheduler; with `workers`, a local cluster of so many
    processes; with neither, threads of this process.
    """
    if workers is None and address is None:
        chosen = {} if threads is None else {"num_workers": threads}
        with dask.config.set({"scheduler": "threads", **chosen}):
            yield
        return
    from distributed import LocalCluster

    with contextlib.ExitStack() as stack:
        if address is not None:
            from shardwrite.slurm.inside import connect

            client = stack.enter_context(connect(address))
            stack.enter_context(_telling_of_loss(client))
        else:
            from shardwrite.engines.cluster import new_client

            stack.enter_context(configured_workers())
            cluster = LocalCluster(
                n_workers=workers,
                threads_per_worker=threads or 1,
                processes=True,
                dashboard_address=None,
                memory_limit=memory_limit_nbytes() // (workers or 1),
                local_directory=scratch_directory(),
            )
            stack.enter_context(new_client(stack.enter_context(cluster)))
        yield


def engine_of(options: dict[str, Any]) -> contextlib.AbstractContextManager[None]:
    """The engine that a command's options ask for, which are removed from `options`."""
    return engine(*(options.pop(name) for name in ENGINE_NAMES))


@contextlib.contextmanager
def _telling_of_loss(client: Any) -> Iterator[None]:
    """Raise `ClusterLostError` if anything fails because the connection to the scheduler was lost.

    This includes dask's own calls in a user's program.
    """
    try:
        yield
    except (ShardwriteError, Stopped):
        raise
    except Exception as error:
        if client.status == "running":
            raise
        raise ClusterLostError(
            "the connection to dask's scheduler was lost; run the same again to go on"
        ) from error


@contextlib.contextmanager
def requeueing(limit: int | None) -> Iterator[None]:
    """Requeue the job if the block is stopped or loses its cluster, at most `limit` times.

    Nothing is requeued if `limit` is None, if no shard was committed in the block, or if the work
    was cancelled. A job that waited for workers in vain is requeued even without new shards. The
    error is raised again, with a note that says what happened.
    """
    before = n_committed()
    try:
        yield
    except (IncompleteError, Stopped, ClusterError, ClusterLostError) as error:
        if isinstance(error, RunCancelledError):  # the work stays cancelled
            raise
        if limit is not None:
            # It waits for its turn in the queue, which is no fault of the plan.
            is_waiting = isinstance(error, ClusterError)
            error.add_note(_requeued(limit, is_waiting or n_committed() > before))
        raise


def _requeued(limit: int, is_worth_it: bool) -> str:
    """Requeue the job if that is worth it, and return a text that says what happened."""
    if not is_worth_it:
        return (
            "not one shard was finished since the start, so the job was not requeued: "
            "give it more time"
        )
    from shardwrite.slurm.client import requeue

    try:
        return requeue(limit)
    except SubmitError as refusal:
        return f"{refusal}; submit it again to go on"


# ---- A bar while shards are looked at


@contextlib.contextmanager
def looking_at(opened: Opened, *, quiet: bool) -> Iterator[Callable[[int], None] | None]:
    """Show how many shards of an array have been looked at, if standard error is a terminal.

    The block gets a function that takes the number of further shards, or None.
    """
    if quiet:
        yield None
        return
    with bar_in_terminal("checking", opened.array.metadata.grid.n_shards) as advance:
        yield advance

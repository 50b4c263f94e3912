"""Writing an array in parts, each by a process that knows of no scheduler: job arrays, `srun`.

One call begins, one a part writes, one looks at everything and publishes. The plan is made once, by whoever begins, and lies beside
the array; the parts are a pure function of it and of their number, whatever the machines that write them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import shardwrite._dask as dask
from shardwrite.engines import local_threads
from shardwrite.errors import IncompleteError, RunEndedError, SpecError
from shardwrite.journal import RunDirectory, read_receipt, tidied_run, tidy
from shardwrite.plan import Plan
from shardwrite.runs.array_plan import identity_of, memory_limit_of, resources_of
from shardwrite.runs.begun import plan_begun
from shardwrite.runs.execute import execute_part, finish_parts, prepare_jobs
from shardwrite.runs.job import Job, Options, options_for_new
from shardwrite.runs.progress import reporting
from shardwrite.runs.result import WriteResult, result_from_receipt
from shardwrite.target import Target, kind_of, resolve_target
from shardwrite.write.commit import GroupReport

__all__ = ["finalize", "prepare", "write_part"]


def prepare(
    x: dask.array.Array,
    store: Any,
    plan: Plan,
    *,
    name: str | None = None,
    mode: str = "w-",
    durability: str = "full",
    restart: bool = False,
    stripe_count: int | None = None,
) -> None:
    """Begin a run whose parts are written apart: once, before any part.

    Parameters
    ----------
    x : dask.array.Array
        The source.
    store, name
        See :func:`to_sharded_zarr`.
    plan : Plan
        From :func:`plan`.
    mode, durability, restart
        See :func:`to_sharded_zarr`; they hold for all parts.
    stripe_count : int, optional
        On Lustre, over how many of its targets each shard is spread: 1 for shards below a gigabyte or so. The directory's own by
        default; elsewhere it means nothing.

    Raises
    ------
    StoreError
        Also where Lustre's ``lfs`` is not here, or refuses.
    """
    if stripe_count is not None and (isinstance(stripe_count, bool) or stripe_count < 1):
        raise SpecError(
            "not a number of targets",
            field="stripe_count",
            value=stripe_count,
            remedy="give 1 or more, or None",
        )
    with local_threads() as engine:
        options = options_for_new(mode=mode, durability=durability, restart=restart)
        prepare_jobs([Job(x, plan, resolve_target(store, name), options)], engine, stripe_count)


def write_part(
    x: dask.array.Array,
    store: Any,
    index: int,
    count: int,
    *,
    name: str | None = None,
    source_id: str | None = None,
    memory_limit: int | str | None = None,
    progress: bool | Callable[[GroupReport], None] = False,
) -> WriteResult:
    """Write part `index` of `count` with the threads of this process and no scheduler; for job arrays and `srun`.

    Parameters
    ----------
    x : dask.array.Array
        The source.
    store, name
        See :func:`to_sharded_zarr`.
    index, count : int
        Parts are counted from 0, and are about equal in bytes.
    source_id : str, optional
        As it was given to :func:`plan`.
    memory_limit : int or str, optional
        Bytes that this process may use; by default what the job, the control group or the machine leaves it.
    progress
        See :func:`to_sharded_zarr`.

    Returns
    -------
    WriteResult
        Of this part; of the whole array if that was published before.

    Raises
    ------
    IncompleteError
        If nothing was begun there, or the process was asked to stop.
    PlanError
        If the plan does not fit the memory of this process.

    Examples
    --------
    >>> import dask.array as da, shardwrite, tempfile
    >>> x = da.arange(1000, chunks=300); path = tempfile.mkdtemp() + "/x.zarr"
    >>> shardwrite.prepare(x, path, shardwrite.plan(x, shards=100, chunks=50))
    >>> parts = [shardwrite.write_part(x, path, i, 3) for i in range(3)]
    >>> shardwrite.finalize(path).n_shards
    10
    """
    target, identity = resolve_target(store, name), identity_of(x, source_id)
    with local_threads() as engine:
        limit = memory_limit_of(memory_limit)

        def write(run: RunDirectory) -> WriteResult:
            plan = plan_begun(run, resources_of(engine, limit), x, identity)
            part = plan.part(index, count)
            plan.check_fits()
            with reporting(progress, part.raw_nbytes) as on_report:
                return execute_part(
                    Job(x, plan, target, _options(run)), run, part, engine, on_report
                )

        return _working_on(target, write, identity)


def finalize(store: Any, *, name: str | None = None, n_parts: int | None = None) -> WriteResult:
    """Look at the index of every shard, sweep what dead processes have left, and publish the array if it is whole.

    Parameters
    ----------
    store, name
        See :func:`to_sharded_zarr`.
    n_parts : int, optional
        The number of parts, so that the error can name those that are to be written again.

    Raises
    ------
    IncompleteError
        With the shards that are missing or damaged, and the `parts` that they belong to.
    """
    target = resolve_target(store, name)
    if n_parts is not None and n_parts < 1:
        raise SpecError(
            "there is at least one part",
            field="n_parts",
            value=n_parts,
            remedy="give their number, or None",
        )
    with local_threads() as engine:

        def finish(run: RunDirectory) -> WriteResult:
            plan = plan_begun(run, resources_of(engine))
            return finish_parts(Job(None, plan, target, _options(run)), run, engine, n_parts)

        return _working_on(target, finish)


def _options(run: RunDirectory) -> Options:
    """How the run goes on: as it was begun."""
    return Options(mode=run.facts["mode"], durability=run.facts["durability"])


def _working_on(
    target: Target, work: Callable[[RunDirectory], WriteResult], identity: str | None = None
) -> WriteResult:
    """The result of work on the run that stands there; of the run itself where it has ended, and was of this source."""
    tidy(target)
    run = tidied_run(target)
    ended: RunEndedError | None = None
    if run is not None and run.makes_array:
        try:
            return work(run)
        except RunEndedError as error:
            ended = error
    receipt = read_receipt(target) if kind_of(target.path) == "array" else None
    is_ours = receipt is not None and identity in (None, receipt.identity.get("source"))
    result = (
        result_from_receipt(receipt.result, str(target.path))
        if receipt is not None and is_ours
        else None
    )
    if result is not None:
        return result
    if ended is not None:
        raise ended
    remedy = "call prepare first (shardwrite init)"
    raise IncompleteError(
        f"nothing was begun for {target.path}; {remedy}", missing=[str(target.run_path)]
    )

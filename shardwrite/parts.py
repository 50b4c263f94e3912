"""Writing an array in parts, each by a process that knows of no scheduler: job arrays, `srun`.

Every rank makes the same plan; the parts are a pure function of it. One call begins, one a part writes, one publishes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array

from shardwrite.commit import GroupReport
from shardwrite.engines import local_threads
from shardwrite.job import Job, Options, options_for_new
from shardwrite.plan import Part, Plan
from shardwrite.progress import reporting
from shardwrite.result import WriteResult
from shardwrite.run import execute_part, finish_parts, prepare_jobs
from shardwrite.target import resolve_target

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
        See :func:`to_sharded_zarr`.
    """
    with local_threads() as engine:
        options = options_for_new(mode=mode, durability=durability, restart=restart)
        prepare_jobs([Job(x, plan, resolve_target(store, name), options)], engine)


def write_part(
    x: dask.array.Array,
    store: Any,
    part: Part,
    *,
    name: str | None = None,
    durability: str = "full",
    progress: bool | Callable[[GroupReport], None] = False,
) -> WriteResult:
    """Write part i of n with the threads of this process and no scheduler; for job arrays and `srun`.

    Parameters
    ----------
    x : dask.array.Array
        The source.
    store, name
        See :func:`to_sharded_zarr`.
    part : Part
        From ``plan.part(i, n)``; every rank makes the same plan.
    durability, progress
        See :func:`to_sharded_zarr`.

    Returns
    -------
    WriteResult
        Of this part.

    Examples
    --------
    >>> import dask.array as da, shardwrite, tempfile
    >>> x = da.arange(1000, chunks=300); path = tempfile.mkdtemp() + "/x.zarr"
    >>> p = shardwrite.plan(x, shards=100, chunks=50)
    >>> shardwrite.prepare(x, path, p)
    >>> parts = [shardwrite.write_part(x, path, p.part(i, 3)) for i in range(3)]
    >>> shardwrite.finalize(path, p).n_shards
    10
    """
    with local_threads() as engine:
        job = Job(x, part.plan, resolve_target(store, name), Options(durability=durability))
        with reporting(progress, part.raw_nbytes) as on_report:
            return execute_part(job, part, engine, on_report)


def finalize(store: Any, plan: Plan, *, name: str | None = None, durability: str = "full") -> WriteResult:
    """Publish an array whose parts are all written.

    Parameters
    ----------
    store, name, durability
        See :func:`to_sharded_zarr`.
    plan : Plan
        The plan of the parts.

    Raises
    ------
    IncompleteError
        Naming the shards that are missing.
    """
    with local_threads() as engine:
        return finish_parts(Job(None, plan, resolve_target(store, name), Options(durability=durability)), engine)

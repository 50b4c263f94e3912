"""What a run has stored, as a dask array with the chunks of its source."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from dask.base import tokenize
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import Task, TaskRef

import shardwrite._dask as dask
from shardwrite.grid import Box, Shape, boundaries
from shardwrite.place.base import Place
from shardwrite.read.array import as_dask_array, open_at
from shardwrite.runs.job import Job


def stored_array(
    job: Job, like: dask.array.Array, after: Delayed | None = None
) -> dask.array.Array:
    """Array that reads what a job has stored.

    - `after`: the rest of the run, if it has not ended. The array is then read after it.
    """
    place, region = job.target.place, job.plan.array_region
    start = (0,) * like.ndim if region is None else region.start
    if after is None:
        return _open(place, start, like)
    edges = [
        [a + edge for edge in boundaries(sizes)]
        for a, sizes in zip(start, like.chunks, strict=True)
    ]
    done = TaskRef(after.key)

    def read(key: Any) -> Task:
        spans = [e[i : i + 2] for e, i in zip(edges, key[1:], strict=True)]
        box = Box(tuple(a for a, _ in spans), tuple(b for _, b in spans))
        return Task(key, _read, place, box, done)

    token = tokenize(after.key, str(job.target.run_path), start, like.chunks)
    return _array(f"shardwrite-stored-{token}", like, job.plan.metadata.dtype, read, after)


def _open(place: Place, start: Shape, like: dask.array.Array) -> dask.array.Array:
    """A region of the array at a place, with the chunks of a source."""
    view = open_at(place)
    stop = tuple(a + n for a, n in zip(start, like.shape, strict=True))
    chunks = tuple(
        (*([a] if a else []), *sizes, *([n - b] if b < n else []))
        for a, b, n, sizes in zip(start, stop, view.shape, like.chunks, strict=True)
    )
    whole = as_dask_array(view, chunks)
    return whole if view.shape == like.shape else whole[Box(start, stop).slices[: view.ndim]]


def empty_after(after: Delayed, like: dask.array.Array) -> dask.array.Array:
    """Array with the chunks of a source, whose blocks are empty and come after a run.

    `dask.array.store` returns such an array for ``compute=False``. To compute it is to write.
    """

    def nothing(key: Any) -> Task:
        return Task(key, _nothing, like.ndim, like.dtype, TaskRef(after.key))

    name = f"shardwrite-after-{tokenize(after.key, like.chunks)}"
    return _array(name, like, like.dtype, nothing, after)


def _array(
    name: str,
    like: dask.array.Array,
    dtype: np.dtype[Any],
    task: Callable[[Any], Task],
    after: Delayed,
) -> dask.array.Array:
    """Array with the chunks of a source, and a task for each."""
    layer: Any = {
        (name, *index): task((name, *index))
        for index in itertools.product(*(range(n) for n in like.numblocks))
    }
    needs: Any = [after]
    graph = HighLevelGraph.from_collections(name, layer, dependencies=needs)
    meta = np.empty((0,) * like.ndim, dtype)
    array: dask.array.Array = dask.array.Array(graph, name, like.chunks, meta=meta)
    return array


def _read(place: Place, box: Box, done: Any) -> npt.NDArray[Any]:  # noqa: ARG001 (waits for it)
    """Elements of a box of the array at a place."""
    return open_at(place).read_box(box)


def _nothing(ndim: int, dtype: np.dtype[Any], done: Any) -> npt.NDArray[Any]:  # noqa: ARG001
    """A block without elements."""
    return np.empty((0,) * ndim, dtype)

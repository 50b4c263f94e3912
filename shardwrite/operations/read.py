"""A sharded array as a dask array."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY
from typing import Any

import numpy as np
import numpy.typing as npt

import shardwrite._dask as dask
from shardwrite.engines import active_engine
from shardwrite.entry.public import public, taking
from shardwrite.errors import SpecError
from shardwrite.format.manifest import listed_chunks, origin_in
from shardwrite.grid import ShardGrid, ceil_div
from shardwrite.options import ExistingArguments, arguments, option
from shardwrite.place.base import at_url, named
from shardwrite.place.target import document_of, resolve_place
from shardwrite.read.array import ShardedArray, as_dask_array, open_sharded
from shardwrite.read.inspection import stored_coords
from shardwrite.read.present import PresentChunks


@arguments
class ReadArguments(ExistingArguments):
    """Arguments of `from_sharded_zarr`."""

    component: str | None = option(None, "Another word for `name`, as in `dask.array.from_zarr`.")
    storage_options: Mapping[str, Any] | None = option(
        None, "Options for a URL; see :func:`to_sharded_zarr`.", kind="mapping"
    )
    chunks: Any = option(
        None,
        """Chunks of the dask array, in any form that dask accepts; the shape of a shard by default.
        `"shard"` and `"chunk"` stand for the sizes of shards and inner chunks, of all axes or of
        some: `("chunk", -1, -1)`. A size in bytes, such as `"64 MiB"`, makes chunks of whole shards
        or parts of them. A mapping has names or numbers of axes: `{"time": "64 MiB", ...: -1}`.""",
        kind="int, str, tuple or mapping",
    )
    _: KW_ONLY
    dask_name: str | None = option(
        None,
        """Name of the dask array, which is `name` in `dask.array.from_zarr`. By default it is
        derived from the array and the chunks.""",
    )
    inline_array: bool = option(
        False,
        """Put the reader into each task, instead of a task of its own; see
        `dask.array.from_array`.""",
    )


@taking(ReadArguments)
def from_sharded_zarr(call: ReadArguments) -> dask.array.Array:
    """Open a sharded array as a dask array with one chunk for each shard, or with other chunks.

    Returns
    -------
    dask.array.Array
        The array. A slice of it reads only the inner chunks that the slice needs. Shards without
        a file read as the fill value.

    Raises
    ------
    SpecError
        If there is no sharded array, it is not published yet, `chunks` does not fit, or the dask
        array would have too many chunks.

    Examples
    --------
    >>> import dask.array as da, shardwrite, tempfile
    >>> path = tempfile.mkdtemp() + "/x.zarr"
    >>> _ = da.arange(100, chunks=10).to_sharded_zarr(path, shards=40, chunks=8)
    >>> y = shardwrite.from_sharded_zarr(path)
    >>> y.chunks, int(y[41:43].sum().compute())
    (((40, 40, 20),), 83)
    """
    store = at_url(call.store, call.storage_options, is_read=True)
    view = open_sharded(store, named(call.name, call.component))
    return as_dask_array(
        view, call.chunks, dask_name=call.dask_name, inline_array=call.inline_array
    )


# ---- Which inner chunks of an array hold data


@public
def present(
    array: Any,
    *,
    name: str | None = None,
    listed: bool = False,
    on_shards: Callable[[int], None] | None = None,
) -> PresentChunks:
    """List the inner chunks of an array that hold data, from the indexes of its shards.

    No chunk is read. An array without shards is asked for the object of each chunk. A chunk that
    was stored although it has only the fill value is listed.

    Parameters
    ----------
    array : str, path, store or node of zarr-python, or what :func:`open_sharded` returns
        The array.
    name : str, optional
        Path of the array in the store; not for what :func:`open_sharded` returns.
    listed : bool
        Read the list that the array keeps in its attribute ``"nonempty_chunks"``, and no index.
        While a run on the array is open or interrupted, it may also name chunks that are empty.
    on_shards : callable, optional
        Function that is called with the number of shards that were read since its last call.

    Returns
    -------
    PresentChunks
        Their positions in the grid of inner chunks, and their keys.

    Raises
    ------
    SpecError
        If there is no array, or its attribute ``"chunk_grid_origin"`` does not hold one integer for
        each axis. Also if the list was asked for, and the array keeps none.
    CorruptShardError
        If an index is not valid.
    StoreError
        If the storage refuses.

    Examples
    --------
    >>> import dask.array as da, shardwrite, tempfile
    >>> path = tempfile.mkdtemp() + "/x.zarr"; x = da.arange(100, chunks=10) // 80
    >>> _ = x.to_sharded_zarr(path, shards=40, chunks=8)
    >>> found = shardwrite.present(path)
    >>> found.coords.tolist(), found.keys
    ([[10], [11], [12]], ['10', '11', '12'])
    """
    is_open = isinstance(array, ShardedArray)
    if is_open and name:
        remedy = "leave it out, or give the store"
        raise SpecError("an open array has none inside it", field="name", value=name, remedy=remedy)
    opened = array if is_open else open_sharded(array, name)
    metadata = opened.metadata
    origin = origin_in(metadata.document, metadata.grid.ndim)
    if listed:
        coords = _listed(array, name, metadata.grid)
    else:
        coords = stored_coords(active_engine(), opened, on_shards)
    return PresentChunks(coords, metadata.grid.chunks, origin)


def _listed(array: Any, name: str | None, grid: ShardGrid) -> npt.NDArray[np.int64]:
    """Positions of the inner chunks that the manifest of an array lists, inside the array."""
    if isinstance(array, ShardedArray):
        raise SpecError(
            "an array that is open does not tell its list",
            field="array",
            value=repr(array),
            remedy="give its path or store",
        )
    coords = listed_chunks(document_of(resolve_place(array, name, is_read=True)))
    counts = [ceil_div(n, c) for n, c in zip(grid.shape, grid.chunks, strict=True)]
    is_inside = ((coords >= 0) & (coords < np.array(counts, dtype=np.int64))).all(axis=1)
    return coords[is_inside]

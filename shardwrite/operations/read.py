"""A sharded array as a dask array."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import shardwrite._dask as dask
from shardwrite.entry.public import public
from shardwrite.place.url import at_url, named
from shardwrite.read.array import as_dask_array, open_sharded


@public
def from_sharded_zarr(
    store: Any,
    component: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    chunks: Any = None,
    *,
    name: str | None = None,
    dask_name: str | None = None,
    inline_array: bool = False,
) -> dask.array.Array:
    """Open a sharded array as a dask array with one chunk for each shard.

    Parameters
    ----------
    store : str, path, or store or node of zarr-python
        A directory; a URL such as ``s3://bucket/x.zarr``; a store of zarr-python or obstore; or a
        group or array of zarr-python.
    component : str, optional
        Another word for `name`, as in `dask.array.from_zarr`.
    storage_options : mapping, optional
        Options for a URL; see :func:`to_sharded_zarr`.
    chunks : optional
        Chunks of the dask array, in any form that dask accepts; the shape of a shard by default.
    name : str, optional
        Path of the array in the store or group.
    dask_name : str, optional
        Name of the dask array, which is `name` in `dask.array.from_zarr`. By default it is derived
        from the array and the chunks.
    inline_array : bool
        Put the reader into each task, instead of a task of its own; see `dask.array.from_array`.

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
    view = open_sharded(at_url(store, storage_options, is_read=True), named(name, component))
    return as_dask_array(view, chunks, dask_name=dask_name, inline_array=inline_array)

"""The way back: a sharded array as a dask array of whole shards.

zarr's and xarray's readers make a task of every inner chunk; here a task is a shard, or what is wanted of one. Each
shard is opened once: read whole where most of it is wanted, else its index and the ranges of the inner chunks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from dask.base import tokenize

import shardwrite._dask as dask
from shardwrite.encode.reader import Loaded, ShardReader, decode_object
from shardwrite.errors import SpecError
from shardwrite.format.metadata import ArrayMetadata, parse_metadata
from shardwrite.grid import Box, Shape, ceil_div, unravel
from shardwrite.plan.limits import check_chunks
from shardwrite.plan.sizes import explicit_sizes
from shardwrite.stores import ObjectReader, PosixStore, Store, is_file, parse_json, read_file
from shardwrite.target import resolve_target

__all__ = ["ShardedArray", "from_sharded_zarr", "open_sharded"]

_SMALL_NBYTES = 2**20
_WHOLE_SHARE = 0.5  # of a shard's inner chunks: from here on one read beats many


class ShardedArray:
    """A sharded array that reads what is asked for; picklable.

    Parameters
    ----------
    metadata : ArrayMetadata
        Its metadata.
    store : Store
        Rooted at the array.
    """

    def __init__(self, metadata: ArrayMetadata, store: Store) -> None:
        self.metadata = metadata
        self.store = store

    @property
    def shape(self) -> Shape:
        """Of the array, in elements."""
        return self.metadata.grid.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the array."""
        return self.metadata.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __dask_tokenize__(self) -> Any:
        return self.metadata.text, str(getattr(self.store, "root", self.store))

    def __getitem__(self, key: Any) -> npt.NDArray[Any]:
        """A region, or what numpy's indices select of one; each axis is indexed by itself.

        Parameters
        ----------
        key : tuple of slice, int or array of int
            One for each axis, as dask's fused slices give them; what is read is the box around it.

        Raises
        ------
        CorruptShardError
            If a shard's bytes cannot be right.
        """
        indices = _one_for_each_axis(key, self.ndim)
        bounds, local = (
            zip(*map(_bounds, indices, self.shape), strict=True) if self.ndim else ((), ())
        )
        found = self.read(Box(tuple(a for a, _ in bounds), tuple(b for _, b in bounds)))
        for axis in reversed(
            range(self.ndim)
        ):  # the last first, since an integer takes its axis away
            found = found[(*[slice(None)] * axis, local[axis])]
        return found

    def read(self, region: Box) -> npt.NDArray[Any]:
        """The elements of a box inside the array; each shard that it touches is opened once."""
        out = np.full(region.shape, self.metadata.fill_value, dtype=self.dtype)
        for index in self.metadata.grid.shards_in(region):
            shard = self.metadata.grid.shard_box(index)
            wanted = shard.intersect(region)
            reader = self.store.open(self.metadata.shard_key(index))
            if reader is not None:
                with reader:
                    self._read(reader, index, wanted, out[wanted.shift(region.start).slices])
        return out

    def _read(self, reader: ObjectReader, index: Shape, wanted: Box, out: npt.NDArray[Any]) -> None:
        """Fill `out` with what is wanted of one shard."""
        metadata, grid = self.metadata, self.metadata.grid
        key = metadata.shard_key(index)
        inside = wanted.shift(grid.shard_box(index).start)
        first = tuple(a // c for a, c in zip(inside.start, grid.chunks, strict=True))
        last = tuple(ceil_div(b, c) for b, c in zip(inside.stop, grid.chunks, strict=True))
        cells = Box(first, last)
        n_inside = math.prod(grid.chunk_counts_in(grid.shard_box(index).intersect(grid.whole)))
        whole = cells.size >= _WHOLE_SHARE * n_inside and reader.nbytes <= self._most_at_once
        if any(metadata.codecs_around):
            out[...] = decode_object(metadata, key, reader)[inside.slices]
            return
        found = ShardReader(metadata, key, Loaded(reader) if whole else reader)
        ranks = np.arange(grid.n_chunks_per_shard).reshape(grid.chunks_per_shard)[cells.slices]
        for rank in ranks.ravel().tolist():
            chunk = found.chunk(rank)
            if chunk is not None:
                self._place(chunk, rank, inside, out)

    @property
    def _most_at_once(self) -> int:
        """Bytes of a shard that is read as a whole: more are read inner chunk by inner chunk, as far as its index leads to them."""
        grid, metadata = self.metadata.grid, self.metadata
        decoded = grid.n_chunks_per_shard * math.prod(grid.chunks) * metadata.itemsize
        return 2 * decoded + 2 * metadata.index_codec.encoded_nbytes + _SMALL_NBYTES

    def _place(
        self, chunk: npt.NDArray[Any], rank: int, inside: Box, out: npt.NDArray[Any]
    ) -> None:
        """Copy into `out`, which is what lies `inside` the shard, what it takes of an inner chunk; slices end where arrays do."""
        grid = self.metadata.grid
        position = unravel(rank, grid.chunks_per_shard)
        begins = [i * c - a for i, c, a in zip(position, grid.chunks, inside.start, strict=True)]
        here: Any = [slice(max(0, a), a + c) for a, c in zip(begins, grid.chunks, strict=True)]
        there: Any = [slice(max(0, -a), n - a) for a, n in zip(begins, out.shape, strict=True)]
        out[(*here, ...)] = chunk[(*there, ...)]


def _one_for_each_axis(key: Any, ndim: int) -> list[Any]:
    """Indices of all axes; an axis that is not named is taken as a whole."""
    items = list(key) if isinstance(key, tuple) else [key]
    n_ellipses = sum(item is Ellipsis for item in items)
    n_left = ndim - len(items) + n_ellipses
    if n_ellipses > 1 or n_left < 0:
        raise IndexError(f"{len(items)} indices for an array of {ndim} axes: {key!r}")
    at = next((i for i, item in enumerate(items) if item is Ellipsis), len(items))
    return [*items[:at], *[slice(None)] * n_left, *items[at + 1 :]]


def _bounds(item: Any, n: int) -> tuple[tuple[int, int], Any]:
    """The interval that an index of an axis of `n` elements needs, and the index into it."""
    if isinstance(item, slice):
        start, stop, step = item.indices(n)
        numbers = range(start, stop, step)
        if step == 1 or not numbers:
            return (start, max(start, stop)), slice(None)
        low, high = min(numbers[0], numbers[-1]), max(numbers[0], numbers[-1])
        end = numbers[-1] - low + (1 if step > 0 else -1)
        return (low, high + 1), slice(numbers[0] - low, None if end < 0 else end, step)
    wanted = np.asarray(item)
    if wanted.size == 0:
        return (0, 0), wanted.astype(np.int64)
    if wanted.dtype == bool:
        if wanted.shape != (n,):
            raise IndexError(f"a mask of shape {wanted.shape} for an axis of {n} elements")
        wanted = np.flatnonzero(wanted)
    elif wanted.dtype.kind not in "iu":
        raise IndexError(f"{item!r} is no integer, slice, or array of integers or booleans")
    elif (wanted < -n).any() or (wanted >= n).any():
        raise IndexError(f"{item!r} is out of bounds for an axis of {n} elements")
    wanted = np.where(wanted < 0, wanted + n, wanted)
    if wanted.size == 0:
        return (0, 0), wanted.astype(np.int64)
    low = int(wanted.min())
    return (low, int(wanted.max()) + 1), int(wanted) - low if wanted.ndim == 0 else wanted - low


def open_sharded(store: Any, name: str | None = None) -> ShardedArray:
    """Open a sharded array for reading.

    Parameters
    ----------
    store : str or path
        A directory or ``file://`` URL.
    name : str, optional
        Path of the array in it.

    Raises
    ------
    SpecError
        If no sharded array is there.
    """
    target = resolve_target(store, name)
    document = Path(target.path) / "zarr.json"
    if not is_file(document):
        why, remedy = "there is no zarr.json", "give the path of a sharded Zarr v3 array"
        if is_file(target.run_path / "plan.json"):
            why = "a run that has not ended is writing it"
            remedy = "make the same call again to finish it, or shardwrite finalize, if all of its parts are written"
        raise SpecError(f"no array: {why}", field="store", value=str(target.path), remedy=remedy)
    try:
        data = read_file(document) or b""
        parse_json(data)
        text = data.decode()
    except ValueError as error:
        raise SpecError(
            f"zarr.json is torn ({error})",
            field="store",
            value=str(target.path),
            remedy="restore it, or remove the array and write that again",
        ) from error
    return ShardedArray(parse_metadata(text), PosixStore(target.path))


def from_sharded_zarr(
    store: Any, *, name: str | None = None, chunks: int | Sequence[int] | None = None
) -> dask.array.Array:
    """A sharded array as a dask array, chunked by shard.

    Parameters
    ----------
    store : str or path
        A directory or ``file://`` URL.
    name : str, optional
        Path of the array in it.
    chunks : int or sequence of int, optional
        Other chunks than the shards, in elements.

    Returns
    -------
    dask.array.Array
        Slicing it before it is computed reads only the inner chunks that the slice needs.

    Raises
    ------
    SpecError
        If no sharded array is there.

    Examples
    --------
    >>> import dask.array as da, shardwrite, tempfile
    >>> path = tempfile.mkdtemp() + "/x.zarr"
    >>> _ = da.arange(100, chunks=10).to_sharded_zarr(path, shards=40, chunks=8)
    >>> y = shardwrite.from_sharded_zarr(path)
    >>> y.chunks, int(y[41:43].sum().compute())
    (((40, 40, 20),), 83)
    """
    view = open_sharded(store, name)
    sizes = view.metadata.grid.shards
    if chunks is not None:
        given = explicit_sizes(chunks, view.ndim, "chunks")
        if given is None:
            remedy = f"give {view.ndim} sizes, or one for all axes"
            raise SpecError("not sizes in elements", field="chunks", value=chunks, remedy=remedy)
        sizes = given
    sizes = tuple(max(1, min(size, n)) for size, n in zip(sizes, view.shape, strict=True))
    check_chunks(view.shape, sizes)
    array: dask.array.Array = dask.array.from_array(
        view,
        chunks=sizes,
        name=f"sharded-zarr-{tokenize(view, sizes)}",
        asarray=True,
        meta=np.empty((0,) * view.ndim, dtype=view.dtype),
    )
    return array

"""Readers of sharded arrays, as numpy arrays or as a dask array whose chunks are whole shards.

The readers of zarr and xarray make one task for each inner chunk. Here a task reads one shard, or
the part of it that is needed, and opens it once. If at least half of the shard's inner chunks are
needed, it is read as a whole, unless it is too large; else only its index and the ranges of these
inner chunks are read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from dask.base import tokenize

import shardwrite._dask as dask
from shardwrite.encode.reader import Loaded, ShardReader, decode_object
from shardwrite.errors import SpecError
from shardwrite.format.metadata import ArrayMetadata, parse_metadata
from shardwrite.format.node import DOCUMENT
from shardwrite.grid import Box, Shape, ceil_div, unravel
from shardwrite.place.base import Place
from shardwrite.place.directory import Directory
from shardwrite.place.target import resolve_place
from shardwrite.plan.limits import check_chunks
from shardwrite.plan.sizes import explicit_sizes
from shardwrite.stores import ObjectReader, Store, is_file, parse_json

__all__ = ["ShardedArray", "from_sharded_zarr", "open_at", "open_sharded"]

_SMALL_NBYTES = 2**20
_WHOLE_SHARE = 0.5  # share of a shard's inner chunks from which one read is faster than many


class ShardedArray:
    """A sharded array that is open for reading. It can be indexed and pickled.

    Parameters
    ----------
    metadata : ArrayMetadata
        Metadata of the array.
    store : Store
        Store whose root is the array.
    """

    def __init__(self, metadata: ArrayMetadata, store: Store) -> None:
        self.metadata = metadata
        self.store = store

    @property
    def shape(self) -> Shape:
        """Shape of the array, in elements."""
        return self.metadata.grid.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of the array."""
        return self.metadata.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def __len__(self) -> int:
        """Extent of the first axis."""
        if not self.shape:
            raise TypeError("an array without axes has no length")
        return self.shape[0]

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        """Read the whole array into memory, for `numpy.asarray`.

        Raises
        ------
        ValueError
            If `copy` is False, since values that are read are a copy.
        """
        if copy is False:
            raise ValueError("reading an array makes a copy; leave out copy=False")
        return np.asarray(self[...], dtype=dtype)

    def __dask_tokenize__(self) -> Any:
        return self.metadata.text, self.store.token

    def __getitem__(self, key: Any) -> npt.NDArray[Any]:
        """Elements that an index selects. Each axis is indexed independently of the others.

        Parameters
        ----------
        key : tuple of slice, int or array of int
            One index for each axis, as dask passes them. The smallest box that holds all selected
            elements is read.

        Raises
        ------
        CorruptShardError
            If a shard is damaged.
        """
        indices = _one_for_each_axis(key, self.ndim)
        bounds, local = (
            zip(*map(_bounds, indices, self.shape), strict=True) if self.ndim else ((), ())
        )
        found = self.read(Box(tuple(a for a, _ in bounds), tuple(b for _, b in bounds)))
        for axis in reversed(range(self.ndim)):  # last axis first: an integer removes its axis
            found = found[(*[slice(None)] * axis, local[axis])]
        return found

    def read(self, region: Box) -> npt.NDArray[Any]:
        """Elements of a box inside the array. Each shard that the box touches is opened once.

        Raises
        ------
        CorruptShardError
            If a shard is damaged.
        """
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
        """Copy the elements of one shard that lie in the box `wanted` into `out`."""
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
        for rank in ranks[~found.index.is_empty[ranks]].tolist():
            chunk = found.chunk(rank)
            if chunk is not None:
                self._place(chunk, rank, inside, out)

    @property
    def _most_at_once(self) -> int:
        """Size in bytes up to which a shard is read as a whole.

        From a larger one only the index and the inner chunks that it lists are read.
        """
        grid, metadata = self.metadata.grid, self.metadata
        decoded = grid.n_chunks_per_shard * math.prod(grid.chunks) * metadata.itemsize
        return 2 * decoded + 2 * metadata.index_codec.encoded_nbytes + _SMALL_NBYTES

    def _place(
        self, chunk: npt.NDArray[Any], rank: int, inside: Box, out: npt.NDArray[Any]
    ) -> None:
        """Copy the elements of an inner chunk that lie in the box `inside` of its shard into `out`.

        `out` has the shape of `inside`. Slices may reach past the ends of the arrays: numpy clips
        them.
        """
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
    """Smallest interval of an axis of `n` elements that holds an index, and the index inside it."""
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
    store : str, path, or store or node of zarr-python
        A directory or ``file://`` URL, any store of zarr-python, or one of its groups and arrays.
    name : str, optional
        Path of the array in the store or group.

    Returns
    -------
    ShardedArray
        The array, with `shape` and `dtype`. Indexing it with a tuple of one slice or integer for
        each axis reads the elements as a numpy array.

    Raises
    ------
    SpecError
        If there is no sharded array, or it is not published yet.
    """
    return open_at(resolve_place(store, name, is_read=True))


def open_at(place: Place) -> ShardedArray:
    """Open the array at a place for reading.

    Raises
    ------
    SpecError
        If there is no sharded array, or it is not published yet.
    """
    if not place.has(DOCUMENT):
        why, remedy = "there is no zarr.json", "give the path of a sharded Zarr v3 array"
        if isinstance(place, Directory) and is_file(place.beside / "plan.json"):
            why = "a run that has not ended is writing it"
            remedy = (
                "make the same call again to finish it, or shardwrite finalize, if all of its "
                "parts are written"
            )
        raise SpecError(f"no array: {why}", field="store", value=place.label, remedy=remedy)
    return ShardedArray(_parsed(place.read(DOCUMENT) or b"", place.label), place.store)


def _parsed(data: bytes, where: str) -> ArrayMetadata:
    """Metadata of an array from the bytes of its document."""
    try:
        parse_json(data)
        text = data.decode()
    except ValueError as error:
        raise SpecError(
            f"zarr.json is torn ({error})",
            field="store",
            value=where,
            remedy="restore it, or remove the array and write that again",
        ) from error
    return parse_metadata(text)


def from_sharded_zarr(
    store: Any, *, name: str | None = None, chunks: int | Sequence[int] | None = None
) -> dask.array.Array:
    """Open a sharded array as a dask array with one chunk for each shard.

    Parameters
    ----------
    store : str, path, or store or node of zarr-python
        A directory or ``file://`` URL, any store of zarr-python, or one of its groups and arrays.
    name : str, optional
        Path of the array in the store or group.
    chunks : int or sequence of int, optional
        Chunk shape of the dask array, in elements; the shape of a shard by default.

    Returns
    -------
    dask.array.Array
        The array. A slice of it reads only the inner chunks that the slice needs. Shards without
        a file read as the fill value.

    Raises
    ------
    SpecError
        If there is no sharded array, it is not published yet, or the dask array would have too
        many chunks.
    ValueError
        If `chunks` has not one size for each axis.

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

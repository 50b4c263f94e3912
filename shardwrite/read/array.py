"""Readers of sharded arrays, as numpy arrays or as a dask array whose chunks are whole shards.

The readers of zarr and xarray make one task for each inner chunk. Here a task reads one shard, or
the part of it that is needed, and opens it once. If at least half of the shard's inner chunks are
needed, it is read as a whole, unless it is too large. Otherwise, only its index and the ranges of
these inner chunks are read.
"""

from __future__ import annotations

import errno
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from dask.base import tokenize

import shardwrite._dask as dask
from shardwrite.config.table import READ_THREADS, SOURCE_CHUNKS, decide, value_of
from shardwrite.encode.reader import Loaded, ShardReader
from shardwrite.entry.public import public
from shardwrite.errors import SpecError, StoreError
from shardwrite.format.metadata import MOST, ArrayMetadata, parse_metadata
from shardwrite.format.node import DOCUMENT, kind_of_document
from shardwrite.grid import Box, Shape, ceil_div, ravel, unravel
from shardwrite.host.resources import n_cores
from shardwrite.host.threads import in_threads
from shardwrite.place.base import Place
from shardwrite.place.directory import Directory
from shardwrite.place.target import resolve_place
from shardwrite.plan.card import array_facts
from shardwrite.plan.options import explicit_sizes, parse_nbytes
from shardwrite.plan.partition import check_chunks
from shardwrite.plan.regions import index_of_each_axis
from shardwrite.read.stored_shard import Open, reading_twice
from shardwrite.results import card_of
from shardwrite.seams import Ref, all_of
from shardwrite.stores.base import ObjectReader, Store
from shardwrite.stores.looking import is_file, listed, parse_json

# ---- Chunks of dask arrays, from any form that dask accepts


def normalize(
    chunks: Any, shape: Shape, dtype: Any, previous: tuple[int | tuple[int, ...], ...] | None
) -> tuple[tuple[int, ...], ...]:
    """Chunk sizes along each axis, from any form that dask accepts."""
    full: tuple[tuple[int, ...], ...]
    if isinstance(chunks, Mapping) and not set(chunks) <= set(range(len(shape))):
        raise SpecError(
            "not the number of an axis",  # dask would leave it out
            field="chunks",
            value=chunks,
            remedy="name each axis by its number, from 0",
        )
    try:
        previous_chunks = (
            None
            if previous is None
            else dask.array.core.normalize_chunks(previous, shape=shape, dtype=dtype)
        )
        full = dask.array.core.normalize_chunks(
            chunks, shape=shape, dtype=dtype, previous_chunks=previous_chunks
        )
    except (ArithmeticError, TypeError, ValueError, NotImplementedError) as error:
        reason = "sizes are positive" if isinstance(error, ArithmeticError) else str(error)
        raise SpecError(
            f"these chunks do not fit the shape {shape}: {reason}",
            field="chunks",
            value=chunks,
            remedy='give one size, or one tuple of sizes, for each axis, or "auto"',
        ) from None
    return full


def bounded(chunks: Any, shape: Shape, dtype: Any, shards: Shape) -> tuple[tuple[int, ...], ...]:
    """Chunk sizes along each axis of a sharded array, at most as many as can be handled.

    - `chunks`: requested chunks: the shards if None, one size for all axes, or any form of dask.
    """
    least = tuple(max(1, min(size, n)) for size, n in zip(shards, shape, strict=True))
    if chunks is None:
        chunks = least
    if isinstance(chunks, int) and (isinstance(chunks, bool) or chunks != -1):
        chunks = explicit_sizes(chunks, len(shape), "chunks")
    if isinstance(chunks, tuple | list):
        sizes = [
            max(1, n) if size in (-1, None) else size
            for size, n in zip(chunks, shape, strict=False)
        ]
        if len(chunks) == len(shape) and not any(isinstance(size, tuple | str) for size in sizes):
            # Before dask makes a list of them all.
            whole = explicit_sizes(sizes, len(shape), "chunks") or ()
            chunks = tuple(min(size, max(1, n)) for size, n in zip(whole, shape, strict=True))
            check_chunks(shape, chunks)
    # Elements without a size are taken for bytes.
    counted = np.dtype("u1") if dtype.hasobject or not dtype.itemsize else dtype
    requested = chunks if isinstance(chunks, tuple | list) else [chunks]
    texts = [size for size in requested if isinstance(size, str)]
    for text in texts:
        check_chunks(shape, least)
        if text != "auto":
            n_elements = max(1, parse_nbytes(text, "chunks") // counted.itemsize)
            check_chunks((math.prod(shape),), (n_elements,))
    full = normalize(chunks, shape, counted, least if texts else None)
    check_chunks(shape, tuple(max(sizes, default=1) or 1 for sizes in full))
    return full


def merge_chunks(
    unit: Sequence[int],
    shape: Sequence[int],
    itemsize: int,
    *,
    target: int | None = None,
    order: str = "C",
) -> tuple[int, ...]:
    """Chunk shape of whole multiples of `unit`, grown along the fastest axis first.

    - `unit`: shape of the smallest piece that can be read without reading more of the file.
    - `target`: maximum size of a chunk, in bytes; by default ``shardwrite.source.chunk-size``. A
      larger `unit` is kept as it is.
    - `order`: whether the last or the first axis is the fastest.
    """
    target = value_of(SOURCE_CHUNKS) if target is None else target
    chunk = [max(1, min(u, n)) for u, n in zip(unit, shape, strict=True)]
    axes = range(len(chunk))
    for axis in reversed(axes) if order == "C" else axes:
        fit = target // max(1, math.prod(chunk) * itemsize)
        count = ceil_div(max(1, shape[axis]), chunk[axis])
        if fit < 1:
            break
        # chunks of similar size: of ten units, 5 + 5 balance the workers better than 9 + 1
        take = ceil_div(count, ceil_div(count, fit))
        chunk[axis] = max(1, min(take * chunk[axis], shape[axis]))
        if take < count:
            break
    return tuple(chunk)


def slabs(shape: Sequence[int], itemsize: int, order: str = "C") -> tuple[int, ...]:
    """Shape of contiguous slabs along the slowest axis of an array that is stored in one piece."""
    return merge_chunks((1,) * len(shape), shape, itemsize, order=order)


# ---- Readers


T = TypeVar("T")

_MEMBERS, _NAMED = 100, 5  # of a group: looked at, and told to a user who opens it as an array


_SMALL_NBYTES = 2**20

_MOST_BATCHES = 1024  # into which the shards of a region are divided for threads

_IN_FLIGHT = 8  # requests at a time, at least, where each goes over a network

_WHOLE_SHARE = 0.5  # share of a shard's inner chunks from which one read is faster than many


class ShardedArray:
    """A sharded array that is open for reading. It can be indexed and pickled.

    Wherever it is read, the settings of the process that has opened it hold. Where the main thread
    of a program indexes several shards, several threads read them. Others, such as tasks of dask,
    read alone, because more of them do so at a time.
    """

    def __init__(
        self,
        metadata: ArrayMetadata,
        store: Store,
        *,
        is_afresh: bool = False,
        is_alone: bool = False,
    ) -> None:
        self.metadata = metadata
        self.store = store
        self.is_afresh = is_afresh
        self.is_alone = is_alone
        self.decided = decide()

    def afresh(self) -> ShardedArray:
        """The array as one that is read past what this machine has kept of it."""
        return ShardedArray(self.metadata, self.store, is_afresh=True)

    def in_one_thread(self) -> ShardedArray:
        """The array as one that each caller reads alone, because others read beside it."""
        return ShardedArray(self.metadata, self.store, is_afresh=self.is_afresh, is_alone=True)

    def _reading(self, key: str, read: Callable[[Open], T]) -> T:
        """What a function reads of an object; once more if the bytes cannot be right."""
        if self.is_afresh:
            return read(self.store.open_again)
        return reading_twice(self.store, key, read)

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
        """Read the whole array into memory, for `numpy.asarray`."""
        if copy is False:
            raise ValueError("reading an array makes a copy; leave out copy=False")
        return np.asarray(self[...], dtype=dtype)

    def __repr__(self) -> str:
        grid = self.metadata.grid
        shards = f", shards {grid.shards}" if self.metadata.is_sharded else ""
        return f"<ShardedArray {grid.shape} {self.dtype}{shards}, inner chunks {grid.chunks}>"

    def _repr_html_(self) -> str:
        return card_of(array_facts(self.metadata))

    @property
    def ref(self) -> Ref | None:
        """How other processes open the array, if it lies in a directory of this machine."""
        root = self.store.local_root
        if root is None:
            return None
        path = os.path.abspath(os.path.join(root, getattr(self.store, "prefix", "")))
        return Ref("source", "zarr", {"path": path})

    def __dask_tokenize__(self) -> Any:
        return self.metadata.text, self.store.token

    def __getitem__(self, key: Any) -> npt.NDArray[Any]:
        """Elements that an index selects. Each axis is indexed independently of the others.

        - `key`: one index for each axis, as dask passes them. The smallest box that holds all
          selected elements is read.
        - Raises CorruptShardError if a shard is damaged.
        """
        indices = index_of_each_axis(key, self.ndim)
        bounds, local = (
            zip(*map(_bounds, indices, self.shape), strict=True) if self.ndim else ((), ())
        )
        region = Box(tuple(a for a, _ in bounds), tuple(b for _, b in bounds))
        elements = self._read_region(region, self._threads(region))
        for axis in reversed(range(self.ndim)):  # last axis first: an integer removes its axis
            elements = elements[(*[slice(None)] * axis, local[axis])]
        return elements

    def read(self, region: Box) -> npt.NDArray[Any]:
        """Elements of a box inside the array. Each shard that the box touches is opened once.

        - Raises CorruptShardError if a shard is damaged.
        """
        return self._read_region(region, 1)

    def _threads(self, region: Box) -> int | None:
        """Number of threads that read a region; None for the usual one."""
        is_distant = getattr(self.store, "is_remote", False)
        is_main = threading.current_thread() is threading.main_thread()
        if (
            self.is_alone
            or not is_main
            or not (is_distant or region.size * self.metadata.itemsize > _SMALL_NBYTES)
        ):
            return 1
        return value_of(READ_THREADS) or (max(n_cores(), _IN_FLIGHT) if is_distant else None)

    def _read_region(self, region: Box, threads: int | None) -> npt.NDArray[Any]:
        if region.size * self.metadata.itemsize > MOST:
            raise SpecError(
                f"holds more than {MOST:,} bytes",
                field="region",
                value=list(map(list, region.bounds)),
                remedy="read smaller parts",
            )
        with self.decided.holds():
            return self._read_box(region, threads)

    def chunks(
        self, index: Shape, ranks: Sequence[int]
    ) -> Iterator[tuple[int, npt.NDArray[Any] | None]]:
        """Some inner chunks of a shard, which is opened once.

        - Yields: its elements; None if it is not stored.
        - Raises CorruptShardError if the shard is damaged.
        """
        key = self.metadata.shard_key(index)
        with self.decided.holds():
            reader = self.store.open(key)
            if reader is None:
                yield from ((rank, None) for rank in ranks)
                return
            with reader:
                shard = ShardReader(self.metadata, key, reader)
                for rank in ranks:
                    yield rank, shard.chunk(rank)

    def _read_box(self, region: Box, threads: int | None) -> npt.NDArray[Any]:
        if self._is_inner_chunk(region):
            chunk = self._read_inner_chunk(region)
            if chunk is not None:
                return chunk
        out = np.empty(region.shape, self.dtype)

        def read(index: Shape) -> None:
            shard = self.metadata.grid.shard_box(index)
            wanted = shard.intersect(region)
            part = out[wanted.shift(region.start).slices]
            try:
                self._read_shard(index, wanted, part)
            except StoreError as error:
                if error.fields["errno"] != errno.ESTALE:
                    raise
                # It was replaced meanwhile, or since its index was kept.
                self._read_shard(index, wanted, part)

        indices = self.metadata.grid.shards_in(region)
        if threads == 1:
            for index in indices:
                read(index)
            return out
        found = list(indices)
        step = max(1, ceil_div(len(found), _MOST_BATCHES))
        batches = [found[first : first + step] for first in range(0, len(found), step)]
        is_over = threading.Event()
        for _ in in_threads(self._settled(read, is_over), batches, threads, is_over):
            pass
        return out

    def _settled(
        self, read: Callable[[Shape], None], is_over: threading.Event
    ) -> Callable[[Sequence[Shape]], None]:
        """A function for threads, in which the settings of this array hold, too.

        It reads no more shards once one of the calls has failed, or was interrupted.
        """

        def call(indices: Sequence[Shape]) -> None:
            with self.decided.holds():
                for index in indices:
                    if is_over.is_set():
                        return
                    try:
                        read(index)
                    except BaseException:
                        is_over.set()
                        raise

        return call

    def _is_inner_chunk(self, region: Box) -> bool:
        """Whether a region is one inner chunk of several in a shard."""
        grid = self.metadata.grid
        return (
            region.shape == grid.chunks != grid.shards
            and grid.whole.contains(region)
            and not any(a % c for a, c in zip(region.start, grid.chunks, strict=True))
        )

    def _read_inner_chunk(self, region: Box) -> npt.NDArray[Any] | None:
        """Elements of an inner chunk as they were decoded, without a copy if none else has them.

        None if more of the shard is to be read with it, or it must be read again.
        """
        grid = self.metadata.grid
        (index,) = grid.shards_in(region)
        shard = grid.shard_box(index)
        if math.prod(grid.chunk_counts_in(shard.intersect(grid.whole))) * _WHOLE_SHARE <= 1:
            return None
        start = region.shift(shard.start).start
        cell = [a // c for a, c in zip(start, grid.chunks, strict=True)]
        key, rank = self.metadata.shard_key(index), ravel(cell, grid.chunks_per_shard)

        def read(opener: Open) -> npt.NDArray[Any] | None:
            reader = opener(key)
            if reader is None:
                return None
            with reader:
                return ShardReader(self.metadata, key, reader).chunk(rank)

        try:
            chunk = self._reading(key, read)
        except StoreError as error:
            if error.fields["errno"] != errno.ESTALE:
                raise
            return None
        if chunk is None:
            return np.full(region.shape, self.metadata.fill_value, dtype=self.dtype)
        return chunk if _is_own(chunk, self.dtype) else np.array(chunk, self.dtype)

    def _read_shard(self, index: Shape, wanted: Box, out: npt.NDArray[Any]) -> None:
        """Copy the elements of one shard that lie in the box `wanted` into `out`."""
        key = self.metadata.shard_key(index)

        def read(opener: Open) -> None:
            reader = opener(key)
            if reader is None:
                out[...] = self.metadata.fill_value
                return
            with reader:
                self._read(reader, index, wanted, out)

        self._reading(key, read)

    def _read(self, reader: ObjectReader, index: Shape, wanted: Box, out: npt.NDArray[Any]) -> None:
        """Copy elements of an open shard; see `_read_shard`."""
        metadata, grid = self.metadata, self.metadata.grid
        key = metadata.shard_key(index)
        inside = wanted.shift(grid.shard_box(index).start)
        first = tuple(a // c for a, c in zip(inside.start, grid.chunks, strict=True))
        last = tuple(ceil_div(b, c) for b, c in zip(inside.stop, grid.chunks, strict=True))
        cells = Box(first, last)
        n_inside = math.prod(grid.chunk_counts_in(grid.shard_box(index).intersect(grid.whole)))
        is_near = not getattr(reader, "is_distant", False)  # else `gather` reads large pieces
        is_most = cells.size >= _WHOLE_SHARE * n_inside
        whole = is_near and is_most and reader.nbytes <= self._most_at_once
        shard = ShardReader(metadata, key, Loaded(reader) if whole else reader)
        ranks = np.arange(grid.n_chunks_per_shard).reshape(grid.chunks_per_shard)[cells.slices]
        is_empty = shard.index.is_empty[ranks]
        if is_empty.any():
            out[...] = metadata.fill_value
        for rank in shard.gather(ranks[~is_empty]):
            chunk = shard.chunk(rank)
            if chunk is not None:
                self._place(chunk, rank, inside, out)

    def loaded_nbytes(self, region_nbytes: int) -> int:
        """Encoded bytes that are in memory while a region is read, at most, beside its elements."""
        shard_nbytes = self.metadata.plain_nbytes
        return shard_nbytes if region_nbytes >= _WHOLE_SHARE * shard_nbytes else 0

    @property
    def _most_at_once(self) -> int:
        """Size in bytes up to which a shard is read as a whole.

        From a larger one only the index and the inner chunks that it lists are read.
        """
        return 2 * self.metadata.plain_nbytes + _SMALL_NBYTES

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


def _is_own(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Whether nobody else has the memory of an array, which may be given away then."""
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    return owner.base is None and array.flags.writeable and array.dtype == dtype


def _bounds(item: Any, n: int) -> tuple[tuple[int, int], Any]:
    """Smallest interval of an axis of `n` elements that holds an index, and the index inside it."""
    if isinstance(item, slice):
        start, stop, step = item.indices(n)
        numbers = range(start, stop, step)
        if not numbers:
            return (0, 0), slice(None)
        if step == 1:
            return (start, stop), slice(None)
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
    wanted = wanted.astype(np.int64)  # small integers may not hold n
    wanted = np.where(wanted < 0, wanted + n, wanted)
    if wanted.size == 0:
        return (0, 0), wanted.astype(np.int64)
    low = int(wanted.min())
    return (low, int(wanted.max()) + 1), int(wanted) - low if wanted.ndim == 0 else wanted - low


@public
def open_sharded(store: Any, name: str | None = None) -> ShardedArray:
    """Open a sharded array for reading.

    Parameters
    ----------
    store : str, path, or store or node of zarr-python
        A directory; a URL such as ``s3://bucket/x.zarr``; a store of zarr-python or obstore; or a
        group or array of zarr-python.
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
    """Open the array at a place for reading."""
    return described_by(place.read_if_there(DOCUMENT), place)


def described_by(data: bytes | None, place: Place) -> ShardedArray:
    """The array at a place whose document is known; None if it has none, which is refused."""
    if data is None:
        why, remedy = "there is no zarr.json", "give the path of a sharded Zarr v3 array"
        if place.hierarchy:
            names = sorted(islice(place.arrays_in_hierarchy(), _MEMBERS))[:_NAMED]
            why = f"there is none of this name in a {place.hierarchy}"
            remedy = f"give name=, one of: {', '.join(names)}" if names else "it holds no arrays"
        if is_being_made(place):
            why = "a run that has not ended is writing it"
            remedy = (
                "make the same call again to finish it, or shardwrite finalize, if all of its "
                "parts are written. If it replaces an array, abandon (shardwrite abandon) puts the "
                "old one back"
            )
        elif place.kind() == "v2":
            why = "one of Zarr v2 stands there, which has no shards"
            remedy = "use zarr-python for it, or copy it to a Zarr v3 array by shardwrite write"
        else:
            for refuse in all_of("foreign"):  # by what a wing knows of the place
                refuse(place, "array")
        raise SpecError(f"no array: {why}", field="store", value=place.label, remedy=remedy)
    return ShardedArray(_parsed(data, place), place.store)


def is_being_made(place: Place) -> bool:
    """Whether a run that has not ended is to make an array at a place."""
    if isinstance(place, Directory):
        return is_file(place.beside / "plan.json")
    return place.unknown_run() is not None


def _parsed(data: bytes, place: Place) -> ArrayMetadata:
    """Metadata of the array at a place, from the bytes of its document."""
    try:
        document = parse_json(data)
        text = data.decode()
    except ValueError as error:
        raise SpecError(
            f"zarr.json is torn ({error})",
            field="store",
            value=place.label,
            remedy="restore it, or remove the array and write that again",
        ) from None
    if kind_of_document(document) == "group":
        names = _arrays_in(place)
        remedy = f"give the path of an array{' in it: ' if names else ''}{', '.join(names)}"
        raise SpecError(
            "a group, and not an array", field="store", value=place.label, remedy=remedy
        )
    return parse_metadata(text)


def _arrays_in(place: Place) -> list[str]:
    """Names of the first few arrays in a group, if it is a directory."""
    root = place.store.local_root
    members = [] if root is None else islice(listed(root), _MEMBERS)
    return [path.name for path in members if place.member(path.name).kind() == "array"][:_NAMED]


def as_dask_array(
    view: ShardedArray, chunks: Any, *, dask_name: str | None = None, inline_array: bool = False
) -> dask.array.Array:
    """An open array as a dask array.

    - `dask_name`: name of the dask array. By default it is derived from the array and the chunks.
    """
    sizes = bounded(chunks, view.shape, view.dtype, view.metadata.grid.shards)
    array: dask.array.Array = dask.array.from_array(
        view.in_one_thread(),
        chunks=sizes,
        name=dask_name or f"sharded-zarr-{tokenize(view, sizes)}",
        asarray=True,
        inline_array=inline_array,
        meta=np.empty((0,) * view.ndim, dtype=view.dtype),
    )
    return array

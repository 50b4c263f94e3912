"""Readers of sharded arrays, as numpy arrays or as a dask array whose chunks are whole shards.

The readers of zarr and xarray make one task for each inner chunk. Here a task reads one shard, or
the part of it that is needed, and opens it once. If at least half of the shard's inner chunks are
needed, it is read as a whole, unless it is too large. Otherwise, only its index and the ranges of
these inner chunks are read.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import operator
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from hashlib import blake2b
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from dask.base import tokenize

import shardwrite._dask as dask
from shardwrite._dataclass import dataclass
from shardwrite.config.table import (
    CHUNK_CACHE,
    READ_IN_FLIGHT,
    READ_IN_FLIGHT_SIZE,
    READ_REQUEST,
    READ_THREADS,
    SOURCE_CHUNKS,
    decided_settings,
    value_of,
)
from shardwrite.encode.reader import WHOLE_SHARE, ChunkGroup, Loaded, ShardReader
from shardwrite.entry.public import public
from shardwrite.errors import CorruptShardError, SpecError, StoreError
from shardwrite.format.manifest import origin_in
from shardwrite.format.metadata import MOST, ArrayMetadata, parse_metadata
from shardwrite.format.node import DOCUMENT, kind_of_document
from shardwrite.grid import Box, Shape, ShardGrid, ceil_div, ravel
from shardwrite.host.resources import n_cores
from shardwrite.host.threads import from_event_loop, in_threads
from shardwrite.place.base import Place
from shardwrite.place.directory import Directory
from shardwrite.place.target import resolve_place
from shardwrite.plan.card import array_facts
from shardwrite.plan.options import explicit_sizes, parse_nbytes
from shardwrite.plan.partition import check_chunks
from shardwrite.read import selection
from shardwrite.read.indexes import CHUNKS, INDEXES, KeptChunk, KeptIndex
from shardwrite.read.present import PresentChunks, ranks_with_objects, stored_coords_here
from shardwrite.read.requests import REQUESTS
from shardwrite.read.selection import BoxSelection, Part, Selected, Selection
from shardwrite.read.stored_shard import Open, open_for_index, reading_twice
from shardwrite.results import card_of
from shardwrite.seams import Ref, all_of
from shardwrite.stores.base import Capability, ObjectReader, Store
from shardwrite.stores.looking import is_file, is_there, listed, parse_json, size_and_time

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


def bounded(
    chunks: Any, dtype: Any, grid: ShardGrid, names: Sequence[str | None] | None = None
) -> tuple[tuple[int, ...], ...]:
    """Chunk sizes along each axis of a sharded array, at most as many as can be handled.

    - `chunks`: requested chunks: the shards if None, one size for all axes, or any form of dask.
      ``"shard"`` and ``"chunk"`` stand for the sizes of shards and of inner chunks.
    - `names`: names of the axes, which a mapping may have.
    """
    shape = grid.shape
    least = tuple(max(1, min(size, n)) for size, n in zip(grid.shards, shape, strict=True))
    chunks = _in_sizes(chunks, {"shard": least, "chunk": grid.chunks}, names)
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


def _in_sizes(chunks: Any, sizes: Mapping[str, Shape], names: Sequence[str | None] | None) -> Any:
    """Requested chunks with sizes where names of sizes stand, for all axes or some.

    - Raises SpecError if a mapping has a key that is no axis.
    """
    if isinstance(chunks, str):
        return sizes.get(chunks, chunks)
    ndim = len(sizes["shard"])
    if isinstance(chunks, Mapping):
        keys = [{axis, name} - {None} for axis, name in enumerate(names or [None] * ndim)]
        if not set(chunks) <= set[Any]().union({...}, *keys):
            named = "" if names is None else " or their names"
            raise SpecError(
                f"keys that are no axes of an array of {ndim} axes",
                field="chunks",
                value=chunks,
                remedy=f"give the numbers of axes, from 0 on,{named} as keys",
            )
        rest = chunks.get(...)
        chunks = tuple(next((chunks[key] for key in each if key in chunks), rest) for each in keys)
    if isinstance(chunks, tuple | list) and len(chunks) == ndim:
        return tuple(
            sizes[size][axis] if isinstance(size, str) and size in sizes else size
            for axis, size in enumerate(chunks)
        )
    return chunks


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


S = TypeVar("S")
T = TypeVar("T")

_MEMBERS, _NAMED = 100, 5  # of a group: looked at, and told to a user who opens it as an array


_SMALL_NBYTES = 2**20

_MOST_BATCHES = 1024  # into which the shards of a region are divided for threads


class ShardedArray:
    """A sharded array that is open for reading. It can be indexed and pickled.

    Wherever it is read, the settings of the process that has opened it hold. Where the main thread
    of a program indexes several shards, several threads read them. Others, such as tasks of dask,
    read shards alone, because more of them do so at a time. Requests that go over a network are
    made side by side by all of them, up to limits of the process (`RequestLimit`).
    """

    def __init__(
        self,
        metadata: ArrayMetadata,
        store: Store,
        *,
        is_afresh: bool = False,
        is_alone: bool = False,
        document: str = "",
    ) -> None:
        self.metadata = metadata
        self.store = store
        self.document = document  # key of the document by which it was opened, if it was
        self.is_afresh = is_afresh
        self.is_alone = is_alone
        self.decided = decided_settings()

    def afresh(self) -> ShardedArray:
        """The array as one that is read past what this machine has kept of it."""
        return ShardedArray(self.metadata, self.store, is_afresh=True)

    def in_one_thread(self) -> ShardedArray:
        """The array as one that each caller reads alone, because others read beside it."""
        return ShardedArray(self.metadata, self.store, is_afresh=self.is_afresh, is_alone=True)

    def _reading(self, key: str, read: Callable[[Open], T], whole_nbytes: int = 0) -> T:
        """What a function reads of an object; once more if the bytes cannot be right.

        So it is if the object was replaced meanwhile, or since its index was kept. Then no index
        that is kept is used, which another thread may just have kept of the old object.

        - `whole_nbytes`: see :meth:`Store.open_for`.
        """
        try:
            return self._reading_once(key, read, partial(self._open, whole_nbytes=whole_nbytes))
        except StoreError as error:
            if error.fields["errno"] != errno.ESTALE:
                raise
        anew: Open = partial(self._open_anew, whole_nbytes=whole_nbytes)
        if Capability.SNAPSHOT in self.store.capabilities:
            anew = self.store.open
        return self._reading_once(key, read, anew)

    def _reading_once(self, key: str, read: Callable[[Open], T], opener: Open) -> T:
        if self.is_afresh:
            return read(self.store.open_again)
        return reading_twice(self.store, key, read, opener)

    @cached_property
    def _token(self) -> str:
        """Text that tells the array from others, and from one of another layout in its place."""
        document = self.metadata.document
        layout = [document.get(name) for name in ("data_type", "chunk_grid", "codecs")]
        digest = blake2b(json.dumps(layout).encode(), digest_size=16).hexdigest()
        return f"{self.store.token} {digest}"

    def _open(self, key: str, whole_nbytes: int = 0) -> ObjectReader | None:
        """Open an object to read its index, if none is kept, and then inner chunks."""
        kept = INDEXES.find((self._token, key))
        if kept is not None:
            return self.store.open_for(key, 0, kept.identity)
        return self._open_anew(key, whole_nbytes)

    def _open_anew(self, key: str, whole_nbytes: int = 0) -> ObjectReader | None:
        """Open an object to read its index, and then inner chunks."""
        return open_for_index(self.metadata, self.store, key, whole_nbytes)

    @contextlib.contextmanager
    def _opened(
        self, opener: Open, key: str, *, is_most: bool = False, is_counted: bool = False
    ) -> Iterator[ShardReader | None]:
        """A shard that is open, with its index; None if it has no object.

        - `is_most`: whether most inner chunks are wanted. Then the shard is read as a whole, unless
          requests go over a network, or it is too large.
        - `is_counted`: whether the caller counts the request that opens it.
        """
        with self._request(is_distant=self.store.is_distant and not is_counted):
            reader = opener(key)
        if reader is None:
            yield None
            return
        try:
            with reader:
                yield self._indexed(reader, key, is_most=is_most)
                reader.check_same()
        except (CorruptShardError, StoreError):
            INDEXES.drop((self._token, key))  # it may be damaged, or that of another version
            raise

    def _indexed(self, reader: ObjectReader, key: str, *, is_most: bool) -> ShardReader:
        """Reader of an open shard, whose index is kept if it can be."""
        identity, name = reader.identity, (self._token, key)
        kept = None if self.is_afresh or identity is None else INDEXES.find(name)
        loaded = kept.loaded if kept is not None and kept.identity == identity else None
        is_near = not reader.is_distant  # else `groups` gives large pieces
        whole = is_near and is_most and reader.nbytes <= self._most_at_once
        source = Loaded(reader) if whole else reader
        kept_as = None if self.is_afresh else identity
        shard = ShardReader(self.metadata, key, source, loaded=loaded, identity=kept_as)
        if loaded is None and identity is not None and self.metadata.is_sharded:
            INDEXES.keep(name, KeptIndex(identity, shard.loaded))
        return shard

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
        root, prefix = self.store.local_root, getattr(self.store, "prefix", "")
        document = None if root is None else size_and_time(os.path.join(root, prefix, DOCUMENT))
        return self.metadata.text, self.store.token, document  # so one in its place is another one

    def __getitem__(self, key: Any) -> npt.NDArray[Any]:
        """Elements that an index selects, as numpy gives them.

        One axis may have a list or a mask, and each axis may have an integer or a slice with any
        step. Lists for all axes select points. Only inner chunks that hold wanted elements are
        read.

        - Raises CorruptShardError if a shard is damaged.
        """
        return self.read(key)

    def read(self, key: Any = ..., *, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Elements that an index selects.

        Parameters
        ----------
        key : int, slice, list, array or tuple of them
            The index, as in ``a[key]``. By default the whole array is read.
        out : numpy.ndarray, optional
            Array of the shape and data type of the result, which the elements are read into. Its
            memory may have any strides. After an error, some of its elements are changed.

        Returns
        -------
        numpy.ndarray
            The elements; `out` if it is given.

        Raises
        ------
        CorruptShardError
            If a shard is damaged.
        SpecError
            If `out` has another shape or data type, or cannot be written.
        """
        return self._selected(selection.basic(key, self.metadata.grid), out)

    async def read_async(
        self, key: Any = ..., *, out: npt.NDArray[Any] | None = None
    ) -> npt.NDArray[Any]:
        """Elements that an index selects, for programs with an event loop.

        Threads read them, so that the event loop goes on meanwhile. See :meth:`read`. If the task
        that waits is cancelled, what has begun is read to its end.
        """
        call = partial(self._selected, selection.basic(key, self.metadata.grid), out, is_first=True)
        return await from_event_loop(call)

    @property
    def oindex(self) -> Indexed:
        """Index each axis by itself, as in zarr-python: ``a.oindex[[1, 5], :, mask]``."""
        return Indexed(self, selection.orthogonal)

    @property
    def vindex(self) -> Indexed:
        """Index points, as in zarr-python: ``a.vindex[[1, 5], [2, 2]]``, or ``a.vindex[mask]``."""
        return Indexed(self, selection.points)

    def _selected(
        self, selected: Selected, out: npt.NDArray[Any] | None, *, is_first: bool | None = None
    ) -> npt.NDArray[Any]:
        """Elements of a parsed index expression, in an array of the caller if it gives one.

        - `is_first`: whether nobody else reads beside this call; by default as the main thread.
        """
        target = None
        if out is not None:
            _check_out(out, selected.result_shape, self.dtype)
            if selected.shape is None:  # else the elements go there in another shape
                target = selected.with_axes(out)
        with self.decided.holds():
            threads = self._threads(selected.selection, is_first=is_first)
        elements = self._read_selection(selected.selection, threads, target)
        if out is None:
            return selected.result(elements)
        if target is None:
            out[...] = selected.result(elements)
        return out

    def read_box(self, region: Box) -> npt.NDArray[Any]:
        """Elements of a box inside the array. Each shard that the box touches is opened once.

        - Raises CorruptShardError if a shard is damaged.
        """
        return self._read_selection(BoxSelection(self.metadata.grid, region), 1)

    def _threads(self, wanted: Selection, *, is_first: bool | None = None) -> int | None:
        """Number of threads that read a selection; None for the usual one."""
        is_distant = self.store.is_distant
        if is_first is None:
            is_first = threading.current_thread() is threading.main_thread()
        if self.is_alone or not is_first:
            return 1
        if not is_distant and wanted.n_chunks * self.metadata.chunk_nbytes <= _SMALL_NBYTES:
            return 1
        most = max(n_cores(), value_of(READ_IN_FLIGHT)) if is_distant else None
        return value_of(READ_THREADS) or most

    def _read_selection(
        self, wanted: Selection, threads: int | None, out: npt.NDArray[Any] | None = None
    ) -> npt.NDArray[Any]:
        if math.prod(wanted.shape) * self.metadata.itemsize > MOST:
            raise SpecError(
                f"holds more than {MOST:,} bytes",
                field="region",
                value=list(wanted.shape),
                remedy="read smaller parts",
            )
        with self.decided.holds():
            if (
                out is None
                and isinstance(wanted, BoxSelection)
                and self._is_inner_chunk(wanted.box)
            ):
                chunk = self._read_inner_chunk(wanted.box)
                if chunk is not None:
                    return chunk
            out = np.empty(wanted.shape, self.dtype) if out is None else out
            self._read_parts(wanted, threads, out)
            return out

    # ---- Inner chunks as they are stored

    def encoded(self, position: Sequence[int]) -> bytes | None:
        """Bytes of an inner chunk as they are stored; None if it holds no data.

        Parameters
        ----------
        position : sequence of int
            Position in the grid of inner chunks, as in ``shardwrite.present(a).coords``. An array
            without shards has its chunks there.

        Raises
        ------
        IndexError
            If there is no such chunk.
        SpecError
            If `position` does not hold integers.
        CorruptShardError
            If the index of its shard is damaged.
        """
        key, rank = self._place_of(position)

        def read(opener: Open) -> bytes | None:
            with self._opened(opener, key) as shard:
                span = None if shard is None else shard.span_of(rank)
                if shard is None or span is None:
                    return None
                with self._request(span[1], is_distant=self.store.is_distant):
                    return bytes(shard.source.read(*span))

        with self.decided.holds():
            return self._reading(key, read)

    def encoded_range(self, position: Sequence[int]) -> EncodedRange | None:
        """Where the bytes of an inner chunk lie; None if it holds no data.

        Tools such as kerchunk and VirtualiZarr make references of it, and a web server can answer
        with these bytes. They are those of now: an update may write them anew at another place.

        Parameters
        ----------
        position : sequence of int
            See :meth:`encoded`.

        Returns
        -------
        EncodedRange
            ``url``, ``offset`` and ``nbytes``; a tuple of them.

        Raises
        ------
        IndexError
            If there is no such chunk.
        SpecError
            If `position` does not hold integers, or the array lies in a store without URLs, such as
            one in memory.
        CorruptShardError
            If the index of its shard is damaged.
        """
        key, rank = self._place_of(position)
        root = self.store.url_of(key)
        if root is None:
            raise SpecError(
                "has no URL",
                field="store",
                value=repr(self.store),
                remedy="open the array by its path or URL",
            )

        def read(opener: Open) -> tuple[int, int] | None:
            with self._opened(opener, key) as shard:
                return None if shard is None else shard.span_of(rank)

        with self.decided.holds():
            span = self._reading(key, read)
        return None if span is None else EncodedRange(root, *span)

    def present(self) -> PresentChunks:
        """List the inner chunks that hold data, from the indexes of the shards.

        Returns
        -------
        PresentChunks
            See :func:`shardwrite.present`.
        """
        metadata = self.metadata
        origin = origin_in(metadata.document, self.ndim)
        with self.decided.holds():
            ranks = ranks_with_objects(metadata, self.store)
            coords = stored_coords_here(metadata, self.store, ranks)
        return PresentChunks(coords, metadata.grid.chunks, origin)

    def _place_of(self, position: Sequence[int]) -> tuple[str, int]:
        """Key of the object of an inner chunk, and the rank of the chunk in it."""
        grid = self.metadata.grid
        counts = [ceil_div(n, c) for n, c in zip(grid.shape, grid.chunks, strict=True)]
        try:
            cell = tuple(operator.index(i) for i in position)
        except TypeError:
            raise SpecError(
                "not one integer for each axis",
                field="position",
                value=position,
                remedy=f"give the position of an inner chunk in a grid of {tuple(counts)}, such as "
                f"{(0,) * len(counts)}",
            ) from None
        if len(cell) != len(counts) or not all(
            0 <= i < n for i, n in zip(cell, counts, strict=True)
        ):
            raise IndexError(f"no inner chunk {cell} in a grid of {tuple(counts)}")
        per_shard = grid.chunks_per_shard
        index = tuple(i // n for i, n in zip(cell, per_shard, strict=True))
        inside = [i % n for i, n in zip(cell, per_shard, strict=True)]
        return self.metadata.shard_key(index), ravel(inside, per_shard)

    def chunks(
        self, index: Shape, ranks: Sequence[int]
    ) -> Iterator[tuple[int, npt.NDArray[Any] | None]]:
        """Some inner chunks of a shard, which is opened once.

        - Yields: its elements; None if it is not stored.
        - Raises CorruptShardError if the shard is damaged.
        """
        key = self.metadata.shard_key(index)
        with self.decided.holds(), self._opened(self._open_anew, key) as shard:
            for rank in ranks:
                yield rank, None if shard is None else shard.chunk(rank)

    def _read_parts(self, wanted: Selection, threads: int | None, out: npt.NDArray[Any]) -> None:
        """Read all elements of a selection, shard by shard, some of them side by side."""
        indices = wanted.shards()
        most = n_cores() if threads is None else threads
        n_shards = max(1, min(most, len(indices)))
        is_distant = self.store.is_distant
        n_groups = ceil_div(value_of(READ_IN_FLIGHT), n_shards) if is_distant else most // n_shards
        is_over = threading.Event()

        def read(index: Shape) -> None:
            self._read_shard(index, wanted.part(index), out, n_groups, is_over)

        self._side_by_side(read, indices, n_shards, is_over)

    def _side_by_side(
        self,
        call: Callable[[S], None],
        items: Sequence[S],
        threads: int,
        is_over: threading.Event,
        is_all_over: threading.Event | None = None,
    ) -> None:
        """Call a function for each item in threads, in which the settings of this array hold, too.

        No call begins once another has failed, or was interrupted.

        - `is_over`: is set then.
        - `is_all_over`: is set if no call should begin any more, because others have failed.
        """
        is_all_over = is_over if is_all_over is None else is_all_over
        if threads <= 1 or len(items) <= 1:
            for item in items:
                if is_all_over.is_set():
                    return
                call(item)
            return

        def settled(batch: Sequence[S]) -> None:
            with self.decided.holds():
                for item in batch:
                    if is_over.is_set() or is_all_over.is_set():
                        return
                    try:
                        call(item)
                    except BaseException:
                        is_over.set()
                        raise

        step = max(1, ceil_div(len(items), _MOST_BATCHES))
        batches = [items[first : first + step] for first in range(0, len(items), step)]
        for _ in in_threads(settled, batches, threads, is_over):
            pass

    def _request(
        self, nbytes: int = 0, *, is_distant: bool
    ) -> contextlib.AbstractContextManager[None]:
        """A request of so many bytes, which waits for others if it goes over a network."""
        return REQUESTS.request(nbytes) if is_distant else contextlib.nullcontext()

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

        None if more of the shard is to be read with it.
        """
        grid = self.metadata.grid
        (index,) = grid.shards_in(region)
        shard = grid.shard_box(index)
        if math.prod(grid.chunk_counts_in(shard.intersect(grid.whole))) * WHOLE_SHARE <= 1:
            return None
        start = region.shift(shard.start).start
        cell = [a // c for a, c in zip(start, grid.chunks, strict=True)]
        key, rank = self.metadata.shard_key(index), ravel(cell, grid.chunks_per_shard)

        def read(opener: Open) -> npt.NDArray[Any] | None:
            with self._opened(opener, key) as shard:
                span = None if shard is None else shard.span_of(rank)
                if shard is None or span is None:
                    return None
                for kept in self._kept_chunks(shard, [rank]).values():
                    return kept.copy()
                with self._request(span[1], is_distant=self.store.is_distant):
                    chunk = shard.chunk(rank)
                self._keep_chunk(shard, rank, chunk)
                return chunk

        chunk = self._reading(key, read)
        if chunk is None:
            return np.full(region.shape, self.metadata.fill_value, dtype=self.dtype)
        return chunk if _is_own(chunk, self.dtype) else np.array(chunk, self.dtype)

    def _read_shard(
        self,
        index: Shape,
        part: Part,
        out: npt.NDArray[Any],
        n_groups: int,
        is_over: threading.Event,
    ) -> None:
        """Copy what is wanted of one shard to its places in `out`.

        - `n_groups`: groups of its inner chunks that are read at a time.
        - `is_over`: is set once nobody needs the elements any more.
        """
        metadata, grid = self.metadata, self.metadata.grid
        key = metadata.shard_key(index)
        n_inside = math.prod(grid.chunk_counts_in(grid.shard_box(index).intersect(grid.whole)))
        n_wanted = self._n_not_kept(key, part.ranks)
        is_most = n_wanted >= WHOLE_SHARE * n_inside
        is_whole = n_wanted == n_inside and INDEXES.find((self._token, key)) is None
        whole_nbytes = metadata.most_nbytes if is_whole else 0
        first_nbytes = min(whole_nbytes, value_of(READ_REQUEST))

        def read(opener: Open) -> None:
            with contextlib.ExitStack() as first:
                is_distant = is_whole and self.store.is_distant
                first.enter_context(self._request(first_nbytes, is_distant=is_distant))
                if is_over.is_set():
                    return
                with self._opened(opener, key, is_most=is_most, is_counted=is_whole) as shard:
                    if shard is None:
                        out[part.where] = metadata.fill_value
                        return
                    ranks = stored(shard)
                    if is_whole and (is_distant or shard.is_distant):
                        is_held = shard.is_held(ranks)
                        place(ChunkGroup(shard, ranks[is_held].tolist()))
                        shard.release()
                        ranks = ranks[~is_held]
                    first.close()
                    groups = shard.groups(ranks, n_groups)
                    # A second attempt follows a failed one, which must not keep it from reading.
                    self._side_by_side(take, groups, n_groups, threading.Event(), is_over)

        def stored(shard: ShardReader) -> npt.NDArray[np.int64]:
            """Ranks of inner chunks that are to be read; others are put into their places."""
            is_empty = shard.index.is_empty[part.ranks]
            if is_empty.any():
                out[part.where] = metadata.fill_value
            ranks = part.ranks[~is_empty]
            kept = self._kept_chunks(shard, ranks.tolist())
            for rank, chunk in kept.items():
                part.place(chunk, rank, out)
            return np.setdiff1d(ranks, list(kept)) if kept else ranks

        def take(group: ChunkGroup) -> None:
            with self._request(group.nbytes, is_distant=group.span is not None):
                if not is_over.is_set():
                    place(group)

        def place(group: ChunkGroup) -> None:
            loaded = group.read()
            for rank in group.ranks:
                chunk = loaded.chunk(rank)
                if chunk is not None:
                    part.place(chunk, rank, out)
                    self._keep_chunk(group.shard, rank, chunk)

        self._reading(key, read, whole_nbytes)

    # ---- Decoded inner chunks that are kept

    def _kept_chunks(self, shard: ShardReader, ranks: Sequence[int]) -> dict[int, npt.NDArray[Any]]:
        """Elements of those inner chunks that are kept of this state of their shard, by rank."""
        chunks: dict[int, npt.NDArray[Any]] = {}
        if shard.identity is None or not value_of(CHUNK_CACHE):
            return chunks
        for rank in ranks:
            kept = CHUNKS.find((self._token, shard.key, rank))
            if kept is not None and kept.identity == shard.identity:
                chunks[rank] = kept.elements
        return chunks

    def _keep_chunk(self, shard: ShardReader, rank: int, chunk: npt.NDArray[Any] | None) -> None:
        """Keep the elements of an inner chunk, if its shard has an identity.

        They are copied, because a caller may change them, or they are a part of what was read.
        Objects are not kept, since their size is not known.
        """
        is_fit = chunk is not None and not self.dtype.hasobject
        if is_fit and shard.identity is not None and value_of(CHUNK_CACHE):
            kept = KeptChunk(shard.identity, np.array(chunk, self.dtype))
            CHUNKS.keep((self._token, shard.key, rank), kept)

    def _n_not_kept(self, key: str, ranks: npt.NDArray[np.int64]) -> int:
        """Number of inner chunks of a shard that are not kept, of any state."""
        if not value_of(CHUNK_CACHE):
            return ranks.size
        names = ((self._token, key, rank) for rank in ranks.ravel().tolist())
        return sum(CHUNKS.find(name) is None for name in names)

    def loaded_nbytes(self, region_nbytes: int) -> int:
        """Encoded bytes that are in memory while a region is read, at most, beside its elements."""
        shard_nbytes = self.metadata.plain_nbytes
        if self.store.is_distant:
            return min(shard_nbytes, value_of(READ_IN_FLIGHT_SIZE))
        return shard_nbytes if region_nbytes >= WHOLE_SHARE * shard_nbytes else 0

    @property
    def _most_at_once(self) -> int:
        """Size in bytes up to which a shard is read as a whole.

        From a larger one only the index and the inner chunks that it lists are read.
        """
        return 2 * self.metadata.plain_nbytes + _SMALL_NBYTES


@dataclass(frozen=True, slots=True)
class Indexed:
    """An array that takes index expressions of one kind: its ``oindex`` or ``vindex``."""

    array: ShardedArray
    parse: Callable[[Any, ShardGrid], Selected]

    def __getitem__(self, key: Any) -> npt.NDArray[Any]:
        """Elements that an index expression selects."""
        return self.array._selected(self.parse(key, self.array.metadata.grid), None)  # noqa: SLF001


class EncodedRange(NamedTuple):
    """Where the bytes of an inner chunk lie."""

    url: str
    """URL of the object, without credentials."""
    offset: int
    """First byte in the object."""
    nbytes: int
    """Number of bytes."""


def _check_out(out: object, shape: Shape, dtype: np.dtype[Any]) -> None:
    """Refuse an array of a caller that elements cannot be read into."""
    what = None
    if not isinstance(out, np.ndarray) or isinstance(out, np.ma.MaskedArray):
        what = f"a {type(out).__name__}, and no array of numpy"
    elif out.shape != shape or out.dtype != dtype:
        what = f"has the shape {out.shape} and data type {out.dtype}"
    elif not out.flags.writeable:
        what = "cannot be written"
    if what is not None:
        remedy = f"give an array as numpy.empty({shape}, {str(dtype)!r}) makes it"
        raise SpecError(what, field="out", value=type(out).__name__, remedy=remedy)


def _is_own(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Whether nobody else has the memory of an array, which may be given away then."""
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    return owner.base is None and array.flags.writeable and array.dtype == dtype


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
        if isinstance(place, Directory):
            if is_file(place.path):
                why = "there is no zarr.json, because it is a file"
                remedy += (
                    "; for a ZIP file, give zarr.storage.ZipStore(path); the values of other files "
                    "are read by shardwrite.sources.open_source"
                )
            elif not is_there(place.path):
                why, remedy = (
                    "there is no zarr.json, and no such directory",
                    f"{remedy} that exists",
                )
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
    return ShardedArray(_parsed(data, place), place.store, document=DOCUMENT)


def is_being_made(place: Place) -> bool:
    """Whether a run that has not ended is to make an array at a place."""
    if isinstance(place, Directory):
        return is_file(place.beside / "plan.json")
    unknown = place.unknown_run()
    return unknown is not None and unknown.makes_array


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
    names = view.metadata.document.get("dimension_names")
    sizes = bounded(chunks, view.dtype, view.metadata.grid, names)
    array: dask.array.Array = dask.array.from_array(
        view.in_one_thread(),
        chunks=sizes,
        name=dask_name or f"sharded-zarr-{tokenize(view, sizes)}",
        asarray=True,
        inline_array=inline_array,
        meta=np.empty((0,) * view.ndim, dtype=view.dtype),
    )
    return array

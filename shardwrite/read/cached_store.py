"""A store of zarr-python that keeps the indexes of shards for programs that read through it.

zarr-python asks for the index of a shard before the inner chunks, each time that it reads from the
shard. A `CachedStore` answers that from memory. Then it asks for the inner chunk on the condition
that the shard is still in the state that the index belongs to. If it is not, the new index is read,
and the bytes are those that the same inner chunk has now. So no index is used that is out of date.
"""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from crc32c import crc32c
from zarr.abc.store import ByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.abc.store import Store as AnyZarrStore
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import LocalStore, ObjectStore, WrapperStore

from shardwrite._dataclass import dataclass
from shardwrite._lazy import if_loaded
from shardwrite.config.table import INDEX_CACHE, value_of
from shardwrite.errors import CorruptShardError, SpecError, StoreError
from shardwrite.format.index import EMPTY
from shardwrite.host.threads import from_event_loop
from shardwrite.read.indexes import ENTRY_NBYTES, Cache
from shardwrite.stores.base import ObjectReader, changed_meanwhile
from shardwrite.stores.bucket import check_process
from shardwrite.stores.bucket_kinds import is_bucket
from shardwrite.stores.opening import open_store

__all__ = ["CachedStore"]

_ROW_NBYTES, _CHECKSUM_NBYTES = 16, 4


@dataclass(frozen=True, slots=True, eq=False)
class _SeenIndex:
    """The index of a shard in one state, as it is stored.

    - `key`: of the shard.
    - `first`: number of its bytes; negative if it lies at the end of the shard.
    - `identity`, `version`: see `ObjectReader`.
    - `tells_chunks`: whether each inner chunk has bytes of its own, so that a range tells which one
      it is. Then a reader that was given the index asks for all that it wants of the shard, and
      learns there of another state.
    """

    key: str
    first: int
    data: bytes
    identity: Any
    version: Any
    tells_chunks: bool

    @property
    def memory_nbytes(self) -> int:
        """Memory that it takes."""
        return ENTRY_NBYTES + len(self.data)

    @property
    def table(self) -> npt.NDArray[np.uint64]:
        """Offset and size of each inner chunk, as `ShardIndex.table` has them."""
        return _table_of(self.data)

    def chunk(
        self, reader: ObjectReader, before: _SeenIndex, start: int, nbytes: int
    ) -> bytes | None:
        """Bytes of the inner chunk that had this range by an index of before; None if it is empty.

        Two indexes of the same bytes have all inner chunks at the same places.

        - `reader`: the shard, in the state of this index.
        - Raises StoreError with ESTALE, if the range does not tell which inner chunk it was, and
          CorruptShardError if the shard has no such bytes.
        """
        if before.data != self.data:
            rows = (before.table == np.array([start, nbytes], np.uint64)).all(axis=1)
            if len(self.data) != len(before.data) or np.count_nonzero(rows) != 1:
                raise changed_meanwhile(self.key)
            start, nbytes = self.table[rows][0].tolist()
            if start == EMPTY:
                return None
        # zarr-python would take no bytes for an empty inner chunk.
        is_there = 0 < nbytes <= reader.nbytes - start
        if not is_there and [start, nbytes % 2**64] in self.table.tolist():
            raise CorruptShardError(
                f"has no bytes, or ends past byte {reader.nbytes}, the end",
                key=self.key,
                offset=start,
                nbytes=nbytes,
            )
        return _read(reader, start, nbytes)


def _table_of(data: bytes) -> npt.NDArray[np.uint64]:
    n_rows = len(data) // _ROW_NBYTES
    return np.frombuffer(data, "<u8", 2 * n_rows).reshape(n_rows, 2)


def _is_index(data: bytes, *, is_at_end: bool) -> bool:
    """Whether bytes are an index as almost all writers store it: pairs of uint64, and a CRC-32C.

    What zarr-python asks for at the end of a shard is an index. At the start, it may be a chunk.
    """
    n_rest = len(data) % _ROW_NBYTES
    if n_rest == _CHECKSUM_NBYTES:
        return crc32c(data[:-n_rest]) == int.from_bytes(data[-n_rest:], "little")
    return is_at_end and n_rest == 0


INDEXES: Cache[_SeenIndex] = Cache(lambda: value_of(INDEX_CACHE))
"""Indexes of this process, by the token of a store and the key of a shard."""

os.register_at_fork(after_in_child=INDEXES.after_fork)

_Name = tuple[str, str]
"""Token of a store, and the key of a shard in it."""

_given: ContextVar[tuple[_Name, _SeenIndex] | None] = ContextVar("_given", default=None)
"""The index that an asyncio task was given last, and the name of its shard.

Its next ranges of that shard belong to this index, whatever other tasks have seen meanwhile.
"""


class CachedStore(WrapperStore[AnyZarrStore]):
    """Store of zarr-python that reads the index of each shard once.

    Programs that read through zarr-python, such as xarray, napari and dask's ``from_zarr``, need no
    other change. Up to the setting ``shardwrite.read.index-cache`` (64 MiB), the indexes of shards
    stay in memory. Then an inner chunk takes one request, and not two.

    An index is used only for the state of a shard that it belongs to: in a directory, that of the
    file, and in a bucket, its ETag. A shard that was changed meanwhile is noticed by the request
    for an inner chunk. Then its index is read anew. Where a shard has empty inner chunks, or some
    with the same bytes, the storage is asked for the state before the kept index is used.

    Everything else is passed to the store as it is, writing included. A pickled store goes without
    what is kept.

    Parameters
    ----------
    store : str, os.PathLike, zarr.storage.LocalStore, zarr.storage.ObjectStore or store of obstore
        A directory, the URL of a bucket or of a web server, or a store of one of these kinds.

    Raises
    ------
    SpecError
        If the store cannot tell the states of an object apart.

    Examples
    --------
    >>> import numpy as np, shardwrite, zarr
    >>> from obstore.store import MemoryStore
    >>> store = MemoryStore()
    >>> x = np.arange(64).reshape(8, 8)
    >>> result = shardwrite.to_sharded_zarr(x, store, shards=8, chunks=2)
    >>> array = zarr.open_array(shardwrite.CachedStore(store), mode="r")
    >>> array[2:4, 2:4]
    array([[18, 19],
           [26, 27]])
    """

    def __init__(self, store: Any) -> None:
        if isinstance(store, str | os.PathLike):
            objects = open_store(store, is_read=True).store
            root = objects.local_root
            store = objects.owner if root is None else LocalStore(root)
        if is_bucket(store):
            store = ObjectStore(store)
        if type(store) not in {LocalStore, ObjectStore}:
            raise SpecError(
                "its objects have no versions, so that nothing of them can be kept",
                field="store",
                value=type(store).__name__,
                remedy="give a path, a URL, or a LocalStore or ObjectStore of zarr.storage",
            )
        super().__init__(store)
        self._objects = open_store(store, is_read=True).store

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._store,)

    def with_read_only(self, read_only: bool = False) -> CachedStore:
        """Make the same store that is only read, or that is written, too.

        Parameters
        ----------
        read_only : bool
            Whether it is only read.

        Returns
        -------
        CachedStore
            The store.
        """
        return CachedStore(self._store.with_read_only(read_only))

    def __repr__(self) -> str:
        return f"CachedStore({self._store!r})"

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Give the bytes of an object, or a range of them.

        Parameters
        ----------
        key : str
            Of the object.
        prototype : zarr.core.buffer.BufferPrototype
            Kind of the buffer.
        byte_range : zarr.abc.store.ByteRequest, optional
            What is wanted; by default all.

        Returns
        -------
        zarr.core.buffer.Buffer or None
            The bytes; None if the object is missing.
        """
        name = self._objects.token, key
        given, seen = _given.get() or (name, None)
        is_given = seen is not None and given == name
        if not is_given:
            seen = INDEXES.find(name)
        if isinstance(byte_range, SuffixByteRequest):
            first = -byte_range.suffix
        elif isinstance(byte_range, RangeByteRequest):
            start, nbytes = byte_range.start, byte_range.end - byte_range.start
            # By an index that it was given, a task may ask for the inner chunk at the start. Others
            # ask for the index of a new array, unless the shard is still the old one.
            is_chunk = start != 0 or (seen is not None and seen.first != nbytes)
            if seen is not None and is_chunk and not (start or is_given):
                is_chunk = await from_event_loop(partial(self._is_current, seen))
            first = 0 if is_chunk else nbytes
            if not first and seen is not None:
                chunk = partial(self._chunk, seen, start, nbytes, is_given=is_given)
                found = await from_event_loop(chunk)
                return None if found is None else prototype.buffer.from_bytes(found)
        else:
            first = 0
        if not first:
            return await self._plain(key, prototype, byte_range)
        data, seen = await from_event_loop(partial(self._index, key, first))
        _given.set(None if seen is None else (name, seen))
        return None if data is None else prototype.buffer.from_bytes(data)

    async def _plain(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None
    ) -> Buffer | None:
        """What the store gives; of a web server that knows no ranges, a part of the whole."""
        self._check_process()
        try:
            return await super().get(key, prototype, byte_range)
        except if_loaded("obstore.exceptions", "NotSupportedError"):
            whole = await super().get(key, prototype)
            if whole is None or not isinstance(byte_range, RangeByteRequest):
                raise
            return whole[byte_range.start : byte_range.end]

    async def get_partial_values(
        self,
        prototype: BufferPrototype,
        key_ranges: Iterable[tuple[str, ByteRequest | None]],
    ) -> list[Buffer | None]:
        """Give several ranges, each as :meth:`get` does.

        Parameters
        ----------
        prototype : zarr.core.buffer.BufferPrototype
            Kind of the buffers.
        key_ranges : iterable of (str, zarr.abc.store.ByteRequest or None)
            Key of each object, and what is wanted of it.

        Returns
        -------
        list of zarr.core.buffer.Buffer or None
            The bytes of each.
        """
        return [await self.get(key, prototype, byte_range) for key, byte_range in key_ranges]

    async def get_ranges(
        self,
        key: str,
        byte_ranges: Sequence[ByteRequest | None],
        *,
        prototype: BufferPrototype,
        **limits: int | None,  # noqa: ARG002 (no ranges are merged)
    ) -> AsyncIterator[Sequence[tuple[int, Buffer | None]]]:
        """Give several ranges of an object, as zarr-python 3.4 asks for them, one after the other.

        Parameters
        ----------
        key : str
            Of the object.
        byte_ranges : sequence of zarr.abc.store.ByteRequest or None
            What is wanted of it.
        prototype : zarr.core.buffer.BufferPrototype
            Kind of the buffers.
        **limits : int
            Limits of requests, of which none is needed.

        Yields
        ------
        sequence of (int, zarr.core.buffer.Buffer or None)
            Position of a range, and its bytes.
        """
        for n, byte_range in enumerate(byte_ranges):
            yield [(n, await self.get(key, prototype, byte_range))]

    async def getsize(self, key: str) -> int:
        """Give the size of an object, which is not read.

        Parameters
        ----------
        key : str
            Of the object.

        Returns
        -------
        int
            Its size in bytes.

        Raises
        ------
        FileNotFoundError
            If the object is missing.
        """
        self._check_process()
        return await self._store.getsize(key)

    async def getsize_prefix(self, prefix: str) -> int:
        """Give the size of all objects below a prefix, none of which is read.

        Parameters
        ----------
        prefix : str
            Of their keys.

        Returns
        -------
        int
            Their size together, in bytes.
        """
        self._check_process()
        return await self._store.getsize_prefix(prefix)

    def _check_process(self) -> None:
        """Refuse the child of a fork; see `check_process`."""
        if isinstance(self._store, ObjectStore):
            check_process()

    @property
    def _supports_sync_io(self) -> bool:
        """Tells zarr-python 3.4 to read by `get` and `get_ranges` alone, which look at states."""
        return False

    async def _get_many(
        self, requests: Iterable[tuple[str, BufferPrototype, ByteRequest | None]]
    ) -> AsyncGenerator[tuple[str, Buffer | None], None]:
        for request in requests:
            yield request[0], await self.get(*request)

    def _index(self, key: str, first: int) -> tuple[bytes | None, _SeenIndex | None]:
        """First or last bytes of an object, and the same as an index if they are one."""
        kept = INDEXES.find((self._objects.token, key))
        is_it = kept is not None and kept.first == first
        if kept is not None and is_it and (kept.tells_chunks or self._is_current(kept)):
            return kept.data, kept
        reader = self._objects.open_for(key, first)
        if reader is None:
            return None, None
        with reader:
            return self._index_in(reader, key, first)

    def _index_in(
        self, reader: ObjectReader, key: str, first: int
    ) -> tuple[bytes, _SeenIndex | None]:
        """See :meth:`_index`, of an open object. The index is kept from now on."""
        data = _read(reader, 0 if first > 0 else max(0, reader.nbytes + first), abs(first))
        is_index = len(data) == abs(first) and _is_index(data, is_at_end=first < 0)
        if not is_index or (reader.identity is None and reader.is_distant):
            INDEXES.drop((self._objects.token, key))  # by which nothing can be read any more
            return data, None
        table = _table_of(data)
        tells = not (table == EMPTY).any() and len(np.unique(table[:, 0])) == len(table)
        seen = _SeenIndex(key, first, data, reader.identity, reader.version, tells)
        if reader.identity is not None:
            INDEXES.keep((self._objects.token, key), seen)
        return data, seen

    def _chunk(self, seen: _SeenIndex, start: int, nbytes: int, *, is_given: bool) -> bytes | None:
        """Bytes of an inner chunk that has this range by an index; None if it is empty by now.

        - `is_given`: whether the task was given this index. The range of another one is taken as it
          is, if the shard has no such index any more.
        """
        now = INDEXES.find((self._objects.token, seen.key)) or seen
        try:
            with self._open_same(now) as reader:
                return now.chunk(reader, seen, start, nbytes)
        except StoreError as error:
            if error.errno != errno.ESTALE:
                raise
        again = self._objects.open_for(seen.key, seen.first)
        if again is None:
            return None
        with again:
            _, found = self._index_in(again, seen.key, seen.first)
            if found is None and is_given:
                raise changed_meanwhile(seen.key)
            if found is None:
                return _read(again, start, nbytes)
            return found.chunk(again, seen, start, nbytes)

    def _is_current(self, kept: _SeenIndex) -> bool:
        """Whether a shard is still in the state that an index belongs to."""
        try:
            with self._open_same(kept):
                return True
        except StoreError as error:
            if error.errno != errno.ESTALE:
                raise
            return False

    def _open_same(self, seen: _SeenIndex) -> ObjectReader:
        """Open a shard in the state of an index.

        - Raises StoreError with ESTALE, if it is in another one. In a bucket, that is told when it
          is read or closed.
        """
        reader = self._objects.open_for(seen.key, 0, seen.identity)
        if reader is None:
            raise changed_meanwhile(seen.key)
        if (reader.version, reader.identity) != (seen.version, seen.identity):
            with reader:
                raise changed_meanwhile(seen.key)
        return reader


def _in_this_process(name: str) -> Any:
    """A method of stores that the child of a fork may not call; see `check_process`."""
    method = getattr(WrapperStore, name)

    def called(self: CachedStore, *arguments: Any, **keywords: Any) -> Any:
        self._check_process()
        return method(self, *arguments, **keywords)

    called.__name__, called.__doc__ = name, f"See :meth:`zarr.abc.store.Store.{name}`."
    return called


for _name in (
    *("exists", "is_empty", "list", "list_dir", "list_prefix"),
    *("set", "set_if_not_exists", "_set_many", "delete", "delete_dir", "clear"),
):
    setattr(CachedStore, _name, _in_this_process(_name))


def _read(reader: ObjectReader, start: int, nbytes: int) -> bytes:
    """A range, cut off where the object ends, as stores of zarr-python cut it off."""
    return reader.read(start, max(0, min(nbytes, reader.nbytes - start)))

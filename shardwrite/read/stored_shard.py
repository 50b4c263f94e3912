"""Existing shards, open for an update: index, inner chunks, and a check that they are current.

A network file system or a proxy may answer with wrong bytes now and then, and the system keeps them
in its cache. What is read again is told in the log and counted, so that a fault does not hide.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from shardwrite.encode.reader import ShardReader
from shardwrite.errors import CorruptShardError
from shardwrite.format.index import IndexCodec
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.order import Stored
from shardwrite.grid import Box, Shape, ravel
from shardwrite.host.stopping import SHARDS, tell
from shardwrite.stores.base import (
    ObjectReader,
    ObjectWriter,
    Store,
    changed_meanwhile,
    copy_bytes,
    count_reread,
)

# ---- Chunks that are read once more


Open = Callable[[str], ObjectReader | None]
"""Opens an object: `Store.open`, or `Store.open_again`."""

T = TypeVar("T")


def read_again(store: Store, key: str, error: CorruptShardError) -> None:
    """Note that an object of a store is read once more, after an error."""
    count_reread(store.token)
    message = f"read a second time from the storage, past what is cached: {error}"
    tell(SHARDS, logging.WARNING, message, run="", shard=key)


def reading_twice(
    store: Store, key: str, read: Callable[[Open], T], first: Open | None = None
) -> T:
    """Call a function that reads an object; once more if the bytes cannot be right.

    - `first`: opens it for the first time; by default `Store.open`.
    - Raises CorruptShardError if the bytes are wrong the second time, too.
    """
    try:
        return read(first or store.open)
    except CorruptShardError as error:
        read_again(store, key, error)
    return read(store.open_again)


# ---- Shards


class ExistingShard(ShardReader):
    """An open shard of a store. Leaving its `with` block closes it.

    - Raises CorruptShardError if the index is damaged.
    """

    def __init__(
        self, metadata: ArrayMetadata, key: str, store: Store, reader: ObjectReader
    ) -> None:
        super().__init__(metadata, key, reader)
        self.reader = reader
        self._store = store

    def __enter__(self) -> ExistingShard:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.reader.__exit__(*exc_info)

    def stored(self) -> Stored:
        """Layout of the shard, in the form that strategies take."""
        empty = self.index.is_empty
        offsets, nbytes = (
            np.where(empty, -1, self.index.table[:, i].astype(np.int64)) for i in (0, 1)
        )
        fixed_nbytes = self.metadata.pipeline.encoded_nbytes
        is_checked = fixed_nbytes != self.metadata.chunk_nbytes
        return Stored(
            offsets, nbytes, self.reader.nbytes, self.index_span, is_checked, fixed_nbytes
        )

    def copy_to(
        self, writer: ObjectWriter, ranks: npt.NDArray[np.int64], *, is_same_store: bool = True
    ) -> None:
        """Append encoded inner chunks to another object. Those that lie end to end are one copy.

        - `ranks`: ranks of the inner chunks, in the sequence in which they are appended. All of
          them must hold data.
        - `is_same_store`: whether the other object lies in the store of the shard. If so, the store
          copies, and the bytes need not pass through this process.
        """
        table = self.index.table[ranks].astype(np.int64)
        offsets, ends = table[:, 0], table.sum(axis=1)
        breaks = [0, *(np.flatnonzero(offsets[1:] != ends[:-1]) + 1).tolist(), len(ranks)]
        for first, last in itertools.pairwise(breaks):
            offset, nbytes = int(offsets[first]), int(ends[last - 1] - offsets[first])
            if is_same_store:
                writer.copy(self.reader, offset, nbytes)
            else:
                copy_bytes(self.reader.read, writer, nbytes, offset)

    def chunk(self, rank: int) -> npt.NDArray[Any] | None:
        """See :meth:`ShardReader.chunk`; a chunk whose bytes are wrong is read again once."""
        try:
            return super().chunk(rank)
        except CorruptShardError as error:
            read_again(self._store, self.key, error)
        again = _opened(self.metadata, self._store, self.key, self._store.open_again)
        if again is None or again.reader.version != self.reader.version:
            raise changed_meanwhile(self.key)
        with again:
            return ShardReader.chunk(again, rank)

    def check_current(self) -> None:
        """Check that no other writer has changed the shard since it was opened.

        - Raises StoreError with ESTALE, if it was changed. The next attempt then starts from the
          current shard.
        """
        if self._store.version(self.key) != self.reader.version:
            raise changed_meanwhile(self.key)


def open_for_index(
    metadata: ArrayMetadata, store: Store, key: str, whole_nbytes: int = 0
) -> ObjectReader | None:
    """Open an object whose index is read first, and then inner chunks; None if it is missing.

    - `whole_nbytes`: see :meth:`Store.open_for`.
    """
    codec, first = metadata.format_of(key), 0
    if isinstance(codec, IndexCodec):
        first = codec.encoded_nbytes if codec.location == "start" else -codec.encoded_nbytes
    return store.open_for(key, first, whole_nbytes=whole_nbytes)


def open_shard(metadata: ArrayMetadata, store: Store, index: Shape) -> ExistingShard | None:
    """Open a shard for an update; None if it has no object.

    - Raises CorruptShardError if the index is damaged, and still so after it was read again.
    """
    key = metadata.shard_key(index)
    return reading_twice(store, key, partial(_opened, metadata, store, key))


def open_afresh(metadata: ArrayMetadata, store: Store, index: Shape) -> ExistingShard | None:
    """Open a shard as `open_shard` does, past what this machine has kept of it."""
    return _opened(metadata, store, metadata.shard_key(index), store.open_again)


def _opened(metadata: ArrayMetadata, store: Store, key: str, opener: Open) -> ExistingShard | None:
    reader = opener(key)
    if reader is None:
        return None
    try:
        return ExistingShard(metadata, key, store, reader)
    except BaseException as error:
        reader.__exit__(type(error), error, None)
        raise


class Backdrop:
    """Old content of inner chunks that a source covers only in part.

    An instance is the `background` that `encode_unit` takes.

    - `old`: the shard before the update; None if it has no object.
    """

    def __init__(
        self, metadata: ArrayMetadata, index: Shape, old: ExistingShard | None, covered: Box
    ) -> None:
        self._grid, self._old, self._covered = metadata.grid, old, covered
        self._origin = metadata.grid.shard_box(index).start

    def __call__(self, tiles: npt.NDArray[Any], region: Box) -> None:
        """Fill the inner chunks that the source does not cover entirely with their old content.

        Inner chunks that are empty in the old shard stay as they are in `tiles`.

        - `tiles`: shape (n, *chunks). Inner chunks of `region`, row-major.
        """
        if self._old is None:
            return
        grid = self._grid
        for tile, cell in enumerate(np.ndindex(grid.chunk_counts_in(region))):
            start = tuple(
                a + i * c for a, i, c in zip(region.start, cell, grid.chunks, strict=True)
            )
            box = Box.from_shape(start, grid.chunks)
            if self._covered.contains(box.intersect(grid.whole)):
                continue
            place = tuple(
                (a - o) // c for a, o, c in zip(start, self._origin, grid.chunks, strict=True)
            )
            chunk = self._old.chunk(ravel(place, grid.chunks_per_shard))
            if chunk is not None:
                tiles[tile] = chunk

"""Recognition of shards that are files of HDF5, which other strategies must not change.

Strategies are not stored with an array. So an update looks at the shard itself before it changes
it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from shardwrite.codecs.stages import Buffer
from shardwrite.encode.reader import Ranges, ShardReader
from shardwrite.errors import CorruptShardError, SpecError, StoreError
from shardwrite.format.hdf5_file import LOOKED_AT, SIGNATURE, describe, signature_places
from shardwrite.format.hdf5_groups import first_chunk
from shardwrite.format.hdf5_strategy import Hdf5
from shardwrite.format.hdf5_superblock import LONGEST, parse_superblock
from shardwrite.format.index import ShardIndex
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.strategy import Strategy
from shardwrite.grid import Shape, ravel
from shardwrite.read.hdf5_names import dataset_names, has_library
from shardwrite.stores import Store

HOW_TO_CHANGE = (
    'give strategy="hdf5", which keeps such files. For plain shards, give drop_hdf5=True to '
    "write_region, erase or repair, with a strategy that writes whole shards, such as "
    '"fixed-order"'
)
"""What can be done where a strategy would make plain shards of files of HDF5."""

_FIRST_NBYTES = LOOKED_AT + len(SIGNATURE)


def is_hdf5(metadata: ArrayMetadata, source: Ranges) -> bool:
    """Whether an object of an array starts as a file of HDF5, after a user block or without one."""
    return _signature_at(metadata, Begun(source)) is not None


def look(metadata: ArrayMetadata, key: str, source: Ranges, name: str | None) -> tuple[bool, bool]:
    """Look at an object of an array, without the library of HDF5.

    - Returns: whether the dataset of this name surely has the chunks of the shard. Where this is
      False, the library must tell.
    """
    start = Begun(source)
    at = _signature_at(metadata, start)
    if at is None or name is None:
        return at is not None, False
    grid = metadata.grid
    chunk = first_chunk(start.read, at, name, grid.chunks)
    index = None if chunk is None else index_of(metadata, key, source)
    if chunk is None or index is None:
        return True, False
    place = tuple(p // c for p, c in zip(chunk.position, grid.chunks, strict=True))
    if any(i >= n for i, n in zip(place, grid.chunks_per_shard, strict=True)):
        return True, False
    # Two datasets of a file have no chunk at the same place.
    offset, nbytes = index.table[ravel(place, grid.chunks_per_shard)].tolist()
    return True, (offset, nbytes) == (chunk.offset, chunk.nbytes)


def index_of(metadata: ArrayMetadata, key: str, source: Ranges) -> ShardIndex | None:
    """Index of a shard; None if it is damaged."""
    try:
        return ShardReader(metadata, key, source).index
    except CorruptShardError:
        return None


def names_in(
    metadata: ArrayMetadata,
    key: str,
    source: Ranges,
    among: Iterable[str | None] = (),
    *,
    is_enough: bool = False,
) -> list[str]:
    """Names of the dataset that has the chunks of a shard; see `dataset_names`.

    - `source`: the same, a file of HDF5. If its index is damaged, the chunks of the dataset need
      only have the right shape.
    """
    index = index_of(metadata, key, source)
    return dataset_names(source, metadata.grid, index, among, is_enough=is_enough)


class Begun:
    """An object whose first bytes were read at once; see `Ranges`.

    - `first`: its first bytes. By default they are read, as many as are looked at in most files.
    """

    def __init__(self, source: Ranges, first: Buffer | None = None) -> None:
        self.nbytes, self._source = source.nbytes, source
        if first is None:
            first = source.read(0, min(_FIRST_NBYTES, source.nbytes))
        self._first = memoryview(first).cast("B")

    def read(self, offset: int, nbytes: int) -> Buffer:
        """See `Ranges`."""
        if offset + nbytes <= len(self._first):
            return bytes(self._first[offset : offset + nbytes])
        left = min(nbytes, self.nbytes - offset)
        return self._source.read(offset, left) if left > 0 else b""


def _signature_at(metadata: ArrayMetadata, start: Begun) -> int | None:
    """Where the signature of HDF5 stands in an object; None if it is no such file."""
    for at in signature_places(metadata):
        if at + len(SIGNATURE) > start.nbytes:
            return None
        if start.read(at, len(SIGNATURE)) == SIGNATURE:
            return at
    return None


def why_unreadable(metadata: ArrayMetadata, source: Ranges, index: ShardIndex) -> str:
    """Why programs of HDF5 would refuse or spoil a shard that is such a file, or read other chunks.

    The superblock is looked at without the library of HDF5. If the library is installed, it opens
    the file.

    - Returns: empty if nothing is wrong, or if the object is no file of HDF5.
    """
    if not fits_hdf5(metadata):
        return ""
    start = Begun(source)
    at = _signature_at(metadata, start)
    table = index.table[~index.is_empty].astype(np.int64)
    if at is None or ((table[:, 0] <= at) & (at < table.sum(axis=1))).any():
        return ""  # in a plain shard, these may be the values of an inner chunk
    try:
        block = parse_superblock(bytes(start.read(at, LONGEST)), at)
    except ValueError as error:
        return f"the file of HDF5 is damaged: {error}"
    if block.is_open:
        return (
            "the file of HDF5 is marked as open: a program writes to it, or was killed while it did"
        )
    if block.end > source.nbytes:
        return (
            f"the file of HDF5 is cut off: it has {source.nbytes} bytes, and {block.end} by its "
            "superblock"
        )
    if block.end < source.nbytes and metadata.index_codec.location == "end":
        return (
            f"the file of HDF5 ends at byte {block.end} by its superblock, and has "
            f"{source.nbytes} bytes: a program that opens it for writing would cut off the index"
        )
    if has_library() and not dataset_names(source, metadata.grid, index):
        return "programs of HDF5 find no dataset in the file whose chunks lie where the index says"
    return ""


def refuse_hdf5(metadata: ArrayMetadata, strategy: Strategy, key: str, source: Ranges) -> None:
    """Refuse to change a shard that is a file of HDF5 by a strategy that makes something else."""
    if not fits_hdf5(metadata):
        return
    name = strategy.name_in_file if isinstance(strategy, Hdf5) else None
    is_file, has_name = look(metadata, key, source, name)
    if not is_file or has_name:
        return
    if not isinstance(strategy, Hdf5):
        raise SpecError(
            f"the shard {key!r} is also a file of HDF5, and would not be one afterwards",
            field="strategy",
            value=strategy.label,
            remedy=HOW_TO_CHANGE,
        )
    names = names_in(metadata, key, source, [name], is_enough=True)
    if names and name not in names:
        raise other_name(strategy, names, f"in the shard {key!r}")


def other_name(strategy: Hdf5, names: Sequence[str], where: str) -> SpecError:
    """The error about a strategy that would give a dataset another name."""
    return SpecError(
        f"the dataset {where} is {' or '.join(map(repr, names))}, and would become "
        f"{strategy.name_in_file!r}",
        field="strategy.dataset",
        value=strategy.dataset,
        remedy='give strategy="hdf5", which keeps the name. To write files with another name in '
        "place of these, also give drop_hdf5=True to write_region, erase or repair",
    )


def refuse_hdf5_among(
    metadata: ArrayMetadata, strategy: Strategy, store: Store, indices: Iterable[Shape]
) -> None:
    """Refuse to change shards of which one is a file of HDF5; see `refuse_hdf5`.

    A shard that cannot be read may be replaced, since no program could read it as such a file. No
    shard is looked at if HDF5 has no counterpart of the array.
    """
    if not fits_hdf5(metadata):
        return
    for index in indices:
        key = metadata.shard_key(index)
        with contextlib.suppress(StoreError), contextlib.ExitStack() as stack:
            reader = store.open(key)
            if reader is not None:
                stack.push(reader)
                refuse_hdf5(metadata, strategy, key, reader)


def is_hdf5_at(metadata: ArrayMetadata, store: Store, index: Shape) -> bool:
    """Whether the shard at a position of the shard grid is a file of HDF5; see `refuse_hdf5`."""
    if not fits_hdf5(metadata):
        return False
    with contextlib.suppress(StoreError), contextlib.ExitStack() as stack:
        reader = store.open(metadata.shard_key(index))
        if reader is not None:
            stack.push(reader)
            return is_hdf5(metadata, reader)
    return False


@lru_cache(maxsize=32)
def fits_hdf5(metadata: ArrayMetadata) -> bool:
    """Whether shards of an array can be files of HDF5."""
    try:
        describe(metadata, Hdf5())
    except SpecError:
        return False
    return True

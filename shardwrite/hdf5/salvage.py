"""A new index for a shard that is a file of HDF5, made from what the library of HDF5 tells.

A program that stores something in such a file moves its end, and may move chunks. Then the index
of Zarr is in the wrong place, or wrong. To cut the file off would destroy it for HDF5, which knows
where its chunks are. So the file stays whole, and gets a new index.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np

from shardwrite._dataclass import dataclass
from shardwrite.codecs.stages import Ranges
from shardwrite.encode.reader import decodes, shard_up_to
from shardwrite.errors import SpecError, StoreError
from shardwrite.format.index import ShardIndex
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.grid import Shape, ravel, unravel
from shardwrite.hdf5.format import ADDRESS
from shardwrite.hdf5.reading import ChunkTable, as_array, refusing
from shardwrite.hdf5.shards import dataset_names, end_of_file, names_told, why_unreadable
from shardwrite.operations.salvage import NewIndex
from shardwrite.runs.old_shards import OldShards
from shardwrite.sources import hdf5
from shardwrite.sources.common import place_text, require
from shardwrite.sources.inside import FileInBucket
from shardwrite.stores.base import Store
from shardwrite.stores.looking import as_store_error, mode_of

_SUPERBLOCK_NBYTES = 64
_LAST_WITHOUT_CHECKSUM = 1  # version of the superblock


def index_again(
    metadata: ArrayMetadata, store: Store, index: Shape, source: Ranges, old_shards: OldShards
) -> NewIndex | str | None:
    """Make the index of a shard that is a file of HDF5 again.

    - `source`: the shard, which starts as a file of HDF5.
    - Returns: the file with its new index. A text says why there can be none. None if index and
      file are as they should be.
    """
    key, root = metadata.shard_key(index), store.local_root
    path = None if root is None else Path(root, key)
    is_file = path is not None and stat.S_ISREG(mode_of(path))
    whole = tuple(i + first for i, first in zip(index, metadata.first_shard, strict=True))
    names = names_told(old_shards, whole) or dataset_names(source, metadata.grid, None)
    fitting, why = list[DatasetFile](), "HDF5 finds no dataset in it that fits the array"
    for name in names:
        try:
            file = look_into(str(path), name) if is_file else look_into(key, name, source)
        except SpecError as error:
            why = error.message
            continue
        if _fits(metadata, file.metadata):
            fitting.append(file)
    if len(fitting) > 1:
        several = ", ".join(repr(file.dataset) for file in fitting)
        return f"it is not known which of its datasets is the array's: {several}"
    return _new_index(metadata, source, fitting[0]) if fitting else why


# ---- A dataset whose chunks are those of a shard


@dataclass(frozen=True, slots=True)
class DatasetFile:
    """A file, and the dataset in it whose chunks are those of a shard."""

    dataset: str  # name of the dataset
    # Metadata of the array without shards that has the chunks of the dataset
    metadata: ArrayMetadata
    nbytes: int  # size of the file
    block_nbytes: int  # size of its user block
    why_not_end: str  # why nothing may follow the end of the file; empty if something may
    table: ChunkTable  # places of the chunks

    def index_of(self, array: ArrayMetadata) -> ShardIndex:
        """Index of the shard that the file becomes.

        - `array`: the array with shards. Its inner chunks are those of the dataset.
        """
        counts = array.grid.chunks_per_shard
        offsets = np.zeros(array.grid.n_chunks_per_shard, np.int64)
        nbytes = np.full(len(offsets), -1, np.int64)
        own = self.metadata.grid.counts
        ranks = [ravel(unravel(int(rank), own), counts) for rank in self.table.ranks]
        offsets[ranks], nbytes[ranks] = self.table.offsets, self.table.nbytes
        return ShardIndex.build(offsets, nbytes)


@dataclass(frozen=True, slots=True)
class _Object(FileInBucket):
    """An object of a store, as a file that lies somewhere else."""

    source: Ranges  # the object
    # What went wrong while it was read. The library of HDF5 tells it as damage of the file.
    troubles: list[StoreError]

    def read(self, offset: int, nbytes: int) -> bytes:
        """See :meth:`FileInBucket.read`."""
        try:
            return bytes(self.source.read(offset, nbytes))
        except StoreError as error:
            self.troubles.append(error)
            raise


def look_into(path: str, dataset: str | None, source: Ranges | None = None) -> DatasetFile:
    """Look at a dataset of a file, which is to be a shard as it is.

    - `dataset`: name of the dataset. It may be left out if the file has only one.
    - `source`: the file, if it is an object of a store. Then `path` is the name by which errors
      call it.
    - Raises SpecError, whose message says why its chunks cannot be those of a shard.
    """
    if source is None:
        return _look_into(path, dataset)
    place = _Object(path, "", (source.nbytes, None, None), source, [])
    try:
        return _look_into(place, dataset)
    except SpecError:
        if place.troubles:
            raise place.troubles[0] from None
        raise


def _look_into(place: str | FileInBucket, dataset: str | None) -> DatasetFile:
    """See `look_into`."""
    path = place_text(place)
    if isinstance(place, str) and stat.S_ISLNK(mode_of(place, follow=False)):
        raise _refused("it is a symbolic link")
    with refusing(place, lambda _path, why, _remedy: _refused(why)):
        array = as_array(place, dataset or "", keeps_checksums=True)
    table, name = array.table, array.source.dataset
    if array.codecs.why_not or table is None:
        raise _refused(f"it has {array.codecs.why_not}")
    n_odd = int(table.is_odd.sum())
    if n_odd:
        raise _refused(f"filters were left out for {n_odd:,} of its chunks")
    with as_store_error(path, "cannot read"), hdf5.reading(place) as file:
        # In an object, there is no such link: it is refused before.
        if isinstance(place, str) and not os.path.samefile(file[name].file.filename, path):
            raise _refused(f"{name!r} is a link into another file")
        # Where HDF5 keeps a list of free space, or cuts the file into pages, it stores the end of
        # the file a second time.
        plan, persists, _ = file.id.get_create_plist().get_file_space_strategy()
        base = int(file.userblock_size)
        nbytes = place.nbytes if isinstance(place, FileInBucket) else os.stat(place).st_size
    why_not_end = "the file keeps a list of its free space" if persists else ""
    if plan == require("h5py", "hdf5", path).h5f.FSPACE_STRATEGY_PAGE:
        why_not_end = "the file consists of pages"
    order = np.argsort(table.offsets, kind="stable")
    begins, ends = table.offsets[order], (table.offsets + table.nbytes)[order]
    if (begins[1:] < ends[:-1]).any() or ends.max(initial=0) > nbytes:
        raise _refused("its chunks lie over each other, or past its end")
    return DatasetFile(name, array.metadata, nbytes, base, why_not_end, table)


def _refused(why: str) -> SpecError:
    return SpecError(why, field="files", value=None, remedy="")


# ---- Whether it fits, and the index that it gives


def _fits(metadata: ArrayMetadata, dataset: ArrayMetadata) -> bool:
    """Whether a dataset may be that of a shard. Its length may be shorter at the end of an array.

    Parameters of compressors may differ, since they are not needed to decode.
    """
    grid, own = metadata.grid, dataset.grid
    return (
        own.chunks == grid.chunks
        and all(n <= s for n, s in zip(own.shape, grid.shards, strict=True))
        and dataset.pipeline.stored_dtype == metadata.pipeline.stored_dtype
        and _bits(dataset) == _bits(metadata)
        and [codec["name"] for codec in dataset.inner_codecs]
        == [codec["name"] for codec in metadata.inner_codecs]
    )


def _bits(metadata: ArrayMetadata) -> bytes:
    return np.asarray(metadata.fill_value, metadata.dtype).tobytes()


def _new_index(metadata: ArrayMetadata, source: Ranges, file: DatasetFile) -> NewIndex | str | None:
    """The file with the index that its dataset tells; see `index_again`."""
    if file.nbytes != source.nbytes:
        return "another program changes it at this moment"
    codec, new = metadata.index_codec, file.index_of(metadata)
    now = shard_up_to(metadata, source, source.nbytes)
    is_same = now is not None and now.index.checksum == new.checksum
    if now is not None and is_same and not why_unreadable(metadata, source, now.index):
        return None
    seal, n = codec.seal(new), source.nbytes
    if codec.location == "start":
        if len(seal.prefix) > file.block_nbytes:
            return "its user block has no room for the index"
        fixed = NewIndex(source, n, file.dataset, ((0, bytes(seal.prefix)),))
    elif file.why_not_end:
        return f"nothing may follow its end: {file.why_not_end}"
    else:
        suffix, base = bytes(seal.suffix), file.block_nbytes
        at, _, version = end_of_file(bytes(source.read(base, min(_SUPERBLOCK_NBYTES, n - base))))
        if version > _LAST_WITHOUT_CHECKSUM:
            return f"nothing may follow its end: its superblock has version {version}"
        end = ADDRESS.pack(n + len(suffix))
        changes = ((base + at, end), (n, suffix))
        fixed = NewIndex(source, n + len(suffix), file.dataset, changes)
    shard = shard_up_to(metadata, fixed, fixed.nbytes)
    if shard is None or not decodes(shard):
        return "its chunks do not decode"
    return why_unreadable(metadata, fixed, shard.index) or fixed

"""A new index for a shard that is a file of HDF5, made from what the library of HDF5 tells.

A program that stores something in such a file moves its end, and may move chunks. Then the index
of Zarr is in the wrong place, or wrong. To cut the file off would destroy it for HDF5, which knows
where its chunks are. So the file stays whole, and gets a new index.
"""

from __future__ import annotations

import stat
import struct
from pathlib import Path

import numpy as np

from shardwrite.codecs.stages import Ranges
from shardwrite.encode.reader import decodes, shard_up_to
from shardwrite.errors import SpecError
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.grid import Shape
from shardwrite.hdf5.reading import DatasetFile, look_into
from shardwrite.hdf5.shards import dataset_names, end_of_file, names_told, why_unreadable
from shardwrite.operations.salvage import NewIndex
from shardwrite.runs.old_shards import OldShards
from shardwrite.stores.base import Store
from shardwrite.stores.looking import mode_of

_NO_SHARD = "cannot become a shard as it is: "
_SUPERBLOCK_NBYTES = 64
_LAST_WITHOUT_CHECKSUM = 1  # version of the superblock


def index_again(
    metadata: ArrayMetadata, store: Store, index: Shape, source: Ranges, known: OldShards
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
    names = names_told(known, whole) or dataset_names(source, metadata.grid, None)
    found, why = list[DatasetFile](), "HDF5 finds no dataset in it that fits the array"
    for name in names:
        try:
            one = look_into(str(path), name) if is_file else look_into(key, name, source)
        except SpecError as error:
            why = error.message.removeprefix(_NO_SHARD)
            continue
        if _fits(metadata, one.metadata):
            found.append(one)
    if len(found) != 1:
        several = ", ".join(repr(one.dataset) for one in found)
        return f"it is not known which of its datasets is the array's: {several}" if found else why
    return _made(metadata, source, found[0])


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


def _made(metadata: ArrayMetadata, source: Ranges, found: DatasetFile) -> NewIndex | str | None:
    """The file with the index that its dataset tells; see `index_again`."""
    if found.nbytes != source.nbytes:
        return "another program changes it at this moment"
    codec, new = metadata.index_codec, found.index_of(metadata)
    now = shard_up_to(metadata, source, source.nbytes)
    is_same = now is not None and now.index.checksum == new.checksum
    if now is not None and is_same and not why_unreadable(metadata, source, now.index):
        return None
    seal, n = codec.seal(new), source.nbytes
    if codec.location == "start":
        if len(seal.prefix) > found.block_nbytes:
            return "its user block has no room for the index"
        made = NewIndex(source, n, found.dataset, ((0, bytes(seal.prefix)),))
    elif found.why_not_end:
        return f"nothing may follow its end: {found.why_not_end}"
    else:
        suffix, base = bytes(seal.suffix), found.block_nbytes
        at, _, version = end_of_file(bytes(source.read(base, min(_SUPERBLOCK_NBYTES, n - base))))
        if version > _LAST_WITHOUT_CHECKSUM:
            return f"nothing may follow its end: its superblock has version {version}"
        end = struct.pack("<Q", n + len(suffix))
        changes = ((base + at, end), (n, suffix))
        made = NewIndex(source, n + len(suffix), found.dataset, changes)
    shard = shard_up_to(metadata, made, made.nbytes)
    if shard is None or not decodes(shard):
        return "its chunks do not decode"
    return why_unreadable(metadata, made, shard.index) or made

"""Datasets whose files can be shards as they are: where chunks lie, and what may change."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from shardwrite.codecs.stages import Buffer
from shardwrite.errors import SpecError, StoreError
from shardwrite.format.index import ShardIndex
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.grid import ravel, unravel
from shardwrite.sources import hdf5
from shardwrite.sources.common import open_binary, place_text, require
from shardwrite.sources.hdf5_chunks import ChunkTable
from shardwrite.sources.hdf5_store import DatasetArray, as_array
from shardwrite.stores import as_store_error
from shardwrite.stores.bucket_files import FileInBucket

DECODE = "write the values with shardwrite write, which decodes and encodes"
NO_FILE = "it is no regular file"
GIVE_FILES = "give files by their names, also those of a directory"
"""Remedy where the chunks of a dataset cannot be those of an array."""

_OF_NETCDF3 = b"CDF"  # first bytes of a file


@dataclass(frozen=True, slots=True)
class DatasetFile:
    """A file, and the dataset in it whose chunks are those of a shard."""

    path: str  # the file
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


class Ranges(Protocol):
    """An object whose bytes can be read in ranges."""

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""

    def read(self, offset: int, nbytes: int) -> Buffer:
        """Read exactly `nbytes` bytes from `offset`."""


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
    path, found = place_text(place), _as_array_of(place, dataset)
    if found.codecs.why_not or found.table is None:
        raise _refused(path, f"it has {found.codecs.why_not}", DECODE)
    n_odd = int(found.table.is_odd.sum())
    if n_odd:
        raise _refused(path, f"filters were left out for {n_odd:,} of its chunks")
    name = found.source.dataset
    with as_store_error(path, "cannot read"), hdf5.reading(place) as file:
        # In an object, there is no such link: it is refused before.
        if isinstance(place, str) and not os.path.samefile(file[name].file.filename, path):
            raise _refused(path, f"{name!r} is a link into another file")
        why_not_end = _why_not_end(file, path)
        base = int(file.userblock_size)
    with as_store_error(path, "cannot read"):
        nbytes = place.nbytes if isinstance(place, FileInBucket) else os.stat(place).st_size
    _check_apart(path, found.table, nbytes)
    return DatasetFile(
        path,
        name,
        found.metadata,
        nbytes,
        base,
        why_not_end,
        found.table,
    )


def _as_array_of(place: str | FileInBucket, dataset: str | None) -> DatasetArray:
    """A dataset of a file as an array of Zarr, whose checksums stay."""
    if isinstance(place, str):
        with as_store_error(place, "cannot look at"):
            mode, own = os.stat(place).st_mode, os.lstat(place).st_mode
        if not stat.S_ISREG(mode):
            raise _refused(place, NO_FILE, GIVE_FILES)
        if stat.S_ISLNK(own):
            raise _refused(place, "it is a symbolic link", "give the file that it leads to")
    with refusing(place, _refused):
        return as_array(place, dataset or "", keeps_checksums=True)


@contextlib.contextmanager
def refusing(
    place: str | FileInBucket, refused: Callable[[str, str, str], SpecError]
) -> Iterator[None]:
    """Have errors about a file, which is looked at, be told as a refusal of that file."""
    path = place_text(place)
    h5py = require("h5py", "hdf5", path)
    try:
        with hdf5.reading(place) as file:
            if file.id.get_intent() & h5py.h5f.ACC_RDWR:  # a process opens a file only once
                raise refused(path, "this process has it open for writing", "close it first")
        yield
    except SpecError as error:
        if error.fields["field"] not in ("source", "src"):  # of functions that take one file
            raise
        raise refused(path, error.message, str(error.fields["remedy"])) from error
    except StoreError:
        raise
    except OSError as error:
        if error.errno == errno.EAGAIN:
            why = "another program has it open for writing"
            raise refused(path, why, "close it there first") from error
        if error.errno is not None:
            with as_store_error(path, "cannot read"):
                raise
        with as_store_error(path, "cannot read"), open_binary(place) as file:
            is_other = file.read(len(_OF_NETCDF3)) == _OF_NETCDF3
        if is_other:
            raise refused(path, "it is a NetCDF-3 file, which has no chunks", DECODE) from error
        why = f"it cannot be read as HDF5 ({error})"
        raise refused(path, why, "check the file") from error


def _check_apart(path: str, table: ChunkTable, nbytes: int) -> None:
    """Refuse a file whose chunks share bytes, or lie past its end."""
    order = np.argsort(table.offsets, kind="stable")
    begins = table.offsets[order]
    ends = begins + table.nbytes[order]
    if (begins[1:] < ends[:-1]).any() or ends.max(initial=0) > nbytes:
        raise _refused(path, "its chunks lie over each other, or past its end")


def _why_not_end(file: Any, path: str) -> str:
    """Why nothing may follow the end of a file.

    Where HDF5 keeps a list of free space, or cuts the file into pages, it stores the end of the
    file a second time.
    """
    h5py = require("h5py", "hdf5", path)
    plan, persists, _ = file.id.get_create_plist().get_file_space_strategy()
    if plan == h5py.h5f.FSPACE_STRATEGY_PAGE:
        return "the file consists of pages"
    return "the file keeps a list of its free space" if persists else ""


def _refused(path: str, why: str, remedy: str = "") -> SpecError:
    return SpecError(
        f"cannot become a shard as it is: {why}",
        field="files",
        value=path,
        remedy=remedy or DECODE,
    )

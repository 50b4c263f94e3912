"""Frames of shards that are files of HDF5, made by the library of HDF5.

The library writes a file into a recorder, which keeps what lies around the chunks, and only the
places of the chunks themselves. Only sizes of the encoded inner chunks are needed for that, so no
image of the file is ever in memory. The emitter then writes the parts in sequence.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.errors import StoreError
from shardwrite.format.frame import HDF5, Layout, Piece
from shardwrite.format.order import Ranks
from shardwrite.grid import Shape
from shardwrite.hdf5.format import ADDRESS, END_OF_FILE, Hdf5File
from shardwrite.host.libraries import library

# versions of the format: those that all readers since HDF5 1.8 know
_BOUNDS = ("earliest", "v108")
_FILTERS = ("blosc", "bzip2", "zstd")
_registered: list[Any] = []
# first bytes of what stands for a chunk, by which it is told from the library's own data
_MARK = bytes.fromhex("c5b1709e4dfa2836")
_MARK_NBYTES = len(_MARK)


@dataclass(frozen=True, slots=True)
class Hdf5Frame:
    """Frame of one shard; see `format.frame.Frame`."""

    file: Hdf5File  # what the shard holds
    extent: Shape  # shape of its dataset

    @property
    def keeps(self) -> npt.NDArray[np.bool_]:
        """See `Frame`; those that have elements in the dataset."""
        return self.file.is_inside(self.extent)

    def reserve(self) -> Sequence[tuple[int, int]]:
        """See `Frame`."""
        return _rooms(self.file, self.extent)

    def close(self, nbytes: Ranks) -> Layout:
        """See `Frame`."""
        return _laid_out(self.file, self.extent, nbytes.astype(np.int64, copy=False).tobytes())


@lru_cache(maxsize=16)
def _rooms(file: Hdf5File, extent: Shape) -> Sequence[tuple[int, int]]:
    full = lay_out_file(file, extent, np.where(file.is_inside(extent), 1, -1))
    return [(piece.n_before, len(piece.data)) for piece in full.pieces]


@lru_cache(maxsize=4)  # chunks that are not compressed have the same sizes in all files
def _laid_out(file: Hdf5File, extent: Shape, nbytes: bytes) -> Layout:
    return lay_out_file(file, extent, np.frombuffer(nbytes, np.int64))


class _Recorder:
    """File into which the library of HDF5 writes. It does not keep the chunks.

    - `expected`: chunk that is to be written. Only the place of it is noted.
    - `chunk_at`: this place; -1 before the chunk is written.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self.expected = memoryview(b"")
        self.chunk_at = -1
        self.pieces: list[tuple[int, bytes]] = []
        self._at = 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self.nbytes)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def write(self, data: Any) -> int:
        nbytes, start = len(data), self._at
        if nbytes == len(self.expected) and bytes(data[:_MARK_NBYTES]) == _MARK[:nbytes]:
            self.chunk_at = start
        else:
            self.pieces.append((start, bytes(data)))
        self._at = end = start + nbytes
        if end > self.nbytes:
            self.nbytes = end
        return nbytes

    def readinto(self, buffer: Any) -> int:
        read = bytearray(len(buffer))
        for at, data in self.pieces:
            start, stop = max(at, self._at), min(at + len(data), self._at + len(read))
            if start < stop:
                read[start - self._at : stop - self._at] = data[start - at : stop - at]
        buffer[:] = read
        self._at += len(read)
        return len(read)

    def read(self, nbytes: int = -1) -> bytes:
        buffer = bytearray(self.nbytes - self._at if nbytes < 0 else nbytes)
        self.readinto(buffer)
        return bytes(buffer)

    def truncate(self, nbytes: int | None = None) -> int:
        self.nbytes = self._at if nbytes is None else nbytes
        return self.nbytes

    def flush(self) -> None:
        """Do nothing, as all is in memory."""


def require_h5py() -> Any:
    """The module h5py, with the filters of hdf5plugin."""
    h5py, hdf5plugin = (
        library(name, "hdf5", field="strategy", value="hdf5") for name in ("h5py", "hdf5plugin")
    )
    if not _registered:
        # Files hold the names that filters give themselves. So the same filters are used wherever
        # other libraries have registered theirs.
        for name in _FILTERS:
            with contextlib.suppress(RuntimeError):  # a dataset that is open needs the present one
                hdf5plugin.register(name, force=True)
        _registered.append(hdf5plugin)
    return h5py


def lay_out_file(file: Hdf5File, extent: Shape, nbytes: Ranks) -> Layout:
    """Have the library of HDF5 lay out a file.

    - `nbytes`: int64, shape (n,). Encoded size of each inner chunk by rank, in bytes; negative
      where it is empty. All that are stored have elements in the dataset.
    """
    h5py = require_h5py()
    ranks = np.flatnonzero(nbytes >= 0)
    # Pages of zeros that nobody touches take no memory.
    chunk = np.zeros(max(_MARK_NBYTES, int(nbytes.max(initial=0))), dtype=np.uint8)
    chunk[:_MARK_NBYTES] = np.frombuffer(_MARK, np.uint8)
    recorder, stand_in, places = _Recorder(), chunk.data, []
    # Threads would else pass the lock of h5py to each other at every call. In older versions, such
    # as 3.12, some calls do not take it, so a thread beside them could end the process.
    with (
        h5py._hl.base.phil,  # noqa: SLF001 (there is no public name of it)
        h5py.File(
            recorder, "w", libver=_BOUNDS, userblock_size=file.block_nbytes or None
        ) as opened,
    ):
        dataset = _make_dataset(h5py, opened, file, extent)
        write = dataset.write_direct_chunk
        for size, position in zip(nbytes[ranks].tolist(), file.positions(ranks), strict=True):
            recorder.chunk_at = -1
            recorder.expected = data = stand_in[:size]
            write(position, data)
            places.append(recorder.chunk_at)
        recorder.expected = memoryview(b"")
        del dataset, write
    if places and min(places) < 0:
        raise _surprise("does not write a chunk at once")
    offsets = np.zeros(len(nbytes), dtype=np.int64)
    offsets[ranks] = places
    sequence = ranks[np.argsort(offsets[ranks], kind="stable")]
    pieces = _around(recorder, offsets[sequence], nbytes[sequence])
    head = pieces[0].data
    if not file.block_nbytes:
        _raise_end(head, recorder.nbytes, file.index_nbytes)
    elif bytes(head[file.block_nbytes :][: len(HDF5.magic)]) != HDF5.magic:
        raise _surprise("leaves no user block")
    return Layout(sequence, offsets, pieces, recorder.nbytes)


def _make_dataset(h5py: Any, opened: Any, file: Hdf5File, extent: Shape) -> Any:
    """Make the dataset without chunks, and without times."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk(file.chunks)
    properties.set_obj_track_times(False)
    properties.set_fill_value(file.fill_value)
    for one in file.filters:
        properties.set_filter(one.number, h5py.h5z.FLAG_MANDATORY, one.values)
    links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    links.set_char_encoding(h5py.h5t.CSET_UTF8)
    access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
    access.set_chunk_cache(1, 0, 1.0)  # nothing is read through it
    return h5py.h5d.create(
        opened.id,
        file.dataset.encode(),
        h5py.h5t.py_create(file.dtype, logical=True),
        h5py.h5s.create_simple(extent, file.shards),
        properties,
        links,
        access,
    )


def _around(recorder: _Recorder, begins: Ranks, sizes: Ranks) -> list[Piece]:
    """What the library has written before each chunk, and behind the last one."""
    starts = [0, *(begins + sizes).tolist()]
    stops = [*begins.tolist(), recorder.nbytes]
    if any(start > stop for start, stop in zip(starts, stops, strict=True)):
        raise _surprise("writes chunks over each other")
    gaps = [bytearray(stop - start) for start, stop in zip(starts, stops, strict=True)]
    for at, data in recorder.pieces:
        gap = bisect.bisect_right(starts, at) - 1
        # A chunk of no bytes makes an empty gap, which has nothing to hold.
        if at + len(data) > stops[gap]:
            raise _surprise("writes over a chunk")
        gaps[gap][at - starts[gap] : at - starts[gap] + len(data)] = data
    return [Piece(n, starts[n], data) for n, data in enumerate(gaps) if data]


def _raise_end(head: Any, nbytes: int, index_nbytes: int) -> None:
    """Raise the end-of-file address of a superblock by the size of the index that follows.

    A program that opens the file for writing, and changes nothing, then leaves the index there.
    """
    at = END_OF_FILE[0]
    is_known = head[: len(HDF5.magic)] == HDF5.magic and head[len(HDF5.magic)] == 0
    if not is_known or ADDRESS.unpack_from(head, at) != (nbytes,):
        raise _surprise("writes another superblock")
    ADDRESS.pack_into(head, at, nbytes + index_nbytes)


def _surprise(what: str) -> StoreError:
    """The error where the library of HDF5 does something else than it is known to do."""
    return StoreError(
        f"this version of the library of HDF5 {what}; install another version of h5py",
        key="",
        errno=errno.ENOTSUP,
    )

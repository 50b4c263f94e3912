"""Names and chunks of datasets in a shard that is a file of HDF5, as the library reads them."""

from __future__ import annotations

import io
from array import array
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.encode.reader import Loaded, Ranges
from shardwrite.errors import StoreError
from shardwrite.format.index import ShardIndex
from shardwrite.grid import ShardGrid

__all__ = ["dataset_names", "has_library", "stored_chunks"]

_DAMAGE = (ArithmeticError, LookupError, OSError, RuntimeError, TypeError, ValueError)
"""What h5py raises where a file is damaged."""

_SMALL_NBYTES = 65536  # files that are read at once


def dataset_names(
    source: Ranges,
    grid: ShardGrid,
    index: ShardIndex | None,
    among: Iterable[str | None] = (),
    *,
    is_enough: bool = False,
) -> list[str]:
    """Names of the dataset in a file of HDF5 that has the chunks of a shard.

    It may have several names, of which only one is found by a look through the file.

    Parameters
    ----------
    source : Ranges
        The file.
    grid : ShardGrid
        The grid of the array.
    index : ShardIndex, optional
        Index of the shard: the chunks of the dataset lie where it says. Without it, all datasets
        whose chunks have the right shape are found.
    among : iterable of str or None
        Further names, which are looked up. Those that the file has come first.
    is_enough : bool
        Whether no others are looked for if the file has one of these.

    Returns
    -------
    list of str
        The names; none if the library cannot read the file, or is not installed.
    """
    if not has_library():
        return []
    import h5py  # slow

    found: list[str] = []

    def visit(name: str, node: object) -> None:
        if is_it(node):
            found.append(name)

    def is_it(node: object) -> bool:
        if not isinstance(node, h5py.Dataset) or node.chunks != grid.chunks:
            return False
        return index is None or _has_places(node, grid, index)

    try:
        whole = Loaded(source) if source.nbytes <= _SMALL_NBYTES else source
        with h5py.File(_Seekable(whole), "r") as file:
            known = [name for name in among if is_it(file.get(name or "/"))]
            if not (known and is_enough):
                file.visititems(visit)
    except StoreError:
        raise
    except _DAMAGE:
        return []  # no program reads it as such a file
    return list(dict.fromkeys([name for name in known if name is not None] + found))


@cache
def has_library() -> bool:
    """Whether the library of HDF5 is installed, which is an extra."""
    return find_spec("h5py") is not None


def _has_places(dataset: Any, grid: ShardGrid, index: ShardIndex) -> bool:
    """Whether the chunks of a dataset lie where the index of a shard says."""
    stored = stored_chunks(dataset)
    positions, places = stored[:, :-3], stored[:, -3:-1]
    is_inside = (positions < np.array(dataset.shape, np.int64)).all(axis=1)
    at, places = positions[is_inside] // np.array(grid.chunks, np.int64), places[is_inside]
    counts = grid.chunks_per_shard
    if len(at) != index.n_present or (at >= np.array(counts, np.int64)).any():
        return False
    found = index.table[np.ravel_multi_index(tuple(at.T), counts)].astype(np.int64)
    # Some versions of the library do not count the user block at the start of the file.
    bases = {0, int(dataset.file.userblock_size)}
    return any(bool((found == places + np.array([base, 0])).all()) for base in bases)


def stored_chunks(dataset: Any) -> npt.NDArray[np.int64]:
    """Chunks that have a place in a file, as the library of HDF5 tells it.

    Parameters
    ----------
    dataset : h5py.Dataset
        A dataset of chunks.

    Returns
    -------
    numpy.ndarray of int64, shape (n, ndim + 3)
        Position in elements, first byte, size and filter mask of each chunk. They are integers in
        one piece of memory, since a dataset may have millions of chunks.
    """
    found = array("q")

    def note(info: Any) -> None:
        if info.byte_offset is not None and info.size:
            found.extend((*info.chunk_offset, info.byte_offset, info.size, info.filter_mask))

    if hasattr(dataset.id, "chunk_iter"):
        dataset.id.chunk_iter(note)
    else:  # HDF5 before 1.12.3
        for number in range(dataset.id.get_num_chunks()):
            note(dataset.id.get_chunk_info(number))
    return np.asarray(found, np.int64).reshape(-1, len(dataset.shape) + 3)


class _Seekable(io.RawIOBase):
    """An object of a store as a file of Python."""

    def __init__(self, source: Ranges) -> None:
        super().__init__()
        self._source, self._at = source, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._source.nbytes}[whence]
        self._at = start + offset
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        n = max(0, min(len(buffer), self._source.nbytes - self._at))
        buffer[:n] = bytes(self._source.read(self._at, n))
        self._at += n
        return n

"""Names and chunks of datasets in a shard that is a file of HDF5, as the library reads them."""

from __future__ import annotations

import io
import math
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
from shardwrite.grid import Shape, ShardGrid, ceil_div

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

    - `index`: index of the shard: the chunks of the dataset lie where it says. Without it, all
      datasets whose chunks have the right shape are found.
    - `among`: further names, which are looked up. Those that the file has come first.
    - Returns: the names; none if the library cannot read the file, or is not installed.
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
    if stored is None:
        return False
    at, places = stored[:, :-3], stored[:, -3:-1]
    counts = grid.chunks_per_shard
    if len(at) != index.n_present or (at >= np.array(counts, np.int64)).any():
        return False
    found = index.table[np.ravel_multi_index(tuple(at.T), counts)].astype(np.int64)
    # Some versions of the library do not count the user block at the start of the file.
    bases = {0, int(dataset.file.userblock_size)}
    return any(bool((found == places + np.array([base, 0])).all()) for base in bases)


def stored_chunks(dataset: Any) -> npt.NDArray[np.int64] | None:
    """Chunks that have a place in a file, as the library of HDF5 tells it.

    Where one axis is unlimited, and it is not the first, all versions of the library up to 2.0 list
    the chunks of an extensible array at wrong positions (`_turned`). The library does not tell
    which index a dataset has. So what it lists is compared with what it reads by position, which is
    right in all of them.

    - Returns: position in the grid of chunks, first byte, size and filter mask of each chunk. They
      are integers in one piece of memory, since a dataset may have millions of chunks. None if the
      library lists chunks that the dataset cannot have, or does not read them where they are.
    """
    listed = array("q")

    def note(info: Any) -> None:
        if info.byte_offset is not None and info.size:
            listed.extend((*info.chunk_offset, info.byte_offset, info.size, info.filter_mask))

    if hasattr(dataset.id, "chunk_iter"):
        dataset.id.chunk_iter(note)
    else:  # HDF5 before 1.12.3
        for number in range(dataset.id.get_num_chunks()):
            note(dataset.id.get_chunk_info(number))
    table = np.asarray(listed, np.int64).reshape(-1, len(dataset.shape) + 3)
    positions, rest = np.divmod(table[:, :-3], np.array(dataset.chunks, np.int64))
    if rest.any() or table[:, -3:-1].sum(axis=1).max(initial=0) > dataset.file.id.get_filesize():
        return None  # it is damaged, and the library might take as much memory as it claims
    counts = tuple(ceil_div(n, c) for n, c in zip(dataset.shape, dataset.chunks, strict=True))
    turned, ranks = _turned(dataset, positions), _ranks(positions, counts)
    if turned is not None:
        others = _ranks(turned, counts)
        is_listed = _is_read(dataset, ranks, others)
        if is_listed == _is_read(dataset, others, ranks):
            return None
        if not is_listed:
            positions, ranks = turned, others
    table[:, :-3] = positions
    return None if ranks is None else table


def _turned(dataset: Any, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
    """Positions of the chunks of an extensible array, from those that the library lists.

    Elements of this index have numbers, in which the unlimited axis is the slowest, wherever it
    stands. When the library lists them, it counts as if the first axis were the slowest. So it
    never gets beyond the unlimited axis, and all positions along the axes before that one are 0.

    - `positions`: int64, shape (n, ndim). Positions in the grid of chunks, as the library lists
      them.
    - Returns: the positions, if the dataset has this index. None if it cannot, or they are the
      same.
    """
    most = dataset.maxshape
    axis = most.index(None) if most.count(None) == 1 else 0
    if axis == 0 or not len(positions) or positions[:, :axis].any():
        return None
    counts = [ceil_div(n, c) for n, c in zip(most[:axis], dataset.chunks[:axis], strict=True)]
    turned = positions.copy()
    turned[:, axis], numbers = np.divmod(positions[:, axis], math.prod(counts))
    turned[:, :axis] = np.stack(np.unravel_index(numbers, counts), axis=1)
    return None if (turned == positions).all() else turned


def _ranks(positions: npt.NDArray[np.int64], counts: Shape) -> npt.NDArray[np.int64] | None:
    """Row-major ranks of positions in a grid; None if some are outside."""
    if (positions >= np.array(counts, np.int64)).any():
        return None
    ranks: npt.NDArray[np.int64] = positions @ np.array(
        [math.prod(counts[n:]) for n in range(1, len(counts) + 1)], np.int64
    )
    return ranks


def _is_read(
    dataset: Any, ranks: npt.NDArray[np.int64] | None, others: npt.NDArray[np.int64] | None
) -> bool:
    """Whether the library reads a chunk at one of these positions that is none of the others.

    The positions that it lists and those that `_turned` makes of them are never the same set.
    """
    if ranks is None:
        return False
    counts = [ceil_div(n, c) for n, c in zip(dataset.shape, dataset.chunks, strict=True)]
    rank = ranks[0] if others is None else np.setdiff1d(ranks, others)[0]
    place = np.unravel_index(int(rank), counts)
    position = tuple(int(i) * c for i, c in zip(place, dataset.chunks, strict=True))
    try:
        dataset.id.read_direct_chunk(position)
    except (OSError, RuntimeError):
        return False
    return True


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

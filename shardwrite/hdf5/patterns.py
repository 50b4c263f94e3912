"""Layouts of shards that are files of HDF5, most of them without a call of the library.

The library takes some 10 µs for each inner chunk, under a lock that all threads share. So this
process asks it only for the first files of their kind. A kind is what the files hold, their extent,
and the number of their chunks. There are three steps:

1. The library lays out the first file of a kind. Its layout is kept, and also serves all files
   whose chunks have the same ranks and sizes.
2. The library also lays out the next file with other sizes. If the pattern of the first file gives
   the same bytes, it is used from then on.
3. Where it does not, the library goes on to lay out all files of this kind.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from shardwrite.format.hdf5_file import Hdf5File
from shardwrite.format.hdf5_pattern import FileLayout, FilePattern
from shardwrite.format.placement import Ranks
from shardwrite.grid import Shape
from shardwrite.hdf5.layout import lay_out_file

# memory that all kinds together take, about
_MOST_NBYTES = 32 * 2**20


@dataclass(slots=True)
class _Kind:
    """What is kept of the files of one kind."""

    # Sizes of the inner chunks of the first file by rank, in bytes; negative where it has none
    nbytes: Ranks
    layout: FileLayout  # layout of this file
    pattern: FilePattern | None = None  # its pattern, after it was compared
    is_compared: bool = False  # whether there is nothing left to compare

    def find(self, nbytes: Ranks) -> list[FileLayout | None]:
        """Layouts of files of this kind; None where only the library can tell.

        - `nbytes`: int64, shape (m, n). Sizes of the inner chunks of m files by rank, as in
          `lay_out`.
        """
        found: list[FileLayout | None] = [self.layout] * len(nbytes)
        others = np.flatnonzero((nbytes != self.nbytes).any(axis=1)).tolist()
        filled = self.pattern.fill(nbytes[others]) if self.pattern and others else None
        for place, number in enumerate(others):
            found[number] = None if filled is None else filled[place]
        return found

    def compare(self, file: Hdf5File, nbytes: Ranks, layout: FileLayout) -> None:
        """Take the pattern of the first file if it gives the layout of another one."""
        if self.is_compared:
            return
        self.is_compared = True
        try:
            pattern = FilePattern(file, self.nbytes, self.layout)
        except ValueError:  # another version of the library may do everything in another way
            return
        if pattern.fill(nbytes[np.newaxis])[0].is_same(layout):
            self.pattern = pattern

    @property
    def taken_nbytes(self) -> int:
        """Memory that it takes, in bytes."""
        taken = self.nbytes.nbytes + sum(map(len, self.layout.around))
        return taken + (0 if self.pattern is None else self.pattern.nbytes)


class _Kinds:
    """The kinds that this process keeps: those that were used last."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[Hashable, tuple[_Kind, int]] = OrderedDict()
        self._taken_nbytes = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> _Kind | None:
        """The kind with a key, if it is kept."""
        with self._lock:
            if key not in self._kinds:
                return None
            self._kinds.move_to_end(key)
            return self._kinds[key][0]

    def keep(self, key: Hashable, kind: _Kind) -> None:
        """Keep a kind, or count anew what it takes. Others may have to go."""
        nbytes = kind.taken_nbytes
        with self._lock:
            self._taken_nbytes += nbytes - self._kinds.pop(key, (kind, 0))[1]
            self._kinds[key] = kind, nbytes
            while self._taken_nbytes > _MOST_NBYTES:
                self._taken_nbytes -= self._kinds.popitem(last=False)[1][1]


_kinds = _Kinds()
_library = threading.Lock()


def lay_out(file: Hdf5File, extent: Shape, nbytes: Ranks) -> FileLayout:
    """Lay out a file as the library of HDF5 does.

    - `nbytes`: int64, shape (n,). Encoded size of each inner chunk by rank, in bytes; negative
      where it is empty. All that are stored have elements in the dataset, and at least one is
      stored.
    """
    return lay_out_all(file, [extent], nbytes[np.newaxis])[0]


def lay_out_all(file: Hdf5File, extents: Sequence[Shape], nbytes: Ranks) -> list[FileLayout]:
    """Lay out several files that hold the same kind of dataset; see `lay_out`.

    - `nbytes`: int64, shape (m, n). Sizes of the inner chunks of each file.
    """
    kinds: dict[tuple[Shape, int], list[int]] = {}
    counts = np.count_nonzero(nbytes >= 0, axis=1).tolist()
    for number, kind in enumerate(zip(extents, counts, strict=True)):
        kinds.setdefault(kind, []).append(number)
    found: dict[int, FileLayout] = {}
    for kind, numbers in kinds.items():
        key, left = (file.key, *kind), numbers
        while left:
            known = zip(left, _known(key, nbytes[left]), strict=True)
            found |= {number: layout for number, layout in known if layout is not None}
            left = [number for number in left if number not in found]
            if left:
                number = left[0]
                found[number] = _asked(file, extents[number], nbytes[number], key)
    return [found[number] for number in range(len(extents))]


def _asked(file: Hdf5File, extent: Shape, nbytes: Ranks, key: Hashable) -> FileLayout:
    """Have the library lay out a file, and learn from it."""
    with _library:
        # Another thread may have laid out such a file while this one waited.
        (layout,) = _known(key, nbytes[np.newaxis])
        if layout is not None:
            return layout
        layout = lay_out_file(file, extent, nbytes)
        kind = _kinds.get(key)
        if kind is None:
            kind = _Kind(nbytes, layout)
        else:
            kind.compare(file, nbytes, layout)
        _kinds.keep(key, kind)
        return layout


def lay_out_full(file: Hdf5File, extent: Shape) -> FileLayout:
    """Lay out a file that has all its inner chunks, each of one byte.

    Any other file of the same extent has the same pieces before its first chunks, as many as it
    has.
    """
    return lay_out(file, extent, np.where(file.is_inside(extent), 1, -1))


def _known(key: Hashable, nbytes: Ranks) -> list[FileLayout | None]:
    """Layouts of files of a kind, where they are known."""
    kind = _kinds.get(key)
    return [None] * len(nbytes) if kind is None else kind.find(nbytes)

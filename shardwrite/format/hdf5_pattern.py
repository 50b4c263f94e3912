"""What stands around the inner chunks of a file of HDF5, for any sizes of these chunks.

The library of HDF5 allocates such a file from its start to its end. So the number of chunks decides
what stands before, between and behind them, and how long each of these pieces is. Only some numbers
in the pieces depend on the chunks. A pattern is taken from a file that the library has laid out. It
knows where these numbers are:

- In the tree by which HDF5 finds the chunks, a B-tree of version 1. A node of it names its
  neighbours and has entries. An entry is a key, with size and position of a chunk, and an address:
  in a leaf that of the chunk, and elsewhere that of a node below. One more key stands at the end of
  each node. It is that of the next chunk, or one that lies behind all of them.
- In the superblock, which has the end-of-file address.

Everything else is copied. `hdf5.patterns` compares each pattern with a second file that the
library has laid out, before it uses the pattern.
"""

from __future__ import annotations

import bisect
import itertools
import math
import operator
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.stages import Buffer
from shardwrite.format.hdf5_file import Hdf5File
from shardwrite.format.placement import Ranks
from shardwrite.grid import Shape, ravel, unravel

END_AT, END = 40, struct.Struct("<Q")
"""Place of the end-of-file address in a superblock of version 0, and the form of it."""

NODE = b"TREE\x01"
"""First bytes of a node of the tree."""

_HEAD = struct.Struct("<5sBHQQ")  # NODE, level, number of entries, left and right neighbour
_NEIGHBOURS_AT, _NEIGHBOURS = 8, struct.Struct("<QQ")
_NOBODY = 2**64 - 1


@dataclass(slots=True)  # not frozen, because it would take five times as long to make one
class FileLayout:
    """Where the inner chunks lie in a file of HDF5, and what lies around them."""

    # Ranks of the stored inner chunks, in the sequence in which they lie in the file
    sequence: Ranks
    offsets: Ranks  # offset of each inner chunk by rank, in bytes; 0 where it is not stored
    # Pieces before, between and behind the chunks, none of which is empty. The first one is the
    # head of the file.
    around: Sequence[Buffer]
    breaks: Sequence[int]  # for each piece, the number of chunks that lie before it
    begins: Sequence[int]  # for each piece, its offset in the file
    # Offsets in the file of the nodes of the tree of chunks, if the library has laid it out
    nodes: Sequence[int]
    nbytes: int  # size of the file, in bytes

    def is_same(self, other: FileLayout) -> bool:
        """Whether two layouts have the same chunks and the same bytes around them."""
        return (
            list(self.breaks) == list(other.breaks)
            and np.array_equal(self.offsets, other.offsets)
            and all(map(operator.eq, self.around, other.around))
            and self.nbytes == other.nbytes
        )


@dataclass(frozen=True, slots=True)
class _Node:
    """A node of the tree, as a pattern keeps it."""

    place: int  # place of the node in the pieces, which are put one after the other
    before: int  # number of chunks that lie before it
    start: int  # part of the bytes of all entries that belongs to the node
    stop: int
    left: int  # numbers of its neighbours; -1 where there is none
    right: int


class FilePattern:
    """What stands around the inner chunks of a file, as a function of their ranks and sizes.

    - `nbytes`: int64, shape (n,). Encoded size of each inner chunk by rank, in bytes; negative
      where it is empty.
    - `layout`: the layout that the library of HDF5 has made for these sizes.
    """

    def __init__(self, file: Hdf5File, nbytes: Ranks, layout: FileLayout) -> None:
        ranks = layout.sequence
        if not len(ranks) or (np.diff(ranks) <= 0).any():
            raise ValueError("the chunks do not lie in row-major order")
        sums = _sums(nbytes[ranks])
        self._file, self._ranks, self._breaks = file, ranks, list(layout.breaks)
        self._flat = b"".join(layout.around)
        self._cuts = [0, *itertools.accumulate(map(len, layout.around))]
        # An address is a place in the pieces, and the sizes of all chunks before it.
        self._places: Ranks = layout.offsets[ranks] - sums[:-1]
        self._end = layout.nbytes - int(sums[-1]) + (0 if file.block_nbytes else file.index_nbytes)
        tree = _Tree(file, self._flat)
        for at in layout.nodes:
            before = layout.breaks[bisect.bisect_right(layout.begins, at) - 1]
            tree.add(at - file.block_nbytes, at - int(sums[before]), before)
        tree.walk()
        self._nodes, self._entries = tree.nodes, np.concatenate(tree.entries)
        self._keys, self._before = np.array(tree.keys), np.array(tree.before)
        self._rests = self._entries["address"].astype(np.int64) - sums[self._before]
        leaves = np.array(tree.is_chunk)
        is_known = tree.n_chunks == len(ranks) and np.array_equal(
            self._rests[leaves], self._places - file.block_nbytes
        )
        if not is_known or not np.array_equal(
            self._entries["corner"][:, :-1], _corners(file, ranks)[self._keys]
        ):
            raise ValueError("the tree does not lead to the chunks")
        if not self.fill(nbytes[np.newaxis])[0].is_same(layout):
            raise ValueError("there is another number")

    @property
    def nbytes(self) -> int:
        """Memory that the pattern takes, about, in bytes."""
        vectors = (self._entries, self._keys, self._before, self._rests, self._places)
        return len(self._flat) + sum(vector.nbytes for vector in vectors)

    def fill(self, nbytes: Ranks) -> list[FileLayout]:
        """Lay out files with as many inner chunks, all of them at once.

        - `nbytes`: int64, shape (m, n). Encoded size of each inner chunk of m files by rank, in
          bytes; negative where it is empty.
        """
        m, block_nbytes = len(nbytes), self._file.block_nbytes
        ranks = np.nonzero(nbytes >= 0)[1].reshape(m, -1)
        sizes = np.zeros((m, ranks.shape[1] + 1), np.int64)
        sizes[:, :-1] = np.take_along_axis(nbytes, ranks, 1)
        sums = _sums(sizes[:, :-1])
        entries = np.tile(self._entries, (m, 1))
        entries["address"] = self._rests + sums[:, self._before]
        entries["nbytes"] = sizes[:, self._keys]
        for number in np.flatnonzero((ranks != self._ranks).any(axis=1)).tolist():
            corners = _corners(self._file, ranks[number])
            entries["corner"][number, :, :-1] = corners[self._keys]
        flat = np.tile(np.frombuffer(self._flat, np.uint8), (m, 1))
        data = entries.view(np.uint8)
        # A neighbour that is not there has the last address.
        addresses = np.full((m, len(self._nodes) + 1), _NOBODY, "<u8")
        for number, node in enumerate(self._nodes):
            addresses[:, number] = node.place - block_nbytes + sums[:, node.before]
        for node in self._nodes:
            start, at = node.place + _HEAD.size, node.place + _NEIGHBOURS_AT
            flat[:, start : start + node.stop - node.start] = data[:, node.start : node.stop]
            if len(self._nodes) > 1:
                beside = addresses.take([node.left, node.right], axis=1)
                flat[:, at : at + _NEIGHBOURS.size] = beside.view(np.uint8)
        end, at = (self._end + sums[:, -1:]).astype("<u8"), block_nbytes + END_AT
        flat[:, at : at + END.size] = end.view(np.uint8)
        offsets = np.zeros(nbytes.shape, np.int64)
        np.put_along_axis(offsets, ranks, self._places + sums[:, :-1], 1)
        begins = (np.array(self._cuts[:-1]) + sums[:, self._breaks]).tolist()
        totals = (len(self._flat) + sums[:, -1]).tolist()
        cuts, pieces = list(itertools.pairwise(self._cuts)), flat.reshape(-1).data
        starts = range(0, flat.size, len(self._flat))
        # A call takes less time than one with keywords; there is one for each small shard.
        return [
            FileLayout(
                sequence,
                own,
                [pieces[start + a : start + b] for a, b in cuts],
                self._breaks,
                begin,
                (),
                total,
            )
            for start, sequence, own, begin, total in zip(
                starts, ranks, offsets, begins, totals, strict=True
            )
        ]


class _Tree:
    """Tree of chunks, whose nodes are put into the sequence of the chunks below them.

    - `entries`: entries of each node. The last one has only a key.
    - `keys`: for each entry, the number of the chunk in its key. All keys behind the chunks have
      the number of chunks.
    - `before`: for each entry, the number of chunks that lie before the address in it.
    - `is_chunk`: for each entry, whether the address is that of a chunk.
    """

    def __init__(self, file: Hdf5File, flat: bytes) -> None:
        corner = ("corner", "<u8", (len(file.chunks) + 1,))
        self._entry = np.dtype([("nbytes", "<u4"), ("mask", "<u4"), corner, ("address", "<u8")])
        self._flat = flat
        self._added: dict[int, tuple[int, int]] = {}
        self._found: dict[int, _Found] = {}
        self._visited: list[int] = []
        self.nodes: list[_Node] = []
        self.entries: list[npt.NDArray[Any]] = []
        self.keys: list[int] = []
        self.before: list[int] = []
        self.is_chunk: list[bool] = []
        self.n_chunks = 0

    def add(self, address: int, place: int, before: int) -> None:
        """Add a node by its address, its place in the pieces, and the number of chunks before."""
        self._added[address] = place, before
        self._found[address] = self._read(place)

    def walk(self) -> None:
        """Find all chunks, from the root on."""
        below = [a for found in self._found.values() if found.level for a in found.addresses]
        roots = set(self._found) - set(below)
        if len(roots) != 1 or len(below) + 1 != len(self._found):
            raise ValueError("the nodes do not make one tree")
        self._visit(*roots)
        numbers = {address: number for number, address in enumerate(self._visited)}
        numbers[_NOBODY] = -1
        start = 0
        for address, entries in zip(self._visited, self.entries, strict=True):
            found, stop = self._found[address], start + entries.nbytes
            left, right = (numbers[neighbour] for neighbour in (found.left, found.right))
            # The last key has no address.
            last = stop - END.size
            self.nodes.append(_Node(*self._added[address], start, last, left, right))
            start = stop

    def _read(self, place: int) -> _Found:
        name, level, n, left, right = _HEAD.unpack_from(self._flat, place)
        entries = np.zeros(n + 1, self._entry)
        start = place + _HEAD.size
        data = self._flat[start : start + entries.nbytes - END.size]
        if name != NODE or len(data) != entries.nbytes - END.size:
            raise ValueError("there is no node of the tree")
        entries.view(np.uint8)[: len(data)] = np.frombuffer(data, np.uint8)
        return _Found(level, left, right, entries)

    def _visit(self, address: int) -> None:
        found = self._found[address]
        keys, before = [], []
        for below in found.addresses:
            keys.append(self.n_chunks)
            if found.level:
                before.append(self._added[below][1])
                self._visit(below)
            else:
                before.append(self.n_chunks)
                self.n_chunks += 1
        self._visited.append(address)
        self.entries.append(found.entries)
        self.keys += [*keys, self.n_chunks]
        self.before += [*before, 0]
        self.is_chunk += [*[not found.level] * len(keys), False]


@dataclass(frozen=True, slots=True)
class _Found:
    """A node as it stands in a file."""

    level: int
    left: int
    right: int
    entries: npt.NDArray[Any]

    @property
    def addresses(self) -> list[int]:
        """Addresses of chunks, or of nodes below."""
        addresses: list[int] = self.entries["address"][:-1].tolist()
        return addresses


def _sums(sizes: Ranks) -> Ranks:
    """Sums of the first sizes, from none to all of them, along the last axis."""
    sums = np.zeros((*sizes.shape[:-1], sizes.shape[-1] + 1), np.int64)
    np.cumsum(sizes, axis=-1, out=sums[..., 1:])
    return sums


def _corners(file: Hdf5File, ranks: Ranks) -> Ranks:
    """Corners of inner chunks in the dataset, in elements, and of the key behind all of them."""
    corners = np.stack(np.unravel_index(ranks, file.chunks_per_shard), axis=1)
    last = _behind(ranks, file.chunks_per_shard)
    return np.concatenate([corners, [last]]) * np.array(file.chunks, np.int64)


def _behind(ranks: Ranks, counts: Shape) -> Shape:
    """Key behind all chunks, in inner chunks.

    It is the position one further along each axis than that of the first chunk. Each chunk behind
    the key moves it in the same way. A key may lie outside of the grid along some axes.
    """
    number = 0
    while True:
        key = tuple(at + 1 for at in unravel(int(ranks[number]), counts))
        n_inside = next((axis for axis, at in enumerate(key) if at == counts[axis]), len(key))
        inside = key[:n_inside]
        first = (ravel(inside, counts[:n_inside]) + 1) * math.prod(counts[n_inside:])
        number = int(np.searchsorted(ranks, first))
        if not n_inside or number == len(ranks):
            return key

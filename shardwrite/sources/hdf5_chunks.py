"""Places of the chunks of an HDF5 dataset in its file."""

from __future__ import annotations

import itertools
import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.grid import Shape, ceil_div
from shardwrite.read.hdf5_names import stored_chunks
from shardwrite.sources.common import open_binary
from shardwrite.stores.bucket_files import FileInBucket

_SHUFFLE = 2  # number of this filter of HDF5
# chunks of which the library's bytes are compared with those at the place that it tells
_N_COMPARED = 32
_N_COMPARED_FAR = 1  # in a bucket, where each is a request


@dataclass(frozen=True, slots=True)
class ChunkTable:
    """Places of the chunks that a dataset stores, by rank."""

    ranks: npt.NDArray[np.int64]  # row-major ranks of the chunks in the grid of chunks, ascending
    offsets: npt.NDArray[np.int64]  # first byte in the file, and number of bytes
    nbytes: npt.NDArray[np.int64]
    is_odd: npt.NDArray[np.bool_]  # whether a chunk was not made by all filters of the dataset

    def row(self, rank: int) -> int | None:
        """Row of a chunk; None if it is not stored."""
        row = int(np.searchsorted(self.ranks, rank))
        return row if row < len(self.ranks) and self.ranks[row] == rank else None


def locate(dataset: Any, place: str | FileInBucket) -> ChunkTable | None:
    """Find where the chunks of a dataset lie; None if the library does not tell it rightly.

    - Raises OSError if a chunk is there twice, of which programs read either (`errno` is None).
    """
    shape, chunks = dataset.shape, dataset.chunks
    counts = tuple(ceil_div(n, c) for n, c in zip(shape, chunks, strict=True))
    stored = stored_chunks(dataset)
    if stored is None:
        return None
    ranks = stored[:, :-3] @ np.array([math.prod(counts[n:]) for n in range(1, len(counts) + 1)])
    order = np.argsort(ranks, kind="stable")
    ranks, index, places = ranks[order], stored[order, :-3], stored[order, -3:]
    if (np.diff(ranks) == 0).any():
        raise OSError("it is damaged, and has a chunk twice")
    offset = _base(dataset, place, index, places)
    if offset is None:
        return None
    is_odd: npt.NDArray[np.bool_] = np.not_equal(places[:, 2], 0)
    if dataset.id.get_create_plist().get_nfilters():
        at_edge = ~is_odd & _is_partial(index, shape, chunks)
        if _is_edge_raw(dataset, index[at_edge], places[at_edge, 1]):
            is_odd |= at_edge
    return ChunkTable(ranks, places[:, 0] + offset, places[:, 1].copy(), is_odd)


def _is_partial(index: npt.NDArray[np.int64], shape: Shape, chunks: Shape) -> npt.NDArray[np.bool_]:
    """Whether chunks reach past the end of the dataset."""
    ends = (index + 1) * np.array(chunks, np.int64)
    return np.asarray(np.any(ends > np.array(shape, np.int64), axis=1), dtype=bool)


def _is_edge_raw(dataset: Any, index: npt.NDArray[np.int64], nbytes: npt.NDArray[np.int64]) -> bool:
    """Whether chunks at the edge of a dataset are stored without its filters.

    A program may choose that for a dataset as a whole, and neither h5py nor the masks of the chunks
    tell. So what the library reads is compared with the bytes, until one chunk decides. Where both
    are the same with and without the filter, either will do.

    - `index`: int64, shape (n, ndim). Positions of the chunks at the edge in the grid of chunks.
    - `nbytes`: int64, shape (n,). Their sizes in the file.
    """
    chunks, dtype = dataset.chunks, dataset.dtype
    if not len(index) or (nbytes != math.prod(chunks) * dtype.itemsize).any():
        return False
    if dtype.hasobject:
        return True
    properties = dataset.id.get_create_plist()
    numbers = {properties.get_filter(n)[0] for n in range(properties.get_nfilters())}
    for place in index.tolist():
        start = tuple(i * c for i, c in zip(place, chunks, strict=True))
        _, data = dataset.id.read_direct_chunk(start)
        stored = np.frombuffer(data, np.uint8)
        ends = (min(a + c, n) for a, c, n in zip(start, chunks, dataset.shape, strict=True))
        box = tuple(slice(a, b) for a, b in zip(start, ends, strict=True))
        inside = tuple(slice(0, at.stop - at.start) for at in box)
        try:
            wanted = np.ascontiguousarray(dataset[box]).tobytes()
        except OSError:  # damaged; the same comes where the values are read
            return True
        if stored.view(dtype).reshape(chunks)[inside].tobytes() != wanted:
            return False
        # Only shuffle keeps the size of every chunk, and may keep its bytes, too.
        plain = np.ascontiguousarray(stored.reshape(dtype.itemsize, -1).T).reshape(-1)
        if numbers != {_SHUFFLE} or plain.view(dtype).reshape(chunks)[inside].tobytes() != wanted:
            return True
    return False


def _base(
    dataset: Any,
    place: str | FileInBucket,
    index: npt.NDArray[np.int64],
    places: npt.NDArray[np.int64],
) -> int | None:
    """Byte from which places count; None if the bytes there are not those of a chunk.

    A dataset may lie in another file, to which a link leads.

    Some versions of the library do not count the user block at the start of the file. So chunks are
    read by the library, and compared, until one of them decides, and some more, which are spread
    over all. If none decides, as where all are zeros, either will do.
    """
    if not len(places):
        return 0
    block = dataset.file.userblock_size
    if isinstance(place, str) and not os.path.samefile(dataset.file.filename, place):
        return None
    n_compared = min(len(places), _N_COMPARED if isinstance(place, str) else _N_COMPARED_FAR)
    spread = np.unique(np.linspace(0, len(places) - 1, n_compared).astype(np.int64)).tolist()
    bases = [0, int(block)] if block else [0]
    with open_binary(place) as file:

        def has(base: int, offset: int, wanted: bytes) -> bool:
            file.seek(offset + base)
            return file.read(len(wanted)) == wanted

        for number, row in enumerate(itertools.chain(spread, range(len(places)))):
            if not bases or (len(bases) == 1 and number >= len(spread)):
                break
            offset, nbytes, _ = places[row].tolist()
            corner = (index[row] * np.array(dataset.chunks, np.int64)).tolist()
            wanted = bytes(dataset.id.read_direct_chunk(tuple(corner))[1])
            bases = [base for base in bases if len(wanted) == nbytes and has(base, offset, wanted)]
    return bases[0] if bases else None

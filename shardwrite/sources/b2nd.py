"""Arrays of Blosc2 (``b2nd``): a file, or a sparse directory with a file for each chunk.

The library would run an expression that a file holds. So it is only given chunks of known sizes.
"""

from __future__ import annotations

import math
import os
import struct
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.errors import CodecError
from shardwrite.grid import Box, Shape, ShardGrid, counts_of, ravel
from shardwrite.plan.partition import MAX_SHARDS
from shardwrite.read.array import merge_chunks
from shardwrite.sources.base import RegionSource, Request, Source
from shardwrite.sources.common import FILES, fill_from_chunks, identify, require

_COMPUTED = {b"LazyArray", b"b2o", b"proxy-source"}  # whose chunks are not all of the values
_CODECS, _FILTERS = {0, 1, 3, 4}, {0, 1, 2, 3, 4}  # all others are plugins


@dataclass(frozen=True, slots=True)
class B2ndSource(RegionSource):
    """An array of Blosc2."""

    index: str  # path of the file with the offsets of chunks; in a directory, chunks are files
    span: tuple[int, int]  # where the chunks lie in that file; their offsets follow
    grid: ShardGrid  # chunks as shards
    block: Shape  # shape of a block; whole blocks fill a chunk, and the last reach past its end

    def _read(self, box: Box) -> npt.NDArray[Any]:
        return fill_from_chunks(np.empty(box.shape, self.dtype), box, self.grid, self._chunk)

    def _chunk(self, index: Shape) -> npt.NDArray[Any]:
        """One chunk, up to whole blocks."""
        (begin, end), n_chunks = self.span, self.grid.n_shards
        offsets = FILES.get(self.identity, lambda: _decode(self.index, end, 8 * n_chunks))
        (offset,) = struct.unpack_from("<q", offsets, 8 * ravel(index, self.grid.counts))
        counts = counts_of(self.grid.shards, self.block)
        whole = [n * b for n, b in zip(counts, self.block, strict=True)]
        nbytes = math.prod(whole) * self.dtype.itemsize
        if offset >= 0 and self.index != self.path:
            path = os.path.join(os.path.dirname(self.index), f"{offset:08X}.chunk")
            data = _decode(path, 0, nbytes)
        elif offset >= 0:
            data = _decode(self.index, begin + offset, nbytes)
        elif offset >> 56 & 0xFF in (0x81, 0x84):  # zeros, or never written
            data = bytes(nbytes)
        elif offset >> 56 & 0xFF == 0x82 and self.dtype.itemsize in (4, 8):
            data = np.full(nbytes // self.dtype.itemsize, np.nan, f"f{self.dtype.itemsize}")
        else:
            raise ValueError(f"its chunk at {index} lies at {offset}")
        blocks = np.frombuffer(data, self.dtype).reshape((*counts, *self.block))
        axes = np.arange(2 * len(counts)).reshape(2, -1).T.ravel()  # those of a block between
        return blocks.transpose(axes).reshape(whole)


def _decode(path: str, start: int, nbytes: int) -> Any:
    """Read and decode a chunk; all sizes are checked before memory is taken for them."""
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        head = os.pread(file.fileno(), 32, min(start, size)).ljust(32, b"\0")
        n_decoded, _, n_stored = struct.unpack_from("<3i", head, 4)
        is_plain = head[2] & 5 == 5 and not head[30] and not head[31] & 8
        if n_decoded != nbytes or not 32 <= n_stored <= size - start or not is_plain:
            raise ValueError(f"the chunk at {start} of {path} is not one of {nbytes} bytes")
        if head[2] >> 5 not in _CODECS or set(head[16:22]) - _FILTERS:
            raise CodecError(f"the chunk at {start} of {path} needs a plugin", codec="blosc2")
        data = os.pread(file.fileno(), n_stored, start)
    return require("blosc2", "blosc2", path).decompress2(data, nthreads=1)


def open_(request: Request) -> Source:
    """Open a file or a sparse directory; only the header is read."""
    path = os.path.abspath(request.path)
    index = os.path.join(path, "chunks.b2frame") if os.path.isdir(path) else path
    require("blosc2", "blosc2", path)
    with open(index, "rb") as file:
        head = file.read(15)
        begin = int.from_bytes(head[11:], "big")
        if head[:11] != b"\x9e\xa8b2frame\0\xd2" or not 87 <= begin < 1 << 20:
            raise ValueError("it does not begin as a frame of Blosc2")
        header = msgpack.unpackb(head + file.read(begin - 15), raw=True)
    length, flags, n_decoded, n_stored, chunk_nbytes = (header[k] for k in (2, 3, 4, 5, 8))
    layers = dict(zip(*header[-1][1:], strict=True))
    if b"b2nd" not in layers or _COMPUTED & set(layers):
        raise ValueError("it is no array, or its values are computed")
    _, _, *shapes, numbering, name = msgpack.unpackb(layers[b"b2nd"], raw=True)
    shape, (chunk, block) = tuple(shapes[0]), [[max(1, n) for n in given] for given in shapes[1:]]
    dtype = np.dtype(name.decode())
    if numbering != 0 or dtype.kind not in "biufcmMSU" or not dtype.itemsize:
        raise ValueError(f"its data type is none of numbers, dates, text or bytes: {name!r}")
    grid = ShardGrid(shape, tuple(chunk), tuple(chunk))
    whole = math.prod(counts_of(chunk, block)) * math.prod(block) * dtype.itemsize
    fits = (chunk_nbytes, n_decoded) == (whole, grid.n_shards * whole) and not flags[0] & 0xC0
    if not (fits or 0 in shape) or min((n_stored, *shape)) < 0 or grid.n_shards > MAX_SHARDS:
        raise ValueError("its sizes contradict each other, or it has too many chunks")
    if length > os.path.getsize(index) or (path != index) != flags[1] & 1:
        raise ValueError("it is not whole")
    return B2ndSource(
        path=path,
        shape=shape,
        dtype=dtype,
        chunks=merge_chunks(chunk, shape, dtype.itemsize),
        identity=identify("b2nd", path, stat_path=index),
        index=index,
        span=(begin, begin + n_stored * (path == index)),
        grid=grid,
        block=tuple(block),
    )

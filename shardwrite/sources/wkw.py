"""Directories of webknossos-wrap: ``header.wkw``, and cubes of blocks in ``z0/y0/x0.wkw``.

Blocks are raw or LZ4, and lie in Morton order in their file. Voxels without a file are zeros.
"""

from __future__ import annotations

import math
import os
import re
import struct
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from numcodecs.lz4 import LZ4

from shardwrite._dataclass import dataclass
from shardwrite.errors import SpecError
from shardwrite.grid import Box, Shape, ShardGrid
from shardwrite.read.array import merge_chunks
from shardwrite.sources.base import RegionSource, Request, Source, SourceMetadata
from shardwrite.sources.common import FILES, check_names, digest, fill_from_chunks, identify

_LEVELS = ("z(0|[1-9][0-9]*)", "y(0|[1-9][0-9]*)", r"x(0|[1-9][0-9]*)\.wkw")
_DTYPES = ("u1", "<u2", "<u4", "<u8", "<f4", "<f8", "i1", "<i2", "<i4", "<i8")
_RAW, _TYPES = 1, (1, 2, 3)  # of blocks: raw, LZ4, LZ4HC
_MAX_NBYTES, _MAX_RATIO = 0x7E000000, 255  # of a block, and of LZ4


@dataclass(frozen=True, slots=True)
class WkwSource(RegionSource):
    """Voxels along channel, x, y and z."""

    header: bytes  # all of ``header.wkw``
    names: str  # digest of the names of the files, which each process lists again
    blocks: ShardGrid  # blocks as shards

    def _read(self, box: Box) -> npt.NDArray[Any]:
        values = np.zeros(box.shape, self.dtype, "F")
        return fill_from_chunks(values, box, self.blocks, self._block)

    def _names(self) -> frozenset[str]:
        return frozenset(check_names(_files(self.path), self.names, self.path))

    def _block(self, index: Shape) -> npt.NDArray[Any] | None:
        """One block; None if there is no file with it."""
        n_bits = self.header[4] >> 4  # of the position of a block in its file, along an axis
        x, y, z = (n >> n_bits for n in index[1:])
        name = f"./z{z}/y{y}/x{x}.wkw"
        if name not in FILES.get(self.identity, self._names):
            return None
        path = os.path.join(self.path, name)
        file = FILES.get(f"{self.identity}:{name}", partial(open, path, "rb", buffering=0))
        bits = (n >> bit & 1 for bit in range(n_bits) for n in index[1:])
        rank = sum(bit << place for place, bit in enumerate(bits))  # in Morton order
        nbytes = math.prod(self.blocks.shards) * self.dtype.itemsize
        data = _read_block(path, file.fileno(), self.header, nbytes, rank)
        return np.frombuffer(data, self.dtype).reshape(self.blocks.shards, order="F")


def _read_block(path: str, fd: int, header: bytes, nbytes: int, rank: int) -> bytes:
    """Read and decode a block; all sizes are checked before memory is taken for them."""
    own = os.pread(fd, 16, 0)
    if own[:5] + own[6:8] != header[:5] + header[6:8] or own[5] not in _TYPES:
        raise ValueError(f"the header of {path} does not fit that of its directory")
    start = int.from_bytes(own[8:], "little") + rank * nbytes
    stop, limit = start + nbytes, nbytes
    if own[5] != _RAW:  # a table has the end of each block, and the start of the first before it
        start, stop = struct.unpack("<QQ", os.pread(fd, 16, 8 + 8 * rank))
        limit += nbytes // _MAX_RATIO + 16
    if not nbytes // _MAX_RATIO <= stop - start <= limit or stop > os.fstat(fd).st_size:
        raise ValueError(f"{path} has no block {rank} of {nbytes} bytes at {start}:{stop}")
    data = os.pread(fd, stop - start, start)
    return data if own[5] == _RAW else LZ4().decode(struct.pack("<I", nbytes) + data)


def _files(root: str) -> list[str]:
    names = ["."]
    for level in _LEVELS:
        inside = ((top, name) for top in names for name in os.listdir(os.path.join(root, top)))
        names = [f"{top}/{name}" for top, name in inside if re.fullmatch(level, name)]
    return sorted(names)


def open_(request: Request) -> Source:
    """Open a directory; its header is read, and names, sizes and times of its files are listed."""
    root = os.path.abspath(request.path).removesuffix(f"{os.sep}header.wkw")
    path = os.path.join(root, "header.wkw") if os.path.isdir(root) else root
    with open(path, "rb") as file:
        header = file.read(16)
    if len(header) < 16 or header[:4] != b"WKW\1" or header[5] not in _TYPES:
        raise ValueError(f"{path} is no header of version 1 with raw or LZ4 blocks")
    dtype = np.dtype(dict(enumerate(_DTYPES, 1)).get(header[6], "V1"))
    (n_channels, rest), block = divmod(header[7], dtype.itemsize), 1 << (header[4] & 15)
    if dtype.kind == "V" or rest or not 0 < header[7] * block**3 <= _MAX_NBYTES:
        raise ValueError(f"{path} names voxels or blocks that are not possible")
    names, per_file = _files(root), 1 << (header[4] >> 4)
    places = [[int(n) for n in re.findall(r"\d+", name)] for name in names] or [[-1] * 3]
    z, y, x = ((max(ns) + 1) * block * per_file for ns in zip(*places, strict=True))
    shape = request.shape or (n_channels, x, y, z)
    if len(shape) != 4 or shape[0] != n_channels or min(shape) < 0:
        remedy = f"give {n_channels} and the extents along x, y and z"
        raise SpecError("not the shape of its voxels", field="shape", value=shape, remedy=remedy)
    stats = (os.stat(os.path.join(root, name)) for name in names)
    files = digest((stat.st_size, stat.st_mtime_ns) for stat in stats)
    unit = (n_channels, block, block, block)
    return WkwSource(
        path=root,
        shape=shape,
        dtype=dtype,
        chunks=merge_chunks(unit, shape, dtype.itemsize, order="F"),
        identity=identify("wkw", root, stat_path=path, files=files, shape=request.shape),
        metadata=SourceMetadata(dimension_names=("channel", "x", "y", "z")),
        header=header,
        names=digest(names),
        blocks=ShardGrid(shape, unit, unit),
    )

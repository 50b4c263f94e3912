"""A file format as somebody else would add one: numbers in hexadecimal, one after the other.

The first line is JSON with the shape; each number follows in eight digits and a line break.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.grid import Box
from shardwrite.sources.base import RegionSource, Request, Source
from shardwrite.sources.common import identify
from shardwrite.sources.registry import Format, register_format

DTYPE, WIDTH = np.dtype("u4"), 9


@dataclass(frozen=True, slots=True)
class HexSource(RegionSource):
    """Numbers in a file.

    Parameters
    ----------
    begin : int
        Offset of the first number in the file, in bytes.
    """

    begin: int

    def _read(self, box: Box) -> npt.NDArray[Any]:
        """Read whole rows, and cut them."""
        row = int(np.prod(self.shape[1:]))
        with open(self.path, "rb") as file:
            file.seek(self.begin + box.start[0] * row * WIDTH)
            text = file.read(box.shape[0] * row * WIDTH)
        rows = np.array([int(word, 16) for word in text.split()], dtype=DTYPE)
        inside = box.shift((box.start[0], *(0 for _ in self.shape[1:])))
        return rows.reshape(-1, *self.shape[1:])[inside.slices]


def open_(request: Request) -> Source:
    """Open a file; only its first line is read."""
    path = os.path.abspath(request.path)
    with open(path, "rb") as file:
        shape = tuple(json.loads(file.readline()))
        begin = file.tell()
    return HexSource(
        path=path,
        shape=shape,
        dtype=DTYPE,
        chunks=shape,
        identity=identify("hexes", path),
        begin=begin,
    )


register_format("hexes", Format(__name__, suffixes=(".hexes",)))

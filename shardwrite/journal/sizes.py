"""Sizes of the objects of an array as a short text, which a receipt holds."""

from __future__ import annotations

import base64
import zlib

import numpy as np
import numpy.typing as npt

MAX_SIZES = 2**20
"""Number of objects up to which sizes are kept; an update writes all of them anew."""


def pack_sizes(sizes: npt.NDArray[np.int64]) -> str:
    """Sizes as a text.

    The first bytes of all numbers come first, then the second bytes, and so on. Most of the last
    ones are zero, so a size of some megabytes takes about four characters.

    - `sizes`: the sizes in bytes; -1 stands for one that is not known.
    """
    planes = np.ascontiguousarray(sizes, dtype="<i8").view(np.uint8).reshape(-1, 8).T
    return base64.b64encode(zlib.compress(planes.tobytes(), 1)).decode()


def unpack_sizes(text: str, n: int) -> npt.NDArray[np.int64]:
    """Sizes from the text that `pack_sizes` has made."""
    if n > MAX_SIZES:
        raise ValueError("more sizes than a receipt holds")
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(base64.b64decode(text, validate=True), 8 * n + 1)
    except zlib.error as error:
        raise ValueError(f"sizes that are none ({error})") from error
    if len(data) != 8 * n or not unpacker.eof:
        raise ValueError(f"not {n} sizes")
    planes = np.frombuffer(data, dtype=np.uint8).reshape(8, n)
    sizes = np.ascontiguousarray(planes.T).view("<i8").reshape(n).astype(np.int64)
    if (sizes < -1).any():
        raise ValueError("sizes that are none")
    return sizes

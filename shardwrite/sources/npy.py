"""NumPy's ``.npy`` files, C and Fortran order."""

from __future__ import annotations

import os

import numpy as np

from shardwrite.errors import SpecError
from shardwrite.sources.base import Request, Source
from shardwrite.sources.chunking import slabs
from shardwrite.sources.common import identify
from shardwrite.sources.raw import MappedSource, check_length

__all__ = ["open_"]


def open_(request: Request) -> Source:
    """Open a ``.npy`` file; only its header is read.

    Parameters
    ----------
    request : Request
        With `path`.
    """
    path = os.path.abspath(request.path)
    with open(path, "rb") as file:
        version = np.lib.format.read_magic(file)
        # version 3 differs from 2 only in the encoding of field names, which numpy reads as version 2
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
        offset = file.tell()
    if dtype.hasobject:
        # such a file holds pickles, and loading a pickle runs code
        raise SpecError("it holds Python objects", field="source", value=path, remedy="save it with a fixed-size dtype")
    check_length(path, shape, dtype, offset)
    order = "F" if fortran else "C"
    return MappedSource(
        path=path,
        shape=shape,
        dtype=dtype,
        chunks=slabs(shape, dtype.itemsize, order),
        identity=identify("npy", path),
        stored=dtype,
        offset=offset,
        order=order,
    )

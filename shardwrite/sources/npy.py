"""``.npy`` files of NumPy, in C or Fortran order."""

from __future__ import annotations

import ast
from typing import IO, Any

import numpy as np

from shardwrite.errors import SpecError
from shardwrite.sources.base import Request, Source
from shardwrite.sources.common import identify, open_binary, place_of
from shardwrite.sources.raw import in_one_piece

_MAX_HEADER_NBYTES = 10_000  # limit of numpy: parsing very long literals is not safe


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read shape, whether the order is Fortran, and dtype; then `file` is at the first element."""
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(file)
    if version != (3, 0):
        raise ValueError(f"version {version} of the format is not known")
    # numpy has no public reader for version 3, and that of version 2 would misread names in UTF-8.
    nbytes = int.from_bytes(file.read(4), "little")
    if nbytes > _MAX_HEADER_NBYTES:
        raise ValueError(f"a header of {nbytes} bytes is too long")
    facts = ast.literal_eval(file.read(nbytes).decode("utf-8"))
    dtype = np.lib.format.descr_to_dtype(facts["descr"])
    return tuple(facts["shape"]), bool(facts["fortran_order"]), dtype


def open_(request: Request) -> Source:
    """Open a ``.npy`` file; only its header is read."""
    path, place = request.path, place_of(request)
    with open_binary(place) as file:
        shape, fortran, dtype = _header(file)
        offset = file.tell()
    if dtype.hasobject:
        # such a file holds pickles, and loading a pickle can run any code
        remedy = "save it with a fixed-size dtype"
        raise SpecError("it holds Python objects", field="source", value=path, remedy=remedy)
    order = "F" if fortran else "C"
    return in_one_piece(place, shape, dtype, offset, order, identity=identify("npy", place))

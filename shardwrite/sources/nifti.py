"""NIfTI images, read with nibabel; values are read as stored, without slope and intercept."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.grid import Box
from shardwrite.sources.base import RegionSource, Request, Source
from shardwrite.sources.chunking import slabs
from shardwrite.sources.common import identify, require
from shardwrite.sources.handles import WHOLE
from shardwrite.sources.raw import MappedSource, check_length

__all__ = ["NiftiGzSource", "open_"]


@dataclass(frozen=True, slots=True)
class NiftiGzSource(RegionSource):
    """A compressed image.

    It can only be read whole. Each process keeps the images that it has read last in memory.
    """

    def _read(self, box: Box) -> npt.NDArray[Any]:
        whole = WHOLE.get(self.identity, self._load)
        return np.array(whole[box.slices], order="K")

    def _load(self) -> npt.NDArray[Any]:
        return np.asarray(_proxy(self.path).get_unscaled())


def _proxy(path: str) -> Any:
    # No mmap by nibabel: `MappedSource` maps uncompressed images, and others cannot be mapped.
    return require("nibabel", "nifti", path).load(path, mmap=False).dataobj


def open_(request: Request) -> Source:
    """Open a NIfTI image; only its header is read.

    Parameters
    ----------
    request : Request
        Request with `path`.

    Raises
    ------
    SpecError
        If nibabel is not installed, or an uncompressed file is too short.
    OSError
        If the file cannot be read.
    """
    path = os.path.abspath(request.path)
    proxy = _proxy(path)
    shape, dtype = tuple(int(n) for n in proxy.shape), np.dtype(proxy.dtype)
    identity = identify("nifti", path)
    if path.lower().endswith(".gz"):
        whole = tuple(max(1, n) for n in shape)
        return NiftiGzSource(path=path, shape=shape, dtype=dtype, chunks=whole, identity=identity)
    check_length(path, shape, dtype, int(proxy.offset))
    return MappedSource(
        path=path,
        shape=shape,
        dtype=dtype,
        chunks=slabs(shape, dtype.itemsize, proxy.order),
        identity=identity,
        stored=dtype,
        offset=int(proxy.offset),
        order=proxy.order,
    )

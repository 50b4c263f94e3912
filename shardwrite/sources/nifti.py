"""NIfTI images, read with nibabel.

Values are read as stored. Slope and intercept become the attributes by which CF unpacks values.
"""

from __future__ import annotations

import gzip
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.codecs.documents import JSON
from shardwrite.grid import Box
from shardwrite.sources.base import RegionSource, Request, Source, SourceMetadata
from shardwrite.sources.common import (
    WHOLE,
    dimension_units,
    identify,
    require,
    tell_left_out,
)
from shardwrite.sources.raw import in_one_piece
from shardwrite.stores.looking import check_regular

_PIECE_NBYTES = 2**20  # of what follows the values, read at a time


@dataclass(frozen=True, slots=True)
class NiftiGzSource(RegionSource):
    """A compressed image.

    It can only be read whole. Each process keeps the images that it has read last in memory.
    """

    def _read(self, box: Box) -> npt.NDArray[Any]:
        whole = WHOLE.get(self.identity, self._load)
        return np.array(whole[box.slices], order="K")

    def _load(self) -> npt.NDArray[Any]:
        # nibabel stops after the last value. The checksum of the bytes comes after them, and is
        # compared only when the file is read to its end.
        proxy = _image(self.path).dataobj
        read = require("nibabel.volumeutils", "nifti", self.path).array_from_file
        with gzip.open(self.path) as file:
            whole = read(proxy.shape, proxy.dtype, file, proxy.offset, proxy.order, mmap=False)
            while file.read(_PIECE_NBYTES):
                pass
        return np.asarray(whole)


def _image(path: str) -> Any:
    stem, end = os.path.splitext(path)
    if end.lower() in (".hdr", ".img"):  # two files that belong together
        for other in (".hdr", ".img", ".HDR", ".IMG"):
            check_regular(stem + other)
    # No mmap by nibabel: `MappedSource` maps uncompressed images, and others cannot be mapped.
    return require("nibabel", "nifti", path).load(path, mmap=False)


def _metadata(image: Any, path: str) -> SourceMetadata:
    """Names and units of the axes, the affine, and what unpacks the values.

    The axes are those that the format names; the affine says how they lie in space.
    """
    header, ndim, left_out = image.header, len(image.shape), list[str]()
    attributes: dict[str, JSON] = {}
    try:
        space, time = header.get_xyzt_units()
        steps = zip(header.get_zooms(), (space, space, space, time), strict=False)
        # The shortest text of a float of 32 bits: 0.7, and not 0.699999988.
        known_steps: list[tuple[float, str] | None] = [
            (float(str(step)), unit) for step, unit in steps
        ]
        attributes |= dimension_units(known_steps + [None] * (ndim - len(known_steps)))
    except (AttributeError, KeyError):  # Analyze has no units
        left_out.append("the units of its axes are left out, since they are unknown")
    affine = np.asarray(image.affine, dtype="f8")
    if np.isfinite(affine).all() and np.linalg.matrix_rank(affine) == len(affine):
        codes = {name: int(header[name]) for name in ("sform_code", "qform_code") if name in header}
        attributes |= {"affine": affine.tolist(), **codes}
    else:
        left_out.append("its affine is left out, since it has no inverse")
    slope, intercept = float(image.dataobj.slope), float(image.dataobj.inter)
    if (slope, intercept) != (1, 0):
        attributes |= {"scale_factor": slope, "add_offset": intercept}
    tell_left_out(path, left_out)
    names = ("x", "y", "z", "t", *[None] * ndim)[:ndim]
    return SourceMetadata(dimension_names=names or None, attributes=attributes)


def open_(request: Request) -> Source:
    """Open a NIfTI image; only its header is read.

    Warns
    -----
    UserWarning
        If its affine has no inverse, or its units are unknown; they are then left out.
    """
    image = _image(os.path.abspath(request.path))
    path = str(image.file_map["image"].filename)  # of a pair of files, that with the values
    proxy, metadata = image.dataobj, _metadata(image, path)
    shape, dtype = tuple(int(n) for n in proxy.shape), np.dtype(proxy.dtype)
    identity = identify("nifti", path)
    if not path.lower().endswith(".gz"):
        offset = int(proxy.offset)
        return in_one_piece(
            path, shape, dtype, offset, proxy.order, identity=identity, metadata=metadata
        )
    whole = tuple(max(1, n) for n in shape)
    return NiftiGzSource(
        path=path, shape=shape, dtype=dtype, chunks=whole, identity=identity, metadata=metadata
    )

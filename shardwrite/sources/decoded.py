"""Values of another source as the conventions of CF decode them, by xarray."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.errors import SpecError
from shardwrite.grid import Box
from shardwrite.read.attributes import as_attributes
from shardwrite.sources.base import RegionSource, Source, SourceMetadata
from shardwrite.sources.common import require


@dataclass(frozen=True, slots=True)
class DecodedSource(RegionSource):
    """A source whose values are unpacked, masked and turned into times block by block."""

    packed: Source  # the source as the file holds it

    def _read(self, box: Box) -> npt.NDArray[Any]:
        values = _decode(self.packed, self.packed[box.slices[:-1]])
        found = np.asarray(values.data)
        if found.dtype != self.dtype:
            raise SpecError(
                f"its values in {box.bounds} decode to {found.dtype}, and others to {self.dtype}",
                field="decode_cf",
                value=self.path,
                remedy="convert it without --decode-cf",
            )
        return found


def decoded(source: Source) -> Source:
    """A source that decodes the values of another one by the conventions of CF.

    The attributes that say how to decode, such as ``scale_factor``, are left out. Missing values
    become NaN or NaT, which is then the fill value.
    """
    if source.dtype.kind in "TO":  # texts and bytes are not packed
        return source
    path = str(getattr(source, "path", source.identity))
    require("xarray", "cf", path)
    try:
        found = _decode(source, np.zeros((1,) * len(source.shape), source.dtype))
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise SpecError(
            f"its values cannot be decoded: {error}",
            field="decode_cf",
            value=path,
            remedy="convert it without --decode-cf",
        ) from None
    if found.dtype == source.dtype and dict(found.attrs) == dict(source.metadata.attributes):
        return source
    missing = {"f": np.nan, "c": np.nan, "M": "NaT", "m": "NaT"}.get(found.dtype.kind)
    fill = None if missing is None else np.asarray(missing, dtype=found.dtype)[()]
    if found.dtype == source.dtype and fill is None:  # that of another type means another value
        fill = source.metadata.fill_value
    return DecodedSource(
        path=path,
        shape=source.shape,
        dtype=found.dtype,
        chunks=source.chunks,
        identity=f"cf:{source.identity}",
        packed=source,
        metadata=SourceMetadata(
            fill_value=fill,
            dimension_names=source.metadata.dimension_names,
            attributes=as_attributes(found.attrs, path),
        ),
    )


def _decode(source: Source, values: npt.NDArray[Any]) -> Any:
    """A variable of xarray with decoded values, and the attributes that are left."""
    import xarray

    known = source.metadata
    names = [f"axis {axis}" for axis in range(values.ndim)]
    # xarray takes a fill value in the other order of bytes for another number.
    native = values.astype(values.dtype.newbyteorder("="), copy=False)
    packed = xarray.Variable(names, native, {**known.attributes, **known.typed})
    decode = xarray.conventions.decode_cf_variable
    found = decode("values", packed, concat_characters=False).load()
    if found.dtype.hasobject:  # such as times of a calendar that numpy does not have
        raise TypeError("they become objects of Python, which Zarr does not store")
    return found

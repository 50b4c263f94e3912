"""Whether the integers that are stored can hold the numbers of a dataset.

xarray casts numbers to the dtype that encoding, or an array of the store, has. Numbers beyond its
range become others by that, and nothing tells. Floats are rounded, since whoever chose the dtype
wanted it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shardwrite.errors import SpecError

if TYPE_CHECKING:
    import xarray

_FILLS = ("_FillValue", "missing_value")


def held(
    dataset: xarray.Dataset, encodings: Mapping[Hashable, Mapping[str, Any]]
) -> xarray.Dataset:
    """The dataset, whose numbers raise an error that names them if they are not held.

    Those of dask arrays raise it in tasks.

    - `encodings`: how variables are stored, as far as it is known.
    """
    for name, variable in dataset.variables.items():
        told = encodings.get(name, {})
        dtype = _stored_dtype(told) if variable.dtype.kind in "biufc" else None
        if dtype is None:
            continue
        if variable.dtype.kind == "c" and dtype.kind != "c":
            raise SpecError(
                f"the variable {name!r} is of {variable.dtype}, and is stored as {dtype}, so that "
                "the imaginary parts would be lost",
                field="ds",
                value=name,
                remedy=f"give its real part, ds[{name!r}].real",
            )
        scale, offset = _number(told, "scale_factor", 1), _number(told, "add_offset", 0)
        is_safe = (scale, offset) == (1, 0) and np.can_cast(variable.dtype, dtype)
        if dtype.kind not in "biu" or is_safe or scale is None or offset is None:
            continue
        has_fill = any(told.get(key) is not None for key in _FILLS)
        check = partial(
            _in_range, name=str(name), dtype=dtype, scale=scale, offset=offset, has_fill=has_fill
        )
        if variable.chunks is None:
            check(variable.values)
        else:
            data: Any = variable.data
            data = data.map_blocks(check, dtype=data.dtype, meta=data._meta)  # noqa: SLF001
            dataset = dataset.assign({name: variable.copy(deep=False, data=data)})
    return dataset


def _stored_dtype(told: Mapping[str, Any]) -> np.dtype[Any] | None:
    """The dtype of what is stored, with the sign that netCDF gives it; None if nothing tells it."""
    if told.get("dtype") is None:
        return None
    try:
        dtype: np.dtype[Any] = np.dtype(told["dtype"])
    except TypeError:  # which xarray refuses, too
        return None
    if dtype.kind not in "iu" or told.get("_Unsigned") is None:
        return dtype
    return np.dtype(f"{'u' if told['_Unsigned'] == 'true' else 'i'}{dtype.itemsize}")


def _number(told: Mapping[str, Any], key: str, default: float) -> float | None:
    """A number of an encoding; None for anything else, which xarray refuses."""
    value = np.asarray(default if told.get(key) is None else told[key])
    return float(value.ravel()[0]) if value.size and value.dtype.kind in "iuf" else None


def _in_range(
    values: npt.NDArray[Any],
    *,
    name: str,
    dtype: np.dtype[Any],
    scale: float,
    offset: float,
    has_fill: bool,
) -> npt.NDArray[Any]:
    """The values, if integers hold them."""
    if values.size == 0:
        return values
    least, most = (np.fmin, np.fmax) if has_fill else (np.minimum, np.maximum)
    ends = [each.reduce(values, axis=None) for each in (least, most)]
    if has_fill and np.isnan(ends[0]):  # nothing but missing values
        return values
    limits = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    is_exact = values.dtype.kind in "biu" and (scale, offset) == (1, 0)
    with np.errstate(all="ignore"):  # of a scale_factor of 0
        stored = [
            int(x) if is_exact else float(np.around((np.float64(x) - offset) / scale)) for x in ends
        ]
    if not all(limits[0] <= each <= limits[1] for each in stored):
        what = "missing values" if np.isnan(ends[0]) else f"values from {ends[0]} to {ends[1]}"
        raise SpecError(
            f"the variable {name!r} has {what}, and {dtype} as it is stored cannot hold them all",
            field="ds",
            value=name,
            remedy="change them; or give a new store another dtype, scale_factor or _FillValue in "
            "encoding",
        )
    return values

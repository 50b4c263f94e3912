"""Whether what is stored can hold the numbers and times of a dataset; errors name the variable.

xarray casts numbers to the dtype that encoding, or an array of the store, has. Numbers beyond its
range become others by that, and nothing tells. Floats are rounded, since whoever chose the dtype
wanted it. Where times in memory do not fit the units that are asked for, xarray chooses other
units. In tasks of a dask array, it raises an error that names no variable.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shardwrite.errors import SpecError

if TYPE_CHECKING:
    import xarray

FILLS = ("_FillValue", "missing_value")
OF_TIMES = ("units", "calendar")
"""Attributes that say what stored times mean."""
_Check = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
"""Function that returns the values it gets, or raises an error."""


def checked(
    dataset: xarray.Dataset, encodings: Mapping[Hashable, Mapping[str, Any]]
) -> xarray.Dataset:
    """The dataset, whose values raise an error that names them if they are not held.

    Those of dask arrays raise it in tasks.

    - `encodings`: how variables are stored, as far as it is known.
    """
    lazy = dict[Hashable, Any]()
    for name, variable in dataset.variables.items():
        check_of = _check_of_times if variable.dtype.kind in "mMO" else _check_of_numbers
        check = check_of(str(name), variable, encodings.get(name, {}))
        if check is None:
            continue
        if variable.chunks is None:
            check(variable.values)
        else:
            lazy[name] = by_tasks(variable, check)
    return dataset.assign(lazy)


def by_tasks(
    variable: xarray.Variable, function: Callable[..., npt.NDArray[Any]]
) -> xarray.Variable:
    """A variable of dask, with a function of the same shape and dtype applied to its values."""
    data: Any = variable.data
    data = data.map_blocks(function, dtype=data.dtype, meta=data._meta)  # noqa: SLF001
    return variable.copy(deep=False, data=data)


# ---- Numbers


def _check_of_numbers(
    name: str, variable: xarray.Variable, told: Mapping[str, Any]
) -> _Check | None:
    """What checks numbers; None if any of them are held."""
    dtype = stored_dtype(told) if variable.dtype.kind in "biufc" else None
    if dtype is None:
        return None
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
        return None
    has_fill = any(told.get(key) is not None for key in FILLS)
    return partial(_in_range, name=name, dtype=dtype, scale=scale, offset=offset, has_fill=has_fill)


def stored_dtype(told: Mapping[str, Any]) -> np.dtype[Any] | None:
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


# ---- Times


def have_same_units(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether attributes of two variables give stored times the same meaning."""
    import xarray

    told = [{key: each[key] for key in OF_TIMES if key in each} for each in (one, other)]
    if told[0] == told[1]:
        return True
    made = (xarray.Dataset({"t": ("t", [0, 1], attrs)}) for attrs in told)
    decoded = (xarray.decode_cf(one, decode_timedelta=True) for one in made)
    return bool(next(decoded)["t"].equals(next(decoded)["t"]))


def are_lazy_times(variable: xarray.Variable) -> bool:
    """Whether a variable has times or durations that tasks encode; `cftime` has objects."""
    return variable.chunks is not None and variable.dtype.kind in "mMO"


def _check_of_times(name: str, variable: xarray.Variable, told: Mapping[str, Any]) -> _Check | None:
    """What checks times; None if nothing tells how they are stored, or xarray tells of the others.

    In memory, only small integers need this: xarray would store other times in them.
    """
    is_lazy = are_lazy_times(variable)
    for key in OF_TIMES:
        if is_lazy and not isinstance(told.get(key), str | None):
            raise SpecError(
                f"the variable {name!r} has times, and their {key} must be text",
                field="encoding",
                value={key: told[key]},
                remedy="give text" + ("" if key == "calendar" else ', as "days since 2000-01-01"'),
            )
    if not isinstance(told.get("units"), str) or stored_dtype(told) is None:
        return None
    wanted = {key: told[key] for key in (*OF_TIMES, "dtype") if told.get(key) is not None}
    if not is_lazy and (variable.dtype.kind == "O" or not _is_small(wanted["dtype"])):
        return None
    has_fill = told.get("_FillValue") is not None
    return partial(_fitting, wanted=wanted, name=name, has_fill=has_fill, keeps_units=is_lazy)


def _is_small(dtype: Any) -> bool:
    """Whether a dtype is one of integers that do not hold all that xarray makes of times."""
    return np.dtype(dtype).kind in "iu" and np.dtype(dtype) != np.int64


def _fitting(
    times: npt.NDArray[Any],
    *,
    wanted: Mapping[str, Any],
    name: str,
    has_fill: bool,
    keeps_units: bool,
) -> npt.NDArray[Any]:
    """The times, if units and a dtype can hold them.

    - `has_fill`: whether there is a value for missing times.
    - `keeps_units`: whether other units that hold the times are refused, too.
    """
    import xarray

    dtype = np.dtype(wanted["dtype"])
    is_missing = times == None if times.dtype.kind == "O" else np.isnat(times)  # noqa: E711 (by element)
    if _is_small(dtype) and is_missing.any() and not has_fill:
        raise SpecError(
            f"the variable {name!r} has missing times, for which {dtype} has no value",
            field="ds",
            value=name,
            remedy="give a _FillValue in encoding, or the dtype int64",
        )
    as_large = {**wanted, "dtype": np.dtype(np.int64)} if _is_small(dtype) else dict(wanted)
    variable = xarray.Variable("t", times[~is_missing], {}, as_large)
    error = SpecError(
        f"the variable {name!r} has times that {dtype} of {wanted['units']!r} cannot hold",
        field="ds",
        value=name,
        remedy="round them to these units; or give a new store finer units or a dtype of floats in "
        "encoding",
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that other units are chosen
            made = xarray.conventions.encode_cf_variable(variable)
    except (ValueError, OverflowError) as reason:
        raise error from reason
    if not have_same_units(made.attrs, wanted):
        if keeps_units:
            raise error
    elif not np.array_equal(made.values.astype(dtype), made.values):
        raise error
    return times


def as_declared(values: Any, variable: xarray.Variable) -> Any:
    """The values, whose blocks are of the dtype that their dask array declares.

    Those of lazy times are not always: xarray leaves it to zarr to cast them. They fit, see
    `checked`.
    """
    if not are_lazy_times(variable):
        return values
    return values.map_blocks(_cast, dtype=values.dtype, wanted=values.dtype)


def _cast(block: npt.NDArray[Any], wanted: np.dtype[Any]) -> npt.NDArray[Any]:
    return block.astype(wanted, copy=False)

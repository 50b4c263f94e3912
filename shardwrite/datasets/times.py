"""Times: whether units can hold them, and errors of those that are encoded by tasks.

Where times in memory do not fit the units that are asked for, xarray chooses other units. In tasks
of a dask array, it raises an error that names no variable.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shardwrite.errors import SpecError

if TYPE_CHECKING:
    import xarray

_OF_TIMES = ("units", "calendar")
"""Attributes that say what stored times mean."""


def have_same_units(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether attributes of two variables give stored times the same meaning."""
    import xarray

    told = [{key: each[key] for key in _OF_TIMES if key in each} for each in (one, other)]
    if told[0] == told[1]:
        return True
    made = (xarray.Dataset({"t": ("t", [0, 1], attrs)}) for attrs in told)
    decoded = (xarray.decode_cf(one, decode_timedelta=True) for one in made)
    return bool(next(decoded)["t"].equals(next(decoded)["t"]))


def are_lazy_times(variable: xarray.Variable) -> bool:
    """Whether a variable has times or durations that tasks encode; `cftime` has objects."""
    return variable.chunks is not None and variable.dtype.kind in "mMO"


def checked(
    dataset: xarray.Dataset, encodings: Mapping[Hashable, Mapping[str, Any]]
) -> xarray.Dataset:
    """The dataset, whose times raise an error that names them if they do not fit.

    Those of dask arrays raise it in tasks. In memory, only small integers need this: xarray would
    store other times in them, and of all else it tells.

    - `encodings`: ``units``, ``calendar``, ``dtype`` and ``_FillValue`` of variables, as far as
      they are known.
    """
    for name, variable in dataset.variables.items():
        told = encodings.get(name, {})
        if told.get("units") is None or told.get("dtype") is None:
            continue
        wanted = {key: told[key] for key in (*_OF_TIMES, "dtype") if told.get(key) is not None}
        how = wanted, str(name), told.get("_FillValue") is not None, variable.chunks is not None
        if are_lazy_times(variable):
            data = variable.data
            data = data.map_blocks(_fitting, *how, dtype=data.dtype, meta=data._meta)  # noqa: SLF001
            dataset = dataset.assign({name: variable.copy(deep=False, data=data)})
        elif variable.dtype.kind in "mM" and _is_small(wanted["dtype"]):
            _fitting(variable.values, *how)
    return dataset


def _is_small(dtype: Any) -> bool:
    """Whether a dtype is one of integers that do not hold all that xarray makes of times."""
    return np.dtype(dtype).kind in "iu" and np.dtype(dtype) != np.int64


def _fitting(
    times: npt.NDArray[Any],
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

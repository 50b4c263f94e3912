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

    Those of dask arrays raise it in tasks.

    - `encodings`: ``units``, ``calendar``, ``dtype`` and ``_FillValue`` of variables, as far as
      they are known.
    """
    for name, variable in dataset.variables.items():
        told = encodings.get(name, {})
        if told.get("units") is None or told.get("dtype") is None:
            continue
        wanted = {key: told[key] for key in (*_OF_TIMES, "dtype") if told.get(key) is not None}
        if variable.dtype.kind in "mM" and variable.chunks is None:
            _refuse_wrapped(variable.values, wanted, str(name), told.get("_FillValue") is not None)
        if not are_lazy_times(variable):
            continue
        data = variable.data
        data = data.map_blocks(_refuse, wanted, str(name), dtype=data.dtype, meta=data._meta)  # noqa: SLF001
        dataset = dataset.assign({name: variable.copy(deep=False, data=data)})
    return dataset


def _refuse_wrapped(
    times: npt.NDArray[Any], wanted: Mapping[str, Any], name: str, has_fill: bool
) -> None:
    """Refuse times in memory that xarray would store as other ones, without an error."""
    import xarray

    dtype, is_missing = np.dtype(wanted["dtype"]), np.isnat(times)
    if dtype.kind not in "iu" or dtype == np.int64:
        return
    if is_missing.any() and not has_fill:
        raise SpecError(
            f"the variable {name!r} has missing times, for which {dtype} has no value",
            field="ds",
            value=name,
            remedy="give a _FillValue in encoding, or the dtype int64",
        )
    whole = xarray.Variable("t", times[~is_missing], {}, {**wanted, "dtype": np.dtype(np.int64)})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that other units are chosen, which is refused elsewhere
        made = xarray.conventions.encode_cf_variable(whole)
    limits = np.iinfo(dtype)
    is_same = have_same_units(made.attrs, wanted)
    if is_same and ((made.values < limits.min) | (made.values > limits.max)).any():
        raise _do_not_fit(name, dtype, f" of {wanted['units']!r}")


def _refuse(block: npt.NDArray[Any], wanted: Mapping[str, Any], name: str) -> npt.NDArray[Any]:
    """Refuse a block of times that units and a dtype cannot hold."""
    import xarray

    is_missing = block == None if block.dtype.kind == "O" else np.isnat(block)  # noqa: E711 (by element)
    times = xarray.Variable("t", block[~is_missing], {}, dict(wanted))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that other units are chosen, which is refused here
            made = xarray.conventions.encode_cf_variable(times)
    except (ValueError, OverflowError) as error:
        raise _do_not_fit(name, wanted["dtype"], f" of {wanted['units']!r}") from error
    if not have_same_units(made.attrs, wanted):
        raise _do_not_fit(name, wanted["dtype"], f" of {wanted['units']!r}")
    return block


def as_declared(values: Any, variable: xarray.Variable, name: str) -> Any:
    """The values, whose blocks are of the dtype that their dask array declares.

    Those of lazy times are not always: xarray leaves it to zarr to cast them.
    """
    if not are_lazy_times(variable):
        return values
    return values.map_blocks(_cast, dtype=values.dtype, wanted=values.dtype, label=name)


def _cast(block: npt.NDArray[Any], wanted: np.dtype[Any], label: str) -> npt.NDArray[Any]:
    cast = block.astype(wanted)
    if not np.array_equal(cast, block, equal_nan=True):
        raise _do_not_fit(label, wanted)
    return cast


def _do_not_fit(name: str, dtype: Any, units: str = "") -> SpecError:
    return SpecError(
        f"the variable {name!r} has times that {np.dtype(dtype)}{units} cannot hold",
        field="ds",
        value=name,
        remedy="round them to these units; or give a new store finer units or a dtype of floats in "
        "encoding",
    )

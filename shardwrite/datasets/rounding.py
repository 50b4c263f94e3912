"""Rounding of mantissas (BitRound), so that values compress better, and the attributes that tell.

The convention CF has the names of these attributes: version 1.12, section 8.4, "Lossy Compression
via Quantization" (https://cfconventions.org/cf-conventions/cf-conventions.html). A variable has
``quantization_nsb``, the number of bits, and ``quantization``, the name of a variable without
values. That one says in attributes by which algorithm and program it was done. Values are rounded
before xarray encodes them, so that fill values stay as they are.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shardwrite._version import __version__
from shardwrite.checks import is_whole
from shardwrite.codecs.documents import Document, attributes_of
from shardwrite.datasets.fits import FILLS, by_tasks, stored_dtype
from shardwrite.errors import SpecError

if TYPE_CHECKING:
    import xarray

Bits = Mapping[Hashable, int]
"""Bits of the mantissa of each variable that is rounded."""
Encoding = Mapping[Any, Mapping[str, Any]]
N_BITS = "quantization_nsb"
_CONTAINER = "quantization"
_N_DIGITS = "quantization_nsd"  # of other algorithms
_HOW = {"algorithm": "bitround", "implementation": f"shardwrite version {__version__}"}
_PACKED = ("scale_factor", "add_offset")
# Attributes that name variables of which CF wants every bit.
_NAMING = (
    *("bounds", "climatology", "cell_measures", "formula_terms"),
    *("coordinates", "grid_mapping"),
)


# ---- Values


def bit_round(
    values: npt.NDArray[Any],
    n_bits: int,
    fills: tuple[float, ...] = (),
    stored: np.dtype[Any] | None = None,
) -> npt.NDArray[Any]:
    """Round values to so many explicit bits of the mantissa: to the nearest, ties to even.

    NaN, infinities and the values in `fills` stay, and so does what would become one of these.

    - `stored`: dtype in which they are stored, and are one of `fills`; by default their own.
    """
    native = np.asarray(values).astype(values.dtype.newbyteorder("="), copy=False)
    n_dropped = np.finfo(native.dtype).nmant - n_bits
    if n_dropped == 0:
        return values
    bits = native.view(f"u{native.dtype.itemsize}")
    number = bits.dtype.type
    with np.errstate(over="ignore"):  # of NaN, which stay, and of fill values of other dtypes
        made = (bits >> number(n_dropped)) & number(1)
        made += number((1 << (n_dropped - 1)) - 1)
        made += bits
        made &= ~number((1 << n_dropped) - 1)
        stays = ~(np.isfinite(native) & np.isfinite(made.view(native.dtype)))
        stored = native.dtype if stored is None else stored
        for fill in fills:
            for each in (native, made.view(native.dtype)):
                stays |= each.astype(stored, copy=False) == stored.type(fill)
    return np.where(stays, native, made.view(native.dtype)).astype(values.dtype, copy=False)


def rounded(dataset: xarray.Dataset, keep_bits: Bits, encoding: Encoding) -> xarray.Dataset:
    """The dataset with the values of some variables rounded; those of dask arrays by tasks.

    - `encoding`: how single variables are stored, as a user asks for it, or a store has it.
    """
    found = dict[Hashable, Any]()
    for name, n_bits in keep_bits.items():
        variable = dataset.variables[name]
        told = (variable.attrs, variable.encoding, encoding.get(name, {}))
        fills = tuple(sorted({x for each in told for x in _fills(each)}))
        dtypes = (stored_dtype(each) for each in reversed(told))
        asked = next((dtype for dtype in dtypes if dtype is not None), variable.dtype)
        stored = asked if asked.kind == "f" else None
        made = partial(bit_round, n_bits=n_bits, fills=fills, stored=stored)
        if variable.chunks is None:
            data = made(np.asarray(variable.data))
            found[name] = variable.copy(deep=False, data=data)
        else:
            found[name] = by_tasks(variable, made)
    return dataset.assign(found)


def _fills(told: Mapping[Any, Any]) -> Iterator[float]:
    """Values that stand for missing ones, as attributes or an encoding tell."""
    for name in FILLS:
        each = np.asarray(told.get(name, ()))
        if each.dtype.kind in "iuf":
            yield from (float(x) for x in each.ravel() if np.isfinite(x))


# ---- Which variables are rounded


def bits_by_name(dataset: xarray.Dataset, asked: Any, label: str) -> Bits:
    """How many bits of which variables are kept.

    - `asked`: a number for all variables of floats but coordinates, or a mapping of variables.
    - `label`: text that names the keyword, or a part of it.
    """
    if asked is None:
        return {}
    if isinstance(asked, Mapping):
        for name in asked:
            _refuse_name(dataset, name, label)
        bits = {name: n for name, n in asked.items() if n is not None}
    else:
        _check_bits(asked, None, None, label)
        exact = _exact(dataset)
        bits = {name: asked for name in _floats(dataset) if str(name) not in exact}
    return {
        name: _check_bits(n, name, dataset.variables[name].dtype, label) for name, n in bits.items()
    }


def _floats(dataset: xarray.Dataset) -> list[Hashable]:
    """Names of the variables that can be rounded."""
    dtypes = ((name, variable.dtype) for name, variable in dataset.data_vars.items())
    return [
        name
        for name, dtype in dtypes
        if isinstance(dtype, np.dtype) and dtype.kind == "f" and dtype.itemsize <= 8
    ]


def _exact(dataset: xarray.Dataset) -> set[str]:
    """Names of variables that describe the grid, and are not rounded unless they are named."""
    told: list[Mapping[Any, Any]] = [dataset.attrs, dataset.encoding]
    for variable in dataset.variables.values():
        told += [variable.attrs, variable.encoding]
    texts = (str(each.get(word, "")) for each in told for word in _NAMING)
    return {word for text in texts for word in text.split()}


def _refuse_name(dataset: xarray.Dataset, name: Any, label: str) -> None:
    floats = _floats(dataset)
    if name in floats:
        return
    if name not in dataset.variables:
        why = "no such variable"
    elif name not in dataset.data_vars:
        why = "a coordinate, which is never rounded"
    else:
        why = f"a variable of {dataset.variables[name].dtype}, and only floats are rounded"
    told = ", ".join(map(str, floats)) or "there are none"
    raise SpecError(why, field=label, value=name, remedy=f"give variables of floats: {told}")


def _check_bits(n: Any, name: Any, dtype: np.dtype[Any] | None, label: str) -> int:
    """A number of bits that a dtype has; without one, that some dtype has."""
    most = 52 if dtype is None else np.finfo(dtype).nmant
    if not is_whole(n, 1, most):
        of = "" if dtype is None else f" of {name!r}, which is {dtype}"
        raise SpecError(
            f"not a number of bits of the mantissa{of}",
            field=label,
            value=n,
            remedy=f"give a whole number from 1 to {most}"
            + ("" if dtype is None else ', or bits by variable such as {"t2m": 12}'),
        )
    return int(n)


# ---- What tells of it


def described(dataset: xarray.Dataset, keep_bits: Bits, encoding: Encoding) -> xarray.Dataset:
    """The dataset with the attributes of CF for what is rounded, and the variable they name.

    - `encoding`: what a user asks for single variables.
    - Raises SpecError for a variable that is packed or stored in a smaller dtype, so that other
      bits than these would be stored.
    """
    if not keep_bits:
        return dataset
    names = ("quantization_info", *(f"quantization_info_{n}" for n in range(1, 1000)))
    container = next(
        name
        for name in names
        if name not in dataset.dims
        and (name not in dataset.variables or dataset.variables[name].attrs == _HOW)
    )
    others = [name for name in dataset.data_vars if name != container]
    # A dataset of one variable may be opened as a DataArray.
    assign = dataset.assign_coords if len(others) == 1 else dataset.assign
    new = assign({container: ((), np.int8(0), dict(_HOW))})
    found = dict[Hashable, Any]()
    for name, n_bits in keep_bits.items():
        variable = dataset.variables[name]
        _refuse_packed(variable, encoding.get(name, variable.encoding), str(name), n_bits)
        attrs = {key: value for key, value in variable.attrs.items() if key != _N_DIGITS}
        copy = variable.copy(deep=False)
        copy.attrs = {**attrs, _CONTAINER: container, N_BITS: n_bits}
        found[name] = copy
    return new.assign(found)


def _refuse_packed(
    variable: xarray.Variable, encoding: Mapping[Any, Any], label: str, n_bits: int
) -> None:
    told = stored_dtype(encoding)
    dtype = variable.dtype if told is None else told
    packed = next((word for word in _PACKED if encoding.get(word) is not None), None)
    if packed is None and dtype.kind == "f" and n_bits <= np.finfo(dtype).nmant:
        return
    what = f"is stored as {dtype}" + ("" if packed is None else f" with {packed!r}")
    raise SpecError(
        f"the variable {label!r} {what} by its encoding, so that rounding its mantissa would save "
        "nothing",
        field="keep_bits",
        value=label,
        remedy="name the variables to round without this one, or give it another encoding, for "
        'instance encoding={"t2m": {"dtype": "float32"}}',
    )


def refuse_other_rounding(
    dataset: xarray.Dataset, keep_bits: Bits, arrays: Mapping[str, Document]
) -> None:
    """Refuse values for arrays that exist and are rounded otherwise.

    A dataset that was rounded before says so in its own attributes.
    """
    for name, variable in dataset.variables.items():
        there = attributes_of(arrays.get(str(name), {})).get(N_BITS)
        asked = keep_bits.get(name)
        own = variable.attrs.get(N_BITS) if asked is None else asked
        if str(name) in arrays and own != there and not (there is None and asked is None):
            raise other_rounding(str(name), there, own)


def other_rounding(name: str, there: Any, own: Any, otherwise: str = "") -> SpecError:
    """Error of a variable that is rounded otherwise than the array of the store.

    - `there`, `own`: bits of the array and of the variable; None if it is not rounded.
    - `otherwise`: a further remedy.
    """
    remedy = "leave it out" if there is None else f"give {{{name!r}: {there}}}"
    return SpecError(
        f"the variable {name!r} of the store {_told(there)}, and that of the dataset {_told(own)}",
        field="keep_bits",
        value=own,
        remedy=remedy + otherwise,
    )


def _told(n_bits: Any) -> str:
    return "is not rounded" if n_bits is None else f"is rounded to {n_bits} bits"

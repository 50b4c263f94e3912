"""Conversion of data types and fill values between JSON and numpy, without loss of a bit.

zarr-python provides the data types. For the plain ones it is not imported, because that takes long.
It writes ``"NaN"`` into JSON for each payload of a float. Where bits would be lost, the document
holds them in hexadecimal, as the specification allows.
"""

from __future__ import annotations

import base64
import cmath
import json
import math
import warnings
from functools import lru_cache
from numbers import Complex, Real
from typing import Any

import numpy as np

from shardwrite.codecs.documents import Document
from shardwrite.config.table import READ_LIMIT, value_of
from shardwrite.errors import SpecError

PLAIN_DTYPES = {
    name: np.dtype(name).newbyteorder("<")
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
}
"""Dtypes of the plain data types, by their names."""

_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@lru_cache(maxsize=64)
def _zarr_dtype_cached(text: str) -> Any:
    from zarr.dtype import data_type_registry  # takes long, and plain data types do not need it

    with warnings.catch_warnings():
        # zarr warns of dtypes without a specification when the array is created.
        warnings.simplefilter("ignore")
        return data_type_registry.match_json(json.loads(text), zarr_format=3)


def zarr_dtype(data_type: Any) -> Any:
    """Data type of zarr for the ``data_type`` of a document."""
    if not isinstance(data_type, str | dict):
        raise SpecError(
            "no data type", field="data_type", value=data_type, remedy="use one that zarr knows"
        )
    try:
        return _zarr_dtype_cached(json.dumps(data_type))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise SpecError(
            f"unknown data type ({error})",
            field="data_type",
            value=data_type,
            remedy="use one that zarr knows",
        ) from None


def native_dtype(data_type: Any) -> np.dtype[Any]:
    """Dtype in memory for the ``data_type`` of a document."""
    if isinstance(data_type, str) and data_type in PLAIN_DTYPES:
        return PLAIN_DTYPES[data_type]
    native: np.dtype[Any] = np.dtype(zarr_dtype(data_type).to_native_dtype())
    return native


def check_itemsize(dtype: np.dtype[Any]) -> None:
    """Refuse elements so long that nobody could read the document, whose fill value is one.

    Others are refused when the document is there. To make it of such a value takes minutes.
    """
    limit = value_of(READ_LIMIT)
    if dtype.kind == "V" and dtype.itemsize > limit // 4 * 3:  # as base64
        raise SpecError(
            f"an element has {dtype.itemsize:,} bytes, and so has the fill value in the document, "
            f"of which {limit:,} are read",
            field="dtype",
            value=str(dtype),
            remedy='give "uint8", and an axis more, for the bytes of an element',
        )


def is_same_type(source: np.dtype[Any], stored: np.dtype[Any]) -> bool:
    """Whether values of one dtype pass to the other and back without loss of a bit.

    The byte order may differ. The source of a stored text may have the dtype object.
    """
    if stored.hasobject or stored.kind == "T":
        return source.fields is None and source.kind in ("O", stored.kind)
    return source.kind not in "OT" and source.newbyteorder("=") == stored.newbyteorder("=")


def fill_from_json(data_type: Any, dtype: np.dtype[Any], value: Any) -> Any:
    """Fill value for its JSON form, with exactly the bits that the JSON gives."""
    if dtype.kind == "b" and not isinstance(value, bool):
        raise SpecError("not a bool", field="fill_value", value=value, remedy="give true or false")
    try:
        if isinstance(value, str) and value.startswith("0x") and dtype.kind == "f":
            return np.array(int(value, 16), dtype=f"u{dtype.itemsize}").view(dtype)[()]
        if dtype.kind == "c" and isinstance(value, list):
            part = np.dtype(f"f{dtype.itemsize // 2}")
            real, imaginary = (fill_from_json(part.name, part, v) for v in value)
            return np.array([real, imaginary], dtype=part).view(dtype)[0]
        if dtype.kind == "f" and isinstance(value, str):
            value = _FLOATS.get(value, value)
        if dtype.kind == "b" or (dtype.kind == "f" and type(value) is float):
            return dtype.type(value)
        if dtype.kind in "iu" and type(value) is int:
            bounds = np.iinfo(dtype)
            if bounds.min <= value <= bounds.max:
                return dtype.type(value)
        if dtype.kind == "T" and isinstance(value, str):
            value.encode()  # which refuses what is no text, as the dtype does
        if dtype.fields is not None and isinstance(value, str):
            return np.frombuffer(base64.b64decode(value), dtype=dtype)[0]
        return zarr_dtype(data_type).from_json_scalar(value, zarr_format=3)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise SpecError(
            f"not a {dtype} ({error})",
            field="fill_value",
            value=value,
            remedy="give one of the dtype",
        ) from None


def exact_fill(document: Document, dtype: np.dtype[Any], fill_value: Any) -> Any:
    """JSON form of a fill value that keeps all its bits.

    The result is the document's own ``fill_value`` unless that loses bits of a float, such as the
    payload of a NaN. Then it is hexadecimal.
    """
    if fill_value is None or dtype.kind not in "fc":
        return document["fill_value"]
    wanted = np.asarray(fill_value).astype(dtype, copy=False)
    stored = np.asarray(
        fill_from_json(document["data_type"], dtype, document["fill_value"]), dtype=dtype
    )
    if wanted.tobytes() == stored.tobytes():
        return document["fill_value"]
    width = dtype.itemsize // (2 if dtype.kind == "c" else 1)
    bits = [f"0x{int(b):0{2 * width}x}" for b in np.atleast_1d(wanted).view(f"u{width}")]
    return bits if dtype.kind == "c" else bits[0]


def check_fill(document: Document, dtype: np.dtype[Any], fill_value: Any) -> None:
    """Check that the document keeps a fill value as the user gave it.

    Floats may be rounded, but a finite one must stay finite.
    """
    if fill_value is None:
        return
    stored = fill_from_json(document["data_type"], dtype, document["fill_value"])
    if not _is_kept(fill_value, stored, dtype):
        what = "text" if dtype.kind in "OTU" else str(dtype)
        raise SpecError(
            f"is no {what} and would become {stored}",
            field="fill_value",
            value=fill_value,
            remedy="give a scalar of the array's dtype that holds it",
        )


def _is_kept(given: Any, stored: Any, dtype: np.dtype[Any]) -> bool:
    """Whether the stored fill value is the one that was given."""
    if isinstance(given, np.generic | np.ndarray) and given.dtype.kind not in "mMV":
        given = given.item()
    if dtype.fields is not None:
        fields = given if isinstance(given, tuple) else ()
        return all(
            _is_kept(value, stored[name], dtype[name])
            for value, name in zip(fields, dtype.names or (), strict=False)
        )
    if dtype.kind in "biu":
        text = isinstance(given, str) and dtype.kind != "b" and given.strip() == str(stored)
        return text or (isinstance(given, Real) and bool(given == stored.item()))
    if dtype.kind in "fc":
        number = complex(given) if isinstance(given, Complex | str) else complex(math.nan)
        return not cmath.isfinite(number) or bool(np.isfinite(stored))
    if dtype.kind in "mM":
        return _is_same_time(given, stored)
    if dtype.kind == "U":
        return isinstance(given, str) and given == str(stored)
    if dtype.kind == "S":
        return given in (bytes(stored), bytes(stored).decode("latin-1"))
    if dtype.kind == "V":
        return bool(np.asarray(given).tobytes() == stored.tobytes())
    return type(given) is type(stored) and bool(given == stored)


def _is_same_time(given: Any, stored: Any) -> bool:
    """Whether the stored time is the one that was given, as a time or as a count of its units.

    Two NaT ("not a time") count as equal.
    """
    if np.asarray(given).dtype.kind in "iu":
        return int(given) == int(stored.view("i8"))
    time = type(stored)(given)
    return bool(are_same_times(time, stored))


def are_same_times(given: Any, stored: Any) -> Any:
    """Whether each time is the same as the one that was made of it in another unit.

    They are compared in their own unit. A time that is too far away for the other unit has become
    another one there, and numpy would compare what it becomes.
    """
    return (stored.astype(given.dtype) == given) | (np.isnat(stored) & np.isnat(given))

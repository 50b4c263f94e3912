"""Attributes of arrays, of files or objects, in the form of JSON that Zarr and xarray use."""

from __future__ import annotations

import base64
import json
import math
import struct
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from shardwrite.codecs.documents import JSON

_OF_DECODING = {
    *("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned"),
    *("units", "calendar", "dtype"),
}
_MAX_NBYTES = 1 << 20  # what a reader may have to parse before it sees the array


def as_attributes(
    found: Mapping[str, Any], path: str, dtype: np.dtype[Any] | None = None
) -> dict[str, JSON]:
    """Attributes of a file as values that JSON can hold.

    Numbers that are not finite become ``"NaN"``, ``"Infinity"`` or ``"-Infinity"``, as in Zarr.
    The attribute ``_FillValue`` gets the form in which xarray looks for it.

    - `dtype`: data type of the array, of which ``_FillValue`` must be, too.

    Warns
    -----
    UserWarning
        If a value has no form in JSON, or fills more than a mebibyte there. It is then left out.
    """
    kept: dict[str, JSON] = {}
    for name, value in found.items():
        try:
            held = mask_value(value, dtype) if name == "_FillValue" else _as_json(value)
            nbytes = len(json.dumps(held))
        except (IndexError, RecursionError, TypeError):
            why = f"JSON holds no values of the type {type(value).__name__}"
        else:
            if nbytes <= _MAX_NBYTES:
                kept[name] = held
                continue
            why = f"it is too large: {nbytes:,} bytes as JSON"
        warnings.warn(f"{path}: the attribute {name!r} is left out, since {why}", stacklevel=2)
    return kept


def typed_attributes(attributes: Mapping[str, Any]) -> Mapping[str, object]:
    """Attributes by which xarray decodes values: single numbers with their types, and text.

    The result of decoding has a type that depends on theirs.
    """
    found: dict[str, object] = {}
    for name in _OF_DECODING & set(attributes):
        value = attributes[name]
        if np.size(value) == 1:
            value = np.asarray(value).reshape(-1)[0]
        is_text = isinstance(value, bytes) and name != "_FillValue"
        found[name] = value.decode("utf-8", "replace") if is_text else value
    return found


def unmasked_value(value: Any, dtype: np.dtype[Any]) -> Any:
    """The number of an attribute ``_FillValue`` that `mask_value` has turned into JSON."""
    if dtype.kind == "c" and isinstance(value, list):
        return complex(*(unmasked_value(part, np.dtype("f8")) for part in value))
    if dtype.kind not in "fS" or not isinstance(value, str):
        return value
    data = base64.b64decode(value)
    return data if dtype.kind == "S" else struct.unpack("<d", data)[0]


def mask_value(value: Any, dtype: np.dtype[Any] | None = None) -> JSON:
    """The attribute ``_FillValue`` of a Zarr v3 array, as xarray writes and reads it.

    Floats are eight bytes, little-endian, in base64; so a NaN keeps its bits. xarray reads it as a
    number of the array's `dtype`.
    """
    scalar = np.asarray(value).reshape(-1)[0]
    kinds = (scalar.dtype.kind, "" if dtype is None else dtype.kind)
    if kinds in (("i", "f"), ("u", "f")):
        scalar = np.float64(scalar)
    elif kinds in (("f", "i"), ("f", "u")) and float(scalar).is_integer():
        scalar = np.int64(scalar)
    if scalar.dtype.kind == "c":
        return [mask_value(scalar.real), mask_value(scalar.imag)]
    if scalar.dtype.kind == "f":
        return base64.b64encode(struct.pack("<d", float(scalar))).decode()
    if scalar.dtype.kind == "S":
        return base64.b64encode(bytes(scalar)).decode()
    return _as_json(scalar)


def _as_json(value: Any) -> JSON:
    """A value in the form of JSON."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(name): _as_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"no value of JSON: {value!r}")

"""The document of a plain array, as zarr-python would render it, without its import.

Plain are booleans, integers, floats and complex numbers, in little-endian bytes without filters,
with codecs from the list below. Importing zarr-python takes longer than the write of a small array,
and everything that is not plain is left to it: also whatever it may refuse.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shardwrite.codecs.datatypes import PLAIN_DTYPES
from shardwrite.codecs.documents import Document
from shardwrite.grid import Shape

_KEYS = {"name": "default", "separator": "/"}
_BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
# Configurations of codecs where nothing is given, and the highest level.
_CODECS: dict[str, tuple[Document, int]] = {
    "crc32c": ({}, 0),
    "gzip": ({"level": 5}, 9),
    "zstd": ({"level": 0, "checksum": False}, 22),
}
_FLOATS = {math.inf: "Infinity", -math.inf: "-Infinity"}


def plain_document(
    shape: Shape, dtype: object, chunks: Shape, chosen: Mapping[str, Any]
) -> Document | None:
    """Document of an unsharded array; None if zarr-python must make it.

    - `chosen`: keywords of `zarr.create_array`.
    """
    if not isinstance(dtype, np.dtype) or PLAIN_DTYPES.get(dtype.name) != dtype:
        return None
    filters, names = chosen["filters"], chosen["dimension_names"]
    keys = _KEYS if chosen["chunk_key_encoding"] is None else chosen["chunk_key_encoding"]
    is_plain = (
        all(type(n) is int and n > 0 for n in chunks)
        and all(type(n) is int for n in shape)
        and (filters is None or filters in ("auto", (), []))
        and (chosen["serializer"] == "auto" or chosen["serializer"] == _BYTES)
        and isinstance(keys, dict)
        and (names is None or _is_names(names))
    )
    fill_value, compressors = _fill(dtype, chosen["fill_value"]), _codecs(chosen["compressors"])
    if not is_plain or fill_value is None or compressors is None:
        return None
    configuration = {"separator": keys["separator"]}
    document = {
        "shape": shape,
        "data_type": dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "chunk_key_encoding": {"name": keys["name"], "configuration": configuration},
        "fill_value": fill_value,
        "codecs": [{"name": "bytes"} if dtype.itemsize == 1 else _BYTES, *compressors],
        "attributes": chosen["attributes"] or {},
        **({"dimension_names": names} if names else {}),
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    }
    made: Document = json.loads(json.dumps(document))
    return made


def _is_names(names: object) -> bool:
    """Whether these are names of axes, in a list."""
    return isinstance(names, list | tuple) and all(
        name is None or type(name) is str for name in names
    )


def _fill(dtype: np.dtype[Any], value: Any) -> Any:
    """JSON form of a fill value; None if it is no plain one of the dtype."""
    if value is None:
        value = dtype.type(0)
    if isinstance(value, np.generic) and value.dtype == dtype:
        value = value.item()
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        return value if type(value) is int and bounds.min <= value <= bounds.max else None
    if dtype.kind == "b":
        return value if type(value) is bool else None
    if dtype.kind == "c":
        return [0.0, 0.0] if type(value) is complex and repr(value) == "0j" else None
    if type(value) is not float:
        return None
    with np.errstate(over="ignore"):
        stored = float(dtype.type(value))
    if math.isfinite(value):
        return stored if math.isfinite(stored) else None
    return _FLOATS.get(value, "NaN")


def _codecs(given: Any) -> list[Document] | None:
    """Documents of compressors, every field given; None if one of them is not plain."""
    if given is None:
        return []
    if isinstance(given, str) or not isinstance(given, Sequence | Mapping):
        return None
    made = [_codec(codec) for codec in ([given] if isinstance(given, Mapping) else given)]
    whole = [codec for codec in made if codec is not None]
    return whole if len(whole) == len(made) else None


def _codec(given: object) -> Document | None:
    """Document of a compressor, every field given; None if it is not plain."""
    if type(given) is not dict or not given.keys() <= {"name", "configuration"}:
        return None
    name = given.get("name")
    configuration = given.get("configuration", {} if name == "crc32c" else None)
    if type(configuration) is not dict or not isinstance(name, str) or name not in _CODECS:
        return None
    usual, most = _CODECS[name]
    made = {**usual, **configuration}
    fits = type(made.get("level", 0)) is int and 0 <= made.get("level", 0) <= most
    fits = fits and type(made.get("checksum", False)) is bool
    if not fits or made.keys() != usual.keys():
        return None
    return {"name": name, **({"configuration": made} if made else {})}

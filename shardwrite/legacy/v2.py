"""Zarr v2 arrays as the Zarr v3 arrays that have the same chunks.

The encoded chunks of most v2 arrays are those of a v3 array, too. This module makes the document of
that array. Names of codecs are looked up in a table before anything is made of them, so a codec
that runs what it reads, such as ``pickle``, is never made.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from zarr.dtype import data_type_registry

from shardwrite._dataclass import dataclass
from shardwrite.codecs.documents import JSON, Codec, Document
from shardwrite.errors import SpecError
from shardwrite.format.metadata import why_too_long
from shardwrite.format.node import ATTRIBUTES_OF_V2, DOCUMENTS_OF_V2

SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")
_BLOSC = {"cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}
_SERIALIZERS = frozenset({"vlen-utf8", "vlen-bytes"})
# codecs that turn arrays into arrays, and bytes into bytes, and have the same bytes in v3
_OF_ARRAYS = frozenset({"delta", "fixedscaleoffset", "bitround", "quantize", "astype"})
_OF_BYTES = frozenset({"zlib", "bz2", "lzma", "lz4", "shuffle"})
_CHECKSUMS = frozenset({"crc32", "crc32c", "adler32", "fletcher32", "jenkins_lookup3"})
DIMENSIONS = "_ARRAY_DIMENSIONS"
MEND = "mend its"
_WRITE = "read it with a program that you trust, and write its values"


@dataclass(frozen=True, slots=True)
class Translation:
    """A v2 array in the words of v3."""

    document: Document  # the ``zarr.json`` of the v3 array with the same chunks under the same keys
    notes: tuple[str, ...]  # what a user should know of it
    has_fill: bool  # whether the v2 array has a fill value of its own


def translated(found: Any, attributes: Any) -> Translation:
    """Translate the documents of a v2 array.

    - `found`, `attributes`: the parsed ``.zarray`` and ``.zattrs``; the second is None if it is
      missing.
    """
    document = _checked(found)
    ndim = len(document["shape"])
    filters, compressor = _codecs_in(document)
    serializer = next((f["id"] for f in filters if f["id"] in _SERIALIZERS), None)
    dtype = _dtype_of(document["dtype"], serializer)
    _check_lengths("chunks", document["chunks"], dtype.to_native_dtype().itemsize)
    if not isinstance(attributes, Mapping | None):
        raise _refused("no object", "attributes", attributes)
    attributes_of_v3 = dict(attributes or {})
    codecs = _codecs(document, dtype, filters, compressor)
    document_of_v3: Document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(document["shape"]),
        "data_type": dtype.to_json(zarr_format=3),
        "chunk_grid": {
            "name": "regular",
            "configuration": {"chunk_shape": list(document["chunks"])},
        },
        "chunk_key_encoding": {
            "name": "v2",
            "configuration": {"separator": document.get("dimension_separator") or "."},
        },
        "fill_value": _fill(document.get("fill_value"), dtype),
        "codecs": codecs,
    }
    names = attributes_of_v3.get(DIMENSIONS)
    if isinstance(names, list) and len(names) == ndim and all(isinstance(n, str) for n in names):
        document_of_v3["dimension_names"] = attributes_of_v3.pop(DIMENSIONS)
    document_of_v3["attributes"] = attributes_of_v3
    foreign = [str(codec["name"]) for codec in codecs if str(codec["name"]).startswith("numcodecs")]
    note = f"codecs of Zarr v2 that not every reader of v3 knows: {', '.join(foreign)}"
    notes = (note,) if foreign else ()
    return Translation(document_of_v3, notes, document.get("fill_value") is not None)


def _refused(why: str, field: str, value: object, remedy: str = "") -> SpecError:
    """Error about a field of a document, in the words of Zarr v2."""
    name = ATTRIBUTES_OF_V2 if field == "attributes" else DOCUMENTS_OF_V2[0]
    return SpecError(why, field=field, value=value, remedy=remedy or f"{MEND} {name}")


def _checked(found: Any) -> Document:
    """The document of an array, after a check of the fields that are used here."""
    if not isinstance(found, dict) or found.get("zarr_format") != 2:
        raise _refused(
            "not the document of a Zarr v2 array", "src", str(found)[:60], "give a v2 array"
        )
    for field, least in (("shape", 0), ("chunks", 1)):
        sizes = found.get(field)
        if not isinstance(sizes, list) or any(type(n) is not int or n < least for n in sizes):
            raise _refused("not a shape", field, sizes)
        _check_lengths(field, sizes)
    if len(found["shape"]) != len(found["chunks"]):
        raise _refused("not one for each axis", "chunks", found["chunks"])
    if found.get("order", "C") not in ("C", "F"):
        raise _refused("no such order", "order", found.get("order"))
    if found.get("dimension_separator", ".") not in (".", "/", None):
        value = found["dimension_separator"]
        raise _refused("no such separator", "dimension_separator", value)
    return found


def _check_lengths(field: str, sizes: Sequence[int], itemsize: int | None = None) -> None:
    why = why_too_long(sizes, itemsize)
    if why is not None:
        raise _refused(why, field, sizes)


def _codecs_in(document: Document) -> tuple[list[Document], Document | None]:
    """Filters and compressor of a document; the names of all of them are known."""
    filters, compressor = document.get("filters") or [], document.get("compressor")
    if not isinstance(filters, list):
        raise _refused("not a list", "filters", filters)
    names = {*_SERIALIZERS, *_OF_ARRAYS, *_OF_BYTES, *_CHECKSUMS, "zstd", "gzip", "blosc"}
    for codec in [*filters, *([] if compressor is None else [compressor])]:
        name = codec.get("id") if isinstance(codec, dict) else None
        if name not in names:
            raise _refused(
                "a codec that has no counterpart in Zarr v3 and is not run here",
                "codecs",
                name,
                _WRITE,
            )
    return filters, compressor


def _dtype_of(found: JSON, serializer: str | None) -> Any:
    """Data type of zarr for the ``dtype`` of a document."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # zarr warns of dtypes without a specification
            name: Any = found
            if isinstance(found, Sequence) and not isinstance(found, str):  # fields
                name = [list(f) if isinstance(f, Sequence) else f for f in found]
            described: Any = {"name": name, "object_codec_id": serializer}
            return data_type_registry.match_json(described, zarr_format=2)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise _refused(f"unknown data type ({error})", "dtype", found, _WRITE) from None


def _fill(value: JSON, dtype: Any) -> Any:
    """Fill value in the form of v3; the type's default if there is none."""
    kind = dtype.to_native_dtype().kind
    try:
        if value is None or (kind in "OT" and not isinstance(value, str)):
            scalar = dtype.default_scalar()
        elif kind == "b":
            scalar = dtype.from_json_scalar(bool(value), zarr_format=2)
        else:
            scalar = dtype.from_json_scalar(value, zarr_format=2)
        return dtype.to_json_scalar(scalar, zarr_format=3)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise _refused(f"no value of its dtype ({error})", "fill_value", value) from None


def _codecs(
    document: Document, dtype: Any, filters: Sequence[Document], compressor: Document | None
) -> list[Codec]:
    """Codecs of v3 that give the same bytes."""
    native = dtype.to_native_dtype()
    ndim = len(document["shape"])
    codecs: list[Codec] = []
    if document.get("order", "C") == "F" and ndim > 1:
        order = list(reversed(range(ndim)))
        codecs.append({"name": "transpose", "configuration": {"order": order}})
    is_variable = native.hasobject or native.kind == "T"
    arrays = [f for f in filters if f["id"] in _OF_ARRAYS]
    serializers = [f["id"] for f in filters if f["id"] in _SERIALIZERS]
    rest = filters[len(arrays) + len(serializers) :]
    if (
        [*arrays, *filters[len(arrays) :]] != list(filters)
        or any(f["id"] in _OF_ARRAYS | _SERIALIZERS for f in rest)
        or len(serializers) != int(is_variable)
        or (is_variable and arrays)
        or (arrays and (_is_big(native) or any(_is_big(native, f) for f in arrays)))
        or (native.fields is not None and _is_big(native))
    ):
        raise _refused(
            "filters or byte orders that Zarr v3 cannot say",
            "filters",
            [f["id"] for f in filters] or str(native),
            _WRITE,
        )
    codecs += [{"name": f"numcodecs.{f['id']}", "configuration": _settings(f)} for f in arrays]
    if is_variable:
        codecs.append({"name": serializers[0]})
    elif native.itemsize > 1 and native.kind not in "SV":
        endian = "big" if _is_big(native) else "little"
        codecs.append({"name": "bytes", "configuration": {"endian": endian}})
    elif native.fields is not None:
        codecs.append({"name": "bytes", "configuration": {"endian": "little"}})
    else:
        codecs.append({"name": "bytes"})
    itemsize = 1 if is_variable else max(1, native.itemsize)
    codecs += [_of_bytes(f, itemsize) for f in rest]
    return codecs + ([] if compressor is None else [_of_bytes(compressor, itemsize)])


def _is_big(native: Any, settings: Mapping[str, Any] | None = None) -> bool:
    """Whether a dtype, or one in the settings of a codec, is big-endian."""
    if settings is not None:
        return any(str(settings.get(field, "")).startswith(">") for field in ("dtype", "astype"))
    if native.fields is not None:
        return any(_is_big(field) for field, *_ in native.fields.values())
    return bool(native.base.str.startswith(">"))


def _settings(codec: Codec) -> Document:
    return {name: value for name, value in codec.items() if name != "id"}


def _of_bytes(codec: Mapping[str, Any], itemsize: int) -> Codec:
    """The codec of v3 with the bytes of a bytes-to-bytes codec of v2."""
    name, settings = codec["id"], _settings(codec)
    if name == "zstd":
        level, checksum = settings.get("level", 0), bool(settings.get("checksum", False))
        return {"name": "zstd", "configuration": {"level": level, "checksum": checksum}}
    if name == "gzip":
        return {"name": "gzip", "configuration": {"level": settings.get("level", 1)}}
    if name == "blosc":
        settings = {**_BLOSC, **settings}
        number = settings["shuffle"]
        if number == -1:  # automatic
            number = 2 if itemsize == 1 else 1
        if number not in range(len(SHUFFLES)):
            raise _refused("no such shuffle", "compressor", dict(codec))
        configuration = {
            "typesize": min(itemsize, 255),
            "cname": settings["cname"],
            "clevel": settings["clevel"],
            "shuffle": SHUFFLES[number],
            "blocksize": settings["blocksize"],
        }
        return {"name": "blosc", "configuration": configuration}
    if name == "shuffle":
        settings.setdefault("elementsize", 4)
    return {"name": f"numcodecs.{name}", "configuration": settings}

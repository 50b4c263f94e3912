"""The ``zarr.json`` of a new array, made from the user's keywords.

zarr-python renders data type, fill value and codecs, unless they are plain: it creates an unsharded
array of inner chunks in memory. The sharding codec is then put around those codecs. So every dtype
can be sharded, also those that zarr-python itself cannot shard.

zarr-python is imported only for a codec that it must tell about.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np

from shardwrite._dataclass import dataclass
from shardwrite.checks import one_value
from shardwrite.codecs.datatypes import (
    PLAIN_DTYPES,
    check_fill,
    check_itemsize,
    exact_fill,
    native_dtype,
    zarr_dtype,
)
from shardwrite.codecs.documents import Document, check_json, has_surrogates
from shardwrite.codecs.pipeline import serializer_named
from shardwrite.errors import SpecError
from shardwrite.format.metadata import ArrayMetadata, metadata_of_document
from shardwrite.format.node import DOCUMENT, check_manifest
from shardwrite.format.sharding import ShardFormat, ShardingIndexed, shard_format_named
from shardwrite.grid import Shape, as_sizes
from shardwrite.options import ArrayKeywords
from shardwrite.seams import needed, registered

# ---- Codecs as users give them: names, documents, or objects of zarr-python


VLEN_DTYPES = {"vlen-utf8": "string", "vlen-bytes": "variable_length_bytes"}
"""Data types by the codecs of elements of variable length."""


def as_list(value: Any) -> list[Any]:
    """Items of a sequence; a list of the value itself if it is no sequence, or a text."""
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def with_documents(value: Any) -> Any:
    """Turn bare codec names into the mappings that zarr takes."""
    if isinstance(value, str) and value not in ("auto", "keep"):
        # zarr-python 3.4 needs an order of bytes, which it drops where elements are single bytes.
        return {"name": value, "configuration": {"endian": "little"} if value == "bytes" else {}}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [with_documents(v) for v in value]
    return value


def document_of(codec: Any) -> Mapping[str, Any]:
    """Document of a codec, which may be one already; empty if it is no codec."""
    if isinstance(codec, Mapping):
        return codec
    document: Document = codec.to_dict() if hasattr(codec, "to_dict") else {}
    return document


def as_document(codec: Any, field: str = "index_codecs") -> Document:
    """Document of a codec, as JSON holds it."""
    if not isinstance(codec, Mapping) and not hasattr(codec, "to_dict"):
        raise SpecError("not a codec", field=field, value=codec, remedy=_REMEDIES[field])
    document = dict(codec) if isinstance(codec, Mapping) else codec.to_dict()
    if document.get("configuration") == {}:
        del document["configuration"]
    try:
        return json.loads(json.dumps(document, default=_plain_value))  # type: ignore[no-any-return]
    except (RecursionError, TypeError, ValueError) as error:
        raise SpecError(
            f"cannot be held by JSON: {error}",
            field=field,
            value=codec,
            remedy=_REMEDIES[field],
        ) from None


def _plain_value(item: Any) -> Any:
    """What JSON holds for a member of an enumeration, or for a number of numpy."""
    if isinstance(item, Enum):
        return item.value
    if isinstance(item, np.generic):
        return item.item()
    raise TypeError(f"{item!r} is no number, text, list or mapping")


def codec_class(name: str) -> type[Any] | None:
    """Class of a codec by its name; None if zarr does not know it."""
    from zarr.registry import get_codec_class

    try:
        return get_codec_class(name)
    except (LookupError, ValueError):  # zarr 3.1 raises the first, and newer versions the second
        return None


def _names_of(codecs: Any) -> list[str]:
    """Names of those codecs that are documents."""
    return [
        str(codec["name"])
        for codec in as_list(codecs)
        if isinstance(codec, Mapping) and "name" in codec
    ]


def are_known(codecs: Any) -> bool:
    """Whether these are documents of codecs that zarr knows by their names."""
    names = _names_of(codecs)
    return bool(names) and unknown_name(codecs) is None


def unknown_name(codecs: Any) -> str | None:
    """First name of a codec that zarr does not know; None if there is none."""
    return next((name for name in _names_of(codecs) if codec_class(name) is None), None)


def _refuse_no_codecs(field: str, value: Any) -> None:
    """Refuse what is neither a name, nor a document, nor an object of zarr-python or numcodecs.

    So nothing that comes after compares such a value, which an array of numpy does by elements.
    """
    for codec in as_list(value):
        is_one = (
            isinstance(codec.get("name", ""), str)
            if isinstance(codec, Mapping)
            else (
                codec is None
                or isinstance(codec, str)
                or hasattr(codec, "to_dict")
                or hasattr(codec, "codec_id")
            )
        )
        if not is_one:
            raise SpecError("not a codec", field=field, value=codec, remedy=_REMEDIES[field])


def refuse_numcodecs(field: str, value: Any) -> None:
    """Refuse codecs of numcodecs, which are those of Zarr v2, and name what stands for them."""
    for codec in as_list(value):
        name = getattr(codec, "codec_id", None)
        if isinstance(name, str) and not isinstance(codec, Mapping):
            new = f'"{name}", {{"name": "{name}", "configuration": {{...}}}}'
            if name not in ("blosc", "crc32c", "gzip", "zstd"):
                new = json.dumps(_for_v3(codec), default=str)
            raise SpecError(
                "a codec of numcodecs, which is for Zarr v2",
                field=field,
                value=value,
                remedy=f"give the one of Zarr v3: {new}, or an object of zarr.codecs",
            )


def _for_v3(codec: Any) -> Document:
    """Document of the codec of Zarr v3 that does what one of numcodecs does."""
    configuration = dict(codec.get_config())
    return {"name": f"numcodecs.{configuration.pop('id')}", "configuration": configuration}


def sharding_in(serializer: Any) -> Document | None:
    """Document of a sharding that is given as the serializer; None if it is another codec.

    zarr-python would compare the chunk shape of a sharding with that of the array even where a
    transposition stands between them. So the sharding is put into the document here.
    """
    document = document_of(serializer)
    if document.get("name") != ShardingIndexed.name:
        return None
    from zarr.codecs import ShardingCodec

    try:
        return as_document(ShardingCodec.from_dict(dict(document)))
    # zarr raises many types here; each of them means that the configuration is wrong.
    except Exception as error:
        raise SpecError(
            f"not a sharding: {error}",
            field="serializer",
            value=serializer,
            remedy="give zarr.codecs.ShardingCodec(chunk_shape=..., codecs=...), or its document",
        ) from error


def serializer_name(serializer: Any) -> str | None:
    """Name of the codec that makes bytes of elements: in a sharding, that of its inner chunks."""
    document = document_of(serializer)
    if document.get("name") != ShardingIndexed.name:
        return document.get("name")
    names = (serializer_name(codec) for codec in document["configuration"]["codecs"])
    return next((name for name in names if name in VLEN_DTYPES), None)


def unknown_to_zarr(serializer: Any, shard_format: Any) -> Document | None:
    """Document of a codec of a wing that is given as the serializer; None if it is none.

    zarr-python does not know these, so they are put into the document here.
    """
    document = document_of(serializer)
    known = serializer_named(str(document.get("name")))
    if known is None:
        return None
    known.check_format(shard_format, serializer)
    return as_document(document, "serializer")


def put_serializer(serializer: Document, codecs: list[Document]) -> None:
    """Replace the array-to-bytes codec in a list by another, such as a sharding."""
    from zarr.abc.codec import ArrayBytesCodec
    from zarr.registry import get_codec_class

    position = next(
        i
        for i, codec in enumerate(codecs)
        if issubclass(get_codec_class(codec["name"]), ArrayBytesCodec)
    )
    codecs[position] = serializer


# ---- The document of a new array


DEFAULT_COMPRESSORS = (
    {"name": "zstd", "configuration": {"level": 0, "checksum": False}},
    {"name": "crc32c"},
)

_CHECKSUMS = {"crc32c"} | {
    f"numcodecs.{name}" for name in ("adler32", "crc32", "crc32c", "fletcher32", "jenkins_lookup3")
}

DEFAULT_INDEX_CODECS = (
    {"name": "bytes", "configuration": {"endian": "little"}},
    {"name": "crc32c"},
)

_SINGLE = (
    *("fill_value", "index_location", "shard_format", "chunk_key_encoding"),
    *("order", "zarr_format", "format", "manifest"),
)
"""Options that take one value, and no array."""

_OF_INDEX = {"index_location": "end", "index_codecs": None}

_OF_SHARDS = {**_OF_INDEX, "shard_format": None}

_REMEDIES = {
    "dtype": "convert the source with astype to a type that zarr knows",
    "filters": 'give array-to-array codecs that are installed, such as "transpose"',
    "serializer": 'give one array-to-bytes codec that is installed, such as "bytes"',
    "compressors": "give bytes-to-bytes codecs that are installed, "
    'such as "zstd", "gzip", "blosc" or "crc32c"',
    "index_codecs": 'use "bytes" and "crc32c"',
    "fill_value": "give a scalar of the array's dtype",
    "chunk_key_encoding": 'use "default" or "v2", with the separator "/" or "."',
    "dimension_names": "give a name or None for each axis",
    "attributes": "give a mapping that JSON can hold, numbers finite",
}


@dataclass(frozen=True, slots=True)
class OtherFormat:
    """A format whose arrays have the shards of `sharding_indexed`, and documents of its own."""

    default_compressors: Sequence[Document]  # of inner chunks
    # Function of what a user gives for `compressors`, which gives them as zarr-python knows them
    compressors: Callable[[Any], Any]
    # Function of the Zarr v3 document of a new array, which gives it as it is read back, and
    # refuses what the format cannot hold
    document: Callable[[Document], Document]


def other_format(name: str) -> OtherFormat:
    """What was registered as the format of a name."""
    other: OtherFormat = needed("format", name, f"the format {name}", field="format", value=name)
    return other


@dataclass(frozen=True, kw_only=True)
class ArrayOptions(ArrayKeywords):
    """Keywords that describe a new array, checked."""

    shards: Any = ArrayKeywords.shards  # a mapping is taken apart

    def __post_init__(self) -> None:
        # Options are compared with each other later, and arrays of numpy would be by elements.
        for field in _SINGLE:
            one_value(field, getattr(self, field))
        shards, location = _as_zarr_gives(self.shards, self.index_location)
        object.__setattr__(self, "shards", as_sizes(shards))
        object.__setattr__(self, "chunks", as_sizes(self.chunks))
        object.__setattr__(self, "index_location", location)
        object.__setattr__(self, "dimension_names", as_sizes(self.dimension_names))
        _check_attributes(self.attributes)
        for field in ("filters", "serializer", "compressors", "index_codecs"):
            _refuse_no_codecs(field, getattr(self, field))
        if self.order not in (None, "C", "F"):
            remedy = 'give "C" or "F"'
            raise SpecError("no such order", field="order", value=self.order, remedy=remedy)
        if self.zarr_format not in (None, 3) or isinstance(self.zarr_format, bool | float):
            raise SpecError(
                "is not written: only arrays of Zarr v3 have shards",
                field="zarr_format",
                value=self.zarr_format,
                remedy="leave it out, or make an array of Zarr v2 with dask.array.to_zarr",
            )

        if self.format not in (None, *registered("format")):
            remedy = "leave it out, or give " + " or ".join(f'"{x}"' for x in registered("format"))
            raise SpecError("no such format", field="format", value=self.format, remedy=remedy)
        check_manifest(self.manifest)


def make_metadata(
    shape: Shape, dtype: np.dtype[Any], shards: Shape | None, chunks: Shape, options: ArrayOptions
) -> ArrayMetadata:
    """Make the metadata of a new array.

    - `shards`: shape of a shard, in elements; None for an array without shards.
    - `options`: all other keywords. Its `shards` and `chunks` are not looked at.
    """
    names = options.dimension_names
    if isinstance(names, list | tuple) and len(names) != len(shape):
        why, remedy = f"{len(names)} for {len(shape)} axes", _REMEDIES["dimension_names"]
        raise SpecError(why, field="dimension_names", value=names, remedy=remedy)
    if isinstance(names, list | tuple) and any(
        isinstance(n, str) and has_surrogates(n) for n in names
    ):
        why, remedy = "a name is no text in UTF-8", _REMEDIES["dimension_names"]
        raise SpecError(why, field="dimension_names", value=names, remedy=remedy)
    for field in ("filters", "serializer", "compressors"):
        refuse_numcodecs(field, getattr(options, field))
    sharding = sharding_in(options.serializer)
    apart = sharding or unknown_to_zarr(options.serializer, options.shard_format)
    chosen: Mapping[str, Any] = {
        "filters": with_documents(options.filters),
        "serializer": "auto" if apart else with_documents(options.serializer),
        "compressors": _compressors(options, is_sharding=bool(sharding)),
        "fill_value": options.fill_value,
        "chunk_key_encoding": _key_encoding(options.chunk_key_encoding),
        "dimension_names": options.dimension_names,
        "attributes": None if options.attributes is None else dict(options.attributes),
    }
    document = _render(
        shape, _stored_dtype(dtype, sharding or chosen["serializer"]), chunks, chosen
    )
    if options.manifest is not None:
        from shardwrite.format.manifest import with_manifest  # for arrays with one

        document = with_manifest(document)
    native = native_dtype(document["data_type"])
    check_fill(document, native, options.fill_value)
    document["fill_value"] = exact_fill(document, native, options.fill_value)
    if apart:
        put_serializer(apart, document["codecs"])
    if sharding:
        _warn_of_transposed(document["codecs"], chunks)
    if shards is None:
        _refuse(options, {"format": None}, "is for sharded arrays", "leave it out, or give shards=")
        _refuse(options, _OF_SHARDS, "is for sharded arrays", "leave it out, or give shards=")
        return metadata_of_document(document, writing=True)
    warn_of_readers(native)
    shard_format = _shard_format_of(options)
    own = shard_format.to_dict()
    if {"chunk_shape", "codecs"} & set(own):
        raise SpecError(
            "its to_dict holds chunk_shape or codecs, which every shard format has",
            field="shard_format",
            value=shard_format.name,
            remedy="leave them out of it",
        )
    configuration = {"chunk_shape": list(chunks), "codecs": document["codecs"], **own}
    document["codecs"] = [{"name": shard_format.name, "configuration": configuration}]
    document["chunk_grid"]["configuration"]["chunk_shape"] = list(shards)
    if options.format is not None:
        document = other_format(options.format).document(document)
    return metadata_of_document(document, writing=True)


def warn_of_readers(native: np.dtype[Any]) -> None:
    """Warn of a sharded array whose dtype a reader that is in use cannot handle."""
    if native.kind == "V":
        warnings.warn(
            f"zarr-python before 3.4 cannot read a sharded array of the dtype {native}; "
            "shards=None writes one that it can read",
            stacklevel=3,
        )


def _warn_of_transposed(codecs: Sequence[Document], chunks: Shape) -> None:
    """Warn of a transposed sharding whose chunks zarr-python compares with the wrong axes."""
    sharding = next(codec for codec in codecs if codec["name"] == ShardingIndexed.name)
    inner = sharding["configuration"]["chunk_shape"]
    is_transposed = codecs[0]["name"] == "transpose" and len(inner) == len(chunks)
    if is_transposed and any(n % c for n, c in zip(chunks, inner, strict=True)):
        warnings.warn(
            f"zarr-python cannot open an array of chunks {chunks} whose transposed sharding has "
            f"inner chunks {tuple(inner)}; tensorstore and zarrs can",
            stacklevel=3,
        )


def _as_zarr_gives(shards: Any, location: Any) -> tuple[Any, Any]:
    """Shape of the shards and index location, given as zarr-python takes them."""
    usual = _OF_INDEX["index_location"]
    location = location.value if isinstance(location, Enum) else location
    words = {"shape", "index_location"}
    if not isinstance(shards, Mapping) or (shards and not words.intersection(shards)):
        return shards, location  # which may be sizes by the names of axes
    shape, within = shards.get("shape"), shards.get("index_location")
    within = within.value if isinstance(within, Enum) else within
    if set(shards) - words or shape is None or isinstance(shape, Mapping):
        remedy = 'give {"shape": ..., "index_location": ...}, or a shape'
        raise SpecError("no description of shards", field="shards", value=shards, remedy=remedy)
    if within is not None and location not in (usual, within):
        raise SpecError(
            f"is not what shards= says, which is {within!r}",
            field="index_location",
            value=location,
            remedy="give it once",
        )
    return shape, location if within is None else within


def _shard_format_of(options: ArrayOptions) -> ShardFormat:
    """The format of shards that a user has chosen."""
    if options.format is not None:
        _refuse(options, _OF_SHARDS, f"is not in the format {options.format}", "leave it out")
        return ShardingIndexed([dict(DEFAULT_INDEX_CODECS[0])])
    if options.shard_format is None:
        if not isinstance(options.index_location, str):
            raise SpecError(
                "no such place",
                field="index_location",
                value=options.index_location,
                remedy='use "start" or "end"',
            )
        codecs = (
            DEFAULT_INDEX_CODECS
            if options.index_codecs is None
            else with_documents(options.index_codecs)
        )
        return ShardingIndexed(
            [as_document(codec) for codec in as_list(codecs)], options.index_location
        )
    shard_format = options.shard_format
    if type(shard_format) is not shard_format_named(getattr(shard_format, "name", "")):
        raise SpecError(
            "not a shard format that is registered",
            field="shard_format",
            value=shard_format,
            remedy="give an object of a class that register_shard_format has made known",
        )
    _refuse(options, _OF_INDEX, "is for the shard format sharding_indexed", "leave it out")
    registered: ShardFormat = shard_format
    return registered


def _refuse(options: ArrayOptions, usual: Mapping[str, Any], why: str, remedy: str) -> None:
    """Refuse options that have another value than the usual one."""
    for field, expected in usual.items():
        value = getattr(options, field)
        if value != expected:
            raise SpecError(why, field=field, value=value, remedy=remedy)


def _compressors(options: ArrayOptions, *, is_sharding: bool) -> Any:
    """Compressors of the inner chunks.

    By default there are none after a sharding, because inner chunks are compressed in it. A name
    alone says which compressor is used, and the checksum stays. A sequence, a mapping or an object
    is taken as it is.
    """
    if isinstance(options.compressors, str) and options.compressors == "auto":
        if options.format is not None:
            return other_format(options.format).default_compressors
        return () if is_sharding else DEFAULT_COMPRESSORS
    compressors = with_documents(options.compressors)
    if options.format is not None:
        return other_format(options.format).compressors(compressors)
    name = options.compressors if isinstance(options.compressors, str) else ""
    is_alone = name and not is_sharding and name not in _CHECKSUMS
    return (compressors, DEFAULT_COMPRESSORS[-1]) if is_alone else compressors


def _check_attributes(attributes: Any) -> None:
    try:
        if not isinstance(attributes, Mapping | None):
            raise TypeError("no mapping")  # noqa: TRY301
        check_json(attributes)
    except (RecursionError, TypeError, ValueError) as error:
        raise SpecError(
            str(error), field="attributes", value=attributes, remedy=_REMEDIES["attributes"]
        ) from None


def _key_encoding(value: Any) -> Any:
    """Encoding of chunk keys, as zarr-python takes it."""
    if not isinstance(value, str | Mapping):
        if value is None or hasattr(value, "to_dict"):
            return value
        raise _bad_encoding("no encoding of keys", value)
    encoding = {"name": value} if isinstance(value, str) else dict(value)
    more = encoding.pop("configuration", {})
    name = encoding.get("name")
    if not isinstance(more, Mapping) or not isinstance(name, str) or name not in ("default", "v2"):
        raise _bad_encoding("no encoding of keys", value)
    usual = "/" if name == "default" else "."
    encoding = {"separator": usual, **encoding, **more}
    if not isinstance(encoding["separator"], str) or encoding["separator"] not in ("/", "."):
        raise _bad_encoding("no such separator", value)
    if unknown := encoding.keys() - {"name", "separator"}:
        raise _bad_encoding(f"has unknown members {sorted(map(str, unknown))}", value)
    return encoding


def _bad_encoding(why: str, value: Any) -> SpecError:
    remedy = _REMEDIES["chunk_key_encoding"]
    return SpecError(why, field="chunk_key_encoding", value=value, remedy=remedy)


def _stored_dtype(dtype: np.dtype[Any], serializer: Any) -> Any:
    """Data type to ask zarr for.

    For an object array the serializer says whether it holds text or bytes.
    """
    _refuse_dtype(dtype)
    if not dtype.hasobject or dtype.kind == "T":  # kind "T" is numpy's StringDType
        # numpy has two types of integers of one size, and zarr knows one of them.
        return np.dtype(dtype.str) if dtype.kind in "iu" else dtype
    name = serializer_name(serializer)
    if name in VLEN_DTYPES and dtype.fields is None:
        return zarr_dtype(VLEN_DTYPES[name])
    raise SpecError(
        "objects have no stored form",
        field="dtype",
        value=str(dtype),
        remedy="for text or bytes of variable length give "
        'serializer="vlen-utf8" or "vlen-bytes", else convert with astype',
    )


def _refuse_dtype(dtype: np.dtype[Any]) -> None:
    """Refuse what Zarr has no stored form of."""
    if dtype.kind in "mM" and np.datetime_data(dtype)[0] == "generic":
        times = "datetime64" if dtype.kind == "M" else "timedelta64"
        remedy = f'give it one, for instance astype("{times}[ns]")'
        raise SpecError("a time without a unit", field="dtype", value=str(dtype), remedy=remedy)
    if dtype.subdtype is not None:
        raise SpecError(
            f"each element is itself an array of shape {dtype.shape}",
            field="dtype",
            value=str(dtype),
            remedy=f'give "{dtype.base}", and the axes {dtype.shape} in the shape',
        )
    if _has_titles(dtype):
        raise SpecError(
            "fields with titles have no stored form",
            field="dtype",
            value=str(dtype),
            remedy='leave the titles out with astype, for instance astype([("x", "f4")])',
        )
    if _has_arrays(dtype):
        raise SpecError(
            "fields that are arrays have no stored form",
            field="dtype",
            value=str(dtype),
            remedy="make one field for each of their elements, or write such a field as an array "
            "of its own",
        )
    check_itemsize(dtype)


def _has_titles(dtype: np.dtype[Any]) -> bool:
    """Whether a field of a structured dtype, or one inside of a field, has a title."""
    dtype = dtype.base
    names = dtype.names or ()
    # numpy lists a title like another name of the same field.
    return len(dtype.fields or ()) > len(names) or any(_has_titles(dtype[name]) for name in names)


def _has_arrays(dtype: np.dtype[Any]) -> bool:
    """Whether a field of a structured dtype, or one inside of a field, has a shape of its own."""
    kinds = [dtype[name] for name in dtype.names or ()]
    return any(kind.subdtype is not None or _has_arrays(kind) for kind in kinds)


def _render(shape: Shape, dtype: Any, chunks: Shape, chosen: Mapping[str, Any]) -> Document:
    """Document of an unsharded array of inner chunks.

    If zarr refuses the keywords together, each one is tried by itself. The error then names the
    first keyword that zarr refuses.
    """
    plain = plain_document(shape, dtype, chunks, chosen)
    if plain is not None:
        return plain
    import zarr  # takes long, and plain arrays do not need it

    def attempt(**tried: Any) -> Document:
        memory: dict[str, Any] = {}
        zarr.create_array(
            zarr.storage.MemoryStore(memory),
            shape=shape,
            dtype=dtype,
            chunks=chunks,
            zarr_format=3,
            **tried,
        )
        document: Document = json.loads(memory[DOCUMENT].to_bytes())
        return document

    try:
        return attempt(**chosen)
    # zarr raises many types here; each of them means that a keyword does not fit.
    except Exception as error:  # noqa: BLE001 (raised again with its keyword)
        for field, value in {"dtype": str(dtype), **chosen}.items():
            try:
                attempt(
                    **(
                        {"compressors": None}
                        if field == "dtype"
                        else {"compressors": None, field: value}
                    )
                )
            except Exception as narrower:  # noqa: BLE001 (raised again with its keyword)
                unknown = unknown_name(value)
                reason = str(narrower)
                if unknown is not None:
                    reason = f"nothing is known by the name {unknown!r}"
                elif isinstance(narrower, KeyError):
                    reason = f"has no {narrower}"
                remedy = _REMEDIES[field]
                if are_known(value) and "Expected a" not in reason:
                    remedy = f"correct its configuration; or {remedy}"
                if field == "compressors" and isinstance(value, tuple):
                    value = [value[0]]  # what was named, without the checksum that was added
                raise SpecError(
                    reason.rstrip("."), field=field, value=value, remedy=remedy
                ) from None
        raise SpecError(
            f"keywords do not fit together: {error}",
            field="dtype",
            value=str(dtype),
            remedy="give fewer of them",
        ) from None


# ---- The document of a plain array, as zarr-python would render it, without its import
#
# Plain are booleans, integers, floats and complex numbers, in little-endian bytes without filters,
# with codecs from the list below. Importing zarr-python takes longer than the write of a small
# array, and everything that is not plain is left to it: also whatever it may refuse.


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
    plain: Document = json.loads(json.dumps(document))
    return plain


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
    documents = [_codec(codec) for codec in ([given] if isinstance(given, Mapping) else given)]
    whole = [codec for codec in documents if codec is not None]
    return whole if len(whole) == len(documents) else None


def _codec(given: object) -> Document | None:
    """Document of a compressor, every field given; None if it is not plain."""
    if type(given) is not dict or not given.keys() <= {"name", "configuration"}:
        return None
    name = given.get("name")
    configuration = given.get("configuration", {} if name == "crc32c" else None)
    if type(configuration) is not dict or not isinstance(name, str) or name not in _CODECS:
        return None
    usual, most = _CODECS[name]
    settings = {**usual, **configuration}
    fits = type(settings.get("level", 0)) is int and 0 <= settings.get("level", 0) <= most
    fits = fits and type(settings.get("checksum", False)) is bool
    if not fits or settings.keys() != usual.keys():
        return None
    return {"name": name, **({"configuration": settings} if settings else {})}

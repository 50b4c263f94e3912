"""The storage transformer of 2022, which makes shards: its documents and keys, as those of today.

The shards are those of `sharding_indexed` with the index at the end and no checksum. So an array of
2022 is read and written as the Zarr v3 array with the same shards. The other fields of its document
are those of Zarr v2 under other names.

The key of a shard is that of a chunk with each number divided by the number of chunks in a shard
along that axis, and rounded down. What stands around the numbers stays as it is.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from shardwrite._dataclass import dataclass
from shardwrite.codecs.datatypes import native_dtype, zarr_dtype
from shardwrite.codecs.documents import Codec, Document, attributes_of
from shardwrite.errors import SpecError
from shardwrite.format.document import OtherFormat
from shardwrite.format.metadata import why_too_long
from shardwrite.format.node import FORMAT
from shardwrite.grid import Shape, ravel, unravel
from shardwrite.legacy.v2 import DIMENSIONS, MEND, SHUFFLES, translated

# ---- Keys of chunks, and of the shards that hold them


_NUMBER = "(?:0|[1-9][0-9]{0,18})"

_DIRECTORY = re.compile(rf"(?P<head>(?:.*/)?c/?)(?P<numbers>{_NUMBER}(?:/{_NUMBER})*)/", re.DOTALL)

_MOST_CHUNKS = 2**31


@dataclass(frozen=True, slots=True)
class ChunkPlace:
    """Where a chunk lies."""

    shard: str  # key of its shard
    rank: int  # number of the chunk in its shard, in row-major order


def check_extensions(found: Any) -> None:
    """Refuse extensions that a reader of a document must understand."""
    extensions = [] if found is None else found
    if not isinstance(extensions, list) or any(
        not isinstance(one, dict) or one.get("must_understand") is not False for one in extensions
    ):
        raise SpecError(
            "a reader must understand them, and none is known here",
            field="extensions",
            value=found,
            remedy="read it with a program that knows them",
        )


def checked_counts(value: object) -> Shape:
    """Numbers of chunks in a shard along each axis, from what a user or a document gives.

    Integers of numpy and arrays of them are accepted, too.
    """
    listed = value.tolist() if isinstance(value, np.ndarray | np.integer) else value
    listed = [listed] if type(listed) is int else listed
    items = listed if isinstance(listed, list | tuple) else (0,)
    is_good = all(type(n) is int or isinstance(n, np.integer) for n in items)
    counts = tuple(map(int, items)) if is_good else (0,)
    if min(counts, default=1) < 1 or math.prod(counts) > _MOST_CHUNKS:
        raise SpecError(
            "not numbers of chunks in a shard",
            field="chunks_per_shard",
            value=value,
            remedy=f"give an integer of 1 or more for each axis, {_MOST_CHUNKS:,} chunks at most",
        )
    return counts


@dataclass(frozen=True)
class ChunkKeys:
    """Keys of the chunks below a path.

    A chunk key ends in ``c/0/1``, ``c.0.1``, ``c0/1`` or ``c0.1``, with one number for each axis.
    """

    # Path of the array, or of a group of arrays with the same number of axes; empty for all
    path: str
    counts: Shape  # numbers of chunks in a shard along each axis

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        if not self.counts:
            return re.compile(r"(?P<head>(?:.*/)?c)(?P<numbers>)", re.DOTALL)
        more = len(self.counts) - 1
        slashes = f"{_NUMBER}(?:/{_NUMBER}){{{more}}}"
        dots = rf"{_NUMBER}(?:\.{_NUMBER}){{{more}}}"
        tails = "|".join(
            rf"(?P<head{n}>(?:.*/)?c{mark})(?P<numbers{n}>{numbers})"
            for n, (mark, numbers) in enumerate((("/?", slashes), (r"\.?", dots)))
        )
        return re.compile(tails, re.DOTALL)

    def _parts(self, key: str) -> tuple[str, str, list[int]] | None:
        """What stands before the numbers, the separator, and the numbers; None for other keys."""
        if self.path and not key.startswith(f"{self.path}/"):
            return None
        match = self._pattern.fullmatch(key)
        if match is None:
            return None
        if not self.counts:
            return key, "", []
        which = 0 if match["head0"] is not None else 1
        numbers, separator = match[f"numbers{which}"], "/."[which]
        head = match[f"head{which}"]
        if self.path and not head.startswith(f"{self.path}/"):  # the numbers are names in the path
            return None
        return head, separator, [int(n) for n in numbers.split(separator)]

    def is_of_grid(self, key: str) -> bool:
        """Whether a key has the form of those of chunks and of shards."""
        return self._parts(key) is not None

    def place(self, key: str) -> ChunkPlace | None:
        """Where the chunk with a key lies; None if the key is that of no chunk."""
        parts = self._parts(key)
        if parts is None:
            return None
        head, separator, numbers = parts
        pairs = [divmod(n, c) for n, c in zip(numbers, self.counts, strict=True)]
        shard = separator.join(str(number) for number, _ in pairs)
        return ChunkPlace(head + shard, ravel([within for _, within in pairs], self.counts))

    def chunk_key(self, shard: str, rank: int) -> str:
        """Key of a chunk of a shard, from the key of the shard."""
        parts = self._parts(shard)
        if parts is None:
            raise SpecError(
                "not the key of a shard", field="key", value=shard, remedy="give one of the array"
            )
        head, separator, numbers = parts
        within = unravel(rank, self.counts)
        chunk = (n * c + i for n, c, i in zip(numbers, self.counts, within, strict=True))
        return head + separator.join(map(str, chunk))

    def directory_below(self, directory: str) -> str | None:
        """Directory of the shards that hold the chunks in a directory.

        - Returns: None if the directory ends before the numbers of a chunk.
        """
        match = _DIRECTORY.fullmatch(directory)
        if match is None or not match["head"].startswith(f"{self.path}/" if self.path else ""):
            return None
        numbers = [int(n) for n in match["numbers"].split("/")]
        if len(numbers) >= len(self.counts):
            return None
        shard = (n // c for n, c in zip(numbers, self.counts, strict=False))
        return f"{match['head']}{'/'.join(map(str, shard))}/"

    def holds_chunks(self, name: str) -> bool:
        """Whether an object or directory of the store below is a shard, or may hold shards."""
        return self.is_of_grid(name) or self.directory_below(f"{name}/") is not None

    def directories(self, prefix: str) -> tuple[str, ...]:
        """Directories of the store below that hold all keys with a beginning, and their shards.

        Stores of directories take each prefix for a directory, some of them for one outside of the
        store, or fail below an object. So these are empty or end in a slash, have no empty names
        and no ``..``, and lie below no chunk.
        """
        directory = ""
        for name in prefix.split("/")[:-1]:
            if name in ("", ".", "..") or self.is_of_grid(directory + name):
                break
            directory += f"{name}/"
        below = self.directory_below(directory)
        return (directory,) if below in (None, directory) else (directory, str(below))

    def is_one_directory(self, prefix: str) -> bool:
        """Whether the keys that begin so are all in one directory below, and no others are."""
        return self.directories(prefix) == (prefix,) and self.directory_below(prefix) is None

    def starts_with(self, key: str, prefix: str) -> bool:
        """Whether a key below starts with a prefix; of a shard, whether all its chunks do."""
        parts = self._parts(key)
        return (key if parts is None else parts[0]).startswith(prefix)

    def may_hold(self, shard: str, prefix: str) -> bool:
        """Whether a key is that of a shard, and some of its chunks may begin with a prefix."""
        parts = self._parts(shard)
        if parts is None or not prefix.startswith(parts[0]):
            return False
        head, separator, numbers = parts
        numbers_in_prefix = prefix.removeprefix(head).split(separator)[:-1] if separator else ()
        return len(numbers_in_prefix) < max(1, len(numbers)) and all(
            re.fullmatch(_NUMBER, g) and int(g) // c == n
            for g, c, n in zip(numbers_in_prefix, self.counts, numbers, strict=False)
        )


# ---- Documents


_URI = "https://purl.org/zarr/spec/storage_transformers/sharding/1.0"
"""The extension, as zarr-python 2.13 to 2.18 names it. The draft has other forms."""

_URIS = re.compile(
    r"https://purl\.org/zarr/spec/(extensions/)?storage[_-]transformers/sharding/1\.0"
)

_CODEC = "https://purl.org/zarr/spec/codec/"

_NUMCODECS = "numcodecs."

_CODECS = ("gzip", "zlib", "blosc", "bz2", "lz4", "lzma")

_COMPRESSOR = ("codec", "configuration")

_OF_INDEX = [{"name": "bytes", "configuration": {"endian": "little"}}]

_OWN = ("filters", DIMENSIONS)
"""Attributes that are fields of a document of today."""


_FIELDS = {
    "chunks": "chunk_shape",
    "dtype": "data_type",
    "order": "chunk_memory_layout",
    "codecs": "filters",
    "dimension_separator": "separator",
}
"""Fields of Zarr v2 that have other names."""

_EXTENDED = {
    "c": "https://zarr-specs.readthedocs.io/en/core-protocol-v3.0-dev/protocol/extensions/"
    "complex-dtypes/v1.0.html",
    "m": "https://zarr-specs.readthedocs.io/en/latest/extensions/data-types/datetime/v1.0.html",
    "M": "https://zarr-specs.readthedocs.io/en/latest/extensions/data-types/datetime/v1.0.html",
}


def _refused(why: str, field: str, value: object, remedy: str) -> SpecError:
    return SpecError(why, field=field, value=value, remedy=remedy)


def of_today(found: Any) -> Document:
    """Document of the Zarr v3 array with the same objects.

    - `found`: the parsed document of an array of 2022.
    """
    mend = "mend its .array.json"
    if not isinstance(found, dict) or not isinstance(found.get("chunk_grid"), dict):
        raise _refused("not the document of an array of 2022", "src", str(found)[:60], mend)
    grid, attributes = found["chunk_grid"], found.get("attributes", {})
    if grid.get("type") != "regular" or grid.get("separator", "/") not in ("/", "."):
        raise _refused("not a regular grid with / or .", "chunk_grid", grid, mend)
    check_extensions(found.get("extensions"))
    if not isinstance(attributes, dict):
        raise _refused("no object", "attributes", attributes, mend)
    others = {name: value for name, value in attributes.items() if name != "filters"}
    as_v2 = {
        "zarr_format": 2,
        "shape": found.get("shape"),
        "chunks": grid.get("chunk_shape"),
        "dtype": _dtype_in(found.get("data_type")),
        "compressor": _compressor_in(found.get("compressor")),
        "filters": attributes.get("filters"),
        "fill_value": found.get("fill_value"),
        "order": found.get("chunk_memory_layout", "C"),
        "dimension_separator": grid.get("separator", "/"),
    }
    try:
        document = translated(as_v2, others).document
    except SpecError as error:  # in the words of Zarr v2
        field, value, remedy = (error.fields[name] for name in ("field", "value", "remedy"))
        remedy = mend if remedy.startswith(MEND) else remedy
        raise _refused(error.message, _FIELDS.get(field, field), value, remedy) from None
    document["chunk_key_encoding"] = {
        "name": "default",
        "configuration": {"separator": grid.get("separator", "/")},
    }
    counts = _counts_in(found.get("storage_transformers"), len(found["shape"]))
    if counts is None:
        return document
    chunks = grid["chunk_shape"]
    shards = [n * size for n, size in zip(counts, chunks, strict=True)]
    why = why_too_long(shards)
    if why is not None:
        raise _refused(
            f"its product with chunk_shape {why}", "chunks_per_shard", list(counts), mend
        )
    configuration = {
        "chunk_shape": list(chunks),
        "codecs": document["codecs"],
        "index_codecs": _OF_INDEX,
        "index_location": "end",
    }
    document["codecs"] = [{"name": "sharding_indexed", "configuration": configuration}]
    document["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": shards}}
    return document


def _dtype_in(found: Any) -> Any:
    """Data type as Zarr v2 names it."""
    name = found.get("type") if isinstance(found, dict) else found
    if not isinstance(name, str):
        raise _refused("unknown data type", "data_type", found, "mend its .array.json")
    raw = re.fullmatch(r"r(\d{1,6})", name)
    if raw is not None:
        return f"|V{int(raw[1]) // 8}"
    return {"bool": "|b1", "u1": "|u1", "i1": "|i1"}.get(name, name)


def _compressor_in(found: Any) -> Document | None:
    if found is None:
        return None
    uri, settings = (found.get(k) if isinstance(found, dict) else None for k in _COMPRESSOR)
    name = uri.removeprefix(_CODEC).split("/")[0] if isinstance(uri, str) else None
    if name not in _CODECS or not isinstance(settings, dict):
        raise _refused(
            "a codec that is not known",
            "compressor",
            found,
            f"read it with a program that you trust; known are {', '.join(_CODECS)}",
        )
    return {"id": name, **settings}


def _counts_in(found: Any, ndim: int) -> Sequence[int] | None:
    """Numbers of chunks in a shard along each axis; None for an array without shards."""
    if not found:
        return None
    is_one = isinstance(found, list) and len(found) == 1 and isinstance(found[0], dict)
    only: Document = found[0] if is_one else {}
    settings = only.get("configuration")
    if (
        not isinstance(settings, dict)
        or not _URIS.fullmatch(str(only.get("extension")))
        or only.get("type") != "indexed"
    ):
        remedy = 'only one may be set, which is sharding 1.0 of the type "indexed"'
        raise _refused("not supported", "storage_transformers", found, remedy)
    counts = checked_counts(settings.get("chunks_per_shard"))
    if not ndim and set(counts) <= {1}:
        return ()
    if len(counts) != ndim:
        remedy = f"give {ndim} numbers"
        raise _refused("not one for each axis", "chunks_per_shard", list(counts), remedy)
    return counts


def of_2022(document: Document) -> Document:
    """Document of 2022 of the array with the same objects.

    - `document`: the ``zarr.json`` of a Zarr v3 array.
    """
    shards = document["chunk_grid"]["configuration"]["chunk_shape"]
    sharding = next((c for c in document["codecs"] if c["name"] == "sharding_indexed"), None)
    if sharding is None or len(document["codecs"]) > 1:
        why = "the transformer of 2022 makes shards, with no codecs around them"
        raise _refused(why, "shards", None, "give shards=, or leave format= out")
    inner = sharding["configuration"]
    if inner["index_codecs"] != _OF_INDEX or inner.get("index_location", "end") != "end":
        why = "in 2022 the index lies at the end and has no checksum"
        raise _refused(why, "index_codecs", inner["index_codecs"], "leave it out")
    encoding = document["chunk_key_encoding"]
    separator = encoding.get("configuration", {}).get("separator", "/")
    if encoding["name"] != "default":
        why = "the format has keys of its own"
        raise _refused(why, "chunk_key_encoding", encoding, "leave it out")
    native, dtype = native_dtype(document["data_type"]), zarr_dtype(document["data_type"])
    fill_value = dtype.from_json_scalar(document["fill_value"], zarr_format=3)
    order, big, compressor = _codecs_out(inner["codecs"], len(shards))
    chunks = inner["chunk_shape"]
    written: Document = {
        "attributes": _attributes_out(document),
        "chunk_grid": {"chunk_shape": list(chunks), "separator": separator, "type": "regular"},
        "chunk_memory_layout": order,
        "data_type": _dtype_out(native.newbyteorder(">" if big else "<")),
        "extensions": [],
        "fill_value": dtype.to_json_scalar(fill_value, zarr_format=2),
        "shape": list(document["shape"]),
        "storage_transformers": [
            {
                "configuration": {
                    "chunks_per_shard": [n // c for n, c in zip(shards, chunks, strict=True)] or [1]
                },
                "extension": _URI,
                "type": "indexed",
            }
        ],
    }
    if compressor is not None:
        written["compressor"] = compressor
    return written


def revised(found: Document, document: Document) -> Document:
    """Document of 2022 of an array that has changed; all that has not changed stays as it is.

    - `found`: the document of 2022 as it stands there. It may have fields that are not known here.
    - `document`: the ``zarr.json`` of the Zarr v3 array as it is now.
    """
    before = json.loads(json.dumps(of_today(found)))
    fields = {*before, *document}
    changed = {name for name in fields if before.get(name) != document.get(name)}
    if not changed <= {"shape", "attributes"}:
        return of_2022(document)
    written = {**found, "shape": list(document["shape"])}
    if "attributes" in changed:
        new = document["attributes"].keys() - before["attributes"].keys()
        for name in new & {*_OWN}:
            raise _taken(name)
        there = found.get("attributes", {})
        own = {name: there[name] for name in _OWN if name in there}
        written["attributes"] = {**own, **document["attributes"]}
    return written


def same_today(document: Document) -> Document:
    """Document of a new array, as it is read back from its document of 2022."""
    back: Document = json.loads(json.dumps(of_today(json.loads(json.dumps(of_2022(document))))))
    for field in ("data_type", "fill_value", "shape"):
        if back[field] != document[field]:
            raise _refused(
                f"the format {FORMAT} cannot hold it",
                "dtype" if field == "data_type" else field,
                document[field],
                "choose another value, or leave format= out",
            )
    return back


def _attributes_out(document: Document) -> Document:
    """Attributes, and the names of the dimensions among them, as xarray has put them there."""
    attributes = dict(attributes_of(document))
    for name in _OWN:
        if name in attributes:
            raise _taken(name)
    names = document.get("dimension_names")
    if names:
        if not all(isinstance(name, str) for name in names):
            remedy = "name all of them, or none"
            raise _refused("some have no name", "dimension_names", list(names), remedy)
        attributes[DIMENSIONS] = list(names)
    return attributes


def _taken(name: str) -> SpecError:
    why = f"the format {FORMAT} uses this name itself"
    return _refused(why, "attributes", name, "rename it")


def _dtype_out(native: np.dtype[Any]) -> Any:
    name = native.str
    if name in ("|b1", "|u1", "|i1"):
        return "bool" if name == "|b1" else name[1:]
    if native.kind in _EXTENDED:
        return {"extension": _EXTENDED[native.kind], "fallback": None, "type": name}
    if native.kind in "uif" and native.itemsize in (2, 4, 8):
        return name
    remedy = "give numbers, booleans, complex numbers or times"
    raise _refused(f"the format {FORMAT} does not have it", "dtype", str(native), remedy)


def _codecs_out(codecs: Sequence[Codec], ndim: int) -> tuple[str, bool, Document | None]:
    """Memory layout, whether bytes are big-endian, and the compressor."""
    left = list(codecs)
    order, is_big = "C", False
    if left and left[0]["name"] == "transpose":
        if left.pop(0)["configuration"]["order"] != list(reversed(range(ndim))):
            remedy = "leave it out, or reverse all axes"
            raise _refused("only C and F were known", "filters", "transpose", remedy)
        order = "F"
    if not left or left[0]["name"] != "bytes":
        names = [codec["name"] for codec in codecs]
        raise _refused(f"not in the format {FORMAT}", "serializer", names, 'give "bytes"')
    is_big = left.pop(0).get("configuration", {}).get("endian") == "big"
    if not left:
        return order, is_big, None
    name = str(left[0]["name"]).removeprefix(_NUMCODECS)
    if len(left) > 1 or name not in _CODECS:
        raise _unknown_compressors([codec["name"] for codec in left])
    configuration: Document = left[0].get("configuration", {})
    settings = {name: value for name, value in configuration.items() if name != "typesize"}
    if name == "blosc":
        shuffle = settings.get("shuffle", "noshuffle")
        settings["shuffle"] = SHUFFLES.index(shuffle) if shuffle in SHUFFLES else shuffle
    return order, is_big, {"codec": f"{_CODEC}{name}/1.0", "configuration": settings}


def compressors_of_2022(given: Any) -> Any:
    """Compressors of a new array as zarr-python 3 names them, which has most of them in numcodecs.

    - `given`: what a user gives for `compressors`, with names such as ``"lz4"`` or
      ``"numcodecs.lz4"``.

    Examples
    --------
    >>> compressors_of_2022({"name": "lz4", "configuration": {}})["name"]
    'numcodecs.lz4'
    """
    if isinstance(given, list | tuple):
        return [compressors_of_2022(one) for one in given]
    if not isinstance(given, Mapping) or "name" not in given:
        return given
    name = str(given["name"]).removeprefix(_NUMCODECS)
    if name not in _CODECS:
        raise _unknown_compressors([given["name"]])
    return given if name in ("gzip", "blosc") else {**given, "name": f"{_NUMCODECS}{name}"}


FORMAT_OF_2022 = OtherFormat(
    default_compressors=(
        {
            "name": "blosc",
            "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "blocksize": 0},
        },
    ),
    compressors=compressors_of_2022,
    document=same_today,
)


def _unknown_compressors(names: Sequence[object]) -> SpecError:
    quoted = ", ".join(f'"{name}"' for name in _CODECS)
    remedy = f"give one of {quoted}, or compressors=None; crc32c and zstd were not known"
    return _refused(f"not in the format {FORMAT}", "compressors", names, remedy)

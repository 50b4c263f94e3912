"""Arrays that are read region by region: the protocol, and how they become arrays of dask.

Files of formats are such sources, and so are arrays of zarr-python.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import struct
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

import shardwrite._dask as dask
from shardwrite.codecs.documents import JSON, check_json, has_surrogates, without_surrogates
from shardwrite.errors import SpecError
from shardwrite.format.metadata import SourceMetadata
from shardwrite.grid import ceil_div
from shardwrite.plan.partition import MAX_SHARDS

if TYPE_CHECKING:
    from shardwrite.read.array import ShardedArray


# ---- Attributes, in the form of JSON that Zarr and xarray use


_MAX_NBYTES = 1 << 20  # what a reader may have to parse before it sees the array


def as_attributes(
    found: Mapping[str, Any], path: str, dtype: np.dtype[Any] | None = None
) -> dict[str, JSON]:
    """Attributes of a file as values that JSON can hold.

    Numbers that are not finite become ``"NaN"``, ``"Infinity"`` or ``"-Infinity"``, as in Zarr.
    U+FFFD takes the place of bytes that are no text in UTF-8.
    The attribute ``_FillValue`` gets the form in which xarray looks for it.

    - `dtype`: data type of the array, of which ``_FillValue`` must be, too.

    Warns
    -----
    UserWarning
        If a value has no form in JSON, or fills more than a mebibyte there. It is then left out.
        If it is no text in UTF-8.
    """
    kept: dict[str, JSON] = {}
    for name, value in found.items():
        try:
            held = mask_value(value, dtype) if name == "_FillValue" else _as_json(value)
            nbytes = len(json.dumps(held))
        except (IndexError, RecursionError, TypeError):
            reason = f"JSON holds no values of the type {type(value).__name__}"
        else:
            if nbytes <= _MAX_NBYTES:
                kept |= _in_utf8(name, held, path)
                continue
            reason = f"it is too large: {nbytes:,} bytes as JSON"
        warnings.warn(f"{path}: the attribute {name!r} is left out, since {reason}", stacklevel=2)
    return kept


def plain_attributes(
    found: Mapping[str, Any], label: str, dtype: np.dtype[Any] | None = None
) -> dict[str, JSON]:
    """Attributes of a Zarr array or group, with what JSON lacks as `as_attributes` gives it.

    Programs write NaN all the same, and then tensorstore, for instance, does not open the array.
    """
    attributes: dict[str, JSON] = {}
    for name, value in found.items():
        try:
            check_json({name: value})
        except ValueError:
            attributes |= as_attributes({name: value}, label, dtype)
        else:
            attributes[name] = value
    return attributes


def _in_utf8(name: str, held: JSON, path: str) -> dict[str, JSON]:
    """An attribute, with U+FFFD for each byte that is no UTF-8."""
    text = json.dumps({name: held}, ensure_ascii=False)
    if not has_surrogates(text):
        return {name: held}
    told = f"the attribute {without_surrogates(name)!r} is no text in UTF-8"
    warnings.warn(f"{path}: {told}, and U+FFFD stands for each byte that is none", stacklevel=3)
    plain: dict[str, JSON] = json.loads(without_surrogates(text))
    return plain


def unmasked_value(value: Any, dtype: np.dtype[Any]) -> Any:
    """The number of an attribute ``_FillValue`` that `mask_value` has turned into JSON."""
    if dtype.kind == "c" and isinstance(value, list):
        return complex(*(unmasked_value(part, np.dtype("f8")) for part in value))
    if dtype.kind not in "fS" or not isinstance(value, str):
        return value
    try:
        data = base64.b64decode(value)
        return data if dtype.kind == "S" else struct.unpack("<d", data)[0]
    except (ValueError, struct.error):  # text of another program, such as "NaN"
        return value


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
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(name): _as_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"no value of JSON: {value!r}")


# ---- The protocol, and arrays of dask


_READ_NBYTES = 32 * 2**20
# Less than for one large file, because each stored chunk is a file that must be opened.
MERGED_NBYTES = 32 << 20

Chunks = tuple[int | tuple[int, ...], ...]


class Source(Protocol):
    """An array in a file that can be read region by region.

    A source can be pickled and shared between threads. It describes the array and holds no open
    handle; each process opens the file when it first reads.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of the values that are read, including the byte order."""

    @property
    def chunks(self) -> Chunks:
        """Natural chunks of the file, in the form that dask accepts."""

    @property
    def identity(self) -> str:
        """Text that changes when the file changes; a resumed run compares it."""

    @property
    def metadata(self) -> SourceMetadata:
        """What the file says about the array besides its values."""

    def __getitem__(self, key: tuple[slice, ...]) -> npt.NDArray[Any]:
        """Read one region of the array."""


def as_dask(source: Source, chunks: Any = None) -> dask.array.Array:
    """Dask array that reads from a source; its construction reads nothing."""
    from shardwrite.read.array import normalize  # for chunks of dask

    _check_number(source)
    full = normalize(
        source.chunks if chunks is None else chunks, source.shape, source.dtype, source.chunks
    )
    token = hashlib.sha256(
        f"{source.identity}\n{full}".encode("utf-8", "surrogateescape")
    ).hexdigest()[:32]
    meta = np.empty((0,) * len(source.shape), source.dtype)
    # inline_array: as a task of its own, the source would be sent between workers, and every read
    # would wait for it. fancy: dask fuses slices into a read only if it may fuse lists too, which
    # all sources accept.
    array: dask.array.Array = dask.array.from_array(
        source, full, name=f"source-{token}", asarray=True, fancy=True, meta=meta, inline_array=True
    )
    return array


def by_inner_chunks(array: ShardedArray) -> dask.array.Array:
    """Open an array as a dask array of which each chunk is whole inner chunks."""
    from shardwrite.read.array import (
        as_dask_array,  # for arrays that are open
        merge_chunks,  # for chunks of dask
    )

    metadata = array.metadata
    sizes = merge_chunks(metadata.grid.chunks, array.shape, metadata.itemsize, target=_READ_NBYTES)
    return as_dask_array(array, sizes)


def _check_number(source: Source) -> None:
    """Refuse a source that claims a shape of too many chunks, before dask makes a list of them."""
    n_chunks = math.prod(
        len(size) if isinstance(size, tuple) else ceil_div(n, max(1, size))
        for n, size in zip(source.shape, source.chunks, strict=True)
    )
    if n_chunks > MAX_SHARDS:
        raise SpecError(
            f"it would be read in {n_chunks:,} pieces, and at most {MAX_SHARDS:,} are possible",
            field="shape",
            value=source.shape,
            remedy="check the metadata of the source",
        )


_NAMES_OF_XARRAY = "_ARRAY_DIMENSIONS"


def metadata_of(array: Any) -> SourceMetadata:
    """What a `zarr.Array` says besides its values."""
    from zarr.dtype import VariableLengthBytes

    dtype = np.dtype(array.dtype)
    found = array.metadata.attributes
    attributes = {}
    if isinstance(found, Mapping):
        attributes = plain_attributes(found, array.path or "the array", dtype)
    names = getattr(array.metadata, "dimension_names", None)
    if array.metadata.zarr_format == 2:
        # xarray keeps the names there. It takes the fill value of format 2 for missing values, and
        # that of format 3 for none.
        names = attributes.get(_NAMES_OF_XARRAY)
        if _are_names(names, len(array.shape)):
            del attributes[_NAMES_OF_XARRAY]
            if array.fill_value is not None:
                attributes.setdefault("_FillValue", mask_value(array.fill_value))
        else:
            names = None
    typed = {}
    if "_FillValue" in attributes:
        typed["_FillValue"] = unmasked_value(attributes["_FillValue"], dtype)
    is_bytes = isinstance(array.metadata.dtype, VariableLengthBytes)
    return SourceMetadata(
        serializer="vlen-bytes" if is_bytes else None,
        typed=typed,
        fill_value=array.fill_value,
        dimension_names=None
        if names is None
        else tuple(None if name is None else without_surrogates(name) for name in names),
        attributes=attributes,
    )


def _are_names(found: Any, ndim: int) -> bool:
    """Whether an attribute gives the names of all axes."""
    return (
        isinstance(found, list | tuple)
        and len(found) == ndim
        and all(name is None or isinstance(name, str) for name in found)
    )


def natural_chunks(array: Any) -> tuple[int, ...]:
    """Chunk shape by which a `zarr.Array` is read: a shard, or several chunks without shards."""
    from shardwrite.read.array import merge_chunks  # for chunks of dask

    shape = tuple(array.shape)
    if array.shards is not None:
        return tuple(max(1, min(s, n)) for s, n in zip(array.shards, shape, strict=True))
    return merge_chunks(array.chunks, shape, np.dtype(array.dtype).itemsize, target=MERGED_NBYTES)

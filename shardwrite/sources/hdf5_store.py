"""An HDF5 or NetCDF-4 file as a store: the Zarr hierarchy whose chunks lie in the file.

Chunks whose filters equal codecs of Zarr are read by their place in the file, so that readers do
not wait for the lock of the HDF5 library. All other values are read with h5py.
"""

from __future__ import annotations

import json
import math
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np

from shardwrite.codecs.documents import Codec, Document
from shardwrite.errors import CorruptShardError, SpecError
from shardwrite.format.document import ArrayOptions, make_metadata
from shardwrite.format.hdf5 import Filter, Mapped, mapped
from shardwrite.format.metadata import ArrayMetadata, parse_metadata
from shardwrite.format.node import DOCUMENT, group_document
from shardwrite.grid import ravel, unravel
from shardwrite.plan import resolve_shapes
from shardwrite.sources import hdf5
from shardwrite.sources.base import SourceMetadata
from shardwrite.sources.common import place_text, require
from shardwrite.sources.hdf5_chunks import ChunkTable, locate
from shardwrite.stores import Told
from shardwrite.stores.bucket_files import FileInBucket
from shardwrite.stores.inside import Contents, InsideStore, Member

_NO_VARIABLE = b"This is a netCDF dimension but not a netCDF variable"
_CHECKSUM_NBYTES = 4
_WHY_SOME = "filters of the dataset were left out when they were written"


class Hdf5Store(InsideStore):
    """The groups and datasets of an HDF5 file, as groups and arrays of Zarr v3.

    With `part`, it is the array of one dataset, whose name may be that of a link.
    """

    def look_through(self) -> Contents:
        """See :meth:`InsideStore.look_through`."""
        place = str(self.file) if isinstance(self.file, Path) else self.file
        return _Dataset(place, self.part) if self.part else _Tree(place)


@dataclass(frozen=True, slots=True)
class DatasetArray:
    """A dataset as an array of Zarr."""

    metadata: ArrayMetadata  # metadata of the array that has the chunks of the dataset
    codecs: Mapped  # how its filters map; `why_not` says why values are read with h5py
    table: ChunkTable | None  # places of its chunks; None if the dataset has none
    source: hdf5.Hdf5Source  # its values

    def member(self, key: str) -> Member | None:
        """The object of a chunk; None if it is not stored."""
        index = self.metadata.shard_index(key)
        if index is None:
            return None
        rank = ravel(index, self.metadata.grid.counts)
        row = None if self.table is None else self.table.row(rank)
        if self.table is not None and row is None:
            return None
        if self.table is None or row is None or self.codecs.why_not:
            raw = math.prod(self.metadata.grid.chunks) * self.metadata.itemsize
            return Member(0, 0, lambda _: self._encoded(rank), raw)
        offset, nbytes = int(self.table.offsets[row]), int(self.table.nbytes[row])
        if self.table.is_odd[row]:
            return Member(offset, nbytes, lambda _: self._encoded(rank))
        if self.codecs.is_checked:
            return Member(offset, nbytes, _without_checksum, max(0, nbytes - _CHECKSUM_NBYTES))
        return Member(offset, nbytes)

    @property
    def keys(self) -> Iterator[str]:
        """Keys of the chunks that are stored."""
        grid = self.metadata.grid
        ranks = range(grid.n_shards) if self.table is None else self.table.ranks.tolist()
        return (self.metadata.shard_key(unravel(rank, grid.counts)) for rank in ranks)

    def _encoded(self, rank: int) -> bytes:
        """A chunk that is read with h5py and encoded here, padded with the fill value."""
        metadata, grid = self.metadata, self.metadata.grid
        box = grid.shard_box(unravel(rank, grid.counts))
        inside = box.intersect(grid.whole)
        chunk = np.full((1, *grid.chunks), metadata.fill_value, metadata.dtype)
        here = inside.shift(box.start).slices
        chunk[(0, *here)] = self.source[inside.slices].astype(metadata.dtype, copy=False)
        (encoded,) = metadata.pipeline.encode(chunk)
        return bytes(encoded)

    @property
    def told(self) -> Told:
        """Facts that the document does not tell."""
        if self.codecs.why_not:
            return Told(why_decoded=self.codecs.why_not, values=self.source)
        foreign = self.codecs.foreign
        note = f"codecs that not every reader of v3 knows: {', '.join(foreign)}"
        n_odd = 0 if self.table is None else int(self.table.is_odd.sum())
        why_some = _WHY_SOME if n_odd else ""
        return Told((note,) if foreign else (), "", n_odd, why_some, values=self.source)


def _without_checksum(read: Callable[[], bytes]) -> bytes:
    """Bytes of a chunk without the fletcher32 checksum at its end, which is compared."""
    data = read()
    if len(data) <= _CHECKSUM_NBYTES:
        raise CorruptShardError("too short for its fletcher32 checksum")
    try:
        return bytes(numcodecs.Fletcher32().decode(data))
    except (RuntimeError, ValueError) as error:
        raise CorruptShardError(f"fletcher32: {error}") from error


class _Tree(Contents):
    """Groups and datasets of a file."""

    def __init__(self, place: str | FileInBucket) -> None:
        self._place, self._path = place, place_text(place)
        self._groups: dict[str, Document] = {}
        self._names: list[str] = []
        self._arrays: dict[str, DatasetArray] = {}
        self._lock = threading.RLock()
        left_out: list[tuple[str, str]] = []
        try:
            with hdf5.reading(place) as file:
                self._walk(file, "", left_out, {})
        except OSError as error:
            if error.errno is not None:
                raise
            raise _unreadable(self._path, error) from error
        self._known = frozenset(self._names)
        self.left_out = tuple(left_out)

    def _walk(
        self, group: Any, name: str, left_out: list[tuple[str, str]], seen: dict[Any, str]
    ) -> None:
        """Note the nodes of a group. A group that has several names is noted once."""
        h5py = require("h5py", "hdf5", self._path)
        self._groups[name] = {
            **group_document(),
            "attributes": hdf5.attributes_of(group, self._path),
        }
        if not name:  # the documents of all nodes lie in one place, as in the file
            self._groups[name]["consolidated_metadata"] = {"kind": "inline"}
        seen[_address(h5py, group)] = name
        for leaf in group:
            path = f"{name}/{leaf}" if name else leaf
            if not isinstance(group.get(leaf, getlink=True), h5py.HardLink):
                left_out.append((path, "a link"))
                continue
            node = group[leaf]
            if isinstance(node, h5py.Datatype):
                continue
            other = seen.get(_address(h5py, node))
            why = _why_left_out(node) if other is None else f"another name of the group {other!r}"
            if why:
                left_out.append((path, why))
            elif isinstance(node, h5py.Group):
                self._walk(node, path, left_out, seen)
            else:
                self._names.append(path)

    def find(self, name: str) -> Member | bytes | None:
        """See :meth:`Contents.find`."""
        node, _, leaf = name.rpartition("/")
        if leaf == DOCUMENT and (node in self._groups or node in self._known):
            if node in self._known:
                return self._array(node).metadata.text.encode()
            return json.dumps(self._groups[node], indent=2).encode()
        parts = name.split("/")
        for n in range(len(parts) - 1, 0, -1):
            node = "/".join(parts[:n])
            if node in self._known:
                return self._array(node).member("/".join(parts[n:]))
        return None

    def names(self, prefix: str) -> Iterator[str]:
        """See :meth:`Contents.names`."""
        for group in self._groups:
            yield from _beginning(f"{group}/{DOCUMENT}".lstrip("/"), prefix)
        for node in self._names:
            if not (f"{node}/".startswith(prefix) or prefix.startswith(f"{node}/")):
                continue
            yield from _beginning(f"{node}/{DOCUMENT}", prefix)
            for key in self._array(node).keys:
                yield from _beginning(f"{node}/{key}", prefix)

    def nodes(self) -> Iterator[tuple[str, str]]:
        """See :meth:`Contents.nodes`."""
        yield from ((name, "group") for name in self._groups)
        yield from ((name, "array") for name in self._names)

    def told(self, name: str) -> Told:
        """See :meth:`Contents.told`."""
        return self._array(name).told if name in self._known else Told()

    def _array(self, name: str) -> DatasetArray:
        """A dataset as an array, which is made when it is first asked for."""
        found = self._arrays.get(name)
        if found is None:
            with self._lock:
                if name not in self._arrays:
                    self._arrays[name] = _array_of(self._place, name)
                found = self._arrays[name]
        return found


class _Dataset(Contents):
    """One dataset of a file, as an array."""

    left_out = ()

    def __init__(self, place: str | FileInBucket, name: str) -> None:
        self._array = _array_of(place, name)

    def find(self, name: str) -> Member | bytes | None:
        """See :meth:`Contents.find`."""
        found = self._array
        return found.metadata.text.encode() if name == DOCUMENT else found.member(name)

    def names(self, prefix: str) -> Iterator[str]:
        """See :meth:`Contents.names`."""
        for key in (DOCUMENT, *self._array.keys):
            yield from _beginning(key, prefix)

    def nodes(self) -> Iterator[tuple[str, str]]:
        """See :meth:`Contents.nodes`."""
        yield "", "array"

    def told(self, name: str) -> Told:  # noqa: ARG002 (there is one)
        """See :meth:`Contents.told`."""
        return self._array.told


def _array_of(place: str | FileInBucket, name: str) -> DatasetArray:
    """A dataset of a file as an array."""
    try:
        return as_array(place, name)
    except OSError as error:
        if error.errno is not None:
            raise
        raise _unreadable(f"{place_text(place)}::{name}", error) from error


def _unreadable(path: str, error: OSError) -> SpecError:
    return SpecError(
        f"it cannot be read as hdf5: {error}", field="src", value=path, remedy="check the file"
    )


def _beginning(name: str, prefix: str) -> Iterator[str]:
    if name.startswith(prefix):
        yield name


def _address(h5py: Any, node: Any) -> Any:
    """What tells a node from all others of the file."""
    info = h5py.h5o.get_info(node.id)
    return info.fileno, info.addr


def _why_left_out(node: Any) -> str:
    """Why a node is no array; empty if it is one, or a group."""
    if not hasattr(node, "shape"):
        return ""
    if node.shape is None:
        return "a dataset without a shape"
    name = node.attrs.get("NAME", "")
    if isinstance(name, str | bytes) and _as_bytes(name).startswith(_NO_VARIABLE):
        return "a dimension without values"
    return ""


def _as_bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def as_array(
    place: str | FileInBucket, name: str, *, keeps_checksums: bool = False
) -> DatasetArray:
    """A dataset as an array of Zarr.

    - `name`: name of the dataset; empty if the file has only one.
    - `keeps_checksums`: whether a fletcher32 checksum at the end of each chunk stays there, and has
      a codec.
    - Raises OSError if the file cannot be read, is no HDF5 file, or is damaged (`errno` is then
      None).
    """
    place = os.path.abspath(place) if isinstance(place, str) else place
    source = hdf5.open_dataset(place, name or None)
    with hdf5.reading(place) as file:
        dataset = file[source.dataset]
        plain = _plain(source.dtype, dataset, source.dataset)
        codecs = _codecs(dataset, plain)
        if keeps_checksums:
            codecs = codecs.with_checksum
        table = None
        if dataset.chunks is not None:
            table = locate(dataset, place)
            if table is None and not codecs.why_not:
                codecs = Mapped(why_not="places of chunks that the HDF5 library does not know")
        chunks = dataset.chunks
    if chunks is None:
        chunks = resolve_shapes(source.shape, plain.itemsize, None, None, ())[1]
    metadata = _metadata(source.metadata, source.shape, plain, chunks, codecs.codecs)
    return DatasetArray(metadata, codecs, table, source)


def _plain(dtype: np.dtype[Any], dataset: Any, name: str) -> np.dtype[Any]:
    """Data type of the values without what only h5py knows of it, and without gaps."""
    is_array = dtype.subdtype is not None
    if is_array or dtype.hasobject or dtype.itemsize == 0 or dtype.kind not in "biufcmMSV":
        raise SpecError(
            f"its elements {'are arrays' if is_array else 'have no fixed size'} ({dataset.dtype})",
            field="src",
            value=name,
            remedy="leave it out, or write its values by themselves, if they are text",
        )
    if dtype.names is None:
        return np.dtype(dtype.str)
    return np.dtype([(field, dtype[field]) for field in dtype.names])


def _codecs(dataset: Any, plain: np.dtype[Any]) -> Mapped:
    """Codecs for the filters of a dataset, if its chunks are those of an array of Zarr."""
    properties = dataset.id.get_create_plist()
    h5py = require("h5py", "hdf5", dataset.file.filename)
    layout = properties.get_layout()
    if layout != h5py.h5d.CHUNKED:
        known = {
            h5py.h5d.CONTIGUOUS: "a contiguous layout",
            h5py.h5d.COMPACT: "a compact layout",
            h5py.h5d.VIRTUAL: "a virtual layout",
        }
        return Mapped(why_not=f"{known.get(layout, 'an unknown layout')}, without chunks")
    if plain.itemsize != dataset.dtype.itemsize:
        return Mapped(why_not="elements with gaps between their fields")
    if plain.names is not None and any(plain[field].str[0] == ">" for field in plain.names):
        return Mapped(why_not="big-endian fields")
    if h5py.h5t.py_create(dataset.dtype, logical=True) != dataset.id.get_type():
        return Mapped(why_not="a data type that is stored in another way in Zarr")
    filters = []
    for number in range(properties.get_nfilters()):
        code, _, values, _ = properties.get_filter(number)
        filters.append(Filter(int(code), tuple(int(value) for value in values)))
    return mapped(filters, plain.itemsize)


def _metadata(
    found: SourceMetadata,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    chunks: tuple[int, ...],
    codecs: tuple[Codec, ...],
) -> ArrayMetadata:
    """Metadata of the array of Zarr that has the chunks of a dataset."""
    is_big = dtype.names is None and dtype.str.startswith(">")
    fill = found.fill_value
    if dtype.names is not None and fill is not None:
        fill = np.asarray(fill).astype(dtype)[()]
    options = ArrayOptions(
        compressors=None,
        serializer={"name": "bytes", "configuration": {"endian": "big"}} if is_big else "auto",
        fill_value=fill,
        dimension_names=found.dimension_names,
        attributes=found.attributes,
        chunk_key_encoding="default",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr warns of dtypes without a specification
        made = make_metadata(shape, dtype, None, chunks, options)
    document = {**made.document, "codecs": [*made.document["codecs"], *codecs]}
    return parse_metadata(json.dumps(document, indent=2), writing=True)

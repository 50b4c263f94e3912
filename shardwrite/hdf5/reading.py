"""Reading of HDF5 files by the places of their chunks: as a Zarr hierarchy, and as possible shards.

Chunks whose filters equal codecs of Zarr are read by their place in the file, so that readers do
not wait for the lock of the HDF5 library. All other values are read with h5py.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import math
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.codecs.documents import Codec, Document
from shardwrite.errors import CorruptShardError, SpecError, StoreError
from shardwrite.format.document import ArrayOptions, make_metadata
from shardwrite.format.metadata import ArrayMetadata, metadata_of_document
from shardwrite.format.node import DOCUMENT, group_document
from shardwrite.grid import ravel, unravel
from shardwrite.hdf5.format import CHECKSUM_NBYTES, Filter, Mapped, mapped
from shardwrite.hdf5.shards import chunk_counts, stored_chunks
from shardwrite.plan.options import resolve_shapes
from shardwrite.sources import hdf5
from shardwrite.sources.base import SourceMetadata
from shardwrite.sources.common import open_binary, place_text, require
from shardwrite.sources.inside import Contents, FileInBucket, InsideStore, Member
from shardwrite.stores.base import CopyLimits
from shardwrite.stores.looking import as_store_error

_SHUFFLE = 2  # number of this filter of HDF5
# chunks of which the library's bytes are compared with those at the place that it tells
_N_COMPARED = 32

_N_COMPARED_FAR = 1  # in a bucket, where each is a request


# ---- Places of the chunks of a dataset


@dataclass(frozen=True, slots=True)
class ChunkTable:
    """Places of the chunks that a dataset stores, by rank."""

    ranks: npt.NDArray[np.int64]  # row-major ranks of the chunks in the grid of chunks, ascending
    offsets: npt.NDArray[np.int64]  # first byte in the file, and number of bytes
    nbytes: npt.NDArray[np.int64]
    is_odd: npt.NDArray[np.bool_]  # whether a chunk was not made by all filters of the dataset

    def row(self, rank: int) -> int | None:
        """Row of a chunk; None if it is not stored."""
        row = int(np.searchsorted(self.ranks, rank))
        return row if row < len(self.ranks) and self.ranks[row] == rank else None


def locate(dataset: Any, place: str | FileInBucket) -> ChunkTable | None:
    """Find where the chunks of a dataset lie; None if the library does not tell it rightly.

    - Raises OSError if a chunk is there twice, of which programs read either (`errno` is None).
    """
    stored = stored_chunks(dataset)
    if stored is None:
        return None
    ranks = np.ravel_multi_index(tuple(stored[:, :-3].T), chunk_counts(dataset))
    order = np.argsort(ranks, kind="stable")
    ranks, index, places = ranks[order], stored[order, :-3], stored[order, -3:]
    if (np.diff(ranks) == 0).any():
        raise OSError("it is damaged, and has a chunk twice")
    offset = _base(dataset, place, index, places)
    if offset is None:
        return None
    is_odd: npt.NDArray[np.bool_] = np.not_equal(places[:, 2], 0)
    if dataset.id.get_create_plist().get_nfilters():
        ends = (index + 1) * np.array(dataset.chunks, np.int64)
        at_edge = ~is_odd & (ends > np.array(dataset.shape, np.int64)).any(axis=1)
        if _is_edge_raw(dataset, index[at_edge], places[at_edge, 1]):
            is_odd |= at_edge
    return ChunkTable(ranks, places[:, 0] + offset, places[:, 1].copy(), is_odd)


def _is_edge_raw(dataset: Any, index: npt.NDArray[np.int64], nbytes: npt.NDArray[np.int64]) -> bool:
    """Whether chunks at the edge of a dataset are stored without its filters.

    A program may choose that for a dataset as a whole, and neither h5py nor the masks of the chunks
    tell. So what the library reads is compared with the bytes, until one chunk decides. Where both
    are the same with and without the filter, either will do.

    - `index`: int64, shape (n, ndim). Positions of the chunks at the edge in the grid of chunks.
    - `nbytes`: int64, shape (n,). Their sizes in the file.
    """
    chunks, dtype = dataset.chunks, dataset.dtype
    if not len(index) or (nbytes != math.prod(chunks) * dtype.itemsize).any():
        return False
    if dtype.hasobject:
        return True
    properties = dataset.id.get_create_plist()
    numbers = {properties.get_filter(n)[0] for n in range(properties.get_nfilters())}
    for place in index.tolist():
        start = tuple(i * c for i, c in zip(place, chunks, strict=True))
        _, data = dataset.id.read_direct_chunk(start)
        stored = np.frombuffer(data, np.uint8)
        ends = (min(a + c, n) for a, c, n in zip(start, chunks, dataset.shape, strict=True))
        box = tuple(slice(a, b) for a, b in zip(start, ends, strict=True))
        inside = tuple(slice(0, at.stop - at.start) for at in box)
        try:
            wanted = np.ascontiguousarray(dataset[box]).tobytes()
        except OSError:  # damaged; the same comes where the values are read
            return True
        if stored.view(dtype).reshape(chunks)[inside].tobytes() != wanted:
            return False
        # Only shuffle keeps the size of every chunk, and may keep its bytes, too.
        plain = np.ascontiguousarray(stored.reshape(dtype.itemsize, -1).T).reshape(-1)
        if numbers != {_SHUFFLE} or plain.view(dtype).reshape(chunks)[inside].tobytes() != wanted:
            return True
    return False


def _base(
    dataset: Any,
    place: str | FileInBucket,
    index: npt.NDArray[np.int64],
    places: npt.NDArray[np.int64],
) -> int | None:
    """Byte from which places count; None if the bytes there are not those of a chunk.

    A dataset may lie in another file, to which a link leads.

    Some versions of the library do not count the user block at the start of the file. So chunks are
    read by the library, and compared, until one of them decides, and some more, which are spread
    over all. If none decides, as where all are zeros, either will do.
    """
    if not len(places):
        return 0
    block = dataset.file.userblock_size
    if isinstance(place, str) and not os.path.samefile(dataset.file.filename, place):
        return None
    n_compared = min(len(places), _N_COMPARED if isinstance(place, str) else _N_COMPARED_FAR)
    spread = np.unique(np.linspace(0, len(places) - 1, n_compared).astype(np.int64)).tolist()
    bases = [0, int(block)] if block else [0]
    with open_binary(place) as file:

        def has(base: int, offset: int, wanted: bytes) -> bool:
            file.seek(offset + base)
            return file.read(len(wanted)) == wanted

        for number, row in enumerate(itertools.chain(spread, range(len(places)))):
            if not bases or (len(bases) == 1 and number >= len(spread)):
                break
            offset, nbytes, _ = places[row].tolist()
            corner = (index[row] * np.array(dataset.chunks, np.int64)).tolist()
            wanted = bytes(dataset.id.read_direct_chunk(tuple(corner))[1])
            bases = [base for base in bases if len(wanted) == nbytes and has(base, offset, wanted)]
    return bases[0] if bases else None


# ---- An HDF5 or NetCDF-4 file as a store: the Zarr hierarchy whose chunks lie in it


_NO_VARIABLE = b"This is a netCDF dimension but not a netCDF variable"

_WHY_SOME = "filters of the dataset were left out when they were written"


class Hdf5Store(InsideStore):
    """The groups and datasets of an HDF5 file, as groups and arrays of Zarr v3.

    With `part`, it is the array of one dataset, whose name may be that of a link.
    """

    def look_through(self) -> Contents:
        """See :meth:`InsideStore.look_through`."""
        return _Tree(str(self.file) if isinstance(self.file, Path) else self.file, self.part)


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
            return Member(offset, nbytes, _without_checksum, max(0, nbytes - CHECKSUM_NBYTES))
        return Member(offset, nbytes)

    @property
    def keys(self) -> Iterator[str]:
        """Keys of the chunks that are stored."""
        grid = self.metadata.grid
        ranks = range(grid.n_shards) if self.table is None else self.table.ranks.tolist()
        return (self.metadata.key_of_rank(rank) for rank in ranks)

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
    def copy_limits(self) -> CopyLimits:
        """Facts that the document does not tell."""
        if self.codecs.why_not:
            return CopyLimits(why_decoded=self.codecs.why_not, values=self.source)
        foreign = self.codecs.foreign
        note = f"codecs that not every reader of v3 knows: {', '.join(foreign)}"
        n_odd = 0 if self.table is None else int(self.table.is_odd.sum())
        why_some = _WHY_SOME if n_odd else ""
        return CopyLimits((note,) if foreign else (), "", n_odd, why_some, values=self.source)


def _without_checksum(read: Callable[[], bytes]) -> bytes:
    """Bytes of a chunk without the fletcher32 checksum at its end, which is compared."""
    data = read()
    if len(data) <= CHECKSUM_NBYTES:
        raise CorruptShardError("too short for its fletcher32 checksum")
    try:
        return bytes(numcodecs.Fletcher32().decode(data))
    except (RuntimeError, ValueError) as error:
        raise CorruptShardError(f"fletcher32: {error}") from error


class _Tree(Contents):
    """Groups and datasets of a file.

    - `part`: name of the only dataset that is looked at, which is then the root; empty for all.
    """

    def __init__(self, place: str | FileInBucket, part: str) -> None:
        self._place, self._path, self._part = place, place_text(place), part
        self._groups: dict[str, Document] = {}
        self._names: list[str] = []
        self._arrays: dict[str, DatasetArray] = {}
        self._lock = threading.RLock()
        left_out: list[tuple[str, str]] = []
        if part:
            self._names.append("")
        else:
            with _as_spec_error(self._path), hdf5.reading(place) as file:
                self._walk(file, "", left_out, {})
        self._known = frozenset(self._names)
        self.left_out = tuple(left_out)
        if part:
            self._array("")

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
        for n in range(len(parts) - 1, -1, -1):
            node = "/".join(parts[:n])
            if node in self._known:
                return self._array(node).member("/".join(parts[n:]))
        return None

    def names(self, prefix: str) -> Iterator[str]:
        """See :meth:`Contents.names`."""
        documents = (f"{group}/{DOCUMENT}".lstrip("/") for group in self._groups)
        yield from (name for name in documents if name.startswith(prefix))
        for node in self._names:
            below = f"{node}/" if node else ""
            if below.startswith(prefix) or prefix.startswith(below):
                names = (below + key for key in (DOCUMENT, *self._array(node).keys))
                yield from (name for name in names if name.startswith(prefix))

    def nodes(self) -> Iterator[tuple[str, str]]:
        """See :meth:`Contents.nodes`."""
        yield from ((name, "group") for name in self._groups)
        yield from ((name, "array") for name in self._names)

    def copy_limits(self, name: str) -> CopyLimits:
        """See :meth:`Contents.copy_limits`."""
        return self._array(name).copy_limits if name in self._known else CopyLimits()

    def _array(self, name: str) -> DatasetArray:
        """A dataset as an array, which is made when it is first asked for."""
        array = self._arrays.get(name)
        if array is None:
            with self._lock, _as_spec_error(f"{self._path}::{name or self._part}"):
                array = self._arrays.get(name) or as_array(self._place, name or self._part)
                self._arrays[name] = array
        return array


@contextlib.contextmanager
def _as_spec_error(label: str) -> Iterator[None]:
    """Have errors about a file that is damaged, or none of HDF5, name what cannot be read."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            raise
        raise SpecError(
            f"it cannot be read as hdf5: {error}", field="src", value=label, remedy="check the file"
        ) from error


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
    name = name.encode() if isinstance(name, str) else name
    if isinstance(name, bytes) and name.startswith(_NO_VARIABLE):
        return "a dimension without values"
    return ""


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
        layouts = {
            h5py.h5d.CONTIGUOUS: "a contiguous layout",
            h5py.h5d.COMPACT: "a compact layout",
            h5py.h5d.VIRTUAL: "a virtual layout",
        }
        return Mapped(why_not=f"{layouts.get(layout, 'an unknown layout')}, without chunks")
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
        document = make_metadata(shape, dtype, None, chunks, options).document
    document = {**document, "codecs": [*document["codecs"], *codecs]}
    return metadata_of_document(document, writing=True)


# ---- Errors about files that are given to be shards


DECODE = "write the values with shardwrite write, which decodes and encodes"
"""Remedy where the chunks of a dataset cannot be those of an array."""

_OF_NETCDF3 = b"CDF"  # first bytes of a file


@contextlib.contextmanager
def refusing(
    place: str | FileInBucket, refused: Callable[[str, str, str], SpecError]
) -> Iterator[None]:
    """Have errors about a file, which is looked at, be told as a refusal of that file.

    - `refused`: makes the error of a path, a reason and a remedy.
    """
    path = place_text(place)
    h5py = require("h5py", "hdf5", path)
    try:
        with hdf5.reading(place) as file:
            if file.id.get_intent() & h5py.h5f.ACC_RDWR:  # a process opens a file only once
                raise refused(path, "this process has it open for writing", "close it first")
        yield
    except SpecError as error:
        if error.fields["field"] not in ("source", "src"):  # of functions that take one file
            raise
        raise refused(path, error.message, str(error.fields["remedy"])) from error
    except StoreError:
        raise
    except OSError as error:
        if error.errno == errno.EAGAIN:
            why = "another program has it open for writing"
            raise refused(path, why, "close it there first") from error
        if error.errno is not None:
            with as_store_error(path, "cannot read"):
                raise
        with as_store_error(path, "cannot read"), open_binary(place) as file:
            is_other = file.read(len(_OF_NETCDF3)) == _OF_NETCDF3
        if is_other:
            raise refused(path, "it is a NetCDF-3 file, which has no chunks", DECODE) from error
        why = f"it cannot be read as HDF5 ({error})"
        raise refused(path, why, "check the file") from error

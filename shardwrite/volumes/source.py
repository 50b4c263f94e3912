"""Volumes of Neuroglancer as sources: of values, and of arrays that can be converted.

A scale that another program wrote has no ``zarr.json``, so its values are read as
:func:`shardwrite.from_precomputed` reads them, and its chunks are decoded and re-encoded. Nothing
is ever written to the volume.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

import shardwrite._dask as dask
from shardwrite._dataclass import dataclass
from shardwrite.codecs.stages import index_limit
from shardwrite.entry.public import public
from shardwrite.errors import SpecError
from shardwrite.format.document import ArrayOptions, make_metadata
from shardwrite.format.node import DOCUMENT
from shardwrite.grid import Box, Shape
from shardwrite.place.base import Place, at_url, without_kind
from shardwrite.read.array import ShardedArray, merge_chunks
from shardwrite.read.hierarchy import Hierarchy, open_hierarchy
from shardwrite.read.inspection import Survey
from shardwrite.read.source import as_dask
from shardwrite.read.stored_array import StoredArray
from shardwrite.sources.base import RegionSource, Request, Source, SourceMetadata
from shardwrite.sources.common import FILES, digest, identify, identity_text
from shardwrite.sources.opening import place_of
from shardwrite.stores.base import CopyLimits, Store
from shardwrite.stores.opening import open_store
from shardwrite.volumes.info import (
    AXIS_NAMES,
    INFO,
    Scale,
    Volume,
    parse_info,
    scale_attributes,
)
from shardwrite.volumes.reading import ScaleReader, check_key_of, read_info, volume_above
from shardwrite.volumes.uint64_shard import UInt64ShardFiles

_AXES = "xyzc"

_MERGED_NBYTES = 32 * 2**20


# ---- Values


@dataclass(frozen=True, slots=True)
class PrecomputedSource(RegionSource):
    """A scale of a volume."""

    store: Store  # where ``info`` lies
    info: str  # text of the ``info``
    key: str  # key of the scale
    axes: str  # axes of the array, of ``x``, ``y``, ``z`` and ``c``

    def places_read(self) -> Iterator[tuple[Any, str, str]]:
        """See :class:`~shardwrite.sources.protocol.ReadsPlaces`."""
        yield self.store, self.key, "objects"

    def _read(self, box: Box) -> npt.NDArray[Any]:
        # The limit may change, so a reader that is kept has the limit in its name.
        name = f"{self.identity}:{self.axes}:{index_limit()}"
        reader: ScaleReader = FILES.get(
            name, lambda: ScaleReader(self.store, self.volume, self.volume.scale(self.key))
        )
        spans = dict(zip(self.axes, box.bounds, strict=True))
        bounds = [spans.get(axis, (0, 1)) for axis in _AXES]
        values = reader.read(Box(tuple(a for a, _ in bounds), tuple(b for _, b in bounds)))
        if "c" not in spans:
            values = values[..., 0]
        own = [axis for axis in _AXES if axis in spans]
        return values.transpose([own.index(axis) for axis in self.axes])

    @property
    def volume(self) -> Volume:
        """What the ``info`` says."""
        return parse_info(json.loads(self.info))

    @property
    def chunk_shape(self) -> Shape:
        """Shape of a chunk of the scale, along the axes of the array."""
        volume = self.volume
        return _by_axis(volume.scale(self.key).chunk_size, volume.n_channels, self.axes)


def open_(request: Request) -> Source:
    """Open a scale of a volume; only its ``info`` is read.

    - `request`: request with `path`, and with the key of a scale as `dataset`. By default it is the
      first scale, which is the finest.
    """
    if os.path.isfile(request.path):
        raise SpecError(
            "it is a file, and a volume is a directory with an info",
            field="source",
            value=str(request.path),
            remedy="give that directory",
        )
    return _source(request.path, request.dataset, None)


@public
def from_precomputed(
    path: Any,
    storage_options: Mapping[str, Any] | None = None,
    *,
    scale: int | str = 0,
    axes: str | None = None,
    chunks: Any = None,
) -> dask.array.Array:
    """Read a volume of Neuroglancer precomputed as a dask array.

    Parameters
    ----------
    path : path, URL, or store
        The directory with the ``info`` of the volume, the URL of a bucket, or a store as in
        :func:`to_sharded_zarr`. A URL may begin with ``precomputed://``, as in Neuroglancer.
    storage_options : mapping, optional
        Options for a URL, as in :func:`to_sharded_zarr`.
    scale : int or str
        Number or key of the scale; 0 is the finest.
    axes : str, optional
        Order of the axes, such as ``"zyx"`` or ``"czyx"``. By default ``"xyz"``, or ``"xyzc"`` if
        there are several channels. The axis ``c`` may be left out if there is one channel.
    chunks : optional
        Chunks of the array, in any form that dask accepts. By default some chunks of the volume
        together, up to 32 MiB.

    Returns
    -------
    dask.array.Array
        The voxels. Chunks that are missing are zeros.

    Raises
    ------
    SpecError
        If the ``info`` describes no volume, there is no such scale, its encoding is not supported,
        or the axes do not fit.
    CodecError
        If the chunks are JPEG images, and simplejpeg is not installed.
    StoreError
        If there is no ``info``, or it cannot be read.

    Notes
    -----
    Chunks may lie in shards, with either hash, or in a file each, gzipped or not. Their encoding
    is ``raw``, ``compressed_segmentation``, ``png`` or ``jpeg``. PNG images are read faster if
    Pillow is installed. Damaged chunks raise CorruptShardError when they are read.

    Examples
    --------
    >>> import json, pathlib, shardwrite, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp())
    >>> scale = {"key": "s0", "size": [3, 2, 1], "resolution": [4, 4, 40],
    ...          "chunk_sizes": [[2, 2, 1]], "encoding": "raw"}
    >>> info = {"type": "image", "data_type": "uint8", "num_channels": 1, "scales": [scale]}
    >>> n = (path / "info").write_text(json.dumps(info))
    >>> (path / "s0").mkdir()
    >>> n = (path / "s0" / "2-3_0-2_0-1").write_bytes(bytes([5, 6]))
    >>> shardwrite.from_precomputed(path, axes="zyx").compute().tolist()
    [[[0, 0, 5], [0, 0, 6]]]
    """
    opened = at_url(without_kind(path), storage_options, is_read=True)
    return as_dask(_source(opened, scale, axes), chunks)


def _source(path: Any, wanted: int | str | None, axes: str | None) -> PrecomputedSource:
    opened = open_store(path, is_read=True)
    label = os.fspath(path) if isinstance(path, str | os.PathLike) else type(path).__name__
    return source_in(opened.store.at(opened.path), label, wanted, axes)


def source_in(
    store: Store, label: str, wanted: int | str | None, axes: str | None
) -> PrecomputedSource:
    """Open a scale of the volume in a store; see :func:`from_precomputed`."""
    text, volume = read_info(store, label)
    scale = volume.scale(wanted)
    ScaleReader(store, volume, scale)  # checks that it can be read
    axes = _checked_axes(axes, volume.n_channels)
    sizes = _by_axis(scale.size, volume.n_channels, axes)
    chunk = _by_axis(scale.chunk_size, volume.n_channels, axes)
    order = "F" if axes.startswith("x") else "C"
    root, facts = store.local_root, {"info": digest([text]), "key": scale.key}
    if root is None:
        identity = identity_text("precomputed", store.token, **facts)
    else:
        identity = identify("precomputed", str(root), stat_path=str(root / INFO), **facts)
    return PrecomputedSource(
        path=label,
        shape=sizes,
        dtype=volume.dtype,
        chunks=merge_chunks(
            chunk, sizes, volume.dtype.itemsize, target=_MERGED_NBYTES, order=order
        ),
        identity=f"{identity}&axes={axes}",
        store=store,
        info=text,
        key=scale.key,
        axes=axes,
        metadata=_metadata(volume, scale, axes),
    )


def _by_axis(spatial: Shape, n_channels: int, axes: str) -> Shape:
    extents = dict(zip(_AXES, (*spatial, n_channels), strict=True))
    return tuple(extents[axis] for axis in axes)


def _checked_axes(axes: str | None, n_channels: int) -> str:
    if axes is None:
        return "xyz" if n_channels == 1 else _AXES
    is_known = isinstance(axes, str) and sorted(axes) in (sorted("xyz"), sorted(_AXES))
    if not is_known or ("c" not in axes and n_channels > 1):
        remedy = "give the letters x, y and z in any order, and c among them"
        remedy += "" if n_channels > 1 else " if you like"
        raise SpecError("not the axes of the volume", field="axes", value=axes, remedy=remedy)
    return axes


def _metadata(volume: Volume, scale: Scale, axes: str) -> SourceMetadata:
    return SourceMetadata(
        fill_value=np.zeros((), volume.dtype)[()],
        dimension_names=tuple(AXIS_NAMES[axis] for axis in axes),
        attributes=scale_attributes(volume.kind, scale.resolution, scale.voxel_offset),
    )


# ---- Scales that can be converted


_NAME = re.compile(r"(-?\d+)-(-?\d+)_(-?\d+)-(-?\d+)_(-?\d+)-(-?\d+)(?:\.[a-z]+)?", re.ASCII)

_MOST_LOOKED_AT = 20_000

_MOST_SHARDS = 1000

_CACHE_NBYTES = 1

_WHY = "it is a volume of Neuroglancer that another program wrote"

T = TypeVar("T")


def open_tree(src: Any, is_wanted: Callable[[str], bool]) -> Hierarchy:
    """Open what is to be converted: an array, a group, a volume of Neuroglancer, or its scale.

    - `is_wanted`: function that says of the path of an array whether it is wanted; see
      `open_hierarchy`.
    """
    place = place_of(src)
    if place.kind() in ("nothing", "other"):
        if place.has(INFO):
            return _open_volume(place, is_wanted)
        above = volume_above(place)
        if above is not None:
            volume, key = above
            return Hierarchy(place, (), (("", _scale(volume, place, key)),))
    return open_hierarchy(place, is_wanted)


def _open_volume(place: Place, is_wanted: Callable[[str], bool]) -> Hierarchy:
    """Open a volume, whose arrays are its scales; those with a ``zarr.json`` are read by it."""
    _, volume = read_info(place.store, place.label)
    for scale in volume.scales:
        check_key_of(scale)
    keys = [scale.key for scale in volume.scales]
    foreign = [key for key in keys if place.store.size(f"{key}/{DOCUMENT}".lstrip("/")) is None]
    wanted = [key for key in foreign if is_wanted(key)]
    if not foreign:
        return open_hierarchy(place, is_wanted)
    arrays = [(key, _scale(place, place.member(key), key)) for key in wanted]
    if len(foreign) == len(keys):
        left_out = [(key, "not asked for") for key in foreign if key not in wanted]
        return Hierarchy(place, (), tuple(arrays), tuple(left_out))
    own = open_hierarchy(place, lambda _: True)
    arrays += [(name, array) for name, array in own.arrays if is_wanted(name)]
    return Hierarchy(place, own.groups, tuple(arrays), own.left_out, own.conversions)


def _scale(volume: Place, place: Place, key: str) -> StoredArray:
    """A scale as an array without shards, of the same chunks."""
    source = source_in(volume.store, volume.label, key, None)
    scale = source.volume.scale(key)
    chunks = tuple(min(chunk, n) for chunk, n in zip(source.chunk_shape, source.shape, strict=True))
    options = ArrayOptions(
        fill_value=source.metadata.fill_value,
        dimension_names=source.metadata.dimension_names,
        attributes=source.metadata.attributes,
    )
    metadata = make_metadata(source.shape, source.dtype, None, chunks, options)
    return StoredArray(
        place,
        ShardedArray(metadata, volume.store.at(key)),
        INFO,
        (f"axes: {', '.join(map(str, source.metadata.dimension_names or ()))}",),
        has_fill=False,
        copy_limits=CopyLimits(why_decoded=_WHY, values=source),
        known_identity=source.identity,
        survey=partial(_survey, source, scale, metadata.grid.counts),
    )


def _survey(source: PrecomputedSource, scale: Scale, counts: tuple[int, ...]) -> Survey:
    """Facts about the files of a scale."""
    store = source.store.at(scale.key)
    if scale.sharding is not None:
        return _survey_of_shards(store, scale, counts)
    files = {_position(key, scale): key for key in store.list_keys()}
    files.pop(None, None)
    looked_at = _some(list(files.values()), _MOST_LOOKED_AT)
    share = len(files) / len(looked_at) if looked_at else 1.0
    nbytes = round(share * sum(store.size(key) or 0 for key in looked_at))
    positions = np.array(list(files), np.int64).reshape(-1, 3)
    return Survey(_ranks(positions, counts), len(files), nbytes, share > 1, len(files))


def _survey_of_shards(store: Store, scale: Scale, counts: tuple[int, ...]) -> Survey:
    assert scale.sharding is not None
    files = UInt64ShardFiles(store, scale.sharding, index_limit(), _CACHE_NBYTES)
    numbers = files.numbers()
    looked_at = _some(numbers, _MOST_SHARDS)
    share = len(numbers) / len(looked_at) if looked_at else 1.0
    ids, nbytes = [np.zeros(0, np.uint64)], 0
    for number in looked_at:
        with files.open(number) as shard:
            if shard is not None:
                ids.append(shard.contents().ids)
                nbytes += shard.source.nbytes
    every = np.concatenate(ids)
    if share > 1:
        n_chunks = min(round(share * len(every)), math.prod(counts))
        return Survey(None, n_chunks, round(share * nbytes), True, len(numbers))
    positions = scale.code.decode(every).astype(np.int64).reshape(-1, 3)
    is_inside = (positions < np.array(scale.grid)).all(axis=1)
    ranks = _ranks(positions[is_inside], counts)
    return Survey(ranks, len(ranks), nbytes, False, len(numbers))


def _some(found: list[T], most: int) -> list[T]:
    """All of a list, or some that lie evenly in it."""
    if len(found) <= most:
        return found
    return [found[at] for at in np.linspace(0, len(found) - 1, most).astype(np.int64).tolist()]


def _position(key: str, scale: Scale) -> tuple[int, ...] | None:
    """Position of the chunk in a file; None if it is the file of no chunk."""
    match = _NAME.fullmatch(key)
    if match is None:
        return None
    starts = [int(text) for text in match.groups()[::2]]
    places = zip(starts, scale.voxel_offset, scale.chunk_size, strict=True)
    position = tuple((start - offset) // chunk for start, offset, chunk in places)
    if not all(0 <= i < n for i, n in zip(position, scale.grid, strict=True)):
        return None
    return position if key.startswith(scale.name(position)) else None


def _ranks(positions: npt.NDArray[np.int64], counts: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Row-major ranks of chunks in the array, which may have an axis of channels at its end."""
    return np.sort(np.ravel_multi_index(tuple(positions.T), counts[:3])).astype(np.int64)

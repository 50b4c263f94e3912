"""Volumes of Neuroglancer precomputed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import shardwrite._dask as dask
from shardwrite.codecs.limits import index_limit
from shardwrite.entry.public import public
from shardwrite.errors import SpecError
from shardwrite.format.precomputed.info import INFO, Scale, Volume, parse_info
from shardwrite.grid import Box, Shape
from shardwrite.place.url import at_url, without_kind
from shardwrite.read.precomputed import ScaleReader, read_info
from shardwrite.read.source import as_dask
from shardwrite.sources.base import RegionSource, Request, Source, SourceMetadata
from shardwrite.sources.chunking import merge_chunks
from shardwrite.sources.common import identify, identity_text
from shardwrite.sources.handles import FILES
from shardwrite.stores import Store, open_store

_AXES = "xyzc"
_NAMES = {"x": "x", "y": "y", "z": "z", "c": "channel"}
_MERGED_NBYTES = 32 * 2**20


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
        reader: ScaleReader = FILES.get(name, self._reader)
        spans = dict(zip(self.axes, box.bounds, strict=True))
        bounds = [spans.get(axis, (0, 1)) for axis in _AXES]
        values = reader.read(Box(tuple(a for a, _ in bounds), tuple(b for _, b in bounds)))
        if "c" not in spans:
            values = values[..., 0]
        own = [axis for axis in _AXES if axis in spans]
        return values.transpose([own.index(axis) for axis in self.axes])

    def _reader(self) -> ScaleReader:
        volume = self.volume
        return ScaleReader(self.store, volume, volume.scale(self.key))

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
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    root = store.local_root
    identity = (
        identity_text("precomputed", store.token, info=digest, key=scale.key)
        if root is None
        else identify(
            "precomputed", str(root), stat_path=str(root / INFO), info=digest, key=scale.key
        )
    )
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
        remedy = "give the letters x, y and z in any order" + (
            ", and c among them" if n_channels > 1 else ", and c among them if you like"
        )
        raise SpecError("not the axes of the volume", field="axes", value=axes, remedy=remedy)
    return axes


def _metadata(volume: Volume, scale: Scale, axes: str) -> SourceMetadata:
    return SourceMetadata(
        fill_value=np.zeros((), volume.dtype)[()],
        dimension_names=tuple(_NAMES[axis] for axis in axes),
        attributes={
            "precomputed": {
                "type": volume.kind,
                "resolution": list(scale.resolution),
                "voxel_offset": list(scale.voxel_offset),
            }
        },
    )

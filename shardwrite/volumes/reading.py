"""Reading of volumes of Neuroglancer precomputed, in shards or with a file for each chunk."""

from __future__ import annotations

import errno
import itertools
import math
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.stages import Buffer, index_limit
from shardwrite.errors import CorruptShardError, ShardwriteError, SpecError, StoreError, damage_in
from shardwrite.format.node import DOCUMENT
from shardwrite.grid import Box, Shape
from shardwrite.place.base import Place, names_above
from shardwrite.place.directory import Directory
from shardwrite.place.objects import InStore
from shardwrite.stores.base import Store, is_plain_key
from shardwrite.stores.looking import parse_json, read_limit
from shardwrite.volumes.codecs import VolumeEncoding, volume_encoding
from shardwrite.volumes.info import INFO, Scale, Volume, parse_info, parse_sharding
from shardwrite.volumes.sharding import ShardingParameters, by_shard, most_gzip_nbytes, stage_of
from shardwrite.volumes.uint64_shard import UInt64ShardFiles, UInt64ShardReader

_CACHE_NBYTES = 64 * 2**20

_UNREADABLE = (".br", ".zst", ".xz")


def read_info(store: Store, label: str) -> tuple[str, Volume]:
    """Text of the ``info`` in a store, and what it says."""
    data = store.read_whole(INFO, read_limit())
    if data is None:
        raise StoreError(f"there is no {INFO} in {label}", key=INFO, errno=errno.ENOENT)
    try:
        text = data.decode("utf-8-sig")
        document = parse_json(text.encode())
    except ValueError as error:
        remedy = "give a whole document, in UTF-8"
        raise SpecError(f"not valid: {error}", field=INFO, value=label, remedy=remedy) from error
    return text, parse_info(document)


def read_sharding(store: Store) -> ShardingParameters:
    """Parameters in the ``info`` beside shards, for instance of meshes."""
    data = store.read_whole(INFO, read_limit())
    remedy = "give sharding="
    if data is None:
        raise SpecError("there is no info", field="sharding", value=None, remedy=remedy)
    try:
        document = parse_json(data)
    except ValueError as error:
        message = f"info is not valid: {error}"
        raise SpecError(message, field="sharding", value=None, remedy=remedy) from error
    sharding = document.get("sharding") if isinstance(document, dict) else None
    if isinstance(document, dict) and sharding is None and isinstance(document.get("scales"), list):
        raise SpecError(
            "info is that of a volume, whose scales have their own",
            field="sharding",
            value=None,
            remedy="give the directory of a scale, and its sharding",
        )
    if sharding is None:
        message = "info has no sharding, so its chunks lie in no shards"
        raise SpecError(message, field="sharding", value=None, remedy=remedy)
    return parse_sharding(sharding)


def check_key_of(scale: Scale) -> None:
    """Refuse a scale whose key leads out of the volume, which the format permits."""
    if scale.key and not is_plain_key(scale.key):
        raise SpecError(
            "no plain path below the volume, and no other is read",
            field="key",
            value=scale.key,
            remedy="copy the chunks to a directory in the volume, and write its name into info",
        )


class ScaleReader:
    """Reader of a scale, as an array with the axes x, y, z and channel. Threads may share it."""

    def __init__(self, store: Store, volume: Volume, scale: Scale) -> None:
        scale.encoding.check(volume.dtype, volume.n_channels, is_read=True)
        check_key_of(scale)
        self._encoding: VolumeEncoding | None = None
        if scale.encoding.name != "raw":
            codec, dtype = scale.encoding.codec, volume.dtype.newbyteorder("=")
            configuration = codec.get("configuration", {})
            self._encoding = volume_encoding(codec["name"], configuration, dtype, volume.n_channels)
        self._store = store.at(scale.key)
        self._volume, self._scale = volume, scale
        self._files: UInt64ShardFiles | None = None
        if scale.sharding is not None:
            self._code = scale.code
            limits = index_limit(), _CACHE_NBYTES
            self._files = UInt64ShardFiles(self._store, scale.sharding, *limits)

    def read(self, box: Box) -> npt.NDArray[Any]:
        """Read a box. Chunks that are missing are zeros.

        - `box`: elements, relative to the first voxel of the scale.
        """
        values = np.zeros(box.shape, self._volume.dtype, order="F")
        axes = zip(box.start[:3], box.stop[:3], self._scale.chunk_size, strict=True)
        cells = list(itertools.product(*(range(a // c, -(-b // c)) for a, b, c in axes)))
        if self._files is None:
            for cell in cells:
                data = self._file(self._scale.name(cell), self._most_nbytes(cell))
                self._enter(values, box, cell, data)
            return values
        ids = self._code.encode(np.array(cells).reshape(-1, 3))
        for shard, positions in by_shard(self._files.sharding, ids):
            own = {cells[at]: int(ids[at]) for at in positions.tolist()}
            self._files.read(shard, partial(self._enter_all, values, box, own))
        return values

    def _enter_all(
        self,
        values: npt.NDArray[Any],
        box: Box,
        cells: dict[Shape, int],
        reader: UInt64ShardReader | None,
    ) -> None:
        """Enter the chunks of a shard, by their ids, into the values of a box."""
        for cell, chunk_id in cells.items():
            data = None if reader is None else reader.chunk(chunk_id, self._most_nbytes(cell))
            self._enter(values, box, cell, data)

    def _enter(self, values: npt.NDArray[Any], box: Box, cell: Shape, data: Buffer | None) -> None:
        """Enter a chunk into the values of a box, in place of one that was entered before.

        - `data`: the chunk as it is encoded; None if it is missing, and then it is zeros.
        """
        place = self._scale.box(cell)
        whole = Box((*place.start, 0), (*place.stop, self._volume.n_channels))
        common = whole.intersect(box)
        chunk: Any = 0
        if data is not None:
            chunk = self._decoded(data, whole, cell)[common.shift(whole.start).slices]
        values[common.shift(box.start).slices] = chunk

    def _most_nbytes(self, cell: Shape) -> int:
        """Most bytes that a chunk has in its encoding, without the gzip around it."""
        box, n_channels = self._scale.box(cell), self._volume.n_channels
        if self._encoding is not None:
            return self._encoding.most_nbytes((n_channels, *box.shape[::-1]))
        return box.size * n_channels * self._volume.dtype.itemsize

    def _file(self, key: str, most: int) -> Buffer | None:
        """Bytes of a chunk in a file of its own, which may be compressed; None if it is missing."""
        data = self._store.read_whole(key, most)
        if data is not None:
            return data
        zipped = self._store.read_whole(f"{key}.gz", most_gzip_nbytes(most))
        if zipped is not None:
            stage = stage_of("gzip")
            assert stage is not None
            with damage_in(key=f"{key}.gz"):
                return stage.decode(zipped, most)
        for ending in _UNREADABLE:
            if self._store.size(key + ending) is not None:
                message = f"{key + ending!r} has a compression that is not read; decompress it"
                raise StoreError(message, key=key + ending, errno=errno.EOPNOTSUPP)
        return None

    def _decoded(self, data: Buffer, box: Box, position: Shape) -> npt.NDArray[Any]:
        if self._encoding is not None:
            with damage_in(inner_chunk=position):
                return self._encoding.decode(data, box.shape[::-1]).transpose()
        wanted = math.prod(box.shape) * self._volume.dtype.itemsize
        if len(memoryview(data)) != wanted:
            raise CorruptShardError(
                f"decodes to {len(memoryview(data))} bytes, not {wanted}", inner_chunk=position
            )
        return np.frombuffer(data, self._volume.dtype).reshape(box.shape, order="F")


# ---- Paths of scales where an array was asked for


_NAMED = 5

_MOST_ABOVE = 4


def _volume_at(place: Place) -> Volume | None:
    """The volume at a place; None if there is none, or what stands there tells of no scale."""
    try:
        data = place.read(INFO)
        return None if data is None else parse_info(parse_json(data))
    except (ShardwriteError, ValueError):  # it is something else
        return None


def volume_above(place: Place) -> tuple[Place, str] | None:
    """The volume of which a place is a scale, and the key of that; None if it is none.

    - `place`: A place without a ``zarr.json``.
    """
    above: Iterable[tuple[Place, str]] = ()
    if isinstance(place, Directory):
        above = (
            (Directory(path), place.path.relative_to(path).as_posix())
            for path in list(place.path.parents)[:_MOST_ABOVE]
            if path.name
        )
    elif isinstance(place, InStore):
        above = (
            (InStore(place.base, name), place.name[len(name) :].lstrip("/"))
            for name in reversed(names_above(place.name))
        )
    for around, key in above:
        volume = _volume_at(around)
        if volume is not None and key in [scale.key for scale in volume.scales]:
            return around, key
    return None


def refuse_volume(place: Place, asked: str) -> None:
    """Refuse a volume, or a scale of one, where something else was asked for.

    - `place`: A place without a ``zarr.json``.
    - `asked`: what was asked for: ``"array"``, ``"tree"`` or ``"source"``.
    """
    if asked == "array":
        _refuse_as_array(place)
    elif asked == "tree" and (_volume_at(place) or volume_above(place)):
        raise SpecError(
            "no Zarr array or group is there, but a volume of Neuroglancer",
            field="src",
            value=place.label,
            remedy="use reshard without consume, which makes Zarr arrays of its values",
        )
    elif asked == "source" and (found := volume_above(place)) is not None:
        raise SpecError(
            "it is a scale of a volume of Neuroglancer",
            field="source",
            value=place.label,
            remedy=f"give the volume and its scale: {found[0].label}::{found[1]}",
        )


def _refuse_as_array(place: Place) -> None:
    """Refuse a volume, whose scales are arrays, but which is none itself."""
    if isinstance(place, Directory) and "::" in str(place.path):
        # `volume::key` names a scale as a source
        above, _, wanted = str(place.path).rpartition("::")
        named = _volume_at(Directory(Path(above)))
        if named is not None:
            raise SpecError(
                "a scale of a volume is named so only as a source",
                field="store",
                value=place.label,
                remedy=f"give the path of its directory, {above}/{named.scale(wanted or None).key}",
            )
    volume = _volume_at(place)
    try:
        scales = () if volume is None else volume.scales
        keys = [s.key for s in scales if place.store.size(f"{s.key}/{DOCUMENT}") is not None]
    except (ShardwriteError, ValueError):
        return
    remedy = (
        "shardwrite has written none of its scales: read it by shardwrite.from_precomputed, or "
        "make Zarr arrays of it by shardwrite reshard"
    )
    is_scale = volume is None and volume_above(place) is not None
    if volume is None and not is_scale:
        return
    if keys:
        label = place.label
        is_url = "://" in label and not label.startswith("memory:")  # which no call can open
        is_path = isinstance(place, Directory) or is_url
        above = label if is_path else place.name
        above += "" if above.endswith("/") or not above else "/"
        listed = ", ".join(f"{above}{key}" for key in keys[:_NAMED])
        remedy = f"give {'the path of a scale' if is_path else 'name=, one of'}: {listed}"
    what = "a scale of a volume of Neuroglancer" if is_scale else "a volume of Neuroglancer"
    raise SpecError(f"no array: it is {what}", field="store", value=place.label, remedy=remedy)

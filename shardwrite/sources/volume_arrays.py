"""Scales of volumes of Neuroglancer that other programs wrote, as arrays that can be converted.

Such a scale has no ``zarr.json``, so its values are read as :func:`shardwrite.from_precomputed`
reads them, and its chunks are decoded and re-encoded. Nothing is ever written to the volume.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.limits import index_limit
from shardwrite.format.document import ArrayOptions, make_metadata
from shardwrite.format.node import DOCUMENT
from shardwrite.format.precomputed.info import INFO, Scale
from shardwrite.place.base import Place
from shardwrite.read.array import ShardedArray
from shardwrite.read.hierarchy import Hierarchy, open_hierarchy
from shardwrite.read.precomputed import check_key_of, read_info
from shardwrite.read.stored_array import StoredArray
from shardwrite.read.survey import Survey
from shardwrite.read.uint64_shards import UInt64ShardFiles
from shardwrite.read.volume_paths import volume_above
from shardwrite.sources.opening import place_of
from shardwrite.sources.precomputed import PrecomputedSource, source_in
from shardwrite.stores import Store, Told

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
            return _opened(place, is_wanted)
        found = volume_above(place)
        if found is not None:
            volume, key = found
            return Hierarchy(place, (), (("", _scale(volume, place, key)),))
    return open_hierarchy(place, is_wanted)


def _opened(place: Place, is_wanted: Callable[[str], bool]) -> Hierarchy:
    """A volume, whose arrays are its scales. Those that this package wrote are found as arrays."""
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
    return Hierarchy(place, own.groups, tuple(arrays), own.left_out)


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
        told=Told(why_decoded=_WHY, values=source),
        known_identity=source.identity,
        survey=partial(_survey, source, scale, metadata.grid.counts),
    )


def _survey(source: PrecomputedSource, scale: Scale, counts: tuple[int, ...]) -> Survey:
    """Facts about the files of a scale."""
    store = source.store.at(scale.key)
    if scale.sharding is not None:
        return _survey_of_shards(store, scale, counts)
    found = {}
    for key in store.list_keys():
        position = _position(key, scale)
        if position is not None:
            found[position] = key
    looked_at = _some(list(found.values()), _MOST_LOOKED_AT)
    share = len(found) / len(looked_at) if looked_at else 1.0
    nbytes = round(share * sum(store.size(key) or 0 for key in looked_at))
    positions = np.array(list(found), np.int64).reshape(-1, 3)
    return Survey(_ranks(positions, counts), len(found), nbytes, share > 1, len(found))


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
                ids += [minishard.ids for minishard in shard.minishards()]
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
    found = _NAME.fullmatch(key)
    if found is None:
        return None
    starts = [int(text) for text in found.groups()[::2]]
    places = zip(starts, scale.voxel_offset, scale.chunk_size, scale.grid, strict=True)
    position = [((start - offset) // chunk, n) for start, offset, chunk, n in places]
    if not all(0 <= at < n for at, n in position):
        return None
    whole = tuple(at for at, _ in position)
    return whole if key.startswith(scale.name(whole)) else None


def _ranks(positions: npt.NDArray[np.int64], counts: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Row-major ranks of chunks in the array, which may have an axis of channels at its end."""
    return np.sort(np.ravel_multi_index(tuple(positions.T), counts[:3])).astype(np.int64)

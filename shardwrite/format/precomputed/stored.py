"""Scales that are arrays already: what the ``info`` of a volume says of them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from shardwrite.codecs.documents import Document, attributes_of
from shardwrite.format.metadata import ArrayMetadata, parse_metadata
from shardwrite.format.precomputed.boxes import PrecomputedShards
from shardwrite.format.precomputed.encodings import ChunkEncoding
from shardwrite.format.precomputed.info import parse_info
from shardwrite.format.precomputed.new import ROW_MAJOR, NewScale, named_axes
from shardwrite.format.precomputed.parameters import TYPE

_ATTRIBUTE = "precomputed"
_AXES = "source_axes"


def why_kept(document: Document) -> str:
    """Why an array must not be replaced by something else; empty if it is no scale of a volume."""
    if not any(
        isinstance(codec, dict) and codec.get("name") == TYPE for codec in _codecs(document)
    ):
        return ""
    return "it is a scale of a volume of Neuroglancer, whose info would go on to list it"


def _codecs(document: Document) -> Sequence[object]:
    found: object = document.get("codecs")
    return found if isinstance(found, list) else []


def _noted(metadata: ArrayMetadata) -> Document | None:
    """What a scale notes of its volume, in its attributes; None if it notes nothing."""
    found: object = attributes_of(metadata.document).get(_ATTRIBUTE)
    return found if isinstance(found, dict) else None


def with_source_axes(metadata: ArrayMetadata, letters: str) -> ArrayMetadata:
    """Metadata of a scale that say in which order the axes of its source were.

    They are as they were if that is the order of the scale itself.
    """
    known = _noted(metadata)
    if ROW_MAJOR.endswith(letters) or known is None:
        return metadata
    attributes = {**metadata.document["attributes"], _ATTRIBUTE: {**known, _AXES: letters}}
    document = {**metadata.document, "attributes": attributes}
    return parse_metadata(json.dumps(document, indent=2), writing=True)


def source_axes(
    metadata: ArrayMetadata, names: Sequence[str | None] | None, ndim: int
) -> str | None:
    """Axes of an array that holds the values of a scale; None if they are in order.

    The names of its dimensions tell them, or else the scale does: the array that was written had
    its axes in that order.

    - `metadata`: metadata of an array. If it is no scale, its source has the same axes.
    """
    shards: object = metadata.shard_format
    if not isinstance(shards, PrecomputedShards):
        return None
    found = named_axes(names, ndim)
    if found is None:
        known = _noted(metadata)
        told = None if known is None else known.get(_AXES)
        found = named_axes(list(told), ndim) if isinstance(told, str) else None
    return found


def has_scattered_chunks(metadata: ArrayMetadata) -> bool:
    """Whether an array is a scale whose hash scatters the chunks. Their ids are not computed."""
    shards: object = metadata.shard_format
    return isinstance(shards, PrecomputedShards) and shards.size is not None


def is_in_order(metadata: ArrayMetadata, names: Sequence[str | None] | None) -> bool:
    """Whether another array of as many axes has the values of an array in the same order."""
    letters = source_axes(metadata, names, len(metadata.grid.shape))
    return letters is None or ROW_MAJOR.endswith(letters)


def is_scale(metadata: ArrayMetadata) -> bool:
    """Whether an array is a scale of a volume, of either hash, and no spool."""
    shards: object = metadata.shard_format
    return isinstance(shards, PrecomputedShards) and _noted(metadata) is not None


def stored_scale(metadata: ArrayMetadata, key: str) -> NewScale | None:
    """The scale that an array is; None if it is no scale of a volume."""
    shards: object = metadata.shard_format
    known = _noted(metadata)
    if not isinstance(shards, PrecomputedShards) or known is None:
        return None
    shape, chunks = metadata.grid.shape, metadata.grid.chunks
    size = shape[:-4:-1] if shards.size is None else shards.size
    entry: Document = {
        "key": key,
        "size": list(size),
        "voxel_offset": known.get("voxel_offset"),
        "resolution": known.get("resolution"),
        "chunk_sizes": [list(chunks[:-4:-1])],
        **ChunkEncoding.of_codec(metadata.inner_codecs[0]).fields,
        "sharding": shards.sharding.to_dict(),
    }
    info = {
        "type": known.get("type"),
        "data_type": metadata.dtype.name,
        "num_channels": chunks[0] if len(shape) == 4 else 1,
        "scales": [entry],
    }
    return NewScale(parse_info(info), entry)

"""Scales that are arrays already: what the ``info`` of a volume says of them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from shardwrite.codecs.documents import Document, attributes_of
from shardwrite.errors import SpecError
from shardwrite.format.metadata import ArrayMetadata, parse_metadata
from shardwrite.format.precomputed.boxes import PrecomputedShards
from shardwrite.format.precomputed.encodings import ChunkEncoding
from shardwrite.format.precomputed.info import parse_info
from shardwrite.format.precomputed.new import ROW_MAJOR, NewScale, named_axes
from shardwrite.grid import Shape

_ATTRIBUTE = "precomputed"
_AXES = "source_axes"


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
    metadata: ArrayMetadata, names: Sequence[str | None] | None, shape: Shape, field: str
) -> tuple[int | None, ...] | None:
    """See :class:`SourceAxes`. The names tell the axes, or else the scale notes them."""
    letters = named_axes(names, len(shape))
    if letters is None:
        told = (_noted(metadata) or {}).get(_AXES)
        letters = named_axes(list(told), len(shape)) if isinstance(told, str) else None
    if letters is None:
        return None
    wanted = metadata.values_shape
    own = ROW_MAJOR[-len(wanted) :]
    sizes = dict(zip(own, wanted, strict=True))
    expected = tuple(sizes.get(letter, 1) for letter in letters)
    if shape != expected:
        raise SpecError(
            "is not the array's",
            field=f"{field}.shape",
            value=shape,
            remedy=f"give a source of shape {expected}, whose axes are {letters!r} as those of "
            f"this one, or of shape {wanted} with the names {list(own)} for its dimensions",
        )
    return tuple(letters.index(axis) if axis in letters else None for axis in own)


def has_scattered_chunks(metadata: ArrayMetadata) -> bool:
    """Whether an array is a scale whose hash scatters the chunks. Their ids are not computed."""
    shards: object = metadata.shard_format
    return isinstance(shards, PrecomputedShards) and shards.size is not None


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

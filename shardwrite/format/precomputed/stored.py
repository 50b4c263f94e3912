"""Scales that are arrays already: what the ``info`` of a volume says of them."""

from __future__ import annotations

from shardwrite.codecs.documents import Document
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.precomputed.boxes import PrecomputedShards
from shardwrite.format.precomputed.encodings import ChunkEncoding
from shardwrite.format.precomputed.info import parse_info
from shardwrite.format.precomputed.new import NewScale

__all__ = ["has_scattered_chunks", "is_scale", "stored_scale"]


def has_scattered_chunks(metadata: ArrayMetadata) -> bool:
    """Whether an array is a scale whose hash scatters the chunks. Their ids are not computed.

    Parameters
    ----------
    metadata : ArrayMetadata
        Metadata of the array.
    """
    shards: object = metadata.shard_format
    return isinstance(shards, PrecomputedShards) and shards.size is not None


def is_scale(metadata: ArrayMetadata) -> bool:
    """Whether an array is a scale of a volume, of either hash, and no spool.

    Parameters
    ----------
    metadata : ArrayMetadata
        Metadata of the array.
    """
    shards: object = metadata.shard_format
    known = metadata.document.get("attributes", {}).get("precomputed")
    return isinstance(shards, PrecomputedShards) and isinstance(known, dict)


def stored_scale(metadata: ArrayMetadata, key: str) -> NewScale | None:
    """The scale that an array is; None if it is no scale of a volume.

    Parameters
    ----------
    metadata : ArrayMetadata
        Metadata of the array, with what `plan_precomputed` has put among its attributes.
    key : str
        Name of the scale.

    Raises
    ------
    SpecError
        If the attributes were changed, and describe no volume any more.
    """
    shards: object = metadata.shard_format
    known = metadata.document.get("attributes", {}).get("precomputed")
    if not isinstance(shards, PrecomputedShards) or not isinstance(known, dict):
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

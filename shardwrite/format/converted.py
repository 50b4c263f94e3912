"""The ``zarr.json`` of an array whose data come from another array.

It is the document of the other array, in which only what a conversion changes is changed. So data
type, fill value, attributes and names stay exactly what they were.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from zarr.abc.codec import ArrayArrayCodec

from shardwrite.codecs.documents import Codec, Document, named_today
from shardwrite.errors import SpecError
from shardwrite.format.document import (
    DEFAULT_COMPRESSORS,
    DEFAULT_INDEX_CODECS,
    ArrayOptions,
    make_metadata,
    warn_of_readers,
)
from shardwrite.format.given import codec_class
from shardwrite.format.manifest import with_manifest
from shardwrite.format.metadata import ArrayMetadata, parse_metadata
from shardwrite.format.sharding import ShardingIndexed
from shardwrite.grid import Shape
from shardwrite.options import Manifest
from shardwrite.seams import registered

_CHECKSUM = "crc32c"
_BYTES = {"name": "bytes", "configuration": {"endian": "little"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedLayout:
    """What a conversion changes in the document of an array."""

    shards: Shape | None  # shape of a shard in elements; None for an array without shards
    chunks: Shape  # shape of an inner chunk in elements
    # Bytes-to-bytes codecs of the inner chunks, as in `zarr.create_array`
    compressors: Any = "keep"
    # Whether a crc32c ends each inner chunk. None leaves that as it is.
    checksum: bool | None = None
    # Where the index lies in each shard. None leaves that as it is; new shards have it at the end.
    index_location: str | None = None
    # Names of the dimensions. None leaves them as they are.
    dimension_names: Sequence[str | None] | None = None
    chunk_key_encoding: Document | None = None  # how keys are made. None leaves that as it is.
    attributes: Document | None = None  # the attributes. None leaves them as they are.
    manifest: Manifest = None  # whether the array keeps a manifest. None leaves that as it is.


def converted(source: ArrayMetadata, layout: ConvertedLayout) -> ArrayMetadata:
    """Metadata of an array with the data of another."""
    document = dict(source.document)
    codecs = _inner_codecs(source, layout)
    sizes = layout.chunks
    if layout.shards is not None:
        warn_of_readers(source.dtype)
        sizes = layout.shards
        codecs = [
            {
                "name": ShardingIndexed.name,
                "configuration": {
                    "chunk_shape": list(layout.chunks),
                    "codecs": codecs,
                    **_index(source, layout.index_location),
                },
            }
        ]
    document["codecs"] = codecs
    document["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": list(sizes)}}
    if layout.dimension_names is not None:
        document["dimension_names"] = list(layout.dimension_names)
    if layout.chunk_key_encoding is not None:
        document["chunk_key_encoding"] = layout.chunk_key_encoding
    if layout.attributes is not None:
        document["attributes"] = layout.attributes
    if layout.manifest is not None:
        document = with_manifest(document)
    return parse_metadata(json.dumps(document, indent=2), writing=True)


def _inner_codecs(source: ArrayMetadata, layout: ConvertedLayout) -> list[Codec]:
    codecs = _codecs_of(source)
    if not (isinstance(layout.compressors, str) and layout.compressors == "keep"):
        codecs = _without_shardings(codecs)
        codecs = [*codecs[: _n_before_bytes(codecs)], *_rendered(source, layout, codecs)]
    if layout.checksum is False:
        while codecs and codecs[-1]["name"] == _CHECKSUM:
            codecs.pop()
    if layout.checksum and codecs[-1]["name"] != _CHECKSUM:
        codecs.append({"name": _CHECKSUM})
    return codecs


def _codecs_of(source: ArrayMetadata) -> list[Codec]:
    """Codecs of an array; the usual ones for those that no reader of Zarr knows."""
    codecs = source.inner_codecs
    if codecs[0]["name"] not in registered("serializer"):
        return [*codecs]
    return [_BYTES, *DEFAULT_COMPRESSORS]


def _without_shardings(codecs: Sequence[Codec]) -> list[Codec]:
    """Codecs that chunks have without the shards that are in them.

    Compressors are those of the smallest chunks. Around a sharding, not every reader takes them.
    """
    names = [codec["name"] for codec in codecs]
    if ShardingIndexed.name not in names:
        return [*codecs]
    at = names.index(ShardingIndexed.name)
    return [*codecs[:at], *_without_shardings(codecs[at]["configuration"]["codecs"])]


def _n_before_bytes(codecs: Sequence[Codec]) -> int:
    """Number of codecs up to the one that makes bytes of an array."""
    for n, codec in enumerate(codecs):
        known = codec_class(codec["name"])
        if known is None:
            raise SpecError(
                "a codec that zarr does not know",
                field="compressors",
                value=codec["name"],
                remedy='install its package, or leave the codecs as they are (compressors="keep")',
            )
        if not issubclass(known, ArrayArrayCodec):
            return n + 1
    return len(codecs)


def _rendered(
    source: ArrayMetadata, layout: ConvertedLayout, codecs: Sequence[Codec]
) -> Sequence[Codec]:
    """The compressors of a layout as zarr renders them for the array with these codecs."""
    serializer = codecs[_n_before_bytes(codecs) - 1]
    options = ArrayOptions(
        compressors=layout.compressors,
        serializer=dict(serializer) if source.dtype.hasobject else "auto",
    )
    made = make_metadata(source.grid.shape, source.dtype, None, layout.chunks, options)
    return made.inner_codecs[_n_before_bytes(made.inner_codecs) :]


def _index(source: ArrayMetadata, location: str | None) -> Document:
    """Fields of the shard format: those of the source, if it has the same format."""
    kept = source.shard_format
    if not isinstance(kept, ShardingIndexed):
        kept = ShardingIndexed([dict(codec) for codec in DEFAULT_INDEX_CODECS])
    if location not in (None, "end", "start"):
        raise SpecError(
            "no such place", field="index_location", value=location, remedy='use "end" or "start"'
        )
    codecs: list[Codec] = [*named_today(kept.index_codecs)]
    return ShardingIndexed(codecs, location or kept.location).to_dict()

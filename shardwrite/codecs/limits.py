"""Size limits of what is read whose size no metadata tell."""

from __future__ import annotations

from shardwrite.config.table import CHUNK_LIMIT, INDEX_LIMIT
from shardwrite.config.values import value_of


def chunk_limit() -> int:
    """Largest allowed size, in bytes, of an inner chunk of variable-length elements.

    The size is that of the serialized elements with their lengths, before any compression.
    """
    return value_of(CHUNK_LIMIT)


def index_limit() -> int:
    """Largest index of a shard in Neuroglancer's format that is written or read, in bytes."""
    return value_of(INDEX_LIMIT)

"""Size limit for inner chunks of variable-length elements, whose size is not in the metadata."""

from __future__ import annotations

from shardwrite.config.table import CHUNK_LIMIT
from shardwrite.config.values import value_of

__all__ = ["chunk_limit"]


def chunk_limit() -> int:
    """Largest allowed size, in bytes, of an inner chunk of variable-length elements.

    The size is that of the serialized elements with their lengths, before any compression.
    """
    return value_of(CHUNK_LIMIT)

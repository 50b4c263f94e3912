"""What tells a hierarchy of 2022, whose arrays a storage transformer may have put into shards.

The documents of its arrays are in `format.transformer`, which imports zarr-python.
"""

from __future__ import annotations

from typing import Any

from shardwrite.codecs.documents import Document

__all__ = ["FORMAT", "HIERARCHY", "is_hierarchy"]

FORMAT = "transformer-2022"
"""Name of the format among the keywords."""

_CORE = "https://purl.org/zarr/spec/protocol/core/3.0"
HIERARCHY: Document = {
    "zarr_format": _CORE,
    "metadata_encoding": _CORE,
    "metadata_key_suffix": ".json",
    "extensions": [],
}
"""Document of a hierarchy of 2022, at the key ``zarr.json`` of its store."""


def is_hierarchy(document: Any) -> bool:
    """Whether the parsed ``zarr.json`` of a store is that of a hierarchy of 2022."""
    found = document.get("zarr_format") if isinstance(document, dict) else None
    return isinstance(found, str) and found.startswith("https://purl.org/zarr/spec/")

"""What tells a hierarchy of 2022, whose arrays a storage transformer may have put into shards.

The documents of its arrays are in `format.transformer`, which imports zarr-python.
"""

from __future__ import annotations

from typing import Any

from shardwrite.codecs.documents import Document

__all__ = ["DATA", "FORMAT", "HIERARCHY", "META", "documents_of", "is_hierarchy"]

DATA, META = "data/root", "meta/root"
"""Beginnings of the keys of the objects, and of the documents, of all nodes of a hierarchy."""

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


def documents_of(key: str) -> list[str]:
    """Where the documents of nodes begin that may have an object of a hierarchy; outermost first.

    Examples
    --------
    >>> documents_of("data/root/x/c0")
    ['meta/root', 'meta/root/x', 'meta/root/x/c0']
    >>> documents_of("meta/root/x.array.json")
    []
    """
    if not f"{key}/".startswith(f"{DATA}/"):
        return []
    parts = key.removeprefix(DATA).split("/")
    return [META + "/".join(parts[:n]) for n in range(1, len(parts) + 1)]

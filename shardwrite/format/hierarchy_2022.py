"""What tells a hierarchy of 2022, whose arrays a storage transformer may have put into shards.

These are signatures, by which the core knows what it has to do with. What is in the documents is in
`format.transformer`.
"""

from __future__ import annotations

from typing import Any

DATA, META = "data/root", "meta/root"
"""Beginnings of the keys of the objects, and of the documents, of all nodes of a hierarchy."""

FORMAT = "transformer-2022"
"""Name of the format among the keywords."""

CORE = "https://purl.org/zarr/spec/protocol/core/3.0"


def is_hierarchy(document: Any) -> bool:
    """Whether the parsed ``zarr.json`` of a store is that of a hierarchy of 2022."""
    found = document.get("zarr_format") if isinstance(document, dict) else None
    return isinstance(found, str) and found.startswith(CORE.partition("protocol")[0])


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

"""What tells a hierarchy of 2022, whose arrays a storage transformer may have put into shards.

The documents of its arrays are in `format.transformer`, which imports zarr-python.
"""

from __future__ import annotations

from typing import Any

from shardwrite.codecs.documents import Document
from shardwrite.errors import SpecError

DATA, META = "data/root", "meta/root"
"""Beginnings of the keys of the objects, and of the documents, of all nodes of a hierarchy."""

FORMAT = "transformer-2022"
"""Name of the format among the keywords."""

_CORE = "https://purl.org/zarr/spec/protocol/core/3.0"
_SUFFIX = ".json"
HIERARCHY: Document = {
    "zarr_format": _CORE,
    "metadata_encoding": _CORE,
    "metadata_key_suffix": _SUFFIX,
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


def check_hierarchy(document: Document) -> None:
    """Refuse the document of a hierarchy that asks for what is not done here."""
    suffix = document.get("metadata_key_suffix", _SUFFIX)
    if suffix != _SUFFIX:
        raise SpecError(
            "documents of a hierarchy of 2022 with other names are not read",
            field="metadata_key_suffix",
            value=suffix,
            remedy=f"let the names of all documents end in {_SUFFIX}, and say so in zarr.json",
        )
    check_extensions(document.get("extensions"))


def check_extensions(found: Any) -> None:
    """Refuse extensions that a reader of a document must understand."""
    extensions = [] if found is None else found
    if not isinstance(extensions, list) or any(
        not isinstance(one, dict) or one.get("must_understand") is not False for one in extensions
    ):
        raise SpecError(
            "a reader must understand them, and none is known here",
            field="extensions",
            value=found,
            remedy="read it with a program that knows them",
        )

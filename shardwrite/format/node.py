"""Documents of the nodes of a Zarr v3 hierarchy: their key, their kind, and what is read from them.

The document of a node is what makes readers see it. A format with other documents brings its own
module of this kind.

A hierarchy of 2022 has other documents. Here are the signatures by which the core knows it. What is
in its documents is in `legacy.transformer`.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any

from shardwrite.codecs.documents import Document, attributes_of
from shardwrite.errors import SpecError

# ---- Attributes by which programs compute what stored values mean


_OF_VALUES = (
    *("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned"),
    *("units", "calendar", "flag_values", "flag_masks", "flag_meanings"),
)
"""Attributes by which programs compute what a stored value means."""

_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "scale_factor": (1,),
    "add_offset": (0,),
    "_Unsigned": ("false",),
    "calendar": ("standard", "gregorian"),
    "_FillValue": ("AAAAAAAA+H8=",),  # NaN, as xarray writes it
    "missing_value": ("NaN",),
}
"""Values of these attributes that say what programs assume without them."""


def changed_meaning(kept: Mapping[str, object], own: Mapping[str, object]) -> str | None:
    """Name of an attribute by which equal values mean different things; None if there is none."""
    for key in _OF_VALUES:
        pair = [attributes.get(key) for attributes in (kept, own)]
        first, second = (None if value in _NEUTRAL.get(key, ()) else value for value in pair)
        if first != second:
            return key
    return None


# ---- What tells that an array keeps a manifest; see `format.manifest`


LIST = "nonempty_chunks"
"""Name of the attribute with the keys."""

RUNS = "nonempty_chunks_runs"
"""Name of the attribute with the compact form."""


def check_manifest(given: Any) -> None:
    """Refuse a value of the keyword `manifest` that is not one."""
    if given is not None and not (isinstance(given, str) and given == LIST):
        raise SpecError(
            "no such manifest", field="manifest", value=given, remedy=f'give "{LIST}", or None'
        )


def has_manifest(document: Document) -> bool:
    """Whether an array keeps a manifest: its attribute is a list of texts."""
    keys: Any = attributes_of(document).get(LIST)
    return isinstance(keys, list) and {*map(type, keys)} <= {str}


def without_keys(document: Document) -> Document:
    """Document as it is planned: an array that keeps a manifest has an empty one.

    So plans, digests and comparisons do not depend on what the manifest lists.
    """
    if not has_manifest(document):
        return document
    rest = {name: value for name, value in attributes_of(document).items() if name != RUNS}
    return with_attributes(document, {**rest, LIST: []})


def emptied(text: str) -> str:
    """Text of a document as it is planned; see `without_keys`. It stays as it is otherwise."""
    if f'"{LIST}"' not in text:
        return text
    document: Document = json.loads(text)
    planned = without_keys(document)
    return text if planned == document else json.dumps(planned, indent=2)


def with_attributes(document: Document, attributes: Document) -> Document:
    """Document with other attributes."""
    return {**document, "attributes": attributes}


# ---- Signatures of a hierarchy of 2022


DATA, META = "data/root", "meta/root"
"""Beginnings of the keys of the objects, and of the documents, of all nodes of a hierarchy."""

FORMAT = "transformer-2022"
"""Name of the format among the keywords."""

CORE = "https://purl.org/zarr/spec/protocol/core/3.0"


def is_hierarchy(document: Any) -> bool:
    """Whether the parsed ``zarr.json`` of a store is that of a hierarchy of 2022."""
    version = document.get("zarr_format") if isinstance(document, dict) else None
    return isinstance(version, str) and version.startswith(CORE.partition("protocol")[0])


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


# ---- Documents


DOCUMENT = "zarr.json"
"""Key of a node's document, below the path of the node."""

DOCUMENTS_OF_V2 = (".zarray", ".zgroup")
"""Keys of the documents of Zarr v2, which is read and never written."""

ATTRIBUTES_OF_V2 = ".zattrs"
"""Key of the document of Zarr v2 that holds the attributes of a node."""

CONSOLIDATED_OF_V2 = ".zmetadata"
"""Key of the document of Zarr v2 that lists the documents of all nodes below a group."""

DOCUMENTS = (DOCUMENT, *DOCUMENTS_OF_V2, ATTRIBUTES_OF_V2, CONSOLIDATED_OF_V2)
"""Keys of all documents, of which none is the name of a node."""


_MAY_CHANGE = ("shape", "attributes", "dimension_names")


def kind_of_document(document: Any) -> str:
    """Kind of the node that a parsed document describes.

    - Returns: ``"torn"`` if the document describes no node of Zarr v3.
    """
    if not isinstance(document, dict) or document.get("zarr_format") != 3:
        return "torn"
    node = document.get("node_type")
    return node if node in ("array", "group") else "torn"


def shape_in(document: Any) -> list[int] | None:
    """Shape in the parsed document of an array; None if there is no valid one."""
    shape = document.get("shape") if isinstance(document, dict) else None
    is_valid = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
    return shape if is_valid else None


def layout_in(document: Any) -> Document:
    """Fields of the document of an array on which the meaning of its objects depends."""
    fields = document if isinstance(document, dict) else {}
    return {name: value for name, value in fields.items() if name not in _MAY_CHANGE}


def with_shape(document: Document, shape: list[int]) -> Document:
    """Document of the same array with another shape."""
    return {**document, "shape": shape}


def group_document() -> Document:
    """Document of a new group."""
    return {"zarr_format": 3, "node_type": "group", "attributes": {}}


def is_consolidated(group: Document) -> bool:
    """Whether the document of a group lists the documents of the nodes below it."""
    consolidated = group.get("consolidated_metadata")
    if not consolidated:
        return False
    if not isinstance(consolidated, dict) or not isinstance(consolidated.get("metadata"), dict):
        raise ValueError("does not hold consolidated metadata")  # noqa: TRY004 (wrong in the file)
    return True


def add_member(
    group: Document,
    name: str,
    document: Document,
    read: Callable[[str], Any],
) -> None:
    """Enter the document of a node into the consolidated metadata of a group above it.

    Groups between the two that are not listed yet are entered as well. New names come where they
    belong if the list is sorted, and else at its end.
    """
    listed = group["consolidated_metadata"]["metadata"]
    before = list(listed)
    parts = name.split("/")
    for n in range(len(parts) - 1, 0, -1):
        parent = "/".join(parts[:n])
        if parent not in listed:
            listed[parent] = read(parent)
    listed[name] = document
    for order in (None, _as_zarr_sorts):  # as text, or as zarr-python sorts
        if before == sorted(before, key=order):
            group["consolidated_metadata"]["metadata"] = {
                name: listed[name] for name in sorted(listed, key=order)
            }
            return


def sorted_as_zarr(members: Mapping[str, Document]) -> Mapping[str, Document]:
    """Documents of nodes in the order in which zarr-python lists them."""
    return {name: members[name] for name in sorted(members, key=_as_zarr_sorts)}


def _as_zarr_sorts(name: str) -> tuple[int, str]:
    """Key by which zarr-python sorts consolidated metadata."""
    return name.count("/"), unicodedata.normalize("NFKC", name).casefold()


def remove_member(group: Document, name: str) -> bool:
    """Take a node, and all nodes inside it, out of the consolidated metadata of a group."""
    listed = group["consolidated_metadata"]["metadata"]
    removed = [member for member in listed if member == name or member.startswith(f"{name}/")]
    for member in removed:
        del listed[member]
    return bool(removed)


def consolidated(group: Document, members: Mapping[str, Document]) -> Document:
    """Document of a group that lists the documents of all nodes below it."""
    listed = {"kind": "inline", "must_understand": False, "metadata": dict(members)}
    return {**group, "consolidated_metadata": listed}

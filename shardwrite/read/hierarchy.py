"""Hierarchies of Zarr v2 and v3 as they are found: their groups, and their arrays."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

from shardwrite._dataclass import dataclass
from shardwrite.codecs.documents import Document
from shardwrite.errors import ShardwriteError, SpecError
from shardwrite.format.node import (
    ATTRIBUTES_OF_V2,
    CONSOLIDATED_OF_V2,
    DOCUMENT,
    DOCUMENTS_OF_V2,
    group_document,
    is_consolidated,
    kind_of_document,
)
from shardwrite.place.base import MARK_NAME, Place
from shardwrite.place.directory import Directory
from shardwrite.read.array import is_being_made
from shardwrite.read.stored_array import StoredArray, parsed_at, stored_at
from shardwrite.seams import all_of
from shardwrite.stores.directories import CONVERSION_SUFFIX, RUN_SUFFIX
from shardwrite.stores.looking import is_file, listed, mode_of, parse_document

_ARRAY_OF_V2, _GROUP_OF_V2 = DOCUMENTS_OF_V2
_CONSOLIDATED = "consolidated_metadata"
_MOST_NAMED = 5
_UNASKED = "not asked for"
_UNFINISHED = "the run that makes it has not ended"


@dataclass(frozen=True, slots=True)
class Group:
    """A group of a hierarchy."""

    name: str  # path in the hierarchy; empty for its root
    document: Document  # its Zarr v3 document, without consolidated metadata
    is_consolidated: bool  # whether it lists the documents of the nodes below it


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Nodes of a hierarchy, which may be a single array."""

    place: Place  # where it lies
    groups: tuple[Group, ...]  # its groups, each after the group above it
    arrays: tuple[tuple[str, StoredArray], ...]  # its arrays by their paths in it
    left_out: tuple[tuple[str, str], ...] = ()  # path of each node that is left out, and why
    # Paths of trees in it beside which there is the state of a conversion in place, or of one that
    # consumes the tree
    conversions: tuple[str, ...] = ()

    @property
    def is_array(self) -> bool:
        """Whether it is a single array, and no group."""
        return [name for name, _ in self.arrays] == [""]

    @property
    def documents(self) -> dict[str, Document]:
        """Zarr v3 document of each node by its path, groups first."""
        arrays = {name: source.array.metadata.document for name, source in self.arrays}
        return {group.name: group.document for group in self.groups} | arrays

    def at(self, name: str) -> Place:
        """Place of a node."""
        return self.place.member(name) if name else self.place


def open_hierarchy(place: Place, is_wanted: Callable[[str], bool]) -> Hierarchy:
    """Open an array, or a group with all that it holds.

    - `is_wanted`: function that says of the path of an array whether it is wanted. Others are not
      opened.
    """
    groups: list[Group] = []
    arrays: list[tuple[str, StoredArray]] = []
    left_out, conversions = list(place.store.left_out()), []
    for name, kind in _nodes(place):
        node = place.member(name) if name else place
        if kind == "group":
            groups.append(group_at(node, name))
        elif kind == "link":
            left_out.append((name, "a symbolic link"))
        elif kind == "conversion":
            conversions.append(name)
        elif kind == "unfinished":
            left_out.append((name, _UNFINISHED))
        elif not name or is_wanted(name):
            arrays.append((name, _opened(node, name)))
        else:
            left_out.append((name, _UNASKED))
    if not groups and not arrays:
        if is_being_made(place):
            stored_at(place)  # raises, and tells of the run
        raise _nothing_at(place)
    if not arrays:
        is_asked = any(why == _UNASKED for _, why in left_out)
        others = "".join(f"; {name!r} is left out ({why})" for name, why in left_out[:3])
        raise SpecError(
            "holds no array that is asked for" if is_asked else f"a group without arrays{others}",
            field="src",
            value=place.label,
            remedy="give other patterns to include and exclude"
            if is_asked
            else "give the path of an array, or of a group with arrays",
        )
    return Hierarchy(place, tuple(groups), tuple(arrays), tuple(left_out), tuple(conversions))


def _nothing_at(place: Place) -> SpecError:
    if place.hierarchy:
        names = sorted(islice(place.arrays_in_hierarchy(), _MOST_NAMED))
        remedy = (
            "give the path of one array in it (its name after :: in a ZIP file, or at a URL): "
            + ", ".join(names)
        )
        return SpecError(
            f"no array of this name is in the {place.hierarchy}",
            field="src",
            value=place.label,
            remedy=remedy if names else "give the path of a hierarchy with arrays",
        )
    for refuse in all_of("foreign"):  # by what a wing knows of the place
        refuse(place, "tree")
    root = place.store.local_root
    if root is None or stat.S_ISDIR(mode_of(root)):
        reason = "no Zarr array or group is there: there is no zarr.json, .zarray or .zgroup"
    else:
        reason = "there is no such directory"
    return SpecError(
        reason, field="src", value=place.label, remedy="give the path of an array or of a group"
    )


def _opened(node: Place, name: str) -> StoredArray:
    try:
        return stored_at(node)
    except ShardwriteError as error:
        if name:
            error.add_note(f"this is the array {name!r}; exclude={name!r} leaves it out")
        raise


def _kind_at(node: Place) -> str:
    """``"array"``, ``"group"``, or ``"nothing"`` where there is no document."""
    return _kind_by(node, node.read_if_there(DOCUMENT))


def _kind_by(node: Place, data: bytes | None) -> str:
    """The same, from the node's document of Zarr v3; None if it has none."""
    if data is not None:
        kind = kind_of_document(parse_document(data, f"{node.label}/{DOCUMENT}"))
        if kind == "torn":
            raise SpecError(
                "no document of a node",
                field="src",
                value=f"{node.label}/{DOCUMENT}",
                remedy="mend it, or remove it after a look",
            )
        return kind
    if node.has(_ARRAY_OF_V2):
        return "array"
    return "group" if node.has(_GROUP_OF_V2) else "nothing"


def _nodes(place: Place) -> Iterator[tuple[str, str]]:
    """Path and kind of each node, each after the group above it; nothing inside of arrays."""
    nodes = place.store.nodes()
    if nodes is not None:
        yield from nodes
        return
    root = place.store.local_root
    if root is None:
        yield from _nodes_in_store(place)
        return
    waiting = [""]
    while waiting:
        name = waiting.pop()
        kind = _kind_at(place.member(name) if name else place)
        if kind != "nothing":
            yield name, kind
        if kind == "array":
            continue
        below = []
        for path in listed(root / name):
            mode = mode_of(path, follow=False)
            inside = f"{name}/{path.name}" if name else path.name
            if stat.S_ISLNK(mode) and stat.S_ISDIR(mode_of(path)):
                yield inside, "link"
            elif stat.S_ISDIR(mode) and path.name.endswith(RUN_SUFFIX) and not _is_node(path):
                unfinished = inside.removesuffix(RUN_SUFFIX)
                if path.name.endswith(CONVERSION_SUFFIX):
                    yield inside.removesuffix(CONVERSION_SUFFIX), "conversion"
                elif path.name != RUN_SUFFIX and _is_unfinished(place.member(unfinished)):
                    yield unfinished, "unfinished"
            elif stat.S_ISDIR(mode):
                below.append(inside)
        waiting += reversed(below)
    for name in _begun(place):
        if _is_unfinished(place.member(name)):
            yield name, "unfinished"


def _begun(place: Place) -> list[str]:
    """Paths of arrays below whose runs keep their state beside the root of the hierarchy."""
    return sorted(place.begun_below()) if isinstance(place, Directory) else []


def _is_node(path: Path) -> bool:
    """Whether a directory that is named like one beside an array is a node itself."""
    return any(is_file(path / leaf) for leaf in (DOCUMENT, *DOCUMENTS_OF_V2))


def _is_unfinished(node: Place) -> bool:
    """Whether an unfinished run is making a node that readers do not see yet."""
    return _kind_at(node) == "nothing" and is_being_made(node)


def _nodes_in_store(place: Place) -> Iterator[tuple[str, str]]:
    """The same for a store that is no directory, which is listed once."""
    leaves = (DOCUMENT, *DOCUMENTS_OF_V2)
    root_kind: str | None = None
    if place.store.lists:
        keys: Iterable[str] = place.store.list_keys()
    else:
        root_kind, keys = _consolidated_keys(place)
    names = {key.rpartition("/")[0] for key in keys if key.rpartition("/")[2] in leaves}
    arrays: list[str] = []
    for name in sorted(names, key=lambda name: name.split("/") if name else []):
        if any(not array or name.startswith(f"{array}/") for array in arrays):
            continue
        kind = _kind_at(place.member(name)) if name else root_kind or _kind_at(place)
        if kind == "array":
            arrays.append(name)
        yield name, kind


def check_listed(place: Place, consolidated: bool | None, field: str) -> None:
    """Refuse to open a group that cannot be listed by anything but its consolidated metadata.

    - `consolidated`: whether its consolidated metadata may be read; None if they may.
    - `field`: name of the argument that names the group.
    """
    if consolidated is False:
        raise SpecError(
            "what lies on a web server cannot be listed without consolidated metadata",
            field="consolidated",
            value=consolidated,
            remedy="leave it out",
        )
    _consolidated_keys(place, field)


def _consolidated_keys(place: Place, field: str = "src") -> tuple[str, list[str]]:
    """Kind of an array or a group that cannot be listed, and the keys of its documents.

    - Raises SpecError for a group without consolidated metadata.
    """
    data = place.read_if_there(DOCUMENT)
    document = {} if data is None else parse_document(data, f"{place.label}/{DOCUMENT}")
    if is_consolidated(document):
        below = document[_CONSOLIDATED]["metadata"]
        return "group", [DOCUMENT, *(f"{name}/{DOCUMENT}" for name in below)]
    kind = _kind_by(place, data)
    if kind != "group":
        own = DOCUMENT if data is not None else _ARRAY_OF_V2
        return kind, [own] if kind == "array" else []
    listed_v2 = parsed_at(place, CONSOLIDATED_OF_V2) if data is None else None
    if not listed_v2:
        raise SpecError(
            "a group that cannot be listed, because a web server lists nothing, and that has no "
            "consolidated metadata",
            field=field,
            value=place.label,
            remedy="give the path of an array in it; or have whoever serves it make them, with "
            "zarr.consolidate_metadata",
        )
    return kind, list(listed_v2["metadata"])


def documents_below(place: Place) -> dict[str, Document]:
    """Zarr v3 documents of the nodes below a group, by their paths in it, as they stand there.

    Those of groups are without their consolidated metadata.
    """
    documents = {}
    for name, kind in _nodes(place):
        node = place.member(name) if name else place
        if not name or kind not in ("array", "group"):
            continue
        data = node.read_if_there(DOCUMENT)
        if data is not None:
            document = parse_document(data, f"{node.label}/{DOCUMENT}")
            is_group = kind == "group"
            documents[name] = _group(name, document).document if is_group else dict(document)
    return documents


def arrays_below(place: Place) -> list[str]:
    """Paths of the arrays below a group, and of those that a run makes which has not ended."""
    names = {
        name
        for name, kind in _nodes(place)
        if kind == "unfinished" or (name and kind == "array" and place.member(name).has(DOCUMENT))
    }
    if not isinstance(place, Directory) and place.store.lists:
        mark = f"/{MARK_NAME}"
        names |= {key.removesuffix(mark) for key in place.store.list_keys() if key.endswith(mark)}
    return sorted(names)


def _group(name: str, document: Document) -> Group:
    """The group that a document of Zarr v3 describes."""
    others = dict(document)
    is_consolidated = bool(others.pop(_CONSOLIDATED, None))
    return Group(name, others, is_consolidated)


def group_at(node: Place, name: str) -> Group:
    """The group at a place, as one of Zarr v3."""
    data = node.read_if_there(DOCUMENT)
    if data is not None:
        return _group(name, parse_document(data, f"{node.label}/{DOCUMENT}"))
    attributes = parsed_at(node, ATTRIBUTES_OF_V2) if node.has(ATTRIBUTES_OF_V2) else {}
    if not isinstance(attributes, dict):
        raise SpecError(
            "no object",
            field="attributes",
            value=f"{node.label}/{ATTRIBUTES_OF_V2}",
            remedy="mend it, or remove it after a look",
        )
    from shardwrite.read.source import plain_attributes  # for groups of Zarr v2

    plain = plain_attributes(attributes, node.label)
    document = {**group_document(), "attributes": plain}
    return Group(name, document, node.has(CONSOLIDATED_OF_V2))

"""Groups of a hierarchy that is converted: which nodes are wanted, and the new groups."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from shardwrite.codecs.documents import Document
from shardwrite.errors import SpecError
from shardwrite.format.manifest import has_manifest, rendered
from shardwrite.format.node import DOCUMENT, consolidated
from shardwrite.journal import alone_with, change_document
from shardwrite.place.base import Place
from shardwrite.place.target import document_of, resolve_place
from shardwrite.read.hierarchy import Group, Hierarchy
from shardwrite.runs.conversion import Converting
from shardwrite.stores import Capability, as_store_error, make_directories

_SCOPE = "conversion"
_LIST = "consolidated_metadata"


@dataclass(frozen=True, slots=True)
class Patterns:
    """Which arrays of a hierarchy are wanted, by their paths in it."""

    # Patterns such as ``"images/*"``. An array is wanted if it fits one of the first, or there are
    # none, and it fits none of the second. A pattern that fits a group fits all that it holds.
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    @classmethod
    def of(cls, include: Any, exclude: Any) -> Patterns:
        """Patterns from what a user gives: a text, or a sequence of texts."""
        return cls(_patterns(include, "include"), _patterns(exclude, "exclude"))

    def want(self, name: str) -> bool:
        """Whether an array is wanted."""
        return (not self.include or _fits(name, self.include)) and not _fits(name, self.exclude)

    def want_group(self, name: str, arrays: Sequence[str]) -> bool:
        """Whether a group is made: without patterns each, else those above arrays that are."""
        if not self.include and not self.exclude:
            return True
        return not name or any(array.startswith(f"{name}/") for array in arrays)


def _patterns(given: Any, field: str) -> tuple[str, ...]:
    several = [] if given is None else given
    is_one = isinstance(given, str) or not isinstance(several, Iterable)
    found = (given,) if is_one else tuple(several)
    if not all(isinstance(pattern, str) and pattern for pattern in found):
        raise SpecError(
            "not patterns", field=field, value=given, remedy='give for instance "images/*"'
        )
    return found


def _fits(name: str, patterns: Sequence[str]) -> bool:
    parts = name.split("/")
    above = ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]
    return any(fnmatchcase(path, pattern) for path in above for pattern in patterns)


def make_groups(
    tree: Hierarchy, wanted: Callable[[Group], bool], dst: Any, mode: str, durability: str | None
) -> None:
    """Make the groups of a hierarchy in another place, without consolidated metadata.

    Groups that are there with the same documents stay as they are.

    - `mode`: whether the document of a group may be replaced.
    """
    groups = [group for group in tree.groups if wanted(group)]
    places = [resolve_place(dst, group.name or None) for group in groups]
    for group, place in zip(groups, places, strict=True):
        kind = place.kind_for_group()
        if kind not in ("nothing", "group"):
            raise SpecError(
                "something that is no Zarr v3 group stands there",
                field="dst",
                value=place.label,
                remedy="give another place, or remove it yourself",
            )
        if kind == "group" and mode == "w-" and _plain(document_of(place)) != group.document:
            raise SpecError(
                "a group with other attributes stands there",
                field="dst",
                value=place.label,
                remedy='give another place, or mode="w" to replace its attributes',
            )
    for group, place in zip(groups, places, strict=True):
        if not place.has(DOCUMENT):
            put_document(place, rendered(group.document).encode(), durability)
            continue

        def with_attributes(there: Document, group: Group = group) -> Document:
            listed = {_LIST: there[_LIST]} if _LIST in there else {}
            return there if _plain(there) == group.document else {**group.document, **listed}

        change_document(place, with_attributes, _level(place, durability), _SCOPE)


def consolidate(
    tree: Hierarchy,
    wanted: Callable[[Group], bool],
    made: Sequence[tuple[str, Converting]],
    dst: Any,
    durability: str | None,
) -> None:
    """Write the consolidated metadata of each new group whose old group had such metadata.

    Other nodes that stand there stay listed. What a process that was killed has left of a group's
    document is removed.
    """
    groups = [group for group in tree.groups if wanted(group)]
    documents: dict[str, Document] = {group.name: group.document for group in groups}
    for name, planned in made:
        document = planned.metadata.document
        # What a manifest lists stands only in the document that was published.
        is_filled = has_manifest(document)
        documents[name] = document_of(resolve_place(dst, name or None)) if is_filled else document
    for group in groups:
        place = resolve_place(dst, group.name or None)
        place.store.discard_scope(DOCUMENT, _SCOPE)
        if not group.is_consolidated:
            continue
        above = f"{group.name}/" if group.name else ""
        members = {
            name.removeprefix(above): document
            for name, document in sorted(documents.items())
            if name and name != group.name and name.startswith(above)
        }

        def listing(
            there: Document,
            place: Place = place,
            group: Group = group,
            members: dict[str, Document] = members,
        ) -> Document:
            others = (there.get(_LIST) or {}).get("metadata", {})
            stay = {
                name: document
                for name, document in others.items()
                if name not in members and place.member(name).has(DOCUMENT)
            }
            return consolidated(group.document, dict(sorted({**stay, **members}.items())))

        change_document(place, listing, _level(place, durability), _SCOPE)


def _plain(document: Document) -> Document:
    """Document of a group without its consolidated metadata."""
    return {name: value for name, value in document.items() if name != _LIST}


def put_document(place: Place, data: bytes, durability: str | None, leaf: str = DOCUMENT) -> None:
    """Write the document of a group, and make its directory if it lies in one."""
    place.store.discard_scope(leaf, _SCOPE)  # of a call that was killed
    root = place.store.local_root
    level = _level(place, durability)
    if root is not None:
        with as_store_error(place.label, "cannot make"):
            make_directories(root, level)
    with alone_with(place) as check:
        attempt = f"{_SCOPE}.{uuid.uuid4().hex}"
        place.write(leaf, data, durability=level, attempt=attempt, guard=check)


def _level(place: Place, durability: str | None) -> str:
    """Durability level of the document of a group."""
    is_durable = Capability.DURABLE in place.store.capabilities
    return durability or ("full" if is_durable else "none")

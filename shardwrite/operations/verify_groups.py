"""Whether groups with consolidated metadata list the nodes below them as they are."""

from __future__ import annotations

import numpy as np

from shardwrite.codecs.documents import Document
from shardwrite.errors import SpecError, StoreError
from shardwrite.format.node import kind_of_document
from shardwrite.journal import has_consolidated
from shardwrite.operations.report import Problem, Report
from shardwrite.place.base import Place
from shardwrite.place.target import document_if_there, document_of
from shardwrite.read.hierarchy import documents_below

_REMEDY = (
    "make the call again that has written it, or consolidate the group anew with "
    "zarr.consolidate_metadata"
)
_LIST = "consolidated_metadata"


def is_group(place: Place) -> bool:
    """Whether a group of Zarr v3 stands at a place."""
    return not place.hierarchy and place.kind() == "group"


def verify_group(place: Place, **others: bool) -> Report:
    """Compare the consolidated metadata of a group, and of all groups below, with their nodes."""
    for field, is_wanted in others.items():
        if is_wanted:
            raise SpecError(
                "is for arrays, and a group stands there",
                field=field,
                value=place.label,
                remedy="leave it out, or give the path of an array",
            )
    lists = _lists(place)
    while True:
        documents = documents_below(place)
        problems = [
            problem
            for group, listed in lists.items()
            for problem in _differences(group, listed, documents)
        ]
        again = _lists(place) if problems else lists
        if again == lists:  # else another process has written an array meanwhile
            break
        lists = again
    nothing = np.zeros(0, dtype=np.int64)
    return Report(
        path=place.label,
        expected_by="consolidated metadata" if lists else "",
        n_shards=0,
        n_present=0,
        n_absent=0,
        n_missing=0,
        n_pending=0,
        n_inner_chunks=0,
        n_stored_chunks=0,
        raw_nbytes=0,
        stored_nbytes=0,
        used_nbytes=0,
        unused_nbytes=0,
        orders={},
        deep=False,
        against=False,
        problems=tuple(problems),
        n_nodes=len(documents),
        states=nothing.astype(np.uint8),
        stored=nothing,
    )


def _lists(place: Place) -> dict[str, dict[str, Document]]:
    """What the group, and each group below, lists, if it has consolidated metadata."""
    below = documents_below(place)
    names = ["", *(name for name in below if kind_of_document(below[name]) == "group")]
    found = {}
    for name in names:
        group = place.member(name) if name else place
        document = document_if_there(group)
        if document is not None and has_consolidated(document, group):
            found[name] = document[_LIST]["metadata"]
    return found


def _differences(
    group: str, listed: dict[str, Document], documents: dict[str, Document]
) -> list[Problem]:
    """Nodes that a group does not list as they are."""
    above = f"{group}/" if group else ""
    nodes = {name: documents[name] for name in documents if name.startswith(above)}
    inside = f" of {group}" if group else ""
    found = []
    for name in sorted({*nodes, *(f"{above}{name}" for name in listed)}):
        entry = listed.get(name.removeprefix(above))
        if name not in nodes:
            what = f"the consolidated metadata{inside} lists it, and no node stands there"
        elif entry is None:
            what = f"the consolidated metadata{inside} does not list it, so readers do not see it"
        elif _plain(entry) != _plain(nodes[name]):
            what = f"the consolidated metadata{inside} lists another document than stands there"
        else:
            continue
        found.append(Problem(name, (), what, _REMEDY))
    return found


def _plain(document: Document) -> Document:
    """Document of a node without the lists of groups, which each group has for itself."""
    return {name: value for name, value in document.items() if name != _LIST}


def unlisted_in(place: Place) -> tuple[str, ...]:
    """Warnings about the groups above that do not list an array as it is, or cannot be read."""
    found = []
    own = document_of(place)
    try:
        for group in place.groups_above():
            document = document_of(group)
            if kind_of_document(document) != "group" or not has_consolidated(document, group):
                continue
            if document[_LIST]["metadata"].get(place.name_in(group)) != own:
                found.append(
                    f"the consolidated metadata of {group.label} does not list the array as it is, "
                    f"so readers of the group do not see it so; {_REMEDY}"
                )
    except (SpecError, StoreError) as error:  # no fault of the array
        found.append(f"it is unknown whether groups above list the array: {error}")
    return tuple(found)

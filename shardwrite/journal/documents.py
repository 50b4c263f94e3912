"""Documents of nodes that a run changes while others may change them, too."""

from __future__ import annotations

import errno
import itertools
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import TypeAlias

from shardwrite.codecs.documents import Document
from shardwrite.errors import JournalError, SpecError, StoreError
from shardwrite.format.manifest import rendered
from shardwrite.format.node import (
    DOCUMENT,
    add_member,
    is_consolidated,
    kind_of_document,
    remove_member,
    with_shape,
)
from shardwrite.place.base import RECEIPT_NAME, REPORT_NAME, Place
from shardwrite.place.nodes import shape_of
from shardwrite.place.target import Target, document_of
from shardwrite.stores import Capability, parse_document

__all__ = [
    "DocumentChange",
    "consolidate",
    "discard_ends",
    "dump",
    "enlarged",
    "has_consolidated",
    "replace_document",
    "wait_for_others",
    "withdraw",
]

DocumentChange: TypeAlias = Callable[[Document], Document]
"""Function that makes a new document of the one that is there."""

Put: TypeAlias = Callable[[Place, bytes | None, Document], bool]
"""Function that writes the document of a group, unless it is not the given one any more."""

_MAX_TRIES = 100


def enlarged(to: Sequence[int], label: str, document: Document) -> Document:
    """Document of an array, whose shape is enlarged if it is smaller than another one.

    Parameters
    ----------
    to : sequence of int
        Shape that the array has at least.
    label : str
        Text that names the array in errors.
    document : dict
        Document of the array.

    Raises
    ------
    JournalError
        If the array has another number of axes.
    """
    before = shape_of(document, label)
    if len(before) != len(to):
        raise JournalError(f"{label} is not the array that this run was begun for", path=label)
    shape = [max(sizes) for sizes in zip(before, to, strict=True)]
    return document if shape == before else with_shape(document, shape)


def consolidate(place: Place, nodes: Callable[[], Mapping[str, Document]], put: Put) -> None:
    """Add the nodes of a tree to the consolidated metadata of each group above that has such.

    Parameters
    ----------
    place : Place
        Place of the tree, which may be an array.
    nodes : callable
        Returns the documents of the nodes by their paths in the tree. It is called if there is
        such a group.
    put : callable
        Writes the document of a group; False if it is not the given one any more.

    Raises
    ------
    SpecError
        If consolidated metadata are not valid.
    StoreError
        If the storage refuses.
    """
    known = cache(nodes)

    def enter(group: Place, metadata: Document) -> bool:
        listed = metadata["consolidated_metadata"]["metadata"]
        at = place.name_in(group)
        new = {f"{at}/{name}" if name else at: node for name, node in known().items()}
        if all(listed.get(name) == node for name, node in new.items()):
            return False
        for name, node in new.items():
            add_member(metadata, name, node, partial(_document_in, group))
        return True

    _change_above(place, enter, put)


def withdraw(place: Place, put: Put, is_due: Callable[[], bool] = lambda: True) -> None:
    """Take a node, and all nodes inside it, out of the consolidated metadata of all groups above.

    It comes before the data of the node are replaced or removed. Readers of a group then find no
    such node, and never read new data by an old document.

    Parameters
    ----------
    place : Place
        Place of the node.
    put : callable
        See `consolidate`.
    is_due : callable
        Returns whether the node must be taken out. It is called after the document of a group was
        read, and each time that another process has changed that document.

    Raises
    ------
    SpecError
        If consolidated metadata are not valid.
    StoreError
        If the storage refuses.
    """

    def leave(group: Place, metadata: Document) -> bool:
        return remove_member(metadata, place.name_in(group)) and is_due()

    _change_above(place, leave, put)


def _change_above(place: Place, change: Callable[[Place, Document], bool], put: Put) -> None:
    """Change the documents of all groups above that have consolidated metadata.

    `change` changes the document of a group, and says whether it is to be written.
    """
    for group in place.groups_above():
        for n_tries in itertools.count(1):
            data = group.read(DOCUMENT)
            metadata = {} if data is None else parse_document(data, f"{group.label}/{DOCUMENT}")
            if kind_of_document(metadata) != "group":
                return
            if not has_consolidated(metadata, group) or not change(group, metadata):
                break
            if put(group, data, metadata):
                break
            wait_for_others(group, n_tries)


def discard_ends(target: Target, drivers: Iterable[str]) -> None:
    """Remove the temporary files of drivers that died while they wrote documents."""
    for driver in drivers:
        place = target.place
        nodes = (place, *place.groups, *place.groups_above())
        for node in {node.label: node for node in nodes}.values():
            for leaf in (DOCUMENT, RECEIPT_NAME, REPORT_NAME):
                node.discard(leaf, f"{driver}.end")


def wait_for_others(place: Place, n_tries: int, leaf: str = DOCUMENT) -> None:
    """Wait before a document is changed again that another process has just changed.

    Parameters
    ----------
    place : Place
        Where the document lies.
    n_tries : int
        Number of times that it was tried.
    leaf : str
        Name of the document.

    Raises
    ------
    StoreError
        If it was tried too many times.
    """
    if n_tries == _MAX_TRIES:
        raise StoreError(
            f"{place.label}/{leaf} is written by others all the time; make the same call again",
            key=place.label,
            errno=errno.EBUSY,
        )
    # The pause is random so that one of several runs is alone.
    time.sleep(random.uniform(0.01, 0.1))  # noqa: S311


class _ChangedError(Exception):
    """Another process has changed a document since it was read."""


def replace_document(
    place: Place,
    old: bytes | None,
    new: Document,
    durability: str,
    attempt: str,
    check: Callable[[], None] = lambda: None,
) -> bool:
    """Write the document of a node, unless another process has changed it.

    Parameters
    ----------
    place : Place
        The node.
    old : bytes or None
        The document that the new one is made from; None if there was none.
    new : Document
        The new document.
    durability, attempt : str
        See :meth:`Place.write`.
    check : callable
        Raises if the document must not be written any more.

    Returns
    -------
    bool
        False if the document is not `old` any more; nothing is written then.
    """
    data = dump(new)

    def guard() -> None:
        check()
        if place.read(DOCUMENT) not in (old, data):  # a guard is also called after the write
            raise _ChangedError

    try:
        place.write(DOCUMENT, data, durability=durability, attempt=attempt, guard=guard)
    except _ChangedError:
        return False
    except StoreError as error:
        if error.errno != errno.ESTALE or Capability.CONDITIONAL not in place.store.capabilities:
            raise
        return False
    return True


def has_consolidated(metadata: Document, group: Place) -> bool:
    """Whether the document of a group has consolidated metadata.

    Raises
    ------
    SpecError
        If it has, and they are not valid.
    """
    try:
        return is_consolidated(metadata)
    except ValueError as error:
        raise SpecError(
            str(error),
            field="consolidated_metadata",
            value=f"{group.label}/{DOCUMENT}",
            remedy="consolidate the group again, or remove it",
        ) from None


def _document_in(group: Place, name: str = "") -> Document:
    """Document of a group, or of a node inside it."""
    node = group.member(name) if name else group
    found: Document = document_of(node)
    return found


def dump(document: Document) -> bytes:
    """Bytes of a JSON document of the run."""
    return rendered(document).encode()

"""Documents of nodes that a run changes while others may change them, too.

`replace_document` is the one function that replaces the document of a group. It compares what
stands there with what the new document was made from, and no other process of this package changes
the document in between. In a directory, it holds the claim ``zarr.json.shardwrite/claim`` of the
group meanwhile. In a bucket, the service replaces only the version that was compared. In other
stores, it holds a claim in the directory for run state, if there is one.

*The manifest.* Keys of chunks are added to it before a run commits, and removed when the run ends
or is given up. Each change is made under the lock of the array's document. So the list names all
chunks that hold data at any time, also after a crash, and exactly these when no run is open.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import random
import stat
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.documents import Document
from shardwrite.errors import JournalError, SpecError, StoreError
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.node import (
    DOCUMENT,
    add_member,
    has_manifest,
    is_consolidated,
    kind_of_document,
    remove_member,
    with_shape,
)
from shardwrite.grid import Box
from shardwrite.place.base import RECEIPT_NAME, REPORT_NAME, Over, Place, shape_of
from shardwrite.place.directory import Directory
from shardwrite.place.target import Target, by_groups, document_if_there, document_of
from shardwrite.stores.base import Capability, Store
from shardwrite.stores.directories import state_beside
from shardwrite.stores.looking import (
    as_store_error,
    check_readable,
    is_there,
    may,
    parse_document,
)

DocumentChange: TypeAlias = Callable[[Document], Document]
"""Function that makes a new document of the one that is there."""

Put: TypeAlias = Callable[[Place, bytes | None, Document], bool]
"""Function that writes the document of a group, unless it is not the given one any more."""

_MAX_TRIES = 100
_LISTING = "listing"  # begin of the names of temporaries
_CHANGE = "change"  # likewise, of documents that no run changes


def enlarged(to: Sequence[int], label: str, document: Document) -> Document:
    """Document of an array, whose shape is enlarged if it is smaller than another one.

    - `to`: shape that the array has at least.
    - Raises JournalError if the array has another number of axes.
    """
    before = shape_of(document, label)
    if len(before) != len(to):
        raise JournalError(f"{label} is not the array that this run was begun for", path=label)
    shape = [max(sizes) for sizes in zip(before, to, strict=True)]
    return document if shape == before else with_shape(document, shape)


def consolidate(
    place: Place,
    nodes: Callable[[], Mapping[str, Document]],
    put: Put,
    others: Sequence[tuple[Place, Document]] = (),
) -> None:
    """Add the nodes of a tree to the consolidated metadata of each group above that has such.

    - `nodes`: returns the documents of the nodes by their paths in the tree. It is called if there
      is such a group.
    - `put`: writes the document of a group; False if it is not the given one any more.
    - `others`: more nodes in the same groups, with their documents.
    """
    known = cache(nodes)

    def enter(group: Place, metadata: Document) -> bool:
        listed = metadata["consolidated_metadata"]["metadata"]
        at = place.name_in(group)
        new = {f"{at}/{name}" if name else at: node for name, node in known().items()}
        new |= {other.name_in(group): node for other, node in others}
        if all(listed.get(name) == node for name, node in new.items()):
            return False
        for name, node in new.items():
            add_member(metadata, name, node, partial(_document_in, group))
        return True

    _change_above(place, enter, put)


def enter_above(
    place: Place,
    nodes: Callable[[], Mapping[str, Document]],
    durability: str = "full",
    run_dir: Path | None = None,
) -> None:
    """Enter the nodes of a tree into the consolidated metadata of all groups above it."""
    consolidate(place, nodes, _putting(durability, run_dir))


def _putting(durability: str, run_dir: Path | None) -> Put:
    """A function that writes documents of groups, in the name of no run."""

    def put(group: Place, old: bytes | None, new: Document) -> bool:
        attempt = f"{_LISTING}.{uuid.uuid4().hex}"
        with contextlib.nullcontext() if run_dir is None else alone_in_store(group, run_dir):
            return replace_document(group, old, new, durability, attempt)

    return put


def list_again(targets: Sequence[Target], put: Put) -> None:
    """Have all groups above some arrays list these as they are now, in one change of each group.

    The innermost groups come first. Documents of arrays are read after that of a group. So if
    another process enters a newer one meanwhile, that is not replaced by an older one.
    """
    inside: dict[str, tuple[Place, list[Place]]] = {}
    for beside in by_groups(targets):
        places = [target.place for target in beside]
        for group in places[0].groups_above():
            inside.setdefault(group.label, (group, []))[1].extend(places)

    def enter(group: Place, metadata: Document) -> bool:
        listed = metadata["consolidated_metadata"]["metadata"]
        there = {place.name_in(group): document_if_there(place) for place in inside[group.label][1]}
        new = {name: node for name, node in there.items() if node and listed.get(name) != node}
        for name, node in new.items():
            add_member(metadata, name, node, partial(_document_in, group))
        return bool(new)

    for group, _ in sorted(inside.values(), key=lambda pair: len(pair[0].label), reverse=True):
        _change_group(group, enter, put)


def list_finished(targets: Sequence[Target], durability: str, run_dir: Path) -> None:
    """Have all groups above list some arrays that were finished before; see `list_again`.

    Another program, or an older version of this one, may have left them out.
    """
    list_again(targets, _putting(durability, run_dir))


def withdraw(
    place: Place,
    put: Put,
    is_due: Callable[[], bool] = lambda: True,
    others: Sequence[Place] = (),
) -> bool:
    """Take a node, and all nodes inside it, out of the consolidated metadata of all groups above.

    It comes before the data of the node are replaced or removed. Readers of a group then find no
    such node, and never read new data by an old document.

    - `is_due`: returns whether the node must be taken out. It is called after the document of a
      group was read, and each time that another process has changed that document.
    - `others`: more nodes in the same groups, which go with it if it is listed.
    - Returns: whether there is a group with consolidated metadata above.
    """

    def leave(group: Place, metadata: Document) -> bool:
        if not (remove_member(metadata, place.name_in(group)) and is_due()):
            return False
        for other in others:
            remove_member(metadata, other.name_in(group))
        return True

    return _change_above(place, leave, put)


def _change_above(place: Place, change: Callable[[Place, Document], bool], put: Put) -> bool:
    """Change the documents of all groups above that have consolidated metadata, if there are any.

    `change` changes the document of a group, and says whether it is to be written.
    """
    is_listed = False
    for group in place.groups_above():
        has_list = _change_group(group, change, put)
        if has_list is None:
            break
        is_listed |= has_list
    return is_listed


def _change_group(group: Place, change: Callable[[Place, Document], bool], put: Put) -> bool | None:
    """Change the document of a group, and say whether it has consolidated metadata.

    Nothing is done, and None returned, if no group stands there.
    """
    for n_tries in itertools.count(1):
        data = group.read(DOCUMENT)
        metadata = {} if data is None else parse_document(data, f"{group.label}/{DOCUMENT}")
        if kind_of_document(metadata) != "group":
            return None
        has_list = has_consolidated(metadata, group)
        if not has_list or not change(group, metadata):
            _discard_claim(group)
            return has_list
        if put(group, data, metadata):
            return True
        wait_for_others(group, n_tries)
    raise AssertionError("unreachable")


def check_groups_above(place: Place) -> None:
    """Check that the groups above can be changed that list what is written at a place."""
    if not isinstance(place, Directory):
        return  # only a request to put it can tell what this user may do in a bucket
    for group in place.groups_above():
        metadata = document_of(group)
        if kind_of_document(metadata) != "group":
            return
        if not has_consolidated(metadata, group):
            continue
        path, me = group.path, os.geteuid()
        with as_store_error(str(path), "cannot look at"):
            about, owner = os.stat(path), os.stat(path / DOCUMENT).st_uid
        is_foreign = about.st_mode & stat.S_ISVTX and me not in (0, owner, about.st_uid)
        if is_foreign or not may(path, os.W_OK | os.X_OK):
            raise SpecError(
                "the group lists its arrays in consolidated metadata, and you may not change it",
                field="store",
                value=str(path),
                remedy="ask its owner for the right to write there, give a path outside of it, or "
                "have the owner remove the consolidated metadata",
            )


def check_lists(arrays: Mapping[Target, ArrayMetadata]) -> None:
    """Refuse arrays whose documents would make a list of a group above too large to be read again.

    Like `check_groups_above`, this looks at directories only. There, it is known before the run.

    - `arrays`: what groups above list when the run ends, with their metadata then.
    """
    inside: dict[str, tuple[Place, dict[Place, ArrayMetadata]]] = {}
    for beside in by_groups(arrays):
        first = beside[0].place
        if not isinstance(first, Directory):
            continue
        own = first.groups
        outermost = own[0] if own else first
        groups: list[Place] = [*reversed(own), *outermost.groups_above()]
        for group in groups:
            _, members = inside.setdefault(group.label, (group, {}))
            members.update({target.place: arrays[target] for target in beside})
    for group, members in inside.values():
        data = group.read_if_there(DOCUMENT)
        if data is None or b"consolidated_metadata" not in data:
            continue
        documents = {place: made.document for place, made in members.items()}
        try:  # as if each of them came to what is there, indented
            _check_readable(data + 2 * b"".join(map(dump, documents.values())), group)
        except SpecError:
            metadata = parse_document(data, f"{group.label}/{DOCUMENT}")
            if kind_of_document(metadata) != "group" or not has_consolidated(metadata, group):
                continue
            listed = metadata["consolidated_metadata"]["metadata"]
            listed |= {place.name_in(group): document for place, document in documents.items()}
            _check_readable(dump(metadata), group)


def _check_readable(data: bytes, place: Place) -> None:
    """Refuse the document of a node that would be too large to be read again."""
    check_readable(
        data,
        "its document would have",
        field="store",
        value=place.label,
        remedy="make attributes and consolidated metadata shorter",
    )


def _claim_of(place: Place) -> Path | None:
    """Directory of the claim on the document of a group; None if it lies in no directory."""
    return state_beside(place.path / DOCUMENT) if isinstance(place, Directory) else None


def _discard_claim(group: Place) -> None:
    """Remove the claim that a process has left there which was killed."""
    beside = _claim_of(group)
    if beside is not None and is_there(beside):
        with alone_with(group):
            pass


def discard_claims(places: Iterable[Place]) -> None:
    """Remove the claims that killed processes have left on documents of nodes and groups above.

    Whoever changes the document of an array outside of a run has no claim. So what was to become
    that document is removed, too.
    """
    nodes: dict[str, Place] = {}
    for place in places:
        if isinstance(place, Directory):  # others have none
            nodes |= {node.label: node for node in (place, *place.groups_above())}
            place.store.discard_scope(DOCUMENT, _CHANGE)
    for node in nodes.values():
        _discard_claim(node)


def discard_ends(targets: Iterable[Target], drivers: Collection[str]) -> None:
    """Remove the temporary files of drivers that died while they wrote documents."""
    nodes: dict[str, Place] = {}
    for place in () if not drivers else (target.place for target in targets):
        above = place.groups_above() if isinstance(place, Directory) else ()  # others have none
        nodes |= {node.label: node for node in (place, *place.groups, *above)}
    for node, driver in itertools.product(nodes.values(), drivers):
        for leaf in (DOCUMENT, RECEIPT_NAME, REPORT_NAME):
            node.discard(leaf, f"{driver}.end")


def wait_for_others(place: Place, n_tries: int, leaf: str = DOCUMENT) -> None:
    """Wait before a document is changed again that another process has just changed."""
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

    The document of a group is changed by one process at a time.

    - `old`: the document that the new one is made from; None if there was none.
    - `check`: raises if the document must not be written any more.
    - Returns: False if the document is not `old` any more; nothing is written then.
    - Raises SpecError if the new document would be too large to be read again.
    """
    data = dump(new)
    _check_readable(data, place)
    is_group = kind_of_document(new) == "group"  # and an array is changed by one run at a time
    try:
        alone = alone_with(place) if is_group else contextlib.nullcontext(lambda: None)
        with alone as check_claim:

            def guard() -> None:
                check()
                try:
                    check_claim()
                except StoreError as error:
                    if error.errno == errno.ESTALE:
                        raise _ChangedError from error
                    raise
                if not place.compares:
                    _check_same(place, old, data)

            place.write(
                DOCUMENT,
                data,
                durability=durability,
                attempt=attempt,
                guard=guard,
                over=Over(old) if place.compares else None,
            )
    except _ChangedError:
        return False
    except StoreError as error:
        if error.errno != errno.ESTALE or Capability.CONDITIONAL not in place.store.capabilities:
            raise
        return False
    return True


def _check_same(place: Place, old: bytes | None, new: bytes) -> None:
    """Refuse to replace another document than the old one.

    A guard is also called after the write, when the new one stands there.
    """
    if place.read(DOCUMENT) not in (old, new):
        raise _ChangedError


@contextlib.contextmanager
def alone_with(group: Place) -> Iterator[Callable[[], None]]:
    """Keep other processes from changing the document of a group in a directory meanwhile.

    - Yields: raises if another process has taken over, because this one showed no sign of life.
    """
    from shardwrite.journal.lock import alone_beside  # not for a directory of one array

    beside = _claim_of(group)
    if beside is None:
        yield lambda: None
        return
    with alone_beside(beside) as claim:
        if claim.is_taken_over:  # a process that thaws later has nothing to put there
            group.store.discard_scope(DOCUMENT, "")
        yield claim.check


def alone_in_store(group: Place, run_dir: Path) -> AbstractContextManager[object]:
    """Keep other processes from changing the documents of groups in a store meanwhile.

    In a directory, and where the service of a bucket compares versions, there is nothing to do.
    """
    from shardwrite.journal.lock import alone_beside  # not for a directory of one array

    if _claim_of(group) is not None or Capability.CONDITIONAL in group.store.capabilities:
        return contextlib.nullcontext()
    return alone_beside(state_beside(run_dir / "groups"))


def change_document(
    place: Place, make: Callable[[Document], Document], durability: str, scope: str
) -> Document:
    """Change the document of a node, and return the new one; changes of others stay.

    - `make`: returns the new document, given the one that is there. It may be called more than
      once.
    """
    for n_tries in itertools.count(1):
        before = place.read(DOCUMENT)
        document = document_of(place) if before is None else parse_document(before, place.label)
        new = make(document)
        attempt = f"{scope}.{uuid.uuid4().hex}"
        if new == document or replace_document(place, before, new, durability, attempt):
            return new
        wait_for_others(place, n_tries)
    raise AssertionError("unreachable")


def change_group(place: Place, make: Callable[[Document], Document], durability: str) -> None:
    """Change the document of a group, and have all groups above list it; see `change_document`.

    What its own consolidated metadata list stays. It may be that of an array, too.
    """
    place.store.discard_scope(DOCUMENT, _CHANGE)  # of a call that was killed
    new = dict(change_document(place, make, durability, _CHANGE))
    new.pop("consolidated_metadata", None)
    enter_above(place, {"": new}.copy)  # a call that was killed may have left that out


def has_consolidated(metadata: Document, group: Place) -> bool:
    """Whether the document of a group has consolidated metadata."""
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
    if has_manifest(document) or "consolidated_metadata" in document:
        from shardwrite.format.manifest import rendered  # for long lists

        return rendered(document).encode()
    return json.dumps(document, indent=2).encode()


# ---- The manifest while runs change the array


def all_listed(part: ArrayMetadata, region: Box, document: Document) -> Document:
    """Document whose manifest also lists all chunks that a region touches inside the array."""
    from shardwrite.format.manifest import chunks_in, with_added  # for arrays with a manifest

    return with_added(document, chunks_in(region, document["shape"], part.grid.chunks))


class _HasStore(Protocol):
    """What has a store of objects."""

    @property
    def store(self) -> Store:
        """The store; to find out which it is may take looks."""


def present_listed(part: ArrayMetadata, objects: _HasStore) -> DocumentChange:
    """Look which chunks of a part of an array hold data, for its manifest.

    No other run may write the shards of the part until the document was changed.

    - Returns: makes a document whose manifest lists exactly these chunks of the part. It does
      nothing if the array keeps no manifest, and then no index is read.
    - Raises CorruptShardError if the index of a shard is not valid.
    """
    if not has_manifest(part.document):
        return _same
    from shardwrite.read.present import stored_coords_here  # for arrays with a manifest

    grid = part.grid
    per_shard = grid.chunks_per_shard
    start = tuple(a * n for a, n in zip(part.first_shard, per_shard, strict=True))
    stop = tuple(a + k * n for a, k, n in zip(start, grid.counts, per_shard, strict=True))
    coords = stored_coords_here(part, objects.store)
    return partial(_exact, part, Box(start, stop), coords + np.array(start, dtype=np.int64))


def _exact(
    part: ArrayMetadata, box: Box, coords: npt.NDArray[np.int64], document: Document
) -> Document:
    """Document whose manifest lists those chunks of a box that hold data inside the array."""
    from shardwrite.format.manifest import chunks_in, with_present  # for arrays with a manifest

    shape = document["shape"]
    whole = chunks_in(Box((0,) * len(shape), tuple(shape)), shape, part.grid.chunks)
    is_inside = (coords < np.array(whole.stop, dtype=np.int64)).all(axis=1)
    return with_present(document, box, coords[is_inside])


def _same(document: Document) -> Document:
    return document

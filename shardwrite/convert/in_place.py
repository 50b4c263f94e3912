"""Conversions in place: a new tree beside the old one, a comparison, and an exchange of names.

:mod:`shardwrite.convert.swap` lists the steps, and what a crash leaves after each.
"""

from __future__ import annotations

import errno
import re
import stat
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from shardwrite.codecs.documents import Document
from shardwrite.convert.arrays import (
    HAS_LAYOUT,
    ConversionCall,
    NamedConversion,
    TreeConversion,
    as_published,
    refuse_consumed,
    refuse_loss_of,
    refuse_runs,
)
from shardwrite.convert.plan import ConvertedArray
from shardwrite.convert.removal import give_back, states_of
from shardwrite.convert.swap import InPlace, find_in_place, tidy_ended
from shardwrite.engines.local import Engine
from shardwrite.errors import (
    CorruptShardError,
    ShardwriteError,
    SpecError,
    StoreError,
)
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.node import (
    ATTRIBUTES_OF_V2,
    CONSOLIDATED_OF_V2,
    DOCUMENT,
    DOCUMENTS_OF_V2,
)
from shardwrite.format.sharding import why_kept
from shardwrite.journal.documents import (
    Put,
    check_groups_above,
    consolidate,
    replace_document,
    withdraw,
)
from shardwrite.legacy.place import TransformerPlace
from shardwrite.operations.verify import open_begun, verify_opened
from shardwrite.place.base import RECEIPT_NAME, REPORT_NAME, Place
from shardwrite.place.directory import Directory
from shardwrite.place.target import Target
from shardwrite.read.hierarchy import Hierarchy, open_hierarchy
from shardwrite.read.source import by_inner_chunks
from shardwrite.sources.inside import InsideStore
from shardwrite.stores.directories import copy_rights
from shardwrite.stores.looking import (
    as_store_error,
    is_there,
    listed,
    mode_of,
    parse_document,
    read_file,
)

_DOCUMENTS = {DOCUMENT, *DOCUMENTS_OF_V2, ATTRIBUTES_OF_V2, CONSOLIDATED_OF_V2}
_FILES_OF_ARRAY = (*_DOCUMENTS, RECEIPT_NAME, REPORT_NAME)
_CHUNK = re.compile(r"(c|c?[./]?\d+)([./]\d+)*")  # a part of the key of a chunk
_HOW_TO_GO_ON = (
    "the conversion in place has begun: make the same call again to finish it, or give it up with "
    "abandon (shardwrite abandon)"
)
_GIVE_UP = "Give the conversion up with abandon (shardwrite abandon), and make the call again"
_FINISHED = "an interrupted conversion was finished"
_MAX_SHOWN = 3


def finish_in_place(place: Place) -> bool:
    """Finish a conversion in place of which only the rest is left: the removal of the old tree."""
    refuse_consumed(place)
    path = place.tree_path
    if path is None or not _is_begun(path):
        return False
    with InPlace.begun(path, None) as work:
        if work.is_new:
            _finish(work)
            return True
    return False


def abandon_in_place(place: Place) -> bool:
    """Give up a conversion in place that was interrupted; the old tree stays.

    After the exchange of names, the conversion is finished instead. A conversion that consumes the
    tree is given up if nothing of it was removed, and then the tree is whole.
    """
    path = place.tree_path
    if path is None or not _is_begun(path):
        return False
    with InPlace.begun(path, None) as work:
        if work.into:
            give_back(work, states_of(work))
        elif (work.is_complete or not is_there(path)) and work.is_new:
            _finish(work)
        else:  # also if another tree lies there now, which stays
            _give_up(work)
    return True


def _is_begun(path: Path) -> bool:
    """Whether a conversion in place has not ended; what one that has ended has left is removed."""
    tidy_ended(path)
    return find_in_place(path)


def _give_up(work: InPlace) -> None:
    """Give up a conversion; the groups above list the old tree again."""
    place = Directory(work.path)
    if work.is_complete and place.kind() in ("array", "group"):
        _enter(work)
    work.give_up()


def convert_in_place(
    planned: TreeConversion, engine: Engine, is_finished: bool
) -> tuple[ConvertedArray, ...]:
    """Convert a hierarchy in its place, unless all of its arrays have the layout already.

    - Raises CorruptShardError if the new tree is not what it should be. The old one stays.
    """
    tree, made, call = planned.tree, planned.made, planned.call
    path = _path_of(tree.place)
    if all(one.planned.is_there for one in made):
        abandon_in_place(tree.place)
        return _skipped(made, _FINISHED if is_finished else HAS_LAYOUT)
    path = _convertible_path(tree, call)
    refuse_loss_of(tree, call)
    level = Target(tree.place, path).durability(call.run.durability)
    if call.run.restart:
        abandon_in_place(tree.place)
    drops = call.wanted.drop_empty
    with InPlace.begun(path, {one.name: one.digest(drop_empty=drops) for one in made}) as work:
        if not work.is_fresh and work.is_new:
            _finish(work)
            return _skipped(made, _FINISHED)
        try:
            work.check_old()
            work.check_movable()
            refuse_runs(tree)
            _check_unchanged(tree, path, is_begun=False)
        except ShardwriteError:
            _give_up(work)
            raise
        work.make_new()
        run = replace(call.run, mode="w-", durability=level, restart=False)
        try:
            beside = replace(planned, call=replace(call, dst=work.new, run=run))
            arrays = beside.execute(engine)
            for one in made:
                _require_equal(one, work.new, call)
            _keep_rights(tree, path, work.new)
            _check_unchanged(tree, path, is_begun=True)
            _finish(work)
        except ShardwriteError as error:
            error.add_note(_HOW_TO_GO_ON)
            raise
    return tuple(_renamed(array, path) for array in arrays)


def _path_of(place: Place) -> Path | None:
    return place.path if isinstance(place, Directory) else None


def _skipped(made: Sequence[NamedConversion], why: str) -> tuple[ConvertedArray, ...]:
    """The results for arrays of which nothing is left to do."""
    return tuple(
        ConvertedArray(name=one.name, path=one.planned.source.label, how="skipped", why=(why,))
        for one in made
    )


def _renamed(array: ConvertedArray, path: Path) -> ConvertedArray:
    """The result for an array, with the path that the array has after the exchange."""
    now = str(path / array.name) if array.name else str(path)
    result = None if array.result is None else replace(array.result, path=now)
    return replace(array, path=now, result=result)


def _convertible_path(tree: Hierarchy, call: ConversionCall) -> Path:
    """Path of a hierarchy, unless it cannot be converted in its place."""

    def refused(why: str, remedy: str = "give another place for what is made of it") -> SpecError:
        return SpecError(
            f"{tree.place.label} cannot be converted in its place: {why}",
            field="dst",
            value=None,
            remedy=remedy,
        )

    path = _path_of(tree.place)
    if path is None:
        if isinstance(tree.place, TransformerPlace):
            raise refused("it lies in a hierarchy of 2022, which can hold no arrays of Zarr v3")
        is_file = isinstance(tree.place.store, InsideStore)
        raise refused(
            "it lies in a file, which is only read" if is_file else "it lies in no directory"
        )
    if call.run.durability == "none":
        raise refused(
            "the old data are removed, so the new data must be durable",
            'give durability="full" or "batch", or another place',
        )
    if call.run.mode != "w-" or call.run_dir is not None:
        raise refused(
            "mode and run_dir are for another place", "leave them out, or give another place"
        )
    if tree.place.is_link() or tree.place.is_mount_point():
        raise refused("it is a symbolic link or a mount point")
    check_groups_above(tree.place)
    for name, source in tree.arrays:
        if source.is_foreign:
            raise refused("it is a volume of Neuroglancer that another program wrote")
        why = why_kept(source.array.metadata.document)
        if why:
            raise refused(f"{name!r}: {why}" if name else why)
    group = _v2_group_that_lists(path)
    if group is not None:
        raise refused(
            f"{group} is a group of Zarr v2, whose consolidated metadata would go on to show the "
            "old array, and its chunks would be read as the fill value",
            "convert that group as a whole, or give another place for what is made of it",
        )
    if tree.left_out:
        name, why = tree.left_out[0]
        raise refused(f"{name!r} would be lost ({why})")
    refuse_runs(tree)  # else its state counts as a file that the user should move away
    others = _others(tree, path)
    if others:
        shown = ", ".join(str(other.relative_to(path)) for other in others[:_MAX_SHOWN])
        more = f" and {len(others) - _MAX_SHOWN:,} more" if len(others) > _MAX_SHOWN else ""
        raise refused(
            f"{shown}{more} would be lost, because it is no part of a Zarr array or group",
            "move it away, or give another place for what is made of it",
        )
    return path


def _v2_group_that_lists(path: Path) -> Path | None:
    """Group of Zarr v2 whose consolidated metadata list a node below it; None if there is none."""
    for group in path.parents:
        if is_there(group / DOCUMENTS_OF_V2[1]):
            data = read_file(group / CONSOLIDATED_OF_V2) or b"{}"
            found = parse_document(data, group / CONSOLIDATED_OF_V2)
            at = f"{path.relative_to(group).as_posix()}/"
            if any(key.startswith(at) for key in found.get("metadata", {})):
                return group
        elif not is_there(group / DOCUMENT):
            return None
    return None


def _others(tree: Hierarchy, path: Path) -> list[Path]:
    """Files in a hierarchy that are no part of it, so that a conversion would lose them."""
    arrays = dict(tree.arrays)
    found: list[Path] = []
    waiting = [""]
    while waiting:
        name = waiting.pop()
        if name in arrays:
            found += _others_in_array(path / name, arrays[name].array.metadata)
            continue
        for entry in listed(path / name):
            mode = mode_of(entry, follow=False)
            if stat.S_ISDIR(mode):
                waiting.append(f"{name}/{entry.name}" if name else entry.name)
            elif not stat.S_ISREG(mode) or entry.name not in _DOCUMENTS:
                found.append(entry)
    return found


def _others_in_array(path: Path, metadata: ArrayMetadata) -> Iterator[Path]:
    """Files that are neither chunks of an array nor its documents."""
    waiting = [""]
    while waiting:
        above = waiting.pop()
        for entry in listed(path / above):
            mode, key = mode_of(entry, follow=False), f"{above}{entry.name}"
            if stat.S_ISDIR(mode) and _CHUNK.fullmatch(entry.name):
                waiting.append(f"{key}/")
            elif not stat.S_ISREG(mode) or (
                key not in _FILES_OF_ARRAY and metadata.shard_index(key) is None
            ):
                yield entry


def _require_equal(one: NamedConversion, new: Path, call: ConversionCall) -> None:
    """Compare a new array with the old one; encoded chunks, or values if these were encoded."""
    source = one.planned.source
    against: Any = source.label
    if call.wanted.drop_empty:
        against = by_inner_chunks(source.array)
    report = verify_opened(open_begun(str(new), one.name or None), against=against)
    if not report.is_good:
        problem = report.problems[0] if report.problems else report.changed[0]
        if problem.errno is not None:
            raise StoreError(
                f"the new array cannot be compared with {source.label}, which stays as it is: "
                f"{problem.message}",
                key=problem.key,
                errno=problem.errno,
            )
        raise CorruptShardError(
            f"the new array differs from {source.label}, which stays as it is: {problem.message}; "
            "if another program has written to it meanwhile, give the conversion up with abandon "
            "(shardwrite abandon), and make the call again",
            key=problem.key,
        )


def _check_unchanged(tree: Hierarchy, path: Path, *, is_begun: bool) -> None:
    """Refuse a tree if it is another one than was opened, or another program has added to it.

    This looks at documents, and for files that would be lost. It does not compare values. With
    `is_begun`, something of the new tree may be there, and is to be removed.
    """
    now = open_hierarchy(tree.place, lambda _: True)
    before, after = tree.documents, now.documents
    names = {*before, *after}
    changed = sorted(name for name in names if before.get(name) != after.get(name))
    changed += sorted(str(other.relative_to(path)) for other in _others(now, path))
    if changed:
        shown = ", ".join(repr(name or "/") for name in changed[:_MAX_SHOWN])
        raise StoreError(
            f"another program has changed {shown} in {tree.place.label} meanwhile; that tree stays "
            f"as it is. {_GIVE_UP if is_begun else 'Make the call again'}",
            key=changed[0],
            errno=errno.EBUSY,
        )


def _keep_rights(tree: Hierarchy, old: Path, new: Path) -> None:
    """Give the directories of the new nodes the rights of the old ones."""
    for name in tree.documents:
        with as_store_error(str(new / name), "cannot set the rights of"):
            copy_rights(old / name, new / name)


def _finish(work: InPlace) -> None:
    """Let the new tree take the place of the old one, as far as that is left.

    Before, the groups above do not list the tree any more; afterwards, they list the new one.
    """
    place = Directory(work.path)

    def take_out() -> None:
        _discard_leftovers(work, place)
        withdraw(place, _writer(work))

    work.hand_over(take_out)
    _enter(work)
    work.finish()


def _published_in(place: Place) -> dict[str, Document]:
    """Documents of the nodes of a tree as they stand there, with what manifests list."""
    tree = open_hierarchy(place, lambda _: True)
    return as_published(tree.documents, tree.at)


def _enter(work: InPlace) -> None:
    """Enter the tree that stands there into the consolidated metadata of all groups above."""
    place = Directory(work.path)
    _discard_leftovers(work, place)
    consolidate(place, partial(_published_in, place), _writer(work))


def _discard_leftovers(work: InPlace, place: Place) -> None:
    """Remove what a dead process has left of documents of the groups above."""
    for group in place.groups_above():
        group.store.discard_scope(DOCUMENT, work.scope)


def _writer(work: InPlace) -> Put:
    """Function that writes the document of a group, as long as this process converts the tree."""

    def put(group: Place, old: bytes | None, new: Document) -> bool:
        attempt = f"{work.scope}.{uuid.uuid4().hex}"
        return replace_document(group, old, new, "full", attempt, work.check_current)

    return put

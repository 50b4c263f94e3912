"""Checks of a place: whether an array may go there, and what is in the way."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import replace
from pathlib import Path

from shardwrite.errors import SpecError
from shardwrite.format.node import DOCUMENT, DOCUMENTS_OF_V2
from shardwrite.place.nodes import kind_of
from shardwrite.place.target import RUN_SUFFIX, Target
from shardwrite.stores import TEMPORARY_SUFFIX, is_file, is_there, listed, mode_of, owner_of

__all__ = ["check_beside", "check_surroundings", "check_target"]

_SHARDS = re.compile(r"c|\d+")  # names of directories that hold shards

_REFUSALS = {
    "group": ("a group stands there", "give another name= inside it, or remove it yourself"),
    "v2": ("a Zarr v2 array or group stands there", "give another path, or remove it yourself"),
    "torn": ("half a zarr.json stands there", "remove it yourself, after a look"),
    "other": (
        "something that is no Zarr array stands there",
        "give another path, or remove it yourself",
    ),
    "link": ("a symbolic link stands there", "give the path that it points to"),
}


def check_target(target: Target, mode: str) -> None:
    """Check that nothing stands in an array's place that must not be overwritten.

    Parameters
    ----------
    target : Target
        The array.
    mode : {"w-", "w", "r+"}
        See :func:`shardwrite.to_sharded_zarr`.

    Raises
    ------
    SpecError
        If the place is refused. The error names what stands there, and the remedy.
    """
    kind = kind_of(target.path)
    if kind == "array" and mode == "w-":
        raise SpecError(
            "an array exists there",
            field="store",
            value=str(target.path),
            remedy='give mode="w" to replace it',
        )
    if kind in _REFUSALS:
        why, remedy = _REFUSALS[kind]
        raise SpecError(why, field="store", value=str(target.path), remedy=remedy)
    if mode != "r+":
        _check_nesting(target)


def _check_nesting(target: Target) -> None:
    """Refuse an array inside another array, and the replacement of an array that contains a node.

    Neither of two nested arrays could be removed or copied by itself.
    """
    above = {*target.path.parents, *Path(os.path.realpath(target.path)).parents}
    for directory in sorted(above):
        if _is_array(directory):
            remedy = "give a path outside of it, or a group for both"
            raise SpecError(
                f"lies inside the array {directory}",
                field="store",
                value=str(target.path),
                remedy=remedy,
            )
    inside = _node_inside(target.path) if mode_of(target.path) else None
    if inside is not None:
        remedy = "move that away, or give another path"
        raise SpecError(
            f"another array or group stands inside it, {inside}",
            field="store",
            value=str(target.path),
            remedy=remedy,
        )


def _is_array(path: Path) -> bool:
    """Whether a directory is an array, or a run is about to make it one."""
    if path.name and is_file(path.with_name(path.name + RUN_SUFFIX) / "plan.json"):
        return True
    return is_file(path / DOCUMENTS_OF_V2[0]) or (
        is_file(path / DOCUMENT) and kind_of(path) == "array"
    )


def _node_inside(path: Path) -> Path | None:
    """Find a node, or the run state of a node, inside an array's directory; None if there is none.

    Directories that hold shards are not searched.
    """
    for entry in listed(path):
        if not _SHARDS.fullmatch(entry.name) and stat.S_ISDIR(mode_of(entry, follow=False)):
            is_node = entry.name.endswith(RUN_SUFFIX) or any(
                is_there(entry / leaf) for leaf in (DOCUMENT, *DOCUMENTS_OF_V2)
            )
            found = entry if is_node else _node_inside(entry)
            if found is not None:
                return found
    return None


def check_surroundings(target: Target) -> None:
    """Check that a place can hold an array, whatever stands there now.

    Raises
    ------
    SpecError
        If it cannot. The error names what is in the way, and the remedy.
    """
    for group in target.groups:
        kind = kind_of(group)
        if kind not in ("nothing", "group") and not (kind == "other" and _only_ours(group)):
            why = (
                "an array stands" if kind == "array" else _REFUSALS[kind][0].removesuffix(" there")
            )
            remedy = _REFUSALS["link"][1] if kind == "link" else "give another name or store"
            message = f"{why} where its group should be, at {group}"
            raise SpecError(message, field="name", value=target.name, remedy=remedy)
    check_beside(target)
    if stat.S_ISLNK(mode_of(target.path, follow=False)):
        why, remedy = _REFUSALS["link"]
        raise SpecError(why, field="store", value=str(target.path), remedy=remedy)


def check_beside(target: Target) -> None:
    """Check that the directory of the run state exists or can be made beside the array.

    Raises
    ------
    SpecError
        If a file or a link is in the way. The error names its owner, and the remedy.
    """
    beside = replace(target, update="").run_path
    mode = mode_of(beside, follow=False)
    if stat.S_ISLNK(mode):
        raise SpecError(
            f"a symbolic link stands beside it, whose owner is {owner_of(beside)}",
            field="store",
            value=str(beside),
            remedy="remove the link",
        )
    if mode and not stat.S_ISDIR(mode):
        raise SpecError(
            f"a file stands beside it, whose owner is {owner_of(beside)}",
            field="store",
            value=str(beside),
            remedy="move the file away",
        )


def _only_ours(path: Path) -> bool:
    """Whether a directory without metadata was made by runs that write arrays inside it.

    Such a directory contains run state, or nothing except empty directories and directories of the
    same kind.
    """
    if not stat.S_ISDIR(mode_of(path, follow=False)):
        return False
    entries = listed(path)
    if any(entry.name.endswith(RUN_SUFFIX) for entry in entries):
        return True
    return all(
        kind_of(entry) == "nothing" or _only_ours(entry)
        for entry in entries
        # A temporary file belongs to a run that is just publishing the group.
        if not entry.name.endswith(TEMPORARY_SUFFIX)
    )

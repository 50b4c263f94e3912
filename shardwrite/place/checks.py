"""Checks of a place: whether an array may go there, and what is in the way."""

from __future__ import annotations

import stat
import warnings
from pathlib import Path
from typing import Any

from shardwrite.errors import JournalError, SpecError
from shardwrite.format.node import DOCUMENT
from shardwrite.format.sharding import why_kept
from shardwrite.place.base import MARK_NAME, Place
from shardwrite.place.target import Target
from shardwrite.seams import REMEDY, resolve
from shardwrite.stores.directories import CONVERSION_SUFFIX
from shardwrite.stores.looking import is_there, mode_of, owner_of, parse_json

_REFUSALS = {
    "group": ("a group stands there", "give another name= inside it, or remove it yourself"),
    "v2": ("a Zarr v2 array stands there", "give another path, or remove it yourself"),
    "v2 group": (
        "a Zarr v2 group stands there",
        "give another name= inside it, or remove it yourself",
    ),
    "torn": ("half a zarr.json stands there", "remove it yourself, after a look"),
    "other": (
        "something that is no Zarr array stands there",
        "give another path, or remove it yourself",
    ),
    "link": ("a symbolic link stands there", "give the path that it points to"),
}


REPLACE = 'give mode="w" to replace it'
"""Remedy where an array exists."""


def check_target(target: Target, mode: str, remedy_if_there: str = REPLACE) -> None:
    """Check that nothing stands in an array's place that must not be overwritten.

    - `mode`: see :func:`shardwrite.to_sharded_zarr`.
    - `remedy_if_there`: what can be done where an array exists. Not every operation can replace it.
    """
    kind = target.place.kind()
    if kind == "array" and mode == "w-":
        raise SpecError(
            "an array exists there",
            field="store",
            value=target.label,
            remedy=remedy_if_there,
        )
    unknown = target.place.unknown_run() if kind == "other" else ""
    if unknown:
        remedy = (
            "give the run_dir of that run, or another path. If its state is lost, remove "
            f"{MARK_NAME} and what that run has written"
        )
        raise SpecError(unknown, field="store", value=target.label, remedy=remedy)
    if kind in _REFUSALS:
        why, remedy = _REFUSALS[kind]
        raise SpecError(why, field="store", value=target.label, remedy=remedy)
    if mode != "r+":
        _check_nesting(target.place)


def refuse_kept(target: Target) -> None:
    """Refuse to replace an array by something else, if its format forbids it; see `why_kept`."""
    data = target.place.read(DOCUMENT)
    try:
        document = None if data is None else parse_json(data)
    except ValueError:  # no array
        return
    why = why_kept(document) if isinstance(document, dict) else ""
    if why:
        raise SpecError(
            f"what stands there cannot be replaced: {why}",
            field="store",
            value=target.label,
            remedy="give another path, or remove the scale and its entry in info yourself",
        )


def _check_nesting(place: Place) -> None:
    """Refuse an array inside another array, and the replacement of an array that contains a node.

    Neither of two nested arrays could be removed or copied by itself.
    """
    around = place.array_around()
    if around is not None:
        remedy = "give a path outside of it, or a group for both"
        raise SpecError(
            f"lies inside the array {around}", field="store", value=place.label, remedy=remedy
        )
    inside = place.node_inside()
    if inside is not None:
        remedy = "move that away, or give another path"
        raise SpecError(
            f"another array or group stands inside it, {inside}",
            field="store",
            value=place.label,
            remedy=remedy,
        )


def warn_of_v2(target: Target) -> None:
    """Warn that readers do not find a new array through a group of Zarr v2 above it."""
    for group in reversed(target.place.groups):
        kind = group.kind_for_group()
        if kind == "v2 group":
            warnings.warn(
                f"{group.label} is a group of Zarr v2, which lists no arrays of Zarr v3. Open the "
                f"new array by its path: {target.label}",
                stacklevel=2,
            )
        if kind != "nothing":
            return


def check_surroundings(target: Target) -> None:
    """Check that a place can hold an array, whatever stands there now."""
    place = target.place
    for group in place.nodes_above:
        kind = group.kind_for_group()
        if kind not in ("nothing", "group", "v2 group"):
            why = (
                "an array stands" if kind == "array" else _REFUSALS[kind][0].removesuffix(" there")
            )
            remedy = _REFUSALS["link"][1] if kind == "link" else "give another name or store"
            message = f"{why} where its group should be, at {group.label}"
            name = place.name_in(place.nodes_above[0])
            raise SpecError(message, field="name", value=name, remedy=remedy)
    check_beside(target)
    if target.place.is_mount_point():
        raise SpecError(
            "is a mount point, and shards are renamed from there into the directory beside it",
            field="store",
            value=target.label,
            remedy='give a path inside it, or a name, such as name="array"',
        )
    if target.place.is_link():
        why, remedy = _REFUSALS["link"]
        raise SpecError(why, field="store", value=target.label, remedy=remedy)


def check_beside(target: Target) -> None:
    """Check that the directory of the run state exists or can be made beside the array."""
    beside = target.beside
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


# ---- Unfinished work of wings beside an array, which the core knows by names of files alone
#
# <leaf>.conversion.shardwrite/record.json
#     The tree of that name is converted or consumed. Nothing else writes to it; see
#     `convert.swap`.
# consumes.json in the directory of a run
#     The shards of the run hold what was removed elsewhere. They are not taken away; see
#     `convert.removal`.


CONSUMES = "consumes.json"
RECORD = "record.json"


def conversion_beside(path: Path) -> Path:
    """Directory of a conversion of the tree at a path in its place."""
    return path.with_name(path.name + CONVERSION_SUFFIX)


def refuse_in_place(path: Path) -> None:
    """Refuse to write to an array that is being converted in its place, or lies in such a tree."""
    for tree in (path, *path.parents):
        if tree.name and is_there(conversion_beside(tree) / RECORD):
            raise JournalError(
                f"{tree} is being converted in its place, and nothing else may write to it. Make "
                "the same call again to finish that (shardwrite shard, unshard or reshard), "
                "or give it up with abandon (shardwrite abandon), which leaves the old data",
                path=str(conversion_beside(tree)),
            )


def abandon_in_place(target: Target) -> bool:
    """Give up work on the tree at a place, if there is any, by the wing that has begun it."""
    path = target.place.tree_path
    if path is None or not is_there(conversion_beside(path)):
        return False
    try:
        give_up: Any = resolve("abandon", "in place")
    except LookupError as error:
        raise JournalError(
            f"{path} is being converted in its place, and {error.args[0]}. Nothing is given up; "
            f"{REMEDY}, and make this call again",
            path=str(conversion_beside(path)),
        ) from error
    is_given_up: bool = give_up(target.place)
    return is_given_up

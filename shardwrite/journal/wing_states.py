"""Unfinished work of wings beside an array, which the core knows by names of files alone.

``<leaf>.conversion.shardwrite/record.json``
    The tree of that name is converted or consumed. Nothing else writes
    to it; see :mod:`shardwrite.convert.swap`.
``consumes.json`` in the directory of a run
    The shards of the run hold what was removed elsewhere. They are not taken away; see
    :mod:`shardwrite.convert.removal`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shardwrite.errors import JournalError
from shardwrite.place.target import Target
from shardwrite.seams import REMEDY, resolve
from shardwrite.stores.directories import CONVERSION_SUFFIX
from shardwrite.stores.looking import is_there

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

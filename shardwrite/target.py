"""The place of an array in the file system, and checks of what stands there already."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from shardwrite.errors import SpecError
from shardwrite.stores import (
    TEMPORARY_SUFFIX,
    as_store_error,
    is_file,
    is_there,
    listed,
    mode_of,
    owner_of,
    read_json,
)

__all__ = [
    "RECEIPT_NAME",
    "RUN_SUFFIX",
    "UPDATES",
    "Target",
    "check_beside",
    "check_surroundings",
    "check_target",
    "kind_of",
    "resolve_target",
    "shape_at",
    "shape_of",
]

RUN_SUFFIX = ".shardwrite"
UPDATES = "updates"
RECEIPT_NAME = "shardwrite-receipt.json"
# One slash is enough, since a path object makes one slash of two.
_SCHEME = re.compile(r"(file(?=:)|[A-Za-z][A-Za-z0-9+.-]+(?=:/)):", re.IGNORECASE)
_SHARDS = re.compile(r"c|\d+")  # names of directories that hold shards
_NO_BYTE = re.compile(r"%(?![0-9A-Fa-f]{2})")
# File systems allow 255 bytes, and the name of the run directory has the suffix in addition.
_MAX_NAME_NBYTES = 255 - len(RUN_SUFFIX)


@dataclass(frozen=True, slots=True)
class Target:
    """Place of an array, or of one update of it.

    Attributes
    ----------
    root : pathlib.Path
        Directory of the store.
    name : str
        Path of the array inside the store; empty if the store itself is the array.
    update : str
        Name of the update's directory; empty if the array is written as a whole.
    """

    root: Path
    name: str = ""
    update: str = ""

    @property
    def path(self) -> Path:
        """Directory of the array."""
        return self.root / self.name if self.name else self.root

    @property
    def run_path(self) -> Path:
        """Directory of the run state: beside the array, or for an update a directory in there."""
        beside = self.path.with_name(self.path.name + RUN_SUFFIX)
        return beside / UPDATES / self.update if self.update else beside

    @property
    def others(self) -> list[Target]:
        """The array as a whole and all updates of it that were begun, without this target."""
        whole = replace(self, update="")
        updates = [replace(self, update=path.name) for path in listed(whole.run_path / UPDATES)]
        return [target for target in (whole, *updates) if target != self]

    @property
    def groups(self) -> list[Path]:
        """Directories of the groups above the array inside the store, outermost first."""
        parts = self.name.split("/")[:-1] if self.name else []
        return [self.root.joinpath(*parts[:n]) for n in range(len(parts) + 1)] if self.name else []


def resolve_target(store: Any, name: str | None) -> Target:
    """Find the place of an array from a user's `store` and `name`.

    Parameters
    ----------
    store : str or path
        Path or ``file:`` URL of the store's directory.
    name : str or None
        Path of the array inside the store; empty or None if the store itself is the array.

    Raises
    ------
    SpecError
        If `store` is not a local path that an array can have, or `name` is not a relative path of
        valid node names.
    """
    root = _root_of(store)
    if root is None or (not name and root.name in ("", "..")):
        raise SpecError(
            "not the path of a directory that can be made",
            field="store",
            value=str(store),
            remedy="give one with a name",
        )
    if root.name.endswith(RUN_SUFFIX):
        remedy = f"give a path that does not end in {RUN_SUFFIX}, and rename what stands there"
        raise SpecError(
            "such names are for what lies beside an array",
            field="store",
            value=str(store),
            remedy=remedy,
        )
    if name is None or name == "":
        return Target(root)
    if (
        not isinstance(name, str)
        or _SCHEME.match(name)
        or not all(_is_plain(part) for part in name.split("/"))
    ):
        raise SpecError(
            "not a relative path of plain names",
            field="name",
            value=name,
            remedy='give for instance "images/raw"',
        )
    return Target(root, name)


def _root_of(store: Any) -> Path | None:
    """Directory of a path or ``file:`` URL; None if no directory can have that name.

    Raises
    ------
    SpecError
        If `store` is not a path, or is a URL that is not of a local directory.
    """
    text = os.fspath(store) if isinstance(store, str | os.PathLike) else None
    if not isinstance(text, str):
        # Only the type of other objects is shown, since their text may contain credentials.
        given = store if isinstance(store, int | float | None) else type(store).__name__
        raise SpecError(
            "not a path",
            field="store",
            value=given,
            remedy="give a directory's path or a file:// URL",
        )
    scheme = _SCHEME.match(text)
    if scheme is not None:
        if scheme[1].lower() != "file":
            remedy = "give a directory's path or a file:// URL"
            raise SpecError(
                "only local files can be written yet", field="store", value=text, remedy=remedy
            )
        text = _path_of_url(text)
    return Path(text).absolute() if text and _can_be_a_path(text) else None


def _path_of_url(url: str) -> str:
    """Absolute path in a ``file:`` URL, with percent-encoding decoded.

    Raises
    ------
    SpecError
        If the URL is not of a local directory, or its percent-encoding is not valid.
    """
    rest = url.partition(":")[2]
    host, slash, path = (
        rest.removeprefix("//").partition("/")
        if rest.startswith("//")
        else ("", rest[:1], rest[1:])
    )
    if host.lower() not in ("", "localhost") or slash != "/" or "?" in path or "#" in path:
        remedy = "give file:///an/absolute/path, where %3F and %23 stand for ? and #, or a path"
        raise SpecError("no URL of a local directory", field="store", value=url, remedy=remedy)
    if _NO_BYTE.search(path):
        raise SpecError(
            "a percent sign without two digits after it",
            field="store",
            value=url,
            remedy="write %25 for %, or give a path",
        )
    return "/" + os.fsdecode(unquote_to_bytes(path))


def _can_be_a_path(text: str) -> bool:
    try:
        encoded = os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return b"\0" not in encoded and all(
        len(part) <= _MAX_NAME_NBYTES for part in encoded.split(b"/")
    )


def _is_plain(part: str) -> bool:
    """Whether the Zarr specification allows a node name, and shardwrite does not reserve it."""
    is_taken = part == "zarr.json" or part.startswith("__") or part.endswith(RUN_SUFFIX)
    return bool(part.strip(".")) and not is_taken and _can_be_a_path(part)


def kind_of(path: Path) -> str:
    """Kind of what stands at a path.

    Returns
    -------
    {"nothing", "array", "group", "v2", "torn", "other", "link"}
        ``"array"`` and ``"group"`` are Zarr v3 nodes, and ``"v2"`` is a node of Zarr v2. ``"torn"``
        is a directory whose ``zarr.json`` is not valid. ``"link"`` is a symbolic link, wherever it
        points. ``"nothing"`` can also be a directory that holds only empty directories.

    Raises
    ------
    StoreError
        If something cannot be read.
    """
    mode = mode_of(path, follow=False)
    if not mode:
        return "nothing"
    if not stat.S_ISDIR(mode):
        return "link" if stat.S_ISLNK(mode) else "other"
    if any(is_there(path / leaf) for leaf in (".zarray", ".zgroup")):
        return "v2"
    document = path / "zarr.json"
    mode = mode_of(document)
    if not stat.S_ISREG(mode):
        return "other" if mode or _has_entries(path) else "nothing"
    try:
        found = read_json(document)
        node, version = found["node_type"], found["zarr_format"]
    except (ValueError, KeyError, TypeError):
        return "torn"
    return node if node in ("array", "group") and version == 3 else "torn"


def shape_at(path: Path) -> list[int]:
    """Shape of the array at a path.

    Raises
    ------
    SpecError
        If its ``zarr.json`` has no valid shape.
    """
    return shape_of(read_json(path / "zarr.json"), path)


def shape_of(document: Any, path: Path) -> list[int]:
    """Shape of the array in a metadata document.

    Parameters
    ----------
    document : object
        The parsed document.
    path : pathlib.Path
        Path to name in an error.

    Raises
    ------
    SpecError
        If the document has no valid shape.
    """
    shape = document.get("shape") if isinstance(document, dict) else None
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise SpecError(
            "not an array's",
            field="zarr.json",
            value=str(path),
            remedy="write the array again, or remove the document",
        )
    return shape


def _has_entries(path: Path) -> bool:
    """Whether a directory holds anything but empty directories, which a killed run may leave."""
    with as_store_error(str(path), "cannot list"), os.scandir(path) as entries:
        return any(
            not stat.S_ISDIR(mode_of(entry.path, follow=False)) or _has_entries(Path(entry.path))
            for entry in entries
        )


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
    return is_file(path / ".zarray") or (is_file(path / "zarr.json") and kind_of(path) == "array")


def _node_inside(path: Path) -> Path | None:
    """Find a node, or the run state of a node, inside an array's directory; None if there is none.

    Directories that hold shards are not searched.
    """
    for entry in listed(path):
        if not _SHARDS.fullmatch(entry.name) and stat.S_ISDIR(mode_of(entry, follow=False)):
            is_node = entry.name.endswith(RUN_SUFFIX) or any(
                is_there(entry / leaf) for leaf in ("zarr.json", ".zarray", ".zgroup")
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

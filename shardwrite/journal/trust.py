"""Whether what lies beside an array may be believed: it decides what is removed, and what is written over.

In a directory where everybody may write, anybody can put ``<array>.shardwrite/`` beside an array. Run
state is therefore trusted only if its owner could replace the array anyway:

- this user, and root;
- the owner of the directory that holds the array and its run state;
- where that directory is not sticky: whoever its group permissions, or its access control list, let
  write there. A member of such a group is known by the system's list of groups. A file of that group
  counts, too, if others may not write where it lies, since only a member can have made it.

All of it must be plain directories and plain files. What is not trusted is never followed and never
ignored: to ignore it would start a second writer beside a live run. So writers refuse, naming the owner,
and commands that read report it.

Data that a run has set aside in its own directory may belong to whoever wrote it; that is not judged.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import stat
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardwrite.errors import UntrustedStateError
from shardwrite.stores import SET_ASIDE, as_store_error, owner_of
from shardwrite.target import Target

__all__ = ["check_name", "require_trusted"]

_ACL = "system.posix_acl_access"
_ACL_USER, _ACL_GROUP_OBJ, _ACL_GROUP, _ACL_MASK = 0x02, 0x04, 0x08, 0x10
_WRITE = 2
_NO_ACL = {errno.ENODATA, errno.EOPNOTSUPP, errno.EACCES, errno.EPERM, errno.ENOSYS}
_GONE = (FileNotFoundError, NotADirectoryError)


@dataclass(frozen=True, slots=True)
class _Circle:
    """Those who could replace what lies in a directory."""

    users: frozenset[int]
    groups: frozenset[int]

    def holds(self, found: os.stat_result, around: os.stat_result) -> bool:
        """Whether the owner of something is one of them.

        Parameters
        ----------
        found : os.stat_result
            Of the thing.
        around : os.stat_result
            Of the directory that it lies in.
        """
        if found.st_uid in self.users:
            return True
        is_proof = found.st_gid in self.groups and not around.st_mode & stat.S_IWOTH
        return is_proof or not self.groups.isdisjoint(_groups_of(found.st_uid))


def require_trusted(target: Target) -> frozenset[Path]:
    """Refuse run state beside an array that is not trusted.

    Returns
    -------
    frozenset of pathlib.Path
        All that was looked at. A caller that follows nothing else need not look again.

    Raises
    ------
    UntrustedStateError
        Naming what it is, whose, and the remedy.
    StoreError
        If storage cannot tell.
    """
    beside = replace(target, update="").run_path
    seen: set[Path] = set()
    with as_store_error(str(beside), "cannot look at"), contextlib.suppress(*_GONE):
        above = os.stat(beside.parent)
        circle = _circle(beside.parent, above)
        found = os.lstat(beside)
        why = _why_not(found, above, circle)
        if why:
            raise _error(target, beside, why)
        for path, reason, cause in _doubts(beside, found, circle, seen):
            raise _error(target, path, reason) from cause
    return frozenset(seen)


def check_name(target: Target, plan: Mapping[str, Any]) -> None:
    """Refuse a plan that names another array than the one that it lies beside.

    Plans of versions that wrote no name are accepted.

    Raises
    ------
    UntrustedStateError
        Naming the array that it was begun for.
    """
    name = plan.get("array")
    if name not in (None, target.path.name):
        path = target.run_path / "plan.json"
        why = f"was begun for another array, {str(name)!r}: it was moved, or put there"
        raise _error(target, path, why)


def _doubts(
    directory: Path, around: os.stat_result, circle: _Circle, seen: set[Path]
) -> Iterator[tuple[Path, str, OSError | None]]:
    """What is not trusted in a directory of run state, why, and the system's error if there is one.

    All paths that are there are added to `seen`.
    """
    try:
        names = sorted(os.listdir(directory))
    except PermissionError as error:
        yield directory, "cannot be read by this user", error
        return
    for name in names:
        path = directory / name
        try:
            found = os.lstat(path)
        except _GONE:
            continue
        seen.add(path)
        is_data = name.startswith(SET_ASIDE)
        why = "" if is_data else _why_not(found, around, circle) or _unreadable(path, found)
        if why:
            yield path, why, None
        elif stat.S_ISDIR(found.st_mode) and not is_data and not name.startswith("parts-"):
            try:
                yield from _doubts(path, found, circle, seen)
            except _GONE:
                continue


def _why_not(found: os.stat_result, around: os.stat_result, circle: _Circle) -> str:
    """Why something is not trusted; nothing if it is."""
    if not stat.S_ISDIR(found.st_mode) and not stat.S_ISREG(found.st_mode):
        return "is neither a plain directory nor a plain file"
    return (
        "" if circle.holds(found, around) else "belongs to a user who could not replace the array"
    )


def _unreadable(path: Path, found: os.stat_result) -> str:
    """Whether this user may not read a file, in words."""
    is_open = (
        found.st_mode & stat.S_IROTH
        or found.st_uid == os.geteuid()
        or not stat.S_ISREG(found.st_mode)
    )
    return "" if is_open or os.access(path, os.R_OK) else "cannot be read by this user"


def _circle(above: Path, found: os.stat_result) -> _Circle:
    """Those who could replace what lies in a directory, by its owner, mode and access control list."""
    users = {os.geteuid(), 0, found.st_uid}
    groups: set[int] = set()
    if not found.st_mode & stat.S_ISVTX:
        entries = _acl(above)
        mask = next((permissions for tag, permissions, _ in entries if tag == _ACL_MASK), 7)
        for tag, permissions, number in entries:
            if permissions & mask & _WRITE:
                users |= {number} if tag == _ACL_USER else set()
                groups |= (
                    {found.st_gid}
                    if tag == _ACL_GROUP_OBJ
                    else {number}
                    if tag == _ACL_GROUP
                    else set()
                )
        if not entries and found.st_mode & stat.S_IWGRP:
            groups.add(found.st_gid)
    return _Circle(frozenset(users), frozenset(groups))


def _acl(directory: Path) -> list[tuple[int, int, int]]:
    """Entries of a directory's access control list as tag, permissions and id; none where it has no list."""
    if not hasattr(os, "getxattr"):
        return []
    try:
        data = os.getxattr(directory, _ACL)
    except OSError as error:
        if error.errno not in _NO_ACL:
            raise
        return []
    return list(struct.iter_unpack("<HHI", data[4:]))


def _groups_of(user: int) -> set[int]:
    """Groups that the system's list has a user in; none for a user that it does not know."""
    try:
        entry = pwd.getpwuid(user)
    except KeyError:
        return set()
    return set(os.getgrouplist(entry.pw_name, entry.pw_gid))


def _error(target: Target, path: Path, why: str) -> UntrustedStateError:
    beside = replace(target, update="").run_path
    owner = owner_of(path)
    return UntrustedStateError(
        f"{path} {why}; its owner is {owner}. It says what a run on {target.path} has begun, and is not followed. Ask "
        f"{owner} to finish or give up that run; or look at {beside} and rename it, which deletes nothing",
        path=str(path),
        owner=owner,
    )

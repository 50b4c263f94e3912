"""Checks that the run state beside an array belongs to users who may be trusted.

Run state is a directory beside an array, or beside the root of its hierarchy, and all in it; see
:mod:`shardwrite.place.directory`. It decides which data are removed and overwritten. In a directory
where everybody may write, any user can put such a directory there. Run state is therefore trusted
only if its owner could replace the array anyway. These owners are trusted:

- this user, and root;
- the owner of the directory that holds the array and its run state;
- if that directory is not sticky, every user who may write there by its group permissions or its
  access control list. The system's list of groups gives the members of a group. A file that has
  such a group is trusted, too, if other users may not write where it lies, since only a member of
  the group can have made it.

All run state must be plain directories and plain files. Run state that is not trusted is neither
followed nor ignored: if it were ignored, a second writer could start beside a live run. Writers
refuse to work and name the owner, and commands that only read report it.

Data that a run has set aside in its own directory may belong to any user; they are not checked.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import stat
import struct
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from pathlib import Path

from shardwrite._dataclass import dataclass
from shardwrite._lazy import if_loaded
from shardwrite.errors import UntrustedStateError
from shardwrite.place.base import Place
from shardwrite.place.target import Target
from shardwrite.stores.looking import as_store_error, opened, owner_of, read_file
from shardwrite.stores.removal import SET_ASIDE

_ACL = "system.posix_acl_access"
_ACL_USER, _ACL_GROUP_OBJ, _ACL_GROUP, _ACL_MASK = 0x02, 0x04, 0x08, 0x10
_WRITE = 2
_NO_ACL = {errno.ENODATA, errno.EOPNOTSUPP, errno.EACCES, errno.EPERM, errno.ENOSYS}
_GONE = (FileNotFoundError, NotADirectoryError)


@dataclass(frozen=True, slots=True)
class _Circle:
    """Users and groups who could replace the contents of a directory, as numbers."""

    users: frozenset[int]
    groups: frozenset[int]

    def holds(self, found: os.stat_result, around: os.stat_result) -> bool:
        """Whether the owner of a file or directory belongs to the circle."""
        if found.st_uid in self.users:
            return True
        is_proof = found.st_gid in self.groups and not around.st_mode & stat.S_IWOTH
        return is_proof or not self.groups.isdisjoint(_groups_of(found.st_uid))


def require_trusted(target: Target) -> frozenset[Path]:
    """Check that the run state beside an array is trusted.

    - Raises UntrustedStateError if something is not trusted. The message names its path, its owner
      and the remedy.
    """
    beside = target.beside
    seen: set[Path] = set()
    with as_store_error(str(beside), "cannot look at"), contextlib.suppress(*_GONE):
        found, circle = _require(target, [beside, *target.state_around(beside)])
        for path, reason, cause in _doubts(beside, found, circle, seen):
            raise _error(target, path, reason) from cause
    return frozenset(seen)


def is_private(directory: Path) -> bool:
    """Whether a directory of this user is there, in which no other user may write but root."""
    with as_store_error(str(directory), "cannot look at"), contextlib.suppress(*_GONE):
        found = os.lstat(directory)
        # With an access control list, the bits of the group are the most that the list gives.
        is_closed = not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and is_closed
    return False


def require_trusted_run(
    target: Target, shared: Path, own: str, among: Collection[str] | None = None
) -> None:
    """Check that the directory of a run on several arrays is trusted, as far as one needs it.

    - `shared`: the directory. It lies beside the root of the hierarchy, in two directories more.
    - `own`: name of the directory of this array in it.
    - `among`: names of all that is checked in it. By default, all but directories of other arrays.
    - Raises UntrustedStateError as `require_trusted` does.
    """
    home = shared.parent
    with as_store_error(str(shared), "cannot look at"), contextlib.suppress(*_GONE):
        outward = [shared, home, home.parent, *target.state_around(home.parent)]
        around, circle = _require(target, outward)
        if among is None:
            among = [name for name in os.listdir(shared) if not name.isdecimal() or name == own]
        for path, reason, cause in _doubts(shared, around, circle, set(), among):
            raise _error(target, path, reason) from cause


def _require(target: Target, outward: Sequence[Path]) -> tuple[os.stat_result, _Circle]:
    """Check that directories are trusted, each of which lies in the next one.

    - Returns: facts of the first one, and who could replace the contents of what the last is in.
    """
    above = outward[-1].parent
    found = os.stat(above)
    circle = _circle(above, found)
    for path in reversed(outward):
        around, found = found, os.lstat(path)
        why = _why_not(found, around, circle)
        if why:
            raise _error(target, path, why)
    return found, circle


@dataclass(frozen=True, slots=True)
class TrustedDirectory:
    """A directory of run state whose owner is trusted. What it holds is checked as it is read."""

    target: Target
    path: Path
    _facts: os.stat_result
    _circle: _Circle

    @classmethod
    def at(cls, target: Target, path: Path) -> TrustedDirectory | None:
        """A directory of run state; None where there is none.

        - Raises UntrustedStateError as `require_trusted` does.
        """
        anchor = [path, *target.state_around(path)][-1].parent
        with as_store_error(str(path), "cannot look at"), contextlib.suppress(*_GONE):
            above = os.stat(anchor)
            found: TrustedDirectory | None = cls(target, anchor, above, _circle(anchor, above))
            for name in path.relative_to(anchor).parts:
                found = None if found is None else found.directory(name)
            return found
        return None

    def directory(self, name: str) -> TrustedDirectory | None:
        """A directory in this one; None where there is none."""
        path = self.path / name
        with as_store_error(str(path), "cannot look at"), contextlib.suppress(*_GONE):
            found = os.lstat(path)
            self._check(path, found)
            return TrustedDirectory(self.target, path, found, self._circle)
        return None

    def listing(self, name: str) -> tuple[TrustedDirectory, frozenset[str]] | None:
        """A directory in this one, and the names of all that it holds; None where there is none."""
        path, flags = self.path / name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        with as_store_error(str(path), "cannot list"), contextlib.suppress(FileNotFoundError):
            fd = opened(path, flags)
            try:
                found = os.fstat(fd)
                self._check(path, found)
                names = frozenset(os.listdir(fd))
            finally:
                os.close(fd)
            return TrustedDirectory(self.target, path, found, self._circle), names
        return None

    def read(self, name: str) -> bytes | None:
        """Content of a small file in this directory; None where there is none."""
        path = self.path / name
        return read_file(path, check=partial(self._check, path))

    def check_entries(self, names: Collection[str]) -> None:
        """Check the entries of the directory with these names, and all that lies in them."""
        for path, reason, cause in _doubts(self.path, self._facts, self._circle, set(), names):
            raise _error(self.target, path, reason) from cause

    @property
    def mode(self) -> int:
        """Permission bits of the directory."""
        return stat.S_IMODE(self._facts.st_mode)

    def _check(self, path: Path, found: os.stat_result) -> None:
        why = _why_not(found, self._facts, self._circle)
        if why:
            raise _error(self.target, path, why)


def require_trusted_copies(directory: Path) -> None:
    """Check that a directory for copies of shards is trusted, as run state must be.

    - Raises UntrustedStateError if it is a link, or belongs to a user who could not replace the
      array.
    """
    with as_store_error(str(directory), "cannot look at"):
        above = os.stat(directory.parent)
        why = _why_not(os.lstat(directory), above, _circle(directory.parent, above))
    if why:
        owner = owner_of(directory)
        raise UntrustedStateError(
            f"{directory} {why}; its owner is {owner}. Copies of bad shards would go there, and "
            f"nothing was changed. Look at {directory}, and rename it, which deletes nothing",
            path=str(directory),
            owner=owner,
        )


def check_name(target: Target, name: str) -> None:
    """Check that a plan names the array that it lies beside.

    In a store, plans of calls that have divided the same place otherwise into store and name are
    accepted.

    - Raises UntrustedStateError if the plan names another array.
    """
    if name != target.place.array_name and not _ends_with(target.place, name):
        path = target.run_path / "plan.json"
        why = f"was begun for another array, {name!r}: it was moved, or put there"
        raise _error(target, path, why)


def _ends_with(place: Place, name: str) -> bool:
    """Whether a place in a store ends with the name of an array."""
    if not isinstance(place, if_loaded("shardwrite.place.objects", "InStore")):
        return False
    whole = f"{place.base.token.rstrip('/')}/{place.name}".rstrip("/")
    inside = name.strip("/")
    return not inside or whole.endswith((f"/{inside}", f" {inside}"))


def _doubts(
    directory: Path,
    around: os.stat_result,
    circle: _Circle,
    seen: set[Path],
    among: Collection[str] | None = None,
) -> Iterator[tuple[Path, str, OSError | None]]:
    """Find what is not trusted in a directory of run state.

    - `directory`: the directory; its subdirectories are checked, too, but not data and part files.
    - `among`: names of all that is checked in it; all that it has by default.
    - Yields: error of the system, if there is one.
    """
    try:
        names = sorted(os.listdir(directory) if among is None else among)
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
    """Reason why a file or directory is not trusted; empty if it is."""
    if not stat.S_ISDIR(found.st_mode) and not stat.S_ISREG(found.st_mode):
        return "is neither a plain directory nor a plain file"
    return (
        "" if circle.holds(found, around) else "belongs to a user who could not replace the array"
    )


def _unreadable(path: Path, found: os.stat_result) -> str:
    """Reason why a file is not readable by this user; empty if it is readable."""
    is_open = (
        found.st_mode & stat.S_IROTH
        or found.st_uid == os.geteuid()
        or not stat.S_ISREG(found.st_mode)
    )
    return "" if is_open or os.access(path, os.R_OK) else "cannot be read by this user"


def _circle(above: Path, found: os.stat_result) -> _Circle:
    """Users and groups who could replace the contents of a directory.

    They follow from the directory's owner, mode and access control list.
    """
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
    """Entries of a directory's access control list, as ``(tag, permissions, id)``.

    The result is empty if the directory has no such list, or the system has none.
    """
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
    """Numbers of the groups of a user; none if the system does not know the user."""
    try:
        entry = pwd.getpwuid(user)
    except KeyError:
        return set()
    return set(os.getgrouplist(entry.pw_name, entry.pw_gid))


def _error(target: Target, path: Path, why: str) -> UntrustedStateError:
    beside = target.beside
    owner = owner_of(path)
    return UntrustedStateError(
        f"{path} {why}; its owner is {owner}. It says what a run on {target.label} has begun, and "
        f"is not followed. Ask {owner} to finish or give up that run; or look at {beside} and "
        "rename it, which deletes nothing",
        path=str(path),
        owner=owner,
    )

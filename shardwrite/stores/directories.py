"""Directories that are made durably, and access rights that are taken over.

A new directory has the mode and group of an existing one. An object that replaces another takes the
mode, the group and, where permitted, the owner of that one. The group is set first, because a mode
that was meant for one group must not serve another. The owner is set last, because only the owner
may set the rest. If the system refuses the group, the new group and all others get only the
permissions that both classes had before.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
import struct
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from shardwrite._dataclass import dataclass
from shardwrite.stores.looking import as_store_error, is_there, mode_of, opened

# ---- Access rights


NARROW = 0o600
"""Mode of a file that will replace an object, until the file is complete."""

_ACCESS, _DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
# Layout of an access control list: a header of 4 bytes, then (tag, permissions, number) entries.
_HEAD, _ENTRY = 4, "<HHI"

_OF_GROUP, _OF_OTHERS = 0x04, 0x20

_REFUSED = frozenset({errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})

_NO_ACL = frozenset({errno.ENODATA, errno.ENOSYS, errno.EOPNOTSUPP})


@dataclass(frozen=True, slots=True)
class Rights:
    """Access rights of a file or directory."""

    mode: int  # permission bits
    owner: int  # numeric ids of the owner and the group
    group: int
    # POSIX access control lists as the system stores them; only a directory has a default one
    acl: bytes | None = None
    default_acl: bytes | None = None


def rights_of(path: str | os.PathLike[str]) -> Rights | None:
    """Rights of a regular file or a directory; None if the path is missing or anything else."""
    try:
        facts = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISREG(facts.st_mode):
        return Rights(facts.st_mode & 0o777, facts.st_uid, facts.st_gid, _acl(path, _ACCESS))
    if stat.S_ISDIR(facts.st_mode):
        mode = stat.S_IMODE(facts.st_mode)
        return Rights(mode, facts.st_uid, facts.st_gid, _acl(path, _ACCESS), _acl(path, _DEFAULT))
    return None


def keep_rights(fd: int, wanted: Rights) -> None:
    """Give a new file or directory the rights of another.

    Rights that the system refuses are left out. A directory keeps its own owner, because the owner
    of a directory of run state is the user of the run.
    """
    facts = os.fstat(fd)
    has_group = facts.st_gid == wanted.group or _is_done(os.fchown, fd, -1, wanted.group)
    has_acl = _keep_acl(fd, _ACCESS, wanted.acl if has_group else _narrowed(wanted.acl))
    if stat.S_ISDIR(facts.st_mode):
        _keep_acl(fd, _DEFAULT, wanted.default_acl if has_group else _narrowed(wanted.default_acl))
    mode = _kept_mode(wanted, has_group=has_group, has_acl=has_acl)
    _is_done(os.fchmod, fd, mode)
    if facts.st_uid != wanted.owner and stat.S_ISREG(facts.st_mode):
        _is_done(os.fchown, fd, wanted.owner, -1)


def copy_rights(old: str | os.PathLike[str], new: str | os.PathLike[str]) -> None:
    """Give a new directory the rights of another, as far as the system allows."""
    wanted = rights_of(old)
    fd = opened(new, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if wanted is not None:
            keep_rights(fd, wanted)
    finally:
        os.close(fd)


def _kept_mode(wanted: Rights, *, has_group: bool, has_acl: bool) -> int:
    """Mode that gives nobody a permission that they do not have in `wanted`."""
    if not has_acl and wanted.acl is not None:
        return wanted.mode & ~0o077  # only the list, which is lost, said who may do what
    if has_group:
        return wanted.mode
    if wanted.acl is not None:
        # With a list, the group bits of the mode are the mask of the list.
        return (wanted.mode & ~0o2007) | _of_both(wanted.acl)
    both = (wanted.mode >> 3) & wanted.mode & 0o007
    return (wanted.mode & ~0o2077) | both << 3 | both


def _of_both(acl: bytes) -> int:
    """Permissions that an access control list gives both to the group and to all others."""
    allowed = {tag: permissions for tag, permissions, _ in struct.iter_unpack(_ENTRY, acl[_HEAD:])}
    return int(allowed.get(_OF_GROUP, 0) & allowed.get(_OF_OTHERS, 0))


def _narrowed(acl: bytes | None) -> bytes | None:
    """Access control list in which the group and all others have only what both had before."""
    if acl is None:
        return None
    both = _of_both(acl)
    entries = [
        struct.pack(_ENTRY, tag, both if tag in (_OF_GROUP, _OF_OTHERS) else permissions, number)
        for tag, permissions, number in struct.iter_unpack(_ENTRY, acl[_HEAD:])
    ]
    return acl[:_HEAD] + b"".join(entries)


def _acl(path: str | os.PathLike[str], name: str) -> bytes | None:
    """Access control list of a path; None if it has none, or the system does not support them."""
    if not hasattr(os, "getxattr"):
        return None
    try:
        return os.getxattr(path, name, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in _NO_ACL:
            raise
        return None


def _keep_acl(fd: int, name: str, wanted: bytes | None) -> bool:
    """Set or remove an access control list, and return whether it is as wanted."""
    if not hasattr(os, "getxattr"):
        return wanted is None
    if wanted is not None:
        return _is_done(os.setxattr, fd, name, wanted)
    try:
        os.removexattr(fd, name)  # inherited from the default list of the directory
    except OSError as error:
        if error.errno not in _NO_ACL:
            raise
    return True


def _is_done(call: Callable[..., None], *arguments: Any) -> bool:
    """Make a system call, and return whether it succeeded.

    A call that is not permitted or not supported has failed. Other errors are raised.
    """
    try:
        call(*arguments)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        return False
    return True


# ---- Directories


RUN_SUFFIX = ".shardwrite"
"""How the name of a directory ends that holds the state of runs, or a claim; see `state_beside`."""

CONVERSION_SUFFIX = f".conversion{RUN_SUFFIX}"
"""How the name of a directory ends that belongs to the conversion of a tree in its place."""

WORK_PREFIX = "work-"
"""How the name of a directory in it begins that one process has to itself. Another process that
takes the work over renames it."""

STAGED = "staged"
"""Name of the directory in that of a run, for values that are computed before any shard changes.
Whoever ends the run renames the latter."""

ASIDE_PREFIX = "array-"
"""How the name of a directory begins where a new array or tree is built, in that of a run or of the
work of a process. Whoever hands it over renames it."""

NEW = f"{ASIDE_PREFIX}new"
"""Name of that directory until then, in that of a run."""

_MAX_TRIES = 8


def state_beside(path: Path) -> Path:
    """Directory of the state of runs on what lies at a path, or of a claim on a document there."""
    return path.with_name(path.name + RUN_SUFFIX)


def fsync_directory(path: Path) -> None:
    """Make the entries of a directory durable."""
    fd = opened(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def walk(path: Path, *, upwards: bool = False) -> Iterator[tuple[str, list[str], list[str]]]:
    """Go through a tree as `os.walk` does, but raise errors that it would ignore.

    Links are not followed. A directory that was removed in the meantime is left out.

    - `upwards`: whether a directory comes after those in it.
    """
    return os.walk(path, topdown=not upwards, onerror=_raise_unless_gone, followlinks=False)


def _raise_unless_gone(error: OSError) -> None:
    """Raise what is given to `os.walk` as `onerror`, but not that a directory was removed."""
    if not isinstance(error, FileNotFoundError):
        with as_store_error(str(error.filename), "cannot list"):
            raise error


def make_directories(path: Path, durability: str, *, like: Path | None = None) -> Collection[Path]:
    """Make a directory and its missing ancestors, and return those that were missing.

    If this fails, the directories made so far are removed again where they are empty.

    - `durability`: one of `DURABILITIES`. The entries of new directories are synced unless it is
      ``"none"``.
    """
    made: dict[Path, None] = {}
    rights = None if like is None else rights_of(like)
    for attempt in itertools.count():
        missing = []
        directory = path
        if attempt == 0 and _is_made(path, rights):  # most often, just this one is missing
            made[path] = None
            break
        while not is_there(directory):
            if was_taken_over(directory):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(directory))
            missing.append(directory)
            directory = directory.parent
        try:
            for directory in reversed(missing):
                make_directory(directory, rights)
                made[directory] = None
            break
        except OSError as error:
            if isinstance(error, FileNotFoundError) and attempt < _MAX_TRIES:
                continue  # another process has just removed an empty ancestor
            for directory in reversed(made):
                with contextlib.suppress(OSError):  # another process already uses it
                    directory.rmdir()
            raise
    if durability != "none":
        for directory in made:
            fsync_directory(directory.parent)
    return made


def _is_made(path: Path, rights: Rights | None) -> bool:
    """Make a directory if nothing but that is missing; whether it was made."""
    if was_taken_over(path) or rights is not None:
        return False
    try:
        os.mkdir(path)
    except OSError:  # a longer look tells why
        return False
    return True


def was_taken_over(missing: Path) -> bool:
    """Whether a directory that is missing was one of a run or of a process, which is over.

    It is not made again. In a tree that is built aside, arrays and groups may have any names.
    """
    name = missing.name
    if name != STAGED and not name.startswith((ASIDE_PREFIX, WORK_PREFIX)):
        return False
    above = missing.parent.parts
    depth = next((n for n, part in enumerate(reversed(above)) if part.endswith(RUN_SUFFIX)), -1)
    if depth < 0:
        return False
    home, *below = above[-1 - depth :]
    if home.endswith(CONVERSION_SUFFIX):
        return depth < 2 and name.startswith((WORK_PREFIX, ASIDE_PREFIX)[depth])
    is_run = any(part.startswith("run-") for part in below)
    return is_run and not name.startswith(WORK_PREFIX)


def make_directory(path: Path, rights: Rights | None) -> None:
    """Make a directory with `rights`, or with the default rights of the system if None.

    An existing directory is left as it is.
    """
    try:
        os.mkdir(path, 0o777 if rights is None else 0o700)
    except FileExistsError:
        mode = mode_of(path, follow=False)
        if not mode:  # another process has removed it since
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from None
        if not stat.S_ISDIR(mode_of(path) if stat.S_ISLNK(mode) else mode):
            raise
        return
    if rights is not None:
        fd = opened(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            keep_rights(fd, rights)
        finally:
            os.close(fd)

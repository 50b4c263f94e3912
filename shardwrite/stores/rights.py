"""Who may do what with a file: an object that takes another's place keeps that one's mode, group and, where permitted, owner.

The group comes first, since a mode that was meant for one group must not serve another; the owner comes last, since only the
owner may set the rest. Where the system refuses the group, neither it nor all others may do more than both could before.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["NARROW", "Rights", "keep_rights", "rights_of"]

NARROW = 0o600
"""Mode of what will take another object's place, until it is whole."""

_ACCESS, _DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
_HEAD, _ENTRY = 4, "<HHI"  # of a list, as the system keeps it: tag, permissions, number
_OF_GROUP, _OF_OTHERS = 0x04, 0x20
_REFUSED = frozenset({errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
_NO_ACL = frozenset({errno.ENODATA, errno.ENOSYS, errno.EOPNOTSUPP})


@dataclass(frozen=True, slots=True)
class Rights:
    """What stands in a file's metadata.

    Attributes
    ----------
    mode : int
        Permission bits.
    owner, group : int
        Their numbers.
    acl, default_acl : bytes, optional
        POSIX access control lists, as the system keeps them; the second only of a directory.
    """

    mode: int
    owner: int
    group: int
    acl: bytes | None = None
    default_acl: bytes | None = None


def rights_of(path: str | os.PathLike[str]) -> Rights | None:
    """Rights of a plain file or a directory; None for nothing and for anything else."""
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISREG(found.st_mode):
        return Rights(found.st_mode & 0o777, found.st_uid, found.st_gid, _acl(path, _ACCESS))
    if stat.S_ISDIR(found.st_mode):
        mode = stat.S_IMODE(found.st_mode)
        return Rights(mode, found.st_uid, found.st_gid, _acl(path, _ACCESS), _acl(path, _DEFAULT))
    return None


def keep_rights(fd: int, wanted: Rights) -> None:
    """Give an open file or directory, which this process has made, the rights of another; less where the system refuses.

    A directory keeps its own owner, who tells whose run state it holds.

    Raises
    ------
    OSError
        For anything but a refusal.
    """
    found = os.fstat(fd)
    has_group = found.st_gid == wanted.group or _is_done(os.fchown, fd, -1, wanted.group)
    has_acl = _keep_acl(fd, _ACCESS, wanted.acl if has_group else _narrowed(wanted.acl))
    if stat.S_ISDIR(found.st_mode):
        _keep_acl(fd, _DEFAULT, wanted.default_acl if has_group else _narrowed(wanted.default_acl))
    mode = _kept_mode(wanted, has_group=has_group, has_acl=has_acl)
    if stat.S_IMODE(os.fstat(fd).st_mode) != mode:
        _is_done(os.fchmod, fd, mode)
    if found.st_uid != wanted.owner and stat.S_ISREG(found.st_mode):
        _is_done(os.fchown, fd, wanted.owner, -1)


def _kept_mode(wanted: Rights, *, has_group: bool, has_acl: bool) -> int:
    """The mode, with no rights for anybody who did not have them."""
    if not has_acl and wanted.acl is not None:
        return wanted.mode & ~0o077  # the list said who of the group and the others may do what
    if has_group:
        return wanted.mode
    if wanted.acl is not None:
        return (wanted.mode & ~0o2007) | _of_both(
            wanted.acl
        )  # the group's bits are the mask of the list
    both = (wanted.mode >> 3) & wanted.mode & 0o007
    return (wanted.mode & ~0o2077) | both << 3 | both


def _of_both(acl: bytes) -> int:
    """What both the group and all others may do by an access control list."""
    allowed = {tag: permissions for tag, permissions, _ in struct.iter_unpack(_ENTRY, acl[_HEAD:])}
    return int(allowed.get(_OF_GROUP, 0) & allowed.get(_OF_OTHERS, 0))


def _narrowed(acl: bytes | None) -> bytes | None:
    """The list for another group: neither that one nor all others may do more than both could before."""
    if acl is None:
        return None
    both = _of_both(acl)
    entries = [
        struct.pack(_ENTRY, tag, both if tag in (_OF_GROUP, _OF_OTHERS) else permissions, number)
        for tag, permissions, number in struct.iter_unpack(_ENTRY, acl[_HEAD:])
    ]
    return acl[:_HEAD] + b"".join(entries)


def _acl(path: str | os.PathLike[str], name: str) -> bytes | None:
    """An access control list of a file; None where it has none, or the system knows none."""
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
    """Set or remove an access control list; whether it is as wanted."""
    if not hasattr(os, "getxattr"):
        return wanted is None
    if wanted is not None:
        return _is_done(os.setxattr, fd, name, wanted)
    try:
        os.removexattr(fd, name)  # what the directory's default has given
    except OSError as error:
        if error.errno not in _NO_ACL:
            raise
    return True


def _is_done(call: Callable[..., None], *arguments: Any) -> bool:
    """Whether the system does something; it may refuse who asks, or know no such thing."""
    try:
        call(*arguments)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        return False
    return True

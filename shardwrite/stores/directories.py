"""Durable creation of directories, with the mode and group of an existing directory."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from shardwrite.stores.descriptors import opened
from shardwrite.stores.looking import is_there, mode_of
from shardwrite.stores.reading import as_store_error
from shardwrite.stores.rights import Rights, keep_rights, rights_of

CONVERSION_SUFFIX = ".conversion.shardwrite"
"""How the name of a directory ends that belongs to the conversion of a tree in its place."""

WORK_PREFIX = "work-"
"""How the name of a directory in it begins that one process has to itself. Another process that
takes the work over renames it, so `make_directories` does not make it again."""

_MAX_TRIES = 8


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
    return os.walk(path, topdown=not upwards, onerror=_raise, followlinks=False)


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        with as_store_error(str(error.filename), "cannot list"):
            raise error


def make_directories(path: Path, durability: str, *, like: Path | None = None) -> None:
    """Make a directory and its missing ancestors.

    If this fails, the directories made so far are removed again where they are empty.

    - `durability`: one of `DURABILITIES`. The entries of new directories are synced unless it is
      ``"none"``.
    """
    made: dict[Path, None] = {}
    rights = None if like is None else rights_of(like)
    for attempt in itertools.count():
        missing = []
        directory = path
        while not is_there(directory):
            if _was_taken_over(directory):
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


def _was_taken_over(missing: Path) -> bool:
    """Whether a directory that is missing was one that a process had to itself."""
    is_work = missing.name.startswith(WORK_PREFIX)
    return is_work and missing.parent.name.endswith(CONVERSION_SUFFIX)


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

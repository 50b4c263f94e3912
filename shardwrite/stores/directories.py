"""Directories: made with all above them, durable, and with the mode and group of others."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from pathlib import Path

from shardwrite.stores.looking import is_there, mode_of
from shardwrite.stores.rights import Rights, keep_rights, rights_of

__all__ = ["fsync_directory", "make_directories", "make_directory"]

_MAX_TRIES = 8


def fsync_directory(path: Path) -> None:
    """Make a directory's entries durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directories(path: Path, durability: str, *, like: Path | None = None) -> None:
    """Make a directory and its missing ancestors; their entries are durable unless the level is ``"none"``.

    Parameters
    ----------
    path : pathlib.Path
        The directory.
    durability : str
        One of `DURABILITIES`.
    like : pathlib.Path, optional
        A directory whose mode and group the new ones take, if it is there.
    """
    made: dict[Path, None] = {}
    rights = None if like is None else rights_of(like)
    for attempt in itertools.count():
        missing = []
        directory = path
        while not is_there(directory):
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
                with contextlib.suppress(OSError):  # others use it already
                    directory.rmdir()
            raise
    if durability != "none":
        for directory in made:
            fsync_directory(directory.parent)


def make_directory(path: Path, rights: Rights | None) -> None:
    """Make a directory, which may have appeared meanwhile, with these rights, or as the system gives them."""
    try:
        os.mkdir(path, 0o777 if rights is None else 0o700)
    except FileExistsError:
        if not stat.S_ISDIR(mode_of(path)):
            raise
        return
    if rights is not None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            keep_rights(fd, rights)
        finally:
            os.close(fd)

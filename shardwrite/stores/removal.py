"""Removal of data by one function and with a proof, and temporaries with their removal.

*Data* are the shards of an array, and whole arrays, in their place or moved out of it. Nothing else
in this package removes data. The caller presents an entry of the plan or journal of its run as a
proof that the data belong to the run, and this module checks the entry.

Data are first renamed into the directory of the run. A process that takes a run over renames that
directory. A process that is frozen before its own rename and continues later can therefore not
remove data of its successor.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from shardwrite._dataclass import dataclass
from shardwrite.errors import StoreError
from shardwrite.stores.directories import ASIDE_PREFIX, NEW, STAGED
from shardwrite.stores.looking import listed, mode_of, opened, write_new

SET_ASIDE = ("replaced", ASIDE_PREFIX, "removed-", STAGED)
"""Prefixes of the names of data that a run has moved into its directory, or has written there."""

_MAX_TRIES = 8
_NO_LINK = frozenset({errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS})
_HELD = ".nfs"
"""How the name of a file begins that NFS keeps, because it was removed while a process of this host
had it open. It goes when it is closed."""

# ---- Data


@dataclass(frozen=True, slots=True)
class Proof:
    """Entry of a plan or journal that proves which data belong to the run."""

    run_path: Path  # directory of the run
    # The entry. A plan has ``run``, ``mode`` and ``array``; a line of the journal has ``attempt``.
    entry: Mapping[str, Any]
    # Returns the keys of the shards of the entry. It is called only to remove a shard.
    keys: Callable[[], Collection[str]] = tuple

    def covers(self, root: Path, key: str) -> bool:
        """Whether the entry proves that data belong to the run.

        `root` and `key` are those of :func:`remove_data`.
        """
        if root == self.run_path:
            return self._is_plan and key.startswith(SET_ASIDE)
        if key:
            return self.names(key)
        return (
            self._is_plan
            and self.entry.get("mode") in ("w", "w-")
            and self.entry.get("array") in (None, root.name)
        )

    def names(self, key: str) -> bool:
        """Whether the entry proves that a shard belongs to the run."""
        return (self._is_plan or "attempt" in self.entry) and key in self.keys()

    @property
    def _is_plan(self) -> bool:
        """Whether the entry is the plan of the run in `run_path`, or above it."""
        run, path = self.entry.get("run"), self.run_path
        return bool(run) and run in (_run_of(path.name), _run_of(path.parent.name))


def _run_of(name: str) -> str:
    """Name of the run to which a directory of this name belongs."""
    return name.partition("-")[2]


def set_aside(root: Path, key: str, proof: Proof, name: str) -> Path:
    """Move data into the directory of the run, from where they can be restored.

    - Raises FileNotFoundError if the data or the directory of the run are gone.
    """
    path = root / key
    if not proof.covers(root, key):
        raise StoreError(
            f"{path} is not removed: nothing in {proof.run_path} says that it is the run's own. "
            "Look at it, and move it away, which deletes nothing",
            key=str(path),
            errno=errno.EPERM,
        )
    aside = proof.run_path / name
    os.rename(path, aside)
    return aside


def remove_data(root: Path, key: str, proof: Proof) -> None:
    """Remove a shard, an array, or data in the directory of the run; missing data are no error.

    - `key`: key of the shard, or empty for the whole array. If `root` is the directory of the run,
      the name of the data in it.
    - Raises FileNotFoundError if the directory of the run is gone, because another process has
      taken the run over.
    """
    name = key if root == proof.run_path else f"removed-{uuid.uuid4().hex}"
    try:
        aside = set_aside(root, key, proof, name)
    except FileNotFoundError:
        if not mode_of(proof.run_path):
            raise
        return  # a duplicate of this task was faster
    _remove(aside)
    if mode_of(aside, follow=False):  # files in it are held open, and no data any more
        os.rename(aside, aside.with_name(f"held-{uuid.uuid4().hex}"))


def data_in(run_path: Path) -> list[str]:
    """Names of the data that a run has moved into its directory."""
    return [path.name for path in listed(run_path) if path.name.startswith(SET_ASIDE)]


def remove_state(directory: Path) -> None:
    """Remove a directory with files of a run, but never data.

    Another process may remove the same files at the same time.
    """
    there = listed(directory)
    arrays = (path for path in there if path.name.isdecimal())  # of a run on several
    for own in (directory, *arrays):
        inside = there if own is directory else listed(own)
        left = [path.name for path in inside if path.name.startswith(SET_ASIDE)]
        if NEW in left:  # it is empty if the run was never begun
            with contextlib.suppress(OSError):
                os.rmdir(own / NEW)
            left = data_in(own)
        if left:
            raise StoreError(
                f"{own / left[0]} holds data, and no plan there says whose; look at it, and move "
                "it away, which deletes nothing",
                key=str(own / left[0]),
                errno=errno.ENOTEMPTY,
            )
    _remove(directory)


def _remove(path: Path) -> None:
    """Remove a file or a tree, also while another process does; links are not followed.

    Directories in the tree that are write-protected are made writable first. NFS keeps a file for a
    process of this host that has it open. It stays with its directory, and a later call removes
    both.
    """
    left: list[OSError] = []

    def failed(_: object, __: str, error: Any) -> None:
        if getattr(error[1], "errno", None) in (errno.ENOTEMPTY, errno.EBUSY):
            left.append(error[1])
        elif not isinstance(error[1], FileNotFoundError):
            raise error[1]

    if not stat.S_ISDIR(mode_of(path, follow=False)):
        path.unlink(missing_ok=True)
        return
    is_writable = False
    for n_tries in itertools.count(1):
        try:
            shutil.rmtree(path, onerror=failed)
        except PermissionError:
            if is_writable:
                raise
            is_writable = True
            _make_writable(path)
            continue
        if not left or _is_held(path):
            break
        # A process that holds a directory open may have made a file in it since it was listed.
        if n_tries == _MAX_TRIES:
            raise left[0]
        left.clear()


def _is_held(path: Path) -> bool:
    """Whether a tree has only files that NFS keeps for processes which have them open."""
    names = [name for _, _, files in os.walk(path, onerror=_raise) for name in files]
    return bool(names) and all(name.startswith(_HELD) for name in names)


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # another process removes the same
        raise error


def _make_writable(root: Path) -> None:
    """Give this user the right to write into all directories of a tree, as far as possible."""
    for directory, _, _ in os.walk(root, followlinks=False):
        with contextlib.suppress(OSError):  # what cannot be removed is told afterwards
            fd = opened(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.fchmod(fd, stat.S_IMODE(os.fstat(fd).st_mode) | stat.S_IRWXU)
            finally:
                os.close(fd)


# ---- Temporaries of this process


TEMPORARY_SUFFIX = ".swtmp"

_ENDING_SECONDS = 0.02

_open: set[str] = set()
_left: set[str] = set()

_is_ending = False


def temporary_path(directory: str, name: str, attempt: str) -> str:
    """Path of the temporary of an attempt at an object, in the directory of the object."""
    return f"{directory}/.{name}.{attempt}{TEMPORARY_SUFFIX}"


def begin_temporary(path: str) -> None:
    """Register a temporary that is about to be opened.

    Once :func:`discard_open_temporaries` was called, this never returns: the thread waits for the
    end of the process.
    """
    _open.add(path)
    while _is_ending:
        time.sleep(1)


def forget_temporary(path: str) -> None:
    """Forget a temporary that is published or removed."""
    _open.discard(path)


def abort_temporary(path: str) -> None:
    """Remove a temporary that is not published.

    Errors are ignored, because they must not hide the error that led here; see `leaves_temporary`.
    """
    try:
        with contextlib.suppress(FileNotFoundError):  # it could not be made
            os.unlink(path)
    except OSError:
        _left.add(path)
    finally:  # after an interrupt, too
        forget_temporary(path)


def leaves_temporary(attempt: str = "") -> bool:
    """Whether a temporary of an attempt is left, which the end of the run has to remove.

    - `attempt`: its name. By default, all attempts of this process count.
    """
    ending = f".{attempt}{TEMPORARY_SUFFIX}" if attempt else TEMPORARY_SUFFIX
    return any(path.endswith(ending) for path in _left)


def is_open_temporary(path: str) -> bool:
    """Whether this process is still at work on a temporary."""
    return path in _open


def discard_open_temporaries() -> None:
    """Remove all temporaries that are not published, because the process is about to end.

    Other threads can create no further ones. Errors are ignored; the next run removes what is left.
    """
    global _is_ending
    _is_ending = True
    for _ in range(2):  # the second pass finds those that were being opened during the first
        for path in list(_open):
            with contextlib.suppress(OSError):  # published meanwhile, or the disk is gone
                os.unlink(path)
        time.sleep(_ENDING_SECONDS)


# ---- Creation of a file that only one process can win


EXCLUSIVE_SCOPE = "new"
"""Scope of the temporaries of objects that are made only if nothing is there."""


def link_new(path: Path, data: bytes) -> bool:
    """Link a complete and synced file into its place, unless something is there.

    The entry in the directory is not synced.

    - `path`: path of the file. Its directory exists.
    """
    temporary = temporary_path(str(path.parent), path.name, f"{EXCLUSIVE_SCOPE}.{uuid.uuid4().hex}")
    begin_temporary(temporary)
    try:
        write_new(temporary, data, is_durable=True)
        os.link(temporary, path)
    except FileExistsError:
        # NFS repeats a link whose reply was lost, and then finds its own file.
        return os.path.samefile(temporary, path)
    else:
        return True
    finally:
        with contextlib.suppress(FileNotFoundError):  # it could not be made
            os.unlink(temporary)
        forget_temporary(temporary)


def link_from(
    source: Path,
    path: Path,
    draft: Callable[[], str] | None = None,
    *,
    dir_fd: int | None = None,
) -> None:
    """Give a file a name in another directory, unless something has that name.

    BeeGFS has links in one directory only, before its version 8. There, the name is that of a copy.

    - `draft`: returns the name of the copy until then. By default, it is that of a temporary.
    - `dir_fd`: as `os.link` takes it for `path`.
    - Raises FileExistsError if something has the name, and FileNotFoundError if a directory, or
      the file, is gone.
    """
    try:
        os.link(source, path, dst_dir_fd=dir_fd)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        attempt = f"{EXCLUSIVE_SCOPE}.{uuid.uuid4().hex}"
        copy = Path(temporary_path(str(path.parent), path.name, attempt))
        copy = copy if draft is None else path.with_name(draft())
        try:
            write_new(copy, source.read_bytes(), dir_fd=dir_fd, is_durable=True)
            os.link(copy, path, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        finally:
            with contextlib.suppress(FileNotFoundError):  # it could not be made
                os.unlink(copy, dir_fd=dir_fd)

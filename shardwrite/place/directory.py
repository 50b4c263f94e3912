"""An array in a directory of the file system."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from shardwrite._dataclass import dataclass
from shardwrite.errors import StoreError
from shardwrite.format.node import DOCUMENT, DOCUMENTS_OF_V2
from shardwrite.place.base import (
    Over,
    Owner,
    Place,
    array_of_2022_around,
    kind_of,
    names_above,
)
from shardwrite.stores.base import Store
from shardwrite.stores.directories import (
    RUN_SUFFIX,
    fsync_directory,
    make_directories,
    make_directory,
    rights_of,
    state_beside,
    walk,
)
from shardwrite.stores.looking import as_store_error, is_file, is_there, listed, mode_of, read_file
from shardwrite.stores.posix import PosixStore, copy_file, discard_file, write_file
from shardwrite.stores.removal import TEMPORARY_SUFFIX, set_aside

_SHARDS = re.compile(r"c|\d+")  # names of directories that hold shards
_N_THREADS = 16  # that wait for the file system at a time
_NOTHING = "was-there"  # in a directory that stands for an array which was removed
_ESCAPED = re.compile(rb"\\([0-7]{3})")  # a byte in a path that the system lists


@dataclass(frozen=True, slots=True)
class Directory(Place):
    """An array in a directory."""

    root: Path  # directory of the store
    name: str = ""  # path of the array inside the store; empty if the store itself is the array

    @property
    def path(self) -> Path:
        """Directory of the array."""
        return self.root / self.name if self.name else self.root

    @property
    def beside(self) -> Path:
        """Directory of all run state of the array."""
        return state_beside(self.path)

    @property
    def label(self) -> str:
        """See :class:`Place`."""
        return str(self.path)

    @property
    def array_name(self) -> str:
        """See :class:`Place`."""
        return self.path.name

    @property
    def rights_like(self) -> Path:
        """See :class:`Place`."""
        return self.path

    @classmethod
    def of(cls, store: Store) -> Directory | None:
        """The place of an array that is a whole store, or None if the store is no directory."""
        return cls(store.root) if isinstance(store, PosixStore) else None

    @property
    def store(self) -> PosixStore:
        """See :attr:`Place.store`. This is the only place that makes it."""
        return PosixStore(self.path)

    @property
    def local_path(self) -> Path:
        """See :attr:`Place.local_path`."""
        return self.path

    @property
    def tree_path(self) -> Path:
        """See :attr:`Place.tree_path`."""
        return self.path

    def sibling(self, own: str, other: str) -> Directory:
        """See :meth:`Place.sibling`."""
        return Directory(self.path.parents[own.count("/")], other)

    @property
    def top(self) -> Directory | None:
        """See :attr:`Place.top`."""
        return Directory(self.root) if self.name else None

    @property
    def groups(self) -> Sequence[Directory]:
        """See :attr:`Place.groups`."""
        return [Directory(self.root, name) for name in names_above(self.name)]

    def groups_above(self) -> Iterator[Directory]:
        """See :meth:`Place.groups_above`; directories above the store count, too."""
        for group in self.path.parents:
            if not is_there(group / DOCUMENT):
                return
            yield Directory(group)

    def name_in(self, group: Place) -> str:
        """See :meth:`Place.name_in`."""
        return self.path.relative_to(group.label).as_posix()

    def member(self, name: str) -> Directory:
        """See :meth:`Place.member`."""
        return Directory(self.path, name)

    def kind(self) -> str:
        """See :meth:`Place.kind`."""
        return kind_of(self.path)

    def is_link(self) -> bool:
        """See :meth:`Place.is_link`."""
        return stat.S_ISLNK(mode_of(self.path, follow=False))

    def is_mount_point(self) -> bool:
        """See :meth:`Place.is_mount_point`."""
        return os.path.ismount(self.path) or os.path.realpath(self.path) in _mount_points()

    def is_occupied(self) -> bool:
        """See :meth:`Place.is_occupied`."""
        return is_there(self.path)

    def kind_for_group(self) -> str:
        """See :meth:`Place.kind_for_group`."""
        kind = self.kind()
        return "nothing" if kind == "other" and _only_ours(self.path) else kind

    def array_around(self) -> str | None:
        """See :meth:`Place.array_around`."""
        paths = self.path, Path(os.path.realpath(self.path))
        above = sorted({*paths[0].parents, *paths[1].parents})
        # What lies in run state is no array, though the directory of a run has a document.
        above = [path for path in above if not any(p.endswith(RUN_SUFFIX) for p in path.parts)]
        found = [directory for directory in above if _is_array(directory)]
        found += [array for path in paths if (array := array_of_2022_around(path)) is not None]
        return str(found[0]) if found else None

    def node_inside(self) -> str | None:
        """See :meth:`Place.node_inside`."""
        inside = _node_inside(self.path) if mode_of(self.path) else None
        return None if inside is None else str(inside)

    def has_object(self, key: str) -> bool:
        """See :meth:`Place.has_object`."""
        return stat.S_ISREG(mode_of(self.path / key, follow=False))

    def has_something(self, key: str) -> bool:
        """See :meth:`Place.has_something`: anything but a directory, be it a link or a pipe."""
        mode = mode_of(self.path / key, follow=False)
        return mode != 0 and not stat.S_ISDIR(mode)

    def has(self, leaf: str) -> bool:
        """See :meth:`Place.has`."""
        return is_file(self.path / leaf)

    def read(self, leaf: str) -> bytes | None:
        """See :meth:`Place.read`."""
        return read_file(self.path / leaf)

    def write(
        self,
        leaf: str,
        data: bytes,
        *,
        durability: str,
        attempt: str,
        guard: Callable[[], None] | None = None,
        over: Over | None = None,  # noqa: ARG002
    ) -> None:
        """See :meth:`Place.write`."""
        write_file(self.path / leaf, data, durability=durability, attempt=attempt, guard=guard)

    def discard(self, leaf: str, attempt: str) -> None:
        """See :meth:`Place.discard`."""
        discard_file(self.path / leaf, attempt)

    def make_room(
        self,
        run: Owner,
        durability: str,
        *,
        replaces: bool,
        is_new: bool,  # noqa: ARG002
    ) -> None:
        """See :meth:`Place.make_room`.

        The old array is renamed to ``replaced`` in the run's directory. That name is taken once
        and stays taken, so a second rename fails, however late it comes. The new directory has
        the mode and group of the old one.
        """
        replaced = run.path / "replaced"
        if replaces and not is_there(replaced):
            with _losing(errno.ENOTEMPTY, errno.EEXIST):  # another process was first
                try:
                    set_aside(self.path, "", run.proof(), replaced.name)
                except FileNotFoundError:
                    # The old array has been removed since the run began. Take the name anyway. The
                    # directory is made without parents, so that a run that is gone stays gone.
                    nothing = run.path / f"nothing-{uuid.uuid4().hex}"
                    nothing.mkdir()
                    (nothing / _NOTHING).mkdir()
                    os.rename(nothing, replaced)
        if replaces and not is_there(self.path):
            fresh = run.path / f"fresh-{uuid.uuid4().hex}"
            make_directory(fresh, rights_of(replaced))
            with _losing(errno.ENOTEMPTY, errno.EEXIST):
                os.rename(fresh, self.path)
        make_directories(self.path, durability)

    def clear(self, run: Owner, keys: Collection[str]) -> None:
        """See :meth:`Place.clear`; the old array was set aside as a whole."""

    def take_away(self, run: Owner) -> None:
        """See :meth:`Place.take_away`; the array is moved into the directory of the run.

        An old array that was set aside gets its name back. The name in the directory of the run is
        taken before, and stays taken, so that a process that comes late cannot move the old array.
        """
        unfinished, replaced = run.path / "array-unfinished", run.path / "replaced"
        if is_there(self.path):
            # Another process was first.
            with _losing(errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                set_aside(self.path, "", run.proof(), unfinished.name)
        if not is_there(replaced) or is_there(replaced / _NOTHING):
            return
        for directory in (unfinished, unfinished / _NOTHING):
            with contextlib.suppress(FileExistsError):
                os.mkdir(directory)
        put_back(replaced, self.path)

    def check_mark(self, run: Owner) -> None:
        """See :meth:`Place.check_mark`; the state of the run lies beside the directory."""

    def remove_mark(self, run: Owner) -> None:
        """See :meth:`Place.remove_mark`."""

    def unknown_run(self) -> None:
        """See :meth:`Place.unknown_run`; there is none."""

    def foreign(self, is_shard: Callable[[str], bool]) -> Iterator[str]:
        """See :meth:`Place.foreign`; links are foreign, too."""
        for directory, below, leaves in walk(self.path):
            at = Path(directory)
            links = [name for name in below if stat.S_ISLNK(mode_of(at / name, follow=False))]
            for leaf in [*leaves, *links]:
                key = (at / leaf).relative_to(self.path).as_posix()
                is_temporary = leaf.startswith(".") and leaf.endswith(TEMPORARY_SUFFIX)
                if not self.has_object(key) or not (is_temporary or is_shard(key)):
                    yield key

    def stale_temporaries(self, drivers_alive: Callable[[], set[str]]) -> list[str]:
        """See :meth:`Place.stale_temporaries`; links are not followed."""
        found = []
        for directory, _, leaves in walk(self.path):
            found += [
                Path(directory) / leaf
                for leaf in leaves
                if leaf.startswith(".") and leaf.endswith(TEMPORARY_SUFFIX)
            ]
        alive = drivers_alive()
        return [
            str(path)
            for path in found
            if f".{path.name.removesuffix(TEMPORARY_SUFFIX)}".split(".")[-2] not in alive
        ]

    def sweep(self, drivers_alive: Callable[[], set[str]]) -> int:
        """See :meth:`Place.sweep`."""
        return remove_temporaries(self.stale_temporaries(drivers_alive))

    def make_directories(self, keys: Iterable[str], durability: str) -> None:
        """See :meth:`Place.make_directories`.

        Several threads make them, and each directory above is synced once.
        """
        wanted = sorted({key.rpartition("/")[0] for key in keys})
        pool = ThreadPoolExecutor(_N_THREADS)
        try:
            for _ in pool.map(lambda name: make_directories(self.path / name, "none"), wanted):
                pass
        finally:
            pool.shutdown(cancel_futures=True)
        if durability != "none":
            for name in sorted({above for each in wanted for above in names_above(each)}):
                fsync_directory(self.path / name)

    def keep_copy(self, key: str, copy: Path, durability: str) -> None:
        """See :meth:`Place.keep_copy`."""
        with as_store_error(str(copy), "cannot keep a copy as"):
            make_directories(copy.parent, durability, like=self.path)
            try:
                os.link(self.path / key, copy, follow_symlinks=False)
            except OSError:  # no hard links here, or none to such a file
                copy_file(self.path / key, copy, durability)


def put_back(old: Path, place: Path) -> None:
    """Give an old array its name back, for a run that was given up.

    - `old`: where the array was set aside. Another process may put it back, too.
    - Raises StoreError if something else stands there.
    """
    with _losing(errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
        os.rename(old, place)
        fsync_directory(place.parent)
        fsync_directory(old.parent)
    if is_there(old):
        raise StoreError(
            f"the old array cannot go back to {place}, because something was written there "
            "meanwhile. Move that away, and make the same call again",
            key=str(place),
            errno=errno.ENOTEMPTY,
        )


def remove_temporaries(paths: Iterable[str]) -> int:
    """Remove temporary files, of which some may be gone, and return how many were there."""
    n_removed = 0
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
            n_removed += 1
    return n_removed


def _mount_points() -> set[str]:
    """Paths at which something is mounted, as far as the system tells.

    `os.path.ismount` does not see a directory that is mounted from the same file system.
    """
    try:
        with open("/proc/self/mountinfo", "rb") as file:
            lines = [line.split() for line in file]
    except FileNotFoundError:  # not Linux
        return set()
    return {os.fsdecode(_ESCAPED.sub(lambda m: bytes([int(m[1], 8)]), line[4])) for line in lines}


def _is_array(path: Path) -> bool:
    """Whether a directory is an array, or a run is about to make it one."""
    if path.name and is_file(state_beside(path) / "plan.json"):
        return True
    return is_file(path / DOCUMENTS_OF_V2[0]) or (
        is_file(path / DOCUMENT) and kind_of(path) == "array"
    )


def _node_inside(path: Path) -> Path | None:
    """Find a node, or the run state of a node, inside an array's directory; None if there is none.

    Directories that hold shards are not searched.
    """
    for entry in listed(path):
        if not _SHARDS.fullmatch(entry.name) and stat.S_ISDIR(mode_of(entry, follow=False)):
            is_node = entry.name.endswith(RUN_SUFFIX) or any(
                is_there(entry / leaf) for leaf in (DOCUMENT, *DOCUMENTS_OF_V2)
            )
            found = entry if is_node else _node_inside(entry)
            if found is not None:
                return found
    return None


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


@contextlib.contextmanager
def _losing(*numbers: int) -> Iterator[None]:
    """Ignore errors with these numbers, which mean that another process was first."""
    try:
        yield
    except OSError as error:
        if error.errno not in numbers:
            raise

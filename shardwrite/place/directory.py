"""An array in a directory of the file system, and where the state of its runs lies.

The state of an array in groups lies beside the root of their hierarchy, where no reader of a group
finds it: in ``<root>.shardwrite/<group>.shardwrite/<array>.shardwrite/``. `states_of` is the one
function that tells where it may lie. The first of these places that is there holds, so that a run
is found again after a group was made above. If none is there, it is that beside the highest group,
if it can be used. Otherwise it is ``<array>.shardwrite/`` beside the array, as for an array in no
group.

Processes that see different parts of a hierarchy, or have other rights, may look at different
places. So each run leaves a mark in an array whose state does not lie beside it: a second name of
its plan, ``shardwrite-run/<run>.json``. A run puts its mark there, and then looks. If there is a
mark of a run whose plan is not where this one looks, it changes nothing, and says so.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
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
    MARKS,
    UPDATES,
    Over,
    Owner,
    Place,
    UnknownRun,
    array_of_2022_around,
    kind_of,
    names_above,
)
from shardwrite.place.seen import Seen
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
from shardwrite.stores.looking import (
    as_store_error,
    is_file,
    is_there,
    listed,
    may,
    mode_of,
    parse_json,
    read_file,
)
from shardwrite.stores.posix import PosixStore, copy_file, discard_file, write_file
from shardwrite.stores.removal import TEMPORARY_SUFFIX, link_from, set_aside

_SHARDS = re.compile(r"c|\d+")  # names of directories that hold shards
_N_THREADS = 16  # that wait for the file system at a time
_PLAN = "plan.json"
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
        return self.state()

    def state(self, seen: Seen | None = None) -> Path:
        """The same; see the head of this file.

        - `seen`: what the arrays of one call share, so that nothing is looked at twice.
        """
        seen = Seen() if seen is None else seen
        states = states_of(self.path, seen)
        if len(states) == 1:
            return states[0]
        there = next((path for path in states if seen.may_stand(path) and _is_seen(path)), None)
        return there or (states[-1] if seen.once(_can_hold, states[-1].parent) else states[0])

    @property
    def own_state(self) -> Path:
        """Directory of that state, if it lies beside the array."""
        return state_beside(self.path)

    def begun_below(self) -> Iterator[str]:
        """Paths of nodes below with a run on all of an array, whose state is not beside it."""
        for state in states_of(self.path):
            yield from _begun_in(state)

    def left_of_removed(self) -> Iterator[tuple[Directory, Path]]:
        """Arrays in removed groups above that have left the state of runs, and that state."""
        for group in self.path.parents:
            if is_there(group):
                return
            for name, state in _states_in(state_beside(group)):
                yield Directory(group, name), state

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
        return _is_link(self.path)

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
        seen = Seen()
        found = [directory for directory in above if _is_array(directory, seen)]
        found += [array for path in paths if (array := array_of_2022_around(path)) is not None]
        return str(found[0]) if found else None

    def node_inside(self) -> str | None:
        """See :meth:`Place.node_inside`."""
        inside = _node_inside(self.path) if mode_of(self.path) else None
        if inside is None:
            inside = next((self.path / name for name in self.begun_below()), None)
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

    def read_if_there(self, leaf: str) -> bytes | None:
        """See :meth:`Place.read_if_there`."""
        try:
            return self.read(leaf)
        except StoreError:
            if self.has(leaf):
                raise
            return None

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

    def put_mark(self, run: Owner, durability: str) -> bool:
        """Leave the mark of a run in the array; False if it was there already.

        It is a name of the plan in the directory of the run. So a process that comes late, when the
        run is over, cannot leave it again.
        """
        marks = self.path / MARKS
        mark = self._mark_of(run)
        try:
            try:
                link_from(run.path / _PLAN, mark)
            except FileNotFoundError:  # most often, there is no directory of marks yet
                make_directory(marks, rights_of(self.path))
                link_from(run.path / _PLAN, mark)
        except FileExistsError:
            return False
        for directory in (marks, self.path) if durability != "none" else ():
            fsync_directory(directory)
        return True

    def has_mark(self, run: Owner) -> bool:
        """Whether the mark of a run is in the array."""
        return is_there(self._mark_of(run))

    def _mark_of(self, run: Owner) -> Path:
        return self.path / MARKS / f"{run.run}.json"

    def remove_mark(self, run: Owner) -> None:
        """See :meth:`Place.remove_mark`."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(self._mark_of(run))
        with _losing(errno.ENOENT, errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST):
            os.rmdir(self.path / MARKS)  # unless there are marks of other runs

    def unknown_run(self, known: Collection[str] = ()) -> UnknownRun | None:
        """See :meth:`Place.unknown_run`: one whose plan is not where this process looks for it."""
        marks = [one for one in listed(self.path / MARKS, suffix=".json") if one.stem not in known]
        if not marks:
            return None
        state = self.state()
        planned = {run_in(each / _PLAN) for each in (state, *listed(state / UPDATES))}
        mark = next((one for one in marks if one.stem not in planned and is_there(one)), None)
        if mark is None:
            return None
        told = (
            f"run {mark.stem} works on {self.label}, and its state is not where this call looks "
            f"for it, in {state}. Perhaps the array was copied or moved, or that run sees another "
            "part of its hierarchy. Wait for it, or make the call that it was begun with once "
            "more, where it was begun"
        )
        makes_array = self.kind() != "array"
        then = "call recover (shardwrite recover)" if makes_array else "look at it with verify"
        remedy = f"if its state is lost, remove {mark}, and {then}"
        return UnknownRun(mark.stem, makes_array, told, remedy)

    def foreign(self, is_shard: Callable[[str], bool]) -> Iterator[str]:
        """See :meth:`Place.foreign`; links are foreign, too."""
        for directory, below, leaves in walk(self.path):
            at = Path(directory)
            if at.name == MARKS and at.parent == self.path:
                continue
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


def states_of(path: Path, seen: Seen | None = None) -> list[Path]:
    """Directories where the state of the runs on a node may lie, if one is there.

    That beside the node comes first, and then those beside the groups above, nearest first.

    - `seen`: see `Directory.state`.
    """
    own, seen = state_beside(path), Seen() if seen is None else seen
    if any(part.endswith(RUN_SUFFIX) for part in path.parts[:-1]):
        return [own]  # what lies in run state is in no group
    groups = [group for group in path.parents if group.name and seen.has_document(group)]
    if any(seen.once(_is_link, one) for one in _between(path, groups)):
        path = Path(os.path.realpath(path.parent), path.name)
        groups = [group for group in path.parents if group.name and seen.has_document(group)]
    return [own, *(_state_in(group, path) for group in groups)]


def _state_in(group: Path, path: Path) -> Path:
    """Directory of the state of a node, in that of a group above it."""
    state = state_beside(group)
    for part in path.relative_to(group).parts:
        state /= f"{part}{RUN_SUFFIX}"
    return state


def states_around(state: Path) -> list[Path]:
    """Directories in which the state of a node lies, that beside the root of its hierarchy last.

    There are none if it lies beside the node.
    """
    return list(itertools.takewhile(lambda path: path.name.endswith(RUN_SUFFIX), state.parents))


def _is_link(path: Path) -> bool:
    return stat.S_ISLNK(mode_of(path, follow=False))


def _between(path: Path, groups: Sequence[Path]) -> list[Path]:
    """Directories above a node, up to the highest of its groups."""
    return [above for above in path.parents if groups and above.is_relative_to(groups[-1])]


def _is_seen(state: Path) -> bool:
    """Whether state is there that this user may look at."""
    try:
        return mode_of(state, follow=False) != 0
    except StoreError as error:
        if error.errno != errno.EACCES:
            raise
        return False


def _can_hold(directory: Path) -> bool:
    """Whether a directory beside the root of a hierarchy, or in such a one, can hold state.

    Mounts and rights tell, and the directory need not be there.
    """
    *between, outer = [directory, *states_around(directory)]
    inside = Path(os.path.realpath(_node_of(outer)))
    directories, mounts = [inside], _mount_points()
    for path in reversed(between):
        inside /= _node_of(path).name
        directories.append(inside)
    if any(os.path.ismount(path) or str(path) in mounts for path in directories):
        return False  # nothing can be renamed from one to the other
    there = next(path for path in (directory, *directory.parents) if _is_seen(path))
    return may(there, os.W_OK | os.X_OK)


def _node_of(state: Path) -> Path:
    """Path of the node whose state lies beside it."""
    return state.with_name(state.name.removesuffix(RUN_SUFFIX))


def _begun_in(state: Path) -> Iterator[str]:
    """Paths of the nodes below one that have a plan in its state, or below."""
    return (name for name, path in _states_in(state) if is_file(path / _PLAN))


def _states_in(state: Path, above: str = "") -> Iterator[tuple[str, Path]]:
    """Paths of the nodes below one that have state, or a node below, and that state."""
    for path in listed(state, suffix=RUN_SUFFIX):
        name = above + path.name.removesuffix(RUN_SUFFIX)
        yield name, path
        yield from _states_in(path, f"{name}/")


def run_in(plan: Path) -> str:
    """Name of the run in a plan; empty if the file is torn or missing."""
    try:
        return str(parse_json(read_file(plan) or b"{}")["run"])
    except (ValueError, KeyError, TypeError):
        return ""


def _is_array(path: Path, seen: Seen) -> bool:
    """Whether a directory is an array, or a run is about to make it one."""
    if path.name and any(is_file(state / _PLAN) for state in states_of(path, seen)):
        return True
    return is_file(path / DOCUMENTS_OF_V2[0]) or (
        seen.has_document(path) and kind_of(path) == "array"
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

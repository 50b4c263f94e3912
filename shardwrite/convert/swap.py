"""The record and the directory of a conversion in place, and the exchange of the two names.

All that belongs to one lies in ``<leaf>.conversion.shardwrite/`` beside the old tree:

``record.json``
    The name of the old tree, its inode number, and the layout that every array will get. It is
    there from the beginning of the conversion to its end, and shuts out all other writers.
``work-<token>/``
    The work of the process that is at it. Each process that takes the work over renames this
    directory first. A process that was frozen, and goes on later, then finds none of its paths.

    ``work.json`` has the token, and the inode number of the new tree as soon as that is complete.
    ``array-new/<leaf>`` is the new tree, which ordinary runs write, and after the exchange the old
    one. Where the system cannot exchange two names, the old one becomes ``replaced``.

The steps in order, and in italics what stands at the name of the tree after a crash:

1. Write the record. Refuse to go on if a run on one of the arrays has not ended. *The old tree.*
2. Write the new tree in ``array-new/``, and compare it with the old one. *The old tree.*
3. Note the inode number of the new tree, durably. Take the tree out of the consolidated metadata
   of all groups above it. *The old tree, which these groups do not list.*
4. Exchange the names of the two trees, as in step 5 of :mod:`shardwrite.journal.handover`. *The old
   tree, nothing, or the new one. The next call does the rest.*
5. Sync the names, enter the new tree into that metadata, and remove the old tree. *The new tree.*
6. Remove the record and its directory. *The new tree.*

Giving up before step 4 enters the old tree again.

The inode numbers tell the next process how far the last one came. If something else stands at the
name, nothing is removed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from shardwrite._dataclass import dataclass
from shardwrite.errors import (
    JournalError,
    RunEndedError,
    ShardwriteError,
    SpecError,
    StoreError,
    UntrustedStateError,
)
from shardwrite.format.node import DOCUMENT, DOCUMENTS_OF_V2
from shardwrite.journal.handover import OLD, rename_aside, take_name
from shardwrite.journal.lease import Lease, is_left_behind, live_holders, note_failed, signature
from shardwrite.place.target import RECORD, conversion_beside, refuse_in_place
from shardwrite.records import Record, always
from shardwrite.stores.directories import CONVERSION_SUFFIX, NEW, WORK_PREFIX, fsync_directory
from shardwrite.stores.looking import (
    PATH_MAX,
    as_store_error,
    is_there,
    listed,
    owner_of,
    parse_json,
    read_file,
)
from shardwrite.stores.posix import check_movable, give_room, keep_room, sync_entry, write_file
from shardwrite.stores.removal import Proof, data_in, link_from, remove_data, remove_state

# ---- The record


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun(Record):
    """What a conversion in place was begun with."""

    version: Annotated[int, range(1, 3)] = always(2)
    first: str  # token of the process that began it
    leaf: str  # name of the tree
    old: Annotated[int, range(2**64)]  # inode number of the old tree
    layout: Mapping[str, str]  # digest of what each array becomes, by the path of the array
    into: str = ""  # label of the new tree if the old one is consumed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work(Record):
    """What a process that is at work has noted."""

    run: str  # its token
    new: Annotated[int, range(2**64)] | None = always(None)  # inode number of a whole new tree


# ---- The directory of a conversion


_WORK = "work.json"

_ENDED, _DRAFT = "ended-", "draft-"

_INTO = "consumed into"  # key in the layout that told of it in the first version of the record

_ADOPTS = "adopts"  # key in the layout of what an older version did with files of HDF5

_NEW_BEFORE = "new"  # name that older versions gave to the directory of the new tree

_MAX_TRIES = 8

_STATE_NBYTES = 512
"""More than the longest path of run state has, beside the path of its array."""


def find_in_place(path: Path) -> bool:
    """Whether a conversion of the tree at a path in its place was begun and has not ended."""
    return _found(path) is not None


def consumption_at(path: Path) -> Begun | None:
    """The record of a conversion that consumes the tree at a path, if one has not ended.

    Nothing is changed. A record by a user who may not remove the tree is ignored, since anybody may
    have put it there.
    """
    home = conversion_beside(path)
    with as_store_error(str(home), "cannot look at"), contextlib.suppress(FileNotFoundError):
        found, around = os.lstat(home), os.stat(home.parent)
        is_trusted = found.st_uid in (os.geteuid(), around.st_uid, 0)
        if not (is_trusted and stat.S_ISDIR(found.st_mode)):
            return None
        try:
            data = read_file(home / RECORD)
        except PermissionError:  # a tree that its owner consumes has lost its document first
            if any(is_there(path / leaf) for leaf in (DOCUMENT, *DOCUMENTS_OF_V2)):
                return None
            raise
        record = None if data is None else _parsed(path, data)
        if record is not None and record.into and _works(home, record):
            return record
    return None


def tidy_ended(path: Path) -> None:
    """Remove what a conversion that has ended has left beside the tree at a path."""
    record, works = _look(path)
    home = conversion_beside(path)
    if not works and is_there(home):
        with as_store_error(str(home), "cannot look at"), contextlib.suppress(FileNotFoundError):
            _tidy(home, "" if record is None else record.first)


def _found(path: Path) -> tuple[Begun, Path] | None:
    """The record and the work of a conversion that was begun and has not ended."""
    record, works = _look(path)
    return None if record is None or not works else (record, works[0])


def _look(path: Path) -> tuple[Begun | None, list[Path]]:
    """The record of a conversion, and its work unless it has ended."""
    home = conversion_beside(path)
    if is_there(home):
        with as_store_error(str(home), "cannot look at"), contextlib.suppress(FileNotFoundError):
            _require_own(home)
            data = read_file(home / RECORD)
            record = None if data is None else _parsed(path, data)
            return record, [] if record is None else _works(home, record)
    return None, []


def new_tree_of(path: Path) -> Path | None:
    """Path of the new tree, while the tree at a path is converted in its place; None otherwise.

    Nothing is changed. The path may be gone a moment later, if another process takes over.
    """
    works = listed(conversion_beside(path), WORK_PREFIX)
    found = (work / NEW / path.name for work in works if is_there(work / RECORD))
    return next((new for new in found if is_there(new)), None)


def work_of(path: Path) -> Path | None:
    """Directory of the work on a conversion of the tree at a path, whoever is at it."""
    found = _found(path)
    return None if found is None else found[1]


def layout_of(path: Path) -> Mapping[str, str]:
    """What a conversion of the tree at a path was begun with; empty if there is none."""
    found = _found(path)
    return {} if found is None else found[0].layout


def _inode(path: Path) -> int | None:
    """Inode number of a directory; None if nothing stands there, 0 if it is no directory."""
    with as_store_error(str(path), "cannot look at"):
        try:
            found = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
    return found.st_ino if stat.S_ISDIR(found.st_mode) else 0


class InPlace:
    """A conversion in place that this process works on. Make one with :meth:`begun`."""

    def __init__(self, path: Path, record: Begun, token: str) -> None:
        self.path, self._record, self._token = path, record, token
        noted = read_file(self.work / _WORK)
        self._has_ended = False
        self.is_fresh = noted is None  # no process has done anything before
        self._new_inode = _new_inode_in(self.work, noted)  # of the new tree, once it is complete

    @classmethod
    @contextlib.contextmanager
    def begun(
        cls, path: Path, layout: Mapping[str, str] | None, into: str = ""
    ) -> Iterator[InPlace]:
        """Begin a conversion in place, or take over one that was interrupted.

        - `layout`: digest of what each array becomes, by the path of the array. None takes over a
          conversion whatever it was begun with.
        - `into`: label of the new tree if the old one is consumed.
        - Raises UntrustedStateError if another user has begun it.
        """
        for _ in range(_MAX_TRIES):
            token = uuid.uuid4().hex
            made = conversion_beside(path) / f"{WORK_PREFIX}{token}"
            with as_store_error(str(conversion_beside(path)), "cannot begin"):
                record = _recorded(path, layout, into)
                if not _take_over(path, record, made):
                    _tidy(conversion_beside(path), record.first)
                    if layout is None:
                        raise RunEndedError(
                            "the conversion has ended", path=str(conversion_beside(path))
                        )
                    continue
                with contextlib.suppress(FileNotFoundError):
                    os.rename(made / _NEW_BEFORE, made / NEW)
                if layout is None:
                    give_room(made / RECORD)  # to give up on a full disk
            with Lease(made, token):
                this = cls(path, record, token)
                this._write(this._new_inode)
                try:
                    yield this
                except ShardwriteError as error:
                    if not this.is_lost:
                        raise
                    raise RunEndedError(
                        f"another process has taken over the conversion of {path}",
                        path=str(this.work),
                    ) from error
            return
        raise JournalError(
            f"{conversion_beside(path)} holds the record of a conversion without its work. Look at "
            "it, and move it away, which deletes nothing",
            path=str(conversion_beside(path)),
        )

    @property
    def layout(self) -> Mapping[str, str]:
        """Digest of what each array becomes, by its path; see `begun`."""
        return self._record.layout

    @property
    def into(self) -> str:
        """Label of the new tree if the old one is consumed; else empty."""
        return self._record.into

    @property
    def work(self) -> Path:
        """Directory of this process's work."""
        return conversion_beside(self.path) / f"{WORK_PREFIX}{self._token}"

    @property
    def new(self) -> Path:
        """Path of the new tree before the exchange."""
        return self.work / NEW / self.path.name

    @property
    def is_lost(self) -> bool:
        """Whether another process has taken this work over."""
        return not (self._has_ended or is_there(self.work / RECORD))

    @property
    def is_complete(self) -> bool:
        """Whether the record names the whole new tree, which groups above may then list already."""
        return self._new_inode is not None

    @property
    def scope(self) -> str:
        """Scope of the temporary files of this conversion in the groups above."""
        return f"conversion-{self._record.first}"

    def check_current(self) -> None:
        """Refuse to go on if another process has taken this work over.

        - Raises RunEndedError if it has.
        """
        if self.is_lost:
            raise RunEndedError("another process has taken over", path=str(self.work))

    @property
    def is_new(self) -> bool:
        """Whether the exchange was begun, so that only the rest is left to do."""
        here, there = _inode(self.path), _inode(self.new)
        old, new = self._record.old, self._new_inode
        if here == old:
            return False
        if new is not None and here == new:
            return True
        if new is not None and here is None and there == new:
            return _inode(self.work / OLD) == old or self._lost()
        return self._lost()

    def check_old(self) -> None:
        """Refuse to go on if another process has replaced the old tree since this began."""
        if _inode(self.path) != self._record.old:
            raise JournalError(
                f"another process has replaced {self.path} since its conversion began. Nothing of "
                "it was changed. Make the call again to convert what lies there now",
                path=str(self.path),
            )

    def _lost(self) -> bool:
        home = conversion_beside(self.path)
        raise JournalError(
            f"{self.path} is not the tree that was to be converted there. Nothing is removed. Look "
            f"at it and at {home}, and move that directory away, which deletes nothing",
            path=str(home),
        )

    def make_new(self) -> None:
        """Make the directory of the new tree, which is never made again (step 2)."""
        with as_store_error(str(self.new.parent), "cannot make"):
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.new.parent)
            fsync_directory(self.work)

    def check_movable(self) -> None:
        """Refuse to go on if the system cannot rename the old tree."""
        with as_store_error(str(self.path), "cannot exchange"):
            check_movable(self.path, self.work)

    def hand_over(self, withdraw: Callable[[], object]) -> None:
        """Give the name of the old tree to the new one, durably, as far as that is left.

        These are steps 3 and 4, and the begin of step 5.

        - Raises RunEndedError if another process has taken over.
        """
        if not self.is_new:
            with as_store_error(str(self.path), "cannot exchange"):
                self._write(_inode(self.new))
            withdraw()
        with as_store_error(str(self.path), "cannot exchange"):
            has_name = _inode(self.path) == self._new_inode
            if not has_name and not take_name(self.path, self.new, self.work / OLD, self._is_old):
                self._lost()
            for directory in (self.path.parent, self.work, self.new.parent):
                if is_there(directory):  # and not removed already, with the old tree
                    fsync_directory(directory)

    def _is_old(self, path: Path) -> bool:
        return _inode(path) == self._record.old

    def finish(self) -> None:
        """Remove the old tree, and then the record (steps 5 and 6); `hand_over` comes first."""
        with as_store_error(str(self.path), "cannot delete the old tree of"):
            self._remove_data()
        self._end()

    def give_up(self) -> None:
        """Remove the new tree and the record. The old tree stays as it is."""
        with as_store_error(str(self.work), "cannot give up"):
            rename_aside(self.work)  # tasks that are late find no path
            self._remove_data()
        self._end()

    def _remove_data(self) -> None:
        """Remove the trees that were moved into the directory of this work."""
        found = parse_json(read_file(self.work / _WORK) or b"{}")
        proof = Proof(self.work, found if isinstance(found, dict) else {})
        for name in data_in(self.work):
            remove_data(self.work, name, proof)

    def _end(self) -> None:
        over = conversion_beside(self.path) / f"{_ENDED}{self._token}"
        with as_store_error(str(over), "cannot remove"):
            os.rename(self.work, over)
            self._has_ended = True
            _tidy(conversion_beside(self.path), self._record.first)

    def _write(self, new_inode: int | None) -> None:
        """Write the file of this process's work, durably."""
        self.check_current()
        data = _Work(run=self._token, new=new_inode).to_json()
        write_file(self.work / _WORK, data, durability="full", attempt=self._token)
        self._new_inode = new_inode


def _recorded(path: Path, layout: Mapping[str, str] | None, into: str) -> Begun:
    """The record of a conversion that was begun, or of one that begins now (step 1)."""
    home = conversion_beside(path)
    if layout is not None:
        _check_length(path)
    if layout is not None and not is_there(home / RECORD):
        refuse_in_place(path.parent)
    for _ in range(_MAX_TRIES):
        # Another process may remove the directory as long as it is empty.
        with contextlib.suppress(FileNotFoundError):
            if layout is not None:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(home, 0o700)
            _require_own(home)
            if layout is not None and not is_there(home / RECORD):
                _link_record(path, layout, into)
            break
    record = _parsed(path, read_file(home / RECORD) or b"")
    if record.layout.get(_ADOPTS) in ("move", "link"):
        raise JournalError(
            f"{home} is of an older version, which moved or linked files of HDF5 into {path} and "
            "was interrupted. Finish that, or give it up with abandon, with the version that began "
            "it",
            path=str(home),
        )
    if layout is not None and (dict(record.layout) != dict(layout) or record.into != into):
        names = {*record.layout, *layout}
        others = sorted(n for n in names if record.layout.get(n) != layout.get(n)) or [""]
        raise JournalError(
            f"another conversion of {path} in its place was begun and has not ended; it makes "
            f"something else of {', '.join(repr(name or '/') for name in others[:3])}. Make the "
            "same call again to finish it, or give it up with abandon (shardwrite abandon)",
            path=str(home),
            differences=others,
        )
    return record


def _check_length(path: Path) -> None:
    """Refuse a path beside which no run can work, as the paths there would be too long."""
    longest = f"{CONVERSION_SUFFIX}/{WORK_PREFIX}{'0' * 32}/{NEW}/{path.name}{'0' * _STATE_NBYTES}"
    most = PATH_MAX - len(os.fsencode(longest)) - 1
    if len(os.fsencode(path)) > most:
        raise SpecError(
            "the path is too long, and those of what is written beside it would be, too",
            field="src",
            value=str(path),
            remedy=f"rename directories above, so that the path has at most {most:,} bytes, or "
            "convert into another place",
        )


def _parsed(path: Path, data: bytes) -> Begun:
    """The record of a conversion of the tree at a path."""
    home = conversion_beside(path)
    try:
        record = Begun.from_dict(parse_json(data))
    except ValueError as error:
        raise JournalError(
            f"{home / RECORD} is no whole record of a conversion ({error}). Look at {home}, and "
            "move it away, which deletes nothing",
            path=str(home),
        ) from error
    if record.leaf != path.name:
        raise JournalError(
            f"{home} was begun for another tree, {record.leaf!r}; move it away after a look",
            path=str(home),
        )
    if record.version == 1 and _INTO in record.layout:
        layout = {name: digest for name, digest in record.layout.items() if name != _INTO}
        record = replace(record, layout=layout, into=record.layout[_INTO])
    return record


def _link_record(path: Path, layout: Mapping[str, str], into: str) -> None:
    """Write the record of a new conversion, unless another process is first."""
    home, token = conversion_beside(path), uuid.uuid4().hex
    draft = home / f"{_DRAFT}{token},{signature()}"
    os.mkdir(draft)
    old = _inode(path) or 0
    begun = Begun(first=token, leaf=path.name, old=old, layout=dict(layout), into=into)
    data, is_first = begun.to_json(), False
    try:
        write_file(draft / RECORD, data, durability="full", attempt=token)
        keep_room(draft / RECORD)
        with contextlib.suppress(FileExistsError):  # another process was first
            name = f"{_DRAFT}record-{token},{signature()}"
            link_from(draft / RECORD, home / RECORD, lambda: name)
            is_first = True
        sync_entry(home / RECORD)
    finally:
        if not is_first:
            note_failed(draft)
            with contextlib.suppress(OSError):  # an error from above is the one to report
                remove_state(draft)
                os.rmdir(home)


def _require_own(home: Path) -> None:
    """Refuse a directory that this user has not made."""
    found, look = os.lstat(home), "look at it and rename it, which deletes nothing"
    if not stat.S_ISDIR(found.st_mode):
        raise UntrustedStateError(
            f"{home} is no directory, and it is not followed; {look}",
            path=str(home),
            owner=owner_of(home),
        )
    if found.st_uid != os.geteuid():
        owner = owner_of(home)
        raise UntrustedStateError(
            f"{home} was made by another user, {owner}, and it is not followed. Ask {owner} to "
            f"finish or give up that conversion; or {look}",
            path=str(home),
            owner=owner,
        )


def _works(home: Path, record: Begun) -> list[Path]:
    """Directory of the work, if there is any; before it was taken over, that is the draft.

    The record in it tells it from directories that a process of an earlier version, which was
    frozen meanwhile, has made again.
    """
    works = [work for work in listed(home, WORK_PREFIX) if is_there(work / RECORD)]
    return works + listed(home, f"{_DRAFT}{record.first},")


def _take_over(path: Path, record: Begun, made: Path) -> bool:
    """Rename the work of a process that is gone, or of one that has just begun, to `made`.

    - Returns: False if there is none, because the conversion has ended.
    """
    home = conversion_beside(path)
    for _ in range(_MAX_TRIES):
        works = _works(home, record)
        if not works:
            return False
        for holder in live_holders(works[0]):
            raise JournalError(
                f"{path} is being converted in its place by {holder.process.name}; "
                f"{holder.last_sign}. Wait for it, or end that process first",
                path=str(home),
                holder=holder.to_dict(),
            )
        with contextlib.suppress(FileNotFoundError):  # another process was first
            os.rename(works[0], made)
            fsync_directory(home)
            return True
    raise JournalError(f"processes take over {home} all the time", path=str(home))


def _tidy(home: Path, first: str) -> None:
    """Remove the record of a conversion that has ended, and then its directory.

    The record is moved into the directory of the work that has ended. A process that comes late
    finds no such directory, so it cannot remove the record of a later conversion.
    """
    for over in listed(home, _ENDED):
        moved = over / "record-moved.json"
        with contextlib.suppress(FileNotFoundError):
            os.rename(home / RECORD, moved)
            if _first_in(moved) not in ("", first):
                with contextlib.suppress(FileExistsError):
                    link_from(moved, home / RECORD)
        remove_state(over)
    for left in listed(home, _DRAFT):
        if is_left_behind(left):
            remove_state(left)
    with contextlib.suppress(OSError):  # another conversion has begun, or something else lies there
        os.rmdir(home)
    fsync_directory(home.parent)


def _first_in(path: Path) -> str:
    """Token in a record; empty if another process has removed the record meanwhile."""
    data = read_file(path)
    return "" if data is None else Begun.from_dict(parse_json(data)).first


def _new_inode_in(work: Path, data: bytes | None) -> int | None:
    """Inode number of the new tree that a process has noted, if any."""
    try:
        return None if data is None else _Work.from_dict(parse_json(data)).new
    except ValueError as error:
        raise StoreError(
            f"{work / _WORK} is damaged: {error}", key=str(work / _WORK), errno=errno.EIO
        ) from error

"""The hand-over of the name of an array in a directory to the new array that replaces it.

All that belongs to it lies in the directory of the run:

``array-new``
    The new array, which tasks write. Readers find the old one until the new one is whole.
``array-<token>``
    The same directory, once a process is about to exchange the names. After that, the old array.
``replaced``
    The old array, where the system cannot exchange two names in one step.

The steps in order, and in italics what stands at the name of the array after a crash:

1. Make ``array-new``. Tasks write shards there. *The old array.*
2. Write the document of the new array and its receipt, which names the run. *The old array.*
3. Take the array out of the consolidated metadata of the groups above, and with it those of the
   same run that come next. *The old array, which these groups do not list.*
4. Rename ``array-new`` to a name that only this process knows. *The same.*
5. Exchange the names. Where the system cannot do that, the old array becomes ``replaced``, and then
   the new one gets its name. *The old array, nothing, or the new one.*
6. Enter the new array into that metadata, and remove the old one with the run. *The new array.*

The receipts tell the next process which of the two arrays stands where, and so how far the last one
came. It looks only after it has renamed the directory itself, so a process that was frozen finds no
path any more. A task that comes late does not make that path again; see `was_taken_over`.

What loses its name in step 5 is looked at once more. If it is no array, it goes back.

Where a call replaces several arrays, steps 2 and 4 are taken for all of them before step 3 of the
first. So no source reads new values that another task has written. Step 3 is taken once for all
that lie in the same groups. Once one array of the run has its name, all others with a receipt are
*committed*: whoever ends the run or gives it up takes step 5 for them, too.

A run that is given up before leaves the old arrays, or gives them their names back.

An array in a group that replaces none is built in ``array-new``, too, so that readers of the group
do not list a directory without a document. It is made with the directory of the run. One rename,
which replaces nothing, takes the place of steps 4 and 5.
"""

from __future__ import annotations

import ctypes
import errno
import os
import uuid
from collections.abc import Callable
from pathlib import Path

from shardwrite.errors import JournalError, SpecError, StoreError
from shardwrite.format.node import DOCUMENT
from shardwrite.journal.receipt import is_written, receipt_at
from shardwrite.place.base import RECEIPT_NAME, REPORT_NAME, Owner
from shardwrite.place.directory import Directory, put_back
from shardwrite.place.target import Target, check_target
from shardwrite.stores.directories import (
    ASIDE_PREFIX,
    NEW,
    fsync_directory,
    make_directories,
    make_directory,
    rights_of,
)
from shardwrite.stores.looking import as_store_error, c_function, is_there, listed

OLD = "replaced"

_AT_FDCWD = -100  # paths are absolute; see renameat2(2)

_NO_REPLACE, _EXCHANGE = 1, 2

_CANNOT = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP}


_renameat2 = c_function(
    ("renameat2",), ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint
)


def exchange(one: Path, other: Path) -> bool:
    """Let two paths exchange what they name, in one step.

    - `one`, `other`: absolute paths on one file system. Something stands at both.
    - Returns: False if the system or the file system cannot do it. Nothing has changed then.
    """
    return _rename(one, other, _EXCHANGE)


def _rename(one: Path, other: Path, how: int) -> bool:
    """Rename as the system does with a flag; False as `exchange` returns it."""
    if _renameat2 is None:
        return False
    if _renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), how) == 0:
        return True
    number = ctypes.get_errno()
    if number in _CANNOT:
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))


def take_name(place: Path, new: Path, old: Path, is_old: Callable[[Path], bool]) -> bool:
    """Let a new directory take the name of an old one, which gets the other name (step 5).

    - `old`: name for the old one where the system cannot exchange names. If something stands there,
      the old one has lost its name before.
    - `is_old`: whether what has lost its name is what was to lose it.
    - Returns: False if it is not. Then it has its name again.
    """
    if is_there(old) or not is_there(place):
        os.rename(new, place)
        return True
    if exchange(place, new):
        if is_old(new):
            return True
        exchange(place, new)
        return False
    os.rename(place, old)
    if not is_old(old):
        os.rename(old, place)
        return False
    fsync_directory(old.parent)
    os.rename(new, place)
    return True


def is_handed_over(run: Owner, target: Target) -> bool:
    """Whether the new array of a run stands at the name of the array."""
    return _is_new(run, target.directory)


def _is_new(run: Owner, place: Directory) -> bool:
    """Whether a run has written the array at a place, and has left its receipt there."""
    receipt = receipt_at(place)
    return receipt is not None and receipt.names(run.run)


def built_in(run: Owner, target: Target) -> Directory:
    """Place of the new array: in the directory of the run until it is handed over."""
    new = run.path / NEW
    if is_there(new):
        return Directory(new)
    if is_handed_over(run, target):
        return target.directory
    return Directory(_left(run.path) or new)


def written_in(run: Owner, target: Target) -> Directory:
    """Place where tasks that begin now may write: that of step 1, or where the new array stands.

    It is asked for once. Tasks write nowhere else later, when another process takes the steps.
    """
    place = built_in(run, target)
    return place if place == target.directory else Directory(run.path / NEW)


def make_new(
    run: Owner, target: Target, durability: str, may_write_again: Callable[[], bool]
) -> None:
    """Take step 1, or undo step 4.

    - `may_write_again`: whether step 4 may be undone, if a process has taken it.
    """
    new = run.path / NEW
    if is_there(new):
        return
    with run.alone():
        if is_there(new):
            return
        left = rename_aside(run.path)
        if left is None and not is_there(run.path / OLD):
            left = run.path / f"fresh-{uuid.uuid4().hex}"
            make_directory(left, rights_of(target.directory.path))
        elif left is None or is_handed_over(run, target) or not may_write_again():
            return
        elif _has_lost_its_name(left, run, durability):
            raise JournalError(
                f"the new array was moved away from {target.label}, or removed, before its run has "
                "ended. Start over with restart=True (--restart), or give the run up with abandon "
                "(shardwrite abandon)",
                path=str(run.path),
            )
        os.rename(left, new)
        if durability != "none":
            fsync_directory(run.path)


def _has_lost_its_name(left: Path, run: Owner, durability: str) -> bool:
    """Whether a directory of a run that has taken step 4 is the old array.

    The new one has a receipt of the run, unless a power cut has taken that.
    """
    receipt = receipt_at(Directory(left))
    return durability != "none" if receipt is None else not receipt.names(run.run)


def is_closed(run: Owner) -> bool:
    """Whether tasks may write no more, because some process has taken step 4."""
    return not is_there(run.path / NEW)


def close(run: Owner, durability: str) -> None:
    """Take step 4 before the others, so that no task writes while other arrays are handed over."""
    with run.alone():
        if is_there(run.path / NEW):
            rename_aside(run.path)
            if durability != "none":
                fsync_directory(run.path)


def hand_over(
    run: Owner, target: Target, durability: str, withdraw: Callable[[], object] | None
) -> bool:
    """Take steps 3 to 5, as far as they are left. Nothing is done where step 2 was not taken.

    - `withdraw`: takes step 3. If this process took it with another array in the same groups, it is
      None, and what lies above is not looked at again.
    - Returns: whether step 3 was taken now.
    - Raises SpecError if something else than an array was put there meanwhile.
    """
    place = target.directory.path
    if not is_there(place.parent):  # it was removed by hand, and the old array with it
        return False
    is_withdrawn = False
    with as_store_error(str(place), "cannot exchange"):
        if not is_handed_over(run, target):
            with run.alone() as check:
                if not is_written(built_in(run, target), run.run):
                    return False
                if not is_there(run.path / OLD):
                    check_target(target, "w", looks_above=withdraw is not None)
                if withdraw is not None:
                    withdraw()
                    is_withdrawn = True
                check()
                own = rename_aside(run.path)
                if own is None or not _is_new(run, Directory(own)):
                    return is_withdrawn
                for leaf in (DOCUMENT, RECEIPT_NAME, REPORT_NAME):  # of processes that came late
                    Directory(own).store.discard_scope(leaf, "")
                if not take_name(place, own, run.path / OLD, _may_be_replaced):
                    raise StoreError(
                        f"something that is no array was put at {place} a moment ago, and stays "
                        "there. Move it away, and make the same call again",
                        key=str(place),
                        errno=errno.EBUSY,
                    )
                if durability != "none":
                    fsync_directory(run.path)
        if durability != "none":  # also if another process was killed before it did so
            fsync_directory(place.parent)
    return is_withdrawn


def give_name_if_whole(
    run: Owner, target: Target, durability: str, withdraw: Callable[[], object] | None
) -> bool:
    """Let a new array have its name as `give_name` does, for a run that is over; see `hand_over`.

    Nothing is done where the receipt is not there, or the array has its name.
    """
    new = run.path / NEW
    is_withdrawn = False
    if is_there(new) and is_written(Directory(new), run.run):
        is_withdrawn = give_name(run, target, durability, withdraw)
    above = target.directory.path.parent
    if durability != "none" and is_there(above):  # also if another process was killed before
        with as_store_error(str(above), "cannot make durable"):
            fsync_directory(above)
    return is_withdrawn


def give_name(
    run: Owner, target: Target, durability: str, withdraw: Callable[[], object] | None
) -> bool:
    """Let a new array whose receipt is there have its name, where none stood.

    One rename does so, and replaces nothing. What was built is gone then, so that no other process
    does it again, and no task that comes late finds a path. The caller syncs the directory.

    - `withdraw`: takes what another array has left out of the metadata of groups above. It is None
      if this process has done so with another array in the same groups.
    - Returns: whether that was done now.
    """
    place, new = target.directory.path, run.path / NEW
    is_withdrawn = False
    with as_store_error(str(place), "cannot give a new array the name"):
        try:
            if withdraw is not None and is_there(new):
                check_target(target, "w-")
                withdraw()
                is_withdrawn = True
                run.check_held()
                make_directories(place.parent, durability)
            rename_new(new, place)
        except (SpecError, FileNotFoundError, FileExistsError) as error:
            # Another process was first, or has ended the run, or somebody has put that there.
            if not is_handed_over(run, target):
                if isinstance(error, FileExistsError):
                    check_target(target, "w-", looks_above=False)
                raise
    return is_withdrawn


def rename_new(new: Path, place: Path) -> None:
    """Rename a directory if nothing stands at the new name, be it an empty directory."""
    if _rename(new, place, _NO_REPLACE):
        return
    if is_there(place):  # where the system cannot look and rename in one step
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(place))
    os.rename(new, place)


def _may_be_replaced(path: Path) -> bool:
    """Whether a directory is an array, or empty; an array with a group inside is none."""
    place = Directory(path)
    return place.kind() in ("array", "nothing") and place.node_inside() is None


def put_back_old(run: Owner, target: Target) -> None:
    """Give an old array its name back that has lost it in step 5, for a run that was given up."""
    old = run.path / OLD
    if is_there(old) and not is_handed_over(run, target):
        put_back(old, target.directory.path)


def _left(directory: Path) -> Path | None:
    """Directory of what is new, or of what is old after the exchange; None if it is gone."""
    return next(iter(listed(directory, ASIDE_PREFIX)), None)


def rename_aside(directory: Path) -> Path | None:
    """The same, after it was renamed to a name that only this process knows (step 4)."""
    left = _left(directory)
    if left is None:
        return None
    own = directory / f"{ASIDE_PREFIX}{uuid.uuid4().hex}"
    os.rename(left, own)
    return own

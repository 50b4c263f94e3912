"""The state of a run as objects: a log of what changes in a directory.

The directory of a run belongs to one process, and may be lost with its machine. So `Changes` finds
what has changed there since it last looked: directories and files that were made, renamed or
removed, and lines that were added to journals. These steps go into one small object. From all such
objects, in their order, `restore` makes the directory again.

Leases, tokens and claims are left out. They tell of processes that see the same directory, and
there is no other one. Encoded units in part files are left out, too.

An object has a line of JSON, which lists the steps, and then the bytes of all steps. Objects come
from a store that others may write to. So their paths are checked, and nothing outside of the
directory is touched.

Each holder of the lease has a log of its own, whose first object has all of
the state that the holder found. Only then are the objects of earlier logs removed. The lease names
the holder whose log counts (`journal.state_lease`).

Once a lease was given back, several processes may add to the state at a time
(`journal.state_shared`). Each of them has a log beside that of the last holder, with the name of
that holder before its own. Such logs have the journals of their processes and nothing else, so they
can be read in any order.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from crc32c import crc32c

from shardwrite._dataclass import dataclass
from shardwrite.errors import JournalError
from shardwrite.journal.state_lease import LEASE, LeaseRecord
from shardwrite.place.base import STATE_PREFIX
from shardwrite.records import Check, LaterFormatError, Record, one_of
from shardwrite.stores.directories import walk
from shardwrite.stores.looking import as_store_error, parse_json
from shardwrite.stores.removal import TEMPORARY_SUFFIX
from shardwrite.stores.whole import WholeStore

_PASSING = ("lease-", "token-", "claim-", "clock-", "draft-", "parts-", "probe-", "lock-")

_JOURNAL = ("journal-", ".jsonl")

_ENDS = ("ended-", "taken-")


# ---- Steps, and their objects


@dataclass(frozen=True, slots=True)
class Step:
    """One change of a directory."""

    what: str  # kind of the change
    path: str  # what was changed, relative to the directory
    to: str = ""  # new name of what was renamed
    data: bytes = b""  # content of a file, or what was appended to it


def _is_plain(path: str) -> bool:
    return "\0" not in path and not {"", ".", ".."} & set(path.split("/"))


_PATH = Check(_is_plain, "a path of plain names")
_NEW_PATH = Check(lambda path: not path or _is_plain(path), "a path of plain names")
_KIND = one_of("directory", "file", "append", "rename", "remove")


@dataclass(frozen=True, slots=True)
class _Head(Record):
    """First line of an object: kind, path, new name and number of bytes of each step."""

    _format = 1

    crc32c: int  # of the bytes of all steps
    steps: tuple[
        tuple[Annotated[str, _KIND], Annotated[str, _PATH], Annotated[str, _NEW_PATH], int], ...
    ]


def encode(steps: Iterable[Step]) -> bytes:
    """Content of an object with some steps."""
    listed = list(steps)
    data = b"".join(step.data for step in listed)
    told = tuple((step.what, step.path, step.to, len(step.data)) for step in listed)
    return _Head(crc32c(data), told).to_json() + b"\n" + data


def decode(content: bytes, key: str) -> list[Step]:
    """Steps in an object."""
    line, _, data = content.partition(b"\n")
    try:
        head = _Head.from_dict(parse_json(line))
    except LaterFormatError as error:
        raise JournalError(
            f"{key} was written by a later version of shardwrite. Nothing was changed. Install "
            "that version to finish the run, or to give it up",
            path=key,
        ) from error
    except ValueError as error:
        raise _damaged(key, str(error)) from error
    if head.crc32c != crc32c(data):
        raise _damaged(key, "its checksum differs")
    if sum(nbytes for *_, nbytes in head.steps) != len(data):
        raise _damaged(key, "its sizes do not add up")
    steps, at = [], 0
    for what, path, to, nbytes in head.steps:
        steps.append(Step(what, path, to, data[at : at + nbytes]))
        at += nbytes
    return steps


def _damaged(key: str, why: str) -> JournalError:
    return JournalError(
        f"{key} is no state of a run ({why}). Move it away after a look, and keep it", path=key
    )


def restore(directory: Path, steps: Iterable[Step]) -> None:
    """Take steps in a directory that belongs to this process."""
    for step in steps:
        path = directory / step.path
        if step.what == "rename":
            os.rename(path, directory / step.to)
        elif step.what == "directory":
            path.mkdir(parents=True, exist_ok=True)
        elif step.what == "remove":
            shutil.rmtree(path, ignore_errors=True)
            path.unlink(missing_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "ab" if step.what == "append" else "wb") as file:
                file.write(step.data)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a log knows of a file or directory; a directory has no size."""

    is_directory: bool
    changed: int = 0
    inode: int = 0
    nbytes: int = 0


class Changes:
    """A directory of run state, and what of it was put into the log before."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: dict[str, _Seen] = {}

    def since_last(self) -> list[Step]:
        """Changes since the last call; at the first call all that is there."""
        there = dict(self._look())
        steps = list(self._renamed(there))
        gone = sorted(set(self._seen) - set(there))
        for path in gone:
            del self._seen[path]
            if path.rpartition("/")[0] not in gone:
                steps.append(Step("remove", path))
        for path in sorted(there, key=lambda path: (not there[path].is_directory, path)):
            step = self._step(path, there[path])
            if step is not None:
                steps.append(step)
        return steps

    @property
    def is_empty(self) -> bool:
        """Whether no file is left in the directory."""
        return all(seen.is_directory for _, seen in self._look())

    def _look(self) -> Iterator[tuple[str, _Seen]]:
        """What is in the directory."""
        with as_store_error(str(self._directory), "cannot list"):
            for above, directories, files in walk(self._directory):
                directories[:] = [name for name in directories if not name.startswith(_PASSING)]
                inside = Path(above).relative_to(self._directory)
                for name in directories:
                    yield (inside / name).as_posix(), _Seen(is_directory=True)
                for name in files:
                    if name.startswith(_PASSING) or name.endswith(TEMPORARY_SUFFIX):
                        continue
                    try:
                        found = os.stat(Path(above) / name, follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    seen = _Seen(False, found.st_mtime_ns, found.st_ino, found.st_size)
                    yield (inside / name).as_posix(), seen

    def _renamed(self, there: dict[str, _Seen]) -> Iterator[Step]:
        """Runs that have ended, whose directories have new names."""
        for path in sorted(set(self._seen) - set(there)):
            above, _, name = path.rpartition("/")
            if not name.startswith("run-") or not self._seen[path].is_directory:
                continue
            for end in _ENDS:
                new = f"{above}/{end}{name[4:]}".lstrip("/")
                if new in there and new not in self._seen:
                    moved = [p for p in self._seen if p == path or p.startswith(f"{path}/")]
                    for old in moved:
                        self._seen[new + old[len(path) :]] = self._seen.pop(old)
                    yield Step("rename", path, new)
                    break

    def _step(self, path: str, found: _Seen) -> Step | None:
        """What has changed in a file or directory; None if nothing has."""
        before = self._seen.get(path)
        if found.is_directory:
            self._seen[path] = found
            return None if before is not None else Step("directory", path)
        if before == found:
            return None
        name = path.rpartition("/")[2]
        grows = name.startswith(_JOURNAL[0]) and name.endswith(_JOURNAL[1])
        start = before.nbytes if grows and before is not None else 0
        try:
            with open(self._directory / path, "rb") as file:
                file.seek(start)
                data = file.read()
        except FileNotFoundError:  # it was removed meanwhile
            return None
        if grows:
            data = data[: data.rfind(b"\n") + 1]  # the last line is being written
            found = replace(found, nbytes=start + len(data))
        self._seen[path] = found
        if not grows:
            return Step("file", path, data=data)
        return Step("append", path, data=data) if data or before is None else None


# ---- The logs in the bucket


_SHARE = "."  # between the name of a holder and that of a process that adds to its state


class Logs:
    """Logs of an array in its bucket, one for each holder of the lease."""

    def __init__(self, store: WholeStore) -> None:
        self._store = store

    def found(self) -> list[str]:
        """Keys of all objects of run state but the lease, in the order of each log."""
        keys = set(self._store.list_keys(STATE_PREFIX)) - {LEASE}
        # Values that a run keeps lie deeper; see `InStore.staged`.
        return sorted(key for key in keys if "/" not in key.removeprefix(STATE_PREFIX))

    def found_of(self, holder: str) -> list[str]:
        """Keys of the log of a holder, in its order."""
        return [key for key in self.found() if key.startswith(f"{STATE_PREFIX}{holder}-")]

    def key(self, holder: str, number: int) -> str:
        """Key of an object of a log."""
        return f"{STATE_PREFIX}{holder}-{number:08d}"

    def state_after(self, lease: LeaseRecord | None) -> str:
        """Name of the holder whose log counts, after a lease; empty if there is none."""
        if lease is None:
            firsts = [
                key for key in self.found() if key.endswith(f"-{0:08d}") and _SHARE not in key
            ]
            newest = max(firsts, key=lambda key: self._store.changed_at(key) or 0.0, default="")
            return newest.removeprefix(STATE_PREFIX).partition("-")[0]
        has_own = lease.holder and self._store.version(self.key(lease.holder, 0)) is not None
        return lease.holder if has_own else lease.state

    def restore(self, holder: str, directory: Path) -> None:
        """Make a directory again from the log of a holder, and from those beside it, if any."""
        if not holder:
            return
        beside = f"{STATE_PREFIX}{holder}{_SHARE}"
        shares = {key.rpartition("-")[0] for key in self.found() if key.startswith(beside)}
        for name in (holder, *sorted(share.removeprefix(STATE_PREFIX) for share in shares)):
            for key, steps in self._steps(name):
                with as_store_error(key, "cannot take the state from"):
                    restore(directory, steps)

    def runs_of(self, holder: str) -> frozenset[str]:
        """Names of the runs that go on by the log of a holder."""
        there: set[str] = set()
        for _, steps in self._steps(holder) if holder else ():
            for step in steps:
                inside = {path for path in there if f"{path}/".startswith(f"{step.path}/")}
                if step.what == "directory":
                    there.add(step.path)
                elif step.what in ("rename", "remove"):
                    there -= inside
                if step.what == "rename":
                    there |= {step.to + path[len(step.path) :] for path in inside}
        names = {path.rpartition("/")[2] for path in there}
        return frozenset(name.removeprefix("run-") for name in names if name.startswith("run-"))

    def share(self, holder: str, name: str) -> str:
        """Name of the log of a process that adds to the state of a holder."""
        return f"{holder}{_SHARE}{name}"

    def _steps(self, holder: str) -> Iterator[tuple[str, list[Step]]]:
        """Key and steps of each object of a log."""
        for number, key in enumerate(self.found_of(holder)):
            if key != self.key(holder, number):
                raise JournalError(
                    f"{self.key(holder, number)} is missing, without which the state of the run "
                    "is not known. Move what is there away after a look",
                    path=key,
                )
            data = self._store.read_whole(key, 2**40)
            yield key, decode(data or b"", key)

    def put(self, holder: str, number: int, data: bytes) -> None:
        """Put an object of a log. It may be there already, because an answer was lost."""
        self._store.put_object(self._store.prefix + self.key(holder, number), bytearray(data))

    def remove(self, keys: Iterable[str]) -> None:
        """Remove some objects."""
        for key in keys:
            self._store.remove_object(self._store.prefix + key)

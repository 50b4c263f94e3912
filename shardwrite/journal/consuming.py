"""Consumption of an array: its objects are removed as soon as what is made of them is safe.

The state lies in the directory of a conversion in place (see :mod:`shardwrite.journal.in_place`),
beside the array that is consumed. So one process at a time consumes, all other writers of the array
are refused, and a process that was frozen and taken over removes nothing.

``listed.json``
    The identity of the array, and which of its objects were there before the first was removed.
``aside/``
    Its documents. Without them no reader can take objects that are removed for fill values.
``checked-<token>.jsonl``
    A synced line for each group of new shards that were compared with the array.

If a whole hierarchy is consumed, the conversion is one of its root, and each of its groups and
arrays has such files in a directory ``node-<digest of its path>/``.

The steps in order, and in italics what a crash after each leaves:

1. Record the conversion, and list the objects, durably. *The array.*
2. Move the documents aside, and sync that. *All objects, and no document. The next call goes on.
   Giving up moves the documents back.*
3. For each group of shards that are durable: compare them with the array, and sync a line about
   them. *The same. The next call knows that these shards are whole.*
4. Remove the objects of which all shards have such a line. *Each inner chunk lies in the array, in
   the new array, or in both. The next call goes on. Giving up is refused.*
5. Publish the new array, and remove what is left of the old one. *The new array.*
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import json
import os
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.documents import JSON
from shardwrite.errors import JournalError, StoreError
from shardwrite.format.node import (
    ATTRIBUTES_OF_V2,
    CONSOLIDATED_OF_V2,
    DOCUMENT,
    DOCUMENTS_OF_V2,
)
from shardwrite.journal.records import encode_line, parse_lines
from shardwrite.place.base import RECEIPT_NAME
from shardwrite.stores import (
    Proof,
    as_store_error,
    fsync_directory,
    is_there,
    listed,
    make_directories,
    parse_json,
    read_blocks,
    read_file,
    remove_data,
    walk,
    write_all,
    write_file,
)
from shardwrite.stores.descriptors import opened

_LISTED, _ASIDE, _LINES = "listed.json", "aside", "checked-"
_DOCUMENTS = (DOCUMENT, *DOCUMENTS_OF_V2)
_NBYTES_PER_SHARD = 256


@dataclass(frozen=True, slots=True)
class Listed:
    """Objects that an array had before the first of them was removed."""

    path: str  # file that lists them

    def has(self, rank: int) -> bool:
        """Whether the shard of a row-major rank had an object."""
        return bool(_read(self.path)[1][rank])

    def missing(self, key: str) -> StoreError:
        """The error that one of these objects is missing."""
        return StoreError(
            f"{key!r} is missing, and was there when the conversion began to remove what it "
            "has copied. It is not taken for empty. If somebody has moved it, put it back, and "
            "make the same call again",
            key=key,
            errno=errno.ENOENT,
        )


@lru_cache(maxsize=4)
def _read(path: str) -> tuple[str, npt.NDArray[np.bool_]]:
    """Identity of an array, and for each of its shards whether it had an object."""
    try:
        found = parse_json(read_file(path) or b"")
        n = int(found["n_shards"])
        bits = zlib.decompressobj().decompress(base64.b64decode(found["listed"]), n // 8 + 1)
        there = np.unpackbits(np.frombuffer(bits, np.uint8), count=n).astype(bool)
        return str(found["identity"]), there
    except (ValueError, TypeError, LookupError, zlib.error) as error:
        raise StoreError(
            f"{path} does not list the objects of an array: {error}", key=path, errno=errno.EIO
        ) from error


@dataclass(frozen=True, slots=True)
class Checked:
    """Shards that were compared with what they were made of; see `Entry` for the columns."""

    shards: tuple[int, ...]
    nbytes: tuple[int, ...]
    index_crcs: tuple[int, ...]
    n_chunks: tuple[int, ...]

    def to_dict(self, attempt: str) -> dict[str, JSON]:
        """Fields of its line."""
        return {
            "attempt": attempt,
            "shards": list(self.shards),
            "nbytes": list(self.nbytes),
            "crc": list(self.index_crcs),
            "chunks": list(self.n_chunks),
        }

    @classmethod
    def from_dict(cls, found: Mapping[str, JSON]) -> Checked:
        """Parse a line."""
        columns = [found.get(name) for name in ("shards", "nbytes", "crc", "chunks")]
        numbers = [
            tuple(n for n in column if isinstance(n, int)) if isinstance(column, list) else ()
            for column in columns
        ]
        if not numbers[0] or len({len(column) for column in numbers}) != 1:
            raise ValueError("no line about shards")
        return cls(*numbers)


class Consumption:
    """State of the consumption of an array, or of a group of a hierarchy that is consumed."""

    def __init__(self, path: Path, work: Path, state: Path | None = None) -> None:
        self.path, self._moved_to = path, work
        self.work = work if state is None else state
        self._fd = -1

    @property
    def listed(self) -> Listed:
        """The objects that were there."""
        return Listed(str(self.work / _LISTED))

    @property
    def is_listed(self) -> bool:
        """Whether the objects were listed."""
        return is_there(self.work / _LISTED)

    @property
    def identity(self) -> str:
        """Identity of the array when its objects were listed."""
        return _read(self.listed.path)[0]

    @property
    def was_there(self) -> npt.NDArray[np.bool_]:
        """For each shard of the array, whether it had an object."""
        return _read(self.listed.path)[1]

    @property
    def aside(self) -> Path | None:
        """Directory of the documents that were moved; None if they were not."""
        aside = self.work / _ASIDE
        return aside if any(is_there(aside / leaf) for leaf in _DOCUMENTS) else None

    def list_objects(self, identity: str, there: npt.NDArray[np.bool_]) -> None:
        """List the objects that are there, durably (step 1)."""
        bits = base64.b64encode(zlib.compress(np.packbits(there).tobytes(), 1)).decode()
        facts = {"version": 1, "identity": identity, "n_shards": len(there), "listed": bits}
        data = json.dumps(facts).encode()
        write_file(self.work / _LISTED, data, durability="full", attempt=uuid.uuid4().hex)

    def hide(self) -> None:
        """Move the documents of the array aside, and sync that (step 2)."""
        aside = self.work / _ASIDE
        with as_store_error(str(self.path), "cannot set aside the document of"):
            make_directories(aside, "full")
            for leaf in (ATTRIBUTES_OF_V2, CONSOLIDATED_OF_V2):
                data = read_file(self.path / leaf)
                if data is not None:
                    write_file(aside / leaf, data, durability="full", attempt=uuid.uuid4().hex)
            for leaf in _DOCUMENTS:
                if not is_there(self.path / leaf):
                    continue
                if is_there(aside / leaf):
                    raise StoreError(
                        f"another program has written {self.path / leaf} meanwhile. Move it away, "
                        "and make the same call again",
                        key=leaf,
                        errno=errno.EEXIST,
                    )
                os.rename(self.path / leaf, aside / leaf)
            with contextlib.suppress(FileNotFoundError):
                os.rename(self.path / CONSOLIDATED_OF_V2, aside / CONSOLIDATED_OF_V2)
            fsync_directory(aside)
            if is_there(self.path):  # and not removed already
                fsync_directory(self.path)

    def check_whole(self) -> None:
        """Refuse to give up if objects may have been removed."""
        n = sum(len(checked.shards) for checked in self.checked())
        if n:
            raise JournalError(
                f"objects of {self.path} were removed, and {n:,} new shards hold what was in them. "
                "This cannot be given up. Make the same call again to finish it",
                path=str(self.work),
            )

    def give_back(self) -> None:
        """Move the documents back, unless objects may have been removed."""
        self.check_whole()
        with as_store_error(str(self.path), "cannot put back the document of"):
            if self.aside is not None and not is_there(self.path):  # of an array without elements
                make_directories(self.path, "full")
            for leaf in (ATTRIBUTES_OF_V2, CONSOLIDATED_OF_V2, *reversed(_DOCUMENTS)):
                if is_there(self.work / _ASIDE / leaf) and not is_there(self.path / leaf):
                    os.rename(self.work / _ASIDE / leaf, self.path / leaf)
            if is_there(self.path):
                fsync_directory(self.path)

    def checked(self) -> Iterator[Checked]:
        """All lines about shards (step 3). A line that is torn was not synced, and counts not."""
        for path in listed(self.work, _LINES):
            most = len(self.was_there) * _NBYTES_PER_SHARD + 2**30
            for line in parse_lines(read_blocks(path, most)):
                if line is not None:
                    with contextlib.suppress(ValueError):
                        yield Checked.from_dict(line)

    def enter(self, checked: Checked) -> Proof:
        """Sync a line about shards that are durable and were compared (step 3)."""
        fields = checked.to_dict(uuid.uuid4().hex)
        with as_store_error(str(self.work), "cannot record what was compared in"):
            try:
                if self._fd < 0:
                    self._open()
                write_all(self._fd, encode_line(fields))
                os.fsync(self._fd)
            except BaseException:
                self.close()  # the line may be torn or lost, so the next one goes to a new file
                raise
        return Proof(self._moved_to, fields)

    def again(self) -> Proof:
        """Proof by a line that was synced before, for objects that a crash has left."""
        line = next(self.checked(), None)
        if line is None:
            raise JournalError(
                f"nothing in {self.work} says that objects of {self.path} may be removed",
                path=str(self.work),
            )
        return Proof(self._moved_to, line.to_dict("again"))

    def _open(self) -> None:
        flags = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_WRONLY | os.O_APPEND
        self._fd = opened(self.work / f"{_LINES}{uuid.uuid4().hex}.jsonl", flags, 0o600)
        fsync_directory(self.work)

    def close(self) -> None:
        """Close the file of lines."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):  # all lines that count were synced
                os.close(fd)

    def remove(self, line: Proof, keys: Sequence[str]) -> None:
        """Remove objects of which all shards were compared (step 4).

        - `keys`: keys of the objects. Those that are gone already are no error.
        """
        known = frozenset(keys)
        proof = Proof(line.run_path, line.entry, lambda: known)
        with as_store_error(str(self.path), "cannot remove objects of"):
            for key in keys:
                remove_data(self.path, key, proof)

    def remove_rest(self, line: Proof) -> bool:
        """Remove what is left of the array, but for files that are not its own (step 5)."""
        self.close()
        if is_there(self.path):
            self.remove(line, [ATTRIBUTES_OF_V2, RECEIPT_NAME])
            with as_store_error(str(self.path), "cannot remove"):
                for directory, _, _ in walk(self.path, upwards=True):
                    try:
                        os.rmdir(directory)
                    except OSError as error:
                        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                            raise
                fsync_directory(self.path.parent)
        return not is_there(self.path)


def consumption_of(path: Path, work: Path, name: str) -> Consumption:
    """State of a node of a hierarchy that is consumed, or of a single array.

    - `name`: path of the node in the hierarchy. That of a group ends with a slash. It is empty for
      a single array.
    """
    if not name:
        return Consumption(path, work)
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    return Consumption(path / name.strip("/"), work, work / f"node-{digest}")

"""Consumption of an array: its objects are removed as soon as what is made of them is safe.

Its state lies in the directory of a conversion in place (see :mod:`shardwrite.convert.swap`),
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
   Giving up, or an error, moves the documents back.*
3. For each group of shards that are durable: compare them with the array, and sync a line about
   them. *The same. The next call knows that these shards are whole.*
4. Remove the objects of which all shards have such a line. *Each inner chunk lies in the array, in
   the new array, or in both. The next call goes on. Giving up is refused.*
5. Publish the new array, and remove what is left of the old one. *The new array.*

Objects that stay as they are, are copied by tasks of a run, each as a whole.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import itertools
import json
import os
import uuid
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt
from dask.task_spec import Task

from shardwrite._dataclass import dataclass
from shardwrite.codecs.documents import JSON
from shardwrite.engines.local import Engine
from shardwrite.errors import CorruptShardError, JournalError, StoreError
from shardwrite.format.node import (
    ATTRIBUTES_OF_V2,
    CONSOLIDATED_OF_V2,
    DOCUMENT,
    DOCUMENTS_OF_V2,
)
from shardwrite.format.passage import Passage
from shardwrite.grid import Box, Shape, ShardGrid, ravel
from shardwrite.journal.ledger import Ledger
from shardwrite.journal.lines import encode_line, parse_lines
from shardwrite.journal.rundir import RunDirectory, confirm
from shardwrite.place.base import RECEIPT_NAME
from shardwrite.place.target import CONSUMES
from shardwrite.plan.identity import WHOLE
from shardwrite.plan.model import SourceLayout
from shardwrite.plan.options import PlanOptions
from shardwrite.plan.plan import Plan
from shardwrite.read.array import ShardedArray
from shardwrite.read.inspection import inspect_shards
from shardwrite.read.stored_array import StoredArray, check_names
from shardwrite.read.stored_shard import open_shard, read_again
from shardwrite.records import Record, always
from shardwrite.runs.array_plan import plan_into
from shardwrite.runs.execute import OnReport, Run
from shardwrite.runs.job import Job, Key, TaskBox
from shardwrite.runs.result import WriteResult
from shardwrite.runs.stored_chunks import EncodedChunks, check_nothing_lost
from shardwrite.stores.base import COPIED_NBYTES, Capability, ObjectReader, Transaction, require
from shardwrite.stores.directories import fsync_directory, make_directories, walk
from shardwrite.stores.looking import (
    as_store_error,
    is_there,
    listed,
    opened,
    parse_json,
    read_blocks,
    read_file,
    write_all,
)
from shardwrite.stores.posix import write_file
from shardwrite.stores.removal import Proof, remove_data
from shardwrite.write.commit import commit_shards, in_turns
from shardwrite.write.comparing import differing
from shardwrite.write.context import GroupReport, WriteSpec, Written
from shardwrite.write.copying import Donor, check_missing, sizes_in
from shardwrite.write.emitter import Emitter

if TYPE_CHECKING:
    from shardwrite.convert.swap import InPlace

# ---- The record of a consumption


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Objects(Record):
    """Which shards of an array had an object."""

    version: Annotated[int, range(1, 2)] = always(1)
    identity: str  # of the array
    n_shards: int
    listed: str  # a compressed bit for each shard

    def there(self) -> npt.NDArray[np.bool_]:
        """For each shard, whether it had an object."""
        data, most = base64.b64decode(self.listed), self.n_shards // 8 + 1
        bits = np.frombuffer(zlib.decompressobj().decompress(data, most), np.uint8)
        return np.unpackbits(bits, count=self.n_shards).astype(bool)


@lru_cache(maxsize=4)
def _read(path: str) -> tuple[str, npt.NDArray[np.bool_]]:
    """Identity of an array, and for each of its shards whether it had an object."""
    try:
        found = _Objects.from_dict(parse_json(read_file(path) or b""))
        return found.identity, found.there()
    except (ValueError, zlib.error) as error:
        raise StoreError(
            f"{path} does not list the objects of an array: {error}", key=path, errno=errno.EIO
        ) from error


@dataclass(frozen=True, slots=True)
class Checked(Record):
    """Line about shards that were compared with what they were made of; see `Entry`."""

    attempt: str
    shards: tuple[int, ...]
    nbytes: tuple[int, ...]
    crc: tuple[Annotated[int, range(2**32)], ...]
    chunks: tuple[int, ...]

    @classmethod
    def from_dict(cls, found: JSON) -> Checked:
        """Parse a line."""
        line = super(Checked, cls).from_dict(found)  # noqa: UP008 (it has slots)
        columns = (line.shards, line.nbytes, line.crc, line.chunks)
        if not line.shards or len({len(column) for column in columns}) != 1:
            raise ValueError("no line about shards")
        return line


class Consumption:
    """State of the consumption of an array, or of a group of a hierarchy that is consumed."""

    def __init__(self, path: Path, work: Path, state: Path | None = None) -> None:
        self.path, self._moved_to = path, work
        self.work = work if state is None else state
        self._fd = -1
        self.has_failed = False  # a shard of the source or of the new array was found bad
        self._mark: Path | None = None  # that this process has put into the run of the new array

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
        facts = _Objects(identity=identity, n_shards=len(there), listed=bits)
        data = facts.to_json()
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

    def mark(self, run: RunDirectory) -> None:
        """Note in a run that from now on its shards are not taken away."""
        data = json.dumps({"source": str(self.path)}).encode()
        self._mark = run.path / CONSUMES
        write_file(self._mark, data, durability="full", attempt=uuid.uuid4().hex)
        confirm(run.target)

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
            if self._mark is not None:
                try:  # into the work, which is not there any more if another process took it over
                    os.rename(self._mark, self._moved_to / CONSUMES)
                except OSError as error:
                    # It stays on another file system, and in a run that has ended there is none.
                    if error.errno not in (errno.ENOENT, errno.EXDEV):
                        raise

    def checked(self) -> Iterator[Checked]:
        """All lines about shards (step 3). A line that is torn was not synced, and counts not."""
        for path in listed(self.work, _LINES):
            most = len(self.was_there) * _NBYTES_PER_SHARD + 2**30
            with as_store_error(str(path), "cannot read"):
                for line in parse_lines(read_blocks(path, most)):
                    if line is not None:
                        with contextlib.suppress(ValueError):
                            yield Checked.from_dict(line)

    def enter(self, *columns: tuple[int, ...]) -> Proof:
        """Sync a line about shards that are durable and were compared, if any (step 3)."""
        fields = Checked(uuid.uuid4().hex, *(columns or ((), (), (), ()))).to_dict()
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
        return Proof(self._moved_to, line.to_dict())

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


def states_of(work: InPlace) -> dict[str, Consumption]:
    """State of the consumption of each node of a tree, by its name in the layout."""
    return {name: consumption_of(work.path, work.work, name) for name in work.layout}


def give_back(work: InPlace, states: dict[str, Consumption]) -> None:
    """Give up a conversion that consumes a tree, unless something of it was removed."""
    for state in states.values():
        state.check_whole()
    for name in reversed(states):
        states[name].give_back()
    work.give_up()


# ---- Tasks that copy whole objects


def copy_objects(
    spec: WriteSpec,
    source: ShardedArray,
    listed: Listed | None,
    group: Box,
    skip: frozenset[Shape],
) -> GroupReport:
    """Copy the objects of a group byte by byte. Objects that the source lacks stay missing.

    The index of each shard is checked before the shard is copied. Nothing is decoded.

    - `spec`: facts about the run. Its array has the same document as the source.
    - `listed`: objects that the source must have.
    - Raises CorruptShardError if the index of a shard is not valid, or an inner chunk has a size
      that it cannot have.
    - Raises StoreError if the storage refuses. The error number is ESTALE if the source has changed
      meanwhile.
    - Raises RunEndedError if the run has ended, or was taken over.
    """

    def write(transaction: Transaction, index: Shape) -> Written:
        shard = open_shard(source.metadata, source.store, index)
        if shard is None:
            check_missing(listed, source.metadata, index, ravel(index, spec.metadata.grid.counts))
            return Emitter(spec, transaction, index).nothing()
        with shard:
            sizes_in(source.metadata, shard)
            emitter = Emitter(spec, transaction, index, shard.check_current)
            return emitter.whole(shard.reader, shard.index)

    wanted = [index for index in spec.metadata.grid.shards_in(group) if index not in skip]
    with spec.at_work(), in_turns(spec, len(wanted), write) as write_in_turn:
        return commit_shards(spec, group, wanted, write_in_turn)


def differing_objects(
    array: ShardedArray, source: ShardedArray, ranks: npt.NDArray[np.int64]
) -> dict[int, str]:
    """Compare some objects of an array with those of another, byte by byte."""
    found = {}
    metadata = array.metadata
    for rank in ranks.tolist():
        key = metadata.key_of_rank(rank)
        # What was copied may have come from what this machine has kept of the source.
        if _differs(array.store.open(key), source.store.open_again(key)):
            message = "is not the same as in the source"
            read_again(source.store, key, CorruptShardError(message, key=key))
            if _differs(array.store.open_again(key), source.store.open_again(key)):
                found[rank] = message
    return found


def _differs(ours: ObjectReader | None, theirs: ObjectReader | None) -> bool:
    """Whether two open objects, which are closed then, do not have the same bytes."""
    with contextlib.ExitStack() as stack:
        for reader in (ours, theirs):
            if reader is not None:
                stack.enter_context(reader)
        if ours is None or theirs is None or ours.nbytes != theirs.nbytes:
            return ours is not theirs
        return any(
            ours.read(start, nbytes) != theirs.read(start, nbytes)
            for start in range(0, ours.nbytes, COPIED_NBYTES)
            for nbytes in (min(COPIED_NBYTES, ours.nbytes - start),)
        )


# ---- The conversion that compares, records and removes


Ranks = npt.NDArray[np.int64]

_MOST_AT_ONCE = 4096  # shards in a line, when many are found done


class Consumer:
    """Removes the objects of an array as they become superfluous.

    - `passage`: how encoded chunks pass from one to the other. None if whole objects are the same.
    """

    def __init__(
        self,
        state: Consumption,
        source: ShardedArray,
        target: ShardedArray,
        passage: Passage | None,
        engine: Engine,
    ) -> None:
        self.n_removed = 0
        self._state, self._engine = state, engine
        self._source, self._target = source, target
        self._donor = None if passage is None else Donor(source, passage, listed=state.listed)
        self._is_checked = np.zeros(target.metadata.grid.n_shards, dtype=bool)
        self._is_there = np.zeros(source.metadata.grid.n_shards, dtype=bool)
        self._ledger = Ledger(target.metadata.grid)
        self._line: Proof | None = None
        self._run: RunDirectory | None = None

    def begin(self, ledger: Ledger, run: RunDirectory | None, *, deep: bool = False) -> None:
        """Go on where the consumption was interrupted, or begin it.

        - `ledger`: shards of the new array that are done. Those that were compared before are
          added.
        - `run`: the run that writes them, unless that has ended.
        - `deep`: decode the shards that were compared before.
        - Raises CorruptShardError if a shard is damaged whose source is removed already.
        """
        self._ledger = ledger
        for checked in self._state.checked():
            ranks = list(checked.shards)
            self._is_checked[ranks] = ledger.is_done[ranks] = True
            ledger.nbytes[ranks] = checked.nbytes
            ledger.index_crcs[ranks] = checked.crc
            ledger.n_chunks[ranks] = checked.chunks
        self._check_shards(ledger, deep=deep)
        self._look_at_source()
        self._run = run
        self._state.hide()
        self.catch_up()

    def catch_up(self) -> None:
        """Compare all shards that are done, also those whose reports did not come, and remove."""
        done = np.flatnonzero(self._ledger.is_done & ~self._is_checked)
        for first in range(0, len(done), _MOST_AT_ONCE):
            self._consume(done[first : first + _MOST_AT_ONCE])
        self._remove(np.flatnonzero(self._is_there))

    def _check_shards(self, ledger: Ledger, *, deep: bool) -> None:
        """Check that the shards that were compared are still what they were."""
        ranks = np.flatnonzero(self._is_checked)
        if not len(ranks):
            return
        table = inspect_shards(self._engine, self._target, ranks, deep=deep)
        table.refuse_unread(repr(self._target))
        differing = table.against(ledger.nbytes, ledger.index_crcs).all
        if len(differing):
            raise CorruptShardError(
                "it is not what it was when it was compared with the source, whose objects are "
                "removed. Nothing more is removed. If it was moved or replaced, put it back, and "
                "make the same call again",
                key=self._target.metadata.key_of_rank(differing[0]),
            )

    def _look_at_source(self) -> None:
        """Compare the objects that are there with those that were listed."""
        self._is_there, was_there = ranks_there(self._source), self._state.was_there
        for ranks, why in (
            (np.flatnonzero(self._is_there & ~was_there), "was written after the conversion began"),
            (
                self._not_free(np.flatnonzero(was_there & ~self._is_there)),
                "is missing, and is not in the new array",
            ),
        ):
            if len(ranks):
                key = self._source.metadata.key_of_rank(ranks[0])
                raise StoreError(
                    f"{key!r} of the array that is consumed {why}, and so are {len(ranks) - 1:,} "
                    "others. Nothing more is removed. Put back what is missing, or move away what "
                    "was written, and make the same call again",
                    key=key,
                    errno=errno.ENOENT,
                )

    def took(self, report: GroupReport) -> None:
        """Compare and record the shards of a task, and remove what is superfluous now."""
        ranks = np.array([r for r in report.shards if not self._is_checked[r]], np.int64)
        self._consume(ranks)

    def _consume(self, ranks: Ranks) -> None:
        if not len(ranks):
            return
        bad = (
            differing_objects(self._target, self._source, ranks)
            if self._donor is None
            else differing(self._target, ranks, self._donor)
        )
        for rank, message in bad.items():
            raise CorruptShardError(
                f"{message}; nothing of what it was made of is removed",
                key=self._target.metadata.key_of_rank(rank),
            )
        if self._run is not None:
            self._state.mark(self._run)
            self._run = None
        ledger = self._ledger
        columns = (ledger.nbytes, ledger.index_crcs, ledger.n_chunks)
        facts = [tuple(int(n) for n in column[ranks]) for column in columns]
        self._line = self._state.enter(tuple(ranks.tolist()), *facts)
        self._is_checked[ranks] = True
        grids = self._target.metadata.grid, self._source.metadata.grid
        touched = np.unique(np.concatenate(list(_meeting(ranks, *grids))))
        self._remove(touched[self._is_there[touched]])

    def _remove(self, numbers: Ranks) -> None:
        """Remove those of some objects of which all shards were compared."""
        numbers = np.setdiff1d(numbers, self._not_free(numbers))
        if not len(numbers):
            return
        if self._line is None:
            self._line = self._state.again()
        metadata = self._source.metadata
        keys = [metadata.key_of_rank(n) for n in numbers.tolist()]
        self._state.remove(self._line, keys)
        self._is_there[numbers] = False
        self.n_removed += len(keys)

    def _not_free(self, numbers: Ranks) -> Ranks:
        """Those of some objects of which a shard was not compared yet."""
        if not len(numbers):
            return numbers
        is_free = np.ones(len(numbers), dtype=bool)
        for ranks in _meeting(numbers, self._source.metadata.grid, self._target.metadata.grid):
            is_free &= self._is_checked[ranks]
        return numbers[~is_free]

    def finish(self) -> bool:
        """Remove what is left of the array; return whether nothing is."""
        if self._is_there.any():
            raise StoreError(
                f"objects of {self._state.path} are left, although all shards are written",
                key=str(self._state.path),
                errno=errno.ENOTEMPTY,
            )
        if not self._is_checked.size:  # of an array without elements
            self._line = self._state.enter()
        return self._state.remove_rest(self._line or self._state.again())


def ranks_there(array: ShardedArray) -> npt.NDArray[np.bool_]:
    """For each shard of an array, whether it has an object. The array is listed once."""
    grid, keys = array.metadata.grid, list(array.store.list_keys())
    there = np.zeros(grid.n_shards, dtype=bool)
    label = str(array.store.local_root or array.store)
    check_names(lambda: keys, array.metadata, label, to_the_end=True, is_removed=True)
    found = (array.metadata.shard_index(key) for key in keys)
    there[[ravel(index, grid.counts) for index in found if index is not None]] = True
    return there


def met_by(ranks: Ranks, grid: ShardGrid, other: ShardGrid) -> tuple[list[Ranks], list[Ranks]]:
    """First and last shards of another grid of the same shape that some shards of a grid meet.

    Both have an array for each axis, with the position of one shard for each rank.
    """
    firsts, lasts = [], []
    index = np.unravel_index(ranks, grid.counts)
    for at, s, t, n in zip(index, grid.shards, other.shards, grid.shape, strict=True):
        firsts.append(at * s // t)
        lasts.append((np.minimum((at + 1) * s, n) - 1) // t)
    return firsts, lasts


def _meeting(ranks: Ranks, grid: ShardGrid, other: ShardGrid) -> Iterator[Ranks]:
    """Ranks of the shards of another grid of the same shape that meet some shards of a grid.

    Each array that is yielded has one rank for each shard; a rank may come more than once.
    """
    if not grid.ndim:
        yield np.zeros(len(ranks), dtype=np.int64)
        return
    firsts, lasts = met_by(ranks, grid, other)
    spans = [
        range(int((last - first).max()) + 1) for first, last in zip(firsts, lasts, strict=True)
    ]
    for steps in itertools.product(*spans):
        place = [np.minimum(a + k, b) for a, k, b in zip(firsts, steps, lasts, strict=True)]
        yield np.asarray(np.ravel_multi_index(place, other.counts), dtype=np.int64)


def execute_consuming(
    job: Job, engine: Engine, progress: bool | OnReport, consumer: Consumer
) -> WriteResult:
    """Write an array, and consume what it is made of."""
    with Run.open([job], engine, progress) as run:
        for session in run.sessions:  # none if the job was finished before
            n_before = session.ledger.n_done
            consumer.begin(session.ledger, session.directory, deep=job.options.recheck)
            if session.ledger.n_done != n_before:
                session.note_resumed()
        run.execute(on_commit=consumer.took, publish=False)
        if run.sessions:
            consumer.catch_up()
        (result,) = run.finish()
    if not run.sessions:
        array = ShardedArray(job.plan.metadata, job.target.store)
        ranks = np.arange(job.plan.metadata.grid.n_shards, dtype=np.int64)
        table = inspect_shards(engine, array, ranks, deep=False)
        table.refuse_bad(job.target.label)
        consumer.begin(Ledger.of(job.plan.metadata.grid, table), None)
    return result


# ---- Whole objects as a source of chunks


@dataclass(frozen=True, slots=True)
class WholeObjects(EncodedChunks):
    """Objects of another array whose document is that of the plan."""

    array: ShardedArray  # the other array
    listed: Listed | None = None  # objects that the other array must have

    @property
    def dtype(self) -> np.dtype[Any]:
        """See :class:`ChunkSource`."""
        return self.array.metadata.dtype

    @property
    def region(self) -> None:
        """See :class:`ChunkSource`."""
        return

    @property
    def read_from(self) -> ShardedArray:
        """See :class:`ReadsArray`."""
        return self.array

    @property
    def copied(self) -> ShardedArray | None:
        """See :class:`CopiesObjects`; nothing if the array's objects are removed meanwhile."""
        return self.array if self.listed is None else None

    def write(self, at: TaskBox) -> dict[Key, Any]:
        """See :class:`ChunkSource`."""
        task = Task(at.key, copy_objects, at.spec, self.array, self.listed, at.box, at.skip)
        return {at.key: task}


def plan_transfer_of(source: StoredArray, engine: Engine) -> Plan:
    """Plan a copy of an array with the same document and the same objects.

    - Raises ChangedError if the array has lost objects.
    """
    if not engine.shares_memory:
        require(source.array.store, Capability.SHARED, field="src", value=source.label)
    check_nothing_lost(source)
    metadata = source.array.metadata
    layout = SourceLayout(metadata.grid.sizes, 0, f"{source.identity}{WHOLE}")
    return plan_into(metadata, layout, engine, PlanOptions(), by_groups=True)

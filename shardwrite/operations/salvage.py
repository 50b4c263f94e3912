"""Salvage: cut torn shards back to their last whole state. The index must lie at the end.

An append leaves the old index in place until the new one is written after it. A torn append can
therefore be undone: the shard is cut to the size that a journal recorded. Without a journal, the
file is searched backwards for an index with a correct checksum. Such a search does not tell how old
the state is that it finds.

A shard that is a file of another format, too, is not cut, since programs of that format could not
read it afterwards. It gets a new index instead, or stays as it is.

A salvage commits like every other change: it holds a lease, keeps a journal, and checks its token
before each rename.

- While the run that makes the array has not ended, its journal has the sizes, and the salvage takes
  part in that run.
- Otherwise the salvage is an update of the shards that it cuts, with a run of its own. No other
  update writes these shards meanwhile. A salvage that has died is not continued: the next writer
  gives its run up, and each of its shards is then either still torn or already cut.

Copies of bad shards lie in ``<array>.quarantine/``, beside an array in a directory, or else where
its run state lies. If that state lies in the array's bucket, the copies lie there, too, below
``shardwrite-quarantine/`` in the array: the directory of this process would be removed at its exit.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from dataclasses import field
from functools import partial

from shardwrite._dataclass import dataclass
from shardwrite.codecs.stages import Buffer, Ranges
from shardwrite.encode.reader import ShardReader, scan_for_end, shard_up_to
from shardwrite.errors import CorruptShardError
from shardwrite.format.frame import Signature
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.strategies import FixedOrder
from shardwrite.grid import Shape, ravel
from shardwrite.journal.documents import present_listed
from shardwrite.journal.ledger import Ledger
from shardwrite.journal.lines import own_journals, taking_part
from shardwrite.journal.neighbours import begin_passing, giving_up
from shardwrite.journal.plan_record import new_name
from shardwrite.journal.rundir import RunDirectory
from shardwrite.journal.takeover import end_run, recover_changes
from shardwrite.journal.trust import require_trusted_copies
from shardwrite.journal.undo import read_over
from shardwrite.place.base import QUARANTINE_PREFIX
from shardwrite.place.directory import Directory
from shardwrite.place.target import Target
from shardwrite.plan.identity import Identity, ShardWindow
from shardwrite.read.array import ShardedArray
from shardwrite.read.signatures import signature_of
from shardwrite.runs.begin import ended_or
from shardwrite.runs.old_shards import OldShards
from shardwrite.runs.result import updated_receipt
from shardwrite.seams import resolve
from shardwrite.stores.base import (
    ObjectReader,
    Store,
    Transaction,
    changed_meanwhile,
    copy_bytes,
    open_there,
)
from shardwrite.stores.directories import RUN_SUFFIX, make_directories
from shardwrite.stores.looking import as_store_error, is_there
from shardwrite.write.commit import commit_shard
from shardwrite.write.context import WriteSpec, Written

# ---- Quarantine: copies of bad shards


def keep_copy(target: Target, key: str, durability: str) -> str:
    """Keep a copy of a bad shard in the quarantine directory; the shard itself stays.

    A copy is named after the version of the shard, so that a call made again adds none.

    - Raises UntrustedStateError if the directory is a link, or another user's.
    """
    version = hashlib.sha256(repr(target.store.version(key)).encode()).hexdigest()
    leaf = f"{key.replace('/', '.')}.{version[:16]}"
    if target.in_store:
        return _kept_in_bucket(target, key, f"{QUARANTINE_PREFIX}{leaf}", durability)
    place = target.place
    state = place.own_state if isinstance(place, Directory) else target.beside
    directory = state.with_name(f"{state.name.removesuffix(RUN_SUFFIX)}.quarantine")
    with as_store_error(str(directory), "cannot make"):
        make_directories(directory, durability, like=target.place.rights_like)
    require_trusted_copies(directory)  # anybody may have put it there before
    if not is_there(directory / leaf):
        target.place.keep_copy(key, directory / leaf, durability)
    return str(directory / leaf)


def _kept_in_bucket(target: Target, key: str, leaf: str, durability: str) -> str:
    if not target.place.has(leaf):
        with open_there(target.store, key) as reader:
            data = reader.read(0, reader.nbytes)
        target.place.write(leaf, data, durability=durability, attempt=f"{uuid.uuid4().hex}.0")
    return f"{target.label}/{leaf}"


# ---- Salvage


_BY_JOURNAL = "the size in the journal"

_BY_SCAN = "found by a backward scan: an earlier state, of unknown age"

_BY_DATASET = "which another program may have changed; all else in the file is as it was"

_CHANGED = "another program has changed it since the run wrote it"

_FROM_SOURCE = "Repair it with the source (--source)"

_BY_THE_RUN = "Run the command that writes the array again with recheck=True (--recheck)"


@dataclass(frozen=True, slots=True)
class NewIndex:
    """A shard that is a file of another format, with a new index, as an object to read."""

    source: Ranges  # the file as it is
    nbytes: int  # size of the file with the new index
    dataset: str  # name of the dataset that the index is of
    # Offsets and bytes that differ, ascending. The last ones may follow the end of the file.
    changes: tuple[tuple[int, bytes], ...]

    def read(self, offset: int, nbytes: int) -> Buffer:
        """See :meth:`shardwrite.encode.reader.Ranges.read`."""
        return read_over(self.source, self.changes, offset, nbytes)


@dataclass(frozen=True, slots=True)
class Torn:
    """Bad shards, as `find_torn` has found them."""

    shards: tuple[Shape, ...] = ()  # positions of the shards that can be cut, or get a new index
    # One text for each file of another format that must stay as it is, which says why
    left: tuple[str, ...] = ()


def find_torn(
    array: ShardedArray,
    target: Target,
    bad: Sequence[Shape],
    ledger: Ledger | None,
    *,
    scan: bool,
) -> Torn:
    """Bad shards that can be cut back to a whole state. Nothing is changed.

    - `ledger`: contents of an unfinished run's journal. If given, it alone decides: the run will
      write the shards that the journal does not have.
    """
    if ledger is None and not scan:
        return Torn()
    old_shards = OldShards.of(target, array.metadata)
    shards, left = list[Shape](), list[str]()
    for index in bad:
        key = array.metadata.shard_key(index)
        state = _mended(array, target, index, ledger, old_shards)
        if isinstance(state, str):
            how = _FROM_SOURCE if ledger is None else _BY_THE_RUN
            left.append(f"{key} {state}. {how}")
        elif state is not None:
            shards.append(index)
    return Torn(tuple(shards), tuple(left))


def _mended(
    array: ShardedArray, target: Target, index: Shape, ledger: Ledger | None, old_shards: OldShards
) -> int | NewIndex | str | None:
    key = array.metadata.shard_key(index)
    if not target.place.has_object(key):
        return None
    reader = array.store.open(key)
    if reader is None:
        return None
    with reader:
        return _whole_state(array.metadata, array.store, reader, index, (ledger, old_shards))


def _whole_state(
    metadata: ArrayMetadata,
    store: Store,
    reader: ObjectReader,
    index: Shape,
    facts: tuple[Ledger | None, OldShards],
) -> int | NewIndex | str | None:
    """How a torn shard becomes whole: the size to which it is cut, or the file with a new index.

    A text says why a file of another format cannot become whole. None if the shard is not torn, or
    there is no whole state of it.
    """
    ledger, old_shards = facts
    signature = signature_of(metadata, reader)
    if signature is not None and ledger is None:
        index_again = resolve("new index", signature.strategy)
        new_index: NewIndex | str | None = index_again(metadata, store, index, reader, old_shards)
        return _left(signature, new_index) if isinstance(new_index, str) else new_index
    size = _whole_size(metadata, reader, index, ledger)
    # The file is another one than the journal knows, and what it knows is not there any more.
    return size if signature is None or size is None else _left(signature, _CHANGED)


def _left(signature: Signature, why: str) -> str:
    return f"is a {signature.title}, and stays as it is: {why}"


def _whole_size(
    metadata: ArrayMetadata, reader: ObjectReader, index: Shape, ledger: Ledger | None
) -> int | None:
    """Size in bytes at which a torn shard is whole; None if there is no such size."""
    if ledger is None:
        return scan_for_end(metadata, reader)
    rank = ravel(index, metadata.grid.counts)
    noted, codec = int(ledger.nbytes[rank]), metadata.index_codec
    if codec.location != "end" or not noted or noted >= reader.nbytes:
        return None
    shard = shard_up_to(metadata, reader, noted)
    return noted if shard is not None and shard.index.checksum == ledger.index_crcs[rank] else None


def _facts_of(metadata: ArrayMetadata, key: str, reader: Ranges, size: int) -> Written:
    """Journal facts about the shard that the first `size` bytes of an object form."""
    index = ShardReader(metadata, key, reader, size).index
    return Written(size, index.checksum, index.n_present)


def salvage_shards(
    target: Target,
    metadata: ArrayMetadata,
    torn: Sequence[Shape],
    making: RunDirectory | None,
    ledger: Ledger | None,
) -> tuple[str, ...]:
    """Cut torn shards back, and keep a copy of each in quarantine.

    - `making`: the run that makes the array, if it has not ended.
    - Raises RunEndedError if another process has ended the run meanwhile.
    - Raises CorruptShardError if a shard that cannot be cut any more is not whole either.
    - Raises IncompleteError if this process was asked to stop.
    """
    if making is not None:
        making = making.written_by(new_name())
        with taking_part(making.path, making.driver):
            old_shards = OldShards.of(target, metadata)
            spec = WriteSpec.of_passing(making, target.store, metadata, FixedOrder())
            salvage = _Salvage(target, spec, ledger, old_shards)
            recover_changes(making.path, salvage.spec.store, metadata)
            return salvage.cut(torn)
    directory, part, first = _begin(target, metadata, torn)
    local = [tuple(i - f for i, f in zip(index, first, strict=True)) for index in torn]
    with (
        giving_up(directory),
        ended_or(directory),
        taking_part(directory.shared, directory.driver),
    ):
        old_shards = OldShards.of(target, metadata)
        spec = WriteSpec.of_passing(directory, target.store, part, FixedOrder())
        salvage = _Salvage(target, spec, None, old_shards)
        # An earlier state of a shard may hold chunks that were erased since then.
        directory.list_before(part, metadata.grid.box_of_shards(first, part.grid.counts))
        texts = salvage.cut(local)
        _finish(directory, salvage)
        return texts


def _begin(
    target: Target, metadata: ArrayMetadata, torn: Sequence[Shape]
) -> tuple[RunDirectory, ArrayMetadata, Shape]:
    """Begin a run; return it, the part of the array that it writes, and that part's first shard."""
    along = list(zip(*torn, strict=True))
    first, last = tuple(map(min, along)), tuple(map(max, along))
    counts = tuple(b + 1 - a for a, b in zip(first, last, strict=True))
    box = metadata.grid.box_of_shards(first, counts)
    identity = Identity(mode="r+", salvage=True, region=box.bounds)
    window = ShardWindow(first, counts)
    directory = begin_passing(target, "salvage", metadata.text, identity, window)
    return directory, metadata.window_of(box)[0], first


def _finish(directory: RunDirectory, salvage: _Salvage) -> None:
    """Bring manifest and receipt up to date with the shards that were cut, and end the run."""
    part, level = salvage.spec.metadata, directory.level
    with as_store_error(directory.target.label, "cannot end"):
        listed = present_listed(part, salvage.spec)
        with directory.ending():
            directory.change(listed)
            directory.write_receipt(updated_receipt(directory, part, salvage.ledger, {}, level))
        end_run(directory, own_journals(directory.driver))


@dataclass(slots=True)
class _Salvage:
    """A salvage in progress."""

    target: Target  # place of the array
    # Settings of the commits. Its metadata describe the array, or the part of it that the run
    # writes.
    spec: WriteSpec
    # Contents of the journal of the run that makes the array; None without such a run
    ledger_of_run: Ledger | None
    old_shards: OldShards  # what is known of all shards of the array
    ledger: Ledger = field(init=False)  # state of the shards after the salvage

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.spec.metadata.grid)

    def cut(self, torn: Sequence[Shape]) -> tuple[str, ...]:
        """Cut shards back, one after the other.

        - Raises IncompleteError if this process was asked to stop.
        """
        texts: dict[Shape, str] = {}
        for index in torn:
            self.ledger.enter(commit_shard(self.spec, index, partial(self._cut_one, texts)))
        return tuple(texts.values())

    def _cut_one(self, texts: dict[Shape, str], transaction: Transaction, index: Shape) -> Written:
        """Commit the whole part of a shard; a shard that has no torn tail stays as it is."""
        metadata, store = self.spec.metadata, self.spec.store
        key = metadata.shard_key(index)
        with open_there(store, key) as reader:
            state = _whole_state(
                metadata, store, reader, index, (self.ledger_of_run, self.old_shards)
            )
            if state is None:
                return self._whole(index, key, reader)
            if isinstance(state, str):
                raise CorruptShardError(f"cannot be salvaged any more: it {state}").located(key=key)
            copy = keep_copy(self.target, key, self.target.durability())
            writer = transaction.create(key)
            if isinstance(state, NewIndex):
                copy_bytes(state.read, writer, state.nbytes)
                writer.protect(True)
                facts = _facts_of(metadata, key, state, state.nbytes)
                how = f"a new index was made from the dataset {state.dataset!r}, {_BY_DATASET}"
                text = f"{key}: {how}; the file before is {copy}"
            else:
                copy_bytes(reader.read, writer, state)
                facts = _facts_of(metadata, key, reader, state)
                how = _BY_SCAN if self.ledger_of_run is None else _BY_JOURNAL
                text = f"{key}: {reader.nbytes} bytes cut to {state}, {how}; the torn one is {copy}"

            def check() -> None:
                if store.version(key) != reader.version:
                    raise changed_meanwhile(key)

            writer.finish(check)
            texts[index] = text
            return facts

    def _whole(self, index: Shape, key: str, reader: ObjectReader) -> Written:
        """Facts about a shard that has no torn tail any more.

        - Raises CorruptShardError if its index is not right.
        """
        facts = _facts_of(self.spec.metadata, key, reader, reader.nbytes)
        if self.ledger_of_run is not None:
            rank = ravel(index, self.spec.metadata.grid.counts)
            if (facts.nbytes, facts.index_crc) != (
                self.ledger_of_run.nbytes[rank],
                self.ledger_of_run.index_crcs[rank],
            ):
                # The journal may only list shards that the run has written.
                raise changed_meanwhile(key)
        return facts

"""Files of HDF5 that become shards where they lie: what is checked, and each step.

:mod:`shardwrite.journal.adopting` lists the steps, and what a crash leaves after each.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from shardwrite._version import __version__
from shardwrite.errors import JournalError, PlanError, ShardwriteError, SpecError, StoreError
from shardwrite.format.hdf5_file import describe
from shardwrite.format.hdf5_strategy import Hdf5
from shardwrite.format.joined import Joined, join
from shardwrite.format.metadata import ArrayMetadata, parse_metadata
from shardwrite.format.node import DOCUMENT
from shardwrite.grid import Shape, unravel
from shardwrite.host.resources import memory_limit_nbytes
from shardwrite.journal import (
    ADOPTS,
    AdoptedFile,
    Adoption,
    Contents,
    Listing,
    Range,
    Receipt,
    look_beside,
    read_receipt,
)
from shardwrite.journal.in_place import InPlace, layout_of, work_of
from shardwrite.journal.wing_states import refuse_in_place
from shardwrite.operations.adopted import Adopted
from shardwrite.operations.in_place import abandon_in_place, finish_adoption, taken_over
from shardwrite.place.base import RECEIPT_NAME, RUN_SUFFIX
from shardwrite.place.checks import check_surroundings, check_target
from shardwrite.place.directory import Directory
from shardwrite.place.target import Target
from shardwrite.plan import Identity
from shardwrite.plan.limits import check_indexes, check_new
from shardwrite.sources.hdf5_shard import look_into
from shardwrite.stores import as_store_error, is_there, make_directories, mode_of, mount_of

ELSEWHERE = "give another path, or remove it yourself"
"""Remedy where an array exists."""

_SOURCE = "adopted:"
_COPY = 'copy its chunks instead, with how="copy" (without --move and --link)'
_BEGUN = (
    "the adoption has begun: make the same call again to finish it, or give it up with abandon "
    "(shardwrite abandon)"
)
_INDEX_NBYTES = 64  # memory for a chunk's entry while an index is made


@dataclass(frozen=True, slots=True)
class Call:
    """What a call of :func:`shardwrite.adopt` asks for."""

    files: tuple[str, ...]  # absolute paths of the files, in their order
    dataset: str | None  # name of the dataset in each file
    # The axis along which the files follow one another, or the number of files along each axis
    arrangement: int | Shape
    how: str  # what becomes of the files

    @property
    def digest(self) -> str:
        """Digest of the call."""
        facts = [self.files, (self.dataset or "").strip("/"), self.arrangement, self.how]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class _Seen:
    """What is kept of a file that was looked at; the places of its chunks are looked up again."""

    file: AdoptedFile
    block_nbytes: int
    why_not_end: str
    dataset: str


@dataclass(frozen=True, slots=True)
class Found:
    """Files that were looked at and fit."""

    joined: Joined  # the array that they make
    metadata: ArrayMetadata  # the same with shards
    dataset: str  # name of the dataset
    files: Sequence[AdoptedFile]  # the files, with the keys of their shards

    def told(self, path: str, how: str) -> Adopted:
        """The files as a result that says what would be done."""
        grid = self.metadata.grid
        return Adopted(
            path=path,
            how=how,
            dataset=self.dataset,
            shape=grid.shape,
            shards=grid.shards,
            chunks=grid.chunks,
            index_location=self.metadata.index_codec.location,
            n_shards=len(self.files),
            nbytes=sum(file.nbytes for file in self.files),
            left_out=self.joined.left_out,
            is_plan=True,
        )


def inspect(call: Call) -> Found:
    """Look at all files, which are to become shards as they are. Nothing is changed."""
    refuse_patterns(call)
    seen: list[_Seen] = []
    inodes: dict[int, str] = {}

    def each() -> Iterator[tuple[str, ArrayMetadata]]:
        for path in call.files:
            file = AdoptedFile.of(path, "")
            if file.inode in inodes:
                raise refused(path, f"it is the same file as {inodes[file.inode]}")
            inodes[file.inode] = path
            _check_place(path)
            found = look_into(path, call.dataset)
            if seen and found.dataset != seen[0].dataset:
                raise refused(
                    path,
                    f"its dataset is {found.dataset!r}, and that of the first file is "
                    f"{seen[0].dataset!r}",
                    "give the name of the dataset that all files have (--dataset)",
                )
            seen.append(_Seen(file, found.room_nbytes, found.why_not_end, found.dataset))
            yield path, found.metadata

    joined = join(each(), len(call.files), call.arrangement)
    _check_indexes(joined, call.files, sum(one.file.nbytes for one in seen))
    index_nbytes = joined.sharded("end").index_codec.encoded_nbytes
    location = "start" if all(index_nbytes <= one.block_nbytes for one in seen) else "end"
    for one in seen:
        if location == "end" and one.why_not_end:
            raise refused(one.file.path, f"there is no place for its index, as {one.why_not_end}")
    metadata = joined.sharded(location)
    grid = metadata.grid
    check_new(grid.shape, metadata.itemsize, grid.shards, grid.chunks)
    dataset = seen[0].dataset
    # Updates recognise only shards that the strategy could write, too.
    check_fits(metadata, dataset)
    files = [
        replace(one.file, key=metadata.shard_key(unravel(rank, grid.counts)))
        for rank, one in enumerate(seen)
    ]
    return Found(joined, metadata, dataset, files)


def refuse_patterns(call: Call) -> None:
    """Refuse names with which a shell would find files, if there is no file of that name."""
    pattern = next((name for name in call.files if "*" in name and not is_there(name)), None)
    if pattern is not None:
        raise SpecError(
            "no such file, and a pattern is not expanded here",
            field="files",
            value=pattern,
            remedy="give a list of paths in their order, such as sorted(glob.glob(...))",
        )


def _check_indexes(joined: Joined, files: Sequence[str], nbytes: int) -> None:
    """Refuse files whose indexes are too large for what they hold, or for this process."""
    grid = joined.sharded("end").grid
    check_indexes(grid, files, nbytes)
    needed, allowed = _INDEX_NBYTES * grid.n_chunks_per_shard, memory_limit_nbytes()
    if needed > allowed:
        raise PlanError(
            f"files={files[0]!r}: to make the index of a file with {grid.n_chunks_per_shard:,} "
            f"chunks takes {needed:,} bytes, and this process may use {allowed:,}",
            needed_nbytes=needed,
            allowed_nbytes=allowed,
            remedy="write the values in larger chunks, with shardwrite write --chunks, or give "
            "this process more memory",
        )


def check_fits(metadata: ArrayMetadata, dataset: str) -> None:
    """Refuse an array whose shards :class:`Hdf5` could not write, and say what can be done."""
    try:
        describe(metadata, Hdf5(dataset=dataset))
    except SpecError as error:
        raise SpecError(
            f"shards that are HDF5 files cannot have it ({error.message})",
            field=error.fields["field"],
            value=error.fields["value"],
            remedy='copy its chunks into plain shards, with how="copy" (without --move and --link) '
            'and strategy="fixed-order"',
        ) from error


def look(call: Call, target: Target) -> Found:
    """Check the place of the new array, and look at all files; see `inspect`."""
    path = target.directory.path
    check_surroundings(target)
    check_target(target, "w-", ELSEWHERE)
    beside = look_beside(target)
    if beside.untrusted is not None:
        raise beside.untrusted
    if beside.run is not None or beside.updates:
        raise JournalError(
            f"a run on {target.label} has not ended. Finish it by the same call, or give another "
            "path",
            path=str(target.beside),
        )
    above = path
    while not mode_of(above):
        above = above.parent
    found = inspect(call)
    for file in found.files:
        if mount_of(file.path) != mount_of(above):
            raise refused(file.path, f"it lies in another file system than {target.label}")
    return found


def _check_place(path: str) -> None:
    """Refuse a file that this user cannot take away from where it lies, or change there."""
    directory, leaf = os.path.split(path)
    real = Path(os.path.realpath(directory), leaf)
    around = Directory(real).array_around()
    if around is not None:
        raise refused(path, f"it lies in the array {around}, which may need it")
    state = next((above for above in real.parents if above.name.endswith(RUN_SUFFIX)), None)
    if state is not None:
        raise refused(path, f"it lies in {state}, which holds the state of a run")
    refuse_in_place(real)
    with as_store_error(path, "cannot look at"):
        found, me = os.stat(path), os.geteuid()
    if me not in (0, found.st_uid):
        raise refused(path, "it belongs to another user")
    if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
        # It may be a shard of another array, whose index is found at the end of the file.
        names = f"it has {found.st_nlink} names (hard links)"
        raise refused(path, f"{names}, and would change under each of them")
    if not os.access(Path(path).parent, os.W_OK | os.X_OK):
        raise refused(path, "its directory cannot be written to")


def adopt_files(call: Call, target: Target, *, restart: bool = False) -> Adopted:
    """Make files the shards of a new array, without copying them.

    - `restart`: whether an adoption that was interrupted is given up before.
    """
    path = target.directory.path
    last = work_of(path)
    gives_up = restart and ADOPTS in layout_of(path)
    if last is not None and (gives_up or Adoption(path, last).is_given_up):
        abandon_in_place(target.place)  # the rest of it, and then everything begins again
        last = None
    if last is None:
        done = _adopted_before(call, target)
        if done is not None:
            return replace(done, is_skipped=True)
        found = look(call, target)
        with as_store_error(str(path.parent), "cannot make"):
            make_directories(path.parent, "full")
    with InPlace.begun(path, {"": call.digest, ADOPTS: call.how}) as work:
        state = Adoption(path, work.work)
        try:
            if not state.is_listed:
                found = look(call, target) if last is not None else found
                state.list_files(_listing(call, target, found))
            metadata = parse_metadata(state.listing.documents[DOCUMENT])
            for number in range(0 if state.is_published else len(state.listing.files)):
                state.take(number, lambda file, place: _changes(file, place, call, metadata))
            finish_adoption(work, state)
        except ShardwriteError as error:
            if work.is_lost:
                raise taken_over(work) from error
            is_left = _cannot_enter(error, call)
            if not (state.is_untouched or is_left):
                error.add_note(_BEGUN)
                raise
            try:
                state.give_back()
                work.give_up()
            except ShardwriteError as another:
                another.add_note(_BEGUN)
                raise
            if is_left:
                raise _left(error, target) from error
            raise
    return Adopted.from_dict(json.loads(state.listing.documents[RECEIPT_NAME])["result"])


def _cannot_enter(error: ShardwriteError, call: Call) -> bool:
    """Whether a file cannot be moved or linked into an array, however often that is tried.

    Documents of groups above may be busy, too. Then the array may have its name already, and no
    file can be given back.
    """
    is_refused = isinstance(error, StoreError) and error.errno in (errno.EXDEV, errno.EBUSY)
    return is_refused and error.fields["key"] in call.files


def _left(error: ShardwriteError, target: Target) -> SpecError:
    """The error about a file that cannot enter the array, after all files were given back."""
    path = str(error.fields["key"])
    if error.fields["errno"] == errno.EBUSY:
        return refused(path, error.message, f"see to it that only one call adopts it, or {_COPY}")
    return refused(path, f"the file system does not let it become a part of {target.label}")


def _changes(file: AdoptedFile, place: str, call: Call, metadata: ArrayMetadata) -> list[Range]:
    """What of a file changes, in the order in which it is written, given the place of the file."""
    try:
        found = look_into(place, call.dataset)
    except SpecError as error:
        remedy = str(error.fields["remedy"])
        raise SpecError(error.message, field="files", value=file.path, remedy=remedy) from error
    seal, n = metadata.index_codec.seal(found.index_of(metadata)), found.nbytes
    if metadata.index_codec.location == "start":
        data = bytes(seal.prefix)
        return [Range(0, bytes(len(data)), data)]
    data = bytes(seal.suffix)
    return [Range(n, b"", data), Range(*found.superblock.raised(n + len(data)))]


def _listing(call: Call, target: Target, found: Found) -> Listing:
    """What the adoption does, with the documents of the new array."""
    codec = found.metadata.index_codec
    more = codec.encoded_nbytes if codec.location == "end" else 0
    sizes = np.array([file.nbytes + more for file in found.files], np.int64)
    told = replace(found.told(target.label, call.how), nbytes=int(sizes.sum()), is_plan=False)
    receipt = Receipt(
        digest=call.digest,
        run="",
        identity=Identity(
            metadata=found.metadata.document,
            strategy=Hdf5(dataset=found.dataset).label,
            source=f"{_SOURCE}{call.digest}",
        ),
        durability="full",
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        version=__version__,
        result=told.to_dict(),
        contents=Contents.of(sizes),
    )
    documents = {RECEIPT_NAME: receipt.encode().decode(), DOCUMENT: found.metadata.text}
    return Listing(call.how, found.files, documents)


def _adopted_before(call: Call, target: Target) -> Adopted | None:
    """The result of the same call that has ended before; None if there is none."""
    receipt = read_receipt(target) if target.is_published else None
    if receipt is None or receipt.identity.source != f"{_SOURCE}{call.digest}":
        return None
    document = receipt.identity.metadata
    metadata = parse_metadata(json.dumps(document))
    path, counts = target.directory.path, metadata.grid.counts
    for rank, file in enumerate(call.files):
        if not mode_of(file, follow=False):
            continue
        shard = path / metadata.shard_key(unravel(rank, counts))
        with as_store_error(file, "cannot look at"):
            is_same = call.how == "link" and is_there(shard) and os.path.samefile(file, shard)
        if not is_same:
            return None  # another file has got the name meanwhile, or the shard was erased
    return Adopted.from_dict(receipt.result)


def refused(path: str, why: str, remedy: str = "") -> SpecError:
    """The error about a file that cannot become a shard where it lies."""
    return SpecError(
        f"cannot become a shard where it lies: {why}",
        field="files",
        value=path,
        remedy=remedy or _COPY,
    )

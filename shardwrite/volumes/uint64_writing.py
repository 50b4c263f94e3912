"""Writing of whole shards of the format ``neuroglancer_uint64_sharded_v1``."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import uuid
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.codecs.stages import chunk_limit
from shardwrite.errors import SpecError, StoreError
from shardwrite.journal.lease import is_abandoned, signature
from shardwrite.place.base import remove_temporaries
from shardwrite.stores.base import ObjectWriter, Store, Transaction
from shardwrite.stores.looking import as_store_error, listed, mode_of
from shardwrite.stores.removal import (
    TEMPORARY_SUFFIX,
    Proof,
    begin_temporary,
    data_in,
    forget_temporary,
    remove_data,
    remove_state,
)
from shardwrite.volumes.sharding import (
    Contents,
    check_minishards,
    contents_of,
    seal,
    sequence,
    stage_of,
)
from shardwrite.volumes.uint64_shard import Joined, UInt64ShardFiles, UInt64ShardReader

ValueOf = Callable[[int], tuple[Any, int | None]]
"""From an id to a value, and how many bytes at its end are the chunk; all of them if None."""
_COPIED_NBYTES = 4 * 2**20
_UNKNOWN_NBYTES = 2**63 - 1  # how large a shard becomes is known when it is complete


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of one shard."""

    shard: int  # number of the shard
    ids: npt.NDArray[np.uint64]  # ids of the chunks that are written
    removed: npt.NDArray[np.uint64]  # ids of the chunks that are removed
    divided: npt.NDArray[np.uint64]  # those of `ids` of which the caller says what lies before them
    keeps: bool  # whether all other chunks of the shard stay. If not, the shard is replaced.
    may_exist: bool  # whether it is no error if the shard exists


def commit_changes(
    files: UInt64ShardFiles, changes: list[Change], value_of: ValueOf, durability: str
) -> int:
    """Write shards anew, each of them whole, and return the number of their bytes.

    A shard is visible only when it is complete. One value is held in memory at a time.

    - `value_of`: bytes of a chunk and of what lies before it, from its id.
    - Raises SpecError if a value is no bytes, or is too large to be read again, or an index is with
      the chunks that stay. Also if bytes lie before a chunk that is replaced, and nothing says what
      becomes of them.
    - Raises CorruptShardError if chunks are to be kept, and an index of the shard is damaged, or
      bytes belong to nothing.
    """
    nbytes, attempt = 0, f"{uuid.uuid4().hex},{signature()}"
    with files.store.transaction(durability, attempt) as transaction:
        transaction.expect_nbytes(_UNKNOWN_NBYTES)
        for change in changes:
            nbytes += _write_shard(files, change, value_of, transaction)
    _remove_obsolete(files, changes, durability, attempt)  # New shards are durable now.
    return nbytes


def _write_shard(
    files: UInt64ShardFiles, change: Change, value_of: ValueOf, transaction: Transaction
) -> int:
    key = files.sharding.key_of(change.shard)
    before = files.store.version(key)
    with contextlib.ExitStack() as stack:
        # What is replaced need not be whole.
        is_read = change.keeps or not change.may_exist
        parts = stack.enter_context(files.parts(change.shard)) if is_read else {}

        def check() -> None:
            if before is not None and not change.may_exist:
                raise _refusal(key, "exists", errno.EEXIST)
            if files.store.version(key) != before:
                raise _refusal(key, "was changed by another writer meanwhile", errno.ESTALE)
            files.check_current(parts)

        check()
        if parts and not change.may_exist:
            raise _refusal(key, "exists in the obsolete format", errno.EEXIST)
        old = files.reader(change.shard, parts) if change.keeps else None
        writer = transaction.create(key)
        try:
            nbytes = _Writing(files, writer, value_of).write(change, old)
            writer.finish(check)
        except BaseException:
            writer.abort()
            raise
    return nbytes


def _remove_obsolete(
    files: UInt64ShardFiles, changes: list[Change], durability: str, attempt: str
) -> None:
    """Remove the objects of the obsolete format that stand beside the new shards.

    They hold what the shards were before. If a shard was lost, they would be read again.
    """
    store = files.store
    keys = [key for one in changes if one.may_exist for key in files.obsolete_keys(one.shard)]
    keys = [key for key in keys if store.size(key) is not None]
    if not keys:
        return
    root = store.local_root
    # Data are removed by way of a directory; the next call removes what a killed one has left.
    aside = Path(root or "", f".obsolete-{attempt}{TEMPORARY_SUFFIX}")
    proof = _proof(aside, keys)
    begin_temporary(str(aside))
    try:
        if root is not None:
            with as_store_error(str(aside), "cannot make"):
                aside.mkdir()
        with store.transaction(durability, attempt, proof=proof) as transaction:
            for key in keys:
                transaction.remove(key)
    finally:
        forget_temporary(str(aside))
        if root is not None:
            with contextlib.suppress(OSError):  # `sweep` removes what is left
                aside.rmdir()


def _proof(aside: Path, keys: Collection[str] = ()) -> Proof:
    """Proof for the objects of the obsolete format, and for those that were moved aside."""
    return Proof(aside, {"run": aside.name.partition("-")[2]}, lambda: keys)


def sweep(store: Store) -> None:
    """Remove what this user's calls have left in a directory whose processes are gone."""
    root = store.local_root
    for path in () if root is None else listed(root, ".", TEMPORARY_SUFFIX):
        with (
            as_store_error(str(path), "cannot remove"),
            contextlib.suppress(FileNotFoundError),  # another call was faster
        ):
            if path.lstat().st_uid != os.geteuid() or not is_abandoned(path):
                continue
            if stat.S_ISDIR(mode_of(path, follow=False)):
                for name in data_in(path):
                    remove_data(path, name, _proof(path))
                remove_state(path)
            else:
                remove_temporaries([str(path)])


def _refusal(key: str, what: str, number: int) -> StoreError:
    return StoreError(f"the shard {key!r} {what}, and is not replaced", key=key, errno=number)


class _Writing:
    """A shard that is being written."""

    def __init__(self, files: UInt64ShardFiles, writer: ObjectWriter, value_of: ValueOf) -> None:
        self._sharding = files.sharding
        self._writer = writer
        self._value_of = value_of
        self._stage = stage_of(files.sharding.data_encoding)
        self._index_limit_nbytes = files.index_limit_nbytes

    def write(self, change: Change, old: UInt64ShardReader | None) -> int:
        """Write all but the last step, and return the size of the shard."""
        kept = _kept(old, change)
        ids = np.concatenate([change.ids, kept.ids])
        if len(kept.ids):  # whoever gives `change.ids` has checked these
            check_minishards(self._sharding, ids, self._index_limit_nbytes)
        order = sequence(self._sharding, ids)
        sizes, starts = np.zeros(len(ids), np.uint64), np.zeros(len(ids), np.uint64)
        base = self._sharding.shard_index_nbytes
        self._writer.skip(base)
        start = end = 0  # of old chunks that lie together, and are copied at once
        written = 0
        for at in order.tolist():
            place = at - len(change.ids)
            if place < 0:
                self._copy(old, start, end - start)
                start = end = 0
                before, data = self._encoded(int(ids[at]))
                starts[at] = written + self._writer.write([before])
                sizes[at] = self._writer.write([data])
                written = int(starts[at] + sizes[at])
                continue
            before_nbytes, sizes[at] = int(kept.before[place]), kept.nbytes[place]
            offset = int(kept.offsets[place]) - before_nbytes
            if offset != end or end - start >= _COPIED_NBYTES:
                self._copy(old, start, end - start)
                start = end = offset
            end += before_nbytes + int(sizes[at])
            starts[at] = written + before_nbytes
            written = int(starts[at] + sizes[at])
        self._copy(old, start, end - start)
        sealed = seal(self._sharding, ids[order], sizes[order], starts[order])
        self._writer.write([sealed.suffix])
        for offset, piece in sealed.entries:
            self._writer.write_at(offset, piece)
        return base + written + len(sealed.suffix)

    def _copy(self, old: UInt64ShardReader | None, offset: int, nbytes: int) -> None:
        """Append encoded bytes of the old shard."""
        if old is None or not nbytes:
            return
        if isinstance(old.source, Joined):
            self._writer.write([old.source.read(offset, nbytes)])
        else:
            self._writer.copy(old.source, offset, nbytes)

    def _encoded(self, chunk_id: int) -> tuple[memoryview, Any]:
        """What lies before a chunk, which is never compressed, and the chunk."""
        value, nbytes = self._value_of(chunk_id)
        data = _bytes_of(value, chunk_id)
        start = 0 if nbytes is None else len(data) - nbytes
        if start < 0 or 0 < start == len(data):
            raise SpecError(
                f"the value of chunk {chunk_id} has {len(data)} bytes",
                field="data_offset",
                value=nbytes,
                remedy="give the number of bytes of the chunk, which are the last of the value",
            )
        for part in (before := data[:start], data := data[start:]):
            if len(part) > chunk_limit():
                raise SpecError(
                    f"chunk {chunk_id} has {len(part)} bytes, and readers take {chunk_limit()}",
                    field="values",
                    value=chunk_id,
                    remedy="raise shardwrite.read.chunk-limit in dask's configuration",
                )
        return before, data if self._stage is None else self._stage.encode([data])[0]


def _bytes_of(value: Any, chunk_id: int) -> memoryview:
    why: Exception | None = None
    try:
        view = memoryview(value)
        holds_addresses = getattr(getattr(view.obj, "dtype", None), "hasobject", False)
        if not holds_addresses:
            return view.cast("B") if view.nbytes else memoryview(b"")
    except (TypeError, ValueError) as error:
        why = error
    raise SpecError(
        f"the value of chunk {chunk_id} is no contiguous bytes",
        field="values",
        value=type(value).__name__,
        remedy="give bytes",
    ) from why


def _kept(old: UInt64ShardReader | None, change: Change) -> Contents:
    """Chunks of the old shard that stay."""
    if old is None:
        return contents_of([], np.zeros((0, 2), np.uint64), 0, 0)
    contents = old.owned_contents()
    # By default, numpy 2.0 counts the ids in a table, which fails for those above 2^63.
    lost = np.isin(contents.ids, np.setdiff1d(change.ids, change.divided), kind="sort")
    (positions,) = np.nonzero(lost & (contents.before > 0))
    if len(positions):
        chunk_id = int(contents.ids[positions[0]])
        raise SpecError(
            f"{int(contents.before[positions[0]])} bytes that lie before it, such as the fragments "
            "of a mesh, would be lost",
            field="values",
            value=chunk_id,
            remedy="give the new ones before the chunk in its value, and the number of bytes of "
            f"the chunk as data_offset={{{chunk_id}: n}}. With n of the whole value, they go",
        )
    stays = ~np.isin(contents.ids, np.concatenate([change.ids, change.removed]), kind="sort")
    return replace(
        contents,
        ids=contents.ids[stays],
        offsets=contents.offsets[stays],
        nbytes=contents.nbytes[stays],
        before=contents.before[stays],
    )

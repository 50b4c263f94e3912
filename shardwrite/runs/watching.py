"""A check that an array is still what it was when its copy was planned.

A task copies one version of an object. If a program writes the array meanwhile, a copy would
otherwise hold old and new objects that never were together. If a program replaces the array, the
copy would hold chunks that its own document does not describe.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from shardwrite.engines import Engine
from shardwrite.errors import StoreError
from shardwrite.format.node import DOCUMENT, layout_in
from shardwrite.grid import ravel, unravel
from shardwrite.journal import begun_at, differences
from shardwrite.plan.limits import MAX_SHARDS
from shardwrite.read.array import ShardedArray
from shardwrite.read.inspection import of_objects
from shardwrite.read.survey import ranks_of_objects
from shardwrite.runs.session import Session
from shardwrite.stores import Dated, parse_document, read_limit


@runtime_checkable
class CopiesObjects(Protocol):
    """A source of chunks that come from the objects of another array."""

    @property
    def copied(self) -> ShardedArray | None:
        """The other array, if its objects are to stay as they are until the run ends."""


class SourceWatch:
    """The objects of an array in a directory, from which a session makes another array.

    An object has changed if its file was changed after the run had begun. The first time is by the
    clock of the file system of the object, the second by that of the state of the run.

    - `source`: the array. If it lies in no directory, or has too many objects to list, the objects
      are not looked at. The document is that of Zarr v3; those of other formats are not looked at.
    """

    def __init__(self, session: Session, source: ShardedArray) -> None:
        self.session, self._source = session, source
        is_listed = source.metadata.grid.n_shards <= MAX_SHARDS
        self._is_watched = is_listed and isinstance(source.store, Dated)
        self._since: int | None = None

    def look_again(self, engine: Engine) -> int:
        """Mark shards as missing that were made of objects which have changed, and count them.

        Objects that have changed since the last look are an error, because a program seems to write
        them again and again.

        - Raises StoreError with ESTALE, if objects have changed again, or an object is gone whose
          copy is there. Also if another array has taken the place of the source.
        """
        self._check_document()
        if not self._is_watched:
            return 0
        session, source = self.session, self._source
        ranks = ranks_of_objects(source, str(source.store.local_root))
        times = of_objects(engine, source, ranks, _times_of)
        is_again = self._since is not None
        since = begun_at(session.directory.path) if self._since is None else self._since
        changed = ranks[times > since]
        self._since = max(since, int(times.max(initial=0)))
        if is_again and len(changed):
            raise _refusal(self._key(int(changed[0])), "is changed again and again")
        ledger = session.ledger
        if source.metadata.grid == session.job.plan.metadata.grid:
            gone = np.setdiff1d(np.flatnonzero(ledger.nbytes > 0), ranks)
            if len(gone):
                raise _refusal(self._key(int(gone[0])), "was copied, and is gone")
        lost = [rank for rank in self._made_of(changed.tolist()) if ledger.is_done[rank]]
        ledger.forget(lost)
        return len(lost)

    def _check_document(self) -> None:
        """Refuse to go on if another array has taken the place of the source."""
        source = self._source
        if source.metadata.placed is not None:
            return
        data = source.store.read_whole(DOCUMENT, read_limit())
        if data is None:
            return
        found = parse_document(data, DOCUMENT)
        changed = differences(layout_in(source.metadata.document), layout_in(found))
        if changed:
            raise _refusal(DOCUMENT, f"describes another array now ({'; '.join(changed)})")

    def _made_of(self, changed: Sequence[int]) -> set[int]:
        """Ranks of the shards that are made of some objects of the source."""
        source, made = self._source.metadata.grid, self.session.job.plan.metadata.grid
        return {
            ravel(index, made.counts)
            for rank in changed
            for index in made.shards_in(
                source.shard_box(unravel(rank, source.counts)).intersect(source.whole)
            )
        }

    def _key(self, rank: int) -> str:
        metadata = self._source.metadata
        return metadata.shard_key(unravel(rank, metadata.grid.counts))


def _refusal(key: str, what: str) -> StoreError:
    return StoreError(
        f"{key!r} of the source {what} while the array is copied. Nothing is published. When "
        "no program changes the source any more, make the same call with restart=True",
        key=key,
        errno=errno.ESTALE,
    )


def _times_of(array: ShardedArray, ranks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Times at which the files of some objects were changed, in nanoseconds; 0 if one is gone."""
    return np.fromiter(_times(array, ranks.tolist()), np.int64, len(ranks))


def _times(array: ShardedArray, ranks: Sequence[int]) -> Iterator[int]:
    metadata, store = array.metadata, array.store
    if not isinstance(store, Dated):
        raise TypeError("only files have times of changes")
    for rank in ranks:
        yield store.change_time(metadata.shard_key(unravel(rank, metadata.grid.counts)))

"""Layouts of shards as numbers: of a stored shard, of a new one, and of an updated one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

__all__ = ["KEEP", "Placement", "Ranks", "Revision", "Shared", "Stored", "own_ranges", "place"]

Ranks = npt.NDArray[np.int64]
KEEP = -2
"""Encoded size that marks an inner chunk which an update does not touch; -1 marks an empty one."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Layout of a shard in the store."""

    # Offset and encoded size of each inner chunk by rank, in bytes; -1 where it is empty
    offsets: Ranks
    nbytes: Ranks
    total_nbytes: int  # size of the object, in bytes
    index_span: tuple[int, int]  # start and stop of the index in the object
    # Whether inner chunks are compressed or have a checksum, so that decoding fails on bytes that
    # are not an inner chunk
    is_checked: bool
    # Encoded size of every inner chunk, if it does not depend on values
    fixed_nbytes: int | None = None


@dataclass(frozen=True, slots=True)
class Revision:
    """Layout of a shard after an update."""

    # How the update is made: as a new object, as a clone of the old object with new bytes after it,
    # or as a change of the old object itself
    how: str
    # Offset and encoded size of each inner chunk by rank, in bytes; `nbytes` is negative where the
    # chunk is empty
    offsets: Ranks
    nbytes: Ranks
    # Ranks of the inner chunks to write: all chunks of a new object, else the new ones only
    sequence: Ranks
    # Bytes at the start of the old object that the clone takes over. It is 0 for a rewrite, and the
    # size of the old object for a change in place.
    kept_nbytes: int
    end: int  # end of the inner chunks: the offset of the index, unless the index comes first


@dataclass(frozen=True, slots=True)
class Placement:
    """Layout of the encoded inner chunks in a new shard."""

    # Byte offset of each inner chunk by rank; without meaning where the chunk is empty
    offsets: npt.NDArray[np.int64]
    # Ranks of the chunks that hold data, in the sequence in which they lie in the shard
    sequence: Ranks
    data_nbytes: int  # bytes that the inner chunks span, free bytes between them included


@dataclass(frozen=True, slots=True)
class Shared:
    """Inner chunks that have no bytes of their own, since other programs may share them."""

    ranks: Ranks  # ranks of these inner chunks
    owners: Ranks  # for each of them, the rank of the inner chunk that has the same bytes

    def entered(self, column: Ranks) -> Ranks:
        """Offsets or sizes by rank, in which each of these chunks has those of its owner."""
        found = column.copy()
        found[self.ranks] = column[self.owners]
        return found


def own_ranges(old: Stored, nbytes: Ranks) -> tuple[Stored, Shared]:
    """Layout of a shard in which no two inner chunks have the same bytes.

    Bytes that several chunks share belong to one of them. It is one that the update keeps, if there
    is any. So a strategy neither overwrites them nor regards them as unused, and a rewrite copies
    them once.

    - `old`: layout of the shard before the update.
    - `nbytes`: int64, shape (n,). Encoded sizes as :meth:`Strategy.revise` takes them.
    """
    ranks = np.flatnonzero(old.nbytes > 0)
    order = np.lexsort((nbytes[ranks] != KEEP, old.offsets[ranks]))
    ranks = ranks[order]
    is_owner = np.append(True, np.diff(old.offsets[ranks]) != 0)[: len(ranks)]
    owners = ranks[is_owner][np.cumsum(is_owner) - 1]
    others = ~is_owner
    if not others.any():
        return old, Shared(ranks[:0], ranks[:0])
    offsets, sizes = old.offsets.copy(), old.nbytes.copy()
    offsets[ranks[others]] = sizes[ranks[others]] = -1
    kept = others & (nbytes[ranks] == KEEP)
    return replace(old, offsets=offsets, nbytes=sizes), Shared(ranks[kept], owners[kept])


def place(nbytes: Ranks, sequence: Ranks, base: int, old: Stored | None = None) -> Placement:
    """Place inner chunks end to end.

    If the new shard replaces one whose chunks are checked, no chunk begins where another chunk
    began in the old shard: free bytes are left between chunks where needed. A reader that has the
    old index and reads the new object then gets an error, and not the values of another chunk.

    - `nbytes`: int64, shape (n,). Encoded size of each inner chunk by rank, in bytes; negative
      where it is empty.
    - `base`: offset of the first chunk: the size of the index if it comes first, else 0.
    """
    present = sequence[nbytes[sequence] >= 0]
    sizes = nbytes[present]
    ends = base + np.cumsum(sizes)
    offsets = np.zeros(len(nbytes), dtype=np.int64)
    offsets[present] = ends - sizes
    end = int(ends[-1]) if len(ends) else base
    if (
        old is not None
        and old.is_checked
        and (np.isin(offsets[present], old.offsets) & (offsets != old.offsets)[present]).any()
    ):
        end = _move_apart(offsets, nbytes, present, base, old)
    return Placement(offsets, present, end - base)


def _move_apart(offsets: Ranks, nbytes: Ranks, present: Ranks, base: int, old: Stored) -> int:
    """Shift chunks that would begin where another chunk began, and return the end of the last.

    The new offsets are entered into `offsets`.
    """
    began = {offset: rank for rank, offset in enumerate(old.offsets.tolist()) if offset >= 0}
    end = base
    for rank in present.tolist():
        while began.get(end, rank) != rank:
            end += 1
        offsets[rank] = end
        end += int(nbytes[rank])
    return end

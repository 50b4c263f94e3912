"""Numbers that strategies work with: how a shard is laid out, and how a new one is, or a changed one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["KEEP", "Placement", "Ranks", "Revision", "Stored", "place"]

Ranks = npt.NDArray[np.int64]
KEEP = -2
"""Encoded size of an inner chunk that an update does not touch; -1 is one that it leaves empty."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A shard as it is.

    Attributes
    ----------
    offsets, nbytes : numpy.ndarray of int64, shape (n,)
        Where each inner chunk lies, by rank; -1 where empty.
    total_nbytes : int
        Of the object.
    index_span : tuple of int
        Start and stop of the index in it.
    is_checked : bool
        Whether decoding an inner chunk fails on bytes that are none: it is compressed, or has a checksum.
    fixed_nbytes : int, optional
        Encoded size of any inner chunk, where that does not depend on its values.
    """

    offsets: Ranks
    nbytes: Ranks
    total_nbytes: int
    index_span: tuple[int, int]
    is_checked: bool
    fixed_nbytes: int | None = None


@dataclass(frozen=True, slots=True)
class Revision:
    """A shard as an update leaves it.

    Attributes
    ----------
    how : {"rewrite", "append", "in place"}
        A new object; a clone of the old one with something after it; or the old one, changed.
    offsets, nbytes : numpy.ndarray of int64, shape (n,)
        The new index by rank; `nbytes` is negative where empty.
    sequence : numpy.ndarray of int64
        Ranks of the inner chunks to write: all of them into a new object, else the new ones.
    kept_nbytes : int
        Bytes of the old object that stay where they are.
    end : int
        End of the inner chunks: where the index goes, unless it comes first.
    """

    how: str
    offsets: Ranks
    nbytes: Ranks
    sequence: Ranks
    kept_nbytes: int
    end: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the encoded inner chunks of one shard go.

    Attributes
    ----------
    offsets : numpy.ndarray of int64, shape (n,)
        Byte offset of each inner chunk by rank; meaningless where it is empty.
    sequence : numpy.ndarray of int64
        Ranks of the chunks that hold data, as they lie in the shard.
    data_nbytes : int
        Bytes from the first one's beginning to the last one's end.
    """

    offsets: npt.NDArray[np.int64]
    sequence: Ranks
    data_nbytes: int


def place(nbytes: Ranks, sequence: Ranks, base: int, old: Stored | None = None) -> Placement:
    """Lay chunks end to end.

    Where the shard takes the place of another, none begins where a different one began: a reader that took the old index
    and then reads the new object gets an error, and not another chunk's values. A few bytes between chunks see to that.

    Parameters
    ----------
    nbytes : numpy.ndarray of int64, shape (n,)
        Encoded size by rank; negative where empty.
    sequence : numpy.ndarray of int64
        Ranks in the order to lay them.
    base : int
        Offset of the first byte: the size of the index where that comes first, else 0.
    old : Stored, optional
        The shard that is replaced.
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
    """Leave bytes free before chunks that would begin where another began; gives the end of the last."""
    began = {offset: rank for rank, offset in enumerate(old.offsets.tolist()) if offset >= 0}
    end = base
    for rank in present.tolist():
        while began.get(end, rank) != rank:
            end += 1
        offsets[rank] = end
        end += int(nbytes[rank])
    return end

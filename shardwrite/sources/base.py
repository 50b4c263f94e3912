"""What a source is, and how its keys are taken apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from shardwrite.grid import Box

__all__ = ["Chunks", "RegionSource", "Request", "Source", "split_key"]

Chunks = tuple[int | tuple[int, ...], ...]


class Source(Protocol):
    """An array in a file that can be read region by region.

    A source can be pickled and shared between threads: it holds the facts about the array and no open
    handle, and each process opens the file when it first reads.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Extent of the array."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of what is read, byte order included."""

    @property
    def chunks(self) -> Chunks:
        """Chunking natural to the file, as dask takes it."""

    @property
    def identity(self) -> str:
        """Text that stays the same as long as the file does; a resumed run compares it."""

    def __getitem__(self, key: tuple[slice, ...]) -> npt.NDArray[Any]:
        """Read one region."""


@dataclass(frozen=True, slots=True)
class Request:
    """The arguments of :func:`shardwrite.sources.open_source` that a format needs.

    Parameters
    ----------
    path : str
        File, directory or pattern.
    dataset : str or None
        Which array of several.
    shape, dtype, offset, order
        Layout of a raw binary file.
    """

    path: str
    dataset: str | None = None
    shape: tuple[int, ...] | None = None
    dtype: npt.DTypeLike | None = None
    offset: int = 0
    order: str = "C"


@dataclass(frozen=True, slots=True)
class RegionSource:
    """Base of all sources: takes keys apart and leaves the reading of a box to `_read`.

    Parameters
    ----------
    path : str
        Where the data is.
    shape : tuple of int
        Extent of the array.
    dtype : numpy.dtype
        Data type of what is read.
    chunks : tuple
        Chunking natural to the file, as dask takes it.
    identity : str
        See :class:`Source`.
    """

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: Chunks
    identity: str

    def __getitem__(self, key: Any) -> npt.NDArray[Any]:
        """Read one region; dask fuses slicing into keys, so integers and steps occur besides plain slices."""
        box, rest = split_key(key, self.shape)
        # an empty box may lie in an empty file, which cannot even be mapped
        block = self._read(box) if box.size else np.empty(box.shape, self.dtype)
        return block if rest is None else np.asarray(block[rest])

    def __dask_tokenize__(self) -> tuple[str, str]:
        return type(self).__name__, self.identity

    def _read(self, box: Box) -> npt.NDArray[Any]:
        raise NotImplementedError


def split_key(key: Any, shape: tuple[int, ...]) -> tuple[Box, tuple[int | slice, ...] | None]:
    """The smallest box that holds all that `key` selects, and the key that is left to apply to the box.

    Parameters
    ----------
    key : slice, int, Ellipsis or tuple of them
        Basic indexing key.
    shape : tuple of int
        Extent of the array.

    Returns
    -------
    box : Box
        What must be read.
    rest : tuple or None
        What to index the block with afterwards; None where the block is the answer.
    """
    parts = list(key) if isinstance(key, tuple) else [key]
    for at, part in enumerate(parts):
        if part is Ellipsis:
            parts[at : at + 1] = [slice(None)] * (len(shape) - len(parts) + 1)
            break
    parts += [slice(None)] * (len(shape) - len(parts))
    start, stop, rest = [], [], []
    for part, n in zip(parts, shape, strict=True):
        picked = range(n)[part] if isinstance(part, slice) else _single(range(n)[part])
        low, high = (min(picked[0], picked[-1]), max(picked[0], picked[-1]) + 1) if picked else (0, 0)
        start.append(low)
        stop.append(high)
        rest.append((slice(None, None, picked.step) if picked else slice(0, 0)) if isinstance(part, slice) else 0)
    plain = all(isinstance(part, slice) and part.step in (None, 1) for part in rest)
    return Box(tuple(start), tuple(stop)), None if plain else tuple(rest)


def _single(at: int) -> range:
    return range(at, at + 1)

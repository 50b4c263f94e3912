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
        """Read one region; dask fuses indexing into keys, so integers, steps and lists occur besides plain slices."""
        box, rest = split_key(key, self.shape)
        # an empty box may lie in an empty file, which cannot even be mapped
        block = self._read(box) if box.size else np.empty(box.shape, self.dtype)
        return block if rest is None else np.asarray(block[rest])

    def __dask_tokenize__(self) -> tuple[str, str]:
        return type(self).__name__, self.identity

    def _read(self, box: Box) -> npt.NDArray[Any]:
        raise NotImplementedError


def split_key(key: Any, shape: tuple[int, ...]) -> tuple[Box, tuple[Any, ...] | None]:
    """The smallest box that holds all that `key` selects, and the key that is left to apply to the box.

    Parameters
    ----------
    key : slice, int, list, numpy.ndarray, Ellipsis or tuple of them
        Indexing key, with numpy's meaning.
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
    if len(parts) > len(shape):
        raise IndexError(f"{len(parts)} indices for an array of {len(shape)} axes")
    split = [_split_axis(part, n) for part, n in zip(parts, shape, strict=True)]
    box = Box(tuple(start for start, _, _ in split), tuple(stop for _, stop, _ in split))
    plain = all(isinstance(rest, slice) and rest.step in (None, 1) for _, _, rest in split)
    return box, None if plain else tuple(rest for _, _, rest in split)


def _split_axis(part: Any, n: int) -> tuple[int, int, Any]:
    """Start, stop and what is left of the key, for one axis of extent `n`."""
    if isinstance(part, slice):
        picked = range(n)[part]
        if not picked:
            return 0, 0, slice(None)
        return (
            min(picked[0], picked[-1]),
            max(picked[0], picked[-1]) + 1,
            slice(None, None, picked.step),
        )
    if isinstance(part, list | np.ndarray):
        every = np.arange(n)[
            part
        ]  # resolves negative and boolean indices, and refuses what numpy does
        low, high = (int(every.min()), int(every.max()) + 1) if every.size else (0, 0)
        return low, high, every - low
    at = range(n)[part]
    return at, at + 1, 0

"""Protocol and base class of sources, and the resolution of indexing keys."""

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

    A source can be pickled and shared between threads. It describes the array and holds no open
    handle; each process opens the file when it first reads.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of the values that are read, including the byte order."""

    @property
    def chunks(self) -> Chunks:
        """Natural chunks of the file, in the form that dask accepts."""

    @property
    def identity(self) -> str:
        """Text that changes when the file changes; a resumed run compares it."""

    def __getitem__(self, key: tuple[slice, ...]) -> npt.NDArray[Any]:
        """Read one region of the array."""


@dataclass(frozen=True, slots=True)
class Request:
    """Arguments of :func:`shardwrite.sources.open_source` that a format needs.

    Parameters
    ----------
    path : str
        File, directory or pattern.
    dataset : str or None
        Name of the array, if the file holds several.
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
    """Base of all sources, which resolves keys and calls `_read` to read a box.

    Parameters
    ----------
    path : str
        File, directory or pattern.
    shape : tuple of int
        Shape of the array.
    dtype : numpy.dtype
        Data type of the values that are read.
    chunks : tuple
        Natural chunks of the file, in the form that dask accepts.
    identity : str
        Text that changes when the file changes; see :class:`Source`.
    """

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: Chunks
    identity: str

    def __getitem__(self, key: Any) -> npt.NDArray[Any]:
        """Read one region.

        Dask fuses indexing into keys, so integers, steps and lists occur besides plain slices.

        Raises
        ------
        IndexError
            If the key has too many axes or is out of bounds.
        """
        box, rest = split_key(key, self.shape)
        # an empty box is not read: its file may be empty, and an empty file cannot be mapped
        block = self._read(box) if box.size else np.empty(box.shape, self.dtype)
        return block if rest is None else np.asarray(block[rest])

    def __dask_tokenize__(self) -> tuple[str, str]:
        return type(self).__name__, self.identity

    def _read(self, box: Box) -> npt.NDArray[Any]:
        raise NotImplementedError


def split_key(key: Any, shape: tuple[int, ...]) -> tuple[Box, tuple[Any, ...] | None]:
    """Split a key into the smallest box that it selects from, and a key within that box.

    Parameters
    ----------
    key : slice, int, list, numpy.ndarray, Ellipsis or tuple of them
        Indexing key, as in NumPy.
    shape : tuple of int
        Shape of the array.

    Returns
    -------
    box : Box
        Box that must be read.
    rest : tuple or None
        Key to apply to the block of the box; None if the block is the result.

    Raises
    ------
    IndexError
        If the key has too many axes or is out of bounds.
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
    """Start and stop on an axis of extent `n`, and the key within that range."""
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
        # This resolves negative and boolean indices, and raises the errors of NumPy.
        every = np.arange(n)[part]
        low, high = (int(every.min()), int(every.max()) + 1) if every.size else (0, 0)
        return low, high, every - low
    at = range(n)[part]
    return at, at + 1, 0

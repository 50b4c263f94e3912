"""The base class of sources, their keys, and errors about damaged files."""

from __future__ import annotations

import errno
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.errors import ShardwriteError, SourceError
from shardwrite.format.metadata import SourceMetadata
from shardwrite.grid import Box
from shardwrite.plan.regions import index_of_each_axis
from shardwrite.read.source import Chunks, Source
from shardwrite.seams import Ref
from shardwrite.sources.inside import FileInBucket

__all__ = ["Chunks", "RegionSource", "Request", "Source", "SourceMetadata"]


# ---- Errors about damaged files


_OF_DAMAGE = (
    *(ArithmeticError, EOFError, LookupError, OSError, RuntimeError, ValueError),
    *(struct.error, zipfile.BadZipFile, zlib.error),
)
"""What libraries raise about a damaged file. None of these is only for damage."""


@contextmanager
def naming_damage(path: str, box: Box) -> Iterator[None]:
    """Turn what a library raises about a damaged file into an error that names the file.

    Errors of the operating system, which have a number, stay as they are. Only EINVAL counts as
    damage: it comes from places in a file that no file can have.
    """
    try:
        yield
    except ShardwriteError:
        raise
    except _OF_DAMAGE as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise SourceError(
            f"{path} cannot be read, and may be damaged: {error}", region=box.bounds
        ) from error


# ---- Keys


def split_key(key: Any, shape: tuple[int, ...]) -> tuple[Box, tuple[Any, ...] | None]:
    """Split a key into the smallest box that it selects from, and a key within that box.

    - Returns: key to apply to the block of the box; None if the block is the result.
    - Raises IndexError if the key has too many axes or is out of bounds.
    """
    parts = index_of_each_axis(key, len(shape))
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
    if isinstance(part, bool | np.bool_):
        raise IndexError(f"{part!r}, which would add an axis")
    try:
        index = range(n)[part]
    except TypeError:
        raise IndexError(f"{part!r} is no integer, slice, or array of integers") from None
    return index, index + 1, 0


# ---- Sources


@dataclass(frozen=True, slots=True)
class Request:
    """Arguments of :func:`shardwrite.sources.open_source` that a format needs."""

    path: str  # file, directory, pattern or URL
    dataset: str | None = None  # name of the array, if the file holds several
    # Layout of a raw binary file
    shape: tuple[int, ...] | None = None
    dtype: npt.DTypeLike | None = None
    offset: int = 0
    order: str = "C"
    file: FileInBucket | None = None  # the file at the URL, if there is one


@dataclass(frozen=True, slots=True)
class RegionSource:
    """Base of sources, which resolves keys and calls `_read` to read a box.

    A format has a subclass with `_read`, and a module with a function ``open_`` that takes a
    `Request` and returns an instance; see :mod:`shardwrite.sources.registry`.

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
    metadata : SourceMetadata, optional
        What the file says about the array besides its values. Nothing, by default.
    ref : Ref, optional
        How other processes open it, which :func:`shardwrite.sources.open_source` adds.
    """

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: Chunks
    identity: str
    metadata: SourceMetadata = field(kw_only=True, default_factory=SourceMetadata)
    ref: Ref | None = field(kw_only=True, default=None, compare=False)

    def __getitem__(self, key: Any) -> npt.NDArray[Any]:
        """Read one region.

        Dask fuses indexing into keys, so integers, steps and lists occur besides plain slices.

        Raises
        ------
        IndexError
            If the key has too many axes or is out of bounds.
        SourceError
            If the file is damaged.
        """
        box, rest = split_key(key, self.shape)
        # an empty box is not read: its file may be empty, and an empty file cannot be mapped
        with naming_damage(self.path, box):
            block = self._read(box) if box.size else np.empty(box.shape, self.dtype)
        if not self.shape:  # a scalar of a library has lost its order of bytes, or its length
            block = np.asarray(block, self.dtype)
        return block if rest is None else np.asarray(block[rest])

    def places_read(self) -> Iterator[tuple[Any, str, str]]:
        """See :class:`~shardwrite.sources.protocol.ReadsPlaces`."""
        yield self.path, "", "file"

    def __dask_tokenize__(self) -> tuple[str, str]:
        return type(self).__name__, self.identity

    def _read(self, box: Box) -> npt.NDArray[Any]:
        """Read the elements of a box, which is not empty. Threads may do so at the same time."""
        raise NotImplementedError

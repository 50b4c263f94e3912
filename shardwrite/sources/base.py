"""Base class of sources, and what opens one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.grid import Box
from shardwrite.read.source import Chunks, Source, SourceMetadata
from shardwrite.sources.damage import naming_damage
from shardwrite.sources.keys import split_key
from shardwrite.stores.bucket_files import FileInBucket

__all__ = ["Chunks", "RegionSource", "Request", "Source", "SourceMetadata"]


@dataclass(frozen=True, slots=True)
class Request:
    """Arguments of :func:`shardwrite.sources.open_source` that a format needs.

    Parameters
    ----------
    path : str
        File, directory, pattern or URL.
    dataset : str or None
        Name of the array, if the file holds several.
    shape, dtype, offset, order
        Layout of a raw binary file.
    file : FileInBucket or None
        The file at the URL, if there is one.
    """

    path: str
    dataset: str | None = None
    shape: tuple[int, ...] | None = None
    dtype: npt.DTypeLike | None = None
    offset: int = 0
    order: str = "C"
    file: FileInBucket | None = None


@dataclass(frozen=True, slots=True)
class RegionSource:
    """Base of sources, which resolves keys and calls `_read` to read a box.

    A format has a subclass with `_read`, and a module with a function ``open_`` that takes a
    `Request` and returns an instance; see :mod:`shardwrite.sources.formats`.

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
    """

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: Chunks
    identity: str
    metadata: SourceMetadata = field(kw_only=True, default_factory=SourceMetadata)

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

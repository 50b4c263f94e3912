"""Protocol and base class of sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.documents import JSON
from shardwrite.grid import Box
from shardwrite.sources.damage import naming_damage
from shardwrite.sources.keys import split_key
from shardwrite.stores import FileInBucket

__all__ = ["Chunks", "RegionSource", "Request", "Source", "SourceMetadata"]

Chunks = tuple[int | tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class SourceMetadata:
    """What a file says about an array besides its values."""

    fill_value: Any = None  # of elements that were never written; None if the file does not say
    dimension_names: tuple[str | None, ...] | None = None  # one for each axis
    attributes: Mapping[str, JSON] = field(default_factory=dict)  # of the array
    serializer: str | None = None  # codec of elements that are objects, such as bytes
    # attributes by which xarray decodes values, as numbers of the types that the file has
    typed: Mapping[str, Any] = field(default_factory=dict, compare=False)


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

    @property
    def metadata(self) -> SourceMetadata:
        """What the file says about the array besides its values."""

    def __getitem__(self, key: tuple[slice, ...]) -> npt.NDArray[Any]:
        """Read one region of the array."""


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

    def __dask_tokenize__(self) -> tuple[str, str]:
        return type(self).__name__, self.identity

    def _read(self, box: Box) -> npt.NDArray[Any]:
        """Read the elements of a box, which is not empty. Threads may do so at the same time."""
        raise NotImplementedError

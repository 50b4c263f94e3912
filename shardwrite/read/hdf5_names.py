"""Names of the datasets in a shard that is a file of HDF5, as the library of HDF5 reads them."""

from __future__ import annotations

import io
from collections.abc import Iterable

from shardwrite.encode.reader import Loaded, Ranges
from shardwrite.errors import StoreError
from shardwrite.grid import Shape

__all__ = ["dataset_names"]

_SMALL_NBYTES = 65536  # files that are read at once


def dataset_names(
    source: Ranges, chunks: Shape, among: Iterable[str | None] = (), *, is_enough: bool = False
) -> list[str]:
    """Names of the datasets in a file of HDF5 that may hold the chunks of a shard.

    A dataset may have several names, of which only one is found by a look through the file.

    Parameters
    ----------
    source : Ranges
        The file.
    chunks : tuple of int
        Shape of an inner chunk.
    among : iterable of str or None
        Further names, which are looked up. Those that the file has come first.
    is_enough : bool
        Whether no others are looked for if the file has one of these.

    Returns
    -------
    list of str
        The names; none if the library cannot read the file, or is not installed.
    """
    try:
        import h5py  # an extra, and slow
    except ImportError:
        return []
    found: list[str] = []

    def visit(name: str, node: object) -> None:
        if isinstance(node, h5py.Dataset) and node.chunks == chunks:
            found.append(name)

    try:
        whole = Loaded(source) if source.nbytes <= _SMALL_NBYTES else source
        with h5py.File(_Seekable(whole), "r") as file:
            known = [name for name in among if isinstance(file.get(name or "/"), h5py.Dataset)]
            if not (known and is_enough):
                file.visititems(visit)
    except StoreError:
        raise
    except (OSError, RuntimeError, ValueError, KeyError):
        return []  # no program reads it as such a file
    return list(dict.fromkeys([name for name in known if name is not None] + found))


class _Seekable(io.RawIOBase):
    """An object of a store as a file of Python."""

    def __init__(self, source: Ranges) -> None:
        super().__init__()
        self._source, self._at = source, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._source.nbytes}[whence]
        self._at = start + offset
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        n = max(0, min(len(buffer), self._source.nbytes - self._at))
        buffer[:n] = bytes(self._source.read(self._at, n))
        self._at += n
        return n

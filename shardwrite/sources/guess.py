"""Detection of the format of a file from its name and its first bytes."""

from __future__ import annotations

import os
from typing import BinaryIO

from shardwrite.config.table import STORAGE
from shardwrite.config.values import value_of
from shardwrite.format.node import DOCUMENT, DOCUMENTS_OF_V2
from shardwrite.format.precomputed.info import INFO
from shardwrite.sources.formats import FORMATS
from shardwrite.stores import open_bucket

__all__ = ["IN_BUCKETS", "guess", "guess_in_bucket"]

IN_BUCKETS = ("zarr", "precomputed")
"""Names of the formats that are read from buckets."""

_NODES = (DOCUMENT, *DOCUMENTS_OF_V2, ".zmetadata")
_HDF5 = b"\x89HDF\r\n\x1a\n"
_MAGIC = {
    _HDF5: "hdf5",
    b"\x93NUMPY": "npy",
    b"CDF": "netcdf3",
    b"II*\0": "tiff",
    b"MM\0*": "tiff",
    b"II+\0": "tiff",
    b"MM\0+": "tiff",
}
# Suffixes that decide if the content does not.
_LIKELY = {
    ".h5": "hdf5",
    ".hdf5": "hdf5",
    ".he5": "hdf5",
    ".nc4": "hdf5",
    ".npy": "npy",
    ".tif": "tiff",
    ".tiff": "tiff",
    ".cdf": "netcdf3",
    ".zarr": "zarr",
    ".zip": "zarr",
}


def guess(path: str) -> str | None:
    """Name of the format of a file, directory or pattern; None if it is unknown.

    Parameters
    ----------
    path : str
        File, directory or pattern. For a pattern, only its text counts.

    Raises
    ------
    OSError
        If the file or directory cannot be read.
    """
    if os.path.isdir(path):
        return _guess_directory(path)
    named = _by_name(path, {end: name for name, one in FORMATS.items() for end in one.suffixes})
    if named is not None or not os.path.isfile(path):
        return (
            named
            if os.path.isfile(path)
            else "tiff"
            if path.lower().endswith((".tif", ".tiff"))
            else None
        )
    with open(path, "rb") as file:
        head = file.read(8)
        found = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)
        if found is None and _has_superblock(file):
            return "hdf5"
    return found or _by_name(path, _LIKELY)


def guess_in_bucket(url: str) -> str:
    """Name of the format of what lies at a URL: a volume of Neuroglancer, or else a Zarr array.

    Parameters
    ----------
    url : str
        The URL.

    Raises
    ------
    StoreError
        If the service refuses.
    """
    store = open_bucket(url, value_of(STORAGE), is_read=True)
    is_volume = store.version(INFO) is not None
    is_node = is_volume and any(store.version(mark) is not None for mark in _NODES)
    return "precomputed" if is_volume and not is_node else "zarr"


def _has_superblock(file: BinaryIO) -> bool:
    """Whether an HDF5 file begins after a user block, of 512 bytes times a power of two."""
    start, end = 512, os.fstat(file.fileno()).st_size
    while start < end:
        if os.pread(file.fileno(), len(_HDF5), start) == _HDF5:
            return True
        start *= 2
    return False


def _by_name(path: str, names: dict[str, str]) -> str | None:
    lower = path.lower()
    return next((name for suffix, name in names.items() if lower.endswith(suffix)), None)


def _guess_directory(path: str) -> str | None:
    if any(os.path.exists(os.path.join(path, mark)) for mark in _NODES) or path.rstrip(
        "/"
    ).endswith(".zarr"):
        return "zarr"
    if os.path.isfile(os.path.join(path, INFO)):
        return "precomputed"
    with os.scandir(path) as entries:
        return (
            "tiff"
            if any(entry.name.lower().endswith((".tif", ".tiff")) for entry in entries)
            else None
        )

"""Detection of the format of a file from its name and its first bytes, here or in a bucket."""

from __future__ import annotations

import errno
import os
from typing import IO

from shardwrite.config.table import STORAGE
from shardwrite.config.values import value_of
from shardwrite.errors import StoreError
from shardwrite.format.node import DOCUMENT, DOCUMENTS_OF_V2
from shardwrite.sources.common import open_binary
from shardwrite.sources.formats import FORMATS
from shardwrite.stores import open_bucket
from shardwrite.stores.bucket_files import FileInBucket, file_in_bucket

FILES_IN_BUCKETS = ("hdf5", "npy", "raw", "tiff")
"""Names of the formats whose files are read from buckets, besides arrays of many objects."""

_INFO = "info"  # of a volume of Neuroglancer
_NODES = (DOCUMENT, *DOCUMENTS_OF_V2, ".zmetadata")
_HDF5 = b"\x89HDF\r\n\x1a\n"
_MAGIC = {
    _HDF5: "hdf5",
    b"\x93NUMPY": "npy",
    b"CDF": "netcdf3",
    b"WKW": "wkw",
    b"\x9e\xa8b2fram": "b2nd",
    b"II*\0": "tiff",
    b"MM\0*": "tiff",
    b"II+\0": "tiff",
    b"MM\0+": "tiff",
}
# Files that tell what the directory is in which they lie.
_MARKS = {_INFO: "precomputed", "header.wkw": "wkw", "chunks.b2frame": "b2nd"}
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
    ".b2nd": "b2nd",
    ".b2frame": "b2nd",
    ".wkw": "wkw",
    ".zarr": "zarr",
    ".zip": "zarr",
}
# Further suffixes of files, whose content or whole name decides.
_FILES = (".nc", ".nwb", ".h5ad", ".mat", ".ims", ".zip", ".nii", ".nii.gz", ".raw", ".bin", ".dat")


def guess(path: str) -> str | None:
    """Name of the format of a file, directory or pattern; None if it is unknown.

    - `path`: file, directory or pattern. For a pattern, only its text counts.
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
        return _by_content(file) or _by_name(path, _LIKELY)


def guess_in_bucket(url: str) -> tuple[str | None, FileInBucket | None]:
    """Name of the format of what lies at a URL, and the file if it is one; None if it is unknown.

    A URL that is named like a file is looked for as a file first. Others are looked for as a volume
    of Neuroglancer or a Zarr array.
    """
    is_named = is_named_as_file(url)
    file = file_in_bucket(url) if is_named else None
    if file is None:
        store = open_bucket(url, value_of(STORAGE), is_read=True)
        is_volume = store.version(_INFO) is not None
        is_sure = not is_volume and url.rstrip("/").endswith(".zarr")
        if is_sure or any(store.version(mark) is not None for mark in _NODES):
            return "zarr", None
        if is_volume:
            return "precomputed", None
        file = None if is_named else file_in_bucket(url)
    if file is None and is_named:
        raise StoreError(f"no such object: {url}", key=url, errno=errno.ENOENT)
    if file is None:
        return "zarr", None  # which says that there is none
    named = _by_name(url, {end: name for name, one in FORMATS.items() for end in one.suffixes})
    if named is None:
        with open_binary(file) as stream:
            named = _by_content(stream)
    return named or _by_name(url, _LIKELY), file


def is_named_as_file(url: str) -> bool:
    """Whether the name at the end of a URL is that of a file, and not that of a directory.

    Examples
    --------
    >>> is_named_as_file("s3://bucket/scan.h5"), is_named_as_file("s3://bucket/scan.zarr")
    (True, False)
    """
    name = url.lower().rstrip("/")
    return name.endswith(_FILES) or _by_name(name, _LIKELY) not in (None, "zarr")


def _by_content(file: IO[bytes]) -> str | None:
    """Name of the format that the first bytes of a file tell; None if they do not."""
    head = file.read(8)
    found = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)
    return "hdf5" if found is None and _has_superblock(file) else found


def _has_superblock(file: IO[bytes]) -> bool:
    """Whether an HDF5 file begins after a user block, of 512 bytes times a power of two."""
    start, end = 512, file.seek(0, os.SEEK_END)
    while start < end:
        file.seek(start)
        if file.read(len(_HDF5)) == _HDF5:
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
    for mark, name in _MARKS.items():
        if os.path.isfile(os.path.join(path, mark)):
            return name
    with os.scandir(path) as entries:
        return (
            "tiff"
            if any(entry.name.lower().endswith((".tif", ".tiff")) for entry in entries)
            else None
        )

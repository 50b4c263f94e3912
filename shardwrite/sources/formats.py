"""Table of the formats that can be opened. A format of another package is added to it."""

from __future__ import annotations

from dataclasses import dataclass

from shardwrite.errors import SpecError
from shardwrite.seams import installed, needed

__all__ = ["FORMATS", "Format", "register_format"]


@dataclass(frozen=True, slots=True)
class Format:
    """A format that can be opened."""

    # Full name of the module that opens the format with its function ``open_``. The module is
    # imported when a file of the format is opened.
    module: str
    # Arguments of :func:`open_source` that the format accepts
    options: frozenset[str] = frozenset()
    # Ends of file names that decide, whatever the first bytes of the file are
    suffixes: tuple[str, ...] = ()


_ONE_OF_SEVERAL = frozenset({"dataset"})
FORMATS = {
    "zarr": Format("shardwrite.sources.zarr_opening", _ONE_OF_SEVERAL, (".zarr.zip",)),
    "hdf5": Format("shardwrite.sources.hdf5_opening", _ONE_OF_SEVERAL),
    "netcdf3": Format("shardwrite.sources.netcdf3", _ONE_OF_SEVERAL),
    "npy": Format("shardwrite.sources.npy"),
    "tiff": Format("shardwrite.sources.tiff", _ONE_OF_SEVERAL),
    "precomputed": Format("shardwrite.sources.precomputed", _ONE_OF_SEVERAL),
    "b2nd": Format("shardwrite.sources.b2nd"),
    "wkw": Format("shardwrite.sources.wkw", frozenset({"shape"})),
    "nifti": Format("shardwrite.sources.nifti", suffixes=(".nii", ".nii.gz")),
    # A raw file may begin with any bytes, and a compressed file shows only its compression.
    "raw": Format(
        "shardwrite.sources.raw",
        frozenset({"shape", "dtype", "offset", "order"}),
        (".raw", ".bin", ".dat"),
    ),
}


def register_format(name: str, added: Format) -> None:
    """Add a format, so that :func:`open_source` can open its files in this process.

    - `added`: the format. The same format may be added again.
    """
    for known, format_ in FORMATS.items():
        shared = sorted(set(format_.suffixes) & set(added.suffixes))
        if (known == name and format_ != added) or (known != name and shared):
            raise SpecError(
                f"the format {known!r} has this name or the suffixes {shared}",
                field="format",
                value=name,
                remedy="choose another name and other suffixes",
            )
    FORMATS[name] = added


def add_installed() -> None:
    """Add the formats of installed packages, which takes time and is seldom needed."""
    for name in installed("source"):
        what = f"the format {name!r} of an installed package"
        register_format(name, needed("source", name, what, field="format", value=name))

"""Formats of files, how the format of a file is detected, and the function that opens a source.

A format of another package is added to the table by `register_format` or by an entry point.
"""

from __future__ import annotations

import dataclasses
import errno
import glob
import importlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.entry.public import taking
from shardwrite.errors import ShardwriteError, SpecError, StoreError, redacted
from shardwrite.format.frame import HDF5
from shardwrite.format.node import DOCUMENT, DOCUMENTS_OF_V2
from shardwrite.grid import Box
from shardwrite.legacy.place import TransformerPlace
from shardwrite.place.base import without_kind
from shardwrite.place.directory import Directory
from shardwrite.place.target import in_hierarchy
from shardwrite.read.array import normalize
from shardwrite.read.source import as_attributes
from shardwrite.seams import Ref, all_of, installed, needed
from shardwrite.sources.base import RegionSource, Request, Source, SourceMetadata
from shardwrite.sources.common import open_binary, require
from shardwrite.sources.inside import FileInBucket, file_in_bucket
from shardwrite.sources.keywords import OpenArguments
from shardwrite.stores.bucket_url import open_bucket
from shardwrite.stores.looking import check_regular, is_bucket_url, local_path

__all__ = ["FORMATS", "Format", "register_format"]


# ---- The table of formats


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
    "zarr": Format("shardwrite.sources.zarr_array", _ONE_OF_SEVERAL, (".zarr.zip",)),
    "hdf5": Format("shardwrite.sources.hdf5", _ONE_OF_SEVERAL),
    "netcdf3": Format("shardwrite.sources.netcdf3", _ONE_OF_SEVERAL),
    "npy": Format("shardwrite.sources.npy"),
    "tiff": Format("shardwrite.sources.tiff", _ONE_OF_SEVERAL),
    "precomputed": Format("shardwrite.volumes.source", _ONE_OF_SEVERAL),
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


# ---- Detection of a format by the name of a file and its first bytes


FILES_IN_BUCKETS = ("hdf5", "npy", "raw", "tiff")
"""Names of the formats whose files are read from buckets, besides arrays of many objects."""

_INFO = "info"  # of a volume of Neuroglancer

_NODES = (DOCUMENT, *DOCUMENTS_OF_V2, ".zmetadata")

_MAGIC = {
    HDF5.magic: "hdf5",
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
    if not os.path.isfile(path):
        return "tiff" if _is_named_as_tiff(path) else None
    with open(path, "rb") as file:
        return _by_name(path, _suffixes()) or _by_content(file) or _by_name(path, _LIKELY)


def guess_in_bucket(url: str) -> tuple[str | None, FileInBucket | None]:
    """Name of the format of what lies at a URL, and the file if it is one; None if it is unknown.

    A URL that is named like a file is looked for as a file first. Others are looked for as a volume
    of Neuroglancer or a Zarr array.
    """
    is_named = is_named_as_file(url)
    file = file_in_bucket(url) if is_named else None
    if file is None:
        store = open_bucket(url, is_read=True)
        is_volume = store.version(_INFO) is not None
        is_sure = not is_volume and url.rstrip("/").endswith(".zarr")
        if is_sure or any(store.version(mark) is not None for mark in _NODES):
            return "zarr", None
        if is_volume:
            return "precomputed", None
        if is_named:
            raise _no_object(url)
        file = file_in_bucket(url)
    if file is None:
        return "zarr", None  # which says that there is none
    named = _by_name(url, _suffixes())
    if named is None:
        with open_binary(file) as stream:
            named = _by_content(stream)
    return named or _by_name(url, _LIKELY), file


def _no_object(url: str) -> StoreError:
    return StoreError(f"no such object: {url}", key=url, errno=errno.ENOENT)


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
    start, end = HDF5.least_block, file.seek(0, os.SEEK_END)
    while start < end:
        file.seek(start)
        if file.read(len(HDF5.magic)) == HDF5.magic:
            return True
        start *= 2
    return False


def _suffixes() -> dict[str, str]:
    """Ends of file names that decide, and the names of their formats."""
    return {end: name for name, known in FORMATS.items() for end in known.suffixes}


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
        return "tiff" if any(_is_named_as_tiff(entry.name) for entry in entries) else None


def _is_named_as_tiff(path: str) -> bool:
    return path.lower().endswith((".tif", ".tiff"))


# ---- Values as the conventions of CF decode them, by xarray


@dataclass(frozen=True, slots=True)
class DecodedSource(RegionSource):
    """A source whose values are unpacked, masked and turned into times block by block."""

    packed: Source  # the source as the file holds it

    def _read(self, box: Box) -> npt.NDArray[Any]:
        values = _decode(self.packed, self.packed[box.slices[:-1]])
        decoded = np.asarray(values.data)
        if decoded.dtype != self.dtype:
            raise SpecError(
                f"its values in {box.bounds} decode to {decoded.dtype}, and others to {self.dtype}",
                field="decode_cf",
                value=self.path,
                remedy="convert it without --decode-cf",
            )
        return decoded


def decoded(source: Source) -> Source:
    """A source that decodes the values of another one by the conventions of CF.

    The attributes that say how to decode, such as ``scale_factor``, are left out. Missing values
    become NaN or NaT, which is then the fill value.
    """
    if source.dtype.kind in "TO":  # texts and bytes are not packed
        return source
    path = str(getattr(source, "path", source.identity))
    require("xarray", "cf", path)
    try:
        sample = _decode(source, np.zeros((1,) * len(source.shape), source.dtype))
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise SpecError(
            f"its values cannot be decoded: {error}",
            field="decode_cf",
            value=path,
            remedy="convert it without --decode-cf",
        ) from None
    if sample.dtype == source.dtype and dict(sample.attrs) == dict(source.metadata.attributes):
        return source
    missing = {"f": np.nan, "c": np.nan, "M": "NaT", "m": "NaT"}.get(sample.dtype.kind)
    fill = None if missing is None else np.asarray(missing, dtype=sample.dtype)[()]
    if sample.dtype == source.dtype and fill is None:  # that of another type means another value
        fill = source.metadata.fill_value
    return DecodedSource(
        path=path,
        shape=source.shape,
        dtype=sample.dtype,
        chunks=source.chunks,
        identity=f"cf:{source.identity}",
        packed=source,
        metadata=SourceMetadata(
            fill_value=fill,
            dimension_names=source.metadata.dimension_names,
            attributes=as_attributes(sample.attrs, path),
        ),
        ref=_decoded_ref(source),
    )


def _decoded_ref(source: Source) -> Ref | None:
    ref: Ref | None = getattr(source, "ref", None)
    if ref is None:
        return None
    parameters = {**ref.parameters, "decode_cf": True, "identity": f"cf:{source.identity}"}
    return dataclasses.replace(ref, parameters=parameters)


def _decode(source: Source, values: npt.NDArray[Any]) -> Any:
    """A variable of xarray with decoded values, and the attributes that are left."""
    import xarray

    metadata = source.metadata
    names = [f"axis {axis}" for axis in range(values.ndim)]
    # xarray takes a fill value in the other order of bytes for another number.
    native = values.astype(values.dtype.newbyteorder("="), copy=False)
    packed = xarray.Variable(names, native, {**metadata.attributes, **metadata.typed})
    decode = xarray.conventions.decode_cf_variable
    variable = decode("values", packed, concat_characters=False).load()
    if variable.dtype.hasobject:  # such as times of a calendar that numpy does not have
        raise TypeError("they become objects of Python, which Zarr does not store")
    return variable


# ---- Opening of a source


_NO_FILES = ("zarr", "precomputed")  # but many objects


@taking(OpenArguments)
def open_source(given: OpenArguments) -> Source:
    """Open an array in a file; its shape and dtype are read, but no values."""
    format, path = given.format, os.fspath(given.path)  # noqa: A001 (the word that users know)
    path, dataset = _split(path, given.dataset)
    if format not in (None, *FORMATS):
        add_installed()
    if format not in (None, *FORMATS):
        raise SpecError(
            "no such format",
            field="format",
            value=format,
            remedy=f"choose one of: {', '.join(FORMATS)}",
        )
    if not _is_there(path):
        if format not in (None, "zarr") or not _is_in_hierarchy(path):
            raise StoreError(f"no such file or directory: {path}", key=path, errno=errno.ENOENT)
        format = "zarr"  # noqa: A001 (the word that users know)
    if not is_bucket_url(path) and os.path.exists(path) and not os.path.isdir(path):
        check_regular(path, remedy="write its data into a file first")
    try:
        name, file = _format(path, format)
    except ShardwriteError:
        raise
    except OSError as error:
        raise _refused_by_storage(path, error) from None
    request = Request(
        path=path,
        dataset=dataset,
        shape=None if given.shape is None else tuple(given.shape),
        dtype=given.dtype,
        offset=given.offset,
        order=given.order,
        file=file,
    )
    return _with_chunks(_named(_open(name, request), name, request), given.chunks)


def _named(source: Source, name: str, request: Request) -> Source:
    """A source that knows how other processes open it, unless its URL holds credentials."""
    is_url = is_bucket_url(request.path)
    if not isinstance(source, RegionSource) or redacted(request.path) != request.path:
        return source
    given: dict[str, object] = {
        "path": request.path if is_url else os.path.abspath(request.path),
        "dataset": request.dataset,
        "shape": request.shape,
        "dtype": None if request.dtype is None else np.dtype(request.dtype).str,
        "offset": request.offset,
        "order": request.order,
        "identity": source.identity,
    }
    usual = {one.name: one.default for one in dataclasses.fields(Request)}
    parameters = {key: value for key, value in given.items() if value != usual.get(key)}
    return dataclasses.replace(source, ref=Ref("source", name, parameters))


def source_opener(name: str) -> Callable[[Mapping[str, Any]], Source]:
    """What opens a source that a record names, and refuses one that has changed since then."""

    def opened(parameters: Mapping[str, Any]) -> Source:
        given = dict(parameters)
        identity, is_decoded = given.pop("identity", None), given.pop("decode_cf", False)
        source = open_source(format=name, **given)
        if is_decoded:
            source = decoded(source)
        if identity not in (None, source.identity):
            raise SpecError(
                "it has changed since the run was begun",
                field="source",
                value=given["path"],
                remedy="begin again with restart=True (shardwrite init --restart)",
            )
        return source

    return opened


def _is_there(path: str) -> bool:
    """Whether there may be something at a URL, or there is at a path or a pattern."""
    if is_bucket_url(path) or os.path.exists(path):
        return True
    return glob.has_magic(path) and bool(glob.glob(path, recursive=True))


def _is_in_hierarchy(path: str) -> bool:
    """Whether a path of this machine is a hierarchy of 2022, or one of something in it."""
    return isinstance(in_hierarchy(Directory(Path(path).absolute())), TransformerPlace)


def _format(path: str, given: str | None) -> tuple[str, FileInBucket | None]:
    """Name of a format, which may be given, and the file if it lies in a bucket."""
    name, file = given, None
    if not is_bucket_url(path):
        name = given or guess(path) or ("zarr" if _is_in_hierarchy(path) else None)
        if name is None:
            add_installed()
            name = guess(path)
    elif given is None:
        name, file = guess_in_bucket(path)
    elif given in FILES_IN_BUCKETS:
        file = file_in_bucket(path)
        if file is None:
            raise _no_object(path)
    if name is None:
        if os.path.isdir(path):
            for refuse in all_of("foreign"):  # by what a wing knows of the place
                refuse(Directory(Path(path).absolute()), "source")
        raise SpecError(
            "its format cannot be told from its name or content",
            field="source",
            value=path,
            remedy=f"give format as one of: {', '.join(FORMATS)}",
        )
    return name, file


def _split(path: str, dataset: str | None) -> tuple[str, str | None]:
    path = local_path(without_kind(path), "source")
    if "://" in path and not is_bucket_url(path):
        # a URL may contain a password, so only its scheme is shown
        remedy = "open it with dask and give the dask array"
        raise SpecError(
            "only local files are read, and what lies in buckets (s3, gs, az) or on web servers "
            "(https, http)",
            field="source",
            value=path.split("://")[0] + "://",
            remedy=remedy,
        )
    if dataset is None and "::" in path and not os.path.exists(path):
        path, _, dataset = path.rpartition("::")
    return path, dataset


def _open(name: str, request: Request) -> Source:
    format_, is_in_bucket = FORMATS[name], is_bucket_url(request.path)
    is_zip = name in _NO_FILES and request.file is not None
    if is_in_bucket and (is_zip or name not in (*_NO_FILES, *FILES_IN_BUCKETS)):
        raise SpecError(
            f"{'a ZIP file' if is_zip else f'a file of the format {name}'} is not read from a "
            "bucket",
            field="source",
            value=request.path,
            remedy="open it with dask and give the dask array, or copy it to a local file",
        )
    for field in dataclasses.fields(Request):
        value = getattr(request, field.name)
        if field.name in ("path", "file", *format_.options):
            continue
        if value != field.default:
            remedy = (
                "leave it out, or choose a format that takes it; "
                f"{name} takes {', '.join(sorted(format_.options)) or 'none'}"
            )
            raise SpecError(
                f"this means nothing to the format {name}",
                field=field.name,
                value=value,
                remedy=remedy,
            )
    try:
        source = cast("Source", importlib.import_module(format_.module).open_(request))
    except ShardwriteError:
        raise
    except OSError as error:
        if error.errno is None:  # h5py raises this if the content is not HDF5
            raise _unreadable(name, request.path, error) from None
        raise _refused_by_storage(request.path, error) from None
    except Exception as error:  # noqa: BLE001 (libraries raise many types; raised again)
        raise _unreadable(name, request.path, error) from None
    is_vlen = source.dtype.kind == "T" or source.metadata.serializer is not None
    if not is_vlen and (
        source.dtype.hasobject
        or source.dtype.subdtype is not None
        or source.dtype.itemsize == 0
        or source.dtype.kind not in "biufcmMSUV"
    ):
        remedy = "give an array of numbers, dates, text or bytes"
        raise SpecError(
            f"its elements are none that Zarr stores ({source.dtype})",
            field="source",
            value=request.path,
            remedy=remedy,
        )
    return source


def _refused_by_storage(path: str, error: OSError) -> StoreError:
    return StoreError(f"cannot read {path}: {error}", key=path, errno=error.errno)


def _unreadable(name: str, path: str, error: Exception) -> SpecError:
    remedy = "check the file, or give format and dataset"
    return SpecError(
        f"it cannot be read as {name}: {error}", field="source", value=path, remedy=remedy
    )


def _with_chunks(source: Source, chunks: Any) -> Source:
    if chunks is None:
        return source
    full = normalize(chunks, source.shape, source.dtype, source.chunks)
    return dataclasses.replace(cast("RegionSource", source), chunks=full)

"""The function that opens a source in a file."""

from __future__ import annotations

import dataclasses
import errno
import glob
import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack, cast

import numpy.typing as npt

from shardwrite.entry.public import public
from shardwrite.entry.words import refuse_unknown
from shardwrite.errors import ShardwriteError, SpecError, StoreError
from shardwrite.place.directory import Directory
from shardwrite.place.target import in_hierarchy
from shardwrite.place.transformer import TransformerPlace
from shardwrite.place.url import without_kind
from shardwrite.read.chunking import normalize
from shardwrite.seams import all_of
from shardwrite.sources.base import RegionSource, Request, Source
from shardwrite.sources.formats import FORMATS, add_installed
from shardwrite.sources.guess import FILES_IN_BUCKETS, guess, guess_in_bucket
from shardwrite.stores import check_regular, is_bucket_url, local_path
from shardwrite.stores.bucket_files import FileInBucket, file_in_bucket


class RawLayout(TypedDict, total=False):
    """Keywords that describe the layout of a raw binary file."""

    shape: Sequence[int] | None
    dtype: npt.DTypeLike | None
    offset: int
    order: str


_NO_FILES = ("zarr", "precomputed")  # but many objects
_KEYWORDS = ("path", "format", "dataset", *RawLayout.__annotations__, "chunks")


@public
def open_source(
    path: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002
    dataset: str | None = None,
    chunks: Any = None,
    **layout: Unpack[RawLayout],
) -> Source:
    """Open an array in a file; its shape and dtype are read, but no values.

    - `format`: A key of :data:`FORMATS`; by default the name and the first bytes of the file
      decide.
    - `layout`: layout of a raw binary file: `shape`, `dtype`, `offset` in bytes, 0 by default, and
      `order`, which is ``"C"`` by default, or ``"F"``.
    """
    refuse_unknown("open_source", layout, _KEYWORDS)
    path, dataset = _split(os.fspath(path), dataset)
    if format is not None and format not in FORMATS:
        add_installed()
    if format is not None and format not in FORMATS:
        raise SpecError(
            "no such format",
            field="format",
            value=format,
            remedy=f"choose one of: {', '.join(FORMATS)}",
        )
    if not _is_there(path):
        if format not in (None, "zarr") or not _is_in_hierarchy(path):
            raise StoreError(f"no such file or directory: {path}", key=path, errno=errno.ENOENT)
        format = "zarr"  # noqa: A001
    if not is_bucket_url(path) and os.path.exists(path) and not os.path.isdir(path):
        check_regular(path, remedy="write its data into a file first")
    try:
        name, file = _format(path, format)
    except ShardwriteError:
        raise
    except OSError as error:
        raise _refused_by_storage(path, error) from None
    shape = layout.get("shape")
    request = Request(
        path=path,
        dataset=dataset,
        shape=None if shape is None else tuple(shape),
        dtype=layout.get("dtype"),
        offset=layout.get("offset", 0),
        order=layout.get("order", "C"),
        file=file,
    )
    return _with_chunks(_open(name, request), chunks)


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
            raise StoreError(f"no such object: {path}", key=path, errno=errno.ENOENT)
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
            "only local files are read, and what lies in buckets (s3, gs, az)",
            field="source",
            value=path.split("://")[0] + "://",
            remedy=remedy,
        )
    if dataset is None and "::" in path and not os.path.exists(path):
        path, _, dataset = path.rpartition("::")
    return path, dataset


def _open(name: str, request: Request) -> Source:
    known, is_in_bucket = FORMATS[name], is_bucket_url(request.path)
    is_zip = name in _NO_FILES and request.file is not None
    if is_in_bucket and (is_zip or name not in (*_NO_FILES, *FILES_IN_BUCKETS)):
        raise SpecError(
            f"{'a ZIP file' if is_zip else f'a file of the format {name}'} is not read from a "
            "bucket",
            field="source",
            value=request.path,
            remedy="open it with dask and give the dask array, or copy it to a local file",
        )
    for field in dataclasses.fields(Request)[1:]:
        value = getattr(request, field.name)
        if field.name == "file":
            continue
        if value != field.default and field.name not in known.options:
            remedy = (
                "leave it out, or choose a format that takes it; "
                f"{name} takes {', '.join(sorted(known.options)) or 'none'}"
            )
            raise SpecError(
                f"this means nothing to the format {name}",
                field=field.name,
                value=value,
                remedy=remedy,
            )
    try:
        source = cast("Source", importlib.import_module(known.module).open_(request))
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

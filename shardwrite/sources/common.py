"""Helpers of all formats: identity of a file, optional libraries, arrays in it."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
from collections.abc import Callable, Iterable, Sequence
from typing import IO, Any, cast

import numpy.typing as npt

from shardwrite.errors import SpecError, StoreError
from shardwrite.grid import Box, Shape, ShardGrid
from shardwrite.read.attributes import (
    as_attributes,
    mask_value,
    typed_attributes,
    unmasked_value,
)
from shardwrite.sources.base import Request
from shardwrite.stores.bucket_files import FileInBucket

__all__ = [
    "as_attributes",
    "check_names",
    "choose_dataset",
    "digest",
    "fill_from_chunks",
    "identify",
    "identity_text",
    "mask_value",
    "open_binary",
    "place_of",
    "place_text",
    "require",
    "typed_attributes",
    "unmasked_value",
]


def identify(
    name: str, path: str | FileInBucket, *, stat_path: str | None = None, **options: object
) -> str:
    """Identity of a file: format, resolved path, size, modification time and options.

    A file in a bucket has an ETag in place of the time.

    - `options`: further arguments on which the values depend; those that are None are left out.
    """
    if isinstance(path, FileInBucket):
        size, tag, version = path.version
        return identity_text(name, path.url, size=size, etag=tag, version=version, **options)
    stat = os.stat(stat_path or path)
    facts = {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns, **options}
    return identity_text(name, os.path.realpath(path), **facts)


def identity_text(name: str, where: str, **facts: object) -> str:
    """Identity of an array from its format, its place, and facts; those that are None are left out.

    A space ends the place. After a question mark, the facts would be taken for the credentials of
    a URL, which no plan keeps.

    Examples
    --------
    >>> identity_text("npy", "/data/x.npy", size=80, order=None, offset=0)
    'npy:/data/x.npy size=80&offset=0'
    """
    told = "&".join(f"{fact}={value}" for fact, value in facts.items() if value is not None)
    return f"{name}:{where} {told}"


def digest(facts: Iterable[object]) -> str:
    """Digest of the names of many files, or of other facts about them."""
    text = "\0".join(map(str, facts))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def check_names(names: list[str], known: str, path: str) -> list[str]:
    """Names of the files of a source, of which a process knows the digest and lists them again."""
    if digest(names) != known:
        raise StoreError("files were added or removed since the source was opened", key=path)
    return names


def fill_from_chunks(
    values: npt.NDArray[Any],
    box: Box,
    grid: ShardGrid,
    read: Callable[[Shape], npt.NDArray[Any] | None],
) -> npt.NDArray[Any]:
    """Copy a box of an array from the chunks that it touches.

    - `values`: receives the elements of the box, and is returned.
    - `grid`: grid whose shards are the chunks.
    - `read`: returns the whole chunk at a position of the grid; None leaves values as they are.
    """
    for index in grid.shards_in(box):
        chunk = read(index)
        if chunk is not None:
            whole = grid.shard_box(index)
            part = box.intersect(whole)
            values[part.shift(box.start).slices] = chunk[part.shift(whole.start).slices]
    return values


def open_binary(place: str | FileInBucket) -> IO[bytes]:
    """Open a file for reading, on this machine or in a bucket."""
    return (
        cast("IO[bytes]", place.stream()) if isinstance(place, FileInBucket) else open(place, "rb")
    )


def place_of(request: Request) -> str | FileInBucket:
    """The file in a bucket of a request, or else the absolute path."""
    return os.path.abspath(request.path) if request.file is None else request.file


def place_text(place: str | FileInBucket) -> str:
    """Path or URL of a file."""
    return place.url if isinstance(place, FileInBucket) else place


def require(module: str, extra: str, path: str) -> Any:
    """Import an optional library."""
    if importlib.util.find_spec(module) is None:
        raise SpecError(
            f"reading this needs the library {module}, which is not installed",
            field="source",
            value=path,
            remedy=f'pip install "shardwrite[{extra}]"',
        )
    return importlib.import_module(module)


def choose_dataset(names: Sequence[str], dataset: str | None, path: str) -> str:
    """Choose the array `dataset`, or the only one if that is None."""
    clean = None if dataset is None else dataset.strip("/")
    if clean is not None and clean in names:
        return clean
    if clean is None and len(names) == 1:
        return names[0]
    listed = ", ".join(sorted(names)[:20]) + (
        f" and {len(names) - 20} more" if len(names) > 20 else ""
    )
    if not names:
        raise SpecError(
            "there is no array in it",
            field="source",
            value=path,
            remedy="give a file or group with an array",
        )
    if clean is None:
        raise SpecError(
            f"it holds {len(names)} arrays",
            field="source",
            value=path,
            remedy=f"choose one as dataset: {listed}",
        )
    raise SpecError(
        f"there is no such array in {path}",
        field="dataset",
        value=dataset,
        remedy=f"choose one of: {listed}",
    )

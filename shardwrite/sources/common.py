"""Helpers of all formats: identity of a file, optional libraries, axes, and open files.

Dask unpickles a source once for each task. A handle in the source would be opened as often. So the
handles are in a cache, which all threads of a process and all copies of a source share.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.codecs.documents import JSON
from shardwrite.errors import SpecError, StoreError
from shardwrite.grid import Box, Shape, ShardGrid
from shardwrite.host.libraries import library
from shardwrite.sources.base import Request
from shardwrite.sources.inside import FileInBucket

__all__ = ["choose_dataset", "digest", "identify", "identity_text", "open_binary", "require"]


# ---- Attributes by which values are decoded


_OF_DECODING = {
    *("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned"),
    *("units", "calendar", "dtype"),
}


def typed_attributes(attributes: Mapping[str, Any]) -> Mapping[str, object]:
    """Attributes by which xarray decodes values: single numbers with their types, and text.

    The result of decoding has a type that depends on theirs.
    """
    typed: dict[str, object] = {}
    for name in _OF_DECODING & set(attributes):
        value = attributes[name]
        if np.size(value) == 1:
            value = np.asarray(value).reshape(-1)[0]
        is_text = isinstance(value, bytes) and name != "_FillValue"
        typed[name] = value.decode("utf-8", "replace") if is_text else value
    return typed


# ---- Axes: names, and the length of a step


_PREFIXES = {
    "": "",
    "d": "deci",
    "c": "centi",
    "m": "milli",
    "µ": "micro",
    "\u03bc": "micro",
    "u": "micro",
    "n": "nano",
    "p": "pico",
    "f": "femto",
    "a": "atto",
    "z": "zepto",
    "y": "yocto",
    "h": "hecto",
    "k": "kilo",
    "M": "mega",
    "G": "giga",
    "T": "tera",
    "P": "peta",
    "E": "exa",
    "Z": "zetta",
    "Y": "yotta",
}

_OTHERS = {
    "Å": "angstrom",
    "in": "inch",
    "ft": "foot",
    "yd": "yard",
    "mi": "mile",
    "pc": "parsec",
    "min": "minute",
    "h": "hour",
    "d": "day",
    "sec": "second",
    "msec": "millisecond",
    "usec": "microsecond",
    "micron": "micrometer",
    "microns": "micrometer",
}

UNITS = {
    f"{short}{unit}": f"{prefix}{name}"
    for unit, name in (("m", "meter"), ("s", "second"))
    for short, prefix in _PREFIXES.items()
} | _OTHERS
"""Symbols of units of length and time, and their names in UDUNITS and in OME-Zarr."""

_NAMES = {name: name for name in UNITS.values()}


def dimension_units(steps: Iterable[tuple[float, str] | None]) -> dict[str, JSON]:
    """Attribute ``dimension_units``, as tensorstore and Neuroglancer read it.

    - `steps`: for each axis, the length of a step and its unit, or None if it is unknown. A unit
      that is neither a length nor a time counts as unknown, because Neuroglancer opens no array
      that has one.
    - Returns: the attribute; empty if no step is known.

    Examples
    --------
    >>> dimension_units([None, (0.5, "µm"), (2, "s"), (1, "pixel")])
    {'dimension_units': [None, '0.5 micrometer', '2.0 second', None]}
    """
    units: list[JSON] = []
    for length, unit in (step or (0.0, "") for step in steps):
        name = {**_NAMES, **UNITS}.get(unit.strip())
        is_known = name is not None and math.isfinite(length) and length > 0
        units.append(f"{float(length)!r} {name}" if is_known else None)
    return {"dimension_units": units} if any(units) else {}


def unique_names(names: Sequence[str | None]) -> tuple[str | None, ...] | None:
    """Names of axes, without those that occur twice; None if none is left.

    Examples
    --------
    >>> unique_names(["t", "x", None, "x"]), unique_names([None])
    (('t', None, None, None), None)
    """
    unique = tuple(name if names.count(name) == 1 else None for name in names)
    return unique if any(unique) else None


def tell_left_out(path: str, reasons: Iterable[str]) -> None:
    """Warn of what a file says and the new array will not."""
    for reason in reasons:
        warnings.warn(f"{path}: {reason}", stacklevel=3)


# ---- Open files


@dataclass(slots=True)
class _Entry:
    lock: threading.Lock = field(default_factory=threading.Lock)
    ready: bool = False
    value: Any = None


class HandleCache:
    """Least-recently-used cache of handles.

    A handle that leaves the cache is not closed here, because a thread may be reading from it. It
    closes when its last reader releases it.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._inherited: list[object] = []
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        os.register_at_fork(after_in_child=self._after_fork)

    def get(self, key: str, opener: Callable[[], Any]) -> Any:
        """Return the handle of `key`, and call `opener` if the cache has none."""
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            while len(self._entries) > self._limit:
                self._entries.popitem(last=False)
        # Opening may be slow (a compressed file is read whole), so only readers of this file wait.
        with entry.lock:
            if not entry.ready:
                entry.value = opener()
                entry.ready = True
            return entry.value

    def _after_fork(self) -> None:
        # A child shares file positions with its parent, so it opens its own files. The inherited
        # handles are kept alive: closing one here could wait forever for a lock of a library that
        # no thread of the child can release.
        self._inherited.append(self._entries)
        self._lock = threading.Lock()
        self._entries = OrderedDict()


FILES = HandleCache(limit=64)

WHOLE = HandleCache(limit=2)  # whole arrays in memory: few, but two sources can be read in turn


# ---- Files, libraries and datasets


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
    text = "&".join(f"{fact}={value}" for fact, value in facts.items() if value is not None)
    return f"{name}:{where} {text}"


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
    """Import a library that reads a file."""
    return library(module, extra, field="source", value=path)


def first_names(names: Sequence[str]) -> str:
    """The first of many names, for a message."""
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return ", ".join(names[:20]) + more


def choose_dataset(names: Sequence[str], dataset: str | None, path: str) -> str:
    """Choose the array `dataset`, or the only one if that is None."""
    if dataset is not None and dataset.strip("/") in names:
        return dataset.strip("/")
    if dataset is None and len(names) == 1:
        return names[0]
    if not names:
        raise SpecError(
            "there is no array in it",
            field="source",
            value=path,
            remedy="give a file or group with an array",
        )
    if dataset is None:
        raise SpecError(
            f"it holds {len(names)} arrays",
            field="source",
            value=path,
            remedy=f"choose one as dataset: {first_names(sorted(names))}",
        )
    raise SpecError(
        f"there is no such array in {path}",
        field="dataset",
        value=dataset,
        remedy=f"choose one of: {first_names(sorted(names))}",
    )

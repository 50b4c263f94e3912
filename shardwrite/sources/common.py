"""Helpers of all formats: identity of a file, optional libraries, axes, and open files.

Dask unpickles a source once for each task. A handle in the source would be opened as often. So the
handles are in a cache, which all threads of a process and all copies of a source share.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import math
import os
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import mul
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.documents import JSON
from shardwrite.errors import SpecError, StoreError
from shardwrite.grid import Box, Shape, ShardGrid
from shardwrite.read.array import merge_chunks, slabs
from shardwrite.read.source import as_attributes, mask_value, typed_attributes, unmasked_value
from shardwrite.sources.base import RegionSource, Request
from shardwrite.sources.inside import FileInBucket

__all__ = [
    "as_attributes",
    "check_names",
    "choose_dataset",
    "digest",
    "fill_from_chunks",
    "identify",
    "identity_text",
    "mask_value",
    "merge_chunks",
    "open_binary",
    "place_of",
    "place_text",
    "require",
    "slabs",
    "typed_attributes",
    "unmasked_value",
]


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
    units = [None if step is None else _quantity(*step) for step in steps]
    return {"dimension_units": [*units]} if any(units) else {}


def _quantity(step: float, unit: str) -> str | None:
    name = {**_NAMES, **UNITS}.get(unit.strip())
    is_known = name is not None and math.isfinite(step) and step > 0
    return f"{float(step)!r} {name}" if is_known else None


def unique_names(names: Sequence[str | None]) -> tuple[str | None, ...] | None:
    """Names of axes, without those that occur twice; None if none is left.

    Examples
    --------
    >>> unique_names(["t", "x", None, "x"]), unique_names([None])
    (('t', None, None, None), None)
    """
    found = tuple(name if names.count(name) == 1 else None for name in names)
    return found if any(found) else None


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


# ---- Uncompressed arrays in one piece of a file in a bucket


FILES = HandleCache(limit=64)

WHOLE = HandleCache(limit=2)  # whole arrays in memory: few, but two sources can be read in turn


_MOST_NBYTES = 4 * 2**20  # of one request, which a thread holds beside the block

_LITTLE_NBYTES = 2**20  # which take no longer to read than several requests

_MOST_WASTE = 4


@dataclass(frozen=True, slots=True)
class RangedSource(RegionSource):
    """An array that is stored in one piece, of which ranges are read.

    Several threads read at the same time. One request reads up to 4 MiB.
    """

    file: FileInBucket
    stored: np.dtype[Any]  # data type in the file; `dtype` may differ from it in byte order
    offset: int  # position of the first element in the file, in bytes
    order: str  # whether the last or the first axis is the fastest

    def _read(self, box: Box) -> npt.NDArray[Any]:
        order: Any = self.order
        itemsize = self.stored.itemsize
        axes = range(len(self.shape))
        steps = tuple(
            itemsize * math.prod(self.shape[axis + 1 :] if order == "C" else self.shape[:axis])
            for axis in axes
        )
        start = self.offset + sum(map(mul, box.start, steps))
        block = np.empty(box.shape, self.dtype, order)
        self._fill(block, start, steps)
        return block

    def _fill(self, block: npt.NDArray[Any], start: int, steps: tuple[int, ...]) -> None:
        """Read elements into a block.

        What lies between them is read, too, where that takes no longer. Otherwise the block is
        halved, along the axis on which its elements lie farthest apart.

        - `block`: receives the elements. It is not empty.
        """
        lengths = [(n - 1) * step for n, step in zip(block.shape, steps, strict=True)]
        span = sum(lengths) + self.stored.itemsize
        most = min(_MOST_NBYTES, max(_LITTLE_NBYTES, _MOST_WASTE * block.nbytes))
        if span <= most or block.size == 1:
            data = self.file.read(start, span)
            block[...] = np.ndarray(block.shape, self.stored, data, 0, steps)
            return
        axis = max(range(block.ndim), key=lengths.__getitem__)
        middle = block.shape[axis] // 2
        for part in (slice(middle), slice(middle, None)):
            index = (*[slice(None)] * axis, part)
            self._fill(block[index], start + (part.start or 0) * steps[axis], steps)


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

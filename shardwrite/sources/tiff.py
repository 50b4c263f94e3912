"""TIFF files of one or more pages, and stacks of them: a directory, or a pattern like ``*.tif``.

Of OME-XML, only three elements are looked at, and nothing else is kept while the text is parsed. A
text that declares a document type is refused, because entities that it defines may expand without
end.

OME-TIFF and ImageJ keep sizes of a pixel. The resolution of other files is that of print, and is
not looked at.
"""

from __future__ import annotations

import glob
import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.codecs.documents import JSON
from shardwrite.errors import ShardwriteError, SpecError, StoreError
from shardwrite.grid import Box, ravel
from shardwrite.sources.base import RegionSource, Request, Source, SourceMetadata
from shardwrite.sources.common import (
    FILES,
    check_names,
    digest,
    dimension_units,
    identify,
    identity_text,
    place_of,
    place_text,
    require,
    tell_left_out,
    unique_names,
)
from shardwrite.sources.inside import FileInBucket
from shardwrite.sources.raw import in_one_piece
from shardwrite.stores.looking import check_regular

# ---- OME-XML: sizes of a pixel, and names of the channels


_PIXELS = ["OME", "Image", "Pixels"]

_STEPS = {
    "X": ("PhysicalSizeX", "µm"),
    "Y": ("PhysicalSizeY", "µm"),
    "Z": ("PhysicalSizeZ", "µm"),
    "T": ("TimeIncrement", "s"),
}


@dataclass(frozen=True, slots=True)
class OmeImage:
    """One image of a file."""

    name: str | None
    # Number of pixels along each axis, as the text has it; axes are the letters of OME
    sizes: Mapping[str, str]
    # Size of a pixel, or time between two frames, and its unit, for each axis that has one
    steps: Mapping[str, tuple[str, str]]
    channels: list[str | None] = field(default_factory=list)  # name of each channel


class _Images:
    """Target of a parser: it collects the images of a text."""

    def __init__(self) -> None:
        self.found: list[OmeImage] = []
        self._inside: list[str] = []
        self._name: str | None = None

    def doctype(self, name: str, public: str | None, system: str | None) -> None:  # noqa: ARG002
        raise ValueError("it declares a document type, which OME-XML never does")

    def start(self, tag: str, found: Mapping[str, str]) -> None:
        self._inside.append(tag.rpartition("}")[2])
        if self._inside == _PIXELS[:2]:
            self._name = found.get("Name")
        elif self._inside == _PIXELS:
            sizes = {axis: found.get(f"Size{axis}", "") for axis in "XYZCT"}
            steps = {
                axis: (found[name], found.get(f"{name}Unit", usual))
                for axis, (name, usual) in _STEPS.items()
                if name in found
            }
            self.found.append(OmeImage(self._name, sizes, steps))
        elif self._inside == [*_PIXELS, "Channel"]:
            self.found[-1].channels.append(found.get("Name"))

    def end(self, tag: str) -> None:  # noqa: ARG002 (a parser gives it)
        self._inside.pop()

    def close(self) -> None:
        """Do nothing, as all images are found."""


def images_in(text: str) -> list[OmeImage]:
    """Images that OME-XML describes, in its order.

    Examples
    --------
    >>> text = "<OME><Image Name='a'><Pixels SizeX='9' PhysicalSizeX='0.5'/></Image></OME>"
    >>> images_in(text)[0].steps
    {'X': ('0.5', 'µm')}
    """
    images = _Images()
    parser: Any = ET.XMLParser(target=images)  # noqa: S314 (the target refuses entities)
    try:
        parser.feed(text)
        parser.close()
    except ET.ParseError as error:
        raise ValueError(f"it is not well-formed: {error}") from None
    return images.found


# ---- Metadata of a series: axes, sizes of a pixel, names of the channels


_UNNAMED = "QI"  # tifffile's letters for an axis of unknown kind, and for pages one after another

_Steps = Mapping[str, tuple[float, str]]


def describe_series(file: Any, number: int) -> tuple[SourceMetadata, list[str]]:
    """Names of the axes and attributes of a series, and what is left out, with the reasons."""
    series = file.series[number]
    axes, left_out = str(series.axes), list[str]()
    steps: _Steps = {}
    channels: dict[str, JSON] = {}
    if file.is_ome:
        try:
            image = _image_of(file, number)
            steps = _checked_steps(image, left_out)
            channels = _channel_names(image, axes, series.shape, left_out)
        except ValueError as error:
            left_out.append(f"what its OME-XML says is left out: {error}")
    elif file.is_imagej and series.kind != "imagej":
        left_out.append("what ImageJ says of it is left out, since it does not fit the pages")
    elif file.is_imagej:
        steps = _steps_of_imagej(file.imagej_metadata or {}, series)
    names = unique_names([None if axis in _UNNAMED else axis.lower() for axis in axes])
    attributes = {**dimension_units(steps.get(axis) for axis in axes), **channels}
    return SourceMetadata(dimension_names=names, attributes=attributes), left_out


def stacked(metadata: Sequence[SourceMetadata]) -> SourceMetadata:
    """What all files of a stack say alike; the first axis of the stack counts the files."""
    first, *others = metadata
    names = first.dimension_names
    if names is not None:
        is_same = all(other.dimension_names == names for other in others)
        names = (None, *names) if is_same else None
    attributes = {
        name: value
        for name, value in first.attributes.items()
        if all(other.attributes.get(name) == value for other in others)
    }
    units = attributes.get("dimension_units")
    if isinstance(units, list):
        attributes["dimension_units"] = [None, *units]
    return SourceMetadata(dimension_names=names, attributes=attributes)


def _image_of(file: Any, number: int) -> OmeImage:
    """The image of a series in the OME-XML of its file."""
    series, images = file.series[number], images_in(file.ome_metadata)
    if series.kind != "ome":
        raise ValueError("it does not fit the pages")
    if len(images) == len(file.series):
        images = [images[number]]
    else:  # images without pages are no series
        images = [image for image in images if image.name == series.name]
    if len(images) != 1:
        raise ValueError("it does not say which of its images this is")
    sizes = images[0].sizes
    for axis, size in zip(series.axes, series.shape, strict=True):
        if axis in "XYZT" and sizes[axis].strip() != str(size):
            raise ValueError(f"its size along {axis} is {sizes[axis]!r}, and the pages have {size}")
    return images[0]


def _checked_steps(image: OmeImage, left_out: list[str]) -> _Steps:
    """Steps of an image that are numbers; others are entered into `left_out`."""
    steps: dict[str, tuple[float, str]] = {}
    for axis, (text, unit) in image.steps.items():
        step = _number(text)
        if step is None:
            left_out.append(f"the size of a step along {axis} is left out, since it is {text!r}")
        elif not dimension_units([(step, unit)]):
            left_out.append(f"the size of a step along {axis} is left out: its unit is {unit!r}")
        else:
            steps[axis] = (step, unit)
    return steps


def _channel_names(
    image: OmeImage, axes: str, shape: Sequence[int], left_out: list[str]
) -> dict[str, JSON]:
    """Attribute with the names of the channels; empty if there are none."""
    names = image.channels
    n_channels = shape[axes.index("C")] if "C" in axes else 1
    if not any(names):
        return {}
    if len(names) != n_channels:
        left_out.append(
            f"the names of channels are left out: there are {len(names)} for {n_channels} channels"
        )
        return {}
    return {"channel_names": [*names]}


def _steps_of_imagej(known: Mapping[str, Any], series: Any) -> _Steps:
    """Steps that ImageJ has stored: pixels per unit are a tag, all others are in its metadata."""
    unit = str(known.get("unit", "")).replace("\\u00B5", "µ")
    steps: dict[str, tuple[float, str]] = {}
    for axis in "YX" if unit else "":
        tag = series.keyframe.tags.get(f"{axis}Resolution")
        ratio = None if tag is None else tag.value
        if isinstance(ratio, tuple) and len(ratio) == 2 and all(ratio):
            # two integers of 32 bits, which can hold so many digits
            steps[axis] = (float(f"{ratio[1] / ratio[0]:.9g}"), unit)
    spacing, interval = _number(known.get("spacing")), _number(known.get("finterval"))
    if spacing is not None:
        steps["Z"] = (spacing, unit)
    if interval is not None:
        steps["T"] = (interval, "s")
    return steps


def _number(value: Any) -> float | None:
    """A positive, finite number; None for anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) and number > 0 else None


# ---- Series of pages in a file


def read_series(file: Any, number: int, leading: int, box: Box, out: npt.NDArray[Any]) -> None:
    """Read `box` of a series into `out`, page by page."""
    with file.filehandle.lock:
        series = file.series[number]
    outer, inner = series.shape[:leading], series.shape[leading:]
    first = box.start[:leading]
    for index in itertools.product(*(range(a, b) for a, b in box.bounds[:leading])):
        with file.filehandle.lock:  # the lookup of a page may read its tags
            page = series[ravel(index, outer)]
        at = tuple(i - o for i, o in zip(index, first, strict=True))
        # Pages may be missing in OME-TIFF; like tifffile, this gives zeros for them. One worker is
        # enough, because dask calls this from several threads.
        out[at] = (
            0 if page is None else page.asarray(maxworkers=1).reshape(inner)[box.slices[leading:]]
        )


def page_rank(series: Any) -> int | None:
    """Number of leading axes of a series that count pages; None if the pages do not fit it."""
    shape, pages, size = series.shape, len(series.pages), series.keyframe.size
    for n in range(len(shape), -1, -1):
        if math.prod(shape[n:]) == size and math.prod(shape[:n]) == pages:
            return n
    return None


def choose_series(file: Any, dataset: str | None, path: str) -> int:
    """Number of the series `dataset`, which is a number or name, or None for the first series."""
    count = len(file.series)
    names = [series.name for series in file.series]
    number = 0
    if dataset is not None and dataset.isdecimal():
        number = int(dataset)
    elif dataset is not None:
        number = names.index(dataset) if dataset in names else -1
    if not count:
        raise SpecError(
            "there is no image in it",
            field="source",
            value=path,
            remedy="check the file: it may be cut off",
        )
    if not 0 <= number < count:
        listed = ", ".join(
            f"{i} ({s.name}, shape {s.shape})" for i, s in enumerate(file.series[:20])
        )
        raise SpecError(
            f"there is no such series in {path}",
            field="dataset",
            value=dataset,
            remedy=f"choose one of: {listed}",
        )
    _check_series(file.series[number], number, count, path)
    if file.series[number].kind not in _KINDS_OF_LENGTH:
        _check_end(file, path)
    return number


# Kinds of series whose metadata tell the number of pages, which is compared with the file.
_KINDS_OF_LENGTH = ("imagej", "shaped")


def _check_end(file: Any, path: str) -> None:
    """Refuse a file of which the last page names a next one that lies behind the end.

    Such a file was cut off, and its libraries read the pages that are left.
    """
    handle, tiff = file.filehandle, file.tiff
    with handle.lock:
        handle.seek(file.pages.next_page_offset)
        named = handle.read(tiff.offsetsize)
    is_whole = len(named) == tiff.offsetsize
    start = int(np.frombuffer(named, f"{file.byteorder}u{len(named)}")[0]) if is_whole else 0
    if not is_whole or start + tiff.tagnosize > handle.size:
        raise SpecError(
            "the file is cut off, since its last page names another one behind the end",
            field="source",
            value=path,
            remedy="give the file whole, or write the pages that are there into a new file",
        )


def _check_series(series: Any, number: int, count: int, path: str) -> None:
    others = f" or choose another series: dataset='0' to '{count - 1}'" if count > 1 else ""
    tiff = require("tifffile", "tiff", path).TIFF
    try:
        tiff.DECOMPRESSORS[series.keyframe.compression]
    except KeyError:
        kind = getattr(series.keyframe.compression, "name", series.keyframe.compression)
        remedy = f"pip install imagecodecs{others}"
        raise SpecError(
            f"compression {kind} needs a further library", field="source", value=path, remedy=remedy
        ) from None
    unplaced = page_rank(series) is None and series.dataoffset is None
    if series.dtype is None or series.is_multifile or series.transform is not None or unplaced:
        raise SpecError(
            f"series {number} is not laid out as equal pages of this file",
            field="source",
            value=path,
            remedy=f"give a directory or pattern of plain pages{others}",
        )


# ---- Stacks of files


@dataclass(frozen=True, slots=True)
class TiffStackSource(RegionSource):
    """Images of equal shape and dtype in many files, stacked along the first axis."""

    # Digest of the file names. Each process lists the names again, because a source with thousands
    # of names would make every task large.
    names: str
    series: int  # number of the series in each file
    leading: int  # number of leading axes of a file that count its pages

    def _read(self, box: Box) -> npt.NDArray[Any]:
        files = FILES.get(
            self.identity, lambda: check_names(page_files(self.path), self.names, self.path)
        )
        tifffile = require("tifffile", "tiff", self.path)
        out = np.empty(box.shape, self.dtype)
        within = Box(box.start[1:], box.stop[1:])
        for at, number in enumerate(range(box.start[0], box.stop[0])):
            with tifffile.TiffFile(files[number]) as file:
                _check_equal(
                    file.series[self.series], self.shape[1:], self.dtype, files[number], files[0]
                )
                read_series(file, self.series, self.leading, within, out[at])
        return out


def page_files(path: str) -> list[str]:
    """Files of a directory or pattern in natural order, so that file 10 follows file 9."""
    if os.path.isdir(path):
        files = [
            entry.path
            for entry in os.scandir(path)
            if entry.name.lower().endswith((".tif", ".tiff")) and not entry.is_dir()
        ]
    else:
        files = [name for name in glob.glob(path, recursive=True) if not os.path.isdir(name)]
    if not files:
        raise StoreError(f"no TIFF file found at {path}", key=path)
    for name in files:
        check_regular(name)
    # Names that differ only in leading zeros count as equal, so the order of the names decides.
    ordered: list[str] = require("tifffile", "tiff", path).natural_sorted(sorted(files))
    return ordered


def _check_equal(
    series: Any, shape: tuple[int, ...], dtype: np.dtype[Any], path: str, first: str
) -> None:
    if (tuple(series.shape), series.dtype) != (shape, dtype):
        raise SpecError(
            f"this page has shape {tuple(series.shape)} and dtype {series.dtype}, "
            f"but {first} has {shape} and {dtype}",
            field="source",
            value=path,
            remedy="give pages of one shape and dtype",
        )


def open_stack(request: Request) -> Source:
    """Open a directory or pattern of TIFF files; the tags of all files are read and compared."""
    tifffile = require("tifffile", "tiff", request.path)
    path = os.path.abspath(request.path)
    files = page_files(path)
    stats: list[object] = []
    metadata: list[SourceMetadata] = []  # those that differ
    shape: tuple[int, ...] = ()
    dtype, number, leading = np.dtype("u1"), 0, 0
    for name in files:
        with _naming_file(name), tifffile.TiffFile(name) as file:
            chosen = choose_series(file, request.dataset, name)
            series = file.series[chosen]
            if not metadata:
                shape, dtype, number = tuple(series.shape), np.dtype(series.dtype), chosen
                leading = _checked_page_rank(series, name)
            elif number < len(file.series):
                series = file.series[number]
            _check_equal(series, shape, dtype, name, files[0])
            described, left_out = describe_series(file, number)
        if not metadata:
            tell_left_out(name, left_out)
        if described not in metadata:
            metadata.append(described)
        stat = os.stat(name)
        stats += [name, stat.st_size, stat.st_mtime_ns]
    if len(metadata) > 1:
        tell_left_out(path, ["what the files do not all say of axes and channels is left out"])
    return TiffStackSource(
        path=path,
        shape=(len(files), *shape),
        dtype=dtype,
        chunks=(1, *_chunks(shape, leading)),
        identity=identity_text(
            "tiff", os.path.realpath(path), files=len(files), sha256=digest(stats), series=number
        ),
        names=digest(files),
        series=number,
        leading=leading,
        metadata=stacked(metadata),
    )


@contextmanager
def _naming_file(path: str) -> Iterator[None]:
    """Have an error about a file of a stack that is none of TIFF name that file."""
    try:
        yield
    except (ShardwriteError, OSError):
        raise
    except Exception as error:  # noqa: BLE001 (tifffile raises many types)
        raise SpecError(
            f"it cannot be read as tiff: {error}",
            field="source",
            value=path,
            remedy="give a pattern that leaves it out",
        ) from None


def _chunks(shape: Sequence[int], leading: int) -> tuple[int, ...]:
    """Chunks of one page each, of which so many leading axes count the pages."""
    return tuple(1 if axis < leading else max(1, n) for axis, n in enumerate(shape))


def _checked_page_rank(series: Any, path: str) -> int:
    """Number of axes along which pages follow one another; refuse pages that are not described."""
    leading = page_rank(series)
    if leading is None:
        remedy = "write one page for each image, or give the files one by one"
        raise SpecError(
            "its pages are not described one by one", field="source", value=path, remedy=remedy
        )
    return leading


# ---- Single files


@dataclass(frozen=True, slots=True)
class TiffSource(RegionSource):
    """A series of pages of one file."""

    series: int  # number of the series in the file
    leading: int  # number of leading axes that count pages; the other axes are within a page
    # The file, if it lies in a bucket
    file: FileInBucket | None = field(kw_only=True, default=None)

    def _read(self, box: Box) -> npt.NDArray[Any]:
        file, check = FILES.get(self.identity, self._open)
        out = np.empty(box.shape, self.dtype)
        read_series(file, self.series, self.leading, box, out)
        check()
        return out

    def _open(self) -> tuple[Any, Callable[[], None]]:
        file, check = _open_tiff(self.file or self.path)
        file.filehandle.lock = True  # all threads share its file position
        return file, check


def _open_tiff(place: str | FileInBucket) -> tuple[Any, Callable[[], None]]:
    """Open a TIFF file; and a function that raises errors of reads which tifffile has swallowed."""
    tifffile = require("tifffile", "tiff", place_text(place))
    if isinstance(place, str):
        return tifffile.TiffFile(place), lambda: None
    stream = place.stream()
    try:
        return tifffile.TiffFile(stream, name=place.url.rpartition("/")[2]), stream.check
    except Exception:
        stream.check()
        raise


def open_(request: Request) -> Source:
    """Open a TIFF file, or a directory or pattern of TIFF files.

    Warns
    -----
    UserWarning
        If something that a file says of the series is broken, or differs between files, and so
        left out.
    """
    if request.file is None and not os.path.isfile(request.path):
        return open_stack(request)
    place, path = place_of(request), place_text(place_of(request))
    opened, check = _open_tiff(place)
    with opened as file:
        number = choose_series(file, request.dataset, path)
        series = file.series[number]
        shape, dtype = tuple(series.shape), np.dtype(series.dtype)
        leading, start = page_rank(series), series.dataoffset
        stored = dtype.newbyteorder(file.byteorder)
        metadata, left_out = describe_series(file, number)
        check()
    tell_left_out(path, left_out)
    identity = identify("tiff", place, series=number)
    if start is not None:
        # ImageJ may describe only the first page of a contiguous series
        chunks = _chunks(shape, len(shape) - 2 if leading is None else leading)
        return in_one_piece(
            place,
            shape,
            dtype,
            start,
            identity=identity,
            metadata=metadata,
            chunks=chunks,
            stored=stored,
        )
    assert leading is not None
    return TiffSource(
        path,
        shape,
        dtype,
        _chunks(shape, leading),
        identity,
        series=number,
        leading=leading,
        metadata=metadata,
        file=request.file,
    )

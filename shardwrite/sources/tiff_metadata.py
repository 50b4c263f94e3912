"""What a TIFF file says of a series besides its values: axes, sizes of a pixel, channel names.

OME-TIFF and ImageJ keep sizes of a pixel. The resolution of other files is that of print, and is
not looked at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from shardwrite.codecs.documents import JSON
from shardwrite.sources.axes import dimension_units, unique_names
from shardwrite.sources.base import SourceMetadata
from shardwrite.sources.ome import OmeImage, images_in

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
    elif file.is_imagej:
        steps = _steps_of_imagej(file.imagej_metadata or {}, series)
    names = unique_names([None if axis in _UNNAMED else axis.lower() for axis in axes])
    attributes = {**dimension_units(steps.get(axis) for axis in axes), **channels}
    return SourceMetadata(dimension_names=names, attributes=attributes), left_out


def common_metadata(found: SourceMetadata, other: SourceMetadata) -> SourceMetadata:
    """What two files of one stack say alike."""
    return SourceMetadata(
        dimension_names=found.dimension_names
        if found.dimension_names == other.dimension_names
        else None,
        attributes={
            name: value
            for name, value in found.attributes.items()
            if other.attributes.get(name) == value
        },
    )


def stacked(found: SourceMetadata) -> SourceMetadata:
    """What files say of their axes, for a stack of them, whose first axis counts the files."""
    names, attributes = found.dimension_names, dict(found.attributes)
    units = attributes.get("dimension_units")
    if isinstance(units, list):
        attributes["dimension_units"] = [None, *units]
    return SourceMetadata(
        dimension_names=None if names is None else (None, *names), attributes=attributes
    )


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
    tags = series.keyframe.tags
    per_pixel = {"Y": tags.get("YResolution"), "X": tags.get("XResolution")}
    steps = {
        axis: _inverse(tag.value) for axis, tag in per_pixel.items() if tag is not None and unit
    }
    steps["Z"] = _number(known.get("spacing"))
    lengths = {axis: (step, unit) for axis, step in steps.items() if step is not None}
    interval = _number(known.get("finterval"))
    return lengths if interval is None else {**lengths, "T": (interval, "s")}


def _inverse(ratio: Any) -> float | None:
    """Inverse of a ratio of two integers of 32 bits, to the digits that those can hold."""
    is_ratio = isinstance(ratio, tuple) and len(ratio) == 2 and all(ratio)
    return float(f"{ratio[1] / ratio[0]:.9g}") if is_ratio else None


def _number(value: Any) -> float | None:
    """A positive, finite number; None for anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) and number > 0 else None

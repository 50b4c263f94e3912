"""Options of commands that write a scale of a Neuroglancer volume, and the source of one."""

from __future__ import annotations

from typing import Any

from shardwrite.cli.common import open_to_write
from shardwrite.cli.options import combined, option_of, options_of
from shardwrite.format.precomputed.keywords import ScaleKeywords
from shardwrite.format.precomputed.new import checked_axes, row_major
from shardwrite.operations.scale_keywords import VolumeKeywords
from shardwrite.runs.given import take

_OF_SOURCE = ("voxel_offset", "type")  # which it may tell, too
volume_options = combined(
    option_of(VolumeKeywords, "axes"),
    *(option_of(VolumeKeywords, name, default=None) for name in _OF_SOURCE),
    options_of(ScaleKeywords, without=_OF_SOURCE),
    option_of(VolumeKeywords, "write_empty_chunks", help="Also store chunks that hold only zeros."),
)
"""Options that describe a scale."""


def open_volume(src: str, options: dict[str, Any], *, as_source: bool = False) -> Any:
    """Open the source, and take from it what the options leave out."""
    known: dict[str, Any] = {"fill_value": None, "dimension_names": None, "attributes": None}
    options.update(known)
    x, identity = open_to_write(src, options, as_source=as_source)
    known = {name: options.pop(name) for name in known}
    of_volume = (known["attributes"] or {}).get("precomputed")
    of_volume = of_volume if isinstance(of_volume, dict) else {}
    if options["resolution"] is None:
        options["resolution"] = of_volume.get("resolution")
    for name in _OF_SOURCE:
        if options[name] is None:
            options[name] = of_volume.get(name, getattr(ScaleKeywords, name))
    options["axes"] = checked_axes(options["axes"], known["dimension_names"], len(x.shape))
    return x, identity


def in_order(x: Any, axes: str | None) -> Any:
    """A source whose axes have the order of a scale that is written in parts.

    - `axes`: letters of its axes; None if they are in order.
    """
    n_axes = len(x.shape)
    order = [*range(n_axes)] if axes is None else row_major(checked_axes(axes, None, n_axes))
    return x if order == [*range(n_axes)] else take(x).array.transpose(order)

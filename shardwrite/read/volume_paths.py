"""Volumes of Neuroglancer where an array was asked for: the paths of their scales."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from shardwrite.errors import ShardwriteError, SpecError
from shardwrite.format.node import DOCUMENT
from shardwrite.format.precomputed.info import INFO, parse_info
from shardwrite.place.base import Place, names_above
from shardwrite.place.directory import Directory
from shardwrite.place.objects import InStore
from shardwrite.stores import parse_json

_NAMED = 5
_MOST_ABOVE = 4


def volume_above(place: Place) -> tuple[Place, str] | None:
    """The volume of which a place is a scale, and the key of that; None if it is none.

    - `place`: A place without a ``zarr.json``.
    """
    for volume, key in _above(place):
        try:
            data = volume.read(INFO)
            scales = () if data is None else parse_info(parse_json(data)).scales
        except (ShardwriteError, ValueError):  # it is something else, or tells nothing of a scale
            continue
        if key in [scale.key for scale in scales]:
            return volume, key
    return None


def refuse_volume(place: Place, asked: str) -> None:
    """Refuse a volume, or a scale of one, where something else was asked for.

    - `place`: A place without a ``zarr.json``.
    - `asked`: what was asked for: ``"array"``, ``"tree"`` or ``"source"``.
    """
    if asked == "array":
        _refuse_as_array(place)
    elif asked == "tree" and _is_in_volume(place):
        raise SpecError(
            "no Zarr array or group is there, but a volume of Neuroglancer",
            field="src",
            value=place.label,
            remedy="use reshard without consume, which makes Zarr arrays of its values",
        )
    elif asked == "source" and (found := volume_above(place)) is not None:
        raise SpecError(
            "it is a scale of a volume of Neuroglancer",
            field="source",
            value=place.label,
            remedy=f"give the volume and its scale: {found[0].label}::{found[1]}",
        )


def _is_in_volume(place: Place) -> bool:
    """Whether a place without a ``zarr.json`` is a volume, or one of its scales."""
    try:
        data = place.read(INFO)
        if data is not None and parse_info(parse_json(data)).scales:
            return True
    except (ShardwriteError, ValueError):  # it is something else
        return False
    return volume_above(place) is not None


def _above(place: Place) -> Iterator[tuple[Place, str]]:
    """Places above a place, the nearest first, each with the path of the place in it."""
    if isinstance(place, Directory):
        for above in list(place.path.parents)[:_MOST_ABOVE]:
            if above.name:
                yield Directory(above), place.path.relative_to(above).as_posix()
    elif isinstance(place, InStore):
        for name in reversed(names_above(place.name)):
            yield InStore(place.base, name), place.name[len(name) :].lstrip("/")


def _refuse_as_array(place: Place) -> None:
    """Refuse a volume, whose scales are arrays, but which is none itself."""
    _refuse_colons(place)
    try:
        data = place.read(INFO)
        scales = () if data is None else parse_info(parse_json(data)).scales
        keys = [s.key for s in scales if place.store.size(f"{s.key}/{DOCUMENT}") is not None]
    except (ShardwriteError, ValueError):
        return
    remedy = (
        "shardwrite has written none of its scales: read it by shardwrite.from_precomputed, or "
        "make Zarr arrays of it by shardwrite reshard"
    )
    if data is None and volume_above(place) is not None:
        raise SpecError(
            "no array: it is a scale of a volume of Neuroglancer",
            field="store",
            value=place.label,
            remedy=remedy,
        )
    if not scales:
        return
    if keys:
        label = place.label
        is_url = "://" in label and not label.startswith("memory:")  # which no call can open
        is_path = isinstance(place, Directory) or is_url
        above = label if is_path else place.name
        above += "" if above.endswith("/") or not above else "/"
        told = ", ".join(f"{above}{key}" for key in keys[:_NAMED])
        remedy = f"give {'the path of a scale' if is_path else 'name=, one of'}: {told}"
    raise SpecError(
        "no array: it is a volume of Neuroglancer", field="store", value=place.label, remedy=remedy
    )


def _refuse_colons(place: Place) -> None:
    """Refuse ``volume::key``, which names a scale as a source, where an array is asked for."""
    if not isinstance(place, Directory) or "::" not in str(place.path):
        return
    above, _, wanted = str(place.path).rpartition("::")
    try:
        data = Directory(Path(above)).read(INFO)
        volume = None if data is None else parse_info(parse_json(data))
    except (ShardwriteError, ValueError):  # it is something else
        return
    if volume is not None:
        raise SpecError(
            "a scale of a volume is named so only as a source",
            field="store",
            value=place.label,
            remedy=f"give the path of its directory, {above}/{volume.scale(wanted or None).key}",
        )

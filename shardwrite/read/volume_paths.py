"""Volumes of Neuroglancer where an array was asked for: the paths of their scales."""

from __future__ import annotations

from shardwrite.errors import ShardwriteError, SpecError
from shardwrite.format.node import DOCUMENT
from shardwrite.format.precomputed.info import INFO, parse_info
from shardwrite.place.base import Place
from shardwrite.place.directory import Directory
from shardwrite.stores import parse_json

__all__ = ["refuse_volume"]

_NAMED = 5


def refuse_volume(place: Place) -> None:
    """Refuse a volume, whose scales are arrays, but which is none itself.

    Parameters
    ----------
    place : Place
        A place without a ``zarr.json``.

    Raises
    ------
    SpecError
        If it is a volume. The error names its scales.
    """
    try:
        data = place.read(INFO)
        scales = () if data is None else parse_info(parse_json(data)).scales
        keys = [s.key for s in scales if place.store.size(f"{s.key}/{DOCUMENT}") is not None]
    except (ShardwriteError, ValueError):
        return
    if not scales:
        return
    remedy = "shardwrite has written none of its scales: read it by shardwrite.from_precomputed"
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

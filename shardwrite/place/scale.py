"""Places of a scale of a Neuroglancer volume: the volume around it, and the spool beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardwrite.place.base import Place
from shardwrite.place.directory import Directory
from shardwrite.place.objects import InStore
from shardwrite.place.target import Target, resolve_new, resolve_target
from shardwrite.place.transformer import TransformerPlace
from shardwrite.stores import is_there


@dataclass(frozen=True, slots=True)
class ScaleTargets:
    """Where a scale goes."""

    volume: Target  # the volume, in which ``info`` lies
    scale: Target  # the array that the scale is
    spool: Target  # where encoded chunks wait, if the hash scatters them

    @classmethod
    def of(cls, volume: Target, key: str, run_dir: Any) -> ScaleTargets:
        """Find the places of a scale in a volume."""
        place, spool = volume.place, f".{key}.spool"  # no key of a scale begins with a dot
        if isinstance(place, InStore):
            # As arrays of their own, so that the volume does not become a group of Zarr.
            found = [resolve_new(place.store.at(name), None, run_dir) for name in (key, spool)]
        else:
            path = volume.directory.path
            found = [resolve_new(str(path / name), None, run_dir) for name in (key, spool)]
        return cls(volume, *found)


def places_around(target: Target, run_dir: Any) -> ScaleTargets | None:
    """Places of the scale that an array may be; None if it lies in nothing."""
    found = around(target.place)
    if found is None:
        return None
    volume, above, key = found
    return ScaleTargets.of(resolve_target(volume, above or None, run_dir), key, run_dir)


def around(place: Place) -> tuple[Any, str, str] | None:
    """Store, path and key of a scale, by the place of its array; None if it lies in nothing."""
    if isinstance(place, Directory):
        path = place.path
        return (str(path.parent), "", path.name) if path.parent.name else None  # not the root
    if not isinstance(place, InStore) or isinstance(place, TransformerPlace):
        return None
    if place.name:
        above, _, key = place.name.rpartition("/")
        return place.base, above, key
    volume, _, key = (place.store.url or "").rpartition("/")
    return (volume, "", key) if "://" in volume.rstrip("/") and key else None


def has_spool(spool: Target) -> bool:
    """Whether something stands at the place of a spool, or of the state of its run."""
    return spool.place.is_occupied() or (not spool.in_store and is_there(spool.beside))

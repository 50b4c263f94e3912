"""The ``info`` of a volume, which runs change one after the other, and the place of a scale.

In a directory, one process at a time changes it, under a claim. In a bucket, it is replaced only if
it is still the version that was read. In another store, the processes that share the directory of
run state change it under a claim there.
"""

from __future__ import annotations

import errno
import itertools
import json
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from shardwrite._dataclass import dataclass
from shardwrite.codecs.documents import Document
from shardwrite.errors import SpecError, StoreError
from shardwrite.journal.documents import wait_for_others
from shardwrite.journal.lock import alone_beside
from shardwrite.legacy.place import TransformerPlace
from shardwrite.place.base import Place
from shardwrite.place.directory import Directory
from shardwrite.place.objects import InStore
from shardwrite.place.target import Target, resolve_new, resolve_target
from shardwrite.stores.base import Capability
from shardwrite.stores.directories import state_beside
from shardwrite.stores.looking import is_there, parse_json, read_limit
from shardwrite.stores.posix import discard_file, write_file
from shardwrite.volumes.info import INFO

_ATTEMPT = "info.0"  # a process that was killed leaves a temporary of this name to the next one

Change = Callable[[Any], Document]

Replace = Callable[[bytes | None], bytes | None]


def read_volume(place: Place) -> Any:
    """The parsed ``info`` at a place; None if there is none."""
    return parsed(place.read(INFO), place.label)


def parsed(data: bytes | None, label: str = "") -> Any:
    """An ``info`` that stands at a place; None if there is none."""
    if data is None:
        return None
    try:
        document = parse_json(data)
        if document is None:
            raise ValueError("it holds null")  # noqa: TRY301 (which is not absence)
    except ValueError as error:
        raise SpecError(
            f"not valid: {error}",
            field=INFO,
            value=f"{label}/{INFO}" if label else INFO,
            remedy="mend it, or remove it",
        ) from error
    return document


def change_info(volume: Target, change: Change, durability: str) -> None:
    """Write a new ``info``, made from the one that stands there, while no other process does so.

    - `change`: makes the new document of the old one, or of None. It may be called several times.
    """
    place = volume.place

    def replace(data: bytes | None) -> bytes | None:
        old = parsed(data, place.label)
        new = change(old)
        return None if new == old else json.dumps(new, indent=2).encode() + b"\n"

    replace_info(volume, replace, durability)


def replace_info(volume: Target, replace: Replace, durability: str) -> None:
    """Put other bytes as the ``info``, while no other process does so.

    - `replace`: makes the new document of the one that stands there, or of None. It may be called
      several times. If it returns None, what stands there stays.
    """
    place = volume.place
    if isinstance(place, InStore):
        place.store.prepare()
        if volume.in_store:
            _replace_object(place, replace, durability)
            return
        with alone_beside(volume.beside, "none") as claim:
            _replace_object(place, replace, durability, claim.check)
        return
    path = volume.directory.path / INFO
    beside = state_beside(path)
    # A finished call also ends where nothing can be written.
    if not is_there(beside) and replace(old := place.read(INFO)) in (None, old):
        return
    with alone_beside(beside, durability) as claim:
        old = place.read(INFO)
        new = replace(old)
        if new is not None and new != old:
            discard_file(path, _ATTEMPT)
            write_file(
                path, new, durability=durability, attempt=_ATTEMPT, guard=claim.check, like=path
            )


def _replace_object(
    place: InStore, replace: Replace, durability: str, check: Callable[[], None] = lambda: None
) -> None:
    """Replace the object until no other process has changed it since it was read."""
    for n_tries in itertools.count(1):
        old, version = _seen(place)
        new = replace(old)
        if new is None or new == old or _replaced(place, version, new, durability, check):
            return
        wait_for_others(place, n_tries, INFO)


def _seen(place: InStore) -> tuple[bytes | None, Any]:
    """The object as it stands there, and its version."""
    reader = place.store.open(INFO)
    if reader is None:
        return None, None
    with reader:
        if reader.nbytes > read_limit():
            raise StoreError(
                f"{INFO!r} has {reader.nbytes:,} bytes, and at most {read_limit():,} are read",
                key=INFO,
                errno=errno.EFBIG,
            )
        return bytes(reader.read(0, reader.nbytes)), reader.version


def _replaced(
    place: InStore, version: Any, data: bytes, durability: str, check: Callable[[], None]
) -> bool:
    """Put the object in the place of a version; False if another version stands there."""
    can_tell = Capability.CONDITIONAL in place.store.capabilities
    attempt = f"{uuid.uuid4().hex}.0"
    try:
        place.put(INFO, data, (version,) if can_tell else None, durability, attempt, check)
    except StoreError as error:
        if error.errno != errno.ESTALE or not can_tell:
            raise
        return False
    return True


# ---- The place of a scale: the volume around it, and the spool beside it


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
            targets = [resolve_new(place.store.at(name), None, run_dir) for name in (key, spool)]
        else:
            path = volume.directory.path
            targets = [resolve_new(str(path / name), None, run_dir) for name in (key, spool)]
        scale, waiting = targets
        return cls(volume, replace(scale, around=place), waiting)


def scale_targets_of(target: Target, run_dir: Any) -> ScaleTargets | None:
    """Volume, scale and spool of an array; None if nothing is above it that could be a volume."""
    place = volume_and_key(target.place)
    if place is None:
        return None
    volume, above, key = place
    return ScaleTargets.of(resolve_target(volume, above or None, run_dir), key, run_dir)


def volume_and_key(place: Place) -> tuple[Any, str, str] | None:
    """Store and path of what is above an array, and its key there; None if nothing is above it."""
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

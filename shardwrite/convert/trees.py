"""Conversion of a whole tree by one call, and the note about it at the root.

The note says that the arrays are sharded, for readers that lack the codec. It lies under
``"notes"`` in the attributes of the root, beside what others have noted there. The short form,
``reshard(path, 4)``, also has the root tell of the shards.
"""

from __future__ import annotations

import time
from numbers import Integral
from typing import Any

from shardwrite.codecs.documents import Document, attributes_of
from shardwrite.convert.arrays import (
    ConversionCall,
    TreeConversion,
    check_apart,
    level_of,
    open_whole,
    refuse_runs,
)
from shardwrite.convert.consume import convert_and_consume
from shardwrite.convert.in_place import convert_in_place, finish_in_place
from shardwrite.convert.keywords import AUTO, IN_PLACE
from shardwrite.convert.plan import Conversion
from shardwrite.engines.local import Engine
from shardwrite.errors import SpecError
from shardwrite.grid import Sized
from shardwrite.journal.documents import change_group
from shardwrite.place.base import Place
from shardwrite.place.target import resolve_place
from shardwrite.read.hierarchy import Hierarchy
from shardwrite.results import rounded
from shardwrite.sources.opening import place_of

_FIELD = "notes"

NOTE = (
    "Arrays of this store are sharded: a reader needs the codec sharding_indexed of Zarr v3 to "
    "open them."
)
"""The note."""


# ---- The note


def with_note(attributes: Document) -> Document:
    """Attributes with the note; they stay as they are if it is there."""
    notes = _notes_in(attributes)
    if notes is None:
        return {**attributes, _FIELD: NOTE}
    if NOTE in _entries(notes):
        return attributes
    return {**attributes, _FIELD: f"{notes}\n{NOTE}" if isinstance(notes, str) else [*notes, NOTE]}


def without_note(attributes: Document) -> Document:
    """Attributes without the note; what else was noted stays."""
    notes = _notes_in(attributes)
    if notes is None or NOTE not in _entries(notes):
        return attributes
    if notes == NOTE:
        return {name: value for name, value in attributes.items() if name != _FIELD}
    kept = [entry for entry in _entries(notes) if entry != NOTE]
    return {**attributes, _FIELD: "\n".join(kept) if isinstance(notes, str) else kept}


def _entries(notes: str | list[str]) -> list[str]:
    return notes.split("\n") if isinstance(notes, str) else notes


def _notes_in(attributes: Document) -> str | list[str] | None:
    found: Any = attributes.get(_FIELD)
    is_list = isinstance(found, list) and all(isinstance(entry, str) for entry in found)
    if _FIELD in attributes and not isinstance(found, str) and not is_list:
        raise SpecError(
            "the attribute holds no text and no list of texts, so the note on sharding has no "
            "place there",
            field=_FIELD,
            value=found,
            remedy="rename that attribute, or call shard or unshard, which add and remove no note",
        )
    return found if isinstance(found, str) or is_list else None


# ---- The call


def short_form(dst: Any, shards: Sized) -> tuple[Any, Sized, bool]:
    """Read the arguments `dst` and `shards`, whose short form is ``reshard(path, 4)``."""
    if dst is IN_PLACE:
        return None, shards, False
    if dst is None:
        return (None, None, True) if shards is AUTO else (None, shards, False)
    if not isinstance(dst, (Integral, tuple, list)):
        return dst, shards, False
    if shards is not AUTO:
        raise SpecError(
            "a shape of shards stands in the place of dst, and shards is given too",
            field="dst",
            value=dst,
            remedy="give one of them, as in reshard(path, 4) or reshard(path, other, 4)",
        )
    return None, dst if isinstance(dst, (tuple, list)) else _count(dst), True


def _count(given: Any) -> Any:
    """An int of Python, unless it is a bool, which is refused with the field's name later."""
    return given if isinstance(given, bool) else int(given)


def convert_tree(src: Any, call: ConversionCall, engine: Engine) -> Conversion:
    """Convert an array, or a hierarchy array by array."""
    start = time.perf_counter()
    place = place_of(src)
    n_removed = 0
    left_out: tuple[tuple[str, str], ...] = ()
    new = None if call.dst is None else resolve_place(call.dst, None)
    if call.consume:
        arrays, n_removed = convert_and_consume(place, call, engine)
    else:
        is_finished = new is None and finish_in_place(place)
        tree = open_whole(src, call.patterns.want)
        place, left_out = tree.place, tree.left_out
        planned = TreeConversion.of(tree, call, engine)
        if call.is_store:
            _noted(_attributes_of(tree), call)
        if new is None:
            arrays = convert_in_place(planned, engine, is_finished)
        else:
            check_apart(place, new)
            if call.while_growing is None:
                refuse_runs(tree, is_kept=True)
            arrays = planned.execute(engine)
        if call.is_store:
            _note(place, call)
    return Conversion(
        source=place.label,
        path=(new or place).label,
        arrays=arrays,
        seconds=rounded(time.perf_counter() - start),
        left_out=left_out,
        n_removed=n_removed,
    )


def _attributes_of(tree: Hierarchy) -> Document:
    """Attributes of the root of a tree."""
    documents = tree.documents
    if "" not in documents:
        raise SpecError(
            "no array or group is there but only below, so the note on sharding has no place",
            field="src",
            value=tree.place.label,
            remedy="make it a group, for instance with zarr.open_group, or call shard or unshard",
        )
    return attributes_of(documents[""])


def _noted(attributes: Document, call: ConversionCall) -> Document:
    """Attributes of a root that tell of shards, or no longer do."""
    is_flat = call.wanted.shards is None
    return without_note(attributes) if is_flat else with_note(attributes)


def _note(place: Place, call: ConversionCall) -> None:
    """Add the note on sharding to the root of a tree, or remove it; other changes stay."""

    def noted(document: Document) -> Document:
        return {**document, "attributes": _noted(attributes_of(document), call)}

    change_group(place, noted, level_of(place, call.run.durability))

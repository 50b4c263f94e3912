"""The note on sharding among the attributes of a hierarchy's root, for readers that lack the codec.

It lies under ``"notes"``, beside what others have noted there.
"""

from __future__ import annotations

from typing import Any

from shardwrite.codecs.documents import Document
from shardwrite.errors import SpecError

_FIELD = "notes"

NOTE = (
    "Arrays of this store are sharded: a reader needs the codec sharding_indexed of Zarr v3 to "
    "open them."
)
"""The note."""


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

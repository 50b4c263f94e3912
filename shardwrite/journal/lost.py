"""Runs whose array is gone, because somebody has removed it, or put another one in its place."""

from __future__ import annotations

from collections.abc import Mapping

from shardwrite.codecs.documents import JSON, Document
from shardwrite.errors import StoreError
from shardwrite.journal.rundir import RunDirectory
from shardwrite.place.directory import Directory
from shardwrite.stores import listed


def has_lost_array(run: RunDirectory) -> bool:
    """Whether the array of a run was removed. Another one may stand there.

    An array counts as another one if its number of axes, data type, shards, chunks or codecs are
    others. It is not compared with a run that replaces an array.

    - `run`: A run that has not ended.
    """
    place = run.target.place
    kind = place.kind()
    if kind == "array":
        if run.makes_array and run.record.replaces:
            return False
        found = run.target.document_if_there
        if found is not None:
            planned = begun_with(run)
            return planned is not None and _essentials(found) != _essentials(planned)
        kind = "nothing"  # it was removed a moment ago
    if not run.makes_array:
        return kind in ("nothing", "group", "v2")
    if place.is_occupied() or run.record.replaces or not isinstance(place, Directory):
        return False  # a place in another store has a mark
    return bool(listed(run.path, "journal-"))  # begun once there was a directory for the shards


def begun_with(run: RunDirectory) -> Document | None:
    """Document of the array with which a run began, or None if the run has ended meanwhile."""
    try:
        return run.document
    except StoreError:
        if not run.has_ended:
            raise
        return None


def _essentials(document: Document) -> tuple[object, ...]:
    """What stays the same in a document that other programs write again; it may be damaged."""
    shape = document.get("shape")
    return (
        len(shape) if isinstance(shape, list) else shape,
        document.get("data_type"),
        document.get("chunk_grid"),
        _names_and_chunks(document.get("codecs")),
    )


def _names_and_chunks(codecs: JSON) -> list[object]:
    found: list[object] = []
    for codec in codecs if isinstance(codecs, list) else []:
        name = codec.get("name") if isinstance(codec, Mapping) else codec
        configuration = codec.get("configuration") if isinstance(codec, Mapping) else None
        known = configuration if isinstance(configuration, Mapping) else {}
        inner = known.get("codecs")
        found.append(
            (name, known.get("chunk_shape"), None if inner is None else _names_and_chunks(inner))
        )
    return found

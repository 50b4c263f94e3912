"""Which calls make an array, and which write into one that exists: modes as zarr has them.

A call for an array that exists may repeat what describes that array. It is refused where it says
something else.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from shardwrite.codecs.documents import Document
from shardwrite.errors import SpecError
from shardwrite.format.document import ArrayOptions, make_metadata
from shardwrite.format.manifest import LIST, has_manifest
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.journal import holding, tidied_run
from shardwrite.place.checks import check_beside
from shardwrite.place.target import Target
from shardwrite.plan import resolve_shapes
from shardwrite.runs.given import take

_MODES = ("w-", "w", "a", "r+")
_OF_CODECS = ("compressors", "filters", "serializer")
_OF_SHARDING = ("index_location", "index_codecs", "shard_format")
_OF_DOCUMENT = ("fill_value", "chunk_key_encoding", "dimension_names", "attributes")


def mode_of(mode: str | None, overwrite: Any) -> str:
    """Mode of a run that makes an array: ``overwrite=True`` is ``"w"``, and False is ``"w-"``."""
    if overwrite is None:
        return "w-" if mode is None else mode
    if not isinstance(overwrite, bool):
        raise SpecError(
            "not a bool", field="overwrite", value=overwrite, remedy="give True or False"
        )
    # "a" means that an array may exist or not, so it goes with both.
    agreeing = (None, "a", "w") if overwrite else (None, "a", "w-", "r+")
    if mode not in agreeing:
        raise SpecError(
            f"says something else than mode={mode!r}",
            field="overwrite",
            value=overwrite,
            remedy='give one of the two: overwrite=True is mode="w", and False is mode="w-"',
        )
    if overwrite:
        return "w"
    return "w-" if mode is None else mode


def chosen_mode(mode: str | None, overwrite: Any, *, is_given: bool) -> str:
    """Mode of a call that makes an array, or fills one.

    - `is_given`: whether the user has given the array itself, and no store. Without a mode, it is
      filled.
    """
    if mode is None and not overwrite and is_given:
        return "r+"
    chosen = mode_of(mode, overwrite)
    _check_mode(chosen)
    return chosen


def _check_mode(mode: Any) -> None:
    """Refuse what is no mode of writing."""
    if mode == "r":
        raise SpecError(
            "only reads", field="mode", value=mode, remedy='give "r+" to write into an array'
        )
    if mode not in _MODES:
        raise SpecError(
            "no such choice", field="mode", value=mode, remedy=f"use one of {list(_MODES)}"
        )


def fills_existing(x: Any, target: Target, mode: str, array: ArrayOptions) -> bool:
    """Whether a call without a region writes into an array that exists, rather than makes one.

    - `mode`: ``"r+"`` fills an array, which must exist. ``"a"`` fills an array that exists, and
      makes one if there is none, or if a run that makes it has not ended.
    """
    from shardwrite.read.array import open_at  # of an array that exists

    if mode == "a":
        check_beside(target)
        with holding(target):
            found = tidied_run(target)
            if (found is not None and found.makes_array) or target.place.kind() != "array":
                return False
    _check_agrees(x, open_at(target.place).metadata, array)
    return True


def refuse_for_region(array: ArrayOptions, mode: str, publish: str) -> None:
    """Refuse keywords of new arrays in a call that writes into a region."""
    of_array = [
        (f.name, getattr(array, f.name), f.default)
        for f in dataclasses.fields(array)
        if f.name not in ("order", "zarr_format")  # they say nothing that could differ
    ]
    usual_mode = mode if mode in ("a", "r+") else "w-"
    of_run = [("mode", mode, usual_mode), ("publish", publish, "last")]
    for keyword, value, usual in (*of_array[:2], *of_run, *of_array[2:]):
        if value is not usual and value != usual:
            remedy = "leave it out: the array that exists decides"
            raise SpecError(
                "is for new arrays, and region= is given", field=keyword, value=value, remedy=remedy
            )


def _check_agrees(x: Any, found: ArrayMetadata, array: ArrayOptions) -> None:
    """Refuse a source or keywords that describe another array than the one that exists."""
    source, shape = take(x).array, found.grid.shape
    if source.shape != shape:
        remedy = f"give an array of shape {shape}, or the region= that it goes to"
        raise SpecError(
            "is not that of the array that exists",
            field="x.shape",
            value=source.shape,
            remedy=remedy,
        )
    given = {
        field.name: getattr(array, field.name)
        for field in dataclasses.fields(array)
        if getattr(array, field.name) is not field.default
        and getattr(array, field.name) != field.default
    }
    shards, chunks, _ = resolve_shapes(
        shape, found.itemsize or 1, array.shards, array.chunks, source.chunks
    )
    is_sharded = array.shards is not None if "shards" in given else found.is_sharded
    wanted = make_metadata(shape, found.dtype, shards if is_sharded else None, chunks, array)
    pairs: dict[str, tuple[Any, Any]] = {
        "shards": (
            found.grid.shards if found.is_sharded else None,
            shards if is_sharded else None,
        ),
        "chunks": (found.grid.chunks, chunks),
        "manifest": (LIST if has_manifest(found.document) else None, array.manifest),
        **dict.fromkeys(_OF_CODECS, (found.inner_codecs, wanted.inner_codecs)),
        **{name: (_around(found), _around(wanted)) for name in _OF_SHARDING},
        **{name: (found.document.get(name), wanted.document.get(name)) for name in _OF_DOCUMENT},
    }
    for name, (there, now) in pairs.items():
        if name in given and there != now:
            raise SpecError(
                f"is not that of the array that exists, which has {there}",
                field=name,
                value=given[name],
                remedy='leave it out, or give mode="w" to replace the array',
            )


def _around(metadata: ArrayMetadata) -> Document | None:
    """What describes the index of the shards; None for an array without shards."""
    if not metadata.is_sharded:
        return None
    own = {k: v for k, v in metadata.sharding.items() if k not in ("chunk_shape", "codecs")}
    return {"index_location": "end", **own}

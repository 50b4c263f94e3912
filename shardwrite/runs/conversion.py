"""Conversions of arrays that exist: what passes as it is, what is re-encoded, and the plan."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from shardwrite.codecs.documents import Document, attributes_of
from shardwrite.engines import Engine
from shardwrite.errors import SpecError, redacted
from shardwrite.format.converted import ConvertedLayout, converted
from shardwrite.format.frame import framing_of
from shardwrite.format.manifest import check_manifest
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.passage import Passage, passage_between, what_differs
from shardwrite.format.placed import ScatteredChunks
from shardwrite.grid import Sized
from shardwrite.plan import (
    Plan,
    PlanOptions,
    Resources,
    SourceLayout,
    make_plan,
    resolve_shapes,
)
from shardwrite.plan.copying import copied_nbytes
from shardwrite.plan.in_chunks import shards_of_chunks
from shardwrite.plan.limits import check_new
from shardwrite.read.attributes import mask_value
from shardwrite.read.stored_array import StoredArray
from shardwrite.runs.array_chunks import waves_reruns
from shardwrite.runs.array_plan import by_groups, n_tasks_of, resources_of, waiting
from shardwrite.runs.conversion_keywords import CodecKeywords, CopyKeywords, IndexKeywords
from shardwrite.runs.lost import check_nothing_lost
from shardwrite.runs.reencoded import ReencodedChunks, to_reencode
from shardwrite.runs.source import ChunkSource
from shardwrite.runs.stored_chunks import StoredChunks
from shardwrite.sources import as_dask
from shardwrite.stores import Capability, Store, require
from shardwrite.write.donor import TWICE

_DEFAULT_KEYS = {"name": "default", "configuration": {"separator": "/"}}


@dataclass(frozen=True, kw_only=True)
class ConversionOptions(CodecKeywords, IndexKeywords, CopyKeywords):
    """What a conversion makes of an array, checked."""

    shards: Sized = "auto"  # shards in inner chunks; see :func:`shardwrite.shard`

    def __post_init__(self) -> None:
        check_manifest(self.manifest)
        names = self.dimension_names
        is_one = not isinstance(names, Iterable)
        if names is not None and (
            is_one or not all(name is None or isinstance(name, str) for name in names)
        ):
            remedy = "give a name or None for each axis"
            raise SpecError("no names", field="dimension_names", value=names, remedy=remedy)
        for field, allowed in (
            ("checksum", (None, True, False)),
            ("check", (True, False, TWICE)),
            ("drop_empty", (True, False)),
        ):
            value = getattr(self, field)
            is_text = isinstance(value, str)
            if not any(value is choice or (is_text and value == choice) for choice in allowed):
                raise SpecError(
                    "no such choice", field=field, value=value, remedy=f"use one of {allowed}"
                )


@dataclass(frozen=True, slots=True)
class Converting:
    """A conversion of one array, planned."""

    source: StoredArray  # the array that exists
    chunks: ChunkSource  # the chunks to write
    plan: Plan  # how they are written
    passage: Passage | None  # how encoded chunks pass; None if they are decoded and re-encoded
    reasons: tuple[str, ...]  # why they are; empty if they pass
    memory_nbytes: int  # estimated memory of a worker process, in bytes

    @property
    def metadata(self) -> ArrayMetadata:
        """Metadata of the new array."""
        return self.plan.metadata

    @property
    def is_there(self) -> bool:
        """Whether the source has the layout already."""
        is_same = self.source.array.metadata.document == self.metadata.document
        return is_same and not self.source.is_in_file and not self.source.is_foreign


def convert_array(
    source: StoredArray,
    engine: Engine,
    wanted: ConversionOptions,
    options: PlanOptions,
    into: Store,
) -> Converting:
    """Plan the conversion of an array.

    - Raises ChangedError if the array has lost objects.
    """
    if not engine.shares_memory:
        require(source.array.store, Capability.SHARED, field="src", value=source.label)
    _refuse_scattered(source)
    check_nothing_lost(source)
    old = source.array.metadata
    told = source.told
    if told.why_decoded and wanted.compressors == "keep":
        wanted = replace(wanted, compressors="auto")
    compressors, at = wanted.compressors, wanted.index_location
    framing = framing_of(options.strategy)
    if framing is not None:
        compressors, at = framing.choose(compressors, at)
    wanted = replace(wanted, compressors=compressors, index_location=at)
    metadata, notes = _layout(source, wanted)
    check_new(old.grid.shape, old.itemsize, metadata.grid.shards, metadata.grid.chunks)
    passage = None if told.why_decoded else passage_between(old, metadata)
    identity = source.identity if options.source_id is None else redacted(options.source_id)
    if wanted.drop_empty:
        identity += ":without empty chunks"
    is_stable = options.source_id is not None
    resources = waiting(resources_of(engine, options.memory_limit_nbytes), into, metadata)
    if passage is None:
        return _encoded_again(source, metadata, (identity, is_stable), resources, wanted, options)
    decodes = bool(wanted.check) or wanted.drop_empty or passage.n_encoded > 0
    layout = SourceLayout(metadata.grid.sizes, 0, identity, is_stable, is_encoded=True)
    made, nbytes = plan_of_copies(metadata, layout, resources, options, decodes=decodes)
    return Converting(
        source,
        StoredChunks(metadata, None, source.array, wanted.check, wanted.drop_empty),
        replace(made, notes=(*notes, *source.notes, *made.notes)),
        passage,
        (),
        nbytes,
    )


def plan_of_copies(
    metadata: ArrayMetadata,
    source: SourceLayout,
    resources: Resources,
    options: PlanOptions,
    *,
    decodes: bool,
) -> tuple[Plan, int]:
    """Plan of a run that copies encoded chunks, and the memory of a worker process, in bytes.

    - `decodes`: whether chunks are also decoded.
    """
    made = by_groups(make_plan(metadata, source, resources, options))
    return made, copied_nbytes(made, decodes=decodes)


def _refuse_scattered(source: StoredArray) -> None:
    """Refuse an array that has the chunks of another one, one after the other."""
    placed = source.array.metadata.placed
    if isinstance(placed, ScatteredChunks):
        raise SpecError(
            f"{placed.why}, so that it holds them one after the other, and not the values",
            field="src",
            value=source.label,
            remedy=placed.how_to_read,
        )


def _layout(
    source: StoredArray, wanted: ConversionOptions
) -> tuple[ArrayMetadata, tuple[str, ...]]:
    """Metadata of the new array, and explanations of its shapes."""
    old, notes = source.array.metadata.without_codecs_around, []
    chunks = old.grid.chunks
    if wanted.chunks is not None:
        found = resolve_shapes(old.grid.shape, old.itemsize, None, wanted.chunks, ())
        chunks = found[1]
        notes += [note for note in found[2] if note.startswith("chunks")]
    names = source.names if wanted.dimension_names is None else wanted.dimension_names
    shards, note = shards_of_chunks(wanted.shards, old.grid.shape, chunks, old.itemsize, names)
    layout = ConvertedLayout(
        shards=shards,
        chunks=chunks,
        compressors=wanted.compressors,
        checksum=wanted.checksum,
        index_location=wanted.index_location if shards is not None else None,
        dimension_names=wanted.dimension_names,
        chunk_key_encoding=None if source.is_v3 else _DEFAULT_KEYS,
        attributes=_attributes(source),
        manifest=wanted.manifest,
    )
    return converted(old, layout), (*notes, note)


def _attributes(source: StoredArray) -> Document | None:
    """Attributes of the new array; None if they stay as they are.

    xarray takes the fill value of a Zarr v2 array for missing values, and that of v3 for none. So
    the new array says which values are missing.
    """
    metadata = source.array.metadata
    kept = attributes_of(metadata.document)
    has_mask = source.has_fill and source.names is not None and "_FillValue" not in kept
    if source.is_v3 or not has_mask or metadata.dtype.kind not in "biufcSU":
        return None
    return {**kept, "_FillValue": mask_value(metadata.fill_value)}


def _encoded_again(
    source: StoredArray,
    metadata: ArrayMetadata,
    identity: tuple[str, bool],
    resources: Resources,
    wanted: ConversionOptions,
    options: PlanOptions,
) -> Converting:
    """Plan a conversion that decodes all chunks and encodes them again."""
    old = source.array.metadata
    told = source.told
    if told.why_decoded:
        x = as_dask(told.values).astype(old.dtype, copy=False)
    else:
        x = to_reencode(source.array, wanted.check)
    block_nbytes = math.prod(map(max, x.chunks)) * old.itemsize
    made = make_plan(
        metadata,
        SourceLayout(x.chunks, n_tasks_of(x), *identity, source.array.loaded_nbytes(block_nbytes)),
        resources,
        options,
        notes=source.notes,
    )
    made = waves_reruns(made, x)
    made.check_fits()
    return Converting(
        source,
        ReencodedChunks(
            x, None if source.is_foreign else source.array, drop_empty=wanted.drop_empty
        ),
        made,
        None,
        (told.why_decoded,)
        if told.why_decoded
        else tuple(f"{reason} differ" for reason in what_differs(old, metadata)),
        made.memory.total_nbytes,
    )

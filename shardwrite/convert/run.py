"""Conversion of one array: what passes as it is, what is re-encoded, the plan, and its run.

A chunk that holds only the fill value is stored if the array stores one there.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

import shardwrite._dask as dask
from shardwrite._dataclass import dataclass
from shardwrite.checks import choice
from shardwrite.codecs.documents import Document, attributes_of
from shardwrite.convert.keywords import CodecKeywords, CopyKeywords, IndexKeywords
from shardwrite.convert.plan import ConvertedLayout, converted, shards_of_chunks
from shardwrite.encode.unit import Damaged
from shardwrite.engines.local import Engine
from shardwrite.errors import CorruptShardError, SpecError, redacted
from shardwrite.format.frame import framing_of
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.node import check_manifest
from shardwrite.format.passage import Passage, has_checksum, passage_between, what_differs
from shardwrite.format.sharding import ScatteredChunks
from shardwrite.grid import Box, Shape, Sized, ceil_div, ravel
from shardwrite.plan.model import SourceLayout
from shardwrite.plan.options import PlanOptions, resolve_shapes
from shardwrite.plan.partition import check_new
from shardwrite.plan.plan import Plan, copied_nbytes
from shardwrite.read.array import ShardedArray
from shardwrite.read.source import as_dask, by_inner_chunks, mask_value
from shardwrite.read.stored_array import StoredArray
from shardwrite.read.stored_shard import open_shard, read_again
from shardwrite.runs.array_plan import ArrayChunks, n_tasks_of, plan_into
from shardwrite.runs.job import ChunkSource, TaskBox
from shardwrite.runs.stored_chunks import StoredChunks, check_nothing_lost
from shardwrite.stores.base import Capability, Store, require
from shardwrite.write.copying import TWICE, Check

# ---- Re-encoded chunks as a source


_MAX_KEPT = 64


class Presence:
    """Test whether an array stores an inner chunk that overlaps a box.

    Indexes that were read are kept for a while, so an instance is for one task.

    - `array`: the array. If it has codecs around its sharding, no chunk counts as stored, because
      its indexes are encoded.
    """

    def __init__(self, array: ShardedArray) -> None:
        self._array = array
        self._kept: OrderedDict[Shape, npt.NDArray[np.bool_] | None] = OrderedDict()

    def __call__(self, box: Box) -> bool:
        """Whether a chunk that overlaps a box of elements is stored.

        - Raises CorruptShardError if the index of a shard is not valid.
        """
        grid = self._array.metadata.grid
        inside = box.intersect(grid.whole)
        # An object with codecs around its sharding does not tell which of its inner chunks it has.
        if self._array.metadata.has_codecs_around or not inside.size:
            return False
        numbers = [
            range(a // c, ceil_div(b, c))
            for a, b, c in zip(inside.start, inside.stop, grid.chunks, strict=True)
        ]
        return any(self._has(chunk) for chunk in itertools.product(*numbers))

    def _has(self, chunk: Shape) -> bool:
        per_shard = self._array.metadata.grid.chunks_per_shard
        index = tuple(i // k for i, k in zip(chunk, per_shard, strict=True))
        stored = self._stored(index)
        place = tuple(i % k for i, k in zip(chunk, per_shard, strict=True))
        return stored is not None and bool(stored[ravel(place, per_shard)])

    def _stored(self, index: Shape) -> npt.NDArray[np.bool_] | None:
        """Which inner chunks of a shard are stored, by rank; None if it has no object."""
        if index not in self._kept:
            shard = open_shard(self._array.metadata, self._array.store, index)
            if shard is None:
                self._kept[index] = None
            else:
                with shard:
                    self._kept[index] = ~shard.index.is_empty
            if len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
        return self._kept.get(index)


class ReencodedChunks(ArrayChunks):
    """Values of an array that exists, and which of its chunks are stored.

    - `array`: the array; None if it does not tell which chunks it stores, and `drop_empty` holds
      anyway.
    - `drop_empty`: store no chunk that holds only the fill value.
    """

    def __init__(
        self, x: dask.array.Array, array: ShardedArray | None, *, drop_empty: bool
    ) -> None:
        super().__init__(x)
        self._kept = None if drop_empty or array is None else partial(Presence, array)
        self.copied = array

    @property
    def read_from(self) -> ShardedArray | None:
        """See :class:`ReadsArray`."""
        return self.copied

    def specified(self, at: TaskBox) -> TaskBox:
        """See :meth:`ArrayChunks.specified`."""
        return replace(at, spec=replace(at.spec, kept=self._kept))


def to_reencode(array: ShardedArray, check: Check) -> dask.array.Array:
    """Open an array as `by_inner_chunks` does; blocks that cannot be read are `Damaged`.

    - `check`: with ``"twice"``, what has no checksum is read twice, and compared.
    """
    like, source = by_inner_chunks(array), _Source(array, check)
    made: dask.array.Array = dask.array.from_array(
        source,
        chunks=like.chunks,
        name=f"reencoded-{like.name}",
        asarray=False,
        meta=np.empty((0,) * array.ndim, dtype=array.dtype),
    )
    return made


class _Source:
    """An array that gives `Damaged` blocks where shards cannot be read."""

    def __init__(self, array: ShardedArray, check: Check) -> None:
        self.shape, self.dtype, self.ndim = array.shape, array.dtype, array.ndim
        self._array = array
        self._is_compared = check == TWICE and not has_checksum(array.metadata)

    def __getitem__(self, key: Any) -> npt.NDArray[Any] | Damaged:
        spans = [s.indices(n)[:2] for s, n in zip(key, self.shape, strict=True)]
        region = Box(tuple(a for a, _ in spans), tuple(b for _, b in spans))
        try:
            return self._read(region)
        except CorruptShardError:
            return self._by_shards(region)

    def _by_shards(self, region: Box) -> npt.NDArray[Any] | Damaged:
        """Read a region that cannot be read as a whole."""
        out = np.full(region.shape, self._array.metadata.fill_value, self.dtype)
        grid, bad = self._array.metadata.grid, []
        for index in grid.shards_in(region):
            part = grid.shard_box(index).intersect(region)
            inside = part.shift(region.start)
            try:
                out[inside.slices] = self._read(part)
            except CorruptShardError as error:
                bad.append((inside, error))
        return Damaged(out, tuple(bad)) if bad else out

    def _read(self, region: Box) -> npt.NDArray[Any]:
        found = self._array.read_box(region)
        return self._agreed(region, found) if self._is_compared else found

    def _agreed(self, region: Box, found: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """What two reads, one after the other, give alike; there are three at most."""
        afresh, store, metadata = self._array.afresh(), self._array.store, self._array.metadata
        first = next(iter(metadata.grid.shards_in(region)), ())
        error = CorruptShardError(
            f"each read of the region {region.bounds} gives other values",
            key=metadata.shard_key(first),
        )
        for _ in range(2):
            again = afresh.read_box(region)
            if _same(again, found):
                return again
            read_again(store, "", error)
            found = again
        raise error


def _same(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    """Whether two arrays of one shape have the same bits, or the same objects."""
    if one.dtype.hasobject or one.dtype.kind == "T":
        return bool(np.array_equal(one, other))
    return one.tobytes() == other.tobytes()


# ---- The conversion of an array


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
        choice("checksum", self.checksum, (None, True, False))
        choice("check", self.check, (True, False, TWICE))
        choice("drop_empty", self.drop_empty, (True, False))


@dataclass(frozen=True, slots=True)
class ArrayConversion:
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
) -> ArrayConversion:
    """Plan the conversion of an array.

    - Raises ChangedError if the array has lost objects.
    """
    if not engine.shares_memory:
        require(source.array.store, Capability.SHARED, field="src", value=source.label)
    _refuse_scattered(source)
    check_nothing_lost(source)
    old = source.array.metadata
    told = source.copy_limits
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
    if passage is None:
        return _encoded_again(source, metadata, engine, wanted, options, into)
    made, nbytes = plan_of_copies(
        source,
        metadata,
        engine,
        options,
        into,
        decodes=bool(wanted.check) or wanted.drop_empty or passage.n_encoded > 0,
        drop_empty=wanted.drop_empty,
    )
    return ArrayConversion(
        source,
        StoredChunks(metadata, None, source.array, wanted.check, wanted.drop_empty),
        replace(made, notes=(*notes, *source.notes, *made.notes)),
        passage,
        (),
        nbytes,
    )


def _layout_of(
    source: StoredArray,
    source_id: str | None,
    sizes: tuple[tuple[int, ...], ...],
    *,
    drop_empty: bool,
) -> SourceLayout:
    """What a plan says of an array that exists as a source."""
    identity = source.identity if source_id is None else redacted(source_id)
    if drop_empty:
        identity += ":without empty chunks"
    is_stable = source_id is not None
    return SourceLayout(sizes, 0, identity, is_stable, ref=source.array.ref)


def plan_of_copies(
    source: StoredArray,
    metadata: ArrayMetadata,
    engine: Engine,
    options: PlanOptions,
    into: Store | None,
    *,
    decodes: bool,
    drop_empty: bool = False,
) -> tuple[Plan, int]:
    """Plan of a run that copies encoded chunks, and the memory of a worker process, in bytes.

    - `decodes`: whether chunks are also decoded.
    """
    layout = _layout_of(source, options.source_id, metadata.grid.sizes, drop_empty=drop_empty)
    layout = replace(layout, is_encoded=True)
    made = plan_into(metadata, layout, engine, options, into, by_groups=True)
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
    names = source.names if wanted.dimension_names is None else wanted.dimension_names
    if wanted.chunks is not None:
        found = resolve_shapes(old.grid.shape, old.itemsize, None, wanted.chunks, (), names)
        chunks = found[1]
        notes += [note for note in found[2] if note.startswith("chunks")]
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
    engine: Engine,
    wanted: ConversionOptions,
    options: PlanOptions,
    into: Store,
) -> ArrayConversion:
    """Plan a conversion that decodes all chunks and encodes them again."""
    old = source.array.metadata
    told = source.copy_limits
    if told.why_decoded:
        x = as_dask(told.values).astype(old.dtype, copy=False)
    else:
        x = to_reencode(source.array, wanted.check)
    block_nbytes = math.prod(map(max, x.chunks)) * old.itemsize
    layout = replace(
        _layout_of(source, options.source_id, x.chunks, drop_empty=wanted.drop_empty),
        n_tasks=n_tasks_of(x),
        loaded_nbytes=source.array.loaded_nbytes(block_nbytes),
    )
    made = plan_into(metadata, layout, engine, options, into, notes=source.notes, x=x)
    return ArrayConversion(
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

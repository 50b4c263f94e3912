"""The function that proposes shapes and codecs for a new array, and says what they cost.

`plan/design.py` chooses and counts. Here a sample of the data is compressed, and plans are made, so
that sizes, memory and time are those of this data on this machine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from dask.base import compute

import shardwrite._dask as dask
from shardwrite._dataclass import dataclass
from shardwrite.checks import choice, is_whole
from shardwrite.config.table import READ_GAP, READ_IN_FLIGHT, READ_REQUEST, value_of
from shardwrite.encode.reader import WHOLE_SHARE
from shardwrite.engines import active_engine
from shardwrite.engines.local import Engine
from shardwrite.entry.public import taking
from shardwrite.errors import PlanError, SpecError
from shardwrite.format.document import ArrayOptions, make_metadata
from shardwrite.grid import Shape, ShardGrid
from shardwrite.operations.plan import TAIL_NBYTES
from shardwrite.options import ProcessKeywords, argument, arguments, keywords, option
from shardwrite.plan.design import (
    LARGEST_NBYTES,
    MOST_FILES,
    PURPOSES,
    SHARD_NBYTES,
    STORAGES,
    Limits,
    ReadCost,
    RequestRules,
    Storage,
    Stored,
    cost_of,
    grown,
    n_inodes,
    nests,
    powers,
    ranked_candidates,
    reads_for,
    shapes_for,
    steps_of,
)
from shardwrite.plan.model import SourceLayout
from shardwrite.plan.options import PlanOptions, memory_limit_of
from shardwrite.plan.partition import MAX_SHARDS, check_extents
from shardwrite.plan.plan import Plan
from shardwrite.results import Axis, Facts, Result, counted, duration, human
from shardwrite.runs.array_plan import layout_of, plan_into
from shardwrite.runs.source_array import SourceArray, as_source_array

# ---- What is compressed


_N_PLACES = 6  # from which a sample is taken
_PLACE_NBYTES = 4 * 2**20  # of each, at most
_GOLDEN = (math.sqrt(5) - 1) / 2  # whose multiples are spread evenly
_CHECKED = {"name": "crc32c"}
_SAVES = 0.9  # size, compared with zstd's, at which another codec is worth a longer name
_INCOMPRESSIBLE = 0.98  # size, compared with the decoded one, from which compressing is in vain


@dataclass(frozen=True, slots=True)
class Codec:
    """A choice of compressors, and how well a sample is compressed by it."""

    name: str
    compressors: Any  # as the keyword takes them
    ratio: float = 1.0  # of decoded to encoded size
    nbytes_per_second: float = 0.0  # decoded bytes that a thread encodes; 0 if there is no sample


def _codecs(itemsize: int, purpose: str) -> list[Codec]:
    """Compressors that are tried. The first is the default of new arrays."""
    tried = [Codec("zstd", "zstd"), Codec("a checksum alone", [_CHECKED])]
    if itemsize > 1:
        shuffled = {"cname": "zstd", "clevel": 3, "shuffle": "shuffle", "typesize": itemsize}
        blosc = {"name": "blosc", "configuration": {**shuffled, "blocksize": 0}}
        tried.append(Codec("blosc: zstd of shuffled bytes", [blosc, _CHECKED]))
    if purpose == "archive":
        level = {"name": "zstd", "configuration": {"level": 12, "checksum": False}}
        tried.append(Codec("zstd at level 12", [level, _CHECKED]))
    return tried


def _sample(x: dask.array.Array) -> list[npt.NDArray[Any]]:
    """Boxes of a source, each inside one of its chunks, from places all over it."""
    boxes = []
    for number in range(min(_N_PLACES, math.prod(x.numblocks))):
        where = []
        for axis, sizes in enumerate(x.chunks):
            at = int((number + 1) * _GOLDEN * (axis + 1) % 1 * len(sizes)) if number else 0
            where.append((sum(sizes[:at]), sizes[at]))
        sides = [[*(p for p in powers(n) if p < n), n] for _, n in where if n]
        if len(sides) < x.ndim:
            continue  # it has no elements
        box = grown(x.dtype.itemsize, _PLACE_NBYTES, sides)
        starts = [start + (n - side) // 2 for (start, n), side in zip(where, box, strict=True)]
        boxes.append(x[tuple(slice(a, a + n) for a, n in zip(starts, box, strict=True))])
    found: tuple[npt.NDArray[Any], ...] = compute(*boxes)
    return [np.ascontiguousarray(part) for part in found]


def _measured(sample: Sequence[npt.NDArray[Any]], chunks: Shape, codec: Codec) -> Codec:
    """A codec with what it makes of inner chunks of a sample."""
    decoded, encoded, seconds = 0, 0, 0.0
    for part in sample:
        tile = _tile(part.shape, chunks)
        metadata = make_metadata(
            part.shape, part.dtype, None, tile, ArrayOptions(compressors=codec.compressors)
        )
        batch = _tiles(part, tile)
        begun = time.perf_counter()
        buffers = metadata.pipeline.encode(batch)
        seconds += time.perf_counter() - begun
        decoded += batch.nbytes
        encoded += sum(memoryview(buffer).nbytes for buffer in buffers)
    return replace(
        codec, ratio=decoded / max(1, encoded), nbytes_per_second=decoded / max(1e-9, seconds)
    )


def _tile(part: Shape, chunks: Shape) -> Shape:
    """Box of about as many elements as an inner chunk, inside a part of a sample."""
    tile = [min(c, n) for c, n in zip(chunks, part, strict=True)]
    for axis, n in enumerate(part):
        while 2 * math.prod(tile) <= math.prod(chunks) and 2 * tile[axis] <= n:
            tile[axis] *= 2
    return tuple(tile)


def _tiles(part: npt.NDArray[Any], tile: Shape) -> npt.NDArray[Any]:
    """All whole tiles of a part, as a batch."""
    counts = [n // t for n, t in zip(part.shape, tile, strict=True)]
    whole = part[tuple(slice(k * t) for k, t in zip(counts, tile, strict=True))]
    split = whole.reshape([side for pair in zip(counts, tile, strict=True) for side in pair])
    axes = [*range(0, 2 * part.ndim, 2), *range(1, 2 * part.ndim, 2)]
    return np.ascontiguousarray(split.transpose(axes)).reshape(-1, *tile)


def _best_codec(tried: Sequence[Codec]) -> Codec:
    """The codec to take: zstd, unless another saves much or nothing is saved at all."""
    usual, plain, *others = tried
    smallest = max([usual, *others], key=lambda codec: codec.ratio)
    if usual.ratio < smallest.ratio * _SAVES:
        return smallest
    return plain if usual.ratio * _INCOMPRESSIBLE <= plain.ratio else usual


# ---- The result


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate(Result):
    """Shapes and codecs of a new array, and what they cost.

    Attributes
    ----------
    shards, chunks : tuple of int
        Shapes of a shard and of an inner chunk, in elements.
    compressors : str or list
        As the keyword of :func:`to_sharded_zarr` takes them.
    codec : str
        The compressors in words.
    n_files, n_inodes : int
        Number of shards, each a file, and of all files and directories of the array.
    chunks_per_shard, index_nbytes : int
        Number of inner chunks in a shard, and bytes of the index of each shard.
    stored_nbytes : int
        Size of the array, in bytes, at the compression of the sample.
    reads : tuple of ReadCost
        What each read takes: `name`, `shape`, `n_requests`, `nbytes`, `decoded_nbytes`, `seconds`.
    factor : float
        How much longer the worst of the reads takes than in the shapes that are best for it.
    nests : bool
        Whether shards end where source chunks end.
    memory_nbytes, n_tasks : int or None
        Memory of a process that writes the array, at most, and number of tasks; None where the plan
        does not fit.
    seconds : float or None
        Time to encode the array here, by the speed of the sample; None without a sample.
    """

    shards: Shape
    chunks: Shape
    compressors: Any
    codec: str
    n_files: int
    n_inodes: int
    chunks_per_shard: int
    index_nbytes: int
    stored_nbytes: int
    reads: tuple[ReadCost, ...]
    factor: float
    nests: bool
    memory_nbytes: int | None
    n_tasks: int | None
    seconds: float | None

    @property
    def keywords(self) -> Mapping[str, Any]:
        """The shapes and compressors as keywords of :func:`to_sharded_zarr` and :func:`plan`."""
        names = ("shards", "chunks", "compressors")
        return {name: getattr(self, name) for name in names}

    def facts(self) -> Facts:
        """Return what is shown of the candidate.

        Returns
        -------
        Facts
            Its shapes, and rows of what they cost.
        """
        rows = [
            ("shapes", f"shards {self.shards}, inner chunks {self.chunks}, {self.codec}"),
            ("files", self._files),
            ("index", self._index),
            *((f"read {read.name}", _told_read(read)) for read in self.reads),
            ("writer", self._writer),
            ("why", self._why),
        ]
        return Facts(title="candidate", subject=str(self.shards), rows=rows)

    @property
    def _files(self) -> str:
        others = f"{self.n_inodes:,} inodes with documents and directories"
        return f"{counted(self.n_files, 'file')}, {others}; {human(self.stored_nbytes)} in all"

    @property
    def _index(self) -> str:
        per_shard = counted(self.chunks_per_shard, "inner chunk")
        return f"{human(self.index_nbytes)} for the {per_shard} of a shard"

    @property
    def _writer(self) -> str:
        if self.memory_nbytes is None or self.n_tasks is None:
            return "does not fit into the memory"
        told = f"at most {human(self.memory_nbytes)} per process, {counted(self.n_tasks, 'task')}"
        if self.seconds is not None:
            told += f"; encoding takes about {duration(self.seconds)} here"
        return told

    @property
    def _why(self) -> str:
        told = (
            "no other candidate is quicker"
            if self.factor < _AS_GOOD
            else f"no read takes more than {self.factor:.2g} times as long as in the shapes that "
            "are best for it alone"
        )
        return f"{told}; shards end where source chunks end" if self.nests else told


_AS_GOOD = 1.05


def _told_read(read: ReadCost) -> str:
    requests = f"{read.n_requests:,.3g}" if read.n_requests < 100 else f"{read.n_requests:,.0f}"
    return (
        f"{read.shape}: {requests} request{'' if requests == '1' else 's'}, "
        f"{human(read.nbytes)}, about {duration(read.seconds)}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Design(Result):
    """Shapes for a new array that come into question, the recommended one first.

    Attributes
    ----------
    shape : tuple of int
        Shape of the array.
    dtype : str
        Its data type.
    purpose : str or None
        What it is for; None if its reads were given.
    store : str
        The kind of storage.
    compression_ratio : float or None
        Ratio of decoded to encoded size of the sample; None without a sample.
    candidates : tuple of Candidate
        The candidates. Each has `shards`, `chunks`, `compressors`, `n_files`, `reads`, and more.
    """

    shape: Shape
    dtype: str
    purpose: str | None
    store: str
    compression_ratio: float | None
    candidates: tuple[Candidate, ...]

    _derived: ClassVar[tuple[str, ...]] = ()

    @property
    def best(self) -> Candidate:
        """The recommended candidate."""
        return self.candidates[0]

    def facts(self) -> Facts:
        """Return what is shown of the design.

        Returns
        -------
        Facts
            The recommended candidate, and rows of all of them.
        """
        best, ratio = self.best, self.compression_ratio
        grid = ShardGrid(self.shape, best.shards, best.chunks)
        rows = [
            ("array", f"{self.shape} {self.dtype}"),
            (
                "for",
                f"{self.purpose or 'the reads that are given'}, in storage such as {self.store}",
            ),
            (
                "sample",
                "none: sizes are those of data that do not compress"
                if ratio is None
                else f"compressed {ratio:.3g}x by {best.codec}",
            ),
        ]
        for number, candidate in enumerate(self.candidates, 1):
            (_, first), *others = candidate.facts().rows
            cell = "\n".join([first, *(f"{name}: {told}" for name, told in others)])
            rows.append((f"{number}, recommended" if number == 1 else str(number), cell))
        sizes = zip(self.shape, grid.shards, grid.chunks, grid.counts, strict=True)
        return Facts(
            title="design",
            subject=f"{self.shape} {self.dtype}",
            headline=[
                (f"{best.n_files:,}", "files"),
                (human(best.stored_nbytes), "stored"),
                (human(best.index_nbytes), "index of each file"),
            ],
            axes=[Axis(str(axis), *each) for axis, each in enumerate(sizes)],
            rows=rows,
        )


# ---- The function


_N_SHOWN, _N_PLANNED = 3, 6  # candidates


@keywords
class DesignKeywords(ProcessKeywords):
    """What shapes are proposed for."""

    section: ClassVar[str] = "Array"

    dtype: Any = option(
        None,
        "Data type, if `x` is a shape.",
        kind="str or dtype",
        flag=None,
    )
    purpose: str = option(
        PURPOSES[0],
        """What the array is for. Each stands for typical reads. A viewer reads planes of 256 x 256
        elements, and machine learning boxes. Time series are read at one point, and at one time. An
        archive is read as a whole.""",
        choices=PURPOSES,
        flag="for",
        command_help="What the array is for. Each stands for typical reads.",
    )
    reads: Sequence[Any] = option(
        (),
        """Shapes of boxes that are read, in place of those of `purpose`. Each is a tuple or a text
        such as ``"1,256,256"``, in which -1 is a whole axis.""",
        kind="sequence of str or tuple of int",
        flag="read",
        parser="texts",
        command_help="Shape of a box that is read, such as 1,256,256; -1 is a whole axis. May be "
        "repeated. Default: the reads that --for stands for.",
    )
    files: int = option(
        MOST_FILES,
        "Largest number of files.",
        least=1,
        command_help="Largest number of files.",
    )
    store: str = option(
        "local",
        "The kind of storage. Readers wait longer in some, and buckets have no directories.",
        choices=tuple(STORAGES),
        command_help="Kind of storage.",
    )


@arguments
class DesignArguments(DesignKeywords):
    """Arguments of `design`."""

    x: Any = argument(
        """The array, as for :func:`to_sharded_zarr`; a sample of it is compressed. Or a shape, of
        which only `dtype` is known besides.""",
        kind="array-like, or tuple of int",
    )


@taking(DesignArguments)
def design(call: DesignArguments) -> Design:
    """Propose shards, inner chunks and codecs for a new array, and say what they cost.

    Nothing is written. A sample of the data is compressed, at most 24 MiB.

    Returns
    -------
    Design
        Candidates, the recommended one first. It can be printed, and ``best.keywords`` are keywords
        for :func:`to_sharded_zarr`.

    Raises
    ------
    SpecError
        If an argument is not valid, or no shapes keep to the number of files and the memory.
    TypeError
        If a keyword is unknown.

    Examples
    --------
    >>> import shardwrite
    >>> found = shardwrite.design((1000, 2048, 2048), dtype="uint16", memory_limit="32GB")
    >>> found.best.shards, found.best.chunks, found.best.n_files
    ((256, 256, 512), (32, 32, 32), 128)
    """
    choice("purpose", call.purpose, PURPOSES)
    choice("store", call.store, STORAGES)
    if not is_whole(call.files, 1):
        raise SpecError(
            "not a number of files",
            field="files",
            value=call.files,
            remedy="give for instance 10000",
        )
    source = _source(call.x, call.dtype)
    shape, dtype = source.shape, source.dtype
    if isinstance(call.reads, str) or not isinstance(call.reads, Sequence):
        raise SpecError(
            "no sequence of shapes",
            field="reads",
            value=call.reads,
            remedy='give a list, such as ["1,256,256", "64,64,64"]',
        )
    reads = (
        {f"{number}": read_of(read, shape) for number, read in enumerate(call.reads, 1)}
        if call.reads
        else reads_for(call.purpose, shape, source.names)
    )
    engine = active_engine()
    memory = memory_limit_of(call.memory_limit) or engine.memory_limit_nbytes
    limits = Limits(
        most_files=min(call.files, MAX_SHARDS),
        most_nbytes=memory // (4 * engine.n_threads),  # which each thread may hold
        shard_nbytes=LARGEST_NBYTES if call.purpose == "archive" else SHARD_NBYTES,
    )
    shapes = shapes_for(shape, dtype.itemsize, source.chunks, list(reads.values()), limits)
    if not shapes:
        raise SpecError(
            f"no shapes make so few files of at most {human(limits.most_nbytes)} decoded, which is "
            "what a thread may have of the memory",
            field="files",
            value=call.files,
            remedy=f"allow more files (at most {MAX_SHARDS:,}), or more memory",
        )
    sample = [] if source.given is None else _sample(source.given.array)
    tried = [
        _measured(sample, shapes[0][1], codec) for codec in _codecs(dtype.itemsize, call.purpose)
    ]
    codec = _best_codec(tried) if sample else Codec("zstd", "zstd")
    pricing = _Pricing(source, reads, STORAGES[call.store], codec)
    grids = [ShardGrid(shape, *each) for each in shapes]
    ranked = ranked_candidates(
        [pricing.costs(grid, codec.ratio) for grid in grids], grids, dtype.itemsize
    )
    options = PlanOptions(memory_limit=memory)
    planned = [
        (grids[number], factor, _plan(source, grids[number], codec, engine, options))
        for number, factor in _apart(ranked, grids)
    ]
    planned.sort(key=lambda each: each[2] is None)  # those that fit come first
    candidates = tuple(
        pricing.candidate(
            grid, factor, plan, _measured(sample, grid.chunks, codec) if sample else codec
        )
        for grid, factor, plan in planned[:_N_SHOWN]
    )
    return Design(
        shape=shape,
        dtype=str(dtype),
        purpose=None if call.reads else call.purpose,
        store=call.store,
        compression_ratio=codec.ratio if sample else None,
        candidates=candidates,
    )


def _apart(
    ranked: Sequence[tuple[int, float]], grids: Sequence[ShardGrid]
) -> list[tuple[int, float]]:
    """The best candidate for each shape of inner chunks, as many as are planned."""
    best: dict[Shape, tuple[int, float]] = {}
    for number, factor in ranked:
        best.setdefault(grids[number].chunks, (number, factor))
    return list(best.values())[:_N_PLANNED]


def _plan(
    source: _Source, grid: ShardGrid, codec: Codec, engine: Engine, options: PlanOptions
) -> Plan | None:
    """The plan that writes a candidate; None if it does not fit.

    If only the shape is known, each shard is taken for a chunk of the source.
    """
    array = ArrayOptions(shards=grid.shards, chunks=grid.chunks, compressors=codec.compressors)
    metadata = make_metadata(source.shape, source.dtype, grid.shards, grid.chunks, array)
    layout = (
        SourceLayout(grid.sizes, grid.n_shards, "a shape")
        if source.given is None
        else layout_of(source.given.array)
    )
    try:
        return plan_into(metadata, layout, engine, options)
    except PlanError:
        return None


@dataclass(frozen=True, slots=True)
class _Pricing:
    """What is needed to say what shapes cost."""

    source: _Source
    reads: Mapping[str, Shape]
    storage: Storage
    codec: Codec

    def stored(self, grid: ShardGrid, ratio: float) -> Stored:
        """Sizes of what is stored."""
        nbytes = self.source.dtype.itemsize * math.prod(grid.chunks) / ratio
        is_padded = self.codec.compressors == [_CHECKED]
        return Stored(grid, nbytes, 16 * grid.n_chunks_per_shard + 4, is_padded)

    def costs(self, grid: ShardGrid, ratio: float) -> list[ReadCost]:
        """Costs of all reads."""
        stored, itemsize = self.stored(grid, ratio), self.source.dtype.itemsize
        rules = RequestRules(
            self.storage.is_bucket,
            value_of(READ_GAP),
            value_of(READ_REQUEST),
            TAIL_NBYTES,
            WHOLE_SHARE,
            value_of(READ_IN_FLIGHT) if self.storage.is_bucket else 1,
        )
        return [
            cost_of(name, read, stored, itemsize, rules, self.storage)
            for name, read in self.reads.items()
        ]

    def candidate(
        self, grid: ShardGrid, factor: float, plan: Plan | None, codec: Codec
    ) -> Candidate:
        """A candidate with all that it costs.

        - `codec`: as it was measured with inner chunks of this shape.
        """
        stored, steps = self.stored(grid, codec.ratio), steps_of(self.source.chunks)
        raw = math.prod(grid.shape) * self.source.dtype.itemsize
        seconds = None
        if codec.nbytes_per_second and plan is not None:
            n_threads = plan.resources.n_threads * plan.resources.n_processes
            seconds = raw / codec.nbytes_per_second / n_threads
        return Candidate(
            shards=grid.shards,
            chunks=grid.chunks,
            compressors=codec.compressors,
            codec=codec.name,
            n_files=grid.n_shards,
            n_inodes=n_inodes(grid, self.storage),
            chunks_per_shard=grid.n_chunks_per_shard,
            index_nbytes=stored.index_nbytes,
            stored_nbytes=int(stored.nbytes),
            reads=tuple(self.costs(grid, codec.ratio)),
            factor=factor,
            nests=any(steps) and nests(grid.shards, steps),
            memory_nbytes=None if plan is None else plan.memory.total_nbytes,
            n_tasks=None if plan is None else plan.n_tasks,
            seconds=seconds,
        )


@dataclass(frozen=True, slots=True)
class _Source:
    """What is known of the data."""

    shape: Shape
    dtype: np.dtype[Any]
    chunks: Sequence[Sequence[int]]
    names: Sequence[str | None]
    given: SourceArray | None  # None if only the shape is known


def _source(x: Any, dtype: Any) -> _Source:
    """An array, or a shape and its data type."""
    if isinstance(x, tuple | list) and all(map(is_whole, x)):
        if dtype is None:
            remedy = "say what the elements are, as in 'uint16'"
            raise SpecError("a shape has no data type", field="dtype", value=None, remedy=remedy)
        try:
            known = np.dtype(dtype)
        except TypeError:
            remedy = "give one that numpy knows, such as uint16"
            raise SpecError("no data type", field="dtype", value=dtype, remedy=remedy) from None
        shape = tuple(int(n) for n in x)
        return _checked(_Source(shape, known, [(n,) for n in shape], (), None))
    if dtype is not None:
        remedy = "leave it out, or give a shape in place of the array"
        raise SpecError("an array has its own", field="dtype", value=dtype, remedy=remedy)
    given = as_source_array(x)
    array = given.array
    names = given.known.dimension_names or ()
    return _checked(_Source(array.shape, array.dtype, array.chunks, names, given))


def _checked(source: _Source) -> _Source:
    if source.dtype.hasobject or source.dtype.kind == "T" or not source.dtype.itemsize:
        raise SpecError(
            "elements of this type have no one size",
            field="x.dtype",
            value=str(source.dtype),
            remedy="give shards and chunks yourself",
        )
    if min(source.shape, default=0) < 1:
        raise SpecError(
            "has no elements, or no axes",
            field="x.shape",
            value=source.shape,
            remedy="give an array with both",
        )
    check_extents("x.shape", source.shape, source.shape)
    return source


def read_of(read: Any, shape: Shape) -> Shape:
    """Shape of a read, from a tuple or a text; -1 is a whole axis."""
    try:
        sides = map(int, read.split(",")) if isinstance(read, str) else read
        found = tuple(int(side) for side in sides if is_whole(side))
    except (TypeError, ValueError):
        found = ()
    if len(found) != len(shape) or any(side < -1 or side == 0 for side in found):
        example = ",".join(["1", *["256"] * (len(shape) - 1)])
        raise SpecError(
            f"no shape of a box of {counted(len(shape), 'side')}",
            field="reads",
            value=read,
            remedy=f'give for instance "{example}"; -1 is a whole axis',
        )
    return tuple(n if side == -1 else min(side, n) for side, n in zip(found, shape, strict=True))

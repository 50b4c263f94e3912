"""What a conversion makes of an array: its ``zarr.json``, the shapes of its shards, and the plan.

The ``zarr.json`` is the document of the other array, in which only what a conversion changes is
changed. So data type, fill value, attributes and names stay exactly what they were.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from zarr.abc.codec import ArrayArrayCodec

from shardwrite._dataclass import dataclass
from shardwrite.codecs.documents import Codec, Document, named_today
from shardwrite.errors import SpecError, printable
from shardwrite.format.document import (
    DEFAULT_COMPRESSORS,
    DEFAULT_INDEX_CODECS,
    ArrayOptions,
    codec_class,
    make_metadata,
    warn_of_readers,
)
from shardwrite.format.manifest import with_manifest
from shardwrite.format.metadata import ArrayMetadata, metadata_of_document
from shardwrite.format.sharding import ShardingIndexed
from shardwrite.grid import Shape, Sized, ceil_div
from shardwrite.options import Manifest
from shardwrite.plan.options import (
    WHOLE,
    by_axis,
    explicit_sizes,
    in_elements,
    n_chunks_in,
    parse_nbytes,
    resolve_shapes,
    shard_side,
)
from shardwrite.plan.partition import check_extents
from shardwrite.results import Facts, Result, counted, duration, human
from shardwrite.runs.result import WriteResult, told_of_rereads
from shardwrite.seams import registered

_CHECKSUM = "crc32c"

_BYTES = {"name": "bytes", "configuration": {"endian": "little"}}


# ---- The new document


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedLayout:
    """What a conversion changes in the document of an array."""

    shards: Shape | None  # shape of a shard in elements; None for an array without shards
    chunks: Shape  # shape of an inner chunk in elements
    # Bytes-to-bytes codecs of the inner chunks, as in `zarr.create_array`
    compressors: Any = "keep"
    # Whether a crc32c ends each inner chunk. None leaves that as it is.
    checksum: bool | None = None
    # Where the index lies in each shard. None leaves that as it is; new shards have it at the end.
    index_location: str | None = None
    # Names of the dimensions. None leaves them as they are.
    dimension_names: Sequence[str | None] | None = None
    chunk_key_encoding: Document | None = None  # how keys are made. None leaves that as it is.
    attributes: Document | None = None  # the attributes. None leaves them as they are.
    manifest: Manifest = None  # whether the array keeps a manifest. None leaves that as it is.


def converted(source: ArrayMetadata, layout: ConvertedLayout) -> ArrayMetadata:
    """Metadata of an array with the data of another."""
    document = dict(source.document)
    codecs = _inner_codecs(source, layout)
    sizes = layout.chunks
    if layout.shards is not None:
        warn_of_readers(source.dtype)
        sizes = layout.shards
        codecs = [
            {
                "name": ShardingIndexed.name,
                "configuration": {
                    "chunk_shape": list(layout.chunks),
                    "codecs": codecs,
                    **_index(source, layout.index_location),
                },
            }
        ]
    document["codecs"] = codecs
    document["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": list(sizes)}}
    if layout.dimension_names is not None:
        document["dimension_names"] = list(layout.dimension_names)
    if layout.chunk_key_encoding is not None:
        document["chunk_key_encoding"] = layout.chunk_key_encoding
    if layout.attributes is not None:
        document["attributes"] = layout.attributes
    if layout.manifest is not None:
        document = with_manifest(document)
    return metadata_of_document(document, writing=True)


def _inner_codecs(source: ArrayMetadata, layout: ConvertedLayout) -> list[Codec]:
    codecs = _codecs_of(source)
    if not (isinstance(layout.compressors, str) and layout.compressors == "keep"):
        codecs = _without_shardings(codecs)
        codecs = [*codecs[: _n_before_bytes(codecs)], *_rendered(source, layout, codecs)]
    if layout.checksum is False:
        while codecs and codecs[-1]["name"] == _CHECKSUM:
            codecs.pop()
    if layout.checksum and codecs[-1]["name"] != _CHECKSUM:
        codecs.append({"name": _CHECKSUM})
    return codecs


def _codecs_of(source: ArrayMetadata) -> list[Codec]:
    """Codecs of an array; the usual ones for those that no reader of Zarr knows."""
    codecs = source.inner_codecs
    if codecs[0]["name"] not in registered("serializer"):
        return [*codecs]
    return [_BYTES, *DEFAULT_COMPRESSORS]


def _without_shardings(codecs: Sequence[Codec]) -> list[Codec]:
    """Codecs that chunks have without the shards that are in them.

    Compressors are those of the smallest chunks. Around a sharding, not every reader takes them.
    """
    names = [codec["name"] for codec in codecs]
    if ShardingIndexed.name not in names:
        return [*codecs]
    at = names.index(ShardingIndexed.name)
    return [*codecs[:at], *_without_shardings(codecs[at]["configuration"]["codecs"])]


def _n_before_bytes(codecs: Sequence[Codec]) -> int:
    """Number of codecs up to the one that makes bytes of an array."""
    for n, codec in enumerate(codecs):
        known = codec_class(codec["name"])
        if known is None:
            raise SpecError(
                "a codec that zarr does not know",
                field="compressors",
                value=codec["name"],
                remedy='install its package, or leave the codecs as they are (compressors="keep")',
            )
        if not issubclass(known, ArrayArrayCodec):
            return n + 1
    return len(codecs)


def _rendered(
    source: ArrayMetadata, layout: ConvertedLayout, codecs: Sequence[Codec]
) -> Sequence[Codec]:
    """The compressors of a layout as zarr renders them for the array with these codecs."""
    serializer = codecs[_n_before_bytes(codecs) - 1]
    options = ArrayOptions(
        compressors=layout.compressors,
        serializer=dict(serializer) if source.dtype.hasobject else "auto",
    )
    made = make_metadata(source.grid.shape, source.dtype, None, layout.chunks, options)
    return made.inner_codecs[_n_before_bytes(made.inner_codecs) :]


def _index(source: ArrayMetadata, location: str | None) -> Document:
    """Fields of the shard format: those of the source, if it has the same format."""
    kept = source.shard_format
    if not isinstance(kept, ShardingIndexed):
        kept = ShardingIndexed([dict(codec) for codec in DEFAULT_INDEX_CODECS])
    if location not in (None, "end", "start"):
        raise SpecError(
            "no such place", field="index_location", value=location, remedy='use "end" or "start"'
        )
    codecs: list[Codec] = [*named_today(kept.index_codecs)]
    return ShardingIndexed(codecs, location or kept.location).to_dict()


# ---- Shapes of shards in inner chunks, from the argument `shards=`


_AUTO_NBYTES = "64MiB"
# times as many entries as inner chunks from which a note says so
_MUCH = 8


def shards_of_chunks(
    shards: Sized,
    shape: Shape,
    chunks: Shape,
    itemsize: int,
    names: Sequence[str | None] | None,
) -> tuple[Shape | None, str]:
    """Resolve an argument `shards` that counts inner chunks.

    - `shards`: inner chunks along all axes, or along each axis of a shard. Or a decoded size such
      as ``"256MB"``, or ``"auto"``. Or dimensions that a shard spans whole, as letters (``"XYZ"``)
      or as names with commas between them (``"lat,lon"``). None stands for no shards.
    """
    if shards is None:
        return None, "no shards: each chunk is a file"
    if isinstance(shards, Mapping) or n_chunks_in(shards) is not None:
        sizes = (
            by_axis("shards", shards, names, len(shape))
            if isinstance(shards, Mapping)
            else [str(shards)] * len(shape)
        )
        sides = [  # in elements, whatever they count
            size * c if isinstance(size, int) and size != WHOLE else size
            for size, c in zip(sizes, chunks, strict=True)
        ]
        sides = in_elements("shards", sides, shape, itemsize, [None] * len(shape), chunks)
        shards = tuple(
            shard_side(size, n, c) // c for size, n, c in zip(sides, shape, chunks, strict=True)
        )
    counts = explicit_sizes(shards, len(shape), "shards")
    if counts is not None:
        found = tuple(k * c for k, c in zip(counts, chunks, strict=True))
        check_extents("shards", shards, found)
    elif _is_size(str(shards)):
        text = _AUTO_NBYTES if shards == "auto" else str(shards)
        parse_nbytes(text, "shards")
        found = resolve_shapes(shape, itemsize, text, chunks, ())[0] or chunks
    else:
        whole = _axes(str(shards), names or ())
        found = tuple(
            ceil_div(max(1, n), c) * c if axis in whole else c
            for axis, (n, c) in enumerate(zip(shape, chunks, strict=True))
        )
    counted = tuple(s // c for s, c in zip(found, chunks, strict=True))
    note = f"shards {found}: {counted} inner chunks, {math.prod(counted):,} in each"
    there = math.prod(ceil_div(max(1, n), c) for n, c in zip(shape, chunks, strict=True))
    held = math.prod(
        ceil_div(max(1, n), s) * k for n, s, k in zip(shape, found, counted, strict=True)
    )
    if held > _MUCH * there:
        note += (
            f"; {1 - there / held:.0%} of all entries of the indexes are for inner chunks outside "
            "of the array, so smaller shards save room"
        )
    return found, note


def _is_size(text: str) -> bool:
    return text == "auto" or re.match(r"\s*[\d.+-]", text) is not None


def _axes(text: str, names: Sequence[str | None]) -> set[int]:
    """Axes whose dimensions a text names."""
    known = [None if name is None else name.lower() for name in names]
    words = [part.strip() for part in text.split(",")] if "," in text else [text.strip()]
    if len(words) == 1 and words[0].lower() not in known:
        words = list(words[0]) or [""]
    found = []
    for word in words:
        axes = [axis for axis, name in enumerate(known) if name == word.lower() and word]
        if len(axes) != 1:
            there = ", ".join(repr(name) for name in names if name is not None) or "no name"
            raise SpecError(
                f"{word!r} names {'no' if not axes else 'more than one'} dimension; the array has "
                f"{there}",
                field="shards",
                value=text,
                remedy='give names of dimensions such as "XYZ" or "lat,lon", or dimension_names=, '
                'or a size such as 8 (inner chunks) or "256MB"',
            )
        found += axes
    if len(set(found)) < len(found):
        raise SpecError(
            "names a dimension twice", field="shards", value=text, remedy="name each once"
        )
    return set(found)


# ---- Plans and results


_MAX_SHOWN = 50


def told_of_left_out(left_out: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Rows about the nodes that are left alone, each with the reason."""
    return [(name or "/", f"left out: {why}") for name, why in left_out]


def told_of_source(n_reread: int, n_removed: int) -> list[tuple[str, str]]:
    """Rows about the reads of the source that were made again, and about its removed files."""
    rows = [("second reads", told_of_rereads(n_reread))] if n_reread else []
    if n_removed:
        rows.append(("consumed", f"{n_removed:,} files of the source are removed"))
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedArray:
    """How one array will be converted."""

    name: str  # path of the array in its hierarchy; empty for the array itself
    # Shapes in elements: of the array, and of shards and inner chunks before and after. Shards are
    # None where there are none.
    shape: tuple[int, ...]
    old_shards: tuple[int, ...] | None
    shards: tuple[int, ...] | None
    old_chunks: tuple[int, ...]
    chunks: tuple[int, ...]
    # Whether encoded inner chunks are copied, or decoded and re-encoded, or the array has the
    # layout already and nothing is done
    how: str
    why: tuple[str, ...]  # why chunks are re-encoded, or the array is skipped
    change: str  # what becomes of the bytes of a chunk that is copied
    # Number of stored inner chunks that are copied, and that are decoded and re-encoded
    n_chunks_copied: int
    n_chunks_encoded: int
    n_files_before: int  # number of objects before, and at most after
    n_files_after: int
    nbytes: int  # size of all objects before, in bytes
    # Whether `nbytes` and the numbers of chunks are estimated from a sample of the objects
    is_estimate: bool
    memory_nbytes: int  # estimated memory of a worker process, in bytes
    notes: tuple[str, ...]  # explanations of what was chosen

    @property
    def _odd(self) -> tuple[str, ...]:
        """Why some chunks are re-encoded although all others are copied."""
        return self.why[:1] if self.n_chunks_encoded else ()

    def _rows(self) -> list[tuple[str, str]]:
        about = "about " if self.is_estimate else ""
        how = {
            "copied": "; ".join(
                (f"{about}{self.n_chunks_copied:,} copied, {self.change}", *self._odd)
            ),
            "re-encoded": f"{about}{self.n_chunks_encoded:,} decoded and re-encoded: "
            + ", ".join(self.why),
            "skipped": "none: " + ", ".join(self.why),
        }[self.how]
        return [
            ("array", f"{self.name or '/'}, {self.shape}"),
            ("shards", f"{self.shards or 'none'}, before {self.old_shards or 'none'}"),
            ("inner chunks", f"{self.chunks}, before {self.old_chunks}"),
            ("chunks", how),
            ("files", f"{self.n_files_after:,} at most, before {self.n_files_before:,}"),
            ("bytes", f"{about}{human(self.nbytes)} before"),
            ("memory", f"{human(self.memory_nbytes)} a process at worst"),
            *([("chosen", "\n".join(self.notes))] if self.notes else []),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionPlan(Result):
    """Plan of a conversion. Make one with :func:`shardwrite.plan_reshard`.

    Attributes
    ----------
    source : str
        Name of the source.
    arrays : tuple of PlannedArray
        The arrays.
    left_out : tuple of (str, str)
        Name of each node that is not converted, and why.
    is_one_file : bool
        Whether all arrays lie in one file.
    """

    _derived = ("n_files_before", "n_files_after", "n_chunks_copied", "n_chunks_encoded", "nbytes")

    source: str
    arrays: tuple[PlannedArray, ...]
    left_out: tuple[tuple[str, str], ...] = ()
    is_one_file: bool = False

    @property
    def n_files_before(self) -> int:
        """Number of objects of all arrays before."""
        return 1 if self.is_one_file else sum(array.n_files_before for array in self.arrays)

    @property
    def n_files_after(self) -> int:
        """Number of objects of all arrays after, at most."""
        return sum(array.n_files_after for array in self.arrays)

    @property
    def n_chunks_copied(self) -> int:
        """Number of stored inner chunks that are copied."""
        return sum(array.n_chunks_copied for array in self.arrays)

    @property
    def n_chunks_encoded(self) -> int:
        """Number of stored inner chunks that are decoded and re-encoded."""
        return sum(array.n_chunks_encoded for array in self.arrays)

    @property
    def nbytes(self) -> int:
        """Size of all objects before, in bytes."""
        return sum(array.nbytes for array in self.arrays)

    def _rows(self) -> list[tuple[str, str]]:
        rows = [("source", self.source)]
        if len(self.arrays) != 1:
            rows += [
                ("arrays", f"{len(self.arrays):,}"),
                ("files", f"{self.n_files_after:,} at most, before {self.n_files_before:,}"),
                ("bytes", f"{human(self.nbytes)} before"),
            ]
        for array in self.arrays[:_MAX_SHOWN]:
            rows += array._rows()  # noqa: SLF001 (its table is a part of this one)
        return rows + told_of_left_out(self.left_out)

    def __repr__(self) -> str:
        return (
            f"<ConversionPlan of {printable(self.source)}: {counted(len(self.arrays), 'array')}, "
            f"{self.n_chunks_copied:,} chunks copied, {self.n_chunks_encoded:,} re-encoded>"
        )

    def facts(self) -> Facts:
        """Return what is shown of the result, as text and in notebooks."""
        memory = max((array.memory_nbytes for array in self.arrays), default=0)
        headline = [
            (f"{self.n_files_after:,}", f"files at most, {self.n_files_before:,} before"),
            (human(memory), "memory per process at most"),
            (human(self.nbytes), "stored before"),
            (f"{self.n_chunks_copied:,}", "chunks copied"),
            (f"{self.n_chunks_encoded:,}", "re-encoded"),
        ]
        return Facts(title="conversion", subject=self.source, headline=headline, rows=self._rows())


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedArray:
    """What became of one array."""

    name: str  # path of the array in its hierarchy; empty for the array itself
    path: str  # path of the new array
    # Whether encoded inner chunks were copied, or decoded and re-encoded, or nothing was done
    how: str
    why: tuple[str, ...] = ()  # why chunks were re-encoded, or the array was skipped
    result: WriteResult | None = None  # result of the run; None if there was none
    n_odd: int = 0  # number of chunks that were re-encoded although all others were copied
    # Number of shards that were left alone, because chunks may still come into them
    n_left: int = 0

    @property
    def n_shards(self) -> int:
        """Number of objects that the array has now; 0 if it was skipped."""
        return 0 if self.result is None else self.result.n_shards

    @property
    def n_chunks(self) -> int:
        """Number of inner chunks that hold data in the new array; 0 if it was skipped."""
        return 0 if self.result is None else self.result.n_chunks - self.result.n_empty_chunks

    @property
    def stored_nbytes(self) -> int:
        """Size of all objects of the new array, in bytes; 0 if it was skipped."""
        return 0 if self.result is None else self.result.stored_nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion(Result):
    """Result of a conversion.

    Attributes
    ----------
    source, path : str
        Names of the source, and of what was made of it.
    arrays : tuple of ConvertedArray
        What became of each array.
    seconds : float
        Duration in seconds.
    left_out : tuple of (str, str)
        Name of each node that was not converted, and why.
    n_removed : int
        Number of objects of the source that this call has removed, with ``consume=True``.
    """

    _derived = (
        *("n_chunks_copied", "n_chunks_encoded", "n_shards", "n_left", "n_reread_chunks"),
        *("stored_nbytes", "is_skipped"),
    )

    source: str
    path: str
    arrays: tuple[ConvertedArray, ...]
    seconds: float
    left_out: tuple[tuple[str, str], ...] = ()
    n_removed: int = 0

    def _sum(self, field: str, how: Sequence[str] = ("copied", "re-encoded", "skipped")) -> int:
        return sum(getattr(array, field) for array in self.arrays if array.how in how)

    @property
    def n_chunks_copied(self) -> int:
        """Number of inner chunks whose encoded bytes were copied."""
        return self._sum("n_chunks", ["copied"]) - self._sum("n_odd", ["copied"])

    @property
    def n_chunks_encoded(self) -> int:
        """Number of inner chunks that were re-encoded."""
        return self._sum("n_chunks", ["re-encoded"]) + self._sum("n_odd", ["copied"])

    @property
    def n_shards(self) -> int:
        """Number of objects of the new arrays."""
        return self._sum("n_shards")

    @property
    def n_left(self) -> int:
        """Number of shards that were left alone, because chunks may still come into them."""
        return self._sum("n_left")

    @property
    def stored_nbytes(self) -> int:
        """Size of all objects of the new arrays, in bytes."""
        return self._sum("stored_nbytes")

    @property
    def n_reread_chunks(self) -> int:
        """Number of reads of the source that were made again, since their bytes were wrong."""
        return sum(a.result.n_reread_chunks for a in self.arrays if a.result is not None)

    @property
    def is_skipped(self) -> bool:
        """Whether nothing was done, because every array has the layout already."""
        return all(array.how == "skipped" for array in self.arrays)

    def _rows(self) -> list[tuple[str, str]]:
        rows = [("source", self.source), ("made", self.path)]
        if not self.is_skipped:
            rows += [
                ("files", f"{self.n_shards:,}"),
                (
                    "chunks",
                    f"{self.n_chunks_copied:,} copied, {self.n_chunks_encoded:,} re-encoded",
                ),
                ("bytes", human(self.stored_nbytes)),
            ]
        n_resumed = sum(a.result.n_resumed_shards for a in self.arrays if a.result is not None)
        if n_resumed:
            rows.append(("resumed", f"{n_resumed:,} shards were committed before"))
        rows += told_of_source(self.n_reread_chunks, self.n_removed)
        if not self.is_skipped:
            rows.append(("time", duration(self.seconds)))
        for array in self.arrays[:_MAX_SHOWN]:
            if array.n_left:
                left = counted(array.n_left, "shard")
                rows.append((array.name or "/", f"{left} left for a later call; not published yet"))
            if array.why:
                rows.append((array.name or "/", f"{array.how}: {', '.join(array.why)}"))
        return rows + told_of_left_out(self.left_out)

    def __repr__(self) -> str:
        return (
            f"<Conversion of {printable(self.source)} to {printable(self.path)}: "
            f"{counted(self.n_shards, 'file')}, {self.n_chunks_copied:,} chunks copied, "
            f"{self.n_chunks_encoded:,} re-encoded>"
        )

    def facts(self) -> Facts:
        """Return what is shown of the result, as text and in notebooks."""
        headline = [
            (f"{self.n_shards:,}", "files"),
            (f"{self.n_chunks_copied:,}", "chunks copied"),
            (f"{self.n_chunks_encoded:,}", "re-encoded"),
            (human(self.stored_nbytes), "stored"),
            *([] if self.is_skipped else [(duration(self.seconds), "time")]),
        ]
        return Facts(title="converted", subject=self.path, headline=headline, rows=self._rows())

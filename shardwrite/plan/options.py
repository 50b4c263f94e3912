"""Keywords that control a plan, but do not describe the array, and shapes of shards and chunks."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import field
from typing import Any

from shardwrite._dataclass import dataclass
from shardwrite.checks import flag, is_number, is_whole
from shardwrite.config.table import as_nbytes
from shardwrite.errors import SpecError
from shardwrite.format.strategies import FixedOrder, Strategy, as_strategy
from shardwrite.grid import Shape, ShardGrid, Sized, ceil_div
from shardwrite.options import PlanKeywords
from shardwrite.plan.partition import check_extents
from shardwrite.results import human

__all__ = ["Sized", "explicit_sizes", "parse_nbytes", "resolve_shapes"]


# ---- Shapes, from the arguments `shards=` and `chunks=`


def parse_nbytes(text: str, field: str) -> int:
    """Parse a number of bytes, such as ``"256MB"`` or ``"1.5 GiB"``.

    - `text`: number with an optional unit; fractions of a byte are cut off.
    - Raises SpecError if the text is not a number of bytes, or the number is less than 1.
    """
    try:
        return as_nbytes(text)
    except ValueError:
        remedy = 'give for instance "256MB" or "1GiB"'
        extents = re.fullmatch(
            r"[\s(\[]*(\d{1,20}(?:[\s,x\u00d7*;]+\d{1,20})+)[\s,)\]]*", text, re.IGNORECASE
        )
        if extents:
            remedy = (
                f"give a shape as a tuple, {tuple(map(int, re.findall(r'[0-9]+', extents[1])))}"
            )
        raise SpecError(
            "not a positive number of bytes", field=field, value=text, remedy=remedy
        ) from None


def resolve_shapes(
    shape: Shape,
    itemsize: int,
    shards: Sized,
    chunks: Sized,
    source_chunks: Sequence[Sequence[int]],
) -> tuple[Shape, Shape, tuple[str, ...]]:
    """Resolve the arguments `shards` and `chunks` to shapes.

    - `shards`: A shape, one size for all axes, a decoded size in bytes as text, or ``"auto"``. None
      is an array without shards, whose objects are single chunks.
    - `chunks`: the same; here None means ``"auto"``.
    - Raises SpecError if a shape has the wrong number of axes, or a size is not a positive integer
      or is larger than 2**62. Also if a text is not a number of bytes, or `shards` is not a
      multiple of `chunks`.
    """
    notes = []
    check_extents("shape", shape, shape)
    explicit_shards = explicit_sizes(shards, len(shape), "shards")
    explicit_chunks = explicit_sizes(chunks, len(shape), "chunks")
    for name, sizes in (("shards", explicit_shards), ("chunks", explicit_chunks)):
        check_extents(name, sizes, sizes or ())
    if explicit_chunks is None or (shards is not None and explicit_shards is None):
        from shardwrite.plan import design  # for shapes that nobody has given
    if explicit_chunks is None:
        target = design.INNER_NBYTES
        if chunks in (None, "auto"):
            explicit_chunks = (
                design.auto_shapes(shape, itemsize, source_chunks)[1]
                if isinstance(shards, str) and shards == "auto"
                else design.chunks_in(shape, itemsize, target, explicit_shards)
            )
        else:
            target = parse_nbytes(str(chunks), "chunks")
            explicit_chunks = design.chunks_in(shape, itemsize, target, explicit_shards)
        notes.append(
            f"chunks {explicit_chunks}: "
            f"{human(itemsize * math.prod(explicit_chunks))} each, near {human(target)}"
        )
    if shards is None:
        explicit_shards = explicit_chunks
        notes.append("no shards: each chunk is a file")
    elif explicit_shards is None:
        if shards == "auto":
            explicit_shards, why = design.auto_shards(
                shape, itemsize, explicit_chunks, source_chunks
            )
        else:
            target = parse_nbytes(str(shards), "shards")
            explicit_shards, why = (
                design.shards_within(shape, itemsize, explicit_chunks, target),
                f"at most {human(target)} decoded",
            )
        notes.append(f"shards {explicit_shards}: {why}")
    for axis, (s, c) in enumerate(zip(explicit_shards, explicit_chunks, strict=True)):
        if s % c:
            raise SpecError(
                f"not a multiple of the inner chunk on axis {axis}",
                field="shards",
                value=explicit_shards,
                remedy=(
                    f"with chunks={explicit_chunks} give {ceil_div(s, c) * c} instead of {s} there"
                ),
            )
    return explicit_shards, explicit_chunks, tuple(notes)


_MANY_FILES = 10**6  # a listing of more takes minutes, and many sites allow no more

_SMALL_FILE, _FEW_FILES = 4 * 10**6, 1000  # files that are busy with their names, if not so few

_LARGE_INDEX = 2**16  # bytes that the first request for a shard brings anyway

_NEARLY = 0.1  # how far a shard is from whole chunks of the source, as a share of them


def flaws_of(
    grid: ShardGrid, itemsize: int, source_chunks: Sequence[Sequence[int]], memory_nbytes: int
) -> list[str]:
    """What is wrong with shapes, where others would be better; most of the time nothing.

    - `memory_nbytes`: what a process may use.
    """
    flaws, n_files = [], grid.n_shards
    shard_nbytes = itemsize * math.prod(grid.shards)
    chunk_nbytes, index_nbytes = itemsize * math.prod(grid.chunks), 16 * grid.n_chunks_per_shard
    if n_files > _MANY_FILES or (n_files > _FEW_FILES and shard_nbytes < _SMALL_FILE):
        flaws.append(f"{n_files:,} files of {human(shard_nbytes)} decoded")
    if index_nbytes > max(_LARGE_INDEX, chunk_nbytes):
        flaws.append(
            f"a read of one inner chunk of {human(chunk_nbytes)} takes an index of "
            f"{human(index_nbytes)}"
        )
    if shard_nbytes > memory_nbytes:
        flaws.append(f"a shard has {human(shard_nbytes)}, and a process {human(memory_nbytes)}")
    for axis, (size, sizes) in enumerate(zip(grid.shards, source_chunks, strict=True)):
        step = sizes[0] if len(sizes) > 2 else 0
        if 0 < step < grid.shape[axis] and size < grid.shape[axis] and sizes[1] == step:
            ratio = max(size, step) / min(size, step)
            if 0 < abs(ratio - round(ratio)) < _NEARLY * round(ratio):
                flaws.append(f"shards of {size} nearly fit source chunks of {step} on axis {axis}")
    return flaws


def explicit_sizes(value: Sized, ndim: int, field: str) -> Shape | None:
    """Return the shape that `value` gives, or None if it is None or a text."""
    if value is None or isinstance(value, str):
        return None
    sizes: list[Any] = list(value) if isinstance(value, Sequence) else [value] * ndim
    for size in sizes or ([] if isinstance(value, Sequence) else [value]):
        if not is_whole(size, 1):
            raise SpecError(
                "sizes are positive integers",
                field=field,
                value=value,
                remedy=f"{size!r} is not one; give for instance 64",
            )
    if len(sizes) != ndim:
        raise SpecError(
            f"has {len(sizes)} entries for {ndim} axes",
            field=field,
            value=value,
            remedy=f"give {ndim} sizes, or one for all axes",
        )
    return tuple(int(size) for size in sizes)


# ---- Keywords


@dataclass(frozen=True, kw_only=True)
class PlanOptions(PlanKeywords):
    """Keywords that control a plan, checked. The name of a strategy or an order is replaced."""

    strategy: Strategy = field(default_factory=FixedOrder)

    def __post_init__(self) -> None:
        flag("write_empty_chunks", self.write_empty_chunks)
        ratio, source_id = self.compression_ratio, self.source_id
        for keyword, is_good, remedy in (
            (
                "compression_ratio",
                ratio is None or (is_number(ratio) and ratio > 0),
                "give for instance 2.5, or None",
            ),
            (
                "max_graph_tasks",
                is_whole(self.max_graph_tasks, 1),
                f"give for instance {PlanKeywords.max_graph_tasks}",
            ),
            (
                "max_source_reruns",
                is_number(self.max_source_reruns) and self.max_source_reruns > 0,
                f"give for instance {PlanKeywords.max_source_reruns}",
            ),
            (
                "source_id",
                source_id is None or (isinstance(source_id, str) and bool(source_id)),
                "give a text, or None",
            ),
        ):
            if not is_good:
                raise SpecError(
                    "not what this keyword takes",
                    field=keyword,
                    value=getattr(self, keyword),
                    remedy=remedy,
                )
        object.__setattr__(self, "strategy", as_strategy(self.strategy))
        memory_limit_of(self.memory_limit)

    @property
    def memory_limit_nbytes(self) -> int | None:
        """The keyword `memory_limit` in bytes; None if it is not given."""
        return memory_limit_of(self.memory_limit)


def memory_limit_of(limit: Any) -> int | None:
    """The keyword `memory_limit` in bytes; None if it is not given.

    - Raises SpecError if it is not a positive number of bytes.
    """
    if isinstance(limit, str):
        limit = parse_nbytes(limit, "memory_limit")
    if limit is not None and not is_whole(limit, 1):
        raise SpecError(
            "not a positive number of bytes",
            field="memory_limit",
            value=limit,
            remedy='give for instance "4GB"',
        )
    return limit

"""Keywords that control a plan, but do not describe the array, and shapes of shards and chunks."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import field
from typing import Any

from shardwrite._dataclass import dataclass
from shardwrite.checks import flag, is_number, is_whole, plain
from shardwrite.config.table import as_nbytes
from shardwrite.errors import SpecError
from shardwrite.format.strategies import FixedOrder, Strategy, as_strategy
from shardwrite.grid import Shape, ShardGrid, Sized, as_sizes, ceil_div
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
    names: Sequence[Hashable] | None = None,
) -> tuple[Shape, Shape, tuple[str, ...]]:
    """Resolve the arguments `shards` and `chunks` to shapes.

    - `shards`: A shape, one size for all axes, sizes by the names of axes, a decoded size in bytes
      as text, a number of inner chunks such as ``"8 chunks"``, or ``"auto"``. None is an array
      without shards, whose objects are single chunks. One of the sizes by names may be in bytes.
    - `chunks`: the same, but for a number of chunks; here None means ``"auto"``.
    - `names`: names of the axes.
    - Raises SpecError if a shape has the wrong number of axes, or a size is not a positive integer
      or is larger than 2**62. Also if a text is not a number of bytes, or `shards` is not a
      multiple of `chunks`.
    """
    notes: list[str] = []
    check_extents("shape", shape, shape)
    if isinstance(chunks, Mapping):
        named = by_axis("chunks", chunks, names, len(shape))
        given = in_elements("chunks", named, shape, itemsize, _sides_given(shards, shape, names))
        chunks = tuple(
            max(1, n) if size == WHOLE else int(size) for size, n in zip(given, shape, strict=True)
        )
    if isinstance(shards, Mapping) or n_chunks_in(shards) is not None:
        _, chunks, told = (
            ((), chunks, ())
            if isinstance(shards, Mapping) and not any(isinstance(n, str) for n in shards.values())
            else resolve_shapes(shape, itemsize, None, chunks, source_chunks)
        )
        notes += [note for note in told if note.startswith("chunks")]
        shards = _shards_in_chunks(shards, chunks, shape, itemsize, names)
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


WHOLE = -1
"""Size of a whole axis, where sizes are given by the names of axes."""

_CHUNKS = re.compile(r"\s*([1-9][0-9]{0,17}) chunks?\s*")


def n_chunks_in(size: Any) -> int | None:
    """The number in a text such as ``"8 chunks"``; None if it is no such text."""
    found = _CHUNKS.fullmatch(size) if isinstance(size, str) else None
    return None if found is None else int(found[1])


def by_axis(
    field: str, sizes: Mapping[Any, int | str], names: Sequence[Hashable] | None, ndim: int
) -> list[int | str]:
    """The size of each axis, from a mapping of names or numbers of axes.

    ``...`` is for all axes that the mapping does not name. Without it, they are whole.

    - Raises SpecError if there is no such axis, or a size is none.
    """
    words = list(names or [None] * ndim)
    keys = [[word, axis] if word is not None else [axis] for axis, word in enumerate(words)]
    known = {key for each in keys for key in each} | {...}
    for key, size in sizes.items():
        if key not in known or isinstance(key, bool):
            told = ", ".join(str(each[0]) for each in keys)
            raise SpecError(
                f"no axis is named {key!r}",
                field=field,
                value=sizes,
                remedy=f"the axes are {told}; `...` stands for the rest",
            )
        check_size(field, sizes, size)
    rest = sizes.get(..., WHOLE)
    return [next((sizes[key] for key in each if key in sizes), rest) for each in keys]


def check_size(field: str, value: Any, size: Any) -> None:
    """Refuse what is no size of one axis."""
    is_counted = n_chunks_in(size) is not None
    is_text = field == "shards" if is_counted else is_nbytes(size)
    if not (is_text or is_whole(size, 1) or (is_whole(size) and size == WHOLE)):
        counts = ', or a number of inner chunks such as "8 chunks"' if field == "shards" else ""
        raise SpecError(
            f"{size!r} is no size",
            field=field,
            value=value,
            remedy="give positive whole numbers of elements, -1 for a whole dimension, or the "
            f'bytes of the whole box along one dimension, such as "64MB"{counts}',
        )


def is_nbytes(size: Any) -> bool:
    """Whether a size is a text such as ``"64MB"``."""
    if not isinstance(size, str) or n_chunks_in(size) is not None:
        return False
    try:
        return as_nbytes(size) > 0
    except ValueError:
        return False


def in_elements(
    field: str,
    sizes: Sequence[int | str],
    shape: Shape,
    itemsize: int,
    multiples: Sequence[int | None],
    units: Shape | None = None,
) -> list[int | str]:
    """Sizes of axes, of which one may be in bytes: those of a box that has the other sizes.

    - `multiples`: what the side in elements divides, along each axis.
    - `units`: what it is a multiple of; by default 1.
    """
    found = list(sizes)
    units = units or (1,) * len(shape)
    axes = [axis for axis, size in enumerate(sizes) if is_nbytes(size)]
    if len(axes) > 1:
        raise SpecError(
            "sizes in bytes for several axes",
            field=field,
            value=[str(sizes[axis]) for axis in axes],
            remedy="give one axis in bytes, and the others in elements; or bytes for all axes "
            'together, as in "64MB"',
        )
    for axis in axes:
        others = (
            shard_side(size, n, unit)
            for a, (size, n, unit) in enumerate(zip(sizes, shape, units, strict=True))
            if a != axis
        )
        whole, unit = max(1, shape[axis]), units[axis]
        room = parse_nbytes(str(sizes[axis]), field) // max(1, itemsize * math.prod(others))
        count = max(1, min(room // unit, ceil_div(whole, unit)))
        multiple = multiples[axis]
        if multiple:
            count = next(k for k in range(count, 0, -1) if k == 1 or multiple % (k * unit) == 0)
        found[axis] = count * unit
    return found


def _sides_given(
    shards: Any, shape: Shape, names: Sequence[Hashable] | None
) -> Sequence[int | None]:
    """Sides of shards that are given in elements, along each axis."""
    if isinstance(shards, Mapping):
        sizes: Sequence[Any] = by_axis("shards", shards, names, len(shape))
    elif isinstance(shards, Sequence) and not isinstance(shards, str):
        sizes = shards if len(shards) == len(shape) else ()
    else:
        sizes = [shards] * len(shape)
    sides = [int(size) if is_whole(size, 1) else None for size in sizes]
    return sides or [None] * len(shape)


def shard_side(size: int | str, n: int, unit: int) -> int:
    """Side of a shard, from the size that is given for an axis of `n` elements.

    - `unit`: side of an inner chunk, or what it may be.
    """
    n_chunks, most = n_chunks_in(size), ceil_div(max(1, n), unit)
    if n_chunks is not None:
        return min(n_chunks, most) * unit
    return most * unit if size == WHOLE else int(size)


def units_of(chunks: Sized, shape: Shape) -> Shape:
    """What the shards of whole axes are multiples of.

    If inner chunks are left to the planner, it takes powers of two that divide a shard. A shard of
    an odd length would have inner chunks of one element, so it is made up to an eighth longer.
    """
    if isinstance(chunks, tuple) and len(chunks) == len(shape):
        return chunks
    if is_whole(chunks, 1):
        return (int(chunks),) * len(shape)
    return tuple(2 ** max(0, (n // 8).bit_length() - 1) for n in shape)


def _shards_in_chunks(
    shards: Any, chunks: Sized, shape: Shape, itemsize: int, names: Sequence[Hashable] | None
) -> Shape:
    """Shards whose sizes are given by the names of axes, or as one number of inner chunks."""
    sizes = (
        by_axis("shards", shards, names, len(shape))
        if isinstance(shards, Mapping)
        else [shards] * len(shape)
    )
    units = units_of(chunks, shape)
    sizes = in_elements("shards", sizes, shape, itemsize, [None] * len(shape), units)
    return tuple(map(shard_side, sizes, shape, units))


_MANY_FILES = 10**6  # a listing of more takes minutes, and many sites allow no more

_SMALL_FILE, _FEW_FILES = 4 * 10**6, 1000  # files that are busy with their names, if not so few

_LARGE_INDEX = 2**16  # bytes that the first request for a shard brings anyway

_WORTH_NESTING = 10**9  # bytes of an array; a smaller one is written soon, whatever its shards

_NEARLY = 0.1  # how far a shard is from whole chunks of the source, as a share of them

_SEVERAL = 5  # chunks of the source in a shard, from which one more at its border costs little


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
    if itemsize * math.prod(grid.shape) < _WORTH_NESTING:
        return flaws
    for axis, (size, sizes) in enumerate(zip(grid.shards, source_chunks, strict=True)):
        step = sizes[0] if len(sizes) > 2 else 0
        if 0 < step < grid.shape[axis] and size < grid.shape[axis] and sizes[1] == step:
            ratio = max(size, step) / min(size, step)
            is_trouble = round(ratio) < _SEVERAL
            if is_trouble and 0 < abs(ratio - round(ratio)) < _NEARLY * round(ratio):
                flaws.append(f"shards of {size} nearly fit source chunks of {step} on axis {axis}")
                break  # the others are as easily seen
    return flaws


def explicit_sizes(value: Sized, ndim: int, field: str) -> Shape | None:
    """Return the shape that `value` gives, or None if it is None or a text."""
    value = as_sizes(value)
    if value is None or isinstance(value, str):
        return None
    if isinstance(value, Mapping):
        raise SpecError(
            "sizes by the names of axes are not taken here",
            field=field,
            value=value,
            remedy=f"give {ndim} sizes, or one for all axes",
        )
    given: Any = [value] if isinstance(value, bytes | bytearray) else value  # which is no size
    sizes: list[Any] = list(given) if isinstance(given, Sequence) else [given] * ndim
    for size in sizes or ([] if isinstance(given, Sequence) else [given]):
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
        # Numbers of numpy overflow, and have no form in JSON.
        for keyword in ("compression_ratio", "max_graph_tasks", "max_source_reruns"):
            object.__setattr__(self, keyword, plain(getattr(self, keyword)))
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
    return None if limit is None else int(limit)

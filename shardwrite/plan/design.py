"""Shapes of shards and inner chunks: which ones come into question, and what reads of them cost.

Nothing is read or measured here. A read is a box of some shape at any place of the array, so what
it costs is a mean over places. A first write whose shapes are given does not import this module.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.grid import Shape, ShardGrid, ceil_div, counts_of
from shardwrite.results import human

# ---- What the sizes are aimed at


INNER_NBYTES = 512 * 2**10
"""Decoded size of an inner chunk: a request brings it in about the time that it takes to begin."""

SHARD_NBYTES = 64 * 2**20
"""Decoded size of a shard: some tens of megabytes, of which each thread can have one in memory."""

SHARD_RANGE = (10 * 10**6, 100 * 10**6)
"""Decoded sizes at which one shard for each chunk of the source is good."""

LARGEST_NBYTES = 2**30
"""Decoded size up to which shards grow so that there are fewer files. Beyond it, one torn or
changed file costs too much work, and a Lustre target holds too much of it."""

SMALLEST_FILE = 4 * 10**6
"""Size of a file below which file systems and buckets are busy with its name, and not its bytes."""

FEW_CHUNKS, MANY_CHUNKS = 128, 1024
"""Inner chunks of a shard. Fewer leave the file little larger than a chunk. The index has 16 bytes
for each, so 1,024 make 16 KB, which every cold read takes before its first chunk."""

MOST_FILES = 10**5
"""Files of one array. A directory tree of more takes minutes to list, copy or remove."""

_SMALLEST_SHARE = 16
"""Chunks of other sides than powers of two have at least this part of the wanted bytes."""

_MOST_TRIED = 10**5  # divisors of a side


# ---- Shapes of a number of bytes


Sides = Sequence[Sequence[int]]
"""For each axis, the sides that a box may have, in ascending order."""


def grown(
    itemsize: int, target: int, sides: Sides, weights: Sequence[float] | None = None
) -> Shape:
    """Box of at most `target` bytes, of which the shortest side grows first.

    - `weights`: how long the box is along each axis, in proportion; like a cube by default.
    """
    shares = weights or [1.0] * len(sides)
    at = [0] * len(sides)
    growing = True
    while growing:
        growing = False
        for axis in sorted(range(len(sides)), key=lambda a: (sides[a][at[a]] / shares[a], -a)):
            longer = [n + (a == axis) for a, n in enumerate(at)]
            if longer[axis] == len(sides[axis]):
                continue
            nbytes = itemsize * math.prod(own[n] for own, n in zip(sides, longer, strict=True))
            if nbytes <= target:
                at, growing = longer, True
                break
    return tuple(own[n] for own, n in zip(sides, at, strict=True))


def powers(most: int) -> list[int]:
    """Powers of two up to a number."""
    return [1 << n for n in range(most.bit_length())]


def divisors(n: int) -> list[int]:
    """Divisors of a number in ascending order; of more than 10**10, those with a small factor."""
    small = [k for k in range(1, min(math.isqrt(n), _MOST_TRIED) + 1) if n % k == 0]
    return sorted({*small, *(n // k for k in small)})


def chunks_in(shape: Shape, itemsize: int, target: int, shards: Shape | None) -> Shape:
    """Inner chunks of at most `target` bytes that are close to cubes.

    Their sides are powers of two, which also divide the sides of `shards` if these are given. Where
    chunks would be far too small by that, as in shards of 365 days, they are any divisors.
    """
    if shards is None:
        return grown(itemsize, target, [powers(2 * max(1, n) - 1) for n in shape])
    chunks = grown(itemsize, target, [[p for p in powers(n) if n % p == 0] for n in shards])
    enough = min(target, itemsize * math.prod(shards)) // _SMALLEST_SHARE
    if itemsize * math.prod(chunks) >= enough:
        return chunks
    return grown(itemsize, target, [divisors(n) for n in shards])


def shards_within(
    shape: Shape,
    itemsize: int,
    chunks: Shape,
    target: int,
    *,
    steps: Sequence[int | None] | None = None,
    weights: Sequence[float] | None = None,
) -> Shape:
    """A shard of at most `target` bytes, or the smallest one if that is larger.

    - `steps`: source chunks whose borders the borders of shards meet, along each axis where there
      are several.
    """
    steps = steps or [None] * len(shape)
    whole = [ceil_div(max(1, n), c) for n, c in zip(shape, chunks, strict=True)]
    sides = [
        [c * k for k in _counts(n, c, step)]
        for n, c, step in zip(whole, chunks, steps, strict=True)
    ]
    box = grown(itemsize, target, sides, weights)
    return tuple(min(side, n * c) for side, n, c in zip(box, whole, chunks, strict=True))


def _counts(whole: int, chunk: int, step: int | None) -> list[int]:
    """Numbers of inner chunks that a shard may have along an axis, up to all and once beyond."""
    if step is None:
        return powers(2 * whole - 1)
    parts = [k for k in divisors(step // chunk) if k < whole] if step % chunk == 0 else []
    multiple = math.lcm(chunk, step) // chunk
    wholes = [multiple * k for k in powers(max(1, 2 * ceil_div(whole, multiple) - 1))]
    return sorted({*parts, *(min(k, whole) for k in wholes)})


def steps_of(source_chunks: Sequence[Sequence[int]]) -> list[int | None]:
    """Length of the source chunks along each axis; None where they are one, or of no one length."""
    return [
        max(1, sizes[0])
        if len(sizes) > 1 and set(sizes[:-1]) == {sizes[0]} and sizes[-1] <= sizes[0]
        else None
        for sizes in source_chunks
    ]


def nests(shards: Shape, steps: Sequence[int | None]) -> bool:
    """Whether no source chunk crosses a border of shards, except where it holds whole shards."""
    return all(n is None or s % n == 0 or n % s == 0 for s, n in zip(shards, steps, strict=True))


# ---- The choice where nobody says how the array is read: `"auto"`


def auto_shards(
    shape: Shape,
    itemsize: int,
    chunks: Shape,
    source_chunks: Sequence[Sequence[int]],
    most_files: int = MOST_FILES,
) -> tuple[Shape, str]:
    """Choose a shard and explain the choice.

    A shard covers one source chunk, if that makes 10 to 100 MB decoded and source chunks are
    multiples of inner chunks. Otherwise a shard grows to at most 64 MiB, and to more if there would
    be too many files. Its borders meet those of source chunks where they can.
    """
    low, high = SHARD_RANGE
    by_source = tuple(
        ceil_div(max(sizes, default=1) or 1, c) * c
        for sizes, c in zip(source_chunks, chunks, strict=True)
    )
    nbytes = itemsize * math.prod(by_source)
    aligned = all(
        max(sizes, default=1) % c == 0 or len(sizes) == 1
        for sizes, c in zip(source_chunks, chunks, strict=True)
    )
    if low <= nbytes <= high and aligned and math.prod(counts_of(shape, by_source)) <= most_files:
        return by_source, f"one for each chunk of the source, {human(nbytes)} decoded"
    target = SHARD_NBYTES
    while True:
        box = shards_within(shape, itemsize, chunks, target)
        if math.prod(counts_of(shape, box)) <= most_files or 2 * target > LARGEST_NBYTES:
            break
        target *= 2
    steps = steps_of(source_chunks)
    why = f"aimed at {human(low)} to {human(high)} a file"
    if target > SHARD_NBYTES:
        why = f"so large because of the number of files, {math.prod(counts_of(shape, box)):,}"
    if not nests(box, steps):
        nested = shards_within(shape, itemsize, chunks, target, steps=steps)
        if low <= itemsize * math.prod(nested) <= target:
            box, why = nested, f"{why}, along borders of source chunks"
    return box, f"{human(itemsize * math.prod(box))} decoded, {why}"


def auto_shapes(
    shape: Shape, itemsize: int, source_chunks: Sequence[Sequence[int]]
) -> tuple[Shape, Shape, str]:
    """Choose shards and inner chunks, and explain the choice of the shards.

    Inner chunks have other sides than powers of two only if the borders of shards meet those of
    source chunks by that.
    """
    chunks = chunks_in(shape, itemsize, INNER_NBYTES, None)
    shards, why = auto_shards(shape, itemsize, chunks, source_chunks)
    steps = steps_of(source_chunks)
    if nests(shards, steps):
        return shards, chunks, why
    other = grown(itemsize, INNER_NBYTES, _sides_along(shape, steps))
    if itemsize * math.prod(other) * _SMALLEST_SHARE >= INNER_NBYTES:
        nested, how = auto_shards(shape, itemsize, other, source_chunks)
        if nests(nested, steps):
            return nested, other, how
    return shards, chunks, why


def _sides_along(shape: Shape, steps: Sequence[int | None]) -> Sides:
    """Sides of inner chunks that nest with source chunks, where there are several of these."""
    return [
        powers(2 * max(1, n) - 1) if step is None else _along_source(n, step)
        for n, step in zip(shape, steps, strict=True)
    ]


def _along_source(n: int, step: int) -> list[int]:
    """Sides that divide source chunks, or are several of them."""
    return [*divisors(step), *(step * k for k in powers(n // step) if k > 1)]


# ---- What a read costs


@dataclass(frozen=True, slots=True)
class Storage:
    """Where an array lies, as far as reads differ by it; figures of usual systems, in seconds."""

    latency: float  # from a request to its first byte
    nbytes_per_second: float  # of one reader
    is_bucket: bool = False  # whether requests name ranges, and there are no directories


STORAGES: Mapping[str, Storage] = {
    "local": Storage(1e-4, 1e9),
    "lustre": Storage(1e-3, 1e9),
    "nfs": Storage(2e-3, 3e8),
    "s3": Storage(3e-2, 1e8, is_bucket=True),
}

DECODED_PER_SECOND = 1e9
"""Bytes that a thread decodes in a second, about, of zstd."""


@dataclass(frozen=True, slots=True)
class RequestRules:
    """How this package asks for the inner chunks of a shard."""

    is_distant: bool
    gap: int  # bytes between inner chunks that one request reads all the same
    most: int  # bytes of a request
    tail: int  # bytes of the first request, at least, which has the index
    whole_share: float  # share of a shard's inner chunks from which a file is read as a whole
    in_flight: int = 1  # requests at a time


@dataclass(frozen=True, slots=True)
class Stored:
    """Shapes of an array, and the sizes of what is stored."""

    grid: ShardGrid
    chunk_nbytes: float  # of an encoded inner chunk that lies inside the array
    index_nbytes: int
    # Whether inner chunks at the ends take as much, because what pads them is not compressed
    is_padded: bool = False

    @property
    def data_nbytes(self) -> float:
        """Bytes of all inner chunks."""
        grid = self.grid
        share = math.prod(grid.shape) / (grid.n_inner_chunks * math.prod(grid.chunks))
        return self.chunk_nbytes * grid.n_inner_chunks * (1.0 if self.is_padded else share)

    @property
    def nbytes(self) -> float:
        """Bytes of all shards, with their indexes."""
        return self.data_nbytes + self.grid.n_shards * self.index_nbytes


@dataclass(frozen=True, slots=True)
class ReadCost:
    """What one read takes, on average over all places, where nothing is kept of an earlier one.

    Attributes
    ----------
    name : str
        Name of the read.
    shape : tuple of int
        Shape of the box that is read.
    n_requests, nbytes : float
        Number of requests, and bytes that they bring. Indexes are among them.
    decoded_nbytes : float
        Decoded bytes of all inner chunks that the box touches.
    seconds : float
        Time of one reader, by typical figures of the kind of storage.
    """

    name: str
    shape: Shape
    n_requests: float
    nbytes: float
    decoded_nbytes: float
    seconds: float


def cost_of(
    name: str, read: Shape, stored: Stored, itemsize: int, how: RequestRules, storage: Storage
) -> ReadCost:
    """What a read of a shape costs."""
    n_requests, nbytes, n_chunks = _counted(read, stored, how)
    decoded = n_chunks * itemsize * math.prod(stored.grid.chunks)
    n_waits = max(n_requests / how.in_flight, min(n_requests, 2.0))  # the index comes first
    seconds = n_waits * storage.latency + nbytes / storage.nbytes_per_second
    seconds += decoded / DECODED_PER_SECOND
    return ReadCost(name, read, n_requests, nbytes, decoded, seconds)


Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Pieces:
    """What reads touch of shards, as kinds of pieces; along one axis, or of boxes.

    Shares are those of the inner chunks' elements that lie in the array.
    """

    wanted: Sequence[Floats]  # for each axis: inner chunks that a piece touches
    there: Sequence[Floats]  # and those that the shard has
    wanted_share: Floats
    there_share: Floats
    weights: Floats  # how many such pieces a read has, on average


def _counted(read: Shape, stored: Stored, how: RequestRules) -> tuple[float, float, float]:
    """Requests, bytes and inner chunks of a read, on average over all places."""
    grid = stored.grid
    for n_places in (1024, 64, 8):
        axes = [
            _along(n, s, c, min(r, n), n_places)
            for n, s, c, r in zip(grid.shape, grid.shards, grid.chunks, read, strict=True)
        ]
        if math.prod(len(pieces.weights) for pieces in axes) <= _MOST_COMBINED:
            break
    pieces = _combined(axes)
    if stored.is_padded:
        ones = np.ones(len(pieces.weights))
        pieces = replace(pieces, wanted_share=ones, there_share=ones)
    ask = _of_ranges if how.is_distant else _of_file
    n_requests, nbytes = ask(pieces, stored, how)
    return (
        float(pieces.weights @ n_requests),
        float(pieces.weights @ nbytes),
        float(pieces.weights @ math.prod(pieces.wanted)),
    )


_MOST_COMBINED = 200_000
_GOLDEN = (math.sqrt(5) - 1) / 2  # whose multiples are spread evenly


def _along(n: int, shard: int, chunk: int, read: int, n_places: int) -> _Pieces:
    """Pieces of a read along one axis, one for each shard that it touches."""
    last = n - read
    starts = (
        np.arange(last + 1)
        if last < n_places
        else (np.arange(1, n_places + 1) * _GOLDEN % 1 * (last + 1)).astype(np.int64)
    )
    per_shard, n_chunks = shard // chunk, ceil_div(n, chunk)
    first_chunk, last_chunk = starts // chunk, (starts + read - 1) // chunk
    first_shard, last_shard = first_chunk // per_shard, last_chunk // per_shard
    is_one = first_shard == last_shard
    begun_stop = np.where(is_one, last_chunk, (first_shard + 1) * per_shard - 1) + 1
    n_between = np.maximum(0, last_shard - first_shard - 1)
    kinds = [  # shard, first inner chunk, the one after the last, and how many of them
        (first_shard, first_chunk, begun_stop, np.ones(len(starts))),
        (first_shard, first_shard * per_shard, (first_shard + 1) * per_shard, n_between),
        (last_shard, last_shard * per_shard, last_chunk + 1, ~is_one),
    ]
    shards, begins, ends, weights = (np.concatenate(each) for each in zip(*kinds, strict=True))
    stops = np.minimum(n_chunks, (shards + 1) * per_shard)
    rows = np.stack(
        [
            ends - begins,
            stops - shards * per_shard,
            np.minimum(n, ends * chunk) - begins * chunk,
            np.minimum(n, stops * chunk) - shards * shard,
        ]
    )[:, weights > 0]
    kinds_of, which = np.unique(rows, axis=1, return_inverse=True)
    wanted, there, wanted_elements, there_elements = kinds_of.astype(float)
    counts = np.bincount(np.ravel(which), weights[weights > 0]).astype(float)
    return _Pieces(
        [wanted],
        [there],
        wanted_elements / (wanted * chunk),
        there_elements / (there * chunk),
        counts / len(starts),
    )


def _combined(axes: Sequence[_Pieces]) -> _Pieces:
    """Pieces of boxes, from those along each axis, whose places do not depend on each other."""
    sizes = [len(pieces.weights) for pieces in axes]
    numbers = list(np.indices(sizes).reshape(len(sizes), math.prod(sizes)))

    def product(values: Sequence[Floats]) -> Floats:
        chosen = (own[at] for own, at in zip(values, numbers, strict=True))
        return math.prod(chosen, start=np.ones(len(numbers[0])))

    return _Pieces(
        [pieces.wanted[0][at] for pieces, at in zip(axes, numbers, strict=True)],
        [pieces.there[0][at] for pieces, at in zip(axes, numbers, strict=True)],
        product([pieces.wanted_share for pieces in axes]),
        product([pieces.there_share for pieces in axes]),
        product([pieces.weights for pieces in axes]),
    )


def _of_file(pieces: _Pieces, stored: Stored, how: RequestRules) -> tuple[Floats, Floats]:
    """Number of reads of a file, and their bytes: of index and inner chunks, or of the whole."""
    n_wanted, n_there = math.prod(pieces.wanted), math.prod(pieces.there)
    is_whole = n_wanted >= how.whole_share * n_there
    n_read = np.where(is_whole, n_there * pieces.there_share, n_wanted * pieces.wanted_share)
    nbytes = stored.index_nbytes + n_read * stored.chunk_nbytes
    return np.where(is_whole, 1.0, 1.0 + n_wanted), nbytes


def _of_ranges(pieces: _Pieces, stored: Stored, how: RequestRules) -> tuple[Floats, Floats]:
    """Number of requests for ranges of an object, and their bytes.

    The first is for the end of the object, which has the index, the others for inner chunks. If
    all of the object is wanted, the end is as much as a request takes.
    Inner chunks lie in row-major order. Those with small gaps between them are one stretch.
    """
    size = stored.chunk_nbytes * pieces.there_share  # of an inner chunk, on average
    length, stride, n_stretches = size, size, np.ones(len(size))  # of a stretch, in bytes
    for n, of in zip(reversed(pieces.wanted), reversed(pieces.there), strict=True):
        is_joined = (n_stretches == 1) & (stride - length <= how.gap)
        n_stretches = np.where(is_joined, 1.0, n_stretches * n)
        length = np.where(is_joined, (n - 1) * stride + length, length)
        stride = stride * of
    held = math.prod(pieces.there) * size
    is_whole = math.prod(pieces.wanted) == math.prod(pieces.there)  # one request, or few
    tail = np.where(is_whole, max(how.most, how.tail), max(how.tail, stored.index_nbytes))
    first = np.minimum(held + stored.index_nbytes, tail)
    in_first = first - stored.index_nbytes
    at_once = np.maximum(1.0, how.most // size) * size
    n_parts = np.ceil(length / at_once - 1e-9)
    part = np.minimum(length, at_once)
    n_places = (held - part) / size + 1
    n_known = np.floor(np.maximum(0.0, in_first - part + size) / size + 1e-9)
    n_left = np.maximum(
        0.0, math.prod(pieces.there) - np.floor(in_first / size + 1e-9)
    )  # of the whole
    left = np.where(
        is_whole,
        np.ceil(n_left / np.maximum(1.0, how.most // size) - 1e-9),
        n_stretches * n_parts * (1 - np.minimum(1.0, n_known / n_places)),
    )
    nbytes = np.where(
        is_whole,
        n_left * size,
        left * length / n_parts * pieces.wanted_share / pieces.there_share,
    )
    return 1 + left, first + nbytes


# ---- Candidates


def reads_for(purpose: str, shape: Shape, names: Sequence[str | None]) -> dict[str, Shape]:
    """Typical reads for a purpose, by their names.

    - `purpose`: one of `PURPOSES`.
    - `names`: names of the axes, of which some tell that an axis is none of space.
    """
    ndim = len(shape)
    words = [(name or "").lower() for name in names] or [""] * ndim
    space = [axis for axis in range(ndim) if words[axis] not in _NOT_SPACE][-3:]
    if not space:
        space = list(range(ndim))[-1:]
    time = next((axis for axis in range(ndim) if words[axis] in _TIMES), 0)

    def box(sides: Mapping[int, int], other: int = 1) -> Shape:
        return tuple(min(n, sides.get(axis, other)) for axis, n in enumerate(shape))

    if purpose == "viewer":
        planes: Sequence[Shape] = [*itertools.combinations(space, 2)][::-1] or [tuple(space)]
        return {
            f"{'plane' if len(plane) > 1 else 'stretch'} along "
            f"{', '.join(_told(words, axis) for axis in plane)}": box(dict.fromkeys(plane, _PLANE))
            for plane in planes
        }
    if purpose == "ml":
        return {"patch": box(dict.fromkeys(space, _PATCH if len(space) > 2 else _PLANE))}
    if purpose == "timeseries":
        rest = [axis for axis in range(ndim) if axis != time]
        series = {"series at one point": box({time: shape[time]})}
        return series | ({"map of one step": box({a: shape[a] for a in rest})} if rest else {})
    return {"everything": shape}


PURPOSES = ("viewer", "ml", "timeseries", "archive")
"""What an array is for. Each stands for typical reads; see `reads_for`."""

_TIMES = ("t", "time", "date", "valid_time")
_NOT_SPACE = (*_TIMES, "c", "channel", "channels", "band", "bands", "variable", "member", "number")
_PLANE = 256  # side of a tile on a screen
_PATCH = 64  # side of a box that a network is trained on


def _told(words: Sequence[str], axis: int) -> str:
    return words[axis] or str(axis)


@dataclass(frozen=True, slots=True)
class Limits:
    """What shards must keep to."""

    most_files: int
    most_nbytes: int  # decoded bytes of a shard
    shard_nbytes: int = SHARD_NBYTES  # decoded bytes of a shard, if that keeps to the number


def shapes_for(
    shape: Shape,
    itemsize: int,
    source_chunks: Sequence[Sequence[int]],
    reads: Sequence[Shape],
    limits: Limits,
) -> list[tuple[Shape, Shape]]:
    """Shards and inner chunks that come into question, each once. The first is that of ``"auto"``.

    Inner chunks are like cubes, like each of the reads, and between all of them. Shards are like
    cubes or like the inner chunks.
    """
    steps = steps_of(source_chunks)
    shards, chunks, _ = auto_shapes(shape, itemsize, source_chunks)
    found: dict[tuple[Shape, Shape], None] = {}
    if _keeps(shape, itemsize, shards, limits):
        found[shards, chunks] = None
    for weights, target in itertools.product(_proportions(shape, reads), _INNER_TRIED):
        for sides in (_sides(shape, [None] * len(shape)), _sides(shape, steps)):
            chunks = grown(itemsize, target, sides, weights)
            for shards in _shards_for(shape, itemsize, chunks, steps, weights, limits):
                found[shards, chunks] = None
    return list(found)


_INNER_TRIED = tuple(2**n for n in range(15, 22))  # 32 KiB to 2 MiB


def _sides(shape: Shape, steps: Sequence[int | None]) -> Sides:
    """Sides of inner chunks: powers of two and the whole axis, or such as nest."""
    return [
        [*(p for p in powers(n) if p < n), max(1, n)] if step is None else _along_source(n, step)
        for n, step in zip(shape, steps, strict=True)
    ]


def _proportions(shape: Shape, reads: Sequence[Shape]) -> Iterator[list[float]]:
    """How long boxes may be along each axis: all alike, as in a read, or between all reads."""
    yield [1.0] * len(shape)
    for read in reads:
        yield [float(side) for side in read]
    if len(reads) > 1:
        yield [math.prod(sides) ** (1 / len(reads)) for sides in zip(*reads, strict=True)]


def _shards_for(
    shape: Shape,
    itemsize: int,
    chunks: Shape,
    steps: Sequence[int | None],
    weights: Sequence[float],
    limits: Limits,
) -> Iterator[Shape]:
    """Shards for inner chunks that keep to the limits."""
    chunk_nbytes = itemsize * math.prod(chunks)
    target = max(limits.shard_nbytes, FEW_CHUNKS * chunk_nbytes)
    target = max(chunk_nbytes, min(target, MANY_CHUNKS * chunk_nbytes, limits.most_nbytes))
    for proportions, along in itertools.product((None, weights), (steps, [None] * len(shape))):
        wanted = target
        while True:
            shards = shards_within(
                shape, itemsize, chunks, wanted, steps=along, weights=proportions
            )
            n_files = math.prod(counts_of(shape, shards))
            if n_files <= limits.most_files or 2 * wanted > limits.most_nbytes:
                break
            wanted *= 2
        if _keeps(shape, itemsize, shards, limits):
            yield shards


def _keeps(shape: Shape, itemsize: int, shards: Shape, limits: Limits) -> bool:
    least = min(SMALLEST_FILE, limits.most_nbytes, itemsize * math.prod(shape))
    return (
        math.prod(counts_of(shape, shards)) <= limits.most_files
        and least <= itemsize * math.prod(shards) <= limits.most_nbytes
    )


def ranked_candidates(
    costs: Sequence[Sequence[ReadCost]], grids: Sequence[ShardGrid], itemsize: int
) -> list[tuple[int, float]]:
    """Candidates from the best to the worst, by their numbers, each with its worst factor.

    The factor of a read is how much longer it takes than in the candidate that is best for it. Of
    candidates whose worst factors are about the same, one with inner chunks of about 512 KiB comes
    first, then one with fewer files.

    - `costs`: for each candidate, the costs of all reads.
    """
    best = [min(cost.seconds for cost in column) for column in zip(*costs, strict=True)]
    factors = [
        max(cost.seconds / least for cost, least in zip(row, best, strict=True)) for row in costs
    ]

    def key(number: int) -> tuple[int, float, int]:
        chunk_nbytes = itemsize * math.prod(grids[number].chunks)
        distance = abs(math.log2(chunk_nbytes / INNER_NBYTES))
        return round(math.log(factors[number], _ALIKE)), distance, grids[number].n_shards

    return [(number, factors[number]) for number in sorted(range(len(costs)), key=key)]


_ALIKE = 1.05  # times between which nobody would choose


def n_inodes(grid: ShardGrid, storage: Storage) -> int:
    """Files and directories of an array: its shards, two documents, and the directories above."""
    n = grid.n_shards + 2
    if storage.is_bucket:
        return n
    counts = grid.counts
    return n + 1 + (1 if counts else 0) + sum(math.prod(counts[:k]) for k in range(1, len(counts)))

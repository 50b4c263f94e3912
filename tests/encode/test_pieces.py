"""Pieces of a source, cut into inner chunks: against a slice of a canvas for each inner chunk."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwrite.encode.unit import Pieces
from shardwrite.grid import Box

STRUCTURED = [("a", "<u2"), ("b", "<f8")]
DTYPES = [
    "u1",
    "<u2",
    ">u2",
    "<f8",
    "c16",
    "M8[s]",
    "S40",
    "<U3",
    STRUCTURED,
    np.dtype(STRUCTURED, align=True),
    object,
    "T",
]
LAYOUTS = ["C", "F", "reversed", "strided", "broadcast"]


def elements(shape, dtype):
    """Other than zero each."""
    dtype = np.dtypes.StringDType() if dtype == "T" else np.dtype(dtype)
    rng = np.random.default_rng(1)
    if dtype.kind in "UTO":
        return rng.integers(1, 99, shape).astype(str if dtype.kind == "T" else dtype).astype(dtype)
    return rng.integers(1, 100, (*shape, dtype.itemsize), dtype=np.uint8).view(dtype).reshape(shape)


def source_of(shape, dtype, layout):
    plain = elements(shape, dtype)
    if layout == "F":
        return np.asfortranarray(plain)
    if layout == "reversed":
        return np.ascontiguousarray(plain[..., ::-1])[..., ::-1]
    if layout == "strided":
        return np.repeat(plain, 2, axis=-1)[..., ::2]
    if layout == "broadcast":
        return np.broadcast_to(plain[:1, :, :1], shape)
    return plain


@pytest.mark.long
@given(
    counts=st.tuples(*[st.integers(1, 3)] * 3),
    chunks=st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 40)),
    shape=st.tuples(st.integers(1, 9), st.integers(1, 15), st.integers(1, 120)),
    cuts=st.tuples(*[st.sets(st.integers(1, 100), max_size=2)] * 3),
    start=st.tuples(st.integers(-3, 9), st.integers(-3, 15), st.integers(-30, 100)),
    dtype=st.sampled_from(DTYPES),
    layout=st.sampled_from(LAYOUTS),
)
@settings(max_examples=400)
def test_inner_chunks_are_slices_of_the_source(counts, chunks, shape, cuts, start, dtype, layout):
    origin = (50, 60, 70)
    whole = source_of(shape, dtype, layout)
    edges = [[0, *sorted(e for e in some if e < n), n] for some, n in zip(cuts, shape, strict=True)]
    parts = list(
        itertools.product(*([slice(a, b) for a, b in itertools.pairwise(along)] for along in edges))
    )
    pieces = Pieces(
        [tuple(o + s.start for o, s in zip(origin, part, strict=True)) for part in parts],
        [whole[p] for p in parts],
    )
    tiles = np.zeros((int(np.prod(counts)), *chunks), dtype=whole.dtype)
    first = tuple(o + a for o, a in zip(origin, start, strict=True))
    region = Box(first, tuple(a + n * c for a, n, c in zip(first, counts, chunks, strict=True)))
    canvas = np.zeros(region.shape, dtype=whole.dtype)
    common = region.intersect(Box(origin, tuple(o + n for o, n in zip(origin, shape, strict=True))))
    if common.size:
        canvas[common.shift(first).slices] = whole[common.shift(origin).slices]

    pieces.copy_into(tiles, counts, chunks, region)

    for tile, index in zip(tiles, np.ndindex(counts), strict=True):
        assert (
            tile.tolist()
            == canvas[
                tuple(slice(i * c, (i + 1) * c) for i, c in zip(index, chunks, strict=True))
            ].tolist()
        )


@pytest.mark.parametrize("stored", ["<u2", ">u2", "<f4"])
def test_values_are_converted_where_the_stored_type_is_another(stored):
    source = np.arange(64, dtype="<u2").reshape(1, 64)
    tiles = np.zeros((2, 1, 32), dtype=stored)
    Pieces([(0, 0)], [source]).copy_into(tiles, (1, 2), (1, 32), Box((0, 0), (1, 64)))
    np.testing.assert_array_equal(tiles.reshape(1, 64).astype("<u2"), source)


def test_an_array_without_axes():
    tiles = np.zeros((1,), dtype="f8")
    Pieces([()], [np.array(4.5)]).copy_into(tiles, (), (), Box((), ()))
    assert tiles.tolist() == [4.5]

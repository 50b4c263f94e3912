"""Pieces of a source, cut into inner chunks: against a slice for each inner chunk."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwrite.grid import Box
from shardwrite.shard import Pieces

DTYPES = ["u1", "<u2", ">u2", "<f8", "c16", "M8[s]", "S40", "<U3", [("a", "<u2"), ("b", "<f8", 3)]]


def values(shape, dtype):
    rng = np.random.default_rng(1)
    nbytes = np.dtype(dtype).itemsize * int(np.prod(shape))
    return np.frombuffer(rng.integers(1, 100, nbytes, dtype=np.uint8).tobytes(), "u1")[:nbytes]


def source_of(shape, dtype, layout):
    """The same elements, differently laid out in memory."""
    if np.dtype(dtype).kind == "U":
        plain = np.random.default_rng(1).integers(0, 99, shape).astype(dtype)
    else:
        plain = values(shape, dtype).view(dtype).reshape(shape)
    if layout == "F":
        return np.asfortranarray(plain)
    if layout == "reversed":
        return np.ascontiguousarray(plain[..., ::-1])[..., ::-1]
    if layout == "strided":
        wide = np.zeros((*shape[:-1], 2 * shape[-1]), dtype=plain.dtype)
        wide[..., ::2] = plain
        return wide[..., ::2]
    return plain


@given(
    counts=st.tuples(*[st.integers(1, 3)] * 3),
    chunks=st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 40)),
    cuts=st.tuples(*[st.sets(st.integers(1, 40), max_size=2)] * 3),
    origin=st.tuples(*[st.integers(0, 7)] * 3),
    dtype=st.sampled_from(DTYPES),
    layout=st.sampled_from(["C", "F", "reversed", "strided"]),
)
@settings(max_examples=300, deadline=None)
def test_inner_chunks_are_slices_of_the_source(counts, chunks, cuts, origin, dtype, layout):
    shape = tuple(n * c for n, c in zip(counts, chunks, strict=True))
    whole = source_of(shape, dtype, layout)
    edges = [[0, *sorted(e for e in some if e < n), n] for some, n in zip(cuts, shape, strict=True)]
    slices = list(itertools.product(*([slice(a, b) for a, b in itertools.pairwise(along)] for along in edges)))
    starts = [tuple(o + s.start for o, s in zip(origin, part, strict=True)) for part in slices]
    pieces = Pieces(starts, [whole[part] for part in slices])
    tiles = np.zeros((int(np.prod(counts)), *chunks), dtype=whole.dtype)
    region = Box(origin, tuple(o + n for o, n in zip(origin, shape, strict=True)))

    pieces.copy_into(tiles, counts, chunks, region)

    for tile, index in zip(tiles, np.ndindex(counts), strict=True):
        wanted = whole[tuple(slice(i * c, (i + 1) * c) for i, c in zip(index, chunks, strict=True))]
        assert tile.tobytes() == wanted.tobytes()


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

"""Orders against brute force on Python integers, and against the shards that zarr-python writes."""

import itertools
import math

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwrite.errors import SpecError
from shardwrite.format.order import ORDER_ALIASES, boxes, canonical_order, permutation

SHAPES = [
    (), (1,), (2,), (7,), (64,), (1, 1), (5, 2), (2, 5), (8, 8), (7, 9), (16, 3), (1, 6), (33, 33, 33), (4, 5, 6), (1, 9, 1),
    (2, 2, 2), (3, 1, 4, 2), (2, 3, 4, 5), (2, 3, 1, 4, 3), (2, 2, 2, 2, 2),
]  # fmt: skip


def brute_morton(shape):
    """Ranks by compressed Morton code, bit by bit on Python integers."""
    width = [0 if n <= 1 else len(f"{n - 1:b}") for n in shape]

    def code(index):
        value, at = 0, 0
        for bit in range(max(width, default=0)):
            for axis, i in enumerate(index):
                if bit < width[axis]:
                    value |= (i >> bit & 1) << at
                    at += 1
        return value

    indices = list(itertools.product(*map(range, shape)))
    codes = [code(index) for index in indices]
    assert len(set(codes)) == len(codes)
    return sorted(range(len(indices)), key=codes.__getitem__)


def brute(shape, order):
    if order == "morton":
        return brute_morton(shape)
    indices = list(itertools.product(*map(range, shape)))
    return sorted(
        range(len(indices)), key=lambda r: indices[r] if order == "C" else indices[r][::-1]
    )


def from_boxes(shape, order, max_cells):
    """Ranks in sequence, from the boxes and the permutation of each box's own shape."""
    all_ranks = np.arange(math.prod(shape)).reshape(shape)
    pieces = [
        all_ranks[box.slices].ravel()[permutation(box.shape, order)]
        for box in boxes(shape, order, max_cells)
    ]
    return np.concatenate(pieces).tolist()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("order", ["C", "F", "morton"])
def test_permutation_equals_brute_force(shape, order):
    ranks = permutation(shape, order)
    assert ranks.dtype == np.int64
    assert ranks.tolist() == brute(shape, order)


@pytest.mark.parametrize(
    "shape",
    [pytest.param(s, marks=pytest.mark.long if math.prod(s) > 20_000 else []) for s in SHAPES if s],
    ids=str,
)
def test_morton_is_the_order_in_which_zarr_python_writes(shape, tmp_path):
    size = math.prod(shape)
    layout = {"shape": shape, "shards": shape, "chunks": (1,) * len(shape), "compressors": None}
    array = zarr.create_array(tmp_path, dtype="u1", fill_value=0, **layout)
    array[...] = np.ones(shape, "u1")
    shard = tmp_path.joinpath("c", *"0" * len(shape)).read_bytes()
    offsets = np.frombuffer(shard[-16 * size - 4 : -4], "<u8")[::2]
    assert permutation(shape, "morton").tolist() == np.argsort(offsets).tolist()


def test_morton_interleaves_axis_0_lowest():
    assert permutation((2, 2), "morton").tolist() == [0, 2, 1, 3]
    assert permutation((5, 2), "morton").tolist() == [0, 2, 1, 3, 4, 6, 5, 7, 8, 9]


def test_permutation_is_read_only():
    with pytest.raises(ValueError, match="read-only"):
        permutation((3, 3), "morton")[0] = 1


@pytest.mark.parametrize("shape", [s for s in SHAPES if math.prod(s) <= 1000], ids=str)
@pytest.mark.parametrize("order", ["C", "F", "morton"])
def test_boxes_follow_the_order_for_any_room(shape, order):
    n = math.prod(shape)
    for max_cells in sorted({0, 1, 2, 3, 5, 7, 8, 17, 64, n - 1, n, n + 1, 10 * n}):
        assert from_boxes(shape, order, max_cells) == permutation(shape, order).tolist()
        assert all(1 <= box.size <= max(1, max_cells) for box in boxes(shape, order, max_cells))


@pytest.mark.parametrize("order", ["C", "F", "morton"])
@pytest.mark.parametrize("max_cells", [1, 100, 33**2, 33**3])
def test_boxes_of_a_large_grid(order, max_cells):
    assert from_boxes((33, 33, 33), order, max_cells) == permutation((33, 33, 33), order).tolist()


@settings(max_examples=60)
@given(
    st.lists(st.integers(1, 9), max_size=4),
    st.sampled_from(["C", "F", "morton"]),
    st.integers(0, 400),
)
def test_random_grids(shape, order, max_cells):
    shape = tuple(shape)
    assert permutation(shape, order).tolist() == brute(shape, order)
    assert from_boxes(shape, order, max_cells) == brute(shape, order)


@settings(max_examples=40)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=3),
    st.sampled_from(["C", "F", "morton"]),
    st.integers(1, 200),
)
def test_boxes_use_the_room_they_have(shape, order, max_cells):
    """Not one cell at a time where more fit: C and F fill more than half, Morton the power of two
    that fits."""
    largest = max(box.size for box in boxes(tuple(shape), order, max_cells))
    room = min(max_cells, math.prod(shape))
    if order == "morton":
        bits = sum((n - 1).bit_length() for n in shape)
        nominal = min(2**bits, 2 ** int(math.log2(max_cells)))
        assert largest <= nominal
        if all(n & (n - 1) == 0 for n in shape):
            assert largest == nominal
    else:
        assert largest * 2 > room or largest == math.prod(shape)


@pytest.mark.parametrize(("name", "stands_for"), sorted(ORDER_ALIASES.items()))
def test_canonical_names(name, stands_for):
    assert canonical_order(name) == stands_for
    assert stands_for in ("C", "F", "morton")
    assert {"lexicographic": "C", "colexicographic": "F", "unordered": "C"}.get(
        name, name
    ) == stands_for


@pytest.mark.parametrize("name", ["c", "", "hilbert", None, 3, ["C"], b"C"])
def test_unknown_order_is_refused(name):
    with pytest.raises(SpecError) as caught:
        canonical_order(name)
    assert caught.value.field == "order"
    assert caught.value.value == name
    assert "morton" in str(caught.value)

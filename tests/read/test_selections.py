"""Every reader gives what numpy gives for an index expression, or says that it takes no such one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import tried

import shardwrite
from shardwrite.sources import open_source

SHAPE = (9, 7, 300)
VALUES = np.arange(9 * 7 * 300, dtype="i4").reshape(SHAPE)


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    root = tmp_path_factory.mktemp("selections")
    shardwrite.to_sharded_zarr(VALUES, root / "x", shards=(4, 4, 100), chunks=(2, 2, 50))
    shardwrite.to_sharded_zarr(VALUES, root / "flat", shards=None, chunks=(4, 4, 100))
    np.save(root / "x.npy", VALUES)
    return {
        "open_sharded": shardwrite.open_sharded(root / "x"),
        "without shards": shardwrite.open_sharded(root / "flat"),
        "source, sharded": open_source(str(root / "x")),
        "source, zarr": open_source(str(root / "flat")),
        "source, npy": open_source(str(root / "x.npy")),
    }


def ends(n):
    return st.none() | st.integers(-2 * n, 2 * n) | st.sampled_from([-n - 1, -n, -1, 0, n - 1, n])


def axis(n):
    steps = st.none() | st.sampled_from([-n, -3, -2, -1, 1, 2, 3, n])
    return st.builds(slice, ends(n), ends(n), steps) | st.integers(-n, n - 1)


@st.composite
def keys(draw):
    items = [draw(axis(n)) for n in SHAPE]
    kind = draw(st.sampled_from(["plain", "list", "mask", "numpy", "small"]))
    at = draw(st.integers(0, 2))
    n = SHAPE[at]
    if kind != "plain":
        some = draw(st.lists(st.integers(-n, n - 1), max_size=4))
        mask = np.zeros(n, bool)
        mask[some] = True
        items[at] = {
            "list": some,
            "mask": mask,
            "numpy": np.asarray(some, "i8"),
            "small": np.asarray([i % min(n, 256) for i in some], "u1"),
        }[kind]
        # numpy moves the axis of a list to the front if an integer stands apart from it
        items = [
            x if i == at or isinstance(x, slice) else slice(x, None) for i, x in enumerate(items)
        ]
    n_left = draw(st.integers(0, 3 if kind == "plain" else 0))
    if draw(st.booleans()):  # an ellipsis for some of the axes
        first = draw(st.integers(0, 3 - n_left))
        return (*items[:first], ..., *items[first + n_left :])
    items = items[: 3 - n_left]
    return items[0] if len(items) == 1 and draw(st.booleans()) else tuple(items)


def check(readers, key):
    wanted = VALUES[key]
    for name, reader in readers.items():
        got = reader[key]
        assert got.shape == wanted.shape, (name, key, got.shape, wanted.shape)
        np.testing.assert_array_equal(got, wanted, err_msg=f"{name}: {key}")


@pytest.mark.long
def test_what_numpy_gives(readers):
    tried(40, given(keys()), lambda key: check(readers, key))()


@pytest.mark.long
def test_what_numpy_gives_more(readers):
    tried(150, given(keys()), lambda key: check(readers, key))()


@pytest.mark.parametrize(
    "key",
    [
        np.s_[2:7:-1],
        np.s_[7:2:1],
        np.s_[5:5:-1],
        np.s_[::-1],
        np.s_[:, 6:0:-2],
        np.s_[..., 299::-7],
        np.s_[0:0:-3, 3],
        np.s_[100:2:1],
        np.s_[-100:-50:-1],
        np.array([255, 1], "u1"),
        np.uint8(3),
    ],
    ids=str,
)
def test_single_expressions(readers, key):
    key = (slice(0, 2), slice(None), key) if isinstance(key, np.ndarray) else key
    check(readers, key)


@pytest.mark.parametrize(
    "key",
    [
        None,
        (None, 0),
        True,
        np.True_,
        1.5,
        "a",
        (..., ...),
        (0, 0, 0, 0),
        9,
        -10,
        [9],
        [1.5],
        np.zeros(8, bool),
        np.zeros((9, 7), bool),
    ],
    ids=str,
)
def test_what_is_refused(readers, key):
    for name, reader in readers.items():
        with pytest.raises(IndexError):
            print(name, reader[key].shape)

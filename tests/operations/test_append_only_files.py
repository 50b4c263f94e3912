"""Shards that the system lets only append (``chattr +a``), as archives keep files."""

from __future__ import annotations

import errno
import shutil
import subprocess

import dask.array as da
import numpy as np
import pytest

import shardwrite
from shardwrite import AppendOnly, FixedOrder, ShardWriter, StoreError

OLD = np.arange(64 * 16, dtype="u4").reshape(64, 16) + 1
NEW = OLD + 5000
ROWS = slice(3, 9)


def attribute(path, sign):
    shards = [shard for shard in path.joinpath("c").rglob("*") if shard.is_file()]
    done = subprocess.run(["chattr", f"{sign}a", *shards], capture_output=True, text=True)
    return done.returncode, done.stderr


@pytest.fixture
def path(tmp_path):
    """An array whose shards can only be appended to."""
    if shutil.which("chattr") is None:
        pytest.skip("needs chattr (Debian's package e2fsprogs)")
    path = tmp_path / "x"
    layout = {"shards": (32, 16), "chunks": (1, 16), "index_location": "end"}
    da.from_array(OLD, chunks=(32, 16)).to_sharded_zarr(path, **layout)
    status, why = attribute(path, "+")
    if status:
        pytest.skip(f"no file here can be made append-only: {why}")
    yield path
    attribute(path, "-")


def read(path):
    return np.asarray(shardwrite.open_sharded(path)[:])


def update(path, strategy):
    shardwrite.write_region(NEW[ROWS], path, ROWS, strategy=strategy)


def test_an_append_in_place_is_possible(path):
    update(path, AppendOnly(in_place=True))
    wanted = OLD.copy()
    wanted[ROWS] = NEW[ROWS]
    np.testing.assert_array_equal(read(path), wanted)
    assert shardwrite.verify(path, deep=True).is_good


def test_a_stream_goes_on_in_a_shard(path):
    shardwrite.create(path.with_name("y"), (0, 16), "u4", shards=(32, 16), chunks=(1, 16))
    try:
        for start in range(0, 20, 5):
            with ShardWriter(path.with_name("y")) as writer:
                writer.append(OLD[start : start + 5])
            assert not attribute(path.with_name("y"), "+")[0]
        np.testing.assert_array_equal(read(path.with_name("y")), OLD[:20])
    finally:
        attribute(path.with_name("y"), "-")


@pytest.mark.parametrize("strategy", [FixedOrder(in_place=True, max_unused=1.0), FixedOrder()])
def test_whatever_is_no_append_says_what_to_do_and_changes_nothing(path, strategy):
    with pytest.raises(
        StoreError, match=r"only append.*chattr -a|chattr -a.*only append"
    ) as caught:
        update(path, strategy)
    assert caught.value.errno == errno.EPERM
    np.testing.assert_array_equal(read(path), OLD)
    attribute(path, "-")
    update(path, strategy)
    np.testing.assert_array_equal(read(path)[ROWS], NEW[ROWS])

"""Small shards, encoded many at a time: the bytes of each shard by itself, whatever fits a batch."""

from __future__ import annotations

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from tiers import tried

import shardwrite
from shardwrite.encode import unit
from shardwrite.runs import session
from shardwrite.write import tasks

ZSTD = [{"name": "zstd", "configuration": {"level": 1, "checksum": False}}]
GZIP = [{"name": "gzip", "configuration": {"level": 1}}]


@st.composite
def arrays(draw):
    """Values with empty inner chunks among them, and how they are cut."""
    ndim = draw(st.integers(0, 3))
    chunks = tuple(draw(st.integers(1, 4)) for _ in range(ndim))
    shards = tuple(c * draw(st.integers(1, 4)) for c in chunks)
    shape = tuple(draw(st.integers(1, 3 * s + 1)) for s in shards)
    dtype = draw(st.sampled_from(["u2", ">i4", "f8", "bool"]))
    values = np.random.default_rng(draw(st.integers(0, 9))).integers(0, 2, shape).astype(dtype)
    if ndim and draw(st.booleans()):
        values[shape[0] // 3 :] = 0
    return values, shards, chunks


def written(path, values, shards, chunks, batch_nbytes, **layout):
    """Every file of the array, written in batches of so many bytes."""
    with pytest.MonkeyPatch.context() as patch, dask.config.set(scheduler="sync"):
        patch.setattr(session, "BATCH_NBYTES", batch_nbytes)
        x = da.from_array(values, chunks=-1, name=False)
        shardwrite.to_sharded_zarr(
            x, path, shards=shards, chunks=chunks, durability="none", mode="w", **layout
        )
    return {
        p.relative_to(path): p.read_bytes()
        for p in path.rglob("*")
        if p.is_file() and "receipt" not in p.name
    }


def check_batches_do_not_change_the_bytes(tmp_path_factory, array, n_together, **layout):
    values, shards, chunks = array
    path = tmp_path_factory.mktemp("small")
    shard_nbytes = int(np.prod(shards)) * values.dtype.itemsize
    alone = written(path / "alone.zarr", values, shards, chunks, 1, **layout)
    together = written(
        path / "together.zarr", values, shards, chunks, n_together * shard_nbytes, **layout
    )
    at_once = written(path / "once.zarr", values, shards, chunks, 2**21, **layout)
    assert together == alone
    assert at_once == alone
    assert np.array_equal(zarr.open_array(path / "once.zarr", mode="r")[...], values)


DRAWN = given(
    array=arrays(),
    strategy=st.sampled_from(["C", "F", "morton", "append-only"]),
    compressors=st.sampled_from([None, ZSTD, GZIP]),
    index_location=st.sampled_from(["start", "end"]),
    write_empty_chunks=st.booleans(),
    n_together=st.integers(2, 9),
)
test_batches_do_not_change_the_bytes = tried(8, DRAWN, check_batches_do_not_change_the_bytes)
test_more_batches_do_not_change_the_bytes = pytest.mark.long(
    tried(100, DRAWN, check_batches_do_not_change_the_bytes)
)


def test_each_path_is_taken(tmp_path, monkeypatch):
    """Batches where two shards fit one, else one shard after another."""
    values = np.arange(64, dtype="u4").reshape(8, 8)
    taken = []
    for module, name in ((unit.ShardBatches, "encoded"), (tasks, "_stream_shard")):
        real = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *a, real=real, name=name: (taken.append(name), real(*a))[1]
        )
    written(tmp_path / "a.zarr", values, (4, 4), (2, 2), 128)
    assert taken == ["encoded"] * 4
    written(tmp_path / "b.zarr", values, (4, 4), (2, 2), 127)
    assert taken == ["encoded"] * 4 + ["_stream_shard"] * 4


def test_variable_length_text(tmp_path):
    words = np.array(["", "a", "long " * 9, ""] * 16, dtype=np.dtypes.StringDType()).reshape(8, 8)
    alone = written(tmp_path / "alone.zarr", words, (4, 4), (2, 2), 1)
    assert written(tmp_path / "together.zarr", words, (4, 4), (2, 2), 2**21) == alone


def test_what_is_done_is_not_encoded_again(tmp_path, monkeypatch):
    """A shard that is left in a batch comes out as if the batch were whole."""
    values = np.arange(256, dtype="u4").reshape(16, 16) + 1
    whole = written(tmp_path / "whole.zarr", values, (4, 4), (2, 2), 2**21)
    path = tmp_path / "x.zarr"
    real = tasks.ShardBatches.encoded

    def failing(self, index):
        if index == (2, 1):
            raise shardwrite.SourceError("no more", region=((8, 12), (4, 8)))
        return real(self, index)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks.ShardBatches, "encoded", failing)
        with pytest.raises(shardwrite.ShardwriteError):
            written(path, values, (4, 4), (2, 2), 2**21)
    before = {p: p.stat().st_mtime_ns for p in path.glob("c/*/*")}
    assert 0 < len(before) < 16
    with dask.config.set(scheduler="sync"):
        x = da.from_array(values, chunks=-1, name=False)
        shardwrite.to_sharded_zarr(x, path, shards=4, chunks=2, durability="none", mode="w")
    assert {
        p.relative_to(path): p.read_bytes()
        for p in path.rglob("*")
        if p.is_file() and "receipt" not in p.name
    } == whole
    assert all(p.stat().st_mtime_ns == when for p, when in before.items())

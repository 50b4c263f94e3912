"""What one commit does when a step of it fails, and what the journal then says."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import dask
import numpy as np
import pytest
import zarr

import shardwrite
from shardwrite import ShardWriter, SourceError, StoreError
from shardwrite.stores.posix import PosixStore

sys.path.insert(0, str(Path(__file__).parent))
import oracle
import seams

KEYWORDS = {
    "shards": 16,
    "chunks": 8,
    "memory_limit": "60kB",
    "source_id": "one",
    "max_source_reruns": 100,
}


@pytest.fixture(autouse=True)
def sync():
    with dask.config.set({"scheduler": "sync", "shardwrite.retry-pauses": [0, 0, 0]}):
        yield


@pytest.fixture
def x():
    return oracle.source((64, 64), (16, 64), empty=(slice(16, 32), slice(0, 32)))


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.EIO])
def test_an_error_of_close_is_raised(tmp_path, monkeypatch, number):
    def close(self):
        os.close(self._fd)
        self._fd = -1
        raise OSError(number, "on close")

    monkeypatch.setattr(*seams.step("close a file"), close)
    with (  # noqa: PT012
        pytest.raises(StoreError, match="on close"),
        PosixStore(tmp_path).transaction("none", "a.b") as transaction,
    ):
        writer = transaction.create("x")
        writer.write([b"x"])
        writer.finish()
    assert list(tmp_path.iterdir()) == []


def test_the_system_is_asked_whether_the_close_went_well(tmp_path, monkeypatch):
    real = os.close
    seen = []

    def close(fd):
        path = os.readlink(f"/proc/self/fd/{fd}")
        real(fd)
        if path.endswith(".swtmp"):
            seen.append(path)
            raise OSError(errno.EDQUOT, "over quota")

    monkeypatch.setattr(os, "close", close)
    with (  # noqa: PT012
        pytest.raises(StoreError, match="over quota"),
        PosixStore(tmp_path).transaction("full", "a.b") as transaction,
    ):
        writer = transaction.create("x")
        writer.write([b"x"])
        writer.finish()
    assert seen
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("step", "durability"),
    [
        (step, level)
        for step in ("sync", "close", "rename")
        for level in ("full", "batch", "none")
        if (step, level) != ("sync", "none")
    ],
)
def test_what_is_not_committed_is_not_in_the_journal(tmp_path, monkeypatch, x, step, durability):
    n_calls = []

    def fail(writer):
        if "/c/" in str(writer.path):
            n_calls.append(writer.path)
            if len(n_calls) > 5:
                raise OSError(errno.ENOSPC, "no space")

    seams.before(monkeypatch, f"{step} a file", fail)
    with pytest.raises(StoreError, match="no space") as caught:
        x.to_sharded_zarr(tmp_path / "x", durability=durability, **KEYWORDS)
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.key.startswith("c/")
    done = seams.done_shards(tmp_path / "x")
    metadata = oracle.metadata_of(tmp_path / "x")
    boxes = oracle.shard_boxes(metadata)
    wanted = x.compute()
    array = seams.array_at(tmp_path / "x", metadata)
    for rank in done:
        np.testing.assert_array_equal(array.read_box(boxes[rank]), wanted[boxes[rank].slices])
    assert len(done) < 16
    monkeypatch.undo()
    result = x.to_sharded_zarr(tmp_path / "x", durability=durability, **KEYWORDS)
    assert result.n_resumed_shards == len(done)
    oracle.check_whole(tmp_path / "x", wanted)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EAGAIN])
@pytest.mark.parametrize("durability", ["full", "batch"])
def test_what_may_pass_is_tried_again_under_another_name_and_no_file_is_synced_twice(
    tmp_path, monkeypatch, x, number, durability
):
    synced, names = [], []

    def sync(writer):
        if "/c/" in str(writer.path):
            inode = os.fstat(writer._fd).st_ino, writer._temporary
            assert inode not in synced, "a second fsync does not report what the first one lost"
            synced.append(inode)
            names.append(writer._temporary)
            if len(synced) in (3, 4):
                raise OSError(number, "passes")

    seams.before(monkeypatch, "sync a file", sync)
    x.to_sharded_zarr(tmp_path / "x", durability=durability, **KEYWORDS)
    assert len(names) == len(set(names)) > 14
    monkeypatch.undo()
    oracle.check_whole(tmp_path / "x", x.compute())


@pytest.mark.parametrize("is_stream", [False, True], ids=["write", "stream"])
@pytest.mark.parametrize("is_lasting", [False, True], ids=["once", "always"])
def test_a_temporary_that_stays_is_removed_at_the_end_or_named(
    tmp_path, monkeypatch, x, is_lasting, is_stream
):
    """Its shard was tried again and is whole, and nobody looked at what the first try had left."""
    path, wanted, stays = tmp_path / "x", x.compute(), []
    real_sync, real_unlink = seams.real("sync a file"), os.unlink

    def sync(writer):
        if "/c/" in str(writer.path) and not stays:
            stays.append(writer._temporary)
            raise OSError(errno.EIO, "passes")
        real_sync(writer)

    def unlink(name, **where):
        if stays and os.fspath(name) == stays[0] and (is_lasting or len(stays) == 1):
            stays.append("tried")
            raise OSError(errno.EIO, "stays", name)
        real_unlink(name, **where)

    def write():
        if is_stream:
            with ShardWriter(path) as writer:
                writer.append(wanted)
        else:
            x.to_sharded_zarr(path, **KEYWORDS)

    if is_stream:
        shardwrite.create(path, (0, 64), x.dtype, shards=16, chunks=8)
    monkeypatch.setattr(*seams.step("sync a file"), sync)
    monkeypatch.setattr(os, "unlink", unlink)
    if is_lasting:
        with pytest.raises(StoreError, match=r"cannot remove a temporary file .*stays") as caught:
            write()
        assert stays[0] in str(caught.value)
        assert os.path.exists(stays[0])
        np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], wanted)
    else:
        write()
    assert "tried" in stays
    monkeypatch.undo()
    if is_lasting:
        shardwrite.abandon(path) if is_stream else write()
    assert os.listdir(tmp_path) == ["x"]
    assert not list(path.rglob("*.swtmp"))
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], wanted)


def test_what_does_not_pass_ends_after_three_retries(tmp_path, monkeypatch, x):
    tries = []

    def sync(self):
        if "/c/" in str(self.path):
            tries.append(self._temporary)
            raise OSError(errno.EIO, "for ever")

    monkeypatch.setattr(*seams.step("sync a file"), sync)
    with pytest.raises(StoreError, match="for ever"):
        x.to_sharded_zarr(tmp_path / "x", **KEYWORDS)
    assert len(tries) == len(set(tries)) == 4
    assert not list((tmp_path / "x").rglob("*.swtmp"))


def test_a_source_error_keeps_what_was_committed_before_it(tmp_path):
    wanted = oracle.values((64, 64))

    def wrong_dtype(block, block_info=None):
        return block.astype("f4") if block_info[0]["chunk-location"] == (3, 0) else block

    y = oracle.da.from_array(wanted, chunks=(16, 64)).map_blocks(
        wrong_dtype, dtype="u4", meta=np.empty((0, 0), "u4")
    )
    with pytest.raises(SourceError, match=r"48:64"):
        y.to_sharded_zarr(tmp_path / "x", **KEYWORDS)
    done = seams.done_shards(tmp_path / "x")
    assert len(done) <= 12  # dask may begin with any group
    result = oracle.da.from_array(wanted, chunks=(16, 64)).to_sharded_zarr(
        tmp_path / "x", **KEYWORDS
    )
    assert result.n_resumed_shards == len(done)
    oracle.check_whole(tmp_path / "x", wanted)

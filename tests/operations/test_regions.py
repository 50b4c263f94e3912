"""Updates of arrays that exist: what is read, what is written, what stays to the byte, and what is
refused."""

from __future__ import annotations

import errno
import importlib
import json
import os
import warnings

import dask
import dask.array as da
import numpy as np
import pytest
import seams
import tensorstore as ts
import zarr
from crc32c import crc32c
from helpers import run
from tiers import some

import shardwrite
from shardwrite import (
    AppendOnly,
    FixedOrder,
    JournalError,
    ShardWriter,
    SpecError,
    StoreError,
)
from shardwrite.encode.reader import ShardReader
from shardwrite.encode.unit import ShardBatches
from shardwrite.format.order import permutation
from shardwrite.stores.looking import PosixReader
from shardwrite.stores.posix import PosixEditor

making = importlib.import_module("shardwrite.plan.plan")
LIVE = [FixedOrder(in_place=True, max_unused=1.0), AppendOnly(in_place=True)]
STRATEGIES = [FixedOrder("C"), FixedOrder("morton"), AppendOnly(), *LIVE]


def values(shape, version=1):
    return (np.arange(np.prod(shape), dtype="u4").reshape(shape) * 2654435761 + version * 97531) | 1


@pytest.mark.parametrize(
    "strategy", [FixedOrder("morton"), FixedOrder("F", in_place=True)], ids=lambda s: s.label
)
@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("compressors", [None, "auto"])
def test_fused_and_direct_updates_write_the_same_bytes(
    tmp_path, monkeypatch, strategy, location, compressors
):
    """Whole shards, one of them with inner chunks that are empty, and parts of others."""
    new = values((64, 96), 3)
    new[8:16, 40:48] = 0
    region, written, plans = (slice(0, 40), slice(0, 96)), [], []
    for scheme, limit in (("fused", 2**26), ("direct", 0)):
        monkeypatch.setattr(making, "_TASK_NBYTES", (min(limit, 1024), 2**20))
        monkeypatch.setattr(making, "_FUSE_NBYTES", limit)
        path = tmp_path / scheme
        layout = {"shards": 32, "chunks": 8, "index_location": location, "compressors": compressors}
        da.from_array(values((64, 96)), chunks=32).to_sharded_zarr(path, **layout)
        x = da.from_array(new[region], chunks=16)
        plans.append(shardwrite.plan_region(x, path, region, strategy=strategy, source_id="new"))
        assert plans[-1].layout == scheme
        shardwrite.write_region(x, path, region, strategy=strategy, source_id="new")
        written.append(
            {
                str(file.relative_to(path)): file.read_bytes()
                for file in (path / "c").rglob("*")
                if file.is_file()
            }
        )
    assert plans[0].digest == plans[1].digest
    assert written[0] == written[1]


@pytest.fixture
def path(tmp_path):
    """64 x 64 elements, shards of 32 x 32, inner chunks of 8 x 8."""
    da.from_array(values((64, 64)), chunks=32).to_sharded_zarr(tmp_path / "x", shards=32, chunks=8)
    return tmp_path / "x"


def read(path):
    found = zarr.open_array(path, mode="r")[...]
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}
    np.testing.assert_array_equal(ts.open(spec).result().read().result(), found)
    np.testing.assert_array_equal(
        shardwrite.open_sharded(path)[tuple(slice(None) for _ in found.shape)], found
    )
    return found


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.label)
@pytest.mark.parametrize("location", ["start", "end"])
def test_untouched_chunks_keep_their_bytes(tmp_path, strategy, location):
    path = tmp_path / "x"
    da.from_array(values((64, 64)), chunks=32).to_sharded_zarr(
        path, shards=32, chunks=8, index_location=location
    )
    before = seams.encoded_chunks(path, (0, 0))
    others = {key: (path / key).read_bytes() for key in ("c/0/1", "c/1/0", "c/1/1")}
    new = values((5, 10), 7)
    da.from_array(new, chunks=3).to_sharded_zarr(
        path, region=(slice(2, 7), slice(4, 14)), strategy=strategy
    )
    after = seams.encoded_chunks(path, (0, 0))
    assert {rank for rank in before if before[rank] != after[rank]} == {0, 1}
    assert {key: (path / key).read_bytes() for key in others} == others
    wanted = values((64, 64))
    wanted[2:7, 4:14] = new
    np.testing.assert_array_equal(read(path), wanted)
    assert shardwrite.verify(path, deep=True).is_good


@pytest.fixture
def calls(monkeypatch):
    """Decoded inner chunks and bytes read from objects."""
    seen = {"decoded": 0, "read": 0, "opened": []}
    real_decode, real_read, real_init = ShardReader.chunk, PosixReader.read, PosixReader.__init__

    def decode(self, rank):
        found = real_decode(self, rank)
        seen["decoded"] += found is not None
        return found

    def read_some(self, offset, nbytes):
        seen["read"] += nbytes
        return real_read(self, offset, nbytes)

    def init(self, key, fd):
        seen["opened"].append(key)
        real_init(self, key, fd)

    monkeypatch.setattr(ShardReader, "chunk", decode)
    monkeypatch.setattr(PosixReader, "read", read_some)
    monkeypatch.setattr(PosixReader, "__init__", init)
    return seen


def write(path, region, strategy="C", **more):
    shape = tuple(s.stop - s.start for s in region)
    with dask.config.set(scheduler="sync"):
        return da.from_array(values(shape, 9), chunks=16).to_sharded_zarr(
            path, region=region, strategy=strategy, **more
        )


# bytes at the start of a shard that are read to see whether it is a file of HDF5
HEAD_NBYTES = 8200


def test_shards_that_are_covered_are_not_read(path, calls):
    write(path, (slice(0, 64), slice(0, 32)))
    assert calls["opened"] == []


@pytest.mark.parametrize("strategy", ["fixed-order", "append-only", "hdf5"])
def test_small_shards_that_are_covered_are_encoded_together(tmp_path, monkeypatch, strategy):
    """Shards at the edge of the array, too, but none of a group that is covered in part only.

    Files of HDF5 are laid out one by one.
    """
    batches, encode = [], ShardBatches.encode
    monkeypatch.setattr(
        ShardBatches, "encode", lambda self, index: batches.append(1) or encode(self, index)
    )
    new, layout = values((30, 27), 2), {"shards": 4, "chunks": 2, "strategy": strategy}
    new[4:8] = 0  # these shards go
    for name, version in (("old", 1), ("new", 2)):
        x = da.from_array(new if version == 2 else values((30, 27)), chunks=16)
        x.to_sharded_zarr(tmp_path / name, compressors="zstd", **layout)
    n_made, wanted = len(batches), contents(tmp_path / "new")
    with dask.config.set(scheduler="sync"):
        for region in (np.s_[8:30, :], np.s_[:8, 4:27], np.s_[:8, :4]):
            x = da.from_array(new[region], chunks=16)
            shardwrite.write_region(x, tmp_path / "old", region, strategy=strategy)
        n_covered = len(batches) - n_made
        assert n_covered == 0 if strategy == "hdf5" else 3 <= n_covered < 20
        assert contents(tmp_path / "old") == wanted
        x = da.from_array(new[1:7, 1:9], chunks=16)
        shardwrite.write_region(x, tmp_path / "old", np.s_[1:7, 1:9], strategy=strategy)
    assert len(batches) == n_made + n_covered
    np.testing.assert_array_equal(shardwrite.open_sharded(tmp_path / "old")[:, :], new)


def contents(path):
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in (path / "c").rglob("*")
        if file.is_file()
    }


def test_of_shards_that_may_be_files_of_hdf5_only_the_head_is_read(tmp_path, calls):
    path = tmp_path / "x"
    da.from_array(values((64, 64)), chunks=32).to_sharded_zarr(
        path, shards=32, chunks=8, compressors=None
    )
    write(path, (slice(0, 64), slice(0, 32)))
    assert calls["decoded"] == 0
    assert set(calls["opened"]) == {"c/0/0", "c/1/0"}
    assert calls["read"] <= HEAD_NBYTES * len(calls["opened"])


def test_only_chunks_that_are_covered_in_part_are_decoded(path, calls):
    write(path, (slice(0, 20), slice(0, 32)))  # rows 16 to 20 of four inner chunks
    assert calls["decoded"] == 4
    assert set(calls["opened"]) == {"c/0/0"}


@pytest.mark.parametrize("strategy", LIVE, ids=lambda s: s.label)
def test_in_place_writes_and_reads_little(tmp_path, calls, monkeypatch, strategy):
    """One inner chunk of 4,096 in a shard of 16 MiB: kilobytes, and the index."""
    path = tmp_path / "x"
    x = da.random.default_rng(0).random((1024, 2048), chunks=1024)
    x.to_sharded_zarr(path, shards=(1024, 2048), chunks=(16, 32), durability="none")
    written = []
    real = os.pwrite

    def pwrite(fd, data, offset):
        written.append(len(data))
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    new = da.random.default_rng(1).random((16, 32), chunks=16)
    new.to_sharded_zarr(path, region=(slice(32, 48), slice(64, 96)), strategy=strategy)
    index_nbytes = 16 * 64 * 64 + 4
    assert 0 < sum(written) <= 16 * 32 * 8 + 64 + index_nbytes
    assert calls["read"] <= index_nbytes
    np.testing.assert_array_equal(shardwrite.open_sharded(path)[32:48, 64:96], new.compute())


def test_uncompressed_chunks_take_each_others_places(tmp_path, monkeypatch):
    """The index is not written, nor does the shard grow."""
    path = tmp_path / "x"
    x = da.from_array(values((64, 64)), chunks=32)
    x.to_sharded_zarr(path, shards=64, chunks=8, compressors=None)
    nbytes, writes = (path / "c/0/0").stat().st_size, []
    real = PosixEditor.write_at

    def write_at(editor, offset, data):
        writes.append((offset, len(data)))
        real(editor, offset, data)

    monkeypatch.setattr(*seams.step("change bytes in place"), write_at)
    write(path, (slice(8, 16), slice(8, 16)), FixedOrder(in_place=True))
    assert writes == [(9 * 256, 256)]
    assert (path / "c/0/0").stat().st_size == nbytes


ANYWAY = FixedOrder(in_place=True, max_unused=1.0)


def of_sizes(sizes, version=0):
    """Rows, each an inner chunk, of which as many elements do not compress."""
    rows = np.zeros((len(sizes), 4096), "u1")
    for row, size in enumerate(sizes):
        noise = np.random.default_rng([version, row]).integers(1, 256, size, "u1")
        rows[row, :size] = noise
    return rows


@pytest.mark.parametrize("location", ["start", "end"])
def test_a_larger_chunk_takes_the_unused_bytes_behind_the_old_one(tmp_path, location):
    """And no byte of its neighbours, wherever the index lies."""
    path, now = tmp_path / "x", of_sizes([900, 900, 900, 900])
    layout = {"shards": (4, 4096), "chunks": (1, 4096), "index_location": location}
    da.from_array(now, chunks=-1).to_sharded_zarr(path, **layout)
    shard = path / "c/0/0"
    nbytes = shard.stat().st_size
    for number, (row, size) in enumerate(
        [(1, 300), (1, 890), (3, 100), (3, 895), (0, 10), (0, 500)]
    ):
        now[row] = of_sizes([size] * 4, number)[row]
        shardwrite.write_region(now[row : row + 1], path, slice(row, row + 1), strategy=ANYWAY)
        assert shard.stat().st_size == nbytes
        np.testing.assert_array_equal(read(path), now)
    now[1] = of_sizes([1200] * 4, 9)[1]  # larger than the bytes up to the next one
    shardwrite.write_region(now[1:2], path, slice(1, 2), strategy=ANYWAY)
    assert shard.stat().st_size > nbytes
    np.testing.assert_array_equal(read(path), now)
    assert shardwrite.verify(path, deep=True).is_good


def test_bytes_that_two_entries_name_are_nobodys_unused_bytes(tmp_path):
    """As another program may write chunks that are equal; one of them grows."""
    path, now = tmp_path / "x", of_sizes([900, 300, 300, 900])
    now[2] = now[1]
    layout = {"shards": (4, 4096), "chunks": (1, 4096), "index_location": "end"}
    da.from_array(now, chunks=-1).to_sharded_zarr(path, **layout)
    shard = path / "c/0/0"
    data = shard.read_bytes()
    table = np.frombuffer(data[-68:-4], "<u8").reshape(4, 2).copy()
    table[2] = table[1]  # so that the bytes of the third one are unused, and lie behind the second
    shard.write_bytes(data[:-68] + table.tobytes() + crc32c(table.tobytes()).to_bytes(4, "little"))
    for row in (1, 2):
        now[row] = of_sizes([500] * 4, 5 + row)[row]
        shardwrite.write_region(now[row : row + 1], path, slice(row, row + 1), strategy=ANYWAY)
        np.testing.assert_array_equal(read(path), now)
    assert shardwrite.verify(path, deep=True).is_good


@pytest.mark.long
def test_waste_is_bounded_counted_and_compacted(path):
    for version in range(6):
        new = da.from_array(values((64, 64), version), chunks=32)
        new[:32, :].to_sharded_zarr(path, region=(slice(0, 32), slice(0, 64)))
        new[:24, :].to_sharded_zarr(
            path, region=(slice(0, 24), slice(0, 64)), strategy=AppendOnly(in_place=True)
        )
    before = shardwrite.verify(path)
    assert before.unused_nbytes > 0.3 * before.stored_nbytes * 0.5
    seen = read(path)
    done = shardwrite.compact(path, above=0.3, order="morton")
    assert done.n_rewritten == 2
    assert done.stored_nbytes < before.stored_nbytes
    after = shardwrite.verify(path, deep=True)
    assert (after.is_good, after.stored_nbytes) == (True, done.stored_nbytes)
    assert after.unused_nbytes < 32, (
        "a few bytes between inner chunks, for readers that hold an old index"
    )
    np.testing.assert_array_equal(read(path), seen)
    assert shardwrite.compact(path, above=0.01).n_rewritten == 0


@pytest.mark.long
def test_compaction_halves_an_array_of_half_waste(path):
    before = (path / "c/0/0").stat().st_size * 4
    da.from_array(values((64, 64), 5), chunks=32).to_sharded_zarr(
        path, region=(slice(0, 64), slice(0, 64))
    )
    for corner in (
        (0, 0),
        (0, 32),
        (32, 0),
        (32, 32),
    ):  # all but one row of inner chunks of each shard
        where = tuple(slice(a, a + 32) for a in corner)
        whole = da.from_array(values((32, 32), 6), chunks=32)
        top = (slice(corner[0], corner[0] + 24), where[1])
        whole[:24].to_sharded_zarr(path, region=top, strategy=AppendOnly())
        whole[24:].to_sharded_zarr(
            path, region=(slice(corner[0] + 24, corner[0] + 32), where[1]), strategy=AppendOnly()
        )
    report = shardwrite.verify(path)
    assert 0.45 < report.unused_nbytes / report.stored_nbytes < 0.55
    done = shardwrite.compact(path)
    assert done.n_rewritten == 4
    assert 0.45 < done.stored_nbytes / done.stored_nbytes_before < 0.55
    assert abs(done.stored_nbytes - before) < 0.05 * before
    assert shardwrite.verify(path, deep=True).is_good


def test_a_compaction_takes_what_is_written_until_it_begins(path, monkeypatch):
    da.from_array(values((8, 64), 5), chunks=32).to_sharded_zarr(
        path, region=(slice(8), slice(64)), strategy=AppendOnly()
    )
    where = (slice(8, 16), slice(40, 48))
    seams.before(monkeypatch, "begin runs", lambda *_: shardwrite.erase(path, where), once=True)
    wanted = read(path)
    wanted[8:16, 40:48] = 0
    shardwrite.compact(path, above=0.0)
    np.testing.assert_array_equal(read(path), wanted)
    assert shardwrite.verify(path, deep=True).is_good


@pytest.mark.long
def test_a_compaction_that_fails_says_where_and_why(path, monkeypatch):
    da.from_array(values((16, 64), 5)).to_sharded_zarr(
        path, region=(slice(0, 16), slice(0, 64)), strategy=AppendOnly()
    )
    seen = read(path)

    def sync(writer):
        if writer.key.startswith("c/"):
            raise OSError(errno.ENOSPC, "no space")
        os.fsync(writer._fd)

    monkeypatch.setattr(*seams.step("sync a file"), sync)
    with pytest.raises(StoreError, match="no space") as raised:
        shardwrite.compact(path, above=0.01)
    assert any("region [0:64, 0:64]" in note for note in raised.value.__notes__)
    monkeypatch.undo()
    shardwrite.compact(path, above=0.01)
    np.testing.assert_array_equal(read(path), seen)


@pytest.mark.compat
def test_growing_writes_the_shape_last(path):
    new = da.from_array(values((10, 64), 3), chunks=5)

    def fails(block, block_info=None):
        if block_info[0]["chunk-location"] == (1, 0):
            raise OSError("the tape broke")
        return block

    with pytest.raises(OSError, match="tape"), dask.config.set(scheduler="sync"):
        new.map_blocks(fails, dtype="u4").to_sharded_zarr(
            path, region="append", source_id="a", memory_limit="60kB"
        )
    np.testing.assert_array_equal(read(path), values((64, 64)))
    result = new.to_sharded_zarr(path, region="append", source_id="a", memory_limit="60kB")
    assert result.raw_nbytes == 10 * 64 * 4
    np.testing.assert_array_equal(read(path), np.concatenate([values((64, 64)), new.compute()]))
    new.to_sharded_zarr(
        path, region="append", source_id="a"
    )  # by the name of its source, it is done
    assert read(path).shape == (74, 64)
    new.to_sharded_zarr(path, region="append")
    assert read(path).shape == (84, 64)


def test_consolidated_metadata_grow_with_the_array(tmp_path):
    x = da.from_array(values((64, 64)), chunks=32)
    x.to_sharded_zarr(tmp_path, name="a", shards=32, chunks=8)
    zarr.consolidate_metadata(tmp_path)
    x.to_sharded_zarr(tmp_path, name="a", region="append", axis=1)
    assert zarr.open_group(tmp_path, mode="r", use_consolidated=True)["a"].shape == (64, 128)


def test_creating_again_after_an_update(path):
    """The script that made the array and updated it can be run again from its beginning."""
    x = da.from_array(values((64, 64)), chunks=32)
    write(path, (slice(0, 8), slice(0, 8)))
    assert x.to_sharded_zarr(path, shards=32, chunks=8).n_resumed_shards == 4
    assert (read(path)[:8, :8] == values((8, 8), 9)).all()
    x.to_sharded_zarr(path, shards=32, chunks=8, mode="w", source_id="now")
    np.testing.assert_array_equal(read(path), values((64, 64)))


@pytest.mark.compat
def test_erase_removes_shards_that_hold_nothing(path):
    result = shardwrite.erase(path, (slice(0, 40), slice(0, 32)))
    assert (result.n_shards, result.n_empty_shards) == (1, 1)
    assert not (path / "c/0/0").exists()
    wanted = values((64, 64))
    wanted[:40, :32] = 0
    np.testing.assert_array_equal(read(path), wanted)
    assert shardwrite.verify(path, deep=True).is_good  # it is not taken for lost


@pytest.mark.parametrize("workers", some([1, 2], 2))
def test_on_a_cluster(tmp_path, workers):
    from distributed import Client, LocalCluster

    path = tmp_path / "x"
    with (
        LocalCluster(n_workers=workers, threads_per_worker=2, dashboard_address=None) as cluster,
        Client(cluster),
    ):
        da.from_array(values((96, 96)), chunks=32).to_sharded_zarr(path, shards=48, chunks=8)
        wanted = values((96, 96))
        for number, strategy in enumerate(STRATEGIES):
            new = values((70, 50), number)
            region = (slice(5, 75), slice(40, 90))
            da.from_array(new, chunks=(7, 50)).to_sharded_zarr(
                path, region=region, strategy=strategy, memory_limit="2MB"
            )
            wanted[region] = new
        shardwrite.compact(path, above=0.1)
    np.testing.assert_array_equal(read(path), wanted)


@pytest.mark.compat
def test_the_plan_says_which_shards_are_shared(path):
    x = da.from_array(values((40, 64)), chunks=16)
    before = sorted(path.parent.rglob("*"))
    plan = shardwrite.plan_region(x, path, slice(0, 40), strategy="C")
    assert sorted(path.parent.rglob("*")) == before
    assert "2 only in part" in str(plan)
    assert [ref.key for ref in plan.shared_shards] == ["c/1/0", "c/1/1"]
    assert [ref.index for ref in plan.shared_shards] == [(1, 0), (1, 1)]
    assert [ref.key for ref in plan.shards_for((slice(40, 64), slice(0, 10)))] == ["c/1/0"]


def living(run_path):
    """A lease of somebody else, who lives."""
    run_path.mkdir(exist_ok=True)
    seams.forge_lease(run_path, **seams.ELSEWHERE, pid=4242, job="SLURM_JOB_ID=7")


@pytest.mark.long
def test_updates_that_share_a_shard_wait_for_each_other(path):
    def stops(block):
        raise InterruptedError("told to")

    x = da.from_array(values((8, 64)), chunks=16).map_blocks(
        stops, dtype="u4", meta=np.empty((0, 0), "u4")
    )
    with pytest.raises(InterruptedError), dask.config.set(scheduler="sync"):
        x.to_sharded_zarr(path, region=(slice(0, 8), slice(0, 64)), source_id="first")
    run = seams.run_directory(path)
    write(path, (slice(32, 64), slice(0, 64)))  # shares none
    with pytest.raises(
        JournalError, match=r"region \[\[0, 8\], \[0, 64\]\].* has not ended; 2 shards are in both"
    ):
        write(path, (slice(8, 16), slice(0, 64)))
    living(run)
    with pytest.raises(JournalError, match=r"elsewhere, pid 4242, job SLURM_JOB_ID=7"):
        write(path, (slice(8, 16), slice(0, 64)), restart=True)
    with pytest.raises(JournalError, match=r"elsewhere, pid 4242"):
        da.zeros((64, 64), chunks=32).to_sharded_zarr(path, shards=32, chunks=8, mode="w")
    with pytest.raises(JournalError, match=r"elsewhere, pid 4242"):
        shardwrite.abandon(path)
    (run / "lease-other.json").unlink()
    write(path, (slice(8, 16), slice(0, 64)), restart=True)
    assert not seams.state_beside(path).exists()
    assert (read(path)[:8] == values((64, 64))[:8]).all()


@pytest.mark.parametrize(
    ("keywords", "x", "message"),
    [
        (
            {"region": slice(0, 8), "shards": 32},
            values((8, 64)),
            r"shards=32: is for new arrays.*leave it out",
        ),
        (
            {"region": slice(0, 8), "compressors": None},
            values((8, 64)),
            r"compressors=None: is for new arrays.*leave it out",
        ),
        (
            {"region": slice(0, 8), "mode": "w"},
            values((8, 64)),
            r"mode='w': is for new arrays.*leave it out",
        ),
        (
            {"region": slice(0, 8)},
            values((8, 60)),
            r"x.shape=\(8, 60\): is not the region's.*\(8, 64\)",
        ),
        (
            {"region": slice(0, 8, 2)},
            values((4, 64)),
            r"region=slice\(0, 8, 2\): a slice with the step 2 along axis 0; write box by box",
        ),
        (
            {"region": slice(9, 9)},
            values((0, 64)),
            r"region=.*holds no elements.*one element or more",
        ),
        ({"region": "behind"}, values((8, 64)), r"region='behind': no region.*append"),
        ({"region": "append", "axis": 2}, values((8, 64)), r"axis=2: no such axis.*2 axes"),
        (
            {"region": "append", "axis": 1},
            values((8, 64)),
            r"x.shape=\(8, 64\): does not fit.*\(64, 'any'\)",
        ),
        (
            {"region": slice(0, 8)},
            values((8, 64)).astype("f8"),
            r"x.dtype='float64': cannot be cast.*astype.*casting=\"unsafe\"",
        ),
        (
            {"region": slice(0, 8), "casting": "maybe"},
            values((8, 64)),
            r"casting='maybe': no such rule.*safe",
        ),
    ],
    ids=lambda v: str(v)[:40] if isinstance(v, dict) else "",
)
def test_refusals_before_anything_is_written(path, keywords, x, message):
    before = {p: p.stat().st_mtime_ns for p in sorted(path.parent.rglob("*"))}
    with pytest.raises(SpecError, match=message):
        da.from_array(x, chunks=16).to_sharded_zarr(path, **keywords)
    assert {p: p.stat().st_mtime_ns for p in sorted(path.parent.rglob("*"))} == before


def test_a_lossy_cast_that_is_allowed(path):
    x = da.from_array(values((8, 64)) / 3.0, chunks=16)
    x.to_sharded_zarr(path, region=slice(0, 8), casting="unsafe")
    np.testing.assert_array_equal(read(path)[:8], x.compute().astype("u4"))


@pytest.mark.parametrize("casting", ["safe", "same_kind"])
def test_a_time_that_the_array_cannot_hold_is_refused(tmp_path, casting):
    """numpy calls a cast to a finer unit safe, and makes 1815 of the year 9999."""
    path, far = tmp_path / "x", np.array(["2020-01-01", "NaT", "9999-01-01"], "M8[D]")
    shardwrite.create(path, (8,), "M8[ns]", shards=4, chunks=2, fill_value="NaT")

    def seen():
        return zarr.open_array(path, mode="r")[:3].tolist()

    before = seen()
    with pytest.raises(ValueError, match=r"9999-01-01 is out of the range of .*\[ns\]"):
        shardwrite.write_region(far, path, slice(0, 3), casting=casting)
    shardwrite.abandon(path)
    with pytest.raises(SpecError, match="9999-01-01 is out of the range"):
        shardwrite.write_region(far[2], path, slice(0, 3), casting=casting)
    with ShardWriter(path, casting=casting) as writer:
        with pytest.raises(SpecError, match="9999-01-01 is out of the range"):
            writer[0:3] = far
        with pytest.raises(SpecError, match="9999-01-01 is out of the range"):
            writer[0:3] = far[2]
    assert seen() == before
    shardwrite.write_region(far[:2], path, slice(0, 2), casting=casting)
    assert seen()[:2] == far[:2].astype("M8[ns]").tolist()
    shardwrite.write_region(far, path, slice(0, 3), casting="unsafe")
    assert seen() == far.astype("M8[ns]").tolist()


@pytest.mark.parametrize("strategy", LIVE, ids=lambda s: s.label)
def test_in_place_wants_a_checksum_of_the_index(tmp_path, strategy):
    path = tmp_path / "x"
    x = da.from_array(values((64, 64)), chunks=32)
    x.to_sharded_zarr(
        path,
        shards=32,
        chunks=8,
        index_codecs=[{"name": "bytes", "configuration": {"endian": "little"}}],
    )
    with pytest.raises(
        SpecError, match=r"strategy=.*in place.*torn.*without in_place=True.*crc32c"
    ):
        x[:8].to_sharded_zarr(path, region=slice(0, 8), strategy=strategy)
    x[:8].to_sharded_zarr(path, region=slice(8, 16), strategy=AppendOnly())


def test_codecs_around_the_sharding(tmp_path):
    """Such objects are written as a whole, and zarr-python reads them."""
    sharding = zarr.codecs.ShardingCodec(chunk_shape=(4, 4), codecs=[zarr.codecs.BytesCodec()])
    values = np.arange(1, 401, dtype="u2").reshape(20, 20)
    path = tmp_path / "around"
    with warnings.catch_warnings(action="ignore"):
        da.from_array(values, chunks=7).to_sharded_zarr(
            path, shards=None, chunks=8, serializer=sharding, compressors="crc32c"
        )
        shardwrite.write_region(values[:5, :9] + 1000, path, (slice(3, 8), slice(6, 15)))
        values[3:8, 6:15] = values[:5, :9] + 1000
        np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], values)
    with pytest.raises(SpecError, match="strategy"):
        shardwrite.write_region(values[:1], path, slice(0, 1), strategy=AppendOnly(in_place=True))


def test_a_shard_that_another_program_replaces_meanwhile(path, monkeypatch):
    """It is noticed before the new one takes its place, and what that program wrote is kept."""
    from shardwrite.write import assemble

    other = (path / "c/1/1").read_bytes()
    real, seen = assemble.place, []

    def place(*arguments):
        if not seen:
            seen.append(1)
            draft = path / "draft"
            draft.write_bytes(other)
            draft.rename(path / "c/0/0")
        return real(*arguments)

    monkeypatch.setattr("shardwrite.format.strategies.place", place)
    write(path, (slice(0, 8), slice(0, 8)))
    wanted = values((64, 64))
    wanted[:32, :32] = wanted[32:, 32:]
    wanted[:8, :8] = values((8, 8), 9)
    assert seen
    np.testing.assert_array_equal(read(path), wanted)


@pytest.mark.compat
def test_the_command_line(path, tmp_path):
    np.save(tmp_path / "new.npy", values((8, 64), 4))
    done = run("update", tmp_path / "new.npy", path, "--region", "8:16,:", "--dry-run")
    assert (done.exit_code, "touches 2 shards, 2 only in part" in done.output) == (0, True), (
        done.output
    )
    np.testing.assert_array_equal(read(path), values((64, 64)))
    done = run(
        "update",
        tmp_path / "new.npy",
        path,
        "--region",
        "8:16,:",
        "--strategy",
        "append-only",
        "--json",
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["n_shards"] == 2
    assert run("update", tmp_path / "new.npy", path, "--append", 0).exit_code == 0
    assert run("update", tmp_path / "new.npy", path).exit_code == 2
    assert run("update", tmp_path / "new.npy", path, "--region", "8-16").exit_code == 2
    done = run("compact", path, "--above", 0, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["n_rewritten"] == 2
    assert run("erase", path, "--region", "0:8,0:64", "--in-place").exit_code == 0
    assert run("abandon", path).output == "nothing was interrupted\n"
    wanted = np.concatenate([values((64, 64)), values((8, 64), 4)])
    wanted[8:16] = values((8, 64), 4)
    wanted[:8] = 0
    np.testing.assert_array_equal(read(path), wanted)


def test_an_interrupted_update_is_told(path, monkeypatch):
    """`info` names its region, `verify` what to do about a shard amid a change."""
    real = PosixEditor.write_at

    def write_half(self, offset, data):
        real(self, offset, bytes(len(data)))
        raise InterruptedError("told to")

    monkeypatch.setattr(*seams.step("change bytes in place"), write_half)
    with pytest.raises(StoreError, match="told to"):
        write(path, (slice(0, 8), slice(0, 8)), FixedOrder(in_place=True))
    monkeypatch.setattr(*seams.step("change bytes in place"), real)
    assert json.loads(run("info", path, "--json").output)["interrupted_updates"] == [
        [[0, 8], [0, 8]]
    ]
    (problem,) = shardwrite.verify(path, deep=True).problems
    assert problem.key == "c/0/0"
    assert "shardwrite abandon" in problem.remedy
    assert run("abandon", path).output == "0:8,0:8\n"
    assert shardwrite.verify(path, deep=True).is_good
    np.testing.assert_array_equal(read(path), values((64, 64)))


def test_an_array_that_grows_between_plan_and_begin(path, monkeypatch):
    """The update would take the new rows of its last shards for nothing; it is refused instead."""
    from shardwrite.operations import region as updates

    da.from_array(values((6, 64)), chunks=8).to_sharded_zarr(path, region="append")
    real = updates.region_plan

    def plan_and_be_slow(*arguments, **keywords):
        made = real(*arguments, **keywords)
        with monkeypatch.context() as patched:
            patched.setattr(updates, "region_plan", real)
            da.from_array(values((4, 64), 3), chunks=8).to_sharded_zarr(path, region="append")
        return made

    monkeypatch.setattr(updates, "region_plan", plan_and_be_slow)
    with pytest.raises(
        JournalError,
        match=r"became \[74, 64\] while an update of \[70, 64\] was planned.*same call again",
    ):
        write(path, (slice(64, 70), slice(0, 64)))
    monkeypatch.setattr(updates, "region_plan", real)
    assert not seams.state_beside(path).exists()
    write(path, (slice(64, 70), slice(0, 64)))
    wanted = np.concatenate([values((64, 64)), values((6, 64), 9), values((4, 64), 3)])
    np.testing.assert_array_equal(read(path), wanted)


def test_an_update_goes_on_while_the_array_has_grown_elsewhere(path):
    def fails(block, block_info=None):
        if block_info[0]["chunk-location"] == (0, 1):
            raise OSError("the tape broke")
        return block

    x = da.from_array(values((32, 64), 5), chunks=32)
    with pytest.raises(OSError, match="tape"), dask.config.set(scheduler="sync"):
        x.map_blocks(fails, dtype="u4").to_sharded_zarr(
            path, region=slice(0, 32), source_id="a", memory_limit="100kB"
        )
    da.from_array(values((6, 64)), chunks=8).to_sharded_zarr(path, region="append")
    assert (
        x.to_sharded_zarr(path, region=slice(0, 32), source_id="a", memory_limit="100kB").n_shards
        == 2
    )
    np.testing.assert_array_equal(
        read(path), np.concatenate([values((32, 64), 5), values((64, 64))[32:], values((6, 64))])
    )


def test_later(path):
    new = da.from_array(values((8, 64), 5), chunks=32)
    later = new.to_sharded_zarr(path, region=slice(4, 12), compute=False)
    np.testing.assert_array_equal(read(path), values((64, 64)))
    assert later.compute().n_shards == 2
    np.testing.assert_array_equal(read(path)[4:12], values((8, 64), 5))


@pytest.mark.parametrize("how", ["erase", "compact"])
@pytest.mark.parametrize("location", ["start", "end"])
def test_an_old_index_does_not_lead_to_another_chunk(tmp_path, how, location):
    """A reader takes the index, sleeps, and reads an inner chunk; here all are of one size, so that
    they would change places."""
    path, whole = tmp_path / "x", values((64, 64))
    x = da.from_array(whole, chunks=64)
    x.to_sharded_zarr(
        path, shards=64, chunks=8, compressors=[{"name": "crc32c"}], index_location=location
    )
    if how == "compact":
        x[:8].to_sharded_zarr(path, region=(slice(0, 8), slice(None)), strategy=AppendOnly())
    table, pipeline = seams.table_of(path, (0, 0)), seams.metadata_of(path).pipeline
    if how == "compact":
        assert shardwrite.compact(path, above=0.01, order="F").n_rewritten == 1
    else:
        shardwrite.erase(path, (slice(0, 8), slice(0, 8)))
    found, n_errors = (path / "c/0/0").read_bytes(), 0
    for rank, (offset, nbytes) in enumerate(table.tolist()):
        row, column = (8 * i for i in divmod(rank, 8))
        try:
            chunk = pipeline.decode(found[offset : offset + nbytes])
        except shardwrite.ShardwriteError:
            n_errors += 1
            continue
        np.testing.assert_array_equal(chunk, whole[row : row + 8, column : column + 8])
    assert n_errors > 0
    assert shardwrite.verify(path, deep=True).is_good


@pytest.mark.parametrize("location", ["start", "end"])
def test_chunks_of_one_size_have_their_place_from_the_beginning(tmp_path, location):
    path, order = tmp_path / "x", FixedOrder("F", in_place=True, max_unused=1.0)
    x = da.from_array(values((64, 64)), chunks=64)
    (x * 0).to_sharded_zarr(path, shards=64, chunks=8, compressors=None, index_location=location)
    shard, sizes = path / "c/0/0", set()
    rows = np.random.default_rng(0).permutation(8)
    for row in rows.tolist():
        region = (slice(8 * row, 8 * row + 8), slice(None))
        x[region].to_sharded_zarr(path, region=region, strategy=order)
        sizes.add(shard.stat().st_size)
    assert sizes == {64 * 64 * 4 + 64 * 16 + 4}, "neither rewritten nor appended to"
    np.testing.assert_array_equal(read(path), values((64, 64)))
    assert shardwrite.verify(path, deep=True).unused_nbytes == 0
    offsets = seams.table_of(path, (0, 0))[:, 0]
    assert np.argsort(offsets).tolist() == permutation((8, 8), "F").tolist()


def test_an_append_that_was_cut_off_goes_to_the_end_behind_what_others_have_appended(tmp_path):
    path, sizes = tmp_path / "x", {"shards": 8, "chunks": 4}

    def append(value, n, name):
        return shardwrite.write_region(np.full(n, value), path, "append", source_id=name)

    shardwrite.to_sharded_zarr(np.zeros(40, int), path, **sizes)
    append(1, 20, "y")
    zarr.open_array(path, mode="r+").resize((40,))
    append(2, 30, "z")
    append(2, 30, "z")
    append(1, 20, "y")
    append(1, 20, "y")
    expected = np.repeat([0, 2, 1], [40, 30, 20])
    np.testing.assert_array_equal(shardwrite.open_sharded(path)[...], expected)


def test_an_update_of_a_region_leaves_a_shape_that_another_program_changes_meanwhile(tmp_path):
    path = tmp_path / "x"
    shardwrite.to_sharded_zarr(np.arange(50), path, shards=8, chunks=4)
    with dask.config.set(scheduler="sync"):
        shardwrite.write_region(
            np.zeros(8, int),
            path,
            slice(0, 8),
            progress=lambda _: zarr.open_array(path, mode="r+").resize((40,)),
        )
    found = zarr.open_array(path, mode="r")
    np.testing.assert_array_equal(found[...], np.where(np.arange(40) < 8, 0, np.arange(40)))
    assert shardwrite.verify(path, deep=True).is_good


def test_sizes_of_a_call_are_those_of_its_new_arrays(tmp_path):
    x = da.arange(16, chunks=8)
    shardwrite.to_sharded_zarr(x, tmp_path / "old", shards=16, chunks=8)
    places, regions = [tmp_path / "new", tmp_path / "old"], [None, slice(0, 8)]
    shardwrite.store([x, x[8:]], places, regions=regions, shards=8, chunks=4)
    assert zarr.open_array(tmp_path / "new").shards == (8,)
    found = shardwrite.open_sharded(tmp_path / "old")[...]
    np.testing.assert_array_equal(found, [*range(8, 16), *range(8, 16)])
    with pytest.raises(SpecError, match="the array that exists decides"):
        shardwrite.store([x[8:]], [tmp_path / "old"], regions=[slice(0, 8)], shards=8)

"""Streams of slices: whatever comes in whatever order, what is flushed is there, within the memory
allowed."""

from __future__ import annotations

import errno
import json
import subprocess
import threading
import time

import dask.array as da
import numpy as np
import pytest
import seams
import tensorstore as ts
import zarr
from forks import python
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiers import some

import shardwrite
from shardwrite import AppendOnly, FixedOrder, JournalError, ShardWriter, SpecError, StoreError
from shardwrite.grid import Box
from shardwrite.stream.layers import Block, Buffers, Layers

STRATEGIES = [
    AppendOnly(),
    AppendOnly(in_place=True),
    FixedOrder("morton"),
    FixedOrder(in_place=True, max_unused=1.0),
]


def values(shape, version=1):
    return (np.arange(np.prod(shape), dtype="u4").reshape(shape) * 2654435761 + version * 97531) | 1


def read(path):
    found = zarr.open_array(path, mode="r")[...]
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}
    np.testing.assert_array_equal(ts.open(spec).result().read().result(), found)
    return found


def made(tmp_path, shape=(0, 16, 24), **layout):
    path = tmp_path / "movie"
    shardwrite.create(
        path,
        shape,
        "u4",
        **{"shards": (8, 16, 12), "chunks": (1, 8, 6), "durability": "none", **layout},
    )
    return path


class OnAnotherDevice:
    """An array that does not become one of numpy by itself, as those of cupy do not."""

    shape, dtype, ndim = (16, 24), np.dtype("u4"), 2

    def __array__(self, *_, **__):
        raise TypeError("Implicit conversion is not allowed")


@pytest.mark.parametrize("kind", ["on another device", "ragged", "sparse"])
def test_a_block_that_is_no_array_of_numpy_is_told_as_such(tmp_path, kind):
    """It was an error of numpy, or of a shape that fits."""
    path = made(tmp_path, shape=(16, 24), shards=(16, 12), chunks=(8, 6))
    block = {
        "on another device": OnAnotherDevice,
        "ragged": lambda: [[1], [2, 3]],
        "sparse": lambda: pytest.importorskip("scipy.sparse").csr_matrix(values((16, 24))),
    }[kind]()
    with ShardWriter(path, durability="none") as writer:
        for write in (lambda: writer.append(block), lambda: writer.__setitem__(slice(16), block)):
            with pytest.raises(SpecError, match=r"block=.*no array of numpy.*convert it") as caught:
                write()
            assert caught.value.field == "block"
    assert (read(path) == 0).all()


@pytest.mark.parametrize("linked", ["c/0/0/0", "c/0"])
def test_a_block_for_a_shard_that_is_a_link_is_refused_before_it_is_accepted(tmp_path, linked):
    """It was accepted, and refused when it was committed, in a run that had to be given up."""
    path = made(tmp_path, shape=(3, 16, 24))
    shardwrite.write_region(values((3, 16, 24)), path, ...)
    (path / linked).rename(tmp_path / "outside")
    (path / linked).symlink_to(tmp_path / "outside")
    before = sorted(map(str, tmp_path.rglob("*")))
    with (
        ShardWriter(path, durability="none") as writer,
        pytest.raises(StoreError, match="symbolic link"),
    ):
        writer.append(values((16, 24)))
    assert sorted(map(str, tmp_path.rglob("*"))) == before
    (path / linked).unlink()
    (tmp_path / "outside").rename(path / linked)
    with ShardWriter(path, durability="none") as writer:
        writer.append(values((16, 24)))
    assert read(path).shape == (4, 16, 24)


@pytest.mark.compat
@pytest.mark.parametrize("strategy", ["auto", *STRATEGIES], ids=str)
@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize(
    "compressors",
    [pytest.param("auto", id="zstd", marks=pytest.mark.long), pytest.param(None, id="raw")],
)
def test_readers_see_every_flushed_slice(tmp_path, strategy, location, compressors):
    path, whole = (
        made(tmp_path, index_location=location, compressors=compressors),
        values((21, 16, 24)),
    )
    with ShardWriter(path, strategy=strategy, durability="none") as writer:
        for t in range(21):
            writer.append(whole[t])
            if t % 5 == 4:
                writer.flush()
                np.testing.assert_array_equal(read(path), whole[: t + 1])
                assert shardwrite.verify(path, deep=True).is_good
    np.testing.assert_array_equal(read(path), whole)
    assert shardwrite.verify(path, deep=True).is_good
    assert not seams.state_beside(tmp_path / "movie").exists()


def test_shards_of_one_slice_are_committed_as_they_come(tmp_path):
    path = made(tmp_path, shards=(1, 16, 24))
    with ShardWriter(path) as writer:
        for t in range(5):
            writer.append(values((16, 24), t))
            deadline = time.monotonic() + 60
            while not (path / f"c/{t}/0/0").exists():
                assert time.monotonic() < deadline
                time.sleep(0.001)
        assert zarr.open_array(path, mode="r").shape == (0, 16, 24), "the array grows at a flush"
    assert read(path).shape == (5, 16, 24)


def test_raw_slices_go_straight_into_their_place(tmp_path):
    path = made(tmp_path, compressors=None)
    shard, seen = path / "c/0/0/0", set()
    with ShardWriter(path) as writer:
        for t in (5, 2, 7, 0, 1, 3, 6, 4):
            writer[t] = values((16, 24), t)
            writer.flush()
            seen.add((shard.stat().st_size, shard.stat().st_ino))
    assert len(seen) == 1, "neither rewritten nor appended to"
    fresh = tmp_path / "fresh"
    da.from_array(read(path), chunks=8).to_sharded_zarr(
        fresh, shards=(8, 16, 12), chunks=(1, 8, 6), compressors=None
    )
    assert shard.read_bytes() == (fresh / "c/0/0/0").read_bytes()


def test_compressed_slices_are_appended(tmp_path):
    path = made(tmp_path)
    shard, sizes = path / "c/0/0/0", [0]
    with ShardWriter(path) as writer:
        for t in range(7):
            writer.append(values((16, 24), t))
            writer.flush()
            data = shard.read_bytes()
            assert len(data) > sizes[-1]
            sizes.append(len(data))
    index_nbytes = 16 * 32 + 4
    assert shardwrite.verify(path).unused_nbytes == 2 * 6 * index_nbytes, (
        "of two shards, all indexes but the last"
    )


def test_a_shard_that_fills_before_a_flush_is_as_if_written_at_once(tmp_path):
    path, whole = made(tmp_path), values((8, 16, 24))
    with ShardWriter(path, strategy="fixed-order") as writer:
        for t in np.random.default_rng(0).permutation(8).tolist():
            writer[t] = whole[t]
    fresh = tmp_path / "fresh"
    da.from_array(whole, chunks=8).to_sharded_zarr(fresh, shards=(8, 16, 12), chunks=(1, 8, 6))
    for key in ("c/0/0/0", "c/0/0/1"):
        assert (path / key).read_bytes() == (fresh / key).read_bytes()


BLOCKS = st.lists(
    st.tuples(
        st.integers(0, 25), st.integers(1, 9), st.integers(0, 13), st.integers(1, 14), st.booleans()
    ),
    min_size=1,
    max_size=14,
)


@pytest.mark.long
@settings(max_examples=16, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    blocks=BLOCKS,
    chunk=st.integers(1, 4),
    axis=st.integers(0, 1),
    strategy=st.sampled_from(["auto", *STRATEGIES]),
    limit=st.sampled_from([1, 700, 10**9]),
    raw=st.booleans(),
    maker=st.sampled_from(["shardwrite", "zarr-python"]),
)
def test_blocks_in_any_order(tmp_path_factory, blocks, chunk, axis, strategy, limit, raw, maker):
    """Blocks that overlap, leave gaps, cross shards and lie beyond the end, with memory for all,
    for some, or for none."""
    path, extents = tmp_path_factory.mktemp("stream") / "x", [14, 14]
    extents[axis] = 5
    model, before = np.zeros((40, 40), dtype="u4"), values(tuple(extents))
    shards, chunks = (2 * chunk, 6), (chunk, 3)
    if maker == "shardwrite":
        shardwrite.create(
            path,
            tuple(extents),
            "u4",
            shards=shards,
            chunks=chunks,
            compressors=None if raw else "auto",
            durability="none",
        )
        da.from_array(before).to_sharded_zarr(
            path, region=tuple(slice(n) for n in extents), durability="none"
        )
    else:
        compressors = None if raw else "auto"
        array = zarr.create_array(
            path,
            shape=tuple(extents),
            dtype="u4",
            chunks=chunks,
            shards=shards,
            compressors=compressors,
        )
        array[...] = before
    model[: extents[0], : extents[1]] = before
    with ShardWriter(
        path, axis=axis, strategy=strategy, durability="none", memory_limit=limit, n_threads=2
    ) as writer:
        for n, (t, depth, across, width, flushes) in enumerate(blocks):
            region = [
                slice(across, min(14, across + width)),
                slice(across, min(14, across + width)),
            ]
            region[axis] = slice(t, t + depth)
            block = values(tuple(s.stop - s.start for s in region), n + 2)
            writer[tuple(region)] = block
            model[tuple(region)] = block
            extents[axis] = max(extents[axis], t + depth)
            if flushes:
                writer.flush()
                np.testing.assert_array_equal(read(path), model[: extents[0], : extents[1]])
        assert writer.shape == tuple(extents)
    np.testing.assert_array_equal(read(path), model[: extents[0], : extents[1]])
    assert shardwrite.verify(path, deep=True).is_good


@pytest.mark.long
@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(1, 6), st.integers(0, 9), st.integers(1, 9)),
        max_size=12,
    )
)
def test_layers_know_when_they_are_whole(boxes):
    grid = shardwrite.grid.ShardGrid((0, 10), (4, 6), (2, 3))
    layers, covered, n_whole = Layers(grid, 0), np.zeros((20, 10), dtype=bool), 0
    for t, depth, a, width in boxes:
        box = Box((t, a), (t + depth, min(10, a + width)))
        whole, _ = layers.add(Block(box, np.empty(box.shape)))
        covered[box.slices] = True
        for layer in whole:
            assert covered[layer.box.slices].all()
            covered[layer.box.slices] = False  # it is open no more
            n_whole += 1
    assert all(not covered[layer.box.slices].all() for layer in layers.close())


def test_memory_is_bounded_and_callers_wait(tmp_path, monkeypatch):
    path, limit = (
        made(tmp_path, (0, 64, 64), shards=(4, 64, 64), chunks=(1, 64, 64), compressors=None),
        200_000,
    )
    seams.before(monkeypatch, "rename a file", lambda _: time.sleep(0.05))
    with ShardWriter(path, memory_limit=limit, n_threads=2, durability="none") as writer:
        for t in range(60):
            writer.append(values((64, 64), t))
        report = writer.report()
    assert report.peak_nbytes <= limit + 3 * 64 * 64 * 4, (
        "at most one layer more for each thread, and the block itself"
    )
    assert report.waited_seconds > 0.2
    assert "callers waited" in str(report)
    assert report.to_dict()["nbytes_per_second"] > 0
    assert read(path).shape == (60, 64, 64)


def test_buffers_are_used_again_and_not_hoarded():
    buffers = Buffers(100)
    first = buffers.take(60)
    second = buffers.take(60)
    buffers.give(first)
    buffers.give(second)
    assert buffers.take(60) is first
    assert buffers.take(60) is not second


def test_a_fault_is_raised_to_the_next_caller_and_what_was_flushed_stays(tmp_path, monkeypatch):
    path, whole = made(tmp_path), values((9, 16, 24))
    writer = ShardWriter(path, durability="none")
    for t in range(4):
        writer.append(whole[t])
    writer.flush()
    full = StoreError("No space left on device", key="c", errno=28)
    seams.kill_before(monkeypatch, "record a change", full)
    writer.append(whole[4])
    with pytest.raises(StoreError, match="No space left"):
        writer.flush()
    with pytest.raises(StoreError, match="No space left"):
        writer.append(whole[5])
    with pytest.raises(StoreError, match="No space left"):
        writer.close()
    writer.close()
    monkeypatch.undo()
    np.testing.assert_array_equal(read(path), whole[:4])
    with ShardWriter(path, durability="none") as again:
        for t in range(4, 9):
            again.append(whole[t])
    np.testing.assert_array_equal(read(path), whole)
    assert shardwrite.verify(path, deep=True).is_good


def test_a_shard_that_a_failed_task_left_beyond_the_array_is_removed(tmp_path, monkeypatch):
    """Only shards of tasks are looked for; the stretch of a stream holds thousands."""
    path, whole = made(tmp_path), values((9, 16, 24))
    left, looked_for = [], []

    def fail(writer):
        if writer.key.startswith("c/"):
            left.append(writer.key)
            raise StoreError("Read-only file system", key=writer.key, errno=errno.EROFS)

    with monkeypatch.context() as patch:
        seams.after(patch, "rename a file", fail)
        with (
            pytest.raises(StoreError, match="Read-only"),
            ShardWriter(path, strategy=FixedOrder()) as writer,
        ):
            writer.append(whole)
    assert read(path).shape[0] == 0
    assert left
    assert all((path / key).exists() for key in left)
    seams.before(monkeypatch, "remove a file", lambda _, key, *__, **___: looked_for.append(key))
    with ShardWriter(path) as writer:
        assert not [p for p in (path / "c").rglob("*") if p.is_file()]
        assert set(left) <= set(looked_for)
        assert len(looked_for) < 20
        writer.append(whole)
    np.testing.assert_array_equal(read(path), whole)


def test_an_error_in_the_context_keeps_what_was_taken(tmp_path):
    path = made(tmp_path)
    with pytest.raises(ZeroDivisionError), ShardWriter(path) as writer:  # noqa: PT012 (leaving the context is what is tested)
        writer.append(values((16, 24)))
        raise ZeroDivisionError
    np.testing.assert_array_equal(read(path), values((1, 16, 24)))


def test_two_writers_and_an_update_keep_off_each_other(tmp_path):
    path = made(tmp_path)
    with ShardWriter(path) as first:
        first.append(values((16, 24)))
        with pytest.raises(JournalError, match="being written"), ShardWriter(path) as second:
            second.append(values((16, 24)))
        with pytest.raises(JournalError, match="being written"):
            da.from_array(values((1, 16, 24))).to_sharded_zarr(path, region="append")
    da.from_array(values((1, 16, 24))).to_sharded_zarr(path, region="append")
    assert read(path).shape == (2, 16, 24)


def test_an_array_that_has_grown_since_the_writer_was_opened(tmp_path):
    path = made(tmp_path)
    with ShardWriter(path) as writer:
        da.from_array(values((1, 16, 24))).to_sharded_zarr(path, region="append")
        with pytest.raises(JournalError, match="open another"):
            writer.append(values((16, 24), 2))
    np.testing.assert_array_equal(read(path), values((1, 16, 24)))
    assert not seams.state_beside(tmp_path / "movie").exists()


def test_several_threads(tmp_path):
    path, whole = made(tmp_path), values((24, 16, 24))
    with ShardWriter(path, durability="none") as writer:

        def feed(first):
            for t in range(first, 24, 3):
                writer[t] = whole[t]

        threads = [threading.Thread(target=feed, args=(first,)) for first in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    np.testing.assert_array_equal(read(path), whole)


def test_the_receipt_knows_the_stream(tmp_path):
    path = made(tmp_path)
    with ShardWriter(path) as writer:
        writer[9] = values((16, 24))
    receipt = json.loads((path / "shardwrite-receipt.json").read_bytes())
    assert receipt["shape"] == [10, 16, 24]
    assert receipt["empty"] == [[0, 2]], "two shards of slices that were never given"
    assert receipt["updates"][0]["result"]["n_blocks"] == 1
    report = shardwrite.verify(path, deep=True)
    assert report.is_good
    (path / "c/1/0/1").unlink()
    assert not shardwrite.verify(path).is_good, (
        "a shard that is lost is told from one that is empty"
    )


def give(path, keywords, region, block):
    with ShardWriter(path, **keywords) as writer:
        if region is None:
            writer.append(block)
        else:
            writer[region] = block


@pytest.mark.parametrize(
    ("keywords", "block", "region", "message"),
    [
        ({}, np.zeros((16, 23), "u4"), None, "block.shape"),
        ({}, np.zeros((2, 2, 16, 24), "u4"), None, "block.shape"),
        ({}, np.zeros((16, 24), "f8"), None, "block.dtype"),
        ({}, np.zeros((16, 24), "u4"), (slice(0, 2),), "block.shape"),
        ({}, np.zeros((16, 24), "u4"), (-1,), "block.shape"),
        ({}, np.zeros((16, 24), "u4"), (0, slice(0, 16, 2)), "region"),
        ({"axis": 3}, None, None, "axis"),
        ({"n_threads": 0}, None, None, "n_threads"),
        ({"memory_limit": "much"}, None, None, "memory_limit"),
        ({"durability": "some"}, None, None, "durability"),
        ({"casting": "any"}, None, None, "casting"),
        ({"strategy": "best"}, None, None, "strategy"),
    ],
)
def test_refusals(tmp_path, keywords, block, region, message):
    path = made(tmp_path)
    before = sorted(p for p in tmp_path.rglob("*"))
    with pytest.raises(SpecError, match=message):
        give(path, keywords, region, block)
    assert sorted(p for p in tmp_path.rglob("*")) == before


def test_in_place_wants_a_checksum_of_the_index(tmp_path):
    path = made(tmp_path, index_codecs=[{"name": "bytes", "configuration": {"endian": "little"}}])
    with pytest.raises(SpecError, match="checksum"):
        ShardWriter(path, strategy=AppendOnly(in_place=True))
    with ShardWriter(path) as writer:
        writer.append(values((16, 24)))
    np.testing.assert_array_equal(read(path), values((1, 16, 24)))
    with pytest.raises(SpecError, match="closed"):
        writer.append(values((16, 24)))


@pytest.mark.compat
def test_create(tmp_path):
    path = tmp_path / "x"
    shardwrite.create(path, (100, 100), "f4", shards=50, chunks=10, fill_value=-1)
    assert shardwrite.verify(path).is_good
    assert (zarr.open_array(path, mode="r")[...] == -1).all()
    with pytest.raises(SpecError, match="exists"):
        shardwrite.create(path, (100, 100), "f8", shards=50, chunks=10)
    shardwrite.create(path, (10,), "f8", shards=5, chunks=5, mode="w")
    assert zarr.open_array(path, mode="r").shape == (10,)


def test_what_another_process_appends_between_two_stretches_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("shardwrite.stream.stretch._SHARDS", 1)  # a stretch is one layer of shards
    path, end, left = made(tmp_path), ShardWriter._end_stretch, [2]

    def then_another(writer):
        end(writer)
        left[0] -= 1
        if left[0] == 0:
            x = da.full((8, 16, 24), 7, dtype="u4", chunks=8)
            shardwrite.write_region(x, path, "append", durability="none")

    monkeypatch.setattr(ShardWriter, "_end_stretch", then_another)
    slices = values((8, 16, 24))
    writer = ShardWriter(path, durability="none")
    writer.append(slices)
    with pytest.raises(JournalError, match="open another one"):
        writer.append(slices)
    writer.close()
    np.testing.assert_array_equal(read(path), np.concatenate([slices, np.full_like(slices, 7)]))
    with ShardWriter(path, durability="none") as another:  # as the message says
        another.append(slices)
    assert read(path).shape == (24, 16, 24)


def test_a_stream_whose_threads_cannot_start_ends_with_that_error(tmp_path, monkeypatch):
    """Without a thread, the job would never end, and the stream would wait for it."""
    shardwrite.create(tmp_path / "x", (0, 4), "u2", shards=(4, 4), chunks=(2, 2))
    start = threading.Thread.start

    def refuse(thread):
        if "shardwrite-stream" in thread.name:
            raise RuntimeError("can't start new thread")
        start(thread)

    def stream():
        with shardwrite.ShardWriter(tmp_path / "x", n_threads=1) as writer:
            for n in range(4):
                writer.append(np.full((1, 4), n, "u2"))

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            stream()
    stream()
    written = zarr.open_array(tmp_path / "x", mode="r")[...]
    assert written[-4:].tolist() == [[n] * 4 for n in range(4)]


@pytest.mark.parametrize("end", some(["", "writer.flush()", "writer.close()"], ""))
def test_a_writer_that_is_never_closed_says_so(tmp_path, end):
    """Otherwise the process would end with success, and without the last blocks."""
    path = made(tmp_path)
    script = f"""
import numpy as np, shardwrite
writer = shardwrite.ShardWriter({str(path)!r}, durability="none")
for t in range(3):
    writer.append(np.full((16, 24), t + 1, writer._metadata.dtype))
{end}
"""
    done = subprocess.run([*python(), "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert ("never closed: 3 blocks" in done.stderr) == (not end), done.stderr

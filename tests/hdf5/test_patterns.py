"""Layouts of HDF5 files that the library has not made are those that it would make, to the byte."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from pathlib import Path

import dask.array as da
import numpy as np
import pytest

import shardwrite
from shardwrite import Hdf5, StoreError
from shardwrite.encode.unit import EncodedBatch
from shardwrite.format.hdf5 import Filter
from shardwrite.format.hdf5_file import Hdf5File, describe
from shardwrite.format.hdf5_pattern import FilePattern
from shardwrite.format.metadata import parse_metadata
from shardwrite.hdf5 import patterns as hdf5_patterns
from shardwrite.hdf5.layout import lay_out_file
from shardwrite.hdf5.room import Room
from shardwrite.read.stored_shard import open_shard
from shardwrite.stores import PosixStore

pytest.importorskip("h5py")
pytest.importorskip("hdf5plugin")

ZSTD = [{"name": "zstd", "configuration": {"level": 1, "checksum": False}}]


@pytest.fixture
def laid_out(monkeypatch):
    """Numbers of chunks of the files that the library lays out from now on."""
    found = []

    def lay_out(file, extent, nbytes):
        found.append(int((nbytes >= 0).sum()))
        return lay_out_file(file, extent, nbytes)

    monkeypatch.setattr(hdf5_patterns, "_kinds", hdf5_patterns._Kinds())
    monkeypatch.setattr(hdf5_patterns, "lay_out_file", lay_out)
    return found


def some_file(rng: np.random.Generator) -> Hdf5File:
    n_axes = int(rng.integers(1, 5))
    chunks = rng.integers(1, 5, n_axes)
    shards = chunks * rng.integers(1, (400, 20, 8, 5)[n_axes - 1], n_axes)
    dtype = np.dtype(str(rng.choice(["<u2", ">f8", "<c8", "|u1", "?"])))
    return Hdf5File(
        dataset="/".join(["raw"] * int(rng.integers(1, 40))),
        shards=tuple(shards.tolist()),
        chunks=tuple(chunks.tolist()),
        dtype=dtype,
        fill_value=np.zeros((), dtype),
        filters=(Filter(32015, (3,)),) * int(rng.integers(2)),
        block_nbytes=int(rng.choice([0, 512, 8192])),
        index_nbytes=100,
    )


def some_sizes(rng: np.random.Generator, is_inside: np.ndarray, n: int) -> np.ndarray:
    """Sizes of n chunks at random places."""
    found = np.full(len(is_inside), -1, np.int64)
    places = rng.choice(np.flatnonzero(is_inside), n, replace=False)
    found[places] = rng.integers(1, int(rng.choice([2, 300, 3000, 2**16])), n)
    return found


@pytest.mark.compat
def test_a_pattern_gives_what_the_library_gives():
    """Any chunks of any grid, as many as in the file of the pattern, for one or several files at
    once; up to three levels of the tree."""
    rng, levels = np.random.default_rng(5), Counter()
    for number in range(40):
        file = some_file(rng)
        extent = tuple(int(rng.integers(1, n + 1)) if number % 3 else n for n in file.shards)
        is_inside = file.is_inside(extent)
        n = int(rng.integers(1, is_inside.sum() + 1)) if number % 2 else int(is_inside.sum())
        first, *others = (some_sizes(rng, is_inside, n) for _ in range(2 + number % 3))
        pattern = FilePattern(file, first, lay_out_file(file, extent, first))
        for sizes, found in zip(others, pattern.fill(np.stack(others)), strict=True):
            wanted = lay_out_file(file, extent, sizes)
            assert found.is_same(wanted), (file, extent, sizes)
            assert list(found.begins) == list(wanted.begins)
            np.testing.assert_array_equal(found.sequence, wanted.sequence)
        levels[len(wanted.nodes) > 1] += 1
    assert min(levels.values()) > 6, "trees of one node, and of several"


@pytest.mark.long
def test_a_large_tree():
    """More than 64 leaves, and so three levels."""
    rng = np.random.default_rng(6)
    file = dataclasses.replace(some_file(rng), shards=(20_000,), chunks=(4,), block_nbytes=0)
    first, second = (some_sizes(rng, np.ones(5000, bool), 4999) for _ in range(2))
    pattern = FilePattern(file, first, lay_out_file(file, (20_000,), first))
    wanted = lay_out_file(file, (20_000,), second)
    assert len(wanted.nodes) > 64
    (found,) = pattern.fill(second[np.newaxis])
    assert found.is_same(wanted)


def test_a_layout_that_is_not_understood_makes_no_pattern():
    rng = np.random.default_rng(7)
    file = dataclasses.replace(some_file(rng), shards=(400,), chunks=(4,), block_nbytes=0)
    sizes = some_sizes(rng, np.ones(100, bool), 90)
    layout = lay_out_file(file, (400,), sizes)
    FilePattern(file, sizes, layout)
    for change, message in (
        ({"nodes": layout.nodes[1:]}, "one tree|lead to"),
        ({"nodes": [8]}, "no node"),
        ({"sequence": layout.sequence[::-1]}, "row-major"),
        ({"offsets": layout.offsets + 8}, "lead to|another number"),
    ):
        with pytest.raises(ValueError, match=message):
            FilePattern(file, sizes, dataclasses.replace(layout, **change))


def test_the_library_is_asked_twice_for_files_of_one_kind(laid_out):
    rng = np.random.default_rng(8)
    file = dataclasses.replace(some_file(rng), shards=(400,), chunks=(4,))
    everywhere = np.ones(100, bool)
    first, *others = (some_sizes(rng, everywhere, 80) for _ in range(6))
    for sizes in (first, first, *others):
        found = hdf5_patterns.lay_out(file, (400,), sizes)
        assert found.is_same(lay_out_file(file, (400,), sizes))
    assert laid_out == [80, 80]
    hdf5_patterns.lay_out(file, (399,), first)
    hdf5_patterns.lay_out(dataclasses.replace(file, dataset="other"), (400,), first)
    hdf5_patterns.lay_out(dataclasses.replace(file), (400,), first)
    hdf5_patterns.lay_out(file, (400,), some_sizes(rng, everywhere, 81))
    assert laid_out == [80, 80, 80, 80, 81]


def test_files_of_several_kinds_are_laid_out_together(laid_out):
    """As many calls of the library as one by one, and the same layouts in the same order."""
    rng = np.random.default_rng(13)
    file = dataclasses.replace(some_file(rng), shards=(400,), chunks=(4,))
    extents = [(400,), (399,), (400,), (204,)] * 5
    counts = [80, 80, 7, 51] * 5
    sizes = [some_sizes(rng, file.is_inside(e), n) for e, n in zip(extents, counts, strict=True)]
    sizes[4] = sizes[8] = sizes[0]
    found = hdf5_patterns.lay_out_all(file, extents, np.stack(sizes))
    assert Counter(laid_out) == {80: 4, 7: 2, 51: 2}
    for layout, extent, one in zip(found, extents, sizes, strict=True):
        assert layout.is_same(lay_out_file(file, extent, one))
    hdf5_patterns.lay_out_all(file, extents, np.stack(sizes))
    assert len(laid_out) == 8
    assert hdf5_patterns.lay_out_all(file, [], np.zeros((0, 100), np.int64)) == []


def test_a_library_that_works_in_another_way_is_asked_every_time(laid_out, monkeypatch):
    """Here, each file has another byte in its head."""
    rng = np.random.default_rng(9)
    file = dataclasses.replace(some_file(rng), shards=(400,), chunks=(4,))
    real = hdf5_patterns.lay_out_file

    def lay_out(*arguments):
        made = real(*arguments)
        made.around[0][-1] = len(laid_out)
        return made

    monkeypatch.setattr(hdf5_patterns, "lay_out_file", lay_out)
    for number in range(1, 5):
        found = hdf5_patterns.lay_out(file, (400,), some_sizes(rng, np.ones(100, bool), 80))
        assert found.around[0][-1] == number
    assert len(laid_out) == 4


def test_kinds_that_were_not_used_for_long_are_forgotten(laid_out, monkeypatch):
    rng = np.random.default_rng(10)
    file = dataclasses.replace(some_file(rng), shards=(400,), chunks=(4,))
    sizes = {n: some_sizes(rng, np.ones(100, bool), n) for n in (60, 61, 62, 63)}
    layout = lay_out_file(file, (400,), sizes[60])
    taken_nbytes = hdf5_patterns._Kind(sizes[60], layout).taken_nbytes
    monkeypatch.setattr(hdf5_patterns, "_MOST_NBYTES", 3.5 * taken_nbytes)
    for n in (60, 61, 60, 62, 60, 63, 60, 61):
        hdf5_patterns.lay_out(file, (400,), sizes[n])
    assert laid_out == [60, 61, 62, 63, 61], "60 was used all the time"


def test_room_between_chunks_in_buffers_of_any_size():
    """What is written first has the right length, and `fill` completes it."""
    rng = np.random.default_rng(11)
    file = dataclasses.replace(some_file(rng), shards=(1600,), chunks=(4,), block_nbytes=512)
    everywhere = np.ones(400, bool)
    full = hdf5_patterns.lay_out_full(file, (1600,))
    sizes = some_sizes(rng, everywhere, 390)
    layout = hdf5_patterns.lay_out(file, (1600,), sizes)
    ranks = layout.sequence
    data = rng.bytes(int(sizes[ranks].sum()))
    wanted = bytearray(layout.nbytes)
    ends = np.cumsum(sizes[ranks])
    for rank, end in zip(ranks.tolist(), ends.tolist(), strict=True):
        at, n = layout.offsets[rank], sizes[rank]
        wanted[at : at + n] = data[end - n : end]
    for begin, piece in zip(layout.begins, layout.around, strict=True):
        wanted[begin : begin + len(piece)] = piece

    class Writer:
        def __init__(self):
            self.data = bytearray()

        def write(self, buffers):
            for buffer in buffers:
                self.data += buffer

        def write_at(self, offset, data):
            self.data[offset : offset + len(data)] = data

    for per_batch, is_joined in ((400, True), (7, True), (64, False), (1, False)):
        room, writer = Room(full), Writer()
        for first in range(0, len(ranks), per_batch):
            some = sizes[ranks[first : first + per_batch]]
            start = int(ends[first] - some[0])
            cuts = np.cumsum([start, *some]).tolist()
            joined = [data[start : cuts[-1]]]
            each = [data[a:b] for a, b in itertools.pairwise(cuts)]
            buffers = joined if is_joined else each
            batch = EncodedBatch(ranks[first : first + per_batch], some, buffers, False)
            writer.write(room.around(batch))
        room.fill(writer, layout, layout.around)
        assert writer.data == wanted

    room = Room(dataclasses.replace(full, breaks=[0, *[n + 1 for n in full.breaks[1:]]]))
    batch = EncodedBatch(ranks, sizes[ranks], [data], True)
    room.around(batch)
    with pytest.raises(StoreError, match="in another way"):
        room.fill(writer, layout, layout.around)


def check_files(path: Path, metadata_path: Path | None = None) -> int:
    """Compare each shard with what the library lays out for chunks of these sizes."""
    metadata = parse_metadata(((metadata_path or path) / "zarr.json").read_text())
    store, grid = PosixStore(path), metadata.grid
    file, n_files = describe(metadata, Hdf5()), 0
    for index in grid.shards_in(grid.whole):
        shard = open_shard(metadata, store, index)
        if shard is None:
            continue
        with shard:
            nbytes = shard.stored().nbytes
        data = (path / metadata.shard_key(index)).read_bytes()
        extent = grid.shard_box(index).intersect(grid.whole).shape
        layout = lay_out_file(file, extent, nbytes)
        start, index_nbytes = file.block_nbytes, file.index_nbytes
        for begin, piece in zip(layout.begins, layout.around, strict=True):
            at = max(begin, start)
            assert data[at : begin + len(piece)] == bytes(piece)[at - begin :]
        assert len(data) == layout.nbytes + (0 if start else index_nbytes)
        n_files += 1
    return n_files


@pytest.mark.compat
@pytest.mark.parametrize(
    ("index", "compressors"), [("end", ZSTD), pytest.param("start", None, marks=pytest.mark.long)]
)
def test_every_way_to_write_gives_what_the_library_gives(tmp_path, index, compressors, laid_out):
    """Streamed shards, small ones in batches, those that several tasks encode, updates, and a
    conversion; with empty chunks, and at the edges."""
    rng = np.random.default_rng(12)
    keywords = {"strategy": Hdf5(index), "compressors": compressors}
    ways = {
        "streamed": ((300, 310), (150, 150), (5, 3), (150, 150)),
        "small": ((100, 90), (16, 16), (4, 8), (64, 64)),
        "assembled": ((300, 310), (150, 150), (5, 3), (50, 310)),
    }
    for name, (shape, shards, chunks, dask_chunks) in ways.items():
        x = rng.integers(1, 2000, shape).astype("u2")
        x[: shape[0] // 3, : shape[1] // 5] = 0
        da.from_array(x, chunks=dask_chunks).to_sharded_zarr(
            tmp_path / name, shards=shards, chunks=chunks, **keywords
        )
        assert check_files(tmp_path / name) > 5 - 2 * (name != "small")
        region = (slice(20, 90), slice(7, 80))
        x[region] = rng.integers(0, 2, (70, 73))
        shardwrite.write_region(x[region], tmp_path / name, region, strategy="hdf5")
        check_files(tmp_path / name)
        np.testing.assert_array_equal(shardwrite.open_sharded(tmp_path / name)[...], x)
    shardwrite.reshard(
        tmp_path / "small", tmp_path / "y", (6, 3), strategy="hdf5", index_location=index
    )
    assert check_files(tmp_path / "y") > 5
    n_shards = 4 + 4 + 7 * 6 + 5 * 4
    assert len(laid_out) < 2 * n_shards

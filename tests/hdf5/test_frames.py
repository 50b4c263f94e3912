"""Frames of HDF5: what is written around the chunks is what the library would write, to the byte."""

from __future__ import annotations

import itertools
from pathlib import Path

import dask.array as da
import numpy as np
import pytest

import shardwrite
from shardwrite import Hdf5, StoreError
from shardwrite.encode.unit import EncodedBatch
from shardwrite.format.frame import frame_at
from shardwrite.format.index import Seal, ShardIndex
from shardwrite.format.metadata import parse_metadata
from shardwrite.hdf5.format import Hdf5File, describe
from shardwrite.hdf5.layout import Hdf5Frame, lay_out_file
from shardwrite.place.framed import PieceRoom
from shardwrite.read.stored_shard import open_shard
from shardwrite.stores.posix import PosixStore

pytest.importorskip("h5py")
pytest.importorskip("hdf5plugin")

ZSTD = [{"name": "zstd", "configuration": {"level": 1, "checksum": False}}]


def test_room_between_chunks_in_buffers_of_any_size():
    """What is written first has the right length, and `fill` completes it."""
    rng, dtype = np.random.default_rng(11), np.dtype("u2")
    file = Hdf5File("data", (1600,), (4,), dtype, np.zeros((), dtype), (), 512, 100)
    frame = Hdf5Frame(file, (1600,))
    sizes = rng.integers(1, 300, 400)
    sizes[rng.choice(400, 10, replace=False)] = -1
    layout = frame.close(sizes)
    index = ShardIndex.build(layout.offsets, sizes)
    ranks = layout.sequence
    data = rng.bytes(int(sizes[ranks].sum()))
    wanted = bytearray(layout.total)
    ends = np.cumsum(sizes[ranks])
    for rank, end in zip(ranks.tolist(), ends.tolist(), strict=True):
        at, n = layout.offsets[rank], sizes[rank]
        wanted[at : at + n] = data[end - n : end]
    for _, begin, piece in layout.pieces:
        wanted[begin : begin + len(piece)] = piece

    class Writer:
        def __init__(self):
            self.data = bytearray()

        def write(self, buffers):
            for buffer in buffers:
                self.data += buffer

        def write_at(self, offset, data):
            self.data[offset : offset + len(data)] = data

        def protect(self, is_protected):
            pass

    for per_batch, is_joined in ((400, True), (7, True), (64, False), (1, False)):
        room, writer = PieceRoom(frame), Writer()
        for first in range(0, len(ranks), per_batch):
            some = sizes[ranks[first : first + per_batch]]
            start = int(ends[first] - some[0])
            cuts = np.cumsum([start, *some]).tolist()
            joined = [data[start : cuts[-1]]]
            each = [data[a:b] for a, b in itertools.pairwise(cuts)]
            buffers = joined if is_joined else each
            batch = EncodedBatch(ranks[first : first + per_batch], some, buffers, False)
            writer.write(room.around(batch))
        room.fill(writer, layout, Seal(index, b"", b""))
        assert writer.data == wanted

    class Other(Hdf5Frame):
        def reserve(self):
            first, *others = frame.reserve()
            return [first, *((number + 1, size) for number, size in others)]

    room = PieceRoom(Other(file, (1600,)))
    batch = EncodedBatch(ranks, sizes[ranks], [data], True)
    room.around(batch)
    with pytest.raises(StoreError, match="in another way"):
        room.fill(writer, layout, Seal(index, b"", b""))


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
        for _, begin, piece in layout.pieces:
            at = max(begin, start)
            assert data[at : begin + len(piece)] == bytes(piece)[at - begin :]
        assert len(data) == layout.total + (0 if start else index_nbytes)
        n_files += 1
    return n_files


@pytest.mark.compat
@pytest.mark.parametrize(
    ("index", "compressors"), [("end", ZSTD), pytest.param("start", None, marks=pytest.mark.long)]
)
def test_every_way_to_write_gives_what_the_library_gives(tmp_path, index, compressors):
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


def test_a_strategy_without_frames_has_none(tmp_path):
    da.ones((4, 4)).to_sharded_zarr(tmp_path / "x", shards=(4, 4), chunks=(2, 2), compressors=None)
    metadata = shardwrite.open_sharded(tmp_path / "x").metadata
    assert frame_at(shardwrite.FixedOrder(), metadata, (0, 0)) is None
    frame = frame_at(Hdf5(), metadata, (0, 0))
    layout = frame.close(np.array([32, -1, 32, 32]))
    assert list(layout.sequence) == [0, 2, 3]
    assert next(size for _, size in frame.reserve()) == len(layout.pieces[0].data)

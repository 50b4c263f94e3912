"""What a design says of files, bytes and requests is what is counted when it is written and read."""

from __future__ import annotations

import json
import math
import os
import random
import re
import threading

import dask.array as da
import numpy as np
import obstore
import pytest
from helpers import printed
from tiers import Drawn

import shardwrite
from shardwrite import SpecError
from shardwrite.grid import ShardGrid
from shardwrite.operations import design as module
from shardwrite.plan.design import STORAGES
from shardwrite.read.array import ShardedArray, open_sharded
from shardwrite.read.indexes import INDEXES

N_DESIGNS = 50
N_PLACES = 80
CLOSE = 0.1


class Counted:
    """Counts what is read of shards, in files and in a bucket of this process."""

    def __init__(self, monkeypatch):
        self.n_requests, self.nbytes, self.lock = 0, 0, threading.Lock()
        get = obstore.get

        def counting(store, name, *args, **kwargs):
            answer = get(store, name, *args, **kwargs)
            if name.startswith("c/"):
                first, stop = answer.range
                self.note(stop - first)
            return answer

        monkeypatch.setattr(obstore, "get", counting)

    def note(self, nbytes):
        with self.lock:
            self.n_requests, self.nbytes = self.n_requests + 1, self.nbytes + nbytes

    def of_file(self, array):
        """An array in a directory whose shards are read through this."""
        counted = self

        class Reader:
            is_distant = False

            def __init__(self, reader):
                self.reader, self.nbytes = reader, reader.nbytes

            def read(self, offset, nbytes):
                counted.note(nbytes)
                return self.reader.read(offset, nbytes)

            def __getattr__(self, name):
                return getattr(self.reader, name)

            def __enter__(self):
                self.reader.__enter__()
                return self

            def __exit__(self, *why):
                return self.reader.__exit__(*why)

        class Store:
            def __getattr__(self, name):
                return getattr(array.store, name)

            def open(self, key):
                reader = array.store.open(key)
                return None if reader is None else Reader(reader)

            def open_for(self, key, first, identity=None, *, whole_nbytes=0):
                return self.open(key)

        return ShardedArray(array.metadata, Store())


def places(shape, read, dice):
    """Places all over an array: along each axis, one from each of equal intervals."""
    axes = []
    for n, r in zip(shape, read, strict=True):
        starts = [int((k + dice.random()) / N_PLACES * (n - r + 1)) for k in range(N_PLACES)]
        dice.shuffle(starts)
        axes.append(starts)
    return zip(*axes, strict=True)


def random_design(number):
    """An array with noise, shapes for it, and a read."""
    dice = random.Random(number)
    ndim, dtype = dice.choice((1, 2, 2, 3, 3)), np.dtype(dice.choice(("u1", "u2", "f4")))
    while True:
        chunks = tuple(dice.randint(3, 24) ** (2 if ndim == 1 else 1) for _ in range(ndim))
        per_shard = tuple(dice.randint(1, 40 if ndim == 1 else 6) for _ in range(ndim))
        shards = tuple(k * c for k, c in zip(per_shard, chunks, strict=True))
        shape = tuple(dice.randint(max(1, s // 2), 3 * s + 1) for s in shards)
        if 2000 < math.prod(shape) < 2_000_000:
            break
    noise = np.random.default_rng(number).integers(0, 2 ** dice.randint(2, 8), shape)
    x = da.from_array(noise.astype(dtype), chunks=tuple(max(1, n // 2) for n in shape))
    reads = [tuple(dice.choice((1, max(1, n // 3), n)) for n in shape) for _ in range(2)]
    return x, ShardGrid(shape, shards, chunks), reads, dice


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(Drawn(n), marks=() if n % 10 == 0 else pytest.mark.long)
        for n in range(N_DESIGNS)
    ],
)
def test_predictions_are_what_is_counted(number, tmp_path, monkeypatch):
    x, grid, reads, dice = random_design(number)
    codec = dice.choice(module._codecs(x.dtype.itemsize, "archive"))
    measured = module._measured(module._sample(x), grid.chunks, codec)
    named = {str(k): read for k, read in enumerate(reads)}
    source = module._source(x, None)
    bucket, path = obstore.store.MemoryStore(), tmp_path / "x.zarr"
    how = {"shards": grid.shards, "chunks": grid.chunks, "compressors": codec.compressors}
    x.to_sharded_zarr(path, **how)
    x.to_sharded_zarr(bucket, **how)
    counted = Counted(monkeypatch)
    monkeypatch.setattr(INDEXES, "keep", lambda *_: None)  # nothing is known of an earlier read
    here = counted.of_file(open_sharded(path))
    for kind in ("local", "s3"):
        pricing = module._Pricing(source, named, STORAGES[kind], codec)
        foreseen = pricing.candidate(grid, 1.0, None, measured)
        shards = [p for p in path.rglob("c*/**/*") if p.is_file()]
        assert foreseen.n_files == len(shards)
        assert foreseen.stored_nbytes == pytest.approx(
            sum(p.stat().st_size for p in shards), rel=CLOSE
        )
        if kind == "local":
            assert foreseen.n_inodes == 1 + sum(
                len(folders) + len(files) for _, folders, files in os.walk(path)
            )
        else:
            listed = [each for page in obstore.list(bucket) for each in page]
            assert foreseen.n_inodes == len(listed)
        for read in foreseen.reads:
            counted.n_requests = counted.nbytes = 0
            for where in places(grid.shape, read.shape, dice):
                box = tuple(slice(a, a + r) for a, r in zip(where, read.shape, strict=True))
                (here if kind == "local" else open_sharded(bucket))[box]
            assert counted.n_requests / N_PLACES == pytest.approx(read.n_requests, rel=CLOSE), read
            assert counted.nbytes / N_PLACES == pytest.approx(read.nbytes, rel=CLOSE), read


@pytest.mark.compat
def test_a_design_is_written_as_it_says(tmp_path):
    x = da.random.default_rng(0).integers(0, 9, (40, 300, 200), dtype="u2", chunks=(10, 300, 200))
    found = shardwrite.design(x, purpose="ml", memory_limit="2GB")
    best = found.best
    assert best is found.candidates[0]
    assert best.factor <= 1.05 * min(each.factor for each in found.candidates)
    result = x.to_sharded_zarr(tmp_path / "x.zarr", **best.keywords)
    assert result.n_shards == best.n_files
    assert len({each.chunks for each in found.candidates}) == len(found.candidates)
    assert found.compression_ratio > 3
    assert best.stored_nbytes < x.nbytes / 3
    assert best.memory_nbytes <= 2 * 10**9
    told = json.loads(found.to_json())
    assert told["candidates"][0]["reads"][0]["n_requests"] == best.reads[0].n_requests
    assert "recommended" in str(found)
    assert "recommended" in found._repr_html_()
    assert str(best.shards) in str(best)


def test_what_does_not_compress_gets_a_checksum_alone():
    noise = np.random.default_rng(0).integers(0, 256, (256, 256), dtype="u1")
    best = shardwrite.design(da.from_array(noise, chunks=64)).best
    assert best.compressors == [{"name": "crc32c"}]


def test_bytes_that_differ_in_their_low_halves_are_shuffled():
    slow = np.linspace(0, 1000, 2**18).astype("f4")
    best = shardwrite.design(da.from_array(slow, chunks=2**16)).best
    assert best.compressors[0]["name"] == "blosc"


def test_only_a_few_places_of_the_source_are_read():
    seen = []

    def block(block_info=None):
        seen.append(block_info[None]["chunk-location"])
        return np.zeros((64, 64), "u1")

    x = da.map_blocks(
        block, chunks=((64,) * 50, (64,) * 50), dtype="u1", meta=np.zeros((0, 0), "u1")
    )
    shardwrite.design(x)
    assert 2 <= len(set(seen)) <= 6


def test_large_chunks_of_a_source_are_sampled_in_part():
    x = da.zeros((4, 20_000, 20_000), chunks=(1, 20_000, 20_000), dtype="u2")
    assert sum(part.nbytes for part in module._sample(x)) <= 6 * 4 * 2**20


@pytest.mark.parametrize(
    ("x", "how", "field"),
    [
        ((64, 64), {}, "dtype"),
        ((64, 64), {"dtype": "no such"}, "dtype"),
        (np.ones(4), {"dtype": "u1"}, "dtype"),
        ((64, 64), {"dtype": "u1", "purpose": "play"}, "purpose"),
        ((64, 64), {"dtype": "u1", "store": "tape"}, "store"),
        ((64, 64), {"dtype": "u1", "files": 0}, "files"),
        ((64, 64), {"dtype": "u1", "reads": ["1"]}, "reads"),
        ((64, 64), {"dtype": "u1", "reads": ["1,x"]}, "reads"),
        ((64, 64), {"dtype": "u1", "reads": [(0, 1)]}, "reads"),
        ((64, 64), {"dtype": "u1", "reads": [5]}, "reads"),
        ((64, 64), {"dtype": "O"}, "x.dtype"),
        (np.ones((0, 4)), {}, "x.shape"),
        (np.float64(3), {}, "x.shape"),
        ((10**6, 10**6), {"dtype": "u1", "files": 2}, "files"),
        ((64, 64), {"dtype": "u1", "memory_limit": "much"}, "memory_limit"),
        ((0, 64), {"dtype": "u1"}, "x.shape"),
        ((), {"dtype": "u1"}, "x.shape"),
        ((-1, 64), {"dtype": "u1"}, "x.shape"),
        ((2,) * 33, {"dtype": "u1"}, "x.shape"),
        ((1,) * 64, {"dtype": "u1"}, "x.shape"),
        (da.ones((1,) * 40), {}, "x.shape"),
        ((2**62 + 1,), {"dtype": "u1"}, "x.shape"),
        ((10**7, 10**7, 2**16), {"dtype": "u1", "files": 10**12, "memory_limit": "64GB"}, "files"),
        ((1000, 1000), {"dtype": "u1", "memory_limit": "1KB"}, "files"),
        ((64, 64), {"dtype": "u1", "reads": 5}, "reads"),
        ((64, 64), {"dtype": "u1", "reads": "1,64"}, "reads"),
        ((64, 64), {"dtype": "u1", "reads": [(1.5, 64)]}, "reads"),
    ],
)
def test_wrong_arguments_are_refused(x, how, field):
    with pytest.raises(SpecError) as caught:
        shardwrite.design(x, **how)
    assert caught.value.field == field
    assert caught.value.remedy


def test_more_files_or_more_memory_are_a_remedy():
    shape = (10**5, 10**5)
    with pytest.raises(SpecError, match=r"allow more files \(at most 67,108,864\), or more memory"):
        shardwrite.design(shape, dtype="u1", files=10, memory_limit="1GB")
    assert shardwrite.design(shape, dtype="u1", files=10, memory_limit="64GB").best.n_files <= 10
    assert shardwrite.design(shape, dtype="u1", files=1000, memory_limit="1GB").best.n_files > 10


@pytest.mark.compat
def test_the_command(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(32 * 64 * 64, dtype="u2").reshape(32, 64, 64))
    told = printed("design", tmp_path / "x.npy", "--for", "ml", "--memory", "4GB")
    shapes = re.search(r"to take the first: (--shards \S+ --chunks \S+)", told)[1].split()
    printed("write", tmp_path / "x.npy", tmp_path / "x.zarr", *shapes)
    by_shape = printed("design", "32,64,64", "--dtype", "u2", "--read", "1,-1,-1", "--json")
    found = json.loads(by_shape)
    assert found["purpose"] is None
    assert found["candidates"][0]["reads"][0]["shape"] == [1, 64, 64]
    refused = printed("design", "32,64", code=2)
    assert "--dtype" in refused


def test_sizes_by_axes_in_calls_and_commands(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(32 * 64 * 64, dtype="u2").reshape(32, 64, 64))
    words = ("--shards", "time=16,...=2 chunks", "--chunks", "0=8,...=16")
    printed(
        *("write", tmp_path / "x.npy", tmp_path / "x.zarr"), *words, "--dimension-names", "time,y,x"
    )
    grid = open_sharded(tmp_path / "x.zarr").metadata.grid
    assert (grid.shards, grid.chunks) == ((16, 32, 32), (8, 16, 16))
    path = tmp_path / "y.zarr"
    shardwrite.create(
        path,
        (32, 64),
        "u1",
        shards={"t": -1, ...: 32},
        chunks={...: 16},
        dimension_names=("t", "x"),
    )
    assert open_sharded(path).metadata.grid.shards == (32, 32)
    # In a conversion, shards are numbers of inner chunks.
    shardwrite.reshard(tmp_path / "x.zarr", tmp_path / "z.zarr", shards={"time": -1, ...: 1})
    assert open_sharded(tmp_path / "z.zarr").metadata.grid.shards == (32, 16, 16)
    shardwrite.reshard(
        tmp_path / "x.zarr", tmp_path / "w.zarr", shards="2 chunks", chunks={"time": 4, ...: -1}
    )
    grid = open_sharded(tmp_path / "w.zarr").metadata.grid
    assert (grid.shards, grid.chunks) == ((8, 64, 64), (4, 64, 64))
    told = printed("plan", tmp_path / "x.npy", "--shards", "q=4", code=2)
    assert "no axis is named 'q'" in told
    told = printed("plan", tmp_path / "x.npy", "--source-chunks", "q=4", code=2)
    assert "not the number of an axis" in told


def test_sizes_by_axes_are_compared_with_an_array_that_exists(tmp_path):
    x = da.ones((32, 64), chunks=16, dtype="u1")
    how = {"chunks": {"x": 8, ...: 16}, "dimension_names": ("t", "x"), "mode": "a"}
    x.to_sharded_zarr(tmp_path / "x.zarr", shards={"x": 16}, **how)
    x.to_sharded_zarr(tmp_path / "x.zarr", shards={"x": 16}, **how)
    with pytest.raises(SpecError, match="is not that of the array that exists"):
        x.to_sharded_zarr(tmp_path / "x.zarr", shards={"x": 32}, **how)

"""Volumes that shardwrite writes are read by tensorstore and by itself, over random parameters."""

from __future__ import annotations

import json

import dask
import dask.array as da
import numpy as np
import pytest
import tensorstore as ts
from tiers import drawn

import shardwrite

CASES = drawn(96, n_quick=12)
AXES = ["zyx", "xyz", "czyx", "xyzc", "yxz", "zcxy"]
DTYPES = ["uint8", "uint16", "uint32", "uint64", "int16", "int32", "float32"]


def case(number):
    """An array of dask with its axes, the keywords of the call, and the values as x, y, z, c."""
    rng = np.random.default_rng(number)
    axes = AXES[number % len(AXES)]
    n_channels = int(rng.integers(1, 4)) if "c" in axes else 1
    size = rng.integers(1, 40, 3).tolist()
    chunk = [int(rng.integers(1, 12)) for _ in range(3)]
    dtype = str(rng.choice(DTYPES))
    values = rng.integers(0, 200, (*size, n_channels)).astype(dtype)
    for _ in range(2):  # boxes of zeros, whose chunks are left out
        start = [int(rng.integers(0, n)) for n in size]
        values[tuple(slice(a, a + 14) for a in start)] = 0
    bits = sum((-(-n // c) - 1).bit_length() for n, c in zip(size, chunk, strict=True))
    low = int(rng.integers(0, bits + 3))
    minishard = int(rng.integers(0, min(low, 8) + 1))
    sharding = {
        "preshift_bits": low - minishard,
        "minishard_bits": minishard,
        "shard_bits": max(0, bits - low) + int(rng.integers(0, 3)),
        "minishard_index_encoding": str(rng.choice(["raw", "gzip"])),
        "data_encoding": str(rng.choice(["raw", "gzip"])),
    }
    order = ["xyzc".index(axis) for axis in axes]
    array = values.transpose(*order, *({0, 1, 2, 3} - set(order)))
    array = array if "c" in axes else array[..., 0]
    source = da.from_array(array, chunks=tuple(int(rng.integers(1, n + 1)) for n in array.shape))
    keywords = {
        "axes": axes,
        "resolution": [4, 4.5, 40],
        "voxel_offset": rng.integers(-20, 20, 3).tolist(),
        "chunks": chunk,
        "sharding": "auto" if number % 7 == 0 else sharding,
        "shard_nbytes": int(rng.integers(1, 20_000)),
        "index_nbytes": int(rng.integers(1, 500)),
        "write_empty_chunks": bool(rng.random() < 0.3),
    }
    return source, keywords, values


@pytest.mark.parametrize("number", CASES)
def test_tensorstore_reads_what_is_written(tmp_path, number):
    source, keywords, values = case(number)
    with dask.config.set(scheduler=["threads", "synchronous"][number % 2]):
        written = shardwrite.to_precomputed(source, tmp_path / "v", **keywords)
        theirs = ts.open(
            {
                "driver": "neuroglancer_precomputed",
                "kvstore": {"driver": "file", "path": f"{tmp_path}/v/"},
            }
        ).result()
        offset = tuple(keywords["voxel_offset"])
        assert theirs.domain.origin == (*offset, 0)
        np.testing.assert_array_equal(np.asarray(theirs), values)
        ours = shardwrite.from_precomputed(tmp_path / "v", axes="xyzc")
        np.testing.assert_array_equal(ours, values)
        report = shardwrite.verify(written.path, deep=True)
        assert report.is_good
        again = shardwrite.to_precomputed(source, tmp_path / "v", **keywords)
        assert again.n_resumed_shards == written.n_shards + written.n_empty_shards


@pytest.mark.parametrize("by", ["hash", "few bits"])
@pytest.mark.parametrize("number", CASES[1:5] + CASES[24:64])
def test_chunks_that_are_scattered(tmp_path, number, by):
    source, keywords, values = case(number)
    if keywords["sharding"] == "auto":
        keywords["sharding"] = {"preshift_bits": 1, "minishard_bits": 2, "shard_bits": 2}
    if by == "hash":
        keywords["sharding"]["hash"] = "murmurhash3_x86_128"
    else:  # far parts of the volume share a shard
        keywords["sharding"] |= {"preshift_bits": number % 2, "minishard_bits": 1, "shard_bits": 1}
    with dask.config.set(scheduler=["threads", "synchronous"][number % 2]):
        written = shardwrite.to_precomputed(source, tmp_path / "v", **keywords)
        theirs = ts.open(
            {
                "driver": "neuroglancer_precomputed",
                "kvstore": {"driver": "file", "path": f"{tmp_path}/v/"},
            }
        ).result()
        np.testing.assert_array_equal(np.asarray(theirs), values)
        if by == "few bits" and number < 40 and (cloudvolume := _cloud_volume()) is not None:
            theirs_too = cloudvolume.CloudVolume(
                f"file://{tmp_path}/v", progress=False, fill_missing=True
            )
            np.testing.assert_array_equal(np.asarray(theirs_too[...]), values)
        ours = shardwrite.from_precomputed(tmp_path / "v", axes="xyzc")
        np.testing.assert_array_equal(ours, values)
        assert shardwrite.verify(written.path, deep=True).is_good
        again = shardwrite.to_precomputed(source, tmp_path / "v", **keywords)
        assert again.n_resumed_shards == written.n_shards + written.n_empty_shards
    shards = shardwrite.UInt64Shards(
        written.path, theirs.spec().to_json()["scale_metadata"]["sharding"]
    )
    assert shards.verify(deep=True).is_good
    assert len(shards) == written.n_chunks - written.n_empty_chunks


def _cloud_volume():
    try:
        import cloudvolume
    except ImportError:
        return None
    return cloudvolume


@pytest.mark.parametrize("number", CASES[1:6] + CASES[24:60])
def test_the_container_alone_reads_every_chunk(tmp_path, number):
    """The ids in the shards are those of the chunks that are not empty, and no others."""
    source, keywords, values = case(number)
    written = shardwrite.to_precomputed(source, tmp_path / "v", **keywords)
    scale = json.loads((tmp_path / "v" / "info").read_text())["scales"][0]
    shards = shardwrite.UInt64Shards(tmp_path / "v" / scale["key"], scale["sharding"])
    assert shards.verify(deep=True).is_good
    assert len(shards) == written.n_chunks - written.n_empty_chunks
    chunk = keywords["chunks"]
    cells = np.ndindex(*(-(-n // c) for n, c in zip(values.shape, chunk, strict=False)))
    boxes = (
        values[tuple(slice(i * c, (i + 1) * c) for i, c in zip(cell, chunk, strict=True))]
        for cell in cells
    )
    expected = [
        box.ravel(order="F").tobytes()
        for box in boxes
        if keywords["write_empty_chunks"] or box.any()
    ]
    assert sorted(map(bytes, shards.values())) == sorted(expected)


@pytest.mark.parametrize("number", CASES[:2] + CASES[24:34])
def test_cloud_volume_reads_what_is_written(tmp_path, number):
    cloudvolume = pytest.importorskip("cloudvolume")
    source, keywords, values = case(number)
    shardwrite.to_precomputed(source, tmp_path / "v", **keywords)
    theirs = cloudvolume.CloudVolume(f"file://{tmp_path}/v", progress=False, fill_missing=True)
    np.testing.assert_array_equal(np.asarray(theirs[...]), values)

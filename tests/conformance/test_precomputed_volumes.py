"""Volumes that tensorstore and cloud-volume write are read, over random parameters."""

from __future__ import annotations

import numpy as np
import pytest
import tensorstore as ts
from tiers import drawn

import shardwrite

CASES = drawn(50, n_quick=10)


def case(number):
    """Metadata of a volume and of its scale, and values."""
    rng = np.random.default_rng(number)
    shape = rng.integers(1, 14, 3).tolist()
    chunk = [int(rng.integers(1, min(n, 6) + 1)) for n in shape]
    dtype = str(rng.choice(["uint8", "uint16", "uint32", "uint64", "float32"]))
    n_channels = int(rng.choice([1, 1, 3]))
    scale = {
        "key": "s0",
        "size": shape,
        "encoding": "raw",
        "chunk_size": chunk,
        "resolution": [4, 4, 40],
        "voxel_offset": rng.integers(0, 20, 3).tolist(),
    }
    if rng.random() < 0.8:
        scale["sharding"] = {
            "@type": "neuroglancer_uint64_sharded_v1",
            "preshift_bits": int(rng.integers(0, 5)),
            "hash": str(rng.choice(["identity", "murmurhash3_x86_128"])),
            "minishard_bits": int(rng.integers(0, 5)),
            "shard_bits": int(rng.integers(0, 6)),
            "minishard_index_encoding": str(rng.choice(["raw", "gzip"])),
            "data_encoding": str(rng.choice(["raw", "gzip"])),
        }
    volume = {"type": "image", "data_type": dtype, "num_channels": n_channels}
    values = rng.integers(0, 200, (*shape, n_channels)).astype(dtype)
    empty = rng.random() < 0.5
    if empty:
        values[tuple(slice(0, c) for c in chunk)] = 0
    return volume, scale, values


@pytest.mark.parametrize("number", CASES)
def test_volumes_of_tensorstore(tmp_path, number):
    volume, scale, values = case(number)
    spec = {
        "driver": "neuroglancer_precomputed",
        "kvstore": {"driver": "file", "path": f"{tmp_path}/v/"},
        "multiscale_metadata": volume,
        "scale_metadata": scale,
    }
    with ts.Transaction() as transaction:
        theirs = ts.open(spec, create=True).result()
        theirs.with_transaction(transaction)[...] = values
    np.testing.assert_array_equal(shardwrite.from_precomputed(tmp_path / "v", axes="xyzc"), values)


@pytest.mark.parametrize("number", CASES[:3] + CASES[10:40])
def test_volumes_of_cloud_volume(tmp_path, number):
    """It writes files, gzipped."""
    cloudvolume = pytest.importorskip("cloudvolume")
    volume, scale, values = case(number)
    info = cloudvolume.CloudVolume.create_new_info(
        num_channels=volume["num_channels"],
        layer_type="image",
        data_type=volume["data_type"],
        encoding="raw",
        resolution=scale["resolution"],
        voxel_offset=scale["voxel_offset"],
        volume_size=scale["size"],
        chunk_size=scale["chunk_size"],
    )
    theirs = cloudvolume.CloudVolume(f"file://{tmp_path}/v", info=info, progress=False)
    theirs.commit_info()
    theirs[...] = values
    np.testing.assert_array_equal(shardwrite.from_precomputed(tmp_path / "v", axes="xyzc"), values)

"""Scales of volumes that nothing else may replace, and those that are converted to no array."""

from __future__ import annotations

import json
from pathlib import Path

import dask.array as da
import h5py
import numpy as np
import obstore
import pytest
from click.testing import CliRunner
from helpers import contents

import shardwrite
from shardwrite.cli import main
from shardwrite.errors import SpecError

KEY = "4_4_40"
VALUES = np.arange(1, 1 + 8**3, dtype="uint32").reshape(8, 8, 8)
LISTS_IT = "it is a scale of a volume of Neuroglancer, whose info would go on to list it"


def make(root, values=VALUES, code="identity", **changed):
    sharding = {"preshift_bits": 0, "minishard_bits": 1, "shard_bits": 2, "hash": code}
    new = {"axes": "zyx", "resolution": (4, 4, 40), "chunks": 4, "sharding": sharding}
    shardwrite.to_precomputed(values, root, **{**new, **changed})
    return Path(root) / KEY if isinstance(root, Path) else None


def check(root, values=VALUES):
    np.testing.assert_array_equal(shardwrite.from_precomputed(root, axes="zyx"), values)


def in_place(scale, _):
    return {
        "shard": lambda: shardwrite.shard(scale, shards=2),
        "reshard": lambda: shardwrite.reshard(scale, 2),
        "unshard": lambda: shardwrite.unshard(scale),
        "shard_store": lambda: shardwrite.shard_store(scale, 2),
        "unshard_store": lambda: shardwrite.unshard_store(scale),
    }


def over_it(scale, other):
    x = da.from_array(VALUES, chunks=4)
    shape = {"shards": 4, "chunks": 2}
    return {
        "write": lambda: x.to_sharded_zarr(scale, mode="w", **shape),
        "overwrite": lambda: x.to_sharded_zarr(scale, overwrite=True, **shape),
        "create": lambda: shardwrite.create(scale, (8, 8), "u1", mode="w", **shape),
        "convert": lambda: shardwrite.reshard(other, scale, 1, mode="w"),
        "prepare": lambda: shardwrite.prepare(x, scale, shardwrite.plan(x, **shape), mode="w"),
        "download": lambda: shardwrite.download(other, scale, mode="w"),
    }


@pytest.mark.parametrize("way", in_place(None, None))
def test_no_scale_is_converted_in_its_place(tmp_path, way):
    scale = make(tmp_path / "v")
    before = contents(tmp_path)
    with pytest.raises(SpecError, match=f"{LISTS_IT}.*give another place for what is made of it"):
        in_place(scale, None)[way]()
    assert contents(tmp_path) == before
    shardwrite.unshard(scale, tmp_path / "a")  # as the error says
    np.testing.assert_array_equal(shardwrite.from_sharded_zarr(tmp_path / "a"), VALUES)


def test_no_volume_is_converted_in_its_place(tmp_path):
    make(tmp_path / "v")
    before = contents(tmp_path)
    with pytest.raises(SpecError, match=f"'{KEY}': {LISTS_IT}"):
        shardwrite.shard(tmp_path / "v", shards=2)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("way", over_it(None, None))
def test_nothing_else_is_written_over_a_scale(tmp_path, way):
    scale = make(tmp_path / "v")
    da.ones((8, 8), dtype="u1").to_sharded_zarr(tmp_path / "a", shards=4, chunks=2)
    before = contents(tmp_path)
    with pytest.raises(SpecError, match=f"{LISTS_IT}; give another path, or remove the scale"):
        over_it(scale, tmp_path / "a")[way]()
    assert contents(tmp_path) == before
    check(tmp_path / "v")


@pytest.mark.parametrize("code", ["identity", "murmurhash3_x86_128"])
def test_the_remedies(tmp_path, code):
    """Another path, or a scale that was removed by hand."""
    scale = make(tmp_path / "v", code=code)
    x = da.from_array(VALUES, chunks=4)
    np.save(tmp_path / "x.npy", VALUES)
    words = ["write", str(tmp_path / "x.npy"), str(scale), "--shards", "4", "--chunks", "2"]
    done = CliRunner().invoke(main, [*words, "--overwrite"])
    assert done.exit_code == 2, done.output
    assert "whose info would go on to list it" in " ".join(done.output.split())
    x.to_sharded_zarr(tmp_path / "a", shards=4, chunks=2, mode="w")
    info = json.loads((tmp_path / "v/info").read_text())
    (tmp_path / "v/info").write_text(json.dumps({**info, "scales": []}))
    for path in scale.iterdir():
        path.unlink()
    scale.rmdir()
    x.to_sharded_zarr(scale, shards=4, chunks=2, mode="w")
    np.testing.assert_array_equal(shardwrite.from_sharded_zarr(scale), VALUES)


def test_a_bucket():
    bucket = obstore.store.MemoryStore()
    make(bucket)
    x = da.from_array(VALUES, chunks=4)
    with pytest.raises(SpecError, match=r"whose info would go on|where its group should be"):
        x.to_sharded_zarr(bucket, name=KEY, shards=4, chunks=2, mode="w")
    check(bucket)


def test_files_are_not_adopted_as_a_scale(tmp_path):
    scale = make(tmp_path / "v")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=VALUES, chunks=(4, 4, 4))
    with pytest.raises(SpecError, match="an array exists there"):
        shardwrite.adopt([tmp_path / "a.h5"], scale, dataset="x")
    check(tmp_path / "v")


@pytest.mark.long
def test_copies_of_scales_and_volumes_replace_such(tmp_path):
    """As long as the info that stands there in the end describes what was copied."""
    other = VALUES[::-1] + 1
    one, two = tmp_path / "one", tmp_path / "two"
    make(one, other)
    make(two)
    shardwrite.download(one / KEY, two / KEY, mode="w")
    check(two, other)
    make(tmp_path / "small", VALUES[:4])
    before = contents(two)
    with pytest.raises(SpecError, match="has another scale of this key"):
        shardwrite.download(tmp_path / "small" / KEY, two / KEY, mode="w")
    assert contents(two) == before
    shardwrite.download(tmp_path / "small", two, mode="w")
    check(two, VALUES[:4])
    shardwrite.download(one / KEY, tmp_path / "alone", mode="w")
    shardwrite.download(two / KEY, tmp_path / "alone", mode="w")  # which lies in no volume
    bucket = obstore.store.MemoryStore()
    shardwrite.upload(one / KEY, bucket)
    shardwrite.upload(two / KEY, bucket, mode="w")
    assert shardwrite.open_sharded(bucket).shape == (4, 8, 8)


@pytest.mark.parametrize("way", ["shard", "reshard", "unshard"])
def test_chunks_that_a_hash_scatters_are_no_image(tmp_path, way):
    scale = make(tmp_path / "v", code="murmurhash3_x86_128")
    before = contents(tmp_path)
    given = () if way == "unshard" else (2,)
    convert = getattr(shardwrite, way)
    for src, dst in ((scale, tmp_path / "a"), (tmp_path / "v", tmp_path / "a"), (scale, None)):
        with pytest.raises(SpecError, match=r"the hash murmurhash3_x86_128 .* read the volume"):
            convert(src, dst, *given) if dst is not None else convert(src, None, *given)
    with pytest.raises(SpecError, match="the hash murmurhash3_x86_128"):
        shardwrite.prepare_conversion(scale, tmp_path / "a", 2)
    assert contents(tmp_path) == before
    # as the error says
    words = ["write", str(tmp_path / "v"), str(tmp_path / "a"), "--shards", "4", "--chunks", "2"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    np.testing.assert_array_equal(shardwrite.from_sharded_zarr(tmp_path / "a"), VALUES.T)
    shardwrite.download(tmp_path / "v", tmp_path / "copy")
    check(tmp_path / "copy")

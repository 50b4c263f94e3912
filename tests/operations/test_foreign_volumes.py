"""Volumes of Neuroglancer that other programs wrote, as the source of every command."""

from __future__ import annotations

import json
import tracemalloc

import dask
import numpy as np
import pytest
import zarr
from click.testing import CliRunner

import shardwrite
from shardwrite.cli import main
from shardwrite.errors import IncompleteError, SpecError

ts = pytest.importorskip("tensorstore")

SHAPE, CHUNK = (40, 30, 20), (16, 12, 8)
SHARDED = {
    "@type": "neuroglancer_uint64_sharded_v1",
    "preshift_bits": 1,
    "minishard_bits": 1,
    "shard_bits": 2,
    "minishard_index_encoding": "gzip",
    "data_encoding": "gzip",
}
SHARDINGS = {
    "files": None,
    "identity": {**SHARDED, "hash": "identity"},
    "murmur": {**SHARDED, "hash": "murmurhash3_x86_128"},
}
ENCODINGS = {
    "raw": ("uint16", 1, {}),
    "two channels": ("uint8", 2, {}),
    "compressed_segmentation": ("uint64", 1, {"compressed_segmentation_block_size": [8, 8, 8]}),
    "png": ("uint8", 1, {}),
    "jpeg": ("uint8", 1, {"jpeg_quality": 90}),
}


def values_of(dtype, n_channels, shape=SHAPE):
    values = np.random.default_rng(0).integers(1, 200, (*shape, n_channels)).astype(dtype)
    values[: CHUNK[0], : CHUNK[1], : CHUNK[2]] = 0  # no file of it is stored
    return values


def by_tensorstore(
    path, encoding="raw", sharding=None, *, key="s0", resolution=(4, 4, 40), shape=SHAPE
):
    """Write a scale with tensorstore, and return the values that it reads."""
    dtype, n_channels, more = ENCODINGS[encoding]
    scale = {
        "key": key,
        "size": shape,
        "encoding": "raw" if encoding == "two channels" else encoding,
        "chunk_size": CHUNK,
        "resolution": resolution,
        "voxel_offset": [3, 4, 5],
        **more,
        **({} if sharding is None else {"sharding": sharding}),
    }
    kind = "segmentation" if encoding == "compressed_segmentation" else "image"
    spec = {
        "driver": "neuroglancer_precomputed",
        "kvstore": {"driver": "file", "path": f"{path}/"},
        "multiscale_metadata": {"type": kind, "data_type": dtype, "num_channels": n_channels},
        "scale_metadata": scale,
    }
    opened = ts.open(spec, create=True).result()
    with ts.Transaction() as transaction:
        opened.with_transaction(transaction)[...] = values_of(dtype, n_channels, shape)
    found = opened.read().result()
    return found[..., 0] if n_channels == 1 else found


def by_cloudvolume(path, encoding="raw"):
    cloudvolume = pytest.importorskip("cloudvolume")
    dtype, n_channels, more = ENCODINGS[encoding]
    info = cloudvolume.CloudVolume.create_new_info(
        num_channels=n_channels,
        layer_type="segmentation" if encoding == "compressed_segmentation" else "image",
        data_type=dtype,
        encoding="raw" if encoding == "two channels" else encoding,
        resolution=[4, 4, 40],
        voxel_offset=[3, 4, 5],
        volume_size=SHAPE,
        chunk_size=CHUNK,
        **(
            {"compressed_segmentation_block_size": [8, 8, 8]}
            if more and "jpeg_quality" not in more
            else {}
        ),
    )
    volume = cloudvolume.CloudVolume(f"file://{path}", info=info, progress=False)
    volume.commit_info()
    volume[...] = values_of(dtype, n_channels)
    found = np.asarray(volume[...])
    return found[..., 0] if n_channels == 1 else found


def content_of(path):
    return {p.relative_to(path): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def run(*arguments):
    found = CliRunner().invoke(main, [str(argument) for argument in arguments])
    return found.exit_code, found.output


def check_arrays(tmp_path, values):
    """Each command that converts makes the same array, and leaves the volume as it is."""
    volume = tmp_path / "v"
    before = content_of(volume)
    (key,) = [p.name for p in volume.iterdir() if p.is_dir()]
    for n, (source, inside) in enumerate(
        ((volume, key), (volume / key, ""), (f"{volume}::{key}", ""))
    ):
        for made, done in (
            (f"s{n}", shardwrite.shard(source, tmp_path / f"s{n}", shards=2)),
            (f"u{n}", shardwrite.unshard(source, tmp_path / f"u{n}")),
            (f"r{n}", shardwrite.reshard(source, tmp_path / f"r{n}", shards=2, chunks=5)),
        ):
            assert [array.name for array in done.arrays] == [inside]
            assert "another program wrote" in str(done)
            x = zarr.open_array(tmp_path / made / inside, mode="r")
            np.testing.assert_array_equal(x[...], values)
            assert x.metadata.dimension_names == ("x", "y", "z", "channel")[: values.ndim]
            assert x.attrs["precomputed"]["voxel_offset"] == [3, 4, 5]
            assert x.attrs["precomputed"]["resolution"] == [4, 4, 40]
            assert x.chunks[:3] == ((5, 5, 5) if made[0] == "r" else CHUNK)
            assert (x.shards is None) == (made[0] == "u")
    assert content_of(volume) == before


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_volumes_of_tensorstore_become_arrays(tmp_path, encoding, sharding):
    check_arrays(tmp_path, by_tensorstore(tmp_path / "v", encoding, SHARDINGS[sharding]))


@pytest.mark.parametrize("encoding", [name for name in ENCODINGS if name != "png"])
def test_volumes_of_cloud_volume_become_arrays(tmp_path, encoding):
    check_arrays(tmp_path, by_cloudvolume(tmp_path / "v", encoding))


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_a_plan_counts_what_is_there(tmp_path, sharding):
    values = by_tensorstore(tmp_path / "v", "raw", SHARDINGS[sharding])
    (planned,) = shardwrite.plan_reshard(tmp_path / "v", 2).arrays
    n_chunks = 3 * 3 * 3 - 1
    assert (planned.name, planned.shape, planned.how) == ("s0", values.shape, "re-encoded")
    assert (planned.n_chunks_copied, planned.n_chunks_encoded) == (0, n_chunks)
    files = [p for p in (tmp_path / "v/s0").iterdir() if p.is_file()]
    assert planned.n_files_before == len(files) == (n_chunks if sharding == "files" else 4)
    assert planned.nbytes == sum(p.stat().st_size for p in files)
    assert not planned.is_estimate
    done = shardwrite.reshard(tmp_path / "v", tmp_path / "new", shards=2)
    assert planned.n_files_after == done.arrays[0].result.n_shards
    code, output = run("reshard", "--dry-run", tmp_path / "v", tmp_path / "other", "--shards", 2)
    assert code == 0, output
    assert "axes: x, y, z" in output


def test_a_plan_of_very_many_files_is_an_estimate(tmp_path, monkeypatch):
    for sharding in ("files", "murmur"):
        by_tensorstore(tmp_path / sharding, "raw", SHARDINGS[sharding])
    monkeypatch.setattr("shardwrite.volumes.source._MOST_LOOKED_AT", 5)
    monkeypatch.setattr("shardwrite.volumes.source._MOST_SHARDS", 2)
    (files,) = shardwrite.plan_reshard(tmp_path / "files", 2).arrays
    (shards,) = shardwrite.plan_reshard(tmp_path / "murmur", 2).arrays
    assert files.is_estimate
    assert shards.is_estimate
    assert (files.n_chunks_encoded, files.n_files_before, shards.n_files_before) == (26, 26, 4)
    assert 10 < shards.n_chunks_encoded <= 27


def test_a_plan_of_very_many_chunks_costs_nothing(tmp_path, monkeypatch):
    """With more shards than are looked at, all chunks were counted in memory: 8 GB here."""
    monkeypatch.setattr("shardwrite.volumes.source._MOST_SHARDS", 1)
    sharding = {**SHARDINGS["identity"], "preshift_bits": 9, "minishard_bits": 0, "shard_bits": 21}
    scale = {"key": "s0", "size": [2**17, 2**17, 2**14], "resolution": [4, 4, 40]}
    scale |= {"chunk_sizes": [[64, 64, 64]], "encoding": "raw", "sharding": sharding}
    info = {"type": "image", "data_type": "uint8", "num_channels": 1, "scales": [scale]}
    shardwrite.UInt64Shards(tmp_path / "s0", sharding).write({0: bytes(64**3), 512: b""})
    (tmp_path / "info").write_text(json.dumps(info))
    tracemalloc.start()
    (planned,) = shardwrite.plan_reshard(tmp_path).arrays
    assert tracemalloc.get_traced_memory()[1] < 2**26
    tracemalloc.stop()
    assert planned.is_estimate
    assert (planned.n_files_before, planned.n_chunks_encoded) == (2, 2)


def test_each_scale_becomes_an_array(tmp_path):
    fine = by_tensorstore(tmp_path / "v", "raw", SHARDINGS["identity"])
    coarse = by_tensorstore(
        tmp_path / "v", "raw", None, key="s1", resolution=(8, 8, 40), shape=(20, 15, 20)
    )
    done = shardwrite.reshard(tmp_path / "v", tmp_path / "all", shards=2)
    assert [array.name for array in done.arrays] == ["s0", "s1"]
    group = zarr.open_group(tmp_path / "all", mode="r")
    np.testing.assert_array_equal(group["s0"][...], fine)
    np.testing.assert_array_equal(group["s1"][...], coarse)
    done = shardwrite.reshard(tmp_path / "v", tmp_path / "one", shards=2, include="s1")
    assert [array.name for array in done.arrays] == ["s1"]
    assert done.left_out == (("s0", "not asked for"),)
    with pytest.raises(SpecError, match="no array is left"):
        shardwrite.reshard(tmp_path / "v", tmp_path / "none", shards=2, include="x*")
    # a scale of our own beside it is an array already, and stays one
    own = shardwrite.from_precomputed(tmp_path / "v")[::4, ::4]
    shardwrite.to_precomputed(own, tmp_path / "v", axes="xyz", resolution=(16, 16, 40), key="own")
    shardwrite.reshard(tmp_path / "v", tmp_path / "three", shards=2)
    group = zarr.open_group(tmp_path / "three", mode="r")
    np.testing.assert_array_equal(group["s0"][...], fine)
    np.testing.assert_array_equal(group["own"][...], fine[::4, ::4].T)


def test_stores_that_are_no_directory(tmp_path):
    values = by_tensorstore(tmp_path / "v", "raw", SHARDINGS["identity"])
    store = zarr.storage.LocalStore(tmp_path / "v")
    shardwrite.reshard(store, tmp_path / "a", shards=2)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "a/s0", mode="r")[...], values)
    obstore = pytest.importorskip("obstore")
    bucket = obstore.store.MemoryStore()
    for path, data in content_of(tmp_path / "v").items():
        bucket.put(f"deep/{path.as_posix()}", data)
    inside = zarr.storage.StorePath(zarr.storage.ObjectStore(bucket), "deep")
    for n, (source, name) in enumerate(((inside, "s0"), (inside / "s0", ""))):
        shardwrite.reshard(source, tmp_path / f"b{n}", shards=2)
        x = zarr.open_array(tmp_path / f"b{n}" / name, mode="r")
        np.testing.assert_array_equal(x[...], values)


def test_a_conversion_goes_on_and_is_made_in_parts(tmp_path):
    values = by_tensorstore(tmp_path / "v", "raw", SHARDINGS["murmur"])
    volume, seen = tmp_path / "v", []

    def stop(report):
        seen.append(report)
        if len(seen) == 2:
            raise KeyboardInterrupt

    with dask.config.set(scheduler="sync"):
        with pytest.raises((KeyboardInterrupt, IncompleteError)):
            shardwrite.shard(volume, tmp_path / "a", 1, memory_limit="120kB", progress=stop)
        (array,) = shardwrite.shard(volume, tmp_path / "a", 1, memory_limit="120kB").arrays
    assert 0 < array.result.n_resumed_shards < array.result.n_shards
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "a/s0", mode="r")[...], values)
    shardwrite.prepare_conversion(volume, tmp_path / "b", 1)
    for part in range(2):
        shardwrite.convert_part(volume, tmp_path / "b", part, 2, shards=1)
    shardwrite.finalize_conversion(volume, tmp_path / "b", shards=1)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "b/s0", mode="r")[...], values)


@pytest.mark.parametrize("encoding", ["raw", "compressed_segmentation"])
def test_a_volume_becomes_a_volume(tmp_path, encoding):
    values = by_tensorstore(tmp_path / "v", encoding, None)
    before = content_of(tmp_path / "v")
    for n, source in enumerate((tmp_path / "v", f"{tmp_path / 'v'}::s0")):
        new = tmp_path / f"new{n}"
        code, output = run("precomputed", source, new, "--key", "k", "--chunks", 16)
        assert code == 0, output
        info = json.loads((new / "info").read_text())
        assert info["type"] == ("image" if encoding == "raw" else "segmentation")
        assert info["scales"][0]["voxel_offset"] == [3, 4, 5]
        assert info["scales"][0]["resolution"] == [4, 4, 40]
        np.testing.assert_array_equal(shardwrite.from_precomputed(new), values)
    code, output = run("precomputed", tmp_path / "v", tmp_path / "v")
    assert (code, "it is the source" in output) == (2, True)
    assert content_of(tmp_path / "v") == before


def test_a_foreign_volume_is_never_changed_or_replaced(tmp_path):
    volume = tmp_path / "v"
    values = by_tensorstore(volume, "raw", SHARDINGS["identity"])
    before = content_of(volume)
    for source in (volume, volume / "s0"):
        with pytest.raises(SpecError, match="cannot be converted in its place: it is a volume"):
            shardwrite.reshard(source, shards=2)
        with pytest.raises(SpecError, match="use reshard without consume"):
            shardwrite.reshard(source, tmp_path / "new", shards=2, consume=True)
        with pytest.raises(SpecError, match="which is the source"):
            shardwrite.reshard(source, source, shards=2, mode="w")
        with pytest.raises(SpecError, match="use reshard without consume"):
            shardwrite.upload(source, "memory://new-volume")
        with pytest.raises(SpecError, match="make Zarr arrays of it by shardwrite reshard"):
            shardwrite.verify(source)
        with pytest.raises(SpecError, match="only chunks that are copied as they are"):
            shardwrite.reshard(source, tmp_path / "new", shards=2, while_growing=0)
    for command in ("info", "verify", "census", "compact"):
        code, output = run(command, volume / "s0")
        assert (code, "shardwrite reshard" in output) == (2, True)
    for command in (["plan"], ["write", "--shards", "32"]):
        code, output = run(command[0], volume / "s0", tmp_path / "new", *command[1:])
        assert (code, f"{volume}::s0" in output) == (2, True)
        code, output = run(command[0], f"{volume}::s0", tmp_path / "new", *command[1:])
        assert code == 0, output
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "new", mode="r")[...], values)
    assert content_of(volume) == before


def test_what_cannot_be_read_is_refused(tmp_path):
    by_tensorstore(tmp_path / "v", "raw", None)
    info = json.loads((tmp_path / "v/info").read_text())
    info["scales"][0]["encoding"] = "compresso"
    (tmp_path / "v/info").write_text(json.dumps(info))
    with pytest.raises(SpecError, match="compresso") as caught:
        shardwrite.reshard(tmp_path / "v", tmp_path / "new", shards=2)
    assert caught.value.field == "encoding"
    assert not (tmp_path / "new").exists()
    (tmp_path / "v/info").write_text("{}")
    with pytest.raises(SpecError) as caught:
        shardwrite.reshard(tmp_path / "v", tmp_path / "new", shards=2)
    assert caught.value.field == "data_type"

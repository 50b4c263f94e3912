"""A compressor that is only named keeps the checksum; codecs that are spelled out are exactly these."""

from __future__ import annotations

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from click.testing import CliRunner

import shardwrite
from shardwrite.cli import main

X = np.arange(64, dtype="f4").reshape(8, 8)
GOOD = {"shards": 8, "chunks": 4}


def names(path):
    """Names of the codecs of the inner chunks, as zarr-python reads them."""
    (codec,) = zarr.open_array(path, mode="r").metadata.codecs
    found = [one.to_dict()["name"] for one in getattr(codec, "codecs", [codec])]
    return found[1:]


def write(path, **keywords):
    return da.from_array(X, chunks=4).to_sharded_zarr(path, **{**GOOD, **keywords})


GIVEN = {
    "auto": ("auto", ["zstd", "crc32c"]),
    "name": ("zstd", ["zstd", "crc32c"]),
    "another name": ("gzip", ["gzip", "crc32c"]),
    "checksum": ("crc32c", ["crc32c"]),
    "list of names": (["zstd"], ["zstd"]),
    "mapping": ({"name": "gzip", "configuration": {"level": 1}}, ["gzip"]),
    "object": (zarr.codecs.ZstdCodec(), ["zstd"]),
    "objects": ([zarr.codecs.GzipCodec(), zarr.codecs.Crc32cCodec()], ["gzip", "crc32c"]),
    "none": (None, []),
}


@pytest.mark.parametrize("name", GIVEN)
def test_in_python(tmp_path, name):
    compressors, wanted = GIVEN[name]
    write(tmp_path / "a", compressors=compressors)
    assert names(tmp_path / "a") == wanted
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "a", mode="r")[...], X)
    write(tmp_path / "flat", compressors=["gzip"])
    shardwrite.reshard(tmp_path / "flat", tmp_path / "b", 4, chunks=2, compressors=compressors)
    assert names(tmp_path / "b") == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("zstd", ["zstd", "crc32c"]),
        ('["zstd"]', ["zstd"]),
        ('[{"name": "gzip", "configuration": {"level": 1}}]', ["gzip"]),
        ("none", []),
    ],
)
def test_commands(tmp_path, text, wanted):
    np.save(tmp_path / "x.npy", X)
    for words in (
        ["write", "x.npy", "a", "--shards", "8", "--chunks", "4"],
        ["reshard", "a", "b", "--shards", "4", "--chunks", "2"],
    ):
        words = [str(tmp_path / w) if w in ("x.npy", "a", "b") else w for w in words]
        result = CliRunner().invoke(main, [*words, "--compressors", text])
        assert result.exit_code == 0, result.output
        assert names(words[2]) == wanted


def test_a_conversion_may_drop_it(tmp_path):
    write(tmp_path / "a")
    shardwrite.reshard(tmp_path / "a", tmp_path / "b", 4, compressors="gzip", checksum=False)
    assert names(tmp_path / "b") == ["gzip"]


def test_a_setting(tmp_path):
    with dask.config.set({"shardwrite.array.compressors": "gzip"}):
        write(tmp_path / "a")
    assert names(tmp_path / "a") == ["gzip", "crc32c"]


def test_files_of_hdf5_have_none(tmp_path):
    pytest.importorskip("h5py")
    write(tmp_path / "a", compressors="zstd", strategy="hdf5")
    assert names(tmp_path / "a") == ["zstd"]


def test_no_bit_flip_is_read_as_a_value(tmp_path):
    """What the checksum is for."""
    noise = np.random.default_rng(0).normal(size=(8, 8))
    da.from_array(noise, chunks=8).to_sharded_zarr(tmp_path / "a", compressors="zstd", **GOOD)
    shard = bytearray((tmp_path / "a/c/0/0").read_bytes())
    shard[20] ^= 1
    (tmp_path / "a/c/0/0").write_bytes(shard)
    with pytest.raises(shardwrite.CorruptShardError):
        shardwrite.open_sharded(tmp_path / "a")[...]

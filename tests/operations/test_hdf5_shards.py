"""Shards that are files of HDF5: what readers of HDF5 and of Zarr find in them, value by value, and
who may change them."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shutil
import stat
import subprocess
import textwrap
import threading
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import tensorstore as ts
import zarr
from click.testing import CliRunner
from forks import python
from tiers import some

import shardwrite
from shardwrite import AppendOnly, FixedOrder, Hdf5, ShardWriter, SpecError
from shardwrite.cli import main
from shardwrite.format.metadata import parse_metadata

h5py = pytest.importorskip("h5py")
hdf5plugin = pytest.importorskip("hdf5plugin")

SHAPE, SHARDS, CHUNKS = (50, 23), (32, 16), (8, 4)
IN_CHUNKS = (4, 4)
ZLIB = {"name": "numcodecs.zlib", "configuration": {"level": 4}}
BZ2 = {"name": "numcodecs.bz2", "configuration": {"level": 3}}
FLETCHER = {"name": "numcodecs.fletcher32", "configuration": {}}
ZSTD = {"name": "zstd", "configuration": {"level": 3, "checksum": False}}
ZSTD_CHECKED = {"name": "zstd", "configuration": {"level": 1, "checksum": True}}


def shuffled(dtype):
    return {"name": "numcodecs.shuffle", "configuration": {"elementsize": np.dtype(dtype).itemsize}}


def blosc(dtype, cname, shuffle):
    size = np.dtype(dtype).itemsize
    settings = {"cname": cname, "clevel": 5, "shuffle": shuffle, "typesize": size, "blocksize": 0}
    return {"name": "blosc", "configuration": settings}


CODECS = {
    "none": lambda _: None,
    "zstd": lambda _: [ZSTD],
    "zstd with checksum": lambda _: [ZSTD_CHECKED],
    "zlib": lambda _: [ZLIB],
    "bz2": lambda _: [BZ2],
    "fletcher32": lambda _: [FLETCHER],
    "shuffle, zlib, fletcher32": lambda dtype: [shuffled(dtype), ZLIB, FLETCHER],
    "shuffle, zstd": lambda dtype: [shuffled(dtype), ZSTD],
    "blosc lz4": lambda dtype: [blosc(dtype, "lz4", "shuffle")],
    "blosc zstd": lambda dtype: [blosc(dtype, "zstd", "bitshuffle")],
    "blosc zlib": lambda dtype: [blosc(dtype, "zlib", "noshuffle")],
    "blosc blosclz": lambda dtype: [blosc(dtype, "blosclz", "shuffle")],
    "blosc lz4hc": lambda dtype: [blosc(dtype, "lz4hc", "noshuffle")],
}
DTYPES = ["?", "i1", "u2", ">u2", "i4", "u8", "f2", "f4", ">f8", "c8", "c16"]
FILLS = {"f": np.nan, "c": complex(np.nan, 1), "b": True}
WITHOUT_TENSORSTORE = ("zlib", "bz2", "fletcher32", "shuffle, ")


def values(dtype, fill, shape=SHAPE, seed=0):
    """Random values. Some inner chunks, and one shard, hold only the fill value."""
    rng = np.random.default_rng(seed)
    found = rng.integers(0, 2 if dtype == "?" else 100, shape).astype(
        np.dtype(dtype).newbyteorder("=")
    )
    found[: CHUNKS[0], : CHUNKS[1]] = fill
    if shape == SHAPE:
        found[32:, 16:] = fill
    return found


def write(path, x, *, index="end", compressors="auto", fill=0, **keywords):
    big = x.dtype.byteorder == ">"
    serializer = {"name": "bytes", "configuration": {"endian": "big" if big else "little"}}
    options = {
        "shards": SHARDS,
        "chunks": CHUNKS,
        "strategy": Hdf5(index=index),
        "serializer": serializer if x.dtype.itemsize > 1 else "auto",
        **keywords,
    }
    return da.from_array(x, chunks=(20, 23)).to_sharded_zarr(
        path,
        compressors=compressors,
        fill_value=fill,
        **options,
    )


def shard_files(path):
    return {
        tuple(map(int, file.relative_to(path / "c").parts)): file
        for file in sorted((path / "c").rglob("*"))
        if file.is_file()
    }


def in_shard(x, index, shards=SHARDS):
    return x[tuple(slice(i * s, (i + 1) * s) for i, s in zip(index, shards, strict=True))]


def check_hdf5(path, x, dataset="data"):
    """Every shard, as h5py reads it; those that have no file hold the fill value."""
    files = shard_files(path)
    assert files
    for index, file in files.items():
        with h5py.File(file) as opened:
            np.testing.assert_array_equal(opened[dataset][...], in_shard(x, index))
            assert opened[dataset].maxshape == SHARDS
    return files


def check_zarr(path, x, *, tensorstore=True):
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], x)
    np.testing.assert_array_equal(shardwrite.from_sharded_zarr(path).compute(), x)
    if tensorstore:
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}
        np.testing.assert_array_equal(ts.open(spec).result().read().result(), x)
    pipeline = "zarrs.ZarrsCodecPipeline"
    pytest.importorskip("zarrs")
    with zarr.config.set({"codec_pipeline.path": pipeline}):
        np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], x)
    report = shardwrite.verify(path, deep=True)
    assert report.is_good, report


CELLS = [
    (codec, dtype, index)
    for (n, codec), (m, dtype) in itertools.product(enumerate(CODECS), enumerate(DTYPES))
    for index in (("end", "start") if (n + m) % 3 == 0 else (("end", "start")[(n + m) % 2],))
]


@pytest.mark.parametrize(
    ("codec", "index"),
    [
        pytest.param(codec, index, marks=pytest.mark.long if (n + m) % 5 else ())
        for (n, codec), (m, index) in itertools.product(
            enumerate(CODECS), enumerate(["end", "start"])
        )
    ],
)
def test_every_reader_finds_the_values(tmp_path, codec, index):
    for dtype in [dtype for name, dtype, at in CELLS if (name, at) == (codec, index)]:
        path = tmp_path / f"x{dtype.strip('?<>')}{dtype[0] == '>'}"
        fill = FILLS.get(np.dtype(dtype).kind, 7)
        x = values(dtype, fill)
        given = x.astype(dtype)
        write(path, given, index=index, compressors=CODECS[codec](dtype), fill=fill)
        files = check_hdf5(path, x)
        assert (1, 1) not in files, "an empty shard has no file"
        check_zarr(path, x, tensorstore=not codec.startswith(WITHOUT_TENSORSTORE))
        with h5py.File(files[0, 0]) as opened:
            stored = opened["data"]
            assert stored.id.get_num_chunks() == 15, "the empty inner chunk is missing"
            assert stored.dtype == np.dtype(dtype)
            assert stored.fillvalue == fill or np.isnan(fill)
            assert opened.userblock_size == (512 if index == "start" else 0)


@pytest.mark.parametrize("shape", [(32, 16), (33, 17), (1, 1), (31, 40), (64, 3)])
@pytest.mark.parametrize("index", ["end", "start"])
def test_edges(tmp_path, shape, index):
    x = values("i4", 0, shape, seed=3)
    write(tmp_path / "x", x, index=index, compressors=[ZSTD], write_empty_chunks=True)
    check_zarr(tmp_path / "x", x)
    for at, file in check_hdf5(tmp_path / "x", x).items():
        with h5py.File(file) as opened:
            assert opened["data"].shape == in_shard(x, at).shape
            assert opened["data"].chunks == CHUNKS


@pytest.mark.parametrize("n_axes", [1, 3, 5])
def test_other_numbers_of_axes(tmp_path, n_axes):
    x = np.arange(9**n_axes % 5000 + 7**n_axes, dtype="f4")[: 7**n_axes].reshape((7,) * n_axes)
    da.from_array(x).to_sharded_zarr(
        tmp_path / "x", shards=(4,) * n_axes, chunks=(2,) * n_axes, strategy=Hdf5(index="start")
    )
    check_zarr(tmp_path / "x", x)
    for index, file in shard_files(tmp_path / "x").items():
        with h5py.File(file) as opened:
            np.testing.assert_array_equal(opened["data"][...], in_shard(x, index, (4,) * n_axes))


@pytest.mark.long
def test_an_index_larger_than_the_smallest_user_block(tmp_path):
    x = np.arange(1, 64 * 64 + 1, dtype="u4").reshape(64, 64)
    da.from_array(x).to_sharded_zarr(
        tmp_path / "x", shards=(64, 64), chunks=(2, 2), strategy=Hdf5("start")
    )
    with h5py.File(tmp_path / "x/c/0/0") as opened:
        assert opened.userblock_size == 32768  # for 16,388 bytes
        np.testing.assert_array_equal(opened["data"][...], x)
    check_zarr(tmp_path / "x", x)
    with pytest.raises(SpecError, match="also a file of HDF5"):
        shardwrite.write_region(x[:2, :2], tmp_path / "x", region=(slice(2), slice(2)))


@pytest.mark.compat
def test_the_name_of_the_dataset(tmp_path):
    x = values("u2", 0)
    write(tmp_path / "x", x, strategy=Hdf5(dataset="raw/größe"))
    check_hdf5(tmp_path / "x", x, "raw/größe")
    for name in ("", "/data", "a//b", "a/../b", "a\0", "\udc80", "x" * 1025, 5):
        with pytest.raises(SpecError, match="no name of a dataset"):
            Hdf5(dataset=name)


def test_the_same_input_gives_the_same_file(tmp_path):
    x = values("f4", 0)
    for number, chunks in enumerate([(20, 23), (50, 23), (3, 5)]):
        da.from_array(x, chunks=chunks).to_sharded_zarr(
            tmp_path / str(number), shards=SHARDS, chunks=CHUNKS, strategy="hdf5"
        )
    first, *others = (
        {i: f.read_bytes() for i, f in shard_files(tmp_path / n).items()} for n in "012"
    )
    assert all(other == first for other in others)


GOLDEN = {
    "end": "b3b80d231a96fe9fd5862deb85629742ea5d5db0e6f726554c3d04a4273b6dda",
    "start": "95287c0091eaaf2635e5ccd43afc944a4c74bbca6538f4bd715604e41aea8d26",
}
"""Digests of a file that HDF5 1.14 and 2.0 lay out in the same way."""


def test_the_bytes_of_a_file(tmp_path):
    """The superblock is of version 0, the address of its end counts the index, and chunks are those
    that the codecs make."""
    x = np.arange(1, 33, dtype="<u2").reshape(8, 4)
    for index in ("end", "start"):
        path = tmp_path / index
        da.from_array(x).to_sharded_zarr(
            path, shards=(8, 8), chunks=(8, 4), compressors=None, strategy=Hdf5(index)
        )
        data = (path / "c/0/0").read_bytes()
        base = 512 if index == "start" else 0
        if h5py.version.hdf5_version_tuple[:2] in ((1, 14), (2, 0)):
            assert hashlib.sha256(data).hexdigest() == GOLDEN[index]
        assert data[base : base + 16] == b"\x89HDF\r\n\x1a\n\0\0\0\0\0\x08\x08\0"
        table = data[:36] if base else data[-36:]
        offset, nbytes = (int.from_bytes(table[a : a + 8], "little") for a in (0, 8))
        assert data[offset : offset + nbytes] == x.tobytes()
        assert table[16:32] == b"\xff" * 16
        assert int.from_bytes(data[base + 40 : base + 48], "little") + 0 == len(data)
        with h5py.File(path / "c/0/0") as opened:
            found = opened["data"].id.get_chunk_info(0)
            # Before HDF5 2.0, offsets are counted from the end of the user block.
            assert found.byte_offset in (offset, offset - base)
            assert found.size == nbytes


@pytest.mark.parametrize("index", ["end", "start"])
def test_files_are_made_read_only_and_survive_a_program_that_opens_them_for_writing(
    tmp_path, index
):
    x = values("f4", 0)
    write(tmp_path / "x", x, index=index)
    for file in shard_files(tmp_path / "x").values():
        assert not stat.S_IMODE(file.stat().st_mode) & 0o222
        file.chmod(0o644)
        with h5py.File(file, "r+"):
            pass
    check_hdf5(tmp_path / "x", x)
    check_zarr(tmp_path / "x", x)
    shardwrite.write_region(x, tmp_path / "x", region=..., strategy="hdf5")
    for file in shard_files(tmp_path / "x").values():
        assert not stat.S_IMODE(file.stat().st_mode) & 0o222


def test_a_program_that_changes_a_file_at_the_end_spoils_the_index(tmp_path):
    """The documentation says so. What is spoiled is found."""
    x = values("f4", 0)
    write(tmp_path / "x", x, index="end")
    file = tmp_path / "x/c/0/0"
    file.chmod(0o644)
    with h5py.File(file, "r+") as opened:
        opened["more"] = np.arange(1000)
    assert not shardwrite.verify(tmp_path / "x").is_good


def h5dump():
    program = shutil.which("h5dump") or os.environ.get("SHARDWRITE_TEST_H5DUMP")
    if program is None:
        pytest.skip("h5dump is not installed (Debian's package hdf5-tools)")
    return program


@pytest.mark.parametrize("index", ["end", "start"])
@pytest.mark.parametrize(
    "codec", ["none", "zlib", "shuffle, zlib, fletcher32", "zstd", "blosc lz4"]
)
def test_h5dump_reads_the_values(tmp_path, index, codec):
    program = h5dump()
    x = values("u2", 7)
    write(tmp_path / "x", x, index=index, compressors=CODECS[codec]("u2"), fill=7)
    environment = {**os.environ, "HDF5_PLUGIN_PATH": hdf5plugin.PLUGINS_PATH}
    for at, file in shard_files(tmp_path / "x").items():
        done = subprocess.run(
            [program, "-y", "-w", "0", "-d", "/data", str(file)],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        )
        told = done.stdout.partition("DATA {")[2].partition("}")[0]
        found = [int(number) for number in re.findall(r"\d+", told)]
        assert found == in_shard(x, at).ravel().tolist()


@pytest.mark.parametrize("index", some(["end", "start"], "start"))
@pytest.mark.parametrize(
    "codec", some(["none", "zlib", "shuffle, zlib, fletcher32"], "shuffle, zlib, fletcher32")
)
def test_netcdf4_reads_the_values(tmp_path, index, codec):
    """Its wheel has a library of HDF5 of its own, which has no other filters."""
    pytest.importorskip("netCDF4", reason="netCDF4 is not installed")
    x = values("f4", 7)
    write(tmp_path / "x", x, index=index, compressors=CODECS[codec]("f4"), fill=7)
    code = (
        "import netCDF4, numpy, sys; d = netCDF4.Dataset(sys.argv[1]);"
        "v = d['data']; v.set_auto_maskandscale(False); numpy.save(sys.argv[2], v[...])"
    )
    for at, file in shard_files(tmp_path / "x").items():
        subprocess.run([*python(), "-c", code, str(file), str(tmp_path / "found.npy")], check=True)
        np.testing.assert_array_equal(np.load(tmp_path / "found.npy"), in_shard(x, at))


# ---- updates


@pytest.fixture(params=["end", "start"])
def array(tmp_path, request):
    write(tmp_path / "x", values("f4", 0), index=request.param)
    return tmp_path / "x"


def test_updates_make_whole_files(array):
    x = values("f4", 0)
    part = np.full((30, 10), 5, "f4")
    region = (slice(10, 40), slice(3, 13))
    shardwrite.write_region(part, array, region=region, strategy="hdf5")
    x[region] = 5
    check_hdf5(array, x)
    check_zarr(array, x)
    shardwrite.erase(array, (slice(0, 36), slice(0, 6)), strategy="hdf5")
    x[:36, :6] = 0
    check_hdf5(array, x)
    check_zarr(array, x)
    shardwrite.write_region(x[:20], array, region="append", axis=0, strategy="hdf5")
    x = np.concatenate([x, x[:20]])
    check_hdf5(array, x)
    check_zarr(array, x)
    shardwrite.erase(array, (slice(32, 64), slice(0, 16)), strategy="hdf5")
    assert not (array / "c/1/0").exists()


def test_a_stream_writes_files(array):
    x = values("f4", 0)
    with ShardWriter(array, strategy="hdf5") as writer:
        for n in range(50, 90, 8):
            writer.append(np.full((8, 23), n, "f4"))
    x = np.concatenate([x, np.repeat(np.arange(50, 90, 8), 8)[:, None] * np.ones((1, 23), "f4")])
    check_zarr(array, x)
    for index, file in shard_files(array).items():
        with h5py.File(file) as opened:
            found = opened["data"][...]
        wanted = in_shard(x, index)
        np.testing.assert_array_equal(found[: len(wanted)], wanted)


def test_a_lost_shard_is_repaired(array):
    x = values("f4", 0)
    before = (array / "c/0/0").read_bytes()
    (array / "c/0/0").unlink()
    shardwrite.repair(array, da.from_array(x, chunks=(20, 23)), strategy="hdf5")
    assert (array / "c/0/0").read_bytes() == before


REGION = (slice(0, 8), slice(0, 8))
OTHERS = {
    "region": lambda array: shardwrite.write_region(np.ones((8, 8), "f4"), array, region=REGION),
    "whole shards": lambda array: shardwrite.write_region(values("f4", 0), array, region=...),
    "append-only": lambda array: shardwrite.write_region(
        np.ones((8, 8), "f4"), array, region=REGION, strategy=AppendOnly()
    ),
    "in place": lambda array: shardwrite.write_region(
        np.ones((8, 8), "f4"), array, region=REGION, strategy=FixedOrder(in_place=True)
    ),
    "erase": lambda array: shardwrite.erase(array, REGION),
    "append": lambda array: shardwrite.write_region(
        np.ones((8, 23), "f4"), array, region="append", axis=0
    ),
    "stream": lambda array: ShardWriter(array).append(np.ones((8, 23), "f4")),
    "compact": lambda array: shardwrite.compact(array, above=0),
}


@pytest.mark.parametrize("how", OTHERS)
def test_no_other_strategy_changes_them(array, how):
    before = {file: file.read_bytes() for file in shard_files(array).values()}
    with pytest.raises(SpecError, match="also a file of HDF5") as caught:
        OTHERS[how](array)
    if how == "compact":
        assert caught.value.fields["remedy"].startswith("leave the array as it is")
    else:
        assert caught.value.fields["field"] == "strategy"
        assert 'give strategy="hdf5"' in caught.value.fields["remedy"]
    assert {file: file.read_bytes() for file in shard_files(array).values()} == before
    shardwrite.write_region(values("f4", 0), array, region=..., strategy="hdf5")
    check_zarr(array, values("f4", 0))


def test_a_compaction_says_what_helps(array):
    """Converted, the array has plain shards in which nothing is unused."""
    with pytest.raises(SpecError, match="each update writes such a file anew") as caught:
        shardwrite.compact(array, above=0)
    assert "strategy" not in str(caught.value)
    told = CliRunner().invoke(main, ["compact", str(array), "--above", "0"]).output
    assert "run shardwrite reshard" in " ".join(told.split())
    assert "=" not in told
    made = array.with_name("plain")
    shardwrite.reshard(array, made, shards=SHARDS)
    assert not any(h5py.is_hdf5(file) for file in shard_files(made).values())
    assert shardwrite.compact(made, above=0).unused_nbytes_before == 0


@pytest.mark.parametrize("remedy", ["hdf5", "drop"])
def test_a_stream_says_what_helps(array, remedy):
    with pytest.raises(SpecError) as caught:
        ShardWriter(array)
    assert "give drop_hdf5=True to write_region" in str(caught.value)
    x = np.concatenate([values("f4", 0), np.ones((8, SHAPE[1]), "f4")])
    if remedy == "drop":
        shardwrite.write_region(values("f4", 0), array, region=..., drop_hdf5=True)
    with ShardWriter(array, strategy="hdf5" if remedy == "hdf5" else "auto") as writer:
        writer.append(np.ones((8, SHAPE[1]), "f4"))
    check_zarr(array, x)


def test_a_task_looks_at_each_shard(tmp_path):
    """Only the shard in the middle is a file of HDF5, which the call cannot see when it begins."""
    x = values("f4", 0, (96, 16))
    for name, strategy in (("plain", "fixed-order"), ("x", "hdf5")):
        write(tmp_path / name, x, compressors=[ZSTD], strategy=strategy)
    for n in (0, 2):
        (tmp_path / f"x/c/{n}/0").unlink()
        shutil.copy(tmp_path / f"plain/c/{n}/0", tmp_path / f"x/c/{n}/0")
    before = (tmp_path / "x/c/1/0").read_bytes()
    with pytest.raises(SpecError, match="'c/1/0' is also a file of HDF5"):
        shardwrite.write_region(x + 1, tmp_path / "x", region=...)
    assert (tmp_path / "x/c/1/0").read_bytes() == before


def test_shards_of_other_strategies_become_files(tmp_path):
    x = values("f4", 0)
    write(tmp_path / "x", x, compressors=[ZSTD], strategy=AppendOnly())
    x[:40] = 3
    shardwrite.write_region(x[:40], tmp_path / "x", region=slice(0, 40), strategy="hdf5")
    check_hdf5(tmp_path / "x", x)
    check_zarr(tmp_path / "x", x)


# ---- conversions, stores, and the command line


def test_an_array_is_converted_without_decoding(tmp_path):
    x = values("f4", 0)
    plain = zarr.create_array(
        tmp_path / "plain",
        shape=SHAPE,
        dtype="f4",
        chunks=CHUNKS,
        compressors=[zarr.codecs.ZstdCodec()],
    )
    plain[...] = x
    shardwrite.shard(
        tmp_path / "plain", tmp_path / "x", shards=IN_CHUNKS, checksum=False, strategy="hdf5"
    )
    check_hdf5(tmp_path / "x", x)
    check_zarr(tmp_path / "x", x)


@pytest.mark.long
def test_shards_are_converted_to_files_and_back(tmp_path):
    x = values("f4", 0)
    write(tmp_path / "plain", x, compressors=[ZSTD], strategy="morton")
    shardwrite.reshard(tmp_path / "plain", tmp_path / "x", shards=IN_CHUNKS, strategy="hdf5")
    check_hdf5(tmp_path / "x", x)
    check_zarr(tmp_path / "x", x)
    shardwrite.reshard(tmp_path / "x", tmp_path / "again", shards=(2, 3))
    check_zarr(tmp_path / "again", x)
    write(tmp_path / "checked", x, strategy="fixed-order")
    with pytest.raises(SpecError, match="checksum") as caught:
        shardwrite.reshard(tmp_path / "checked", tmp_path / "y", shards=IN_CHUNKS, strategy="hdf5")
    assert caught.value.fields["value"] == "crc32c"
    shardwrite.reshard(
        tmp_path / "checked", tmp_path / "y", shards=IN_CHUNKS, strategy="hdf5", checksum=False
    )
    check_hdf5(tmp_path / "y", x)


def test_a_store_of_objects(tmp_path):
    x = values("f4", 0)
    stores = pytest.importorskip("obstore.store")
    store = stores.MemoryStore()
    write(store, x, index="start")
    np.testing.assert_array_equal(shardwrite.from_sharded_zarr(store).compute(), x)
    with pytest.raises(SpecError, match="also a file of HDF5"):
        shardwrite.erase(store, REGION)
    shardwrite.erase(store, REGION, strategy="hdf5")
    x[REGION] = 0
    np.testing.assert_array_equal(shardwrite.from_sharded_zarr(store).compute(), x)
    (tmp_path / "x.h5").write_bytes(bytes(store.get("c/1/0").bytes()))
    with h5py.File(tmp_path / "x.h5") as opened:
        np.testing.assert_array_equal(opened["data"][...], in_shard(x, (1, 0)))


def test_the_command_line(tmp_path):
    np.save(tmp_path / "x.npy", values("f4", 0))
    array = str(tmp_path / "x")

    def called(*words):
        return CliRunner().invoke(main, [*words])

    done = called(
        *("write", str(tmp_path / "x.npy"), array, "--shards", "32,16", "--chunks", "8,4"),
        *("--strategy", "hdf5", "--index-location", "start"),
    )
    assert done.exit_code == 0, done.output
    check_hdf5(tmp_path / "x", values("f4", 0))
    erase = ("erase", array, "--region", "0:8,0:8")
    refused = called(*erase)
    assert refused.exit_code != 0
    assert "also a file of HDF5" in " ".join(refused.output.split())
    assert called(*erase, "--strategy", "hdf5", "--in-place").exit_code != 0
    done = called(*erase, "--strategy", "hdf5")
    assert done.exit_code == 0, done.output


# ---- refusals


@pytest.mark.parametrize(
    ("keywords", "field", "value"),
    [
        ({"compressors": ["gzip"]}, "codecs", "gzip"),
        ({"compressors": [ZSTD, {"name": "crc32c"}]}, "codecs", "crc32c"),
        (
            {"compressors": [{"name": "numcodecs.lz4", "configuration": {}}]},
            "codecs",
            "numcodecs.lz4",
        ),
        (
            {"filters": [{"name": "transpose", "configuration": {"order": [1, 0]}}]},
            "codecs",
            "transpose",
        ),
        ({"compressors": [shuffled("f8")]}, "codecs", "numcodecs.shuffle"),
        ({"shards": None}, "strategy", "hdf5 (data)"),
        ({"strategy": Hdf5("end"), "index_location": "start"}, "strategy.index", "end"),
    ],
)
def test_what_hdf5_has_no_counterpart_of_is_refused_by_name(tmp_path, keywords, field, value):
    with pytest.raises(SpecError) as caught:
        write(tmp_path / "x", values("f4", 0), **keywords)
    assert (caught.value.fields["field"], caught.value.fields["value"]) == (field, value)
    assert not (tmp_path / "x").exists()


NAMED = ["zstd", "numcodecs.zlib", "blosc", "numcodecs.bz2", "numcodecs.shuffle"]


@pytest.mark.parametrize("codec", [*NAMED, "numcodecs.fletcher32"])
@pytest.mark.parametrize("dtype", ["u1", "f8"])
def test_codecs_that_a_refusal_names_are_taken(tmp_path, codec, dtype):
    x = values(dtype, 0)
    with pytest.raises(SpecError) as caught:
        write(tmp_path / "x", x, compressors=["gzip"])
    remedy = caught.value.fields["remedy"]
    assert f'"{codec}"' in remedy
    assert "no crc32c" in remedy
    write(tmp_path / "x", x, compressors=codec)
    check_hdf5(tmp_path / "x", x)
    write(tmp_path / "y", x, compressors=[codec, "numcodecs.fletcher32"])
    check_hdf5(tmp_path / "y", x)


def test_shards_within_shards_are_refused_with_a_remedy(tmp_path):
    x = values("f4", 0)
    inner = zarr.codecs.ShardingCodec(chunk_shape=IN_CHUNKS, codecs=[zarr.codecs.BytesCodec()])
    with pytest.raises(SpecError, match="one level of chunks only; leave out serializer="):
        write(tmp_path / "x", x, serializer=inner)
    write(tmp_path / "x", x, serializer=inner, strategy="fixed-order")
    with pytest.raises(SpecError, match='give compressors="zstd" to shardwrite'):
        shardwrite.reshard(tmp_path / "x", tmp_path / "y", shards=(4, 4), strategy="hdf5")
    shardwrite.reshard(
        tmp_path / "x", tmp_path / "y", shards=(4, 4), strategy="hdf5", compressors="zstd"
    )
    check_hdf5(tmp_path / "y", x)


def test_transposed_chunks_are_refused_with_a_remedy(tmp_path):
    x = values("f4", 0)
    turned = [{"name": "transpose", "configuration": {"order": [1, 0]}}]
    with pytest.raises(SpecError, match="leave out filters="):
        write(tmp_path / "x", x, filters=turned)
    write(tmp_path / "x", x, filters=turned, strategy="fixed-order")
    with pytest.raises(SpecError, match="must be written again from its values"):
        shardwrite.reshard(tmp_path / "x", tmp_path / "y", shards=SHARDS, strategy="hdf5")
    write(tmp_path / "y", shardwrite.open_sharded(tmp_path / "x")[...])
    check_hdf5(tmp_path / "y", x)
    given = [*("--shards", "32,16"), *("--chunks", "8,4"), *("--strategy", "hdf5")]
    done = CliRunner().invoke(main, ["write", str(tmp_path / "x"), str(tmp_path / "z"), *given])
    assert not done.exit_code, done.output
    check_hdf5(tmp_path / "z", x)


@pytest.mark.parametrize("dtype", ["M8[s]", "U4", "S3"])
def test_types_without_a_counterpart_are_refused(tmp_path, dtype):
    x = da.from_array(np.zeros(8, dtype))
    with pytest.raises(SpecError, match="no counterpart of this type"):
        x.to_sharded_zarr(tmp_path / "x", shards=4, chunks=2, strategy="hdf5")


def test_an_array_without_axes_is_refused(tmp_path):
    with pytest.raises(SpecError, match="1 to 32 axes"):
        da.from_array(np.float32(1)).to_sharded_zarr(
            tmp_path / "x", shards=(), chunks=(), strategy="hdf5"
        )


def test_without_h5py_the_extra_is_named(tmp_path):
    code = (
        "import sys; sys.modules['h5py'] = None\n"
        "import dask.array, shardwrite\n"
        "try: dask.array.ones(4).to_sharded_zarr(sys.argv[1], shards=4, chunks=2, strategy='hdf5')\n"
        "except shardwrite.SpecError as error: print(error.fields['remedy'])"
    )
    done = subprocess.run(
        [*python(), "-c", code, str(tmp_path / "x")], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == 'pip install "shardwrite[hdf5]"'
    assert not (tmp_path / "x").exists()


# ---- plans, memory, resume


def test_the_estimate_counts_what_a_task_holds():
    """What is around the chunks, and not the shard, which is written while it is encoded."""
    x = da.zeros((512, 512), chunks=512, dtype="f4")
    for chunks, around in ((64, 50_000), (8, 1_500_000)):
        plans = [
            shardwrite.plan(x, shards=512, chunks=chunks, strategy=strategy, compressors=[ZSTD])
            for strategy in ("fixed-order", "hdf5")
        ]
        plain, hdf5 = (plan.memory.total_nbytes for plan in plans)
        assert plain + around < hdf5 < plain + 2 * around


@pytest.mark.long
def test_what_stands_around_the_chunks_is_bounded(tmp_path):
    from shardwrite.hdf5.format import describe

    for shards, chunks in (
        ((8,), (1,)),
        ((4096,), (1,)),
        ((64, 64), (2, 2)),
        ((16,) * 3, (2,) * 3),
    ):
        path = tmp_path / f"{len(shards)}{shards[0]}"
        x = da.ones(shards, dtype="u1", chunks=shards)
        for index in ("start", "end"):
            x.to_sharded_zarr(
                path / index, shards=shards, chunks=chunks, compressors=None, strategy=Hdf5(index)
            )
            metadata = parse_metadata((path / index / "zarr.json").read_text())
            (file,) = shard_files(path / index).values()
            around = file.stat().st_size - x.nbytes
            assert around <= describe(metadata, Hdf5()).most_overhead_nbytes <= 12 * around + 9000


@pytest.mark.long
def test_threads_share_the_lock_of_h5py(tmp_path):
    """Layouts of many files at a time, while other threads use h5py, too."""
    stop = threading.Event()

    def use():
        while not stop.is_set():
            with h5py.File(tmp_path / "other.h5", "w") as opened:
                opened["x"] = np.arange(100)

    thread = threading.Thread(target=use)
    thread.start()
    try:
        x = np.random.default_rng(0).integers(0, 99, (256, 256)).astype("u2")
        da.from_array(x, chunks=64).to_sharded_zarr(
            tmp_path / "x", shards=32, chunks=8, strategy="hdf5"
        )
    finally:
        stop.set()
        thread.join()
    check_zarr(tmp_path / "x", x)


WRITER = """
import os, sys, dask.array as da, numpy as np, seams, shardwrite
from shardwrite.stores.posix import PosixWriter
seams.log_every(0).start()  # a shard is entered before the next is written
x = da.from_array(np.arange(64 * 64, dtype="f4").reshape(64, 64) + 1, chunks=16, name="x")
count, limit = 0, int(sys.argv[2])
original = PosixWriter.protect
def protect(writer, is_protected):
    global count
    count += 1
    if count > limit:
        os.kill(os.getpid(), 9)
    return original(writer, is_protected)
PosixWriter.protect = protect
import dask
with dask.config.set(scheduler="threads", num_workers=1):
    r = x.to_sharded_zarr(sys.argv[1], shards=16, chunks=4, strategy=shardwrite.Hdf5(sys.argv[3]), source_id="x")
print(r.n_resumed_shards)
"""


@pytest.mark.parametrize("index", some(["end", "start"], "start"))
def test_a_killed_write_goes_on(tmp_path, index):
    path = tmp_path / "x"
    done = None
    for limit in (3, 2, 4, 99):
        done = subprocess.run(
            [*python(), "-c", WRITER, str(path), str(limit), index],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == (0 if limit == 99 else -9), done.stderr
    assert done is not None
    assert int(done.stdout.split()[-1]) >= 3
    x = np.arange(64 * 64, dtype="f4").reshape(64, 64) + 1
    check_zarr(path, x)
    da.from_array(x, chunks=64).to_sharded_zarr(
        tmp_path / "whole", shards=16, chunks=4, strategy=Hdf5(index)
    )
    for at, file in shard_files(path).items():
        assert file.read_bytes() == (tmp_path / "whole/c" / "/".join(map(str, at))).read_bytes()
        with h5py.File(file) as opened:
            np.testing.assert_array_equal(opened["data"][...], in_shard(x, at, (16, 16)))


def test_parts_and_staged_plans_write_the_same_files(tmp_path):
    x = values("f4", 0)
    write(tmp_path / "x", x)
    whole = {at: file.read_bytes() for at, file in shard_files(tmp_path / "x").items()}
    given = da.from_array(x, chunks=(20, 23))
    serializer = {"name": "bytes", "configuration": {"endian": "little"}}
    planned = shardwrite.plan(
        given,
        shards=SHARDS,
        chunks=CHUNKS,
        strategy=Hdf5("end"),
        serializer=serializer,
        fill_value=0,
    )
    shardwrite.prepare(given, tmp_path / "parts", planned)
    for number in range(2):
        shardwrite.write_part(given, tmp_path / "parts", number, 2)
    shardwrite.finalize(tmp_path / "parts")
    assert {at: f.read_bytes() for at, f in shard_files(tmp_path / "parts").items()} == whole
    receipts = [json.loads(Path(p).read_text()) for p in (tmp_path / "x").rglob("*.json")]
    assert receipts


@pytest.mark.long
def test_a_dataset_that_is_open_with_the_same_filter(tmp_path):
    """HDF5 does not give up a filter that is in use, such as that of the source."""
    script = f"""
        import dask.array as da, h5py, hdf5plugin, numpy as np, shardwrite
        if __name__ == "__main__":
            with h5py.File({str(tmp_path / "a.h5")!r}, "w") as file:
                made = file.create_dataset("x", (8, 8), "u2", chunks=(4, 4), **hdf5plugin.Zstd())
                made[...] = np.arange(64).reshape(8, 8)
                x = da.from_array(made, chunks=4)
                x.to_sharded_zarr({str(tmp_path / "x.zarr")!r}, shards=8, chunks=4, strategy="hdf5")
    """
    subprocess.run([*python(), "-c", textwrap.dedent(script)], check=True)
    with h5py.File(tmp_path / "x.zarr" / "c" / "0" / "0") as file:
        np.testing.assert_array_equal(file["data"][...], np.arange(64).reshape(8, 8))


def test_a_shard_is_dropped_only_by_a_word(tmp_path):
    """The new shard is a plain one, whole, and can be written to; its neighbour stays as it was."""
    path = tmp_path / "x"
    x = da.arange(64, chunks=16, dtype="int32").reshape(8, 8)
    x.to_sharded_zarr(path, shards=4, chunks=2, strategy="hdf5")
    before = (path / "c/1/1").read_bytes()
    region = (slice(0, 3), slice(0, 3))
    with pytest.raises(SpecError, match="give drop_hdf5=True to write_region, erase or repair"):
        shardwrite.write_region(7, path, region)
    for strategy in (AppendOnly(), FixedOrder(in_place=True)):
        with pytest.raises(SpecError, match="drop_hdf5"):
            shardwrite.write_region(7, path, region, strategy=strategy, drop_hdf5=True)
    assert shardwrite.verify(path, deep=True).is_good
    shardwrite.write_region(7, path, region, drop_hdf5=True)
    shard = path / "c/0/0"
    assert b"\x89HDF" not in shard.read_bytes()
    assert shard.stat().st_mode & 0o200
    assert (path / "c/1/1").read_bytes() == before
    shardwrite.write_region(7, path, region, strategy=FixedOrder(in_place=True))
    runner = CliRunner()
    given = ["erase", str(path), "--region", "4:6,4:6"]
    refused = runner.invoke(main, given)
    assert refused.exit_code
    assert "--drop-hdf5" in refused.output
    assert not runner.invoke(main, [*given, "--drop-hdf5"]).exit_code
    wanted = x.compute()
    wanted[:3, :3], wanted[4:6, 4:6] = 7, 0
    np.testing.assert_array_equal(shardwrite.open_sharded(path)[...], wanted)
    assert shardwrite.verify(path, deep=True).is_good

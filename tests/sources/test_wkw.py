"""Directories of webknossos-wrap: the values that its own library gives, and plain errors."""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys

import dask
import numpy as np
import pytest
import wkw
from click.testing import CliRunner
from forks import python

import shardwrite
from shardwrite.cli import main
from shardwrite.errors import SourceError, SpecError, StoreError
from shardwrite.sources import as_dask, open_source

pytestmark = pytest.mark.compat

RAW, LZ4, LZ4HC = 1, 2, 3
DTYPES = ["u1", "u2", "u4", "u8", "f4", "f8", "i1", "i2", "i4", "i8"]
CUBE = 32  # voxels along each axis of a file
OFFSETS = ((0, 0, 0), (64, 32, 0), (32, 64, 96))


def cube(n_channels, dtype, seed=0):
    rng = np.random.default_rng(seed)
    shape = (n_channels, CUBE, CUBE, CUBE)
    return (rng.integers(0, 100, shape) * (rng.random(shape) < 0.3)).astype(dtype)


def make_wkw(path, blocks=LZ4, n_channels=1, dtype="u2", block_len=8, offsets=OFFSETS):
    header = wkw.Header(
        np.dtype(dtype).type, n_channels, block_len=block_len, file_len=CUBE // block_len,
        block_type=blocks,
    )  # fmt: skip
    made = wkw.Dataset.create(str(path), header)
    for seed, offset in enumerate(offsets):
        made.write(offset, cube(n_channels, dtype, seed))
    return made


@pytest.mark.parametrize("blocks", [RAW, LZ4, LZ4HC], ids=["raw", "lz4", "lz4hc"])
@pytest.mark.parametrize(
    ("dtype", "n_channels"), [*[(dtype, 1) for dtype in DTYPES], ("u1", 3), ("f4", 2)]
)
def test_values(tmp_path, blocks, dtype, n_channels):
    made = make_wkw(tmp_path / "x", blocks, n_channels, dtype)
    source = open_source(tmp_path / "x")
    assert source.shape == (n_channels, 96, 96, 128)
    assert source.dtype == np.dtype(dtype)
    assert source.metadata.dimension_names == ("channel", "x", "y", "z")
    whole = made.read((0, 0, 0), source.shape[1:])
    np.testing.assert_array_equal(source[...], whole)
    np.testing.assert_array_equal(source[:, 5:70, 31:33, ::7], whole[:, 5:70, 31:33, ::7])
    np.testing.assert_array_equal(source[-1, 60:, 90:1:-3, 100], whole[-1, 60:, 90:1:-3, 100])


@pytest.mark.parametrize("block_len", [4, 16, 32])
def test_blocks_of_each_size_in_morton_order(tmp_path, block_len):
    for blocks in (RAW, LZ4):
        made = make_wkw(tmp_path / str(blocks), blocks, block_len=block_len, offsets=OFFSETS[:1])
        source = open_source(tmp_path / str(blocks))
        np.testing.assert_array_equal(source[...], made.read((0, 0, 0), (CUBE,) * 3))


def test_files_of_several_kinds_of_blocks(tmp_path):
    make_wkw(tmp_path / "raw", RAW)
    packed = make_wkw(tmp_path / "packed", LZ4HC)
    name = "z0/y1/x2.wkw"
    os.replace(tmp_path / "raw" / name, tmp_path / "packed" / name)
    np.testing.assert_array_equal(
        open_source(tmp_path / "packed")[...], packed.read((0, 0, 0), (96, 96, 128))
    )


def test_chunks_are_whole_blocks(tmp_path):
    make_wkw(tmp_path / "x", offsets=OFFSETS[:1])
    with dask.config.set({"shardwrite.source.chunk-size": 16 * 8 * 8 * 2}):
        source = open_source(tmp_path / "x")
    assert source.chunks == (1, 16, 8, 8)
    np.testing.assert_array_equal(as_dask(source), source[...])


def test_a_shape_cuts_or_extends(tmp_path):
    made = make_wkw(tmp_path / "x")
    source = open_source(tmp_path / "x", shape=(1, 90, 100, 200))
    whole = made.read((0, 0, 0), (90, 100, 200))
    np.testing.assert_array_equal(as_dask(source), whole)
    assert source.identity != open_source(tmp_path / "x").identity
    for shape in ((90, 100, 200), (2, 90, 100, 200), (1, -1, 5, 5)):
        with pytest.raises(SpecError, match="give 1 and the extents along x, y and z"):
            open_source(tmp_path / "x", shape=shape)


def test_a_directory_without_files(tmp_path):
    make_wkw(tmp_path / "x", offsets=())
    assert open_source(tmp_path / "x").shape == (1, 0, 0, 0)
    assert not open_source(tmp_path / "x", shape=(1, 5, 5, 5))[...].any()


def test_another_process_reads_by_path(tmp_path):
    make_wkw(tmp_path / "x")
    source = open_source(tmp_path / "x")
    (tmp_path / "pickle").write_bytes(pickle.dumps(source))
    code = "import pickle, sys; print(int(pickle.load(open(sys.argv[1], 'rb'))[...].sum()))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [*python(), "-c", code, str(tmp_path / "pickle")]
    ended = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    assert int(ended.stdout) == source[...].sum()


def test_files_that_come_or_go_are_another_source(tmp_path):
    made = make_wkw(tmp_path / "x")
    first = open_source(tmp_path / "x")
    made.write((96, 0, 0), cube(1, "u2"))
    with pytest.raises(StoreError, match="added or removed"):
        first[...]
    second = open_source(tmp_path / "x")
    assert second.identity != first.identity
    second[:, :1, :1, :1]
    (tmp_path / "x/z0/y0/x3.wkw").unlink()
    with pytest.raises(FileNotFoundError):  # and no zeros
        second[:, 96:]


def test_written_and_verified_from_the_command_line(tmp_path):
    made = make_wkw(tmp_path / "x")
    new, shape = str(tmp_path / "x.zarr"), ["--shape", "1,90,90,120"]
    written = ["write", str(tmp_path / "x"), new, *shape, "--shards", "1,32,32,32"]
    for words in (
        [*written, "--chunks", "1,16,16,16"],
        ["verify", new, "--against", str(tmp_path / "x"), *shape],
    ):
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, done.output
    whole = made.read((0, 0, 0), (90, 90, 120))
    np.testing.assert_array_equal(shardwrite.from_sharded_zarr(new), whole)


# ---- what is refused


def test_the_header_stands_for_its_directory_and_one_file_does_not(tmp_path):
    make_wkw(tmp_path / "x")
    assert open_source(tmp_path / "x/header.wkw") == open_source(tmp_path / "x")
    with pytest.raises(StoreError, match=r"x0.wkw: .*Not a directory"):
        open_source(tmp_path / "x/z0/y0/x0.wkw")


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"WKW\1\x23\2\2",
        b"WKW\2\x23\2\2\2",  # version
        b"WKX\1\x23\2\2\2",
        b"WKW\1\x23\4\2\2",  # blocks
        b"WKW\1\x23\2\0\2",  # type of voxels
        b"WKW\1\x23\2\x0b\2",
        b"WKW\1\x23\2\2\3",  # size of voxels
        b"WKW\1\x23\2\2\0",
        b"WKW\1\x2f\2\2\2",  # blocks of 64 TiB
    ],
)
def test_headers_that_make_no_sense(tmp_path, header):
    make_wkw(tmp_path / "x")
    whole = header.ljust(16, b"\0") if len(header) > 7 else header
    (tmp_path / "x/header.wkw").write_bytes(whole)
    with pytest.raises(SpecError, match=r"cannot be read as wkw.*header\.wkw"):
        open_source(tmp_path / "x")


@pytest.mark.parametrize("blocks", [RAW, LZ4], ids=["raw", "lz4"])
def test_damaged_files(tmp_path, blocks):
    make_wkw(tmp_path / "x", blocks, offsets=OFFSETS[:1])
    path = tmp_path / "x/z0/y0/x0.wkw"
    good = path.read_bytes()
    damaged = [b"", good[:10], good[:20], good[:-1], good[:300], b"X" + good[1:]]
    damaged.append(good[:4] + b"\x32" + good[5:])  # blocks of another length
    damaged.append(good[:8] + struct.pack("<Q", 2**63) + good[16:])  # where blocks begin
    if blocks == LZ4:
        for end in (0, 2**40, 2**64 - 1):
            damaged.append(good[:16] + struct.pack("<Q", end) + good[24:])
        first = len(good[: struct.unpack_from("<Q", good, 8)[0]])
        damaged.append(good[:first] + b"\xff" * 40 + good[first + 40 :])
    for data in damaged:
        path.write_bytes(data)
        with pytest.raises(SourceError, match="may be damaged"):
            open_source(tmp_path / "x")[...]

"""Arrays of Blosc2: the values that the library gives, and plain errors about all else."""

from __future__ import annotations

import os
import struct

import blosc2
import dask
import numpy as np
import pytest
from click.testing import CliRunner

import shardwrite
from shardwrite.cli import main
from shardwrite.errors import CodecError, SourceError, SpecError
from shardwrite.sources import as_dask, open_source

pytestmark = pytest.mark.compat

SHAPES = [((10, 33, 7), (4, 10, 5), (3, 4, 5)), ((101,), (30,), (7,)), ((), None, None)]
DTYPES = ["u1", "<i2", ">u4", "<f2", "<f4", "<f8", "<c16", "?", "<M8[ns]", "<m8[s]", "<U3", "S5"]


def values(shape, dtype="i4"):
    rng = np.random.default_rng(0)
    return np.asarray(rng.integers(0, 200, shape) * (rng.random(shape) < 0.5)).astype(dtype)


def make(path, data, *, codec="LZ4", filters=("SHUFFLE",), **how):
    chosen = {
        "codec": blosc2.Codec[codec],
        "filters": [blosc2.Filter[name] for name in filters],
        "filters_meta": [0] * len(filters),
    }
    return blosc2.asarray(data, urlpath=str(path), cparams=chosen, **how)


@pytest.mark.parametrize("is_file", [True, False], ids=["file", "directory"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_of_each_type(tmp_path, dtype, is_file):
    for number, (shape, chunks, blocks) in enumerate(SHAPES):
        path, data = tmp_path / f"{number}.b2nd", values(shape, dtype)
        own = make(path, data, chunks=chunks, blocks=blocks, contiguous=is_file)
        source = open_source(path)
        assert (source.shape, source.dtype) == (own.shape, own.dtype) == (shape, data.dtype)
        np.testing.assert_array_equal(source[...], own[()])
        np.testing.assert_array_equal(as_dask(source), data)


@pytest.mark.parametrize("codec", ["BLOSCLZ", "LZ4", "LZ4HC", "ZLIB", "ZSTD"])
@pytest.mark.parametrize("filters", [(), ("SHUFFLE",), ("BITSHUFFLE",), ("DELTA", "SHUFFLE")])
def test_codecs_and_filters(tmp_path, codec, filters):
    path, data = tmp_path / "a.b2nd", values((40, 50))
    own = make(path, data, codec=codec, filters=filters, chunks=(16, 16), blocks=(7, 8))
    np.testing.assert_array_equal(open_source(path)[3:39, 7:], data[3:39, 7:])
    if "DELTA" not in filters:  # of which slices of the library itself are not what was written
        np.testing.assert_array_equal(own[3:39, 7:], data[3:39, 7:])


@pytest.mark.parametrize("is_file", [True, False], ids=["file", "directory"])
@pytest.mark.parametrize("kind", ["zeros", "nans", "empty", "full"])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_chunks_of_one_value_and_changes(tmp_path, kind, dtype, is_file):
    path = tmp_path / "a.b2nd"
    fill = (7.5,) if kind == "full" else ()
    own = getattr(blosc2, kind)(
        (9, 9), *fill, dtype=dtype, urlpath=str(path), chunks=(4, 4), blocks=(2, 3),
        contiguous=is_file,
    )  # fmt: skip
    first = open_source(path)
    np.testing.assert_array_equal(first[...], own[:])
    own[3:7, 1:6] = 5
    own.resize((12, 13))
    own[9:, :] = 3
    second = open_source(path)
    assert second.identity != first.identity
    np.testing.assert_array_equal(second[...], own[:])


def test_chunks_are_whole_chunks_of_the_file(tmp_path):
    make(tmp_path / "a.b2nd", values((100, 90)), chunks=(16, 18), blocks=(8, 9))
    with dask.config.set({"shardwrite.source.chunk-size": 16 * 36 * 4}):
        assert open_source(tmp_path / "a.b2nd").chunks == (16, 36)


def test_an_array_without_elements(tmp_path):
    blosc2.zeros((0, 5), dtype="i4", urlpath=str(tmp_path / "a.b2nd"))
    assert open_source(tmp_path / "a.b2nd")[...].shape == (0, 5)


def test_written_and_verified_from_the_command_line(tmp_path):
    for path, is_file in ((tmp_path / "file.b2nd", True), (tmp_path / "directory", False)):
        make(path, values((40, 50)), chunks=(16, 16), blocks=(8, 8), contiguous=is_file)
        new = f"{path}.zarr"
        written = ["write", str(path), new, "--shards", "32", "--chunks", "16"]
        for words in (written, ["verify", new, "--against", str(path)]):
            done = CliRunner().invoke(main, words)
            assert done.exit_code == 0, done.output
        np.testing.assert_array_equal(shardwrite.from_sharded_zarr(new), values((40, 50)))


# ---- what is refused


def test_values_that_are_computed_are_never_run(tmp_path):
    own = make(tmp_path / "a.b2nd", values((4, 4)))
    (own + 1).save(urlpath=str(tmp_path / "lazy.b2nd"))
    with pytest.raises(SpecError, match="its values are computed"):
        open_source(tmp_path / "lazy.b2nd")


def test_frames_without_axes_and_odd_types(tmp_path):
    blosc2.SChunk(data=bytes(100), urlpath=str(tmp_path / "a.b2frame"))
    with pytest.raises(SpecError, match="it is no array"):
        open_source(tmp_path / "a.b2frame")
    blosc2.zeros(3, dtype=np.dtype([("x", "i4")]), urlpath=str(tmp_path / "a.b2nd"))
    with pytest.raises(SpecError, match="cannot be read as b2nd"):
        open_source(tmp_path / "a.b2nd")
    make(tmp_path / "b.b2nd", values(3, "<i8"))
    data = (tmp_path / "b.b2nd").read_bytes()
    for name in (b"|O8", b"O  ", b"u8u", b"V8 ", b"|V0"):
        (tmp_path / "b.b2nd").write_bytes(data.replace(b"<i8", name))
        with pytest.raises(SpecError, match="cannot be read as b2nd"):
            open_source(tmp_path / "b.b2nd")


def test_plugins_are_named_and_not_called(tmp_path):
    cparams = {
        "codec": blosc2.Codec.ZFP_RATE, "codec_meta": 50, "filters": [], "filters_meta": [],
        "splitmode": blosc2.SplitMode.NEVER_SPLIT,
    }  # fmt: skip
    random = np.random.default_rng(0).random((40, 40))
    how = {"chunks": (20, 20), "blocks": (10, 10), "urlpath": str(tmp_path / "a.b2nd")}
    blosc2.asarray(random, cparams=cparams, **how)
    with pytest.raises(CodecError, match="needs a plugin"):
        open_source(tmp_path / "a.b2nd")[...]


@pytest.mark.parametrize("offset", [11, 16, 30, 39, 58], ids=lambda at: f"byte {at}")
def test_sizes_in_the_header_that_are_not_true(tmp_path, offset):
    path = tmp_path / "a.b2nd"
    make(path, values((40, 50)), chunks=(16, 16), blocks=(8, 8))
    data = bytearray(path.read_bytes())
    data[offset : offset + 4] = struct.pack(">I", 0x7FFFFFF0)
    path.write_bytes(data)
    with pytest.raises((SpecError, SourceError), match="cannot be read"):
        open_source(path)[...]


@pytest.mark.parametrize("nbytes", [0, 5, 20, 120, 400, -30])
def test_files_that_end_too_early(tmp_path, nbytes):
    path = tmp_path / "a.b2nd"
    make(path, values((40, 50)), chunks=(16, 16), blocks=(8, 8))
    os.truncate(path, nbytes % path.stat().st_size)
    with pytest.raises(SpecError, match="cannot be read as b2nd"):
        open_source(path)


def test_a_chunk_that_claims_another_size(tmp_path):
    path = tmp_path / "a.b2nd"
    make(path, values((40, 50)), chunks=(16, 16), blocks=(8, 8), contiguous=False)
    chunk = path / "00000000.chunk"
    good = chunk.read_bytes()
    for at in (4, 12):  # decoded, and encoded
        chunk.write_bytes(good[:at] + struct.pack("<i", 2**31 - 1) + good[at + 4 :])
        with pytest.raises(SourceError, match=r"00000000.chunk is not one of 1024 bytes"):
            open_source(path)[...]
    for data in (good[:20], good[:-20], good[:40] + bytes(len(good) - 40)):
        chunk.write_bytes(data)
        with pytest.raises(SourceError, match="may be damaged"):
            open_source(path)[...]
    chunk.unlink()
    with pytest.raises(FileNotFoundError):
        open_source(path)[...]

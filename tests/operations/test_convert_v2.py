"""Zarr v2 arrays become sharded v3 arrays; their encoded chunks are copied as they are."""

from __future__ import annotations

import base64
import hashlib
import json
import pickle
import shutil
import sys
import tempfile
from pathlib import Path

import dask
import numcodecs
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from tiers import tried

import shardwrite
from shardwrite import SpecError

sys.path.insert(0, str(Path(__file__).parent))
from test_convert import by_tensorstore, draw_values, payloads, same

COMPRESSORS = {
    "none": None,
    "zstd": numcodecs.Zstd(level=3),
    "zstd+checksum": numcodecs.Zstd(level=1, checksum=True),
    "gzip": numcodecs.GZip(level=2),
    "zlib": numcodecs.Zlib(level=1),
    "bz2": numcodecs.BZ2(),
    "lzma": numcodecs.LZMA(),
    "lz4": numcodecs.LZ4(),
    "blosc": numcodecs.Blosc("zstd", shuffle=numcodecs.Blosc.AUTOSHUFFLE),
    "blosc lz4": numcodecs.Blosc("lz4", shuffle=numcodecs.Blosc.NOSHUFFLE),
}
FILTERS = {
    "none": lambda dtype: None,
    "shuffle": lambda dtype: [numcodecs.Shuffle(dtype.itemsize)],
    "delta": lambda dtype: [numcodecs.Delta(dtype=dtype.str)],
    "delta+shuffle": lambda dtype: [
        numcodecs.Delta(dtype=dtype.str),
        numcodecs.Shuffle(dtype.itemsize),
    ],
    "crc32": lambda dtype: [numcodecs.CRC32()],
    "fletcher32": lambda dtype: [numcodecs.Fletcher32()],
}
DTYPES = ["|b1", "|u1", "<i2", ">i2", "<f4", ">f8", "<c8", "<M8[s]", "|S3", "<U2", ">U2", "|V4"]


def make(path, values, **keywords):
    source = zarr.create_array(
        str(path), shape=values.shape, dtype=values.dtype, zarr_format=2, **keywords
    )
    source[...] = values
    return source


def encoded(path):
    """sha256 of each chunk file of a v2 array by its position."""
    found, separator = {}, json.loads((path / ".zarray").read_text())["dimension_separator"]
    for file in path.rglob("*"):
        if file.is_file() and not file.name.startswith("."):
            key = file.relative_to(path).as_posix()
            at = tuple(map(int, key.split(separator)))
            found[at] = hashlib.sha256(file.read_bytes()).hexdigest()
    return found


def check_round_trips(data):
    draw = data.draw
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    ndim = draw(st.integers(1, 3))
    shape = tuple(draw(st.integers(0, 7)) for _ in range(ndim))
    chunks = tuple(draw(st.integers(1, 4)) for _ in range(ndim))
    compressor = draw(st.sampled_from(list(COMPRESSORS)))
    names = list(FILTERS) if dtype.kind in "iu" and dtype.str[0] != ">" else ["none", "crc32"]
    chosen = draw(st.sampled_from(names))
    values = draw_values(shape, dtype, draw(st.integers(0, 99)))
    fill = values.flat[0] if values.size and draw(st.booleans()) and dtype.kind != "V" else None
    directory = Path(tempfile.mkdtemp())
    try:
        a, b = directory / "a", directory / "b"
        source = make(
            a,
            values,
            chunks=chunks,
            compressors=COMPRESSORS[compressor],
            filters=FILTERS[chosen](dtype),
            order=draw(st.sampled_from("CF")),
            fill_value=fill,
            attributes={"units": "K"},
            chunk_key_encoding={"name": "v2", "separator": draw(st.sampled_from("./"))},
        )
        wanted = source[...]
        with dask.config.set(scheduler="sync"):
            done = shardwrite.shard(
                a, b, draw(st.sampled_from([1, 2, 3])), durability="none", check=True
            )
            assert done.n_chunks_encoded == 0
            assert payloads(b) == encoded(a)
            assert shardwrite.verify(b, deep=True).is_good
            same(shardwrite.open_sharded(b)[...], wanted)
        if dtype.kind != "V":  # which zarr-python cannot read from shards
            same(zarr.open_array(b, mode="r")[...], wanted)
        document = json.loads((b / "zarr.json").read_text())
        assert document["attributes"] == {"units": "K"}
        assert document["chunk_key_encoding"]["name"] == "default"
        if dtype.kind in "biuf" and chosen == "none" and compressor in ("none", "zstd", "gzip"):
            same(by_tensorstore(b), wanted)
    finally:
        shutil.rmtree(directory)


DRAWN = given(st.data())
test_round_trips = tried(8, DRAWN, check_round_trips)
test_more_round_trips = pytest.mark.long(tried(60, DRAWN, check_round_trips))


@pytest.mark.parametrize(("serializer", "item"), [("vlen-utf8", "ä"), ("vlen-bytes", b"\x00a")])
@pytest.mark.parametrize("order", ["C", "F"])
def test_elements_of_variable_length(tmp_path, serializer, item, order):
    """The file is what numcodecs makes of the chunk, as zarr-python 2 wrote it."""
    values = np.array([item * n for n in range(6)], dtype=object).reshape(2, 3)
    filters = [numcodecs.get_codec({"id": serializer})]
    (tmp_path / "a").mkdir()
    (tmp_path / "a/.zarray").write_text(
        json.dumps(
            {
                "zarr_format": 2,
                "shape": [2, 3],
                "chunks": [2, 3],
                "dtype": "|O",
                "fill_value": 0,
                "order": order,
                "filters": [f.get_config() for f in filters],
                "compressor": {"id": "zlib", "level": 1},
            }
        )
    )
    chunk = filters[0].encode(np.array(values, order=order))
    (tmp_path / "a/0.0").write_bytes(numcodecs.Zlib(1).encode(chunk))
    shardwrite.shard(tmp_path / "a", tmp_path / "b", 1)
    same(shardwrite.open_sharded(tmp_path / "b")[...], values)
    same(zarr.open_array(tmp_path / "b", mode="r")[...], values)


def test_names_and_missing_values_of_xarray(tmp_path):
    values = np.arange(12, dtype="f4").reshape(3, 4)
    source = make(tmp_path / "a", values, chunks=(2, 2), fill_value=-1.0)
    source.attrs["_ARRAY_DIMENSIONS"] = ["y", "x"]
    done = shardwrite.shard(tmp_path / "a", tmp_path / "b", "YX")
    document = json.loads((tmp_path / "b/zarr.json").read_text())
    assert document["dimension_names"] == ["y", "x"]
    mask = base64.b64encode(np.array(-1.0, "<f8").tobytes()).decode()
    assert document["attributes"] == {"_FillValue": mask}
    assert done.n_shards == 1


class Trap:
    """An object that says when it was made from a pickle."""

    made = 0

    def __reduce__(self):
        return Trap.spring, ()

    @staticmethod
    def spring():
        Trap.made += 1
        return Trap()


@pytest.mark.parametrize("where", ["filters", "compressor"])
@pytest.mark.parametrize("name", ["pickle", "nosuch", None, 5])
def test_codecs_that_are_not_known_are_never_made(tmp_path, monkeypatch, where, name):
    make(tmp_path / "a", np.arange(4), chunks=2, filters=None, compressors=None)
    document = json.loads((tmp_path / "a/.zarray").read_text())
    codec = {"id": name}
    document |= {"dtype": "|O", where: [codec] if where == "filters" else codec}
    (tmp_path / "a/.zarray").write_text(json.dumps(document))
    (tmp_path / "a/0").write_bytes(pickle.dumps([Trap(), Trap()]))

    def refuse(*_):
        raise AssertionError("a codec was made")

    monkeypatch.setattr(numcodecs, "get_codec", refuse)
    for convert in (
        lambda: shardwrite.shard(tmp_path / "a", tmp_path / "b", 2),
        lambda: shardwrite.plan_reshard(tmp_path / "a", 2),
    ):
        with pytest.raises(SpecError, match="not run here"):
            convert()
    assert Trap.made == 0
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"shape": None},
        {"shape": [4.0]},
        {"chunks": [0]},
        {"chunks": [2, 2]},
        {"order": "A"},
        {"dtype": "<i3"},
        {"dtype": None},
        {"dtype": {}},
        {"fill_value": "five"},
        {"filters": 5},
        {"dimension_separator": "-"},
        {"compressor": {"id": "blosc", "shuffle": 7}},
        {"compressor": {"id": "blosc", "shuffle": "x"}},
        {"compressor": {"id": "blosc", "cname": 5}},
        {"compressor": {"id": "gzip", "level": "high"}},
        {"compressor": {"id": "zlib", "window": 5}},
        {"zarr_format": 3},
        {"dtype": ">i4", "filters": [{"id": "delta", "dtype": ">i4"}]},
        {"filters": [{"id": "shuffle"}, {"id": "delta", "dtype": "<i8"}]},
        {"dtype": [["a", "<i4"], ["b", ">i2"]]},
        {"dtype": "|O"},
    ],
    ids=str,
)
def test_documents_that_are_refused(tmp_path, change):
    make(tmp_path / "a", np.arange(4), chunks=2, filters=None)
    document = json.loads((tmp_path / "a/.zarray").read_text()) | change
    (tmp_path / "a/.zarray").write_text(json.dumps(document))
    with pytest.raises(SpecError):
        shardwrite.shard(tmp_path / "a", tmp_path / "b", 2)
    assert not (tmp_path / "b").exists()


def test_chunks_of_another_shape_or_codec_are_re_encoded(tmp_path):
    values = np.arange(60, dtype=">i4").reshape(6, 10)
    values[:2, :2] = 0
    make(tmp_path / "a", values, chunks=(2, 2), order="F", fill_value=0)
    done = shardwrite.reshard(tmp_path / "a", tmp_path / "b", 2, chunks=(3, 5), compressors="auto")
    assert done.n_chunks_copied == 0
    same(shardwrite.open_sharded(tmp_path / "b")[...], values)
    assert shardwrite.unshard(tmp_path / "a", tmp_path / "c").n_chunks_copied == 14
    same(zarr.open_array(tmp_path / "c", mode="r")[...], values)


@pytest.mark.parametrize("how", ["copy", "consume", "in place"])
def test_tensorstore_opens_what_was_a_v2_array_with_nan_in_its_attributes(tmp_path, how):
    """xarray writes NaN there. JSON has none, and tensorstore reads attributes of v3 only."""
    a, b = tmp_path / "a", tmp_path / "b"
    nan = float("nan")
    zarr.open_group(a, mode="w", zarr_format=2, attributes={"top": [nan, 1]})
    values = np.arange(6, dtype="<f4")
    given = {"missing_value": nan, "_FillValue": nan, "range": [-float("inf"), 5], "units": "K"}
    make(a / "t", values, chunks=(2,), attributes=given)
    if how == "in place":
        shardwrite.reshard(a, shards=2)
        b = a
    else:
        shardwrite.shard(a, b, 2, consume=how == "consume")
    same(by_tensorstore(b / "t"), values)
    in_base64 = base64.b64encode(np.array(nan, "<f8").tobytes()).decode()
    kept = {"missing_value": "NaN", "_FillValue": in_base64, "range": ["-Infinity", 5]}
    assert json.loads((b / "t" / "zarr.json").read_text())["attributes"] == {**kept, "units": "K"}
    assert json.loads((b / "zarr.json").read_text())["attributes"] == {"top": ["NaN", 1]}

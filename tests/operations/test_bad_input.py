"""Bad input, a row each. What is refused before any byte is written names field, value and remedy,
and changes nothing; what goes wrong in a task commits no shard; what is wrong with a shard is told
with its key and chunk. Round trips: `test_values.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import importlib.util
import os
import re
import shutil
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import crc32c
import dask
import dask.array as da
import numcodecs
import numpy as np
import pytest
import zarr
from tiers import some
from zarr.codecs import ShardingCodec

import shardwrite
from shardwrite import (
    CorruptShardError,
    JournalError,
    PlanError,
    ShardWriter,
    SourceError,
    SpecError,
    StoreError,
)
from shardwrite.sources import as_dask, open_source

sys.path.insert(0, str(Path(__file__).parent.parent / "memory"))
import seams
from peaks import least_peak

GOOD = {"shards": 8, "chunks": 4, "durability": "none"}
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
needs_mounts = pytest.mark.skipif(
    os.geteuid() != 0 or sys.platform != "linux", reason="mounts file systems: needs root on Linux"
)
pytestmark = pytest.mark.filterwarnings("ignore:The data type:FutureWarning")


@pytest.fixture
def x():
    return da.from_array(np.arange(256, dtype="f4").reshape(16, 16), chunks=5)


def tree(path):
    """Everything below a directory, links as where they lead, files as their bytes."""

    def content(entry):
        return (
            os.readlink(entry)
            if entry.is_symlink()
            else entry.read_bytes()
            if entry.is_file()
            else None
        )

    return {str(entry.relative_to(path)): content(entry) for entry in path.rglob("*")}


@contextlib.contextmanager
def refused(root, *, field, value, remedy, error=SpecError):
    """It fails, its message names field, value and remedy, and everything below `root` is as it
    was."""
    before = tree(root)
    with pytest.raises(error) as caught:
        yield caught
    text = str(caught.value)
    assert field in text
    assert value in text
    assert remedy in text
    if error is SpecError:
        assert caught.value.field == field
        assert text.startswith(f"{field}={caught.value.value!r}: ")
        assert text.endswith(f"; {caught.value.remedy}")
        assert remedy in caught.value.remedy
    assert tree(root) == before


# ---- arguments: (keywords, field, value, remedy)

POSITIVE = "is not one; give for instance 64"
CHOICES = "use one of"
PLAIN = 'give for instance "images/raw"'
ARGUMENTS = {
    "shard not a multiple of the inner chunk": ({"shards": (8, 10)}, "shards", "(8, 10)", "give 12 instead of 10"),
    "shard smaller than the inner chunk": ({"shards": 2}, "shards", "(2, 2)", "give 4 instead of 2"),
    "too many dimensions in shards": ({"shards": (8, 8, 8)}, "shards", "(8, 8, 8)", "give 2 sizes"),
    "too few dimensions in shards": ({"shards": (8,)}, "shards", "(8,)", "give 2 sizes"),
    "too few dimensions in chunks": ({"chunks": (4,)}, "chunks", "(4,)", "give 2 sizes"),
    "no dimensions in chunks": ({"chunks": ()}, "chunks", "()", "give 2 sizes"),
    **{
        f"{kind} {field}": ({field: size}, field, repr(size), POSITIVE)
        for field in ("shards", "chunks")
        for kind, size in {
            "zero": 0,
            "negative": -4,
            "bool": True,
            "bytes for": b"\4\4",
            "numpy's bool": np.True_,
            "fractional": 2.5,
            "whole but float": 8.0,
            "nan": float("nan"),
            "zero in a shape of": (8, 0),
            "negative in a shape of": (8, -8),
            "bool in a shape of": (8, True),
            "fractional in a shape of": (8, 2.5),
            "none in a shape of": (8, None),
        }.items()
    },
    "shards that are no byte size": ({"shards": "many"}, "shards", "'many'", '"256MB"'),
    "shards of no bytes": ({"shards": "0MB"}, "shards", "'0MB'", '"256MB"'),
    "a filter that does not exist": ({"filters": "nosuch"}, "filters", "'nosuch'", '"transpose"'),
    "a serializer that does not exist": ({"serializer": "nosuch"}, "serializer", "'nosuch'", '"bytes"'),
    "a compressor that does not exist": ({"compressors": "nosuch"}, "compressors", "'nosuch'", '"zstd"'),
    "a compressor of numcodecs that does not exist": ({"compressors": ["numcodecs.no"]}, "compressors", "'numcodecs.no'", '"zstd"'),
    "an index codec that does not exist": ({"index_codecs": ["bytes", "nosuch"]}, "index_codecs", "'nosuch'", '"crc32c"'),
    "a compressor that is none": ({"compressors": 5}, "compressors", "5", '"zstd"'),
    "a level that is none": (
        {"compressors": {"name": "zstd", "configuration": {"level": "x"}}}, "compressors", "'level': 'x'", '"zstd"',
    ),
    "compression in the index": ({"index_codecs": ["bytes", "zstd"]}, "index_codecs", "['bytes', 'zstd']", '"crc32c"'),
    "no array->bytes codec in the index": ({"index_codecs": ["crc32c"]}, "index_codecs", "'crc32c'", '"bytes"'),
    "two array->bytes codecs in the index": ({"index_codecs": ["bytes", "bytes"]}, "index_codecs", "['bytes', 'bytes']", '"bytes"'),
    "two array->bytes codecs, as serializers": ({"serializer": [LITTLE, LITTLE]}, "serializer", "'bytes'", "give one"),
    "two array->bytes codecs, one a filter": ({"filters": [LITTLE]}, "filters", "'bytes'", "array-to-array"),
    "two array->bytes codecs, one a compressor": ({"compressors": [LITTLE]}, "compressors", "'bytes'", "bytes-to-bytes"),
    "a sharding that does not divide an inner chunk": ({"serializer": ShardingCodec(chunk_shape=(3, 3))}, "chunk_shape", "[3, 3]", "divides the shard"),
    "an index that lies nowhere": ({"index_location": "middle"}, "index_location", "'middle'", '"start" or "end"'),
    "a fill value of another kind": ({"fill_value": "green"}, "fill_value", "'green'", "scalar of the array's dtype"),
    "names for other dimensions": ({"dimension_names": ["y"]}, "dimension_names", "['y']", "for each axis"),
    "attributes that JSON cannot hold": ({"attributes": {"a": {1}}}, "attributes", "{'a': {1}}", "JSON can hold"),
    "a key encoding that does not exist": ({"chunk_key_encoding": "v9"}, "chunk_key_encoding", "'v9'", '"default" or "v2"'),
    "a separator that does not exist": (
        {"chunk_key_encoding": {"name": "v2", "separator": "_"}}, "chunk_key_encoding", "'_'", '"/" or "."',
    ),
    "a misspelled separator": (
        {"chunk_key_encoding": {"name": "default", "configuration": {"seperator": "."}}},
        "chunk_key_encoding", "unknown members ['seperator']", '"/" or "."',
    ),
    "a key encoding that is configured by a number": (
        {"chunk_key_encoding": {"name": "default", "configuration": 5}}, "chunk_key_encoding", "5", '"/" or "."',
    ),
    "a key encoding that is a number": ({"chunk_key_encoding": 5}, "chunk_key_encoding", "5", '"/" or "."'),
    "a compressor without a name": ({"compressors": {"id": "zstd"}}, "compressors", "has no 'name'", '"zstd"'),
    "attributes that are a text": ({"attributes": "unit"}, "attributes", "no mapping", "JSON can hold"),
    "a strategy that does not exist": ({"strategy": "sideways"}, "strategy", "'sideways'", "append-only"),
    "a strategy that is none": ({"strategy": 3}, "strategy", "3", "append-only"),
    "a mode that does not exist": ({"mode": "x"}, "mode", "'x'", f"{CHOICES} ['w-', 'w', 'a', 'r+']"),
    "a mode that only reads": ({"mode": "r"}, "mode", "'r'", 'give "r+"'),
    "a mode for arrays that exist": ({"mode": "r+"}, "store", "no array", "of a sharded Zarr v3 array"),
    "a time to publish that does not exist": ({"publish": "never"}, "publish", "'never'", f"{CHOICES} ['last', 'first']"),
    "a durability that does not exist": ({"durability": "some"}, "durability", "'some'", "'full'"),
    "restart that is no bool": ({"restart": "yes"}, "restart", "'yes'", "True"),
    "recheck that is no bool": ({"recheck": 2}, "recheck", "2", "True"),
    "memory that is none": ({"memory_limit": "none"}, "memory_limit", "'none'", "256MB"),
    "negative memory": ({"memory_limit": -1}, "memory_limit", "-1", "4GB"),
    "fractional memory": ({"memory_limit": 1.5}, "memory_limit", "1.5", "4GB"),
    "bool for memory": ({"memory_limit": True}, "memory_limit", "True", "4GB"),
    "zero for a ratio": ({"compression_ratio": 0}, "compression_ratio", "0", "2.5"),
    "text for a ratio": ({"compression_ratio": "x"}, "compression_ratio", "'x'", "2.5"),
    "zero tasks": ({"max_graph_tasks": 0}, "max_graph_tasks", "0", "100000"),
    "fractional tasks": ({"max_graph_tasks": 2.5}, "max_graph_tasks", "2.5", "100000"),
    "negative reruns": ({"max_source_reruns": -1}, "max_source_reruns", "-1", "1.25"),
    "text for a bool": ({"write_empty_chunks": "no"}, "write_empty_chunks", "'no'", "True or False"),
    "text for compute": ({"compute": "no"}, "compute", "'no'", "True or False"),
    "text for progress": ({"progress": "yes"}, "progress", "'yes'", "a function that takes a report"),
    "bytes that name the source": ({"source_id": b"x"}, "source_id", "b'x'", "give a text"),
    **{
        f"key {kind}": ({"name": name}, "name", repr(name), PLAIN)
        for kind, name in {
            "that leads up": "../up",
            "with .. in it": "a/../b",
            "that is ..": "..",
            "that is .": ".",
            "with . in it": "a/./b",
            "of dots only": "a/...",
            "that is absolute": "/abs",
            "with NUL": "a\0b",
            "with an empty part": "a//b",
            "with an empty end": "a/",
            "with a reserved part": "a/__b",
            "of a document": "a/zarr.json",
            "of a run": "a.shardwrite",
            "that no file system takes": "a" * 300,
            "that is no text": 5,
            "that cannot be encoded": "\ud800",
        }.items()
    },
}  # fmt: skip


@pytest.mark.parametrize("row", ARGUMENTS)
def test_arguments(tmp_path, x, row):
    keywords, field, value, remedy = ARGUMENTS[row]
    with refused(tmp_path, field=field, value=value, remedy=remedy):
        x.to_sharded_zarr(tmp_path / "x", **{**GOOD, **keywords})


@pytest.mark.parametrize(
    ("field", "value"), [("shards", True), ("shards", -4), ("chunks", 0.5), ("chunks", "0B")]
)
def test_sizes_for_no_axes(tmp_path, field, value):
    with refused(tmp_path, field=field, value=repr(value), remedy="give for instance"):
        da.zeros((), chunks=()).to_sharded_zarr(
            tmp_path / "x", **{"shards": (), "chunks": (), field: value}
        )


def test_the_mode_that_repairs_is_refused_wherever_an_array_is_made(tmp_path, x):
    plan = shardwrite.plan(x, shards=8, chunks=4)
    for call in (
        lambda: shardwrite.store([x], [tmp_path / "x"], mode="r+", shards=8, chunks=4),
        lambda: shardwrite.prepare(x, tmp_path / "x", plan, mode="r+"),
    ):
        with refused(tmp_path, field="mode", value="'r+'", remedy="use one of ['w-', 'w']"):
            call()


STORES = {
    "another protocol": ("sftp://host/x", "'sftp://host/x'", "file://"),
    "a URL with a host": ("file://host/x", "'file://host/x'", "file:///an/absolute/path"),
    "no path": ("", "''", "give one"),
    "NUL": ("a\0b", "'a\\x00b'", "give one"),
    "what has no name": ("/", "'/'", "give one with a name"),
    "what is named by its place": ("x/..", "'x/..'", "give one with a name"),
    "what no file system takes": ("a" * 300, "aaa", "give one"),
    "a number": (5, "5", "a directory's path"),
}


@pytest.mark.parametrize("row", STORES)
def test_stores(tmp_path, x, row, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store, value, remedy = STORES[row]
    with refused(tmp_path, field="store", value=value, remedy=remedy):
        x.to_sharded_zarr(store, **GOOD)


def test_a_url_of_a_directory_is_taken(tmp_path, x):
    assert x.to_sharded_zarr(f"file://{tmp_path}/y", **GOOD).path == str(tmp_path / "y")


def with_unknown_chunks():
    y = da.from_array(np.arange(8.0), chunks=4)
    return y[y > 3]


SOURCES = {
    "no array": (lambda: [0, 1, 2, 3], "x", "'list'", "give a dask or numpy array"),
    "unknown chunks": (with_unknown_chunks, "x.chunks", "nan", "compute_chunk_sizes()"),
    "masked arrays": (
        lambda: da.ma.masked_greater(da.arange(8, chunks=4), 3),
        "x",
        "'masked array'",
        "dask.array.ma.filled",
    ),
    "object dtype": (
        lambda: da.from_array(np.array([{}, {}], dtype=object), chunks=1),
        "dtype",
        "'object'",
        "vlen-utf8",
    ),
    "objects in a structure": (
        lambda: da.from_array(np.zeros(4, [("a", object)]), chunks=2),
        "dtype",
        "'O'",
        "astype",
    ),
    "a dtype without a stored form": (
        lambda: da.zeros(4, dtype="c32"),
        "dtype",
        "'complex256'",
        "astype",
    ),
    "elements that a document cannot hold": (  # it took a minute to find out
        lambda: da.zeros(4, chunks=1, dtype="V300000000"),
        "dtype",
        "V300000000",
        'give "uint8", and an axis more',
    ),
    "fields that a document cannot hold": (
        lambda: da.zeros(4, chunks=1, dtype=[("a", "u1"), ("b", "S300000000")]),
        "dtype",
        "S300000000",
        'give "uint8", and an axis more',
    ),
    "a time without a unit": (
        lambda: da.zeros(4, dtype="M8"),
        "dtype",
        "'datetime64'",
        'astype("datetime64[ns]")',
    ),
    "a duration without a unit": (
        lambda: da.zeros(4, dtype="m8"),
        "dtype",
        "'timedelta64'",
        'astype("timedelta64[ns]")',
    ),
    "a field that is an array": (
        lambda: da.zeros(4, chunks=1, dtype=[("a", "u1"), ("b", [("c", "f8", (3,))])]),
        "dtype",
        "(3,)",
        "or write such a field as an array of its own",
    ),
}


@pytest.mark.parametrize("row", SOURCES)
def test_sources(tmp_path, row):
    make, field, value, remedy = SOURCES[row]
    with refused(tmp_path, field=field, value=value, remedy=remedy):
        shardwrite.to_sharded_zarr(make(), tmp_path / "x", shards=4, chunks=2)


SNAPPY = {
    "name": "blosc",
    "configuration": {
        "cname": "snappy",
        "clevel": 5,
        "shuffle": "shuffle",
        "typesize": 4,
        "blocksize": 0,
    },
}


@pytest.mark.parametrize(
    ("keywords", "word"),
    [
        pytest.param(
            {"compressors": [SNAPPY]},
            "snappy",
            marks=pytest.mark.skipif(
                "snappy" in numcodecs.blosc.list_compressors(), reason="this numcodecs has snappy"
            ),
        ),
        pytest.param(
            {"serializer": {"name": "numcodecs.zfpy", "configuration": {}}, "compressors": None},
            "zfpy",
            marks=pytest.mark.skipif(
                importlib.util.find_spec("zfpy") is not None, reason="zfpy is here"
            ),
        ),
    ],
    ids=["snappy", "zfpy"],
)
def test_a_codec_whose_library_is_not_here(tmp_path, x, keywords, word):
    """It is known, and can encode nothing here: told before the first task."""
    with pytest.raises(SpecError, match=word):
        x.to_sharded_zarr(tmp_path / "x", **GOOD, **keywords)
    assert not list(tmp_path.iterdir())


def test_a_plan_over_its_memory(tmp_path, x):
    with refused(
        tmp_path, field="memory_limit", value="may use 100", remedy="smaller", error=PlanError
    ) as found:
        x.to_sharded_zarr(tmp_path / "x", **GOOD, memory_limit=100)
    assert found.value.needed_nbytes > found.value.allowed_nbytes == 100
    assert f"{found.value.needed_nbytes:,}" in str(found.value)


def test_a_plan_over_its_reruns(tmp_path, x):
    y = x - x.mean()
    refusal = refused(
        tmp_path,
        field="max_source_reruns",
        value="1.25",
        remedy="raise max_graph_tasks",
        error=PlanError,
    )
    with dask.config.set(num_workers=2), refusal:
        y.to_sharded_zarr(
            tmp_path / "x", shards=4, chunks=4, max_graph_tasks=5, memory_limit="10kB"
        )


# ---- what stands in the place: (what to put there, keywords, field, value, remedy)


def put(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def link(path, target, *, dangling=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    if not dangling:
        target.mkdir(parents=True)
    path.symlink_to(target)


def directory_for_document(path):
    (path / "x" / "zarr.json").mkdir(parents=True)


TORN = {
    "nothing in it": b"",
    "half of it": b'{"zarr_format": 3, "node',
    "no text": b"\xff\xfe\x00",
    "too deep": b"[" * 200_000,
    "no object": b"[]",
    "no version": b'{"node_type": "array"}',
    "version 2": b'{"node_type": "array", "zarr_format": 2}',
    "another kind of node": b'{"node_type": ["array"], "zarr_format": 3}',
}
ANOTHER, INSIDE = "give another path", {"name": "a/b"}
PLACES = {
    "a group": (lambda p: zarr.create_group(p / "x"), {}, "store", "a group", "name= inside it"),
    "a v2 array": (
        lambda p: zarr.create_array(p / "x", shape=3, dtype="i4", zarr_format=2),
        {},
        "store",
        "Zarr v2",
        ANOTHER,
    ),
    "a v2 group": (
        lambda p: zarr.create_group(p / "x", zarr_format=2),
        {},
        "store",
        "Zarr v2",
        "give another name= inside it",
    ),
    **{
        f"half a zarr.json, {kind}": (
            lambda p, t=text: put(p / "x" / "zarr.json", t),
            {},
            "store",
            "half a zarr.json",
            "remove",
        )
        for kind, text in TORN.items()
    },
    "a directory for a zarr.json": (directory_for_document, {}, "store", "no Zarr array", ANOTHER),
    "somebody's files": (
        lambda p: put(p / "x" / "thesis.txt", b"words"),
        {},
        "store",
        "no Zarr array",
        ANOTHER,
    ),
    "a file": (lambda p: put(p / "x", b"words"), {}, "store", "no Zarr array", ANOTHER),
    "a link": (
        lambda p: link(p / "x", p / "real"),
        {},
        "store",
        "symbolic link",
        "that it points to",
    ),
    "a link to nothing": (
        lambda p: link(p / "x", p / "real", dangling=True),
        {},
        "store",
        "symbolic link",
        "that it points to",
    ),
    "a link beside it": (
        lambda p: link(p / "x.shardwrite", p / "real"),
        {},
        "store",
        "x.shardwrite",
        "remove the link",
    ),
    "a file beside it": (
        lambda p: put(p / "x.shardwrite", b"words"),
        {},
        "store",
        "x.shardwrite",
        "move the file",
    ),
    "a link in what is no group": (
        lambda p: link(p / "x" / "a", p / "real"),
        INSIDE,
        "name",
        "no Zarr array",
        "another name",
    ),
    "a link for the store": (
        lambda p: link(p / "x", p / "real"),
        INSIDE,
        "name",
        "symbolic link",
        "that it points to",
    ),
    "an array for a group": (
        lambda p: zarr.create_array(p / "x", shape=3, dtype="i4"),
        INSIDE,
        "name",
        "an array",
        "another name",
    ),
    "half a zarr.json of a group": (
        lambda p: put(p / "x" / "zarr.json", b'{"zar'),
        INSIDE,
        "name",
        "half a",
        "another name",
    ),
    "a file for a group": (
        lambda p: put(p / "x", b"words"),
        INSIDE,
        "name",
        "no Zarr array",
        "another name",
    ),
}


@pytest.mark.parametrize("mode", ["w-", "w"])
@pytest.mark.parametrize("row", PLACES)
def test_what_stands_in_the_place(tmp_path, x, row, mode):
    make, keywords, field, value, remedy = PLACES[row]
    make(tmp_path)
    with refused(tmp_path, field=field, value=value, remedy=remedy):
        x.to_sharded_zarr(tmp_path / "x", mode=mode, **GOOD, **keywords)


def test_a_link_in_the_path_of_groups(tmp_path, x):
    zarr.create_group(tmp_path / "x")
    link(tmp_path / "x" / "a", tmp_path / "real")
    with refused(tmp_path, field="name", value="symbolic link", remedy="that it points to"):
        x.to_sharded_zarr(tmp_path / "x", name="a/b", **GOOD)


def other_source(x):
    return da.zeros((9, 16), chunks=5, dtype="f4")


DIFFERENCES = {
    "shape": (other_source, {}, "shape: [16, 16] there, [9, 16] now"),
    "dtype": (lambda x: x.astype("f8"), {}, 'data_type: "float32" there, "float64" now'),
    "shards": (lambda x: x, {"shards": 16}, "chunk_shape: [8, 8] there, [16, 16] now"),
    "inner chunks": (lambda x: x, {"chunks": 2}, "chunk_shape: [4, 4] there, [2, 2] now"),
    "codecs": (lambda x: x, {"compressors": "gzip"}, "codecs: "),
    "fill value": (lambda x: x, {"fill_value": 1}, "fill_value: 0.0 there, 1.0 now"),
    "keys": (
        lambda x: x,
        {"chunk_key_encoding": "v2"},
        'chunk_key_encoding.name: "default" there, "v2" now',
    ),
    "dimension names": (
        lambda x: x,
        {"dimension_names": ["y", "x"]},
        'dimension_names: null there, ["y", "x"] now',
    ),
    "attributes": (lambda x: x, {"attributes": {"a": 1}}, "attributes.a: null there, 1 now"),
    "values only": (lambda x: x + 1, {}, "of another run"),
}


@pytest.mark.parametrize("row", DIFFERENCES)
def test_an_array_that_differs(tmp_path, x, row):
    change, keywords, value = DIFFERENCES[row]
    x.to_sharded_zarr(tmp_path / "x", **GOOD)
    with refused(tmp_path, field="store", value=value, remedy='mode="w"'):
        change(x).to_sharded_zarr(tmp_path / "x", **{**GOOD, **keywords})


# ---- writing into an array that is there, which only repair does


INTO = {
    "another shape": (other_source, ".shape", "(9, 16)", "(16, 16)"),
    "a lossy cast": (lambda x: x.astype("f8"), ".dtype", "'float64'", 'astype("float32")'),
    "a lossy cast of integers": (
        lambda x: x.astype("i8"),
        ".dtype",
        "'int64'",
        'astype("float32")',
    ),
    "objects": (lambda x: x.astype(object), ".dtype", "'object'", 'astype("float32")'),
    "unknown chunks": (lambda x: x[x[:, 0] > 3], ".chunks", "nan", "compute_chunk_sizes()"),
    "no array": (lambda x: x.compute().tolist(), "", "'list'", "give a dask or numpy array"),
}


@pytest.mark.parametrize("row", INTO)
def test_into_an_array_that_exists(tmp_path, x, row):
    change, field, value, remedy = INTO[row]
    x.to_sharded_zarr(tmp_path / "x", **GOOD)
    (tmp_path / "x" / "c" / "1" / "1").write_bytes(b"torn")
    (tmp_path / "x" / "c" / "1" / ".0.someone.else.swtmp").write_bytes(b"half")
    for name, call in {
        "x": lambda: shardwrite.repair(tmp_path / "x", change(x)),
        "against": lambda: shardwrite.verify(tmp_path / "x", against=change(x)),
    }.items():
        with refused(tmp_path, field=name + field, value=value, remedy=remedy):
            call()


SAME = {
    "another byte order": (np.arange(1, 17, dtype=">i4").reshape(4, 4), {}),
    "another byte order in a structure": (np.ones((4, 4), [("a", ">i4"), ("b", "<f8")]), {}),
    "another byte order of times": (np.arange(16).astype(">M8[s]").reshape(4, 4), {}),
    "text": (np.array(["a", "shard"] * 8, np.dtypes.StringDType()).reshape(4, 4), {}),
    "text as objects": (
        np.array(["a", "shard"] * 8, object).reshape(4, 4),
        {"serializer": "vlen-utf8"},
    ),
    "bytes as objects": (
        np.array([b"a", b"shard"] * 8, object).reshape(4, 4),
        {"serializer": "vlen-bytes"},
    ),
}


@pytest.mark.parametrize("row", SAME)
def test_the_source_that_made_it_is_taken(tmp_path, row):
    a, keywords = SAME[row]
    y = da.from_array(a, chunks=2)
    y.to_sharded_zarr(tmp_path / "x", shards=2, chunks=1, **keywords)
    (tmp_path / "x" / "c" / "0" / "1").write_bytes(b"torn")
    assert not shardwrite.verify(tmp_path / "x", against=y).is_good
    assert shardwrite.repair(tmp_path / "x", y).is_done
    assert shardwrite.verify(tmp_path / "x", deep=True, against=y).is_good


@pytest.mark.parametrize("durability", ["full", "batch", "none"])
@pytest.mark.parametrize("memory_limit", [None, "2kB"])
def test_an_all_fill_block_over_data_removes_the_entry(tmp_path, durability, memory_limit):
    a = np.arange(256, dtype="u2").reshape(16, 16) + 1
    a[:8, :8] = 0
    y = da.from_array(a, chunks=8)
    da.from_array(a + 1, chunks=8).to_sharded_zarr(tmp_path / "x", **GOOD)
    (tmp_path / "x" / "c" / "0" / "0").write_bytes(b"torn")
    shardwrite.write_region(y[8:], tmp_path / "x", (slice(8, 16), slice(0, 16)))
    shardwrite.write_region(y[:8, 8:], tmp_path / "x", (slice(0, 8), slice(8, 16)))
    done = shardwrite.repair(tmp_path / "x", y, durability=durability, memory_limit=memory_limit)
    assert [task.key for task in done.tasks] == ["c/0/0"]
    assert not (tmp_path / "x" / "c" / "0" / "0").exists()
    assert done.result.n_empty_shards == 1
    report = shardwrite.verify(tmp_path / "x", deep=True, against=y)
    assert (report.is_good, report.expected_by, report.n_absent, report.n_missing) == (
        True,
        "receipt",
        1,
        0,
    )
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x", mode="r")[...], a)


def test_removing_follows_no_link(tmp_path):
    a = np.ones((16, 16), "u2")
    a[:8, :8] = 0
    y = da.from_array(a, chunks=8)
    y.to_sharded_zarr(tmp_path / "x", write_empty_chunks=True, **GOOD)
    (tmp_path / "x" / "c" / "0").rename(tmp_path / "outside")
    (tmp_path / "outside" / "0").write_bytes(b"somebody's")
    (tmp_path / "x" / "c" / "0").symlink_to(tmp_path / "outside")
    with pytest.raises(
        StoreError, match=r"symbolic link inside the store; replace it by a directory"
    ):
        shardwrite.repair(tmp_path / "x", y)
    assert (tmp_path / "outside" / "0").read_bytes() == b"somebody's"
    assert sorted(os.listdir(tmp_path)) == ["outside", "x"]  # no run was begun


@pytest.mark.parametrize("is_short", [True, False], ids=["all shards", "the first and the last"])
@pytest.mark.parametrize("strategy", ["fixed-order", shardwrite.AppendOnly(in_place=True)])
@pytest.mark.parametrize("linked", ["c", "c/1", "c/1/1"])
def test_an_update_through_a_link_is_refused_before_it_begins(
    tmp_path, x, linked, strategy, is_short, monkeypatch
):
    """It had begun a run, which had to be given up."""
    monkeypatch.setattr(*seams.step("few shards"), 64 if is_short else 0)
    x.to_sharded_zarr(tmp_path / "x", **GOOD)
    (tmp_path / "x" / linked).rename(tmp_path / "outside")
    (tmp_path / "x" / linked).symlink_to(tmp_path / "outside")
    region = (slice(1, 15), slice(1, 15))
    remedy = "put the file itself there" if linked == "c/1/1" else "replace it by a directory"
    with refused(tmp_path, field=linked, value="symbolic link", remedy=remedy, error=StoreError):
        shardwrite.write_region(7, tmp_path / "x", region, strategy=strategy, durability="none")
    (tmp_path / "x" / linked).unlink()
    (tmp_path / "outside").rename(tmp_path / "x" / linked)
    shardwrite.write_region(7, tmp_path / "x", region, strategy=strategy, durability="none")
    assert (zarr.open_array(tmp_path / "x", mode="r")[region] == 7).all()


def test_an_update_of_a_whole_shard_replaces_a_link(tmp_path, x):
    """What the link leads to stays as it is."""
    x.to_sharded_zarr(tmp_path / "x", **GOOD)
    (tmp_path / "x/c/1/1").rename(tmp_path / "outside")
    (tmp_path / "x/c/1/1").symlink_to(tmp_path / "outside")
    before = (tmp_path / "outside").read_bytes()
    shardwrite.write_region(7, tmp_path / "x", (slice(8, 16), slice(8, 16)), durability="none")
    assert not (tmp_path / "x/c/1/1").is_symlink()
    assert (tmp_path / "outside").read_bytes() == before
    assert (zarr.open_array(tmp_path / "x", mode="r")[8:, 8:] == 7).all()


# ---- where nothing can be written


def test_a_file_in_the_path(tmp_path, x):
    (tmp_path / "file").write_text("words")
    with refused(
        tmp_path,
        field="store",
        value="file/inside/x",
        remedy="that can be written to",
        error=StoreError,
    ):
        x.to_sharded_zarr(tmp_path / "file" / "inside" / "x", **GOOD)


def test_missing_directories_are_made_and_taken_back(tmp_path, x):
    with refused(tmp_path, field="store", value="ccc", remedy="give one"):
        x.to_sharded_zarr(tmp_path / "a" / "b" / ("c" * 255) / "x", **GOOD)
    x.to_sharded_zarr(tmp_path / "a" / "b" / "x", **GOOD)
    assert shardwrite.verify(tmp_path / "a" / "b" / "x", against=x).is_good


def test_a_name_leaves_room_for_those_of_directories_beside_the_array(tmp_path, x):
    """A run with a longer one began, and then ended in the middle."""
    with refused(tmp_path, field="store", value="nnn", remedy="give one"):
        x.to_sharded_zarr(tmp_path / ("n" * 234), **GOOD)
    x.to_sharded_zarr(tmp_path / ("n" * 233), **GOOD)
    assert shardwrite.verify(tmp_path / ("n" * 233), against=x).is_good


@pytest.fixture
def mount(tmp_path):
    """A directory, and a function that mounts something on it."""
    path = tmp_path / "disk"
    path.mkdir()

    def mounted(*options):
        subprocess.run(["mount", *options, path], check=True)

    yield path, mounted
    subprocess.run(["umount", "--lazy", path], check=False, capture_output=True)


@needs_mounts
@pytest.mark.parametrize("mode", ["w-", "w"])
def test_a_read_only_directory(tmp_path, x, mount, mode):
    disk, mounted = mount
    mounted("-t", "tmpfs", "none")
    (x + 1).to_sharded_zarr(disk / "x", **GOOD)
    mounted("-o", "remount,ro")
    where = disk / ("x" if mode == "w" else "y")
    with refused(
        tmp_path, field="store", value=str(where), remedy="that can be written to", error=StoreError
    ) as found:
        x.to_sharded_zarr(where, mode=mode, **GOOD)
    assert "Read-only" in str(found.value)


def test_a_directory_in_which_nobody_may_write(x):
    with pytest.raises(
        StoreError, match=r"store='/proc/shardwrite/x': cannot write beside it.*; give a directory"
    ):
        x.to_sharded_zarr("/proc/shardwrite/x", **GOOD)


WORKERS = {
    "read-only": ("mount --bind {0} {0} && mount -o remount,ro,bind {0}", "Read-only file system"),
    "missing": ("mount -t tmpfs none {0}", "is missing here"),
}


@needs_mounts
@pytest.mark.parametrize("row", some(WORKERS, "read-only"))
def test_a_directory_on_one_worker(tmp_path, x, row):
    """The other worker and the client see it, and can write there."""
    from distributed import Client, LocalCluster

    mounts, value = WORKERS[row]
    disk = tmp_path / "disk"
    disk.mkdir()
    (x + 1).to_sharded_zarr(disk / "x", **GOOD)
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        run = f"{mounts.format(disk)} && exec {sys.executable} -m distributed.cli.dask_worker {cluster.scheduler_address}"
        command = [
            "unshare",
            "--mount",
            "sh",
            "-c",
            f"{run} --no-nanny --nthreads 1 --no-dashboard",
        ]
        worker = subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            client.wait_for_workers(2, timeout=60)
            for where, mode in ((disk / "x", "w"), (disk / "y", "w-")):
                remedy = "give a directory that every worker can write to"
                with refused(
                    disk, field="store", value=str(where), remedy=remedy, error=StoreError
                ) as found:
                    x.to_sharded_zarr(where, mode=mode, **GOOD)
                assert "1 of 2 workers cannot write there" in str(found.value)
                assert value in str(found.value)
        finally:
            worker.kill()
            worker.wait()


def test_a_link_inside_the_store(tmp_path, x):
    outside = tmp_path / "outside"
    (outside / "0").mkdir(parents=True)

    def plant(block):
        with contextlib.suppress(FileExistsError):  # another thread was quicker
            (tmp_path / "x" / "c").symlink_to(outside)
        return block

    with pytest.raises(
        StoreError, match=r"x/c is a symbolic link inside the store; replace it by a directory"
    ):
        x.map_blocks(plant, dtype="f4", meta=np.empty((0, 0), "f4")).to_sharded_zarr(
            tmp_path / "x", **GOOD
        )
    assert list((outside / "0").iterdir()) == []


# ---- in the task


def in_one_block(function):
    """A fault in the block that starts at (8, 8)."""

    def maybe(block, block_info=None):
        return function(block) if block_info[0]["array-location"] == [(8, 12), (8, 12)] else block

    return maybe


BLOCKS = {
    "another dtype": (
        lambda b: b.astype("f8"),
        SourceError,
        ("declared dtype float32", "float64", "dtype="),
    ),
    "another shape": (lambda b: b[:1], SourceError, ("declared shape (4, 4)", "(1, 4)", "chunks=")),
    "another rank": (
        lambda b: b[None],
        SourceError,
        ("declared shape (4, 4)", "(1, 4, 4)", "chunks="),
    ),
    "masked without a fill": (
        lambda b: np.ma.masked_greater(b, 3),
        SourceError,
        ("masked", "dask.array.ma.filled"),
    ),
    "raises": (lambda b: 1 // 0, ZeroDivisionError, ("division",)),
    "raises an error of the system": (
        lambda b: os.stat("/nowhere/at/all"),
        FileNotFoundError,
        ("/nowhere/at/all",),
    ),
    "gives nothing": (lambda b: None, SourceError, ("declared shape",)),
}


@pytest.mark.parametrize("memory_limit", [None, "1kB"], ids=["fused", "direct"])
@pytest.mark.parametrize("row", BLOCKS)
def test_a_faulty_block(tmp_path, row, memory_limit):
    function, error, words = BLOCKS[row]
    a = np.arange(256, dtype="f4").reshape(16, 16)
    y = da.from_array(a, chunks=4).map_blocks(
        in_one_block(function), dtype="f4", meta=np.empty((0, 0), "f4")
    )
    with dask.config.set(scheduler="sync"), pytest.raises(error) as caught:
        y.to_sharded_zarr(tmp_path / "x", memory_limit=memory_limit, **GOOD)
    for word in words:
        assert word in str(caught.value)
    if error is SourceError:
        assert caught.value.region == ((8, 12), (8, 12))
        assert "source region [8:12, 8:12]" in str(caught.value)
    regions = re.findall(r"region \[(\d+):(\d+), (\d+):(\d+)\]", "".join(caught.value.__notes__))
    assert any(
        int(a) <= 8 and int(b) >= 12 and int(c) <= 8 and int(d) >= 12 for a, b, c, d in regions
    )
    files = {str(p.relative_to(tmp_path / "x")) for p in (tmp_path / "x").rglob("*") if p.is_file()}
    assert files <= {"c/0/0", "c/0/1", "c/1/0"}, "neither the shard nor the array"
    assert not list(tmp_path.rglob("*.swtmp"))
    with pytest.raises(SpecError, match="has not ended"):
        shardwrite.from_sharded_zarr(tmp_path / "x")
    # and again, without the fault and with another shape: nothing stale shines through
    z = da.zeros((9, 9), chunks=4, dtype="f4")
    with pytest.raises(JournalError, match="restart=True") as refusal:
        z.to_sharded_zarr(tmp_path / "x", **GOOD)
    assert any("shape" in line for line in refusal.value.differences)
    result = z.to_sharded_zarr(tmp_path / "x", restart=True, **GOOD)
    assert (result.n_shards, result.n_empty_shards) == (0, 4)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x", mode="r")[...], 0)


LIES = {
    "larger": (lambda b: np.pad(b, ((0, 0), (0, 1))), "declared shape"),
    "one value for all": (lambda b: b[:1, :1], "declared shape"),
    "values that a cast would hide": (lambda b: b + 0.25, "declared dtype"),
    "masked": (lambda b: np.ma.masked_greater(b, 3), "masked"),
}


@pytest.mark.parametrize("row", LIES)
def test_a_faulty_block_is_no_source_to_compare_with(tmp_path, row):
    """It can be no other than declared where it is written, either."""
    lie, told = LIES[row]
    a = np.arange(256, dtype="i4").reshape(16, 16)
    shardwrite.to_sharded_zarr(a, tmp_path / "x", **GOOD)
    y = da.from_array(a, chunks=4).map_blocks(
        in_one_block(lie), dtype="i4", meta=np.empty((0, 0), "i4")
    )
    with dask.config.set(scheduler="sync"), pytest.raises(SourceError, match=told):
        shardwrite.verify(tmp_path / "x", against=y)


def test_a_block_without_a_mask_is_taken(tmp_path, x):
    y = x.map_blocks(np.ma.asarray, dtype="f4", meta=np.empty((0, 0), "f4"))
    y.to_sharded_zarr(tmp_path / "x", **GOOD)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x", mode="r")[...], x.compute())


# ---- reading shards: (what to do to the bytes of a shard of 16 inner chunks, the chunk that is
# named)

N_CHUNKS = 16
MAX = 2**64 - 1
RANK, NAMED = 6, (1, 2)  # the chunk that is tampered with


@dataclasses.dataclass(frozen=True)
class Shard:
    """Bytes of a shard whose index has a crc32c."""

    data: bytes
    location: str

    @property
    def at(self):
        """Where the index begins."""
        return 0 if self.location == "start" else len(self.data) - 16 * N_CHUNKS - 4

    @property
    def index(self):
        return slice(self.at, self.at + 16 * N_CHUNKS + 4)

    def table(self):
        return [
            list(row)
            for row in struct.iter_unpack("<2Q", self.data[self.at : self.at + 16 * N_CHUNKS])
        ]

    def replaced(self, encoded):
        return self.data[: self.index.start] + encoded + self.data[self.index.stop :]

    def with_entry(self, offset=None, nbytes=None):
        """One entry changed, and the checksum made right again."""
        table = self.table()
        table[RANK] = [
            table[RANK][0] if offset is None else offset,
            table[RANK][1] if nbytes is None else nbytes,
        ]
        encoded = b"".join(struct.pack("<2Q", *row) for row in table)
        return self.replaced(encoded + crc32c.crc32c(encoded).to_bytes(4, "little"))

    def with_chunk(self, frame):
        """One inner chunk's bytes replaced; the new ones lie after all others."""
        if self.location == "start":
            return Shard(self.data + frame, "start").with_entry(len(self.data), len(frame))
        grown = self.data[: self.at] + frame + self.data[self.at :]
        return Shard(grown, "end").with_entry(self.at, len(frame))


def flipped(data, bit):
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


DAMAGE = {
    "empty file": (lambda s: b"", None),
    "too short for an index": (lambda s: s.data[:100], None),
    "truncated": (lambda s: s.data[:-7], None),
    "zeroed": (lambda s: bytes(len(s.data)), None),
    "truncated index": (lambda s: s.replaced(s.data[s.index][:-1]), None),
    "zeroed index": (lambda s: s.replaced(bytes(16 * N_CHUNKS + 4)), None),
    "bit-flipped index, first": (lambda s: s.replaced(flipped(s.data[s.index], 0)), None),
    "bit-flipped index, in the middle": (
        lambda s: s.replaced(flipped(s.data[s.index], 1027)),
        None,
    ),
    "bit-flipped index, in the checksum": (
        lambda s: s.replaced(flipped(s.data[s.index], 8 * 16 * N_CHUNKS + 5)),
        None,
    ),
    "offset past the end": (lambda s: s.with_entry(offset=len(s.data) + 1), NAMED),
    "offset of 2^40": (lambda s: s.with_entry(offset=2**40), NAMED),
    "nbytes of 2^40": (lambda s: s.with_entry(nbytes=2**40), NAMED),
    "nbytes one too many": (
        lambda s: s.with_entry(nbytes=len(s.data) - s.table()[RANK][0] + 1),
        NAMED,
    ),
    "wrap-around": (lambda s: s.with_entry(2**64 - 8, 16), NAMED),
    "wrap-around to the end": (lambda s: s.with_entry(nbytes=2**64 - 2), NAMED),
    "half-empty offset": (lambda s: s.with_entry(offset=MAX), NAMED),
    "half-empty nbytes": (lambda s: s.with_entry(nbytes=MAX), NAMED),
    "overlap": (lambda s: s.with_entry(offset=s.table()[RANK + 1][0] + 1), NAMED),
    "overlap by a byte": (lambda s: s.with_entry(nbytes=s.table()[RANK][1] + 1), (1, 3)),
    "an entry inside the index": (lambda s: s.with_entry(s.at + 16, 16), NAMED),
    "an entry over the index's edge": (
        lambda s: s.with_entry(s.at + (260 - 4 if s.at == 0 else -4), 8),
        NAMED,
    ),
    "no bytes": (lambda s: s.with_entry(nbytes=0), NAMED),
    "another chunk's bytes": (
        lambda s: s.with_chunk(s.data[s.table()[0][0] :][: s.table()[0][1] - 1]),
        NAMED,
    ),
}
DECODED = {"no bytes", "another chunk's bytes"}  # which only decoding tells


def check_reported(path, *, named, key="c/1/0", peak_nbytes=4 * 2**20):
    """Every way to read the array names shard and chunk, and takes little memory."""
    source = as_dask(open_source(path))
    out = path.with_name("copy")
    ways = {
        "read": lambda: shardwrite.from_sharded_zarr(path)[16:, :16].compute(),
        "read a part": lambda: shardwrite.open_sharded(path)[20:24, 8:12],
        "convert": lambda: source.to_sharded_zarr(out, shards=16, chunks=4, durability="none"),
    }
    with dask.config.set(scheduler="sync"):
        for way, call in ways.items():

            def refused(call=call, way=way):
                with pytest.raises(CorruptShardError) as caught:
                    call()
                assert (caught.value.key, caught.value.inner_chunk) == (key, named), way
                assert f"shard {key!r}" in str(caught.value)
                assert named is None or f"inner chunk {named}" in str(caught.value)
                told = getattr(caught.value, "__notes__", [])
                assert way != "convert" or any("region [16:32, 0:16]" in note for note in told)

            assert least_peak(refused, peak_nbytes) < peak_nbytes, way
        assert not (out / key).exists()
        (problem,) = shardwrite.verify(path, deep=True).problems
        assert problem.key == key
        assert named is None or f"inner chunk {named}" in problem.message
        assert "shardwrite repair" in problem.remedy
        (task,) = shardwrite.repair(path).tasks
        assert (task.key, task.region) == (key, ((16, 32), (0, 16)))


def whole(path, a, **keywords):
    da.from_array(a, chunks=16).to_sharded_zarr(
        path, shards=16, chunks=4, durability="none", **keywords
    )
    return path / "c" / "1" / "0"


def noise(dtype="i4"):
    return np.random.default_rng(0).integers(1, 99, (32, 32)).astype(dtype)


@pytest.mark.parametrize("location", ["end", pytest.param("start", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=pytest.mark.long if n % 3 else ()) for n, row in enumerate(DAMAGE)],
)
def test_damage(tmp_path, row, location):
    change, named = DAMAGE[row]
    file = whole(tmp_path / "x", noise(), index_location=location)
    good = file.read_bytes()
    file.write_bytes(change(Shard(good, location)))
    assert file.read_bytes() != good
    assert shardwrite.verify(tmp_path / "x").is_good == (row in DECODED)
    if (row, location) == ("truncated", "start"):
        named = (3, 3)  # the index is whole, and the last chunk is not
    check_reported(tmp_path / "x", named=named)
    assert shardwrite.repair(tmp_path / "x", da.from_array(noise(), chunks=16)).is_done
    assert file.read_bytes() == good


def test_a_zeroed_index_without_a_checksum(tmp_path):
    """Its entries are of no bytes; the first chunk that is read says so."""
    file = whole(tmp_path / "x", noise(), index_codecs=["bytes"])
    file.write_bytes(file.read_bytes()[: -16 * N_CHUNKS] + bytes(16 * N_CHUNKS))
    with pytest.raises(CorruptShardError, match=r"shard 'c/1/0', inner chunk \(0, 0\)"):
        shardwrite.open_sharded(tmp_path / "x")[16:, :16]
    assert [p.key for p in shardwrite.verify(tmp_path / "x", deep=True).problems] == ["c/1/0"]


def zstd_claiming(nbytes):
    """A frame header that claims a size, and an empty last block."""
    return b"\x28\xb5\x2f\xfd" + bytes([0b11100000]) + struct.pack("<Q", nbytes) + b"\x01\x00\x00"


def zstd_of_runs(n):
    """A frame that says no size, of so many runs of 128 KiB."""
    run, last = (
        ((2**17 << 3) | (1 << 1) | is_last).to_bytes(3, "little") + b"\0" for is_last in (0, 1)
    )
    return b"\x28\xb5\x2f\xfd\x00\x38" + run * (n - 1) + last


def blosc_claiming(nbytes):
    return struct.pack("<BBBBIII", 2, 1, 0, 4, nbytes, 2**20, 36) + bytes(20)


ZEROS = bytes(64 * 2**20)
BITROUND = {"name": "numcodecs.bitround", "configuration": {"keepbits": 23}}
TEXT = np.array(["a", "shard"] * 512, dtype=np.dtypes.StringDType()).reshape(32, 32)
FRAMES = {
    "zstd, a terabyte": ("f4", {"compressors": "zstd"}, lambda: zstd_claiming(2**40)),
    "zstd, all there can be": ("f4", {"compressors": "zstd"}, lambda: zstd_claiming(MAX)),
    "zstd, one byte too many": ("f4", {"compressors": "zstd"}, lambda: bytes(numcodecs.Zstd().encode(bytes(65)))),
    "zstd, 64 MiB": ("f4", {"compressors": "zstd"}, lambda: bytes(numcodecs.Zstd().encode(ZEROS))),
    "zstd, 64 MiB unsaid": ("f4", {"compressors": "zstd"}, lambda: zstd_of_runs(512)),
    "zstd of text, a terabyte": (None, {"compressors": "zstd"}, lambda: zstd_claiming(2**40)),
    "zstd after a foreign filter, a terabyte": ("f4", {"compressors": "zstd", "filters": BITROUND}, lambda: zstd_claiming(2**40)),
    "zstd after a foreign filter, 64 MiB": (
        "f4", {"compressors": "zstd", "filters": BITROUND}, lambda: bytes(numcodecs.Zstd().encode(ZEROS)),
    ),
    "numcodecs.zstd, a terabyte": ("f4", {"compressors": "numcodecs.zstd"}, lambda: zstd_claiming(2**40)),
    "gzip, 64 MiB": ("f4", {"compressors": "gzip"}, lambda: gzip.compress(ZEROS)),
    "numcodecs.zlib, 64 MiB": ("f4", {"compressors": "numcodecs.zlib"}, lambda: zlib.compress(ZEROS)),
    "blosc, two gigabytes": ("f4", {"compressors": "blosc"}, lambda: blosc_claiming(2**31 - 17)),
    "blosc of text, two gigabytes": (None, {"compressors": "blosc"}, lambda: blosc_claiming(2**31 - 17)),
    "blosc, 64 MiB": ("f4", {"compressors": "blosc"}, lambda: bytes(numcodecs.Blosc("zstd", 1).encode(ZEROS))),
    "numcodecs.lz4, two gigabytes": ("f4", {"compressors": "numcodecs.lz4"}, lambda: struct.pack("<I", 2**31 - 1) + bytes(30)),
    "numcodecs.lz4 of text": (None, {"compressors": "numcodecs.lz4"}, lambda: struct.pack("<I", 2**31 - 1) + bytes(30)),
    "nothing, one byte too many": ("f4", {"compressors": None}, lambda: bytes(65)),
    "text of a terabyte": (None, {"compressors": None}, lambda: struct.pack("<2I", 16, MAX & 0xFFFFFFFF) + bytes(64)),
    "text of other elements": (None, {"compressors": None}, lambda: struct.pack("<I", 2**32 - 1) + bytes(64)),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3 specification")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=pytest.mark.long if n % 2 else ()) for n, row in enumerate(FRAMES)],
)
def test_a_frame_that_claims_too_much(tmp_path, row):
    dtype, keywords, frame = FRAMES[row]
    file = whole(tmp_path / "x", TEXT if dtype is None else noise(dtype), **keywords)
    file.write_bytes(Shard(file.read_bytes(), "end").with_chunk(frame()))
    if dtype is None:  # text is no source for conversion

        def refused():
            with pytest.raises(CorruptShardError) as caught:
                shardwrite.open_sharded(tmp_path / "x")[16:, :16]
            assert (caught.value.key, caught.value.inner_chunk) == ("c/1/0", NAMED)

        assert least_peak(refused, 4 * 2**20) < 4 * 2**20
        assert [p.key for p in shardwrite.verify(tmp_path / "x", deep=True).problems] == ["c/1/0"]
        return
    check_reported(tmp_path / "x", named=NAMED)


# ---- documents that cannot be read

DOCUMENTS = {
    "nothing": (lambda p: None, "no zarr.json", "give the path of a sharded"),
    **{
        f"half a zarr.json, {kind}": (lambda p, t=t: put(p / "zarr.json", t), "", "")
        for kind, t in TORN.items()
    },
    "a group": (lambda p: zarr.create_group(p), "not an array", "the path of an array"),
    "a v2 array": (
        lambda p: zarr.create_array(p, shape=3, dtype="i4", zarr_format=2),
        "Zarr v2",
        "use zarr-python for it",
    ),
}


@pytest.mark.parametrize("row", DOCUMENTS)
def test_what_is_no_array_is_not_read(tmp_path, row):
    make, value, remedy = DOCUMENTS[row]
    make(tmp_path / "x")
    for call in (
        shardwrite.open_sharded,
        shardwrite.from_sharded_zarr,
        shardwrite.verify,
        shardwrite.repair,
        shardwrite.census,
    ):
        if call is shardwrite.verify and row == "a group":
            continue  # its consolidated metadata are verified
        before = tree(tmp_path)
        with pytest.raises(SpecError) as caught:
            call(tmp_path / "x")
        assert caught.value.remedy
        assert value in str(caught.value)
        assert remedy in caught.value.remedy
        assert tree(tmp_path) == before


@pytest.mark.parametrize(
    "more",
    [
        {"serializer": {"name": "vlen-utf8"}},
        {"filters": [{"name": "numcodecs.delta", "configuration": {"dtype": "<f8"}}]},
        {"serializer": {"name": "numcodecs.zfpy", "configuration": {"mode": 4, "tolerance": 0.1}}},
        {"filters": [{"name": "numcodecs.bitround", "configuration": {"keepbits": 3}}]},
    ],
    ids=lambda more: str(more)[:50],
)
@pytest.mark.filterwarnings("ignore::Warning")
def test_codecs_that_do_not_give_a_chunk_back_are_refused_before_a_task(tmp_path, more):
    with pytest.raises(SpecError, match="cannot encode"):
        da.ones(8, chunks=4, dtype="i4").to_sharded_zarr(tmp_path / "x", chunks=4, shards=8, **more)
    assert not any(tmp_path.iterdir())


def test_chunks_that_are_sparse_are_refused_before_a_task(tmp_path):
    sparse = pytest.importorskip("scipy.sparse")
    x = da.ones((4, 4), chunks=2).map_blocks(sparse.csr_matrix)
    with pytest.raises(SpecError, match=r"x='csr_matrix': its chunks are no arrays.*toarray"):
        x.to_sharded_zarr(tmp_path / "x", shards=4, chunks=2)
    assert not any(tmp_path.iterdir())
    dense = x.map_blocks(lambda a: a.toarray(), dtype=x.dtype)
    dense.to_sharded_zarr(tmp_path / "x", shards=4, chunks=2)


@pytest.mark.filterwarnings("ignore::Warning")
def test_text_is_appended_as_it_was_created_and_other_objects_are_errors(tmp_path):
    path, text = tmp_path / "x", np.array(["a", "bc", "", "é"] * 3, dtype=object)
    x = da.from_array(text, chunks=4)
    x.to_sharded_zarr(path, shards=8, chunks=4, serializer="vlen-utf8")
    x.to_sharded_zarr(path, region="append")
    shardwrite.write_region(x[1:2], path, slice(2, 3))
    shardwrite.write_region(da.from_array(np.array(["uu"]), chunks=1), path, slice(3, 4))
    with ShardWriter(path) as writer:
        writer.append(np.array(["q"], dtype=object))
        writer.append(np.array(["r"]))
    wanted = [*text, *text, "q", "r"]
    wanted[2:4] = ["bc", "uu"]
    assert shardwrite.open_sharded(path)[...].tolist() == wanted
    assert zarr.open_array(path)[...].tolist() == wanted
    for wrong in (1, None, float("nan"), b"x"):
        odd = np.array([wrong, "a"], dtype=object)
        source = da.from_array(odd, chunks=2)
        with pytest.raises(SourceError, match="cannot be encoded as StringDType"):
            source.to_sharded_zarr(tmp_path / "y", shards=2, chunks=2, serializer="vlen-utf8")
        with pytest.raises(SourceError, match="cannot be encoded as StringDType"):
            shardwrite.write_region(source, path, slice(0, 2))
        shardwrite.abandon(path)
        with (
            pytest.raises(SpecError, match="objects that are no text"),
            ShardWriter(path) as writer,
        ):
            writer.append(odd)
        shutil.rmtree(seams.state_beside(tmp_path / "y"), ignore_errors=True)
        shutil.rmtree(tmp_path / "y", ignore_errors=True)
    assert shardwrite.open_sharded(path)[...].tolist() == wanted

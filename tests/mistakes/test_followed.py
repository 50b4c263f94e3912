"""What messages tell to do about mistakes is done here, and works.

Each mistake of `test_mistakes.py` has a row with the corrected call. It differs from the mistake in
what the message tells to change, and in nothing else.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path

import dask
import fsspec
import numpy as np
import pytest
import xarray as xr
import zarr
from click.testing import CliRunner

import shardwrite
from shardwrite import ShardWriter
from shardwrite.cli import main
from shardwrite.sources import open_source

sys.path.insert(0, str(Path(__file__).parent))
import test_mistakes
from test_mistakes import WHOLE
from workplace import LAYOUT, Workplace

ONES = np.ones((16, 16), "f4")
GROWN = np.ones((32, 16), "f4")
EVERY_OTHER = np.tile(np.array([[2], [1]], "f4"), (8, 16))


def holds(path, values=ONES):
    """A check that an array holds values, and has their dtype."""

    def check(_):
        found = zarr.open_array(path, mode="r")
        return found.dtype == values.dtype and np.array_equal(found, values)

    return check


def gives(values):
    """A check that the call returns values."""
    return lambda found: np.array_equal(found, values)


def says(text):
    """A check that a command prints a text."""
    return lambda output: text in output


def has(path, **expected):
    """A check that an array is described by some values."""

    def check(_):
        found = zarr.open_array(path, mode="r")
        return all(getattr(found, name) == value for name, value in expected.items())

    return check


WRITTEN = holds("out")


def with_retries(w):
    with dask.annotate(retries=2):
        source = w.x + 0
    return source.to_sharded_zarr("out", **LAYOUT)


def with_four_threads(w):
    with dask.config.set(num_workers=4):
        return w.x.to_sharded_zarr("out", **LAYOUT)


def write_the_torn_array_again(w):
    shutil.rmtree("torn.zarr")
    return w.x.to_sharded_zarr("torn.zarr", **LAYOUT)


def prepare_first(w):
    shardwrite.prepare(w.x, "out", shardwrite.plan(w.x, **LAYOUT))
    shardwrite.write_part(w.x, "out", 0, 2)
    shardwrite.write_part(w.x, "out", 1, 2)
    shardwrite.finalize("out")


# ---- in Python: what is called, and a check of what came of it

IN_PYTHON = {
    # the source
    "the path of a file for the array": (
        lambda w: shardwrite.to_sharded_zarr(open_source("x.npy"), "out", **LAYOUT), WRITTEN,
    ),
    "array and store in the wrong order": (
        lambda w: shardwrite.to_sharded_zarr(w.x, "out", **LAYOUT), WRITTEN,
    ),
    "a list": (
        lambda w: shardwrite.to_sharded_zarr(np.array([1, 2]), "out", **LAYOUT),
        holds("out", np.array([1, 2])),
    ),
    "a dataset of xarray": (
        lambda w: shardwrite.to_sharded_zarr(xr.Dataset({"t": w.y})["t"], "out", **LAYOUT), WRITTEN,
    ),
    "a group of zarr": (
        lambda w: shardwrite.to_sharded_zarr(zarr.open_group("group.zarr")["a"], "out", **LAYOUT), WRITTEN,
    ),
    "an array that dask does not know the size of": (
        lambda w: w.x[w.x > 0].compute_chunk_sizes().to_sharded_zarr("out"),
        holds("out", np.ones(256, "f4")),
    ),
    "objects": (
        lambda w: w.source((4,), object).astype("f4").to_sharded_zarr("out", **LAYOUT),
        holds("out", np.ones(4, "f4")),
    ),
    "a file that is not there": (lambda w: open_source("x.npy")[WHOLE], gives(ONES)),
    "an array that is not in the file": (lambda w: open_source("two.h5::one")[WHOLE], gives(ONES)),
    # keywords
    "compressor": (lambda w: w.x.to_sharded_zarr("out", compressors="zstd", **LAYOUT), WRITTEN),
    "shard": (lambda w: w.x.to_sharded_zarr("out", shards=8, chunks=4), has("out", shards=(8, 8))),
    "chunk, in a plan": (
        lambda w: shardwrite.plan(w.x, shards=8, chunks=4), lambda plan: plan.n_shards == 4,
    ),
    "a keyword with a slip": (lambda w: w.x.to_sharded_zarr("out", memory_limit="1GB", **LAYOUT), WRITTEN),
    "path": (lambda w: shardwrite.to_sharded_zarr(w.x, store="out", **LAYOUT), WRITTEN),
    "a dry run": (lambda w: shardwrite.plan(w.x, **LAYOUT), lambda plan: plan.n_shards == 4),
    "a client": (lambda w: w.x.to_sharded_zarr("out", **LAYOUT), WRITTEN),
    "a lock": (lambda w: w.x.to_sharded_zarr("out", **LAYOUT), WRITTEN),
    "delayed": (lambda w: w.x.to_sharded_zarr("out", compute=False, **LAYOUT).compute(), WRITTEN),
    "retries": (with_retries, WRITTEN),
    "overwrite, for a new array": (
        lambda w: shardwrite.create("out", (4,), "f4", mode="w", **LAYOUT), has("out", shape=(4,)),
    ),
    "overwrite, for a region": (
        lambda w: shardwrite.write_region(2 * w.x, "array.zarr", WHOLE), holds("array.zarr", 2 * ONES),
    ),
    "dtype": (
        lambda w: w.x.astype("f8").to_sharded_zarr("out", **LAYOUT), holds("out", np.ones((16, 16))),
    ),
    "threads": (with_four_threads, WRITTEN),
    "compressor, for several arrays": (
        lambda w: shardwrite.store([w.x], ["out"], compressors="zstd", **LAYOUT), WRITTEN,
    ),
    "dst, for the store": (lambda w: ShardWriter(store="array.zarr"), lambda writer: writer.shape == (16, 16)),
    "overwrite and another mode": (lambda w: w.x.to_sharded_zarr("out", mode="w-", **LAYOUT), WRITTEN),
    # sizes
    "512x512": (lambda w: w.x.to_sharded_zarr("out", shards=(512, 512), chunks=4), WRITTEN),
    "256 MBB": (lambda w: w.x.to_sharded_zarr("out", shards="256MB"), WRITTEN),
    "shards that are no multiple of chunks": (
        lambda w: w.x.to_sharded_zarr("out", shards=12, chunks=4), has("out", shards=(12, 12)),
    ),
    "three sizes for two axes": (lambda w: w.x.to_sharded_zarr("out", shards=(8, 8), chunks=4), WRITTEN),
    "too little memory for a chunk": (
        lambda w: w.x.to_sharded_zarr("out", memory_limit="1GB", **LAYOUT), WRITTEN,
    ),
    "too little memory for the source": (
        lambda w: w.source((2048, 2048), chunks=256).to_sharded_zarr(
            "out", shards=512, chunks=64, memory_limit="4MB"
        ),
        has("out", shape=(2048, 2048)),
    ),
    # names
    "a strategy": (lambda w: w.x.to_sharded_zarr("out", strategy="fixed-order", **LAYOUT), WRITTEN),
    "an order": (
        lambda w: w.x.to_sharded_zarr("out", strategy=shardwrite.FixedOrder("morton"), **LAYOUT), WRITTEN,
    ),
    "a durability": (lambda w: w.x.to_sharded_zarr("out", durability="none", **LAYOUT), WRITTEN),
    "a dtype": (
        lambda w: shardwrite.create("out", (4, 4), "float32", **LAYOUT), has("out", dtype="f4"),
    ),
    "Zarr v2": (lambda w: w.x.to_sharded_zarr("out", **LAYOUT), WRITTEN),
    # codecs and metadata
    "a codec of numcodecs": (
        lambda w: w.x.to_sharded_zarr("out", compressors="zstd", **LAYOUT), WRITTEN,
    ),
    "a filter of numcodecs": (
        lambda w: w.x.to_sharded_zarr(
            "out", filters=[{"name": "numcodecs.delta", "configuration": {"dtype": "<f4", "astype": "<f4"}}], **LAYOUT
        ),
        WRITTEN,
    ),
    "a codec that nobody has": (lambda w: w.x.to_sharded_zarr("out", compressors="zstd", **LAYOUT), WRITTEN),
    "a level that zstd does not have": (
        lambda w: w.x.to_sharded_zarr(
            "out", compressors={"name": "zstd", "configuration": {"level": 22}}, **LAYOUT
        ),
        WRITTEN,
    ),
    "a codec whose library is missing": (
        lambda w: w.x.to_sharded_zarr("out", serializer="bytes", compressors=None, **LAYOUT), WRITTEN,
    ),
    "a fill value": (
        lambda w: w.source(dtype="u1").to_sharded_zarr("out", fill_value=255, **LAYOUT),
        has("out", fill_value=255),
    ),
    "names of axes": (
        lambda w: w.x.to_sharded_zarr("out", dimension_names=["y", None], **LAYOUT),
        lambda _: zarr.open_array("out").metadata.dimension_names == ("y", None),
    ),
    "attributes of numpy": (
        lambda w: w.x.to_sharded_zarr("out", attributes={"a": np.arange(3).tolist()}, **LAYOUT),
        has("out", attrs={"a": [0, 1, 2]}),
    ),
    # places
    "a file for the target": (lambda w: w.x.to_sharded_zarr("out", **LAYOUT), WRITTEN),
    "a target below a file": (lambda w: w.x.to_sharded_zarr("full/out", **LAYOUT), holds("full/out")),
    "an array that exists": (
        lambda w: w.x.to_sharded_zarr("array.zarr", shards=16, chunks=4, mode="w"),
        has("array.zarr", shards=(16, 16)),
    ),
    "a directory with other things, to be replaced": (
        lambda w: w.x.to_sharded_zarr("full/out", mode="w", **LAYOUT), holds("full/out"),
    ),
    "a group for the target": (
        lambda w: w.x.to_sharded_zarr("group.zarr", name="b", **LAYOUT), holds("group.zarr/b"),
    ),
    "a URL of another kind": (
        lambda w: w.x.to_sharded_zarr("out", **LAYOUT), WRITTEN,
    ),
    "the document of an array for the array": (lambda w: w.x.to_sharded_zarr("out", **LAYOUT), WRITTEN),
    "the document of an array, to be read": (
        lambda w: shardwrite.open_sharded("array.zarr")[WHOLE], gives(ONES),
    ),
    "the name of a document of Zarr v2": (
        lambda w: w.x.to_sharded_zarr("out", name="a/b", **LAYOUT), holds("out/a/b"),
    ),
    "an array for a codec": (
        lambda w: w.x.to_sharded_zarr("out", serializer="bytes", **LAYOUT), WRITTEN,
    ),
    "an array for the name of a codec": (
        lambda w: w.x.to_sharded_zarr("out", compressors="zstd", **LAYOUT), WRITTEN,
    ),
    "a number of numpy for filters": (
        lambda w: w.x.to_sharded_zarr(
            "out", filters=[{"name": "transpose", "configuration": {"order": [1, 0]}}], **LAYOUT
        ),
        WRITTEN,
    ),
    "an array in the codecs of the index": (
        lambda w: w.x.to_sharded_zarr("out", index_codecs=["bytes", "crc32c"], **LAYOUT), WRITTEN,
    ),
    "an array for the encoding of keys": (
        lambda w: w.x.to_sharded_zarr("out", chunk_key_encoding={"name": "v2"}, **LAYOUT), WRITTEN,
    ),
    "an array for the separator of keys": (
        lambda w: w.x.to_sharded_zarr(
            "out", chunk_key_encoding={"name": "v2", "separator": "/"}, **LAYOUT
        ),
        WRITTEN,
    ),
    "no store": (lambda w: w.x.to_sharded_zarr(Path("out").resolve().as_uri(), **LAYOUT), WRITTEN),
    # arrays that exist
    "an array that is not there": (lambda w: shardwrite.open_sharded("array.zarr")[WHOLE], gives(ONES)),
    "a group for the array": (lambda w: shardwrite.from_sharded_zarr("group.zarr/a").compute(), gives(ONES)),
    "a torn zarr.json": (write_the_torn_array_again, holds("torn.zarr")),
    "a zarr.json of something else": (lambda w: shardwrite.verify("array.zarr"), lambda found: found.is_good),
    "Zarr v2, to be updated": (
        lambda w: CliRunner().invoke(main, ["write", "v2.zarr", "out"]),
        holds("out", np.zeros((16, 16), "f4")),
    ),
    "a region with a step": (
        lambda w: shardwrite.write_region(EVERY_OTHER, "array.zarr", WHOLE), holds("array.zarr", EVERY_OTHER),
    ),
    "a region that goes beyond the end": (
        lambda w: shardwrite.write_region(w.x, "array.zarr", "append"), holds("array.zarr", GROWN),
    ),
    "a region outside of the array": (
        lambda w: shardwrite.erase("array.zarr", np.s_[0:8]),
        holds("array.zarr", np.repeat([0, 1], 8)[:, None].repeat(16, 1).astype("f4")),
    ),
    "an index outside of the array": (
        lambda w: shardwrite.write_region(w.x[0], "array.zarr", np.s_[15]), holds("array.zarr"),
    ),
    "an array of another shape": (
        lambda w: shardwrite.write_region(w.x[:8], "array.zarr", np.s_[:8]), holds("array.zarr"),
    ),
    "values that would lose": (
        lambda w: shardwrite.write_region(
            w.source(dtype="f8").astype("float32"), "array.zarr", WHOLE
        ),
        holds("array.zarr"),
    ),
    "an axis that is not there": (
        lambda w: shardwrite.write_region(w.x, "array.zarr", "append", axis=1),
        holds("array.zarr", GROWN.T),
    ),
    "another source for a repair": (lambda w: shardwrite.repair("array.zarr", w.x), holds("array.zarr")),
    # conversions and parts
    "a conversion of nothing": (lambda w: shardwrite.reshard("array.zarr", "out"), WRITTEN),
    "a conversion of a group without arrays": (
        lambda w: shardwrite.shard("group.zarr", "out"), holds("out/a"),
    ),
    "a conversion of arrays that are not there": (
        lambda w: shardwrite.shard("group.zarr", "out", include="a*"), holds("out/a"),
    ),
    "a conversion into its source": (
        lambda w: shardwrite.reshard("array.zarr", "new", shards=16), holds("new"),
    ),
    "compressor, for a conversion": (
        lambda w: shardwrite.reshard("array.zarr", "out", compressors="zstd"), WRITTEN,
    ),
    "a part that was not prepared": (prepare_first, WRITTEN),
    "options for a plan": (
        lambda w: shardwrite.prepare(w.x, "out", shardwrite.plan(w.x, shards=8)),
        lambda _: Path("out.shardwrite").is_dir(),
    ),
}  # fmt: skip

# ---- on the command line: what is typed or done, one after the other, and a check of what came of it

TRANSPOSED = """'[{"name": "transpose", "configuration": {"order": [1, 0]}}]'"""
SHARDING = """'{"preshift_bits": 0, "minishard_bits": 6, "shard_bits": 2}'"""
ZSTD = """'[{"name": "zstd", "configuration": {"level": 3}}]'"""

ON_THE_COMMAND_LINE = {
    # sizes and choices
    "write x.npy out --shards 512x512": ("write x.npy out --shards 512,512", WRITTEN),
    "write x.npy out --shards 8 --chunks 4x4": (
        "write x.npy out --shards 8 --chunks 4,4", has("out", chunks=(4, 4)),
    ),
    "write x.npy out --shards '256 MBB'": ("write x.npy out --shards 256MB", WRITTEN),
    "write x.npy out --shards 10 --chunks 4": (
        "write x.npy out --shards 12 --chunks 4", has("out", shards=(12, 12)),
    ),
    "write x.npy out --strategy sideways": ("write x.npy out --strategy append-only", WRITTEN),
    "update x.npy array.zarr --append 0 --in-place --strategy Z": (
        "update x.npy array.zarr --append 0 --in-place --strategy morton", holds("array.zarr", GROWN),
    ),
    "compact array.zarr --order Z": ("compact array.zarr --order C", holds("array.zarr")),
    "write x.npy out --durability fsync": ("write x.npy out --durability none", WRITTEN),
    "write x.npy out --memory-limit 10": ("write x.npy out --memory-limit 1GB", WRITTEN),
    "write large.npy out --shards 64 --chunks 32 --memory-limit 100kB --threads 4": (
        "write large.npy out --shards 64 --chunks 32 --memory-limit 100kB --threads 4 --source-chunks 32",
        has("out", shape=(512, 512)),
    ),
    "write x.npy out --source-chunks 0": ("write x.npy out --source-chunks auto", WRITTEN),
    "write x.npy out --fill-value green": (
        "write x.npy out --fill-value 0.5", has("out", fill_value=0.5),
    ),
    "write x.npy out --dimension-names y": (
        "write x.npy out --dimension-names y,",
        lambda _: zarr.open_array("out").metadata.dimension_names == ("y", None),
    ),
    "write x.npy out --overwite": ("write x.npy out --overwrite", WRITTEN),
    "wirte x.npy out": ("write x.npy out", WRITTEN),
    "precomputed volume.npy out --resolution 4,4,40": (
        "precomputed volume.npy out --resolution 4,4,40 --axes zyx", lambda _: Path("out/info").exists(),
    ),
    # JSON
    """write x.npy out --compressors '[{"name": "zstd"'""": (f"write x.npy out --compressors {ZSTD}", WRITTEN),
    "write x.npy out --filters '[transpose]'": (f"write x.npy out --filters {TRANSPOSED}", WRITTEN),
    "write x.npy out --compressors zsdt": ("write x.npy out --compressors zstd", WRITTEN),
    """write x.npy out --attributes '{"a": '""": (
        """write x.npy out --attributes '{"a": 1}'""", has("out", attrs={"a": 1}),
    ),
    "precomputed volume.npy out --resolution 4,4,40 --axes zyx --sharding '{6'": (
        f"precomputed volume.npy out --resolution 4,4,40 --axes zyx --sharding {SHARDING}",
        lambda _: json.loads(Path("out/info").read_text())["scales"][0]["sharding"]["shard_bits"] == 2,
    ),
    "verify torn.zarr": (write_the_torn_array_again, "verify torn.zarr", holds("torn.zarr")),
    # sources
    "write nowhere.npy out": ("write x.npy out", WRITTEN),
    "plan nowhere.h5::one": ("plan two.h5::one", says("shards")),
    "write two.h5 out": ("write two.h5 out --dataset one", holds("out", np.ones((16, 16)))),
    "write two.h5::three out": ("write two.h5::one out", holds("out", np.ones((16, 16)))),
    "write none.h5 out": ("write two.h5::two out", holds("out", np.ones((16, 16)))),
    "write short.npy out": ("write x.npy out", WRITTEN),
    "write broken.h5 out": (
        "write broken.h5 out --format raw --shape 7 --dtype uint8", holds("out", np.frombuffer(b"neither", "u1")),
    ),
    "write what.ever out": (
        "write what.ever out --format raw --shape 7 --dtype uint8", holds("out", np.frombuffer(b"neither", "u1")),
    ),
    "write x.npy out --format nupy": ("write x.npy out --format npy", WRITTEN),
    "write x.raw out": ("write x.raw out --shape 5,5 --dtype float32", holds("out", np.zeros((5, 5), "f4"))),
    "write x.raw out --dtype flot32 --shape 5": (
        "write x.raw out --dtype '>f4' --shape 5", has("out", shape=(5,)),
    ),
    "write x.raw out --dtype float32 --shape 5x5": (
        "write x.raw out --dtype float32 --shape 5,5", holds("out", np.zeros((5, 5), "f4")),
    ),
    "write objects.npy out": (
        lambda _: np.save("objects.npy", ONES), "write objects.npy out", WRITTEN,
    ),
    "write ftp://user:pass@host/x.npy out": ("write x.npy out", WRITTEN),
    "write empty.zarr out": ("write group.zarr::a out", WRITTEN),
    # places
    "write x.npy array.zarr --shards 16 --chunks 4": (
        "write x.npy array.zarr --shards 16 --chunks 4 --overwrite", has("array.zarr", shards=(16, 16)),
    ),
    "init x.npy array.zarr": (
        "init x.npy array.zarr --overwrite", "write-part x.npy array.zarr 0/1", "finalize array.zarr",
        holds("array.zarr"),
    ),
    "write x.npy x.raw": ("write x.npy out", WRITTEN),
    "write x.npy group.zarr": ("write x.npy group.zarr --name b", holds("group.zarr/b")),
    "write x.npy sftp://host/x": ("write x.npy out", WRITTEN),
    "write x.npy https://host/x": ("write x.npy out", WRITTEN),
    "write x.npy": ("write x.npy out", WRITTEN),
    # arrays that exist
    "update x.npy array.zarr": ("update x.npy array.zarr --append 0", holds("array.zarr", GROWN)),
    "update x.npy array.zarr --region 8:24,:": (
        "update x.npy array.zarr --append 0", holds("array.zarr", GROWN),
    ),
    "update x.npy array.zarr --region ::2,:": (
        lambda _: np.save("x.npy", EVERY_OTHER), "update x.npy array.zarr --region :,:",
        holds("array.zarr", EVERY_OTHER),
    ),
    "update x.npy array.zarr --region a:b": ("update x.npy array.zarr --region 0:16,:", holds("array.zarr")),
    "update two.h5::one array.zarr --region :": (
        "update two.h5::one array.zarr --region : --casting unsafe", holds("array.zarr"),
    ),
    "update x.npy group.zarr --append 0": (
        "update x.npy group.zarr/a --append 0", holds("group.zarr/a", GROWN),
    ),
    "erase array.zarr --region 100:200": ("erase array.zarr --region 0:16", holds("array.zarr", 0 * ONES)),
    "verify nowhere.zarr": ("verify array.zarr", says("array.zarr")),
    "verify array.zarr --against nowhere.npy": ("verify array.zarr --against x.npy", says("array.zarr")),
    "repair array.zarr --source large.npy": ("repair array.zarr --source x.npy", holds("array.zarr")),
    "census empty.zarr": ("census group.zarr/a", says("shards")),
    # conversions and parts
    "shard nowhere.zarr out": ("shard array.zarr out", WRITTEN),
    "shard empty.zarr out": ("shard group.zarr out", holds("out/a")),
    "reshard group.zarr out --include b": ("reshard group.zarr out --include a", holds("out/a")),
    "unshard array.zarr array.zarr/new": ("unshard array.zarr new", has("new", shards=None)),
    "reshard array.zarr out --shards 8x8": ("reshard array.zarr out --shards 8,8", WRITTEN),
    "reshard array.zarr out --compressors '[zstd'": (f"reshard array.zarr out --compressors {ZSTD}", WRITTEN),
    "upload array.zarr out": ("download array.zarr out", WRITTEN),
    "upload nowhere.zarr memory://out": ("upload array.zarr memory://out", holds("memory://out")),
    "upload v2.zarr memory://out": (
        "reshard v2.zarr memory://out", holds("memory://out", 0 * ONES),
    ),
    "download array.zarr memory://out": ("upload array.zarr memory://out", holds("memory://out")),
    "download array.zarr group.zarr/a": (
        "download array.zarr group.zarr/a --overwrite", holds("group.zarr/a"),
    ),
    "write-part x.npy out 0/2": (
        "init x.npy out", "write-part x.npy out 0/2", "write-part x.npy out 1/2", "finalize out", WRITTEN,
    ),
    "write-part x.npy out 2/2": (
        "init x.npy out", "write-part x.npy out 0/2", "write-part x.npy out 1/2", "finalize out", WRITTEN,
    ),
}  # fmt: skip

EXEMPT = {
    "a bucket with keys in its URL": "needs a bucket, and keys to it",
    "write x.npy s3://me:secret@bucket/x": "needs a bucket, and keys to it",
    "write x.npy out --scheduler nowhere": "needs a scheduler that runs",
    "download s3:/bucket/x out": "needs a bucket, and keys to it",
}
"""Why the message of a mistake is not followed here."""


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with dask.config.set(scheduler="sync"):
        yield Workplace(tmp_path)
    fsspec.filesystem("memory").store.clear()


@pytest.mark.parametrize(
    "mistake",
    [
        pytest.param(mistake, marks=() if n % 4 == 1 else pytest.mark.long)
        for n, mistake in enumerate(IN_PYTHON)
    ],
)
def test_in_python(workplace, mistake):
    call, is_right = IN_PYTHON[mistake]
    assert is_right(call(workplace))


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, marks=pytest.mark.long if n % 4 else ())
        for n, line in enumerate(ON_THE_COMMAND_LINE)
    ],
)
def test_on_the_command_line(workplace, line):
    *steps, is_right = ON_THE_COMMAND_LINE[line]
    for step in steps:
        if callable(step):
            step(workplace)
            continue
        ended = CliRunner().invoke(main, shlex.split(step))
        assert ended.exit_code == 0, ended.output
    assert is_right(ended.output)


def test_every_message_is_followed_or_exempt():
    mistakes = [*test_mistakes.IN_PYTHON, *test_mistakes.ON_THE_COMMAND_LINE]
    assert sorted([*IN_PYTHON, *ON_THE_COMMAND_LINE, *EXEMPT]) == sorted(mistakes)

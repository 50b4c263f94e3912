"""Arrays of 2022 as sources of values: how they are named, and every command that takes one."""

from __future__ import annotations

import json
import pickle
import shutil

import dask.array as da
import numpy as np
import pytest
import zarr
from helpers import printed

import shardwrite
from shardwrite.errors import CorruptShardError, SpecError, StoreError
from shardwrite.sources import as_dask, open_source

VALUES = np.arange(1, 24 * 20 + 1, dtype="u2").reshape(24, 20)
NEW = {"shards": (8, 10), "chunks": (4, 5), "format": "transformer-2022"}
LAYOUT = ["--shards", "6,10", "--chunks", "3,5"]


def make(path, name, values=VALUES, **more):
    x = da.from_array(values, chunks=values.shape)
    x.to_sharded_zarr(path, name=name, **{**NEW, **more})
    return path


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make("h", "u", attributes={"a": 1}, dimension_names=["y", "x"], fill_value=7)
    make("two", "u")
    make("two", "g/v", values=VALUES + 1)
    make("root", None)
    for name in ("h", "root"):
        shutil.make_archive(name, "zip", name)
    return tmp_path


NAMES = [
    "h/u", "h/u/", "./h/u", "h", "h/", "h::u", "h/data/root/u", "h/meta/root/u.array.json", "two/u",
    "two::u", "root", "root/data/root", "h.zip", "h.zip::u", "root.zip",
]  # fmt: skip


@pytest.mark.compat
@pytest.mark.parametrize("name", NAMES)
def test_each_name_of_an_array(here, name):
    assert here
    for given in (name, f"file://{here}/{name}"):
        source = open_source(given)
        assert (source.shape, source.dtype, source.chunks) == ((24, 20), VALUES.dtype, (8, 10))
        np.testing.assert_array_equal(as_dask(source).compute(scheduler="sync"), VALUES)
        np.testing.assert_array_equal(
            pickle.loads(pickle.dumps(source))[3:9, ::-3], VALUES[3:9, ::-3]
        )
    if name.startswith("h"):
        known = source.metadata
        assert (known.fill_value, known.dimension_names) == (7, ("y", "x"))
        assert known.attributes == {"a": 1}
    printed("write", name, "new.zarr", *LAYOUT)
    np.testing.assert_array_equal(zarr.open_array("new.zarr", mode="r")[...], VALUES)


def test_a_name_and_a_format_that_are_given(here):
    assert here
    for given in ("two", "two/"):
        source = open_source(given, dataset="g/v", format="zarr")
        np.testing.assert_array_equal(source[...], VALUES + 1)
    with pytest.raises(StoreError, match="no such file or directory"):
        open_source("h/u", format="npy")
    with pytest.raises(StoreError, match="no such file or directory"):
        open_source("nowhere/u")
    with pytest.raises(SpecError, match="means nothing to the format zarr"):
        open_source("h/u", shape=(3,))


@pytest.mark.parametrize(
    ("name", "dataset", "message"),
    [
        ("two", None, "it holds 2 arrays; choose one as dataset: g/v, u"),
        ("two/nope", None, "no such array in .*two/nope; choose one of: g/v, u"),
        ("two/g", None, "no such array"), ("two::g", None, "no such array"),
        ("h.zip", "w", "no such array in .*; choose one of: u"),
    ],
)  # fmt: skip
def test_names_that_are_none(here, name, dataset, message):
    assert here
    with pytest.raises(SpecError, match=message):
        open_source(name, dataset=dataset)
    if dataset is None:
        assert "choose one" in printed("write", name, "new.zarr", *LAYOUT, code=2)


@pytest.mark.long
def test_the_identity_is_that_of_the_document(here):
    before = open_source("h/u").identity
    names = ["h", "h::u", f"{here}/h/u", "h/data/root/u", "h/meta/root/u.array.json"]
    assert {open_source(name).identity for name in names} == {before}
    assert len({open_source(name).identity for name in ("two/u", "two/g/v", "h/u", "root")}) == 4
    shardwrite.write_region(5, "h", (slice(0, 2), slice(0, 2)), name="u")
    assert open_source("h/u").identity == before  # as that of other Zarr arrays
    shardwrite.write_region(da.ones((1, 20), dtype="u2"), "h", "append", name="u")
    assert open_source("h/u").identity != before
    zipped = open_source("h.zip").identity
    shutil.make_archive("h", "zip", "h")
    assert open_source("h.zip").identity != zipped


@pytest.mark.long
def test_a_write_from_it_is_continued(here):
    assert here
    sizes = {"shards": (6, 10), "chunks": (3, 5)}
    first, second = (as_dask(open_source(name)) for name in ("h/u", "h::u"))
    plan = shardwrite.plan(first, source_id=open_source("h/u").identity, **sizes)
    shardwrite.prepare(first, "new.zarr", plan)
    for number, x in enumerate((first, second)):
        identity = open_source("h").identity
        shardwrite.write_part(x, "new.zarr", number, 2, source_id=identity)
    shardwrite.finalize("new.zarr")
    np.testing.assert_array_equal(zarr.open_array("new.zarr")[...], VALUES)
    again = shardwrite.to_sharded_zarr(second, "new.zarr", source_id=identity, **sizes)
    assert again.n_resumed_shards == 8


@pytest.mark.long
def test_every_command_that_takes_a_source(here):
    assert here
    assert "24, 20" in printed("plan", "h/u", *LAYOUT)
    printed("init", "h/u", "parts.zarr", *LAYOUT)
    for number in range(2):
        printed("write-part", "h/u", "parts.zarr", f"{number}/2")
    printed("finalize", "parts.zarr")
    np.testing.assert_array_equal(zarr.open_array("parts.zarr")[...], VALUES)
    printed("update", "two/g/v", "parts.zarr", "--region", "0:24,0:20")
    np.testing.assert_array_equal(zarr.open_array("parts.zarr")[...], VALUES + 1)
    printed("verify", "parts.zarr", "--against", "two/g/v")
    script = printed("slurm", "script", "array", "h/u", "s.zarr", "--parts", 2)
    assert "write-part" in script
    np.save("cube.npy", np.arange(8 * 9 * 10, dtype="u1").reshape(8, 9, 10))
    cube = ["--shards", "4,9,10", "--chunks", "2,3,5", "--array-format", "transformer-2022"]
    printed("write", "cube.npy", "c", "--name", "w", *cube)
    printed(
        "precomputed", "c/w", "volume", "--axes", "zyx", "--resolution", "4,4,4", "--chunks", "4"
    )
    found = shardwrite.from_precomputed("volume", axes="zyx").compute(scheduler="sync")
    np.testing.assert_array_equal(found, np.load("cube.npy"))


def test_it_does_not_replace_itself(here):
    before = sorted(here.rglob("*"))
    again = ["--name", "u", "--array-format", "transformer-2022", "--overwrite", *LAYOUT]
    assert "the source reads the array that it is to replace" in printed(
        "write", "h/u", "h", *again, code=2
    )
    assert sorted(here.rglob("*")) == before


def test_the_estimate_knows_its_shards(here):
    make("large", "x", np.zeros((64, 64), "u2"), shards=(64, 64), chunks=(64, 64))
    x = as_dask(open_source(f"{here}/large/x"))
    assert x.chunks == ((64,), (64,))
    assert "8.19 kB for source chunks" in str(shardwrite.plan(x, shards=8, chunks=8))


def test_arrays_without_shards_and_damaged_ones(here):
    path = here / "h/meta/root/u.array.json"
    document = json.loads(path.read_text())
    del document["storage_transformers"]
    (here / "h/meta/root/plain.array.json").write_text(json.dumps(document))
    assert open_source("h/plain").chunks == (24, 20)  # several chunks at a time
    assert (open_source("h/plain")[...] == 7).all()
    shard = here / "two/data/root/u/c0/0"
    shard.chmod(0o644)
    shard.write_bytes(shard.read_bytes()[:20])
    with pytest.raises(CorruptShardError):
        open_source("two/u")[...]
    path.write_text("{")
    with pytest.raises(SpecError, match="is no whole document"):
        open_source("h/u")

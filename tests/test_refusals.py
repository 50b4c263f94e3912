"""Bad input: a typed error that names field, value and remedy, before any byte is written; and faults in the task."""

from __future__ import annotations

import contextlib

import dask.array as da
import numpy as np
import pytest
import zarr

import shardwrite
from shardwrite import JournalError, PlanError, SourceError, SpecError, StoreError

GOOD = {"shards": 8, "chunks": 4, "durability": "none"}


@pytest.fixture
def x():
    return da.from_array(np.arange(256, dtype="f4").reshape(16, 16), chunks=5)


def listing(path):
    return sorted(str(p) for p in path.rglob("*"))


def refused(tmp_path, array, error, *words, store="x", **keywords):
    """The call fails, says these words, and leaves everything as it was."""
    before = listing(tmp_path)
    with pytest.raises(error) as caught:
        shardwrite.to_sharded_zarr(
            array, tmp_path / store if isinstance(store, str) and "://" not in store else store, **{**GOOD, **keywords}
        )
    for word in words:
        assert word in str(caught.value), str(caught.value)
    assert listing(tmp_path) == before
    return caught.value


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"shards": (8, 10)}, ["shards", "(8, 10)", "12 instead of 10"]),
        ({"shards": (8, 8, 8)}, ["shards", "3 entries for 2 axes", "give 2"]),
        ({"chunks": (4,)}, ["chunks", "1 entries for 2 axes"]),
        ({"shards": 0}, ["shards", "positive"]),
        ({"chunks": -4}, ["chunks", "-4", "positive"]),
        ({"chunks": True}, ["chunks", "True", "positive"]),
        ({"chunks": 2.5}, ["chunks", "2.5", "positive"]),
        ({"shards": "many"}, ["shards", "many", "256MB"]),
        ({"shards": "0MB"}, ["shards", "0MB"]),
        ({"compressors": "nosuch"}, ["compressors", "nosuch", "zarr.create_array"]),
        ({"index_codecs": ["bytes", "zstd"]}, ["index_codecs", "zstd", "crc32c"]),
        ({"index_codecs": ["crc32c"]}, ["index_codecs"]),
        ({"filters": [{"name": "bytes", "configuration": {}}]}, ["filters"]),
        ({"compressors": [{"name": "bytes", "configuration": {}}]}, ["compressors"]),
        ({"serializer": {"name": "sharding_indexed", "configuration": {}}}, ["sharding_indexed"]),
        ({"index_location": "middle"}, ["index_location", "middle", '"start" or "end"']),
        ({"fill_value": "green"}, ["fill_value", "green"]),
        ({"dimension_names": ["y"]}, ["dimension_names"]),
        ({"attributes": {"a": {1}}}, ["attributes"]),
        ({"chunk_key_encoding": "v9"}, ["chunk_key_encoding", "v9"]),
        ({"strategy": "sideways"}, ["strategy", "sideways", "append-only"]),
        ({"strategy": 3}, ["strategy", "3"]),
        ({"mode": "a"}, ["mode", "w-"]),
        ({"publish": "never"}, ["publish", "never", "last"]),
        ({"durability": "some"}, ["durability", "some", "full"]),
        ({"memory_limit": "none"}, ["memory_limit", "none"]),
        ({"memory_limit": -1}, ["memory_limit", "-1"]),
        ({"name": "../up"}, ["name", "../up", "images/raw"]),
        ({"name": "/abs"}, ["name", "/abs"]),
        ({"name": "a//b"}, ["name", "a//b"]),
        ({"name": "a\0b"}, ["name"]),
    ],
)
def test_arguments(tmp_path, x, keywords, words):
    refused(tmp_path, x, SpecError, *words, **keywords)


def test_stores(tmp_path, x):
    refused(tmp_path, x, SpecError, "store", "s3://bucket/x", "file://", store="s3://bucket/x")
    refused(tmp_path, x, SpecError, "store", "file://", store=zarr.storage.MemoryStore())
    result = x.to_sharded_zarr(f"file://{tmp_path}/y", **GOOD)
    assert result.path == str(tmp_path / "y")


def test_sources(tmp_path, x):
    refused(tmp_path, np.zeros((4, 4)), SpecError, "dask array", "from_array")
    refused(tmp_path, x[x[:, 0] > 3], SpecError, "unknown", "compute_chunk_sizes")
    objects = da.from_array(np.array([{}, {}], dtype=object), chunks=1)
    refused(tmp_path, objects, SpecError, "object", "vlen-utf8", shards=2, chunks=1)


def test_a_plan_over_its_memory(tmp_path, x):
    error = refused(tmp_path, x, PlanError, "may use 100", "memory_limit", memory_limit=100)
    assert error.needed_nbytes > error.allowed_nbytes == 100
    assert error.knob


def test_what_stands_in_the_place(tmp_path, x):
    zarr.create_group(tmp_path / "group")
    refused(tmp_path, x, SpecError, "store", "group", "name=", store="group", mode="w")
    zarr.create_array(tmp_path / "v2", shape=(3,), dtype="i4", zarr_format=2)
    refused(tmp_path, x, SpecError, "Zarr v2", "another path", store="v2", mode="w")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "zarr.json").write_text('{"zarr_format": 3, "node')
    refused(tmp_path, x, SpecError, "half a zarr.json", "remove", store="torn", mode="w")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("words")
    refused(tmp_path, x, SpecError, "no Zarr array", "another path", store="mine", mode="w")
    (tmp_path / "file").write_text("words")
    refused(tmp_path, x, SpecError, "no Zarr array", store="file", mode="w")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    refused(tmp_path, x, SpecError, "symbolic link", store="link", mode="w")
    x.to_sharded_zarr(tmp_path / "array", **GOOD)
    refused(tmp_path, x + 1, SpecError, "array exists", 'mode="w"', store="array")
    other = da.zeros((9, 16), chunks=5, dtype="f4")
    refused(tmp_path, other, SpecError, "shape: [16, 16] there, [9, 16] now", 'mode="w"', store="array")
    refused(tmp_path, x, SpecError, "no group", store="array", name="inner")


def test_where_nothing_can_be_written(tmp_path, x):
    (tmp_path / "file").write_text("words")
    refused(tmp_path, x, StoreError, "file", store="file/inside/x")


def test_a_read_only_directory(x):
    with pytest.raises(StoreError, match="/proc"):  # where not even root may write
        x.to_sharded_zarr("/proc/shardwrite/x", **GOOD)


def test_a_link_inside_the_store(tmp_path, x):
    outside = tmp_path / "outside"
    (outside / "0").mkdir(parents=True)

    def plant(block):
        where = tmp_path / "x"
        with contextlib.suppress(FileExistsError):  # another thread was quicker
            (where / "c").symlink_to(outside)
        return block

    with pytest.raises(StoreError, match="symbolic link"):
        x.map_blocks(plant, dtype="f4", meta=np.empty((0, 0), "f4")).to_sharded_zarr(tmp_path / "x", **GOOD)
    assert list((outside / "0").iterdir()) == []


BLOCKS = {
    "dtype": (lambda b: b.astype("f8"), SourceError, "declared dtype float32"),
    "shape": (lambda b: b[:1], SourceError, "declared shape"),
    "masked": (lambda b: np.ma.masked_greater(b, 3), SourceError, "masked"),
    "raises": (lambda b: 1 // 0, ZeroDivisionError, "division"),
}


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_faulty_block(tmp_path, x, kind):
    function, error, words = BLOCKS[kind]
    y = x.map_blocks(function, dtype="f4", meta=np.empty((0, 0), "f4"))
    with pytest.raises(error, match=words) as caught:
        y.to_sharded_zarr(tmp_path / "x", **GOOD)
    if error is SourceError:
        assert len(caught.value.region) == 2
    assert any("region [" in note for note in caught.value.__notes__), "the error tells where"
    assert not (tmp_path / "x" / "zarr.json").exists(), "the array is not published"
    assert not list(tmp_path.rglob("*.swtmp"))
    with pytest.raises(SpecError, match="has not ended"):
        shardwrite.from_sharded_zarr(tmp_path / "x")
    # and again, without the fault and with other shapes: nothing stale shines through
    z = da.zeros((9, 9), chunks=4, dtype="f4")
    with pytest.raises(JournalError, match="restart=True") as caught:
        z.to_sharded_zarr(tmp_path / "x", shards=4, chunks=2)
    assert any("shape" in line for line in caught.value.differences)
    result = z.to_sharded_zarr(tmp_path / "x", shards=4, chunks=2, restart=True)
    assert (result.n_shards, result.n_empty_shards) == (0, 9)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x", mode="r")[...], 0)


def test_replacing_touches_only_the_array(tmp_path, x):
    root = zarr.create_group(tmp_path / "g", attributes={"a": 1})
    root.create_array("other", data=np.arange(3))
    x.to_sharded_zarr(tmp_path / "g", name="deep/x", **GOOD)
    assert zarr.open_group(tmp_path / "g")["deep"].attrs.asdict() == {}
    before = {p: p.read_bytes() for p in (tmp_path / "g" / "other").rglob("*") if p.is_file()}
    with pytest.raises(SpecError):
        (x + 1).to_sharded_zarr(tmp_path / "g", name="deep/x", mode="w", shards=7, chunks=4)
    np.testing.assert_array_equal(
        zarr.open_group(tmp_path / "g")["deep/x"][...], x.compute(), err_msg="nothing goes before the plan is good"
    )
    (x + 1).to_sharded_zarr(tmp_path / "g", name="deep/x", mode="w", **GOOD)
    np.testing.assert_array_equal(zarr.open_group(tmp_path / "g")["deep/x"][...], x.compute() + 1)
    assert before == {p: p.read_bytes() for p in (tmp_path / "g" / "other").rglob("*") if p.is_file()}
    assert zarr.open_group(tmp_path / "g").attrs["a"] == 1


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_consolidated_metadata_is_brought_up_to_date(tmp_path, x):
    root = zarr.create_group(tmp_path / "g")
    root.create_array("other", data=np.arange(3))
    zarr.consolidate_metadata(tmp_path / "g")
    x.to_sharded_zarr(tmp_path / "g", name="deep/x", **GOOD)
    group = zarr.open_consolidated(tmp_path / "g")
    np.testing.assert_array_equal(group["deep/x"][...], x.compute())
    np.testing.assert_array_equal(group["other"][...], np.arange(3))


@pytest.mark.parametrize("publish", ["last", "first"])
def test_publish(tmp_path, x, publish):
    def look(block):
        assert (tmp_path / "x" / "zarr.json").exists() == (publish == "first")
        return block

    y = x.map_blocks(look, dtype="f4", meta=np.empty((0, 0), "f4"))
    y.to_sharded_zarr(tmp_path / "x", publish=publish, **GOOD)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x", mode="r")[...], x.compute())


def test_the_strategy_never_enters_the_metadata(tmp_path, x):
    documents = set()
    for number, strategy in enumerate(["C", "F", "morton", "append-only"]):
        x.to_sharded_zarr(tmp_path / str(number), strategy=strategy, **GOOD)
        documents.add((tmp_path / str(number) / "zarr.json").read_text())
    assert len(documents) == 1


def test_an_array_is_not_deleted_before_the_workers_can_write(tmp_path, x, monkeypatch):
    x.to_sharded_zarr(tmp_path / "x", **GOOD)
    monkeypatch.setattr("shardwrite.session.probe", lambda path, token: ("the disk is full", 28))
    before = listing(tmp_path)
    with pytest.raises(StoreError, match="the disk is full"):
        (x + 1).to_sharded_zarr(tmp_path / "x", mode="w", **GOOD)
    assert listing(tmp_path) == before
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x", mode="r")[...], x.compute())


def test_an_unfinished_array_is_marked(tmp_path, x):
    from click.testing import CliRunner

    from shardwrite.cli import main

    y = x.map_blocks(lambda b: 1 // 0, dtype="f4", meta=np.empty((0, 0), "f4"))
    with pytest.raises(ZeroDivisionError):
        y.to_sharded_zarr(tmp_path / "x", publish="first", **GOOD)
    done = CliRunner().invoke(main, ["info", str(tmp_path / "x")])
    assert "unfinished" in done.output
    assert "True" in done.output

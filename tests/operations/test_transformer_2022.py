"""Arrays of the storage transformer of 2022: read, converted, verified, written and updated."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from forks import python
from helpers import Stop, digests

import shardwrite
from shardwrite.errors import CorruptShardError, SpecError, StoreError
from shardwrite.legacy.transformer import of_2022, of_today
from shardwrite.place.target import resolve_place

# `python tests/neighbours/zarr_2022.py golden`, by zarr-python 2.17
GOLDEN = {
    "data/root/x/c0/0": b"\x05\0\x06\0\x03\0\x04\0\x01\0\x02\0"
    + np.array([8, 4, 4, 4, 2**64 - 1, 2**64 - 1, 0, 4], "<u8").tobytes(),
    "data/root/x/c1/0": b"\t\0\n\0\x07\0\x08\0"
    + np.array([4, 4, 0, 4] + [2**64 - 1] * 4, "<u8").tobytes(),
    "meta/root/x.array.json": b'{"attributes": {}, "chunk_grid": {"chunk_shape": [1, 2], "separator":'
    b' "/", "type": "regular"}, "chunk_memory_layout": "C", "data_type": "<u2", "extensions": [],'
    b' "fill_value": 0, "shape": [3, 4], "storage_transformers": [{"configuration":'
    b' {"chunks_per_shard": [2, 2]}, "extension":'
    b' "https://purl.org/zarr/spec/storage_transformers/sharding/1.0", "type": "indexed"}]}',
    "zarr.json": b'{"extensions": [], "metadata_encoding":'
    b' "https://purl.org/zarr/spec/protocol/core/3.0", "metadata_key_suffix": ".json",'
    b' "zarr_format": "https://purl.org/zarr/spec/protocol/core/3.0"}',
}
VALUES = np.array([[1, 2, 3, 4], [0, 0, 5, 6], [7, 8, 9, 10]], "u2")
NEW = {"shards": (2, 4), "chunks": (1, 2), "format": "transformer-2022", "compressors": None}


def put(root, objects):
    for key, data in objects.items():
        (root / key).parent.mkdir(parents=True, exist_ok=True)
        (root / key).write_bytes(data)


def changed(**fields):
    document = {**json.loads(GOLDEN["meta/root/x.array.json"]), **fields}
    return {k: v for k, v in document.items() if v is not None}


@pytest.fixture
def golden(tmp_path):
    put(tmp_path / "h", GOLDEN)
    return tmp_path / "h"


def read(*args, **kwargs):
    return shardwrite.open_sharded(*args, **kwargs)[...]


def test_golden_bytes_are_read_and_converted(golden, tmp_path):
    for path in ("x", "data/root/x", "meta/root/x.array.json"):
        np.testing.assert_array_equal(read(golden / path), VALUES)
    np.testing.assert_array_equal(read(golden, name="x"), VALUES)
    np.testing.assert_array_equal(read(zarr.storage.LocalStore(golden), name="x"), VALUES)
    assert shardwrite.verify(golden / "x", deep=True, against=da.from_array(VALUES)).is_good
    done = shardwrite.reshard(golden / "x", tmp_path / "new", shards=(4, 4))
    assert "5 copied, 0 re-encoded" in str(done)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "new", mode="r")[...], VALUES)
    shardwrite.unshard(golden / "x", tmp_path / "plain")
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "plain", mode="r")[...], VALUES)


def test_what_is_written_has_the_golden_documents(tmp_path):
    x = da.from_array(VALUES, chunks=(2, 4))
    x.to_sharded_zarr(tmp_path / "h", name="x", **NEW)
    assert not list(tmp_path.glob("*.shardwrite"))
    for key, data in GOLDEN.items():
        written = (tmp_path / "h" / key).read_bytes()
        if key.endswith(".json"):
            assert json.loads(written) == json.loads(data)
        else:  # in another order, which the draft leaves free
            assert len(written) == len(data)
    receipt = "meta/root/x.shardwrite-receipt.json"
    files = {p.relative_to(tmp_path / "h").as_posix() for p in (tmp_path / "h").rglob("*.*")}
    assert files == {receipt, "meta/root/x.array.json", "zarr.json"}
    x.to_sharded_zarr(tmp_path / "h", name="x", **NEW)  # is done
    np.testing.assert_array_equal(read(tmp_path / "h/x"), VALUES)


@pytest.mark.parametrize("extensions", ["", "extensions/"])
@pytest.mark.parametrize("word", ["storage_transformers", "storage-transformers"])
def test_each_uri_is_read(extensions, word):
    uri = f"https://purl.org/zarr/spec/{extensions}{word}/sharding/1.0"
    document = changed()
    document["storage_transformers"][0]["extension"] = uri
    made = of_today(document)
    assert made["codecs"][0]["configuration"]["chunk_shape"] == [1, 2]
    assert of_2022(made) == changed()


def test_other_documents_are_read_without_loss():
    for fields in (
        {"chunk_memory_layout": "F"},
        {"data_type": ">i4", "fill_value": -5},
        {"data_type": "bool", "fill_value": True},
        {"data_type": "<f4", "fill_value": "NaN"},
        {"attributes": {"_ARRAY_DIMENSIONS": ["y", "x"], "a": [1]}},
        {"chunk_grid": {"chunk_shape": [1, 2], "separator": ".", "type": "regular"}},
        {"compressor": {"codec": "https://purl.org/zarr/spec/codec/gzip/1.0", "configuration": {"level": 3}}},
        {"compressor": {"codec": "https://purl.org/zarr/spec/codec/blosc/1.0",
                        "configuration": {"blocksize": 0, "clevel": 5, "cname": "lz4", "shuffle": 2}}},
    ):  # fmt: skip
        assert of_2022(of_today(changed(**fields))) == changed(**fields)
    assert of_today(changed(storage_transformers=None))["codecs"][0]["name"] == "bytes"


def _transformer(**fields):
    return [{**changed()["storage_transformers"][0], **fields}]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"chunk_grid": 5}, "src"), ({"chunk_grid": {"type": "other"}}, "chunk_grid"),
        ({"extensions": [{}]}, "extensions"), ({"attributes": []}, "attributes"), ({"data_type": 5}, "data_type"),
        ({"data_type": "<q9"}, "data_type"), ({"compressor": {"codec": "https://x/pickle"}}, "compressor"),
        ({"compressor": []}, "compressor"), ({"storage_transformers": [{}, {}]}, "storage_transformers"),
        ({"storage_transformers": _transformer(type="other")}, "storage_transformers"),
        ({"storage_transformers": _transformer(extension="https://other")}, "storage_transformers"),
        ({"storage_transformers": _transformer(configuration=[])}, "storage_transformers"),
        ({"storage_transformers": _transformer(configuration={"chunks_per_shard": [2]})}, "chunks_per_shard"),
        ({"storage_transformers": _transformer(configuration={"chunks_per_shard": [2, 0]})}, "chunks_per_shard"),
        ({"storage_transformers": _transformer(configuration={"chunks_per_shard": [2**40, 2**40]})}, "chunks_per_shard"),
        ({"shape": [3, -4]}, "shape"), ({"shape": None}, "shape"), ({"fill_value": "no"}, "fill_value"),
    ],
)  # fmt: skip
def test_bad_documents_are_refused(golden, fields, field):
    (golden / "meta/root/x.array.json").write_text(json.dumps(changed(**fields)))
    with pytest.raises(SpecError) as caught:
        shardwrite.open_sharded(golden / "x")
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"shape": [3, "4"]}, "shape=[3, '4']: not a shape"),
        ({"chunk_grid": {"chunk_shape": [1, 0], "type": "regular"}}, "chunk_shape=[1, 0]: not a shape"),
        ({"chunk_grid": {"chunk_shape": [1], "type": "regular"}}, "chunk_shape=[1]: not one for each axis"),
        ({"chunk_memory_layout": "X"}, "chunk_memory_layout='X': no such order"),
        ({"fill_value": "{no}"}, "fill_value='{no}': no value of its dtype"),
        ({"attributes": {"filters": 5}}, "filters=5: not a list"),
        ({"compressor": {"codec": "https://purl.org/zarr/spec/codec/blosc/1.0", "configuration": {"shuffle": 9}}},
         "compressor={'id': 'blosc', 'shuffle': 9}: no such shuffle"),
    ],
)  # fmt: skip
def test_bad_documents_are_told_by_their_own_file_and_field(golden, fields, message):
    document = golden / "meta/root/x.array.json"
    document.write_text(json.dumps(changed(**fields)))
    with pytest.raises(SpecError) as caught:
        shardwrite.open_sharded(golden / "x")
    assert str(caught.value).startswith(message)
    assert str(caught.value).endswith("; mend its .array.json")
    document.write_bytes(GOLDEN["meta/root/x.array.json"])  # is mended
    np.testing.assert_array_equal(read(golden / "x"), VALUES)


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"shards": None}, "format"), ({"compressors": "zstd"}, "compressors"), ({"format": "2022"}, "format"),
        ({"compressors": ["gzip", "crc32c"]}, "compressors"), ({"index_location": "start"}, "index_location"),
        ({"index_codecs": ["bytes"]}, "index_codecs"), ({"chunk_key_encoding": "v2"}, "chunk_key_encoding"),
        ({"dimension_names": ["y", None]}, "dimension_names"), ({"attributes": {"filters": 1}}, "attributes"),
        ({"format": None}, "format"),
    ],
)  # fmt: skip
def test_what_the_format_cannot_say_is_refused(golden, more, field):
    before = sorted(golden.rglob("*"))
    with pytest.raises(SpecError) as caught:
        da.from_array(VALUES).to_sharded_zarr(golden, name="new", **{**NEW, **more})
    assert caught.value.field == field
    assert sorted(golden.rglob("*")) == before
    with pytest.raises(SpecError) as caught:
        da.from_array(VALUES.astype("U2")).to_sharded_zarr(golden, name="new", **NEW)
    assert caught.value.field == "dtype"


def names_of_compressors():
    """Names in the remedy, and those in the table of the documentation."""
    with pytest.raises(SpecError) as caught:
        shardwrite.plan(da.from_array(VALUES), **{**NEW, "compressors": "zstd"})
    told = set(re.findall(r'"(\w+)"', caught.value.remedy))
    page = (Path(__file__).parents[2] / "docs/transformer.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith("| `compressors`")]
    assert told == set(re.findall(r'"(\w+)"', row))
    return sorted(told)


@pytest.mark.parametrize("how", ["python", "document", "list", "command line"])
def test_each_compressor_that_is_named_is_accepted(tmp_path, how):
    from click.testing import CliRunner

    from shardwrite.cli.main import main

    np.save(tmp_path / "v.npy", VALUES)
    names = names_of_compressors()
    assert len(names) == 6
    for name in [*names, None]:
        x = tmp_path / f"h/{name}"
        if how == "command line":
            layout = ["--shards", "2,4", "--chunks", "1,2", "--array-format", "transformer-2022"]
            arguments = [str(tmp_path / "v.npy"), str(tmp_path / "h"), "--name", str(name)]
            found = CliRunner().invoke(
                main, ["write", *arguments, *layout, "--compressors", name or "none"]
            )
            assert found.exit_code == 0, found.output
        else:
            one = name and {"name": name, "configuration": {}}
            given = {"python": name, "document": one, "list": one and [one]}[how]
            new = {**NEW, "compressors": given}
            da.from_array(VALUES).to_sharded_zarr(tmp_path / "h", name=str(name), **new)
        document = json.loads((tmp_path / f"h/meta/root/{name}.array.json").read_text())
        uri = f"https://purl.org/zarr/spec/codec/{name}/1.0" if name else None
        assert document.get("compressor", {}).get("codec") == uri
        np.testing.assert_array_equal(read(x), VALUES)
        assert shardwrite.verify(x, deep=True).is_good
    if how == "command line":
        arguments = ["plan", str(tmp_path / "v.npy"), str(tmp_path / "new"), *layout]
        found = CliRunner().invoke(main, [*arguments, "--compressors", "zstd"])
        assert '"lz4", "lzma", or --compressors none' in found.output
    for wrong in ("nope", "crc32c", ["gzip", "zstd"]):
        with pytest.raises(SpecError, match="not in the format transformer-2022; give one of"):
            shardwrite.plan(da.from_array(VALUES), **{**NEW, "compressors": wrong})


def test_shards_that_are_files_of_hdf5(tmp_path):
    h5py = pytest.importorskip("h5py")
    hdf5plugin = pytest.importorskip("hdf5plugin")
    assert hdf5plugin
    new = {name: NEW[name] for name in ("shards", "chunks", "format")}
    da.from_array(VALUES).to_sharded_zarr(tmp_path / "h", name="x", strategy="hdf5", **new)
    document = json.loads((tmp_path / "h/meta/root/x.array.json").read_text())
    assert document["compressor"]["codec"].endswith("/blosc/1.0")
    np.testing.assert_array_equal(read(tmp_path / "h/x"), VALUES)
    with h5py.File(tmp_path / "h/data/root/x/c0/0") as file:
        (dataset,) = file.values()
        np.testing.assert_array_equal(dataset[...], VALUES[:2])


def test_it_goes_into_no_group_of_today(tmp_path):
    zarr.create_group(tmp_path / "g")
    with pytest.raises(SpecError, match="something else than a hierarchy of 2022"):
        da.from_array(VALUES).to_sharded_zarr(tmp_path / "g", name="x", **NEW)
    assert [p.name for p in (tmp_path / "g").iterdir()] == ["zarr.json"]


@pytest.mark.parametrize("kind", ["directory", "memory", "bucket"])
@pytest.mark.parametrize(("outer", "inner"), [("x", "x/y"), ("x", "x/y/z"), ("", "x"), ("", "c0")])
def test_no_array_lies_inside_another(tmp_path, kind, outer, inner):
    x = da.from_array(VALUES)
    obstore = pytest.importorskip("obstore") if kind == "bucket" else None
    for first, second, why in (
        (outer, inner, "an array stands where its group should be, at .*; give another name"),
        (inner, outer, "a group stands there; give another name= inside it"),
    ):
        store = tmp_path / f"{first.replace('/', '-')}-first"
        if kind != "directory":
            store = obstore.store.MemoryStore() if kind == "bucket" else zarr.storage.MemoryStore()
        x.to_sharded_zarr(store, name=first or None, **NEW)
        for mode in ("w-", "w"):
            with pytest.raises(SpecError, match=why) as caught:
                x.to_sharded_zarr(store, name=second or None, mode=mode, **NEW)
            if first == outer:
                assert (caught.value.field, caught.value.value) == ("name", inner)
        for mode in ("r+", "w"):  # what stands there can still be changed and replaced
            x.to_sharded_zarr(store, name=first or None, mode=mode, **NEW)
        np.testing.assert_array_equal(read(store, name=first or None), VALUES)
    x.to_sharded_zarr(tmp_path / "s", name="a", **NEW)
    x.to_sharded_zarr(tmp_path / "s", name="ab", **NEW)  # beside it


@pytest.mark.parametrize("names", [["x"], ["a", "x"], ["x", "a"]])
@pytest.mark.parametrize("kind", ["directory", "memory"])
def test_no_array_lies_around_one_that_has_no_data(tmp_path, kind, names):
    """It has a document and no objects; it is found for one array, and for one of several."""
    x, store = da.from_array(VALUES), tmp_path / "h"
    if kind == "memory":
        store = zarr.storage.MemoryStore()
    da.zeros_like(x).to_sharded_zarr(store, name="x/y", **NEW)
    with pytest.raises(SpecError, match="a group stands there; give another name= inside it"):
        shardwrite.store([x] * len(names), [store] * len(names), names=names, **NEW)
    np.testing.assert_array_equal(read(store, name="x/y"), np.zeros_like(VALUES))


@pytest.mark.parametrize(("outer", "inner"), [("x", "x/y"), ("", "x"), ("", "c0")])
def test_what_lies_inside_an_array_is_never_removed(tmp_path, outer, inner):
    """Other programs may have put an array inside another."""
    x = da.from_array(VALUES)
    h = tmp_path / "h"
    x.to_sharded_zarr(h, name=outer or None, **NEW)
    x.to_sharded_zarr(tmp_path / "other", name=inner, **NEW)
    for folder in ("data", "meta"):
        shutil.copytree(tmp_path / "other" / folder, h / folder, dirs_exist_ok=True)
    (h / "data/root" / inner / "notes.txt").write_text("mine")
    copied = [p.relative_to(tmp_path / "other") for p in (tmp_path / "other").rglob("*?ta/**/*")]
    before = {h / p: (h / p).read_bytes() for p in copied if (h / p).is_file()}
    before[h / "data/root" / inner / "notes.txt"] = b"mine"
    assert len(before) >= 4
    with pytest.raises(SpecError, match=f"another array or group stands inside it, .*{inner}"):
        (x + 1).to_sharded_zarr(h, name=outer or None, mode="w", **NEW)
    documents = [path for path in before if "meta" in path.parts]
    for path in documents:  # then nobody can see that the data are those of an array
        path.unlink()
    (x + 1).to_sharded_zarr(h, name=outer or None, mode="w", **NEW)
    shardwrite.erase(h / outer, (slice(0, 2),))
    for path in documents:
        path.write_bytes(before[path])
    assert all(path.read_bytes() == data for path, data in before.items())
    np.testing.assert_array_equal(read(h, name=inner), VALUES)
    np.testing.assert_array_equal(read(h, name=outer or None)[2:], VALUES[2:] + 1)


def test_a_sweep_leaves_temporaries_of_arrays_inside(tmp_path):
    x = da.from_array(VALUES)
    x.to_sharded_zarr(tmp_path / "h", **NEW)
    data = tmp_path / "h/data/root"
    own, other = (data / at for at in ("c0/.0.dead.0.swtmp", "x/c0/.0.alive.0.swtmp"))
    for path in (own, other):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    place = resolve_place(tmp_path / "h", None, layout="transformer-2022")
    assert place.sweep(set) == 1
    assert other.exists()
    assert not own.exists()


def test_a_bad_shard_is_found_and_repaired(golden):
    path = golden / "data/root/x/c1/0"
    path.write_bytes(path.read_bytes()[:-1])
    (problem,) = shardwrite.verify(golden / "x").problems
    assert problem.key == "c/1/0"
    shardwrite.repair(golden / "x", da.from_array(VALUES))
    assert shardwrite.verify(golden / "x", deep=True, against=da.from_array(VALUES)).is_good


def test_an_update_through_a_link_is_refused_before_it_begins(golden, tmp_path):
    shard, outside = golden / "data/root/x/c0/0", tmp_path / "outside"
    shard.rename(outside)
    shard.symlink_to(outside)
    before = sorted(map(str, tmp_path.rglob("*")))
    with pytest.raises(StoreError, match="symbolic link"):
        shardwrite.write_region(7, golden / "x", (slice(1, 3), slice(1, 3)))
    assert sorted(map(str, tmp_path.rglob("*"))) == before


@pytest.mark.parametrize("strategy", ["fixed-order", "append-only"])
def test_updates_appends_and_compaction(golden, strategy):
    x = golden / "x"
    new = da.from_array(VALUES[:2, :3] + 100)
    new.to_sharded_zarr(x, region=(slice(1, 3), slice(1, 4)), strategy=strategy)
    da.from_array(VALUES[:2]).to_sharded_zarr(x, region="append")
    wanted = np.concatenate([VALUES, VALUES[:2]])
    wanted[1:3, 1:4] = VALUES[:2, :3] + 100
    np.testing.assert_array_equal(read(x), wanted)
    shardwrite.compact(x, above=0)
    np.testing.assert_array_equal(read(x), wanted)
    assert shardwrite.verify(x, deep=True).unused_nbytes == 0
    with pytest.raises(SpecError, match="without a checksum"):
        new.to_sharded_zarr(
            x, region=(slice(0, 2), slice(0, 3)), strategy=shardwrite.AppendOnly(in_place=True)
        )
    with pytest.raises(SpecError, match="in its place"):
        shardwrite.reshard(x, shards=(4, 4))


def store_of(kind, tmp_path):
    """An empty store that is no directory for this package, and where the state of runs goes."""
    if kind == "memory":
        return zarr.storage.MemoryStore(), None
    if kind == "path in memory":
        return zarr.storage.StorePath(zarr.storage.MemoryStore(), "some/where"), None
    if kind == "fsspec":
        pytest.importorskip("fsspec")
        return zarr.storage.FsspecStore.from_url(f"memory://{tmp_path.name}"), None
    obstore = pytest.importorskip("obstore")
    if kind == "obstore":
        return obstore.store.MemoryStore(), None
    (tmp_path / "bucket").mkdir()
    return obstore.store.LocalStore(tmp_path / "bucket"), tmp_path / "runs"


STORES = ["memory", "path in memory", "fsspec", "obstore", "obstore on a disk"]


@pytest.mark.parametrize("kind", STORES)
def test_an_array_at_the_root_of_a_store_is_found_again(tmp_path, kind):
    store, run_dir = store_of(kind, tmp_path)
    x = da.from_array(VALUES, chunks=(2, 4))
    where = {"run_dir": run_dir} if run_dir else {}
    for _ in range(2):  # the second call finds that nothing is left to do
        result = x.to_sharded_zarr(store, **NEW, **where)
    assert result.n_resumed_shards == result.n_shards == 2
    np.testing.assert_array_equal(read(store), VALUES)
    np.testing.assert_array_equal(shardwrite.from_sharded_zarr(store).compute(), VALUES)
    assert shardwrite.verify(store, deep=True, against=x).is_good
    assert "5 copied, 0 re-encoded" in str(shardwrite.reshard(store, tmp_path / "s", shards=(4, 4)))
    shardwrite.unshard(store, tmp_path / "u")
    for name in ("s", "u"):
        np.testing.assert_array_equal(zarr.open_array(tmp_path / name, mode="r")[...], VALUES)
    with pytest.raises(SpecError, match="an array exists there"):
        x.to_sharded_zarr(store, mode="w-", **{**NEW, "shards": (4, 4)}, **where)
    with pytest.raises(SpecError, match="is in a hierarchy of 2022"):
        x.to_sharded_zarr(store, mode="w", shards=(2, 4), chunks=(1, 2), **where)
    with pytest.raises(SpecError, match="an array stands where its group should be"):
        x.to_sharded_zarr(store, name="inside", **NEW, **where)
    (x + 1).to_sharded_zarr(store, mode="w", **NEW, **where)
    np.testing.assert_array_equal(read(store), VALUES + 1)


@pytest.mark.parametrize("kind", ["memory", "path in memory", "obstore", "obstore on a disk"])
def test_an_array_at_the_root_of_a_store_is_changed_and_repaired(tmp_path, kind):
    """A store of fsspec is left out, since it cannot replace an object in one step."""
    store, run_dir = store_of(kind, tmp_path)
    x = da.from_array(VALUES, chunks=(2, 4))
    where = {"run_dir": run_dir} if run_dir else {}
    x.to_sharded_zarr(store, **NEW, **where)
    shardwrite.write_region(x[:1] + 100, store, (slice(1, 2),), **where)
    x[:2].to_sharded_zarr(store, region="append", **where)
    wanted = np.concatenate([VALUES, VALUES[:2]])
    wanted[1] = VALUES[0] + 100
    np.testing.assert_array_equal(read(store), wanted)
    shardwrite.erase(store, (slice(0, 1),), **where)
    shardwrite.compact(store, above=0, **where)
    wanted[0] = 0
    np.testing.assert_array_equal(read(store), wanted)
    below = resolve_place(store, None).store
    with below.transaction("none", "test.0") as transaction:
        writer = transaction.create("c/1/0")
        writer.write([b"torn"])
        writer.finish()
    (problem,) = shardwrite.verify(store).problems
    assert problem.key == "c/1/0"
    shardwrite.repair(store, da.from_array(wanted), **where)
    assert shardwrite.verify(store, deep=True, against=da.from_array(wanted)).is_good


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("end", ["resume", "restart"])
def test_an_unfinished_array_at_the_root_of_a_store_goes_on(tmp_path, kind, end):
    store, run_dir = store_of(kind, tmp_path)
    values = np.arange(4096, dtype="u2").reshape(64, 64)
    x = da.from_array(values, chunks=(16, 64))
    new = {"shards": 16, "chunks": 4, "format": "transformer-2022", "source_id": "it"}
    new |= {"memory_limit": "30kB", **({"run_dir": run_dir} if run_dir else {})}
    seen = []

    def stop(report):
        seen.append(report)
        if len(seen) == 2:
            raise Stop

    with dask.config.set(scheduler="sync"):
        with pytest.raises(Stop):
            x.to_sharded_zarr(store, progress=stop, **new)
        with pytest.raises(SpecError, match="no array"):
            shardwrite.open_sharded(store)
        result = x.to_sharded_zarr(store, restart=end == "restart", **new)
    assert (0 < result.n_resumed_shards < 16) == (end == "resume")
    np.testing.assert_array_equal(read(store), values)
    assert shardwrite.verify(store, deep=True).is_good


@pytest.mark.parametrize("kind", ["memory", "obstore", "obstore on a disk"])
def test_an_interrupted_update_at_the_root_of_a_store_is_abandoned(tmp_path, kind):
    store, run_dir = store_of(kind, tmp_path)
    where = {"run_dir": run_dir} if run_dir else {}
    values = np.arange(4096, dtype="u2").reshape(64, 64)
    x = da.from_array(values, chunks=(16, 64))
    x.to_sharded_zarr(store, shards=16, chunks=4, format="transformer-2022", **where)

    def stop(report):
        raise Stop

    with dask.config.set(scheduler="sync"), pytest.raises(Stop):
        shardwrite.write_region(x + 1, store, (slice(0, 64),), progress=stop, **where)
    assert shardwrite.verify(store, **where).problems == ()
    assert len(shardwrite.abandon(store, **where)) == 1
    assert shardwrite.abandon(store, **where) == []
    assert shardwrite.verify(store, deep=True, **where).is_good


def test_a_view_presents_an_array_at_the_root_of_a_store():
    store = zarr.storage.MemoryStore()
    da.from_array(VALUES, chunks=(2, 4)).to_sharded_zarr(store, **NEW)
    view = shardwrite.transformer_view(store, (2, 2), path="data/root")

    async def keys():
        return sorted([key async for key in view.list_prefix("data/root")])

    assert asyncio.run(keys()) == [f"data/root/c{i}/{j}" for i, j in ((0, 0), (0, 1), (1, 1), (2, 0), (2, 1))]  # fmt: skip


@pytest.mark.parametrize("name", ["", "x"])
def test_a_hierarchy_in_a_zip_file(tmp_path, name):
    da.from_array(VALUES).to_sharded_zarr(tmp_path / "h", name=name or None, **NEW)
    shutil.make_archive(str(tmp_path / "h"), "zip", tmp_path / "h")
    path = tmp_path / "h.zip"
    with zarr.storage.ZipStore(path, mode="r") as store:
        np.testing.assert_array_equal(read(store, name=name or None), VALUES)
        assert shardwrite.verify(store, name=name or None, deep=True).is_good
    done = shardwrite.reshard(f"{path}::{name}" if name else path, tmp_path / "new", shards=(4, 4))
    assert "5 copied, 0 re-encoded" in str(done)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "new", mode="r")[...], VALUES)
    if name:
        with pytest.raises(SpecError, match=r"give the path of one array in it .*: x") as caught:
            shardwrite.reshard(path, tmp_path / "other", shards=(4, 4))
        assert caught.value.field == "src"


def test_what_a_zip_file_claims_of_a_shard_is_checked(tmp_path):
    da.from_array(VALUES).to_sharded_zarr(tmp_path / "h", **NEW)
    path = tmp_path / "h/data/root/c1/0"
    path.write_bytes(bytes(10**6))
    with zipfile.ZipFile(tmp_path / "h.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        for path in (tmp_path / "h").rglob("*"):
            packed.write(path, path.relative_to(tmp_path / "h"))
    with pytest.raises(CorruptShardError, match="inflate to 1,000,000 bytes"):
        shardwrite.reshard(tmp_path / "h.zip", tmp_path / "new", shards=(4, 4))


def test_a_hierarchy_without_arrays_is_refused(tmp_path):
    store = zarr.storage.MemoryStore()
    da.from_array(VALUES).to_sharded_zarr(store, name="x", **NEW)
    with pytest.raises(SpecError, match=r"give the path of one array in it .*: x"):
        shardwrite.reshard(store, tmp_path / "y", shards=(4, 4))
    with pytest.raises(SpecError, match="give name=, one of: x"):
        shardwrite.open_sharded(store)
    shardwrite.reshard(zarr.storage.StorePath(store, "x"), tmp_path / "z", shards=(4, 4))
    put(tmp_path / "empty", {"zarr.json": GOLDEN["zarr.json"]})
    with pytest.raises(SpecError, match="give the path of a hierarchy with arrays"):
        shardwrite.reshard(tmp_path / "empty", tmp_path / "y", shards=(4, 4))


@pytest.mark.long
def test_parts_streams_and_stores_in_memory(tmp_path):
    x = da.from_array(VALUES, chunks=(2, 4))
    other = shardwrite.plan(x, shards=NEW["shards"], chunks=NEW["chunks"])
    with pytest.raises(SpecError, match=r"give it to shardwrite\.plan, too"):
        shardwrite.prepare(x, tmp_path / "h/g/x", other, format="transformer-2022")
    plan = shardwrite.plan(x, **NEW)
    shardwrite.prepare(x, tmp_path / "h/g/x", plan, format="transformer-2022")
    parts = [shardwrite.write_part(x, tmp_path / "h/g/x", i, 2) for i in range(2)]
    assert sum(part.n_shards for part in parts) >= 2
    shardwrite.finalize(tmp_path / "h/g/x")
    np.testing.assert_array_equal(read(tmp_path / "h/g/x"), VALUES)
    shardwrite.create(tmp_path / "h2", (0, 4), "u2", name="y", **NEW)
    with shardwrite.ShardWriter(tmp_path / "h2/y") as writer:
        for row in VALUES:
            writer.append(row)
    np.testing.assert_array_equal(read(tmp_path / "h2", name="y"), VALUES)
    memory = zarr.storage.MemoryStore()
    x.to_sharded_zarr(memory, name="a/b", **NEW)
    x.to_sharded_zarr(memory, name="a/b", **NEW)
    np.testing.assert_array_equal(read(memory, name="a/b"), VALUES)


PROGRAM = """
import os, signal, sys
import dask, numpy as np, dask.array as da
import shardwrite
def die(report):
    if len(seen := globals().setdefault("seen", [])) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    seen.append(report)
x = da.from_array(np.arange(4096, dtype="u2").reshape(64, 64), chunks=(16, 64))
with dask.config.set(scheduler="sync"):
    x.to_sharded_zarr(sys.argv[1], name="x", shards=16, chunks=4, format="transformer-2022",
                      source_id="it", memory_limit="30kB", progress=die)
"""


@pytest.mark.long
def test_killed_and_resumed(tmp_path):
    path = tmp_path / "h"
    done = subprocess.run([*python(), "-c", PROGRAM, str(path)], check=False, timeout=120)
    assert done.returncode < 0
    assert not (path / "meta/root/x.array.json").exists()
    written = len(list((path / "data/root/x").rglob("*")))
    assert written > 1
    (path / "data/root/x/c0").mkdir(exist_ok=True)
    values = np.arange(4096, dtype="u2").reshape(64, 64)
    x = da.from_array(values, chunks=(16, 64))
    with dask.config.set(scheduler="sync"):
        result = x.to_sharded_zarr(
            path, name="x", shards=16, chunks=4, format="transformer-2022",
            source_id="it", memory_limit="30kB",
        )  # fmt: skip
    assert 0 < result.n_resumed_shards < 16
    np.testing.assert_array_equal(read(path / "x"), values)
    assert not [p for p in tmp_path.rglob("*") if p.name.endswith((".tmp", ".shardwrite"))]
    assert shardwrite.verify(path, name="x", deep=True).is_good


def test_the_command_line(golden, tmp_path, capsys):
    from click.testing import CliRunner

    from shardwrite.cli.main import main

    np.save(tmp_path / "v.npy", VALUES)
    runner = CliRunner()
    to = [str(tmp_path / "v.npy"), str(tmp_path / "new"), "--name", "g/x"]
    layout = ["--shards", "2,4", "--chunks", "1,2", "--array-format", "transformer-2022"]
    for command in (["plan", *to[:2]], ["write", "--dry-run", *to], ["write", "--verify", *to]):
        found = runner.invoke(main, [*command, *layout])
        assert found.exit_code == 0, found.output
    np.testing.assert_array_equal(read(tmp_path / "new/g/x"), VALUES)
    found = runner.invoke(main, ["info", str(golden / "x"), "--json"])
    assert json.loads(found.output)["shards"] == [2, 4]
    found = runner.invoke(
        main, ["reshard", str(golden / "x"), str(tmp_path / "y"), "--shards", "4,4"]
    )
    assert found.exit_code == 0, found.output


@pytest.mark.parametrize("name", ["new", "x"])
def test_nothing_is_converted_into_a_hierarchy_of_2022(golden, tmp_path, name):
    src, tree = tmp_path / "a", tmp_path / "t"
    zarr.create_array(src, shape=(8, 8), chunks=(2, 2), dtype="u2")[...] = 5
    zarr.create_group(tree).create_array("q", shape=(8,), chunks=(2,), dtype="u2")[...] = 5
    # a plain group, in which the hierarchy stands where an array of the tree would come
    zarr.create_group(tmp_path / "plain")
    shutil.copytree(golden, tmp_path / "plain/q")
    before, dst = digests(tmp_path), golden / name
    for call in (
        lambda: shardwrite.plan_reshard(src, 2, dst=dst),
        lambda: shardwrite.shard(src, dst, 2),
        lambda: shardwrite.shard(src, dst, 2, mode="w"),
        lambda: shardwrite.shard(src, dst, 2, consume=True),
        lambda: shardwrite.unshard(src, dst),
        lambda: shardwrite.reshard(tree, dst, 2, mode="w"),
        lambda: shardwrite.reshard(tree, tmp_path / "plain", 2, mode="w"),
        lambda: shardwrite.prepare_conversion(src, dst, 2),
        lambda: shardwrite.download(src, dst),
    ):
        with pytest.raises(SpecError, match="is in a hierarchy of 2022"):
            call()
    assert digests(tmp_path) == before

"""Arrays whose chunks have other names than their metadata says: nothing is copied as fill values."""

from __future__ import annotations

import json
import os
import shutil
import warnings

import dask.array as da
import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from helpers import contents

import shardwrite
from shardwrite import SpecError
from shardwrite.cli import main
from shardwrite.sources import open_source

X = np.arange(64, dtype="u4").reshape(8, 8) + 1
V2_DOT = {"chunk_key_encoding": {"name": "v2", "separator": "."}}
V2_SLASH = {"chunk_key_encoding": {"name": "v2", "separator": "/"}}
V3_DOT = {"chunk_key_encoding": {"name": "default", "separator": "."}}
V3_SLASH = {"chunk_key_encoding": {"name": "default", "separator": "/"}}
KINDS = {
    "v3, dots": (3, V3_DOT, V3_SLASH),
    "v3, slashes": (3, V3_SLASH, V3_DOT),
    "v3 by the names of v2": (3, V2_DOT, V3_SLASH),
    "v2, slashes": (2, V2_SLASH, V2_DOT),
    "v2, dots": (2, V2_DOT, V2_SLASH),
}


def make(path, kind, values=X):
    """An array whose files are named by one encoding, and whose document says another one."""
    zarr_format, names, told = KINDS[kind]
    for at, keys in ((path, names), (path.with_name("other"), told)):
        zarr.create_array(at, data=values, chunks=(4, 4), zarr_format=zarr_format, **keys)
    leaf = "zarr.json" if zarr_format == 3 else ".zarray"
    shutil.copy(path.with_name("other") / leaf, path / leaf)
    shutil.rmtree(path.with_name("other"))
    return path


CALLS = {
    "shard": lambda a, b: shardwrite.shard(a, b, shards=8),
    "reshard": lambda a, b: shardwrite.reshard(a, b, chunks=2, shards=8),
    "unshard": lambda a, b: shardwrite.unshard(a, b),
    "in place": lambda a, b: shardwrite.shard(a, shards=8),
    "consume": lambda a, b: shardwrite.shard(a, b, shards=8, consume=True),
    "plan": lambda a, b: shardwrite.plan_reshard(a, 8),
    "store": lambda a, b: shardwrite.shard_store(a, 2),
    "write": lambda a, b: shardwrite.to_sharded_zarr(zarr.open_array(a, mode="r"), b, shards=8),
    "source": lambda a, b: open_source(a),
    "parts": lambda a, b: shardwrite.prepare_conversion(a, b, 8),
}


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        (kind, call)
        for kind in KINDS
        for call in CALLS
        if call in ("shard", "write") or "v3, s" in kind
    ],
)
def test_an_array_of_which_no_chunk_is_there_is_refused(tmp_path, kind, call):
    path = make(tmp_path / "a", kind)
    before = contents(tmp_path)
    with pytest.raises(SpecError, match=r"named like chunks.*dimension_separator"):
        CALLS[call](path, tmp_path / "b")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("kind", KINDS)
def test_verify_and_census_tell(tmp_path, kind):
    path = make(tmp_path / "a", kind)
    if kind.startswith("v3"):
        (problem,) = shardwrite.verify(path).problems
        assert problem.key in {str(p.relative_to(path)) for p in path.rglob("*")}
        assert "named like chunks" in problem.message
        assert CliRunner().invoke(main, ["verify", str(path)]).exit_code == 1
        assert any("named like chunks" in text for text in shardwrite.census(path).warnings)
    da.zeros((8, 8), dtype="u4", chunks=4).to_sharded_zarr(tmp_path / "b", shards=8, chunks=4)
    with pytest.raises(SpecError, match="named like chunks"):
        shardwrite.verify(tmp_path / "b", against=path)  # not "both are empty"


def test_commands(tmp_path):
    path = make(tmp_path / "a", "v2, slashes")
    before = contents(tmp_path)
    for words in (["shard", "a", "b", "--consume"], ["write", "a", "b"], ["shard", "a", "b"]):
        words = [str(tmp_path / word) if len(word) == 1 else word for word in words]
        result = CliRunner().invoke(main, [*words, "--shards", "8"])
        assert result.exit_code != 0
        assert "named like chunks" in result.output
    assert contents(tmp_path) == before
    assert path.exists()


def test_uploads_and_downloads(tmp_path):
    obstore = pytest.importorskip("obstore.store")
    path = make(tmp_path / "a", "v3, dots")
    bucket = obstore.MemoryStore()
    with pytest.raises(SpecError, match="named like chunks"):
        shardwrite.upload(path, bucket)
    for file in path.rglob("*"):
        if file.is_file():
            bucket.put(str(file.relative_to(path)), file.read_bytes())
    with pytest.raises(SpecError, match="named like chunks"):
        shardwrite.download(bucket, tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_an_array_of_which_some_chunks_have_other_names(tmp_path):
    path = tmp_path / "a"
    zarr.create_array(path, data=X, chunks=(4, 4))
    os.rename(path / "c/0/1", path / "c.0.1")
    with pytest.warns(UserWarning, match="1 files are named like chunks"):
        shardwrite.shard(path, tmp_path / "b", shards=8)
    before = contents(path)
    with pytest.raises(SpecError, match="named like chunks"):
        shardwrite.shard(path, tmp_path / "c", shards=8, consume=True)
    with pytest.raises(SpecError):
        shardwrite.shard(path, shards=8)
    assert contents(path) == before
    assert any("named like chunks" in text for text in shardwrite.verify(path).warnings)


@pytest.mark.parametrize("files", [(), ("README", "c/notes.txt", "1.5.tif", "c/9/9")])
def test_an_array_that_is_empty_by_design_is_converted(tmp_path, files):
    """Files that are no chunks are no reason, nor is what is left of a larger array."""
    path = tmp_path / "a"
    zarr.create_array(path, shape=(8, 8), chunks=(4, 4), dtype="u4", fill_value=7)
    for name in files:
        (path / name).parent.mkdir(exist_ok=True, parents=True)
        (path / name).write_text("x")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        shardwrite.shard(path, tmp_path / "b", shards=8)
    assert (zarr.open_array(tmp_path / "b", mode="r")[...] == 7).all()
    assert shardwrite.verify(path).is_good


def test_a_group_of_numbered_arrays_is_no_array(tmp_path):
    group = zarr.create_group(tmp_path / "a")
    for name in ("0", "1"):
        group.create_array(name, data=X, chunks=(4, 4))
    shardwrite.shard(tmp_path / "a", tmp_path / "b", shards=8)
    np.testing.assert_array_equal(zarr.open_group(tmp_path / "b", mode="r")["1"][...], X)


@pytest.mark.parametrize("remedy", ["correct", "move away"])
def test_the_remedies(tmp_path, remedy):
    path = make(tmp_path / "a", "v3, dots")
    with pytest.raises(SpecError, match="correct chunk_key_encoding"):
        shardwrite.shard(path, tmp_path / "b", shards=2)
    if remedy == "correct":
        document = json.loads((path / "zarr.json").read_text())
        document["chunk_key_encoding"] = {
            "name": "default",
            "configuration": {"separator": "."},
        }
        (path / "zarr.json").write_text(json.dumps(document))
    else:
        for file in path.glob("c.*"):
            file.rename(tmp_path / file.name)
    shardwrite.shard(path, tmp_path / "b", shards=2)
    found = zarr.open_array(tmp_path / "b", mode="r")[...]
    np.testing.assert_array_equal(found, X if remedy == "correct" else 0 * X)

"""Arrays whose shards are files of HDF5: what updates, repairs and conversions make of them, and
how their dataset is called."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from unittest import mock

import dask
import dask.array as da
import numpy as np
import pytest
import zarr

import shardwrite
from shardwrite import Hdf5, JournalError, ShardWriter, SpecError
from shardwrite.runs.old_shards import keeping

sys.path.insert(0, str(Path(__file__).parent))
import seams
from helpers import Stop, contents, printed, stop
from whole_files import make_shards

h5py = pytest.importorskip("h5py")
pytest.importorskip("hdf5plugin")

VALUES = np.arange(64.0).reshape(8, 8)
CORNER = (slice(0, 2), slice(0, 2))


def written(path, values=VALUES, strategy="hdf5:raw"):
    da.from_array(values, chunks=4).to_sharded_zarr(path, shards=4, chunks=2, strategy=strategy)
    return path


def names(path, key="c/0/0"):
    """Names of the datasets in a shard; None if it is no file of HDF5."""
    if not h5py.is_hdf5(path / key):
        return None
    found = []
    with h5py.File(path / key) as file:
        file.visititems(
            lambda name, node: found.append(name) if isinstance(node, h5py.Dataset) else None
        )
    return found


def adopted(folder):
    """An array of two files that hold another dataset and an attribute, too."""
    files = []
    for n in range(2):
        files.append(folder / f"{n}.h5")
        with h5py.File(files[-1], "w") as file:
            file.create_dataset("t", data=VALUES[:4] + 100 * n, chunks=(2, 2))
            file["time"] = np.arange(4.0)
            file.attrs["station"] = "X"
    return make_shards(files, folder / "adopted", dataset="t")


def check(path, values):
    np.testing.assert_array_equal(shardwrite.open_sharded(path)[:, :], values)
    assert shardwrite.verify(path, deep=True).is_good


# ---- the name of the dataset


def test_new_arrays_stay_as_they_were(tmp_path):
    """Digest, label and bytes are those of the name `data`, whether it is given or not."""
    x = da.from_array(VALUES, chunks=4)
    layout = {"shards": 4, "chunks": 2, "source_id": "x"}
    plans = [
        shardwrite.plan(x, strategy=how, **layout)
        for how in ("hdf5", Hdf5(), Hdf5(dataset="data"), "hdf5:data")
    ]
    assert len({plan.digest for plan in plans}) == 1
    assert {plan.strategy.label for plan in plans} == {"hdf5 (data)"}
    assert Hdf5().to_dict() == {"index": None, "dataset": "data"}
    assert Hdf5.from_dict(Hdf5().to_dict()).label == Hdf5().label
    for n, how in enumerate(("hdf5", "hdf5:data")):
        written(tmp_path / str(n), strategy=how)
    assert names(tmp_path / "0") == ["data"]
    shards = [(tmp_path / n / "c/1/1").read_bytes() for n in "01"]
    assert shards[0] == shards[1]


CHANGES = {
    "erase": lambda path, how: shardwrite.erase(path, CORNER, strategy=how),
    "update": lambda path, how: shardwrite.write_region(1.0, path, CORNER, strategy=how),
    "append": lambda path, how: shardwrite.write_region(
        VALUES, path, "append", axis=0, strategy=how
    ),
    "stream": lambda path, how: _stream(path, how),
    "repair": lambda path, how: _repair(path, how),
    "repair of all": lambda path, how: _repair(path, how, keys=("0/0", "0/1", "1/0", "1/1")),
}


def _stream(path, how):
    with ShardWriter(path, strategy=how) as writer:
        writer.append(VALUES[:3])


def _repair(path, how, keys=("0/0",)):
    for key in keys:
        os.remove(path / "c" / key)
    shardwrite.repair(path, da.from_array(VALUES, chunks=4), strategy=how)


@pytest.mark.parametrize("how", ["hdf5", Hdf5()], ids=["name", "class"])
@pytest.mark.parametrize("change", CHANGES)
def test_the_dataset_keeps_its_name(tmp_path, change, how):
    path = written(tmp_path / "x", strategy=Hdf5(dataset="raw/data"))
    CHANGES[change](path, how)
    keys = [str(file.relative_to(path)) for file in (path / "c").rglob("*") if file.is_file()]
    assert len(keys) >= 4
    assert {tuple(names(path, key)) for key in keys} == {("raw/data",)}
    assert shardwrite.verify(path, deep=True).is_good


@pytest.mark.parametrize("change", CHANGES)
def test_another_name_is_refused(tmp_path, change):
    """Both names are told, and nothing is changed."""
    path = written(tmp_path / "x")
    before = contents(path / "c")
    with pytest.raises(SpecError, match="is 'raw', and would become 'zz'"):
        CHANGES[change](path, Hdf5(dataset="zz"))
    after = contents(path / "c")
    assert all(after[file] == before[file] for file in after)
    assert not (tmp_path / "x.quarantine").exists()


def test_another_name_by_a_word(tmp_path):
    path = written(tmp_path / "x")
    with pytest.raises(SpecError, match="also give drop_hdf5=True"):
        shardwrite.erase(path, CORNER, strategy="hdf5:zz")
    shardwrite.erase(path, CORNER, strategy="hdf5:zz", drop_hdf5=True)
    assert names(path) == ["zz"]
    with pytest.raises(SpecError, match=r"'zz' in the shard 'c/0/0', and 'raw' in") as caught:
        shardwrite.write_region(1.0, path, (slice(0, 8), slice(0, 8)), strategy="hdf5")
    assert 'strategy="hdf5:zz", with drop_hdf5=True' in caught.value.fields["remedy"]
    everything = (slice(0, 8), slice(0, 8))
    shardwrite.write_region(1.0, path, everything, strategy="hdf5:zz", drop_hdf5=True)
    assert names(path, "c/1/1") == ["zz"]


def test_a_task_finds_another_name_between_the_ends(tmp_path):
    x = da.arange(12.0, chunks=4)
    path = tmp_path / "x"
    x.to_sharded_zarr(path, shards=4, chunks=2, strategy="hdf5:raw")
    shardwrite.write_region(1.0, path, slice(4, 8), strategy="hdf5:zz", drop_hdf5=True)
    with pytest.raises(SpecError, match=r"'c/1' is 'zz', and would become 'raw'"):
        shardwrite.write_region(2.0, path, slice(0, 12), strategy="hdf5")
    shardwrite.abandon(path)


def test_files_with_several_datasets(tmp_path):
    """The receipt tells which; without it, the places of the chunks do, or else the user."""
    path = adopted(tmp_path)
    with h5py.File(tmp_path / "2.h5", "w") as file:
        for name in ("t", "u"):
            file.create_dataset(name, data=VALUES[:4], chunks=(2, 2))
    make_shards([tmp_path / "2.h5"], tmp_path / "two", dataset="u")
    shardwrite.erase(path, CORNER, strategy="hdf5")
    assert names(path) == ["t"]
    shard = tmp_path / "two/c/0/0"
    os.remove(seams.receipt_of(tmp_path / "two"))
    whole = shard.read_bytes()
    shard.chmod(0o644)
    shard.write_bytes(whole[:-1] + b"?")
    with pytest.raises(SpecError, match="several datasets: 't', 'u'") as caught:
        shardwrite.erase(tmp_path / "two", CORNER, strategy="hdf5")
    assert 'strategy="hdf5:t"' in caught.value.fields["remedy"]
    shard.write_bytes(whole)
    with pytest.raises(SpecError, match="is 'u', and would become 't'"):
        shardwrite.erase(tmp_path / "two", CORNER, strategy="hdf5:t")
    shardwrite.erase(tmp_path / "two", CORNER, strategy="hdf5")
    assert names(tmp_path / "two") == ["u"]


def test_an_interrupted_update_goes_on(tmp_path):
    """The name is decided before the run begins, so the same call finds its run."""
    path = written(tmp_path / "x")
    x = da.from_array(VALUES + 1, chunks=4)

    def fails(block):
        if block[0, 0] > 30:
            raise RuntimeError("stop")
        return block

    broken = x.map_blocks(fails, dtype=x.dtype, meta=np.empty((0, 0)))
    with pytest.raises(RuntimeError, match="stop"):
        shardwrite.write_region(broken, path, ..., strategy="hdf5", source_id="s")
    result = shardwrite.write_region(x, path, ..., strategy="hdf5", source_id="s")
    assert result is not None
    check(path, VALUES + 1)
    assert names(path, "c/1/1") == ["raw"]


def test_the_name_on_the_command_line(tmp_path):
    np.save(tmp_path / "x.npy", VALUES)
    np.save(tmp_path / "y.npy", VALUES[:2, :2])
    path, source = tmp_path / "x", tmp_path / "y.npy"
    printed(
        "write", tmp_path / "x.npy", path, "--shards", 4, "--chunks", 2, "--strategy", "hdf5:raw"
    )
    assert names(path) == ["raw"]
    update = ("update", source, path, "--region", "0:2,0:2", "--strategy")
    for extra in ((), ("--dry-run",)):
        told = printed(*update, "hdf5:zz", *extra, code=2)
        assert "'raw', and would become 'zz'; give --strategy hdf5, which keeps" in told
        assert "also give --drop-hdf5\n" in told
    printed(*update, "hdf5")
    assert names(path) == ["raw"]
    printed("erase", path, "--region", "0:2,0:2", "--strategy", "hdf5:raw")
    printed("shard", path, tmp_path / "s", "--shards", 4, "--strategy", "hdf5:q")
    assert names(tmp_path / "s") == ["q"]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("t", data=VALUES, chunks=(2, 2))
    printed("adopt", tmp_path / "a.h5", tmp_path / "b", "--strategy", "hdf5:q")
    assert names(tmp_path / "b") == ["q"]


# ---- shards that are absent


def sparse(path, strategy="hdf5:raw"):
    values = np.zeros((8, 8))
    values[0, 0] = 1
    return written(path, values, strategy)


def test_no_plain_shard_appears_among_files(tmp_path):
    path, region = sparse(tmp_path / "x"), (slice(4, 8), slice(4, 8))
    for keywords in ({}, {"strategy": "morton"}):
        with pytest.raises(SpecError, match="are also files of HDF5, and the shard 'c/1/1'"):
            shardwrite.write_region(5.0, path, region, **keywords)
    assert not (path / "c/1/1").exists()
    shardwrite.write_region(5.0, path, region, strategy="hdf5")
    assert names(path, "c/1/1") == ["raw"]
    region = (slice(0, 4), slice(4, 8))
    shardwrite.write_region(5.0, path, region, drop_hdf5=True)
    assert names(path, "c/0/1") is None
    shardwrite.write_region(6.0, path, region)  # which is a plain shard by now
    shardwrite.erase(path, region)
    shardwrite.write_region(6.0, path, region)


def test_a_shard_beside_tells_if_no_receipt_does(tmp_path):
    path = tmp_path / "x"
    shardwrite.create(path, (0, 8), "f8", shards=4, chunks=2, compressors=["zstd"])
    shardwrite.write_region(VALUES, path, "append", axis=0, strategy="hdf5:raw")
    with pytest.raises(SpecError, match="are also files of HDF5, and the shard 'c/2/0'"):
        shardwrite.write_region(VALUES, path, "append", axis=0)
    shardwrite.write_region(VALUES, path, "append", axis=0, strategy="hdf5")
    assert names(path, "c/3/1") == ["raw"]
    os.remove(seams.receipt_of(path))
    os.remove(path / "c/3/1")
    with pytest.raises(SpecError, match="are also files of HDF5, and the shard 'c/3/1'"):
        shardwrite.write_region(1.0, path, (slice(12, 16), slice(4, 8)))
    shardwrite.write_region(1.0, path, (slice(12, 16), slice(4, 8)), strategy="hdf5")
    assert names(path, "c/3/1") == ["raw"]


def test_plain_arrays_are_written_as_before(tmp_path):
    path, region = sparse(tmp_path / "x", "fixed-order"), (slice(4, 8), slice(4, 8))
    shardwrite.write_region(5.0, path, region)
    assert names(path, "c/1/1") is None
    shardwrite.write_region(VALUES, path, "append", axis=0, strategy="append-only")
    assert names(path, "c/3/1") is None


# ---- repair


@pytest.mark.parametrize("fault", ["missing", "torn", "empty"])
def test_repair_writes_files_again(tmp_path, fault):
    np.save(tmp_path / "x.npy", VALUES)
    path = written(tmp_path / "x")
    file = path / "c/1/0"
    os.chmod(file, 0o644)
    if fault == "missing":
        os.remove(file)
    else:
        os.truncate(file, 0 if fault == "empty" else file.stat().st_size - 20)
    x = da.from_array(VALUES, chunks=4)
    before = contents(path)
    with pytest.raises(SpecError, match=r"files? of HDF5"):
        shardwrite.repair(path, x, strategy="fixed-order")
    assert contents(path) == before
    assert not (tmp_path / "x.quarantine").exists()
    told = printed("repair", path, "--source", tmp_path / "x.npy", "--strategy", "morton", code=2)
    assert "give --strategy hdf5" in told
    assert "give --drop-hdf5, with" in told
    printed("repair", path, "--source", tmp_path / "x.npy")
    assert names(path, "c/1/0") == ["raw"]
    check(path, VALUES)


def test_repair_makes_plain_shards_by_a_word(tmp_path):
    np.save(tmp_path / "x.npy", VALUES)
    path = written(tmp_path / "x")
    os.chmod(path / "c/1/0", 0o644)
    os.truncate(path / "c/1/0", 100)
    printed("repair", path, "--source", tmp_path / "x.npy", "--drop-hdf5")
    assert names(path, "c/1/0") is None
    assert names(path, "c/1/1") == ["raw"]
    check(path, VALUES)


# ---- conversions


CONVERSIONS = {
    "reshard": lambda path, **how: shardwrite.reshard(path, None, (4, 4), **how),
    "shard": lambda path, **how: shardwrite.shard(path, shards=(4, 4), **how),
    "unshard": lambda path, **how: shardwrite.unshard(path, **how),
    "shard_store": lambda path, **how: shardwrite.shard_store(path, (4, 4), **how),
    "unshard_store": lambda path, **how: shardwrite.unshard_store(path, **how),
    "consume": lambda path, **how: shardwrite.reshard(
        path, path.parent / "new", (2, 2), consume=True, **how
    ),
}


@pytest.mark.parametrize("group", [False, True], ids=["array", "group"])
@pytest.mark.parametrize("conversion", CONVERSIONS)
def test_conversions_do_not_destroy_files(tmp_path, conversion, group):
    path = adopted(tmp_path)
    if group:
        zarr.create_group(tmp_path / "group")
        path.rename(tmp_path / "group/a")
        path = tmp_path / "group"
    before = contents(path)
    with pytest.raises(SpecError, match="also a file of HDF5, and nothing in it but the array"):
        CONVERSIONS[conversion](path)
    assert contents(path) == before
    assert not (tmp_path / "new").exists()
    CONVERSIONS[conversion](path, drop_hdf5=True)
    there = tmp_path / "new" if conversion == "consume" else path
    there = there / "a" if group else there
    check_values = shardwrite.open_sharded if "un" not in conversion[:2] else _as_zarr
    np.testing.assert_array_equal(
        np.asarray(check_values(there)[:, :]), np.concatenate([VALUES[:4], VALUES[:4] + 100])
    )


def _as_zarr(path):
    return zarr.open_array(path, mode="r")


def test_conversions_in_place_by_hdf5_keep_the_name(tmp_path):
    path = adopted(tmp_path)
    shardwrite.reshard(path, None, (4, 4), strategy="hdf5")
    assert names(path) == ["t"]
    shardwrite.reshard(path, tmp_path / "other", (2, 4), strategy="hdf5")
    assert names(tmp_path / "other") == ["data"]  # as in all new arrays
    shardwrite.reshard(path, tmp_path / "new", (2, 4), strategy="hdf5:t", consume=True)
    assert names(tmp_path / "new") == ["t"]
    assert not path.exists()


CONSUMING = {
    "reshard": lambda path, new, **how: shardwrite.reshard(path, new, (1, 2), **how),
    "shard": lambda path, new, **how: shardwrite.shard(path, new, (1, 2), **how),
}


@pytest.mark.parametrize("is_amid", [False, True], ids=["at once", "amid"])
@pytest.mark.parametrize("is_noted", [False, True], ids=["no receipt", "receipt"])
@pytest.mark.parametrize("group", [False, True], ids=["array", "group"])
@pytest.mark.parametrize("conversion", CONSUMING)
def test_what_is_consumed_keeps_the_name(tmp_path, conversion, group, is_noted, is_amid):
    """Also if the call that began was stopped, and files with the name are gone since."""
    path = written(tmp_path / "a", strategy="hdf5:raw/data")
    if not is_noted:
        os.remove(seams.receipt_of(path))
    if group:
        zarr.create_group(tmp_path / "group")
        path.rename(tmp_path / "group/a")
        written(tmp_path / "group/b", strategy="hdf5:b")
        written(tmp_path / "group/plain", strategy="fixed-order")
        path = tmp_path / "group"
    how = {"strategy": "hdf5", "consume": True, "memory_limit": "2200kB", "checksum": False}
    if is_amid:
        with dask.config.set(scheduler="sync"), pytest.raises(Stop):
            CONSUMING[conversion](path, tmp_path / "new", progress=stop, **how)
        assert not (path / "a/c/0/0" if group else path / "c/0/0").exists()
    with mock.patch("shardwrite.convert.arrays.keeping", wraps=keeping) as looks:
        CONSUMING[conversion](path, tmp_path / "new", **how)
    assert looks.call_count == (0 if is_amid else 2 if group else 1)
    assert not path.exists()
    new = tmp_path / "new"
    if group:
        assert names(new / "b", "c/3/1") == ["b"]
        assert names(new / "plain", "c/3/1") == ["data"]
        new = new / "a"
    assert names(new, "c/0/0") == names(new, "c/3/1") == ["raw/data"]
    check(new, VALUES)


def test_another_name_for_what_is_consumed(tmp_path):
    path = written(tmp_path / "a")
    with dask.config.set(scheduler="sync"), pytest.raises(Stop):
        shardwrite.reshard(
            path, tmp_path / "b", (1, 2), strategy="hdf5:zz", consume=True, progress=stop
        )
    with pytest.raises(JournalError, match="begun"):
        shardwrite.reshard(path, tmp_path / "b", (1, 2), strategy="hdf5", consume=True)
    shardwrite.reshard(path, tmp_path / "b", (1, 2), strategy="hdf5:zz", consume=True)
    assert names(tmp_path / "b") == ["zz"]


def test_a_consumption_that_an_older_version_began(tmp_path):
    """It named the dataset `data`, and wrote no name beside the digest."""
    path = written(tmp_path / "a")
    with (
        mock.patch("shardwrite.convert.arrays.keeping_names", lambda source, options, _: options),
        dask.config.set(scheduler="sync"),
        pytest.raises(Stop),
    ):
        shardwrite.reshard(
            path, tmp_path / "b", (1, 2), strategy="hdf5", consume=True, progress=stop
        )
    shardwrite.reshard(path, tmp_path / "b", (1, 2), strategy="hdf5", consume=True)
    assert names(tmp_path / "b") == ["data"]
    check(tmp_path / "b", VALUES)


def test_conversions_on_the_command_line(tmp_path):
    path = adopted(tmp_path)
    for extra in ("--in-place", "--dry-run"):
        told = printed("reshard", path, "--shards", "4,4", extra, code=2)
        assert "--strategy hdf5" in told
        assert "give --drop-hdf5" in told
    told = printed("unshard", path, tmp_path / "n", "--consume", "--dry-run", code=2)
    assert "leave --consume out" in told
    told = printed("reshard", path, tmp_path / "n", "--init", "--drop-hdf5", code=2)
    assert "--drop-hdf5 does not go with --init" in told
    printed("reshard", path, tmp_path / "n", "--shards", "4,4")
    printed("unshard", path, "--in-place", "--drop-hdf5")


@pytest.mark.parametrize("convert", ["shard", "reshard", "adopt"])
def test_the_index_at_the_start(tmp_path, convert):
    strategy = Hdf5(index="start")
    if convert == "adopt":
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file.create_dataset("t", data=VALUES, chunks=(2, 2))
        done = shardwrite.adopt([tmp_path / "a.h5"], tmp_path / "x", strategy=strategy)
        assert done.index_location == "start"
        assert names(tmp_path / "x") == ["t"]
    else:
        written(tmp_path / "src")
        getattr(shardwrite, convert)(tmp_path / "src", tmp_path / "x", shards=2, strategy=strategy)
    with h5py.File(tmp_path / "x/c/0/0") as file:
        assert file.userblock_size
    check(tmp_path / "x", VALUES)


def test_auto_compressors_fit(tmp_path):
    written(tmp_path / "src", strategy="fixed-order")
    shardwrite.reshard(tmp_path / "src", tmp_path / "x", 2, compressors="auto", strategy="hdf5")
    assert names(tmp_path / "x") == ["data"]


# ---- plans


def test_dry_runs_refuse_what_the_call_refuses(tmp_path):
    np.save(tmp_path / "y.npy", VALUES[:2, :2])
    path, source = written(tmp_path / "x"), tmp_path / "y.npy"
    update = ("update", source, path, "--region", "0:2,0:2")
    for command in (
        update,
        ("erase", path, "--region", "0:2,0:2"),
        ("update", tmp_path / "z.npy", path, "--append", 0),
        ("compact", path, "--above", 0),
    ):
        np.save(tmp_path / "z.npy", VALUES)
        told = printed(*command, code=2)
        assert printed(*command, "--dry-run", code=2) == told
    printed(*update, "--drop-hdf5", "--dry-run")
    printed(*update, "--strategy", "hdf5", "--dry-run")
    assert names(path) == ["raw"]

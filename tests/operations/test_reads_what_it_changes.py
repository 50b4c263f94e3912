"""Updates whose source reads what they change, in whatever way it reads it.

`tests/faults/self_reading.py` interrupts them.
"""

from __future__ import annotations

import functools
import itertools
import os
import time

import dask
import dask.array as da
import numpy as np
import pytest
import seams
import zarr
from click.testing import CliRunner
from zarr.storage import FsspecStore, LocalStore, LoggingStore, MemoryStore

import shardwrite
from shardwrite import AppendOnly, FixedOrder, PlanError, ShardWriter, SpecError, patch_dask
from shardwrite.cli import main
from shardwrite.runs.reads import refuse_reading
from shardwrite.sources import as_dask, open_source

VALUES = np.arange(1, 24 * 30 + 1, dtype="i4").reshape(24, 30)
SIZES = {"shards": (12, 10), "chunks": (4, 5)}
CHANGED = "the source reads the array that it is to change"
STRATEGIES = {
    "replace": FixedOrder(),
    "append only": AppendOnly(),
    "append in place": AppendOnly(in_place=True),
    "in place": FixedOrder(in_place=True, max_unused=1.0),
}


def plus(block, other, **_):
    return (block + other[:24, :30]).astype("i4")


def linked(path):
    os.symlink(path, path.parent.parent / "link")
    return shardwrite.from_sharded_zarr(path.parent.parent / "link")


def closing_over(path):
    array = zarr.open_array(path)
    return da.ones(VALUES.shape, dtype="i4", chunks=VALUES.shape).map_blocks(
        lambda b: b + array[...]
    )


def given(*arguments, **keywords):
    block = da.ones(VALUES.shape, dtype="i4", chunks=VALUES.shape)
    return block.map_blocks(plus, *arguments, dtype="i4", **keywords)


def delayed(thing):
    return da.from_delayed(dask.delayed(np.asarray)(thing), VALUES.shape, "i4")


SPELLINGS = {
    "from_sharded_zarr": lambda p: 2 * shardwrite.from_sharded_zarr(p),
    "open_sharded": shardwrite.open_sharded,
    "relative path": lambda p: shardwrite.from_sharded_zarr(os.path.relpath(p))[::-1],
    "URL with a slash": lambda p: shardwrite.from_sharded_zarr(f"file://{p}/"),
    "link": linked,
    "zarr array": zarr.open_array,
    "from_zarr": lambda p: da.roll(da.from_zarr(p), 1, axis=0),
    "from_array": lambda p: da.from_array(zarr.open_array(p, mode="r"), chunks=7) + 1,
    "xarray": lambda p: 2 * pytest.importorskip("xarray").open_zarr(p.parent, consolidated=False).x,
    "optimized": lambda p: dask.optimize((da.from_zarr(p) + 1).T.T)[0],
    "keyword of a task": lambda p: given(other=zarr.open_array(p), more={"a": [1, 2]}),
    "delayed": lambda p: delayed(zarr.open_array(p)),
    # those above are the twelve; what follows is held in other ways
    "xarray, read when needed": lambda p: pytest.importorskip("xarray").open_zarr(
        p.parent, consolidated=False, chunks=None
    )["x"],
    "source of a file": lambda p: as_dask(open_source(str(p))),
    "source itself": lambda p: open_source(str(p.parent), dataset="x"),
    "group": lambda p: da.ones(VALUES.shape, dtype="i4", chunks=VALUES.shape).map_blocks(
        lambda b, group: b + group["x"][:24, :30], zarr.open_group(p.parent), dtype="i4"
    ),
    "opened by a task": lambda p: delayed(dask.delayed(zarr.open_array)(str(p))),
    "group opened by a task": lambda p: delayed(dask.delayed(zarr.open)(p.parent)["x"]),
    "partial function": lambda p: da.ones(VALUES.shape, dtype="i4", chunks=VALUES.shape).map_blocks(
        functools.partial(plus, other=zarr.open_array(p)), dtype="i4"
    ),
    "closure": closing_over,
    "logged store": lambda p: da.from_zarr(zarr.open_array(LoggingStore(LocalStore(p)))),
    "store of fsspec": lambda p: zarr.open_array(FsspecStore.from_url(f"file://{p}")),
    "tensorstore": lambda p: (
        pytest.importorskip("tensorstore")
        .open({"driver": "zarr3", "kvstore": {"driver": "file", "path": str(p)}})
        .result()
    ),
    "stacked": lambda p: da.concatenate([da.from_zarr(p)[12:], da.zeros((12, 30), chunks=5)]),
    "overlapping": lambda p: da.from_zarr(p).map_overlap(lambda b: b, depth=1, dtype="i4"),
    "without its graph of layers": lambda p: da.Array(
        dict(da.from_zarr(p).__dask_graph__()), da.from_zarr(p).name, da.from_zarr(p).chunks, "i4"
    ),
}
TWELVE = list(SPELLINGS)[:12]


@pytest.fixture
def path(tmp_path, monkeypatch):
    place = tmp_path / "group" / "x"
    zarr.create_group(place.parent)
    shardwrite.to_sharded_zarr(VALUES, place, dimension_names=("y", "x"), **SIZES)
    shardwrite.to_sharded_zarr(VALUES, place.parent / "other", dimension_names=("y", "x"), **SIZES)
    monkeypatch.chdir(tmp_path)
    return place


def contents(root):
    """All names below a directory, and the bytes of all files."""
    files = {p: p.read_bytes() if p.is_file() else None for p in root.rglob("*")}
    return {str(p): data for p, data in files.items() if not p.is_symlink()}


def refused(call, root, message=CHANGED):
    before = contents(root)
    with pytest.raises(SpecError, match=message):
        call()
    assert contents(root) == before


def values_in(spelling, x):
    """What a source holds now."""
    return np.asarray(x[...] if spelling in ("tensorstore", "source itself") else x)


def check_spelling(spelling, strategy, path):
    """It is recognised, and the values are those that it had before."""
    x = SPELLINGS[spelling](path)
    how = {"strategy": STRATEGIES[strategy], "casting": "unsafe"}
    assert shardwrite.plan_region(x, path, ..., **how).staged_with
    before, wanted = zarr.open_array(path)[...], values_in(spelling, x)
    shardwrite.to_sharded_zarr(x, path, region=..., **how)
    np.testing.assert_array_equal(zarr.open_array(path)[...], wanted)
    shardwrite.write_region(before, path, ..., strategy=STRATEGIES[strategy])
    assert not list(path.parent.glob("*.shardwrite"))


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_is_recognised_and_right(spelling, path):
    check_spelling(spelling, "replace", path)
    # Another array in the same group takes it as any source.
    if "group" not in spelling:
        x = SPELLINGS[spelling](path) if spelling != "link" else zarr.open_array("link")
        other, wanted = path.parent / "other", values_in(spelling, x)
        assert shardwrite.plan_region(x, other, ..., casting="unsafe").staged_with is None
        shardwrite.to_sharded_zarr(x, other, region=..., casting="unsafe")
        np.testing.assert_array_equal(zarr.open_array(other)[...], wanted)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy(strategy, path):
    check_spelling("from_zarr", strategy, path)
    check_spelling("zarr array", strategy, path)


PAIRS = list(itertools.product(TWELVE, STRATEGIES))


@pytest.mark.long
@pytest.mark.parametrize(
    "pairs", [PAIRS[::3], pytest.param(PAIRS, marks=pytest.mark.campaign)], ids=["some", "all"]
)
@pytest.mark.parametrize("workers", [0, 2])
def test_spellings_and_strategies_with_threads_and_workers(workers, pairs, path, tmp_path):
    from distributed import Client, LocalCluster

    assert ({a for a, _ in pairs}, {b for _, b in pairs}) == ({*TWELVE}, {*STRATEGIES})

    def check_all():
        for spelling, strategy in pairs:
            (tmp_path / "link").unlink(missing_ok=True)
            check_spelling(spelling, strategy, path)

    if not workers:
        check_all()
        return
    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster),
    ):
        check_all()


def into_writer(path, call):
    with ShardWriter(path) as writer:
        call(writer)


RIGHT = {
    "region": (
        lambda x, p: shardwrite.write_region(x[:12], p, slice(12, 24)),
        np.concatenate([VALUES[:12], VALUES[:12]]),
    ),
    "one region of several": (
        lambda x, p: shardwrite.store(
            [x[:12], np.ones((12, 30), "i4")], [p, p], regions=[slice(12, 24), slice(0, 12)]
        ),
        np.concatenate([np.ones((12, 30)), VALUES[:12]]),
    ),
    "swap of two regions": (
        lambda x, p: shardwrite.store([x[12:], x[:12]], [p, p], regions=[np.s_[:12], np.s_[12:]]),
        np.concatenate([VALUES[12:], VALUES[:12]]),
    ),
    "swap of two arrays": (
        lambda x, p: shardwrite.store(
            [da.from_zarr(p.parent / "other") + 1, x], [p, p.parent / "other"], regions=...
        ),
        VALUES + 1,
    ),
    "append": (
        lambda x, p: shardwrite.to_sharded_zarr(x, p, region="append"),
        np.concatenate([VALUES, VALUES]),
    ),
    "mode": (lambda x, p: shardwrite.to_sharded_zarr(x + 1, p, mode="r+"), VALUES + 1),
    "either mode": (lambda x, p: shardwrite.to_sharded_zarr(x + 1, p, mode="a"), VALUES + 1),
    "array of zarr": (
        lambda x, p: shardwrite.to_sharded_zarr(x[::-1], zarr.open_array(p)),
        VALUES[::-1],
    ),
    "read again": (
        lambda x, p: shardwrite.write_region(x + 1, p, ..., return_stored=True).compute(),
        VALUES + 1,
    ),
    "restart": (lambda x, p: shardwrite.write_region(x + 1, p, ..., restart=True), VALUES + 1),
    "with new arrays": (
        lambda x, p: shardwrite.store(
            [x + 1, da.ones((8, 8), chunks=4)],
            [p, p.parent / "new"],
            regions=[..., None],
        ),
        VALUES + 1,
    ),
}
"""Calls, and what stands in the array after them."""


@pytest.mark.parametrize("call", RIGHT)
def test_every_call_is_right(call, path):
    act, wanted = RIGHT[call]
    act(da.from_zarr(path), path)
    np.testing.assert_array_equal(zarr.open_array(path)[...], wanted)
    if call == "swap of two arrays":
        np.testing.assert_array_equal(zarr.open_array(path.parent / "other")[...], VALUES)
    assert not list(path.parent.glob("*.shardwrite"))


CALLS = {
    "later": lambda x, p: shardwrite.write_region(x, p, ..., compute=False),
    "several later": lambda x, p: shardwrite.store([x], [p], regions=..., compute=False),
    "repair": lambda x, p: shardwrite.repair(p, x),
    "writer of slices": lambda x, p: into_writer(p, lambda w: w.__setitem__(slice(0, 24), x + 1)),
    "writer that appends": lambda x, p: into_writer(p, lambda w: w.append(x[:1])),
    "new array": lambda x, p: shardwrite.store(
        [x, x + 1], [p.parent / "new", p], regions=[None, ...]
    ),
    "staged new array": lambda x, p: shardwrite.to_sharded_zarr(x, p.parent / "new", staged=True),
    "staged new array in store": lambda x, p: shardwrite.store(
        [x], [p.parent / "new"], staged=True
    ),
}


@pytest.mark.parametrize("call", CALLS)
def test_every_other_call_refuses(call, path):
    if call == "repair":  # else there is nothing to write
        os.unlink(path / "c/0/0")
    message = "is for updates" if "staged" in call else "the source reads "
    refused(lambda: CALLS[call](da.from_zarr(path), path), path.parent, message)


@pytest.mark.long
def test_a_finished_call_with_a_source_id_is_not_made_twice(path):
    x = da.from_zarr(path) + 1
    for _ in range(2):
        shardwrite.write_region(x, path, ..., source_id="once")
    np.testing.assert_array_equal(zarr.open_array(path)[...], VALUES + 1)
    os.unlink(path / "c/0/0")  # and not at all where it would read what it has written
    with pytest.raises(shardwrite.ChangedError, match="is not what its last run left"):
        shardwrite.write_region(x, path, ..., source_id="once")


@pytest.mark.long
def test_a_function_that_nobody_can_see_into(path):
    at = str(path)

    def flipped(block, block_info=None):
        where = tuple(slice(*span) for span in block_info[0]["array-location"])
        return zarr.open_array(f"{at}")[...][::-1][where] + block

    zeros = da.zeros(VALUES.shape, dtype="i4", chunks=(24, 7))
    x = zeros.map_blocks(flipped, dtype="i4")
    assert shardwrite.plan_region(x, path, ...).staged_with is None
    assert shardwrite.plan_region(x, path, ..., staged=True).kept_nbytes == VALUES.nbytes
    shardwrite.write_region(x, path, ..., staged=True)
    np.testing.assert_array_equal(zarr.open_array(path)[...], VALUES[::-1])


def test_what_the_plan_says(path):
    x = shardwrite.from_sharded_zarr(path)
    plan = shardwrite.plan_region(x[:12] + 1, path, slice(12, 24))
    assert plan.kept_nbytes == 12 * 30 * 4
    assert plan.to_dict()["kept_nbytes"] == plan.kept_nbytes
    assert "kept values" in str(plan)
    plain = shardwrite.plan_region(np.ones((12, 30), "i4"), path, slice(12, 24))
    assert plain.kept_nbytes == 0
    assert "kept_nbytes" not in plain.to_dict()
    assert plan.digest != plain.digest


def test_values_that_do_not_fit_on_the_disk(path, monkeypatch):
    real = os.statvfs

    def full(where):
        found = real(where)
        n_free = VALUES.nbytes // found.f_frsize
        return os.statvfs_result((*found[:4], n_free, *found[5:]))

    x = da.from_zarr(path) + 1
    large = da.concatenate([x] * 8 * (real(path).f_frsize // VALUES.nbytes + 1))
    monkeypatch.setattr(os, "statvfs", full)
    before = contents(path.parent)
    with pytest.raises(PlanError, match="are free; make room there") as info:
        shardwrite.write_region(large, path, "append")
    assert info.value.fields["needed_nbytes"] == large.nbytes
    assert contents(path.parent) == before


@pytest.mark.long
def test_the_patch_and_the_command_line(path):
    x = da.from_zarr(path)
    with patch_dask():
        x[::-1].to_zarr(zarr.open_array(path), region=(slice(None), slice(None)))
    np.testing.assert_array_equal(zarr.open_array(path)[...], VALUES[::-1])
    half = path.parent / "other"
    result = CliRunner().invoke(main, ["update", str(path), str(half), "--region", "0:24,0:30"])
    assert result.exit_code == 0
    region = ["--region", "0:24,0:30", "--dry-run"]
    result = CliRunner().invoke(main, ["update", str(path), str(path), *region])
    assert result.exit_code == 0
    assert "kept values" in result.output


@pytest.mark.long
def test_in_memory_and_with_a_view_of_the_store():
    store = MemoryStore()
    for name in "ab":
        shardwrite.to_sharded_zarr(VALUES, store, name=name, **SIZES)
    views = [
        zarr.open_array(store, path="a", mode="r"),
        zarr.open_array(MemoryStore(store._store_dict), path="a"),
        zarr.open_array(LoggingStore(store), path="a"),
    ]
    for n, array in enumerate(views):
        shardwrite.write_region(da.from_array(array) + 1, store, ..., name="a")
        np.testing.assert_array_equal(views[0][...], VALUES + n + 1)
        assert shardwrite.plan_region(array, store, ..., name="b").staged_with is None
    with pytest.raises(SpecError, match="is to replace"):
        shardwrite.to_sharded_zarr(views[0], store, name="a", mode="w", **SIZES)
    assert {key for key in store._store_dict if "/c/" not in key} == {
        f"{name}/{leaf}" for name in "ab" for leaf in ("zarr.json", "shardwrite-receipt.json")
    } | {"zarr.json"}


@pytest.mark.long
def test_in_the_memory_of_fsspec():
    url = "memory://reads-what-it-changes/x.zarr"
    shardwrite.to_sharded_zarr(VALUES, url, **SIZES)
    for array in (
        zarr.open_array(url),
        zarr.open_array(FsspecStore.from_url("memory://reads-what-it-changes"), path="x.zarr"),
        shardwrite.from_sharded_zarr(url),
        delayed(dask.delayed(zarr.open_array)(url)),
    ):
        with pytest.raises(SpecError, match="the source reads the array that it is to replace"):
            shardwrite.to_sharded_zarr(array, url, mode="w", **SIZES)
    np.testing.assert_array_equal(zarr.open_array(url)[...], VALUES)


@pytest.mark.long
def test_a_file_of_hdf5_that_is_a_shard(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "x"
    shardwrite.to_sharded_zarr(VALUES, path, strategy="hdf5", shards=(24, 30), chunks=(4, 5))
    shard = path / "c/0/0"
    with h5py.File(shard) as file:
        (name,) = file
        call = functools.partial(shardwrite.write_region, store=path, region=..., strategy="hdf5")
        for x in (file[name], open_source(str(shard), dataset=name)):
            assert shardwrite.plan_region(x, path, ..., strategy="hdf5").staged_with
    call(open_source(str(shard), dataset=name))
    np.testing.assert_array_equal(zarr.open_array(path)[...], VALUES)


@pytest.mark.long
def test_an_array_beside_or_below_a_similar_name_is_no_reader(path, tmp_path):
    shardwrite.to_sharded_zarr(VALUES, tmp_path / "group" / "x2", **SIZES)
    shardwrite.write_region(da.from_zarr(tmp_path / "group" / "x2") + 1, path, ...)
    shardwrite.write_region(da.from_zarr(path), tmp_path / "group" / "x2", ...)
    np.testing.assert_array_equal(zarr.open_array(path.parent / "x2")[...], VALUES + 1)


@pytest.mark.long
def test_by_another_array(path):
    """Write the source to another path, and then that array into this one; the same call goes on."""
    for _ in range(2):  # the second time, it is as if the first was interrupted
        twice = (2 * da.from_zarr(path)).to_sharded_zarr(path.parent / "twice", **SIZES)
        shardwrite.from_sharded_zarr(twice.path).to_sharded_zarr(path, region=...)
        np.testing.assert_array_equal(zarr.open_array(path)[...], 2 * VALUES)


@pytest.mark.long
def test_large_graphs_are_looked_through_quickly(path):
    x = da.ones((10**5, 1), chunks=1, dtype="i4")
    block = np.ones((1, 1), "i4")
    keys = {("blocks", i, 0): (np.add, block, {"more": [i]}) for i in range(10**5)}
    made = da.Array(keys, "blocks", x.chunks, "i4")
    for source in (x + 1, x[::-1], made):
        begin = time.process_time()
        refuse_reading(source, seams.target_of(path).store, "x")
        assert time.process_time() - begin < 1.5  # 0.2 s, where nobody else works
    array = zarr.open_array(path)
    last = {**keys, ("blocks", 5, 0): (np.add, block, [[{"a": array}]])}
    with pytest.raises(SpecError, match=CHANGED):
        refuse_reading(da.Array(last, "blocks", x.chunks, "i4"), seams.target_of(path).store, "x")


def test_a_blockwise_layer_is_not_made_into_tasks(path):
    x = da.from_zarr(path) + 1
    with pytest.raises(SpecError, match=CHANGED):
        refuse_reading(x, seams.target_of(path).store, "x")
    assert not any(layer.is_materialized() for layer in list(x.dask.layers.values())[1:])


def test_a_plan_of_an_update_is_not_written_in_parts(path):
    x = np.ones((12, 30), "i4")
    plan = shardwrite.plan_region(x, path, slice(12))
    refused(lambda: shardwrite.prepare(x, path, plan), path.parent, "write it with write_region")
    assert shardwrite.write_region(x, path, slice(12)).n_shards == plan.n_shards

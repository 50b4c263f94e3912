"""Stores, groups and arrays of zarr-python in the place of a path: directories, memory and others."""

from __future__ import annotations

import errno
import gc
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import obstore
import pytest
import seams
import zarr
from helpers import Killed, Stop
from zarr.storage import FsspecStore, LocalStore, MemoryStore, ObjectStore

import shardwrite
from shardwrite import RunEndedError, SpecError
from shardwrite.stores import Capability, open_store
from shardwrite.stores.zarr_store import ZarrStore

VALUES = np.arange(20 * 30, dtype="i4").reshape(20, 30)
SIZES = {"shards": (10, 12), "chunks": (5, 4)}


@pytest.fixture
def x():
    return da.from_array(VALUES, chunks=(7, 30))


@pytest.fixture(params=["directory", "memory", "objects", "files"])
def store(request, tmp_path):
    """A new store of zarr-python that can be written and updated."""
    (tmp_path / "objects").mkdir()
    kinds = {
        "directory": lambda: LocalStore(tmp_path / "store"),
        "memory": MemoryStore,
        "objects": lambda: ObjectStore(obstore.store.MemoryStore()),
        "files": lambda: ObjectStore(obstore.store.LocalStore(tmp_path / "objects")),
    }
    with dask.config.set({"shardwrite.run-dir": str(tmp_path / "runs")}):
        yield kinds[request.param]()


def put(store, key, data):
    """Put an object as somebody else would."""
    objects = open_store(store).store
    with objects.transaction("none", "me.1") as transaction:
        writer = transaction.create(key)
        writer.write([data])
        writer.finish()


@pytest.mark.compat
def test_a_store_is_an_array(store, x):
    assert x.to_sharded_zarr(store, **SIZES).n_shards == 6
    np.testing.assert_array_equal(zarr.open_array(store)[...], VALUES)
    assert shardwrite.verify(store, deep=True, against=x).is_good
    np.testing.assert_array_equal(shardwrite.open_sharded(store)[3:5], VALUES[3:5])


def test_a_local_store_is_its_directory(tmp_path, x):
    x.to_sharded_zarr(LocalStore(tmp_path / "x.zarr"), **SIZES)
    assert (tmp_path / "x.zarr" / "shardwrite-receipt.json").is_file()
    assert shardwrite.open_sharded(tmp_path / "x.zarr").shape == VALUES.shape


@pytest.mark.compat
def test_a_group_and_a_name(store, x):
    root = zarr.create_group(store)
    inner = root.create_group("raw")
    x.to_sharded_zarr(inner, name="deep/x", **SIZES)
    np.testing.assert_array_equal(root["raw/deep/x"][...], VALUES)
    assert isinstance(root["raw/deep"], zarr.Group)
    assert shardwrite.verify(inner, name="deep/x").is_good
    np.testing.assert_array_equal(shardwrite.from_sharded_zarr(root, name="raw/deep/x"), VALUES)


def test_missing_groups_are_made_and_consolidated_ones_told(store, x):
    zarr.create_group(store)
    zarr.consolidate_metadata(store)
    x.to_sharded_zarr(store, name="a/b/x", **SIZES)
    group = zarr.open_group(store, use_consolidated=True)
    assert [name for name, _ in group.members(max_depth=None)] == ["a", "a/b", "a/b/x"]
    np.testing.assert_array_equal(group["a/b/x"][...], VALUES)


def test_a_group_without_a_name_is_not_replaced(store, x):
    group = zarr.create_group(store)
    with pytest.raises(SpecError, match="a group stands there"):
        x.to_sharded_zarr(group, mode="w", **SIZES)


def test_neither_inside_nor_around_another_array(store, x):
    x.to_sharded_zarr(store, name="a/x", **SIZES)
    with pytest.raises(SpecError, match="an array stands where its group should be"):
        x.to_sharded_zarr(store, name="a/x/y", **SIZES)
    put(store, "a/x/y/zarr.json", b"{}")
    with pytest.raises(SpecError, match="another array or group stands inside it"):
        x.to_sharded_zarr(store, name="a/x", mode="w", **SIZES)
    zarr.create_array(store, name="old", shape=4, dtype="i4", zarr_format=2)
    with pytest.raises(SpecError, match="Zarr v2"):
        x.to_sharded_zarr(store, name="old", mode="w", **SIZES)


def test_what_is_no_array_is_not_replaced(store, x):
    put(store, "x/notes.txt", b"mine")
    with pytest.raises(SpecError, match="something that is no Zarr array stands"):
        x.to_sharded_zarr(store, name="x", mode="w", **SIZES)


@pytest.mark.compat
def test_an_array_is_updated_and_replaced(store, x):
    x.to_sharded_zarr(store, **SIZES)
    array = zarr.open_array(store)
    with pytest.raises(SpecError, match="an array exists there"):
        (x + 1).to_sharded_zarr(store, **SIZES)
    (x[:4] + 1).to_sharded_zarr(array, region=np.s_[2:6])
    np.testing.assert_array_equal(array[2:6], VALUES[:4] + 1)
    (x[:3] + 3).to_sharded_zarr(array, region="append", strategy="append-only")
    np.testing.assert_array_equal(zarr.open_array(store)[20:], VALUES[:3] + 3)
    shardwrite.erase(array, np.s_[:10])
    np.testing.assert_array_equal(array[:10], 0)
    assert shardwrite.verify(store, deep=True).n_absent == 3
    (x + 2).to_sharded_zarr(array, mode="w", **SIZES)
    np.testing.assert_array_equal(zarr.open_array(store)[...], VALUES + 2)
    np.testing.assert_array_equal(shardwrite.open_sharded(array.store_path)[...], VALUES + 2)


def test_nothing_of_a_replaced_array_stays(store, x):
    x.to_sharded_zarr(store, name="x", shards=(5, 4), chunks=(5, 4))
    x[:10, :12].to_sharded_zarr(store, name="x", mode="w", **SIZES)
    array = shardwrite.open_sharded(store, "x")
    keys = {"c/0/0", "zarr.json", "shardwrite-receipt.json"}
    assert set(array.store.list_keys()) == keys


@pytest.mark.compat
def test_a_stream_into_an_array(store):
    group = zarr.create_group(store)
    shardwrite.create(group, (0, 30), "i4", name="x", **SIZES)
    with shardwrite.ShardWriter(group["x"]) as writer:
        for row in VALUES:
            writer.append(row)
            writer.flush()
    np.testing.assert_array_equal(zarr.open_group(store)["x"][...], VALUES)


@pytest.mark.compat
def test_an_array_without_shards(store, x):
    x.to_sharded_zarr(store, shards=None, chunks=(5, 4))
    (x[:4] + 1).to_sharded_zarr(store, region=np.s_[2:6])
    wanted = VALUES.copy()
    wanted[2:6] = VALUES[:4] + 1
    np.testing.assert_array_equal(zarr.open_array(store)[...], wanted)


@pytest.mark.compat
def test_many_arrays_at_once(store, x):
    shardwrite.store([x, x + 1], [store, store], names=["one", "two"], **SIZES)
    np.testing.assert_array_equal(zarr.open_group(store)["two"][...], VALUES + 1)


@pytest.mark.compat
def test_written_in_parts_and_later(store, x):
    shardwrite.prepare(x, store, shardwrite.plan(x, **SIZES), name="parts")
    for part in range(3):
        shardwrite.write_part(x, store, part, 3, name="parts")
    assert shardwrite.finalize(store, name="parts").n_shards == 6
    x.to_sharded_zarr(store, name="later", compute=False, **SIZES).compute()
    for name in ("parts", "later"):
        np.testing.assert_array_equal(zarr.open_group(store)[name][...], VALUES)


@pytest.mark.compat
def test_an_array_is_replaced_in_parts_by_one_with_empty_shards(store):
    old = np.full((8, 8), 7, dtype="i4")
    new = np.where(np.arange(64).reshape(8, 8) < 32, 0, old + 1)
    x, how = da.from_array(new, chunks=4), {"shards": 4, "chunks": 2}
    shardwrite.to_sharded_zarr(old, store, name="parts", **how)
    shardwrite.prepare(x, store, shardwrite.plan(x, **how), name="parts", mode="w")
    for part in range(2):
        shardwrite.write_part(x, store, part, 2, name="parts")
        assert shardwrite.verify(store, name="parts").is_good
    assert shardwrite.finalize(store, name="parts").n_shards == 2
    np.testing.assert_array_equal(zarr.open_array(store, path="parts")[...], new)


@pytest.mark.compat
def test_a_bad_shard_is_found_kept_and_repaired(store, x, tmp_path):
    x.to_sharded_zarr(store, name="x", **SIZES)
    put(store, "x/c/1/2", b"rubbish")
    repaired = shardwrite.repair(store, x, name="x", deep=True)
    assert [task.key for task in repaired.tasks] == ["c/1/2"]
    (copy,) = repaired.quarantined
    assert Path(copy).read_bytes() == b"rubbish"
    assert shardwrite.verify(store, name="x", deep=True, against=x).is_good


@pytest.mark.compat
def test_shards_with_holes_are_packed(store, x):
    x.to_sharded_zarr(store, **SIZES)
    for n in range(3):
        (x[:, :6] + n).to_sharded_zarr(store, region=np.s_[:, :6], strategy="append-only")
    done = shardwrite.compact(store)
    assert done.n_rewritten == 2
    assert done.unused_nbytes == 0
    np.testing.assert_array_equal(zarr.open_array(store)[:, :6], VALUES[:, :6] + 2)


def fail_after(n_shards):
    """A function for reports that ends the run once it has written some shards."""
    done = []

    def report(group):
        done.extend(group.shards)
        if len(done) >= n_shards:
            raise Stop

    return report


@pytest.mark.parametrize("mode", ["w-", "w"])
def test_a_run_that_failed_goes_on(store, x, mode):
    if mode == "w":
        da.zeros((20, 30), dtype="i4").to_sharded_zarr(store, name="x", **SIZES)
    x = x.rechunk((10, 30))
    call = {"name": "x", "mode": mode, "source_id": "it", "memory_limit": "10kB", **SIZES}
    with dask.config.set(scheduler="sync"):
        with pytest.raises(Stop):
            x.to_sharded_zarr(store, progress=fail_after(3), **call)
        if mode == "w" and isinstance(store, LocalStore):  # the old array stays until then
            assert not shardwrite.open_sharded(store, "x")[...].any()
        else:
            with pytest.raises(SpecError, match="no array"):
                shardwrite.open_sharded(store, "x")
            assert shardwrite.verify(store, name="x").n_pending
        result = x.to_sharded_zarr(store, **call)
        assert 3 <= result.n_resumed_shards < 6
        assert x.to_sharded_zarr(store, **call).seconds == 0, "nothing is written again"
    np.testing.assert_array_equal(zarr.open_group(store)["x"][...], VALUES)


def test_a_run_is_taken_back(store, x):
    call = {"name": "x", **SIZES}
    with dask.config.set(scheduler="sync"), pytest.raises(Stop):
        x.to_sharded_zarr(store, progress=fail_after(3), **call)
    with pytest.raises(shardwrite.JournalError, match="another plan was begun"):
        (x + 5).to_sharded_zarr(store, **call)
    assert (x + 5).to_sharded_zarr(store, restart=True, **call).n_resumed_shards == 0
    np.testing.assert_array_equal(zarr.open_group(store)["x"][...], VALUES + 5)


@pytest.mark.compat
def test_a_failed_update_is_given_up(store, x):
    x.to_sharded_zarr(store, name="x", **SIZES)
    with dask.config.set(scheduler="sync"), pytest.raises(Stop):
        (x + 1).to_sharded_zarr(store, name="x", region=..., progress=fail_after(3))
    assert shardwrite.abandon(store, name="x") == [((0, 20), (0, 30))]
    found = zarr.open_group(store)["x"][...]
    assert ((found == VALUES) | (found == VALUES + 1)).all()
    assert shardwrite.verify(store, name="x", deep=True).is_good


class Stopping(ZarrStore):
    """A store in which the removal of some object fails once."""

    left = (10**9,)

    def stop_after(self, n):
        self.left = [n]  # also of the stores below, which share it

    def remove_object(self, name):
        if isinstance(self.left, list):
            self.left[0] -= 1
            if self.left[0] == -1:
                raise Killed
        super().remove_object(name)


@pytest.mark.parametrize("n_left", range(9))
def test_the_removal_of_the_old_array_is_interrupted(x, n_left, tmp_path):
    """It begins when all new shards are there, goes on where it ended, and takes none of them."""
    memory = MemoryStore()
    store = Stopping(memory, {Capability.ATOMIC})
    x.to_sharded_zarr(store, name="x", shards=(5, 12), chunks=(5, 4))
    store.stop_after(n_left)
    new = (x + 1)[:10]
    call = {"name": "x", "mode": "w", "source_id": "new", **SIZES}
    with pytest.raises(Killed):
        new.to_sharded_zarr(store, **call)
    mark = "x/shardwrite-run.json"
    left = {name for name in memory._store_dict if name.startswith("x/")} - {mark}
    assert len(left) == 14 - n_left
    with pytest.raises(zarr.errors.BaseZarrError):
        zarr.open_array(memory, path="x", mode="r")
    new.to_sharded_zarr(store, **call)
    np.testing.assert_array_equal(zarr.open_array(memory, path="x")[...], VALUES[:10] + 1)
    left = {name for name in memory._store_dict if name.startswith("x/c/")}
    assert left == {"x/c/0/0", "x/c/0/1", "x/c/0/2"}


def test_a_removal_stops_when_the_run_is_over(x, tmp_path):
    """Another process has taken the run back in the meantime, and has begun to write anew."""
    memory = MemoryStore()
    store = Stopping(memory, {Capability.ATOMIC})
    x.to_sharded_zarr(store, name="x", **SIZES)
    store.stop_after(0)
    with pytest.raises(Killed):
        (x + 1)[:10].to_sharded_zarr(store, name="x", mode="w", source_id="new", **SIZES)
    run = seams.run_of(store, "x")
    before = set(memory._store_dict)

    def go_on():
        with run.alone() as check:
            os.rename(run.path, run.path.with_name(f"taken-{run.run}"))
            run.target.place._remove_all(run, check)

    with pytest.raises(RunEndedError):
        go_on()
    assert set(memory._store_dict) == before


@pytest.mark.long
def test_run_state_is_beside_no_other_array(tmp_path, x):
    """Two stores of one process never share it, even if one is made where the other was."""
    seen = set()
    for _ in range(5):
        for name in ("a/x", "b/x"):
            seen.add(seams.state_beside(MemoryStore(), name))
        gc.collect()
    assert len(seen) == 10
    store = MemoryStore()
    x.to_sharded_zarr(store, name="x", **SIZES)
    kept = seams.state_beside(store, "x").parent
    assert os.path.isdir(kept)
    del store
    gc.collect()
    assert not os.path.exists(kept)


def test_run_state_of_a_shared_store_is_found_by_other_processes(tmp_path):
    def beside(path, name, run_dir=tmp_path / "runs"):
        os.makedirs(tmp_path / path, exist_ok=True)
        store = ObjectStore(obstore.store.LocalStore(tmp_path / path))
        return seams.state_beside(store, name, run_dir)

    assert beside("one", "x") == beside("one", "x")
    others = [beside("one", "x"), beside("two", "x"), beside("one", "a/x"), beside("one", None)]
    assert len(set(others)) == 4
    assert {path.parent for path in others} == {tmp_path / "runs"}
    with dask.config.set({"shardwrite.run-dir": str(tmp_path / "runs")}):
        assert beside("one", "x", None) == others[0]


def test_where_run_state_cannot_lie(tmp_path, x):
    store = ObjectStore(obstore.store.LocalStore(tmp_path))
    with pytest.raises(SpecError, match="give a directory that all processes of the run see"):
        x.to_sharded_zarr(store, name="x", **SIZES)
    assert not list(tmp_path.iterdir())
    for wrong in (5, "", b""):
        with pytest.raises(SpecError, match="give the path of a directory"):
            x.to_sharded_zarr(store, name="x", run_dir=wrong, **SIZES)
    with pytest.raises(SpecError, match="is for arrays that lie in no directory"):
        x.to_sharded_zarr(tmp_path / "x.zarr", run_dir=tmp_path / "runs", **SIZES)


def test_two_stores_in_memory_are_two_sources(x):
    one, two = MemoryStore(), MemoryStore()
    x.to_sharded_zarr(one, **SIZES)
    (x + 1).to_sharded_zarr(two, **SIZES)
    a, b = shardwrite.from_sharded_zarr(one), shardwrite.from_sharded_zarr(two)
    assert a.name != b.name
    np.testing.assert_array_equal((b - a).compute(), 1)


def test_a_store_that_cannot_replace_atomically_is_written_but_not_updated(x):
    store = FsspecStore.from_url("memory://written")
    x.to_sharded_zarr(store, name="x", **SIZES)
    np.testing.assert_array_equal(zarr.open_array(store, path="x")[...], VALUES)
    with pytest.raises(SpecError, match=r"replace an object in one step.* \(ATOMIC\)"):
        (x + 1).to_sharded_zarr(store, name="x", region=...)
    (x + 1).to_sharded_zarr(store, name="x", mode="w", **SIZES)
    np.testing.assert_array_equal(zarr.open_array(store, path="x")[...], VALUES + 1)


def test_what_memory_cannot_do(x):
    store = MemoryStore()
    for durability in ("full", "batch"):
        with pytest.raises(SpecError, match=r"survives a power cut \(DURABLE\)"):
            x.to_sharded_zarr(store, durability=durability, **SIZES)
    with (
        dask.config.set(scheduler="processes"),
        pytest.raises(SpecError, match=r"by several processes \(SHARED\)"),
    ):
        x.to_sharded_zarr(store, **SIZES)
    assert store._store_dict == {}
    x.to_sharded_zarr(store, **SIZES)
    for strategy in (shardwrite.AppendOnly(in_place=True), shardwrite.FixedOrder(in_place=True)):
        with pytest.raises(SpecError, match=r"modify an object in place \(EDIT\)"):
            x[:3].to_sharded_zarr(store, region="append", strategy=strategy)


@pytest.mark.compat
def test_an_array_that_zarr_has_made_is_read_and_updated(x):
    store = MemoryStore()
    group = zarr.create_group(store)
    made = group.create_array("x", shape=(20, 30), dtype="i4", **SIZES)
    made[...] = VALUES
    made[:10, :12] = 0
    wanted = VALUES.copy()
    wanted[:10, :12] = 0
    for given, name in ((store, "x"), (group, "x"), (made, None), (made.store_path, None)):
        np.testing.assert_array_equal(shardwrite.open_sharded(given, name)[...], wanted)
    found = shardwrite.from_sharded_zarr(group, name="x")
    assert found.chunks == ((10, 10), (12, 12, 6))
    np.testing.assert_array_equal(found, wanted)
    x[5:6].to_sharded_zarr(made, region=np.s_[5:6])
    wanted[5] = VALUES[5]
    np.testing.assert_array_equal(made[...], wanted)


def test_what_is_not_in_a_store():
    store = MemoryStore()
    zarr.create_group(store)
    with pytest.raises(SpecError, match=r"there is no zarr\.json"):
        shardwrite.open_sharded(store, "missing")
    with pytest.raises(SpecError):
        shardwrite.open_sharded(store)
    with pytest.raises(SpecError, match=r"there is no zarr\.json"):
        shardwrite.verify(store, name="missing")


def test_a_read_only_store_is_not_written(tmp_path, x):
    x.to_sharded_zarr(tmp_path / "x.zarr", **SIZES)
    store = LocalStore(tmp_path / "x.zarr", read_only=True)
    assert shardwrite.verify(store).is_good
    with pytest.raises(SpecError, match="read-only"):
        x.to_sharded_zarr(store, mode="w", **SIZES)


@pytest.mark.parametrize("name", [3, "../x", "a//b"])
def test_a_name_in_a_group_is_checked(store, x, name):
    group = zarr.create_group(store).create_group("raw")
    with pytest.raises(SpecError, match="not a relative path of plain names"):
        x.to_sharded_zarr(group, name=name, **SIZES)


@pytest.mark.long
def test_the_old_array_is_removed_once(x):
    """Of two processes of a run, the second waits, and removes nothing that the first has written."""
    memory, began, may_go_on = MemoryStore(), threading.Event(), threading.Event()
    x.to_sharded_zarr(memory, name="x", **SIZES)
    begun = Stopping(memory, {Capability.ATOMIC})
    begun.stop_after(0)
    with pytest.raises(Killed):
        (x + 1)[:10].to_sharded_zarr(begun, name="x", mode="w", **SIZES)
    keys = {name.removeprefix("x/") for name in memory._store_dict if name.startswith("x/c/0/")}
    n_old = sum(name.startswith("x/c/") for name in memory._store_dict) - len(keys)

    class Slow(ZarrStore):
        removed = []  # noqa: RUF012 (of all stores below)

        def remove_object(self, name):
            began.set()
            assert may_go_on.wait(30)
            super().remove_object(name)
            self.removed.append(name)
            if len(self.removed) == n_old:  # a shard of a later update
                self.put_object("x/c/9/9", b"new")

    run = seams.run_of(Slow(memory, {Capability.ATOMIC}), "x")
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(run.clear, keys)
        assert began.wait(30)
        two = pool.submit(run.clear, keys)
        with pytest.raises(TimeoutError):
            two.result(0.3)
        may_go_on.set()
        one.result(30)
        two.result(30)
    assert len(Slow.removed) == n_old
    left = {name for name in memory._store_dict if name.startswith("x/c/")}
    assert left == {f"x/{key}" for key in (*keys, "c/9/9")}


# ---- what a run in a store must notice, since its state lies elsewhere


def interrupted(store, x, name="x", **more):
    """Begin to write an array, and fail in the midst of it."""
    with dask.config.set(scheduler="sync"), pytest.raises(Stop):
        x.rechunk((10, 30)).to_sharded_zarr(
            store, name=name, progress=fail_after(3), memory_limit="10kB", **SIZES, **more
        )


def test_nothing_is_written_into_an_array_that_is_begun(x):
    store = MemoryStore()
    interrupted(store, x, name="a")
    with pytest.raises(SpecError, match="an array stands where its group should be"):
        x.to_sharded_zarr(store, name="a/b", **SIZES)
    put(store, "a/b/zarr.json", b"{}")  # as somebody else might
    with pytest.raises(shardwrite.StoreError, match="another array or group stands inside it"):
        (x + 1).to_sharded_zarr(store, name="a", restart=True, **SIZES)
    assert "a/b/zarr.json" in store._store_dict
    del store._store_dict["a/b/zarr.json"]  # is moved away
    (x + 1).to_sharded_zarr(store, name="a", restart=True, **SIZES)
    np.testing.assert_array_equal(zarr.open_array(store, path="a")[...], VALUES + 1)


def test_a_store_that_was_emptied_is_noticed(x):
    store = MemoryStore()
    interrupted(store, x, source_id="it")
    store._store_dict.clear()
    with pytest.raises(shardwrite.JournalError, match="somebody has removed it"):
        x.to_sharded_zarr(store, name="x", source_id="it", **SIZES)
    x.to_sharded_zarr(store, name="x", source_id="it", restart=True, **SIZES)
    np.testing.assert_array_equal(zarr.open_array(store, path="x")[...], VALUES)


class Filling(MemoryStore):
    """A store without room, in which a put leaves what could still be written."""

    left = None  # bytes of the next object; None as long as there is room

    async def set(self, key, value, byte_range=None):
        if self.left is None:
            await super().set(key, value, byte_range)
            return
        await super().set(key, value[: self.left])
        raise OSError(errno.ENOSPC, "No space left on device")


def fill_at_mark(store, x, left, **call):
    """Begin a run, of whose mark only so many bytes find room."""
    store.left = left
    with pytest.raises(shardwrite.StoreError, match="No space") as error:
        x.to_sharded_zarr(store, **call)
    assert error.value.errno == errno.ENOSPC
    assert len(store._store_dict["x/shardwrite-run.json"].to_bytes()) == left
    store.left = None


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("left", [0, 9])
def test_a_mark_of_which_only_the_beginning_is_there(x, left, restart, tmp_path):
    store = Filling()
    call = {"name": "x", "run_dir": tmp_path / "runs", **SIZES}
    fill_at_mark(store, x, left, source_id="it", **call)
    new = {"source_id": "other", "restart": True} if restart else {"source_id": "it"}
    (x + restart).to_sharded_zarr(store, **call, **new)
    np.testing.assert_array_equal(zarr.open_array(store, path="x")[...], VALUES + restart)
    assert "x/shardwrite-run.json" not in store._store_dict


@pytest.mark.parametrize("left", [0, 9])
def test_a_run_with_such_a_mark_is_given_up(x, left, tmp_path):
    """Also after another one, which its mark did not keep from going on, since it says nothing."""
    store = Filling()
    call, others = ({"name": "x", "run_dir": tmp_path / name} for name in ("runs", "others"))
    x.to_sharded_zarr(store, **call, **SIZES)
    before = dict(store._store_dict)
    fill_at_mark(store, x + 1, left, mode="w", **call, **SIZES)
    shardwrite.abandon(store, **call)
    assert store._store_dict == before
    fill_at_mark(store, x + 1, left, mode="w", **call, **SIZES)
    (x + 2).to_sharded_zarr(store, mode="w", **others, **SIZES)
    shardwrite.abandon(store, **call)
    np.testing.assert_array_equal(zarr.open_array(store, path="x")[...], VALUES + 2)
    assert shardwrite.verify(store, name="x", deep=True).is_good


def test_another_run_in_the_same_place_is_noticed(x, tmp_path):
    (tmp_path / "data").mkdir()
    store = ObjectStore(obstore.store.LocalStore(tmp_path / "data"))
    one, two = tmp_path / "one", tmp_path / "two"
    interrupted(store, x, source_id="it", run_dir=one)
    with pytest.raises(
        SpecError, match=r"with the same run_dir or none.*remove shardwrite-run\.json"
    ):
        (x + 1).to_sharded_zarr(store, name="x", run_dir=two, mode="w", **SIZES)
    put(store, "x/shardwrite-run.json", b'{"run": "theirs"}')
    with pytest.raises(shardwrite.JournalError, match="run theirs writes there now"):
        x.to_sharded_zarr(store, name="x", source_id="it", run_dir=one, **SIZES)
    before = set(ZarrStore(store).list_keys())
    with pytest.raises(SpecError, match=r"run theirs writes .*/x, and"):
        x.to_sharded_zarr(store, name="x", restart=True, run_dir=one, **SIZES)
    assert set(ZarrStore(store).list_keys()) == before, "what is of others stays"


def test_an_array_whose_run_is_unknown(x, tmp_path):
    (tmp_path / "data").mkdir()
    store = ObjectStore(obstore.store.LocalStore(tmp_path / "data"))
    interrupted(store, x, run_dir=tmp_path / "runs", publish="first", source_id="it")
    assert shardwrite.verify(store, name="x", run_dir=tmp_path / "runs").n_pending
    for run_dir in (None, tmp_path / "others"):
        (told,) = shardwrite.verify(store, name="x", run_dir=run_dir).warnings
        assert "its state is not where this call looks for it" in told
    remedies = r"with the same run_dir or none.*remove shardwrite-run\.json"
    with pytest.raises(shardwrite.JournalError, match=remedies):
        x[:3].to_sharded_zarr(store, name="x", region="append", run_dir=tmp_path / "others")
    call = {"name": "x", "run_dir": tmp_path / "runs", "publish": "first", "source_id": "it"}
    other = {"name": "x", "mode": "w", "run_dir": tmp_path / "others", **SIZES}
    with pytest.raises(shardwrite.JournalError, match="with the same run_dir or none"):
        (x + 1).to_sharded_zarr(store, **other)
    x.to_sharded_zarr(store, **call, **SIZES)
    assert shardwrite.verify(store, name="x").warnings == ()
    np.testing.assert_array_equal(zarr.open_array(store, path="x")[...], VALUES)
    (x + 1).to_sharded_zarr(store, **other)
    np.testing.assert_array_equal(zarr.open_array(store, path="x")[...], VALUES + 1)


def test_an_array_whose_run_is_lost(x):
    store = MemoryStore()
    interrupted(store, x, publish="first")
    shutil.rmtree(seams.state_beside(store, "x"))
    with pytest.raises(
        shardwrite.JournalError, match=r"if its state is lost, remove shardwrite-run\.json"
    ):
        x.to_sharded_zarr(store, name="x", mode="w", **SIZES)
    for key in [key for key in store._store_dict if key.startswith("x/")]:
        del store._store_dict[key]
    x.to_sharded_zarr(store, name="x", mode="w", **SIZES)
    np.testing.assert_array_equal(zarr.open_array(store, path="x")[...], VALUES)


def test_another_process_begins_anew_where_the_state_of_a_run_is_lost(x, tmp_path):
    (tmp_path / "data").mkdir()
    store = ObjectStore(obstore.store.LocalStore(tmp_path / "data"))
    how = {"name": "x", "run_dir": tmp_path / "others", **SIZES}

    interrupted(store, x, run_dir=tmp_path / "lost")
    with pytest.raises(SpecError, match=r"remove shardwrite-run\.json and what that run has"):
        x.to_sharded_zarr(store, **how)
    shutil.rmtree(tmp_path / "data" / "x")
    x.to_sharded_zarr(store, **how)
    np.testing.assert_array_equal(zarr.open_array(store, path="x")[...], VALUES)

    shutil.rmtree(tmp_path / "data" / "x")
    interrupted(store, x, run_dir=tmp_path / "lost too", publish="first")
    with pytest.raises(shardwrite.JournalError, match="and write the array again"):
        x[:3].to_sharded_zarr(store, name="x", region="append", run_dir=tmp_path / "others")
    (tmp_path / "data" / "x" / "shardwrite-run.json").unlink()
    (x + 1).to_sharded_zarr(store, mode="w", **how)
    np.testing.assert_array_equal(zarr.open_array(store, path="x")[...], VALUES + 1)


def test_one_place_has_one_name(tmp_path, monkeypatch):
    memory = shardwrite.stores.MemoryStore()
    spelled = [(memory, "a/b"), (memory.at("a"), "b"), (memory.at("a/b"), None)]
    assert len({seams.state_beside(store, name) for store, name in spelled}) == 1
    (tmp_path / "data" / "a" / "b").mkdir(parents=True)
    local = [
        (ObjectStore(obstore.store.LocalStore(tmp_path / "data" / part)), name)
        for part, name in (("", "a/b"), ("a", "b"), ("a/b", None))
    ]
    with pytest.raises(SpecError, match="give a directory outside of it"):
        seams.target_of(local[0][0], "x", tmp_path / "data" / "runs")
    runs = tmp_path / "runs"
    assert len({seams.state_beside(store, name, runs) for store, name in local}) == 1
    monkeypatch.chdir(tmp_path / "data")
    here = ObjectStore(obstore.store.LocalStore("a"))
    there = seams.state_beside(here, "b", runs)
    monkeypatch.chdir(tmp_path / "data" / "a")
    assert seams.state_beside(ObjectStore(obstore.store.LocalStore("b")), None, runs) == there
    long = seams.state_beside(MemoryStore(), "\u00fc" * 110)
    assert len(os.fsencode(long.name)) < 200


def test_only_stores_in_memory_need_no_directory(x, tmp_path):
    class Own(LocalStore):
        """Who knows what it does?"""

    with pytest.raises(SpecError, match="give a directory that all processes of the run see"):
        x.to_sharded_zarr(Own(tmp_path / "own"), name="x", **SIZES)
    call = {"name": "x", "run_dir": tmp_path / "runs", "source_id": "it"}
    interrupted(Own(tmp_path / "own"), x, **call)
    result = x.to_sharded_zarr(Own(tmp_path / "own"), **call, **SIZES)
    assert result.n_resumed_shards >= 3


def test_stores_of_one_kind_are_not_one_place(x):
    stores = [MemoryStore(), MemoryStore()]
    results = shardwrite.store([x, x + 1], stores, **SIZES)
    assert results[0].path != results[1].path
    np.testing.assert_array_equal(zarr.open_array(stores[1])[...], VALUES + 1)
    with pytest.raises(SpecError, match="two arrays cannot go to one place"):
        shardwrite.store([x, x], [stores[0], stores[0]], mode="w", **SIZES)


def test_one_call_makes_no_array_inside_another(x, tmp_path):
    for store in (tmp_path / "h", MemoryStore()):
        for names in (["x", "a", "a/b"], ["a/b/c", "a"], [None, "b"]):
            with pytest.raises(SpecError, match=r"would lie inside the array .*this call makes"):
                shardwrite.store([x] * len(names), [store] * len(names), names=names, **SIZES)
        results = shardwrite.store([x, x], [store, store], names=["a", "ab"], **SIZES)
        assert all(result.n_shards for result in results)
    assert sorted(path.name for path in (tmp_path / "h").iterdir()) == ["a", "ab", "zarr.json"]


def test_what_needs_more_of_a_store_says_so_first(x):
    store = FsspecStore.from_url("memory://lacking")
    x.to_sharded_zarr(store, name="x", **SIZES)
    put(store, "x/c/1/2", b"rubbish")
    for more in ({"x": x}, {"scan": True}, {"salvage": True}):
        with pytest.raises(SpecError, match=r"\(ATOMIC\)"):
            shardwrite.repair(store, name="x", **more)
    memory = MemoryStore()
    with pytest.raises(SpecError, match="works only with directories"):
        shardwrite.prepare(x, memory, shardwrite.plan(x, **SIZES), name="x", stripe_count=1)
    x.to_sharded_zarr(memory, name="x", **SIZES)
    with (
        dask.config.set(scheduler="processes"),
        pytest.raises(SpecError, match=r"several processes \(SHARED\)"),
    ):
        shardwrite.verify(memory, name="x")

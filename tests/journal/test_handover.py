"""An array in a directory that is replaced: readers find the old one until the new one is whole."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from unittest import mock

import dask
import dask.array as da
import numpy as np
import pytest
import seams
import zarr
from distributed import Client, LocalCluster
from helpers import Killed

import shardwrite
from shardwrite import RunEndedError, SpecError, StoreError
from shardwrite.stores.posix import PosixStore

OLD = np.arange(400, dtype="u4").reshape(20, 20) + 1
NEW = OLD + 1000
NAMES = ("a", "g/b", "g/h/c")
LIMIT = 10_000
"""Bytes of memory with which each row of shards is a task."""


def write(path, values=NEW, **keywords):
    return da.from_array(values, chunks=7).to_sharded_zarr(
        path, **{"shards": 8, "chunks": 4, "mode": "w", "source_id": "new", **keywords}
    )


@pytest.fixture
def path(tmp_path):
    da.from_array(OLD, chunks=7).to_sharded_zarr(tmp_path / "x", shards=10, chunks=5)
    return tmp_path / "x"


@pytest.fixture(params=["by one call", "by two renames"])
def way(request):
    """How names are exchanged: some file systems cannot do it in one step."""
    if request.param == "by one call":
        yield
        return
    with mock.patch.object(*seams.step("exchange two names"), return_value=False):
        yield


def check(path, wanted):
    """The array is whole, and nothing lies beside it."""
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], wanted)
    assert shardwrite.verify(path, deep=True).is_good
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def stopped(path, **keywords):
    """A call that ends after six of nine shards, as by a kill."""
    n_done = []

    def progress(report):
        n_done.extend(report.shards)
        if len(n_done) == 6:
            raise Killed

    with dask.config.set(scheduler="sync"), pytest.raises(Killed):
        write(path, progress=progress, memory_limit=LIMIT, **keywords)


def killed_at(step, *, after=False):
    """Have a step end the process, before it or after it."""
    real = seams.real(step)

    def call(*arguments):
        if after:
            real(*arguments)
        raise Killed

    return mock.patch.object(*seams.step(step), side_effect=call)


def test_readers_find_the_old_array_until_the_end(path, way):
    seen = []
    write(path, progress=lambda _: seen.append(zarr.open_array(path, mode="r")[...]))
    assert seen
    assert all((values == OLD).all() for values in seen)
    check(path, NEW)


@pytest.mark.parametrize("level", ["full", "none"])
@pytest.mark.parametrize("then", ["again", "abandon", "another", "restart"])
def test_interrupted_amid_its_shards(path, way, level, then):
    inode = os.stat(path / "c/0/0").st_ino
    stopped(path, durability=level)
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], OLD)
    assert len(seams.done_shards(path)) == 6
    if then == "again":
        assert write(path, durability=level, memory_limit=LIMIT).n_resumed_shards == 6
    elif then == "abandon":
        shardwrite.abandon(path)
        assert os.stat(path / "c/0/0").st_ino == inode
    elif then == "another":
        with pytest.raises(shardwrite.JournalError, match="another plan was begun"):
            write(path, chunks=2)
        write(path, chunks=2, restart=True)
    else:
        assert write(path, durability=level, restart=True).n_resumed_shards == 0
    check(path, OLD if then == "abandon" else NEW)


@pytest.mark.parametrize("level", ["full", "none"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("then", ["again", "abandon", "restart"])
def test_ended_at_the_exchange(path, level, after, then):
    with killed_at("exchange two names", after=after), pytest.raises(Killed):
        write(path, durability=level)
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], NEW if after else OLD)
    if then == "abandon":
        with contextlib.suppress(SpecError) if after else contextlib.nullcontext():
            shardwrite.abandon(path)
        write(path, OLD + 5, restart=True) if after else None
        check(path, OLD + 5 if after else OLD)
        return
    write(path, durability=level, restart=then == "restart")
    check(path, NEW)


@pytest.mark.parametrize("then", ["again", "abandon"])
def test_ended_between_two_renames(path, then):
    rename = os.rename

    def dying(source, to, **keywords):
        if str(to) == str(path):
            raise Killed
        rename(source, to, **keywords)

    with (
        mock.patch.object(*seams.step("exchange two names"), return_value=False),
        mock.patch.object(os, "rename", dying),
        pytest.raises(Killed),
    ):
        write(path)
    assert not path.exists()
    if then == "again":
        write(path)
    else:
        shardwrite.abandon(path)
    check(path, NEW if then == "again" else OLD)


def test_something_is_written_where_the_old_array_was(path):
    """It is not touched, and the old array stays where it is kept."""
    rename = os.rename

    def late(source, to, **keywords):
        if str(to) == str(path):
            path.mkdir()
            (path / "notes.txt").write_text("mine")
        rename(source, to, **keywords)

    with (
        mock.patch.object(*seams.step("exchange two names"), return_value=False),
        mock.patch.object(os, "rename", late),
        pytest.raises(StoreError),
    ):
        write(path)
    with pytest.raises(StoreError, match="something was written there meanwhile"):
        shardwrite.abandon(path)
    assert (path / "notes.txt").read_text() == "mine"
    shutil.rmtree(path)
    shardwrite.abandon(path)
    check(path, OLD)


@pytest.mark.parametrize("then", ["again", "abandon"])
def test_a_process_that_was_frozen_before_the_exchange(path, way, then):
    """It wakes up when another process has finished its run, or has given it up."""

    def others():
        with seams.leases_run_out(), seams.claims_run_out():
            if then == "again":
                write(path)
            else:
                shardwrite.abandon(path)
        check(path, NEW if then == "again" else OLD)

    with seams.once_before("exchange two names", others):
        if then == "again":
            write(path)
        else:
            with pytest.raises(RunEndedError):
                write(path)
    check(path, NEW if then == "again" else OLD)


def test_a_process_that_was_frozen_wakes_up_before_the_end_of_the_other(path):
    """Both names are there, and the new array must not change them once more."""
    real, calls = seams.real("exchange two names"), []

    def exchange(one, other):
        calls.append(other)
        if len(calls) == 1:
            with seams.leases_run_out(), seams.claims_run_out():
                write(path)
            return real(one, other)
        done = real(one, other)
        with pytest.raises(FileNotFoundError):  # what the frozen one would do now
            real(one, calls[0])
        return done

    with mock.patch.object(*seams.step("exchange two names"), exchange):
        write(path)
    assert len(calls) == 2
    check(path, NEW)


@pytest.mark.parametrize("is_late", [False, True], ids=["before", "after"])
def test_a_task_is_late(path, is_late):
    """It does not make the directory of the new array again, which the next call would look at."""
    real = seams.real("exchange two names")

    def exchange(one, other):
        if is_late:
            real(one, other)
        for name in (other.with_name("array-new"), other.with_name("array-other")):
            with (
                pytest.raises(StoreError, match="No such file"),
                PosixStore(name).transaction("none", "late.0") as transaction,
            ):
                transaction.create("c/0/0")
            assert not name.exists()
        raise Killed

    with mock.patch.object(*seams.step("exchange two names"), exchange), pytest.raises(Killed):
        write(path)
    write(path)
    check(path, NEW)


def test_something_else_is_put_there_meanwhile(path, way):
    """It is not taken for the array that may be replaced."""

    def progress(_):
        if zarr.open(path, mode="r").ndim:
            shutil.rmtree(path)
            zarr.open_array(path / "in", mode="w", shape=4, dtype="u1")[...] = 7
            zarr.open_group(path, mode="a")
            raise Killed

    with pytest.raises(Killed), dask.config.set(scheduler="sync"):
        write(path, progress=progress)
    for _ in range(2):
        with pytest.raises(SpecError, match="a group stands there"):
            write(path)
        assert (zarr.open_array(path / "in", mode="r")[...] == 7).all()
    path.rename(path.with_name("y"))
    write(path)
    shutil.rmtree(path.with_name("y"))
    check(path, NEW)


def test_two_processes_write_the_same(path):
    """The second one finds shards where the first one builds them."""
    stopped(path)
    seen = []
    write(path, progress=lambda _: seen.append(seams.built_at(path)))
    assert {place.name for place in seen} == {"array-new"}
    check(path, NEW)


def test_what_is_seen_meanwhile(path):
    stopped(path)
    report = shardwrite.verify(path, deep=True)
    assert report.is_good
    assert report.n_shards == 4
    assert not report.warnings
    np.testing.assert_array_equal(shardwrite.open_sharded(path)[:, :], OLD)
    assert shardwrite.census(path).states.size == 4
    with pytest.raises(shardwrite.JournalError, match=r"the run that replaces .* may do so"):
        shardwrite.reshard(path, path.with_name("y"), shards=5, chunks=5)
    shardwrite.abandon(path)


def test_the_old_array_is_not_updated_meanwhile(path):
    stopped(path)
    with pytest.raises(shardwrite.JournalError, match="the run that replaces"):
        da.zeros((8, 8), dtype="u4").to_sharded_zarr(path, region=np.s_[:8, :8])
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], OLD)
    shardwrite.abandon(path)


def test_the_old_array_is_removed_by_hand_meanwhile(path, way):
    stopped(path)
    shutil.rmtree(path)
    assert write(path, memory_limit=LIMIT).n_resumed_shards == 6
    check(path, NEW)


def test_the_new_array_has_the_rights_of_the_old_one(path):
    path.chmod(0o2750)
    write(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o2750


def test_published_first_the_new_array_is_there_from_the_start(path):
    stopped(path, publish="first")
    assert not (zarr.open_array(path, mode="r")[...] == OLD).any()
    shardwrite.abandon(path)
    check(path, OLD)


def test_an_empty_directory_is_no_array_that_could_stay(tmp_path):
    (tmp_path / "x").mkdir()
    write(tmp_path / "x")
    check(tmp_path / "x", NEW)


@pytest.mark.parametrize("then", ["again", "abandon"])
def test_several_arrays_of_one_call(tmp_path, then):
    """None of them is replaced before all are whole."""

    def store(values, **keywords):
        arrays = [da.from_array(values + n, chunks=7) for n in range(len(NAMES))]
        root = [tmp_path / "r"] * len(NAMES)
        shardwrite.store(arrays, root, names=list(NAMES), shards=8, chunks=4, **keywords)

    def seen(values):
        for n, name in enumerate(NAMES):
            found = zarr.open_array(tmp_path / "r", path=name, mode="r")[...]
            np.testing.assert_array_equal(found, values + n)

    def progress(report):
        seen(OLD)
        if report.entry.output == 2:
            raise Killed

    store(OLD)
    with pytest.raises(Killed):
        store(NEW, mode="w", source_id="new", progress=progress)
    seen(OLD)
    if then == "again":
        store(NEW, mode="w", source_id="new")
    else:
        shardwrite.abandon(tmp_path / "r" / "a")
    seen(NEW if then == "again" else OLD)
    assert [entry.name for entry in tmp_path.iterdir()] == ["r"]
    assert not list((tmp_path / "r").rglob("*.shardwrite"))


def store_several(root, values=NEW, names=NAMES, **keywords):
    """Write arrays of one group by one call; they differ by their numbers."""
    arrays = [da.from_array(values + n, chunks=7) for n in range(len(names))]
    how = {"mode": "w", "source_id": str(values[0, 0]), "shards": 8, "chunks": 4, **keywords}
    return shardwrite.store(arrays, [root] * len(names), names=list(names), **how)


def check_several(root, values=NEW, names=NAMES):
    """They have these values, the group lists them as they are, and no run has left anything."""
    listed = json.loads((root / "zarr.json").read_text())["consolidated_metadata"]["metadata"]
    for n, name in enumerate(names):
        np.testing.assert_array_equal(zarr.open_array(root, path=name, mode="r")[...], values + n)
        assert listed[name] == json.loads((root / name / "zarr.json").read_text())
    assert [entry.name for entry in root.parent.iterdir()] == [root.name]
    assert not list(root.rglob("*.shardwrite"))


@pytest.fixture
def several(tmp_path):
    """A group with consolidated metadata, and arrays that were written by one call."""
    store_several(tmp_path / "r", OLD, mode="w-")
    with pytest.warns(UserWarning, match="Consolidated"):
        zarr.consolidate_metadata(tmp_path / "r")
    return tmp_path / "r"


def kill_at_exchange(n, *, after):
    """Have the n-th exchange of two names end the process, before it or after it."""
    real, n_calls = seams.real("exchange two names"), iter(range(9))

    def exchange(one, other):
        is_last = next(n_calls) == n
        if is_last and not after:
            raise Killed
        done = real(one, other)
        if is_last:
            raise Killed
        return done

    return mock.patch.object(*seams.step("exchange two names"), exchange)


@pytest.mark.parametrize("level", ["full", "none"])
@pytest.mark.parametrize("n", range(3))
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("then", ["again", "abandon", "another", "restart"])
def test_several_arrays_ended_amid_the_exchanges(several, level, n, after, then):
    """Until one of them has its name, giving up keeps all. Then, all others get theirs."""
    with kill_at_exchange(n, after=after), pytest.raises(Killed):
        store_several(several, durability=level)
    is_committed, wanted = n > 0 or after, NEW
    if then == "again":
        store_several(several, durability=level)
    elif then == "abandon":
        shardwrite.abandon(several / NAMES[2])
        wanted = NEW if is_committed else OLD
    elif then == "another":
        wanted = OLD + 5
        if not is_committed or level == "none":
            with pytest.raises(shardwrite.JournalError, match="another plan was begun"):
                store_several(several, wanted, durability=level)
        store_several(several, wanted, durability=level, restart=True)
    else:
        store_several(several, durability=level, restart=True)
    check_several(several, wanted)


@pytest.mark.parametrize("then", ["again", "abandon"])
@pytest.mark.parametrize("n", range(3))
def test_several_arrays_ended_between_two_renames(several, n, then):
    """One has no name. Only if it is the first one, giving up puts it back."""
    rename = os.rename

    def dying(source, to, **keywords):
        if str(to) == str(several / NAMES[n]):
            raise Killed
        rename(source, to, **keywords)

    with (
        mock.patch.object(*seams.step("exchange two names"), return_value=False),
        mock.patch.object(os, "rename", dying),
        pytest.raises(Killed),
    ):
        store_several(several)
    assert not (several / NAMES[n]).exists()
    if then == "again":
        store_several(several)
    else:
        shardwrite.abandon(several / NAMES[0])
    check_several(several, NEW if n or then == "again" else OLD)


@pytest.mark.parametrize("then", ["again", "abandon"])
@pytest.mark.parametrize("n", range(2))
def test_several_arrays_of_which_some_are_new(several, n, then):
    """Those are published before the others change their names, or are gone again."""
    names = (NAMES[0], "new/d", NAMES[1])
    with kill_at_exchange(n, after=False), pytest.raises(Killed):
        store_several(several, names=names)
    if then == "again":
        store_several(several, names=names)
    else:
        shardwrite.abandon(several / NAMES[0])
    if n or then == "again":
        check_several(several, names=names)
        return
    check_several(several, OLD)
    assert not (several / "new" / "d").exists()


@pytest.mark.parametrize("then", ["again", "abandon"])
def test_some_arrays_of_an_interrupted_call(several, then):
    """A call for two of three arrays replaces these; the third is left to another one."""

    def progress(_):
        raise Killed

    with pytest.raises(Killed), dask.config.set(scheduler="sync"):
        store_several(several, progress=progress)
    with kill_at_exchange(1, after=False), pytest.raises(Killed):
        store_several(several, names=NAMES[:2])
    if then == "again":
        store_several(several)
        check_several(several)
        return
    shardwrite.abandon(several / NAMES[2])
    check_several(several, names=NAMES[:2])
    np.testing.assert_array_equal(zarr.open_array(several / NAMES[2], mode="r")[...], OLD + 2)


def test_what_an_interrupted_call_tells_before_it_is_settled(several):
    with kill_at_exchange(1, after=True), pytest.raises(Killed):
        store_several(several)
    assert shardwrite.verify(several / NAMES[2], deep=True).is_good
    np.testing.assert_array_equal(shardwrite.open_sharded(several / NAMES[2])[:, :], OLD + 2)
    da.zeros((8, 8), dtype="u4").to_sharded_zarr(several / NAMES[2], region=np.s_[:8, :8])
    found = zarr.open_array(several / NAMES[2], mode="r")[...]
    np.testing.assert_array_equal(found[8:], NEW[8:] + 2)
    np.testing.assert_array_equal(zarr.open_array(several / NAMES[1], mode="r")[...], NEW + 1)


def test_a_power_cut_amid_exchanges_without_durability(several):
    """An array that may lack shards does not get its name."""
    with kill_at_exchange(0, after=True), pytest.raises(Killed):
        store_several(several, durability="none")
    with seams.after_restart("later"):
        shardwrite.abandon(several / NAMES[0])
    for n, name in enumerate(NAMES):
        found = zarr.open_array(several, path=name, mode="r")[...]
        np.testing.assert_array_equal(found, (OLD if n else NEW) + n)


@pytest.mark.parametrize("level", ["full", "none"])
@pytest.mark.parametrize("is_replaced", [False, True], ids=["removed", "replaced"])
def test_the_new_array_is_gone_before_the_run_has_ended(path, level, is_replaced):
    """What lies in the directory of the run is the old array then, and is not taken for it."""
    write(path, OLD, mode="w", source_id="old", durability=level)
    with kill_at_exchange(0, after=True), pytest.raises(Killed):
        write(path, durability=level)
    shutil.rmtree(path)
    if is_replaced:
        zarr.create_array(path, shape=(3,), dtype="u1")[...] = 7
    with pytest.raises(shardwrite.JournalError, match=r"was moved away from .* restart=True"):
        write(path, durability=level)
    write(path, durability=level, restart=True)
    check(path, NEW)


@pytest.mark.parametrize("then", ["again", "abandon"])
def test_a_group_is_removed_amid_the_exchanges(several, then):
    with kill_at_exchange(0, after=True), pytest.raises(Killed):
        store_several(several)
    shutil.rmtree(several / "g")
    if then == "abandon":
        shardwrite.abandon(several / NAMES[0])
        np.testing.assert_array_equal(zarr.open_array(several, path=NAMES[0])[...], NEW)
        assert not (several / "g").exists()
    store_several(several)
    check_several(several)


def test_another_process_joins_amid_the_exchanges(several):
    """Its tasks find no array any more that they could change."""
    real, seen = seams.real("exchange two names"), []

    def exchange(one, other):
        run = seams.run_of(several / NAMES[2]) if not seen else None
        if run is not None:
            run.written_by("other", "full").make_room(set())
            seen.append((run.is_closed, run.place.path.exists()))
        return real(one, other)

    with mock.patch.object(*seams.step("exchange two names"), exchange):
        store_several(several)
    assert seen == [(True, True)]
    check_several(several)


def test_a_group_is_put_there_right_before_the_exchange(path, way):
    """It goes back, and nothing of it is removed."""
    patched = seams.step("exchange two names")
    before = getattr(*patched)

    def exchange(one, other):
        if not path.with_name("moved").exists():
            path.rename(path.with_name("moved"))
            zarr.open_group(path, mode="w", attributes={"mine": 1})
        return before(one, other)

    with mock.patch.object(*patched, exchange), pytest.raises(StoreError, match="is no array"):
        write(path)
    assert dict(zarr.open_group(path, mode="r").attrs) == {"mine": 1}
    with pytest.raises(SpecError, match="a group stands there"):
        write(path)
    shutil.rmtree(path)
    path.with_name("moved").rename(path)
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], OLD)
    write(path)
    check(path, NEW)


def test_parts(path):
    """No rank of a job array changes the old array; `finalize` exchanges it."""
    x = da.from_array(NEW, chunks=8)
    plan = shardwrite.plan(x, shards=8, chunks=4, source_id="new")
    shardwrite.prepare(x, path, plan=plan, mode="w")
    for index in range(3):
        shardwrite.write_part(x, path, index, 3, source_id="new")
        np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], OLD)
    shardwrite.finalize(path, n_parts=3)
    check(path, NEW)


def test_parts_after_a_prepare_that_was_killed(path):
    """It had begun the run, but not made the directory of the new array."""
    path.chmod(0o2750)
    x = da.from_array(NEW, chunks=8)
    plan = shardwrite.plan(x, shards=8, chunks=4, source_id="new")
    with killed_at("make the new array aside"), pytest.raises(Killed):
        shardwrite.prepare(x, path, plan=plan, mode="w")
    for index in range(2):
        shardwrite.write_part(x, path, index, 2, source_id="new")
    shardwrite.finalize(path, n_parts=2)
    assert stat.S_IMODE(path.stat().st_mode) == 0o2750
    check(path, NEW)


def test_a_graph_that_is_computed_later(path):
    later = write(path, compute=False)
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], OLD)
    dask.compute(later)
    check(path, NEW)


@pytest.mark.long
def test_two_worker_processes(path):
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster),
    ):
        write(path)
    check(path, NEW)

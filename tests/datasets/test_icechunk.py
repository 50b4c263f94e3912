"""A session of Icechunk is the target of a dataset: one commit, and nothing is seen before."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import dask
import dask.array as da
import distributed
import numpy as np
import pytest

import shardwrite
from shardwrite import ConflictError, SpecError

xr = pytest.importorskip("xarray")
icechunk = pytest.importorskip("icechunk", reason="icechunk is not installed")

PAGE = Path(__file__).parents[2] / "docs/howto/xarray.md"
SIZES = {"shards": {"time": 8}, "chunks": {"time": 4}}
HOURS = np.datetime64("2000-01-01", "ns") + np.arange(99) * np.timedelta64(1, "h")


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr and xarray tell much about types and metadata
        yield


@pytest.fixture
def repository():
    return icechunk.Repository.create(icechunk.in_memory_storage())


def steps(start, stop, offset=0, **attrs):
    values = np.arange(start, stop)[:, None] * np.ones((1, 6)) + offset
    packed = {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -9}
    return xr.Dataset(
        {
            "v": xr.Variable(("time", "x"), da.from_array(values, chunks=(3, 6)), {}, packed),
            "name": ("time", np.array([f"step {i}" for i in range(start, stop)], object)),
            "mask": ("x", np.ones(6, "u1")),
        },
        {"time": HOURS[start:stop]},
        {"title": "it", **attrs},
    )


def check(repository, wanted, **how):
    store = repository.readonly_session("main").store
    with xr.open_zarr(store, consolidated=False, **how) as found:
        xr.testing.assert_identical(found.load(), wanted.compute())


def messages(repository):
    return [snapshot.message for snapshot in repository.ancestry(branch="main")][:-1]


def write(repository, ds, **how):
    return ds.shardwrite.to_zarr(repository.writable_session("main"), **how)


@pytest.mark.long
def test_each_call_is_one_commit(repository):
    result = write(repository, steps(0, 10), append_dim="time", **SIZES)
    assert result.snapshot == repository.lookup_branch("main")
    assert {each.snapshot for each in result.variables.values()} == {result.snapshot}
    assert f"snapshot   {result.snapshot}" in str(result)
    result = write(repository, steps(10, 17, run=2), append_dim="time", message="night")
    assert result.snapshot == repository.lookup_branch("main")
    check(repository, steps(0, 17, run=2))
    part = steps(2, 5, offset=50)[["v"]].drop_vars("time")
    write(repository, part, region={"time": slice(2, 5)}, message="part")
    wanted = steps(0, 17, run=2).compute()
    wanted["v"][2:5] = part["v"].values
    check(repository, wanted)
    said = messages(repository)
    assert said[:2] == ["part", "night"]
    assert said[2].startswith("v, name, mask, time: 7 shards, written by shardwrite")
    shards = shardwrite.open_sharded(repository.readonly_session("main"), "v").metadata.grid.shards
    assert shards == (8, 6)


def test_plans_leave_a_session_as_it_is(repository):
    write(repository, steps(0, 10), **SIZES)
    session = repository.writable_session("main")
    plan = shardwrite.plan_dataset(steps(10, 14), session, append_dim="time")
    assert plan.variables["v"].array_region.bounds == ((10, 14), (0, 6))
    assert not session.has_uncommitted_changes
    check(repository, steps(0, 10))


@pytest.mark.long
def test_a_tree_and_groups(repository):
    def tree(start, stop):
        return xr.DataTree.from_dict({"/a": steps(start, stop), "/b/c": steps(start, stop)[["v"]]})

    for start, stop in ((0, 9), (9, 15)):
        write(repository, tree(start, stop), append_dim="time", **SIZES)
        write(repository, steps(start, stop), append_dim="time", group="deep/er", **SIZES)
    check(repository, steps(0, 15), group="a")
    check(repository, steps(0, 15)[["v"]], group="b/c")
    check(repository, steps(0, 15), group="deep/er")
    assert len(messages(repository)) == 4


@pytest.mark.long
def test_what_exists_is_refused_and_replaced(repository):
    write(repository, steps(0, 10))
    with pytest.raises(SpecError, match="exists there"):
        write(repository, steps(0, 10, offset=1))
    with pytest.raises(SpecError, match="would go back or repeat"):
        write(repository, steps(0, 10), append_dim="time")
    write(repository, steps(0, 10, offset=1), mode="w")
    check(repository, steps(0, 10, offset=1))
    assert len(messages(repository)) == 2


@pytest.mark.long
def test_without_steps_nothing_is_committed(repository):
    write(repository, steps(0, 10), append_dim="time")
    session = repository.writable_session("main")
    nothing = steps(10, 10).drop_vars("mask")
    assert nothing.shardwrite.to_zarr(session, append_dim="time", mode="a-").snapshot is None
    assert len(messages(repository)) == 1
    steps(10, 12).shardwrite.to_zarr(session, append_dim="time")
    check(repository, steps(0, 12))


def test_new_attributes_without_steps_are_a_commit(repository):
    write(repository, steps(0, 10), append_dim="time")
    result = write(repository, steps(10, 10, run=2).drop_vars("mask"), append_dim="time", mode="a-")
    assert result.variables == {}
    assert result.snapshot == repository.lookup_branch("main")
    assert f"snapshot   {result.snapshot}" in str(result)
    assert result.to_dict()["snapshot"] == result.snapshot
    assert messages(repository)[0].startswith("attributes of groups, written by shardwrite")
    check(repository, steps(0, 10, run=2))
    session = repository.writable_session("main")
    nothing = steps(10, 10, run=3).drop_vars("mask")
    result = nothing.shardwrite.to_zarr(session, append_dim="time", mode="a-", message="third")
    assert messages(repository)[0] == "third"
    assert result.snapshot == repository.lookup_branch("main")


@pytest.mark.parametrize("kind", ["readonly", "writable"])
def test_the_engine_opens_a_session(repository, kind):
    write(repository, steps(0, 20), encoding={"v": {"shards": (8, 6), "chunks": (4, 6)}})
    write(repository, steps(0, 5), group="inner")
    session = getattr(repository, f"{kind}_session")("main")
    for given in (session, session.store):
        with xr.open_dataset(given, engine="shardwrite", chunks={}) as found:
            assert found["v"].chunks == ((8, 8, 4), (6,))
            xr.testing.assert_identical(found.load(), steps(0, 20).compute())
    with xr.open_dataset(session, engine="shardwrite", group="inner") as found:
        xr.testing.assert_identical(found.load(), steps(0, 5).compute())


def test_values_of_a_snapshot_are_named_by_it(repository, tmp_path):
    values = np.arange(600_000.0).reshape(600, 1000)
    write(repository, xr.Dataset({"v": (("t", "x"), values)}))
    first = repository.lookup_branch("main")
    write(repository, xr.Dataset({"v": (("t", "x"), values + 1)}), mode="w")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for _ in range(2):
            session = repository.readonly_session(snapshot_id=first)
            with xr.open_dataset(session, engine="shardwrite") as lazy:
                lazy.shardwrite.to_zarr(tmp_path / "x.zarr")
        with xr.open_zarr(tmp_path / "x.zarr") as found:
            np.testing.assert_array_equal(found["v"], values)
        session = repository.readonly_session("main")
        lazy = xr.open_dataset(session, engine="shardwrite")
        with pytest.raises(SpecError, match="an array exists there, of another run"):
            lazy.shardwrite.to_zarr(tmp_path / "x.zarr")


@pytest.mark.long
def test_a_task_that_fails_leaves_the_session_as_it_was(repository):
    def fail(block):
        raise OSError("not this time")

    write(repository, steps(0, 10), append_dim="time")
    session, bad = repository.writable_session("main"), steps(10, 14)
    bad["v"] = bad["v"].copy(data=bad["v"].data.map_blocks(fail, dtype="f8", meta=np.empty((0, 0))))
    with pytest.raises(OSError, match="not this time") as error:
        bad.shardwrite.to_zarr(session, append_dim="time")
    assert any("Nothing was committed" in note for note in error.value.__notes__)
    assert not session.has_uncommitted_changes
    assert repository.list_branches() == {"main"}  # none is made for the time of a call
    steps(10, 14).shardwrite.to_zarr(session, append_dim="time")
    check(repository, steps(0, 14))


@pytest.mark.long
def test_another_commit_meanwhile_is_a_conflict(repository):
    write(repository, steps(0, 10), append_dim="time")
    session = repository.writable_session("main")
    write(repository, steps(10, 12), append_dim="time")
    with pytest.raises(ConflictError, match="another writer has committed"):
        steps(10, 14).shardwrite.to_zarr(session, append_dim="time")
    check(repository, steps(0, 12))


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"consolidated": True}, "consolidated=True: .*Icechunk lists arrays itself; leave it out"),
        ({"compute": False}, "compute=False: does not go with a session"),
        ({"keep_report": True}, "keep_report=True: does not go with a session"),
        ({"message": ""}, "message='': no message"),
    ],
)
def test_what_does_not_go_with_a_session(repository, how, told):
    session = repository.writable_session("main")
    with pytest.raises(SpecError, match=told):
        steps(0, 3).shardwrite.to_zarr(session, **how)
    assert not session.has_uncommitted_changes


def test_what_cannot_be_committed_is_refused(repository, tmp_path):
    session = repository.writable_session("main")
    with pytest.raises(
        SpecError, match=r"no session that can be committed; give to_zarr a session"
    ):
        steps(0, 3).shardwrite.to_zarr(session.store)
    with pytest.raises(SpecError, match="a session that only reads"):
        steps(0, 3).shardwrite.to_zarr(repository.readonly_session("main"))
    with pytest.raises(SpecError, match="message='x': is for commits"):
        steps(0, 3).shardwrite.to_zarr(tmp_path / "x.zarr", message="x")


@pytest.mark.long
def test_two_workers_write_it(tmp_path):
    """Each task has a fork of its own; they are merged for one commit."""
    storage = icechunk.local_filesystem_storage(str(tmp_path / "repository"))
    repository = icechunk.Repository.create(storage)
    with distributed.Client(n_workers=2, threads_per_worker=1, dashboard_address=None):
        write(repository, steps(0, 40), append_dim="time", **SIZES)
        write(repository, steps(40, 61), append_dim="time")
    check(repository, steps(0, 61))
    assert len(messages(repository)) == 2


def test_the_page():
    (example,) = re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    hours = {"time": {"units": "hours since 2000-01-01"}}
    ds = steps(0, 96)[["v"]]
    exec(example, {"ds": ds, "hours": hours, "xr": xr, "shardwrite": shardwrite})


@pytest.mark.compat
def test_it_is_what_xarray_stores_there(repository):
    """Codecs and sizes are ours; values, encoding and attributes are the same."""
    other = icechunk.Repository.create(icechunk.in_memory_storage())
    session = other.writable_session("main")
    steps(0, 10).compute().to_zarr(session.store, zarr_format=3, consolidated=False)
    session.commit("it")
    write(repository, steps(0, 10), **SIZES)
    with dask.config.set(scheduler="sync"):
        check(repository, xr.open_zarr(other.readonly_session("main").store, consolidated=False))

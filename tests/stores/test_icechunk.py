"""Sessions of Icechunk as targets: one commit at the end, and nothing is seen before."""

from __future__ import annotations

import asyncio
import json
import pickle
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from zarr.buffer import default_buffer_prototype

import shardwrite
from shardwrite import AppendOnly, ConflictError, SpecError, StoreError
from shardwrite.stores import MemoryStore
from shardwrite.stores.session_store import SessionStore
from shardwrite.write.context import Probed

icechunk = pytest.importorskip("icechunk", reason="icechunk is not installed")
PAGE = Path(__file__).parents[2] / "docs/howto/icechunk.md"
VALUES = np.random.default_rng(0).random((8, 8, 8))
X = da.from_array(VALUES, chunks=4)
LAYOUT = {"name": "a/b", "shards": 4, "chunks": 2}
NOTE = "Nothing was committed, and the session is as it was before this call."
DOCUMENTS = ["zarr.json", "a/zarr.json", "a/b/zarr.json"]


@pytest.fixture
def repository():
    return icechunk.Repository.create(icechunk.in_memory_storage())


@pytest.fixture
def on_disk(tmp_path):
    storage = icechunk.local_filesystem_storage(str(tmp_path / "repository"))
    return icechunk.Repository.create(storage)


@pytest.fixture
def session(repository):
    return repository.writable_session("main")


def stored(repository, name="a/b"):
    """The array in the branch, as zarr-python reads it."""
    session = repository.readonly_session("main")
    return zarr.open_array(session.store, path=name, mode="r")


def keys(session):
    async def listed(store):
        return [key async for key in store.list()]

    return asyncio.run(listed(session.store))


def messages(repository):
    """Messages of the commits of the branch, the first one first."""
    return [one.message for one in repository.ancestry(branch="main")][-2::-1]


def put(store, name, data):
    with store.transaction("full", "run.1") as transaction:
        writer = transaction.create(name)
        writer.write([data])
        writer.finish()
    return transaction


def test_an_array_is_written_in_one_commit(repository, session):
    result = X.to_sharded_zarr(session, **LAYOUT)
    found = stored(repository)
    assert (found.shards, found.chunks) == ((4, 4, 4), (2, 2, 2))
    np.testing.assert_array_equal(found[...], VALUES)
    shards = {f"a/b/c/{i}/{j}/{k}" for i in (0, 1) for j in (0, 1) for k in (0, 1)}
    assert set(keys(repository.readonly_session("main"))) == {*DOCUMENTS, *shards}
    assert result.snapshot == repository.lookup_branch("main")
    assert result.message == f"a/b: 8 shards, written by shardwrite {shardwrite.__version__}"
    assert messages(repository) == [result.message]
    assert f"{result.snapshot} ({result.message})" in str(result)
    assert json.loads(json.dumps(result.to_dict()))["snapshot"] == result.snapshot
    assert session.read_only


def test_a_run_elsewhere_has_no_snapshot(tmp_path):
    result = X.to_sharded_zarr(tmp_path / "x", shards=4, chunks=2)
    assert (result.snapshot, result.message) == (None, None)
    assert "snapshot" not in str(result)
    with pytest.raises(SpecError, match="message='a': is for commits, and this store has none"):
        X.to_sharded_zarr(tmp_path / "y", shards=4, chunks=2, message="a")


def test_what_reads_takes_sessions_too(repository, session):
    snapshot = X.to_sharded_zarr(session, **LAYOUT, message="first").snapshot
    assert messages(repository) == ["first"]
    session = repository.readonly_session(snapshot_id=snapshot)
    checked = shardwrite.verify(session, name="a/b", deep=True)
    assert checked.is_good
    assert f"a/b in snapshot {snapshot} of an Icechunk repository" in str(checked)
    for store in (session, session.store):
        found = shardwrite.open_sharded(store, name="a/b")
        np.testing.assert_array_equal(found[:3, 2:7, 6:], VALUES[:3, 2:7, 6:])
    with pytest.raises(StoreError, match="no call writes to this session now"):
        shardwrite.verify(session, name="a/b", accept=True)


def test_other_processes_read_a_snapshot(on_disk):
    X.to_sharded_zarr(on_disk.writable_session("main"), **LAYOUT)
    found = shardwrite.open_sharded(on_disk.readonly_session("main"), name="a/b")
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(found))[...], VALUES)


def test_arrays_are_not_put_around_others(repository, session):
    X.to_sharded_zarr(session, name="many", shards=4, chunks=2)
    session = repository.writable_session("main")
    document = asyncio.run(session.store.get("many/zarr.json", default_buffer_prototype()))
    asyncio.run(session.store.set("g/h/b/zarr.json", document))  # in groups that have no documents
    session.commit("by another program")
    session = repository.writable_session("main")
    with pytest.raises(SpecError, match="something that is no Zarr array stands there"):
        X.to_sharded_zarr(session, name="g", shards=4, chunks=2)
    X.to_sharded_zarr(session, name="g/x", shards=4, chunks=2)
    with pytest.raises(SpecError, match="many/y"):
        X.to_sharded_zarr(repository.writable_session("main"), name="many/y", shards=4, chunks=2)


@pytest.mark.long
def test_arrays_are_changed_by_replacement(repository, session):
    X.to_sharded_zarr(session, **LAYOUT)
    wanted = VALUES.copy()

    def check(write, **keywords):
        result = write(repository.writable_session("main"), **keywords)
        np.testing.assert_array_equal(stored(repository)[...], wanted)
        assert result.snapshot == repository.lookup_branch("main")
        return result

    wanted[1:4, 3:6, 2] = 7
    result = check(lambda to: shardwrite.write_region(7, to, np.s_[1:4, 3:6, 2], name="a/b"))
    assert result.message.startswith("a/b: 2 shards, ")
    wanted = np.concatenate([wanted, VALUES[:3]])
    check(lambda to: X[:3].to_sharded_zarr(to, name="a/b", region="append", strategy=AppendOnly()))
    wanted[:4] = 0
    result = check(lambda to: shardwrite.erase(to, np.s_[:4], name="a/b", message="no more"))
    assert (result.n_empty_shards, result.message) == (4, "no more")
    assert len([key for key in keys(repository.readonly_session("main")) if "/c/" in key]) == 8
    wanted = VALUES[::-1]
    check(lambda to: X[::-1].to_sharded_zarr(to, name="a/b", shards=8, chunks=2, mode="w"))
    found = keys(repository.readonly_session("main"))
    assert set(found) == {*DOCUMENTS, "a/b/c/0/0/0"}
    wanted = VALUES
    check(lambda to: X.to_sharded_zarr(to, name="a/b", mode="a"))
    assert len(messages(repository)) == 6


def test_several_arrays_are_one_commit(repository, session):
    results = shardwrite.store(
        [X, X + 1], [session, session], names=["p", "q"], shards=4, chunks=2, message="both"
    )
    assert messages(repository) == ["both"]
    snapshot = repository.lookup_branch("main")
    assert [(one.snapshot, one.message) for one in results] == [(snapshot, "both")] * 2
    np.testing.assert_array_equal(stored(repository, "q")[...], VALUES + 1)
    np.testing.assert_array_equal(stored(repository, "p")[...], VALUES)


@pytest.mark.long
def test_what_is_empty_already_can_be_erased(repository, session):
    X.to_sharded_zarr(session, **LAYOUT)
    for message in ("once", "twice"):
        session = repository.writable_session("main")
        shardwrite.erase(session, np.s_[:4], name="a/b", message=message)
        assert messages(repository)[-1] == message
    np.testing.assert_array_equal(stored(repository)[:4], 0)


@pytest.mark.parametrize(
    ("layout", "key"),
    [
        ({"shards": None, "name": None}, "c/1/1/1"),
        pytest.param(
            {"shards": (8, 4, 4), "index_location": "start"}, "c/0/1/1", marks=pytest.mark.long
        ),
    ],
)
def test_other_layouts(repository, session, layout, key):
    X.to_sharded_zarr(session, **{**LAYOUT, **layout})
    name = {**LAYOUT, **layout}["name"]
    np.testing.assert_array_equal(stored(repository, name)[...], VALUES)
    assert "/".join(filter(None, (name, key))) in keys(repository.readonly_session("main"))


def test_an_array_without_axes(repository, session):
    da.from_array(np.float32(3.5)).to_sharded_zarr(session, name="z", shards=(), chunks=())
    assert stored(repository, "z")[()] == 3.5


def test_a_run_that_fails_leaves_the_session_as_it_was(repository, session):
    def broken(block, block_info=None):
        if block_info[0]["chunk-location"] == (1, 1, 1):
            raise ValueError("no data")
        return block

    with dask.config.set(scheduler="sync"), pytest.raises(ValueError, match="no data") as caught:
        X.map_blocks(broken, dtype=X.dtype).to_sharded_zarr(session, **LAYOUT)
    assert NOTE in caught.value.__notes__
    assert not session.has_uncommitted_changes
    assert messages(repository) == []
    X.to_sharded_zarr(session, **LAYOUT, message="again")
    assert messages(repository) == ["again"]
    np.testing.assert_array_equal(stored(repository)[...], VALUES)


def test_a_straggler_changes_nothing_after_the_call(session):
    store = SessionStore.to_write(session, for_processes=False)
    store.discard()
    with pytest.raises(StoreError, match="no call writes to this session now"):
        put(store, "zarr.json", b"{}")
    assert not session.has_uncommitted_changes


def test_two_calls_do_not_share_a_session(repository, session):
    def other(block, block_info=None):
        if block_info[0]["chunk-location"] == (1, 1, 1):
            with pytest.raises(SpecError, match=r"with changes|another call writes to this"):
                X.to_sharded_zarr(session, name="c", shards=4, chunks=2)
        return block

    store = SessionStore.to_write(session, for_processes=False)
    with pytest.raises(SpecError, match="another call writes to this session now; wait for it"):
        X.to_sharded_zarr(session, **LAYOUT)
    store.discard()
    with dask.config.set(scheduler="sync"):
        X.map_blocks(other, dtype=X.dtype).to_sharded_zarr(session, **LAYOUT)
    assert not any(key.startswith("c/") for key in keys(repository.readonly_session("main")))
    np.testing.assert_array_equal(stored(repository)[...], VALUES)


@pytest.mark.long
def test_another_writer_has_moved_the_branch(repository, session):
    def other(block, block_info=None):
        if block_info[0]["chunk-location"] == (1, 1, 1):
            X.to_sharded_zarr(repository.writable_session("main"), name="c", shards=4, chunks=2)
        return block

    X.to_sharded_zarr(session, name="a/first", shards=4, chunks=2)  # and the groups above
    session, before = repository.writable_session("main"), repository.lookup_branch("main")
    with dask.config.set(scheduler="sync"), pytest.raises(ConflictError, match="rebase") as caught:
        X.map_blocks(other, dtype=X.dtype).to_sharded_zarr(session, **LAYOUT)
    error = pickle.loads(pickle.dumps(caught.value))
    assert "branch 'main' of an Icechunk repository meanwhile, so nothing is" in str(error)
    found = (error.branch, error.expected, error.found)
    assert found == ("main", before, repository.lookup_branch("main"))
    assert not any(key.startswith("a/b/") for key in keys(repository.readonly_session("main")))
    with pytest.raises(SpecError, match="a session with changes"):
        X.to_sharded_zarr(session, **LAYOUT)
    session.rebase(icechunk.ConflictDetector())  # as the message says
    session.commit("after all")
    for name in ("a/b", "c"):
        np.testing.assert_array_equal(stored(repository, name)[...], VALUES)


def test_sessions_that_cannot_be_committed(repository, session):
    with pytest.raises(SpecError, match="only reads, as each does after its commit; give a new"):
        X.to_sharded_zarr(repository.readonly_session("main"), **LAYOUT)
    with pytest.raises(SpecError, match="a fork, which cannot be committed; give the session"):
        X.to_sharded_zarr(repository.writable_session("main").fork(), **LAYOUT)
    zarr.create_group(session.store, path="mine")
    with pytest.raises(SpecError, match=r"part of this commit; call session\.discard_changes"):
        X.to_sharded_zarr(session, **LAYOUT)
    assert set(keys(session)) == {"zarr.json", "mine/zarr.json"}
    session.commit("mine")
    X.to_sharded_zarr(repository.writable_session("main"), **LAYOUT)
    assert "mine/zarr.json" in keys(repository.readonly_session("main"))


@pytest.mark.parametrize(
    ("keywords", "match"),
    [
        ({"compute": False}, "compute=False: does not go with a session"),
        ({"return_stored": True}, "return_stored=True.*read the snapshot"),
        ({"keep_report": True}, "keep_report=True.*no other objects than arrays"),
        ({"format": "transformer-2022"}, "format='transformer-2022'.*only the keys of Zarr v3"),
        ({"message": " "}, "message=' ': no message; give a text"),
        ({"chunk_key_encoding": {"name": "v2"}}, r"chunk_key_encoding='0\.0\.0'.*leave it out"),
        ({"chunk_key_encoding": {"name": "default", "separator": "."}}, r"='c\.0\.0\.0'"),
        ({"via": "/nowhere"}, "via='/nowhere': is for buckets"),
    ],
)
def test_what_does_not_go_with_a_session(repository, session, keywords, match):
    with pytest.raises(SpecError, match=match):
        X.to_sharded_zarr(session, **LAYOUT, **keywords)
    assert not session.has_uncommitted_changes
    assert messages(repository) == []


def test_changes_in_place_are_refused(repository, session):
    X.to_sharded_zarr(session, **LAYOUT)
    session = repository.writable_session("main")
    with pytest.raises(SpecError, match=r"cannot modify an object in place \(EDIT\)"):
        shardwrite.write_region(
            7, session, np.s_[:2], name="a/b", strategy=AppendOnly(in_place=True)
        )


def test_calls_that_do_not_commit_refuse_sessions(repository, session, tmp_path):
    X.to_sharded_zarr(tmp_path / "x", shards=4, chunks=2)
    refused = "which this call does not commit; give the session itself to to_sharded_zarr"
    root = zarr.create_group(session.store)
    for store in (session.store, root, root.create_group("g").store_path):
        with pytest.raises(SpecError, match=refused):
            X.to_sharded_zarr(store, **LAYOUT)
    for call in (
        lambda: shardwrite.create(session, (8, 8), "u1", shards=4, chunks=2, name="c"),
        lambda: shardwrite.ShardWriter(session, name="c"),
        lambda: shardwrite.compact(session, name="c"),
        lambda: shardwrite.shard(zarr.zeros((4,), chunks=2), session, shards=4),
        lambda: shardwrite.plan(X, store=session, shards=4, chunks=2),
        lambda: shardwrite.upload(tmp_path / "x", session),
        lambda: X.astype("u1").to_precomputed(session, resolution=(1, 1, 1), axes="zyx"),
    ):
        with pytest.raises(SpecError, match=refused):
            call()
    with pytest.raises(TypeError, match="positional"):
        shardwrite.to_sharded_zarr(X, repository.writable_session("main"), "a", None, 4)
    with pytest.raises(SpecError, match=r"give a session of it, such as repository\.writable"):
        X.to_sharded_zarr(repository, **LAYOUT)


def test_a_source_in_the_same_session_is_not_replaced(repository, session):
    X.to_sharded_zarr(session, **LAYOUT)
    session = repository.writable_session("main")
    source = shardwrite.from_sharded_zarr(session.store, name="a/b")
    with pytest.raises(SpecError, match="the source reads the array that it is to replace"):
        (source + 1).to_sharded_zarr(session, **LAYOUT, mode="w")
    source = shardwrite.from_sharded_zarr(repository.readonly_session("main"), name="a/b")
    (source + 1).to_sharded_zarr(session, **LAYOUT, mode="w")
    np.testing.assert_array_equal(stored(repository)[...], VALUES + 1)


def test_nothing_is_kept_for_another_call(repository, session, tmp_path):
    state = tmp_path / "runs"
    X.to_sharded_zarr(session, **LAYOUT, source_id="1", run_dir=state)
    assert list(state.iterdir()) == []
    again = {**LAYOUT, "source_id": "1", "run_dir": state}
    with pytest.raises(SpecError, match="an array exists there, of another run; give mode"):
        X.to_sharded_zarr(repository.writable_session("main"), **again)
    result = X.to_sharded_zarr(repository.writable_session("main"), **again, mode="w")
    assert result.n_resumed_shards == 0


@pytest.mark.long
def test_the_page(repository):
    section = PAGE.read_text()
    write, publish = re.findall(r"```py\n(.*?)```", section, re.DOTALL)
    x = da.from_array(np.random.default_rng(0).random((64, 64, 64)), chunks=32)
    known = {"x": x, "shardwrite": shardwrite}
    exec(write, known)
    np.testing.assert_array_equal(known["found"][...], x.compute())
    session = known["repository"].writable_session("main")
    X.to_sharded_zarr(known["repository"].writable_session("main"), **LAYOUT)
    zarr.create_group(session.store, path="mine")
    exec(publish, {"icechunk": icechunk, "session": session})
    assert stored(known["repository"]).shape == (8, 8, 8)
    assert "mine/zarr.json" in keys(known["repository"].readonly_session("main"))


# ---- several processes


def test_each_task_of_another_process_has_a_fork(on_disk, tmp_path):
    session = on_disk.writable_session("main")
    store = SessionStore.to_write(session, for_processes=True).at("x")
    X[:, 0, 0].to_sharded_zarr(tmp_path / "x", shards=4, chunks=2)
    put(store, "zarr.json", (tmp_path / "x/zarr.json").read_bytes())
    sent = pickle.dumps(store)
    changes = []
    for number in (0, 1):
        data = (tmp_path / f"x/c/{number}").read_bytes()
        changes.append(put(pickle.loads(sent), f"c/{number}", data).changes())
    assert list(store.list_keys()) == ["zarr.json"]
    assert not session.has_uncommitted_changes
    for one in pickle.loads(pickle.dumps(changes)):
        store.take(one)
    assert store.commit("two tasks") == on_disk.lookup_branch("main")
    np.testing.assert_array_equal(stored(on_disk, "x")[...], VALUES[:, 0, 0])


def test_a_shard_whose_changes_have_not_arrived_is_not_taken_for_written(on_disk):
    from shardwrite.runs.session import Session

    def learnt(store, **facts):
        """Whether the journals of another process are believed."""
        options = SimpleNamespace(durability=None)
        job = SimpleNamespace(target=SimpleNamespace(store=store), options=options)
        run = SimpleNamespace(written_by=lambda *_: None)
        try:
            Session(job, run, "driver", None, **facts).enter_unreported()
        except AttributeError:  # there is no directory with journals here
            return True
        return False

    store = SessionStore(on_disk.writable_session("main"))
    assert not learnt(store, has_helpers=True)
    assert learnt(store)
    assert learnt(MemoryStore(), has_helpers=True)


def test_workers_that_do_not_see_the_state_of_the_run(session, monkeypatch):
    from shardwrite.runs import begin

    probed = Probed(("No such file or directory", 2), is_far=False, scratch=None)
    monkeypatch.setattr(begin, "probe_here", lambda *facts: probed)
    with pytest.raises(StoreError, match=r"No such file.*; give one as run_dir that every"):
        X.to_sharded_zarr(session, **LAYOUT)
    assert not session.has_uncommitted_changes


def test_workers_without_icechunk_are_told_what_to_install(on_disk, monkeypatch):
    store = SessionStore.to_write(on_disk.writable_session("main"), for_processes=True)
    sent = pickle.dumps(store)
    monkeypatch.setitem(sys.modules, "icechunk.session", None)
    with pytest.raises(SpecError, match=r'pip install "shardwrite\[icechunk\]"'):
        pickle.loads(sent)


def test_a_session_that_is_not_forked_is_not_sent(session):
    for store in (SessionStore.to_write(session, for_processes=False), SessionStore(session)):
        with pytest.raises(SpecError, match=r"be used by several processes \(SHARED\)"):
            pickle.dumps(store)


def test_a_repository_in_memory_is_refused_for_processes(repository, session):
    with (
        dask.config.set(scheduler="processes"),
        pytest.raises(SpecError, match=r"do not reach its repository.*use dask's threads"),
    ):
        X.to_sharded_zarr(session, **LAYOUT)
    X.to_sharded_zarr(session, **LAYOUT, message="by threads")
    assert messages(repository) == ["by threads"]


KILLED = """
import os, sys
import dask, icechunk, numpy as np, dask.array as da, shardwrite

def block(values, block_info=None):
    if block_info[0]["chunk-location"] == (100, 0):
        os.kill(os.getpid(), 9)
    return values

storage = icechunk.local_filesystem_storage(sys.argv[1])
session = icechunk.Repository.open(storage).writable_session("main")
x = da.random.default_rng(0).random((256, 8), chunks=(2, 8)).map_blocks(block, dtype=float)
with dask.config.set(scheduler="sync"):
    x.to_sharded_zarr(session, name="a/b", shards=(16, 8), chunks=2)
"""


@pytest.mark.long
def test_a_process_that_is_killed_leaves_the_branch_as_it_was(on_disk, tmp_path):
    before = on_disk.lookup_branch("main")
    command = [sys.executable, "-c", KILLED, str(tmp_path / "repository")]
    assert subprocess.run(command, capture_output=True).returncode == -signal.SIGKILL
    assert any((tmp_path / "repository/chunks").iterdir())  # of no snapshot
    assert on_disk.lookup_branch("main") == before
    session = on_disk.writable_session("main")
    assert X.to_sharded_zarr(session, **LAYOUT).n_resumed_shards == 0
    np.testing.assert_array_equal(stored(on_disk)[...], VALUES)


def fails_late(block, block_info=None):
    return block / (100 - block_info[0]["chunk-location"][0] or 1 // 0)


@pytest.mark.long
def test_a_cluster_writes_in_forks_which_are_merged(on_disk, tmp_path):
    from distributed import Client

    values = np.random.default_rng(0).random((256, 4))
    x = da.from_array(values, chunks=(2, 4))  # so many chunks that each task writes few shards
    layout, reports = {"name": "a/b", "shards": (8, 4), "chunks": 2}, []
    with Client(n_workers=2, threads_per_worker=1, dashboard_address=None):
        session = on_disk.writable_session("main")
        with pytest.raises(ZeroDivisionError) as caught:
            x.map_blocks(fails_late, dtype=x.dtype).to_sharded_zarr(session, **layout)
        assert NOTE in caught.value.__notes__
        assert not session.has_uncommitted_changes
        x.to_sharded_zarr(session, **layout, run_dir=tmp_path / "runs", progress=reports.append)
        assert len(reports) >= 8
        assert len({report.process for report in reports}) == 2
        np.testing.assert_array_equal(stored(on_disk)[...], values)
        session = on_disk.writable_session("main")
        x[:96, :2].to_sharded_zarr(session, name="a/b", region=np.s_[5:101, 1:3])
        values = values.copy()
        values[5:101, 1:3] = x[:96, :2].compute()
        np.testing.assert_array_equal(stored(on_disk)[...], values)
        session = on_disk.writable_session("main")
        x[:99].to_sharded_zarr(session, name="a/b", region="append")
        wanted = np.concatenate([values, x[:99].compute()])
        np.testing.assert_array_equal(stored(on_disk)[...], wanted)
        again = on_disk.writable_session("main")
        x[::-1].rechunk((256, 1)).to_sharded_zarr(again, **layout, mode="w")
        np.testing.assert_array_equal(stored(on_disk)[...], x[::-1].compute())
    assert len(keys(on_disk.readonly_session("main"))) == 3 + 32
    assert len(messages(on_disk)) == 4
    assert list((tmp_path / "runs").iterdir()) == []

"""Arrays whose shards are there, and whose runs have lost their state."""

from __future__ import annotations

import json
import os
import shutil

import dask.array as da
import numpy as np
import pytest
import seams
import zarr
from click.testing import CliRunner
from zarr.storage import MemoryStore

import shardwrite
from shardwrite import IncompleteError, JournalError, SpecError, StoreError
from shardwrite.cli import main

VALUES = np.arange(1, 1 + 64 * 64, dtype="i4").reshape(64, 64)
LAYOUT = {"shards": 16, "chunks": 8}
MANY_TASKS = {"memory_limit": "60kB", "max_source_reruns": 100}
DOCUMENTS = ("zarr.json", "shardwrite-receipt.json")

pytestmark = pytest.mark.usefixtures("one_thread")


class Stop(Exception):  # noqa: N818
    """Ends a run after some tasks."""


def source(values=VALUES):
    return da.from_array(values, chunks=16)


def stopping(after):
    reports = []

    def progress(report):
        reports.append(report)
        if len(reports) >= after:
            raise Stop

    return progress


def lost(path, values=VALUES, after=1, **more):
    """An array whose write was interrupted, and the directory beside it purged."""
    more = {**LAYOUT, **MANY_TASKS, **more}
    with pytest.raises(Stop):
        source(values).to_sharded_zarr(path, progress=stopping(after), **more)
    shutil.rmtree(seams.state_beside(path, more.get("name"), more.get("run_dir")))


def unpublished(path, values=VALUES, **more):
    """An array of which all shards are written, and nothing else is left."""
    source(values).to_sharded_zarr(path, **{**LAYOUT, **more})
    for leaf in DOCUMENTS:
        (path / leaf).unlink()


def objects(path):
    return {
        str(p.relative_to(path)): (p.stat().st_ino, p.read_bytes())
        for p in path.rglob("*")
        if p.is_file()
    }


def check(path, wanted=VALUES, **where):
    np.testing.assert_array_equal(shardwrite.open_sharded(path, **where)[...], wanted)
    report = shardwrite.verify(path, deep=True, **where)
    assert report.is_good, report
    assert report.expected_by == "receipt"
    assert not report.warnings, report


@pytest.mark.compat
def test_from_the_source(tmp_path):
    path = tmp_path / "x"
    lost(path)
    before = objects(path)
    assert 0 < len(before) < 16
    with pytest.raises(SpecError, match=r"call recover \(shardwrite recover\)"):
        source().to_sharded_zarr(path, **LAYOUT)
    look = shardwrite.recover(path, source(), **LAYOUT, dry_run=True)
    assert (look.n_good, look.n_missing, look.bad) == (len(before), 16 - len(before), ())
    assert look.result is None
    assert objects(path) == before
    assert os.listdir(tmp_path) == ["x"]
    done = shardwrite.recover(path, source(), **LAYOUT)
    assert done.n_good == done.result.n_resumed_shards == len(before)
    assert done.result.n_shards == 16
    check(path)
    assert {key: objects(path)[key] for key in before} == before  # not written again
    assert os.listdir(tmp_path) == ["x"]
    assert source().to_sharded_zarr(path, **LAYOUT).n_resumed_shards == 16  # as any run
    assert shardwrite.recover(path, source(), **LAYOUT).n_good == 16


@pytest.mark.parametrize("gone", ["the run", "the plan", "the journal"])
def test_a_state_of_which_a_part_is_lost(tmp_path, gone):
    """Without its journal, a run writes all shards again, and needs no recovery."""
    path = tmp_path / "x"
    with pytest.raises(Stop):
        source().to_sharded_zarr(path, **LAYOUT, **MANY_TASKS, progress=stopping(1))
    n_there = len(objects(path))
    if gone == "the run":
        shutil.rmtree(seams.run_directory(path))
    elif gone == "the plan":
        seams.plan_file(path).unlink()
    else:
        for log in seams.logs_of(path):
            log.unlink()
    done = shardwrite.recover(path, source(), **LAYOUT)
    assert done.result.n_resumed_shards == n_there
    check(path)


@pytest.mark.long
def test_one_of_the_arrays_of_a_run(tmp_path):
    """All of them have lost their state, and each is recovered by a call of its own."""
    root, names = tmp_path / "root", ["a", "b"]
    with pytest.raises(Stop):
        shardwrite.store(
            [source(), source(VALUES + 1)],
            [root, root],
            names=names,
            **LAYOUT,
            **MANY_TASKS,
            progress=stopping(6),
        )
    for state in [*tmp_path.glob("*.shardwrite"), *root.glob("*.shardwrite")]:
        shutil.rmtree(state)
    (root / "notes").write_text("mine")
    with pytest.raises(SpecError, match="where its group should be"):
        shardwrite.recover(root, source(), name="a", **LAYOUT)
    (root / "notes").unlink()
    for number, name in enumerate(names):
        shardwrite.recover(root, source(VALUES + number), name=name, **LAYOUT)
        check(root, VALUES + number, name=name)


def test_without_a_source(tmp_path):
    path = tmp_path / "x"
    unpublished(path)
    given = {"shape": (64, 64), "dtype": "i4", **LAYOUT}
    assert shardwrite.recover(path, **given).n_good == 16
    check(path)
    receipt = seams.receipt_in(path)
    assert (receipt.nbytes_on(shardwrite.open_sharded(path).metadata.grid) > 0).all()


def test_missing_shards_are_empty_if_the_user_says_so(tmp_path):
    values = VALUES.copy()
    values[:16, :32] = 0
    path = tmp_path / "x"
    unpublished(path, values)
    given = {"shape": (64, 64), "dtype": "i4", **LAYOUT}
    before = objects(path)
    with pytest.raises(IncompleteError, match=r"give the source .*empty=True") as error:
        shardwrite.recover(path, **given)
    assert error.value.fields["missing"] == ["c/0/0", "c/0/1"]
    assert objects(path) == before
    assert os.listdir(tmp_path) == ["x"]  # no run was begun
    done = shardwrite.recover(path, **given, empty=True)
    assert (done.n_good, done.n_missing, done.result.n_empty_shards) == (14, 2, 2)
    check(path, values)


def test_bad_shards(tmp_path):
    path = tmp_path / "x"
    unpublished(path)
    torn = (path / "c/1/2").read_bytes()[:-3]
    (path / "c/1/2").write_bytes(torn)
    data = bytearray((path / "c/3/3").read_bytes())
    data[3] ^= 1  # in a chunk, so that the index is as it was
    (path / "c/3/3").write_bytes(data)
    given = {"shape": (64, 64), "dtype": "i4", **LAYOUT}
    for more in ({}, {"empty": True}):
        with pytest.raises(IncompleteError) as error:
            shardwrite.recover(path, **given, **more)
        assert error.value.fields["missing"] == ["c/1/2", "c/3/3"]
    assert (path / "c/1/2").read_bytes() == torn
    done = shardwrite.recover(path, source(), **LAYOUT)
    assert [text.split(":")[0] for text in done.bad] == ["c/1/2", "c/3/3"]
    assert done.result.n_resumed_shards == 14
    check(path)


@pytest.mark.long
def test_a_recovery_that_is_interrupted(tmp_path):
    """What was found is in the journal. So the call that writes the array goes on, too."""
    path = tmp_path / "x"
    for again in (shardwrite.recover, lambda path, x, **how: x.to_sharded_zarr(path, **how)):
        lost(path)
        before = objects(path)
        with pytest.raises(Stop):
            shardwrite.recover(path, source(), **LAYOUT, **MANY_TASKS, progress=stopping(1))
        assert len(seams.done_shards(path)) > len(before)
        again(path, source(), **LAYOUT)
        assert {key: objects(path)[key] for key in before} == before
        check(path)
        shutil.rmtree(path)


def test_leftovers_of_the_dead_are_removed(tmp_path):
    path = tmp_path / "x"
    unpublished(path)
    (path / "c/0/.1.deadbeef0000.0.swtmp").write_bytes(b"half")
    stale = [p for p in path.rglob(".*") if p.is_file()]
    assert stale
    done = shardwrite.recover(path, source(), **LAYOUT)
    assert done.n_temporaries == 1
    assert not any(p.exists() for p in stale)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"chunks": 16}, "none of the shards there is one of this array"),
        ({"compressors": None}, "none of the shards there is one of this array"),
        ({"shards": 32}, "which is no shard of this array"),
        ({"chunk_key_encoding": "v2"}, "which is no shard of this array"),
    ],
)
def test_another_layout_is_refused(tmp_path, given, why):
    path = tmp_path / "x"
    unpublished(path)
    before = objects(path)
    for dry_run in (True, False):
        with pytest.raises(SpecError, match=why):
            shardwrite.recover(path, source(), **{**LAYOUT, **given}, dry_run=dry_run)
    assert objects(path) == before
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize("kind", ["notes", "a link", "a link to a directory", "an old receipt"])
def test_what_is_no_shard_is_refused(tmp_path, kind):
    path = tmp_path / "x"
    unpublished(path)
    if kind == "notes":
        (path / "c/1/notes.txt").write_text("mine")
    elif kind == "an old receipt":
        (path / DOCUMENTS[1]).write_text("{}")
    elif kind == "a link":
        (path / "c/1/1").unlink()
        (path / "c/1/1").symlink_to(path / "c/1/2")
    else:
        (tmp_path / "y").mkdir()
        (path / "c/9").symlink_to(tmp_path / "y")
    before = sorted(p.name for p in path.rglob("*"))
    with pytest.raises(SpecError, match="which is no shard of this array"):
        shardwrite.recover(path, source(), **LAYOUT)
    assert sorted(p.name for p in path.rglob("*")) == before


def test_what_else_may_stand_there(tmp_path):
    path = tmp_path / "x"
    with pytest.raises(SpecError, match="nothing stands there"):
        shardwrite.recover(path, source(), **LAYOUT)
    source().to_sharded_zarr(path, **LAYOUT)
    with pytest.raises(SpecError, match="a finished array exists there; look at it with verify"):
        shardwrite.recover(path, source(VALUES + 1), **LAYOUT)
    with pytest.raises(SpecError, match=r"it differs in chunk_grid"):
        shardwrite.recover(path, source(), shards=32, chunks=8)
    zarr.create_group(tmp_path / "group")
    with pytest.raises(SpecError, match="a group stands there"):
        shardwrite.recover(tmp_path / "group", source(), **LAYOUT)
    given = {"shape": (64, 64), **LAYOUT}
    with pytest.raises(SpecError, match=r"dtype=None: there is no source that tells it"):
        shardwrite.recover(path, **given)
    with pytest.raises(SpecError, match=r"shape=.*: the source has \(64, 64\)"):
        shardwrite.recover(path, source(), shape=(64, 65), **LAYOUT)


def test_a_run_that_has_its_state_is_left_alone(tmp_path):
    path = tmp_path / "x"
    with pytest.raises(Stop):
        source().to_sharded_zarr(path, **LAYOUT, **MANY_TASKS, progress=stopping(1))
    before = objects(path)
    with pytest.raises(JournalError, match=r"another plan. Make the call .* again, or start over"):
        shardwrite.recover(path, source(VALUES + 1), **LAYOUT)
    with seams.hold(seams.run_directory(path)):
        seams.forge_lease(seams.run_directory(path), host="elsewhere")
        with pytest.raises(JournalError, match="is being written"):
            shardwrite.recover(path, source(), **LAYOUT)
    assert objects(path) == before
    for leases in seams.leases_in(seams.state_beside(path)):
        leases.unlink()
    source().to_sharded_zarr(path, **LAYOUT, **MANY_TASKS)
    check(path)


def test_an_array_that_is_published_first(tmp_path):
    path = tmp_path / "x"
    lost(path, publish="first")
    n_before = len(objects(path)) - 1
    with pytest.raises(SpecError, match="an array exists there"):
        source().to_sharded_zarr(path, **LAYOUT)
    assert shardwrite.recover(path, source(), **LAYOUT).n_good == n_before
    check(path)


@pytest.mark.parametrize("publish", ["first", "last"])
def test_in_a_store_with_a_run_dir(tmp_path, publish):
    store, where = MemoryStore(), {"name": "a/x", "run_dir": tmp_path / "runs"}
    lost(store, publish=publish, **where)
    keys = sorted(store._store_dict)
    assert "a/x/shardwrite-run.json" in keys
    with pytest.raises((SpecError, JournalError), match=r"an array exists|is lost.*recover"):
        source().to_sharded_zarr(store, **where, **LAYOUT)
    look = shardwrite.recover(store, source(), **where, **LAYOUT, dry_run=True)
    assert sorted(store._store_dict) == keys
    assert 0 < look.n_good < 16
    done = shardwrite.recover(store, source(), **where, **LAYOUT)
    assert done.result.n_resumed_shards == look.n_good
    assert "a/x/shardwrite-run.json" not in store._store_dict
    check(store, name="a/x")
    assert os.listdir(tmp_path / "runs") == []


@pytest.mark.parametrize(
    "kind", [{"format": "transformer-2022", "name": "a/b"}, {"manifest": "nonempty_chunks"}]
)
def test_other_documents(tmp_path, kind):
    path, where = tmp_path / "x", {name: kind[name] for name in kind if name == "name"}
    lost(path, **kind)
    assert 0 < shardwrite.recover(path, source(), **LAYOUT, **kind).n_good < 16
    check(path, **where)


def test_shards_that_are_hdf5_files_stay_such_files(tmp_path):
    path = tmp_path / "x"
    pytest.importorskip("h5py")
    lost(path, strategy="hdf5")
    assert 0 < shardwrite.recover(path, source(), **LAYOUT, strategy="hdf5").n_good < 16
    check(path)
    for file in (path / "c").rglob("*"):
        assert file.is_dir() or b"HDF" in file.read_bytes()[:8]


def test_the_wrong_run_dir(tmp_path):
    """The state is where the mark says, so that it is not lost."""
    store = MemoryStore()
    with pytest.raises(Stop):
        source().to_sharded_zarr(
            store, name="x", run_dir=tmp_path / "runs", progress=stopping(1), **LAYOUT, **MANY_TASKS
        )
    before = dict(store._store_dict)
    with pytest.raises(JournalError, match=r"is not lost: it is in .*/runs/.*with the run_dir"):
        shardwrite.recover(store, source(), name="x", run_dir=tmp_path / "other", **LAYOUT)
    assert store._store_dict == before
    source().to_sharded_zarr(store, name="x", run_dir=tmp_path / "runs", **LAYOUT)
    check(store, name="x")


def test_foreign_objects_in_a_store(tmp_path):
    store, where = MemoryStore(), {"name": "x", "run_dir": tmp_path / "runs"}
    lost(store, **where)
    store._store_dict["x/notes"] = store._store_dict["x/shardwrite-run.json"]
    with pytest.raises(SpecError, match="it holds 'notes', which is no shard"):
        shardwrite.recover(store, source(), **where, **LAYOUT)


def test_a_shard_that_changes_meanwhile(tmp_path, monkeypatch):
    path = tmp_path / "x"
    unpublished(path)
    other = (path / "c/0/1").read_bytes()
    seams.before(monkeypatch, "begin a run", lambda *_, **__: (path / "c/0/0").write_bytes(other))
    with pytest.raises(StoreError, match="c/0/0"):
        shardwrite.recover(path, source(), **LAYOUT)
    assert not (path / "zarr.json").exists()
    monkeypatch.undo()
    (path / "c/0/0").write_bytes(b"")
    shardwrite.recover(path, source(), **LAYOUT)
    check(path)


def test_arrays_without_shards(tmp_path):
    path = tmp_path / "x"
    layout = {"shards": None, "chunks": 16}
    unpublished(path, **layout)
    (path / "c/0/0").write_bytes(b"torn")
    done = shardwrite.recover(path, source(), **layout)
    assert (done.n_good, len(done.bad)) == (15, 1)
    check(path)


@pytest.mark.parametrize("durability", ["full", "none"])
@pytest.mark.parametrize("kind", [{}, {"format": "transformer-2022", "name": "a/b"}])
def test_shards_are_synced_before_they_count(tmp_path, kind, durability, monkeypatch):
    path = tmp_path / "x"
    lost(path, durability="none", **kind)
    shards = {str(p) for p in path.rglob("*") if p.is_file() and p.suffix != ".json"}
    shards = {p for p in shards if not os.path.basename(p).startswith(".")}
    synced = []
    fsync = os.fsync

    def noting(fd):
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noting)
    shardwrite.recover(path, source(), **LAYOUT, **kind, durability=durability)
    assert (shards <= set(synced)) == (durability == "full")
    assert shards


@pytest.mark.compat
def test_the_command(tmp_path):
    path = tmp_path / "x"
    np.save(tmp_path / "x.npy", VALUES)
    words = ["recover", str(path), "--shards", "16", "--chunks", "8"]

    def run(*more, code=0):
        done = CliRunner().invoke(main, [*words, *map(str, more)])
        assert done.exit_code == code, done.output
        return done.output

    unpublished(path)
    (path / "c/1/1").unlink()
    bare = ("--shape", "64,64", "--dtype", "int32")
    assert json.loads(run(*bare, "--dry-run", "--json", code=85))["n_missing"] == 1
    assert "c/1/1" in run(*bare, code=85)
    assert "--shape" in run("--dtype", "int32", code=2)
    assert "--dataset goes with --source" in run(*bare, "--dataset", "a", code=2)
    assert "1 have no object" in run("--source", tmp_path / "x.npy", "--dry-run", code=85)
    told = run("--source", tmp_path / "x.npy")
    assert "15 of 16 shards" in told
    check(path)

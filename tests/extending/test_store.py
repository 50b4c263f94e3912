"""A store that the package does not know is added by its public seams, and arrays in it are written,
killed, resumed, updated and verified as those in directories."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest

import shardwrite
from shardwrite.errors import SpecError
from shardwrite.stores.contract import BrokenContractError, check_store

sys.path.insert(0, str(Path(__file__).parent))
import database
import reading

PREPARE = f"""
{reading.dying_after(6)}
import dask, numpy as np
import dask.array as da
import database, shardwrite
def write(scheduler, **more):
    x = da.from_array(np.load(sys.argv[1]), chunks=(16, 64))
    store = database.DatabaseStore(sys.argv[2])
    with dask.config.set(scheduler=scheduler, num_workers=2):
        return x.to_sharded_zarr(
            store, name="a/x", run_dir=sys.argv[3], shards=16, chunks=4, source_id="it",
            memory_limit="30kB", **more
        )
"""


@pytest.fixture
def values(tmp_path):
    made = np.random.default_rng(0).integers(1, 2**32, (64, 64), dtype="u4")
    np.save(tmp_path / "values.npy", made)
    return made


@pytest.fixture
def paths(tmp_path):
    return tmp_path / "values.npy", tmp_path / "objects.db", tmp_path / "runs"


@pytest.mark.parametrize("kind", [database.DatabaseStore, database.StatefulStore])
def test_the_store_keeps_the_contract(tmp_path, kind):
    numbers = iter(range(1000))
    check_store(lambda: kind(tmp_path / f"{next(numbers)}.db"))


def test_a_store_that_does_not_let_one_writer_win_is_found(tmp_path):
    class LastOneWins(database.StatefulStore):
        def create_new(self, key, data):
            self.put_object(self.prefix + key, data)
            return True

    numbers = iter(range(1000))
    with pytest.raises(BrokenContractError, match=r"EXCLUSIVE|one of several writers"):
        check_store(lambda: LastOneWins(tmp_path / f"{next(numbers)}.db"))


@pytest.mark.long
def test_it_holds_the_state_of_runs(values, paths):
    """A run is killed, refused to another plan, and continued, without a directory for its state."""
    own = PREPARE.replace("DatabaseStore", "StatefulStore").replace("run_dir=sys.argv[3], ", "")
    store = database.StatefulStore(paths[1])
    reading.run(f"{own}\nwrite('sync', progress=die)", *paths, code=-signal.SIGKILL)
    assert any("shardwrite-run/" in key for key in store.list_keys())
    assert shardwrite.verify(store, name="a/x").n_pending
    with pytest.raises(shardwrite.JournalError, match="another plan was begun"):
        da.ones((64, 64), chunks=16).to_sharded_zarr(store, name="a/x", shards=16, chunks=4)
    main = f"{own}\nif __name__ == '__main__': print(write('processes').n_resumed_shards)"
    assert 0 < int(reading.run(main, *paths)) < 16
    np.testing.assert_array_equal(shardwrite.open_sharded(store, "a/x")[:, :], values)
    assert not [key for key in store.list_keys() if "shardwrite-run" in key]


@pytest.mark.parametrize(
    "scheduler", [pytest.param("threads", marks=pytest.mark.long), "processes"]
)
def test_written_killed_resumed_verified_and_read(values, paths, scheduler):
    store = database.DatabaseStore(paths[1])
    reading.run(f"{PREPARE}\nwrite('sync', progress=die)", *paths, code=-signal.SIGKILL)
    assert "a/x/zarr.json" not in list(store.list_keys())
    with pytest.raises(SpecError, match="no array"):
        shardwrite.open_sharded(store, "a/x")
    begun = shardwrite.verify(store, name="a/x", run_dir=paths[2])
    assert begun.is_good
    assert begun.n_pending
    main = f"{PREPARE}\nif __name__ == '__main__': print(write({scheduler!r}).n_resumed_shards)"
    assert 0 < int(reading.run(main, *paths)) < 16
    report = shardwrite.verify(
        store, name="a/x", run_dir=paths[2], deep=True, against=da.from_array(values)
    )
    assert report.is_good
    np.testing.assert_array_equal(shardwrite.open_sharded(store, "a/x")[:, :], values)
    assert not list(paths[2].iterdir()), "no state of a run that has ended is left"


@pytest.mark.parametrize(
    "command",
    ["restart=True", pytest.param("mode='w', restart=True", marks=pytest.mark.long)],
)
def test_a_run_that_was_killed_is_taken_back(values, paths, command):
    reading.run(f"{PREPARE}\nwrite('sync', progress=die)", *paths, code=-signal.SIGKILL)
    main = f"{PREPARE}\nprint(write('threads', {command}).n_resumed_shards)"
    assert int(reading.run(main, *paths)) == 0
    store = database.DatabaseStore(paths[1])
    np.testing.assert_array_equal(shardwrite.open_sharded(store, "a/x")[:, :], values)


@pytest.mark.parametrize(
    "strategy", ["fixed-order", pytest.param("append-only", marks=pytest.mark.long)]
)
def test_updates_are_killed_and_resumed(values, paths, strategy):
    reading.run(f"{PREPARE}\nwrite('threads')", *paths)
    update = f"region=(slice(0, 64), slice(0, 64)), strategy={strategy!r}"
    main = PREPARE.replace("shards=16, chunks=4, ", "").replace(
        "(sys.argv[1])", "(sys.argv[1])[::-1]"
    )
    reading.run(f"{main}\nwrite('sync', {update}, progress=die)", *paths, code=-signal.SIGKILL)
    assert (
        0
        < int(reading.run(f"{main}\nprint(write('sync', {update}).n_resumed_shards)", *paths))
        < 16
    )
    store = database.DatabaseStore(paths[1])
    np.testing.assert_array_equal(shardwrite.open_sharded(store, "a/x")[:, :], values[::-1])


def test_what_the_store_lacks_is_said_before_anything_is_written(values, paths, monkeypatch):
    store = database.DatabaseStore(paths[1])
    x = da.from_array(values, chunks=16)
    with pytest.raises(SpecError, match="give a directory that all processes of the run see"):
        x.to_sharded_zarr(store, name="a/x", shards=16, chunks=4)
    capabilities = set(store.capabilities)

    def refused(lacking, **keywords):
        monkeypatch.setattr(
            store,
            "capabilities",
            capabilities - {shardwrite.stores.Capability[lacking]},
            raising=False,
        )
        with pytest.raises(SpecError, match=f"cannot .* \\({lacking}\\); ."):
            x.to_sharded_zarr(store, name="a/x", run_dir=paths[2], **keywords)

    new = {"shards": 16, "chunks": 4}
    refused("DURABLE", durability="full", **new)
    with dask.config.set(scheduler="processes"):
        refused("SHARED", **new)
    assert list(store.list_keys()) == []
    x.to_sharded_zarr(database.DatabaseStore(paths[1]), name="a/x", run_dir=paths[2], **new)
    refused("ATOMIC", region=(slice(0, 64), slice(0, 64)))
    refused("EDIT", region="append", strategy=shardwrite.AppendOnly(in_place=True))

"""What is removed, and on what proof."""

from __future__ import annotations

import errno
import json
import os

import dask.array as da
import pytest
import seams

import shardwrite
from shardwrite import StoreError
from shardwrite.journal.rundir import proof_in
from shardwrite.stores.posix import PosixStore
from shardwrite.stores.removal import Proof, data_in, remove_data, remove_state, set_aside

PLAN = {"run": "abc", "mode": "w", "array": "x"}
LINE = {"attempt": "driver.1", "begins": [[0], [1]]}


@pytest.fixture
def array(tmp_path):
    """An array with a shard, and the directory of a run that is over."""
    (tmp_path / "x/c").mkdir(parents=True)
    (tmp_path / "x/c/0").write_bytes(b"shard")
    (tmp_path / "x.shardwrite/taken-abc/replaced").mkdir(parents=True)
    return tmp_path / "x"


def run_of(array, name="taken-abc"):
    return seams.state_beside(array) / name


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {**PLAN, "run": "another"},
        {**PLAN, "mode": "r+"},
        {**PLAN, "array": "y"},
        LINE,
    ],
    ids=["no plan", "another run's", "of an update", "of another array", "a line of the journal"],
)
def test_an_array_goes_only_by_the_plan_of_the_run_that_made_it(array, entry):
    with pytest.raises(StoreError, match="is not removed"):
        remove_data(array, "", Proof(run_of(array), entry))
    assert (array / "c/0").read_bytes() == b"shard"
    remove_data(array, "", Proof(run_of(array), PLAN))
    assert not array.exists()
    assert data_in(run_of(array)) == ["replaced"]


def test_a_shard_goes_only_by_an_entry_that_names_it(array):
    for proof in (
        Proof(run_of(array), LINE, lambda: ["c/1"]),
        Proof(run_of(array), {}, lambda: ["c/0"]),
        None,
    ):
        with (
            pytest.raises(StoreError),
            PosixStore(array).transaction("none", "a.b", proof=proof) as transaction,
        ):
            transaction.remove("c/0")
        assert (array / "c/0").read_bytes() == b"shard"
    with PosixStore(array).transaction(
        "none", "a.b", proof=Proof(run_of(array), LINE, lambda: ["c/0"])
    ) as transaction:
        transaction.remove("c/0")
        transaction.remove("c/0")  # a duplicate of the task
    assert not (array / "c/0").exists()


def test_whoever_was_taken_over_removes_nothing(array):
    late = Proof(run_of(array, "run-abc"), PLAN, lambda: ["c/0"])
    for key in ("c/0", ""):
        with pytest.raises(FileNotFoundError):
            remove_data(array, key, late)
    assert (array / "c/0").read_bytes() == b"shard"


def test_what_was_set_aside_stays_where_no_plan_says_whose_it_is(array):
    with pytest.raises(StoreError, match="no plan there says whose"):
        remove_state(run_of(array))
    with pytest.raises(StoreError, match="is not removed"):
        remove_data(run_of(array), "replaced", Proof(run_of(array), {}))
    with pytest.raises(StoreError, match="is not removed"):  # state is no data
        remove_data(run_of(array), "plan.json", Proof(run_of(array), PLAN))
    assert data_in(run_of(array)) == ["replaced"]
    remove_data(run_of(array), "replaced", Proof(run_of(array), PLAN))
    remove_state(run_of(array))
    assert not run_of(array).exists()


def test_links_are_not_followed(array):
    (array.parent / "mine").mkdir()
    (array.parent / "mine/data").write_bytes(b"mine")
    (array / "c/1").symlink_to(array.parent / "mine")
    aside = set_aside(array, "", Proof(run_of(array), PLAN), "array-1")
    assert (aside / "c/1").is_symlink()
    remove_data(run_of(array), "array-1", Proof(run_of(array), PLAN))
    assert (array.parent / "mine/data").read_bytes() == b"mine"


def test_data_of_a_run_without_a_plan_stop_the_next_writer(tmp_path):
    path = tmp_path / "x"
    x = da.arange(64, chunks=8)
    x.to_sharded_zarr(path, shards=16, chunks=8)
    left = seams.state_beside(path) / "ended-abc" / "replaced"
    left.mkdir(parents=True)
    (left / "data").write_bytes(b"data")
    with pytest.raises(StoreError, match="move it away, which deletes nothing"):
        (x + 1).to_sharded_zarr(path, shards=16, chunks=8, mode="w")
    assert (left / "data").read_bytes() == b"data"
    left.rename(tmp_path / "aside")  # what the message says
    (x + 1).to_sharded_zarr(path, shards=16, chunks=8, mode="w")
    assert shardwrite.verify(path, against=x + 1).is_good


def test_a_torn_plan_proves_nothing(array):
    target = seams.target_of(array)
    (run_of(array) / "plan.json").write_text(json.dumps(PLAN)[:20])
    assert proof_in(run_of(array), target, "abc").entry == {}


def test_a_file_that_another_process_makes_meanwhile_is_removed_too(tmp_path, monkeypatch):
    """It holds the directory open, and so needs no path to it."""
    draft, real = tmp_path / "ended-abc" / "draft-claim", os.rmdir
    draft.mkdir(parents=True)

    def late(name, *rest, **more):
        monkeypatch.setattr(os, "rmdir", real)
        (draft / "owner-0").write_bytes(b"it")
        real(name, *rest, **more)

    monkeypatch.setattr(os, "rmdir", late)
    remove_state(draft.parent)
    assert not os.listdir(tmp_path)


def test_a_directory_that_is_never_empty_is_told(tmp_path, monkeypatch):
    (tmp_path / "ended-abc").mkdir()

    def refuse(*_, **__):
        raise OSError(errno.ENOTEMPTY, "Directory not empty")

    monkeypatch.setattr(os, "rmdir", refuse)
    with pytest.raises(OSError, match="not empty"):
        remove_state(tmp_path / "ended-abc")

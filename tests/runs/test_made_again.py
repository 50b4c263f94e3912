"""The same call again, after the array was changed since: it never claims what is not there."""

from __future__ import annotations

import json
import os
import shutil
import warnings

import dask
import dask.array as da
import numpy as np
import pytest
import seams
import zarr

import shardwrite
from shardwrite import (
    AppendOnly,
    ShardWriter,
    SpecError,
    abandon,
    compact,
    erase,
    repair,
    verify,
    write_region,
)
from shardwrite.journal import receipt
from shardwrite.journal.receipt import Receipt
from shardwrite.plan.identity import Identity

FEW = {"shards": 4, "chunks": 2}


def full(value, n=4):
    return da.full((n,), value, dtype="i4", chunks=2)


def read(path):
    return zarr.open_array(path, mode="r")[...].tolist()


@pytest.fixture
def array(tmp_path):
    """An array of eight elements, the first half of which an update with an identifier has made."""
    path = tmp_path / "x.zarr"
    shardwrite.create(path, (8,), "i4", **FEW)
    first(path)
    return path


def first(path):
    return write_region(full(1), path, slice(0, 4), source_id="first")


def given_up(path, update):
    """Give an update up that is interrupted when all of its shards are committed."""
    with pytest.MonkeyPatch.context() as patch:
        seams.kill_before(patch, "look for missing shards", KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            update()
    return abandon(path)


def stream(path):
    with ShardWriter(path) as writer:
        writer[2:4] = np.full(2, 3, "i4")


@pytest.mark.parametrize(
    "change",
    [
        lambda path: write_region(full(2), path, slice(0, 4), source_id="second"),
        lambda path: write_region(full(2, 1), path, slice(3, 4)),
        lambda path: erase(path, slice(0, 1)),
        stream,
    ],
    ids=["another", "a part", "erased", "stream"],
)
def test_an_update_whose_region_was_changed_since_is_made_again(array, change):
    change(array)
    assert first(array).n_resumed_shards == 0
    assert read(array) == [1, 1, 1, 1, 0, 0, 0, 0]
    assert first(array).n_resumed_shards == 1  # now it is done


@pytest.mark.parametrize(
    "change",
    [
        lambda path: write_region(full(2), path, slice(4, 8), source_id="second"),
        lambda path: compact(path, above=0),
        lambda path: write_region(full(2), path, "append"),
    ],
    ids=["elsewhere", "compacted", "appended"],
)
def test_an_update_is_not_made_again_for_changes_elsewhere(array, change):
    write_region(full(1, 2), array, slice(0, 2), strategy=AppendOnly())  # leaves unused bytes
    first(array)
    change(array)
    assert first(array).n_resumed_shards == 1


def test_an_update_is_made_again_after_another_was_given_up(array):
    assert given_up(array, lambda: write_region(full(2), array, slice(0, 4))) == [((0, 4),)]
    assert read(array)[:4] == [2, 2, 2, 2]
    assert first(array).n_resumed_shards == 0
    assert read(array)[:4] == [1, 1, 1, 1]


def test_an_array_is_replaced_again_after_an_update_was_given_up(tmp_path):
    path, call = tmp_path / "x.zarr", {**FEW, "mode": "w", "source_id": "whole"}
    full(1, 8).to_sharded_zarr(path, **call)
    given_up(path, lambda: write_region(full(2), path, slice(0, 4)))
    assert full(1, 8).to_sharded_zarr(path, **call).n_resumed_shards == 0
    assert read(path) == [1] * 8


def test_an_update_is_made_again_after_a_repair(array):
    os.unlink(array / "c/0")
    assert repair(array, full(7, 8)).is_done
    assert first(array).n_resumed_shards == 0
    assert read(array) == [1, 1, 1, 1, 0, 0, 0, 0]


def test_appends_are_known_again_after_the_array_has_grown(tmp_path):
    path = tmp_path / "x.zarr"
    shardwrite.create(path, (0,), "i4", shards=64, chunks=4)
    for _ in range(2):
        for day in range(3):
            write_region(full(day), path, "append", source_id=f"day {day}")
    assert read(path) == [0] * 4 + [1] * 4 + [2] * 4


@pytest.mark.long
def test_appends_are_known_again_after_many_others(tmp_path, monkeypatch):
    monkeypatch.setattr(receipt, "_MAX_UPDATES", 3)
    path = tmp_path / "x.zarr"
    shardwrite.create(path, (0,), "i4", **FEW)
    for _ in range(2):
        for day in range(6):
            write_region(full(day), path, "append", source_id=f"day {day}", durability="none")
    assert read(path) == np.repeat(range(6), 4).tolist()
    for n in range(6):
        write_region(full(n), path, slice(0, 4), source_id=f"update {n}", durability="none")
    kept = json.loads((path / "shardwrite-receipt.json").read_text())["updates"]
    assert [entry["identity"]["source"] for entry in kept] == [
        *(f"day {day}" for day in range(6)),
        *(f"update {n}" for n in (3, 4, 5)),
    ]


@pytest.mark.long
def test_an_append_that_was_given_up_is_made_anew_behind_what_came_then(tmp_path):
    path = tmp_path / "x.zarr"
    shardwrite.create(path, (0,), "i4", **FEW)
    given_up(path, lambda: write_region(full(9), path, "append", source_id="one"))
    write_region(full(2, 8), path, "append", source_id="two")
    write_region(full(9), path, "append", source_id="one")
    assert read(path) == [2] * 8 + [9] * 4


def test_a_repair_of_an_array_that_has_grown_keeps_its_shape_in_the_receipt(tmp_path):
    path = tmp_path / "x.zarr"
    x = da.concatenate([full(0), full(1)])
    x.to_sharded_zarr(path, **FEW)
    write_region(x, path, "append")
    os.unlink(path / "c/1")
    assert repair(path, da.concatenate([x, x])).is_done
    os.unlink(path / "c/3")
    assert [problem.key for problem in verify(path).problems] == ["c/3"]
    assert repair(path, da.concatenate([x, x])).is_done
    assert x.to_sharded_zarr(path, **FEW).n_shards == 2  # the same call again, and no error


def test_an_array_without_its_shards_is_written_again(tmp_path):
    path, call = tmp_path / "x.zarr", {**FEW, "mode": "w", "source_id": "whole"}
    full(1, 8).to_sharded_zarr(path, **call)
    shutil.rmtree(path / "c")
    assert full(1, 8).to_sharded_zarr(path, **call).n_resumed_shards == 0
    assert read(path) == [1] * 8


def test_an_update_whose_shard_was_removed_is_made_again(array):
    before = read(array)
    os.unlink(array / "c/0")
    assert read(array) != before
    first(array)
    assert read(array) == before


def test_a_finished_call_is_finished_if_it_is_computed_later(tmp_path):
    path = tmp_path / "x.zarr"
    full(1, 8).to_sharded_zarr(path, **FEW)
    again = full(1, 8).to_sharded_zarr(path, **FEW, compute=False)
    assert again.compute().n_resumed_shards == 2
    both = shardwrite.store(
        [full(1, 8), full(2, 8)], [path, tmp_path / "y.zarr"], compute=False, **FEW
    )
    assert [result.n_resumed_shards for result in both.compute()] == [2, 0]
    assert read(tmp_path / "y.zarr") == [2] * 8


def test_a_finished_call_is_not_finished_any_more_if_it_is_computed_after_another(array):
    def again():
        return write_region(full(1), array, slice(0, 4), source_id="first", compute=False)

    later = again()
    write_region(full(2), array, slice(0, 4))
    with pytest.raises(shardwrite.RunEndedError, match="make the same call again"):
        later.compute()
    assert read(array)[:4] == [2] * 4
    again().compute()
    assert read(array)[:4] == [1] * 4


@pytest.mark.long
def test_shards_of_an_interrupted_run_are_kept_with_a_warning_if_the_source_has_no_name(
    tmp_path, monkeypatch
):
    def block(value, n):
        if n == 190 and value == 1:
            raise ValueError("the tape broke")
        return np.full(4, value, "i4")

    def source(value):
        blocks = [dask.delayed(block)(value, n) for n in range(200)]
        return da.concatenate([da.from_delayed(b, (4,), "i4") for b in blocks])

    path, call = tmp_path / "x.zarr", {**FEW, "durability": "none"}
    with dask.config.set(scheduler="sync"):
        with pytest.raises(ValueError, match="the tape broke"):
            source(1).to_sharded_zarr(path, **call)
        seams.kill_before(monkeypatch, "look for missing shards", KeyboardInterrupt)
        with (
            pytest.warns(UserWarning, match=r"shards of .* are kept .* restart=True"),
            pytest.raises(KeyboardInterrupt),
        ):
            source(2).to_sharded_zarr(path, **call)
        monkeypatch.undo()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            source(2).to_sharded_zarr(path, **call, restart=True)  # as the warning says
    assert set(read(path)) == {2}


def test_attributes_that_nobody_could_read_again_are_refused(tmp_path):
    with (
        dask.config.set({"shardwrite.read.limit": "1MiB"}),
        pytest.raises(SpecError, match=r"attributes.* read") as told,
    ):
        full(1).to_sharded_zarr(tmp_path / "x.zarr", **FEW, attributes={"a": "b" * 2**20})
    assert told.value.fields["field"] == "attributes"
    assert list(tmp_path.iterdir()) == []


def test_a_receipt_with_very_many_empty_shards_can_be_read_again():
    holes = tuple((2 * n, 1) for n in range(20_000))
    found = Receipt(
        digest="d",
        run="r",
        identity=Identity(),
        durability="full",
        finished="now",
        version="0",
        result={},
        empty=holes,
    )
    assert Receipt.decode(found.encode()) == found
    with dask.config.set({"shardwrite.read.limit": "1MiB"}):
        assert Receipt.decode(found.encode()).empty is None

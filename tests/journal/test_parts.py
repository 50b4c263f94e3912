"""Processes of a job array look at what is theirs: their number is no matter of each of them."""

from __future__ import annotations

import os
from dataclasses import replace

import dask.array as da
import numpy as np
import pytest
import seams
import zarr

import shardwrite
from shardwrite.errors import UntrustedStateError
from shardwrite.plan.partition import make_partition

N_PARTS = 100
NAMED = ("open", "stat", "lstat", "listdir", "scandir", "mkdir", "rename", "link", "unlink")
NAMED += ("rmdir", "utime", "access", "readlink", "chmod", "replace", "getxattr", "listxattr")


@pytest.fixture
def x():
    return da.from_array(np.arange(1, 2 * N_PARTS + 1, dtype="u2").reshape(N_PARTS, 2), (1, 2))


def one_part_each(x):
    """A plan with a group for each shard, as arrays of large shards have it."""
    plan = shardwrite.plan(x, shards=(1, 2), chunks=(1, 2), source_id="x")
    grid = plan.metadata.grid
    cut = make_partition(
        grid, plan.source.edges, x.dtype.itemsize, task_nbytes=1, fused=True, most_source_chunks=1
    )
    return replace(plan, partition=cut)


def prepared(x, path):
    shardwrite.prepare(x, path, one_part_each(x))
    return path


def write(x, path, index, count=N_PARTS):
    return shardwrite.write_part(x, path, index, count, source_id="x")


@pytest.fixture
def operations(monkeypatch):
    """Calls that name something below a directory of run state, in their order."""
    found = []

    def counting(name, real):
        def counted(path, *rest, **more):
            if isinstance(path, str | os.PathLike) and ".shardwrite" in os.fspath(path):
                found.append((name, os.fspath(path).rpartition(".shardwrite")[2]))
            return real(path, *rest, **more)

        return counted

    for name in NAMED:
        monkeypatch.setattr(os, name, counting(name, getattr(os, name)))
    return found


def until_the_first_commit(operations):
    """Those before a task looks whether the run goes on, as it does right before each commit."""
    looks = [k for k, (_, path) in enumerate(operations) if "/token-" in path]
    return operations[: looks[1]]


@pytest.mark.long
def test_a_join_takes_ten_operations_however_many_others_there_are(tmp_path, x, operations):
    path = prepared(x, tmp_path / "x")
    for index in range(3):
        write(x, path, index)
    counts = []
    for n_others in (4, 20, 80):
        for index in range(counts[-1][0] + 1 if counts else 3, n_others):
            write(x, path, index)
        operations.clear()
        assert write(x, path, n_others).n_shards == 1
        counts.append((n_others, len(until_the_first_commit(operations))))
    assert {n for _, n in counts} == {counts[0][1]}
    assert counts[0][1] <= 10, until_the_first_commit(operations)


def test_a_part_names_nothing_of_other_parts(tmp_path, x, operations):
    path = prepared(x, tmp_path / "x")
    write(x, path, 0)
    operations.clear()
    write(x, path, 1)
    assert not [name for _, name in operations if f"in-{N_PARTS}-parts/0" in name]


@pytest.mark.long
def test_the_second_attempt_at_a_part_reads_its_own_journal_only(tmp_path, x, operations):
    path = prepared(x, tmp_path / "x")
    for index in range(20):
        write(x, path, index)
    operations.clear()
    assert write(x, path, 7).n_resumed_shards == 1
    assert {name for _, name in operations if "/journal-" in name} == {
        f"/{seams.run_directory(path).name}/in-{N_PARTS}-parts/7/{log.name}"
        for log in seams.part_directory(path, 7, N_PARTS).glob("journal-*")
    }


@pytest.mark.long
def test_finalize_reads_all_parts(tmp_path, x):
    path = prepared(x, tmp_path / "x")
    for index in range(N_PARTS - 1):
        write(x, path, index)
    with pytest.raises(shardwrite.IncompleteError) as caught:
        shardwrite.finalize(path, n_parts=N_PARTS)
    assert caught.value.parts == [N_PARTS - 1]
    write(x, path, N_PARTS - 1)
    assert shardwrite.finalize(path).n_resumed_shards == N_PARTS
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], x.compute())
    assert not seams.state_beside(path).exists()


def test_shards_of_other_cuts_and_of_calls_without_parts_are_known(tmp_path, x):
    path = prepared(x, tmp_path / "x")
    write(x, path, 0, 2)
    results = [write(x, path, index, 3) for index in range(3)]
    assert sum(result.n_resumed_shards for result in results) == N_PARTS // 2
    again = [write(x, path, index, 5) for index in range(5)]
    assert sum(result.n_resumed_shards for result in again) == N_PARTS


def test_a_live_part_keeps_the_run_from_being_given_up(tmp_path, x):
    path = prepared(x, tmp_path / "x")
    write(x, path, 0)
    with (
        seams.hold(seams.part_directory(path, 0, N_PARTS)),
        pytest.raises(shardwrite.JournalError),
    ):
        shardwrite.prepare(x, path, one_part_each(x[::-1]), restart=True)


def test_a_part_of_a_run_that_was_given_up_stops(tmp_path, x):
    """Its token goes with the run: what it has begun to write is not committed, and the old array
    is back."""
    path = tmp_path / "x"
    old = da.zeros((4, 2), chunks=(4, 2), dtype="u2") + 5
    old.to_sharded_zarr(path, shards=(4, 2), chunks=(4, 2))
    shardwrite.prepare(x, path, one_part_each(x), mode="w")
    write(x, path, 0)

    gone = []

    def given_up(block):
        if not gone:
            gone.append(True)
            with seams.leases_run_out():
                shardwrite.abandon(path)
        return block

    watched = x.map_blocks(given_up, dtype=x.dtype, meta=np.empty((0, 0), "u2"))
    with pytest.raises(shardwrite.RunEndedError):
        write(watched, path, 1)
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], old.compute())
    assert not seams.state_beside(path).exists()


def test_a_link_in_the_place_of_a_part_is_not_followed(tmp_path, x):
    path = prepared(x, tmp_path / "x")
    write(x, path, 0)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    seams.part_directory(path, 1, N_PARTS).symlink_to(elsewhere)
    with pytest.raises(UntrustedStateError):
        write(x, path, 1)
    assert not list(elsewhere.iterdir())


def test_a_part_that_others_may_join_has_the_rights_of_the_run(tmp_path, x):
    path = tmp_path / "x"
    path.mkdir()
    path.chmod(0o2775)
    write(x, prepared(x, path), 0)
    run, part = seams.run_directory(path), seams.part_directory(path, 0, N_PARTS)
    assert part.stat().st_mode == part.parent.stat().st_mode == run.stat().st_mode

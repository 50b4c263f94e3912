"""A process that is asked to stop amid its last or only group has not done all: every operation
says so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import cloudpickle
import dask
import dask.array as da
import numpy as np
import pytest
import seams
from distributed import Client, LocalCluster
from forks import python

import shardwrite
from shardwrite.cli import main
from shardwrite.engines import LocalEngine, Stopped
from shardwrite.errors import IncompleteError
from shardwrite.host import stopping

VALUES = np.arange(48 * 48, dtype="u4").reshape(48, 48) + 1
KEYWORDS = {"shards": 8, "chunks": 4, "source_id": "these values"}
N_BEFORE = 10


@pytest.fixture
def x():
    return da.from_array(VALUES, chunks=48)


@pytest.fixture(autouse=True)
def again():
    with seams.log_every(0):  # so that no shard waits for others
        yield
    seams.forget_stop()


def drain_after(monkeypatch, n_shards):
    """Have this process asked to stop once it has published so many shards."""
    published = []
    if monkeypatch is None:
        seams.log_every(0).start()

    def count(writer):
        if "/c/" in writer.path:
            published.append(writer.path)
            if len(published) == n_shards:
                seams.request_stop()

    seams.after(monkeypatch, "rename a file", count)


@pytest.fixture
def draining(monkeypatch):
    drain_after(monkeypatch, N_BEFORE)


def test_a_part_of_one_group(tmp_path, x, draining):
    plan = shardwrite.plan(x, **KEYWORDS)
    assert plan.partition.n_groups == 1
    shardwrite.prepare(x, tmp_path / "x", plan)
    with pytest.raises(
        IncompleteError, match=r"26 of 36 shards are not committed.*stopped on request"
    ) as caught:
        shardwrite.write_part(x, tmp_path / "x", 0, 1, source_id="these values")
    assert len(caught.value.missing) == 26
    assert caught.value.n_written == N_BEFORE
    seams.forget_stop()
    assert (
        shardwrite.write_part(x, tmp_path / "x", 0, 1, source_id="these values").n_resumed_shards
        == N_BEFORE
    )
    assert shardwrite.finalize(tmp_path / "x").n_shards == 36


def test_a_part_whose_last_shards_were_in_flight_is_complete(tmp_path, x, monkeypatch):
    drain_after(monkeypatch, 36)
    shardwrite.prepare(x, tmp_path / "x", shardwrite.plan(x, **KEYWORDS))
    assert shardwrite.write_part(x, tmp_path / "x", 0, 1, source_id="these values").n_shards == 36


def test_what_other_threads_had_in_flight_is_not_called_missing(tmp_path, draining):
    """Two threads, each with a group: the report of the second does not come, but its journal lines
    do."""
    x = da.from_array(VALUES, chunks=(24, 48))
    with dask.config.set(num_workers=2):
        plan = shardwrite.plan(x, memory_limit="40kB", **KEYWORDS)
        assert plan.partition.n_groups > 1
        shardwrite.prepare(x, tmp_path / "x", plan)
        with pytest.raises(IncompleteError) as caught:
            shardwrite.write_part(x, tmp_path / "x", 0, 1, source_id="these values")
    there = {
        str(path.relative_to(tmp_path / "x"))
        for path in (tmp_path / "x" / "c").rglob("*")
        if path.is_file()
    }
    assert there
    assert not there & set(caught.value.missing)
    assert caught.value.n_written == len(there)


def test_an_array_whose_last_shards_were_in_flight_is_published(tmp_path, x, monkeypatch):
    """The reports of its tasks do not come, but their journal lines do."""
    run = LocalEngine.run

    def run_until_stopped(self, graph, keys, on_result, explain=None):
        run(self, graph, keys, lambda *_: None, explain)
        raise Stopped

    monkeypatch.setattr(LocalEngine, "run", run_until_stopped)
    assert x.to_sharded_zarr(tmp_path / "x", **KEYWORDS).n_shards == 36
    np.testing.assert_array_equal(shardwrite.open_sharded(tmp_path / "x")[...], VALUES)


def test_a_copy_that_is_stopped_before_its_last_look_says_what_is_left(tmp_path, x, monkeypatch):
    many = KEYWORDS | {"shards": 4}  # so many that tasks look at them
    x.to_sharded_zarr(tmp_path / "x", **many)
    drain_after(monkeypatch, 36)
    with pytest.raises(IncompleteError, match="is not finished, although all of its shards"):
        shardwrite.reshard(tmp_path / "x", tmp_path / "y", shards=2)
    seams.forget_stop()
    shardwrite.reshard(tmp_path / "x", tmp_path / "y", shards=2)
    np.testing.assert_array_equal(shardwrite.open_sharded(tmp_path / "y")[...], VALUES)


PROGRAM = f"""
import os, signal, sys, time
sys.path.insert(0, {os.path.dirname(__file__)!r})
from shardwrite.cli import main
from shardwrite.host import stopping
from shardwrite.stores import posix
real, published = posix.PosixWriter.publish, []
def publish(self):
    real(self)
    published.append(self.path)
    if len(published) == {N_BEFORE}:
        os.kill(os.getpid(), signal.SIGUSR1)
        while not stopping.is_draining():  # the main thread has to run to notice
            time.sleep(0.001)
posix.PosixWriter.publish = publish
main()
"""


def test_the_exit_code_of_a_part(tmp_path):
    np.save(tmp_path / "x.npy", VALUES)
    from click.testing import CliRunner

    path = tmp_path / "x.zarr"
    arguments = ["init", tmp_path / "x.npy", path, "--shards", 8, "--chunks", 4]
    assert CliRunner().invoke(main, [str(a) for a in arguments]).exit_code == 0
    command = [*python(), "-c", PROGRAM, "write-part", tmp_path / "x.npy", path, "0/1"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 85, ended.stdout + ended.stderr
    assert "not committed" in ended.stdout + ended.stderr
    assert -ended.returncode != signal.SIGUSR1


@pytest.mark.parametrize("scheduler", ["sync", "threads"])
@pytest.mark.parametrize("operation", ["write", "update", "erase", "compact", "repair"])
def test_operations(tmp_path, x, monkeypatch, scheduler, operation):
    path = tmp_path / "x"
    if operation != "write":
        x.to_sharded_zarr(path, strategy="append-only", **KEYWORDS)
    if operation == "compact":
        for at in range(0, 48, 8):
            region = (slice(None), slice(at, at + 4))
            (x[region] + 1).to_sharded_zarr(path, region=region, strategy=shardwrite.AppendOnly())
    if operation == "repair":
        for number, shard in enumerate(path.glob("c/*/*")):
            if number < 20:
                os.truncate(shard, 10)
    calls = {
        "write": lambda: x.to_sharded_zarr(path, **KEYWORDS),
        "update": lambda: (x + 1).to_sharded_zarr(
            path, region=(slice(None), slice(None)), source_id="more"
        ),
        "erase": lambda: shardwrite.erase(path, (slice(0, 44), slice(0, 44))),
        "compact": lambda: shardwrite.compact(path, above=0.0),
        "repair": lambda: shardwrite.repair(path, x),
    }
    n_left = {"repair": 10, "erase": 6}.get(
        operation, 26
    )  # erasing removes 20 shards without publishing anything
    n_done = 30 if operation == "erase" else N_BEFORE
    with dask.config.set(scheduler=scheduler, num_workers=1):
        before = stopping.n_committed()
        with (  # noqa: PT012
            monkeypatch.context() as patch,
            pytest.raises(
                IncompleteError,
                match=f"[^,0-9]{n_left} of [0-9]+ shards are not committed.*stopped on request",
            ),
        ):
            drain_after(patch, N_BEFORE)
            calls[operation]()
        done = stopping.n_committed() - before
        assert done == n_done, "the exit says whether there was progress"
        seams.forget_stop()
        calls[operation]()
    assert shardwrite.verify(path, deep=True).is_good


def test_a_stream(tmp_path):
    shardwrite.create(tmp_path / "x", shape=(0, 48), dtype="u4", shards=8, chunks=4)
    with (  # noqa: PT012
        pytest.raises(IncompleteError, match="asked to stop"),
        shardwrite.ShardWriter(tmp_path / "x", axis=0) as writer,
    ):
        writer.append(VALUES[:16])
        writer.flush()
        seams.request_stop()
        writer.append(VALUES[16:])
        writer.flush()
    assert shardwrite.open_sharded(tmp_path / "x").shape == (16, 48)


@pytest.mark.long
def test_workers_that_are_asked_to_stop(tmp_path, x):
    """The client is not; all else goes on, and the end tells what is missing."""
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        cloudpickle.register_pickle_by_value(
            sys.modules[__name__]
        )  # workers need not find this file
        client.run(drain_after, None, N_BEFORE)
        with pytest.raises(
            IncompleteError, match=r"26 of 36 shards are not committed.*stopped on request"
        ):
            x.to_sharded_zarr(tmp_path / "x", **KEYWORDS)
        client.run(seams.forget_stop)
        assert x.to_sharded_zarr(tmp_path / "x", **KEYWORDS).n_resumed_shards == N_BEFORE


def test_delayed(tmp_path, x, draining):
    todo = x.to_sharded_zarr(tmp_path / "x", compute=False, **KEYWORDS)
    with pytest.raises(IncompleteError, match=r"26 of 36 shards"):
        todo.compute(scheduler="sync")
    assert len(seams.done_shards(tmp_path / "x")) == N_BEFORE

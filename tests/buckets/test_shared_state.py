"""Runs whose state lies in the bucket, and that several processes write, or one writes later."""

from __future__ import annotations

import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor

import cloudpickle
import dask
import dask.array as da
import numpy as np
import proxy
import pytest
import servers
import zarr
import zarr.storage
from forks import python
from helpers import wait_for

import shardwrite
from shardwrite import IncompleteError, JournalError, RunEndedError
from shardwrite.journal import state_shared
from shardwrite.journal.rundir import holding

VALUES = np.random.default_rng(0).integers(1, 2**32, (64, 64), dtype="u4")
LAYOUT = {"shards": 16, "chunks": 4}
KEPT = ["shardwrite-receipt.json", "zarr.json"]
LONG = pytest.mark.long

PART = """
import sys, time
import dask, numpy as np, dask.array as da
import shardwrite
url, values, index, count, pause = sys.argv[1:]
x = da.from_array(np.load(values), chunks=(16, 64))
def slow(_):
    time.sleep(float(pause))
with dask.config.set({"shardwrite.lease.heartbeat": 0.2}):
    if int(index) < 0:
        print(shardwrite.finalize(url, n_parts=int(count)).n_shards)
    else:
        told = shardwrite.write_part(x, url, int(index), int(count), source_id="x", progress=slow,
                                     memory_limit="1GB")
        print(told.n_shards, told.n_resumed_shards)
"""

LATER = """
import pickle, sys
import dask, shardwrite
with open(sys.argv[1], "rb") as file:
    rest = pickle.load(file)
with dask.config.set(scheduler="threads"):
    print(rest.compute().n_shards)
"""


@pytest.fixture
def x():
    return da.from_array(VALUES, chunks=(16, 64))


@pytest.fixture
def elsewhere(tmp_path):
    """Starts a program in a process of its own, with a temporary directory that it alone sees."""
    np.save(tmp_path / "values.npy", VALUES)
    machines = iter(range(99))

    def start(server, program, *words):
        machine = tmp_path / f"machine-{next(machines)}"
        machine.mkdir()
        return subprocess.Popen(
            [*python(), "-c", program, *map(str, words)],
            env={**os.environ, **server.environment, "TMPDIR": str(machine)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def part(server, url, index, count, pause=0.0):
        return start(server, PART, url, tmp_path / "values.npy", index, count, pause)

    start.part = part
    return start


def told(process):
    out, trouble = process.communicate(timeout=200)
    assert process.returncode == 0, trouble
    return [int(word) for word in out.split()]


def begin(x, url, **how):
    """Begin a run of four groups, each of a row of shards."""
    plan = shardwrite.plan(x, source_id="x", memory_limit="30kB", **LAYOUT, **how)
    shardwrite.prepare(x, url, plan)


def part(x, url, index, count, **how):
    return shardwrite.write_part(x, url, index, count, source_id="x", memory_limit="1GB", **how)


@servers.on("moto", long=["seaweed", "azurite", "gcs"])
def test_parts_at_a_time_without_a_directory(service, url, x):
    begin(x, url)
    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(lambda k: part(x, url, k, 3), range(3)))
    assert sum(one.n_shards for one in done) == 16
    assert "zarr.json" not in servers.others(service, url)
    result = shardwrite.finalize(url, n_parts=3, keep_report=True)
    assert (result.n_shards, result.n_resumed_shards) == (16, 16)
    np.testing.assert_array_equal(servers.values_of(service, url), VALUES)
    assert servers.others(service, url) == [
        "shardwrite-receipt.json",
        "shardwrite-report.json",
        "zarr.json",
    ]
    assert shardwrite.finalize(url).n_shards == 16
    assert part(x, url, 0, 3).n_shards == 16, "the result of the whole array"


@pytest.mark.long
def test_an_early_end_names_the_parts_and_stops_none(moto, url, x):
    begin(x, url)
    missing = []

    def end(_):
        with pytest.raises(IncompleteError) as caught:
            shardwrite.finalize(url, n_parts=4)
        missing.append(caught.value.parts)

    with dask.config.set(scheduler="sync"):
        part(x, url, 1, 4, progress=end)
    assert missing[0] == [0, 1, 2, 3]
    assert missing[-1] == [0, 2, 3], "the shards are there, though the journal is not"
    for k in (0, 2, 3):
        part(x, url, k, 4)
    shardwrite.finalize(url)
    np.testing.assert_array_equal(servers.values_of(moto, url), VALUES)
    assert servers.others(moto, url) == KEPT


@pytest.mark.long
def test_a_part_that_was_killed_is_written_again(moto, elsewhere, url, x):
    begin(x, url)
    first = elsewhere.part(moto, url, 0, 2, pause=0.6)
    wait_for(lambda: shardwrite.report(url).n_done)
    first.send_signal(signal.SIGKILL)
    first.wait(30)
    n_done = shardwrite.report(url).n_done
    assert told(elsewhere.part(moto, url, 0, 2)) == [8, n_done]
    assert told(elsewhere.part(moto, url, 1, 2)) == [8, 0]
    assert told(elsewhere.part(moto, url, -1, 2)) == [16]
    np.testing.assert_array_equal(servers.values_of(moto, url), VALUES)
    assert servers.others(moto, url) == KEPT


@LONG
@pytest.mark.parametrize("fault", ["before", "lost"])
def test_an_end_that_was_killed_is_made_again(moto, elsewhere, url, x, fault):
    begin(x, url)
    for k in range(2):
        part(x, url, k, 2)
    process = None

    def plan(method, path, _):
        if method == "PUT" and path.endswith("zarr.json"):
            if fault == "before":
                os.kill(process.pid, signal.SIGKILL)
            return fault
        return None

    with proxy.before(moto, plan) as (between, faults):
        process = elsewhere.part(between, url, -1, 2)
        wait_for(lambda: faults.broken or process.poll() is not None)
        process.kill()
        process.wait(30)
    assert len(faults.broken) == 1
    # The lease of the process that is gone is taken over, on the same host at once.
    assert told(elsewhere.part(moto, url, 0, 2)) in ([8, 8], [16, 16])
    assert shardwrite.finalize(url).n_shards == 16
    np.testing.assert_array_equal(servers.values_of(moto, url), VALUES)
    assert servers.others(moto, url) == KEPT


@pytest.mark.long
def test_parts_stop_if_the_run_is_taken_away(moto, url, x):
    begin(x, url)
    seen = []

    def start_over(_):
        if not seen:
            seen.append(1)
            (x + 1).to_sharded_zarr(url, restart=True, **LAYOUT)

    with dask.config.set(scheduler="sync"), pytest.raises(RunEndedError, match="has ended"):
        part(x, url, 0, 1, progress=start_over)
    np.testing.assert_array_equal(servers.values_of(moto, url), VALUES + 1)
    assert servers.others(moto, url) == KEPT


@pytest.mark.long
def test_a_part_does_not_work_beside_a_process_that_works_alone(moto, url, x):
    begin(x, url)
    refused = []

    def try_part(_):
        if not refused:
            with pytest.raises(JournalError, match="is being written by another call") as caught:
                part(x, url, 0, 2)
            refused.append(caught.value)

    with dask.config.set(scheduler="sync"):
        x.to_sharded_zarr(url, source_id="x", progress=try_part, memory_limit="30kB", **LAYOUT)
    assert refused
    np.testing.assert_array_equal(servers.values_of(moto, url), VALUES)
    assert servers.others(moto, url) == KEPT


@LONG
def test_lines_that_another_holder_did_not_read_are_put_again(moto, url, x, monkeypatch):
    """Between two tasks of a part, another process holds the lease for a moment."""
    begin(x, url)
    monkeypatch.setattr(state_shared._Shared, "_go_on", lambda self: None)
    shares, original = [], state_shared._Shared.open

    def opened(self):
        original(self)
        shares.append(self)

    monkeypatch.setattr(state_shared._Shared, "open", opened)

    def meanwhile(_):
        shares[0].put()
        with holding(shares[0].given):
            pass

    with dask.config.set(scheduler="sync"):
        part(x, url, 0, 1, progress=meanwhile)
    assert shardwrite.report(url).n_done == 16, "all lines are in the log that counts now"
    shardwrite.finalize(url)
    assert servers.others(moto, url) == KEPT


@LONG
def test_arrays_without_shards_and_conversions_in_parts(moto, url, x, tmp_path):
    x.to_sharded_zarr(tmp_path / "a", shards=None, chunks=16)
    for dst, how in ((url, {"shards": 2}), (f"{url}-flat", {"shards": None})):
        shardwrite.prepare_conversion(tmp_path / "a", dst, **how)
        with pytest.raises(IncompleteError) as caught:
            shardwrite.finalize_conversion(tmp_path / "a", dst, n_parts=2, **how)
        assert caught.value.parts
        for k in range(2):
            shardwrite.convert_part(tmp_path / "a", dst, k, 2, **how)
        shardwrite.finalize_conversion(tmp_path / "a", dst, n_parts=2, **how)
        np.testing.assert_array_equal(servers.values_of(moto, dst), VALUES)
        assert servers.others(moto, dst) == KEPT


@pytest.mark.long
def test_commands_write_parts_without_a_directory(moto, url, tmp_path):
    from click.testing import CliRunner

    from shardwrite.cli import main

    np.save(tmp_path / "x.npy", VALUES)
    source = [str(tmp_path / "x.npy"), url]
    calls = [
        ["init", *source, "--shards", "16", "--chunks", "4"],
        ["write-part", *source, "0/2", "--dry-run"],
        ["write-part", *source, "0/2"],
        ["write-part", *source, "1/2"],
        ["finalize", url],
    ]
    for words in calls:
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, (words, done.output)
    np.testing.assert_array_equal(servers.values_of(moto, url), VALUES)
    assert servers.others(moto, url) == KEPT


@servers.on("moto", long=["seaweed", "azurite", "gcs"])
def test_later_and_in_another_process(service, elsewhere, url, x, tmp_path):
    rest = x.to_sharded_zarr(url, compute=False, **LAYOUT)
    assert "zarr.json" not in servers.others(service, url)
    (tmp_path / "rest").write_bytes(cloudpickle.dumps(rest))
    assert told(elsewhere(service, LATER, tmp_path / "rest")) == [16]
    np.testing.assert_array_equal(servers.values_of(service, url), VALUES)
    assert servers.others(service, url) == KEPT
    assert rest.compute().n_shards == 16, "nothing is written again"
    assert servers.others(service, url) == KEPT


@pytest.mark.long
@pytest.mark.parametrize("scheduler", ["threads", "sync"])
def test_updates_and_many_arrays_later(moto, url, x, scheduler):
    with dask.config.set(scheduler=scheduler):
        both = shardwrite.store([x, x + 1], [url, f"{url}-2"], compute=False, **LAYOUT)
        assert [one.n_shards for one in both.compute()] == [16, 16]
        seven = da.full((30, 6), 7, dtype="u4", chunks=8)
        rest = seven.to_sharded_zarr(url, region=np.s_[10:40, 3:9], compute=False)
        np.testing.assert_array_equal(servers.values_of(moto, url), VALUES)
        rest.compute()
        more = x.to_sharded_zarr(f"{url}-2", region="append", axis=0, compute=False)
        more.compute()
    wanted = VALUES.copy()
    wanted[10:40, 3:9] = 7
    np.testing.assert_array_equal(servers.values_of(moto, url), wanted)
    np.testing.assert_array_equal(
        servers.values_of(moto, f"{url}-2"), np.concatenate([VALUES + 1, VALUES])
    )
    for at in (url, f"{url}-2"):
        assert servers.others(moto, at) == KEPT
        assert shardwrite.verify(at, deep=True).is_good


@pytest.mark.long
def test_what_was_written_before_a_failure_is_kept(moto, url, x):
    broken = []

    def block(values, block_info=None):
        if block_info[0]["chunk-location"] == (2, 0) and not broken:
            broken.append(1)
            raise ZeroDivisionError
        return values

    call = {"source_id": "x", "memory_limit": "30kB", **LAYOUT}
    with dask.config.set(scheduler="sync"):
        y = x.map_blocks(block, dtype=x.dtype, meta=np.empty((0, 0), "u4"))
        with pytest.raises(ZeroDivisionError):
            y.to_sharded_zarr(url, compute=False, **call).compute()
        n_there = sum(key.startswith("c/") for key in moto.keys_of(url))
        assert y.to_sharded_zarr(url, **call).n_resumed_shards == n_there > 0
    np.testing.assert_array_equal(servers.values_of(moto, url), VALUES)
    assert servers.others(moto, url) == KEPT


@pytest.mark.long
def test_a_run_that_was_given_up_is_not_written_later(moto, url, x):
    with dask.config.set(scheduler="sync"):
        rest = x.to_sharded_zarr(url, compute=False, **LAYOUT)
        (x + 1).to_sharded_zarr(url, restart=True, **LAYOUT)
        with pytest.raises(RunEndedError):
            rest.compute()
    np.testing.assert_array_equal(servers.values_of(moto, url), VALUES + 1)
    assert servers.others(moto, url) == KEPT


@LONG
def test_later_on_a_cluster(moto, url, x):
    from distributed import Client, LocalCluster

    spawned = {"distributed.worker.multiprocessing-method": "spawn"}
    with (
        dask.config.set(spawned),
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster),
    ):
        assert x.to_sharded_zarr(url, compute=False, **LAYOUT).compute().n_shards == 16
    np.testing.assert_array_equal(servers.values_of(moto, url), VALUES)
    assert servers.others(moto, url) == KEPT


def flat(path):
    """An array without shards, of 16 chunks."""
    da.from_array(VALUES, chunks=16).to_sharded_zarr(path, shards=None, chunks=16)
    return path


CONSUME = """
import sys, dask, shardwrite
with dask.config.set({"scheduler": "sync", "shardwrite.lease.heartbeat": 0.3}):
    shardwrite.reshard(sys.argv[1], sys.argv[2], 2, consume=True, memory_limit="20kB")
"""


@LONG
def test_a_source_is_consumed_into_a_bucket_although_processes_are_killed(
    moto, elsewhere, url, tmp_path
):
    """At each moment every chunk is in the bucket or in the source, until the source is gone."""
    src, process = flat(tmp_path / "a"), None
    everything = {f"{i}/{j}" for i in range(4) for j in range(4)}
    codes, left_after = [], []

    def plan(method, path, number):
        if method == "PUT" and "/c/" in path:
            counts.append(path)
            if len(counts) == limits[-1]:
                os.kill(process.pid, signal.SIGKILL)
                return "before"
        return "before" if len(counts) > limits[-1] else None

    counts, limits = [], []
    for limit in (2, 1, 2, 99):
        limits.append(limit)
        counts.clear()
        with proxy.before(moto, plan) as (server, _):
            process = elsewhere(server, CONSUME, src, url)
            _, trouble = process.communicate(timeout=120)
            codes.append(process.returncode)
        left = {f.relative_to(src / "c").as_posix() for f in src.glob("c/*/*") if f.is_file()}
        made = {key[2:] for key in moto.keys_of(url) if key.startswith("c/")}
        gone = everything - left
        assert {f"{int(k[0]) // 2}/{int(k[2]) // 2}" for k in gone} <= made
        left_after.append(len(left))
        if codes[-1] == 0:
            break
    assert codes[-1] == 0, trouble
    assert codes[0] == -signal.SIGKILL
    assert left_after == [12, 12, 8, 0]
    np.testing.assert_array_equal(servers.values_of(moto, url), VALUES)
    assert servers.others(moto, url) == KEPT
    assert not src.exists()
    assert told(elsewhere(moto, CONSUME, src, url)) == []


@pytest.mark.long
def test_what_holds_data_that_was_removed_is_not_taken_away(moto, url, x, tmp_path):
    """The state in the bucket says so before the first chunk is removed."""
    src, n = flat(tmp_path / "a"), []
    call = {"memory_limit": "20kB", "consume": True}

    def stop(_):
        n.append(1)
        if len(n) == 1:
            raise InterruptedError

    with dask.config.set(scheduler="sync"), pytest.raises(InterruptedError):
        shardwrite.reshard(src, url, 2, progress=stop, **call)
    assert len(list(src.glob("c/*/*"))) == 12
    with pytest.raises(JournalError, match="They are not taken away"):
        x.to_sharded_zarr(url, restart=True, **LAYOUT)
    with dask.config.set(scheduler="sync"):
        done = shardwrite.reshard(src, url, 2, **call)
    assert done.n_removed == 12
    np.testing.assert_array_equal(servers.values_of(moto, url), VALUES)
    assert not src.exists()


@LONG
def test_a_hierarchy_is_consumed_and_an_array_that_grows_is_converted(moto, url, tmp_path):
    flat(tmp_path / "h/one")
    zarr.open_group(tmp_path / "h", mode="a", zarr_format=3)
    flat(tmp_path / "h/two")
    done = shardwrite.reshard(tmp_path / "h", url, 2, consume=True)
    assert done.n_removed == 32
    assert not (tmp_path / "h").exists()
    np.testing.assert_array_equal(servers.values_of(moto, f"{url}/two"), VALUES)
    array = zarr.create_array(tmp_path / "t", shape=(64, 64), chunks=(16, 64), dtype="u4")
    array[:40] = VALUES[:40]
    at = f"{url}-t"
    assert shardwrite.reshard(tmp_path / "t", at, (2, 1), while_growing=0).n_left == 1
    assert "zarr.json" not in servers.others(moto, at)
    array[40:] = VALUES[40:]
    assert shardwrite.reshard(tmp_path / "t", at, (2, 1)).arrays[0].result.n_resumed_shards == 1
    np.testing.assert_array_equal(servers.values_of(moto, at), VALUES)
    assert servers.others(moto, at) == KEPT

"""Runs whose state lies in the bucket of their array: kills, takeovers, and how many requests."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
import urllib.request
from datetime import timedelta

import dask
import dask.array as da
import numpy as np
import proxy
import pytest
import seams
import servers
from click.testing import CliRunner
from forks import python
from helpers import wait_for

import shardwrite
from shardwrite import JournalError, RunEndedError, SpecError, StoreError
from shardwrite.cli import main
from shardwrite.journal import state_lease
from shardwrite.stores.bucket import BucketStore

VALUES = np.random.default_rng(0).integers(1, 2**32, (64, 64), dtype="u4")
LAYOUT = {"shards": 16, "chunks": 4}
SPAWNED = dict.fromkeys(
    ("distributed.worker.multiprocessing-method", "multiprocessing.context"), "spawn"
)
KEPT = ["shardwrite-receipt.json", "zarr.json"]
LONG = pytest.mark.long
SHORT = {"shardwrite.lease.heartbeat": 0.5, "shardwrite.lease.ttl": 8.0}

PROGRAM = """
import sys
import dask, numpy as np, dask.array as da
import shardwrite
url, values, what, heartbeat, ttl, pause = sys.argv[1:]
x = da.from_array(np.load(values), chunks=(16, 64))
if float(pause):
    import time
    x = x.map_blocks(lambda block: (time.sleep(float(pause)), block)[1], dtype=x.dtype)
given = {"scheduler": "sync", "shardwrite.lease.heartbeat": float(heartbeat),
         "shardwrite.lease.ttl": float(ttl)}
with dask.config.set(given):
    how = {"new": {"shards": 16, "chunks": 4}, "again": {"shards": 16, "chunks": 4, "mode": "w"},
           "region": {"region": np.s_[:60, :60]}, "append": {"region": "append", "axis": 0},
           "restart": {"shards": 16, "chunks": 4, "restart": True}}[what]
    x = x[:60, :60][::-1] if what == "region" else x + 1 if what == "restart" else x
    try:
        result = x.to_sharded_zarr(url, source_id=what, memory_limit="30kB", **how)
        print(result.n_resumed_shards)
    except shardwrite.ShardwriteError as error:
        print(type(error).__name__, error)
"""


@pytest.fixture
def x():
    return da.from_array(VALUES, chunks=(16, 64))


@pytest.fixture
def program(tmp_path):
    """Starts the call in a process of its own, with a temporary directory that it alone sees."""
    np.save(tmp_path / "values.npy", VALUES)
    machines = iter(range(99))

    def start(server, url, what="new", *, heartbeat=15, ttl=120, pause=0):
        machine = tmp_path / f"machine-{next(machines)}"
        machine.mkdir()
        words = [url, tmp_path / "values.npy", what, heartbeat, ttl, pause]
        return subprocess.Popen(
            [*python(), "-c", PROGRAM, *map(str, words)],
            env={**os.environ, **server.environment, "TMPDIR": str(machine)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def told(process):
    out, trouble = process.communicate(timeout=200)
    assert process.returncode == 0, trouble
    return out.strip()


def is_state(path):
    return "shardwrite-run" in path or path.endswith(("zarr.json", "shardwrite-receipt.json"))


def wanted_after(what):
    wanted = VALUES + 1 if what == "restart" else VALUES.copy()
    if what == "region":
        wanted[:60, :60] = VALUES[:60, :60][::-1]
    return wanted


def killed_at(start, server, url, what, number, fault):
    """Kill the program at a request of state that changes something, before or after it is done.

    The next call, from another directory, goes on. Returns how many shards were put by then, how
    many were kept, and whether there was such a request.
    """
    shards = set()

    def counts(method, path):
        if method == "PUT" and "/c/" in path:
            shards.add(path)
        return method in ("PUT", "POST") and (is_state(path) or method == "POST")

    is_killed, process, out = proxy.killed(
        server, lambda between: start(between, url, what), counts, number, fault
    )
    if not is_killed:
        assert process.returncode == 0, out
        assert out[0].strip().isdigit(), out
        return None
    n_put = len(shards)
    again = told(start(server, url, what))
    assert again.isdigit(), (number, fault, again)
    np.testing.assert_array_equal(servers.values_of(server, url), wanted_after(what))
    assert servers.others(server, url) == KEPT, (number, fault)
    return n_put, int(again)


@pytest.mark.parametrize("what", ["new", "again", "region"])
@pytest.mark.parametrize("fault", ["before", "lost"])
@LONG
def test_killed_at_requests_that_change_the_state(moto_server, program, x, url, what, fault):
    """At every eighth of them, and every 24th where each old object is removed by one."""
    for number in range(fault == "lost", 99, 24 if what == "again" else 8):
        at = f"{url}-{number}"
        if what != "new":
            write_whole(moto_server, at)
        found = killed_at(program, moto_server, at, what, number, fault)
        if found is None:
            break
        n_put, n_kept = found
        if what != "region":
            assert n_kept >= n_put - 2 or n_kept == 16, "only what was in flight is done again"
    assert number > 8


@pytest.mark.parametrize("what", ["new", "restart"])
@LONG
def test_killed_again(moto_server, program, url, what):
    """A run that was killed is continued, or taken away, by a process that is killed, too."""
    for number in range(1, 99, 12):
        at = f"{url}-{number}"
        first = program(moto_server, at, pause=0.1)
        prefix = at.removeprefix("s3://bucket/")
        wait_for(lambda prefix=prefix: "c/1/0" in moto_server.keys(prefix))
        first.kill()
        first.wait(30)
        if killed_at(program, moto_server, at, what, number, "lost") is None:
            break
    assert number > 8


def write_whole(server, url):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        da.from_array(VALUES, chunks=(16, 64)).to_sharded_zarr(url, **LAYOUT)


@pytest.mark.parametrize(
    ("service", "number", "fault"),
    [
        ("moto", 5, "before"),
        pytest.param("moto", 1, "lost", marks=LONG),
        pytest.param("azurite", 5, "before", marks=LONG),
        pytest.param("gcs", 1, "lost", marks=LONG),
    ],
    indirect=["service"],
)
def test_killed_and_resumed_elsewhere(service, program, url, number, fault):
    killed_at(program, service, url, "new", number, fault)


@servers.on("moto", long=["azurite", "seaweed", "gcs"])
def test_without_a_directory(service, url, x):
    result = x.to_sharded_zarr(url, **LAYOUT)
    assert (result.n_shards, result.n_resumed_shards) == (16, 0)
    assert servers.others(service, url) == KEPT
    da.full((30, 6), 7, dtype="u4").to_sharded_zarr(url, region=np.s_[10:40, 3:9])
    wanted = VALUES.copy()
    wanted[10:40, 3:9] = 7
    np.testing.assert_array_equal(servers.values_of(service, url), wanted)
    x.to_sharded_zarr(url, mode="w", **LAYOUT)
    np.testing.assert_array_equal(servers.values_of(service, url), VALUES)
    assert shardwrite.verify(url, deep=True, accept=True).is_good
    assert shardwrite.abandon(url) == []
    shardwrite.compact(url)
    assert servers.others(service, url) == KEPT


@servers.on("moto", long=["azurite", "seaweed", "gcs"])
@pytest.mark.parametrize("lost", ["all", "the log"])
def test_a_state_that_is_lost(service, url, x, lost):
    """As where a rule of the bucket removes what it takes for temporary. The mark stays."""
    import obstore

    with pytest.raises(InterruptedError), dask.config.set(scheduler="sync"):
        x.to_sharded_zarr(url, progress=interrupt, memory_limit="30kB", **LAYOUT)
    n_put = sum(key.startswith("c/") for key in service.keys_of(url))
    assert 0 < n_put < 16
    gone = [key for key in service.keys_of(url) if key.startswith("shardwrite-run/")]
    if lost == "the log":
        gone.remove(state_lease.LEASE)
    obstore.delete(service.client(servers.below_bucket(url)), gone)
    look = shardwrite.recover(url, x, dry_run=True, **LAYOUT)
    assert (look.n_good, look.n_missing) == (n_put, 16 - n_put)
    assert shardwrite.recover(url, x, **LAYOUT).result.n_resumed_shards == n_put
    np.testing.assert_array_equal(servers.values_of(service, url), VALUES)
    assert servers.others(service, url) == KEPT


@pytest.mark.long
def test_who_writes_and_when_it_was_last_heard_of(moto, program, url, monkeypatch):
    """The age of the lease is the one that the service tells, and not that of the copy here."""
    process = program(moto, url, pause=0.5)
    try:
        wait_for(lambda: any(key.startswith("c/") for key in moto.keys_of(url)))
        monkeypatch.setattr(BucketStore, "changed_at", lambda *_: time.time() - 40)
        (writer,) = json.loads(run_command("info", url, "--json"))["writers"]
        assert re.search(r", pid \d+, last sign of life [4-9]\d s ago$", writer)
    finally:
        process.kill()
        process.communicate()
    assert json.loads(run_command("info", url, "--json"))["writers"] == []


def run_command(*words):
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.long
def test_a_state_that_is_not_lost(moto, url, x):
    with pytest.raises(InterruptedError), dask.config.set(scheduler="sync"):
        x.to_sharded_zarr(url, progress=interrupt, memory_limit="30kB", **LAYOUT)
    with pytest.raises(JournalError, match="is not lost, and it has another plan"):
        shardwrite.recover(url, x + 1, **LAYOUT)
    x.to_sharded_zarr(url, mode="w", restart=True, **LAYOUT)
    with pytest.raises(InterruptedError), dask.config.set(scheduler="sync"):
        (x + 1).to_sharded_zarr(url, mode="w", progress=interrupt, memory_limit="30kB", **LAYOUT)
    store = moto.client(servers.below_bucket(url))
    import obstore

    obstore.delete(store, [key for key in moto.keys_of(url) if "shardwrite-run/" in key])
    with pytest.raises(SpecError, match=r"'shardwrite-receipt.json', 'zarr.json', which is no"):
        shardwrite.recover(url, x + 1, **LAYOUT)  # shards of two arrays


@pytest.mark.long
def test_a_folder_that_a_console_has_made_is_empty(moto, url, x):
    at = f"{moto.endpoint}/{url.removeprefix('s3://')}/"
    urllib.request.urlopen(urllib.request.Request(at, method="PUT", data=b""), timeout=30).close()
    assert moto.keys_of(url) == [""]
    x.to_sharded_zarr(url, **LAYOUT)
    x.to_sharded_zarr(url, mode="w", **LAYOUT)
    np.testing.assert_array_equal(servers.values_of(moto, url), VALUES)
    assert servers.others(moto, url) == ["", *KEPT]


@pytest.mark.long
def test_an_array_with_an_unfinished_update_is_not_copied(moto, url, x, tmp_path):
    x.to_sharded_zarr(url, **LAYOUT)
    call = {"region": np.s_[:60, :60], "source_id": "x"}
    with pytest.raises(InterruptedError), dask.config.set(scheduler="sync"):
        x[:60, :60].to_sharded_zarr(url, progress=interrupt, **call)
    for copy in (shardwrite.download, shardwrite.reshard):
        with pytest.raises(JournalError, match=r"has not ended\. Finish it by the same call, or"):
            copy(url, tmp_path / "copy")
    x[:60, :60].to_sharded_zarr(url, **call)
    assert shardwrite.download(url, tmp_path / "copy").n_objects == 16


@LONG
def test_a_service_that_takes_one_change_of_an_object_in_a_second(moto_server, environment, url, x):
    """As GCS does. The lease is an object that changes more often when a run begins or ends."""
    with servers.gcs_before(moto_server, pause=1) as server:
        environment(server)
        x.to_sharded_zarr(url.replace("s3:", "gs:"), **LAYOUT)
        np.testing.assert_array_equal(servers.values_of(server, url), VALUES)
        assert servers.others(server, url) == KEPT
        assert server.generations.n_refused > 0


@LONG
def test_an_array_that_grows_and_one_that_is_mended(moto, url, x):
    import obstore

    shardwrite.create(url, (0, 64), "u4", **LAYOUT)
    x.to_sharded_zarr(url, region="append", axis=0)
    obstore.delete(moto.client(url.removeprefix("s3://bucket/")), "c/1/1")
    assert [task.key for task in shardwrite.repair(url, x).tasks] == ["c/1/1"]
    np.testing.assert_array_equal(servers.values_of(moto, url), VALUES)
    assert servers.others(moto, url) == KEPT


@pytest.mark.long
def test_a_bad_shard_is_kept_in_the_bucket(moto, url, x):
    """The directory of the process that mends the array is removed at its exit."""
    import obstore

    x.to_sharded_zarr(url, **LAYOUT)
    client = moto.client(url.removeprefix("s3://bucket/"))
    obstore.put(client, "c/1/1", b"not a shard")
    (copy,) = shardwrite.repair(url, x).quarantined
    assert copy.startswith(f"{url}/shardwrite-quarantine/c.1.1.")
    assert bytes(obstore.get(client, copy.removeprefix(f"{url}/")).bytes()) == b"not a shard"
    np.testing.assert_array_equal(servers.values_of(moto, url), VALUES)
    assert shardwrite.verify(url).is_good
    (x + 1).to_sharded_zarr(url, mode="w", **LAYOUT)
    assert [key for key in servers.others(moto, url) if key not in KEPT] == [
        copy.removeprefix(f"{url}/")
    ]


@pytest.mark.long
def test_a_look_at_a_run_that_was_killed(moto, program, url, x):
    import obstore

    process = program(moto, url, pause=0.5)
    wait_for(
        lambda: any(key.startswith("c/") for key in moto.keys(url.removeprefix("s3://bucket/")))
    )
    process.kill()
    process.wait(30)
    found = shardwrite.report(url)
    assert (found.state, found.n_done < 16) == ("interrupted", True)
    report = shardwrite.verify(url)
    assert not report.is_complete
    before = servers.others(moto, url)
    assert "shardwrite-run.json" in before
    assert before == servers.others(moto, url), "a look changes nothing"
    client = moto.client(url.removeprefix("s3://bucket/"))
    for key in before:
        content = bytes(obstore.get(client, key).bytes())
        assert servers.KEY.encode() not in content
        assert servers.SECRET.encode() not in content
    with pytest.raises(JournalError, match="another plan was begun"):
        x.to_sharded_zarr(url, shards=32, chunks=4)
    x.to_sharded_zarr(url, shards=32, chunks=4, restart=True)
    np.testing.assert_array_equal(servers.values_of(moto, url), VALUES)
    assert servers.others(moto, url) == KEPT


@pytest.mark.long
def test_an_update_that_was_killed_is_given_up(moto, program, url, x):
    x.to_sharded_zarr(url, **LAYOUT)
    process = program(moto, url, "region", pause=1)
    wait_for(
        lambda: (
            any("run/" in key for key in servers.others(moto, url))
            and len(servers.others(moto, url)) > 3
        )
    )
    process.kill()
    process.wait(30)
    assert shardwrite.abandon(url) == [((0, 60), (0, 60))]
    assert servers.others(moto, url) == KEPT
    assert shardwrite.verify(url, deep=True).is_good


@LONG
@pytest.mark.parametrize("ends", ["given up", "again"])
def test_an_append_whose_last_lines_are_not_in_the_bucket(moto, program, url, x, ends):
    """Shards beyond the array, which no journal in the bucket names, do not stay behind."""
    x.to_sharded_zarr(url, **LAYOUT)
    process = program(moto, url, "append", pause=0.2)
    prefix = url.removeprefix("s3://bucket/")
    wait_for(lambda: "c/5/3" in moto.keys(prefix))
    process.kill()
    process.wait(30)
    if ends == "given up":
        assert len(shardwrite.abandon(url)) == 1
        np.testing.assert_array_equal(servers.values_of(moto, url), VALUES)
        assert not [key for key in moto.keys(prefix) if key > "c/4" and key < "c/9"]
    else:
        assert told(program(moto, url, "append")).isdigit()
        np.testing.assert_array_equal(
            servers.values_of(moto, url), np.concatenate([VALUES, VALUES])
        )
    assert servers.others(moto, url) == KEPT
    assert shardwrite.verify(url, deep=True).is_good


@pytest.mark.long
def test_a_second_process_is_refused_while_the_first_lives(moto, program, url, x):
    first = program(moto, url, pause=2)
    wait_for(lambda: "shardwrite-run.json" in servers.others(moto, url))
    with pytest.raises(JournalError, match="is being written by another process") as caught:
        x.to_sharded_zarr(url, **LAYOUT)
    assert caught.value.holder["pid"]
    assert shardwrite.report(url).state == "running"
    assert told(first) == "0"
    np.testing.assert_array_equal(servers.values_of(moto, url), VALUES)
    assert servers.others(moto, url) == KEPT


@LONG
@pytest.mark.parametrize("same", [True, False])
def test_a_process_that_was_frozen_publishes_nothing(moto, program, url, x, same):
    """Its lease runs out meanwhile, and another process goes on, or starts over."""
    first = program(moto, url, heartbeat=0.5, ttl=4, pause=1)
    wait_for(
        lambda: any(key.startswith("c/") for key in moto.keys(url.removeprefix("s3://bucket/")))
    )
    frozen = holder(moto, url)
    os.kill(frozen, signal.SIGSTOP)
    time.sleep(6)
    y = da.from_array(VALUES + 1, chunks=(16, 64))
    with dask.config.set({**SHORT, "scheduler": "sync"}):
        if same:
            result = x.to_sharded_zarr(url, source_id="new", memory_limit="30kB", **LAYOUT)
            assert result.n_resumed_shards > 0
        else:
            y.to_sharded_zarr(url, restart=True, **LAYOUT)
    os.kill(frozen, signal.SIGCONT)
    said = told(first)
    assert said.startswith("RunEndedError") or (same and said.isdigit()), said
    np.testing.assert_array_equal(servers.values_of(moto, url), VALUES if same else VALUES + 1)
    assert servers.others(moto, url) == KEPT


@pytest.mark.parametrize("mode", ["w-", pytest.param("w", marks=LONG)])
@pytest.mark.parametrize("resumes", [False, pytest.param(True, marks=LONG)])
def test_a_process_that_was_frozen_before_its_state_was_there(
    moto, program, url, x, monkeypatch, mode, resumes
):
    """Meanwhile another process takes over, makes the array, and ends. Nothing is left of it that
    tells the first process that it was there."""
    import obstore

    if resumes:
        with pytest.raises(InterruptedError), dask.config.set(scheduler="sync"):
            x.to_sharded_zarr(url, source_id="x", mode=mode, progress=interrupt, **LAYOUT)
    original, woken = seams.real("put the state of a run"), []

    def put(self):
        if not woken:
            woken.append(self)
            obstore.delete(moto.client(servers.below_bucket(url)), [state_lease.LEASE])
            assert told(program(moto, url, "restart")) == "0"
        original(self)

    monkeypatch.setattr(*seams.step("put the state of a run"), put)
    with dask.config.set(scheduler="sync"), pytest.raises(RunEndedError, match="taken over"):
        x.to_sharded_zarr(url, source_id="x", mode=mode, **LAYOUT)
    np.testing.assert_array_equal(servers.values_of(moto, url), VALUES + 1)
    assert servers.others(moto, url) == KEPT


def interrupt(_):
    raise InterruptedError


def test_a_takeover_that_removed_everything_is_told_as_one(moto, url, x, monkeypatch):
    """The mark of the run is gone, but not because somebody removed it by hand."""
    import obstore

    def take_over(*_, **more):
        obstore.delete(moto.client(servers.below_bucket(url)), moto.keys_of(url))

    seams.after(monkeypatch, "mark the array as a run's", take_over)
    with dask.config.set(scheduler="sync"), pytest.raises(RunEndedError, match="taken over"):
        x.to_sharded_zarr(url, **LAYOUT)
    assert moto.keys_of(url) == []


def holder(server, url):
    """Number of the process that holds the lease. `forks` starts it behind a command."""
    import obstore

    client = server.client(url.removeprefix("s3://bucket/"))
    return json.loads(bytes(obstore.get(client, "shardwrite-run/lease.json").bytes()))["process"][
        "pid"
    ]


@pytest.mark.long
def test_the_state_takes_few_requests(moto_server, environment, url):
    with proxy.before(moto_server) as (server, faults):
        environment(server)
        big = da.ones((32, 32), chunks=(4, 4), dtype="u4")
        big.to_sharded_zarr(url, shards=4, chunks=4)
    puts = [path for method, path in faults.seen if method == "PUT"]
    assert len([path for path in puts if "/c/" in path]) == 64
    assert len([path for path in puts if "shardwrite-run" in path]) < 20


def test_without_conditional_requests_a_directory_is_asked_for(moto, url, x, monkeypatch, tmp_path):
    from shardwrite.stores.bucket import BucketStore

    monkeypatch.setattr(BucketStore, "_keeps_conditions", lambda self, name: False)
    with pytest.raises(SpecError, match=r"run_dir=None: BucketStore cannot.*run_dir=\"/scratch"):
        x.to_sharded_zarr(url, **LAYOUT)
    assert moto.keys(url.removeprefix("s3://bucket/")) == []
    x.to_sharded_zarr(url, run_dir=tmp_path, **LAYOUT)


STREAM = """
import sys, time
import dask, numpy as np
import shardwrite
url, values, n, pause = sys.argv[1:]
frames = np.load(values)
with shardwrite.ShardWriter(url) as writer:
    for t in range(int(n)):
        writer.append(frames[t % 64])
        if t % 6 == 5:
            writer.flush()
            print(t + 1, flush=True)
            time.sleep(float(pause))
print("end", flush=True)
"""


def stream(tmp_path, server, url, pause=0.0, n=14):
    np.save(tmp_path / "values.npy", VALUES)
    words = [url, tmp_path / "values.npy", n, pause]
    return subprocess.Popen(
        [*python(), "-c", STREAM, *map(str, words)],
        env={**os.environ, **server.environment, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.long
def test_a_stream_without_a_directory(moto, url):
    shardwrite.create(url, (0, 64), "u4", **LAYOUT)
    with shardwrite.ShardWriter(url) as writer:
        writer.append(VALUES[:20])
        writer.flush()
        np.testing.assert_array_equal(servers.values_of(moto, url), VALUES[:20])
        with pytest.raises(JournalError, match="is being written by"):
            da.ones((1, 1), dtype="u4").to_sharded_zarr(url, region=np.s_[:1, :1])
        writer.append(VALUES[20:])
        writer[0] = VALUES[63]
    wanted = np.concatenate([VALUES[63:], VALUES[1:]])
    np.testing.assert_array_equal(servers.values_of(moto, url), wanted)
    assert shardwrite.verify(url, deep=True).is_good
    assert servers.others(moto, url) == KEPT


def stream_killed_at(tmp_path, server, at, number, fault):
    """Kill a stream at a request that changes something, and return what it said.

    None if it came to its end before.
    """
    seen, process = [], None

    def plan(method, path, _):
        if method not in ("PUT", "POST", "DELETE"):
            return None
        seen.append(path)
        if len(seen) == number + 1 and fault == "before":
            os.kill(process.pid, signal.SIGKILL)
        return None if len(seen) <= number else fault if len(seen) == number + 1 else "before"

    with proxy.before(server, plan) as (between, _):
        process = stream(tmp_path, between, at)
        while len(seen) <= number and process.poll() is None:
            time.sleep(0.01)
        time.sleep(0.05)
        process.kill()
        out, trouble = process.communicate(timeout=200)
    if len(seen) > number:
        return out
    assert out.endswith("end\n"), (out, trouble)
    return None


@LONG
@pytest.mark.parametrize("fault", ["before", "lost"])
def test_a_stream_that_is_killed_keeps_what_was_flushed(moto, tmp_path, url, fault):
    """At every twelfth request that changes something; another writer goes on from elsewhere."""
    for number in range(6 * (fault == "lost"), 99, 12):
        at = f"{url}-{number}"
        shardwrite.create(at, (0, 64), "u4", **LAYOUT)
        out = stream_killed_at(tmp_path, moto, at, number, fault)
        if out is None:
            break
        n_flushed = max([0, *map(int, out.split())])
        with shardwrite.ShardWriter(at) as writer:
            start = writer.shape[0]
            assert start >= n_flushed, number
            np.testing.assert_array_equal(
                servers.values_of(moto, at)[:n_flushed], VALUES[:n_flushed]
            )
            writer.append(VALUES[start:])
        found = servers.values_of(moto, at)
        np.testing.assert_array_equal(found[:n_flushed], VALUES[:n_flushed])
        np.testing.assert_array_equal(found[start:], VALUES[start:])
        assert servers.others(moto, at) == KEPT, number
        assert shardwrite.verify(at, deep=True).is_good
    assert number > 12


@pytest.mark.long
def test_a_failed_put_is_an_error_and_the_same_call_goes_on(moto_server, environment, url, x):
    soon = {"max_retries": 0, "retry_timeout": timedelta(seconds=1)}
    given = {"shardwrite.storage": {"retry_config": soon}, "scheduler": "sync"}
    broken = []

    def plan(method, path, number):
        is_one = method == "PUT" and re.search("run/[0-9a-f]+-00000002$", path)
        if is_one and not broken:
            broken.append(path)
            return "503"
        return None

    with proxy.before(moto_server, plan) as (server, _), dask.config.set(given):
        environment(server)
        with pytest.raises(StoreError):
            x.to_sharded_zarr(url, **LAYOUT)
        assert broken
        assert x.to_sharded_zarr(url, **LAYOUT).n_resumed_shards == 16
    np.testing.assert_array_equal(servers.values_of(moto_server, url), VALUES)
    assert servers.others(moto_server, url) == KEPT


def test_another_process_may_have_taken_over_right_before_the_end(moto, url, x, monkeypatch):
    """The lease is lost after the last shard: the process publishes nothing."""
    import obstore

    client = moto.client(url.removeprefix("s3://bucket/"))

    def lose(*_):
        found = bytes(obstore.get(client, "shardwrite-run/lease.json").bytes())
        obstore.put(
            client, "shardwrite-run/lease.json", found.replace(b'"holder": "', b'"holder": "f')
        )

    seams.before(monkeypatch, "publish the array", lose)
    with pytest.raises(RunEndedError):
        x.to_sharded_zarr(url, **LAYOUT)
    assert "zarr.json" not in servers.others(moto, url)


@pytest.mark.long
def test_a_lease_that_cannot_be_renewed_stops_tasks_and_loses_nothing(
    moto_server, environment, url, x
):
    soon = {"max_retries": 0, "retry_timeout": timedelta(seconds=1)}
    given = {
        "shardwrite.storage": {"retry_config": soon},
        "shardwrite.retry-pauses": [],
        "shardwrite.lease.heartbeat": 0.4,
        "shardwrite.lease.ttl": 2.0,
        "scheduler": "sync",
    }
    down = threading.Event()

    def plan(method, path, number):
        if "/c/1/" in path:
            down.set()
        return "503" if down.is_set() and "shardwrite-run" in path else None

    slow = x.map_blocks(lambda block: (time.sleep(2.5), block)[1], dtype=x.dtype)
    with proxy.before(moto_server, plan) as (server, faults), dask.config.set(given):
        environment(server)
        call = {"source_id": "it", "memory_limit": "30kB", **LAYOUT}
        with pytest.raises(StoreError, match=r"could not be renewed in time.*make the same call"):
            slow.to_sharded_zarr(url, **call)
        faults.plan = None
        with dask.config.set({"shardwrite.lease.ttl": 60}):
            assert slow.to_sharded_zarr(url, **call).n_resumed_shards >= 8
    np.testing.assert_array_equal(servers.values_of(moto_server, url), VALUES)
    assert servers.others(moto_server, url) == KEPT


@LONG
def test_a_directory_does_not_go_along_with_a_state_in_the_bucket(moto, program, url, x, tmp_path):
    x.to_sharded_zarr(url, **LAYOUT)
    process = program(moto, url, "region", pause=1)
    wait_for(lambda: any(key.endswith("-00000000") for key in servers.others(moto, url)))
    process.kill()
    process.wait(30)
    one = da.ones((1, 1), dtype="u4")
    with pytest.raises(JournalError, match="Finish it by the same call without run_dir"):
        one.to_sharded_zarr(url, region=np.s_[63:, 63:], run_dir=tmp_path)
    assert told(program(moto, url, "region")).isdigit()
    one.to_sharded_zarr(url, region=np.s_[63:, 63:], run_dir=tmp_path)
    assert servers.others(moto, url) == KEPT


@LONG
def test_two_at_once(moto, program, url):
    both = [program(moto, url, pause=0.2) for _ in range(2)]
    said = sorted(told(one) for one in both)
    assert said[0] == "0", said
    assert said[1].startswith("JournalError") or said[1].isdigit(), said
    np.testing.assert_array_equal(servers.values_of(moto, url), VALUES)
    assert servers.others(moto, url) == KEPT


@LONG
def test_processes_and_a_cluster_on_this_machine(moto, url, x):
    from distributed import Client, LocalCluster

    # Processes that a server forks have the environment of the first test, and so its bucket.
    with dask.config.set({"scheduler": "processes", "num_workers": 2, **SPAWNED}):
        x.to_sharded_zarr(url, **LAYOUT)
    with (
        dask.config.set(SPAWNED),
        LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=None) as cluster,
        Client(cluster),
    ):
        x.rechunk((64, 8)).to_sharded_zarr(url, mode="w", **LAYOUT)
    np.testing.assert_array_equal(servers.values_of(moto, url), VALUES)
    assert servers.others(moto, url) == KEPT


@LONG
def test_workers_that_reach_another_service_are_noticed(moto, url, x):
    from distributed import Client, LocalCluster

    def write_by_a_worker_that_reaches(server, **how):
        one = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
        with dask.config.set(SPAWNED), LocalCluster(**one) as cluster, Client(cluster) as client:
            client.run(os.environ.update, {"AWS_ENDPOINT_URL": server.endpoint})
            x.to_sharded_zarr(url, **LAYOUT, **how)

    told = r"16 shards .* are not in .* another service"
    with servers.moto() as other, pytest.raises(StoreError, match=told):
        write_by_a_worker_that_reaches(other)
    write_by_a_worker_that_reaches(moto, recheck=True)
    np.testing.assert_array_equal(servers.values_of(moto, url), VALUES)
    assert servers.others(moto, url) == KEPT


@pytest.mark.long
def test_a_process_that_is_told_to_leave_gives_its_lease_back(moto, program, url, x):
    """As the handlers of signals do it; another process goes on at once."""
    call = {"source_id": "new", "memory_limit": "30kB", **LAYOUT}
    with dask.config.set(scheduler="sync"), pytest.raises(RunEndedError):
        x.to_sharded_zarr(url, progress=lambda _: seams.leave(), **call)
    assert int(told(program(moto, url))) > 0
    np.testing.assert_array_equal(servers.values_of(moto, url), VALUES)
    assert servers.others(moto, url) == KEPT

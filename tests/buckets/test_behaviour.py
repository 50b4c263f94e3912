"""What a directory can do, a bucket can do: write, resume, verify, update, and be read by others."""

from __future__ import annotations

import itertools
import signal
import subprocess
import threading

import dask
import dask.array as da
import numpy as np
import pytest
import zarr.storage
from forks import python
from servers import below_bucket, on

import shardwrite
from shardwrite import JournalError, StoreError
from shardwrite.stores.bucket_url import open_bucket

VALUES = np.random.default_rng(0).integers(1, 2**32, (64, 64), dtype="u4")
LAYOUT = {"shards": 16, "chunks": 4}


@pytest.fixture
def x():
    return da.from_array(VALUES, chunks=(16, 64))


@pytest.fixture
def runs(tmp_path):
    return tmp_path / "runs"


@on("seaweed", long=["gcs", "azurite"])
def test_written_updated_and_read_by_others(service, url, x, runs):
    result = x.to_sharded_zarr(url, run_dir=runs, **LAYOUT)
    assert (result.n_shards, result.path) == (16, url)
    assert shardwrite.verify(url, run_dir=runs, deep=True, against=x).is_good
    assert (shardwrite.census(url).stored_nbytes > 0).sum() == 16
    wanted = VALUES.copy()
    wanted[10:40, 3:9] = 7
    da.full((30, 6), 7, dtype="u4").to_sharded_zarr(url, region=np.s_[10:40, 3:9], run_dir=runs)
    prefix = below_bucket(url)
    readers = {
        "shardwrite": lambda: shardwrite.open_sharded(url)[:, :],
        "ObjectStore": lambda: zarr.open_array(zarr.storage.ObjectStore(service.client(prefix)))[:],
    }
    if service.scheme == "s3":
        readers["tensorstore"] = lambda: by_tensorstore(service, prefix)
    for name, read in readers.items():
        np.testing.assert_array_equal(read(), wanted, err_msg=name)
    kept = {"shardwrite-receipt.json", "zarr.json"}
    assert {key for key in service.keys(prefix) if not key.startswith("c/")} == kept
    assert not list(runs.iterdir()), "no state of a run that has ended is left"


def by_tensorstore(server, prefix):
    tensorstore = pytest.importorskip("tensorstore")
    kvstore = {"driver": "s3", "bucket": server.bucket, "path": f"{prefix}/"}
    spec = {
        "driver": "zarr3",
        "kvstore": {**kvstore, "endpoint": server.endpoint, "aws_region": "us-east-1"},
    }
    return tensorstore.open(spec).result().read().result()


PROGRAM = """
import os, signal, sys
import dask, numpy as np, dask.array as da
import shardwrite
count = [0]
def die(report):
    count[0] += 1
    if count[0] == int(sys.argv[4]):
        os.kill(os.getpid(), signal.SIGKILL)
x = da.from_array(np.load(sys.argv[3]), chunks=(16, 64))
with dask.config.set(scheduler="sync"):
    region = {} if sys.argv[5] == "new" else {"region": np.s_[0:60, 0:60]}
    x = x if sys.argv[5] == "new" else x[:60, :60][::-1]
    layout = {"shards": 16, "chunks": 4} if sys.argv[5] == "new" else {}
    result = x.to_sharded_zarr(
        sys.argv[1], run_dir=sys.argv[2], source_id="it", memory_limit="30kB",
        progress=die, **layout, **region
    )
print(result.n_resumed_shards)
"""


def run(url, runs, values, after, what):
    done = subprocess.run(
        [*python(), "-c", PROGRAM, url, runs, values, str(after), what],
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("service", "what"),
    [
        ("seaweed", "new"),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in [("seaweed", "region"), ("azurite", "region")]
        ),
    ],
    indirect=["service"],
)
def test_killed_and_resumed(service, url, x, runs, tmp_path, what):
    np.save(tmp_path / "values.npy", VALUES)
    wanted = VALUES.copy()
    if what == "region":
        x.to_sharded_zarr(url, run_dir=runs, **LAYOUT)
        wanted[:60, :60] = VALUES[:60, :60][::-1]
    code, _, told = run(url, runs, tmp_path / "values.npy", 2, what)
    assert code == -signal.SIGKILL, told
    if what == "new":
        keys = service.keys_of(url)
        assert "shardwrite-run.json" in keys
        assert "zarr.json" not in keys
    code, told, trouble = run(url, runs, tmp_path / "values.npy", -1, what)
    assert code == 0, trouble
    assert 0 < int(told) < 16
    np.testing.assert_array_equal(shardwrite.open_sharded(url)[:, :], wanted)
    assert "shardwrite-run.json" not in service.keys_of(url)
    assert not list(runs.iterdir())


@on("seaweed", long=["azurite", "gcs"])
def test_another_writer_between_reading_and_replacing_a_shard_loses_nothing(
    service, url, x, runs, monkeypatch
):
    """Another program replaces the shard after this update has read it, and right before its PUT."""
    x.to_sharded_zarr(url, run_dir=runs, **LAYOUT)
    others = VALUES.copy()
    others[0, 0] = 1234567
    da.from_array(others).to_sharded_zarr(f"{url}-2", run_dir=runs, **LAYOUT)
    key, theirs = "c/0/0", open_bucket(f"{url}-2", {}).read_whole("c/0/0", 2**20)
    store, put, times = open_bucket(url, {}), type(open_bucket(url, {}))._put, itertools.count()

    def put_after_another(self, name, data, mode):
        if name == key and isinstance(mode, dict) and next(times) == 0:
            put(store, key, theirs, "overwrite")
        put(self, name, data, mode)

    monkeypatch.setattr(type(store), "_put", put_after_another)
    with dask.config.set({"scheduler": "sync"}):
        da.full((1, 1), 5, dtype="u4").to_sharded_zarr(url, region=np.s_[3:4, 3:4], run_dir=runs)
    assert next(times) > 1, "the first PUT was refused, and the shard read again"
    others[3, 3] = 5
    found = shardwrite.open_sharded(url)[:16, :16]
    np.testing.assert_array_equal(found, others[:16, :16])


@on("seaweed", long=["azurite", "gcs"])
def test_a_change_that_goes_on_is_an_error(service, url, x, runs, monkeypatch):
    x.to_sharded_zarr(url, run_dir=runs, **LAYOUT)
    store, put, times = open_bucket(url, {}), type(open_bucket(url, {}))._put, itertools.count()

    def put_after_another(self, name, data, mode):
        if name == "c/0/0" and isinstance(mode, dict):
            whole = store.read_whole(name, 2**20)
            put(store, name, b"%d" % next(times) + bytes(whole), "overwrite")  # at the front
        put(self, name, data, mode)

    monkeypatch.setattr(type(store), "_put", put_after_another)
    one = da.full((1, 1), 5, dtype="u4")
    with (
        dask.config.set({"scheduler": "sync", "shardwrite.retry-pauses": []}),
        pytest.raises(StoreError, match="changed by another writer"),
    ):
        one.to_sharded_zarr(url, region=np.s_[3:4, 3:4], run_dir=runs)


@on("seaweed", long=["azurite", "gcs"])
def test_two_runs_with_different_directories_do_not_write_one_array(service, url, x, tmp_path):
    """The mark in the bucket is put once: of two runs that begin at once, one is refused."""
    barrier, outcomes = threading.Barrier(2), []

    def write(number):
        barrier.wait()
        y = da.from_array(VALUES + number, chunks=(16, 64))
        try:
            y.to_sharded_zarr(url, run_dir=tmp_path / str(number), **LAYOUT)
        except Exception as error:
            outcomes.append((number, error))
        else:
            outcomes.append((number, None))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    won = [number for number, error in outcomes if error is None]
    assert len(won) == 1, outcomes
    (error,) = [error for _, error in outcomes if error is not None]
    assert isinstance(error, JournalError | shardwrite.SpecError), error
    np.testing.assert_array_equal(shardwrite.open_sharded(url)[:, :], VALUES + won[0])


@pytest.mark.long
def test_the_same_call_in_two_processes(seaweed, url, runs, tmp_path):
    np.save(tmp_path / "values.npy", VALUES)
    argv = [*python(), "-c", PROGRAM, url, str(runs), str(tmp_path / "values.npy"), "-1", "new"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    both = [subprocess.Popen(argv, **pipes) for _ in range(2)]
    for one in both:
        _, told = one.communicate(timeout=120)
        assert one.returncode == 0, told
    np.testing.assert_array_equal(shardwrite.open_sharded(url)[:, :], VALUES)
    assert not list(runs.iterdir())


@pytest.mark.long
@on("seaweed", "azurite")
def test_processes_and_a_stream(service, url, x, runs):
    given = {"shardwrite.storage": service.options}  # dask's processes have another environment
    with dask.config.set({"scheduler": "processes", "num_workers": 2, **given}):
        x.to_sharded_zarr(url, run_dir=runs, **LAYOUT)
    assert shardwrite.verify(url, run_dir=runs, deep=True, against=x).is_good
    shardwrite.create(f"{url}-2", (0, 64), "u4", run_dir=runs, **LAYOUT)
    with shardwrite.ShardWriter(f"{url}-2", run_dir=runs) as writer:
        for row in VALUES:
            writer.append(row)
    np.testing.assert_array_equal(shardwrite.open_sharded(f"{url}-2")[:, :], VALUES)


@on("seaweed", long=["azurite", "gcs"])
def test_the_command_line_takes_urls(service, url, runs, tmp_path, monkeypatch):
    from click.testing import CliRunner

    from shardwrite.cli import main

    np.save(tmp_path / "x.npy", VALUES)
    monkeypatch.setenv("DASK_SHARDWRITE__RUN_DIR", str(runs))
    with dask.config.set({"shardwrite.run-dir": str(runs)}):
        for words in (
            ["write", str(tmp_path / "x.npy"), url, "--shards", "16", "--chunks", "4"],
            ["verify", url, "--deep"],
            ["info", url],
            ["write", url, str(tmp_path / "back.zarr"), "--shards", "16", "--chunks", "4"],
        ):
            done = CliRunner().invoke(main, words)
            assert done.exit_code == 0, (words, done.output)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "back.zarr")[...], VALUES)

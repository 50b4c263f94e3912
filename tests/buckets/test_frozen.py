"""Processes that are frozen amid a change in a bucket, and thaw when others have gone on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import dask
import dask.array as da
import numpy as np
import pytest
import seams
import servers

import shardwrite
from shardwrite import JournalError

VALUES = np.random.default_rng(0).integers(1, 2**32, (20, 16), dtype="u4")
LAYOUT = {"shards": 8, "chunks": 4}
LONG = pytest.mark.long
KEPT = ["shardwrite-receipt.json", "zarr.json"]

PROGRAM = """
import os, re, signal, sys
import dask, numpy as np, dask.array as da
import shardwrite
from shardwrite.stores import bucket
from shardwrite.stores.whole import WholeTransaction, WholeWriter

url, what, kind, wanted = sys.argv[1:]

def freeze_before(owner, name, key_of):
    original, seen = getattr(owner, name), []
    def call(self, *args, **more):
        if not seen and re.search(wanted, key_of(self, args)):
            seen.append(1)
            print("frozen", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)
        return original(self, *args, **more)
    setattr(owner, name, call)

if kind == "remove":
    freeze_before(WholeTransaction, "remove", lambda self, args: args[0])
elif kind == "finish":
    freeze_before(WholeWriter, "finish", lambda self, args: self._key)
elif kind == "DELETE":
    freeze_before(bucket.BucketStore, "remove_object", lambda self, args: args[0])
elif kind == "PUT":
    freeze_before(bucket.BucketStore, "_put", lambda self, args: args[0])
ttl = 60.0 if what == "member" else 1.0  # nobody waits for that one
given = {"scheduler": "sync", "shardwrite.lease.heartbeat": 0.2, "shardwrite.lease.ttl": ttl,
         "shardwrite.retry-pauses": []}
with dask.config.set(given):
    try:
        if what == "abandon":
            shardwrite.abandon(url)
        elif what == "append":
            x = da.full((10, 16), 7, chunks=(4, 16), dtype="u4")
            x.to_sharded_zarr(url, region="append", axis=0)
        elif what == "member":
            da.full((8, 8), 7, dtype="u4").to_sharded_zarr(url, name="a", shards=8, chunks=4)
        elif what == "new":
            x = da.full((20, 16), 7, chunks=(8, 16), dtype="u4")
            x.to_sharded_zarr(url, shards=8, chunks=4, compressors=None)
        print("end")
    except shardwrite.ShardwriteError as error:
        print(type(error).__name__, error)
"""


@pytest.fixture
def frozen(moto):
    """Starts a call in a process that freezes right before it changes an object."""
    started = []

    def start(url, what, kind, wanted):
        words = [url, what, kind, wanted]
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *words],
            env={**os.environ, **moto.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout.readline() == "frozen\n", process.communicate(timeout=30)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def when_run_out(call):
    """Make a call again until the lease of the process that is frozen has run out."""
    for _ in range(100):
        try:
            return call()
        except JournalError as error:
            if "is being written by another process" not in str(error):
                raise
            time.sleep(0.2)
    raise AssertionError("the lease does not run out")


def thawed(process):
    os.kill(process.pid, signal.SIGCONT)
    out, trouble = process.communicate(timeout=60)
    assert process.returncode == 0, trouble
    return out.strip()


def interrupted_append(url, n):
    """An append that has put all of its shards, and was interrupted before it grew the array."""
    x = da.full((10, 16), n, chunks=(4, 16), dtype="u4")

    with pytest.MonkeyPatch.context() as patch:
        seams.kill_before(patch, "publish the array", InterruptedError)
        with pytest.raises(InterruptedError):
            x.to_sharded_zarr(url, region="append", axis=0)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("remove", "c/3/0"),
        pytest.param("finish", "c/2/0", marks=LONG),
        pytest.param("PUT", "c/2/0", marks=LONG),
    ],
)
def test_frozen_while_an_append_is_given_up(moto, url, frozen, kind, wanted):
    with dask.config.set(scheduler="sync"):
        da.from_array(VALUES, chunks=(8, 16)).to_sharded_zarr(url, **LAYOUT)
        interrupted_append(url, 9)
        process = frozen(url, "abandon", kind, wanted)
        when_run_out(lambda: shardwrite.abandon(url))
        new = da.full((12, 16), 5, chunks=(4, 16), dtype="u4")
        new.to_sharded_zarr(url, region="append", axis=0)
    said = thawed(process)
    found = servers.values_of(moto, url)
    np.testing.assert_array_equal(found, np.concatenate([VALUES, new.compute()]), err_msg=said)
    assert moto.keys_of(url) == [f"c/{i}/{j}" for i in range(4) for j in range(2)] + KEPT


@LONG
def test_frozen_before_the_mark_of_its_run_is_removed(moto, url, frozen):
    """Another process ends the run, and begins one with a mark of its own."""
    process, said = frozen(url, "new", "remove", "shardwrite-run.json"), []

    def thaw(_):
        if not said:
            said.append(thawed(process))

    x = da.from_array(VALUES, chunks=(8, 16))
    with dask.config.set(scheduler="sync"):
        when_run_out(lambda: x.to_sharded_zarr(url, mode="w", progress=thaw, **LAYOUT))
    assert said
    np.testing.assert_array_equal(servers.values_of(moto, url), VALUES)
    assert [key for key in moto.keys_of(url) if not key.startswith("c/")] == KEPT


@pytest.mark.long
@pytest.mark.parametrize(
    "wanted",
    ["zarr.json$", "c/1/0$", "receipt.json$"],
)
def test_frozen_before_an_object_of_a_new_array_is_put(moto, url, frozen, wanted):
    """Another process starts over, and ends."""
    process = frozen(url, "new", "PUT", wanted)
    x = da.from_array(VALUES, chunks=(8, 16))
    with dask.config.set(scheduler="sync"):
        when_run_out(lambda: x.to_sharded_zarr(url, shards=8, chunks=8, restart=True))
    said = thawed(process)
    np.testing.assert_array_equal(servers.values_of(moto, url), VALUES, err_msg=said)
    assert [key for key in moto.keys_of(url) if not key.startswith("c/")] == KEPT
    assert shardwrite.verify(url, deep=True).is_good


@LONG
def test_frozen_before_an_array_is_entered_into_its_group(moto, url, frozen):
    """Another array is entered meanwhile, and stays there."""
    import obstore

    empty = {"kind": "inline", "must_understand": False, "metadata": {}}
    group = {"zarr_format": 3, "node_type": "group", "consolidated_metadata": empty}
    client = moto.client(servers.below_bucket(url))
    obstore.put(client, "zarr.json", json.dumps(group).encode())
    process = frozen(url, "member", "PUT", "^zarr.json$")
    with dask.config.set(scheduler="sync"):
        da.ones((8, 8), dtype="u4").to_sharded_zarr(url, name="b", **LAYOUT)
    assert thawed(process) == "end"
    found = json.loads(bytes(obstore.get(client, "zarr.json").bytes()))
    assert sorted(found["consolidated_metadata"]["metadata"]) == ["a", "b"]

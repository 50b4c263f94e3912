"""Uploads and downloads with real servers: killed and resumed, counted, refused, and side by side."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import signal
import subprocess
import time

import dask.array as da
import numpy as np
import obstore
import proxy
import pytest
import zarr
from forks import python
from helpers import digests

import shardwrite
from shardwrite import StoreError

RECEIPT = "shardwrite-receipt.json"
VALUES = np.random.default_rng(0).integers(1, 2**32, (64, 64), dtype="u4")
LAYOUT = {"shards": 16, "chunks": 4}
PROGRAM = """
import sys, dask, shardwrite
with dask.config.set(scheduler="sync"):
    done = shardwrite.upload(sys.argv[1], sys.argv[2], consume=bool(sys.argv[3:]))
print(done.n_resumed, done.n_objects)
"""


def in_bucket(server, url):
    """The same for a bucket, by a client that shardwrite has no part in."""
    prefix = url.removeprefix("s3://bucket/")
    client = server.client(prefix)
    return {
        key: hashlib.sha256(obstore.get(client, key).bytes()).hexdigest()
        for key in server.keys(prefix)
        if not key.endswith(RECEIPT)
    }


@pytest.fixture
def hierarchy(tmp_path):
    path = tmp_path / "h"
    root = zarr.create_group(path, attributes={"title": "all"})
    root.create_group("images", attributes={"of": "cells"})
    da.from_array(VALUES, chunks=16).to_sharded_zarr(path, name="images/sharded", **LAYOUT)
    plain = root.create_array("plain", shape=(12, 12), chunks=(4, 4), dtype="f4")
    plain[...] = np.arange(1, 145).reshape(12, 12)
    zarr.consolidate_metadata(path)
    return path


@pytest.mark.long
def test_there_and_back(seaweed, url, hierarchy, tmp_path):
    wanted = digests(hierarchy)
    done = shardwrite.upload(hierarchy, url)
    assert (done.path, done.n_objects, done.n_groups) == (url, 16 + 9, 2)
    assert in_bucket(seaweed, url) == wanted
    prefix = url.removeprefix("s3://bucket/")
    found = zarr.open_group(zarr.storage.ObjectStore(seaweed.client(prefix)), mode="r")
    assert found.metadata.consolidated_metadata is not None
    np.testing.assert_array_equal(found["images/sharded"][...], VALUES)
    assert shardwrite.verify(f"{url}/images/sharded", deep=True).is_good
    shardwrite.download(url, tmp_path / "back")
    assert digests(tmp_path / "back") == wanted
    assert sorted(os.listdir(tmp_path)) == ["back", "h"], "no state of a run is left"


def is_shard(path):
    return re.search(r"/c/\d", path) is not None


@pytest.mark.long
@pytest.mark.parametrize("after", [20, 23])
def test_killed_and_resumed(moto, environment, url, hierarchy, after):
    """The process is killed when the server has an object and the process has no answer yet."""
    wanted, waiting = digests(hierarchy), {}

    def plan(method, path, number):
        if method == "PUT" and is_shard(path):
            time.sleep(0.03)  # so that the journal is entered between objects
            n = sum(m == "PUT" and is_shard(p) for m, p in faults.seen)
            if "kill" in waiting and n == after:
                os.kill(waiting.pop("kill"), signal.SIGKILL)
        return

    def run(*, is_killed):
        words = [*python(), "-c", PROGRAM, str(hierarchy), url]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if is_killed:
            waiting["kill"] = process.pid
        told, trouble = process.communicate(timeout=120)
        return process.returncode, told, trouble

    with proxy.before(moto, plan) as (server, faults):
        environment(server)
        code, _, trouble = run(is_killed=True)
        assert code == -signal.SIGKILL, trouble
        first = [path for method, path in faults.seen if method == "PUT" and is_shard(path)]
        faults.seen.clear()
        there = in_bucket(moto, url)
        assert not [key for key in there if key.endswith("zarr.json")]
        code, told, trouble = run(is_killed=False)
        assert code == 0, trouble
        second = [path for method, path in faults.seen if method == "PUT" and is_shard(path)]
    n_resumed, n_objects = map(int, told.split())
    assert n_objects == 25
    assert after <= len(first) < after + 2 * 8, "two threads may have sent some more by then"
    assert n_resumed > 0
    assert len(set(second)) == n_objects - n_resumed, "no recorded object is sent"
    n_there = len(set(first) & set(second))
    assert n_there == len(first) - n_resumed
    assert len(second) <= len(set(second)) + n_there, "a condition refuses those that are there"
    assert in_bucket(moto, url) == wanted
    assert sorted(os.listdir(hierarchy.parent)) == ["h"]


@pytest.mark.long
def test_a_source_is_consumed_although_processes_are_killed(moto, environment, url, hierarchy):
    """At each moment every object is in the bucket or in the source, until the source is gone."""
    path = hierarchy.parent / "a"
    shardwrite.download(hierarchy / "images" / "sharded", path)
    # The request for a shard at which each process is killed: the first one sends shards, and the
    # others have begun to remove them.
    kills = (6, 20, 6)
    wanted, waiting, codes = digests(path), {}, []

    def plan(method, request, number):
        if is_shard(request):
            time.sleep(0.03)
            waiting["requests"] -= 1
            if waiting["requests"] == 0:
                os.kill(waiting["process"], signal.SIGKILL)

    with proxy.before(moto, plan) as (server, _):
        environment(server)
        while not codes or codes[-1] == -signal.SIGKILL:
            waiting["requests"] = kills[len(codes)] if len(codes) < len(kills) else -1
            words = [*python(), "-c", PROGRAM, str(path), url, "consume"]
            process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
            waiting["process"] = process.pid
            _, trouble = process.communicate(timeout=120)
            codes.append(process.returncode)
            left = digests(path) if path.exists() else {}
            found = {**in_bucket(moto, url), **left}
            assert {key: value for key, value in found.items() if is_shard(f"/{key}")} == {
                key: value for key, value in wanted.items() if is_shard(f"/{key}")
            }
    assert codes[-1] == 0, trouble
    assert len(codes) == len(kills) + 1
    assert in_bucket(moto, url) == wanted
    assert sorted(os.listdir(hierarchy.parent)) == ["h"]


@pytest.mark.long
def test_two_at_once_both_succeed(moto, environment, url, hierarchy):
    wanted = digests(hierarchy)
    with proxy.before(moto, lambda *_: time.sleep(0.01)) as (server, _):
        environment(server)
        words = [*python(), "-c", PROGRAM, str(hierarchy), url]
        both = [subprocess.Popen(words, stderr=subprocess.PIPE, text=True) for _ in range(2)]
        for process in both:
            _, trouble = process.communicate(timeout=120)
            assert process.returncode == 0, trouble
    assert in_bucket(moto, url) == wanted


@pytest.mark.long
def test_every_fourth_request_fails(moto, environment, url, hierarchy, tmp_path):
    def plan(method, path, number):
        return "503" if number > 3 and number % 4 == 0 else None

    with proxy.before(moto, plan) as (server, faults):
        environment(server)
        shardwrite.upload(hierarchy, url)
        shardwrite.download(url, tmp_path / "back")
    assert {method for _, method, path in faults.broken if is_shard(path)} >= {"GET", "PUT"}
    assert in_bucket(moto, url) == digests(hierarchy) == digests(tmp_path / "back")


@pytest.mark.long
def test_a_plan_tells_the_requests(moto, environment, url, hierarchy, tmp_path):
    """As many as the server has seen, and a few more that read."""
    with proxy.before(moto) as (server, faults):
        environment(server)
        for move, words, side in (
            (shardwrite.upload, (hierarchy, url), "requests_to_target"),
            (shardwrite.download, (url, tmp_path / "back"), "requests_to_source"),
        ):
            planned = getattr(shardwrite.plan_transfer(*words), side)
            faults.seen.clear()
            move(*words)
            n_put = sum(method == "PUT" for method, _ in faults.seen)
            n_list = sum("list-type=2" in path for _, path in faults.seen)
            n_get = sum(method in ("GET", "HEAD") for method, _ in faults.seen) - n_list
            assert (planned.n_put, planned.n_list) == (n_put, n_list), move.__name__
            assert n_get <= planned.n_get <= 1.2 * n_get, (move.__name__, n_get, planned.n_get)


def test_what_is_wrong_with_the_place_is_told(moto, hierarchy):
    before = sorted(os.listdir(hierarchy.parent))
    with pytest.raises(StoreError, match=r"bucket does not exist.*AWS_ENDPOINT_URL") as caught:
        shardwrite.upload(hierarchy, "s3://missing-bucket/x")
    assert caught.value.errno == errno.ENXIO
    with pytest.raises(StoreError, match="bucket does not exist"):
        shardwrite.download("s3://missing-bucket/x", hierarchy.parent / "back")
    for url in ("s4://bucket/x", "s3:/bucket/x", "s3://key:secret@bucket/x"):
        with pytest.raises(shardwrite.SpecError):
            shardwrite.upload(hierarchy, url)
    assert sorted(os.listdir(hierarchy.parent)) == before

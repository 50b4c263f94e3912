"""Connections that break and services that are overloaded, and how many requests a reader needs."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from datetime import timedelta
from urllib.parse import urlsplit

import dask
import dask.array as da
import numpy as np
import proxy
import pytest
from servers import below_bucket, on

import shardwrite
from shardwrite import SpecError, StoreError
from shardwrite.stores.bucket_kinds import CONDITIONS
from shardwrite.stores.bucket_url import open_bucket

VALUES = np.random.default_rng(0).integers(1, 2**32, (64, 64), dtype="u4")
LAYOUT = {"shards": 16, "chunks": 4}
LONG = pytest.mark.long
SOON = {
    "retry_config": {
        "max_retries": 3,
        "backoff": {
            "init_backoff": timedelta(milliseconds=1),
            "max_backoff": timedelta(milliseconds=10),
            "base": 2,
        },
    }
}


def is_shard(path):
    return "/c/" in path


@pytest.mark.parametrize(
    ("service", "fault"),
    [
        ("seaweed", "lost"),
        ("seaweed", "cut"),
        *(
            pytest.param(*each, marks=LONG)
            for each in [
                ("seaweed", "503"),
                ("seaweed", "before"),
                ("seaweed", "500"),
                ("seaweed", "reset"),
                ("seaweed", "slow"),
                ("seaweed", "stall"),
                *itertools.product(["azurite", "gcs"], ["503", "cut"]),
            ]
        ),
    ],
    indirect=["service"],
)
def test_every_fifth_request_fails(service, environment, url, tmp_path, fault):
    def plan(method, path, number):
        # obstore does not ask again for lists and refusals that break off; see docs/buckets-shards.md.
        is_tried = number > 3 and (fault not in ("cut", "stall") or is_shard(path))
        return fault if is_tried and number % (15 if fault == "stall" else 5) == 0 else None

    given = SOON if fault != "stall" else {**SOON, "client_options": {"timeout": "1s"}}
    wanted = VALUES.copy()
    wanted[3:40, 5:21] = 7
    with proxy.before(service, plan) as (server, faults):
        environment(server)
        with dask.config.set({"shardwrite.storage": given, "scheduler": "sync"}):
            x = da.from_array(VALUES, chunks=(16, 64))
            x.to_sharded_zarr(url, run_dir=tmp_path, **LAYOUT)
            seven = da.full((37, 16), 7, dtype="u4")
            seven.to_sharded_zarr(url, region=np.s_[3:40, 5:21], run_dir=tmp_path)
            np.testing.assert_array_equal(shardwrite.open_sharded(url)[:, :], wanted)
    assert {method for _, method, path in faults.broken if is_shard(path)} >= {"GET", "PUT"}
    environment(service)
    np.testing.assert_array_equal(shardwrite.open_sharded(url)[:, :], wanted)
    others = [key for key in service.keys_of(url) if not key.startswith("c/")]
    assert others == ["shardwrite-receipt.json", "zarr.json"]
    assert not list(tmp_path.iterdir())


@on("seaweed", "azurite", "gcs")
def test_a_conditional_put_whose_answer_is_lost_is_not_taken_for_a_foreign_change(
    service, environment, url
):
    lost = []

    def plan(method, path, number):
        if method == "PUT" and path.endswith("/c/0") and len(lost) % 2 == 0:
            lost.append(path)
            return "lost"
        return None

    with proxy.before(service, plan) as (server, _):
        environment(server)
        store = open_bucket(url, SOON)
        store.prepare()
        assert store.create_new("c/0", b"first")
        lost.append("the next one is lost, too")
        version = store.version("c/0")
        store.replace_object("c/0", b"second", version)
        with pytest.raises(StoreError, match="changed by another writer"):
            store.replace_object("c/0", b"third", version)
        assert bytes(store.read_whole("c/0", 99)) == b"second"
    assert len([path for path in lost if path.endswith("/c/0")]) == 2


@pytest.mark.parametrize("number", range(4))
def test_what_a_service_can_do_is_found_though_an_answer_is_lost(moto, environment, url, number):
    """A put that was done is asked for again, and then refused."""
    puts = []

    def plan(method, path, _):
        if method != "PUT":
            return None
        puts.append(path)
        return "lost" if len(puts) == number + 1 else None

    with proxy.before(moto, plan) as (server, faults):
        environment(server)
        store = open_bucket(url, SOON)
        store.prepare()
        assert store.capabilities >= CONDITIONS
    assert len(faults.broken) == 1
    assert len(set(puts)) == 1, "one probe was enough"
    assert moto.keys_of(url) == []


@on("moto", long=["azurite", "gcs"])
@pytest.mark.parametrize("fault", ["reset", pytest.param("stall", marks=LONG)])
def test_what_obstore_does_not_ask_again(service, environment, url, fault):
    """Puts on a condition, and removals: the first attempt at each gets no answer."""
    last = []

    def plan(method, path, number):
        if method not in ("PUT", "DELETE", "POST") or (last and last[-1] == method):
            return None
        last.append(method)
        return fault

    options = {**SOON, "client_options": {"timeout": "1s"}}
    with proxy.before(service, plan) as (server, faults):
        environment(server)
        store = open_bucket(url, options)
        store._probed.can, store._probed.is_done = CONDITIONS, True
        assert store.create_new("c/0", b"first")
        last.clear()
        store.replace_object("c/0", b"second", store.version("c/0"))
        assert bytes(store.read_whole("c/0", 99)) == b"second"
        store.remove_object("c/0")
        assert store.version("c/0") is None
    assert len(faults.broken) == 3


@on("moto", long=["azurite", "gcs"])
def test_a_pause_that_a_service_asks_for_is_not_seen(service, environment, url):
    """As docs/buckets-shards.md says. `init_backoff` is the least pause instead."""
    times = []

    def plan(method, path, number):
        if method != "PUT" or not path.endswith("/c/0"):
            return None
        times.append(time.monotonic())
        return "later" if len(times) < 3 else None

    least = timedelta(milliseconds=300)
    with proxy.before(service, plan) as (server, _):
        environment(server)
        pauses = {"init_backoff": least, "max_backoff": least, "base": 2}
        open_bucket(url, {"retry_config": {"backoff": pauses}}).put_object("c/0", b"1")
    assert len(times) == 3
    for one, other in itertools.pairwise(times):
        assert 0.9 * least.total_seconds() <= other - one < 5


@pytest.mark.long
def test_a_proxy_that_changes_etags_leaves_no_conditions(moto, environment, url, tmp_path):
    """As one that compresses answers: its weak ETags never meet a condition."""

    class Weakening(proxy.Passing):
        def forwarded(self, body):
            status, reason, headers, content = super().forwarded(body)
            weak = [(k, f"W/{v}" if k.lower() == "etag" else v) for k, v in headers]
            return status, reason, weak, content

    at = urlsplit(moto.endpoint).netloc
    with proxy.serving(Weakening, upstream=at, faults=proxy.Faults()) as netloc:
        environment(replace(moto, endpoint=f"http://{netloc}"))
        x = da.from_array(VALUES[:16, :16])
        with pytest.raises(SpecError, match="run_dir"):
            x.to_sharded_zarr(url, **LAYOUT)
        assert not moto.keys_of(url)
        x.to_sharded_zarr(url, run_dir=tmp_path, **LAYOUT)
        more = {"run_dir": tmp_path, "exclusive": True}
        da.full((4, 4), 7, dtype="u4").to_sharded_zarr(url, region=np.s_[:4, :4], **more)
        assert (shardwrite.open_sharded(url)[:4, :4] == 7).all()


def test_a_service_that_stays_overloaded_is_an_error_and_not_a_hang(
    seaweed, environment, url, tmp_path
):
    def plan(method, path, number):
        return "503" if method == "PUT" and is_shard(path) else None

    with proxy.before(seaweed, plan) as (server, faults):
        environment(server)
        given = {"shardwrite.storage": SOON, "shardwrite.retry-pauses": [0], "scheduler": "sync"}
        with (
            dask.config.set(given),
            pytest.raises(StoreError, match="is overloaded or out of order"),
        ):
            da.from_array(VALUES[:16, :16]).to_sharded_zarr(url, run_dir=tmp_path, **LAYOUT)
        assert len(faults.broken) == 2 * (1 + 3), "each of two attempts makes three retries"
        faults.plan = None
        done = da.from_array(VALUES[:16, :16]).to_sharded_zarr(url, run_dir=tmp_path, **LAYOUT)
        assert done.n_shards == 1


@on("seaweed", "azurite", long=["gcs"])
def test_requests_that_an_inner_chunk_needs(service, environment, url, tmp_path):
    """Two of a shard that is new to the reader, and then one. Azure is asked for the size first."""
    first = ["GET"] * (3 if service.scheme == "az" else 2)
    values = np.random.default_rng(1).integers(0, 2**32, (256, 256), dtype="u4")
    with proxy.before(service) as (server, faults):
        environment(server)
        da.from_array(values).to_sharded_zarr(url, run_dir=tmp_path, shards=256, chunks=32)
        puts = [path for method, path in faults.seen if method in ("PUT", "POST")]
        assert len([path for path in puts if is_shard(path)]) == 1
        assert not [path for path in puts if "comp=block" in path], "no block was left uncommitted"
        store = open_bucket(url, {}, is_read=True)
        faults.seen.clear()
        assert store.read_whole("zarr.json", 2**20)
        assert len(faults.seen) == 1, "a small object is read by one request"
        view = shardwrite.open_sharded(url)
        for at, wanted in ((0, first), (32, ["GET"]), (64, ["GET"]), (0, ["GET"])):
            faults.seen.clear()
            np.testing.assert_array_equal(view[at : at + 32, 0:32], values[at : at + 32, 0:32])
            assert [method for method, _ in faults.seen] == wanted
        environment(service)
        da.full((32, 32), 5, dtype="u4").to_sharded_zarr(
            url, region=np.s_[0:32, 0:32], run_dir=tmp_path
        )
        assert (view[0:32, 0:32] == 5).all(), "an open array sees what was replaced"


@pytest.mark.long
def test_lists_that_come_in_many_pages(moto, environment, url, tmp_path):
    import obstore

    class InPages(proxy.Passing):
        def asked(self, path, headers, body):
            is_list = "list-type=2" in path
            return super().asked(path + "&max-keys=3" * is_list, headers, body)

    at, faults = urlsplit(moto.endpoint).netloc, proxy.Faults()
    x = da.from_array(VALUES, chunks=(16, 64))
    with (
        proxy.serving(InPages, upstream=at, faults=faults) as netloc,
        dask.config.set(scheduler="sync"),
    ):
        environment(replace(moto, endpoint=f"http://{netloc}"))
        x.to_sharded_zarr(url, **LAYOUT)
        assert shardwrite.verify(url).is_good
        for key in ("c/0/1", "c/3/3"):
            obstore.delete(moto.client(below_bucket(url)), key)
        assert len(shardwrite.verify(url).problems) == 2
        assert [task.key for task in shardwrite.repair(url, x).tasks] == ["c/0/1", "c/3/3"]
        x.to_sharded_zarr(url, mode="w", **LAYOUT)
        assert shardwrite.download(url, tmp_path / "copy").n_objects == 16
    assert any("continuation-token" in path for _, path in faults.seen)
    others = [key for key in moto.keys_of(url) if not key.startswith("c/")]
    assert others == ["shardwrite-receipt.json", "zarr.json"]

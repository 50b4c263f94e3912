"""Requests that the network repeats after the call has returned: they must change nothing."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

import dask.array as da
import numpy as np
import proxy
import pytest
import zarr
from servers import below_bucket, on

import shardwrite
from shardwrite import JournalError, SpecError

OLD = np.arange(1, 1025, dtype="u4").reshape(32, 32)
NEW = OLD + 5000
NEW[:8, 8:16] = 0  # a shard that only the old array has
LAYOUT = {"shards": 8, "chunks": 4, "memory_limit": "4kB"}


pytestmark = pytest.mark.usefixtures("one_thread")


def values(service, url):
    """All values, as zarr-python reads them."""
    store = zarr.storage.ObjectStore(service.client(below_bucket(url)), read_only=True)
    return zarr.open_array(store, mode="r")[...]


def failing(x, n_good):
    n_computed = 0

    def block(values, block_info=None):
        nonlocal n_computed
        n_computed += bool(block_info)
        if n_computed > n_good:
            raise ValueError("no source")
        return values

    return x.map_blocks(block, dtype=x.dtype)


@contextlib.contextmanager
def recorded(service, environment):
    """Reach the service through a proxy, and repeat at the end what was asked for."""
    sent = []
    with proxy.before(service, kind=proxy.Recording, sent=sent) as (server, _):
        environment(server)
        yield sent
    environment(service)
    proxy.repeat(service, [request for request in sent if is_late(*request)])


def is_late(method, path, *_):
    """Whether a request is repeated: removals, and whatever puts a document."""
    return method == "DELETE" or path.endswith(("?delete", "zarr.json", "receipt.json"))


@on("moto", long=["seaweed", "azurite"])
@pytest.mark.parametrize("layout", [LAYOUT, {"shards": 16, "chunks": 8}], ids=["same", "other"])
def test_a_replacement(service, environment, url, layout):
    da.from_array(OLD, chunks=8).to_sharded_zarr(url, **LAYOUT)
    old = {key for key in service.contents(url) if "/c/" in f"/{key}"}
    with recorded(service, environment) as sent:
        da.from_array(NEW, chunks=16).to_sharded_zarr(url, mode="w", **layout)
    np.testing.assert_array_equal(shardwrite.open_sharded(url)[:, :], NEW)
    assert shardwrite.verify(url, deep=True).is_good
    there = {key for key in service.contents(url) if "/c/" in f"/{key}"}
    assert len(there) == (15 if layout is LAYOUT else 4)
    assert there < old
    assert any(is_late(*request) for request in sent)


@on("moto", long=["seaweed"])
def test_each_request_for_a_document_alone(service, environment, url):
    """The old document and the new one say the same, and so do the lists of the group."""
    above = url.rpartition("/")[0]
    group = zarr.storage.ObjectStore(service.client(below_bucket(above)))
    zarr.create_group(group)
    zarr.consolidate_metadata(group)
    da.from_array(OLD, chunks=8).to_sharded_zarr(url, **LAYOUT)
    sent = []
    with proxy.before(service, kind=proxy.Recording, sent=sent) as (server, _):
        environment(server)
        da.from_array(NEW, chunks=8).to_sharded_zarr(url, mode="w", **LAYOUT)
    environment(service)
    late = [request for request in sent if request[0] == "PUT" and is_late(*request)]
    assert len(late) > 5
    for request in late:
        proxy.repeat(service, [request])
        np.testing.assert_array_equal(values(service, url), NEW)
        assert url.rpartition("/")[2] in zarr.open_group(group, mode="r", use_consolidated=True)


@pytest.mark.long
@on("moto", long=["seaweed"])
def test_a_replacement_in_two_calls(service, environment, url):
    """The first call fails amid the shards; nobody takes the old ones for new ones."""
    da.from_array(OLD, chunks=8).to_sharded_zarr(url, **LAYOUT)
    x = da.from_array(NEW, chunks=8)
    with recorded(service, environment):
        with pytest.raises(ValueError, match="no source"):
            failing(x, 7).to_sharded_zarr(url, mode="w", source_id="new", **LAYOUT)
        with pytest.raises(SpecError, match="no array"):
            shardwrite.open_sharded(url)
        report = shardwrite.verify(url)
        assert report.is_good
        assert report.n_pending > 8  # where only shards of the old array are
        with pytest.raises(JournalError, match=r"overwrites.*again.*restart=True"):
            shardwrite.abandon(url)
        x.to_sharded_zarr(url, mode="w", source_id="new", **LAYOUT)
    np.testing.assert_array_equal(shardwrite.open_sharded(url)[:, :], NEW)


@pytest.mark.long
def test_a_reader_finds_no_array_meanwhile(moto, url):
    above = url.rpartition("/")[0]
    zarr.create_group(zarr.storage.ObjectStore(moto.client(below_bucket(above))))
    da.from_array(OLD, chunks=8).to_sharded_zarr(url, **LAYOUT)
    with pytest.raises(ValueError, match="no source"):
        failing(da.from_array(NEW, chunks=8), 7).to_sharded_zarr(url, mode="w", **LAYOUT)
    with pytest.raises(zarr.errors.BaseZarrError):
        values(moto, url)
    store = zarr.storage.ObjectStore(moto.client(below_bucket(above)), read_only=True)
    group = zarr.open_group(store, mode="r")
    assert list(group.arrays()) == []


@pytest.mark.long
def test_a_report_goes_with_its_array(moto, url):
    keys = []
    for keep_report in (True, True, False):
        x = da.from_array(OLD, chunks=8)
        x.to_sharded_zarr(url, mode="w", keep_report=keep_report, **LAYOUT)
        keys.append([key for key in moto.contents(url) if "report" in key])
    assert [len(each) for each in keys] == [1, 1, 0]


@pytest.mark.long
def test_published_first(moto, url):
    """Readers never see old shards by the new document."""
    da.from_array(OLD, chunks=8).to_sharded_zarr(url, **LAYOUT)
    with pytest.raises(ValueError, match="no source"):
        failing(da.from_array(NEW, chunks=8), 7).to_sharded_zarr(
            url, mode="w", publish="first", **LAYOUT
        )
    seen = values(moto, url)
    assert ((seen == 0) | (seen == NEW)).all()
    assert (seen == 0).sum() > 64


@pytest.mark.long
def test_published_first_by_the_second_call(moto, url):
    """It removes none of the shards that the first call has put."""
    da.from_array(OLD, chunks=8).to_sharded_zarr(url, **LAYOUT)
    x, call = da.from_array(NEW, chunks=8), {"mode": "w", "source_id": "new", **LAYOUT}
    with pytest.raises(ValueError, match="no source"):
        failing(x, 7).to_sharded_zarr(url, **call)
    done = x.to_sharded_zarr(url, publish="first", **call)
    assert done.n_resumed_shards
    np.testing.assert_array_equal(values(moto, url), NEW)


REPLACED = """
import sys, dask, dask.array as da, numpy as np, shardwrite
with dask.config.set(scheduler="sync"):
    x = da.from_array(np.full((32, 32), 7, "u4"), chunks=8)
    x.to_sharded_zarr(sys.argv[1], mode="w", source_id="x", shards=8, chunks=4, restart=True)
"""


@pytest.mark.long
def test_killed_while_the_old_array_is_hidden(moto, url):
    """Nobody takes the run for one that has hidden nothing, and the same call makes the array."""
    da.from_array(OLD, chunks=8).to_sharded_zarr(url, **LAYOUT)
    command, processes = [sys.executable, "-c", REPLACED, url], []

    def plan(method, path, _):
        if (method, path.rpartition("/")[2]) == ("PUT", "shardwrite-receipt.json"):
            processes[0].kill()
            return "before"
        return None

    with proxy.before(moto, plan) as (server, _):
        processes.append(subprocess.Popen(command, env={**os.environ, **server.environment}))
        assert processes[0].wait(120)
    with pytest.raises(JournalError, match=r"overwrites.*again"):
        shardwrite.abandon(url)
    subprocess.run(command, check=True, timeout=120)
    assert (values(moto, url) == 7).all()
    assert shardwrite.verify(url, deep=True).is_good

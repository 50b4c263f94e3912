"""A scheduler that is gone before a run, or while it begins, is one error at once."""

from __future__ import annotations

import time

import dask.array as da
import pytest
from distributed import Client, LocalCluster

import shardwrite
from shardwrite import ClusterLostError
from shardwrite.engines import ClusterEngine

GONE = "the scheduler of the dask client is gone; close the client, connect to another cluster"


def close(cluster, client):
    """Close a cluster, and wait until the client has noticed."""
    cluster.close()
    for _ in range(1000):
        if client.status != "running":
            return
        time.sleep(0.01)


@pytest.mark.parametrize("when", ["before", "while it begins"])
@pytest.mark.parametrize("is_update", [False, True], ids=["new", "update"])
def test_it_is_told_at_once_and_the_same_call_goes_on(when, is_update, tmp_path, monkeypatch):
    x = da.ones((40, 40), chunks=10)
    call = {"region": ...} if is_update else {"shards": 20, "chunks": 10}
    if is_update:
        shardwrite.create(tmp_path / "x", x.shape, float, shards=20, chunks=10)
    before = sorted(tmp_path.rglob("*"))
    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            processes=False,
            protocol="tcp",
            dashboard_address=None,
        ) as cluster,
        # A client that knows the address only, as of a cluster that somebody else has started.
        Client(cluster.scheduler_address) as client,
    ):
        if when == "before":
            close(cluster, client)
        else:
            own = ClusterEngine.on_every_worker

            def closed_first(self, *arguments):
                close(cluster, client)
                return own(self, *arguments)

            monkeypatch.setattr(ClusterEngine, "on_every_worker", closed_first)
        begin = time.monotonic()
        with pytest.raises(ClusterLostError, match=GONE):
            shardwrite.to_sharded_zarr(x, tmp_path / "x", **call)
        assert time.monotonic() - begin < 20  # dask waits for 30 s
        assert sorted(tmp_path.rglob("*")) == before
    assert shardwrite.to_sharded_zarr(x, tmp_path / "x", **call).n_shards == 4
    assert (shardwrite.from_sharded_zarr(tmp_path / "x") == 1).all().compute()

"""A repository of Icechunk in a bucket, into which threads and processes write."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
import zarr
from servers import BUCKET, KEY, SECRET

VALUES = np.random.default_rng(0).random((16, 16))


@pytest.fixture
def repository(moto, request):
    icechunk = pytest.importorskip("icechunk", reason="icechunk is not installed")
    storage = icechunk.s3_storage(
        bucket=BUCKET,
        prefix=request.node.name,
        region="us-east-1",
        endpoint_url=moto.endpoint,
        allow_http=True,
        force_path_style=True,
        access_key_id=KEY,
        secret_access_key=SECRET,
    )
    return icechunk.Repository.create(storage)


def check(repository, wanted):
    session = repository.readonly_session("main")
    array = zarr.open_array(session.store, path="a/b", mode="r")
    assert array.shards == (8, 8)
    np.testing.assert_array_equal(array[...], wanted)


@pytest.mark.long
def test_an_array_is_made_and_changed(repository):
    session = repository.writable_session("main")
    x = da.from_array(VALUES, chunks=8)
    result = x.to_sharded_zarr(session, name="a/b", shards=8, chunks=2, compressors=None)
    assert result.snapshot == repository.lookup_branch("main")
    check(repository, VALUES)
    session = repository.writable_session("main")
    x[:6].to_sharded_zarr(session, name="a/b", region=np.s_[6:12], message="moved up")
    check(repository, np.concatenate([VALUES[:6], VALUES[:6], VALUES[12:]]))
    assert [one.message for one in repository.ancestry(branch="main")][:2] == [
        "moved up",
        result.message,
    ]


@pytest.mark.long
def test_workers_reach_it_by_the_fork(repository):
    from distributed import Client

    x = da.from_array(VALUES, chunks=8)
    with Client(n_workers=2, threads_per_worker=1, dashboard_address=None):
        session = repository.writable_session("main")
        result = x.to_sharded_zarr(session, name="a/b", shards=8, chunks=2, compressors=None)
    assert result.n_shards == 4
    check(repository, VALUES)

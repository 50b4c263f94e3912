"""What is wrong with a bucket or its keys is told before any task runs, with what to set."""

from __future__ import annotations

import errno

import dask.array as da
import pytest
from servers import KEY, SECRET

import shardwrite
from shardwrite import SpecError, StoreError
from shardwrite.stores import open_bucket

LAYOUT = {"shards": 2, "chunks": 1}


@pytest.fixture
def x():
    def never(block):
        raise AssertionError("a task was run")

    return da.ones(4, chunks=2).map_blocks(never, dtype=float)


def test_a_missing_bucket(moto, x, tmp_path):
    calls = (
        lambda: x.to_sharded_zarr("s3://missing-bucket/x", run_dir=tmp_path, **LAYOUT),
        lambda: shardwrite.open_sharded("s3://missing-bucket/x"),
        lambda: shardwrite.sources.open_source("s3://missing-bucket/x"),
    )
    for call in calls:
        with pytest.raises(StoreError, match=r"bucket does not exist.*AWS_ENDPOINT_URL") as caught:
            call()
        assert caught.value.errno == errno.ENXIO
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "keys",
    [{"secret_access_key": "wRoNgSeCrEt"}, {"access_key_id": "AKIAOTHEROTHEROTHER"}],
    ids=["another secret", "another key"],
)
def test_wrong_keys(seaweed, x, url, tmp_path, keys):
    with pytest.raises(StoreError, match=r"AWS_ACCESS_KEY_ID") as caught:
        x.to_sharded_zarr(url, storage_options=keys, run_dir=tmp_path, **LAYOUT)
    assert caught.value.errno == errno.EACCES
    for secret in (KEY, SECRET, *keys.values()):
        assert secret not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_in_place_is_refused_with_a_remedy(moto, url, tmp_path):
    da.ones(4, chunks=2).to_sharded_zarr(url, run_dir=tmp_path, **LAYOUT)
    strategy = shardwrite.AppendOnly(in_place=True)
    with pytest.raises(SpecError, match="leave out in_place=True"):
        da.ones(4, chunks=2).to_sharded_zarr(
            url, region=slice(0, 4), strategy=strategy, run_dir=tmp_path
        )


def test_a_bucket_that_may_not_be_written(moto, x, url, tmp_path, monkeypatch):
    """As a key that may only read: the first put is refused, before a task runs."""
    from obstore.exceptions import PermissionDeniedError

    def refuse(self, name, data, mode):
        raise PermissionDeniedError("403 Forbidden: <Code>AccessDenied</Code>")

    monkeypatch.setattr(type(open_bucket(url, {})), "_put", refuse)
    with pytest.raises(StoreError, match="no right to do that") as caught:
        x.to_sharded_zarr(url, run_dir=tmp_path, **LAYOUT)
    assert caught.value.errno == errno.EACCES

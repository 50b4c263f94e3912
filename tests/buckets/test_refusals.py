"""What is wrong with a bucket or its keys is told before any task runs, with what to set."""

from __future__ import annotations

import errno
import time
from datetime import UTC, datetime, timedelta

import botocore.auth
import dask
import dask.array as da
import gcs
import numpy as np
import proxy
import pytest
import zarr
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from click.testing import CliRunner
from servers import AZURE_SECRET, KEY, SECRET, on
from zarr.storage import ObjectStore

import shardwrite
from shardwrite import SpecError, StoreError
from shardwrite.cli import main
from shardwrite.stores.bucket_url import open_bucket

LAYOUT = {"shards": 2, "chunks": 1}


@pytest.fixture
def x():
    def never(block):
        raise AssertionError("a task was run")

    return da.ones(4, chunks=2).map_blocks(never, dtype=float)


ADDRESSES = {
    "s3": "AWS_ENDPOINT_URL",
    "az": "AZURE_STORAGE_ENDPOINT",
    "gs": "GOOGLE_BASE_URL",
}


@on("moto", "azurite", "gcs")
def test_a_missing_bucket(service, x, tmp_path):
    missing = f"{service.scheme}://missing-bucket/x"
    calls = (
        lambda: x.to_sharded_zarr(missing, run_dir=tmp_path, **LAYOUT),
        lambda: shardwrite.open_sharded(missing),
        lambda: shardwrite.sources.open_source(missing),
    )
    address = ADDRESSES[service.scheme]
    for call in calls:
        with pytest.raises(StoreError, match=rf"bucket does not exist.*{address}") as caught:
            call()
        assert caught.value.errno == errno.ENXIO
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("service", "keys", "variable"),
    [
        ("seaweed", {"secret_access_key": "wRoNgSeCrEt"}, "AWS_ACCESS_KEY_ID"),
        ("seaweed", {"access_key_id": "AKIAOTHEROTHEROTHER"}, "AWS_ACCESS_KEY_ID"),
        ("azurite", {"account_key": "d1JvTmdTZUNyRXQ="}, "AZURE_STORAGE_ACCOUNT_KEY"),
        ("azurite", {"account_name": "anotheraccount"}, "AZURE_STORAGE_ACCOUNT_NAME"),
        ("gcs", {"bearer_token": "ya29.wRoNgToKeN"}, "GOOGLE_SERVICE_ACCOUNT"),
    ],
    indirect=["service"],
    ids=["S3-secret", "S3-key", "Azure-key", "Azure-account", "GCS-token"],
)
def test_wrong_keys(service, x, url, tmp_path, keys, variable):
    with pytest.raises(StoreError, match=variable) as caught:
        x.to_sharded_zarr(url, storage_options=keys, run_dir=tmp_path, **LAYOUT)
    assert caught.value.errno == errno.EACCES
    assert "does not know the keys" in str(caught.value)
    for secret in (KEY, SECRET, AZURE_SECRET, gcs.TOKEN, *keys.values()):
        assert secret not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("answer", "variable", "number"),
    [
        ((301, "PermanentRedirect", "use another endpoint"), "AWS_REGION", errno.ENXIO),
        (
            (400, "AuthorizationHeaderMalformed", "expecting 'eu-central-1'"),
            "AWS_REGION",
            errno.ENXIO,
        ),
        ((400, "ExpiredToken", "the token has expired"), "AWS_SESSION_TOKEN", errno.EACCES),
    ],
    ids=["redirect", "region", "token"],
)
def test_answers_of_aws_that_name_what_is_wrong(
    moto, environment, x, url, tmp_path, answer, variable, number
):
    class Refusing(proxy.Passing):
        def forwarded(self, body):
            return gcs.refused(*answer)

    with proxy.before(moto, kind=Refusing) as (server, _):
        environment(server)
        begun = time.monotonic()
        with pytest.raises(StoreError, match=variable) as caught:
            x.to_sharded_zarr(url, run_dir=tmp_path, **LAYOUT)
    assert time.monotonic() - begun < 10
    assert caught.value.errno == number
    assert not list(tmp_path.iterdir())


def test_a_clock_that_is_wrong(seaweed, environment, x, url, tmp_path, monkeypatch):
    """As the server sees it: requests that were signed an hour ago."""
    early = datetime.now(UTC) - timedelta(hours=1)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda *given, **more: early)

    class Signing(proxy.Passing):
        def forwarded(self, body):
            kept = {"content-type", "x-amz-content-sha256", "range", "if-match", "if-none-match"}
            headers = {name: value for name, value in self.headers.items() if name.lower() in kept}
            at = f"http://{self.upstream}{self.path}"
            request = AWSRequest(method=self.command, url=at, data=body, headers=headers)
            keys = Credentials(KEY, SECRET)
            botocore.auth.S3SigV4Auth(keys, "s3", "us-east-1").add_auth(request)
            host = ("Host", self.upstream)
            return self.asked(self.path, [host, *request.headers.items()], body)

    with proxy.before(seaweed, kind=Signing) as (server, _):
        environment(server)
        with pytest.raises(StoreError, match="clock of this machine") as caught:
            x.to_sharded_zarr(url, run_dir=tmp_path, **LAYOUT)
    assert caught.value.errno == errno.EACCES


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


@pytest.mark.parametrize(
    "words",
    [
        ("submit", "x.npy", "URL"),
        ("shard", "old", "URL", "--shards", "2"),
        ("cancel", "URL"),
        ("resubmit", "URL", "--array", "1"),
    ],
    ids=lambda words: words[0],
)
def test_jobs_need_a_directory_for_the_state(moto, url, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.zeros((8, 8)))
    zarr.create_array("old", data=np.zeros((8, 8)), chunks=(2, 2))
    given = [url if word == "URL" else word for word in words]
    done = CliRunner().invoke(main, ["slurm", *given])
    assert done.exit_code == 2
    assert "leave notes about their jobs in a directory" in done.output
    assert "DASK_SHARDWRITE__RUN_DIR=/scratch/me/runs" in done.output
    assert moto.keys_of(url) == []


@pytest.mark.long
@on("moto")
def test_an_array_is_not_changed_by_what_is_read_from_it(service, url):
    values = np.arange(8.0)
    for each in (url, url + "2"):
        shardwrite.to_sharded_zarr(values, each, shards=4, chunks=2)
    prefix = url.removeprefix(f"s3://{service.bucket}/")
    readers = [
        shardwrite.from_sharded_zarr(url),
        shardwrite.from_sharded_zarr(f"{url}/", storage_options=service.options),
        shardwrite.from_sharded_zarr(url.rpartition("/")[0], name="x.zarr"),
        shardwrite.sources.open_source(url),
        zarr.open_array(ObjectStore(service.client(prefix)), mode="r"),
        da.from_zarr(zarr.open_array(ObjectStore(service.client()), path=prefix)),
        da.from_delayed(dask.delayed(np.asarray)(dask.delayed(zarr.open)(url)), (8,), float),
    ]
    before = service.contents(url)
    for reader in readers:
        assert shardwrite.plan_region(reader, url, ...).staged_with
        with pytest.raises(SpecError, match="the source reads the array that it is to replace"):
            shardwrite.to_sharded_zarr(reader, url, shards=4, chunks=2, mode="w")
    assert service.contents(url) == before
    for reader in readers[:-1]:  # s3fs, with which zarr-python would open the last one, is not here
        shardwrite.write_region(reader, url + "2", ..., exclusive=True)

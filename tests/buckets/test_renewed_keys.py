"""Keys that live for a moment: a function gives others in time, in each process."""

from __future__ import annotations

import os
import subprocess
import time
import traceback

import dask
import dask.array as da
import numpy as np
import proxy
import pytest
from forks import python

import shardwrite
from shardwrite import StoreError
from shardwrite.stores.bucket_url import open_bucket

VALUES = np.random.default_rng(0).integers(1, 2**32, (32, 16), dtype="u4")
SECRET = "0ThErSeCrEtCaNaRy"
MODULE = f'''
import os, time
from datetime import UTC, datetime, timedelta

def current():
    """Keys that tell when they were made, and each call is noted."""
    with open(os.environ["CALLS"], "a") as calls:
        calls.write(f"{{os.getpid()}}\\n")
    now, life = time.time(), float(os.environ["LIFE"])
    until = datetime.fromtimestamp(now + life, UTC)
    keys = {{"access_key_id": f"AKIA{{now * 1000:.0f}}", "secret_access_key": "{SECRET}"}}
    return {{**keys, "token": "{SECRET}", "expires_at": until}}

def failing():
    raise RuntimeError("{SECRET}")
'''
EXPIRED = (
    b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
)


class Checking(proxy.Passing):
    """Refuses keys that were made too long ago, and notes those that it has seen."""

    life: list
    keys: set

    def forwarded(self, body):
        key = self.headers["Authorization"].partition("Credential=")[2].partition("/")[0]
        self.keys.add(key)
        if time.time() - float(key.removeprefix("AKIA")) / 1000 > self.life[0]:
            return 400, "Bad Request", [("Content-Length", str(len(EXPIRED)))], EXPIRED
        return super().forwarded(body)


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """A module that gives keys, and the processes that have called it. No keys are elsewhere."""
    (tmp_path / "renewed_keys.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("LIFE", "0.6")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return lambda: (tmp_path / "calls").read_text().split()


def options(server):
    name = "renewed_keys:current"
    return {"endpoint": server.endpoint, "region": "us-east-1", "credential_provider": name}


def slowly(block):
    time.sleep(0.25)
    return block


@pytest.mark.long
def test_keys_are_renewed_while_a_run_goes_on(moto_server, url, calls, monkeypatch):
    kinds = set()
    layout = {"shards": 8, "chunks": 4, "compressors": None}
    x = da.from_array(VALUES, chunks=8).map_blocks(slowly, dtype="u4")
    more = {"kind": Checking, "life": [6], "keys": kinds}
    with proxy.before(moto_server, **more) as (server, faults), dask.config.set(scheduler="sync"):
        result = x.to_sharded_zarr(url, storage_options=options(server), source_id="it", **layout)
    assert result.n_shards == 8
    assert 2 <= len(kinds) <= len(calls()) < len(faults.seen), (
        "asked anew, and not for each request"
    )
    assert shardwrite.verify(moto_url(moto_server, url, monkeypatch), deep=True).is_good
    told = f"{result} {result!r} {moto_server.contents(url)}"
    assert SECRET not in told
    assert "AKIA" not in told


def moto_url(server, url, monkeypatch):
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return url


def test_without_renewal_the_service_refuses(moto_server, url, calls, monkeypatch):
    """So the test above sees that keys are renewed."""
    monkeypatch.setenv("LIFE", "3600")
    life = [3600]
    with proxy.before(moto_server, kind=Checking, life=life, keys=set()) as (server, _):
        store = open_bucket(url, options(server))
        life[0] = 0
        with pytest.raises(StoreError, match="session token has expired"):
            store.put_object("c/0", b"1")


def test_a_function_that_fails_is_told_at_once(moto_server, url, calls, caplog):
    given, begun = options(moto_server), time.monotonic()
    with pytest.raises(StoreError, match="renewed_keys:failing has raised RuntimeError") as caught:
        open_bucket(url, {**given, "credential_provider": "renewed_keys:failing"})
    assert time.monotonic() - begun < 10
    text = "".join(traceback.format_exception(caught.value)) + caplog.text
    assert SECRET not in text


@pytest.mark.long
def test_each_worker_asks_for_its_own_keys(moto_server, url, calls, tmp_path, monkeypatch):
    """As a command does it: the name comes from the environment, and no keys do."""
    np.save(tmp_path / "x.npy", VALUES)
    monkeypatch.setenv("DASK_SHARDWRITE__STORAGE__CREDENTIAL_PROVIDER", "renewed_keys:current")
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_server.endpoint)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    words = ["write", "x.npy", url, "--shards", "8", "--chunks", "4", "--workers", "2"]
    program = "from shardwrite.cli import main; main()"
    done = subprocess.run(
        [*python(), "-c", program, *words], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert len(set(calls())) >= 2, "the process that begins, and workers"
    assert SECRET not in done.stdout + done.stderr
    np.testing.assert_array_equal(
        shardwrite.open_sharded(moto_url(moto_server, url, monkeypatch))[:, :], VALUES
    )

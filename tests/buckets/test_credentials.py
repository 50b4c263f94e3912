"""Credentials are in no file, message, log, label or representation."""

from __future__ import annotations

import json
import logging
import re
import time
import traceback
from urllib.parse import parse_qs, unquote

import cloudpickle
import dask
import dask.array as da
import numpy as np
import pytest
from servers import ACCOUNT, KEY, SECRET
from tiers import some

import shardwrite
from shardwrite import ShardwriteError, StoreError
from shardwrite.config.table import SETTINGS
from shardwrite.stores.bucket_url import open_bucket

OTHER = "0ThErSeCrEtCaNaRy"


def holds_none(what, where):
    for secret in (SECRET, OTHER, KEY):
        assert secret not in what, f"{where} holds a credential"


def options(server):
    return {
        "endpoint": server.endpoint,
        "access_key_id": KEY,
        "secret_access_key": SECRET,
        "session_token": OTHER,
        "region": "us-east-1",
    }


@pytest.mark.long
def test_nothing_holds_a_credential(moto_server, url, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    x = da.from_array(np.arange(256, dtype="u4").reshape(16, 16) + 1, chunks=8)
    told = []

    def stop(report):
        told.append(repr(report))
        raise KeyboardInterrupt

    given = {"run_dir": tmp_path / "runs", "shards": 8, "chunks": 4, "source_id": "it"}
    with dask.config.set({"shardwrite.storage": options(moto_server), "scheduler": "sync"}):
        plan = shardwrite.plan(x, shards=8, chunks=4)
        with pytest.raises(KeyboardInterrupt):
            x.to_sharded_zarr(url, progress=stop, **given)
        files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        assert any(path.name == "plan.json" for path in files), "the run is unfinished"
        result = x.to_sharded_zarr(url, keep_report=True, **given)
        report = shardwrite.verify(url, run_dir=given["run_dir"])
        view = shardwrite.open_sharded(url)
        store = open_bucket(url, options(moto_server))
        for text in map(repr, (plan, result, report, view, store, store.at("c"), view.store)):
            holds_none(text, text[:40])
        for text in (str(result), str(report), store.url, store.token, result.path, *told):
            holds_none(text, text[:40])
    files.update({path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()})
    for path, content in files.items():
        holds_none(content.decode(errors="replace"), path)
    prefix = url.removeprefix("s3://bucket/")
    import obstore

    for key in moto_server.keys(prefix):
        content = bytes(obstore.get(moto_server.client(prefix), key).bytes())
        holds_none(content.decode(errors="replace"), key)
    holds_none(caplog.text, "the log")


@pytest.mark.parametrize(
    "changes",
    [
        {"bucket": "missing-bucket"},
        {"nonsense": OTHER},
        {"skip_signature": OTHER},
        {"retry_config": OTHER},
        {"client_options": {"timeout": OTHER}},
        {3: OTHER},
    ],
    ids=str,
)
def test_no_message_holds_a_credential(moto_server, changes, tmp_path):
    bucket = changes.get("bucket", "bucket")
    given = {**options(moto_server), **{k: v for k, v in changes.items() if k != "bucket"}}
    with pytest.raises(ShardwriteError) as caught:
        da.ones(4, chunks=2).to_sharded_zarr(
            f"s3://{bucket}/x", storage_options=given, run_dir=tmp_path, shards=2, chunks=1
        )
    error = caught.value
    for text in (
        str(error),
        repr(error),
        repr(error.fields),
        "".join(traceback.format_exception(error)),
    ):
        holds_none(text, "the error")


@pytest.fixture
def azure_alone(azurite_server, monkeypatch):
    """Azurite, without a key of the account in the environment."""
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", azurite_server.endpoint)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY", raising=False)
    return azurite_server


def holds_no_token(text, token, where):
    signature = parse_qs(token)["sig"][0]
    for secret in (token, signature, signature.rstrip("="), unquote(signature)):
        assert secret not in text, f"{where} holds a token"
        assert secret not in unquote(text), f"{where} holds a token"
    assert not re.search(r"sig(=|%3D)", text), f"{where} holds a signature"


@pytest.mark.parametrize("how", some(["sas_token", "sas_key", "environment"], "sas_token"))
def test_a_token_of_azure_is_enough_and_nothing_holds_it(
    azure_alone, how, tmp_path, caplog, request
):
    caplog.set_level(logging.DEBUG)
    token, url = azure_alone.sas(), f"az://bucket/sas-{how}/x.zarr"
    x = da.from_array(np.arange(256, dtype="u4").reshape(16, 16) + 1, chunks=8)
    options, told = {how: token}, []
    if how == "environment":
        request.getfixturevalue("monkeypatch").setenv("AZURE_STORAGE_SAS_TOKEN", token)
        options = {}

    def stop(report):
        told.append(repr(report))
        raise KeyboardInterrupt

    given = {"shards": 8, "chunks": 4, "source_id": "it"}
    with dask.config.set({"shardwrite.storage": options, "scheduler": "sync"}):
        with pytest.raises(KeyboardInterrupt):
            x.to_sharded_zarr(url, progress=stop, **given)
        states = azure_alone.contents(url)
        assert any("shardwrite-run/" in key for key in states), "the run is unfinished"
        told += [repr(shardwrite.report(url)), str(shardwrite.report(url))]
        result = x.to_sharded_zarr(url, keep_report=True, **given)
        (x[:3] + 1).to_sharded_zarr(url, region=np.s_[:3])
        report, view = shardwrite.verify(url, deep=True), shardwrite.open_sharded(url)
        store = open_bucket(url, options)
        told += map(repr, (result, report, view, store, store.at("c"), view.store))
        told += [str(result), str(report), store.url, store.token, result.path]
        with pytest.raises(ShardwriteError) as caught:
            x.to_sharded_zarr(url, **{**given, "shards": 16})
        told += ["".join(traceback.format_exception(caught.value))]
    for key, content in {**states, **azure_alone.contents(url)}.items():
        holds_no_token(f"{key} {content}", token, key)
    for text in (*told, caplog.text):
        holds_no_token(text, token, text[:40])


@pytest.mark.parametrize(
    ("rights", "seconds"), [("racwdl", -60), ("rl", 3600)], ids=["expired", "read-only"]
)
def test_a_token_of_azure_that_does_not_do_is_told_at_once(azure_alone, rights, seconds):
    token, begun = azure_alone.sas(rights, seconds), time.monotonic()
    given = {"storage_options": {"sas_token": token}, "shards": 2, "chunks": 1}
    with pytest.raises(StoreError, match="AZURE_STORAGE_SAS_TOKEN") as caught:
        da.ones(4, chunks=2).to_sharded_zarr("az://bucket/refused/x", **given)
    assert time.monotonic() - begun < 10
    error = caught.value
    for text in (repr(error.fields), "".join(traceback.format_exception(error))):
        holds_no_token(text, token, "the error")


def test_configuration_shows_names_alone():
    from click.testing import CliRunner

    from shardwrite.cli import main

    with dask.config.set({"shardwrite.storage": {"secret_access_key": SECRET}}):
        for words in (["config"], ["config", "--json"]):
            done = CliRunner().invoke(main, words)
            holds_none(done.output, "config")
            assert "secret_access_key" in done.output
    with dask.config.set({"shardwrite.storage": SECRET}):
        for words in (["config"], ["config", "--json"]):
            holds_none(CliRunner().invoke(main, words).output, "config")
    assert [setting.name for setting in SETTINGS if setting.is_secret] == ["storage"]


def test_a_pickled_store_brings_its_options_and_not_the_environment(seaweed, url):
    """Each process reads the environment itself, so that keys may differ or be renewed."""
    store = open_bucket(url, {})
    store.prepare()
    pickled = cloudpickle.dumps(store)
    for secret in (KEY, SECRET):
        assert secret.encode() not in pickled
    store = cloudpickle.loads(pickled)
    assert store.create_new("a", b"1")
    assert json.loads(bytes(store.read_whole("a", 10))) == 1

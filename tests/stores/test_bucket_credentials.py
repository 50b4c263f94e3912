"""Credentials that a function gives: asked for anew in time, typed errors, and nothing tells them."""

from __future__ import annotations

import pickle
import sys
import traceback
from datetime import UTC, datetime, timedelta

import pytest

from shardwrite import SpecError, StoreError
from shardwrite.stores import bucket_url
from shardwrite.stores.bucket_url import credentials_from, open_bucket

SECRET = "sEcReTcAnArY"
KEYS = {"access_key_id": "A", "secret_access_key": SECRET, "token": SECRET}
HOUR = timedelta(hours=1)
asked = []


def lasting():
    asked.append(1)
    return {**KEYS, "expires_at": datetime.now(UTC) + HOUR}


def forever():
    asked.append(1)
    return KEYS


class Keys:
    def __init__(self):
        self.config = {"region": "here"}

    def __call__(self):
        return lasting()


async def later():
    return KEYS


@pytest.fixture(autouse=True)
def none_asked():
    asked.clear()


def moved(monkeypatch, by):
    """Have the module of credentials see a later time."""
    monkeypatch.setattr(bucket_url, "_now", lambda: datetime.now(UTC) + by)


@pytest.mark.parametrize(
    "given", [lasting, Keys, Keys(), f"{__name__}:lasting", f"{__name__}:Keys"]
)
def test_it_is_asked_again_one_minute_before_the_end(given, monkeypatch):
    found = credentials_from(given, "S3Store")
    assert [found()["token"] for _ in range(3)] == [SECRET] * 3
    assert len(asked) == 1
    moved(monkeypatch, timedelta(minutes=58))
    found()
    assert len(asked) == 1
    moved(monkeypatch, timedelta(minutes=59, seconds=1))
    found()
    assert len(asked) == 2


def test_what_does_not_expire_is_asked_for_once(monkeypatch):
    found = credentials_from(forever, "S3Store")
    assert found()["expires_at"] is None
    moved(monkeypatch, timedelta(days=1000))
    found()
    assert len(asked) == 1


def test_all_stores_of_a_process_share_them_and_none_travel():
    name = f"{__name__}:lasting"
    found = credentials_from(name, "S3Store")
    found()
    pickled = pickle.dumps(found)
    assert SECRET.encode() not in pickled
    assert pickle.loads(pickled) is found is credentials_from(name, "S3Store")
    assert SECRET not in repr(found)
    assert name in repr(found)
    store = open_bucket_offline(name)
    assert store.credential_provider is found
    assert SECRET.encode() not in pickle.dumps(store)


def open_bucket_offline(provider):
    address = bucket_url._parsed("s3://bucket/x")
    return bucket_url._client(address, {"credential_provider": provider}, {}, {})


def test_the_attributes_that_obstore_looks_for_are_those_of_the_function():
    assert credentials_from(Keys, "S3Store").config == {"region": "here"}
    assert open_bucket_offline(f"{__name__}:Keys").config["region"] == "here"
    with pytest.raises(AttributeError):
        _ = credentials_from(lasting, "S3Store").config


def fails():
    raise RuntimeError(f"cannot use {SECRET}")


@pytest.mark.parametrize(
    ("given", "kind", "told"),
    [
        (fails, "S3Store", "has raised RuntimeError"),
        (lambda: SECRET, "S3Store", "gives no mapping"),
        (lambda: {"token": SECRET}, "S3Store", "access_key_id and secret_access_key"),
        (lambda: {"key": SECRET}, "AzureStore", "does not give access_key or sas_token or token"),
        (lambda: {"key": SECRET}, "GCSStore", "does not give token"),
        (lambda: {**KEYS, "expires_at": SECRET}, "S3Store", "no time with a time zone"),
        (lambda: {**KEYS, "expires_at": datetime(2999, 1, 1)}, "S3Store", "time zone"),
        (lambda: {**KEYS, "expires_at": datetime.now(UTC) - HOUR}, "S3Store", "expired already"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_function_that_fails_is_told_without_what_it_gave(given, kind, told):
    with pytest.raises(StoreError, match=told) as caught:
        credentials_from(given, kind)()
    text = "".join(traceback.format_exception(caught.value))
    assert credentials_from(given, kind).name in str(caught.value)
    assert SECRET not in text


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("no name", "not the name of a function"),
        ("no_such_module:current", "No module named 'no_such_module'"),
        (f"{__name__}:no_such", "no attribute 'no_such'"),
        (f"{__name__}:SECRET", "is no function"),
        (f"{__name__}:later", "is asynchronous"),
        (later, "is asynchronous"),
        (3, "is no function"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value))[:30],
)
def test_what_is_no_such_function_is_refused_before_anything_is_asked(given, told):
    with pytest.raises(SpecError, match=told) as caught:
        open_bucket("s3://bucket/x", {"credential_provider": given})
    assert "PYTHONPATH" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_module_that_fails_is_told_without_its_text(tmp_path, monkeypatch):
    (tmp_path / "failing_keys.py").write_text(f"raise ValueError('{SECRET}')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SpecError, match="ValueError: it fails") as caught:
        open_bucket("s3://bucket/x", {"credential_provider": "failing_keys:current"})
    assert SECRET not in str(caught.value)
    assert "failing_keys" not in sys.modules

"""Stores of obstore: what is known of them, their names, their options, and their errors."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
from datetime import timedelta
from types import SimpleNamespace

import dask.array as da
import numpy as np
import obstore
import pytest
import zarr.storage
from forks import python
from obstore.store import AzureStore, GCSStore, LocalStore, MemoryStore, S3Store

import shardwrite
from shardwrite import RunEndedError, SpecError, StoreError
from shardwrite.place.objects import InStore
from shardwrite.stores import Capability, bucket, open_store
from shardwrite.stores.bucket import (
    BucketStore,
    Tails,
    as_bucket_error,
    is_missing_bucket,
    made_again,
)
from shardwrite.stores.bucket_url import _FEW_RETRIES, open_bucket
from shardwrite.stores.looking import is_bucket_url

CONDITIONS = {Capability.EXCLUSIVE, Capability.CONDITIONAL}
AWS = {"region": "eu-central-1"}
AZURE = {"account_name": "me", "account_key": "a2V5"}
SITE = {"endpoint": "https://s3.site.example", "region": "us-east-1"}


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in os.environ:
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_")):
            monkeypatch.delenv(name)


def put(store, key, data):
    with store.transaction("none", "run.1") as transaction:
        writer = transaction.create(key)
        writer.write([data])
        writer.finish()


@pytest.mark.parametrize(
    ("store", "url", "conditions"),
    [
        (lambda: S3Store("bucket", prefix="a/x.zarr", config=AWS), "s3://bucket/a/x.zarr", True),
        (lambda: S3Store("bucket", config=AWS), "s3://bucket", True),
        (lambda: S3Store("bucket", prefix="x", config=SITE), "s3://bucket/x", False),
        (lambda: GCSStore("bucket", prefix="x"), "gs://bucket/x", True),
        (lambda: AzureStore("box", config={"account_name": "me"}, prefix="x"), "az://box/x", True),
        (MemoryStore, "memory://", True),
    ],
)
def test_what_is_known_of_a_kind(store, url, conditions):
    made = BucketStore(store())
    assert (made.url, repr(made)) == (url, url)
    assert (made.capabilities & CONDITIONS == CONDITIONS) == conditions
    assert made.at("c").url == f"{url.rstrip('/')}/c" if "memory" not in url else "memory://c"


def test_the_same_place_has_one_name_whatever_the_credentials():
    tokens = {
        BucketStore(S3Store("bucket", prefix="x", config={**SITE, **more})).token
        for more in ({}, {"access_key_id": "A", "secret_access_key": "B"})
    }
    tokens.add(
        open_store(zarr.storage.ObjectStore(S3Store("bucket", prefix="x", config=SITE))).store.token
    )
    assert len(tokens) == 1
    assert "bucket=bucket" in tokens.pop()
    assert BucketStore(S3Store("bucket", config=SITE)).at("x").token not in tokens


def test_the_environment_says_where_a_service_is(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://s3.site.example")
    store = BucketStore(S3Store("bucket"))
    assert "s3.site.example" in store.token
    assert not store.capabilities & CONDITIONS, "nothing is known of this service"


def test_an_object_store_of_zarr_is_its_store_of_obstore(tmp_path):
    for given in (MemoryStore(), LocalStore(tmp_path)):
        for one in (given, zarr.storage.ObjectStore(given)):
            assert isinstance(open_store(one).store, BucketStore)
            assert open_store(one).store.owner is given


def test_an_array_in_a_store_of_obstore(tmp_path):
    x = da.from_array(np.arange(64).reshape(8, 8) + 1, chunks=4)
    store = MemoryStore()
    x.to_sharded_zarr(store, name="a/x", shards=4, chunks=2)
    np.testing.assert_array_equal(shardwrite.open_sharded(store, "a/x")[:, :], x.compute())
    (2 * x[:3, :3]).to_sharded_zarr(store, name="a/x", region=np.s_[:3, :3])
    found = zarr.open_group(zarr.storage.ObjectStore(store))["a/x"][...]
    np.testing.assert_array_equal(found[:3, :3], 2 * x[:3, :3].compute())


def test_an_array_at_a_url_in_memory():
    x = da.arange(16, chunks=4) + 1
    x.to_sharded_zarr("memory://test-bucket/x.zarr", shards=8, chunks=2)
    np.testing.assert_array_equal(zarr.open_array("memory://test-bucket/x.zarr")[...], x)
    np.testing.assert_array_equal(shardwrite.open_sharded("memory://test-bucket/x.zarr")[:], x)


# ---- URLs and options


@pytest.mark.parametrize(
    ("given", "url", "config"),
    [
        ("s3://bucket/a/x.zarr/", "s3://bucket/a/x.zarr", {"bucket": "bucket"}),
        ("S3A://bucket/a%20b", "s3://bucket/a b", {"bucket": "bucket"}),
        ("gs://bucket", "gs://bucket", {"bucket": "bucket"}),
        ("az://box/x", "az://box/x", {"container_name": "box", "account_name": "me"}),
        (
            "abfss://box@other.dfs.core.windows.net/x",
            "az://box/x",
            {"container_name": "box", "account_name": "other"},
        ),
    ],
)
def test_urls(given, url, config, monkeypatch):
    monkeypatch.setattr(BucketStore, "check_reachable", lambda *arguments: None)
    options = {"account_name": "me"} if given.startswith("az") else {}
    store = open_bucket(given, {**options, "skip_signature": True})
    assert store.url == url
    assert store.owner.config == {**config, "skip_signature": "true"}
    assert store.owner.retry_config["max_retries"] == 8
    assert store.owner.client_options["timeout"] == "600s"


@pytest.mark.parametrize("name", ["50%41 x", "a?b#c", "ü+~[1]&'=/%25"])
def test_the_name_of_a_place_opens_it_again(name, monkeypatch):
    monkeypatch.setattr(BucketStore, "check_reachable", lambda *arguments: None)
    place = InStore(open_bucket("s3://bucket/below", {"skip_signature": True}), name)
    assert open_bucket(place.label, {"skip_signature": True}).owner.prefix == f"below/{name}"


def test_words_of_fsspec_are_known(monkeypatch):
    monkeypatch.setattr(BucketStore, "check_reachable", lambda *arguments: None)
    words = {
        "key": "A",
        "secret": "B",
        "client_kwargs": {"endpoint_url": "http://127.0.0.1:1", "region_name": "here"},
    }
    made = open_bucket("s3://bucket/x", words).owner
    assert made.config == {
        "bucket": "bucket",
        "access_key_id": "A",
        "secret_access_key": "B",
        "endpoint": "http://127.0.0.1:1",
        "region": "here",
    }
    assert made.client_options["allow_http"], "the user has given such an address"


@pytest.mark.parametrize(
    ("url", "options", "told"),
    [
        ("s3:/bucket/x", {}, "path object loses a slash"),
        ("s3://", {}, "not a bucket and a path"),
        ("s3://bucket/a/../x", {}, "not a bucket and a path"),
        ("s3://bucket/a//x", {}, "not a bucket and a path"),
        ("s3://bucket/x?versionId=3", {}, "not a bucket and a path"),
        ("s3://bucket/a\\x", {}, "backslash or a control character"),
        ("s3://bucket/a\tx", {}, "backslash or a control character"),
        ("gs://bucket/a%0Ax", {}, "backslash or a control character"),
        ("az://box/a%00x", {}, "backslash or a control character"),
        ("s3://A:B@bucket/x", {}, "holds credentials"),
        ("abfs://box@host.example/x", {}, "holds credentials"),
        ("s3://bucket/x", {"nonsense": "1"}, "nonsense is not known to obstore"),
        ("s3://bucket/x", {"retry_config": 3}, "retry_config is no mapping"),
        ("s3://bucket/x", {"skip_signature": "maybe"}, "GenericError of obstore"),
        ("az://box/x", {}, "AZURE_STORAGE_ACCOUNT_NAME, or account_name"),
        ("az://box/x", {**AZURE, "account_key": "?"}, "give options of obstore"),
    ],
)
def test_what_is_refused_before_the_first_request(url, options, told):
    with pytest.raises(SpecError, match=told):
        open_bucket(url, options)


def test_without_obstore_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(SpecError, match=r"pip install .shardwrite\[cloud\]"):
        da.ones(4, chunks=2).to_sharded_zarr("s3://bucket/x", shards=2, chunks=1)


def test_a_service_that_is_not_there_is_told_soon():
    with pytest.raises(StoreError, match=r"cannot be reached.*AWS_ENDPOINT_URL") as caught:
        open_bucket(
            "s3://bucket/x", {**SITE, "endpoint": "http://127.0.0.1:1", "key": "A", "secret": "B"}
        )
    assert caught.value.errno == errno.EIO
    assert _FEW_RETRIES["max_retries"] == 2


def test_formats_that_are_not_read_from_a_bucket():
    for name in ("nifti", "netcdf3", "b2nd", "wkw"):
        with pytest.raises(SpecError, match=f"format {name} is not read from a bucket.*local file"):
            shardwrite.sources.open_source("s3://bucket/x.nii", format=name)
    assert is_bucket_url("gs://bucket/x.npy")


# ---- errors


@pytest.mark.parametrize(
    ("text", "told", "number"),
    [
        ("404 Not Found: <Code>NoSuchBucket</Code>", "bucket does not exist", errno.ENXIO),
        ("Received redirect without LOCATION, this", "another region. Set AWS_REGION", errno.ENXIO),
        ("400: <Code>AuthorizationHeaderMalformed</Code>", "AWS_REGION", errno.ENXIO),
        ("400: <Code>ExpiredToken</Code>", "Renew AWS_SESSION_TOKEN", errno.EACCES),
        ("403: <Code>RequestTimeTooSkewed</Code>", "clock of this machine", errno.EACCES),
        ("403: <Code>SignatureDoesNotMatch</Code>", "does not know the keys", errno.EACCES),
        ("403 Forbidden: <Code>AccessDenied</Code>", "no right", errno.EACCES),
        ("503 Slow Down: <Code>SlowDown</Code>", "overloaded", errno.EIO),
        ("400: <Code>InvalidResourceName</Code>", "no bucket can have that name", errno.EINVAL),
        ("token request: Error: 403 Forbidden", "no credentials were found", errno.EACCES),
        (
            "Error performing PUT http://169.254.169.254/latest/api/token in 2s: kind: Connect",
            "no credentials were found",
            errno.EACCES,
        ),
        ("error trying to connect: operation timed out", "in time", errno.ETIMEDOUT),
        ("something else", "cannot read 'c/0' in s3://b: GenericError", errno.EIO),
    ],
)
def test_what_an_answer_means(text, told, number):
    from obstore.exceptions import GenericError

    long = f"Generic S3 error: Error performing GET http://h/x?sig=CANARY, retry_timeout: 9s - {text} CANARY"
    error = as_bucket_error(GenericError(long), "read", "c/0", "s3://b")
    assert told in str(error)
    assert error.errno == number
    assert "CANARY" not in str(error)


ASKED = "Error performing GET http://127.0.0.1:9000/bucket/{0} in 12.4ms, after 8 retries"
ANSWER = "Server returned non-2xx status code: {0}: <Error><Code>{1}</Code><Key>{2}</Key></Error>"


@pytest.mark.parametrize(
    "name", ["x/c/403/0", "x/c/401/7", "NoSuchBucket/x", "credential/x", "Connect/SlowDown/x"]
)
def test_names_of_objects_are_no_answers(name):
    """The text of obstore holds them three times, and a shard may have the number of an error."""
    asked, debug = ASKED.format(name), f'\n\nDebug source:\nGeneric {{\n path: "{name}",\n'
    answer = ANSWER.format("503 Service Unavailable", "SlowDown", name)
    text = f"Generic S3 error: {asked} - {answer}{debug} uri: Some(\n http://h/bucket/{name},\n)"
    found = as_bucket_error(RuntimeError(text), "read", name, "s3://bucket/x")
    assert "is overloaded or out of order" in found.message
    assert found.errno == errno.EIO
    answer = ANSWER.format("404 Not Found", "NoSuchKey", name)
    missing = FileNotFoundError(f"Object at location {name} not found: {asked} - {answer}{debug}")
    assert not is_missing_bucket(missing)
    answer = ANSWER.format("404 Not Found", "NoSuchBucket", name)
    missing = FileNotFoundError(f"Object at location {name} not found: {asked} - {answer}")
    assert is_missing_bucket(missing)


def test_a_list_that_is_not_found_is_an_error(monkeypatch):
    """Taken for an empty list, it would say that no shard is there."""

    def list_(*_, **__):
        raise FileNotFoundError("404 Not Found")

    monkeypatch.setattr(obstore, "list", list_)
    with pytest.raises(StoreError, match=r"cannot list s3://bucket"):
        list(BucketStore(S3Store("bucket", config=AWS)).list_names("c/"))


@pytest.mark.parametrize(
    ("store", "most"),
    [
        (S3Store("bucket", config=AWS), 5 * 2**30),
        (AzureStore("bucket", config=AZURE), 5000 * 2**20),
        (GCSStore("bucket", config={"skip_signature": True}), 5 * 2**40),
    ],
    ids=lambda store: type(store).__name__,
)
def test_an_object_that_is_too_large_for_one_request(store, most):
    class Large(bytes):
        def __len__(self):
            return most + 1

    with pytest.raises(StoreError, match=rf"{most + 1:,} bytes, .* give smaller shards") as caught:
        BucketStore(store).put_object("c/0", Large())
    assert caught.value.errno == errno.EFBIG


def test_what_was_replaced_while_it_was_read_is_an_error():
    store = BucketStore(MemoryStore())
    put(store, "c/0", bytes(100_000))
    with store.open("c/0") as reader:
        put(store, "c/0", bytes(100_000))
        assert reader.read(99_999, 1) == b"\0", "the end was read with the first request"
        with pytest.raises(StoreError, match="was replaced") as caught:
            reader.read(0, 1)
    assert caught.value.errno == errno.ESTALE


def test_a_put_whose_answer_was_lost_is_checked(monkeypatch):
    from obstore.exceptions import GenericError

    store, real = BucketStore(MemoryStore()), obstore.put

    def lost(*arguments, **options):
        real(*arguments, **options)
        raise GenericError("the connection is gone")

    monkeypatch.setattr(obstore, "put", lost)
    assert store.create_new("a", b"1")
    store.replace_object("a", b"2", store.version("a"))
    assert not store.create_new("a", b"3")
    monkeypatch.undo()
    assert bytes(store.read_whole("a", 9)) == b"2"


def put_first(store, data, guard):
    with store.transaction("none", "run.1", guard, is_fresh=True) as transaction:
        writer = transaction.create("c/0")
        writer.write([data])
        writer.finish()


UNANSWERED = "Error performing PUT http://h/b/x in 9.6ms{} - HTTP error: error sending request"


@pytest.mark.parametrize(
    ("text", "most", "n_made"),
    [
        (UNANSWERED.format(""), 3, 4),
        (UNANSWERED.format(""), 0, 1),
        (UNANSWERED.format(", after 3 retries, max_retries: 3"), 3, 1),
        ("Error performing PUT http://h - Server returned non-2xx status code: 403", 3, 1),
    ],
    ids=["no answer", "no retries", "obstore has tried", "refused"],
)
def test_a_request_without_an_answer_is_made_again(text, most, n_made):
    from obstore.exceptions import GenericError

    pauses = {"init_backoff": timedelta(milliseconds=1), "max_backoff": timedelta(milliseconds=2)}
    store = SimpleNamespace(retry_config={"max_retries": most, "backoff": pauses})
    made = []

    def request():
        made.append(1)
        raise GenericError(f"Generic S3 error: {text}\n\nDebug source:\nRetryErrorImpl")

    with pytest.raises(GenericError):
        made_again(store, request)
    assert len(made) == n_made
    assert made_again(store, lambda: 7) == 7
    store.retry_config["retry_timeout"] = timedelta(0)
    made.clear()
    with pytest.raises(GenericError):
        made_again(store, request)
    assert len(made) == 1, "no time was left"


def test_a_new_object_takes_one_request(monkeypatch):
    store, asked = BucketStore(MemoryStore()), []
    for name in ("put", "get", "head", "list"):
        real = getattr(obstore, name)
        monkeypatch.setattr(
            obstore, name, lambda *a, _r=real, _n=name, **k: (asked.append(_n), _r(*a, **k))[1]
        )
    put_first(store, b"mine", lambda: None)
    assert asked == ["put"]


def test_a_process_that_was_frozen_before_a_new_object_replaces_nothing_of_others():
    store, asked = BucketStore(MemoryStore()), []

    def guard():
        if asked:
            raise RunEndedError("taken over", path="run")
        asked.append("the guard, and then another process puts its object")
        put(store, "c/0", b"theirs")

    with pytest.raises(RunEndedError):
        put_first(store, b"mine", guard)
    assert bytes(store.read_whole("c/0", 9)) == b"theirs"


def test_what_an_interrupted_attempt_has_left_is_replaced(monkeypatch):
    store = BucketStore(MemoryStore())
    put(store, "c/0", b"partly")
    put_first(store, b"whole!", lambda: None)
    assert bytes(store.read_whole("c/0", 9)) == b"whole!"
    before = store.version("c/0")
    monkeypatch.setattr(bucket, "COPIED_NBYTES", 4)
    put_first(store, b"whole!", lambda: None)
    assert store.version("c/0") == before, "the same bytes need not be put again"
    put_first(store, b"whole?", lambda: None)
    assert bytes(store.read_whole("c/0", 9)) == b"whole?"


def test_a_refusal_that_no_condition_explains_is_an_error(monkeypatch):
    """As a blob of Azure that others hold a lease on: it is not removed, and not missing either."""
    from obstore.exceptions import PreconditionError

    def refuse(*arguments, **options):
        raise PreconditionError("Server returned error response: 412 <Code>LeaseIdMissing</Code>")

    store = BucketStore(MemoryStore())
    put(store, "a", b"1")
    for name in ("delete", "head", "get"):
        monkeypatch.setattr(obstore, name, refuse)
    for call in (store.remove_object, store.version_of_object, store.open_object):
        with pytest.raises(StoreError, match="LeaseIdMissing"):
            call("a")


def test_a_child_of_a_fork_is_refused_rather_than_left_waiting(tmp_path):
    program = """
import os, sys, signal
from obstore.store import LocalStore
from shardwrite import StoreError
from shardwrite.stores.bucket import BucketStore
store = BucketStore(LocalStore(sys.argv[1]))
store.create_new("a", b"1")
child = os.fork()
if child == 0:
    signal.alarm(20)
    try:
        store.version("a")
    except StoreError as error:
        os._exit(0 if "forked" in str(error) else 3)
    os._exit(4)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    subprocess.run([*python(), "-c", program, tmp_path], check=True)


# ---- objects that were seen before


def large(store, key="c/0"):
    put(store, key, bytes(200_000) + bytes(range(100)))


@pytest.fixture
def asked(monkeypatch):
    """The requests for objects that a test makes, and the ranges that they name."""
    found = []
    for name in ("get", "head"):
        real = getattr(obstore, name)

        def note(*arguments, _real=real, _name=name, **keywords):
            options = keywords.get("options") or {}
            found.append((_name, options.get("range")))
            return _real(*arguments, **keywords)

        monkeypatch.setattr(obstore, name, note)
    return found


def test_an_object_that_was_seen_before_is_asked_for_ranges_only(asked):
    store = BucketStore(MemoryStore())
    large(store)
    with store.open("c/0") as reader:
        identity = reader.identity
    asked.clear()
    with store.open_for("c/0", 0, identity) as reader:
        assert reader.identity == identity
        assert reader.read(200_000, 100) == bytes(range(100))
    assert [name for name, _ in asked] == ["get"]
    asked.clear()
    with store.open_for("c/0", 0, identity):  # as if the index said that nothing is stored
        pass
    assert [name for name, _ in asked] == ["head"], "it is not believed without a question"


@pytest.mark.parametrize(
    ("first", "wanted"), [(0, {"suffix": 2**16}), (100, (0, 100)), (-(2**17), {"suffix": 2**17})]
)
def test_what_is_read_first_comes_with_the_first_request(asked, first, wanted):
    store = BucketStore(MemoryStore())
    large(store)
    asked.clear()
    with store.open_for("c/0", first) as reader:
        assert reader.nbytes == 200_100
        offset = 0 if first > 0 else 200_100 + min(first, -1)
        data = reader.read(offset, max(abs(first), 1))
    assert data == (bytes(200_000) + bytes(range(100)))[offset : offset + len(data)]
    assert asked == [("get", wanted)]


@pytest.mark.parametrize("after", ["replaced", "removed"])
def test_an_object_that_is_another_one_now_is_an_error(after):
    store = BucketStore(MemoryStore())
    for read in (lambda reader: reader.read(0, 1), lambda _: None):
        large(store)
        with store.open("c/0") as reader:
            identity = reader.identity
        if after == "replaced":
            large(store)
        else:
            store.remove_object("c/0")
        with (
            pytest.raises(StoreError, match="was replaced") as caught,
            store.open_for("c/0", 0, identity) as reader,
        ):
            read(reader)
        assert caught.value.errno == errno.ESTALE


def test_an_object_in_a_directory_has_no_identity(tmp_path):
    """Its tag is a time, which two changes in one tick of the clock share."""
    store = BucketStore(LocalStore(tmp_path))
    large(store)
    with store.open("c/0") as reader:
        assert reader.identity is None


def test_the_number_of_last_bytes_grows_up_to_a_limit():
    tails = Tails()
    tails.wanted(2**17)
    assert pickle.loads(pickle.dumps(tails)).nbytes == 2**17
    tails.wanted(2**30)
    assert tails.nbytes == 2**22


def test_what_is_put_in_the_place_of_another_version_is_refused_if_it_changed_after_the_guard():
    """Between the guard and the put, another process has taken the run over, and put its own."""
    store = BucketStore(MemoryStore())
    is_late = True

    def replaced(name, data, version):
        nonlocal is_late
        if is_late:
            is_late = False
            store.put_object("c/0", bytearray(b"of the other one"))
        return replace_object(name, data, version)

    replace_object, store.replace_object = store.replace_object, replaced
    store.put_object("c/0", bytearray(b"old"))
    seen = []
    with store.transaction("none", "run.1", lambda: seen.append("guard")) as transaction:
        writer = transaction.create("c/0")
        writer.write([b"new"])
        with pytest.raises(StoreError) as caught:
            writer.finish()
    assert caught.value.errno == errno.ESTALE
    assert seen == ["guard", "guard"], "also after the look at the version"
    with store.open("c/0") as reader:
        assert bytes(reader.read(0, reader.nbytes)) == b"of the other one"
    with store.transaction("none", "run.1") as transaction:
        writer = transaction.create("c/0")
        writer.write([b"new"])
        writer.finish()
    with store.open("c/0") as reader:
        assert bytes(reader.read(0, reader.nbytes)) == b"new"

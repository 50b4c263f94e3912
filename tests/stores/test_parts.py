"""Large objects of a bucket: the sizes of parts, what a writer holds, and what a client is given."""

from __future__ import annotations

import errno
import logging
import os
import pickle
import time
from datetime import UTC, datetime, timedelta

import dask
import dask.array as da
import numpy as np
import pytest
from obstore.store import AzureStore, GCSStore, S3Store

from shardwrite import PlanError, SpecError, StoreError
from shardwrite.engines import active_engine
from shardwrite.format.bounds import head_nbytes_of, most_nbytes_of, plain_nbytes_of
from shardwrite.format.document import ArrayOptions, make_metadata
from shardwrite.plan import PlanOptions
from shardwrite.runs.array_plan import plan_array
from shardwrite.stores import (
    BucketStore,
    Capability,
    bucket_parts,
    bucket_s3,
    bucket_uploads,
    whole_transaction,
)
from shardwrite.stores.bucket_parts import InParts, PartedWriter, put_limit
from shardwrite.stores.bucket_uploads import (
    MOST_NBYTES,
    MOST_PARTS,
    MOST_PUT_NBYTES,
    Upload,
    held_nbytes,
    part_nbytes_for,
)
from shardwrite.stores.whole_transaction import WholeTransaction

MIB = 2**20
SITE = {
    "endpoint": "https://s3.site.example",
    "region": "here",
    "access_key_id": "A",
    "secret_access_key": "B",
}


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in os.environ:
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_")):
            monkeypatch.delenv(name)


# ---- sizes


@pytest.mark.parametrize("most", [1, 2**27, 10_000 * 16 * MIB, 2**40, 2**42 + 12345, MOST_NBYTES])
@pytest.mark.parametrize("head", [0, 40 * MIB])
def test_parts_are_neither_too_small_nor_too_many(most, head):
    nbytes = part_nbytes_for(most, head)
    assert nbytes % MIB == 0
    assert max(5 * MIB, head) <= nbytes <= MOST_PUT_NBYTES
    assert -(-most // nbytes) <= MOST_PARTS
    assert nbytes == max(16 * MIB, head) or (nbytes - MIB) * MOST_PARTS < most, "no larger than so"


@pytest.mark.parametrize("given", [(MOST_NBYTES + 1, 0), (2**40, MOST_PUT_NBYTES + 1)])
def test_what_no_service_takes(given):
    with pytest.raises(StoreError, match="too large") as caught:
        part_nbytes_for(*given)
    assert caught.value.errno == errno.EFBIG


@pytest.mark.parametrize(
    ("given", "limit"), [("1 kiB", 1024), ("128 MiB", 128 * MIB), ("1 TiB", MOST_PUT_NBYTES)]
)
def test_the_limit_is_never_more_than_one_request_takes(given, limit):
    with dask.config.set({"shardwrite.bucket.put-limit": given}):
        assert put_limit() == limit
        assert held_nbytes(10 * MIB, 0, put_limit()) == 10 * MIB
        assert held_nbytes(2**40, 0, put_limit()) == max(limit, 105 * MIB) + 2 * 105 * MIB


@pytest.mark.parametrize("compressors", [None, "auto"])
@pytest.mark.parametrize("location", ["start", "end"])
def test_bounds_of_a_shard(compressors, location):
    options = ArrayOptions(compressors=compressors, index_location=location)
    metadata = make_metadata((100, 100), np.dtype("u2"), (64, 64), (8, 8), options)
    index = 16 * 64 + 4
    assert plain_nbytes_of(metadata) == 2 * 64 * 64 + index
    assert head_nbytes_of(metadata) == (index if location == "start" else 0)
    codecs = 64 * metadata.pipeline.most_encoded_nbytes if compressors is None else 0
    assert most_nbytes_of(metadata) >= max(plain_nbytes_of(metadata), codecs + index)


# ---- the writer


class Recorded:
    """Uploads that are kept in memory."""

    def __init__(self):
        self.objects, self.begun, self.parts, self.aborted = {}, [], {}, []
        self.conditions, self.largest = [], 0

    def begin(self, name, metadata):
        self.begun.append(name)
        self.metadata = metadata
        self.parts = {}
        return Upload(name, f"upload-{id(self)}-{len(self.begun)}", "mark")

    def put_part(self, upload, number, data):
        assert type(data) in (bytes, bytearray), "what botocore takes"
        self.parts[number] = bytes(data)
        return f"tag-{number}"

    def complete(self, upload, tags, condition):
        self.conditions.append(condition)
        assert tags == [f"tag-{n}" for n in range(1, len(self.parts) + 1)]
        self.objects[upload.name] = b"".join(self.parts[n] for n in sorted(self.parts))
        return True

    def abort(self, upload):
        self.aborted.append(upload.id)

    def found(self, prefix):
        return iter([Upload(name, "left") for name in self.begun if name.startswith(prefix)])


class Puts:
    """A store as a transaction sees it."""

    capabilities = frozenset({Capability.CONDITIONAL})
    prefix, is_remote = "x/", False

    def __init__(self, *, completes_if=True, version=None):
        self.uploads, self.put, self.version = Recorded(), {}, version
        self.completes_if = completes_if
        self.in_parts = InParts(None, "", "s3://b")
        self.in_parts._uploads, self.in_parts._pid = self.uploads, os.getpid()

    def put_object(self, name, data):
        self.put[name] = bytes(data)

    def replace_object(self, name, data, version):
        self.put[name] = bytes(data)

    def version_of_object(self, name):
        return self.version

    def described(self, metadata):
        return self

    def writer(self, transaction, key):
        return PartedWriter(transaction, key, self.in_parts, lambda in_parts: self.completes_if)


@pytest.fixture
def small(monkeypatch):
    """Parts of 16 bytes, and a limit of 40."""
    monkeypatch.setattr(bucket_uploads, "_PART_NBYTES", 16)
    monkeypatch.setattr(bucket_uploads, "_STEP", 1)
    with dask.config.set({"shardwrite.bucket.put-limit": 40}):
        yield


def transaction(store, **given):
    made = WholeTransaction(store, given.pop("guard", None), None, **given)
    made.expect_nbytes(1000, 4)
    return made


DATA = np.random.default_rng(0).integers(0, 256, 1000, dtype="u1")


@pytest.mark.parametrize("total", [0, 1, 39, 40, 41, 48, 49, 64, 100, 1000])
@pytest.mark.parametrize("step", [1, 7, 16, 1000])
@pytest.mark.parametrize("reserved", [0, 30, 40])
def test_an_object_of_any_size_in_pieces_of_any_size(small, total, step, reserved, monkeypatch):
    """Also if it becomes larger than the memory that was reserved."""
    monkeypatch.setattr(whole_transaction, "_LEAST_ROOM_NBYTES", 1)
    store, wanted = Puts(), bytearray(DATA[:total])
    with transaction(store) as made:
        writer = made.create("c/0")
        writer.reserve(reserved)
        n = sum(writer.write([DATA[at : min(at + step, total)]]) for at in range(0, total, step))
        assert n == total
        if total >= 4:
            writer.write_at(0, b"head")
            wanted[:4] = b"head"
        writer.finish()
    assert made.committed == {"c/0"}
    is_large = total > 40
    found = store.uploads.objects if is_large else store.put
    assert found == {"x/c/0": bytes(wanted)}
    assert len(store.uploads.begun) == is_large
    sizes = [len(store.uploads.parts[n]) for n in sorted(store.uploads.parts)]
    assert all(size == 16 for size in sizes[:-1])
    assert not sizes or 0 < sizes[-1] <= 16
    assert not bucket_parts._open


@pytest.mark.parametrize("make", [lambda: S3Store("b", region="r"), lambda: GCSStore("b")])
def test_memory_is_reserved_for_large_shards_that_are_put_in_one_request(make):
    reserved = {}
    for bound in (0, MIB, 4 * MIB, put_limit(), put_limit() + 1):
        with BucketStore(make()).transaction("none", "run.1") as made:
            made.expect_nbytes(bound, 0)
            reserved[bound] = isinstance(made.create("c/0")._data, whole_transaction.Room)
    assert list(reserved.values()) == [False, False, True, True, False]


def test_gaps_and_copies(small):
    store = Puts()

    class Reader:
        def read(self, offset, nbytes):
            assert nbytes <= 40
            return bytes(DATA[offset : offset + nbytes])

    with transaction(store) as made:
        writer = made.create("c/0")
        writer.skip(50)
        writer.copy(Reader(), 10, 100)
        writer.finish()
    assert store.uploads.objects["x/c/0"] == bytes(50) + bytes(DATA[10:110])


def test_bytes_that_were_sent_cannot_be_changed(small):
    with transaction(Puts()) as made:
        writer = made.create("c/0")
        writer.write([DATA[:100]])
        writer.write_at(99, b"!")
        with pytest.raises(StoreError, match=r"sent already.*index_location") as caught:
            writer.write_at(20, b"!")
        assert caught.value.errno == errno.EOPNOTSUPP
        assert len(bucket_parts._open) == 1
    assert not bucket_parts._open, "it was not finished, so it was aborted"


def test_more_parts_than_there_can_be(small, monkeypatch):
    monkeypatch.setattr(bucket_parts, "MOST_PARTS", 5)
    store = Puts()
    with pytest.raises(StoreError, match="more than 5 parts") as caught, transaction(store) as made:
        made.create("c/0").write([DATA])
    assert caught.value.errno == errno.EFBIG
    assert len(store.uploads.aborted) == 1


@pytest.mark.parametrize("version", [None, (9, '"tag"', None)])
def test_a_new_object_replaces_what_stands_there_if_the_guard_says_so(small, version):
    store, calls = Puts(version=version), []
    with transaction(store, is_fresh=True, guard=lambda: calls.append(1)) as made:
        writer = made.create("c/0")
        writer.write([DATA])
        n_before = len(calls)
        writer.finish()
    assert store.uploads.conditions == [(None if version is None else '"tag"',)]
    assert len(calls) - n_before == 2, "before the last parts, and after the look"


def test_conditions_of_an_update(small):
    store = Puts()
    with transaction(store) as made:
        writer = made.create("c/0")
        writer.expect((9, '"old"', None))
        writer.write([DATA])
        writer.finish()
    assert store.uploads.conditions == [('"old"',)]
    with transaction(Puts(completes_if=False)) as made:
        writer = made.create("c/0")
        writer.expect((9, '"old"', None))
        writer.write([DATA])
        with pytest.raises(StoreError, match="whatever stands there") as caught:
            writer.finish()
    assert caught.value.errno == errno.EOPNOTSUPP


def test_a_guard_that_raises_keeps_the_object_away(small):
    store = Puts()

    def guard():
        if 1 in store.uploads.parts:  # the first part is put last
            raise RuntimeError("the run has ended")

    with transaction(store, guard=guard) as made:
        writer = made.create("c/0")
        writer.write([DATA])
        with pytest.raises(RuntimeError, match="has ended"):
            writer.finish()
    assert not store.uploads.objects
    assert len(store.uploads.aborted) == 1


def test_open_uploads_of_this_process_are_not_left_over(small):
    store = Puts()
    with transaction(store) as made:
        made.create("c/0").write([DATA])
        (is_open,) = bucket_parts._open
        store.uploads.found = lambda prefix: iter([Upload("x/c/0", is_open), Upload("x/c/1", "b")])
        assert [one.id for one in store.in_parts.found("x/")] == ["b"]


# ---- before a run


@pytest.mark.parametrize(
    ("store", "most"),
    [
        (S3Store("bucket", config=SITE), MOST_NBYTES),
        (AzureStore("box", config={"account_name": "me", "account_key": "a2V5"}), 5000 * MIB),
        (GCSStore("bucket", config={"skip_signature": True}), 5 * 2**40),
    ],
    ids=lambda store: type(store).__name__,
)
def test_shards_that_are_too_large_are_refused_before_a_run(store, most):
    made = BucketStore(store)
    made._probed.completes_if = True
    made.check_nbytes(most)
    with pytest.raises(SpecError, match="give smaller shards") as caught:
        made.check_nbytes(most + 1)
    assert caught.value.fields["field"] == "shards"


def test_an_update_in_parts_needs_conditions():
    made = BucketStore(S3Store("bucket", config=SITE))
    made._probed.can, made._probed.completes_if = frozenset({Capability.CONDITIONAL}), False
    made.check_nbytes(2**30)
    made.check_nbytes(2**20, replaces=True)
    with pytest.raises(SpecError, match=r"CONDITIONAL.*shardwrite\.bucket\.put-limit"):
        made.check_nbytes(2**30, replaces=True)


@pytest.mark.parametrize(
    ("store", "held"),
    [
        (S3Store("bucket", config=SITE), (128 + 2 * 16) * MIB),
        (GCSStore("bucket", config={"skip_signature": True}), 256 * MIB),
    ],
    ids=lambda store: type(store).__name__,
)
def test_the_plan_counts_what_waits_for_the_store(store, held):
    x = da.zeros((8192, 8192), chunks=1024, dtype="f4")
    array = ArrayOptions(shards=(8192, 8192), chunks=(512, 512), compressors=None)
    with dask.config.set(scheduler="sync"):
        engine = active_engine()
    made = plan_array(x, engine, array, PlanOptions(memory_limit="2GB"), BucketStore(store))
    without = plan_array(x, engine, array, PlanOptions(memory_limit="2GB"))
    assert held <= made.memory.held_nbytes <= held * 1.01
    assert made.memory.total_nbytes == without.memory.total_nbytes + made.memory.held_nbytes
    assert made.digest == without.digest
    assert "for shards that wait until they are put" in str(made)
    limit = PlanOptions(memory_limit=held)
    assert plan_array(x, engine, array, limit).fits
    with pytest.raises(PlanError, match="for shards that wait until they are put"):
        plan_array(x, engine, array, limit, BucketStore(store))


# ---- what the client of the second library is given


def client_of(config=None, **given):
    return BucketStore(S3Store("bucket", config=config or SITE, **given))._in_parts.uploads._client


@pytest.mark.compat
def test_the_client_reaches_the_same_service(monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "of-a-file-that-obstore-does-not-read")
    meta = client_of(
        client_options={"timeout": "2m", "connect_timeout": timedelta(seconds=3)},
        retry_config={"max_retries": 4},
    ).meta
    config = meta.config
    assert meta.endpoint_url == SITE["endpoint"]
    assert (config.region_name, config.s3["addressing_style"]) == ("here", "path")
    assert (config.read_timeout, config.connect_timeout) == (120, 3)
    assert config.retries["total_max_attempts"] == 5
    assert client_of({"region": "eu-central-1"}).meta.endpoint_url.endswith(
        "s3.eu-central-1.amazonaws.com"
    )
    virtual = {"endpoint": "https://bucket.s3.site.example", "virtual_hosted_style_request": True}
    meta = client_of({**SITE, **virtual}).meta
    assert meta.endpoint_url == SITE["endpoint"]
    assert meta.config.s3["addressing_style"] == "virtual"


def keys_of(client):
    found = client._request_signer._credentials.get_frozen_credentials()
    return found.access_key, found.secret_key, found.token


def test_copies_of_a_store_share_a_client():
    store = BucketStore(S3Store("bucket", config=SITE))
    copy = pickle.loads(pickle.dumps(store)).at("x")
    assert copy._in_parts.uploads._client is store._in_parts.uploads._client
    assert client_of({**SITE, "session_token": "E"}) is not client_of()


def test_the_client_gets_the_same_keys(monkeypatch):
    assert keys_of(client_of()) == ("A", "B", None)
    place = {name: SITE[name] for name in ("endpoint", "region")}
    for name, value in {
        "ACCESS_KEY_ID": "C",
        "SECRET_ACCESS_KEY": "D",
        "SESSION_TOKEN": "E",
    }.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    assert keys_of(client_of(place)) == ("C", "D", "E")
    assert keys_of(client_of({**SITE, "session_token": "F"})) == ("A", "B", "F")
    given = {"access_key_id": "G", "secret_access_key": "H", "token": "I"}
    times = iter(range(9))

    def fixed():
        return {**given, "expires_at": None}

    def renewed():
        soon = datetime.now(UTC) + timedelta(seconds=0.2)
        return {**given, "token": f"token-{next(times)}", "expires_at": soon}

    assert keys_of(client_of(place, credential_provider=fixed)) == ("G", "H", "I")
    client = client_of(place, credential_provider=renewed)
    first = keys_of(client)
    time.sleep(0.2)
    second = keys_of(client)
    assert first[2] != second[2], "keys that run out are asked for again"


def test_what_the_client_does_not_know_is_refused():
    with pytest.raises(SpecError, match="default_headers"):
        client_of(client_options={"default_headers": {"x-secret": "CANARY"}})
    with pytest.raises(SpecError, match="metadata_endpoint") as caught:
        client_of({**SITE, "metadata_endpoint": "CANARY"})
    assert "CANARY" not in str(caught.value)

    async def later():
        return {}

    with pytest.raises(SpecError, match="an ordinary function"):
        client_of({"region": "here"}, credential_provider=later)


def test_encryption_and_payer_are_those_of_the_store(monkeypatch):
    asked = []
    config = {**SITE, "aws_server_side_encryption": "aws:kms", "aws_sse_kms_key_id": "it"}
    monkeypatch.setenv("AWS_REQUEST_PAYER", "true")
    uploads = BucketStore(S3Store("bucket", prefix="a", config=config))._in_parts.uploads

    def create(**given):
        asked.append(given)
        return {"UploadId": "1"}

    monkeypatch.setattr(uploads._client, "create_multipart_upload", create)
    upload = uploads.begin("c/0", {})
    (given,) = asked
    assert given.pop("Metadata") == {"shardwrite-upload": upload.mark}
    assert given == {
        "Bucket": "bucket",
        "Key": "a/c/0",
        "ServerSideEncryption": "aws:kms",
        "SSEKMSKeyId": "it",
        "RequestPayer": "requester",
    }


@pytest.mark.compat
def test_without_botocore_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(bucket_s3, "_clients", {})
    monkeypatch.setitem(__import__("sys").modules, "botocore.session", None)
    made = BucketStore(S3Store("bucket", config=SITE))
    made.check_nbytes(2**20)
    with pytest.raises(SpecError, match=r"pip install .shardwrite\[cloud\]"):
        made.check_nbytes(2**30)


def test_a_service_that_is_not_there_is_told_without_keys(caplog):
    caplog.set_level(logging.DEBUG)
    config = {**SITE, "endpoint": "http://127.0.0.1:1", "secret_access_key": "sEcReTcAnArY"}
    store = BucketStore(
        S3Store(
            "bucket",
            config={**config, "access_key_id": "AKIACANARY", "session_token": "tOkEncAnArY"},
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )
    )
    with pytest.raises(StoreError, match=r"cannot be reached.*AWS_ENDPOINT_URL") as caught:
        store.uploads()
    assert caught.value.errno == errno.EIO
    for secret in ("AKIACANARY", "sEcReTcAnArY", "tOkEncAnArY"):
        assert secret not in caplog.text
        assert secret not in str(caught.value)

"""Large objects of a bucket: how large they may be, and the memory in which they wait."""

from __future__ import annotations

import os

import dask
import dask.array as da
import numpy as np
import pytest
from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store

from shardwrite import PlanError, SpecError
from shardwrite.engines import active_engine
from shardwrite.format.document import ArrayOptions, make_metadata
from shardwrite.plan.options import PlanOptions
from shardwrite.runs.array_plan import plan_array
from shardwrite.stores import Capability, bucket, whole
from shardwrite.stores.bucket import BucketStore
from shardwrite.stores.whole import WholeTransaction, WholeWriter

MIB = 2**20
SITE = {
    "endpoint": "https://s3.site.example",
    "region": "here",
    "access_key_id": "A",
    "secret_access_key": "B",
}
DATA = np.random.default_rng(0).integers(0, 256, 1000, dtype="u1")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in os.environ:
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_")):
            monkeypatch.delenv(name)


@pytest.mark.parametrize("compressors", [None, "auto"])
@pytest.mark.parametrize("location", ["start", "end"])
def test_bounds_of_a_shard(compressors, location):
    options = ArrayOptions(compressors=compressors, index_location=location)
    metadata = make_metadata((100, 100), np.dtype("u2"), (64, 64), (8, 8), options)
    index = 16 * 64 + 4
    assert metadata.plain_nbytes == 2 * 64 * 64 + index
    assert metadata.index_codec.base_nbytes == (index if location == "start" else 0)
    codecs = 64 * metadata.pipeline.most_encoded_nbytes if compressors is None else 0
    assert metadata.most_nbytes >= max(metadata.plain_nbytes, codecs + index)


# ---- the writer


class Puts:
    """A store as a transaction sees it."""

    capabilities = frozenset({Capability.CONDITIONAL})
    prefix, is_remote = "x/", False

    def __init__(self):
        self.put = {}

    def replace_object(self, name, data, version):
        self.put[name] = bytes(data)

    def version_of_object(self, name):
        return None

    def described(self, metadata):
        return self

    def writer(self, transaction, key):
        return WholeWriter(transaction, key)


@pytest.mark.parametrize("total", [0, 1, 39, 40, 41, 100, 1000])
@pytest.mark.parametrize("step", [1, 7, 1000])
@pytest.mark.parametrize("reserved", [0, 30, 40])
def test_an_object_of_any_size_in_pieces_of_any_size(total, step, reserved, monkeypatch):
    """Also if it becomes larger than the memory that was reserved."""
    monkeypatch.setattr(whole, "_LEAST_ROOM_NBYTES", 1)
    store, wanted = Puts(), bytearray(DATA[:total])
    with WholeTransaction(store, None, None) as made:
        writer = made.create("c/0")
        writer.reserve(reserved)
        n = sum(writer.write([DATA[at : min(at + step, total)]]) for at in range(0, total, step))
        assert n == total
        if total >= 4:
            writer.write_at(0, b"head")
            wanted[:4] = b"head"
        writer.finish()
    assert made.committed == {"c/0"}
    assert store.put == {"x/c/0": bytes(wanted)}


@pytest.mark.parametrize("make", [lambda: S3Store("b", region="r"), lambda: GCSStore("b")])
def test_memory_is_reserved_for_large_shards(make):
    """Unless they may be so large that it might not be there, although they become smaller."""
    reserved, most = {}, bucket._MOST_RESERVED_NBYTES
    for nbytes in (0, MIB, 4 * MIB, most, most + 1):
        with BucketStore(make()).transaction("none", "run.1") as made:
            made.expect_nbytes(nbytes)
            reserved[nbytes] = isinstance(made.create("c/0")._data, whole.Room)
    assert list(reserved.values()) == [False, False, True, True, False]


def test_gaps_and_copies(monkeypatch):
    """What is copied is read piece by piece, so that it does not take its memory twice."""
    monkeypatch.setattr(whole, "COPIED_AT_ONCE_NBYTES", 40)
    store, asked = Puts(), []

    class Reader:
        def read(self, offset, nbytes):
            asked.append((offset, nbytes))
            return bytes(DATA[offset : offset + nbytes])

    with WholeTransaction(store, None, None) as made:
        writer = made.create("c/0")
        writer.skip(50)
        writer.copy(Reader(), 10, 100)
        writer.finish()
    assert store.put["x/c/0"] == bytes(50) + bytes(DATA[10:110])
    assert asked == [(10, 40), (50, 40), (90, 20)]


# ---- before a run


@pytest.mark.parametrize(
    ("store", "most"),
    [
        (S3Store("bucket", config=SITE), 5 * 2**30),
        (AzureStore("box", config={"account_name": "me", "account_key": "a2V5"}), 5000 * MIB),
        (GCSStore("bucket", config={"skip_signature": True}), 5 * 2**40),
    ],
    ids=lambda store: type(store).__name__,
)
@pytest.mark.parametrize(
    ("exists", "remedy"), [(False, "give smaller shards"), (True, "smaller shards of it")]
)
def test_shards_that_are_too_large_are_refused_before_a_run(store, most, exists, remedy):
    made = BucketStore(store).at("a")
    assert made.put_limit == most
    made.check_nbytes(most, exists=exists)
    with pytest.raises(SpecError, match=f"one request takes at most {most:,}.*{remedy}") as caught:
        made.check_nbytes(most + 1, exists=exists)
    assert caught.value.fields["field"] == "shards"


def test_nothing_is_too_large_for_memory():
    made = BucketStore(MemoryStore())
    assert made.put_limit is None
    made.check_nbytes(2**70)


@pytest.mark.parametrize(
    "store",
    [S3Store("bucket", config=SITE), GCSStore("bucket", config={"skip_signature": True})],
    ids=lambda store: type(store).__name__,
)
def test_the_plan_counts_what_waits_for_the_store(store):
    held = 256 * MIB
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
    on_disk = BucketStore(store).via("/local/scratch")
    assert plan_array(x, engine, array, limit, on_disk).memory.held_nbytes == 16 * MIB

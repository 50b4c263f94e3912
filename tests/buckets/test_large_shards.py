"""Large shards are put in one request each, and those that are too large for one are refused."""

from __future__ import annotations

import errno
import logging
import tracemalloc
from dataclasses import replace

import dask.array as da
import numpy as np
import proxy
import pytest
from servers import KEY, SECRET, below_bucket, on

import shardwrite
from shardwrite import SpecError, StoreError
from shardwrite.stores import bucket_kinds
from shardwrite.stores.bucket_url import open_bucket

LONG = pytest.mark.long
MIB = 2**20
VALUES = np.random.default_rng(0).integers(1, 2**32, (2048, 1536), dtype="u4")
LAYOUT = {"shards": (1024, 1536), "chunks": (256, 512), "compressors": None}


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def x():
    return da.from_array(VALUES, chunks=(512, 1536))


@pytest.fixture
def small_requests(monkeypatch):
    """A service whose requests take 12,000 bytes."""
    kind = replace(bucket_kinds.KINDS["S3Store"], most_nbytes=12_000)
    monkeypatch.setitem(bucket_kinds.KINDS, "S3Store", kind)


def shards_of(faults):
    return [(method, "?" in path) for method, path in faults.seen if "/c/" in path]


@on("seaweed", long=["moto"])
@pytest.mark.parametrize("location", ["start", pytest.param("end", marks=LONG)])
def test_a_large_shard_is_put_in_one_request(service, environment, url, x, location):
    with proxy.before(service) as (server, faults):
        environment(server)
        x.to_sharded_zarr(url, index_location=location, **LAYOUT)
        assert shards_of(faults) == [("PUT", False)] * 2
    environment(service)
    assert shardwrite.verify(url, deep=True, against=VALUES).is_good
    assert service.keys_of(url) == ["c/0/0", "c/1/0", "shardwrite-receipt.json", "zarr.json"]


@on("moto", long=["seaweed"])
def test_large_files_of_hdf5(service, url, x, tmp_path):
    """The bytes between their chunks are known last, and are filled in before the file is put."""
    h5py = pytest.importorskip("h5py")
    layout = {**LAYOUT, "chunks": (128, 128), "strategy": shardwrite.Hdf5()}
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("data", data=VALUES[:1024], chunks=(128, 128))
    x[:1024].rechunk((1024, 1536)).to_sharded_zarr(f"{url}/written", **layout)
    shardwrite.adopt([path], f"{url}/adopted")
    for name in ("written", "adopted"):
        assert shardwrite.verify(f"{url}/{name}", deep=True, against=VALUES[:1024]).is_good


@on("moto", long=["seaweed", "azurite", "gcs"])
def test_a_scan_mends_a_file_of_hdf5_that_another_program_has_changed(service, url, tmp_path):
    h5py = pytest.importorskip("h5py")
    file, values = tmp_path / "a.h5", VALUES[:64, :64]
    layout = {"shards": (32, 64), "chunks": (16, 32), "strategy": "hdf5"}
    da.from_array(values).to_sharded_zarr(url, **layout)
    client = service.client(below_bucket(url))
    file.write_bytes(client.get("c/1/0").bytes())
    with h5py.File(file, "r+") as opened:
        opened["more"] = np.arange(1000)
    client.put("c/1/0", file.read_bytes())
    assert not shardwrite.verify(url).is_good
    assert shardwrite.repair(url, scan=True).is_done
    assert shardwrite.verify(url, deep=True, against=values).is_good
    file.write_bytes(client.get("c/1/0").bytes())
    with h5py.File(file) as opened:
        assert (opened["data"][...] == values[32:]).all()
        assert (opened["more"][...] == np.arange(1000)).all()


@LONG
def test_a_name_of_odd_characters(seaweed, url, x):
    place = f"{url}/50%25 a+~[1]&'=ü"
    x[:1024].to_sharded_zarr(place, **LAYOUT)
    assert shardwrite.verify(place, deep=True, against=VALUES[:1024]).is_good


@pytest.mark.long
def test_no_log_holds_a_key(moto_server, url, x, caplog, monkeypatch):
    caplog.set_level(logging.DEBUG)
    options = {**moto_server.options, "session_token": "tOkEncAnArY"}
    x[:1024].to_sharded_zarr(url, storage_options=options, **LAYOUT)
    for secret in (KEY, SECRET, "tOkEncAnArY"):
        assert secret not in caplog.text


@pytest.mark.long
def test_a_new_array_whose_shards_may_be_too_large(moto, url, x, small_requests):
    """Shards that are small enough only if they can be compressed are taken on the user's word."""
    layout = {"shards": 64, "chunks": 16}
    with pytest.raises(SpecError, match=r"one request takes at most 12,000.*compression_ratio="):
        x[:64, :64].to_sharded_zarr(url, **layout)
    assert moto.keys_of(url) == []
    with pytest.raises(StoreError, match="one request puts at most 12,000") as caught:
        x[:64, :64].to_sharded_zarr(url, compression_ratio=9, **layout)
    assert caught.value.errno == errno.EFBIG
    zeros = da.zeros((64, 64), dtype="u4")
    result = zeros.to_sharded_zarr(
        url, restart=True, compression_ratio=9, write_empty_chunks=True, **layout
    )
    assert result.n_shards == 1
    assert shardwrite.verify(url, deep=True, against=zeros).is_good


@pytest.mark.long
def test_an_update_of_shards_that_may_be_too_large(moto, url, x, request):
    """The old shard stays as it is."""
    x[:64, :64].to_sharded_zarr(url, shards=64, chunks=16)
    request.getfixturevalue("small_requests")
    with pytest.raises(SpecError, match=r"at most 12,000.*by reshard"):
        da.ones((8, 8), dtype="u4").to_sharded_zarr(url, region=np.s_[:8, :8])
    assert shardwrite.verify(url, deep=True, against=VALUES[:64, :64]).is_good


@pytest.mark.parametrize("consume", [False, True])
def test_a_copy_of_objects_that_are_too_large(moto, url, x, small_requests, tmp_path, consume):
    """That is found out before the first one is sent. The source stays, and the remedy works."""
    path = tmp_path / "a.zarr"
    x[:64, :64].to_sharded_zarr(path, shards=64, chunks=16)
    if not consume:
        with pytest.raises(SpecError, match="one request takes at most 12,000"):
            shardwrite.plan_transfer(path, url)
    with pytest.raises(SpecError, match=r"one request takes at most 12,000.*by reshard"):
        shardwrite.upload(path, url, consume=consume)
    assert moto.keys_of(url) == []
    assert shardwrite.verify(path, deep=True, against=VALUES[:64, :64]).is_good
    shardwrite.reshard(path, url, shards=1)
    assert shardwrite.verify(url, deep=True, against=VALUES[:64, :64]).is_good


def test_small_objects_of_large_shards_are_copied(moto, url, small_requests, tmp_path):
    """How large the objects are counts, and not how large they could be."""
    path, zeros = tmp_path / "a.zarr", da.zeros((64, 64), dtype="u4")
    zeros.to_sharded_zarr(path, shards=64, chunks=16, write_empty_chunks=True)
    assert shardwrite.plan_transfer(path, url).n_objects == 1
    shardwrite.upload(path, url)
    assert shardwrite.verify(url, deep=True, against=zeros).is_good


def test_encoded_chunks_that_make_too_large_a_shard(moto, url, x, small_requests, tmp_path):
    """Their sizes are known when they are copied. Nothing is published then."""
    x[:64, :64].to_sharded_zarr(tmp_path / "a.zarr", shards=16, chunks=16)
    with pytest.raises(StoreError, match=r"one request puts at most 12,000.*smaller shards"):
        shardwrite.reshard(tmp_path / "a.zarr", url, shards=4)
    assert not [key for key in moto.keys_of(url) if key.startswith("c/") or key == "zarr.json"]


@LONG
@pytest.mark.parametrize(
    ("service", "n_pieces", "via"),
    [
        ("moto", 100, True),
        ("seaweed", 350, False),
        pytest.param("moto", 100, False, marks=pytest.mark.campaign),
        pytest.param("seaweed", 350, True, marks=pytest.mark.campaign),
    ],
    indirect=["service"],
)
def test_a_very_large_object(service, url, n_pieces, tmp_path, via):
    """300 MB, which moto keeps in memory, and 1 GB; in memory once, or in a file."""
    piece = np.random.default_rng(0).integers(0, 256, 3 * 10**6, dtype="u1")
    total, store = n_pieces * len(piece), open_bucket(url, {})
    store.prepare()
    store = store.via(str(tmp_path)) if via else store
    tracemalloc.start()
    with store.transaction("none", "run.1", is_fresh=True) as transaction:
        transaction.expect_nbytes(total)
        writer = transaction.create("c/0")
        for _ in range(n_pieces):
            writer.write([piece])
        writer.finish()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < store.held_nbytes(total) * 1.15 + 4 * MIB, "an object grows by an eighth"
    assert store.size("c/0") == total
    with store.open("c/0") as reader:
        for at in (0, n_pieces // 2, n_pieces - 1):
            assert reader.read(at * len(piece), len(piece)) == piece.tobytes()

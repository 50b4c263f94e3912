"""Large shards are uploaded in parts, whole or not at all, and nothing of an upload is left over."""

from __future__ import annotations

import logging
import signal
import subprocess
import time
import tracemalloc
from urllib.parse import unquote, urlsplit

import dask
import dask.array as da
import numpy as np
import proxy
import pytest
from forks import python
from servers import BUCKET, KEY, SECRET, below_bucket, on

import shardwrite
from shardwrite import SpecError, StoreError
from shardwrite.stores import bucket_uploads, open_bucket

LONG = pytest.mark.long
MIB = 2**20
PART = 5 * MIB
VALUES = np.random.default_rng(0).integers(1, 2**32, (2048, 1536), dtype="u4")
LAYOUT = {"shards": (1024, 1536), "chunks": (256, 512), "compressors": None}
GIVEN = {"shardwrite.bucket.put-limit": 1, "scheduler": "sync"}
ONE_TRY = {**GIVEN, "shardwrite.retry-pauses": []}
NO_RETRIES = {"retry_config": {"max_retries": 0}}
SOON = {"retry_config": {"max_retries": 2}}


@pytest.fixture(autouse=True)
def parts(monkeypatch):
    """Parts of 5 MiB, the least that S3 takes, so that a shard of 6 MiB has two."""
    monkeypatch.setattr(bucket_uploads, "_PART_NBYTES", PART)


@pytest.fixture
def x():
    return da.from_array(VALUES, chunks=(512, 1536))


def kind_of(method, path):
    """What a request does with a shard."""
    at = urlsplit(path)
    if "/c/" not in at.path:
        return ""
    if method == "POST":
        return "begin" if "uploads" in at.query else "complete"
    if method == "PUT":
        return "part" if "partNumber" in at.query else "put"
    return "abort" if method == "DELETE" and "uploadId" in at.query else ""


def seen_of(faults):
    return [kind for method, path in faults.seen if (kind := kind_of(method, path))]


def once(what, fault, numbers=(1,)):
    """Break the requests of a kind that have these numbers."""
    count = []

    def plan(method, path, number):
        if kind_of(method, path) != what:
            return None
        count.append(path)
        return fault if len(count) in numbers else None

    return plan


@pytest.mark.parametrize(
    ("service", "location"),
    [
        ("seaweed", "start"),
        pytest.param("moto", "end", marks=LONG),
    ],
    indirect=["service"],
)
def test_a_large_shard_is_uploaded_in_parts(service, environment, url, x, location):
    with proxy.before(service) as (server, faults), dask.config.set(GIVEN):
        environment(server)
        x.to_sharded_zarr(url, index_location=location, **LAYOUT)
        assert seen_of(faults) == ["begin", "part", "part", "complete"] * 2
    environment(service)
    assert shardwrite.verify(url, deep=True, against=VALUES).is_good
    assert service.uploads_of(url) == []
    assert service.keys_of(url) == ["c/0/0", "c/1/0", "shardwrite-receipt.json", "zarr.json"]


@on("moto", long=["seaweed"])
def test_large_files_of_hdf5(service, url, x, tmp_path):
    """The bytes between their chunks are known last, when parts of the file may have been sent."""
    h5py = pytest.importorskip("h5py")
    layout = {**LAYOUT, "chunks": (64, 64), "strategy": shardwrite.Hdf5()}
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("data", data=VALUES[:1024], chunks=(64, 64))
    with dask.config.set(GIVEN):
        x[:1024].rechunk((1024, 1536)).to_sharded_zarr(f"{url}/written", **layout)
        shardwrite.adopt([path], f"{url}/adopted")
    for name in ("written", "adopted"):
        assert shardwrite.verify(f"{url}/{name}", deep=True, against=VALUES[:1024]).is_good
    assert service.uploads_of(url) == []


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
    with dask.config.set(GIVEN):
        x[:1024].to_sharded_zarr(place, **LAYOUT)
    assert shardwrite.verify(place, deep=True, against=VALUES[:1024]).is_good
    assert seaweed.uploads_of(url) == []


@on(long=["seaweed", "moto"])
def test_a_part_that_fails_is_sent_again_and_one_that_fails_for_good_leaves_nothing(
    service, environment, url, x
):
    with proxy.before(service, once("part", "503", (2,))) as (server, faults):
        environment(server)
        with dask.config.set(ONE_TRY):
            x[:1024].to_sharded_zarr(url, storage_options=SOON, **LAYOUT)
        assert seen_of(faults) == ["begin", "part", "part", "part", "complete"]
        faults.seen.clear()
        faults.plan = once("part", "before", range(2, 9))
        with dask.config.set(ONE_TRY), pytest.raises(StoreError, match=r"cannot upload .*c/./0"):
            x.to_sharded_zarr(url, mode="w", storage_options=NO_RETRIES, **LAYOUT)
        assert seen_of(faults) == ["begin", "part", "part", "abort"]
        assert service.uploads_of(url) == []
        faults.plan = None
        with dask.config.set(ONE_TRY):
            x.to_sharded_zarr(url, mode="w", **LAYOUT)
    environment(service)
    assert shardwrite.verify(url, deep=True, against=VALUES).is_good


@on("seaweed", long=["moto"])
@pytest.mark.parametrize("fault", ["lost", pytest.param("cut", marks=LONG)])
@pytest.mark.parametrize(
    "options", [NO_RETRIES, pytest.param(SOON, marks=LONG)], ids=["one", "again"]
)
def test_a_completion_whose_answer_is_lost_is_looked_at(
    service, environment, url, x, fault, options
):
    with (
        proxy.before(service, once("complete", fault, (1, 3))) as (server, faults),
        dask.config.set(ONE_TRY),
    ):
        environment(server)
        x.to_sharded_zarr(url, storage_options=options, **LAYOUT)
        assert seen_of(faults).count("begin") == 2, "no shard is uploaded again"
        assert [kind for kind, *_ in faults.broken]
    environment(service)
    assert shardwrite.verify(url, deep=True, against=VALUES).is_good
    assert service.uploads_of(url) == []


@on(long=["seaweed", "moto"])
def test_a_completion_that_never_came_is_no_success(service, environment, url, x):
    with proxy.before(service, once("complete", "before", range(9))) as (server, faults):
        environment(server)
        with dask.config.set(ONE_TRY), pytest.raises(StoreError, match=r"c/./0"):
            x.to_sharded_zarr(url, storage_options=NO_RETRIES, **LAYOUT)
        assert seen_of(faults)[-1] == "abort"
        faults.plan = None
        with dask.config.set(GIVEN):
            done = x.to_sharded_zarr(url, **LAYOUT)
        assert done.n_shards == 2
    environment(service)
    assert shardwrite.verify(url, deep=True, against=VALUES).is_good
    assert service.uploads_of(url) == []


PROGRAM = f"""
import os, signal, sys, time
import dask, numpy as np
import dask.array as da
import shardwrite
from shardwrite.stores import bucket_s3, bucket_uploads
bucket_uploads._PART_NBYTES = {PART}
url, what, waits, run_dir, numbers = sys.argv[1:]
original, count = getattr(bucket_s3.S3Uploads, what), []
def patched(self, upload, *given):
    count.extend([given] if "probes" not in upload.name else [])
    if len(count) in eval(numbers) and "probes" not in upload.name:
        if not waits:
            os.kill(os.getpid(), signal.SIGKILL)
        open(waits + ".begun", "w").close()
        while not os.path.exists(waits):
            time.sleep(0.01)
    return original(self, upload, *given)
setattr(bucket_s3.S3Uploads, what, patched)
values = np.random.default_rng(0).integers(1, 2**32, (2048, 1536), dtype="u4")
x = da.from_array(values, chunks=(512, 1536))
dask.config.set({{**{ONE_TRY!r}, "shardwrite.run-dir": run_dir or None}})
if waits:
    (x[:1024] + np.uint32(1)).to_sharded_zarr(url, region=np.s_[:1024, :])
else:
    x.to_sharded_zarr(url, shards=(1024, 1536), chunks=(256, 512), compressors=None, source_id="it")
"""


def begun(*words):
    return subprocess.Popen([*python(), "-c", PROGRAM, *map(str, words)])


@on("seaweed", long=["moto"])
@pytest.mark.parametrize(
    ("what", "number"),
    [
        ("put_part", 4),
        *(
            pytest.param(*each, marks=LONG)
            for each in [("put_part", 1), ("put_part", 3), ("complete", 1), ("complete", 2)]
        ),
    ],
)
def test_killed_in_an_upload_and_resumed(service, url, x, what, number):
    with begun(url, what, "", "", (number,)) as child:
        assert child.wait(120) == -signal.SIGKILL
    assert len(service.uploads_of(url)) == 1
    with dask.config.set(GIVEN):
        done = x.to_sharded_zarr(url, source_id="it", **LAYOUT)
    assert done.n_shards == 2
    assert shardwrite.verify(url, deep=True, against=VALUES).is_good
    assert service.uploads_of(url) == []
    assert service.keys_of(url) == ["c/0/0", "c/1/0", "shardwrite-receipt.json", "zarr.json"]


@on(long=["seaweed", "moto"])
def test_given_up_after_a_kill(service, url, x):
    with begun(url, "complete", "", "", (2,)) as child:
        assert child.wait(120) == -signal.SIGKILL
    assert len(service.uploads_of(url)) == 1
    with dask.config.set(GIVEN):
        x[:1024].to_sharded_zarr(url, restart=True, **LAYOUT)
    assert shardwrite.verify(url, deep=True, against=VALUES[:1024]).is_good
    assert service.uploads_of(url) == []


@on("seaweed", long=["moto"])
def test_repair_aborts_what_belongs_to_the_array_alone(service, url, x):
    with dask.config.set(GIVEN):
        x.to_sharded_zarr(url, **LAYOUT)
        at, client = below_bucket(url), service.other_client()
        for key in ("c/0/0", "c/7/0", "notes.txt"):
            client.create_multipart_upload(Bucket=BUCKET, Key=f"{at}/{key}")
        client.create_multipart_upload(Bucket=BUCKET, Key=f"{at}2/c/0/0")
        found = shardwrite.repair(url)
        assert (found.n_uploads, len(service.uploads_of(url))) == (1, 4)
        assert "1 upload to remove" in str(found)
        done = shardwrite.repair(url, x)
        assert (done.n_uploads, done.is_done) == (1, True)
    others = [f"{at}/c/7/0", f"{at}/notes.txt", f"{at}2/c/0/0"]
    assert service.uploads_of(url) == sorted(others)


@LONG
def test_uploads_of_another_process_that_lives_are_left_alone(seaweed, url, x, tmp_path):
    run_dir, go = tmp_path / "runs", tmp_path / "go"
    given = {**ONE_TRY, "shardwrite.run-dir": str(run_dir)}
    with dask.config.set(given):
        x.to_sharded_zarr(url, **LAYOUT)
        with begun(url, "complete", go, run_dir, (1,)) as child:
            while not (tmp_path / "go.begun").exists():
                assert child.poll() is None
                time.sleep(0.02)
            assert len(seaweed.uploads_of(url)) == 1
            assert shardwrite.repair(url).n_uploads == 0
            (x[1024:] + np.uint32(1)).to_sharded_zarr(url, region=np.s_[1024:, :])
            assert len(seaweed.uploads_of(url)) == 1
            go.touch()
            assert child.wait(60) == 0, "its upload was not aborted"
    assert shardwrite.verify(url, deep=True, against=VALUES + np.uint32(1)).is_good
    assert seaweed.uploads_of(url) == []


@LONG
def test_an_update_whose_shard_changes_meanwhile_reads_it_again(seaweed, environment, url, x):
    """The first completion finds another object than the one that was read."""
    with dask.config.set(GIVEN):
        x.to_sharded_zarr(url, **LAYOUT)
    changes = []

    class Changing(proxy.Passing):
        def forwarded(self, body):
            if kind_of(self.command, unquote(self.path)) == "complete" and not changes:
                changes.append(1)
                client, key = seaweed.other_client(), f"{below_bucket(url)}/c/0/0"
                found = client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
                # As another program does it: one inner chunk more holds zeros.
                size = 256 * 512 * 4
                client.put_object(Bucket=BUCKET, Key=key, Body=bytes(size) + found[size:])
            return super().forwarded(body)

    with proxy.before(seaweed, kind=Changing) as (server, faults), dask.config.set(GIVEN):
        environment(server)
        seven = da.full((512, 512), 7, dtype="u4")
        seven.to_sharded_zarr(url, region=np.s_[512:1024, 1024:])
        assert seen_of(faults).count("complete") == 2
    environment(seaweed)
    wanted = VALUES.copy()
    wanted[:256, :512], wanted[512:1024, 1024:] = 0, 7
    np.testing.assert_array_equal(shardwrite.open_sharded(url)[:, :], wanted)
    assert seaweed.uploads_of(url) == []


@pytest.mark.long
def test_a_service_that_completes_without_conditions_takes_new_arrays_only(moto, url, x):
    """moto ignores If-Match there. What nobody else writes to is updated, too."""
    with dask.config.set(GIVEN):
        x.to_sharded_zarr(url, **LAYOUT)
        seven = da.full((512, 512), 7, dtype="u4")
        with pytest.raises(SpecError, match=r"CONDITIONAL.*put-limit.*exclusive=True"):
            seven.to_sharded_zarr(url, region=np.s_[:512, :512])
        with dask.config.set({"shardwrite.bucket.put-limit": "1 GiB"}):
            seven.to_sharded_zarr(url, region=np.s_[:512, :512])
        append = {"strategy": "append-only", "exclusive": True}
        shardwrite.write_region(8, url, np.s_[512:1024, :512], **append)
        with pytest.raises(StoreError, match="exclusive=True"):
            shardwrite.compact(url, above=0.05)
        assert shardwrite.compact(url, above=0.05, exclusive=True).n_rewritten == 1
    found = shardwrite.open_sharded(url)[:1024, :512]
    assert (found[:512] == 7).all()
    assert (found[512:] == 8).all()
    assert shardwrite.verify(url, deep=True).is_good
    assert moto.uploads_of(url) == []


def test_no_log_holds_a_key(moto_server, url, x, caplog, monkeypatch):
    caplog.set_level(logging.DEBUG)
    options = {**moto_server.options, "session_token": "tOkEncAnArY"}
    with dask.config.set(GIVEN):
        x[:1024].to_sharded_zarr(url, storage_options=options, **LAYOUT)
        logging.getLogger("botocore.endpoint").debug("others may log")
    for secret in (KEY, SECRET, "tOkEncAnArY"):
        assert secret not in caplog.text
    assert "others may log" in caplog.text


@LONG
@pytest.mark.parametrize(
    ("service", "n_pieces"), [("moto", 100), ("seaweed", 700)], indirect=["service"]
)
def test_a_very_large_object_in_little_memory(service, url, monkeypatch, n_pieces):
    """300 MB, which moto keeps in memory, and 2.1 GB, in parts of 16 MiB as by default."""
    monkeypatch.undo()
    for name, value in service.environment.items():
        monkeypatch.setenv(name, value)
    piece = np.random.default_rng(0).integers(0, 256, 3 * 10**6, dtype="u1")
    store = open_bucket(url, {})
    store.prepare()
    with dask.config.set({"shardwrite.bucket.put-limit": "16 MiB"}):
        tracemalloc.start()
        with store.transaction("none", "run.1", is_fresh=True) as transaction:
            transaction.expect_nbytes(n_pieces * len(piece), 0)
            writer = transaction.create("c/0")
            for _ in range(n_pieces):
                writer.write([piece])
            writer.finish()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 4 * 16 * MIB + 20 * MIB
    assert store.size("c/0") == n_pieces * len(piece)
    with store.open("c/0") as reader:
        for at in (0, n_pieces // 2, n_pieces - 1):
            assert reader.read(at * len(piece), len(piece)) == piece.tobytes()
    assert service.uploads_of(url) == []

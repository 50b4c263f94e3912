"""Shards wait on the disk of each machine until they are put, and tell of their run by metadata."""

from __future__ import annotations

import os
import signal
import subprocess
from types import SimpleNamespace

import dask
import dask.array as da
import numpy as np
import proxy
import pytest
from click.testing import CliRunner
from forks import python
from obstore.store import MemoryStore
from servers import BUCKET, below_bucket, on

import shardwrite
from shardwrite import PlanError, SpecError
from shardwrite.cli import main
from shardwrite.stores import bucket

LONG = pytest.mark.long
VALUES = np.random.default_rng(0).integers(1, 2**32, (96, 64), dtype="u4")
LAYOUT = {"shards": 32, "chunks": 8}
VARIABLE = "DASK_SHARDWRITE__BUCKET__VIA"
KILLED = """
import os, signal, sys
import dask.array as da, numpy as np, obstore
import shardwrite

put = obstore.put

def dying(store, name, data, **rest):
    if "/c/" in f"/{name}":
        held = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                if os.path.lexists(f"/proc/self/fd/{fd}")]
        assert type(data) is memoryview and os.listdir(sys.argv[3]) == []
        with open("/proc/self/maps") as maps:
            assert sys.argv[3] in maps.read()
        os.kill(os.getpid(), signal.SIGKILL)
    return put(store, name, data, **rest)

obstore.put = dying
da.from_array(np.load(sys.argv[1]), chunks=32).to_sharded_zarr(
    sys.argv[2], shards=32, chunks=8, source_id="it", via=sys.argv[3]
)
"""


@pytest.fixture
def x():
    return da.from_array(VALUES, chunks=(32, 64))


@pytest.fixture
def scratch(tmp_path):
    made = tmp_path / "scratch"
    made.mkdir()
    return made


@pytest.fixture
def written(monkeypatch):
    """Files in which shards have waited."""
    real, found = bucket._file_in, []

    def made(directory):
        found.append(directory)
        return real(directory)

    monkeypatch.setattr(bucket, "_file_in", made)
    return found


def metadata_of(server, url, key):
    at = {"Bucket": BUCKET, "Key": f"{below_bucket(url)}/{key}"}
    return server.other_client().head_object(**at)["Metadata"]


def index_of(array, key):
    """Checksum of the index of a shard, as its metadata tell it."""
    metadata = shardwrite.open_sharded(array).metadata
    index = tuple(map(int, key.split("/")[1:]))
    from shardwrite.read.stored_shard import open_shard

    with open_shard(metadata, shardwrite.open_sharded(array).store, index) as shard:
        return f"{shard.index.checksum:08x}"


@pytest.mark.long
def test_shards_wait_in_a_directory(
    moto_server, environment, url, x, scratch, written, monkeypatch
):
    with proxy.before(moto_server) as (server, faults):
        environment(server)
        plain = x.to_sharded_zarr(f"{url}-plain", **LAYOUT)
        before = [method for method, path in faults.seen if "/c/" in path]
        faults.seen.clear()
        result = x.to_sharded_zarr(url, via=scratch, **LAYOUT)
        assert [method for method, path in faults.seen if "/c/" in path] == before == ["PUT"] * 6
    environment(moto_server)
    assert written == [str(scratch)] * 7, "one look at the room, and six shards"
    assert result.stored_nbytes == plain.stored_nbytes
    shards = {key: data for key, data in moto_server.contents(url).items() if "c/" in key}
    assert shards == {
        key: data for key, data in moto_server.contents(f"{url}-plain").items() if "c/" in key
    }
    digest = shardwrite.plan(x, **LAYOUT).digest
    for key in shards:
        wanted = {"shardwrite-run": digest, "shardwrite-index-crc32c": index_of(url, key)}
        assert metadata_of(moto_server, url, key) == wanted
    written.clear()
    monkeypatch.setenv("HOME", str(scratch.parent))
    with dask.config.set({"shardwrite.bucket.via": "~/scratch"}):
        da.full((8, 64), 7, dtype="u4").to_sharded_zarr(url, region=np.s_[28:36])
        x[:10].to_sharded_zarr(url, region="append")
    assert len(written) > 6
    wanted = np.concatenate([VALUES, VALUES[:10]])
    wanted[28:36] = 7
    assert shardwrite.verify(url, deep=True, against=wanted).is_good
    assert os.listdir(scratch) == []


@pytest.mark.parametrize("via", ["scratch", pytest.param(None, marks=LONG)])
def test_an_index_at_the_start_is_filled_in(moto, url, x, scratch, written, via):
    given = None if via is None else scratch
    x[:32].to_sharded_zarr(url, via=given, index_location="start", **LAYOUT)
    assert shardwrite.verify(url, deep=True, against=VALUES[:32]).is_good
    assert metadata_of(moto, url, "c/0/0") == {
        "shardwrite-run": shardwrite.plan(x[:32], index_location="start", **LAYOUT).digest,
        "shardwrite-index-crc32c": index_of(url, "c/0/0"),
    }
    assert len(written) == (0 if via is None else 3)


def test_values_by_id_wait_there_too(moto, url, scratch, written):
    bits = {"preshift_bits": 0, "minishard_bits": 2, "shard_bits": 1}
    sharding = {"@type": "neuroglancer_uint64_sharded_v1", "hash": "identity", **bits}
    files = shardwrite.UInt64Shards(url, sharding)
    with dask.config.set({"shardwrite.bucket.via": str(scratch)}):
        files.write({n: b"%d," % n * 100 for n in range(64)})
        files.write({7: b"seven"}, existing="update")
    assert len(written) == 3, "two shards, and one that was written again"
    assert (files[7], files[8], len(files)) == (b"seven", b"8," * 100, 64)
    assert os.listdir(scratch) == []


@pytest.mark.long
def test_nothing_is_left_after_a_kill(moto, url, x, scratch, tmp_path):
    np.save(tmp_path / "x.npy", VALUES)
    words = [*python(), "-c", KILLED, tmp_path / "x.npy", url, scratch]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert os.listdir(scratch) == []
    again = da.from_array(VALUES, chunks=32)
    again.to_sharded_zarr(url, source_id="it", via=scratch, **LAYOUT)
    assert shardwrite.verify(url, deep=True, against=VALUES).is_good


@pytest.mark.long
def test_what_is_refused_before_any_task(moto, url, x, scratch, tmp_path, monkeypatch):
    for target in (tmp_path / "x.zarr", MemoryStore(), "memory://via.zarr"):
        with pytest.raises(SpecError, match=r"via=.*is for buckets.*leave it out"):
            x.to_sharded_zarr(target, via=scratch, **LAYOUT)
    for bad in (5, "", b""):
        with pytest.raises(SpecError, match=r"via=.*no directory"):
            x.to_sharded_zarr(url, via=bad, **LAYOUT)
    for place in (tmp_path / "missing", "/proc", "$NO_SUCH_VARIABLE"):
        with pytest.raises(SpecError, match=r"via=.*shards cannot wait there.*give a directory"):
            x.to_sharded_zarr(url, via=place, **LAYOUT)
    with monkeypatch.context() as patched:
        room = SimpleNamespace(f_bavail=10, f_frsize=1000)
        patched.setattr(bucket.os, "fstatvfs", lambda fd: room)
        with pytest.raises(PlanError, match=r"and 10,000 are free.*make room there") as caught:
            x.to_sharded_zarr(url, via=scratch, **LAYOUT)
        assert caught.value.needed_nbytes > 10_000
        x.to_sharded_zarr(url, via=scratch, compression_ratio=100, **LAYOUT)
    shardwrite.verify(url, deep=True, against=VALUES)


def run(*words):
    done = CliRunner().invoke(main, [*map(str, words)], catch_exceptions=False)
    return done.exit_code, done.output


@LONG
def test_commands(moto, url, x, scratch, tmp_path, written):
    np.save(tmp_path / "x.npy", VALUES)
    how = ["--shards", "32", "--chunks", "8", "--via", scratch]
    code, text = run("write", tmp_path / "x.npy", url, *how, "--dry-run")
    assert code == 0
    assert f"per process in {scratch}, for shards that wait" in text
    assert written == []
    assert run("write", tmp_path / "x.npy", url, *how, "--threads", 1)[0] == 0
    assert len(written) == 7
    update = ["update", tmp_path / "x.npy", url, "--region", "0:96,:", "--via", scratch]
    assert "scratch" in run(*update, "--dry-run")[1]
    assert run(*update)[0] == 0
    assert len(written) == 14
    x.to_sharded_zarr(tmp_path / "x.zarr", **LAYOUT)
    upload = ["upload", tmp_path / "x.zarr", f"{url}-copy", "--via", scratch]
    assert "scratch" in run(*upload, "--dry-run")[1]
    assert run(*upload)[0] == 0
    assert len(written) == 21
    assert run("upload", tmp_path / "x.zarr", f"{url}-2", "--consume", "--via", scratch)[0] == 0
    assert len(written) == 28
    for place in (url, f"{url}-copy", f"{url}-2"):
        assert shardwrite.verify(place, deep=True, against=VALUES).is_good
    submit = ["slurm", "submit", tmp_path / "x.npy"]
    for words in (["write", tmp_path / "x.npy"], submit):
        code, text = run(*words, tmp_path / "y.zarr", *how)
        assert code == 2
        assert "--via" in text
        assert "is for buckets" in text
    how[-1] = "$SLURM_TMPDIR/a b"
    with dask.config.set({"shardwrite.run-dir": str(tmp_path / "runs")}):
        code, text = run(*submit, f"{url}-jobs", *how, "--parts", 2, "--dry-run")
    assert code == 0, text
    assert text.count(f"export {VARIABLE}='$SLURM_TMPDIR/a b'  # shards") == 2


@LONG
def test_streams_conversions_and_processes(moto, url, x, scratch, written, monkeypatch):
    x.to_sharded_zarr(f"{url}-plain", **LAYOUT)
    monkeypatch.setenv(VARIABLE, str(scratch))
    with dask.config.set({"shardwrite.bucket.via": str(scratch)}):
        shardwrite.create(url, (0, 64), "u4", **LAYOUT)
        with shardwrite.ShardWriter(url, n_threads=2) as writer:
            for row in VALUES:
                writer.append(row)
        n_streamed = len(written)
        assert n_streamed >= 6
        shardwrite.reshard(f"{url}-plain", f"{url}-other", shards=4)
        assert len(written) == n_streamed + 7
        given = {"shardwrite.storage": moto.options}  # dask's processes have another environment
        with dask.config.set({"scheduler": "processes", "num_workers": 2, **given}):
            x.to_sharded_zarr(f"{url}-processes", **LAYOUT)
    for place in (url, f"{url}-other", f"{url}-processes"):
        assert shardwrite.verify(place, deep=True, against=VALUES).is_good
    assert os.listdir(scratch) == []


@LONG
@on("azurite", "gcs", "seaweed")
def test_metadata_of_other_services(service, url, x, scratch):
    import obstore

    x.to_sharded_zarr(url, via=scratch, **LAYOUT)
    assert shardwrite.verify(url, deep=True, against=VALUES).is_good
    found = dict(obstore.get(service.client(below_bucket(url)), "c/0/0").attributes)
    joint = "_" if service.scheme == "az" else "-"
    told = {name.replace(joint, "-"): value for name, value in found.items()}
    assert told["shardwrite-run"] == shardwrite.plan(x, **LAYOUT).digest
    assert told["shardwrite-index-crc32c"] == index_of(url, "c/0/0")

"""Volumes of Neuroglancer in buckets: written, resumed, verified, and changed by several at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import dask.array as da
import numpy as np
import obstore
import pytest
import zarr.storage
from click.testing import CliRunner
from forks import python
from servers import below_bucket, on

import shardwrite
from shardwrite import IncompleteError, JournalError, SpecError, StoreError
from shardwrite.cli import main
from shardwrite.sources import open_source
from shardwrite.stores import MemoryStore
from shardwrite.volumes import documents

VALUES = np.arange(1, 1 + 8 * 12 * 16, dtype="u2").reshape(8, 12, 16)
NEW = {"axes": "zyx", "resolution": (4, 4, 40), "chunks": 4, "shard_nbytes": 300}
PROGRAM = """
import os, signal, sys
import dask, numpy as np, dask.array as da
import shardwrite
url, values, after = sys.argv[1:]
count = [0]
def die(report):
    count[0] += 1
    if count[0] == int(after):
        os.kill(os.getpid(), signal.SIGKILL)
x = da.from_array(np.load(values), chunks=4)
with dask.config.set(scheduler="sync"):
    result = shardwrite.to_precomputed(
        x, url, axes="zyx", resolution=(4, 4, 40), chunks=4, shard_nbytes=300, source_id="it",
        memory_limit="8kB", progress=die,
    )
print(result.n_shards, result.n_resumed_shards)
"""


def source(values=VALUES):
    return da.from_array(values, chunks=4)


pytestmark = pytest.mark.usefixtures("one_thread")


def write(url, values=VALUES, **more):
    return shardwrite.to_precomputed(source(values), url, **{**NEW, **more})


def info_of(service, url):
    return json.loads(obstore.get(service.client(below_bucket(url)), "info").bytes().to_bytes())


def others(service, url):
    """Keys of a volume that are not those of shards."""
    return [key for key in service.keys_of(url) if not key.endswith(".shard")]


def kept(*keys):
    names = ("shardwrite-receipt.json", "zarr.json")
    return sorted(["info", *(f"{key}/{name}" for key in keys for name in names)])


def check(url, values=VALUES, **which):
    found = shardwrite.from_precomputed(url, axes="zyx", **which)
    np.testing.assert_array_equal(found.compute(), values)


@on(long=["moto", "seaweed", "azurite", "gcs"])
def test_two_scales(service, url):
    """Both are read by their URL, and verified; nothing else is left in the bucket."""
    result = write(url)
    assert (result.path, result.n_shards) == (f"{url}/4_4_40", 12)
    write(url, VALUES[:, ::2, ::2], resolution=(8, 8, 40))
    assert [scale["key"] for scale in info_of(service, url)["scales"]] == ["4_4_40", "8_8_40"]
    check(url)
    check(url, VALUES[:, ::2, ::2], scale="8_8_40")
    assert shardwrite.verify(f"{url}/4_4_40", deep=True, against=source()).is_good
    assert others(service, url) == kept("4_4_40", "8_8_40")
    again = write(url)
    assert again.n_resumed_shards == again.n_shards
    with pytest.raises(SpecError, match="an array exists there"):
        write(url, VALUES + 1)
    with pytest.raises(SpecError, match="'image'"):
        write(url, key="labels", type="segmentation")
    assert others(service, url) == kept("4_4_40", "8_8_40"), "nothing was begun"
    if service.scheme == "s3":
        np.testing.assert_array_equal(by_tensorstore(service, below_bucket(url)), VALUES)


def by_tensorstore(service, prefix):
    tensorstore = pytest.importorskip("tensorstore")
    kvstore = {"driver": "s3", "bucket": service.bucket, "path": f"{prefix}/"}
    spec = {
        "driver": "neuroglancer_precomputed",
        "kvstore": {**kvstore, "endpoint": service.endpoint, "aws_region": "us-east-1"},
    }
    return tensorstore.open(spec).result()[..., 0].read().result().T


@pytest.mark.long
@on("moto", "seaweed")
def test_killed_and_resumed(service, url, tmp_path):
    """No shard that was put is put again, and the scale enters the info only when it is whole."""
    np.save(tmp_path / "values.npy", VALUES)

    def run(after):
        done = subprocess.run(
            [*python(), "-c", PROGRAM, url, tmp_path / "values.npy", str(after)],
            capture_output=True,
            text=True,
            env={**os.environ, **service.environment},
        )
        return done.returncode, done.stdout, done.stderr

    code, _, told = run(5)
    assert code == -signal.SIGKILL, told
    before = [key for key in service.keys_of(url) if key.endswith(".shard")]
    assert 0 < len(before) < 12
    assert not {"info", "4_4_40/zarr.json"} & set(service.keys_of(url))
    with pytest.raises(JournalError, match="another plan"):
        write(url, source_id="other")
    code, told, trouble = run(-1)
    assert code == 0, trouble
    n_shards, n_resumed = map(int, told.split())
    assert n_shards == 12
    assert n_resumed >= len(before) - 2, "only what was in flight is done again"
    assert others(service, url) == kept("4_4_40")
    check(url)


@pytest.mark.parametrize("gives_up", [False, pytest.param(True, marks=pytest.mark.long)])
def test_chunks_that_wait_in_a_spool(moto, url, gives_up):
    """The state of both runs lies in the bucket, and nothing of them is left there."""
    sharding = {"preshift_bits": 0, "minishard_bits": 1, "shard_bits": 2}
    scattered = {"sharding": {**sharding, "hash": "murmurhash3_x86_128"}, "source_id": "it"}

    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(url, **scattered, progress=stop)
    assert any(key.startswith(".4_4_40.spool/") for key in moto.keys_of(url))
    if gives_up:
        assert shardwrite.abandon(f"{url}/4_4_40") == []
        assert not moto.keys_of(url)
        return
    written = write(url, **scattered)
    assert written.n_shards == 4
    assert others(moto, url) == kept("4_4_40")
    check(url)
    assert write(url, **scattered).n_resumed_shards == 4
    assert others(moto, url) == kept("4_4_40")
    assert shardwrite.abandon(f"{url}/4_4_40") == []
    check(url)


@pytest.mark.long
@pytest.mark.parametrize("has_run_dir", [False, True])
def test_parts_by_way_of_a_spool(moto, url, tmp_path, has_run_dir):
    """The state of both runs lies in the bucket or in a directory, which processes share."""
    state = {"run_dir": tmp_path} if has_run_dir else {}
    sharding = {"preshift_bits": 0, "minishard_bits": 1, "shard_bits": 2}
    scattered = {"sharding": {**sharding, "hash": "murmurhash3_x86_128"}, "source_id": "it"}
    plan = shardwrite.plan_precomputed(source(), **NEW, **scattered, memory_limit="10kB")
    assert plan.partition.n_groups > 1
    with pytest.raises(SpecError, match=r"name='4_4_40'.*give the URL of the scale"):
        shardwrite.prepare(source(), url, plan, name="4_4_40", **state)
    assert not moto.keys_of(url)
    shardwrite.prepare(source(), f"{url}/4_4_40", plan, **state)
    shardwrite.write_part(source(), f"{url}/4_4_40", 0, 2, source_id="it", **state)
    with pytest.raises(IncompleteError, match="part 1 of 2 must be written again"):
        shardwrite.finalize(f"{url}/4_4_40", n_parts=2, **state)
    for part in (1, 0):
        shardwrite.write_part(source(), f"{url}/4_4_40", part, 2, source_id="it", **state)
    before = [key for key in moto.keys_of(url) if key.startswith("4_4_40/")]
    assert sum(key.endswith(".shard") for key in before) in (1, 2, 3)
    result = shardwrite.finalize(f"{url}/4_4_40", n_parts=2, **state)
    assert (result.n_shards, result.n_chunks) == (4, 24)
    assert others(moto, url) == kept("4_4_40")
    check(url)
    assert shardwrite.verify(f"{url}/4_4_40", deep=True, against=source()).is_good
    assert not list(tmp_path.iterdir())


@on("moto", long=["seaweed"])
def test_scales_that_end_at_once(service, url, monkeypatch):
    """All have read the same info before any of them puts its own; none is lost."""
    seen, meeting = documents._seen, threading.Barrier(3)
    first = threading.local()

    def together(place):
        found = seen(place)
        if not hasattr(first, "done"):
            first.done = True
            meeting.wait(60)
        return found

    monkeypatch.setattr(documents, "_seen", together)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda n: write(url, VALUES[:4, :4, :4], resolution=(n,) * 3), (3, 1, 2)))
    assert first is not None
    keys = [scale["key"] for scale in info_of(service, url)["scales"]]
    assert keys == ["1_1_1", "2_2_2", "3_3_3"]
    assert others(service, url) == kept(*keys)


@pytest.mark.long
def test_two_processes_at_once(moto, url, tmp_path):
    """Two scales of one volume; on a bucket each has a lease of its own."""
    np.save(tmp_path / "values.npy", VALUES)
    program = PROGRAM.replace("resolution=(4, 4, 40)", "resolution=(int(after[1:]), 4, 40)")
    processes = [
        subprocess.Popen(
            [*python(), "-c", program, url, tmp_path / "values.npy", f"-{n}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in (4, 8)
    ]
    for process in processes:
        out, trouble = process.communicate(timeout=120)
        assert process.returncode == 0, trouble
        assert out.split() == ["12", "0"]
    keys = [scale["key"] for scale in info_of(moto, url)["scales"]]
    assert keys == ["4_4_40", "8_4_40"]
    for key in keys:
        check(url, scale=key)
    assert others(moto, url) == kept(*keys)


@pytest.mark.long
def test_the_state_in_a_directory(moto, url, tmp_path):
    """With run_dir, the lease of the run lies there, and so does the claim on the info."""
    runs = tmp_path / "runs"
    write(url, run_dir=runs)
    write(url, VALUES[:, ::2, ::2], resolution=(8, 8, 40), run_dir=runs)
    assert [scale["key"] for scale in info_of(moto, url)["scales"]] == ["4_4_40", "8_8_40"]
    assert others(moto, url) == kept("4_4_40", "8_8_40")
    assert not list(runs.iterdir())
    check(url)


@pytest.mark.long
def test_parts(moto, url, tmp_path):
    """The last step enters the scale."""
    runs, where, scale = tmp_path / "runs", {"run_dir": tmp_path / "runs"}, f"{url}/4_4_40"
    shardwrite.prepare(source(), scale, shardwrite.plan_precomputed(source(), **NEW), **where)
    for part in range(2):
        shardwrite.write_part(source(), scale, part, 2, **where)
    assert not any(key.endswith("info") for key in moto.keys_of(url))
    assert shardwrite.finalize(scale, n_parts=2, **where).n_shards == 12
    check(url)
    assert others(moto, url) == kept("4_4_40")
    assert not list(runs.iterdir())


@pytest.mark.long
@pytest.mark.parametrize("hashed", ["identity", "murmurhash3_x86_128"])
def test_parts_copy_encoded_chunks(moto, url, hashed):
    """The source lies in a bucket, too, and so does the state of the run."""
    gzip = [{"name": "gzip", "configuration": {"level": 3}}]
    there = {"shards": 8, "chunks": 4, "compressors": gzip}
    shardwrite.to_sharded_zarr(VALUES, f"{url}/z", **there)
    z, scale = open_source(f"{url}/z"), f"{url}/v/4_4_40"
    sharding = {"hash": hashed, "preshift_bits": 0, "minishard_bits": 1, "shard_bits": 4}
    plan = shardwrite.plan_precomputed(z, f"{url}/v", **NEW, sharding=sharding)
    assert "encoded chunks are copied, unchanged" in plan.notes
    shardwrite.prepare(z, scale, plan)
    for part in (0, 1, 0, 1):
        shardwrite.write_part(z, scale, part, 2)
    shardwrite.finalize(scale, n_parts=2)
    check(f"{url}/v")
    one = shardwrite.to_precomputed(z, f"{url}/w", **NEW, sharding=sharding)
    assert one.n_resumed_shards == 0
    made, wanted = (moto.contents(f"{url}/{name}") for name in "vw")
    for found in (made, wanted):
        del found["4_4_40/shardwrite-receipt.json"]
    assert made == wanted
    assert any(key.endswith(".shard") for key in made)


@pytest.mark.long
def test_the_command(moto, url, tmp_path):
    np.save(tmp_path / "a.npy", VALUES)

    def run(*words, code=0):
        done = CliRunner().invoke(main, ["precomputed", *map(str, words)])
        assert done.exit_code == code, done.output
        return done.output

    how = ("--axes", "zyx", "--resolution", "4,4,40", "--chunks", 4, "--threads", 1)
    run(tmp_path / "a.npy", url, *how, "--verify")
    check(url)
    run(url, tmp_path / "copy", "--threads", 1)
    check(tmp_path / "copy")
    assert others(moto, url) == kept("4_4_40")
    assert "voxel" not in run(tmp_path / "a.npy", url, *how, "--encoding", "raw", code=2)


@pytest.mark.parametrize("kind", ["ours", "zarr", "obstore", "URL"])
def test_other_stores(kind):
    """Stores in memory, in which several threads add scales."""
    store = {
        "ours": MemoryStore,
        "zarr": zarr.storage.MemoryStore,
        "obstore": obstore.store.MemoryStore,
        "URL": lambda: "memory://test-volumes/v",
    }[kind]()
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda n: write(store, resolution=(n,) * 3), (3, 1, 2)))
    for key in ("1_1_1", "2_2_2", "3_3_3"):
        check(store, scale=key)


def test_a_shard_of_ids_that_another_puts_at_the_last_moment(moto, url, monkeypatch):
    """It was replaced: nobody had found out that the service keeps conditions."""
    sharding = {
        "@type": "neuroglancer_uint64_sharded_v1",
        "hash": "identity",
        "preshift_bits": 0,
        "minishard_bits": 0,
        "shard_bits": 0,
    }
    put, others = obstore.put, []

    def late(store, path, *arguments, **keywords):
        if path.endswith("0.shard") and not others:
            others.append(f"of another, to {existing}")  # which has another ETag each time
            put(store, path, others[0].encode())
        return put(store, path, *arguments, **keywords)

    monkeypatch.setattr(obstore, "put", late)
    for existing in ("refuse", "replace"):
        with pytest.raises(StoreError, match="changed by another writer meanwhile"):
            shardwrite.UInt64Shards(url, sharding).write({1: b"a"}, existing=existing)
        assert moto.contents(url) == {"0.shard": others.pop()}


@pytest.mark.long
def test_an_unfinished_scale_or_array_is_known_by_store_and_name(moto, url):
    """It was told to be that of another array, which was moved, or put there."""
    for place in (url, obstore.store.MemoryStore()):
        with pytest.raises(OSError, match="gone"):
            write(place, source_id="it", progress=stop)
        assert "shards are present" in repr(shardwrite.verify(place, name="4_4_40"))
        write(place, source_id="it")
        check(place)
    layout = {"shards": 4, "chunks": 4, "source_id": "it"}
    with pytest.raises(OSError, match="gone"):
        source().to_sharded_zarr(f"{url}/g", name="x", **layout, progress=stop)
    assert source().to_sharded_zarr(f"{url}/g/x", **layout).n_resumed_shards
    with pytest.raises(OSError, match="gone"):
        source().to_sharded_zarr(f"{url}/g/y", **layout, progress=stop)
    assert source().to_sharded_zarr(f"{url}/g", name="y", **layout).n_resumed_shards


def stop(report):
    raise OSError("it is gone")

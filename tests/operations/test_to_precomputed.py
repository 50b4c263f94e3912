"""Volumes of Neuroglancer: written, merged into an info, interrupted, damaged and refused."""

from __future__ import annotations

import errno
import gzip
import itertools
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import obstore.store
import pytest
import seams
import xarray as xr
import zarr
from click.testing import CliRunner
from forks import python
from helpers import Stop
from tiers import some

import shardwrite
from shardwrite.cli import main
from shardwrite.errors import (
    CorruptShardError,
    JournalError,
    PlanError,
    SourceError,
    SpecError,
    StoreError,
)
from shardwrite.volumes import precomputed

sys.path.insert(0, str(Path(__file__).parent))
import half_a_volume

SIZE = (40, 50, 60)  # z, y, x
VALUES = np.arange(1, 1 + np.prod(SIZE), dtype="uint32").reshape(SIZE)
NEW = {"axes": "zyx", "resolution": (4, 4, 40), "chunks": 10, "shard_nbytes": 32_000}
SCRIPT = half_a_volume.program(
    'np.arange(1, 1 + 40 * 50 * 60, dtype="uint32").reshape(40, 50, 60)',
    10,
    sharding={"preshift_bits": 1, "minishard_bits": 0, "shard_bits": 20},
)


SHARDS = {"preshift_bits": 0, "minishard_bits": 1, "shard_bits": 9}


def source(values=VALUES, chunks=20):
    return da.from_array(values, chunks=chunks)


def info_of(root):
    return json.loads((Path(root) / "info").read_text())


def check(root, values=VALUES, axes="zyx", **which):
    np.testing.assert_array_equal(shardwrite.from_precomputed(root, axes=axes, **which), values)


def no_litter(root):
    return not [*root.rglob("*.swtmp"), *root.rglob("*.shardwrite")]


# a volume of 3, 2 and 1 chunks along x, y and z, of which the one at (2, 1, 0) is cut to one voxel
# and the one at (1, 0, 0) is empty: ids 0 to 3 and, with the third bit, 4 and 6
GOLDEN = np.array([[[1, 2, 0, 0, 5], [3, 4, 0, 0, 6], [7, 8, 9, 10, 11]]], "uint8")


def golden_shard(numbers, chunks):
    """A shard of two minishards, each of two ids that differ in their lowest bit."""
    base, data = 16 * 2, b""
    index, tail = [], []
    places = {}
    for number, chunk in zip(numbers, chunks, strict=True):
        places[number] = (len(data), len(chunk))
        data += chunk
    at = len(data)
    for minishard in (0, 1):
        own = [n for n in numbers if n >> 1 & 1 == minishard]
        if not own:
            index += [0, 0]
            continue
        ids = [own[0], *(b - a for a, b in itertools.pairwise(own))]
        starts = [places[own[0]][0]] + [0] * (len(own) - 1)
        sizes = [places[n][1] for n in own]
        table = struct.pack(f"<{3 * len(own)}Q", *ids, *starts, *sizes)
        index += [at, at + len(table)]
        tail.append(table)
        at += len(table)
    assert base == 8 * len(index)
    return struct.pack("<4Q", *index) + data + b"".join(tail)


@pytest.mark.compat
def test_golden_bytes(tmp_path):
    sharding = {
        "preshift_bits": 1,
        "minishard_bits": 1,
        "shard_bits": 1,
        "minishard_index_encoding": "raw",
        "data_encoding": "raw",
    }
    written = shardwrite.to_precomputed(
        da.from_array(GOLDEN, chunks=2),
        tmp_path / "v",
        axes="zyx",
        resolution=(4, 4, 40),
        chunks=2,
        sharding=sharding,
    )
    assert (written.n_shards, written.n_empty_chunks) == (2, 1)
    root = tmp_path / "v" / "4_4_40"
    first = [b"\1\2\3\4", b"\7\x08", b"\x09\x0a"]  # ids 0, 2 and 3
    assert (root / "0.shard").read_bytes() == golden_shard([0, 2, 3], first)
    assert (root / "1.shard").read_bytes() == golden_shard([4, 6], [b"\5\6", b"\x0b"])
    assert info_of(tmp_path / "v") == {
        "@type": "neuroglancer_multiscale_volume",
        "type": "image",
        "data_type": "uint8",
        "num_channels": 1,
        "scales": [
            {
                "key": "4_4_40",
                "size": [5, 3, 1],
                "voxel_offset": [0, 0, 0],
                "resolution": [4, 4, 40],
                "chunk_sizes": [[2, 2, 2]],
                "encoding": "raw",
                "sharding": {
                    "@type": "neuroglancer_uint64_sharded_v1",
                    "hash": "identity",
                    **sharding,
                },
            }
        ],
    }
    check(tmp_path / "v", GOLDEN)
    assert no_litter(tmp_path)


@pytest.mark.long
def test_gzip_writes_no_time(tmp_path):
    source().to_precomputed(tmp_path / "a", **NEW)  # the method is the function
    time.sleep(1.1)
    shardwrite.to_precomputed(source(chunks=7), tmp_path / "b", **NEW)
    found = [sorted((tmp_path / n / "4_4_40").glob("*.shard")) for n in "ab"]
    assert [p.read_bytes() for p in found[0]] == [p.read_bytes() for p in found[1]]
    assert len(found[0]) > 4


@pytest.mark.parametrize("engine", some(["threads", "processes", "distributed"], "processes"))
def test_engines(tmp_path, engine):
    if engine != "distributed":
        with dask.config.set(scheduler=engine, num_workers=2):
            shardwrite.to_precomputed(source(), tmp_path / "v", **NEW)
    else:
        from distributed import Client, LocalCluster

        with (
            LocalCluster(
                n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
            ) as cluster,
            Client(cluster),
        ):
            shardwrite.to_precomputed(source(), tmp_path / "v", **NEW)
    check(tmp_path / "v")
    assert shardwrite.verify(tmp_path / "v" / "4_4_40", deep=True, against=VALUES).is_good


def bytes_of(root):
    return {path.name: path.read_bytes() for path in (root / "4_4_40").glob("*.shard")}


@pytest.mark.long
@pytest.mark.parametrize("shard_nbytes", ["1MB", "5MB"])
def test_all_ways_to_cut_give_the_same_bytes(tmp_path, shard_nbytes):
    rng = np.random.default_rng(0)
    values = rng.integers(0, 99, (100, 128, 150)).astype("uint32")
    values[20:70] = 0
    found, layouts = [], set()
    ways = [
        ((2, 128, 150), "3MB"),
        ((32, 32, 32), "4MB"),
        ((50, 60, 70), "40MB"),
        ((100, 128, 150), None),
    ]
    for chunks, memory_limit in ways:
        x, root = source(values, chunks), tmp_path / str(chunks)
        keywords = {**NEW, "chunks": 16, "shard_nbytes": shard_nbytes}
        keywords.update(memory_limit=memory_limit, max_source_reruns=9)
        with dask.config.set(scheduler="threads", num_workers=2):
            layouts.add(shardwrite.plan_precomputed(x, **keywords).layout)
            shardwrite.to_precomputed(x, root, **keywords)
        found.append(bytes_of(root))
        check(root, values)
    assert all(one == found[0] for one in found)
    assert len(found[0]) > 2
    assert (
        layouts == {"1MB": {"staged", "direct", "fused"}, "5MB": {"direct", "fused"}}[shard_nbytes]
    )


@pytest.mark.long
def test_small_shards_are_written_in_batches(tmp_path):
    for name, chunks in enumerate([(40, 50, 60), (3, 50, 60), 10, 17]):
        root = tmp_path / str(name)
        keywords = {**NEW, "chunks": (4, 5, 6), "shard_nbytes": 4_000}
        written = shardwrite.to_precomputed(source(chunks=chunks), root, **keywords)
        assert written.n_shards > 100
        assert bytes_of(root) == bytes_of(tmp_path / "0")
        check(root)


@pytest.mark.compat
def test_the_plan_tells_the_parameters():
    x = da.zeros((1000, 2000, 3000), chunks=(10, 2000, 3000), dtype="uint8")
    made = shardwrite.plan_precomputed(x, axes="zyx", resolution=(4, 4, 40))
    told = str(made)
    assert "preshift_bits 9, minishard_bits 0, shard_bits 6: up to 48 files of 134 MB" in told
    assert "index per read: 16 B, and up to 12.3 kB for a minishard of 512 chunks" in told
    assert made.n_shards == 48
    assert {ref.key for ref in made.shards_for(...)} >= {"00.shard", "01.shard"}
    small = shardwrite.plan_precomputed(
        x, axes="zyx", resolution=(4, 4, 40), shard_nbytes="8 MiB", index_nbytes="1kB"
    )
    assert small.n_shards > 48
    assert "minishard of 32 chunks" in str(small)


@pytest.mark.long
def test_axes_come_from_names(tmp_path):
    values = VALUES[..., np.newaxis].repeat(2, axis=-1)
    named = xr.DataArray(da.from_array(values, chunks=20), dims=("Z", "y", "x", "channel"))
    shardwrite.to_precomputed(named, tmp_path / "v", resolution=(1, 1, 1), chunks=16)
    check(tmp_path / "v", values, axes="zyxc")
    found = shardwrite.open_sharded(tmp_path / "v" / "1_1_1")
    assert found.shape == (2, *SIZE)


@pytest.mark.long
def test_scales_are_merged(tmp_path):
    root = tmp_path / "v"
    root.mkdir()
    mine = {
        "key": "8_8_40",
        "size": [3, 2, 1],
        "resolution": [8, 8, 40],
        "chunk_sizes": [[2, 2, 1]],
        "encoding": "raw",
        "mine": {"a": 1},
    }
    old = {
        "type": "image",
        "data_type": "uint32",
        "num_channels": 1,
        "mesh": "mesh",
        "scales": [mine],
    }
    (root / "info").write_text(json.dumps(old))
    (root / "info").chmod(0o640)
    shardwrite.to_precomputed(source(), root, **NEW)
    shardwrite.to_precomputed(source(VALUES[::2]), root, **{**NEW, "resolution": (16, 16, 80)})
    found = info_of(root)
    assert [scale["key"] for scale in found["scales"]] == ["4_4_40", "8_8_40", "16_16_80"]
    assert found["scales"][1] == mine
    assert {k: v for k, v in found.items() if k != "scales"} == {
        k: v for k, v in old.items() if k != "scales"
    }
    assert (root / "info").stat().st_mode & 0o777 == 0o640
    before = (root / "info").stat().st_ino
    assert shardwrite.to_precomputed(source(), root, **NEW).n_resumed_shards > 1
    assert (root / "info").stat().st_ino == before, "it is written only where it changes"
    assert no_litter(root)


@pytest.mark.long
def test_the_only_scale_is_removed_by_hand_and_written_again(tmp_path):
    """As the page on volumes says: its directory and its entry in ``info`` are removed."""
    root = tmp_path / "v"
    shardwrite.to_precomputed(source(), root, **NEW)
    shutil.rmtree(root / "4_4_40")
    (root / "info").write_text(json.dumps({**info_of(root), "scales": [], "mesh": "mesh"}))
    with pytest.raises(SpecError, match="no scales"):
        shardwrite.from_precomputed(root)
    with pytest.raises(SpecError, match="the info that stands there says 'image'"):
        shardwrite.to_precomputed(source(), root, type="segmentation", **NEW)
    shardwrite.to_precomputed(source(VALUES + 1), root, **NEW)
    check(root, VALUES + 1)
    assert info_of(root)["mesh"] == "mesh"
    assert no_litter(root)


@pytest.mark.long
def test_scales_that_end_at_once(tmp_path):
    """All of them are in the info in the end."""

    def write(n):
        shardwrite.to_precomputed(
            source(), tmp_path / "v", **{**NEW, "resolution": (n, n, n)}, durability="none"
        )

    with dask.config.set(scheduler="synchronous"), ThreadPoolExecutor(6) as pool:
        list(pool.map(write, range(1, 7)))
    keys = [scale["key"] for scale in info_of(tmp_path / "v")["scales"]]
    assert keys == [f"{n}_{n}_{n}" for n in range(1, 7)]
    for key in keys:
        check(tmp_path / "v", scale=key)
    assert no_litter(tmp_path)


def test_a_killed_run_goes_on(tmp_path):
    root = tmp_path / "v"
    child = subprocess.Popen(
        [*python(), "-c", SCRIPT, str(root)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "half\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    committed = {p: p.stat().st_ino for p in root.rglob("*.shard")}
    assert committed, "nothing was interrupted"
    assert not (root / "info").exists()
    # another plan for this scale is refused before anything is written
    keywords = {
        **NEW,
        "sharding": {"preshift_bits": 1, "minishard_bits": 0, "shard_bits": 20},
        "durability": "none",
        "source_id": "values",
    }
    with pytest.raises(JournalError, match="another plan"):
        shardwrite.to_precomputed(source(chunks=10), root, **{**keywords, "encoding": "raw"})
    written = shardwrite.to_precomputed(source(chunks=10), root, **keywords)
    assert written.n_resumed_shards >= len(committed)
    assert written.n_shards > len(committed)
    assert {p: p.stat().st_ino for p in committed} == committed, "no shard was written twice"
    check(root)
    assert shardwrite.verify(root / "4_4_40", deep=True).is_good
    assert no_litter(root)


@pytest.mark.long
def test_two_runs_at_once(tmp_path):
    """A run of another plan is refused while the first one lives."""
    root, goes_on, is_inside = tmp_path / "v", threading.Event(), threading.Event()

    def wait(block):
        is_inside.set()
        goes_on.wait(60)
        return block

    x = source().map_blocks(wait, dtype=VALUES.dtype, meta=np.empty((0, 0, 0), VALUES.dtype))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(shardwrite.to_precomputed, x, root, source_id="a", **NEW)
        assert is_inside.wait(60)
        with pytest.raises(JournalError, match="is being written by another plan"):
            shardwrite.to_precomputed(source(), root, source_id="b", **NEW)
        with pytest.raises(JournalError, match="is being written by another plan"):
            shardwrite.to_precomputed(source(), root, source_id="b", restart=True, **NEW)
        goes_on.set()
        first.result()
    check(root)
    # the scale stands there now, and is another one
    with pytest.raises(SpecError, match="has another scale of this key"):
        shardwrite.to_precomputed(source(), root, source_id="a", **{**NEW, "chunks": 20})
    with pytest.raises(SpecError, match="an array exists there"):
        shardwrite.to_precomputed(source(), root, source_id="b", **NEW)


@pytest.mark.long
def test_a_failure_before_the_info(tmp_path, monkeypatch):
    """The same call writes no shard again, and enters the scale."""
    root = tmp_path / "v"

    def fail(*_):
        raise StoreError("no space", key="info", errno=errno.ENOSPC)

    with monkeypatch.context() as patched:
        patched.setattr(precomputed, "change_info", fail)
        with pytest.raises(StoreError, match="no space"):
            shardwrite.to_precomputed(source(), root, **NEW)
    assert not (root / "info").exists()
    # what a process that was killed leaves
    (root / ".info.info.0.swtmp").write_bytes(b"half")
    written = shardwrite.to_precomputed(source(), root, **NEW)
    assert written.n_resumed_shards == written.n_shards
    check(root)
    assert no_litter(root)


@pytest.mark.long
def test_a_kill_amid_the_info(tmp_path):
    """The claim of a dead process is taken over."""
    script = """
import sys, time
import dask.array as da
import shardwrite
from shardwrite.volumes import documents as volume_info

def hang(*_, **__):
    print("inside", flush=True)
    time.sleep(120)

volume_info.write_file = hang
shardwrite.to_precomputed(
    da.ones((4, 4, 4), dtype="u1"), sys.argv[1], axes="zyx", resolution=(1, 1, 1)
)
"""
    root = tmp_path / "v"
    command = [*python(), "-c", script, str(root)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "inside\n"
    child.kill()
    child.wait()
    assert (root / "info.shardwrite" / "claim").exists()
    ones = da.ones((4, 4, 4), dtype="u1")
    written = shardwrite.to_precomputed(ones, root, axes="zyx", resolution=(1, 1, 1))
    assert written.n_resumed_shards == 1
    check(root, np.ones((4, 4, 4), "u1"))
    assert no_litter(root)


@pytest.mark.long
def test_a_temporary_of_the_info_that_cannot_be_removed(tmp_path, monkeypatch):
    """It is an error of this package, and the same call finishes the volume later."""
    unlink, refused = os.unlink, []

    def refuse(path, **keywords):
        if "info" in os.fspath(path) and "swtmp" in os.fspath(path):
            refused.append(path)
            raise OSError(errno.EIO, "refused", path)
        unlink(path, **keywords)

    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(StoreError, match="refused"):
        source().to_precomputed(tmp_path / "v", **NEW)
    assert refused
    monkeypatch.setattr(os, "unlink", unlink)
    source().to_precomputed(tmp_path / "v", **NEW)
    check(tmp_path / "v")


@pytest.mark.long
def test_what_dead_processes_left_of_their_claims_is_removed(tmp_path):
    """Drafts of claims are directories or files; that of a process that lives stays."""
    beside, living = tmp_path / "v" / "info.shardwrite", seams.signature()
    maker, _, machine = living.rsplit(",", 2)
    dead = f"{maker},1,{machine}"  # it had started at another time
    for name in (f"draft-a,{dead}", f"draft-b,{living}", f"draft-c,{dead}"):
        (beside / name).mkdir(parents=True)
    (beside / f"draft-c,{dead}" / "owner-0").write_text("{}")
    (beside / f"draft-d,{dead}").write_text("{}")
    source().to_precomputed(tmp_path / "v", **NEW)
    assert [path.name for path in beside.iterdir()] == [f"draft-b,{living}"]
    (beside / f"draft-b,{living}").rmdir()
    half = source()[::2]
    half.to_precomputed(tmp_path / "v", **{**NEW, "resolution": (4, 4, 80)})
    assert not beside.exists()


@pytest.mark.parametrize("hash_", ["identity", "murmurhash3_x86_128"])
def test_a_finished_call_writes_nothing(tmp_path, hash_):
    """So it ends well where nothing can be written."""
    root = tmp_path / "v"
    new = {**NEW, "sharding": {**SHARDS, "hash": hash_}}
    first = shardwrite.to_precomputed(source(), root, source_id="a", **new)
    before = {path: path.stat().st_mtime_ns for path in [root, *root.rglob("*")]}
    again = shardwrite.to_precomputed(source(), root, source_id="a", **new)
    assert again.n_shards == first.n_shards
    assert {path: path.stat().st_mtime_ns for path in [root, *root.rglob("*")]} == before


@pytest.mark.long
def test_a_lost_shard_is_written_again(tmp_path):
    root = tmp_path / "v"
    shardwrite.to_precomputed(source(), root, source_id="a", **NEW)
    shards = sorted(root.rglob("*.shard"))
    shards[3].unlink()
    assert not shardwrite.verify(root / "4_4_40").is_good
    shardwrite.to_precomputed(source(), root, source_id="a", **NEW)
    check(root)


@pytest.mark.long
@pytest.mark.parametrize("fault", ["flip", "cut", "stray", "twice"])
def test_damage_is_found_and_repaired(tmp_path, fault):
    root = tmp_path / "v"
    sharding = {
        "preshift_bits": 2,
        "minishard_bits": 1,
        "shard_bits": 9,
        "minishard_index_encoding": "raw",
    }
    shardwrite.to_precomputed(source(), root, **{**NEW, "sharding": sharding})
    path = sorted(root.rglob("*.shard"))[1]
    good = path.read_bytes()
    data = bytearray(good)
    if fault == "flip":
        data[50] ^= 255
    elif fault == "cut":
        data = data[:-5]
    else:
        start, _ = struct.unpack_from("<2Q", data)
        at = 32 + start + (0 if fault == "stray" else 8)
        struct.pack_into("<Q", data, at, 2**40 if fault == "stray" else 0)
    path.write_bytes(data)
    report = shardwrite.verify(root / "4_4_40", deep=True)
    assert [problem.key for problem in report.problems] == [path.name]
    with pytest.raises(CorruptShardError):
        shardwrite.open_sharded(root / "4_4_40")[...]
    shardwrite.repair(root / "4_4_40", VALUES)
    assert shardwrite.verify(root / "4_4_40", deep=True).is_good
    check(root)
    assert path.read_bytes() == good, "the strategy is that of the format"


@pytest.mark.long
def test_a_bomb_in_an_index(tmp_path):
    """The index of a minishard has a limit, which follows from the number of chunks."""
    root = tmp_path / "v"
    shardwrite.to_precomputed(source(), root, **NEW)
    path = next(root.rglob("0*.shard"))
    bomb = gzip.compress(bytes(2**27), 9)
    path.write_bytes(struct.pack("<2Q", 0, len(bomb)) + bomb)
    report = shardwrite.verify(root / "4_4_40")
    assert len(report.problems) == 1


@pytest.mark.long
def test_zarr_and_back(tmp_path):
    """A volume becomes a sharded array, whose chunks at the edges are padded, and a volume again."""
    root = tmp_path / "v"
    x = source(np.where(VALUES % 5 < 3, 0, VALUES).astype("float32"))
    shardwrite.to_precomputed(x, root, **{**NEW, "chunks": (16, 16, 16)})
    shardwrite.reshard(root / "4_4_40", tmp_path / "x.zarr", shards=32, chunks=16)
    np.testing.assert_array_equal(shardwrite.from_sharded_zarr(tmp_path / "x.zarr"), x)
    back = shardwrite.from_sharded_zarr(tmp_path / "x.zarr")
    shardwrite.to_precomputed(back, tmp_path / "w", **NEW)
    check(tmp_path / "w", x.compute())


@pytest.mark.long
def test_chunks_that_are_not_cut_are_copied(tmp_path):
    values = np.random.default_rng(0).integers(0, 99, (48, 64, 96)).astype("uint16")
    root = tmp_path / "v"
    shardwrite.to_precomputed(source(values), root, **{**NEW, "chunks": 16})
    done = shardwrite.reshard(root / "4_4_40", tmp_path / "x.zarr", shards=32, chunks=16)
    assert "72 copied, 0 re-encoded" in str(done)
    np.testing.assert_array_equal(zarr.open(tmp_path / "x.zarr")[...], values)


@pytest.mark.parametrize(
    "encoding",
    [
        "gzip",
        "compressed_segmentation",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("raw", "png", "jpeg")),
    ],
)
def test_parts(tmp_path, encoding):
    """Parts of a plan are written one by one, and the last step enters the scale as one call does."""
    root, dtype = tmp_path / "v", "uint32" if encoding == "compressed_segmentation" else "uint8"
    x, how = source(VALUES.astype(dtype)), {**NEW, "encoding": encoding, "voxel_offset": (1, -2, 3)}
    plan = shardwrite.plan_precomputed(x, **how)
    shardwrite.prepare(x, root / "4_4_40", plan)
    for part in range(3):
        shardwrite.write_part(x, root / "4_4_40", part, 3)
    assert not (root / "info").exists()
    shardwrite.finalize(root / "4_4_40", n_parts=3)
    shardwrite.to_precomputed(x, tmp_path / "w", **how)
    assert (root / "info").read_bytes() == (tmp_path / "w/info").read_bytes()
    written = shardwrite.to_precomputed(x, root, **how)
    assert written.n_resumed_shards == written.n_shards
    assert no_litter(tmp_path)


@pytest.mark.long
def test_channels_in_parts(tmp_path):
    x = source(np.stack([VALUES, VALUES + 1]), chunks=(2, 20, 20, 20))
    how = {**NEW, "axes": "czyx"}
    shardwrite.prepare(x, tmp_path / "v/4_4_40", shardwrite.plan_precomputed(x, **how))
    shardwrite.write_part(x, tmp_path / "v/4_4_40", 0, 1)
    shardwrite.finalize(tmp_path / "v/4_4_40")
    assert info_of(tmp_path / "v")["num_channels"] == 2
    check(tmp_path / "v", np.stack([VALUES, VALUES + 1]), "czyx")


@pytest.mark.long
def test_parts_of_another_volume(tmp_path):
    """What cannot enter the info is refused before anything is begun; the last step is repeatable."""
    root = tmp_path / "v"
    shardwrite.to_precomputed(source(), root, **NEW)
    before = sorted(root.rglob("*"))
    labels = shardwrite.plan_precomputed(source(), **{**NEW, "type": "segmentation"})
    with pytest.raises(SpecError, match="says 'image'"):
        shardwrite.prepare(source(), root / "labels", labels)
    assert sorted(root.rglob("*")) == before
    (root / "info").unlink()
    shardwrite.finalize(root / "4_4_40")
    check(root)


@pytest.mark.long
def test_zeros_take_no_room(tmp_path):
    values = np.zeros(SIZE, "uint8")
    values[0, 0, 0] = 1
    written = shardwrite.to_precomputed(source(values), tmp_path / "v", **NEW)
    assert (written.n_shards, written.n_chunks - written.n_empty_chunks) == (1, 1)
    check(tmp_path / "v", values)
    all_of_them = shardwrite.to_precomputed(
        source(values), tmp_path / "w", **NEW, write_empty_chunks=True
    )
    assert all_of_them.n_empty_chunks == 0


@pytest.mark.long
def test_negative_zero_is_a_value(tmp_path):
    values = np.full((4, 4, 4), -0.0, "float32")
    shardwrite.to_precomputed(source(values), tmp_path / "v", **NEW)
    found = shardwrite.from_precomputed(tmp_path / "v", axes="zyx").compute()
    assert np.signbit(found).all()


@pytest.mark.long
def test_many_minishards(tmp_path):
    """What a shard costs follows its chunks, but for the index at its start."""
    sharding = {"preshift_bits": 0, "minishard_bits": 16, "shard_bits": 0}
    shardwrite.to_precomputed(source(), tmp_path / "v", **{**NEW, "sharding": sharding})
    check(tmp_path / "v")
    assert (tmp_path / "v" / "4_4_40" / "0.shard").stat().st_size > 16 * 2**16


BAD = {
    "axes": [
        (source(), {"axes": "zxx"}),
        (source(), {"axes": None}),
        (source(), {"axes": "czyx"}),
        (source(), {"axes": 3}),
        (da.zeros((1, 1, 2, 2, 2)), {"axes": "tczyx"}),
        (da.zeros((1, 1, 2, 2, 2)), {"axes": "czyx"}),
        (da.zeros((2, 2)), {"axes": "yx"}),
    ],
    "x.dtype": [
        (da.zeros((2, 2, 2), dtype=dtype), {})
        for dtype in ("bool", "int64", "float64", "complex64", "S3")
    ]
    + [(da.zeros((2, 2, 2), dtype="float32"), {"type": "segmentation"})],
    "x.shape": [(da.zeros((0, 2, 2), dtype="u1"), {})],
    "type": [
        (source(), {"type": "mesh"}),
        (source(), {"type": np.array(["image", "segmentation"])}),
        (da.zeros((2, 2, 2, 2), dtype="u1"), {"axes": "czyx", "type": "segmentation"}),
    ],
    "resolution": [
        (source(), {"resolution": value})
        for value in (None, 4, (4, 4), (4, 4, -1), (4, 4, float("nan")), "444", (4, 4, True))
    ]
    + [
        (source(), {"resolution": value})
        for value in (np.array(4), np.array([4, 4]), np.ones((3, 3)))
    ],
    "voxel_offset": [
        (source(), {"voxel_offset": value}) for value in ((0, 0), 1.5, "000", np.array(5))
    ]
    + [(source(), {"voxel_offset": (0, value, 0)}) for value in (2**53, -(2**70))],
    "chunks": [(source(), {"chunks": value}) for value in (0, (64, 64), 1.5, "64", None)]
    + [(source(), {"chunks": np.array(64)})],
    "encoding": [(source(), {"encoding": value}) for value in ("jpeg", "compresso", "zstd", 1)]
    + [
        (
            source(),
            {
                "encoding": "gzip",
                "sharding": {
                    "preshift_bits": 9,
                    "minishard_bits": 0,
                    "shard_bits": 9,
                    "data_encoding": "raw",
                },
            },
        )
    ],
    "sharding": [
        (source(), {"sharding": value}) for value in (None, "murmur", {"shard_bits": 3}, {"a": 1})
    ],
    "hash": [(source(), {"sharding": {**SHARDS, "hash": "murmurhash3"}})],
    "shard_bits": [
        (source(), {"sharding": {"preshift_bits": 1, "minishard_bits": 1, "shard_bits": 65}}),
    ],
    "minishard_bits": [
        (source(), {"sharding": {"preshift_bits": 0, "minishard_bits": 40, "shard_bits": 0}})
    ],
    "key": [(source(), {"key": value}) for value in ("", "..", "a/b", "info", 3, ".x")],
    "shard_nbytes": [(source(), {"shard_nbytes": value}) for value in ("many", 0, -1)],
    "durability": [
        (source(), {"durability": "some"}),
        (source(), {"durability": np.array(["full", "none"])}),
    ],
    **{
        field: [(source(), {field: np.array([True, False])})]
        for field in ("restart", "recheck", "keep_report", "progress", "write_empty_chunks")
    },
    "x.chunks": [
        (da.from_array(np.ones((5, 5, 5), "u1"))[da.from_array(np.ones(5, bool))], {}),
    ],
}


@pytest.mark.parametrize("attributes", [5, None, [], "text", True, {"precomputed": 7}], ids=repr)
def test_attributes_that_are_no_mapping(tmp_path, attributes):
    """They say nothing of the volume, and are in nobody's way."""
    shardwrite.to_precomputed(source(), tmp_path / "v", **NEW)
    path = tmp_path / "v" / "4_4_40"
    document = json.loads((path / "zarr.json").read_text())
    (path / "zarr.json").write_text(json.dumps({**document, "attributes": attributes}))
    assert shardwrite.verify(path, against=VALUES).is_good
    sorted(path.glob("*.shard"))[0].unlink()
    assert shardwrite.repair(path, VALUES).is_done
    check(tmp_path / "v")
    shardwrite.reshard(path, tmp_path / "x.zarr", shards=(1, 1, 1))
    assert (shardwrite.open_sharded(tmp_path / "x.zarr")[...] == VALUES).all()
    with pytest.raises(SpecError, match="attributes"):
        shardwrite.to_precomputed(source(), tmp_path / "v", **NEW)


@pytest.mark.parametrize(
    ("field", "x", "changed"), [(field, *case) for field, cases in BAD.items() for case in cases]
)
def test_bad_input(tmp_path, field, x, changed):
    with pytest.raises(SpecError) as caught:
        shardwrite.to_precomputed(x, tmp_path / "v", **{**NEW, **changed})
    assert caught.value.fields["field"] == field
    assert caught.value.fields["remedy"]
    assert "index_limit" not in caught.value.fields["remedy"], "there is none"
    assert not list(tmp_path.iterdir()), "nothing was written"


@pytest.mark.parametrize(("kind", "instead"), [("image", "int32"), ("segmentation", "uint64")])
def test_int64_is_not_in_the_format(tmp_path, kind, instead):
    """Neuroglancer and tensorstore do not read it. The error says what they read."""
    new = {**NEW, "type": kind}
    signed = source(VALUES.astype("int64"))
    for call in (
        lambda: shardwrite.to_precomputed(signed, tmp_path / "v", **new),
        lambda: shardwrite.plan_precomputed(signed, **new),
    ):
        with pytest.raises(SpecError, match=rf'int64.*convert it with astype\("{instead}"\)'):
            call()
    shardwrite.to_precomputed(signed.astype(instead), tmp_path / "v", **new)
    check(tmp_path / "v")


@pytest.mark.long
def test_other_volumes_are_left_alone(tmp_path):
    root = tmp_path / "v"
    shardwrite.to_precomputed(source(), root, **NEW)
    before = (root / "info").read_bytes()
    other = {**NEW, "key": "other"}
    for field, x, changed in (
        ("type", source(), {"type": "segmentation"}),
        ("data_type", source(VALUES.astype("uint64")), {}),
        ("num_channels", source(VALUES[np.newaxis].repeat(2, 0)), {"axes": "czyx"}),
        ("key", source(), {"key": "4_4_40", "resolution": (8, 8, 8)}),
    ):
        with pytest.raises(SpecError) as caught:
            shardwrite.to_precomputed(x, root, **{**other, **changed})
        assert caught.value.fields["field"] == field
    assert (root / "info").read_bytes() == before
    assert sorted(p.name for p in root.iterdir()) == ["4_4_40", "info"]
    shardwrite.to_precomputed(source(), root, **{**other, "resolution": (8, 8, 8)})
    check(root, scale="other")


@pytest.mark.parametrize(
    ("content", "field"),
    [("{", "info"), ('{"@type": "neuroglancer_legacy_mesh"}', "@type"), ("[]", "@type")],
)
def test_an_info_of_something_else(tmp_path, content, field):
    (tmp_path / "info").write_text(content)
    with pytest.raises(SpecError) as caught:
        shardwrite.to_precomputed(source(), tmp_path, **NEW)
    assert caught.value.fields["field"] == field
    assert [p.name for p in tmp_path.iterdir()] == ["info"]


@pytest.mark.long
def test_directories_that_exist(tmp_path):
    root = tmp_path / "v"
    (root / "4_4_40").mkdir(parents=True)
    shardwrite.to_precomputed(source(), root, **NEW)  # an empty one is no obstacle
    check(root)
    with pytest.raises(SpecError, match=r"an array exists.*give another key") as caught:
        shardwrite.to_precomputed(source(VALUES + 1), root, **NEW)
    assert "mode=" not in str(caught.value), "there is none"
    (root / "theirs").mkdir()
    (root / "theirs" / "0.shard").write_bytes(b"theirs")
    with pytest.raises(SpecError, match="something that is no Zarr array stands there"):
        shardwrite.to_precomputed(source(), root, **NEW, key="theirs")
    assert (root / "theirs" / "0.shard").read_bytes() == b"theirs"
    shardwrite.to_sharded_zarr(source(), tmp_path / "x.zarr")
    with pytest.raises(SpecError, match="lies inside the array"):
        shardwrite.to_precomputed(source(), tmp_path / "x.zarr", **NEW)


def test_where_no_volume_can_lie(tmp_path):
    with pytest.raises(SpecError, match="run_dir"):
        shardwrite.to_precomputed(source(), tmp_path / "v", run_dir=tmp_path / "runs", **NEW)
    with pytest.raises(SpecError, match="not a path"):
        shardwrite.to_precomputed(source(), 7, **NEW)
    with pytest.raises(SpecError, match="no known kind of URL"):
        shardwrite.to_precomputed(source(), "nowhere://x/v", **NEW)
    assert not list(tmp_path.iterdir())


def test_a_plan_that_does_not_fit():
    x = da.zeros((2000, 2000, 2000), chunks=1000, dtype="uint64")
    with pytest.raises(PlanError):
        shardwrite.plan_precomputed(x, **{**NEW, "chunks": 64}, memory_limit="100MB")


@pytest.mark.long
def test_a_block_that_fails(tmp_path):
    """The scale is not entered, and the same call goes on."""
    root = tmp_path / "v"

    def wrong(block):
        return block[:1]

    x = source().map_blocks(wrong, dtype=VALUES.dtype, chunks=source().chunks)
    with pytest.raises(SourceError):
        shardwrite.to_precomputed(x, root, source_id="a", **NEW)
    assert not (root / "info").exists()
    shardwrite.to_precomputed(source(), root, source_id="a", **NEW)
    check(root)
    assert no_litter(root)


@pytest.mark.long
def test_updates_are_refused(tmp_path):
    shardwrite.to_precomputed(source(), tmp_path / "v", **NEW)
    path = tmp_path / "v" / "4_4_40"
    before = {p: p.read_bytes() for p in path.iterdir()}
    for change in (
        lambda: shardwrite.write_region(source(VALUES[:10]), path, (slice(0, 10), ..., ...)),
        lambda: shardwrite.write_region(source(), path, "append"),
        lambda: shardwrite.erase(path, (slice(0, 10), slice(None), slice(None))),
        lambda: shardwrite.ShardWriter(path),
        lambda: shardwrite.to_sharded_zarr(source(), path, mode="r+"),
    ):
        with pytest.raises(SpecError):
            change()
    assert {p: p.read_bytes() for p in path.iterdir()} == before
    shardwrite.to_precomputed(source(VALUES[::2]), tmp_path / "v", **NEW, key="again")
    check(tmp_path / "v", VALUES[::2], scale="again")


@pytest.mark.compat
def test_the_command(tmp_path):
    np.save(tmp_path / "a.npy", VALUES)

    def run(*arguments):
        words = [str(one) for one in arguments]
        return CliRunner().invoke(main, ["precomputed", *words])

    options = ("--axes", "zyx", "--resolution", "4,4,40", "--chunks", "10,10,20")
    planned = run(tmp_path / "a.npy", tmp_path / "v", *options, "--dry-run")
    assert planned.exit_code == 0, planned.output
    assert "preshift_bits" in planned.output
    assert not (tmp_path / "v").exists()
    done = run(tmp_path / "a.npy", tmp_path / "v", *options, "--voxel-offset", "1,-2,3", "--verify")
    assert done.exit_code == 0, done.output
    check(tmp_path / "v")
    again = run(tmp_path / "v", tmp_path / "w", "--json", "--encoding", "raw")
    assert again.exit_code == 0, again.output
    assert json.loads(again.output)["n_shards"] == 1
    scale = info_of(tmp_path / "w")["scales"][0]
    assert (scale["voxel_offset"], scale["resolution"]) == ([1, -2, 3], [4, 4, 40])
    check(tmp_path / "w")
    bad = run(tmp_path / "a.npy", tmp_path / "u", "--resolution", "4,4,40")
    assert bad.exit_code == 2
    assert "--axes" in bad.output
    worse = run(tmp_path / "a.npy", tmp_path / "u", "--axes", "zyx", "--resolution", "4,a,40")
    assert worse.exit_code == 2
    assert "--resolution" in worse.output


def counting(values, chunks=20):
    """An array, and the blocks of it that were computed."""
    computed = []

    def count(block, block_info=None):
        computed.append(block_info[0]["chunk-location"])
        return block

    x = da.from_array(values, chunks=chunks)
    return x.map_blocks(count, dtype=values.dtype, meta=np.empty((0,) * 3, values.dtype)), computed


SCATTERED = {
    "preshift_bits": 0,
    "minishard_bits": 1,
    "shard_bits": 2,
    "hash": "murmurhash3_x86_128",
}


@pytest.mark.long
@pytest.mark.parametrize("sharding", ["auto", SCATTERED], ids=["identity", "murmurhash"])
def test_several_scales_in_one_call(tmp_path, sharding):
    """What they share is computed once, if no hash scatters the chunks."""
    x, computed = counting(VALUES)
    coarser = {(8, 8, 40): x[:, ::2, ::2], (16, 8, 80): x[::2, ::2, ::4]}
    keywords = {**NEW, "scales": coarser, "sharding": sharding, "voxel_offset": (8, 20, -6)}
    result = shardwrite.to_precomputed(x, tmp_path / "v", **keywords)
    n_blocks = np.prod(x.numblocks)
    assert len(computed) == n_blocks if sharding == "auto" else len(computed) > n_blocks
    info = json.loads((tmp_path / "v" / "info").read_text())
    assert [(s["key"], s["size"], s["voxel_offset"]) for s in info["scales"]] == [
        ("4_4_40", [60, 50, 40], [8, 20, -6]),
        ("8_8_40", [30, 25, 40], [4, 10, -6]),
        ("16_8_80", [15, 25, 20], [2, 10, -3]),
    ]
    wanted = {"4_4_40": VALUES, "8_8_40": VALUES[:, ::2, ::2], "16_8_80": VALUES[::2, ::2, ::4]}
    written = [result, *result.scales]
    assert [each.path.rpartition("/")[2] for each in written] == list(wanted)
    for each, (key, values) in zip(written, wanted.items(), strict=True):
        found = shardwrite.from_precomputed(tmp_path / "v", scale=key, axes="zyx")
        np.testing.assert_array_equal(found, values)
        assert shardwrite.verify(each.path, deep=True).is_good
        assert each.raw_nbytes == values.nbytes
    assert "8_8_40: " in str(result)
    assert repr(result).startswith("<VolumeResult of ")
    assert [one["raw_nbytes"] for one in result.to_dict()["scales"]] == [
        each.raw_nbytes for each in result.scales
    ]
    computed.clear()
    again = shardwrite.to_precomputed(x, tmp_path / "v", **keywords)
    assert not computed
    assert [one.n_resumed_shards for one in (again, *again.scales)] == [
        one.n_shards + one.n_empty_shards for one in written
    ]
    left = sorted(p.name for p in (tmp_path / "v").iterdir())
    assert left == sorted([*wanted, "info"])


@pytest.mark.parametrize("sharding", ["auto", SCATTERED], ids=["identity", "murmurhash"])
def test_plan_of_several_scales(tmp_path, sharding):
    x = source()
    scales = {(8, 8, 40): x[:, ::2, ::2], (16, 16, 40): x[:, ::4, ::4]}
    keywords = {**NEW, "sharding": sharding, "scales": scales}
    plan = shardwrite.plan_precomputed(x, tmp_path / "v", **keywords)
    assert not (tmp_path / "v").exists()
    result = shardwrite.to_precomputed(x, tmp_path / "v", **keywords)
    for planned, written in zip((plan, *plan.scales), (result, *result.scales), strict=True):
        of_scale = planned.gathering or planned
        document = json.loads((Path(written.path) / "zarr.json").read_text())
        assert of_scale.metadata.document == document
        assert of_scale.n_shards == written.n_shards + written.n_empty_shards
        assert f"digest        {planned.digest}" in str(plan)
        assert planned.raw_nbytes == written.raw_nbytes
    told = json.loads(plan.to_json())["scales"]
    assert [one["raw_nbytes"] for one in told] == [one.raw_nbytes for one in result.scales]
    assert all(text in plan._repr_html_() for text in ("(40, 25, 30)", "(40, 13, 15)"))


def test_a_plan_asks_for_no_directory_of_a_run(tmp_path):
    """It asked for a run_dir, which it does not take, and refused stores that are only read."""
    options = {"auto_mkdir": True}
    files = zarr.storage.FsspecStore.from_url(f"file://{tmp_path}/v", storage_options=options)
    for store in (files, zarr.storage.MemoryStore(read_only=True)):
        assert shardwrite.plan_precomputed(source(), store, **NEW).n_shards
    assert not (tmp_path / "v").exists()


@pytest.mark.long
def test_several_plans_are_prepared_one_by_one(tmp_path):
    x, path = source(), tmp_path / "v"
    arrays = {(4, 4, 40): x, (8, 8, 40): x[:, ::2, ::2]}
    plan = shardwrite.plan_precomputed(x, **NEW, scales={(8, 8, 40): arrays[8, 8, 40]})
    with pytest.raises(SpecError, match="it plans several scales; plan each scale by a call"):
        shardwrite.prepare(x, path / "4_4_40", plan)
    assert not path.exists()
    for (size, _, _), array in arrays.items():
        plan = shardwrite.plan_precomputed(array, **{**NEW, "resolution": (size, size, 40)})
        scale = path / f"{size}_{size}_40"
        shardwrite.prepare(array, scale, plan)
        shardwrite.write_part(array, scale, 0, 1)
        shardwrite.finalize(scale)
        found = shardwrite.from_precomputed(path, scale=scale.name, axes="zyx")
        np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("sharding", ["auto", SCATTERED], ids=["identity", "murmurhash"])
def test_several_scales_are_interrupted(tmp_path, sharding):
    """None of them is in the ``info`` until all are whole. What was written is not written again."""
    reports, is_faulty = [], [True]

    def fail(block):
        if is_faulty[0] and reports:
            raise OSError("the disk is gone")
        return block

    half = source()[::2, ::2, ::2].map_blocks(fail, dtype="u4", meta=np.empty((0,) * 3, "u4"))
    keywords = {**NEW, "scales": {(8, 8, 80): half}, "sharding": sharding, "source_id": "one"}
    with dask.config.set(scheduler="synchronous"):
        with pytest.raises(OSError, match="the disk is gone"):
            shardwrite.to_precomputed(source(), tmp_path / "v", **keywords, progress=reports.append)
        assert not (tmp_path / "v" / "info").exists()
        is_faulty[0] = False
        result = shardwrite.to_precomputed(source(), tmp_path / "v", **keywords)
    assert sum(one.n_resumed_shards for one in (result, *result.scales))
    for key, values in (("4_4_40", VALUES), ("8_8_80", VALUES[::2, ::2, ::2])):
        found = shardwrite.from_precomputed(tmp_path / "v", scale=key, axes="zyx")
        np.testing.assert_array_equal(found, values)
    assert sorted(p.name for p in (tmp_path / "v").iterdir()) == ["4_4_40", "8_8_80", "info"]


@pytest.mark.parametrize(
    ("scales", "offset", "says"),
    [
        ([(8, 8, 40)], 0, "not a mapping; give a mapping of resolutions"),
        ({(8, 8, 40): "u2"}, 0, "scales=(8, 8, 40): dtype='uint16': another dtype; give an array"),
        ({(8, 8, 40): "i8"}, 0, "scales=(8, 8, 40): dtype='int64': not in the format; convert it"),
        ({(8, 8, 40): "two"}, 0, "scales=(8, 8, 40): axes='zyx': 3 for an array of 4 axes"),
        ({(8, 8, 40): "none"}, 0, "scales=(8, 8, 40): shape=(0, 25, 30): no voxels"),
        ({(8, 8, 40): "some"}, 0, "scales[(8, 8, 40)].compute_chunk_sizes() first"),
        ({(8, 40, 8): "half"}, 0, "along y it is 1000 nm long, and the first array is 200 nm long"),
        ({(4, 4, 40): "all"}, 0, "scales='4_4_40': two scales of one name"),
        ({(8, 8, 40): "half"}, 1, "the volume begins between two of its voxels"),
        ({(8, 8, 40): "half"}, 10**9 + 1, "the volume begins between two of its voxels"),
        ({8: "half"}, 0, "scales=8: not valid; give the size of a voxel along x, y and z"),
    ],
)
def test_scales_that_do_not_fit_are_refused(tmp_path, scales, offset, says):
    """Some named x or the resolution, as if the first array did not fit."""
    x = source()
    half = x[:, ::2, ::2]
    arrays = {"half": half, "u2": half.astype("u2"), "i8": half.astype("i8"), "all": x}
    arrays |= {"two": da.stack([half, half]), "none": half[:0], "some": half[half[:, 0, 0] > 3]}
    if isinstance(scales, dict):
        scales = {resolution: arrays[name] for resolution, name in scales.items()}
    keywords = {**NEW, "scales": scales, "voxel_offset": (offset, 0, 0)}
    with pytest.raises(SpecError, match=re.escape(says)) as caught:
        shardwrite.to_precomputed(x, tmp_path / "v", **keywords)
    assert caught.value.field == "scales"
    assert not (tmp_path / "v").exists()


def interrupted(place, **changed):
    """A call that ends when its first shards are there."""

    def now(_):
        raise Stop

    with dask.config.set(scheduler="sync"), pytest.raises(Stop):
        shardwrite.to_precomputed(
            source(),
            place,
            **{**NEW, "source_id": "values", "memory_limit": "4MB", "progress": now, **changed},
        )


@pytest.mark.parametrize("by_command", [False, True])
def test_a_scale_is_given_up(tmp_path, by_command):
    """With the hash identity, abandon named finalize, which did not end such a call."""
    root = tmp_path / "v"
    shardwrite.to_precomputed(source(), root, **{**NEW, "key": "whole"})
    interrupted(root)
    assert list((root / "4_4_40").glob("*.shard"))
    if by_command:
        runner, command = CliRunner(), ["abandon", str(root / "4_4_40")]
        assert "would be given up" in runner.invoke(main, [*command, "--dry-run"]).output
        assert (root / "4_4_40").exists()
        assert "was given up" in runner.invoke(main, command).output
    else:
        assert shardwrite.abandon(root / "4_4_40") == []
    assert sorted(path.name for path in root.iterdir()) == ["info", "whole"]
    with pytest.raises(SpecError, match="no array"):
        shardwrite.abandon(root / "4_4_40")
    assert shardwrite.abandon(root / "whole") == []
    check(root)
    shardwrite.to_precomputed(source(VALUES + 1), root, **NEW)
    check(root, VALUES + 1, scale="4_4_40")


@pytest.mark.long
def test_a_scale_in_a_bucket_or_in_parts_is_given_up(tmp_path):
    bucket = obstore.store.MemoryStore()
    interrupted(bucket)
    assert shardwrite.abandon(bucket, name="4_4_40") == []
    assert not [one for some in obstore.list(bucket) for one in some]
    plan = shardwrite.plan_precomputed(source(), **NEW)
    shardwrite.prepare(source(), tmp_path / "v/4_4_40", plan)
    shardwrite.write_part(source(), tmp_path / "v/4_4_40", 0, 1)
    assert shardwrite.abandon(tmp_path / "v/4_4_40") == []
    assert not list((tmp_path / "v").iterdir())


@pytest.mark.parametrize("hash_", ["identity", "murmurhash3_x86_128"])
def test_the_limit_of_the_index_comes_from_the_configuration(tmp_path, hash_):
    """It was 64 MiB for volumes, whatever a user set."""
    sharding = {"preshift_bits": 0, "minishard_bits": 4, "shard_bits": 6, "hash": hash_}
    new = {**NEW, "sharding": sharding}
    limit = "shardwrite.precomputed.index-limit"
    with dask.config.set({limit: 255}):
        with pytest.raises(SpecError, match=f"256 bytes, and 255 are.*fewer.*raise {limit}"):
            shardwrite.to_precomputed(source(), tmp_path / "v", **new)
        assert not list(tmp_path.iterdir())
    shardwrite.to_precomputed(source(), tmp_path / "v", **new)
    check(tmp_path / "v")
    with dask.config.set({limit: 255}), pytest.raises(SpecError, match=limit):
        shardwrite.verify(tmp_path / "v/4_4_40")
    with dask.config.set({limit: 20}), pytest.raises(CorruptShardError, match=f"raise {limit}"):
        shardwrite.from_precomputed(tmp_path / "v").compute()
    check(tmp_path / "v")

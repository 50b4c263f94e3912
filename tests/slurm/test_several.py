"""Several arrays by one submission on a real SLURM, which is interrupted three times."""

from __future__ import annotations

import json

import dask.array as da
import numpy as np
import pytest
import zarr

import shardwrite

ARRAYS = {"raw": (96, 128), "images/labels": (64, 128), "mean": (32, 128)}
N_SHARDS = (6 + 4 + 2) * 8
LAYOUT = ("--shards", 16, "--chunks", 8, "--source-chunks", "16,16", "--memory-limit", "20kB")
SIZES = ("--parts", 4, "--cores", 1, "--memory", "500M", "--directory", ".", "--requeues", 0)


@pytest.fixture
def files(work):
    """A file for each array, and the bytes that one call stores."""
    found = []
    for n, shape in enumerate(ARRAYS.values()):
        found.append(np.arange(1 + n, 1 + n + np.prod(shape), dtype="u4").reshape(shape) * (n + 3))
        np.save(work.directory / f"{n}.npy", found[-1])
    whole = work.directory / "whole"
    sources = [da.from_array(x, chunks=16) for x in found]
    shardwrite.store(sources, [whole] * len(found), names=[*ARRAYS], shards=16, chunks=8)
    return work.bytes_of(whole)


def shards(work):
    """Shards that are there, and when they were written."""
    found = (work.directory / "new").glob("**/c/*/*")
    return {p: p.stat().st_mtime_ns for p in found if not p.name.startswith(".")}


def submit(cluster, work):
    """Each commit of a task takes two seconds, until the file ``hurry`` is there."""
    sources = [f"{n}.npy" for n in range(len(ARRAYS))]
    command = ("shardwrite", "write", *sources, "new", "--names", ",".join(ARRAYS), "--submit")
    slowly = {"PAUSE": 2, "HURRY": work.directory / "hurry"}
    done = cluster.run(*command, *LAYOUT, *SIZES, "--json", cwd=work.directory, **slowly)
    return json.loads(done.stdout)


def underway(cluster, work, n):
    """Wait until so many shards are there."""
    cluster.until(lambda: len(shards(work)) >= n, work.log)
    return shards(work)


def status(cluster, work):
    command = ("shardwrite", "slurm", "status", "new", "--json")
    return json.loads(cluster.run(*command, cwd=work.directory, check=False).stdout)


@pytest.mark.long
def test_several_arrays_by_one_submission_that_is_interrupted_three_times(cluster, work, files):
    """By scancel, by the signal that comes before a time limit, and by a node that goes down."""
    first = submit(cluster, work)
    underway(cluster, work, 8)
    assert status(cluster, work)["n_shards"] == N_SHARDS, "one status tells of all"
    said = cluster.run("shardwrite", "slurm", "cancel", "new", cwd=work.directory).stdout
    assert first["array"] in said
    assert first["finalize"] in said
    cluster.wait(first["array"])
    before = shards(work)
    assert len(before) < N_SHARDS // 2

    second = submit(cluster, work)  # the same again
    underway(cluster, work, len(before) + 8)
    cluster.run("scancel", "--batch", "--signal=USR1", second["array"])
    assert {t["ExitCode"] for t in cluster.wait(second["array"]).values()} == {"85:0"}, work.log()
    assert cluster.wait(second["finalize"])[0]["ExitCode"] == "85:0"
    told = status(cluster, work)
    assert len(before) < told["n_done_shards"] < N_SHARDS
    assert not list((work.directory / "new").rglob("zarr.json")), "nothing is published"
    kept = shards(work)

    third = submit(cluster, work)
    underway(cluster, work, len(kept) + 4)
    node = cluster.tasks(third["array"])[3]["NodeList"]
    cluster.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    (work.directory / "hurry").touch()
    try:
        cluster.until(lambda: cluster.tasks(third["array"])[3]["Restarts"] == "1")
    finally:
        cluster.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)
    assert cluster.wait(third["finalize"])[0]["ExitCode"] == "0:0", work.log()
    redone = sum(shards(work)[path] != when for path, when in kept.items())
    assert not redone, "what a task has finished after USR1 is not written again"
    assert status(cluster, work)["is_whole"]
    assert work.bytes_of(work.directory / "new") == files
    assert not list(work.directory.rglob("*.shardwrite"))
    assert zarr.open_group(work.directory / "new", mode="r")["mean"].shape == (32, 128)
    work.note("several arrays: scancel, USR1, and a node that goes down", len(kept), redone, 0)

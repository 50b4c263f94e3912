"""A hierarchy that is converted on a real SLURM: whatever interrupts it, it is finished."""

from __future__ import annotations

import json
import os
from pathlib import Path

import nibabel
import numpy as np
import pytest
import zarr

import shardwrite

ROOT = Path(__file__).parent.parent.parent
SCAN = Path(nibabel.__file__).parent / "tests" / "data" / "example4d.nii.gz"
N_SHARDS = 86  # the others hold only the fill value
OPTIONS = ("--shards", "2,2,1,1", "--include", "scan/*", "--memory-limit", "60kB")
SIZES = ("--cores", 1, "--memory", "500M", "--directory", ".")
long = pytest.mark.long


@pytest.fixture
def scan(work):
    """A real MRI scan at three levels, in files of Zarr v2; what one process makes of it."""
    values = np.asarray(nibabel.load(SCAN).dataobj)
    root = zarr.create_group(work.directory / "old", zarr_format=2, attributes={"a": "scan"})
    for level in range(3):
        x = values[:: 2**level, :: 2**level]
        made = root.create_array(f"scan/{level}", shape=x.shape, chunks=(8, 8, 12, 2), dtype="i2")
        made[...] = x
    root.create_array("others/x", shape=(8,), chunks=(1,), dtype="i2")[...] = 1
    zarr.consolidate_metadata(work.directory / "old")
    whole = work.directory / "whole"
    shardwrite.shard(
        work.directory / "old", whole, (2, 2, 1, 1), include="scan/*", durability="none"
    )
    return work.bytes_of(whole)


def shards(work):
    """Shards that are there, and when they were written."""
    found = (work.directory / "new").glob("scan/*/c/*/*/*/*")
    return {p: p.stat().st_mtime_ns for p in found if not p.name.startswith(".")}


def check(work, whole):
    """It is what one process makes, and nothing else lies about."""
    assert work.bytes_of(work.directory / "new") == whole
    assert not list((work.directory / "new").rglob("*.shardwrite"))
    old, new = (zarr.open_group(work.directory / name, mode="r") for name in ("old", "new"))
    for level in range(3):
        np.testing.assert_array_equal(new[f"scan/{level}"][...], old[f"scan/{level}"][...])


def submit(cluster, work, **environ):
    command = ("shardwrite", "slurm", "shard", "old", "new", *OPTIONS, "--parts", 4, *SIZES)
    return json.loads(cluster.run(*command, "--json", cwd=work.directory, **environ).stdout)


def underway(cluster, work, n):
    """Wait until so many shards are there."""
    cluster.until(lambda: len(shards(work)) >= n, lambda: f"{work.log()}")
    return shards(work)


@long
def test_a_job_array_that_is_cancelled_and_then_killed(cluster, work, scan):
    first = submit(cluster, work, PAUSE=0.6)
    underway(cluster, work, 12)
    assert list(work.directory.rglob("journal-*"))
    said = cluster.run("shardwrite", "slurm", "cancel", "new", cwd=work.directory).stdout
    assert first["array"] in said
    cluster.wait(first["array"])
    before = shards(work)
    assert 0 < len(before) < N_SHARDS, "nothing was interrupted"

    second = submit(cluster, work, PAUSE=0.6)  # the same again
    underway(cluster, work, len(before) + 12)
    cluster.run("scancel", "--signal=KILL", "--full", second["array"])
    assert {t["JobState"] for t in cluster.wait(second["array"]).values()} <= {
        "FAILED",
        "CANCELLED",
    }
    for path in shards(work):
        assert path.read_bytes() == scan[path.relative_to(work.directory / "new").as_posix()]
    assert cluster.wait(second["finalize"])[0]["ExitCode"] == "85:0", work.log()
    before = shards(work)
    assert 0 < len(before) < N_SHARDS, "nothing was interrupted"

    log = work.log(f"shardwrite-finalize-{second['finalize']}")
    again = next(line for line in log.splitlines() if line.startswith("shardwrite slurm resubmit"))
    third = json.loads(cluster.run("bash", "-c", f"{again} --json", cwd=work.directory).stdout)
    assert cluster.wait(third["finalize"])[0]["ExitCode"] == "0:0", work.log()
    redone = sum(shards(work)[path] != when for path, when in before.items())
    assert redone <= 2 * 4 * 2, f"{redone} shards were written again"
    check(work, scan)
    work.note(
        "a conversion of a hierarchy: cancelled, then SIGKILL of all four tasks",
        len(before),
        redone,
        0,
    )


@long
def test_usr1_and_requeue_from_outside(cluster, work, scan):
    """One task drains and comes again by itself; then SLURM puts all tasks back."""
    job = submit(cluster, work, PAUSE=0.6)
    underway(cluster, work, 8)
    cluster.run("scancel", "--batch", "--signal=USR1", f"{job['array']}_1")
    cluster.until(lambda: cluster.tasks(job["array"])[1]["Restarts"] == "1", work.log)
    assert 0 < len(shards(work)) < N_SHARDS, "nothing was interrupted"
    cluster.run("scontrol", "requeue", job["array"], check=False)  # tasks that have ended refuse
    cluster.until(lambda: any(t["Restarts"] != "0" for t in cluster.tasks(job["array"]).values()))
    assert cluster.wait(job["finalize"])[0]["ExitCode"] == "0:0", work.log()
    check(work, scan)


@long
def test_workers_that_are_jobs(cluster, work, scan):
    """Into another place, whose driver is told to end and starts again; and in place."""
    more = {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
    if cluster.has_namespaces:
        more |= {
            "SHARDWRITE_INTERFACE": cluster.there,
            "SHARDWRITE_SCHEDULER_INTERFACE": cluster.here,
        }
    jobs = ("--cluster", "slurm", "--jobs", 2, "--cores", 1, "--memory", "600M", "--json")
    command = ("shardwrite", "shard", "old", "new", *OPTIONS, *jobs)
    done = cluster.run(*command, cwd=work.directory, check=False, **more)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["n_shards"] == N_SHARDS
    check(work, scan)
    cluster.until(lambda: not cluster.run("squeue", "-h").stdout)  # they end in a moment
    done = cluster.run(*command, cwd=work.directory, **more)  # no job is submitted any more
    assert "no workers" not in done.stderr
    in_place = ("shardwrite", "unshard", "new", "--in-place", *jobs)
    done = cluster.run(*in_place, cwd=work.directory, check=False, **more)
    assert done.returncode == 0, done.stderr
    assert zarr.open_group(work.directory / "new", mode="r")["scan/0"].shards is None

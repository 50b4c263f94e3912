"""A dask cluster inside one allocation, on a real SLURM: whatever interrupts it, the same again
finishes it."""

from __future__ import annotations

import json
import os
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parent.parent.parent
N_SHARDS = 256
N_IN_FLIGHT = 4 * 2 * 7  # a group for each thread
long = pytest.mark.long


@pytest.fixture
def allocation(cluster, work):
    return Allocation(cluster, work)


class Allocation:
    """The script, its job, and what must be true in the end."""

    def __init__(self, cluster, work):
        self.cluster, self.work = cluster, work

    def submit(self, *options, **environ):
        return self.cluster.sbatch(
            "allocation.sbatch", *options, cwd=self.work.directory, **environ
        )

    def runs(self):
        """Run directories that are there."""
        return sorted(p for p in (self.work.directory / "shardwrite-runs").glob("*") if p.is_dir())

    def started(self, job, n=16):
        """Wait until so many shards are there."""
        self.cluster.until(
            lambda: len(self.work.shards()) >= n,
            lambda: f"{self.cluster.tasks(job)}{self.work.log()}",
        )

    def restarted(self, job):
        self.cluster.until(lambda: self.cluster.tasks(job)[0]["Restarts"] == "1", self.work.log)

    def shards_at_its_limit(self, job):
        """Those that are there once a job with a time limit was put back, whatever else goes on."""
        self.started(job, 1)
        self.restarted(job)
        return self.work.shards()

    def finish(self, job, before, most_redone, what):
        """Wait for the end of a job, and see that the array is that of an undisturbed run.

        Parameters
        ----------
        job : str
            The same again, or put back.
        before : dict
            The shards that were there after the interruption.
        most_redone : int
            How many of them may be written again.
        what : str
            Happened; for the table in the documentation.
        """
        assert 0 < len(before) < N_SHARDS, "nothing was interrupted"
        begun = time.monotonic()
        facts = self.cluster.wait(job)[0]
        seconds = time.monotonic() - begun
        assert facts["ExitCode"] == "0:0", self.work.log()
        now = self.work.shards()
        redone = sum(now[path] != when for path, when in before.items())
        assert redone <= most_redone, f"{redone} shards were written again"
        self.work.check()
        if "INTERRUPTIONS" in os.environ:
            row = {
                "what": what,
                "before": len(before),
                "redone": redone,
                "seconds": seconds,
                "result": "the undisturbed bytes",
            }
            with open(os.environ["INTERRUPTIONS"], "a") as file:
                file.write(json.dumps(row) + "\n")
        return facts


@pytest.mark.long
def test_allocation(cluster, work, allocation):
    """The script as it is, on four nodes; bit by bit what one process writes."""
    work.allocation_script()
    cluster.run("sbatch", "--test-only", "allocation.sbatch", cwd=work.directory)
    for directory in (ROOT / "slurm", ROOT / "tests" / "slurm" / "golden"):
        cluster.run(
            "sbatch",
            "--test-only",
            "--mem=500M",
            "--cpus-per-task=2",
            directory / "allocation.sbatch",
        )
    job = allocation.submit(TMPDIR="/not/here")
    (run,) = cluster.until(allocation.runs, work.log)
    cluster.until(lambda: (run / "scheduler.json").exists(), work.log)
    assert stat.S_IMODE(run.stat().st_mode) == 0o700
    assert {stat.S_IMODE(p.stat().st_mode) for p in run.iterdir()} == {0o600}
    assert json.loads((run / "scheduler.json").read_bytes())["address"].startswith("tls://")
    facts = cluster.wait(job)[0]
    assert facts["ExitCode"] == "0:0", work.log()
    work.check()
    assert not allocation.runs()


@long
def test_usr1_drains_and_the_job_comes_again(cluster, work, allocation):
    """The address of a scheduler that is no more lies where the next start of the job will be."""
    work.allocation_script(n_nodes=2)
    job = allocation.submit(PAUSE=0.5, PAUSE_ONCE=1)
    allocation.started(job)
    stale = work.directory / "shardwrite-runs" / f"{job}.1"
    stale.mkdir()
    (stale / "scheduler.json").write_text('{"address": "tls://127.0.0.1:1"}')
    done = cluster.run("shardwrite", "slurm", "status", work.path, "--json", check=False)
    assert done.returncode == 85, done.stderr
    found = json.loads(done.stdout)
    assert found["n_writers"] == 1
    assert found["n_done_shards"] >= 16
    assert [one["id"] for one in found["jobs"]] == [job]
    cluster.run("scancel", "--batch", "--signal=USR1", job)
    allocation.restarted(job)
    allocation.finish(
        job,
        work.shards(),
        0,
        "USR1 to an allocation of two nodes, which finishes its shards and requeues itself",
    )


@long
def test_requeue_from_outside(cluster, work, allocation):
    work.allocation_script(n_nodes=2)
    job = allocation.submit(PAUSE=0.3, PAUSE_ONCE=1)
    allocation.started(job)
    cluster.run("scontrol", "requeue", job)
    allocation.restarted(job)
    allocation.finish(
        job, work.shards(), N_IN_FLIGHT, "scontrol requeue of an allocation of two nodes"
    )


@long
def test_a_node_goes_down(cluster, work, allocation):
    """With --no-kill the others go on without it, and so does the job."""
    work.allocation_script(n_nodes=3)
    job = allocation.submit(PAUSE=0.5)
    allocation.started(job)
    first = cluster.tasks(job)[0]["BatchHost"]
    nodes = cluster.run(
        "scontrol", "show", "hostnames", cluster.tasks(job)[0]["NodeList"]
    ).stdout.split()
    node = next(name for name in nodes if name != first)
    before = work.shards()
    cluster.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    try:
        facts = allocation.finish(
            job, before, N_IN_FLIGHT, "one of an allocation's three nodes goes down"
        )
        assert facts["Restarts"] == "0"
    finally:
        cluster.run(
            "scontrol", "update", f"nodename={node}", "state=resume", check=False
        )  # it may have come back by itself
        cluster.until(
            lambda: (
                "idle" in cluster.run("sinfo", "-h", "-n", node, "-p", "main", "-o", "%t").stdout
            )
        )


@long
def test_preemption_with_grace(cluster, work, allocation):
    """SLURM ends the workers at once, and says nothing to the script: the program finds itself
    alone."""
    cluster.run("scontrol", "update", "partitionname=low", "gracetime=20")
    try:
        work.allocation_script("--sbatch=--partition=low", n_nodes=2)
        job = allocation.submit(PAUSE=0.5, PAUSE_ONCE=1)
        allocation.started(job)
        high = cluster.run(
            "sbatch",
            "--parsable",
            "-p",
            "high",
            "-N4",
            "-c4",
            "-o",
            "/dev/null",
            "--wrap",
            "sleep 1",
        ).stdout.strip()
        allocation.restarted(job)
        before = work.shards()
        cluster.wait(high)
        allocation.finish(job, before, N_IN_FLIGHT, "preemption of an allocation, with time to end")
        assert "told to finish" in work.log()
    finally:
        cluster.run("scontrol", "update", "partitionname=low", "gracetime=0")


@long
def test_the_scheduler_is_lost(cluster, work, allocation):
    """The program finds itself without it, and the job is put back like after any interruption."""
    work.allocation_script(n_nodes=2)
    job = allocation.submit(PAUSE=0.5, PAUSE_ONCE=1)
    allocation.started(job)
    (run,) = allocation.runs()
    words = ["slurm", "scheduler", str(run)]
    (scheduler,) = [
        p for p in psutil.process_iter(["cmdline"]) if (p.info["cmdline"] or [])[-3:] == words
    ]
    scheduler.kill()
    allocation.restarted(job)
    allocation.finish(
        job, work.shards(), N_IN_FLIGHT, "an allocation of two nodes loses its scheduler"
    )


PROGRAM = """
import os, sys
import dask.array as da
import numpy as np
import shardwrite

def once(block, flag):
    try:
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return block
    return np.ones(2**32, "u1") * block.max()  # more memory than the job has

x = da.from_array(np.load("x.npy"), chunks=16).map_blocks(once, sys.argv[1], dtype="u4", meta=np.empty((0, 0), "u4"))
x.to_sharded_zarr("x.zarr", shards=16, chunks=8, memory_limit="60kB", source_id="x")
"""


@long
def test_a_program_whose_worker_is_out_of_memory(cluster, work, allocation):
    (work.directory / "my program.py").write_text(PROGRAM)
    work.allocation_script("--program", "my program.py", n_nodes=2, arguments=("--", "flag"))
    job = allocation.submit(PAUSE=0.2)
    allocation.started(job)
    assert (work.directory / "flag").exists()
    allocation.finish(
        job, work.shards(), N_IN_FLIGHT, "a worker is out of memory, in a program of the user's"
    )
    assert "was killed by signal 9" in work.log() or "exceeded 95% memory budget" in work.log()


@long
def test_a_time_limit_and_meanwhile_arrays_and_allocations_go_on_with_each_other(
    cluster, work, allocation, tmp_path
):
    """The job that meets its limit needs two nodes; what else is here runs beside it."""
    limited = Allocation(cluster, type(work)(cluster, tmp_path / "limited"))
    limited.work.allocation_script("--time", "00:02:00", "--lead", 30, n_nodes=2)
    slow = limited.submit(PAUSE=4, PAUSE_ONCE=1)
    with ThreadPoolExecutor(1) as beside:
        meanwhile = beside.submit(limited.shards_at_its_limit, slow)
        _arrays_and_allocations_go_on_with_each_other(cluster, work, allocation, tmp_path)
        before = meanwhile.result()
    facts = limited.finish(
        slow,
        before,
        0,
        "time limit of an allocation: USR1 before it, and it requeues itself",
    )
    assert facts["JobState"] == "COMPLETED"


def _arrays_and_allocations_go_on_with_each_other(cluster, work, allocation, tmp_path):
    """Each takes up what the other has left."""
    work.init()
    work.scripts(20)
    cluster.wait(work.array("--array=0-19:5"))
    before = work.shards()
    work.allocation_script(n_nodes=2)
    allocation.finish(
        allocation.submit(), before, 0, "4 of 20 parts of a job array, the rest by an allocation"
    )

    other = Allocation(cluster, type(work)(cluster, tmp_path / "other"))
    other.work.init()
    other.work.allocation_script(n_nodes=2)
    job = other.submit(PAUSE=0.5)
    other.started(job)
    cluster.run("scancel", job)
    assert cluster.wait(job)[0]["JobState"] == "CANCELLED"
    before = other.work.shards()
    other.work.scripts(3)
    tasks = cluster.wait(other.work.array())
    assert {facts["ExitCode"] for facts in tasks.values()} == {"0:0"}, other.work.log()
    now = other.work.shards()
    assert sum(now[path] != when for path, when in before.items()) <= N_IN_FLIGHT
    assert other.work.finalize_here()[0] == 0
    other.work.check()

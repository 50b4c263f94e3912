"""A dask cluster inside one allocation, on a real SLURM: whatever interrupts it, the same again finishes it."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
N_SHARDS = 256
N_GROUPS_IN_FLIGHT = 4 * 2 * 7
long = pytest.mark.long


@pytest.fixture
def allocation(cluster, work):
    return Allocation(cluster, work)


class Allocation:
    """The script, its job, and what must be true in the end."""

    def __init__(self, cluster, work):
        self.cluster, self.work = cluster, work

    def submit(self, *options, **environ):
        return self.cluster.sbatch("allocation.sbatch", *options, cwd=self.work.directory, **environ)

    def runs(self):
        """Run directories that are there."""
        return sorted(p for p in (self.work.directory / "shardwrite-runs").glob("*") if p.is_dir())

    def started(self, job, n=16):
        """Wait until so many shards are there."""
        self.cluster.until(lambda: len(self.work.shards()) >= n, 60, lambda: f"{self.cluster.tasks(job)}{self.work.log()}")

    def restarted(self, job, n="1"):
        self.cluster.until(lambda: self.cluster.tasks(job)[0]["Restarts"] == n, 60, self.work.log)

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
            row = {"what": what, "before": len(before), "redone": redone, "seconds": seconds, "result": "the undisturbed bytes"}
            with open(os.environ["INTERRUPTIONS"], "a") as file:
                file.write(json.dumps(row) + "\n")
        return facts


def test_allocation(cluster, work, allocation):
    """The script as it is, on four nodes; bit by bit what one process writes."""
    work.allocation_script()
    cluster.run("sbatch", "--test-only", "allocation.sbatch", cwd=work.directory)
    for directory in (ROOT / "slurm", ROOT / "tests" / "slurm" / "golden"):
        cluster.run("sbatch", "--test-only", "--mem=500M", "--cpus-per-task=2", directory / "allocation.sbatch")
    job = allocation.submit(TMPDIR="/not/here")
    (run,) = cluster.until(allocation.runs, 30, work.log)
    cluster.until(lambda: (run / "scheduler.json").exists(), 30, work.log)
    assert stat.S_IMODE(run.stat().st_mode) == 0o700
    assert {stat.S_IMODE(p.stat().st_mode) for p in run.iterdir()} == {0o600}
    assert json.loads((run / "scheduler.json").read_bytes())["address"].startswith("tls://")
    facts = cluster.wait(job)[0]
    assert facts["ExitCode"] == "0:0", work.log()
    work.check()
    assert not allocation.runs()

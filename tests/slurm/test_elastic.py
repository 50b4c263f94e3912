"""Workers that are jobs of their own, on a real SLURM: whatever interrupts them or their driver,
the same again finishes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
N_SHARDS = 256
PATIENCE = 240  # seconds; on a busy machine everything takes long
N_JOBS = 2
IN_FLIGHT = N_JOBS * 7  # shards: a group for each worker, of one thread
long = pytest.mark.long


class Elastic:
    """A driver of such workers, on this side or as a job."""

    def __init__(self, cluster, work):
        self.cluster, self.work = cluster, work
        self.hurry, self.hold = work.directory / "hurry", work.directory / "hold"
        self.options = ["--jobs", N_JOBS, "--cores", 1, "--memory", "600M"]
        self.more = [*work.arguments, *work.layout]

    def environ(self, interface):
        more = {
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            "DASK_DISTRIBUTED__WORKER__PRELOAD": HERE / "pause.py",
            "PAUSE": 1,
            "HURRY": self.hurry,
            "HOLD": self.hold,
        }
        if self.cluster.has_namespaces:
            more |= {
                "SHARDWRITE_INTERFACE": self.cluster.there,
                "SHARDWRITE_SCHEDULER_INTERFACE": interface,
            }
        return {name: str(value) for name, value in more.items()}

    def start(self, *options):
        """A driver on this side."""
        command = [
            "shardwrite",
            "write",
            "x.npy",
            "x.zarr",
            *self.more,
            "--cluster",
            "slurm",
            *self.options,
            *options,
            "--json",
        ]
        self.log = self.work.directory / "driver.log"
        with self.log.open("a") as log:
            environ = {**self.cluster.environ, **self.environ(self.cluster.here)}
            words = [str(word) for word in command]
            return subprocess.Popen(
                words, cwd=self.work.directory, env=environ, stdout=log, stderr=log
            )

    def underway(self, n=15):
        """Wait until so many shards are there; which."""
        self.cluster.until(lambda: len(self.work.shards()) >= n, self.tell)
        return self.work.shards()

    def tell(self):
        logs = "".join(path.read_text()[-2000:] for path in self.work.directory.glob("logs/*.out"))
        return f"{self.log.read_text() if hasattr(self, 'log') else ''}{logs}{self.cluster.run('squeue').stdout}"

    def status(self, **environ):
        """What is told of the run, which has not ended."""
        command = ("shardwrite", "slurm", "status", self.work.path, "--json")
        done = self.cluster.run(*command, check=False, **environ)
        assert done.returncode == 85, done.stdout + done.stderr
        return json.loads(done.stdout)

    def workers(self):
        """Jobs that are there and not about to go."""
        lines = self.cluster.run(
            "squeue", "-h", "--name=shardwrite-worker", "-o", "%i %T"
        ).stdout.splitlines()
        return [job for job, state in map(str.split, lines) if state != "COMPLETING"]

    def finish(self, driver, before, most_redone, what):
        """Wait for a driver, and see what must be true then."""
        assert 0 < len(before) < N_SHARDS, "nothing was interrupted"
        self.hurry.touch()
        begun = time.monotonic()
        assert driver.wait(PATIENCE) == 0, self.tell()
        now = self.work.shards()
        redone = sum(now[path] != when for path, when in before.items())
        assert redone <= most_redone, f"{redone} shards were written again"
        assert not self.workers()
        self.work.check()
        self.work.note(what, len(before), redone, time.monotonic() - begun)


@pytest.fixture
def elastic(cluster, work):
    return Elastic(cluster, work)


@long
def test_the_script_and_its_way_back_into_the_queue(cluster, work, elastic):
    """The driver is a small job; USR1 has it finish the shards in flight and come again by itself."""
    script = ["slurm", "script", "elastic", "x.npy", "x.zarr", *elastic.options, *work.arguments]
    text = cluster.run("shardwrite", *script, *work.layout).stdout
    (work.directory / "elastic.sbatch").write_text(text)
    for path in (
        ROOT / "slurm" / "elastic.sbatch",
        ROOT / "tests" / "slurm" / "golden" / "elastic.sbatch",
    ):
        cluster.run("sbatch", "--test-only", "--mem=500M", "--time=10", path)
    job = cluster.sbatch("elastic.sbatch", cwd=work.directory, **elastic.environ(cluster.there))
    elastic.underway()
    cluster.run("scancel", "--batch", "--signal=USR1", job)
    cluster.until(lambda: cluster.tasks(job)[0]["Restarts"] == "1", elastic.tell)
    assert not elastic.workers(), "its workers went with it"
    before = work.shards()
    assert 0 < len(before) < N_SHARDS, "nothing was interrupted"
    elastic.hurry.touch()
    begun = time.monotonic()
    facts = cluster.wait(job)[0]
    assert facts["ExitCode"] == "0:0", elastic.tell()
    now = work.shards()
    redone = sum(now[path] != when for path, when in before.items())
    assert redone == 0
    assert not elastic.workers()
    work.check()
    what = "USR1 to the driver of two workers, which finishes their shards and requeues itself"
    work.note(what, len(before), redone, time.monotonic() - begun)


@long
def test_all_workers_are_lost(cluster, work, elastic):
    """Others are submitted in their place; and how far it is, is known from the disk."""
    driver = elastic.start()
    elastic.underway()
    elastic.hold.touch()  # on a busy machine, all would be written before it has been looked at
    # Whoever looks waits a second for SLURM, which may take longer on such a machine.
    seen = cluster.until(lambda: (status := elastic.status()) and not status["note"] and status)
    assert seen["n_writers"] == 1, "the driver; workers hold no lease"
    assert 15 - IN_FLIGHT <= seen["n_done_shards"] <= len(work.shards())
    assert seen["seconds_left"] > 0
    assert {job["id"] for job in seen["jobs"]} == set(elastic.workers())
    blind = elastic.status(PATH=cluster.directory / "bin")
    assert "squeue is not in PATH" in blind["note"]
    lost = elastic.workers()
    assert len(lost) == N_JOBS
    cluster.run("scancel", *lost)
    elastic.hold.unlink()
    cluster.until(lambda: not set(lost) & set(elastic.workers()))
    before = work.shards()
    elastic.finish(driver, before, IN_FLIGHT, "scancel of both workers, which the driver replaces")


@long
def test_the_driver_is_killed(cluster, work, elastic):
    """Its workers are found and cancelled by what lies on disk."""
    driver = elastic.start()
    elastic.underway()
    driver.kill()
    driver.wait()
    known = elastic.workers()
    done = json.loads(cluster.run("shardwrite", "slurm", "cancel", work.path, "--json").stdout)
    assert done["jobs"], "they do not notice at once"
    assert set(done["jobs"]) <= set(known)
    assert done["alive"] == []
    assert not elastic.workers()
    again = cluster.run("shardwrite", "slurm", "cancel", work.path).stdout
    assert f"nothing to cancel: {N_JOBS} jobs known" in again
    before = work.shards()
    assert not (work.path / "zarr.json").exists()
    elastic.finish(
        elastic.start(),
        before,
        IN_FLIGHT,
        "SIGKILL of the driver, its workers cancelled, the same command again",
    )


@long
def test_cancel_ends_a_driver_that_is_no_job(cluster, work, elastic):
    """It would submit others in the place of its workers; and a second one beside it is refused."""
    driver = elastic.start()
    before = elastic.underway()
    second = elastic.start()
    assert second.wait(PATIENCE) == 1, elastic.tell()
    assert f"is being written already: job {elastic.workers()[0]}" in elastic.log.read_text()
    done = json.loads(cluster.run("shardwrite", "slurm", "cancel", work.path, "--json").stdout)
    assert driver.wait(PATIENCE) == 85, elastic.tell()
    assert "cancelled by shardwrite slurm cancel" in elastic.log.read_text()
    assert done["alive"] == []
    assert not elastic.workers()
    assert len(work.shards()) < N_SHARDS
    time.sleep(3)
    assert not elastic.workers(), "none comes again"
    elastic.finish(
        elastic.start(),
        before,
        IN_FLIGHT,
        "cancel of a driver on a login node, the same command again",
    )


@long
def test_signals_to_the_driver(cluster, work, elastic):
    """TERM leaves at once, USR1 when the shards in flight are written; no worker stays behind
    either."""
    driver = elastic.start()
    elastic.underway()
    driver.send_signal(signal.SIGTERM)
    assert driver.wait(PATIENCE) == 85, elastic.tell()
    cluster.until(lambda: not elastic.workers())
    driver, n_before = elastic.start(), len(work.shards())
    elastic.underway(n_before + 15)
    driver.send_signal(signal.SIGUSR1)
    assert driver.wait(PATIENCE) == 85, elastic.tell()
    assert "it was stopped on request" in elastic.log.read_text()
    assert not elastic.workers()
    before = work.shards()
    elastic.finish(
        elastic.start(), before, 0, "USR1 to the driver on a login node, the same command again"
    )


@long
def test_no_workers_come(cluster, work, elastic):
    """It says why, and does not wait for ever; what was asked for is cancelled."""
    driver = elastic.start("--sbatch=--begin=now+1hour", "--patience", 4)
    assert driver.wait(PATIENCE) == 85, elastic.tell()
    said = elastic.log.read_text()
    assert "no worker came in 4 s" in said
    assert "PENDING (BeginTime)" in said
    assert not elastic.workers()
    driver = elastic.start("--sbatch=--partition=none")
    assert driver.wait(PATIENCE) == 1, elastic.tell()
    said = elastic.log.read_text()
    assert "invalid partition" in said
    assert "Traceback" not in said
    driver = elastic.start("--sbatch=--begin=now+1hour")
    cluster.until(elastic.workers, elastic.tell)
    driver.send_signal(signal.SIGUSR1)
    assert driver.wait(PATIENCE) == 85
    assert "asked to stop before there was a worker" in elastic.log.read_text()
    assert not elastic.workers()

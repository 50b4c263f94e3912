"""The job array on a real SLURM: whatever interrupts it, the same again finishes it, and redoes
what was in flight."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import seams

import shardwrite

ROOT = Path(__file__).parent.parent.parent
N_SHARDS = 256
long = pytest.mark.long


def started(cluster, work, job, n=4):
    """Wait until so many tasks have committed something, and some shards are there."""

    def tell():
        writers = {
            p.name.split("-")[1] for p in seams.state_beside(work.path).glob("run-*/**/journal-*")
        }
        return len(writers) >= n and len(work.shards()) >= 4 * n

    cluster.until(tell, lambda: f"{cluster.tasks(job)}{work.log()}")


def finish(cluster, work, job, before, most_redone, what):
    """Wait for an array to end, finalize, and see what must be true then.

    Parameters
    ----------
    job : str
        The same array again, or the one that SLURM has put back.
    before : dict
        The shards that were there after the interruption.
    most_redone : int
        How many of them may be written again: those that were in flight.
    what : str
        Happened; for the table in the documentation.
    """
    assert 0 < len(before) < N_SHARDS, "nothing was interrupted"
    begun = time.monotonic()
    tasks = cluster.wait(job)
    seconds = time.monotonic() - begun
    assert {facts["ExitCode"] for facts in tasks.values()} == {"0:0"}, work.log()
    now = work.shards()
    redone = sum(now[path] != when for path, when in before.items())
    assert redone <= most_redone, f"{redone} shards were written again"
    code, said = work.finalize_here()
    assert code == 0, said
    work.check()
    work.note(what, len(before), redone, seconds)
    return tasks


def test_array_then_finalize(cluster, work):
    """The scripts as they are, on four nodes; bit by bit what one process writes."""
    work.init()
    work.scripts(4)
    for kind in ("array", "finalize"):
        cluster.run("sbatch", "--test-only", f"{kind}.sbatch", cwd=work.directory)
        for directory in (ROOT / "slurm", ROOT / "tests" / "slurm" / "golden"):
            cluster.run(
                "sbatch",
                "--test-only",
                "--mem=500M",
                "--cpus-per-task=2",
                directory / f"{kind}.sbatch",
            )
    tasks = cluster.wait(work.array())
    assert {facts["ExitCode"] for facts in tasks.values()} == {"0:0"}, work.log()
    assert len(tasks) == 4
    assert len({facts["NodeList"] for facts in tasks.values()}) > 1
    code, said = work.finalize()
    assert code == "0:0", said
    work.check()


@long
def test_usr1_drains_and_the_task_comes_again_by_itself_and_alone(cluster, work):
    """The last task has the array's own number, and must not requeue the whole array."""
    work.init()
    work.scripts(4)
    job = work.array(PAUSE=0.6)
    started(cluster, work, job)
    assert cluster.tasks(job)[3]["JobId"] == job
    cluster.run("scancel", "--batch", "--signal=USR1", f"{job}_3")
    tasks = finish(
        cluster,
        work,
        job,
        work.shards(),
        0,
        "USR1 to one task of four, which finishes its shards and requeues itself",
    )
    assert {k: t["Restarts"] for k, t in tasks.items()} == {0: "0", 1: "0", 2: "0", 3: "1"}, (
        work.log()
    )


@long
def test_a_volume_whose_hash_scatters_the_chunks(cluster, work):
    """One command submits two job arrays, of which the second gathers what the first spools."""
    values = np.arange(1, 1 + 32 * 32 * 32, dtype="u2").reshape(32, 32, 32)
    np.save(work.directory / "cube.npy", values)
    sharding = {"hash": "murmurhash3_x86_128", "preshift_bits": 0, "minishard_bits": 1}
    options = ["--axes", "zyx", "--resolution", "4,4,40", "--chunks", 8, "--shard-nbytes", "8kB"]
    options += ["--sharding", json.dumps({**sharding, "shard_bits": 3}), "--memory-limit", "50kB"]
    options += ["--source-chunks", "16,16,16", "--parts", 3, "--directory", ".", "--cores", 2]
    command = ["shardwrite", "slurm", "precomputed", "cube.npy", "volume", *options]
    told = cluster.run(*command, "--memory", "500M", "--json", cwd=work.directory)
    jobs = json.loads(told.stdout)
    for name in ("array", "gather", "finalize"):
        tasks = cluster.wait(jobs[name])
        assert {facts["ExitCode"] for facts in tasks.values()} == {"0:0"}, work.log()
        assert len(tasks) == (1 if name == "finalize" else 3)
    volume = work.directory / "volume"
    assert {path.name for path in volume.iterdir()} == {"info", "4_4_40"}
    np.testing.assert_array_equal(shardwrite.from_precomputed(volume, axes="zyx"), values)
    assert "8 shards from an earlier call" in work.log("*-finalize-*")


@long
def test_submit(cluster, work):
    """From a login node: everything is begun and submitted by one command, and by the same again
    nothing is written twice."""
    command = [
        "shardwrite",
        "slurm",
        "submit",
        "x.npy",
        "x.zarr",
        *work.arguments,
        *work.layout,
        "--parts",
        3,
        "--directory",
        ".",
    ]
    command += [
        "--cores",
        2,
        "--memory",
        "500M",
        "--sbatch=--comment=for the paper",
        "--setup",
        "cd .",
        "--json",
    ]
    submitted = json.loads(cluster.run(*command, cwd=work.directory, PAUSE=1.5).stdout)
    assert submitted["parts"] == 3
    second = cluster.run(*command, cwd=work.directory, check=False)
    assert second.returncode == 1, second.stdout
    assert f"job {submitted['array']}_" in second.stderr
    assert "shardwrite slurm cancel" in second.stderr
    started(cluster, work, submitted["array"], 3)
    n_before = len(work.shards())
    done = cluster.run("shardwrite", "slurm", "status", work.path, "--json", check=False)
    assert done.returncode == 85, done.stderr
    found = json.loads(done.stdout)
    assert found["n_writers"] == 3
    assert n_before - 3 * 2 * 7 <= found["n_done_shards"] <= len(work.shards()), (
        "a group in flight for each of six threads"
    )
    assert found["parts_left"] == [0, 1, 2]
    assert sorted(job["state"] for job in found["jobs"]) == [
        "PENDING",
        "RUNNING",
        "RUNNING",
        "RUNNING",
    ]
    last = cluster.wait(submitted["finalize"])[0]
    assert last["ExitCode"] == "0:0", work.log()
    work.check()
    before = work.shards()
    again = json.loads(cluster.run(*command, cwd=work.directory).stdout)
    assert cluster.wait(again["finalize"])[0]["ExitCode"] == "0:0", work.log()
    assert work.shards() == before
    sized = [*command[:5], *work.arguments, *work.layout, "--dry-run"]
    chosen = cluster.run(*sized, cwd=work.directory).stdout
    assert "--array=0-0" in chosen, (
        "a small array is one task: MaxArraySize and the throughput say so"
    )


@long
def test_two_arrays_of_one_name(cluster, work, tmp_path):
    """Each has scripts of its own, so that finalize of one submits its own parts again, and nothing
    is mixed up."""
    made, again = {}, {}
    for name in ("one", "other"):
        path = tmp_path / name / "scan.zarr"
        command = [
            "shardwrite",
            "slurm",
            "submit",
            "x.npy",
            path,
            *work.arguments,
            *work.layout,
            "--parts",
            1,
            "--cores",
            2,
        ]
        made[path] = json.loads(
            cluster.run(
                *command, "--memory", "500M", "--sbatch=--hold", "--json", cwd=work.directory
            ).stdout
        )
    for jobs in made.values():
        cluster.run("scancel", jobs["array"])
        cluster.run("scontrol", "release", jobs["finalize"])
    for path, jobs in made.items():
        assert cluster.wait(jobs["finalize"])[0]["ExitCode"] == "85:0"
        log = Path(
            jobs["directory"], "logs", f"shardwrite-finalize-{jobs['finalize']}.out"
        ).read_text()
        line = next(
            line for line in log.splitlines() if line.startswith("shardwrite slurm resubmit")
        )
        again[path] = json.loads(cluster.run("bash", "-c", f"{line} --json").stdout)
        cluster.run("scontrol", "release", again[path]["array"], again[path]["finalize"])
    for jobs in again.values():
        assert cluster.wait(jobs["finalize"])[0]["ExitCode"] == "0:0"
    whole = work.undisturbed()
    assert [work.bytes_of(path) for path in made] == [whole, whole]


@long
def test_cancel_of_tasks_that_put_themselves_back(cluster, work):
    """While the processes of a task end, SLURM shows it as completing; it would come again. Nobody
    has submitted it here."""
    work.init()
    work.scripts(2)
    job = work.array(PAUSE=0.3)
    started(cluster, work, job, 2)
    cluster.run("scontrol", "requeue", job)
    done = json.loads(cluster.run("shardwrite", "slurm", "cancel", work.path, "--json").stdout)
    assert {job.split("_")[0] for job in done["jobs"]} == {job}
    assert {t["JobState"] for t in cluster.wait(job).values()} == {"CANCELLED"}
    found = json.loads(
        cluster.run("shardwrite", "slurm", "status", work.path, "--json", check=False).stdout
    )
    assert "CANCELLED: somebody has ended a job with scancel" in found["failures"]


@long
def test_a_time_limit(cluster, work):
    """The real thing: USR1 comes, and the task requeues itself until all is written. SLURM may send
    it a minute too early."""
    work.init()
    work.scripts(1, "--time", "00:02:00", "--lead", 30)
    job = work.array(PAUSE=6, PAUSE_ONCE=1)
    cluster.until(lambda: cluster.tasks(job)[0]["Restarts"] == "1", work.log)
    facts = finish(
        cluster,
        work,
        job,
        work.shards(),
        0,
        "time limit: USR1 before it, and the task requeues itself",
    )[0]
    assert facts["JobState"] == "COMPLETED"


@long
@pytest.mark.parametrize("how", ["requeue", "cancel"])
def test_requeue_from_outside_and_cancel(cluster, work, how):
    work.init()
    work.scripts(4)
    job = work.array(PAUSE=0.1)
    started(cluster, work, job)
    if how == "cancel":
        cluster.run("scancel", job)
        assert {t["JobState"] for t in cluster.wait(job).values()} == {"CANCELLED"}
    else:
        cluster.run("scontrol", "requeue", job)
        cluster.until(lambda: all(t["Restarts"] == "1" for t in cluster.tasks(job).values()))
    before = work.shards()
    what = {
        "requeue": "scontrol requeue of all four tasks",
        "cancel": "scancel of all four tasks, submitted again",
    }[how]
    finish(cluster, work, job if how == "requeue" else work.array(), before, 4 * 2 * 7, what)


@long
def test_a_node_goes_down(cluster, work):
    """Its task is put back into the queue, and goes on where there is room."""
    work.init()
    work.scripts(2)
    job = work.array(PAUSE=0.3)
    started(cluster, work, job, 2)
    node = cluster.tasks(job)[0]["NodeList"]
    cluster.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    try:
        cluster.until(lambda: cluster.tasks(job)[0]["Restarts"] == "1")
        finish(
            cluster,
            work,
            job,
            work.shards(),
            2 * 2 * 7,
            "a node goes down, its task is put back by SLURM",
        )
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
def test_preemption(cluster, work):
    """A job of a higher partition takes the nodes; what it has put back goes on afterwards."""
    work.init()
    work.scripts(4, "--sbatch=--partition=low")
    job = work.array(PAUSE=0.3)
    started(cluster, work, job)
    high = cluster.run(
        "sbatch", "--parsable", "-p", "high", "-N4", "-c4", "-o", "/dev/null", "--wrap", "sleep 1"
    ).stdout.strip()
    cluster.until(lambda: any(t["Restarts"] == "1" for t in cluster.tasks(job).values()))
    before = work.shards()
    cluster.wait(high)
    finish(cluster, work, job, before, 4 * 2 * 7, "preemption by a job that takes all nodes")


@long
def test_a_task_that_fails_is_named_and_comes_again(cluster, work):
    work.init()
    work.scripts(4)
    job = work.array("--array=0,1,3")
    cluster.wait(job)
    code, said = work.finalize()
    assert code == "85:0", said
    assert "part 2 of 4 must be written again" in said
    again = next(line for line in said.splitlines() if line.startswith("shardwrite slurm resubmit"))
    assert "--array=2 " in again
    assert not (work.path / "zarr.json").exists()
    last = json.loads(cluster.run("bash", "-c", f"{again} --json").stdout)["finalize"]
    assert cluster.wait(last)[0]["ExitCode"] == "0:0", work.log()
    work.check()


@long
def test_a_task_that_runs_out_of_memory(cluster, work):
    """The kernel ends it, the others go on, and with enough memory it comes again."""
    if not cluster.has_memory_limits:
        pytest.skip("no control groups for memory here")
    work.init()
    work.scripts(4)
    job = work.array(PAUSE=0, HOG=2)
    states = {task: facts["JobState"] for task, facts in cluster.wait(job).items()}
    assert states == {0: "COMPLETED", 1: "COMPLETED", 2: "OUT_OF_MEMORY", 3: "COMPLETED"}, (
        work.log()
    )
    done = cluster.run("shardwrite", "finalize", work.path, "--parts", 4, check=False)
    assert done.returncode == 85
    assert "part 2 of 4 must be written again" in done.stderr
    finish(
        cluster,
        work,
        work.array("--array=2"),
        work.shards(),
        0,
        "one task of four runs out of memory, and is submitted again",
    )


@long
def test_kill_at_random_points(cluster, work):
    """No torn shard is ever visible, and nothing lies about in the end, although leases of other
    hosts look alive."""
    work.init()
    work.scripts(4)
    chance = random.Random(5)
    whole = work.undisturbed()
    for _ in range(2):
        job, n_before = work.array(PAUSE=0.4), len(work.shards())
        cluster.until(lambda n=n_before: len(work.shards()) > n, work.log)
        time.sleep(chance.random() / 2)
        cluster.run("scancel", "--signal=KILL", "--full", job)
        for path in work.shards():
            assert path.read_bytes() == whole[path.relative_to(work.path).as_posix()], (
                "a shard is torn"
            )
        assert {t["JobState"] for t in cluster.wait(job).values()} <= {"FAILED", "CANCELLED"}
    before = work.shards()
    finish(
        cluster,
        work,
        work.array(),
        before,
        2 * 4 * 2 * 7,
        "SIGKILL of all four tasks, twice, submitted again",
    )


@long
def test_two_jobs_at_once(cluster, work):
    work.init()
    work.scripts(2)
    jobs = [work.array(PAUSE=0.02), work.array(PAUSE=0.02)]
    for job in jobs:
        assert {t["ExitCode"] for t in cluster.wait(job).values()} == {"0:0"}, work.log()
    code, said = work.finalize_here()
    assert code == 0, said
    work.check()


@long
def test_twenty_parts_taken_over_by_three(cluster, work):
    work.init()
    work.scripts(20)
    cluster.wait(work.array("--array=0-19:5"))
    before = work.shards()
    work.scripts(3)
    finish(cluster, work, work.array(), before, 0, "4 of 20 parts, the rest by an array of 3 parts")


@long
def test_srun_in_one_allocation_without_clients_and_with_nowhere_to_put_things(cluster, work):
    """Ranks of one step; no SLURM command in PATH, and a TMPDIR of the machine that submitted."""
    work.init()
    command = f"write-part {work.directory}/x.npy {work.path} rank/8 {' '.join(work.arguments)}"
    (work.directory / "step.sbatch").write_text(
        "#!/bin/bash\n#SBATCH -N4 --ntasks-per-node=2 --cpus-per-task=1 --mem=2G -o logs/%j.out\n"
        "srun=$(command -v srun); program=$(command -v shardwrite)\n"
        f'PATH=/nonexistent TMPDIR=/not/here "$srun" "$program" {command}\n'
    )
    facts = cluster.wait(cluster.sbatch("step.sbatch", cwd=work.directory))[0]
    assert facts["ExitCode"] == "0:0", work.log()
    code, said = work.finalize_here()
    assert code == 0, said
    work.check()


RESOURCES = "from shardwrite.host.resources import *; print(memory_limit_nbytes(), n_cores(), scratch_directory())"


@long
@pytest.mark.parametrize(
    ("options", "memory_mb", "cores"),
    [
        (["-c1", "--mem=500"], 500, 1),
        (["-c2", "--mem-per-cpu=200"], 400, 2),
        (["-c1", "-n2", "-N1", "--mem=500"], 250, 1),
    ],
)
def test_resources_are_those_of_the_job(cluster, work, options, memory_mb, cores):
    done = cluster.run(
        "srun", *options, sys.executable, "-c", RESOURCES, PYTHONPATH=ROOT, TMPDIR="/not/here"
    )
    for line in done.stdout.splitlines():
        memory, found, scratch = line.split()
        assert int(memory) == int(0.9 * memory_mb * 2**20)
        assert int(found) == min(cores, len(os.sched_getaffinity(0)))
        assert scratch.startswith(str(cluster.directory / "local" / "job_"))
    cluster.run("scancel", "--user=root")

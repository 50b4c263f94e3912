"""Workers that are jobs, without SLURM: what would be submitted, what is refused, and what is
cancelled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import dask
import dask.array as da
import numpy as np
import pytest
import seams
from click.testing import CliRunner

import shardwrite
from shardwrite.cli import main
from shardwrite.errors import ClusterError, SpecError, SubmitError
from shardwrite.runs.outcome import exit_code_of
from shardwrite.slurm import cluster, jobs, notes
from shardwrite.slurm.elastic import _job_class, _Jobs, arguments_of, workers_of
from shardwrite.slurm.jobs import cancel_all, refuse_second_submission, submitting
from shardwrite.slurm.keywords import ClusterArguments
from shardwrite.slurm.notes import DriverNote, record_jobs, submitted
from shardwrite.slurm.status import status

dask_jobqueue = pytest.importorskip("dask_jobqueue")


@pytest.fixture
def begun(tmp_path):
    x = da.from_array(np.ones((64, 64), "u4"), chunks=16)
    shardwrite.prepare(
        x, tmp_path / "x", shardwrite.plan(x, shards=16, chunks=8, memory_limit="100kB")
    )
    return x, tmp_path / "x"


def checked(**asked):
    return workers_of(ClusterArguments(**asked))


def script_of(**asked):
    """What would be submitted for a worker."""
    with dask_jobqueue.SLURMCluster(**arguments_of(checked(**asked))) as made:
        return made.job_script()


@pytest.mark.compat
def test_the_script_of_a_worker(tmp_path, monkeypatch):
    monkeypatch.delenv("SHARDWRITE_INTERFACE", raising=False)
    logs = tmp_path / "my logs"
    asked = {
        "cores": 6,
        "memory": "16G",
        "time": "02:00:00",
        "directives": ["--partition=main", "--comment=for the paper"],
    }
    script = script_of(jobs=4, **asked, setup=["module load python"], log_directory=logs)
    head = [
        line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH")
    ]
    assert head == [
        "-n 1",
        "--job-name=shardwrite-worker",
        "--cpus-per-task=6",
        "--mem=16G",
        "--time=02:00:00",
        "--open-mode=append",
        f'--output="{logs}/%x-%j.out"',
        "--no-requeue",
        "--partition=main",
        '--comment="for the paper"',
    ]
    assert "module load python\n" in script
    command = script.splitlines()[-1]
    for option in (
        "--nthreads 6",
        "--nanny",
        "--death-timeout 120",
        '--local-directory "$SHARDWRITE_SCRATCH"',
    ):
        assert option in command
    assert "--lifetime" not in command
    assert "--interface" not in command
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0


@pytest.mark.parametrize(
    ("here", "expected"),
    [
        ([], "/tmp"),
        (["TMPDIR"], "TMPDIR"),
        (["TMPDIR", "SHARDWRITE_LOCAL_DIR"], "SHARDWRITE_LOCAL_DIR"),
    ],
)
def test_scratch_is_found_on_the_node(tmp_path, here, expected):
    """The lines of the script, run by bash: the last of the places that is there."""
    names = ("TMPDIR", "SLURM_TMPDIR", "SHARDWRITE_LOCAL_DIR")
    lines = script_of(jobs=1, log_directory=tmp_path).splitlines()[:-1]
    environ = {name: str(tmp_path / name) for name in names}
    for name in here:
        (tmp_path / name).mkdir()
    text = "\n".join(
        [*lines, 'echo "$SHARDWRITE_SCRATCH $DASK_DISTRIBUTED__WORKER__MEMORY__SPILL"']
    )
    done = subprocess.run(
        ["bash", "-eu"], input=text, env=environ, text=True, capture_output=True, check=True
    )
    assert done.stdout.split() == [environ.get(expected, expected), "False"]


def test_memory_leaves_room_for_the_nanny():
    assert checked(jobs=1, memory="1G").memory_limit_nbytes == int(0.9 * (2**30 - 128 * 2**20))
    assert (
        checked(jobs=1, memory="1024").memory_limit_nbytes
        == checked(jobs=1, memory="1G").memory_limit_nbytes
    )


def test_dasks_own_configuration_holds(tmp_path, monkeypatch):
    """And what is given wins over it; nothing of it is changed."""
    monkeypatch.delenv("SHARDWRITE_INTERFACE", raising=False)
    mine = {
        **dask.config.get("jobqueue.slurm"),
        "cores": 3,
        "memory": "2GiB",
        "walltime": "00:07:00",
        "queue": "mine",
        "job-extra-directives": ["--qos=low"],
        "job-script-prologue": ["module load mine"],
        "interface": "lo",
        "local-directory": "/local",
        "log-directory": str(tmp_path),
    }
    with dask.config.set({"jobqueue.site": mine}):
        script = script_of(jobs=2, config_name="site")
        for expected in (
            "-p mine",
            "--qos=low",
            "--cpus-per-task=3",
            "--mem=2048M",
            "--time=00:07:00",
            f"--output={tmp_path}/%x-%j.out",
        ):
            assert f"#SBATCH {expected}\n" in script
        assert "module load mine\n" in script
        assert "--local-directory /local" in script
        assert "--interface lo" in script
        assert "--cpus-per-task=5\n" in script_of(jobs=2, config_name="site", cores=5)
        assert dask.config.get("jobqueue.site") == mine
    with pytest.raises(SpecError, match="config_name='nowhere'"):
        checked(jobs=1, config_name="nowhere")


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("jobs", {"jobs": 0}),
        ("jobs", {"jobs": 2, "minimum_jobs": 3}),
        ("memory", {"memory": "all"}),
        ("memory", {"memory": "200M"}),
        ("memory", {"memory": "0"}),
        ("directive", {"directives": ["--partition=a\n#SBATCH --wrap=x"]}),
        ("directive", {"time": "1\n2"}),
        ("directive", {"job_name": "a\nb"}),
        ("setup", {"setup": ["a\nb"]}),
    ],
)
def test_refused_before_anything_is_submitted(field, given):
    with pytest.raises(SpecError, match=f"^{field}="):
        checked(**{"jobs": 2, **given})


def test_networks_that_are_not_here_are_refused():
    with pytest.raises(SpecError, match=r"scheduler_interface='no0'.*has .*lo"):
        arguments_of(checked(jobs=1, scheduler_interface="no0"))


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "dask_jobqueue", None)
    with pytest.raises(SpecError, match=r"pip install .shardwrite\[slurm\]"), cluster(jobs=2):
        pass


def test_options_that_go_together(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((8, 8)))
    write = ["write", str(tmp_path / "x.npy"), str(tmp_path / "x.zarr")]
    for wrong, said in (
        (["--jobs", "3"], "--cluster slurm"),
        (["--cluster", "slurm"], "--jobs"),
        (["--setup", "x"], "--cluster slurm"),
    ):
        done = CliRunner().invoke(main, [*write, *wrong])
        assert done.exit_code == 2
        assert said in done.output
    assert not (tmp_path / "x.zarr").exists()


@pytest.mark.long
def test_sbatch_is_not_here(tmp_path, monkeypatch):
    """It ends, and with its reason; the run is begun, and its plan was looked at first."""
    np.save(tmp_path / "x.npy", np.ones((8, 8)))
    monkeypatch.setenv("PATH", "")
    monkeypatch.chdir(tmp_path)
    command = ["write", "x.npy", "x.zarr", "--cluster", "slurm", "--jobs", "2"]
    done = CliRunner().invoke(main, [*command, "--shards", "3", "--chunks", "2"])
    assert done.exit_code == 2
    assert not seams.state_beside(tmp_path / "x.zarr").exists()
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 1, done.output
    assert "sbatch" in done.output
    assert not list((tmp_path / "logs").iterdir()), "certificates are gone"


def test_what_was_written_needs_no_jobs(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", np.ones((8, 8)))
    monkeypatch.setenv("PATH", "")
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(main, ["write", "x.npy", "x.zarr"]).exit_code == 0
    done = CliRunner().invoke(
        main, ["write", "x.npy", "x.zarr", "--cluster", "slurm", "--jobs", "2", "--json"]
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["n_shards"] == 1


def test_it_is_incomplete_and_not_wrong():
    assert exit_code_of(ClusterError("x", waited_seconds=1.0)) == 85


class Stand:
    """``squeue`` and ``scancel`` that keep their jobs in a directory, one file each; a driver
    submits once more when it ends."""

    def __init__(self, directory, monkeypatch):
        self.directory = directory / "bin"
        self.jobs, self.calls = directory / "jobs", directory / "calls"
        self.directory.mkdir()
        self.jobs.mkdir()
        self._program(
            "squeue",
            f'cd {self.jobs} && for job in *; do [ ! -e "$job" ] || echo "$job|$(cat "$job")|None|n1|1:00"; done',
        )
        self._program(
            "scancel",
            f'echo "$@" >> {self.calls}; cd {self.jobs}; for job; do rm -f "$job"; done; [ ! -x ../also ] || ../also',
        )
        monkeypatch.setenv("PATH", f"{self.directory}:/usr/bin:/bin")

    def _program(self, name, text):
        (self.directory / name).write_text(f"#!/bin/bash\n{text}\n")
        (self.directory / name).chmod(0o755)

    def has(self, **jobs):
        for job, state in jobs.items():
            (self.jobs / job.removeprefix("j")).write_text(state)


@pytest.mark.long
def test_cancel(begun, tmp_path, monkeypatch):
    """Drivers first, then what is left of arrays and workers, also of those that a driver had yet
    to write down."""
    _, path = begun
    target, run = seams.target_of(path), seams.run_of(path)
    stand = Stand(tmp_path, monkeypatch)
    record_jobs(target, "20", "21", 3)
    monkeypatch.setattr(notes, "this_process", seams.dead_process)
    monkeypatch.setenv("SLURM_JOB_ID", "10")
    DriverNote("one").keep(run, ["11", "12"])
    monkeypatch.delenv("SLURM_JOB_ID")
    DriverNote("two").keep(run, ["15"])
    assert submitted(run).ids == ["10", "20", "21", "11", "12", "15"]
    assert submitted(run).n_parts == 3
    also = tmp_path / "also"
    more = json.dumps({"driver": "10", "workers": ["11", "12", "13"]})
    also.write_text(
        f"#!/bin/bash\necho '{more}' > {run.path}/jobs-one.json\necho PENDING > {stand.jobs}/13\nrm {also}\n"
    )
    also.chmod(0o755)
    stand.has(j10="RUNNING", j11="RUNNING", j12="COMPLETING", j15="PENDING", j21="PENDING")
    done = CliRunner().invoke(main, ["slurm", "cancel", str(path), "--json"])
    assert done.exit_code == 0, done.output
    assert sorted(json.loads(done.output)["jobs"]) == ["10", "11", "13", "15", "21"]
    first, *rest = stand.calls.read_text().splitlines()
    assert first == "10"
    assert sorted(" ".join(rest).split()) == ["11", "13", "15", "21"]
    again = CliRunner().invoke(main, ["slurm", "cancel", str(path)])
    assert again.exit_code == 0
    assert "nothing to cancel: 7 jobs known, none in the queue" in again.output
    assert {job["id"] for job in status(target).jobs} == {"12"}


def test_cancel_where_nothing_is_known_or_slurm_is_not_here(begun, tmp_path, monkeypatch):
    _, path = begun
    monkeypatch.setenv("PATH", "")
    assert cancel_all(seams.target_of(path)).jobs == [], "no jobs, no questions"
    assert cancel_all(seams.target_of(tmp_path / "none")).n_known == 0
    record_jobs(seams.target_of(path), "20", "21", 3)
    with pytest.raises(SubmitError, match="squeue is not in PATH"):
        cancel_all(seams.target_of(path))


def test_a_cancelled_driver_submits_no_more_and_the_next_does(begun, monkeypatch):
    """A driver that is no job is told by a file; it says when it has ended, and until then it is
    named."""
    _, path = begun
    target = seams.target_of(path)
    monkeypatch.setattr(jobs, "_GONE_SECONDS", 0.2)
    driver, submitted_by = _Jobs(target), []
    driver.keep()
    assert not driver.look_whether_cancelled()
    assert cancel_all(target).alive == [f"{seams.this_process()['host']}:{os.getpid()}"]

    class Job:
        async def _submit_job(self, script):
            submitted_by.append(script)

    kind = _job_class(SimpleNamespace(slurm=SimpleNamespace(SLURMJob=Job)), driver)
    with pytest.raises(StopIteration):
        kind()._submit_job("script").send(None)
    assert not submitted_by
    assert driver.is_cancelled
    driver.keep(has_ended=True)
    assert cancel_all(target).alive == []
    following = _Jobs(target)
    following.keep()
    assert not following.look_whether_cancelled()


def test_what_may_submit_beside_what_is_there(begun, tmp_path, monkeypatch):
    """Nothing beside a driver that lives; workers without one are cancelled, those of this job's
    earlier start among them."""
    _, path = begun
    target, run = seams.target_of(path), seams.run_of(path)
    stand = Stand(tmp_path, monkeypatch)
    stand.has(j11="RUNNING", j12="RUNNING", j13="RUNNING")
    with monkeypatch.context() as patch:
        patch.setattr(notes, "this_process", seams.dead_process)
        DriverNote("dead").keep(run, ["11"])
        patch.setenv("SLURM_JOB_ID", "10")
        DriverNote("own").keep(run, ["12"])
    monkeypatch.setenv("SLURM_JOB_ID", "10")
    stand.has(j10="RUNNING")
    living = DriverNote("living")
    with monkeypatch.context() as patch:
        patch.delenv("SLURM_JOB_ID")
        living.keep(run, ["13"])
    with pytest.raises(
        SubmitError,
        match=r"written already: job 13 RUNNING, process .* submits workers\. .*slurm cancel",
    ):
        refuse_second_submission(target)
    assert not stand.calls.exists(), "nothing was changed"
    living.keep(run, ["13"], has_ended=True)
    (stand.jobs / "13").unlink()
    with submitting(target):
        assert stand.calls.read_text().split() == ["11", "12"]


def test_ids_are_kept_as_they_come_and_when_the_run_begins(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "10")
    target = seams.target_of(tmp_path / "x")
    jobs = _Jobs(target)
    jobs.add("11")
    x = da.ones((16, 16), chunks=8)
    shardwrite.prepare(x, tmp_path / "x", shardwrite.plan(x, shards=8, chunks=8))
    jobs.keep()
    assert submitted(seams.run_of(tmp_path / "x")).ids == ["10", "11"]
    jobs.add("12")
    assert submitted(seams.run_of(tmp_path / "x")).ids == ["10", "11", "12"]
    shardwrite.prepare(x, tmp_path / "x", shardwrite.plan(x, shards=8, chunks=4), restart=True)
    jobs.keep()
    assert submitted(seams.run_of(tmp_path / "x")).ids == ["10", "11", "12"], (
        "kept with the run that took the place"
    )


@pytest.mark.long
def test_failures_by_cause(begun, monkeypatch):
    """What ended a part, and processes that ended without a word."""
    x, path = begun

    def failing(block):
        raise OSError(28, "No space left on device")

    bad = x.map_blocks(failing, meta=np.empty((0, 0), "u4"))
    plan = shardwrite.plan(bad, shards=16, chunks=8, memory_limit="100kB", source_id="s")
    shardwrite.prepare(bad, path, plan, restart=True)
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            shardwrite.write_part(bad, path, 0, 1, source_id="s")
    killed = "import os, signal\nfrom shardwrite.write import commit\n"
    killed += "commit._try_shards = lambda *a: os.kill(os.getpid(), signal.SIGKILL)\n"
    killed += "import numpy as np, dask.array as da, shardwrite\nx = da.from_array(np.ones((64, 64), 'u4'), chunks=16)\n"
    killed += f"shardwrite.write_part(x, {str(path)!r}, 0, 1, source_id='s')\n"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    subprocess.run([sys.executable, "-c", killed], check=False)
    found = seams.status_of(path)
    assert next(iter(found.failures.items())) == ("OSError ENOSPC", 2)
    assert sum(n for cause, n in found.failures.items() if "killed" in cause) == 1
    assert "2 of OSError ENOSPC" in str(found)
    result = shardwrite.to_sharded_zarr(
        x, path, shards=16, chunks=8, source_id="s", memory_limit="100kB"
    )
    assert result.n_shards == 16

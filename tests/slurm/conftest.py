"""A real SLURM of four emulated nodes for the session, where this machine can have one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import seams
from click.testing import CliRunner
from helpers import without_receipts

from shardwrite.cli import main

HERE = Path(__file__).parent
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"}
PATIENCE = 240  # seconds
SHAPE = (256, 256)
N_SHARDS = 256


class Cluster:
    """Commands of the private SLURM, and jobs in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environ = {
            k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH", "PYTEST"))
        }
        text = (directory / "env.sh").read_text()
        self.environ["SLURM_CONF"] = str(directory / "slurm.conf")
        self.has_namespaces = "NAMESPACES=1" in text
        self.has_memory_limits = "MEMORY_LIMITS=1" in text
        programs = directory / "bin"
        programs.mkdir(exist_ok=True)
        program = programs / "shardwrite"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{HERE / "program.py"}" "$@"\n')
        program.chmod(0o755)
        self.environ["PATH"] = f"{programs}:{self.environ['PATH']}"

    @property
    def here(self):
        """Network over which nodes reach this side; empty where they share it."""
        name = re.search(r"NodeName=(\w+)n1 ", (self.directory / "slurm.conf").read_text())[1]
        return f"{name}br" if self.has_namespaces else ""

    @property
    def there(self):
        """Name of the network on the nodes."""
        return "eth0" if self.has_namespaces else ""

    def run(self, *command, cwd=None, check=True, **more):
        environ = {**self.environ, **{k: str(v) for k, v in more.items()}}
        words = [str(word) for word in command]
        done = subprocess.run(
            words, cwd=cwd, env=environ, capture_output=True, text=True, timeout=120
        )
        assert not check or done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done

    def sbatch(self, script, *options, cwd, **more):
        """Submit; the job's id."""
        (Path(cwd) / "logs").mkdir(exist_ok=True)
        return self.run("sbatch", "--parsable", *options, script, cwd=cwd, **more).stdout.strip()

    def tasks(self, job):
        """State, exit code, restarts and more of each task of a job, as SLURM tells."""
        found = {}
        for line in self.run("scontrol", "show", "job", "-o", job).stdout.splitlines():
            facts = dict(re.findall(r"(\w+)=(\S*)", line))
            task = facts.get("ArrayTaskId", "0")
            for one in self._expand(task):
                found[one] = facts
        return found

    @staticmethod
    def _expand(task):
        for item in task.split("%")[0].split(","):
            first, last, step = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", item).groups()
            yield from range(int(first), int(last or first) + 1, int(step or 1))

    def wait(self, job):
        """Until a job has ended, all tasks of it; what `tasks` says then."""
        return self.until(lambda: _all_ended(self.tasks(job)), lambda: self.run("squeue").stdout)

    def until(self, tell, explain=lambda: ""):
        """Wait until something is true, and give it. On a busy machine that takes long."""
        deadline = time.monotonic() + PATIENCE
        while True:
            found = tell()
            if found:
                return found
            assert time.monotonic() < deadline, explain()
            time.sleep(0.1)


def _all_ended(tasks):
    return tasks if all(facts["JobState"] in ENDED for facts in tasks.values()) else None


@contextlib.contextmanager
def going_first():
    """Give this process, and what it starts, a higher priority, if it may have one.

    It runs all tests on SLURM one after the other, while the others share all other tests.
    """
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, niceness - 5)
    try:
        yield
    finally:
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, niceness)


@pytest.fixture(scope="module", autouse=True)
def favoured():
    with going_first():
        yield


@pytest.fixture(scope="session")
def cluster():
    if os.geteuid() != 0:
        pytest.skip("only root can run a private SLURM")
    needed = ("slurmctld", "slurmd", "sbatch", "munged", "mungekey", "ip", "nsenter")
    missing = [name for name in needed if shutil.which(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    directory = Path(
        tempfile.mkdtemp(prefix="shardwrite-slurm-", dir="/tmp")
    )  # munged wants short, safe paths
    with going_first():  # the daemons, too, which start before the first module
        done = subprocess.run(
            [HERE / "cluster.sh", "up", directory], capture_output=True, text=True, timeout=120
        )
    try:
        if done.returncode:
            pytest.fail(f"SLURM did not come up: {done.stdout}{done.stderr}")
        yield Cluster(directory)
    finally:
        subprocess.run([HERE / "cluster.sh", "down", directory], timeout=120, check=True)


class Work:
    """An array to write, and what was written of it."""

    def __init__(self, cluster, directory):
        self.cluster, self.directory = cluster, directory
        directory.mkdir(exist_ok=True)
        self.values = (
            np.arange(np.prod(SHAPE), dtype="u4").reshape(SHAPE) * np.uint32(2654435761) | 1
        )
        np.save(directory / "x.npy", self.values)
        self.path = directory / "x.zarr"

    arguments = ("--source-chunks", "16,16")
    layout = ("--shards", "16", "--chunks", "8", "--memory-limit", "60kB")

    def init(self):
        here("init", self.directory / "x.npy", self.path, *self.arguments, *self.layout)

    def scripts(self, n_parts, *options):
        for kind in ("array", "finalize"):
            text = here(
                *("slurm", "script", kind, self.directory / "x.npy", self.path, "--parts", n_parts),
                *("--cores", 2, "--memory", "500M", *self.arguments, *options),
            )
            (self.directory / f"{kind}.sbatch").write_text(text)

    def allocation_script(self, *options, arguments=None, n_nodes=4):
        """Of a job that writes the array, or of another command line."""
        arguments = (
            (self.directory / "x.npy", self.path, *self.arguments, *self.layout)
            if arguments is None
            else arguments
        )
        sizes = ("--nodes", n_nodes, "--cores", 2, "--memory", "2G", "--time", "00:10:00")
        (self.directory / "allocation.sbatch").write_text(
            here("slurm", "script", "allocation", *sizes, *options, *arguments)
        )

    def array(self, *options, **environ):
        return self.cluster.sbatch("array.sbatch", *options, cwd=self.directory, **environ)

    def finalize(self):
        job = self.cluster.sbatch("finalize.sbatch", cwd=self.directory)
        facts = self.cluster.wait(job)[0]
        return facts["ExitCode"], self.log("shardwrite-finalize-*")

    def finalize_here(self):
        done = CliRunner().invoke(main, ["finalize", str(self.path)])
        return done.exit_code, done.output

    def log(self, pattern="*"):
        return "".join(
            p.read_text() for p in sorted((self.directory / "logs").glob(f"{pattern}.out"))
        )

    def shards(self):
        """Shards that are there, and when they were written."""
        return {
            p: p.stat().st_mtime_ns for p in self.path.glob("c/*/*") if not p.name.startswith(".")
        }

    def note(self, what, before, redone, seconds):
        """A row for the table in the documentation."""
        if "INTERRUPTIONS" in os.environ:
            row = {
                "what": what,
                "before": before,
                "redone": redone,
                "seconds": seconds,
                "result": "the undisturbed bytes",
            }
            with open(os.environ["INTERRUPTIONS"], "a") as file:
                file.write(json.dumps(row) + "\n")

    def undisturbed(self):
        """The bytes that one process writes."""
        other = self.directory / "alone.zarr"
        here(
            "write", self.directory / "x.npy", other, *self.arguments, *self.layout, "--threads", 2
        )
        return without_receipts(other)

    def bytes_of(self, path):
        """An array's bytes, by path."""
        return without_receipts(path)

    def check(self):
        """The array is that of an undisturbed run, and nothing else lies about."""
        assert without_receipts(self.path) == self.undisturbed()
        assert not list(self.path.rglob("*.swtmp"))
        assert not seams.state_beside(self.path).exists()


def here(*arguments):
    """A command of shardwrite's in this process; what it prints."""
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def work(cluster, tmp_path):
    yield Work(cluster, tmp_path)
    cluster.run("scancel", "--user=root", check=False)
    cluster.until(lambda: not cluster.run("squeue", "-h").stdout)

"""Cores, memory and scratch of a process, as schedulers, control groups and limits say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardwrite.errors import SpecError
from shardwrite.host import resources
from shardwrite.journal import lease

MIB = 2**20


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """Sixteen cores, 8 GiB free, no limits."""
    monkeypatch.setattr(resources, "CPU_COUNT", 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr(
        resources.resource, "getrlimit", lambda _: (resources.resource.RLIM_INFINITY,) * 2
    )
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(
        f"MemTotal: {16 * 2**20} kB\nMemAvailable: {8 * 2**20} kB\n"
    )
    return tmp_path


@pytest.mark.parametrize(
    ("environ", "cores"),
    [
        ({}, 16),
        ({"SLURM_CPUS_PER_TASK": "4"}, 4),
        ({"SLURM_CPUS_PER_TASK": "99"}, 16),
        ({"SLURM_CPUS_ON_NODE": "8"}, 8),
        ({"SLURM_CPUS_ON_NODE": "8", "SLURM_STEP_TASKS_PER_NODE": "4"}, 2),
        (
            {
                "SLURM_CPUS_ON_NODE": "8",
                "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
                "SLURM_NODEID": "2",
            },
            8,
        ),
        ({"SLURM_CPUS_ON_NODE": "2", "SLURM_STEP_TASKS_PER_NODE": "4"}, 1),
        ({"SLURM_CPUS_PER_TASK": "4", "SLURM_CPUS_ON_NODE": "8"}, 4),
    ],
)
def test_cores(environ, cores):
    assert resources.n_cores(environ) == cores


def test_cores_are_never_more_than_this_process_may_run_on(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 5})
    assert resources.n_cores({"SLURM_CPUS_PER_TASK": "4"}) == 2


@pytest.mark.parametrize(
    ("environ", "nbytes"),
    [
        ({}, 8 * 2**30),
        ({"SLURM_MEM_PER_NODE": "1000"}, int(0.9 * 1000 * MIB)),
        ({"SLURM_MEM_PER_NODE": "0"}, 8 * 2**30),
        ({"SLURM_MEM_PER_CPU": "500", "SLURM_CPUS_ON_NODE": "4"}, int(0.9 * 2000 * MIB)),
        ({"SLURM_MEM_PER_CPU": "500"}, 8 * 2**30),
        ({"SLURM_MEM_PER_NODE": "1000", "SLURM_STEP_TASKS_PER_NODE": "4"}, int(0.9 * 250 * MIB)),
        ({"SLURM_MEM_PER_NODE": "99000"}, 8 * 2**30),
    ],
)
def test_memory_of_a_job(machine, environ, nbytes):
    assert resources.memory_limit_nbytes(environ, str(machine)) == nbytes


def test_memory_of_a_step_that_says_nothing_is_its_limit_on_the_resident_set(machine, monkeypatch):
    monkeypatch.setattr(resources.resource, "getrlimit", lambda _: (1000 * MIB, 2000 * MIB))
    assert resources.memory_limit_nbytes({}, str(machine)) == int(0.9 * 1000 * MIB)


@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("0::/slurm/job_1/step_0", "sys/fs/cgroup/slurm/job_1/memory.max"),
        ("0::/slurm/job_1/step_0", "sys/fs/cgroup/memory.max"),
        ("4:memory:/slurm/job_1/step_0", "sys/fs/cgroup/memory/slurm/job_1/memory.limit_in_bytes"),
    ],
)
def test_memory_of_a_control_group_up_the_tree(machine, line, file):
    (machine / "proc/self/cgroup").write_text(f"9:name=systemd:/\n{line}\n")
    limit = machine / file
    limit.parent.mkdir(parents=True)
    limit.write_text(f"{300 * MIB}\n")
    assert resources.memory_limit_nbytes({}, str(machine)) == int(0.9 * 300 * MIB)
    limit.write_text("max\n")
    assert resources.memory_limit_nbytes({}, str(machine)) == 8 * 2**30
    limit.write_text("9223372036854771712\n")
    assert resources.memory_limit_nbytes({}, str(machine)) == 8 * 2**30


def test_a_control_group_may_have_any_name(machine):
    name = b"job\xff \xc2\x85x"  # 0x85 ends a line of Unicode
    (machine / "proc/self/cgroup").write_bytes(b"0::/" + name + b"\n")
    group = os.fsencode(machine) + b"/sys/fs/cgroup/" + name
    os.makedirs(group)
    with open(group + b"/memory.max", "w") as limit:
        limit.write(f"{300 * MIB}\n")
    assert resources.memory_limit_nbytes({}, str(machine)) == int(0.9 * 300 * MIB)


def test_a_process_may_have_any_name():
    name = Path("/proc/self/comm").read_bytes()
    try:
        Path("/proc/self/comm").write_bytes(b"\xff \xc3")
        assert lease._started(os.getpid()).isdecimal()
    finally:
        Path("/proc/self/comm").write_bytes(name)


def test_a_file_system_may_be_mounted_at_any_name(machine):
    (machine / "proc/self/mounts").write_bytes(
        b"/dev/a / ext4 rw 0 0\nb /b\\040c\xff xfs rw 0 0\nd /d\\134e\xc2\x85 tmpfs rw 0 0\n"
    )
    for path, kind in {b"/x": "ext4", b"/b c\xff/x": "xfs", b"/d\\e\xc2\x85": "tmpfs"}.items():
        assert resources.file_system(Path(os.fsdecode(path)), str(machine)) == kind


@pytest.mark.parametrize(
    "environ",
    [
        {"SLURM_CPUS_PER_TASK": "many"},
        {"SLURM_CPUS_PER_TASK": "²"},
        {"SLURM_CPUS_ON_NODE": "2", "SLURM_STEP_TASKS_PER_NODE": "x"},
    ],
)
def test_what_makes_no_sense_is_refused(environ):
    with pytest.raises(SpecError, match=next(iter(reversed(environ)))):
        resources.n_cores(environ)


def test_scratch(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    assert resources.scratch_directory({"SLURM_TMPDIR": str(one), "TMPDIR": str(two)}) == str(one)
    assert resources.scratch_directory({"SLURM_TMPDIR": "/nowhere", "TMPDIR": str(two)}) == str(two)
    assert os.path.isdir(resources.scratch_directory({"TMPDIR": "/nowhere"}))
    assert resources.scratch_directory(
        {"SHARDWRITE_LOCAL_DIR": str(two), "SLURM_TMPDIR": str(one)}
    ) == str(two)
    with pytest.raises(SpecError, match="SHARDWRITE_LOCAL_DIR"):
        resources.scratch_directory({"SHARDWRITE_LOCAL_DIR": "/nowhere"})


def test_the_local_engine_keeps_to_them():
    script = "from shardwrite.engines import LocalEngine; e = LocalEngine('threads'); print(e.n_threads, e.memory_limit_nbytes)"
    environ = {**os.environ, "SLURM_CPUS_PER_TASK": "1", "SLURM_MEM_PER_NODE": "100"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1", str(int(0.9 * 100 * MIB))]

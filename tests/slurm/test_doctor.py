"""What is said of the nodes of a job; and on four real ones."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from shardwrite.cli import main
from shardwrite.slurm.doctor import Examination, problems_of, warnings_of

WELL = Examination(
    0, 0, "n0", "1.0", "3.12", 4, 10**9, "/local", "xfs", "lustre", ["eth0"], [], 0.1
)
TWO = [WELL, replace(WELL, rank=1, node=1, host="n1")]


def test_all_is_well():
    assert problems_of(TWO, 2) == []
    assert warnings_of(TWO) == []


@pytest.mark.parametrize(
    ("change", "n_ranks", "words"),
    [
        ({}, 3, "ranks 2 were not seen"),
        ({"version": "1.1"}, 2, "1.0 on n0, 1.1 on n1"),
        ({"host": "n0"}, 2, "nodes 0, 1 have one name, n0"),
        ({"faults": ["a rename does not replace"]}, 2, "n1: a rename"),
    ],
)
def test_problems(change, n_ranks, words):
    (problem,) = problems_of([WELL, replace(TWO[1], **change)], n_ranks)
    assert words in problem


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"scratch_type": "tmpfs"}, "is memory"),
        ({"scratch_type": "nfs4"}, "is on a network"),
        ({"delay_seconds": 40.0}, "40 s late"),
    ],
)
def test_warnings(change, words):
    (warning,) = warnings_of([WELL, replace(TWO[1], **change)])
    assert words in warning


@pytest.mark.compat
def test_one_process(tmp_path, monkeypatch):
    for name in ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    done = CliRunner().invoke(main, ["slurm", "doctor", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    (node,) = json.loads(done.output)["nodes"]
    assert node["faults"] == []
    assert node["cores"] >= 1
    assert list(tmp_path.iterdir()) == []
    assert CliRunner().invoke(main, ["slurm", "doctor", str(tmp_path / "none")]).exit_code == 2


@pytest.mark.long
def test_four_nodes_and_a_directory_that_only_one_has(cluster, tmp_path):
    srun = [
        "srun",
        "-N4",
        "--ntasks-per-node=1",
        "--cpus-per-task=2",
        "--mem=1000",
        "shardwrite",
        "slurm",
        "doctor",
    ]
    found = json.loads(cluster.run(*srun, tmp_path, "--json").stdout)
    assert found["problems"] == []
    assert len({node["host"] for node in found["nodes"]}) == 4
    assert {node["memory_nbytes"] for node in found["nodes"]} == {int(0.9 * 1000 * 2**20)}
    assert all(node["delay_seconds"] < 5 for node in found["nodes"])
    assert list(tmp_path.iterdir()) == []
    own = cluster.directory / "local"  # every node has its own there
    done = cluster.run(*srun, own, "--patience", 3, check=False)
    assert done.returncode == 1
    assert "ranks 1, 2, 3 were not seen" in done.stdout

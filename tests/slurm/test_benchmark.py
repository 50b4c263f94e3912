"""The benchmark's script on a real SLURM, its sizes made small."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SMALL = {
    "DIRECTORY": "here",
    "NODES": '"1 2"',
    "WORKERS": '"1"',
    "THREADS": '"1"',
    "OPTIONS": "(--scaling strong --shape 64x64x64 --shards 32x32x32 --chunks 16x16x16 --durabilities none --repeats 1)",
}


@pytest.mark.long
def test_the_script_measures_over_nodes(cluster, work):
    text = (ROOT / "slurm" / "benchmark.sbatch").read_text()
    for name, value in SMALL.items():
        text, n = re.subn(rf"^{name}=.*$", f"{name}={value}", text, count=1, flags=re.MULTILINE)
        assert n == 1, name
    (work.directory / "benchmark.sbatch").write_text(text)
    (work.directory / "here").mkdir()
    for module in ("benchmarks", "shardwrite"):
        (work.directory / module).symlink_to(ROOT / module)
    python = cluster.directory / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    sizes = (
        "--nodes=2",
        "--ntasks-per-node=1",
        "--cpus-per-task=1",
        "--mem=1500M",
        "--time=10",
        "--no-requeue",
    )
    cluster.run("sbatch", "--test-only", *sizes, ROOT / "slurm" / "benchmark.sbatch")
    facts = cluster.wait(cluster.sbatch("benchmark.sbatch", *sizes, cwd=work.directory))[0]
    assert facts["ExitCode"] == "0:0", work.log()
    (lines,) = work.directory.glob("throughput-*.jsonl")
    runs = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [(run["n_workers"], run["n_hosts"]) for run in runs] == [(1, 1), (2, 2)]
    assert all(run["shard_reads"] == 0 for run in runs)
    (page,) = work.directory.glob("throughput-*.html")
    assert "</html>" in page.read_text()

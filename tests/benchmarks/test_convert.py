"""The comparison of conversions: what is written is checked, and with 4,000 files, calls are counted."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = ("shardwrite", "shardwrite-full")
CONTESTANTS = (*OURS, "zarr-python with zarrs", "tensorstore")


def measured(directory, contestants, n_files, *more):
    """What the comparison tells of each contestant. It compares each result with the source, and
    looks at its layout."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.convert",
        "--files",
        str(n_files),
        "--repeats",
        "1",
    ]
    command += ["--contestants", ",".join(contestants), *more]
    command += ["--dir", str(directory), "--json", str(directory / "rows.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads((directory / "rows.json").read_text())["rows"]
    return {row["contestant"]: row for row in rows}


@pytest.mark.long
def test_what_each_contestant_writes(tmp_path):
    assert set(measured(tmp_path, CONTESTANTS, 500)) == set(CONTESTANTS)


@pytest.mark.long
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not here")
def test_four_thousand_files(tmp_path):
    rows = measured(tmp_path, OURS, 4000, "--count-calls")
    for name in OURS:
        # how often threads wait depends on what else the machine does
        assert 2 < rows[name]["calls_per_chunk"] - rows[name]["waits_per_chunk"] < 18
        assert rows[name]["peak"] < 64e6

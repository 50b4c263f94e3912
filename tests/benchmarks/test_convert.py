"""The comparison of conversions, with 4,000 files: what is written is checked, calls are counted."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTESTANTS = ("shardwrite", "shardwrite-full", "zarr-python with zarrs", "tensorstore")


@pytest.mark.long
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not here")
def test_four_thousand_files(tmp_path):
    """Each contestant's result is compared with the source, and its layout is looked at."""
    command = [sys.executable, "-m", "benchmarks.convert", "--files", "4000", "--repeats", "1"]
    command += ["--contestants", ",".join(CONTESTANTS), "--count-calls"]
    command += ["--dir", str(tmp_path), "--json", str(tmp_path / "rows.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = {
        row["contestant"]: row for row in json.loads((tmp_path / "rows.json").read_text())["rows"]
    }
    assert set(rows) == set(CONTESTANTS)
    for name in ("shardwrite", "shardwrite-full"):
        # how often threads wait depends on what else the machine does
        assert 2 < rows[name]["calls_per_chunk"] - rows[name]["waits_per_chunk"] < 18
        assert rows[name]["peak"] < 64e6

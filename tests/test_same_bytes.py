"""`same_bytes.py`, which compares what two versions write: what it says of a clone without the
older one, and a sample of its cases."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
BEFORE_THE_REBUILD = "3e6cb07"


def compared(script: Path, old: str, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(script), "--old", old, *more], capture_output=True, text=True
    )


@pytest.mark.parametrize("is_clone", [True, False])
def test_a_clone_without_the_older_commit_is_told_so(tmp_path, is_clone):
    script = tmp_path / "clone" / "tests" / "same_bytes.py"
    script.parent.mkdir(parents=True)
    for name in ("same_bytes.py", "commits.py"):
        shutil.copy(HERE / name, script.parent)
    if is_clone:
        subprocess.run(["git", "init", "--quiet", str(script.parent.parent)], check=True)
    done = compared(script, BEFORE_THE_REBUILD)
    assert done.returncode == 1
    assert not done.stdout
    assert done.stderr.startswith("3e6cb07 is neither a directory nor a commit of this clone: ")
    assert done.stderr.rstrip().endswith("fetch it first")
    assert "Traceback" not in done.stderr


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_sample_has_the_same_bytes_as_before_the_rebuild():
    known = subprocess.run(
        ["git", "cat-file", "-e", f"{BEFORE_THE_REBUILD}^{{commit}}"],
        cwd=HERE,
        capture_output=True,
    )
    if known.returncode:
        pytest.skip(f"this clone has no commit {BEFORE_THE_REBUILD}")
    done = compared(HERE / "same_bytes.py", BEFORE_THE_REBUILD, "--cases", "12", "--seed", "1000")
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout)
    assert summary["different"] == []
    assert summary["files"] > 25
    assert summary["refused"] < 5

"""Fault family 1: any system call of a run fails, once or from then on; see `failing_calls` and `failing_updates`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import failing_updates

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(
    shutil.which("gcc") is None or sys.platform != "linux", reason="needs Linux and gcc (Debian's package gcc)"
)


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    built = tmp_path_factory.mktemp("shim") / "shim.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", built, HERE / "shim.c", "-ldl"], check=True)
    return built


def run(shim, tmp_path, script, *arguments):
    out = tmp_path / "out.json"
    ended = subprocess.run(
        [sys.executable, HERE / script, *arguments, "--json", out],
        env={**os.environ, "LD_PRELOAD": str(shim), "SHIM": str(shim)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    summary = json.loads(out.read_text())["summary"]
    print(json.dumps(summary))
    assert summary["troubles"] == {}
    return summary


def test_a_sample_of_failing_calls(shim, tmp_path):
    summary = run(shim, tmp_path, "failing_calls.py", "--share", "0.06", "--seed", "3")
    assert summary["lost"] == 0
    assert summary["fired"] > 100
    assert summary["raised"] > 50
    assert summary["survived"] > 5, "what passes is tried again"


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "calls",
    [
        ["open", "fsync-directory"],
        ["write", "fsync"],
        ["close", "rename", "link", "mkdir"],
        ["unlink", "rmdir"],
        ["stat", "opendir", "read"],
    ],
    ids=" ".join,
)
def test_every_failing_call(shim, tmp_path, calls):
    summary = run(shim, tmp_path, "failing_calls.py", "--calls", *calls)
    assert summary["lost"] == 0
    assert summary["fired"] > 1000


def test_a_sample_of_failing_calls_under_updates(shim, tmp_path):
    summary = run(shim, tmp_path, "failing_updates.py", "--share", "0.02", "--seed", "1")
    assert summary["fired"] > 30
    assert summary["raised"] > 10


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("operation", failing_updates.OPERATIONS)
def test_every_failing_call_under_updates(shim, tmp_path, operation):
    summary = run(shim, tmp_path, "failing_updates.py", "--operations", operation, "--errors", "EIO")
    assert summary["fired"] > 300
    assert summary["raised"] > 100

"""Fault family 1: any system call of a run fails, once or from then on; see `failing_calls`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(
    shutil.which("gcc") is None or sys.platform != "linux", reason="needs Linux and gcc (Debian's package gcc)"
)


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    built = tmp_path_factory.mktemp("shim") / "shim.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", built, HERE / "shim.c", "-ldl"], check=True)
    return built


def run(shim, tmp_path, *arguments):
    out = tmp_path / "out.json"
    ended = subprocess.run(
        [sys.executable, HERE / "failing_calls.py", *arguments, "--json", out],
        env={**os.environ, "LD_PRELOAD": str(shim), "SHIM": str(shim)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    summary = json.loads(out.read_text())["summary"]
    print(json.dumps(summary))
    assert summary["troubles"] == {}
    assert summary["lost"] == 0
    return summary


def test_a_sample_of_failing_calls(shim, tmp_path):
    summary = run(shim, tmp_path, "--share", "0.06", "--seed", "3")
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
    summary = run(shim, tmp_path, "--calls", *calls)
    assert summary["fired"] > 1000

"""Fault family 13: a process is frozen before any of its effects, and thaws when another has taken over; see `freeze`."""

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


def run(tmp_path, *arguments):
    out = tmp_path / "out.json"
    ended = subprocess.run(
        [sys.executable, HERE / "freeze.py", *arguments, "--json", out],
        env={name: value for name, value in os.environ.items() if name not in ("SHIM", "LD_PRELOAD")},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = json.loads(out.read_text())
    print(json.dumps(found["summary"]))
    assert found["summary"]["troubles"] == []
    return found["summary"], found["freezes"]


def test_a_sample_of_freezes(tmp_path):
    summary, freezes = run(tmp_path, "--freezes", "100", "--seed", "1")
    assert summary["freezes"] >= 95
    assert summary["operations"] >= 20
    assert summary["outcomes"]["RunEndedError"] >= 10, "hardly any process was told that its run had ended"
    calls = {case["before"].partition(" ")[0] for case in freezes}
    assert calls >= {"open", "write", "pwrite", "fsync", "rename", "unlink"}


@pytest.mark.long
def test_freezes(tmp_path):
    summary, _ = run(tmp_path, "--freezes", "160", "--seed", "2")
    assert summary["freezes"] >= 150

"""Fault family 14: the effects of two processes interleaved; see `explorer`."""

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
        [sys.executable, HERE / "explorer.py", *arguments, "--json", out],
        env={name: value for name, value in os.environ.items() if name not in ("SHIM", "LD_PRELOAD")},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    summary = json.loads(out.read_text())["summary"]
    print(json.dumps(summary))
    assert summary["troubles"] == []
    return summary


def test_a_sample_of_schedules(tmp_path):
    summary = run(tmp_path, "--depth", "3", "--cases", "30", "--seed", "1")
    assert summary["cases"] == 30
    assert len(summary["outcomes"]) >= 4


@pytest.mark.parametrize(
    "way", ["frozen", pytest.param("slow", marks=pytest.mark.long), pytest.param("killed", marks=pytest.mark.long)]
)
def test_every_schedule_of_two_switches(tmp_path, way):
    """One pair of processes; the first stands still before each of its effects that can be seen."""
    summary = run(tmp_path, "--depth", "2", "--ways", way, "--operations", "update in place with room")
    assert summary["cases"] >= 40

"""Harnesses of this folder that tests run in a process of their own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from forks import python

HERE = Path(__file__).parent


def summary_of(tmp_path: Path, script: str, *arguments: Any, seconds: float = 1500) -> Any:
    """Run a harness in a process that has no threads when it forks; the summary of what it finds.

    What it finds is judged by the test, whatever its exit code is.
    """
    out = tmp_path / "out.json"
    done = subprocess.run(
        [*python(), HERE / script, *arguments, "--json", out],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert out.exists(), done.stderr
    return json.loads(out.read_text())["summary"]


def struck(tmp_path: Path, fault: str, *names: str) -> Any:
    """Strike operations of the table, whose names stand before other arguments of `all_faults`.

    Nothing may go wrong. The test is skipped where the fault cannot be had.
    """
    from all_faults import FAULTS

    if why := FAULTS[fault].missing():
        pytest.skip(why)
    found = summary_of(tmp_path, "all_faults.py", "--faults", fault, "--operations", *names)
    assert not found["troubles"], "\n".join(found["troubles"][:5])
    assert not found["left"]
    return found

"""A kill before every effect of an operation: the same call again succeeds, and nothing is left beside the array."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("ends.py")
OPERATIONS = ("write", "write into a group", "finalize", "update, named source", "compaction", "repair", "stream")


def run(tmp_path, *arguments):
    """Kill operations in a process of its own, which has no threads when it forks."""
    out = tmp_path / "out.json"
    subprocess.run([sys.executable, SCRIPT, *arguments, "--json", out], capture_output=True, timeout=1500, check=False)
    found = json.loads(out.read_text())
    troubles = [f"{case['operation']}, killed at {case['kill_at']}: {case['trouble']}" for case in found if case["trouble"]]
    assert not troubles, "\n".join(troubles[:5])
    return found


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_same_call_again_leaves_nothing(tmp_path, operation):
    """Before some effects in the middle, and before each of the last ones."""
    found = run(tmp_path, "--operations", operation, "--every", "17", "--last", "12")
    assert len(found) >= 14


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("twice", [0, 7])
def test_every_effect_of_every_operation(tmp_path, twice):
    found = run(tmp_path, "--every", "3" if twice else "1", "--twice", str(twice))
    assert len(found) > 1000

"""Fault family 13: a process is frozen before any of its effects, and thaws when another has taken
over; see `freeze`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import preloaded

pytestmark = pytest.mark.skipif(bool(preloaded.missing()), reason=preloaded.missing())


def run(tmp_path, *arguments):
    found = preloaded.outcome(tmp_path, "freeze.py", *arguments)
    assert not found["summary"]["troubles"], found["summary"]["troubles"][:5]
    return found["summary"], found["freezes"]


@pytest.mark.long
def test_a_sample_of_freezes(tmp_path):
    summary, freezes = run(tmp_path, "--freezes", "9", "--seed", "3")
    assert summary["freezes"] >= 8
    assert summary["operations"] >= 7
    assert summary["outcomes"]["RunEndedError"] >= 1, (
        "hardly any process was told that its run had ended"
    )
    calls = {case["before"].partition(" ")[0] for case in freezes}
    assert calls >= {"pwrite", "rename", "unlink"}


@pytest.mark.long
def test_freezes(tmp_path):
    summary, freezes = run(tmp_path, "--freezes", "45", "--seed", "2")
    assert summary["freezes"] >= 40
    calls = {case["before"].partition(" ")[0] for case in freezes}
    assert calls >= {"write", "pwrite", "fsync", "rename", "unlink"}

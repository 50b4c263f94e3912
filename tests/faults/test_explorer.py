"""Fault family 14: the effects of two processes interleaved; see `explorer`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import preloaded

pytestmark = pytest.mark.skipif(bool(preloaded.missing()), reason=preloaded.missing())


def run(tmp_path, *arguments):
    summary = preloaded.outcome(tmp_path, "explorer.py", *arguments)["summary"]
    assert not summary["troubles"], summary["troubles"][:5]
    return summary


@pytest.mark.long
def test_a_sample_of_schedules(tmp_path):
    summary = run(tmp_path, "--depth", "3", "--cases", "10", "--seed", "1")
    assert summary["cases"] == 10
    assert len(summary["outcomes"]) >= 3


@pytest.mark.long
@pytest.mark.parametrize("way", ["frozen", "slow", "killed"])
def test_schedules_of_two_switches(tmp_path, way):
    """One pair of processes; the first stands still before some of its effects that can be seen.
    The campaign takes all of all pairs."""
    pair = ("--operations", "update in place with room")
    summary = run(tmp_path, "--depth", "2", "--ways", way, *pair, "--cases", "10", "--seed", "2")
    assert summary["cases"] == 10

"""A conversion that is killed goes on, and every encoded chunk that passes is the same to the byte."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from forks import python

SCRIPT = Path(__file__).with_name("conversions.py")


def run(tmp_path, *arguments):
    """Kill in a process of its own, which has no threads when it forks."""
    out = tmp_path / "out.json"
    done = subprocess.run(
        [*python(), SCRIPT, *arguments, "--json", out],
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert out.exists(), done.stderr
    return json.loads(out.read_text())["summary"]


@pytest.mark.long
def test_a_killed_conversion_goes_on(tmp_path):
    found = run(tmp_path, "--kills", "6", "--seed", "3")
    assert found["troubles"] == []
    assert found["vacuous"] <= 4, "some kills must interrupt something"
    assert found["chunks that passed"] > 0


@pytest.mark.long
def test_a_killed_conversion_of_hdf5_goes_on(tmp_path):
    found = run(tmp_path, "--hdf5", "--kills", "4", "--seed", "5")
    assert found["troubles"] == []
    assert found["vacuous"] <= 2, "most kills must interrupt something"
    assert found["chunks that passed"] > 0


@pytest.mark.long
def test_a_killed_conversion_in_place_goes_on(tmp_path):
    found = run(tmp_path, "--in-place", "--kills", "6", "--seed", "3")
    assert found["troubles"] == []
    assert found["vacuous"] <= 4, "some kills must interrupt something"
    assert found["chunks that passed"] > 0


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_kills_of_hdf5(tmp_path):
    found = run(tmp_path, "--hdf5", "--kills", "25", "--seed", "2")
    assert found["troubles"] == []
    assert found["vacuous"] <= 12


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_kills(tmp_path):
    found = run(tmp_path, "--kills", "50", "--seed", "1")
    assert found["troubles"] == []
    assert found["vacuous"] <= 20

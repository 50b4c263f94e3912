"""A conversion that is killed goes on, and every encoded chunk that passes is the same to the byte."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from harness import summary_of


def run(tmp_path, *arguments):
    return summary_of(tmp_path, "conversions.py", *arguments)


@pytest.mark.long
def test_a_killed_conversion_goes_on(tmp_path):
    found = run(tmp_path, "--kills", "6", "--seed", "3")
    assert not found["troubles"], found["troubles"][:5]
    assert found["vacuous"] <= 4, "some kills must interrupt something"
    assert found["chunks that passed"] > 0


@pytest.mark.long
def test_a_killed_conversion_of_hdf5_goes_on(tmp_path):
    found = run(tmp_path, "--hdf5", "--kills", "4", "--seed", "5")
    assert not found["troubles"], found["troubles"][:5]
    assert found["vacuous"] <= 2, "most kills must interrupt something"
    assert found["chunks that passed"] > 0


@pytest.mark.long
def test_a_killed_conversion_in_place_goes_on(tmp_path):
    found = run(tmp_path, "--in-place", "--kills", "6", "--seed", "3")
    assert not found["troubles"], found["troubles"][:5]
    assert found["vacuous"] <= 4, "some kills must interrupt something"
    assert found["chunks that passed"] > 0


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_kills_of_hdf5(tmp_path):
    found = run(tmp_path, "--hdf5", "--kills", "15", "--seed", "2")
    assert not found["troubles"], found["troubles"][:5]
    assert found["vacuous"] <= 8


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_kills(tmp_path):
    found = run(tmp_path, "--kills", "20", "--seed", "1")
    assert not found["troubles"], found["troubles"][:5]
    assert found["vacuous"] <= 10

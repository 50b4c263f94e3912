"""Kills, effects that fail and power cuts while a scale is added to a volume of Neuroglancer."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from harness import struck
from volumes import REPAIRS, SCALES


@pytest.mark.parametrize("fault", ["kill", pytest.param("failing effect", marks=pytest.mark.long)])
def test_a_few_of_each(tmp_path, fault):
    few = "--cases", "5", "--seed", "4"
    found = struck(tmp_path, fault, "first scale", "scale", *few)
    assert found["vacuous"] < 5, "something must be interrupted"
    assert found["acked"] > 0


@pytest.mark.long
@pytest.mark.parametrize("fault", ["kill", "failing effect", "power cut"])
@pytest.mark.parametrize("name", [*SCALES, "repair of a scattered scale"])
def test_six_of_each(tmp_path, fault, name):
    """A sample: the campaign takes every effect. In repairs, nothing is acknowledged by its name."""
    names = (name,) if name in REPAIRS else (f"first {name}", name)
    found = struck(tmp_path, fault, *names, "--cases", "6", "--seed", "4")
    assert found["vacuous"] < 6
    assert found["acked"] > 0 or name in REPAIRS

"""Kills, effects that fail and power cuts while arrays in other formats are made and changed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tiers import some

sys.path.insert(0, str(Path(__file__).parent))
from formats import FORMATS
from harness import struck


@pytest.mark.parametrize("kind", some(["hdf5", "transformer"], "hdf5"))
def test_a_few_kills(tmp_path, kind):
    names = f"make {kind}", f"change {kind}"
    found = struck(tmp_path, "kill", *names, "--cases", "5", "--seed", "1")
    assert found["vacuous"] < 5, "something must be interrupted"
    assert found["acked"] > 0


@pytest.mark.long
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("fault", ["kill", "failing effect", "power cut"])
def test_five_of_each(tmp_path, kind, fault):
    """A sample: the campaign takes every effect."""
    names = f"make {kind}", f"change {kind}"
    found = struck(tmp_path, fault, *names, "--cases", "8", "--seed", "1")
    assert found["vacuous"] < 8
    assert found["acked"] > 0

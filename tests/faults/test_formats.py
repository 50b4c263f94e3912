"""Kills, failing calls and power cuts while arrays in other formats are made and changed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tiers import some

sys.path.insert(0, str(Path(__file__).parent))
import power_cut
from harness import summary_of

FORMATS = ("hdf5", "hdf5, index first", "transformer", "nested", "around")


def run(tmp_path, *arguments):
    found = summary_of(tmp_path, "formats.py", *arguments)
    assert not found["troubles"], "\n".join(found["troubles"][:5])
    return found


@pytest.mark.parametrize("kind", some(["hdf5", "transformer"], "hdf5"))
def test_a_few_kills(tmp_path, kind):
    found = run(tmp_path, "--format", kind, "--fault", "kill", "--cases", "5", "--seed", "1")
    assert found["vacuous"] < 5, "something must be interrupted"
    assert found["acked"] > 0


@pytest.mark.long
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("fault", ["kill", "fail", "cut"])
def test_five_of_each(tmp_path, kind, fault):
    """A sample: ``python tests/faults/formats.py`` takes every effect."""
    if fault == "cut" and (why := power_cut.missing("ext4")):
        pytest.skip(why)
    found = run(tmp_path, "--format", kind, "--fault", fault, "--cases", "5", "--seed", "3")
    assert found["vacuous"] < 5
    assert found["acked"] > 0

"""Kills, power cuts and effects that fail while chunks by id are changed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import power_cut
from harness import summary_of


@pytest.mark.long
@pytest.mark.parametrize("fault", ["kill", "power cut", "failing effect"])
def test_chunks_outlive_six_of_each(tmp_path, fault):
    """A sample: the campaign takes a hundred of each."""
    if fault == "power cut" and (why := power_cut.missing("ext4")):
        pytest.skip(why)
    arguments = ["--faults", fault, "--table", "ids", "--cases", "6", "--seed", "2"]
    found = summary_of(tmp_path, "all_faults.py", *arguments)
    assert not found["troubles"], "\n".join(found["troubles"][:5])
    assert not found["left"]
    assert found["vacuous"] < 4

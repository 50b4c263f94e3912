"""Kills, power cuts and calls that fail while chunks by id are changed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from forks import python

sys.path.insert(0, str(Path(__file__).parent))
import power_cut

SCRIPT = Path(__file__).with_name("id_shard_cuts.py")


@pytest.mark.long
@pytest.mark.parametrize("fault", ["kill", "cut", "fail"])
def test_chunks_outlive_six_of_each(tmp_path, fault):
    """A sample: the campaign takes a hundred of each."""
    if fault == "cut" and (why := power_cut.missing("ext4")):
        pytest.skip(why)
    out = tmp_path / "out.json"
    arguments = ["--fault", fault, "--cases", "6", "--seed", "2", "--json", out]
    done = subprocess.run(
        [*python(), SCRIPT, *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    assert out.exists(), done.stderr
    found = json.loads(out.read_text())["summary"]
    assert not found["troubles"], "\n".join(found["troubles"][:5])
    assert not found["lost"]
    assert not found["left"]
    assert found["vacuous"] < 4

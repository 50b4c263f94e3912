"""Kills, power cuts, and calls and write-back that fail under an adoption and under giving it up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from forks import python

sys.path.insert(0, str(Path(__file__).parent))
import lossy_device
import power_cut

SCRIPT = Path(__file__).with_name("adoptions.py")
STRIKES = SCRIPT.with_name("adoption_cuts.py")


def run(tmp_path, *arguments):
    """Run the cases in a process of its own, which has no threads when it forks."""
    out = tmp_path / "out.json"
    subprocess.run(
        [*python(), SCRIPT, *arguments, "--json", out],
        capture_output=True,
        timeout=1500,
        check=False,
    )
    found = json.loads(out.read_text())
    troubles = [f"{name}: {trouble}" for name, trouble in found if trouble]
    assert not troubles, "\n".join(troubles[:5])
    return found


def test_the_same_call_finishes_or_abandon_brings_all_files_back(tmp_path):
    found = run(tmp_path, "--every", "59", "--how", "move", "--blocks", "0")
    assert len(found) >= 8


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_every_kind_of_file_and_of_entry(tmp_path):
    """A sample: ``python tests/faults/adoptions.py`` takes every effect."""
    found = run(tmp_path, "--every", "83")
    assert len(found) > 24


def strike(tmp_path, fault, n_cases, seed):
    """Cases of one fault, of which nothing is lost."""
    why = {"kill": lambda _: "", "cut": power_cut.missing, "lossy": lossy_device.missing}[fault]
    if reason := why("ext4"):
        pytest.skip(reason)
    out = tmp_path / "out.json"
    arguments = ["--fault", fault, "--cases", str(n_cases), "--seed", str(seed), "--json", out]
    done = subprocess.run(
        [*python(), STRIKES, *arguments], capture_output=True, text=True, timeout=500, check=False
    )
    assert out.exists(), done.stderr
    found = json.loads(out.read_text())["summary"]
    assert not found["troubles"], "\n".join(found["troubles"][:5])
    assert not found["lost"]
    return found


@pytest.mark.long
@pytest.mark.parametrize("fault", ["kill", "cut", "lossy"])
def test_files_outlive_six_of_each(tmp_path, fault):
    """A sample: the campaign takes a hundred of each."""
    assert strike(tmp_path, fault, 6, seed=2)["vacuous"] < 4

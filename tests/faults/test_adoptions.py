"""Kills and failing calls under an adoption and under giving it up."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from forks import python

SCRIPT = Path(__file__).with_name("adoptions.py")


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
    found = run(tmp_path, "--every", "31")
    assert len(found) > 60

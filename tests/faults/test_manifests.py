"""A kill or a power cut before every effect on an array that keeps a manifest: the list never lacks
a chunk."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from forks import python
from tiers import some

sys.path.insert(0, str(Path(__file__).parent))
import power_cut

SCRIPT = Path(__file__).with_name("manifests.py")
CUTS = SCRIPT.with_name("manifest_cuts.py")
OPERATIONS = ("write, published first", "append in place", "stream")


def run(tmp_path, *arguments, script=SCRIPT):
    """Kill operations in a process of its own, which has no threads when it forks."""
    out = tmp_path / "out.json"
    done = subprocess.run(
        [*python(), script, *arguments, "--json", out],
        capture_output=True,
        text=True,
        timeout=1700,
        check=False,
    )
    found = json.loads(out.read_text())
    assert not done.returncode, done.stdout
    return found


@pytest.mark.long
@pytest.mark.parametrize("operation", some(OPERATIONS, "append in place"))
def test_the_list_never_lacks_a_chunk(tmp_path, operation):
    """Before some effects, and before the last ones, in which the list becomes exact.

    Another call may have a few effects less, by its heartbeat, and then ends before it is killed.
    """
    assert len(run(tmp_path, "--operations", operation, "--every", "29", "--last", "3")) >= 5


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "share", [0, *(pytest.param(n, marks=pytest.mark.campaign) for n in (1, 2, 3))]
)
def test_effects_of_every_operation(tmp_path, share):
    """Before some effects of each, in four shares; the campaign takes every effect."""
    names = [
        *("write", "write, published first", "shard", "reshard in place", "replacement"),
        "update",
        *("update in place", "append in place", "erase", "append", "stream", "compaction"),
        *("repair", "salvage", "update by restart"),
    ]
    found = run(tmp_path, "--operations", *names[share::4], "--every", "67", "--last", "2")
    assert len(found) > 12
    assert {case["operation"] for case in found} == set(names[share::4])


@pytest.mark.long
@pytest.mark.campaign
def test_power_cuts(tmp_path):
    if why := power_cut.missing("ext4"):
        pytest.skip(why)
    names = ("append", "erase", "reshard in place")
    found = run(tmp_path, "--operations", *names, "--cases", "3", "--seed", "1", script=CUTS)
    assert len(found) == 3


@pytest.mark.long
@pytest.mark.timeout(600)
def test_power_cuts_under_every_operation(tmp_path):
    if why := power_cut.missing("ext4"):
        pytest.skip(why)
    found = run(tmp_path, "--cases", "20", "--seed", "2", script=CUTS)
    assert len({case["operation"] for case in found}) >= 14

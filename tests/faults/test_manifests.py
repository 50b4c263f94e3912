"""A kill or a power cut before every effect on an array that keeps a manifest: the list never lacks
a chunk."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tiers import some

sys.path.insert(0, str(Path(__file__).parent))
import power_cut
from harness import summary_of
from manifests import LISTED

OPERATIONS = ("listed write, published first", "listed append in place", "listed stream")


def run(tmp_path, *arguments, fault="kill"):
    found = summary_of(tmp_path, "all_faults.py", "--faults", fault, *arguments)
    assert not found["troubles"], "\n".join(found["troubles"][:5])
    return found


@pytest.mark.long
@pytest.mark.parametrize("operation", some(OPERATIONS, OPERATIONS[1]))
def test_the_list_never_lacks_a_chunk(tmp_path, operation):
    """Before some effects, and before the last ones, in which the list becomes exact.

    Another call may have a few effects less, by its heartbeat, and then ends before it is killed.
    """
    found = run(tmp_path, "--operations", operation, "--every", "29", "--last", "3")
    assert found["cases"] - found["vacuous"] >= 5


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "share", [0, *(pytest.param(n, marks=pytest.mark.campaign) for n in (1, 2, 3))]
)
def test_effects_of_every_operation(tmp_path, share):
    """Before some effects of each, in four shares; the campaign takes every effect."""
    names = [*LISTED][share::4]
    found = run(tmp_path, "--operations", *names, "--every", "67", "--last", "2")
    assert found["cases"] - found["vacuous"] > 12
    assert set(found["operations"]) == set(names)


@pytest.mark.long
@pytest.mark.campaign
def test_power_cuts(tmp_path):
    if why := power_cut.missing("ext4"):
        pytest.skip(why)
    names = ("listed append", "listed erase", "listed reshard in place")
    few = ["--operations", *names, "--cases", "3", "--seed", "1"]
    assert run(tmp_path, *few, fault="power cut")["cases"] == 3


@pytest.mark.long
@pytest.mark.timeout(600)
def test_power_cuts_under_every_operation(tmp_path):
    if why := power_cut.missing("ext4"):
        pytest.skip(why)
    found = run(tmp_path, "--table", "listed", "--cases", "20", "--seed", "2", fault="power cut")
    assert len(found["operations"]) >= 14

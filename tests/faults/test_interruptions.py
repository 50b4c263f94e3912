"""Power cuts and kills before effects of every operation lose nothing that was acknowledged; see
`interruptions.py`."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pytest
from tiers import some

sys.path.insert(0, str(Path(__file__).parent))
import interruptions
import power_cut
import seams

why_not = functools.cache(power_cut.missing)
N_KINDS = len(interruptions.KINDS)


def run(tmp_path, fault, filesystem, n_cases, seed, kinds=interruptions.KINDS):
    """Cases that are evidence; the rest had ended before."""
    if fault == "cut" and (why := why_not(filesystem)):
        pytest.skip(why)
    cases = interruptions.run(tmp_path, fault, filesystem, n_cases, seed=seed, kinds=kinds)
    found = interruptions.summary(cases)
    print(found)
    assert not [case for case in cases if case.is_bad], found
    assert found["vacuous"] <= n_cases // 3, found
    return found


@pytest.mark.long
@pytest.mark.parametrize("fault", some(interruptions.FAULTS, interruptions.FAULTS[0]))
def test_a_strike_under_every_fourth_operation(tmp_path, fault):
    kinds = interruptions.KINDS[2 * interruptions.FAULTS.index(fault) :: 4]
    found = run(tmp_path, fault, "ext4", len(kinds), seed=1, kinds=kinds)
    assert len(found["operations"]) >= len(kinds) // 2


@pytest.mark.long
@pytest.mark.parametrize("fault", interruptions.FAULTS)
def test_strikes_under_a_conversion_that_consumes(tmp_path, fault):
    """With each of the next steps."""
    if fault == "cut" and (why := why_not("ext4")):
        pytest.skip(why)
    cases = interruptions.run(tmp_path, fault, "ext4", 5, seed=1, kinds=[("consume", "replace")])
    assert not [case for case in cases if case.is_bad], interruptions.summary(cases)
    assert sum(bool(case.effect) for case in cases) >= 3


@pytest.mark.long
@pytest.mark.parametrize("fault", interruptions.FAULTS)
def test_strikes_under_a_run_on_several_arrays(tmp_path, fault):
    run(tmp_path, fault, "ext4", 8, seed=1, kinds=[("several", "replace")])


@pytest.mark.long
@pytest.mark.parametrize("fault", interruptions.FAULTS)
def test_strikes_under_updates_that_read_what_they_change(tmp_path, fault):
    kinds = [kind for kind in interruptions.KINDS if kind[0] == "self-reading"]
    assert len(run(tmp_path, fault, "ext4", 12, seed=1, kinds=kinds)["operations"]) == 4


@pytest.mark.long
def test_power_cuts_under_conversions(tmp_path):
    kinds = [kind for kind in interruptions.KINDS if kind[0] in ("conversion", "in-place")]
    assert len(run(tmp_path, "cut", "ext4", 10, seed=4, kinds=kinds)["operations"]) == 4


@pytest.mark.long
@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("fault", "filesystem"), [("cut", "ext4"), ("cut", "xfs"), ("kill", "ext4")]
)
def test_many_strikes(tmp_path, fault, filesystem):
    """Each kind is struck by a kill, or by a power cut on one of the two file systems."""
    kinds = {
        ("kill", "ext4"): interruptions.KINDS[::2],
        ("cut", "ext4"): interruptions.KINDS[1::4],
        ("cut", "xfs"): interruptions.KINDS[3::4],
    }[fault, filesystem]
    found = run(tmp_path, fault, filesystem, len(kinds), seed=2, kinds=kinds)
    assert len(found["operations"]) > 0.5 * len(kinds)
    assert found["acked"] > len(kinds) // 3


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("step", "n_cases"), [("file", N_KINDS), ("directory", 3 * N_KINDS)])
def test_a_missing_sync_is_seen(tmp_path, monkeypatch, step, n_cases):
    """A control: where files or their directories are not synced, acknowledged data or the run's
    own files are lost."""
    if why := why_not("ext4"):
        pytest.skip(why)
    if step == "file":
        seams.skip(monkeypatch, "sync a file")
    else:
        seams.skip(monkeypatch, "sync the directories")
    is_bad = {"is_last": lambda case: case.is_bad}  # one is enough
    cases = interruptions.run(tmp_path, "cut", "ext4", n_cases, seed=3, **is_bad)
    assert any(case.is_bad for case in cases), interruptions.summary(cases)

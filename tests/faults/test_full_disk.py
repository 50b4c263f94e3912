"""Readers are right while the disk is full, giving up needs no room, and the same call finishes
once there is some; see `full_disk.py`."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("h5py")
sys.path.insert(0, str(Path(__file__).parent))
import full_disk
import power_cut

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or sys.platform != "linux", reason="mounts file systems: needs root on Linux"
)
why_not = functools.cache(power_cut.missing)


def run(tmp_path, filesystem, n_cases, **how):
    """Cases, of which some are no evidence, since they had ended before the disk was full."""
    if filesystem != "tmpfs" and (why := why_not(filesystem.replace("ext2", "ext4"))):
        pytest.skip(why)
    cases = full_disk.run(tmp_path, filesystem, n_cases, **how)
    found = full_disk.summary(cases)
    print(found)
    assert not [case for case in cases if case.is_bad], found
    assert found["vacuous"] <= n_cases // 2, found
    return found


@pytest.mark.long
def test_the_disk_becomes_full_under_every_twelfth_operation(tmp_path):
    kinds = full_disk.KINDS[1::12]
    assert run(tmp_path, "tmpfs", len(kinds), seed=1, kinds=kinds)["raised"] >= len(kinds) // 3


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("filesystem", "first", "seed"),
    [
        ("ext4", 0, 4),
        pytest.param("xfs", 1, 4, marks=pytest.mark.campaign),
        pytest.param("ext2", 2, 6, marks=pytest.mark.campaign),
    ],
)
def test_the_disk_becomes_full_under_operations(tmp_path, filesystem, first, seed):
    """Half of the operations on one of the file systems each; the campaign takes all on each."""
    kinds = full_disk.KINDS[first::6]
    found = run(tmp_path, filesystem, len(kinds), seed=seed, kinds=kinds)
    assert found["raised"] > 1

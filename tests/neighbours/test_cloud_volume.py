"""cloud-volume's own tests of sharding, with shardwrite's writer of shards."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from suites import run_suite, source_of

pytestmark = pytest.mark.long  # fetches what it needs

# They read a volume in a bucket of its authors.
NETWORK = (
    "test_skeleton_fidelity",
    "test_skeleton_shard_unshard",
    "test_mesh_shard_unshard",
    "test_image_fidelity",
)


# It locates millions of chunks one by one, which takes minutes, and writes no shard.
SLOW = "test_sharded_image_bits"
HAS_SLOW = bool(os.environ.get("SHARDWRITE_IMAGE_BITS"))


def test_sharding(tmp_path, pytestconfig, monkeypatch):
    pytest.importorskip("cloudvolume", reason="cloud-volume is not installed")
    monkeypatch.setenv("SHARDWRITE_LAYERS", str(tmp_path))
    source = source_of("cloud-volume", pytestconfig.cache)
    left_out = [*NETWORK, *(() if HAS_SLOW else (SLOW,))]
    chosen = f"not ({' or '.join(left_out)})"
    outcomes, told, output = run_suite(
        tmp_path, "volume_shards", "test/test_sharding.py", "-k", chosen, cwd=source
    )
    print(outcomes, told)
    assert set(outcomes) <= {"passed", "deselected", "warnings", "warning"}, output
    assert (outcomes["passed"], outcomes["deselected"]) == ((19, 4) if HAS_SLOW else (16, 7))
    assert told["counts"] == {"shards": 8, "chunks": 504}

"""zarr-vectors' own tests of its conversions and maintenance, with those of shardwrite instead."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from suites import packages, run_suite, source_of

pytestmark = pytest.mark.long  # fetches what it needs

VERSION = "0.9.2"
TESTS = (
    "tests/test_api_maintenance.py",
    "tests/integration/test_lazy_sharding_rechunk.py::TestShardReshardChain",
    "tests/test_link_cell_writers.py",
)
PYRAMID = "tests/integration/test_lazy_sharding_rechunk.py::TestShardedPyramid"  # takes minutes
HAS_PYRAMID = bool(os.environ.get("SHARDWRITE_PYRAMID"))


def test_zarr_vectors(tmp_path, pytestconfig):
    cache = pytestconfig.cache
    extra = packages([f"zarr-vectors=={VERSION}"], cache)
    source = source_of("zarr-vectors", cache, VERSION)
    outcomes, told, output = run_suite(
        tmp_path, "vectors_conversions", *TESTS, *[PYRAMID] * HAS_PYRAMID, cwd=source, paths=[extra]
    )
    print(outcomes, told)
    assert set(outcomes) <= {"passed", "warnings"}, output
    assert outcomes["passed"] == 20 + HAS_PYRAMID
    assert told["counts"]["shard_store"] == 2
    assert told["counts"]["reshard"] == 3 + 2 * HAS_PYRAMID

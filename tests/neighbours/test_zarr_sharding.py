"""zarr-python's own tests of sharding, whose writes go through region updates of shardwrite."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from suites import packages, run_suite, source_of

pytestmark = pytest.mark.long  # fetches what it needs


def test_writes_of_zarr_tests_through_region_updates(tmp_path, pytestconfig):
    cache = pytestconfig.cache
    source, extra = source_of("zarr", cache), packages(["pytest-asyncio"], cache)
    outcomes, told, output = run_suite(
        tmp_path, "zarr_writes", "tests/test_codecs/test_sharding.py", cwd=source, paths=[extra]
    )
    print(outcomes, told["counts"], {why: len(names) for why, names in told["deselected"].items()})
    assert set(outcomes) <= {"passed", "deselected"}, output
    assert outcomes["passed"] >= 70
    assert min(told["counts"][kind] for kind in ("LocalStore", "MemoryStore")) > 20
    assert len(told["deselected"]) <= 2, "every other test runs"

"""zarr-python's own tests of sharding, whose writes go through region updates of shardwrite."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import zarr

import shardwrite

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
    # 126 tests of zarr 3.1.6, of which 35 are on ZIP files
    assert outcomes["passed"] >= 91
    assert min(told["counts"][kind] for kind in ("LocalStore", "MemoryStore")) > 20
    (left_out,) = told["deselected"].values()
    assert len(left_out) == outcomes["deselected"] <= 35
    assert all(re.search(r"\[(.+-)?zip[-\]]", name) for name in left_out), "every other test runs"
    with zarr.storage.ZipStore(tmp_path / "x.zip", mode="w") as store:
        array = zarr.create_array(store, shape=(8,), shards=(4,), chunks=(2,), dtype="u1")
        with pytest.raises(shardwrite.SpecError, match="cannot replace or remove objects"):
            shardwrite.write_region(1, array, slice(0, 8))

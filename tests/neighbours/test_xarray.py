"""xarray's own tests of sharded arrays, whose values are written by region updates."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from suites import packages, run_suite

pytestmark = pytest.mark.long  # fetches what it needs
PACKAGES = ["xarray", "pandas", "python-dateutil", "six", "tzdata", "pytz"]


def test_xarray_writes_through_region_updates(tmp_path, pytestconfig):
    extra = packages(PACKAGES, pytestconfig.cache)
    outcomes, told, output = run_suite(
        tmp_path, "xarray_writes", "--pyargs", "xarray.tests.test_backends", "-k", "shard",
        "-p", "no:warnings", cwd=tmp_path, paths=[extra],
    )  # fmt: skip
    print(outcomes, told["counts"], {why: len(names) for why, names in told["deselected"].items()})
    # Tests of grids that are not regular are skipped by xarray before zarr 3.2.
    assert set(outcomes) <= {"passed", "deselected", "skipped", "warnings"}, output
    assert outcomes["passed"] >= 12
    assert told["counts"]["sharded from Array"] >= 10
    assert not told["counts"].get("others"), "everything went through shardwrite"

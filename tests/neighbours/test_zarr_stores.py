"""zarr-python's own tests of stores, on the stores of shardwrite behind a bridge."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from suites import packages, run_suite

pytestmark = pytest.mark.long  # fetches what it needs


def test_stores_pass_the_tests_of_zarr(tmp_path, pytestconfig):
    extra = packages(["pytest-asyncio"], pytestconfig.cache)
    here = Path(__file__).parent
    outcomes, told, output = run_suite(
        tmp_path, "store_plugin", str(here / "store_tests.py"), "-o", "asyncio_mode=auto",
        "-o", "filterwarnings=", cwd=tmp_path, paths=[extra],
    )  # fmt: skip
    print(outcomes, {why: len(names) for why, names in told["deselected"].items()})
    # Those of methods without a coroutine, which are optional, are skipped.
    assert set(outcomes) <= {"passed", "deselected", "skipped", "warnings"}, output
    assert outcomes["skipped"] <= 3 * 5
    assert outcomes["passed"] >= 195
    assert outcomes["deselected"] == 3

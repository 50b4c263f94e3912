"""zarr-python's own tests and state machines of stores, on `transformer_view`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from suites import packages, run_suite

pytestmark = pytest.mark.long  # fetches what it needs


@pytest.mark.parametrize(
    ("file", "least"), [("transformer_tests.py", 390), ("transformer_machines.py", 2)]
)
def test_the_view_passes_the_tests_of_zarr(tmp_path, pytestconfig, file, least):
    extra = packages(["pytest-asyncio"], pytestconfig.cache)
    outcomes, _, output = run_suite(
        tmp_path, "no:doctest", str(Path(__file__).parent / file), "-o", "asyncio_mode=auto",
        "-o", "filterwarnings=", "-s", cwd=tmp_path, paths=[extra],
    )  # fmt: skip
    print(outcomes)
    # Those of methods without a coroutine, which are optional, are skipped.
    assert set(outcomes) <= {"passed", "skipped", "warnings"}, output
    assert outcomes.get("skipped", 0) <= 2 * 3 * 5
    assert outcomes["passed"] >= least

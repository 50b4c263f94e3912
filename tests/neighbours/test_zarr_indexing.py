"""zarr-python's own tests of indexing, from its source distribution, that read through our arrays.

Each test that fails is named here with the reason: another one that fails is an error, and so is
one of these that passes.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from suites import packages, run_suite, source_of

pytestmark = pytest.mark.long  # fetches what it needs

RELEASE = "3.1.6"
EXCEPTIONS = {
    r"test_get_basic_selection_[12]d|test_get_orthogonal_selection_(1d_int|2d)": (
        "end with indices that must be refused; negative steps and lists are taken here, as by numpy"
    ),
    r"test_fancy_indexing_doesnt_mix_with_implicit_slicing": (
        "an ellipsis beside one list must be refused; it is taken here, as by numpy"
    ),
    r"test_orthogonal_bool_indexing_like_numpy_ix\[.*\]": (
        "masks for two axes give what oindex gives, and numpy gives points; they are refused here"
    ),
    r"test_accessed_chunks\[.*\]": "counts what is read, and here it is also zarr.json",
    r"test_zero_sized_chunks\[.*\]": "a chunk without elements is no chunk of the specification",
}


def is_defended(name):
    """Whether it is said why a test fails."""
    return any(re.fullmatch(f"test_indexing.py::({test})", name) for test in EXCEPTIONS)


def test_zarrs_tests_of_indexing(tmp_path, pytestconfig):
    if version("zarr") != RELEASE:
        pytest.skip(f"the exceptions are those of zarr {RELEASE}")
    cache = pytestconfig.cache
    source, extra = source_of("zarr", cache), packages(["pytest-asyncio"], cache)
    _, told, output = run_suite(
        tmp_path, "zarr_reads", "tests/test_indexing.py", cwd=source, paths=[extra]
    )
    outcomes = told["outcomes"]
    failed = {name for name, outcome in outcomes.items() if outcome == "failed"}
    passed = {name for name, outcome in outcomes.items() if outcome == "passed"}
    print(f"{len(passed)} of {len(passed) + len(failed)} pass")
    assert told["counts"]["ours"] > 1000
    assert failed == {name for name in outcomes if is_defended(name)}, output
    assert len(passed) >= 130

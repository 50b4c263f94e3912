"""xarray's own tests of Zarr v3, of `test_backends` and of trees, written through the accessor.

They come from the source distribution of the xarray that is installed. `accessor_writes.py` has
them write through the accessor. `xarray_exceptions.toml` names each test that fails, with the
reason: another one that fails is an error, and so is one of these that passes.

The long tier runs a sample. ``python tests/datasets/test_xarray_suite.py`` runs all of them.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import pytest

pytest.importorskip("xarray")

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "neighbours"))
from suites import packages, run_suite, source_of  # noqa: E402

pytestmark = pytest.mark.long  # fetches what it needs
N_PARTS, SAMPLE = 12, 5
WHOLE = "SHARDWRITE_WHOLE_SUITE"
LISTED = tomllib.loads((HERE / "xarray_exceptions.toml").read_text())
FILES = ("test_backends.py", "test_backends_datatree.py")
total: Counter[str] = Counter()


def defended(name):
    """Whether it is said why a test fails."""
    return any(re.fullmatch(test, name) for each in LISTED["exception"] for test in each["tests"])


@pytest.mark.parametrize("part", range(N_PARTS) if WHOLE in os.environ else [SAMPLE])
def test_xarrays_tests_of_zarr(tmp_path, pytestconfig, part):
    if version("xarray") != LISTED["version"]:
        pytest.skip(f"the exceptions are those of xarray {LISTED['version']}")
    extra = packages(["pytest-asyncio"], pytestconfig.cache)
    source = source_of("xarray", pytestconfig.cache)
    _, told, output = run_suite(
        tmp_path, "accessor_writes", *(f"xarray/tests/{name}" for name in FILES), "-k", "zarr",
        cwd=source, paths=[HERE, extra], SHARDWRITE_PART=f"{part}/{N_PARTS}",
    )  # fmt: skip
    outcomes = told["outcomes"]
    failed = {name for name, outcome in outcomes.items() if outcome == "failed"}
    assert len(outcomes) > 40, output
    assert told["counts"]["ours"] > 40
    total.update(outcomes.values())
    print(f"{total['passed']} of {total['passed'] + total['failed']} pass, {dict(total)}")
    assert failed == {name for name in outcomes if defended(name)}, output


def test_each_exception_is_said_once():
    tests = [test for each in LISTED["exception"] for test in each["tests"]]
    assert len(tests) == len(set(tests))
    assert all(len(each["reason"]) > 20 for each in LISTED["exception"])


if __name__ == "__main__":
    os.environ[WHOLE] = "yes"
    sys.exit(pytest.main([__file__, "-m", "long", "-s", "-q"]))

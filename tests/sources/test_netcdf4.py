"""Files of the netCDF4 library, in a process of their own.

That library brings an HDF5 of its own, whose filters the HDF5 of h5py would find and could not use.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.mark.long
def test_files_of_netcdf4(tmp_path):
    if not all(find_spec(name) for name in ("netCDF4", "xarray")):
        pytest.skip("netCDF4 or xarray is not installed")
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'inner'}"]
    done = subprocess.run(
        [sys.executable, *words, HERE / "netcdf4_files.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "3 passed" in done.stdout

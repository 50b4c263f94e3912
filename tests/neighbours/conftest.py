"""What the tests of several neighbours share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from suites import python_with

PACKAGES = ("zarr==2.17.2", "numpy<2", "numcodecs[msgpack]<0.13", "pytest")


@pytest.fixture(scope="session")
def old_python(pytestconfig):
    """A Python that has zarr-python 2.17."""
    if sys.version_info >= (3, 13):
        pytest.skip("numpy 1 has no wheels for this Python")
    return python_with("zarr-2022-suite", pytestconfig.cache, *PACKAGES)

"""What the tests of several neighbours share."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from suites import alone

PACKAGES = ("zarr==2.17.2", "numpy<2", "numcodecs[msgpack]<0.13", "pytest")


@pytest.fixture(scope="session")
def environment(pytestconfig):
    """Directory of an environment with zarr-python 2.17."""
    if sys.version_info >= (3, 13):
        pytest.skip("numpy 1 has no wheels for this Python")
    into = Path(pytestconfig.cache.mkdir("neighbours")) / "zarr-2022-suite"
    with alone(into):
        if not (into / "done").exists():
            venv.create(into, with_pip=True, clear=True)
            pip = [into / "bin/python", "-m", "pip", "--quiet", "install", *PACKAGES]
            if subprocess.run(pip, timeout=400, check=False).returncode:
                pytest.skip("pip cannot fetch it here")
            (into / "done").touch()
    return into

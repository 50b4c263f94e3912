"""The order in which tests begin, and how their child processes start."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

HERE = Path(__file__).parent
LEAN = str(HERE / "lean")
SLURM = HERE / "slurm"


def pytest_collection_modifyitems(config, items):
    """Tests that may take longest begin first, so that no process is left alone with one of them
    while the others, which run tests beside it, have nothing to do.

    The limit in time that a test has been given tells how long it takes. Tests on SLURM begin
    before all others, because one process takes all of them.
    """
    usual = float(config.getini("timeout"))

    def limit(item):
        marker = item.get_closest_marker("timeout")
        return float(marker.args[0]) if marker is not None else usual

    items.sort(key=lambda item: (SLURM in item.path.parents, limit(item)), reverse=True)


class OneForSlurm(LoadScopeScheduling):
    """Give tests out one by one, but all tests on SLURM to one process, because there is one cluster.

    The group marks of pytest-xdist 3.8 do not do this: pytest 9.2 ignores them.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "slurm" if nodeid.startswith("tests/slurm/") else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Use this order of tests wherever they are shared by several processes."""
    return OneForSlurm(config, log)


def paths():
    """Directories of ``PYTHONPATH``."""
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


@pytest.fixture(scope="session", autouse=True)
def lean_children():
    """Have child processes start as `lean/sitecustomize.py` says."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", os.pathsep.join([*paths(), LEAN]))
        yield


@pytest.fixture
def children_as_users_start_them(monkeypatch):
    """Have child processes import all that they import elsewhere."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths() if path != LEAN))

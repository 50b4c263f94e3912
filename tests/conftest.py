"""The order in which tests begin, and how their child processes start."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

LEAN = str(Path(__file__).parent / "lean")


def pytest_collection_modifyitems(config, items):
    """Tests that may take longest begin first, so that no process is left alone with one of them
    while the others, which run tests beside it, have nothing to do.

    The limit in time that a test has been given tells how long it takes.
    """
    usual = float(config.getini("timeout"))

    def limit(item):
        marker = item.get_closest_marker("timeout")
        return float(marker.args[0]) if marker is not None else usual

    items.sort(key=limit, reverse=True)


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

"""The plugin that goes with `store_tests`."""

from __future__ import annotations


def pytest_collection_modifyitems(config, items):
    from store_tests import here  # pytest rewrites its assertions first

    here.select(config, items)


def pytest_sessionfinish():
    from store_tests import here

    here.tell()

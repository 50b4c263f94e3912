"""A plugin of pytest by which xarray's tests write through the accessor, where they write Zarr v3.

What `to_zarr` of xarray takes and the accessor does not is left out where it has no meaning here:
chunks need not fit, and tasks are run as shardwrite runs them. With ``compute=False``, xarray makes
a store without values at once, and regions follow. shardwrite makes nothing before all is whole, so
that such a template is still made by xarray, but for tests of ``compute=False`` itself.

The plugin notes how each test ends.

`SHARDWRITE_PART` in the environment is such as ``"3/40"``: only this part of the tests is run.
"""

from __future__ import annotations

import os
import zlib
from inspect import signature

import dask
import pytest
import xarray as xr
import zarr
from redirecting import Redirection, name_of
from zarr.storage import WrapperStore

from shardwrite.stores import Capability
from shardwrite.stores.zarr_store import ZarrStore

HAS_NO_MEANING = ("safe_chunks", "align_chunks", "chunkmanager_store_kwargs")
real = {kind: kind.to_zarr for kind in (xr.Dataset, xr.DataArray, xr.DataTree)}
here = Redirection()
wrapped = []


def to_zarr(given, *arguments, **keywords):
    theirs = real[type(given)]
    how = signature(theirs).bind(given, *arguments, **keywords).arguments
    how |= how.pop("kwargs", {})
    del how["self"]
    version = how.pop("zarr_format", None) or zarr.config.get("default_zarr_format")
    if version == 2 or how.get("store") is None or is_template(how):
        here.counts["others"] += 1
        return theirs(given, *arguments, **keywords)
    here.counts["ours"] += 1
    left = {k: v for k, v in how.items() if k not in HAS_NO_MEANING and v is not None}
    if left.get("write_inherited_coords") is False:
        del left["write_inherited_coords"]  # as it is without the keyword
    if isinstance(left["store"], WrapperStore):
        # Only the caller knows that it replaces in one step. Its name is an address in memory, which
        # must not become that of another store.
        wrapped.append(left["store"])
        left["store"] = ZarrStore(left["store"], {Capability.ATOMIC})
    return given.shardwrite.to_zarr(**left)


def is_template(how):
    """Whether a store is made for regions that follow; here it is xarray that makes one."""
    is_about_it = "compute_false" in os.environ["PYTEST_CURRENT_TEST"]
    return how.get("compute") is False and not is_about_it


@pytest.fixture(autouse=True)
def run_dir(tmp_path_factory):
    """Runs in a store that xarray or a test has made itself need a directory."""
    directory = str(tmp_path_factory.mktemp("runs"))
    with dask.config.set({"shardwrite.run-dir": directory, "shardwrite.durability": "none"}):
        yield


def pytest_configure(config):
    for kind in real:
        kind.to_zarr = to_zarr


def pytest_collection_modifyitems(config, items):
    """Leave out Zarr v2, and what is in other parts."""
    number, n_parts = map(int, os.environ.get("SHARDWRITE_PART", "0/1").split("/"))
    kept, out = [], []
    for item in items:
        values = getattr(item, "callspec", None)
        formats = [] if values is None else [values.params.get(n) for n in ("zarr_format", "default_zarr_format")]  # fmt: skip
        is_here = zlib.crc32(name_of(item.nodeid).encode()) % n_parts == number
        (kept if is_here and 2 not in formats else out).append(item)
    config.hook.pytest_deselected(items=out)
    items[:] = kept


def pytest_runtest_logreport(report):
    here.note(report)


def pytest_sessionfinish():
    here.tell()

"""A plugin of pytest by which xarray writes arrays of Zarr v3 through region updates.

It stands where xarray hands its values to zarr, or to dask with an array of zarr as the target.
"""

from __future__ import annotations

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from redirecting import Redirection
from xarray.backends.common import ArrayWriter
from zarr.storage import WrapperStore

import shardwrite
from shardwrite.stores import Capability
from shardwrite.stores.zarr_store import ZarrStore

LEFT_OUT = {
    r"test_shard_encoding_with_dask\[2\]": "fails without this plugin, too: Zarr v2 has no shards",
}
here = Redirection(LEFT_OUT)
real_add = ArrayWriter.add


def write(source, target, region):
    array = target if isinstance(target, zarr.Array) else target.array
    key = ... if region is None else region
    here.counts[f"{'sharded' if array.shards else 'unsharded'} from {type(source).__name__}"] += 1
    x = da.from_array(source) if isinstance(source, np.ndarray) and source.ndim else source
    store = array.store_path.store
    if isinstance(store, WrapperStore):  # only the caller knows that it replaces in one step
        known = ZarrStore(store, {Capability.ATOMIC})
        shardwrite.write_region(x, known, key, name=array.path, casting="unsafe")
    else:
        shardwrite.write_region(x, array, key, casting="unsafe")


def is_ours(target):
    array = getattr(target, "array", target)
    return isinstance(array, zarr.Array) and array.metadata.zarr_format == 3 and array.size > 0


def add(self, source, target, region=None):
    if isinstance(source, np.ndarray | da.Array) and is_ours(target):
        write(source, target, region)
    else:
        here.counts["others"] += 1
        real_add(self, source, target, region)


ArrayWriter.add = add


@pytest.fixture(autouse=True)
def run_dir(tmp_path_factory):
    """A store that xarray has wrapped is a foreign one, whose runs need a directory."""
    with dask.config.set({"shardwrite.run-dir": str(tmp_path_factory.mktemp("runs"))}):
        yield


def pytest_collection_modifyitems(config, items):
    here.select(config, items)


def pytest_sessionfinish():
    here.tell()

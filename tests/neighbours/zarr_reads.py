"""A plugin of pytest by which zarr-python's tests of indexing read through `open_sharded`.

What zarr-python alone has, single fields of structured values and blocks, it reads itself. The
plugin notes how each test ends.
"""

from __future__ import annotations

import numpy as np
import zarr
from redirecting import Redirection

import shardwrite

KINDS = {
    "get_basic_selection": "__getitem__",
    "get_orthogonal_selection": "oindex",
    "get_coordinate_selection": "vindex",
    "get_mask_selection": "vindex",
}
here = Redirection()


def reading(name, theirs):
    def read(self, selection=..., *, out=None, fields=None, **keywords):
        if fields or isinstance(selection, zarr.Array):
            here.counts["others"] += 1
            return theirs(self, selection, out=out, fields=fields, **keywords)
        here.counts["ours"] += 1
        ours = shardwrite.open_sharded(self)
        found = (ours if KINDS[name] == "__getitem__" else getattr(ours, KINDS[name]))[selection]
        if out is None:
            return found
        if not hasattr(out, "as_ndarray_like"):
            raise TypeError(f"out argument needs to be an NDBuffer. Got {type(out)!r}")
        into = out.as_ndarray_like()
        if np.shape(into) != np.shape(found):
            raise ValueError("shape of out argument doesn't match")
        into[...] = found
        return into

    return read


def pytest_configure(config):
    for name in KINDS:
        setattr(zarr.Array, name, reading(name, getattr(zarr.Array, name)))


def getitem(self, selection):
    """As zarr-python reads: by fields and blocks itself."""
    items = selection if isinstance(selection, tuple) else (selection,)
    if any(isinstance(item, str | zarr.Array) for item in items):
        here.counts["others"] += 1
        return theirs_getitem(self, selection)
    here.counts["ours"] += 1
    return shardwrite.open_sharded(self)[selection]


theirs_getitem = zarr.Array.__getitem__
zarr.Array.__getitem__ = getitem


def pytest_runtest_logreport(report):
    here.note(report)


def pytest_sessionfinish():
    here.tell()

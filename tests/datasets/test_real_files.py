"""Files of climate and weather, as models and satellites left them; alone, lazily, and as a tree.

They come from `iris-sample-data` of PyPI (Open Government Licence), which is fetched once.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest

xr = pytest.importorskip("xarray")
pytest.importorskip("netCDF4")

sys.path.insert(0, str(Path(__file__).parents[1] / "neighbours"))
from suites import packages  # noqa: E402

from shardwrite.datasets.engine import ShardsBackend  # noqa: E402

pytestmark = pytest.mark.long  # fetches what it needs
SIZES = {"shards": {...: 64}, "chunks": {...: 16}}


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr tells about types
        yield


@pytest.fixture(scope="session")
def files(pytestconfig):
    """Datasets by the names of their files."""
    root = packages(["iris-sample-data"], pytestconfig.cache)
    found = sorted(root.rglob("*.nc"))
    assert len(found) >= 12
    return found


def test_each_file_becomes_a_store(files, tmp_path):
    for path in files:
        for chunks in (None, {}):
            with xr.open_dataset(path, engine="netcdf4", chunks=chunks) as ds:
                ours, theirs = (tmp_path / f"{path.stem}-{chunks}-{who}.zarr" for who in ("o", "t"))
                ds.shardwrite.to_zarr(ours, **SIZES)
                ds.to_zarr(theirs, zarr_format=3)
                with xr.open_zarr(ours) as found, xr.open_zarr(theirs) as wanted:
                    xr.testing.assert_identical(found.load(), wanted.load())
                for engine in ("zarr", ShardsBackend):
                    with xr.open_dataset(ours, engine=engine) as found:
                        xr.testing.assert_identical(found.load(), ds.load())


def test_all_of_them_are_a_tree(files, tmp_path):
    tree = xr.DataTree.from_dict(
        {f"/iris/{path.stem}": xr.open_dataset(path, engine="netcdf4", chunks={}) for path in files}
    )
    tree.shardwrite.to_zarr(tmp_path / "tree.zarr", **SIZES)
    with xr.open_datatree(tmp_path / "tree.zarr", engine="zarr") as found:
        xr.testing.assert_identical(found.load(), tree.load())

"""Files of NetCDF that xarray's wheel has for its own tests; lazily, in chunks, and as a tree."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

xr = pytest.importorskip("xarray")
pytest.importorskip("scipy")

FILES = sorted((Path(xr.__file__).parent / "tests" / "data").glob("*.nc"))


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr tells about types
        yield


@pytest.mark.skipif(not FILES, reason="this xarray has no files")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
@pytest.mark.parametrize("chunks", [None, {}, "auto"])
@pytest.mark.parametrize("decode", [True, False])
def test_a_file_becomes_a_store(tmp_path, path, chunks, decode):
    with xr.open_dataset(path, engine="scipy", chunks=chunks, mask_and_scale=decode) as ds:
        ds.shardwrite.to_zarr(tmp_path / "ours.zarr")
        ds.to_zarr(tmp_path / "theirs.zarr", zarr_format=3)
        with (
            xr.open_zarr(tmp_path / "ours.zarr", mask_and_scale=decode) as found,
            xr.open_zarr(tmp_path / "theirs.zarr", mask_and_scale=decode) as wanted,
        ):
            assert found.sizes == ds.sizes
            xr.testing.assert_identical(found.load(), wanted.load())
            xr.testing.assert_equal(found, ds)

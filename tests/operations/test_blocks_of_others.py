"""Blocks that are no arrays of numpy, and too many axes, are typed errors with a remedy."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
import scipy.sparse
import zarr

import shardwrite
from shardwrite import SourceError, SpecError

SIZES = {"shards": 20, "chunks": 10}


class Unwilling:
    """An array that does not become one of numpy by itself, as those of cupy and sparse."""

    error = TypeError

    def __init__(self, values):
        self.values, self.shape, self.dtype, self.ndim = (
            values,
            values.shape,
            values.dtype,
            values.ndim,
        )

    def __array__(self, *arguments, **keywords):
        raise self.error("Implicit conversion to a NumPy array is not allowed.")

    def __getitem__(self, key):
        return type(self)(self.values[key])


class Cupy(Unwilling):
    def get(self):
        return self.values


class Sparse(Unwilling):
    error = RuntimeError

    def todense(self):
        return self.values


@pytest.mark.parametrize("kind", [Cupy, Sparse])
def test_they_are_refused_before_a_run_and_the_remedy_helps(kind, tmp_path):
    values = np.arange(1600.0).reshape(40, 40)
    blocks = da.from_array(values, chunks=10).map_blocks(kind, meta=kind(np.empty((0, 0))))
    single, method = kind(values), "get" if kind is Cupy else "todense"
    with pytest.raises(SpecError, match=rf"its chunks are no arrays .*lambda a: a\.{method}\(\)"):
        shardwrite.to_sharded_zarr(blocks, tmp_path / "x", **SIZES)
    with pytest.raises(SpecError, match=rf"it is no array of numpy .*convert it: x\.{method}\(\)"):
        shardwrite.to_sharded_zarr(single, tmp_path / "x", **SIZES)
    assert not list(tmp_path.iterdir())
    dense = blocks.map_blocks(lambda a: getattr(a, method)(), dtype=float, meta=np.empty((0, 0)))
    for name, x in {"blocks": dense, "single": getattr(single, method)()}.items():
        shardwrite.to_sharded_zarr(x, tmp_path / name, **SIZES)
        np.testing.assert_array_equal(zarr.open_array(tmp_path / name)[...], values)


def test_tables_of_pandas_are_arrays(tmp_path):
    """They have a method `get`, but another one than arrays of cupy."""
    pd = pytest.importorskip("pandas")
    values = np.arange(64.0).reshape(8, 8)
    for name, x in {"table": pd.DataFrame(values), "column": pd.Series(values[0])}.items():
        shardwrite.to_sharded_zarr(x, tmp_path / name, shards=8, chunks=4)
        np.testing.assert_array_equal(zarr.open_array(tmp_path / name)[...], x.to_numpy())


@pytest.mark.parametrize("kind", [Cupy, Sparse, scipy.sparse.csr_matrix])
def test_blocks_that_dask_took_for_arrays(kind, tmp_path):
    x = da.ones((40, 40), chunks=10)
    call = {"store": tmp_path / "x", "source_id": "it", **SIZES}
    with pytest.raises(SourceError, match=r"the block is a .*, and no array of numpy.*map_blocks"):
        shardwrite.to_sharded_zarr(x.map_blocks(kind, meta=np.empty((0, 0))), **call)
    shardwrite.to_sharded_zarr(x, **call)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("n", [33, 64])
def test_too_many_axes(n, tmp_path):
    x = np.ones((1,) * n)
    sizes = {"shards": 1, "chunks": 1}
    for call in (
        lambda: shardwrite.to_sharded_zarr(x, tmp_path / "x", **sizes),
        lambda: shardwrite.plan(x, **sizes),
        lambda: shardwrite.create(tmp_path / "x", x.shape, float, **sizes),
    ):
        with pytest.raises(SpecError, match=f"has {n} axes, and at most 32 can be written"):
            call()
    assert not list(tmp_path.iterdir())


def test_as_many_axes_as_there_can_be_and_an_array_of_others_with_more(tmp_path):
    x = np.arange(16.0).reshape((4, 4) + (1,) * 30)
    shardwrite.to_sharded_zarr(x, tmp_path / "x", shards=(2, 4) + (1,) * 30, chunks=1)
    assert (shardwrite.open_sharded(tmp_path / "x")[...] == x).all()
    z = zarr.create_array(tmp_path / "y", shape=(1,) * 33, chunks=(1,) * 33, dtype=float)
    with pytest.raises(SpecError, match="has 33 axes"):
        shardwrite.write_region(1.0, z, ...)

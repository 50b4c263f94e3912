"""One run writes a whole hierarchy: a tree of arrays that is converted, arrays that go into one call
of `store`, or the scales of a volume. Nothing of it is visible before all of it is there.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import dask.array as da
import numpy as np
import zarr

import shardwrite

sys.path.insert(0, str(Path(__file__).parent))
from driver import Operation, nothing

SIZE = 32


def values(number: int) -> np.ndarray:
    """Values of one array."""
    x = np.arange(SIZE**3, dtype="u4").reshape((SIZE,) * 3)
    return (x * np.uint32(2654435761) >> np.uint32(16)).astype("u2") + np.uint16(number)


def name_of(number: int) -> str:
    """Path of an array: every third lies in a group of a group."""
    return f"a{number}" if number % 3 else f"g/h{number % 7}/a{number}"


def make_source(n_arrays: int, path: Path) -> None:
    """The tree that is converted: groups with attributes, and arrays of chunks."""
    root = zarr.create_group(path.with_name("source"), attributes={"what": "a tree"})
    how = {"shape": (SIZE,) * 3, "chunks": (16,) * 3, "dtype": "u2", "compressors": None}
    for number in range(n_arrays):
        if number % 3 == 0:
            root.require_group("g").attrs["deep"] = 1
        root.create_array(name_of(number), **how)[...] = values(number)


def convert(path: Path) -> None:
    """Give all arrays shards."""
    shardwrite.shard(path.with_name("source"), path, 2)


def store(n_arrays: int, path: Path) -> None:
    """Write all arrays by one call."""
    arrays = [da.from_array(values(n), chunks=(16, 32, 32)) for n in range(n_arrays)]
    names = [name_of(n) for n in range(n_arrays)]
    how = {"shards": 16, "chunks": 8, "source_id": "the same"}
    shardwrite.store(arrays, [path] * n_arrays, names=names, **how)


def write_scales(n_arrays: int, path: Path) -> None:
    """Write a volume with so many scales."""
    voxels = [(2 ** (n % 3), 2 ** (n // 3 % 3), 2 ** (n // 9)) for n in range(n_arrays)]
    arrays = [
        da.from_array(values(n)[tuple(slice(None, None, step) for step in voxel)], chunks=16)
        for n, voxel in enumerate(voxels)
    ]
    others = dict(zip(voxels[1:], arrays[1:], strict=True))
    how = {"axes": "xyz", "chunks": 8, "source_id": "the same"}
    shardwrite.to_precomputed(arrays[0], path, resolution=voxels[0], scales=others, **how)


def tree(n: int) -> Operation:
    return Operation(partial(make_source, n), convert, is_exact=True, published="x/zarr.json")


def arrays(n: int) -> Operation:
    return Operation(nothing, partial(store, n), is_exact=True, published="x/zarr.json")


def scales(n: int) -> Operation:
    return Operation(nothing, partial(write_scales, n), is_exact=True, published="x/info")


HIERARCHIES = {
    "tree of 6 arrays": tree(6),
    "6 arrays by one call": arrays(6),
    "6 scales by one call": scales(6),
}
LARGE = {
    "tree of 500 arrays": tree(500),
    "40 arrays by one call": arrays(40),
    "12 scales by one call": scales(12),
}

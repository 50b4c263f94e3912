"""Arrays of the storage transformer of 2022, written and read by zarr-python 2.17.

The program runs in an environment of its own:

    python -m venv zarr-2022
    zarr-2022/bin/pip install "zarr==2.17.2" "numpy<2" "numcodecs<0.13" pytest
    export ZARR_V3_EXPERIMENTAL_API=1 ZARR_V3_SHARDING=1
    zarr-2022/bin/python tests/neighbours/zarr_2022.py write|read DIRECTORY
    zarr-2022/bin/python tests/neighbours/zarr_2022.py golden
"""

from __future__ import annotations

import itertools
import sys

import numpy as np

DTYPES = ["|u1", "<u2", ">i4", "<f8", "|b1", "<c8", "<M8[ns]", "<m8[s]"]
COMPRESSORS = ["none", "gzip", "zlib", "blosc", "bz2", "lz4", "lzma"]
SHAPES = [
    ((13, 9), (3, 2), (2, 3)),
    ((7,), (2,), (3,)),
    ((5, 4, 6), (2, 4, 1), (2, 1, 3)),
    ((), (), ()),
]


def cases():
    """Name, dtype, compressor, shape, chunks, chunks in a shard, and order of each array."""
    for n, (dtype, compressor) in enumerate(itertools.product(DTYPES, COMPRESSORS)):
        shape, chunks, counts = SHAPES[n % len(SHAPES)]
        order = "CF"[n // 3 % 2] if len(shape) > 1 else "C"
        yield f"g{n % 3}/x{n}", dtype, compressor, shape, chunks, counts, order


def values(shape, dtype):
    """Values of an array; some chunks hold only zeros."""
    flat = np.arange(int(np.prod(shape))) % 31
    flat[: len(flat) // 3] = 0
    return flat.reshape(shape).astype(dtype)


def codec(name):
    import numcodecs

    return None if name == "none" else numcodecs.get_codec({"id": name})


def write(store):
    import zarr
    from zarr._storage.v3_storage_transformers import ShardingStorageTransformer

    for name, dtype, compressor, shape, chunks, counts, order in cases():
        x = zarr.create(
            shape, chunks=chunks, dtype=dtype, compressor=codec(compressor), order=order,
            store=store, path=name, zarr_version=3, fill_value=0, write_empty_chunks=False,
            storage_transformers=[ShardingStorageTransformer("indexed", counts)],
        )  # fmt: skip
        x[...] = values(shape, dtype)
        x.attrs["n"] = [1, name]


def read(store):
    import zarr

    for name, dtype, _, shape, chunks, _, order in cases():
        x = zarr.open_array(store, path=name, mode="r", zarr_version=3)
        assert (x.shape, x.chunks, x.dtype, x.order) == (shape, chunks, np.dtype(dtype), order), (
            name
        )
        assert np.array_equal(x[...], values(shape, dtype)), name
        assert x.attrs.asdict() == {"n": [1, name]}, name
        assert bool(shape) <= x.nchunks_initialized <= x.nchunks, name


def golden():
    """A small array as the objects of its store."""
    import zarr
    from zarr._storage.v3_storage_transformers import ShardingStorageTransformer

    store = zarr.MemoryStoreV3()
    x = zarr.create(
        (3, 4), chunks=(1, 2), dtype="<u2", compressor=None, store=store, path="x", zarr_version=3,
        storage_transformers=[ShardingStorageTransformer("indexed", (2, 2))], fill_value=0,
        write_empty_chunks=False,
    )  # fmt: skip
    x[...] = [[1, 2, 3, 4], [0, 0, 5, 6], [7, 8, 9, 10]]
    for key in sorted(store):
        print(repr(key), repr(bytes(store[key])))


if __name__ == "__main__":
    command, *rest = sys.argv[1:]
    if command == "golden":
        golden()
    else:
        import zarr

        {"write": write, "read": read}[command](zarr.DirectoryStoreV3(rest[0]))

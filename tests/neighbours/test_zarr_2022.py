"""zarr-python 2.17, the last with the storage transformer, reads what we write, and the other way.
Its own tests of the transformer pass with `transformer_view` in its place."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import dask.array as da
import numpy as np
import pytest

import shardwrite

sys.path.insert(0, str(Path(__file__).parent))

import zarr_2022

pytestmark = pytest.mark.long  # fetches what it needs
SUITES = (
    "test_core.py::TestArrayWithShardingStorageTransformerV3",
    "test_storage_v3.py::TestStorageTransformerV3",
)


@pytest.fixture(scope="session")
def theirs(old_python):
    """A function that runs `zarr_2022` by zarr-python 2.17."""
    environ = {**os.environ, "ZARR_V3_EXPERIMENTAL_API": "1", "ZARR_V3_SHARDING": "1"}

    def run(*arguments):
        program = Path(__file__).parent / "zarr_2022.py"
        subprocess.run(
            [old_python, "-W", "ignore", program, *arguments],
            env=environ, timeout=300, check=True,
        )  # fmt: skip

    return run


def test_we_read_what_they_write(theirs, tmp_path):
    theirs("write", str(tmp_path / "h"))
    for name, dtype, _, shape, chunks, counts, _ in zarr_2022.cases():
        x = shardwrite.open_sharded(tmp_path / "h", name=name)
        grid = x.metadata.grid
        assert (grid.chunks, grid.chunks_per_shard) == (chunks, counts)
        assert x.metadata.document["attributes"] == {"n": [1, name]}
        np.testing.assert_array_equal(x[...], zarr_2022.values(shape, dtype))


def test_they_read_what_we_write(theirs, tmp_path):
    for name, dtype, compressor, shape, chunks, counts, order in zarr_2022.cases():
        codec = compressor if compressor in ("none", "gzip", "blosc") else f"numcodecs.{compressor}"
        axes = list(reversed(range(len(shape))))
        layout = {
            "shards": tuple(n * c for n, c in zip(chunks, counts, strict=True)),
            "chunks": chunks,
            "compressors": None if codec == "none" else {"name": codec, "configuration": SETTINGS[compressor]},
            "filters": [{"name": "transpose", "configuration": {"order": axes}}]
            if order == "F"
            else "auto",
            "serializer": {"name": "bytes", "configuration": {"endian": "big"}}
            if dtype[0] == ">"
            else "auto",
        }  # fmt: skip
        values = zarr_2022.values(shape, np.dtype(dtype).newbyteorder("="))
        shardwrite.to_sharded_zarr(
            da.from_array(values), tmp_path / "h", name=name, format="transformer-2022",
            attributes={"n": [1, name]}, durability="none", fill_value=np.zeros((), values.dtype)[()], **layout,
        )  # fmt: skip
    theirs("read", str(tmp_path / "h"))


def test_their_tests_of_the_transformer(old_python, tmp_path):
    """The same number passes with the view as with their own."""
    here = Path(__file__).parent
    (suites,) = old_python.parents[1].glob("lib/python*/site-packages/zarr/tests")
    told = tmp_path / "told.json"
    environ = {
        **os.environ,
        "ZARR_V3_EXPERIMENTAL_API": "1",
        "ZARR_V3_SHARDING": "1",
        "PYTHONPATH": str(here),
        "SHARDWRITE_PATH": os.pathsep.join([str(here.parent.parent), os.environ["PYTHONPATH"]]),
        "SHARDWRITE_SERVER": json.dumps([sys.executable, str(here / "zarr_2022_server.py")]),
        "SHARDWRITE_TOLD": str(told),
    }
    done = subprocess.run(
        [old_python, "-m", "pytest", "-q", "-W", "ignore", "-p", "no:cacheprovider",
         "-c", os.devnull, "--basetemp", tmp_path / "theirs", "-p", "zarr_2022_plugin", *(suites / name for name in SUITES)],
        cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=580, check=False,
    )  # fmt: skip
    print(done.stdout[-3000:], done.stderr[-1000:])
    assert done.returncode == 0
    assert re.search(r"\b78 passed, 2 skipped", done.stdout)
    asked = json.loads(told.read_text())
    assert min(asked["get"], asked["set"], asked["delete"], asked["list"]) > 100


SETTINGS = {
    "none": {},
    "gzip": {"level": 3},
    "zlib": {"level": 2},
    "blosc": {"cname": "zstd", "clevel": 3, "shuffle": "bitshuffle", "blocksize": 0, "typesize": 2},
    "bz2": {"level": 2},
    "lz4": {"acceleration": 1},
    "lzma": {"format": 1, "check": -1, "preset": None, "filters": None},
}

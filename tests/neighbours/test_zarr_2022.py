"""zarr-python 2.17, the last with the storage transformer, reads what we write, and the other way."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import dask.array as da
import numpy as np
import pytest

import shardwrite

sys.path.insert(0, str(Path(__file__).parent))

import zarr_2022

pytestmark = pytest.mark.long  # fetches what it needs
PACKAGES = ("zarr==2.17.2", "numpy<2", "numcodecs<0.13", "pytest")


@pytest.fixture(scope="session")
def theirs(pytestconfig):
    """A function that runs `zarr_2022` by zarr-python 2.17 in an environment of its own."""
    if sys.version_info >= (3, 13):
        pytest.skip("numpy 1 has no wheels for this Python")
    into = Path(pytestconfig.cache.mkdir("neighbours")) / "zarr-2022"
    if not (into / "done").exists():
        venv.create(into, with_pip=True, clear=True)
        pip = [into / "bin/python", "-m", "pip", "--quiet", "install", *PACKAGES]
        if subprocess.run(pip, timeout=400, check=False).returncode:
            pytest.skip("pip cannot fetch it here")
        (into / "done").touch()
    environ = {**os.environ, "ZARR_V3_EXPERIMENTAL_API": "1", "ZARR_V3_SHARDING": "1"}

    def run(*arguments):
        program = Path(__file__).parent / "zarr_2022.py"
        subprocess.run(
            [into / "bin/python", "-W", "ignore", program, *arguments],
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


SETTINGS = {
    "none": {},
    "gzip": {"level": 3},
    "zlib": {"level": 2},
    "blosc": {"cname": "zstd", "clevel": 3, "shuffle": "bitshuffle", "blocksize": 0, "typesize": 2},
    "bz2": {"level": 2},
    "lz4": {"acceleration": 1},
    "lzma": {"format": 1, "check": -1, "preset": None, "filters": None},
}

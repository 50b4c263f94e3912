"""What lies in a bucket is read by others: file systems of fsspec, and zarrita over HTTP."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import zarr.storage
from servers import BUCKET, KEY, SECRET, below_bucket, on

import shardwrite

sys.path.insert(0, str(Path(__file__).parents[1] / "neighbours"))
from suites import python_with

VALUES = np.random.default_rng(0).integers(1, 2**32, (70, 50), dtype="u4")
COUNTED = np.arange(3500, dtype="u4").reshape(VALUES.shape)
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CONFORMANCE = HERE.parent / "conformance"


@pytest.fixture
def written(service, url):
    """URL of an array, whose inner chunks and shards overhang, and part of which was updated."""
    x = da.from_array(VALUES, chunks=(16, 50))
    x.to_sharded_zarr(url, shards=(32, 16), chunks=(8, 4))
    da.full((30, 6), 7, dtype="u4").to_sharded_zarr(url, region=np.s_[10:40, 3:9])
    return url


def wanted(values=VALUES):
    found = values.copy()
    found[10:40, 3:9] = 7
    return found


@on("moto", long=["seaweed"])
def test_a_file_system_of_fsspec(service, written):
    """That of obstore, which cannot read the last bytes of an object."""
    fsspec = pytest.importorskip("obstore.fsspec")

    class Files(fsspec.FsspecStore):
        async def _cat_file(self, path, start=None, end=None, **options):
            if start is not None and start < 0 and end is None:
                end = (await self._info(path))["size"]
                start += end
            return await super()._cat_file(path, start, end, **options)

    files = Files(
        "s3", config=service.options, client_options={"allow_http": True}, asynchronous=True
    )
    store = zarr.storage.FsspecStore(files, path=f"{BUCKET}/{below_bucket(written)}")
    np.testing.assert_array_equal(zarr.open_array(store, mode="r")[...], wanted())


@pytest.fixture(scope="session")
def with_s3fs(pytestconfig):
    """A Python that has s3fs beside all that shardwrite needs."""
    needed = ("--requirement", ROOT / "pyproject.toml", "--extra", "cloud", "s3fs")
    return python_with("s3fs", pytestconfig.cache, *needed)


@pytest.mark.long  # fetches what it needs
@on("moto")
def test_s3fs(service, url, written, with_s3fs):
    """It reads what was written here, and what shardwrite writes and updates through it."""
    options = {"key": KEY, "secret": SECRET, "endpoint_url": service.endpoint}
    another = f"{url.removesuffix('x.zarr')}by-s3fs.zarr"
    ended = subprocess.run(
        [with_s3fs, HERE / "by_s3fs.py", written, another, json.dumps(options)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        timeout=200,
        check=True,
    )
    found = np.frombuffer(ended.stdout, "u4").reshape(2, *VALUES.shape)
    np.testing.assert_array_equal(found, [wanted(), wanted(COUNTED)])
    np.testing.assert_array_equal(shardwrite.open_sharded(another)[...], wanted(COUNTED))


@pytest.mark.long
@on("moto")
def test_zarrita_over_http(service, written):
    if not shutil.which("node") or not (CONFORMANCE / "node_modules/zarrita").exists():
        pytest.skip("node and zarrita are not here: needs `npm install` in tests/conformance")
    # moto gives anybody who shows some signature what he asks for.
    at = f"{service.endpoint}/{BUCKET}/{below_bucket(written)}?Signature=any"
    ended = subprocess.run(
        ["node", CONFORMANCE / "read.mjs", at],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    answer = json.loads(ended.stdout)
    assert "error" not in answer, answer
    found = np.frombuffer(base64.b64decode(answer["data"]), "<u4").reshape(answer["shape"])
    np.testing.assert_array_equal(found, wanted())

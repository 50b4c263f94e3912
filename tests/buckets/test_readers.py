"""What lies in a bucket is read by others: file systems of fsspec, and zarrita over HTTP."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import zarr.storage
from servers import BUCKET, below_bucket, on

VALUES = np.random.default_rng(0).integers(1, 2**32, (70, 50), dtype="u4")
CONFORMANCE = Path(__file__).parents[1] / "conformance"


@pytest.fixture
def written(service, url):
    """URL of an array, whose inner chunks and shards overhang, and part of which was updated."""
    x = da.from_array(VALUES, chunks=(16, 50))
    x.to_sharded_zarr(url, shards=(32, 16), chunks=(8, 4))
    da.full((30, 6), 7, dtype="u4").to_sharded_zarr(url, region=np.s_[10:40, 3:9])
    return url


def wanted():
    found = VALUES.copy()
    found[10:40, 3:9] = 7
    return found


@on("moto", long=["seaweed"])
def test_a_file_system_of_fsspec(service, written):
    """That of obstore, which cannot read the last bytes of an object. s3fs is not installed."""
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

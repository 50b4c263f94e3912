"""Through s3fs, read an array of a bucket by zarr-python, and have shardwrite write another.

    python by_s3fs.py URL NEW_URL OPTIONS

`test_readers.py` runs it in an environment of its own, because s3fs pins what else talks to S3.
The options are those of s3fs, in JSON. The values that zarr-python finds in both arrays are
written to standard output, as bytes.
"""

from __future__ import annotations

import json
import sys
import tempfile

import dask.array as da
import numpy as np
import zarr
from zarr.storage import FsspecStore

import shardwrite

url, new_url, told = sys.argv[1:]
options = json.loads(told)
store = FsspecStore.from_url(new_url, storage_options=options)
with tempfile.TemporaryDirectory() as runs:
    x = da.arange(3500, dtype="u4", chunks=800).reshape(70, 50)
    x.to_sharded_zarr(store, shards=(32, 16), chunks=(8, 4), run_dir=runs)
    part = da.full((30, 6), 7, dtype="u4")
    part.to_sharded_zarr(store, region=np.s_[10:40, 3:9], run_dir=runs, exclusive=True)
    itself = zarr.open_array(new_url, storage_options=options)
    plan = shardwrite.plan_region(itself, store, ..., run_dir=runs)
    assert plan.staged_with, "nobody has seen that an array is changed by what is read from it"
assert shardwrite.verify(store, deep=True).is_good
for at in url, new_url:
    found = zarr.open_array(at, mode="r", storage_options=options)
    sys.stdout.buffer.write(found[...].tobytes())

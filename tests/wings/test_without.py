"""Without the modules that know HDF5, nothing overwrites a shard that is such a file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import dask.array as da
import numpy as np
import pytest

import shardwrite

sys.path.insert(0, str(Path(__file__).parent))
from blocked import run_without

pytest.importorskip("h5py")
pytest.importorskip("hdf5plugin")

X = np.arange(1, 65, dtype="f8").reshape(8, 8)

PROGRAM = """
from pathlib import Path

import dask.array as da
import numpy as np
import shardwrite

path, x = Path(sys.argv[1]), np.arange(1, 65, dtype="f8").reshape(8, 8)
corner = (slice(0, 2), slice(0, 2))
whole = (slice(0, 8), slice(0, 8))

def stream():
    with shardwrite.ShardWriter(path) as writer:
        writer.append(x)

calls = {
    "a plain write": lambda: da.from_array(x).to_sharded_zarr(
        path.with_name("plain"), shards=4, chunks=2, compressors=None
    ),
    "an update of it": lambda: shardwrite.write_region(1.0, path.with_name("plain"), corner),
    "a part of a shard": lambda: shardwrite.write_region(1.0, path, corner),
    "all": lambda: shardwrite.write_region(x, path, whole),
    "append only": lambda: shardwrite.write_region(1.0, path, corner, strategy="append-only"),
    "in place": lambda: shardwrite.write_region(
        1.0, path, corner, strategy=shardwrite.FixedOrder(in_place=True)
    ),
    "by its name": lambda: shardwrite.write_region(1.0, path, corner, strategy="hdf5"),
    "an append": lambda: shardwrite.write_region(x[:2], path, "append"),
    "erase": lambda: shardwrite.erase(path, whole),
    "a stream": stream,
    "compact": lambda: shardwrite.compact(path, above=0),
    "repair": lambda: shardwrite.repair(path, da.from_array(x)),
    "scan": lambda: shardwrite.repair(path, scan=True),
    "unshard": lambda: shardwrite.unshard(path),
    "reshard": lambda: shardwrite.reshard(path, None, (1, 1)),
    "consume": lambda: shardwrite.reshard(path, path.with_name("n"), (1, 1), consume=True),
}

def shards():
    return {file: file.read_bytes() for file in (path / "c").rglob("*") if file.is_file()}

before = shards()
assert len(before) == 4
for name, call in calls.items():
    try:
        call()
    except (shardwrite.ShardwriteError, ImportError, LookupError):
        print(name)
    assert shards() == before, name
"""
MAY_END = {"a plain write", "an update of it"}
CALLS = {line.split('"')[1] for line in PROGRAM.splitlines() if line.startswith('    "')}


@pytest.mark.parametrize("is_damaged", [False, True], ids=["whole", "damaged"])
def test_no_file_is_overwritten(tmp_path, is_damaged):
    path = tmp_path / "x"
    x = da.from_array(X, chunks=4)
    shardwrite.to_sharded_zarr(x, path, shards=4, chunks=2, strategy="hdf5")
    if is_damaged:
        shard = path / "c/0/1"
        os.chmod(shard, 0o644)
        os.truncate(shard, shard.stat().st_size - 20)
    told = run_without(["hdf5"], PROGRAM, path, packages=["h5py"])
    assert set(told.splitlines()) == CALLS - MAY_END

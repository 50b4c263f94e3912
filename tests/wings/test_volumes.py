"""Without the part that knows volumes of Neuroglancer, nothing of a volume is overwritten."""

from __future__ import annotations

import sys
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
from helpers import contents

import shardwrite

sys.path.insert(0, str(Path(__file__).parent))
from blocked import run_without

X = da.from_array(np.arange(1, 1 + 16**3, dtype="uint32").reshape(16, 16, 16), chunks=8)
KEY = "4_4_40"
CALLS = {
    "write": "da.ones((4, 4), chunks=2).to_sharded_zarr(path, shards=2, chunks=1)",
    "replace": "da.ones((4, 4), chunks=2).to_sharded_zarr(path, shards=2, chunks=1, mode='w')",
    "replace by a part": (
        "x = da.ones((4, 4), chunks=2)\n"
        "shardwrite.prepare(x, path, shardwrite.plan(x, shards=2, chunks=1), mode='w')"
    ),
    "create": "shardwrite.create(path, (8, 8), 'u1', shards=4, chunks=2, mode='w')",
    "stream": "shardwrite.ShardWriter(path)",
    "region": "shardwrite.write_region(1, path, (slice(1),) * 3)",
    "append": "shardwrite.write_region(X, path, 'append')",
    "erase": "shardwrite.erase(path, (slice(1),) * 3)",
    "compact": "shardwrite.compact(path, above=0)",
    "repair": "shardwrite.repair(path, X, compare=True)",
    "cut": "shardwrite.repair(path, scan=True, salvage=True)",
    "accept": "shardwrite.verify(path, accept=True)",
    "part": "shardwrite.write_part(X, path, 0, 1)",
    "finalize": "shardwrite.finalize(path)",
    "abandon": "shardwrite.abandon(path)",
    "read": "shardwrite.from_sharded_zarr(path)",
}
PROGRAM = """
import sys
import dask.array as da
import numpy as np
import shardwrite
from shardwrite.errors import ShardwriteError

X = da.from_array(np.zeros((16, 16, 16), "u4"), chunks=8)
for path in sys.argv[1:]:
    for name, call in {calls!r}.items():
        try:
            exec(call)
        except ShardwriteError:
            print("refused", name)
        else:
            print("done", name, path)
"""


@pytest.fixture
def volumes(tmp_path):
    """Scales that are whole, begun, and of another program, and shards without a volume."""
    found = []
    for code in ("identity", "murmurhash3_x86_128"):
        sharding = {"preshift_bits": 0, "minishard_bits": 1, "shard_bits": 4, "hash": code}
        new = {"axes": "zyx", "resolution": (4, 4, 40), "chunks": 8, "sharding": sharding}
        shardwrite.to_precomputed(X, tmp_path / code, **new)
        begun = tmp_path / f"{code}-begun" / KEY
        begun.parent.mkdir()
        shardwrite.prepare(X, begun, shardwrite.plan_precomputed(X, **new))
        shardwrite.write_part(X, begun, 0, 2)
        found += [tmp_path / code, tmp_path / code / KEY, begun]
    other = tmp_path / "other"
    shardwrite.to_precomputed(X, other, **new)
    for path in (other / KEY).glob("*.json"):
        path.unlink()
    return [*found, other, other / KEY]


@pytest.mark.long
def test_nothing_of_a_volume_is_overwritten(tmp_path, volumes):
    before = contents(tmp_path)
    told = run_without(["volumes"], PROGRAM.format(calls=CALLS), *volumes).splitlines()
    assert contents(tmp_path) == before
    assert told == [f"refused {name}" for _ in volumes for name in CALLS]

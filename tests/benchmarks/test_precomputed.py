"""The comparison of writers of volumes has all of them put the same shards."""

from __future__ import annotations

import dask.array as da
import pytest

import shardwrite
from benchmarks.volumes import CASES, CHUNK, RESOLUTION, WRITERS, Work, check, make_source

SIDE = 2 * CHUNK


@pytest.mark.parametrize("name", CASES)
def test_shards_of_the_same_size(name):
    case = CASES[name]
    for side, shard_nbytes in ((512, 2**24), (256, 2**25), (512, 2**22)):
        sharding = case.sharding(side, shard_nbytes)
        planned = shardwrite.plan_precomputed(
            da.zeros((side,) * 3, chunks=256, dtype=case.dtype),
            axes="zyx",
            resolution=RESOLUTION,
            encoding=None if case.encoding == "raw" else case.encoding,
            type=case.kind,
            sharding=sharding,
        )
        assert planned.metadata.grid.shards == case.shard_shape(sharding)


def test_what_is_written_is_compared(tmp_path):
    pytest.importorskip("tensorstore")
    case = CASES["raw"]
    work = Work(case, tmp_path / "x.npy", tmp_path / "v", case.sharding(SIDE, 2**19), 1)
    make_source(work.source, case, SIDE)
    WRITERS["shardwrite"](work, None)
    assert check(work) == len(work.shards()) == 4
    (tmp_path / "v/4_4_40/1.shard").write_bytes((tmp_path / "v/4_4_40/2.shard").read_bytes())
    with pytest.raises((SystemExit, ValueError)):
        check(work)

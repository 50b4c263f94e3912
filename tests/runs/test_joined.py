"""A process that has joined a run, which another process then ends."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
import seams

import shardwrite
from shardwrite.errors import RunEndedError

VALUES = np.arange(1, 65, dtype="u2").reshape(8, 8)


@pytest.mark.parametrize("is_update", [False, True])
def test_a_run_that_begins_while_another_ends_hides_no_success(tmp_path, monkeypatch, is_update):
    """Four processes begin one plan at once. One has ended the run, one has begun another, which it
    will take back, and one that had joined the first run must learn that it is done."""
    path, x = tmp_path / "x", da.from_array(VALUES, chunks=4)
    if is_update:
        shardwrite.create(path, (8, 8), "u2", shards=4, chunks=2)

    def write():
        if is_update:
            return shardwrite.write_region(x, path, ..., source_id="x")
        return x.to_sharded_zarr(path, shards=4, chunks=2, source_id="x")

    real, begun = seams.real("begin runs"), []

    def ended_by_another(jobs, *_):
        monkeypatch.setattr(*seams.step("begin runs"), real)
        write()
        (job,) = jobs
        receipt = seams.receipt_in(path)
        run = receipt.updates[-1].run if is_update else receipt.run
        begun.append(seams.begin_unseen(job))
        raise RunEndedError("another process has ended this run", path=f"run-{run}")

    monkeypatch.setattr(*seams.step("begin runs"), ended_by_another)
    result = write()
    assert begun[0] is not None
    assert result.n_shards == 4
    np.testing.assert_array_equal(shardwrite.open_sharded(path)[...], VALUES)

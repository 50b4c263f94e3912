"""How far a run is, from what lies on disk; with and without SLURM."""

from __future__ import annotations

import json
import threading

import dask.array as da
import numpy as np
import pytest
import seams
from click.testing import CliRunner

import shardwrite
from shardwrite.cli import main
from shardwrite.slurm.notes import record_jobs
from shardwrite.slurm.status import status

SHAPE = (100, 96)


@pytest.fixture
def begun(tmp_path):
    x = da.from_array(np.ones(SHAPE, "u4"), chunks=12)
    shardwrite.prepare(
        x, tmp_path / "x", shardwrite.plan(x, shards=8, chunks=4, memory_limit="100kB")
    )
    return x, tmp_path / "x"


@pytest.mark.compat
def test_at_half_time_and_after(begun, monkeypatch):
    x, path = begun
    monkeypatch.setenv("PATH", "")
    target = seams.target_of(path)
    record_jobs(target, "7", "8", 4)
    results = [shardwrite.write_part(x, path, k, 4) for k in (0, 3)]
    found = status(target)
    assert (found.n_shards, found.raw_nbytes) == (13 * 12, 100 * 96 * 4)
    assert found.n_done_shards == sum(r.n_shards for r in results)
    assert found.done_nbytes == sum(r.raw_nbytes for r in results)
    assert (found.n_writers, found.seconds_left, found.is_whole) == (0, None, False)
    assert (found.n_parts, found.parts_left) == (4, [1, 2])
    assert "squeue is not in PATH" in found.note
    done = CliRunner().invoke(main, ["slurm", "status", str(path)])
    assert done.exit_code == 85
    assert "2 of 4 left: 1-2" in done.output
    for k in (1, 2):
        shardwrite.write_part(x, path, k, 4)
    shardwrite.finalize(path)
    done = CliRunner().invoke(main, ["slurm", "status", str(path), "--json"])
    assert done.exit_code == 0
    facts = json.loads(done.output)
    assert facts["is_whole"] is True
    assert facts["n_done_shards"] == facts["n_shards"] == 13 * 12
    assert facts["seconds_left"] == 0


def test_a_writer_at_work(begun):
    x, path = begun
    wait, go = threading.Event(), threading.Event()
    seen = []

    def report(_):
        seen.append(1)
        if len(seen) == 5:
            wait.set()
            go.wait(30)

    writer = threading.Thread(
        target=shardwrite.write_part, args=(x, path, 0, 1), kwargs={"progress": report}
    )
    writer.start()
    assert wait.wait(30)
    found = seams.status_of(path)
    go.set()
    writer.join()
    assert found.n_writers == 1
    assert 0 < found.n_done_shards < 13 * 12
    assert found.nbytes_per_second > 0
    assert found.seconds_left > 0
    assert "at this speed" in str(found)


def test_nothing_begun(tmp_path):
    done = CliRunner().invoke(main, ["slurm", "status", str(tmp_path / "x")])
    assert done.exit_code == 85
    assert "nothing was begun" in done.output

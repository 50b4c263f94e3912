"""Chunks of files that are adopted: how many there may be, and which filters they have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr
from click.testing import CliRunner

import shardwrite
import shardwrite.operations.adopting as adopting
from shardwrite import PlanError, SpecError
from shardwrite.cli import main
from shardwrite.plan import limits

h5py = pytest.importorskip("h5py")
pytest.importorskip("hdf5plugin")


def sparse(file: Path, n: int) -> Path:
    with h5py.File(file, "w") as opened:
        opened.create_dataset("v", shape=(n,), chunks=(1,), dtype="u1")[0] = 1
    return file


@pytest.mark.parametrize("how", ["copy", "move", "link"])
def test_indexes_that_are_far_larger_than_the_files_are_refused(tmp_path, how):
    """At once, and without the memory for such an index."""
    file = sparse(tmp_path / "a.h5", 5 * 10**7)
    before = file.read_bytes()
    assert len(before) < 10_000
    with pytest.raises(SpecError, match=r"50,000,000 chunks.* would take 800,000,000 bytes"):
        shardwrite.adopt(file, tmp_path / "x", how=how)
    assert [path.name for path in tmp_path.iterdir()] == ["a.h5"]
    assert file.read_bytes() == before


def test_the_remedy_for_sparse_files(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "_FREE_INDEX_NBYTES", 2**10)
    file = sparse(tmp_path / "a.h5", 2000)
    with pytest.raises(SpecError, match=r"in larger chunks, with shardwrite write --chunks"):
        shardwrite.adopt(file, tmp_path / "x", how="move")
    arguments = ["write", f"{file}::v", str(tmp_path / "x"), "--chunks", "500", "--shards", "2000"]
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert np.flatnonzero(shardwrite.open_sharded(tmp_path / "x")[...]).tolist() == [0]
    monkeypatch.undo()
    shardwrite.adopt(file, tmp_path / "y", how="move")  # a small index is no matter


@pytest.mark.parametrize("how", ["move", "link"])
def test_an_index_that_does_not_fit_into_memory(tmp_path, monkeypatch, how):
    file = sparse(tmp_path / "a.h5", 2000)
    monkeypatch.setattr(adopting, "memory_limit_nbytes", lambda: 64 * 1999)
    with pytest.raises(PlanError, match="takes 128,000 bytes, and this process may use 127,936"):
        shardwrite.adopt(file, tmp_path / "x", how=how)
    monkeypatch.setattr(adopting, "memory_limit_nbytes", lambda: 64 * 2000)
    shardwrite.adopt(file, tmp_path / "x", how=how)
    assert zarr.open_array(tmp_path / "x", mode="r")[:2].tolist() == [1, 0]

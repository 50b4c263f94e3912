"""A conversion that consumes its source, when a call to the system fails: nothing is lost, and the
same call again finishes."""

from __future__ import annotations

import contextlib
import errno
import shutil
import sys
from pathlib import Path

import dask
import numpy as np
import pytest
from tiers import some

import shardwrite
from shardwrite import ShardwriteError

sys.path.insert(0, str(Path(__file__).parent))
import all_operations
import effects
from conversions import payloads

ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EROFS)


def fail(home, k: int, number: int, shards) -> tuple[str, bool]:
    """Let the k-th effect fail; what was raised, and whether the effect was reached."""
    reached = False
    path, source = home / "x", home / "source"

    def strike(name):
        nonlocal reached
        reached = True
        names.append(name)
        raise OSError(number, f"made to fail: {name}")

    raised, names = "", []
    before = payloads(source)
    with effects.before_effect(k, strike):
        try:
            all_operations.consume(path, shards=shards)
        except ShardwriteError as error:
            raised = type(error).__name__
    all_operations.consume(path, shards=shards)
    assert payloads(path) == before
    np.testing.assert_array_equal(shardwrite.open_sharded(path)[...], all_operations.NEW)
    left = [p.name for p in home.iterdir() if p.name != "x"]
    assert not left, (left, names, list(home.rglob("x.shardwrite/*")), raised)
    return raised, reached


def fail_at(tmp_path, monkeypatch, effects, shards) -> int:
    """Let some effects fail, each under an array of its own; how many were reached."""
    n_reached, all_raised = 0, set()
    pauses = {"shardwrite.retry-pauses": [0.0, 0.0, 0.0]}
    with dask.config.set({"scheduler": "sync", **pauses}):
        for k in effects:
            home = tmp_path / str(k)
            home.mkdir()
            all_operations.make_source(home / "x", 10 if shards == (3, 1) else None)
            raised, reached = fail(home, k, ERRORS[k % len(ERRORS)], shards)
            all_raised.add(raised)
            n_reached += reached
    assert all_raised >= {"StoreError"}
    return n_reached


@pytest.mark.long
@pytest.mark.parametrize("shards", some([2, (3, 1)], 2))
def test_every_13th_call_fails(tmp_path, monkeypatch, shards):
    assert fail_at(tmp_path, monkeypatch, range(3, 230, 13), shards) >= 15


@pytest.mark.long
@pytest.mark.timeout(600)
def test_every_61st_call_fails_under_a_hierarchy(tmp_path):
    struck = []

    def strike(name):
        struck.append(name)
        raise OSError(ERRORS[len(struck) % len(ERRORS)], f"made to fail: {name}")

    pauses = {"shardwrite.retry-pauses": [0.0, 0.0, 0.0]}
    with dask.config.set({"scheduler": "sync", **pauses}):
        for k in range(1, 640, 61):
            path = tmp_path / str(k) / "made" / "x"
            path.parent.parent.mkdir()
            all_operations.make_tree(path)
            with effects.before_effect(k, strike), contextlib.suppress(ShardwriteError):
                all_operations.consume_tree(path)
            all_operations.consume_tree(path)
            all_operations.OPERATIONS["consume a hierarchy"].check_done(path)
            shutil.rmtree(tmp_path / str(k))
    assert len(struck) >= 9

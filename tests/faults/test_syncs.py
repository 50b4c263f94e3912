"""Which directories a commit takes for durable."""

from __future__ import annotations

import errno

import pytest
import seams

from shardwrite import StoreError
from shardwrite.stores.posix import PosixStore


def commit(store, key):
    with store.transaction("full", "attempt") as transaction:
        writer = transaction.create(key)
        writer.write([b"shard"])
        writer.finish()


def test_a_directory_is_taken_for_synced_only_once_all_above_it_are(tmp_path, monkeypatch):
    synced = []

    def fail_once(path):
        if path == tmp_path and path not in synced:
            synced.append(path)
            raise OSError(errno.EIO, "once")

    seams.before(monkeypatch, "sync a directory", fail_once)
    seams.after(monkeypatch, "sync a directory", synced.append)
    store = PosixStore(tmp_path / "x.zarr")
    with pytest.raises(StoreError, match="once"):
        commit(store, "c/0/0")
    synced.clear()
    synced.append(tmp_path)
    commit(store, "c/0/1")
    assert set(synced[1:]) == {
        tmp_path / "x.zarr/c/0",
        tmp_path / "x.zarr/c",
        tmp_path / "x.zarr",
        tmp_path,
    }

"""Nothing at a path is an answer; storage that fails is an error, and never taken for nothing."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from unittest import mock

import dask
import dask.array as da
import pytest
import seams

from shardwrite import StoreError
from shardwrite.place.base import kind_of
from shardwrite.stores import looking
from shardwrite.stores.looking import is_file, is_there, listed, mode_of, read_file, read_json
from shardwrite.stores.posix import PosixStore
from shardwrite.stores.removal import Proof

FAILURES = (errno.EIO, errno.ESTALE, errno.EACCES)


@contextmanager
def failing(name, number):
    """One of the system's calls fails, whoever makes it."""
    with mock.patch(name, side_effect=OSError(number, os.strerror(number))) as call:
        yield
    assert call.called


def test_nothing_there(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "gone", tmp_path / "file" / "below"):
        assert mode_of(path) == 0
        assert not is_there(path)
        assert not is_file(path)
        assert listed(path) == []
        assert read_file(path) is None
        with pytest.raises(StoreError) as raised:
            read_json(path)
        assert raised.value.errno in (errno.ENOENT, errno.ENOTDIR)


def test_links_and_names(tmp_path):
    (tmp_path / "b-1.json").write_bytes(b"{}")
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    assert mode_of(tmp_path / "link") == 0
    assert mode_of(tmp_path / "link", follow=False) != 0
    assert [path.name for path in listed(tmp_path)] == ["a", "b-1.json", "link"]
    assert listed(tmp_path, "b-", ".json") == [tmp_path / "b-1.json"]
    assert read_json(tmp_path / "b-1.json") == {}
    assert is_there(tmp_path / "a")
    assert not is_file(tmp_path / "a")


@pytest.mark.parametrize("number", FAILURES, ids=errno.errorcode.get)
@pytest.mark.parametrize(
    ("look", "call"),
    [
        (mode_of, "os.stat"),
        (is_there, "os.stat"),
        (is_file, "os.stat"),
        (listed, "os.listdir"),
        (read_file, "os.open"),
        (kind_of, "os.stat"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_storage_that_cannot_tell(tmp_path, look, call, number):
    with pytest.raises(StoreError) as raised, failing(call, number):
        look(tmp_path)
    assert raised.value.errno == number


@pytest.mark.parametrize("number", FAILURES, ids=errno.errorcode.get)
def test_a_run_whose_leases_cannot_be_listed_is_not_taken_away(tmp_path, number):
    path = tmp_path / "x.zarr"

    def stop(_):
        raise InterruptedError("told to")

    x = da.ones((32, 32), chunks=8)
    with dask.config.set(scheduler="sync"), pytest.raises(InterruptedError):
        x.to_sharded_zarr(path, shards=8, chunks=4, memory_limit="20kB", progress=stop)
    run = seams.run_of(path)
    with seams.hold(run.path):
        with failing("os.listdir", number):
            with pytest.raises(StoreError):
                seams.is_held(run.path)
            with pytest.raises(StoreError):
                seams.give_up(run)
        assert run.path.is_dir()
        assert seams.has_run(path)


@pytest.mark.parametrize("number", FAILURES, ids=errno.errorcode.get)
def test_an_object_that_cannot_be_looked_at_is_not_taken_for_removed(tmp_path, number):
    (tmp_path / "c").write_bytes(b"old")
    store = PosixStore(tmp_path)
    with (
        pytest.raises(StoreError) as raised,
        store.transaction(
            "none", "attempt", proof=Proof(tmp_path / "run-a", {"attempt": "a"}, lambda: ["c"])
        ) as transaction,
        failing("os.stat", number),
    ):
        transaction.remove("c")
    assert raised.value.errno == number
    assert (tmp_path / "c").read_bytes() == b"old"


def test_metadata_of_a_run_that_ends_meanwhile(tmp_path, monkeypatch):
    """They are read once: between two reads another process may end the run, and that is no foreign
    document."""
    path = tmp_path / "x.zarr"

    def stop(_):
        raise InterruptedError("told to")

    x = da.ones((32, 32), chunks=8)
    with dask.config.set(scheduler="sync"), pytest.raises(InterruptedError):
        x.to_sharded_zarr(path, shards=8, chunks=4, memory_limit="20kB", progress=stop)
    run = seams.run_of(path)
    real = looking.read_blocks

    def read_blocks(file, limit_nbytes):
        yield from real(file, limit_nbytes)
        os.unlink(file)

    monkeypatch.setattr(looking, "read_blocks", read_blocks)
    assert run.document["shape"] == [32, 32]
    with pytest.raises(StoreError) as raised:
        assert run.document
    assert raised.value.errno == errno.ENOENT

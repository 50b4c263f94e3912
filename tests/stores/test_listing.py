"""What is listed in a directory, and objects that are created once."""

from __future__ import annotations

import errno
import os
import threading

import pytest

import shardwrite.stores.removal
from shardwrite import StoreError
from shardwrite.stores.posix import PosixStore
from shardwrite.stores.removal import TEMPORARY_SUFFIX


def fill(root, *keys):
    for key in keys:
        (root / key).parent.mkdir(parents=True, exist_ok=True)
        (root / key).write_bytes(b"x")


def test_links_and_temporaries_and_other_things_are_not_listed(tmp_path):
    fill(tmp_path, "x/c/0", "x/c/1/0", f"x/c/.1.run.1{TEMPORARY_SUFFIX}", "outside/c/0")
    (tmp_path / "x/link").symlink_to(tmp_path / "outside")
    (tmp_path / "x/c/2").symlink_to(tmp_path / "outside/c/0")
    os.mkfifo(tmp_path / "x/pipe")
    store = PosixStore(tmp_path / "x")
    assert list(store.list_keys()) == ["c/0", "c/1/0"]
    assert list(store.list_keys("c/1/")) == ["c/1/0"]
    assert list(store.list_keys("nothing/")) == []
    assert list(store.list_keys("c/0/")) == []  # is an object


@pytest.mark.parametrize("prefix", ["c", "/", "../", "c//", "c/../"])
def test_prefixes_stay_inside(tmp_path, prefix):
    with pytest.raises(StoreError):
        PosixStore(tmp_path).list_keys(prefix)


def test_a_directory_that_cannot_be_listed_is_not_an_empty_one(tmp_path, monkeypatch):
    fill(tmp_path, "c/0")

    def fail(path):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "listdir", fail)
    with pytest.raises(StoreError, match="cannot list"):
        list(PosixStore(tmp_path).list_keys())


def test_an_object_is_created_once_whole_and_durable(tmp_path, monkeypatch):
    store, synced, started = PosixStore(tmp_path), [], threading.Barrier(4)
    real = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), real(fd))
    )
    assert store.create_new("a/token", b"first")
    assert [os.path.basename(path).startswith(".token.new.") for path in synced[:1]] == [True]
    assert str(tmp_path / "a") in synced[1:]
    won = []

    def race(n):
        started.wait()
        won.append((store.create_new("a/other", b"%d" % n), n))

    threads = [threading.Thread(target=race, args=(n,)) for n in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    winner = [n for is_new, n in won if is_new]
    assert [(tmp_path / "a/other").read_bytes()] == [b"%d" % n for n in winner]
    assert sorted(os.listdir(tmp_path / "a")) == ["other", "token"]


def test_a_link_whose_reply_was_lost_was_made(tmp_path, monkeypatch):
    """NFS repeats the call, and then finds its own link."""
    real = os.link

    def lose(source, target):
        real(source, target)
        real(source, target)

    monkeypatch.setattr(shardwrite.stores.removal.os, "link", lose)
    assert PosixStore(tmp_path).create_new("token", b"mine")
    assert not PosixStore(tmp_path).create_new("token", b"yours")


def test_an_object_that_cannot_be_created_leaves_nothing(tmp_path, monkeypatch):
    def fail(source, target):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(shardwrite.stores.removal.os, "link", fail)
    with pytest.raises(StoreError, match="cannot create 'token'"):
        PosixStore(tmp_path).create_new("token", b"mine")
    assert os.listdir(tmp_path) == []

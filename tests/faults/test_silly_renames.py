"""NFS keeps a file that is removed while a process of the host has it open, under a name that begins
with ``.nfs``, until it is closed. Nobody can remove it before, nor the directory around it."""

from __future__ import annotations

import errno
import os
import uuid
from contextlib import ExitStack

import dask.array as da
import numpy as np
import pytest
import zarr

import shardwrite
from shardwrite.stores.removal import remove_state

VALUES = np.arange(1, 401, dtype="u2").reshape(20, 20)
SIZES = {"shards": 10, "chunks": 5}
WHOLE = (slice(None), slice(None))
HELD = ".nfs"


def source(added=0):
    return da.from_array(VALUES + np.uint16(added), chunks=7)


def is_open(path, directory):
    """Whether this process has a file open."""
    facts = os.stat(path, dir_fd=directory, follow_symlinks=False)
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            found = os.stat(f"/proc/self/fd/{descriptor}")
        except OSError:  # that of the listing
            continue
        if (found.st_dev, found.st_ino) == (facts.st_dev, facts.st_ino):
            return True
    return False


@pytest.fixture
def nfs(tmp_path, monkeypatch):
    """A directory on NFS: what is open is renamed when it is removed."""
    unlink = os.unlink

    def silly(path, *, dir_fd=None):
        directory, name = os.path.split(os.fspath(path))
        if is_open(path, dir_fd):
            if name.startswith(HELD):
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)
            new = os.path.join(directory, f"{HELD}{uuid.uuid4().hex}")
            os.rename(path, new, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        else:
            unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", silly)
    return tmp_path


def opened(root):
    """All files below a directory, held open by a reader; what NFS has kept goes when it closes."""
    stack = ExitStack()
    stack.callback(lambda: [path.unlink() for path in root.parent.rglob(f"{HELD}*")])
    for path in [path for path in root.rglob("*") if path.is_file()]:
        stack.enter_context(path.open("rb"))
    return stack


def write(path, **keywords):
    return source(keywords.pop("added", 0)).to_sharded_zarr(path, **{**SIZES, **keywords})


def update(path):
    shardwrite.write_region(source(1), path, WHOLE)


def erase(path):
    shardwrite.erase(path, (slice(0, 10), slice(0, 20)))


def stream(path):
    with shardwrite.ShardWriter(path) as writer:
        writer.append(VALUES)


def accept(path):
    zarr.open_array(path)[:5] = 7
    shardwrite.verify(path, accept=True)


def recover(path):
    for leaf in ("zarr.json", "shardwrite-receipt.json"):
        (path / leaf).unlink()
    shardwrite.recover(path, source(), **SIZES)


def replace(path):
    write(path, added=2, mode="w")


def convert(path):
    shardwrite.reshard(path, shards=20, chunks=10)


@pytest.mark.parametrize(
    "change", [update, erase, stream, accept, recover, replace, convert], ids=lambda f: f.__name__
)
def test_nothing_is_left_of_a_run(nfs, change):
    """No file of the run is open any more when it is removed."""
    write(nfs / "x.zarr")
    assert os.listdir(nfs) == ["x.zarr"]
    change(nfs / "x.zarr")
    assert os.listdir(nfs) == ["x.zarr"]
    assert not list(nfs.rglob(f"{HELD}*"))


@pytest.mark.parametrize("change", [erase, replace, convert], ids=lambda f: f.__name__)
def test_a_reader_that_has_old_files_open_stops_no_call(nfs, change):
    """What NFS has kept of the old files goes with a call after the reader has closed them."""
    path = nfs / "x.zarr"
    write(path)
    with opened(path):
        change(path)
        assert list(nfs.rglob(f"{HELD}*"))  # else nothing is tested
        update(path)
        shardwrite.compact(path)
        np.testing.assert_array_equal(zarr.open_array(path)[...], VALUES + 1)
    write(path, added=3, mode="w", restart=True)
    convert(path)
    assert os.listdir(nfs) == ["x.zarr"]
    np.testing.assert_array_equal(zarr.open_array(path)[...], VALUES + 3)


def test_all_other_files_are_removed(nfs):
    """A file that is held open does not stop the removal of what comes after it."""
    state = nfs / "ended-1"
    for name in ("a", "b/c", "b/d", "e"):
        (state / name).parent.mkdir(parents=True, exist_ok=True)
        (state / name).write_bytes(b"x")
    with (state / "b/c").open():
        remove_state(state)
        (left,) = (path for path in state.rglob("*") if path.is_file())
        assert left.name.startswith(HELD)
    remove_state(state)
    assert not state.exists()

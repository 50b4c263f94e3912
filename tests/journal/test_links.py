"""File systems that have links in one directory only, as BeeGFS before its version 8."""

from __future__ import annotations

import errno
import json
import os

import dask.array as da
import numpy as np
import pytest
import seams
import zarr

import shardwrite
from shardwrite import JournalError

OLD = np.arange(64, dtype="i4").reshape(8, 8) + 1
LAYOUT = {"shards": 4, "chunks": 2}

pytestmark = pytest.mark.usefixtures("one_thread", "beegfs")


@pytest.fixture
def beegfs(monkeypatch):
    link = os.link

    def refuse(source, path, *, src_dir_fd=None, dst_dir_fd=None):
        of_source, of_path = (os.path.dirname(name) for name in (source, path))
        if (of_source, src_dir_fd) != (of_path, dst_dir_fd):
            raise OSError(errno.EPERM, os.strerror(errno.EPERM), source, None, path)
        link(source, path, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(os, "link", refuse)


def write(path, values, **keywords):
    how = {} if "region" in keywords else LAYOUT
    x = da.from_array(values, chunks=4)
    return x.to_sharded_zarr(path, source_id=str(values[0, 0]), **how, **keywords)


def stop(*_):
    raise KeyboardInterrupt


def check(path, wanted):
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], wanted)
    assert shardwrite.verify(path).is_good
    assert not [
        p for p in path.parent.rglob("*") if ".shardwrite" in str(p) or p.suffix == ".swtmp"
    ]
    assert not list(path.glob("shardwrite-run"))


@pytest.mark.parametrize("is_in_group", [False, True])
def test_an_array_is_written_replaced_and_updated(tmp_path, is_in_group):
    path = tmp_path / "g" / "x"
    path.parent.mkdir()
    if is_in_group:  # where runs leave marks
        zarr.create_group(path.parent)
    write(path, OLD)
    with pytest.raises(KeyboardInterrupt):
        write(path, -OLD, mode="w", progress=stop)
    with pytest.raises(JournalError, match="another plan was begun"):
        write(path, OLD + 7, mode="w")
    write(path, -OLD, mode="w")
    check(path, -OLD)
    with pytest.raises(KeyboardInterrupt):
        write(path, OLD[:4], region=(slice(4), slice(8)), progress=stop)
    write(path, OLD[:4], region=(slice(4), slice(8)))
    check(path, np.concatenate([OLD[:4], -OLD[4:]]))
    shardwrite.reshard(path, shards=8)
    check(path, np.concatenate([OLD[:4], -OLD[4:]]))


def test_a_claim_is_taken_over(tmp_path):
    path = tmp_path / "x"
    write(path, OLD)
    claim = seams.state_beside(path) / "claim-end"
    claim.mkdir(parents=True)
    owner = json.dumps(seams.this_process(**seams.DEAD, token="x"))
    (claim / "owner-0").write_text(owner)
    (claim / f"draft-x,{seams.signature()}").write_text(owner)  # of one that was killed
    write(path, -OLD[:4], region=(slice(4), slice(8)))
    check(path, np.concatenate([-OLD[:4], OLD[4:]]))

"""A directory that cannot be listed is a typed error of `repair`, and the same call goes on."""

from __future__ import annotations

import errno
import os
import shutil

import numpy as np
import pytest

import shardwrite
from shardwrite import ShardwriteError, StoreError

VALUES = np.arange(64.0).reshape(8, 8)


@pytest.mark.long
def test_each_listing_that_fails_is_a_typed_error(tmp_path, monkeypatch):
    shardwrite.to_sharded_zarr(VALUES, tmp_path / "own", shards=4, chunks=2)
    (tmp_path / "own/c/1/1").unlink()
    listed, errors = os.scandir, []
    for kth in range(30):
        path = tmp_path / f"x{kth}"
        shutil.copytree(tmp_path / "own", path)
        counted = 0

        def failing(place=".", kth=kth):
            nonlocal counted
            counted += 1
            if counted == kth + 1:
                raise OSError(errno.EIO, "a disk that is ill", str(place))
            return listed(place)

        with monkeypatch.context() as patched:
            patched.setattr(os, "scandir", failing)
            try:
                shardwrite.repair(path, VALUES)
            except ShardwriteError as error:
                errors.append(error)
        if counted <= kth:
            break
        shardwrite.repair(path, VALUES)  # the same call goes on
        assert shardwrite.verify(path, deep=True, against=VALUES).is_good
    assert counted <= kth
    assert any(isinstance(error, StoreError) for error in errors)

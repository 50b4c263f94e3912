"""The file system refuses everything from some step on, and the same process tries again: nothing
is left beside the array, though the process that has made the drafts lives."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from pathlib import Path
from unittest import mock

import dask
import numpy as np
import pytest

import shardwrite

sys.path.insert(0, str(Path(__file__).parent))
import effects
from all_operations import OPERATIONS

NAMES = ("write", "replacement", "update", "shard in place", "stream")


@contextlib.contextmanager
def failing_from(k):
    """Let the `k`-th effect on the file system fail, and all that follow."""
    n = 0

    def failing(real, is_effect=lambda arguments: True):
        def call(*arguments, **keywords):
            nonlocal n
            if is_effect(arguments):
                n += 1
                if n >= k:
                    raise OSError(errno.EIO, "Input/output error")
            return real(*arguments, **keywords)

        return call

    with contextlib.ExitStack() as stack:
        for name in effects.EFFECTS:
            stack.enter_context(mock.patch.object(os, name, failing(getattr(os, name))))
        creates = failing(os.open, lambda arguments: arguments[1] & os.O_CREAT)
        stack.enter_context(mock.patch.object(os, "open", creates))
        yield lambda: n < k


def try_again(name, directory, k):
    """Whether the call had ended before the fault."""
    operation, path = OPERATIONS[name], directory / "x"
    directory.mkdir()
    operation.prepare(path)
    error = None
    with failing_from(k) as is_over:
        try:
            operation.perform(path)
        except (shardwrite.ShardwriteError, OSError) as raised:
            error = raised
        ended = is_over()
    if not ended:
        operation.perform(path)
    del error
    operation.check_done(path)
    return ended


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("every", [41, pytest.param(6, marks=pytest.mark.long)])
def test_nothing_is_left(tmp_path, name, every):
    with dask.config.set({"scheduler": "sync", "shardwrite.retry-pauses": [0, 0, 0]}):
        for k in range(1, 2000, every):
            if try_again(name, tmp_path / str(k), k):
                break
    assert k > 20
    assert np.any(OPERATIONS[name].wanted)

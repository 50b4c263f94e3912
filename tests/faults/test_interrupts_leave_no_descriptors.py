"""A process that is interrupted again and again keeps no descriptors of its runs."""

from __future__ import annotations

import gc
import os
import random
import signal
import time

import dask.array as da
import pytest

import shardwrite


def descriptors():
    """Files that this process has open."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:  # that of the listing
            continue
    return found


@pytest.mark.long
@pytest.mark.timeout(600)
# An interrupt may strike in a callback of the interpreter, which can only print it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupts(tmp_path):
    x = da.random.default_rng(0).random((256, 256), chunks=32)
    chosen, n_interrupted = random.Random(0), 0

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for name in ("first", "second"):  # the first also imports
            begin = time.monotonic()
            shardwrite.to_sharded_zarr(x, tmp_path / name, shards=64, chunks=16)
            seconds = time.monotonic() - begin
        for n in range(150):
            try:
                signal.setitimer(signal.ITIMER_REAL, chosen.random() * seconds + 1e-4)
                try:
                    shardwrite.to_sharded_zarr(x, tmp_path / f"{n}", shards=64, chunks=16)
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                n_interrupted += 1
            except RuntimeError as error:  # of Python, where an interrupt hits a lock of a thread
                assert "lock" in str(error), error  # noqa: PT017
                n_interrupted += 1
    finally:
        signal.signal(signal.SIGALRM, before)
    assert n_interrupted > 30
    time.sleep(1)  # tasks that were in flight end
    shardwrite.to_sharded_zarr(x, tmp_path / "last", shards=64, chunks=16)
    gc.collect()
    left = [name for name in descriptors() if name.startswith(str(tmp_path))]
    # An interrupt between the return of a system call and its next instruction loses what it gave.
    assert len(left) <= 1, left

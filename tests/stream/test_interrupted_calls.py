"""Ctrl-C in the middle of a call of a stream: what was accepted is not lost without an error."""

from __future__ import annotations

import linecache
import sys

import numpy as np
import pytest
import zarr

import shardwrite
from shardwrite import IncompleteError, ShardwriteError, ShardWriter, SpecError
from shardwrite.stream import backlog, layers, stretch, writer

FILES = {backlog.__file__, layers.__file__, stretch.__file__, writer.__file__}


class At:
    """Interrupt the block in its k-th line of the stream's own code."""

    def __init__(self, k):
        self.left, self.was = k, None

    def __enter__(self):
        self.was = sys.gettrace()
        sys.settrace(self._look)

    def __exit__(self, *exc_info):
        sys.settrace(self.was)

    def _look(self, frame, event, arg):
        is_at_the_end = frame.f_code is writer._Accepted.tell.__code__  # of a writer that is gone
        if frame.f_code.co_filename not in FILES or is_at_the_end:
            return None
        # Python tells the end of a ``with`` block as its first line. No Ctrl-C comes there, between the
        # block and `__exit__`: it is looked for after calls.
        code = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and not code.lstrip().startswith("with "):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self._look


def stream(path, k, compressors, memory_limit):
    """Stream twelve slices, interrupted in the k-th line of two of the calls; the slices accepted.

    None stands for a stream that has refused to go on.
    """
    shardwrite.create(
        path, (0, 4), "u2", shards=(8, 4), chunks=(2, 2), compressors=compressors, durability="none"
    )
    accepted = []
    stream = ShardWriter(path, durability="none", n_threads=1, memory_limit=memory_limit)
    was_hit = False
    try:
        for n in range(1, 13):
            block = np.full((1, 4), n, "u2")
            before = stream.shape[0]
            try:
                with At(k if n in (2, 7) else 0):
                    stream.append(block)
            except KeyboardInterrupt:
                was_hit = True
            accepted += [n] * (stream.shape[0] - before)
            block[:] = 999  # it is the caller's again
        with At(k):
            stream.flush()
    except KeyboardInterrupt:
        was_hit = True
    except ShardwriteError:
        accepted = None
    try:
        stream.close()
    except ShardwriteError:
        accepted = None
    return accepted, was_hit


@pytest.mark.parametrize(
    "compressors", [None, pytest.param("auto", marks=pytest.mark.long)], ids=["raw", "zstd"]
)
@pytest.mark.parametrize(
    "memory_limit", [24, pytest.param("1 MiB", marks=pytest.mark.long)], ids=["tight", "roomy"]
)
def test_an_interrupt_in_any_line_loses_nothing_in_silence(tmp_path, compressors, memory_limit):
    n_whole = n_refused = 0
    for k in range(1, 200, 11):
        path = tmp_path / f"{k}.zarr"
        accepted, was_hit = stream(path, k, compressors, memory_limit)
        if not was_hit:
            break
        if accepted is None:
            n_refused += 1
            continue
        n_whole += 1
        found = zarr.open_array(path, mode="r")[...]
        np.testing.assert_array_equal(found[:, 0], accepted, err_msg=f"line {k}")
    assert n_whole
    assert n_refused


def test_another_writer_goes_on_after_the_last_flush(tmp_path, monkeypatch):
    path = tmp_path / "x.zarr"
    shardwrite.create(path, (0,), "u2", shards=8, chunks=2, compressors=None)
    writer = ShardWriter(path, n_threads=1)
    writer.append(np.array([1, 2], "u2"))
    writer.flush()
    with monkeypatch.context() as patch:
        patch.setattr(np, "copyto", interrupt)
        with pytest.raises(KeyboardInterrupt):
            writer.append(np.array([3], "u2"))
    for call in (writer.flush, writer.close):
        with pytest.raises(IncompleteError, match="open another writer"):
            call()
    with ShardWriter(path) as another:
        another.append(np.array([3, 4], "u2"))
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], [1, 2, 3, 4])


def interrupt(*arguments, **keywords):
    raise KeyboardInterrupt


def test_masked_blocks_are_refused(tmp_path):
    path = tmp_path / "x.zarr"
    shardwrite.create(path, (0,), "f4", shards=4, chunks=2)
    masked = np.ma.masked_array(np.arange(4, dtype="f4"), [0, 1, 0, 0])
    with ShardWriter(path) as writer:
        with pytest.raises(SpecError, match="masked"):
            writer.append(masked)
        with pytest.raises(SpecError, match="masked"):
            writer[0:4] = masked
        writer.append(masked.filled(-1))
        writer.append(np.ma.masked_array(np.ones(2, dtype="f4")))
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], [0, -1, 2, 3, 1, 1])

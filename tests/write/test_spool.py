"""Encoded bytes that are kept in memory up to a limit, and then go to a file."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest

from shardwrite.write import spool
from shardwrite.write.spool import PartFile, Payload, Payloads

PIECES = [np.random.default_rng(n).integers(0, 256, 1000 * n, dtype="u1") for n in range(1, 9)]


def content(payload):
    sizes = np.array([len(piece) for piece in PIECES])
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    with Payloads([payload]) as payloads:
        found = payloads.read(np.zeros(len(sizes), dtype=np.int64), starts, sizes)
        return b"".join(bytes(buffer) for buffers in found for buffer in buffers)


@pytest.mark.parametrize("limit", [0, 10_000, 10**9])
def test_what_goes_in_comes_out(tmp_path, limit):
    with Payload(tmp_path / "part", limit) as payload:
        for piece in PIECES:
            payload.extend([piece[:500], piece[500:]])
        result = payload.result()
    assert isinstance(result, PartFile) == (limit < 36_000)
    assert content(result) == np.concatenate(PIECES).tobytes()


@pytest.mark.parametrize("limit", [0, 10_000])
def test_somebody_still_holds_what_was_written(tmp_path, monkeypatch, limit):
    """As the profiler of dask's workers does, which holds the frames of threads for a moment."""
    held = []
    real = spool.write_all

    def watched(fd, data):
        held.append(memoryview(data)[1:])
        real(fd, data)

    monkeypatch.setattr(spool, "write_all", watched)
    with Payload(tmp_path / "part", limit) as payload:
        for piece in PIECES:
            payload.extend([piece])
        result = payload.result()
    assert held
    assert content(result) == np.concatenate(PIECES).tobytes()


def test_a_thread_that_watches_frames(tmp_path):
    """The same with frames of the system, as often as a machine gets there."""
    over = threading.Event()
    me = threading.get_ident()

    def watch():
        frames = []
        while not over.is_set():
            frame = sys._current_frames().get(me)
            while frame is not None:
                frames.append(frame)
                frame = frame.f_back
            del frames[:-200]

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for n in range(60):
            with Payload(tmp_path / f"part{n}", 0) as payload:
                for piece in PIECES:
                    payload.extend([piece])
                assert payload.result().nbytes == sum(map(len, PIECES))
    finally:
        over.set()
        watcher.join()

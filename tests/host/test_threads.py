"""Work that threads of this process share."""

from __future__ import annotations

import threading
import time

import pytest

from shardwrite.host.threads import in_threads


def test_results_come_in_the_order_of_the_items():
    def late(n):
        time.sleep(0.01 * (n == 0))
        return n * n

    assert list(in_threads(late, range(20), 4)) == [n * n for n in range(20)]


def test_what_has_not_begun_does_not_begin_after_an_error():
    begun, is_over = [], threading.Event()

    def fail(n):
        begun.append(n)
        time.sleep(0.01)
        raise ValueError(n)

    with pytest.raises(ValueError, match="0"):
        list(in_threads(fail, range(1000), 2, is_over))
    assert len(begun) < 500
    assert is_over.is_set()


@pytest.mark.parametrize("n_started", [0, 1, 2])
def test_each_item_is_worked_on_once_where_few_threads_can_be_started(monkeypatch, n_started):
    """A limit of the system may allow a few."""
    begun, start, calls = [], threading.Thread.start, []

    def start_few(thread):
        begun.append(thread)
        if len(begun) > n_started:
            raise RuntimeError("can't start new thread")
        start(thread)

    def note(n):
        calls.append(n)
        time.sleep(0.01)
        return n

    monkeypatch.setattr(threading.Thread, "start", start_few)
    assert list(in_threads(note, range(8), 4)) == list(range(8))
    assert sorted(calls) == list(range(8))
    assert len(begun) == n_started + 1

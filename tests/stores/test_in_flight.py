"""Requests in the background: how many at a time, and what becomes of their errors."""

from __future__ import annotations

import threading

import pytest

from shardwrite.stores.whole import InFlight


def test_no_more_than_a_few_at_a_time():
    lock, now, most, done = threading.Lock(), 0, 0, []
    together = threading.Barrier(3, timeout=30)

    def request(i):
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        together.wait()  # three are there at a time
        with lock:
            now -= 1
            done.append(i)

    flight = InFlight(3)
    for i in range(12):
        flight.begin(lambda i=i: request(i))
    flight.join()
    assert most == 3
    assert sorted(done) == list(range(12))


def test_a_task_goes_on_while_a_request_is_on_its_way():
    answered = threading.Event()
    flight = InFlight(2)
    flight.begin(lambda: answered.wait(30) or None)
    answered.set()  # which is only reached if `begin` has not waited
    flight.join()


def failing(text):
    def request():
        raise OSError(text)

    return request


def test_the_first_error_is_raised_and_nothing_is_begun_after_it():
    flight, begun = InFlight(1), []
    flight.begin(failing("the first"))
    with pytest.raises(OSError, match="the first"):
        flight.begin(lambda: begun.append(1))
    with pytest.raises(OSError, match="the first"):
        flight.join()
    assert begun == []


def test_an_error_at_the_end_is_raised_by_join():
    flight = InFlight(2)
    flight.begin(failing("the last"))
    with pytest.raises(OSError, match="the last"):
        flight.join()
    flight.join(quiet=True)


def test_nothing_is_left_running():
    flight, go, done = InFlight(4), threading.Event(), []
    for i in range(4):
        flight.begin(lambda i=i: (go.wait(30), done.append(i)))
    go.set()
    flight.join(quiet=True)
    assert sorted(done) == [0, 1, 2, 3]
    assert not [one for one in threading.enumerate() if one.name.startswith("shardwrite-put")]

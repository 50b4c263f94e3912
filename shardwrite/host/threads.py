"""Work that threads of this process share."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import TypeVar

from shardwrite.host.resources import n_cores

S = TypeVar("S")
T = TypeVar("T")


def in_threads(
    function: Callable[[S], T],
    items: Sequence[S],
    threads: int | None = None,
    is_over: Event | None = None,
) -> Iterator[T]:
    """Results of a function for some items, in their order.

    After an error, what has not begun does not begin. Where no thread can be started any more, this
    thread works on what no other one has begun.

    - `threads`: number of threads; by default the number of cores.
    - `is_over`: is set after an error or an interruption, before what has begun is waited for.
    """
    threads = min(n_cores() if threads is None else threads, len(items))
    if threads <= 1:
        yield from map(function, items)
        return
    results = deque(Future[T]() for _ in items)
    waiting = deque(zip(results, items, strict=True))

    def work() -> None:
        with contextlib.suppress(IndexError):  # none is left
            while True:
                _settle(*waiting.popleft(), function)

    with ThreadPoolExecutor(threads) as pool:
        try:
            try:
                for _ in range(threads):
                    pool.submit(work)
            except RuntimeError:  # the interpreter ends, or the system allows no more threads
                work()
            while results:
                yield results.popleft().result()
        except BaseException:
            waiting.clear()
            if is_over is not None:
                is_over.set()
            raise


def _settle(result: Future[T], item: S, function: Callable[[S], T]) -> None:
    """Put what a function returns or raises into a result."""
    try:
        found = function(item)
    except BaseException as error:  # noqa: BLE001 (whoever takes the result raises it)
        result.set_exception(error)
    else:
        result.set_result(found)


async def from_event_loop(call: Callable[[], T]) -> T:
    """What a function returns that a thread calls, while the event loop of the caller goes on.

    Nothing in this package has an event loop of its own here, or needs one.
    """
    import asyncio  # a program that calls this has it

    return await asyncio.to_thread(call)

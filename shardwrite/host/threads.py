"""Work that threads of this process share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
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
    """Results of a function, in the sequence of the items.

    After an error, what has not begun does not begin.

    - `threads`: number of threads; by default the number of cores.
    - `is_over`: is set after an error or an interruption, before what has begun is waited for.
    """
    threads = min(n_cores() if threads is None else threads, len(items))
    if threads <= 1:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(threads) as pool:
        try:
            try:
                found = pool.map(function, items)
            except RuntimeError:  # the interpreter ends, and starts no threads any more
                found = map(function, items)
            yield from found
        except BaseException:
            if is_over is not None:
                is_over.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise


async def from_event_loop(call: Callable[[], T]) -> T:
    """What a function returns that a thread calls, while the event loop of the caller goes on.

    Nothing in this package has an event loop of its own here, or needs one.
    """
    import asyncio  # a program that calls this has it

    return await asyncio.to_thread(call)

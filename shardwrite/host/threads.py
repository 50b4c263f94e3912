"""Work that threads of this process share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from shardwrite.host.resources import n_cores

S = TypeVar("S")
T = TypeVar("T")


def in_threads(
    function: Callable[[S], T], items: Sequence[S], threads: int | None = None
) -> Iterator[T]:
    """Results of a function, in the sequence of the items.

    After an error, what has not begun does not begin.

    - `threads`: number of threads; by default the number of cores.
    """
    threads = min(n_cores() if threads is None else threads, len(items))
    if threads <= 1:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(threads) as pool:
        try:
            yield from pool.map(function, items)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise

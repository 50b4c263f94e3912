"""Memory that a call takes, as Python's allocator traces it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable


def least_peak(call: Callable[[], object], most: int) -> int:
    """Peak of what a call allocates, in bytes.

    What other threads of this process allocate meanwhile is traced, too: a cluster of an earlier
    test may still be closing. So a call that seems to take `most` or more is made again, up to
    twice, and the least counts.
    """
    least = 2**63
    for _ in range(3):
        tracemalloc.start()
        try:
            call()
            least = min(least, tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
        if least < most:
            break
    return least

"""Turns of a process's threads at many short file operations, such as the commits of small shards.

Each such operation gives the interpreter's lock away and waits to have it back. Two threads that do this at a time spend
longer on handing that lock over than on the operations, so one thread goes after the other. A turn lasts as long as the
operations take where nothing waits for storage. Whoever needs longer waits for a disk or a network, and threads had better
do that together: then the next turn begins although the last one has not ended.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType

__all__ = ["SMALL_NBYTES", "Turn"]

SMALL_NBYTES = 64 * 2**10
"""Decoded size up to which a shard is small: copying its bytes takes less time than opening and renaming its file."""

_changed = threading.Condition()
_holder: Turn | None = None
_ends = 0.0


class Turn:
    """A thread's turns; nobody's at first, and given back at the end of the block."""

    def __enter__(self) -> Turn:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.give()

    def take(self, seconds: float) -> None:
        """Have a turn for so long, or for that much longer; waits until the present one is, or should be, at its end."""
        global _holder, _ends
        with _changed:
            while _holder not in (None, self) and (left := _ends - time.monotonic()) > 0:
                _changed.wait(left)
            _holder, _ends = self, time.monotonic() + seconds

    def give(self) -> None:
        """End this turn, if it is not over."""
        global _holder
        with _changed:
            if _holder is self:
                _holder = None
                _changed.notify()

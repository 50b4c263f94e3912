"""Turns of threads at many short file operations, such as the commits of small shards.

Each such operation releases the interpreter's lock and then waits to take it again. Two threads
that do so at the same time spend longer on passing the lock on than on the operations. So the
threads take turns. A turn lasts as long as the operations take if nothing waits for storage. A
thread that needs longer waits for a disk or a network, and threads should wait for these together.
So the next turn begins after this time, even if the last one has not ended.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType

SMALL_NBYTES = 64 * 2**10
"""Largest decoded size of a small shard, in bytes.

Copying the bytes of a small shard takes less time than opening and renaming its file.
"""

_changed = threading.Condition()
_holder: Turn | None = None
_ends = 0.0


class Turn:
    """Turns of one thread, as a context.

    The context begins without a turn. A turn that is still held at its end is given back.
    """

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
        """Take a turn of `seconds` from now.

        The call waits until another thread's turn has been given back or its time is over. A thread
        that has the turn keeps it and does not wait.
        """
        global _holder, _ends
        with _changed:
            while _holder not in (None, self) and (left := _ends - time.monotonic()) > 0:
                _changed.wait(left)
            _holder, _ends = self, time.monotonic() + seconds

    def give(self) -> None:
        """Give the turn back, if another thread has not taken it."""
        global _holder
        with _changed:
            if _holder is self:
                _holder = None
                _changed.notify()

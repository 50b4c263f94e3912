"""Requests for inner chunks that this process has under way, of all arrays and threads together."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from shardwrite.config.table import READ_IN_FLIGHT, READ_IN_FLIGHT_SIZE, value_of


class RequestLimit:
    """Requests up to a number and to a sum of bytes at a time.

    The limits are the settings ``shardwrite.read.in-flight`` and ``.in-flight-size``, as they are
    where a request is made. A request that alone has more bytes waits until no other is under way.
    """

    def __init__(self) -> None:
        self.after_fork()

    def after_fork(self) -> None:
        """Begin anew in a child, which has none of the other threads."""
        self._changed = threading.Condition()
        # By thread, so that a request whose end an interruption has cut off does not count forever.
        self._nbytes: dict[int, int] = {}

    @contextlib.contextmanager
    def request(self, nbytes: int) -> Iterator[None]:
        """Wait until a request of so many bytes may begin. It ends with the ``with`` block.

        A thread has one of them at a time.
        """
        most, most_nbytes = value_of(READ_IN_FLIGHT), value_of(READ_IN_FLIGHT_SIZE)
        thread = threading.get_ident()

        def may_begin() -> bool:
            others = [n for other, n in self._nbytes.items() if other != thread]
            return not others or (len(others) < most and sum(others) + nbytes <= most_nbytes)

        try:
            with self._changed:
                self._changed.wait_for(may_begin)
                self._nbytes[thread] = nbytes
            yield
        finally:
            with self._changed:
                self._nbytes.pop(thread, None)
                self._changed.notify_all()


REQUESTS = RequestLimit()
"""Those of this process."""

os.register_at_fork(after_in_child=REQUESTS.after_fork)

"""An upper bound on the time that something takes, for tests that run beside many others."""

from __future__ import annotations

import contextlib
import os
import signal

PATIENCE = float(os.environ.get("PATIENCE", "12"))
"""Times as many seconds by the clock, so that what waits for ever ends, too."""


class Late(BaseException):
    """Something took too long; nothing turns this into another error."""


@contextlib.contextmanager
def in_time(seconds):
    """Raise `Late` in something that takes more than so many seconds of the processor.

    Seconds by the clock would also count what other processes do meanwhile.
    """

    def late(*_):
        raise Late(f"more than {seconds} s")

    limits = {
        signal.SIGPROF: (signal.ITIMER_PROF, seconds),
        signal.SIGALRM: (signal.ITIMER_REAL, PATIENCE * seconds),
    }
    before = {number: signal.signal(number, late) for number in limits}
    for timer, limit in limits.values():
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for timer, _ in limits.values():
            signal.setitimer(timer, 0)
        for number, handler in before.items():
            signal.signal(number, handler)

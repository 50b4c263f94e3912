"""How a process that writes ends: what signals do, and what its exit code says.

Exit codes: 0 complete, 1 an error, or problems found, 2 usage (also what cannot be planned), 75 storage trouble that may pass, 85
incomplete, run me again. Signals, where a program asks for these handlers: USR1 begins no new shard, finishes those in
flight and ends with 85; TERM, INT and a second USR1 give up what is in flight and end with 85 at once. What is in flight
then is written again by the next run; nothing that was committed is lost.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Iterator
from typing import Any

from shardwrite.engines import Stopped
from shardwrite.errors import (
    ClusterError,
    ClusterLostError,
    IncompleteError,
    PlanError,
    ShardwriteError,
    SpecError,
)
from shardwrite.host.stopping import before_leaving, is_draining, request_drain, reset_drain
from shardwrite.journal import release_all
from shardwrite.stores import discard_open_temporaries

__all__ = ["INCOMPLETE", "exit_code_of", "handling_signals"]

USAGE, MAY_PASS, INCOMPLETE = 2, 75, 85
_MAY_PASS = {
    errno.EAGAIN,
    errno.EDQUOT,
    errno.EIO,
    errno.ENOSPC,
    errno.EROFS,
    errno.ESTALE,
    errno.ETIMEDOUT,
}


def exit_code_of(error: BaseException) -> int:
    """The exit code that tells of an error.

    Examples
    --------
    >>> exit_code_of(OSError(28, "No space left on device")), exit_code_of(ZeroDivisionError())
    (75, 1)
    """
    if isinstance(error, SpecError | PlanError):
        return USAGE
    if isinstance(error, IncompleteError | ClusterError | ClusterLostError | Stopped):
        return INCOMPLETE
    number = getattr(error, "errno", None)
    return MAY_PASS if isinstance(error, OSError) and number in _MAY_PASS else 1


def _say(text: str) -> None:
    """Tell people, from inside a handler, where nothing may be buffered."""
    with contextlib.suppress(OSError):  # nobody listens
        os.write(2, f"shardwrite: {text}\n".encode())


def _abandon(number: int, frame: Any = None) -> None:  # noqa: ARG001 (a handler's signature)
    _say(f"{signal.Signals(number).name}: incomplete, run me again")
    for action in before_leaving():
        try:
            action()
        except (ShardwriteError, OSError) as error:
            _say(str(error))
    release_all()
    discard_open_temporaries()  # last: other threads go on meanwhile, and begin new ones
    os._exit(INCOMPLETE)


def _drain(number: int, frame: Any = None) -> None:
    if is_draining():
        _abandon(number, frame)
    request_drain()
    _say(f"{signal.Signals(number).name}: finishing the shards in flight")


@contextlib.contextmanager
def handling_signals() -> Iterator[None]:
    """Have USR1 drain, and TERM and INT abandon, until the block is left; after a drain USR1 is ignored.

    Examples
    --------
    >>> with handling_signals():
    ...     pass
    """
    handlers = {signal.SIGUSR1: _drain, signal.SIGTERM: _abandon, signal.SIGINT: _abandon}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        if is_draining() and before[signal.SIGUSR1] is signal.SIG_DFL:
            before[signal.SIGUSR1] = (
                signal.SIG_IGN
            )  # one more request on the way out must not kill the process
        for number, handler in before.items():
            signal.signal(number, handler)
        reset_drain()

"""Exit codes and signal handlers of a process that writes.

Exit codes:

- 0: the work is complete.
- 1: an error occurred, or problems were found.
- 2: the usage is wrong, or the work cannot be planned.
- 75: the storage has trouble that may pass.
- 85: the work is incomplete; run the program again.

Signals, in a program that installs these handlers:

- USR1 drains: no new shard is begun, shards in flight are finished, and the process ends with 85.
- TERM, INT and a second USR1 abandon shards in flight, and the process ends with 85 at once. The
  next run writes these shards again. No committed shard is lost.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

from shardwrite.engines.local import Stopped
from shardwrite.errors import (
    ClusterError,
    ClusterLostError,
    IncompleteError,
    PlanError,
    ShardwriteError,
    SpecError,
)
from shardwrite.host.stopping import before_leaving, is_draining, request_drain, reset_drain
from shardwrite.journal.lease import release_all
from shardwrite.stores.removal import discard_open_temporaries

WHILE_COMPUTING = "shardwrite: while computing"
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
    """The exit code that stands for an error.

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


def is_of_a_block(error: BaseException) -> bool:
    """Whether a task of the source raised an error. A note of such an error names the region."""
    return any(note.startswith(WHILE_COMPUTING) for note in getattr(error, "__notes__", ()))


def _say(text: str) -> None:
    """Write a line to standard error, unbuffered, as a signal handler must."""
    if sys.__stderr__ is None:  # closed from the start: a shard may have its descriptor by now
        return
    with contextlib.suppress(OSError):  # standard error may be closed
        os.write(2, f"shardwrite: {text}\n".encode())


def _abandon(number: int, frame: Any = None) -> None:  # noqa: ARG001 (a handler's signature)
    """End the process at once; a signal handler."""
    _say(f"{signal.Signals(number).name}: incomplete, run me again")
    for action in before_leaving():
        try:
            action()
        except (ShardwriteError, OSError) as error:
            _say(str(error))
    release_all()
    discard_open_temporaries()  # last, because other threads go on and open new ones until then
    os._exit(INCOMPLETE)


def _drain(number: int, frame: Any = None) -> None:
    """Begin no new shard from now on; a second call ends the process. A signal handler."""
    if is_draining():
        _abandon(number, frame)
    request_drain()
    _say(f"{signal.Signals(number).name}: finishing the shards in flight")


@contextlib.contextmanager
def handling_signals() -> Iterator[None]:
    """Handle signals while the block runs: USR1 drains, TERM and INT abandon.

    The previous handlers are restored afterwards. After a drain, USR1 stays ignored if it had no
    handler before.

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
            # One more request on the way out must not kill the process.
            before[signal.SIGUSR1] = signal.SIG_IGN
        for number, handler in before.items():
            signal.signal(number, handler)
        reset_drain()

"""Requests to a bucket: made again if no answer came, and not in the child of a fork.

obstore makes most requests again by itself. It does not do so if a connection breaks, or an answer
is late, and the request has a condition, as nearly all puts have: it may have been done. Here it is
made again. If it had been done, the service refuses the second one, and the caller looks at what
stands there.
"""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

from shardwrite.errors import StoreError
from shardwrite.stores.bucket_errors import is_unanswered

T = TypeVar("T")
# As in `bucket_url`, for stores that a user has opened.
_MAX_RETRIES, _SECONDS, _FIRST, _MOST, _BASE = 8, 120.0, 0.2, 10.0, 2.0


def raised() -> tuple[type[Exception], ...]:
    """What obstore raises: errors of its own, and some of Python's."""
    from obstore.exceptions import BaseError

    return BaseError, OSError, ValueError, RuntimeError


def made_again(store: Any, request: Callable[[], T]) -> T:
    """Make a request, and make it again as long as no answer comes.

    - `store`: the store, whose ``retry_config`` says how often, and after which pauses.
    """
    pauses = _pauses(getattr(store, "retry_config", None) or {})
    while True:
        try:
            return request()
        except raised() as error:
            pause = next(pauses, None) if is_unanswered(error) else None
            if pause is None:
                raise
        time.sleep(pause)


def _pauses(config: Mapping[str, Any]) -> Iterator[float]:
    """Pauses before further attempts, in seconds, until they are too many or take too long."""
    backoff: Mapping[str, Any] = config.get("backoff") or {}
    until = time.monotonic() + _in_seconds(config.get("retry_timeout"), _SECONDS)
    first = _in_seconds(backoff.get("init_backoff"), _FIRST)
    most = _in_seconds(backoff.get("max_backoff"), _MOST)
    for number in range(int(config.get("max_retries", _MAX_RETRIES))):
        pause = min(most, first * float(backoff.get("base", _BASE)) ** number)
        # The pause is random, so that many workers do not come back at once.
        pause *= random.uniform(0.5, 1)  # noqa: S311
        if time.monotonic() + pause > until:
            return
        yield pause


def _in_seconds(value: Any, default: float) -> float:
    return value.total_seconds() if isinstance(value, timedelta) else default


_used_in: list[int] = []


def check_process() -> None:
    """Refuse the child of a fork, in which obstore would wait for threads that are not there."""
    if not _used_in:
        _used_in.append(os.getpid())
    elif _used_in[0] != os.getpid():
        _refuse_fork()


def _refuse_fork() -> NoReturn:
    raise StoreError(
        "a process that was forked cannot use the connections to a bucket of its parent; start "
        'processes with "spawn", as dask does',
        errno=errno.ENOTSUP,
    )

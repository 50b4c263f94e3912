"""Tokens that tell the stores of one process apart."""

from __future__ import annotations

import os
import threading
import uuid
import weakref

_lock = threading.RLock()
_tokens: dict[tuple[int, int], str] = {}


def token_of(owner: object) -> str:
    """Text that no other object has, in any process, as long as `owner` lives and after it.

    The identity of an object will not do, because it is used again when the object is gone.
    """
    key = os.getpid(), id(owner)  # a forked process has another copy of the object
    with _lock:
        if key not in _tokens:
            _tokens[key] = uuid.uuid4().hex
            weakref.finalize(owner, _tokens.pop, key, None)
        return _tokens[key]

"""The size that no metadata tells: of an inner chunk whose elements have variable length."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["CHUNK_LIMIT", "ask_for_chunk_limit", "chunk_limit"]

CHUNK_LIMIT = 128 * 2**20
_asked: list[Callable[[], int]] = [lambda: CHUNK_LIMIT]


def chunk_limit() -> int:
    """Most bytes that such a chunk may have before it is encoded, elements and their lengths together."""
    return _asked[-1]()


def ask_for_chunk_limit(ask: Callable[[], int]) -> None:
    """Take the limit from the configuration, which nothing here knows of.

    Parameters
    ----------
    ask : callable
        Gives the limit in bytes.
    """
    _asked[:] = [ask]

"""Size limit for inner chunks of variable-length elements, whose size is not in the metadata."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["CHUNK_LIMIT", "ask_for_chunk_limit", "chunk_limit"]

CHUNK_LIMIT = 128 * 2**20
_asked: list[Callable[[], int]] = [lambda: CHUNK_LIMIT]


def chunk_limit() -> int:
    """Largest allowed size, in bytes, of an inner chunk of variable-length elements.

    The size is that of the serialized elements with their lengths, before any compression.
    """
    return _asked[-1]()


def ask_for_chunk_limit(ask: Callable[[], int]) -> None:
    """Set the function that gives the limit.

    Codecs do not read the configuration themselves, so the package registers a function that does.

    Parameters
    ----------
    ask : callable
        Function without arguments that returns the limit in bytes.
    """
    _asked[:] = [ask]

"""How long the axes of documents may be: lengths and sizes in bytes must fit into 64 bits."""

from __future__ import annotations

import math
from collections.abc import Sequence

MOST = 2**63 - 1
"""The longest that an axis can be in numpy, and the most bytes that an inner chunk can have."""


def why_too_long(sizes: Sequence[int], itemsize: int | None = None) -> str | None:
    """Why a shape is refused; None if it is not."""
    if any(size > MOST for size in sizes):
        return f"is longer than {MOST:,}, the longest that an axis can be"
    if itemsize is not None and math.prod(sizes) * itemsize > MOST:
        return f"holds more than {MOST:,} bytes"
    return None

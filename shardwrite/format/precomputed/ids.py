"""Chunk ids as users give them."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.errors import SpecError

__all__ = ["as_ids"]


def as_ids(ids: Iterable[Any]) -> npt.NDArray[np.uint64]:
    """Ids as a vector, in ascending order, each of them once.

    Raises
    ------
    SpecError
        If one of them is no whole number of 64 bits.
    """
    if isinstance(ids, np.ndarray) and ids.dtype.kind == "u":
        return np.unique(ids.astype(np.uint64))
    if not isinstance(ids, Iterable) or isinstance(ids, str | bytes):
        remedy = "give several ids, such as [7, 8]"
        raise SpecError("no collection of ids", field="ids", value=ids, remedy=remedy)
    found: list[int] = []
    for one in ids:
        try:
            number = operator.index(one)
        except TypeError:
            number = -1
        if isinstance(one, bool) or not 0 <= number < 2**64:
            remedy = "give whole numbers from 0 to 2**64 - 1"
            raise SpecError("not an id of 64 bits", field="ids", value=one, remedy=remedy)
        found.append(number)
    return np.unique(np.array(found, np.uint64))

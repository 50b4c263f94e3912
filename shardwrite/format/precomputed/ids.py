"""Chunk ids as users give them."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.errors import SpecError


def as_ids(ids: Iterable[Any]) -> npt.NDArray[np.uint64]:
    """Ids as a vector, in ascending order, each of them once.

    - Raises SpecError if one of them is no whole number of 64 bits.
    """
    if isinstance(ids, np.ndarray) and ids.ndim and ids.dtype.kind == "u":
        return np.unique(ids.astype(np.uint64))
    is_one = isinstance(ids, np.ndarray) and not ids.ndim
    if is_one or not isinstance(ids, Iterable) or isinstance(ids, str | bytes):
        remedy = "give several ids, such as [7, 8]"
        raise SpecError("no collection of ids", field="ids", value=ids, remedy=remedy)
    return np.unique(np.array([as_id(one, "ids") for one in ids], np.uint64))


def as_id(one: Any, field: str) -> int:
    """An id, or the number of a shard, as a whole number.

    - Raises SpecError if it is no whole number of 64 bits.
    """
    try:
        number = operator.index(one)
    except TypeError:
        number = -1
    if isinstance(one, bool) or not 0 <= number < 2**64:
        what = "an id" if field == "ids" else "a number"
        remedy = "give whole numbers from 0 to 2**64 - 1"
        raise SpecError(f"not {what} of 64 bits", field=field, value=one, remedy=remedy)
    return number

"""Keys of inner chunks as lists of non-empty chunks name them: ``"0.3.12"``.

Stores of zarr-vectors may say in an attribute which chunk the first cell of the grid is. Their keys
count from there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.documents import Document, attributes_of
from shardwrite.errors import SpecError

_ORIGIN = "chunk_grid_origin"


def origin_in(document: Document, ndim: int) -> npt.NDArray[np.int64]:
    """Coordinates of the first inner chunk in the keys; zeros unless an attribute says otherwise."""
    given: Any = attributes_of(document).get(_ORIGIN)
    if not given:
        return np.zeros(ndim, dtype=np.int64)
    is_valid = isinstance(given, list) and len(given) == ndim
    if not is_valid or any(type(n) is not int or abs(n) >= 2**53 for n in given):
        raise SpecError(
            "the attribute holds no integer for each axis",
            field=_ORIGIN,
            value=given,
            remedy="mend it, or remove it",
        )
    return np.array(given, dtype=np.int64)


def keys_of(coords: npt.NDArray[np.int64], origin: npt.NDArray[np.int64]) -> list[str]:
    """Keys of inner chunks, sorted as text.

    - `coords`: int64, shape (n, ndim). Positions of the chunks in the grid of inner chunks.
    - `origin`: int64, shape (ndim,). Coordinates of the first chunk of the grid.
    """
    return sorted(".".join(map(str, row)) for row in (coords + origin).tolist())

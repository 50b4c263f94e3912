"""Which inner chunks are empty: decided on bits, never on values.

NaN equals NaN here when their payloads do, and -0.0 differs from 0.0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["FillPattern"]

_WORDS = {8: np.uint64, 4: np.uint32, 2: np.uint16, 1: np.uint8}


class FillPattern:
    """Finds the inner chunks of a batch that hold the fill value only.

    Parameters
    ----------
    fill_value : scalar
        Of the dtype of the batches.
    dtype : numpy.dtype
        The batches' dtype, byte order included.
    """

    def __init__(self, fill_value: Any, dtype: np.dtype[Any]) -> None:
        self._is_text = dtype.hasobject or dtype.kind == "T"
        self._fill_value = fill_value
        self._item = b"" if self._is_text else np.full((), fill_value, dtype=dtype).tobytes()
        itemsize = len(self._item)
        width = next((w for w in _WORDS if itemsize and itemsize % w == 0), 1)
        self._word = np.dtype(_WORDS[width])
        self._item_words = np.frombuffer(self._item, self._word)
        if itemsize and len(set(self._item_words.tolist())) == 1:
            self._item_words = self._item_words[:1]
        # wider words compare faster; only where a word holds whole items
        if 0 < itemsize < 8 and 8 % itemsize == 0:
            self._wide = np.frombuffer(self._item * (8 // itemsize), np.uint64)[0]
        else:
            self._wide = None

    def empty(self, batch: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Which chunks of `batch` are empty.

        Parameters
        ----------
        batch : numpy.ndarray, shape (n, ...)
            C-contiguous.

        Returns
        -------
        numpy.ndarray of bool, shape (n,)
        """
        n = len(batch)
        if n == 0:
            return np.ones(0, dtype=bool)
        flat = batch.reshape(n, -1)
        if self._is_text:
            return np.array(
                [all(item == self._fill_value for item in chunk) for chunk in flat], dtype=bool
            )
        if flat.size == 0 or not self._item:
            return np.ones(n, dtype=bool)
        words = flat.view(np.uint8)
        if self._wide is not None and words.shape[1] % 8 == 0:
            return self._equal(words.view(np.uint64), self._wide)
        words = words.view(self._word)
        if len(self._item_words) == 1:
            return self._equal(words, self._item_words[0])
        result: npt.NDArray[np.bool_] = (
            words.reshape(n, -1, len(self._item_words)) == self._item_words
        ).all(axis=(1, 2))
        return result

    @staticmethod
    def _equal(words: npt.NDArray[Any], word: Any) -> npt.NDArray[np.bool_]:
        """Rows that hold `word` only; a few probes settle most rows before any is read whole."""
        probes = words[:, :: max(1, words.shape[1] // 4)]
        result: npt.NDArray[np.bool_] = (probes == word).all(axis=1)
        for row in np.flatnonzero(result):
            result[row] = bool((words[row] == word).all())
        return result

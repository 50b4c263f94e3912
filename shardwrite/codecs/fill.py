"""Test for empty inner chunks, which compares bits.

Two NaN are equal if their payloads are, and -0.0 differs from 0.0. Only elements of variable
length are compared by value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_WORDS = {8: np.uint64, 4: np.uint32, 2: np.uint16, 1: np.uint8}


class FillPattern:
    """Test for the inner chunks of a batch that hold only the fill value.

    - `dtype`: dtype of the batches, byte order included.
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
        # Wider words compare faster. They can be used only where a word holds whole items.
        if 0 < itemsize < 8 and 8 % itemsize == 0:
            self._wide = np.frombuffer(self._item * (8 // itemsize), np.uint64)[0]
        else:
            self._wide = None

    def empty(self, batch: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Whether each inner chunk of a batch is empty.

        - `batch`: shape (n, ...). Inner chunks, C-contiguous.
        - Returns: True where the inner chunk holds only the fill value, or has no elements.
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
        """Whether each row holds only `word`.

        A few probes decide most rows, so that only the other rows are read whole.
        """
        probes = words[:, :: max(1, words.shape[1] // 4)]
        result: npt.NDArray[np.bool_] = (probes == word).all(axis=1)
        for row in np.flatnonzero(result):
            result[row] = bool((words[row] == word).all())
        return result

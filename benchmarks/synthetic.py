"""Sources made where they are needed: blocks of deterministic numbers, so that no file has to be read."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt

from benchmarks.data import DTYPE

__all__ = ["Dense", "Synthetic", "synthetic_array"]

_PERIOD = 128
_SHORT_PERIOD = 32  # of arrays with four axes and more
_N_OFFSETS = 32


@lru_cache(maxsize=4)
def _pattern(period: tuple[int, ...]) -> npt.NDArray[np.uint16]:
    """A smooth field with shot noise, never 0, which fits itself at its edges."""
    field = np.full(period, 160, dtype=np.float32)
    for axis, n in enumerate(period):
        wave = 25 * np.sin(np.arange(n, dtype=np.float32) * np.float32(2 * np.pi / n))
        field += wave.reshape([-1 if other == axis else 1 for other in range(len(period))])
    noise = np.random.Generator(np.random.SFC64(3)).standard_normal(period, dtype=np.float32)
    counts: npt.NDArray[np.uint16] = np.maximum(field + noise * np.sqrt(np.abs(field)), 1).astype(
        DTYPE
    )
    return counts


@dataclass(frozen=True)
class Synthetic:
    """An array whose every element follows from where it lies.

    A pattern of noise, repeated, plus a number that differs from tile to tile of the pattern. Inner chunks that are no longer than
    the pattern along any axis compress as photon counts do.

    Parameters
    ----------
    shape : tuple of int
        Of the array.
    """

    shape: tuple[int, ...]

    @property
    def dtype(self) -> np.dtype[np.uint16]:
        """Of all of them."""
        return DTYPE

    @property
    def mapped(self) -> Synthetic:
        """Itself: what checks read from."""
        return self

    def __getitem__(self, region: Any) -> npt.NDArray[np.uint16]:
        """An owned copy of a region, given as slices with start and stop."""
        region = tuple(
            slice(*part.indices(n)[:2]) for part, n in zip(region, self.shape, strict=True)
        )
        period = (
            (_PERIOD,) * len(self.shape)
            if len(self.shape) < 4
            else (_SHORT_PERIOD,) * len(self.shape)
        )
        pattern = _pattern(period)
        found = np.empty([part.stop - part.start for part in region], dtype=DTYPE)
        for corner in np.ndindex(
            *(-(-part.stop // p) - part.start // p for part, p in zip(region, period, strict=True))
        ):
            tile = [i + part.start // p for i, part, p in zip(corner, region, period, strict=True)]
            starts = [
                max(part.start, t * p) for part, t, p in zip(region, tile, period, strict=True)
            ]
            stops = [
                min(part.stop, (t + 1) * p) for part, t, p in zip(region, tile, period, strict=True)
            ]
            there = tuple(
                slice(a - part.start, b - part.start)
                for a, b, part in zip(starts, stops, region, strict=True)
            )
            here = tuple(
                slice(a - t * p, b - t * p)
                for a, b, t, p in zip(starts, stops, tile, period, strict=True)
            )
            np.add(
                pattern[here],
                DTYPE.type(zlib.crc32(repr(tile).encode()) % _N_OFFSETS),
                out=found[there],
            )
        return found


@dataclass(frozen=True)
class Dense:
    """Knows no more of an array than that nothing in it is the fill value: enough to check a layout without making the data.

    Parameters
    ----------
    shape : tuple of int
        Of the array.
    """

    shape: tuple[int, ...]

    @property
    def mapped(self) -> Dense:
        """Itself."""
        return self

    def __getitem__(self, region: Any) -> npt.NDArray[np.uint16]:
        """Ones, without memory of their own."""
        lengths = [len(range(*part.indices(n))) for part, n in zip(region, self.shape, strict=True)]
        return np.broadcast_to(DTYPE.type(1), lengths)


def synthetic_array(shape: tuple[int, ...], chunks: tuple[int, ...]) -> da.Array:
    """A dask array whose blocks are made when they are asked for.

    Parameters
    ----------
    shape : tuple of int
        Of the array.
    chunks : tuple of int
        Of the blocks.
    """
    made: da.Array = da.map_blocks(
        _block,
        Synthetic(shape),
        chunks=da.core.normalize_chunks(chunks, shape),
        dtype=DTYPE,
        meta=np.empty((0,) * len(shape), DTYPE),
    )
    return made


def _block(source: Synthetic, block_info: Any = None) -> npt.NDArray[np.uint16]:
    return source[tuple(slice(a, b) for a, b in block_info[None]["array-location"])]

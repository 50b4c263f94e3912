"""Deterministic source arrays, kept as `.npy` files, and a picklable reader of them."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.cases import Case, Scale

__all__ = ["DTYPE", "ArraySource", "Regions", "Source", "ensure_source"]

DTYPE = np.dtype("<u2")
_VERSION = 1
_BLOCK = 32
_REGION = 256


@lru_cache(maxsize=4)
def _mapped(path: str) -> npt.NDArray[np.uint16]:
    mapped: npt.NDArray[np.uint16] = np.load(path, mmap_mode="r")
    return mapped


class ArraySource(Protocol):
    """What contestants read from."""

    shape: tuple[int, ...]

    def __getitem__(self, index: Any) -> npt.NDArray[np.uint16]:
        """An owned copy of a region."""


class Regions:
    """An array in memory, of which dask takes regions as they are needed.

    dask would copy an array of numpy as a whole before anything is written.

    Parameters
    ----------
    values : numpy.ndarray
        The array. Regions are views of it.
    """

    def __init__(self, values: npt.NDArray[Any]) -> None:
        self._values = values
        self.shape, self.dtype, self.ndim = values.shape, values.dtype, values.ndim

    def __getitem__(self, index: Any) -> npt.NDArray[Any]:
        """A view of a region."""
        found: npt.NDArray[Any] = self._values[index]
        return found


class Source:
    """An array in a `.npy` file, mapped anew in each process that reads it.

    Every read returns an owned, C-contiguous copy, as reading from a file format would, so that what a
    contestant holds in memory counts as its own and reading costs all of them the same.

    Parameters
    ----------
    path : Path
        The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.shape: tuple[int, ...] = self.mapped.shape
        self.dtype = self.mapped.dtype
        self.ndim = len(self.shape)

    @property
    def mapped(self) -> npt.NDArray[np.uint16]:
        """The file as a read-only memory map."""
        return _mapped(self.path)

    @property
    def nbytes(self) -> int:
        """Decoded size."""
        return int(self.mapped.nbytes)

    def __getitem__(self, index: Any) -> npt.NDArray[np.uint16]:
        return np.array(self.mapped[index], order="C")

    def warm_up(self) -> None:
        """Read everything once, so that it is in the page cache."""
        flat = self.mapped.reshape(-1)
        step = 1 << 24
        for start in range(0, flat.size, step):
            flat[start : start + step : 2048].max()

    def cool_down(self) -> None:
        """Drop the file from the page cache, where the file system can; on a memory file system, it stays."""
        with open(self.path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def ensure_source(case: Case, scale: Scale, directory: Path) -> Source:
    """The source array of a case, generated where it is not there yet.

    Parameters
    ----------
    case : Case
        What is to be written.
    scale : {"small", "default", "large"}
        Which of its shapes.
    directory : Path
        Where source files are kept.

    Returns
    -------
    Source
        The array.
    """
    shape = case.shapes[scale]
    path = directory / f"source-v{_VERSION}-{case.content}-{'x'.join(map(str, shape))}.npy"
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.partial")
        _generate(partial, shape, sparse=case.content == "sparse")
        partial.replace(path)
    return Source(path)


def _generate(path: Path, shape: tuple[int, ...], *, sparse: bool) -> None:
    """Write a smooth field with shot noise, a few rows at a time.

    Photon counts of a fluorescence-like image: slow variation around a few hundred counts, noise of the
    counts' own standard deviation. The sparse kind keeps about a tenth of its blocks of 32 elements a side
    and has regions of 256 a side without any, so that there are whole empty shards and empty inner chunks.
    """
    target = np.lib.format.open_memmap(path, mode="w+", dtype=DTYPE, shape=shape)
    inner = [np.linspace(0, 2 * np.pi, n, dtype=np.float32) for n in shape[1:]]
    plane = np.zeros(shape[1:], dtype=np.float32)
    for axis, angles in enumerate(inner):
        along = [1] * len(inner)
        along[axis] = -1
        plane = plane + (np.sin(angles * (3 + axis)) + np.cos(angles * 7)).reshape(along)
    keep = _kept_blocks(shape) if sparse else None
    for row in range(shape[0]):
        phase = 2 * np.pi * row / shape[0]
        field = (
            160 + 25 * (plane * np.float32(np.cos(2 * phase)) + np.float32(np.sin(5 * phase)))
        ).astype(np.float32)
        np.maximum(field, 20, out=field)
        noise = np.random.Generator(np.random.SFC64([20250101, row])).standard_normal(
            field.shape, dtype=np.float32
        )
        counts = np.maximum(field + noise * np.sqrt(field), 1).astype(DTYPE)
        if keep is not None:
            mask = keep[row // _BLOCK]
            for axis, n in enumerate(shape[1:]):
                mask = np.repeat(mask, _BLOCK, axis=axis).take(np.arange(n), axis=axis)
            counts *= mask
        target[row] = counts
    target.flush()


def _kept_blocks(shape: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    grid = tuple(-(-n // _BLOCK) for n in shape)
    kept = np.random.Generator(np.random.SFC64(7)).random(grid) < 0.2
    region = (np.indices(grid) // (_REGION // _BLOCK)).sum(axis=0)
    result: npt.NDArray[np.bool_] = kept & (region % 2 == 0)
    return result

"""Encoded units between the task that encodes and the task that commits: in memory, or in part files.

Part files are neither synced nor published: a run that loses one encodes the unit again.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.stages import Buffer
from shardwrite.errors import StoreError
from shardwrite.stores import as_store_error

__all__ = ["EncodedBlock", "PartFile", "Payload", "Payloads"]

_COPY_NBYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class PartFile:
    """Encoded bytes of a block on disk."""

    path: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class EncodedBlock:
    """A block's units, encoded.

    Attributes
    ----------
    chunk_nbytes : numpy.ndarray of int64
        Encoded size of each inner chunk, unit after unit, row-major in each; -1 where empty.
    payload : numpy.ndarray of uint8, or PartFile
        The bytes, in the same order.
    """

    chunk_nbytes: npt.NDArray[np.int64]
    payload: npt.NDArray[np.uint8] | PartFile

    @property
    def resident_nbytes(self) -> int:
        """Memory it holds; what dask's `sizeof` is told."""
        payload = 0 if isinstance(self.payload, PartFile) else self.payload.nbytes
        return 256 + self.chunk_nbytes.nbytes + payload


class Payload:
    """Encoded bytes that grow: in memory up to a limit, in a part file beyond.

    Parameters
    ----------
    path : pathlib.Path
        Of the part file, should there be one.
    limit_nbytes : float
        Bytes to hold in memory at most.
    """

    def __init__(self, path: Path, limit_nbytes: float) -> None:
        self._memory = bytearray()
        self._path = path
        self._limit = limit_nbytes
        self._fd = -1
        self._nbytes = 0

    def __enter__(self) -> Payload:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            if kind is not None:
                with contextlib.suppress(
                    OSError
                ):  # it must not hide the error that led here; the end of the run removes it
                    self._path.unlink()

    def extend(self, buffers: Sequence[Buffer]) -> None:
        """Append buffers; they may be reused afterwards."""
        for buffer in buffers:
            self._memory += memoryview(buffer)  # an array would be added, not appended
        if len(self._memory) > self._limit or (self._fd >= 0 and len(self._memory) >= _COPY_NBYTES):
            self._spool()

    def _spool(self) -> None:
        with as_store_error(str(self._path), "cannot write part file"):
            if self._fd < 0:
                self._fd = os.open(
                    self._path,
                    os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_WRONLY,
                    0o600,
                )
                self._limit = _COPY_NBYTES
            with memoryview(self._memory) as view:
                written = 0
                while written < len(view):
                    written += os.write(self._fd, view[written:])
        self._nbytes += len(self._memory)
        self._memory.clear()

    def result(self) -> npt.NDArray[np.uint8] | PartFile:
        """All of the bytes, wherever they are."""
        if self._fd < 0:
            return np.frombuffer(self._memory, dtype=np.uint8)
        self._spool()
        return PartFile(str(self._path), self._nbytes)


class Payloads:
    """Encoded bytes of several blocks, wherever they are."""

    def __init__(self, payloads: Sequence[npt.NDArray[np.uint8] | PartFile]) -> None:
        self._payloads = payloads
        self._fds: dict[int, int] = {}

    def __enter__(self) -> Payloads:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for fd in self._fds.values():
            os.close(fd)

    def read(
        self,
        block: npt.NDArray[np.int64],
        starts: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
    ) -> Iterator[list[Buffer]]:
        """Chunks in sequence, neighbours in one block's payload as one buffer."""
        breaks = (
            np.flatnonzero((block[1:] != block[:-1]) | (starts[1:] != starts[:-1] + sizes[:-1])) + 1
        )
        firsts = np.concatenate([[0], breaks])
        lasts = np.concatenate([breaks, [len(block)]]) - 1
        buffers: list[Buffer] = []
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            number, start, stop = (
                int(block[first]),
                int(starts[first]),
                int(starts[last] + sizes[last]),
            )
            payload = self._payloads[number]
            if isinstance(payload, PartFile):
                if buffers:
                    yield buffers
                    buffers = []
                for at in range(start, stop, _COPY_NBYTES):
                    yield [self._pread(number, payload, at, min(_COPY_NBYTES, stop - at))]
            else:
                buffers.append(payload[start:stop])
        if buffers:
            yield buffers

    def _pread(self, number: int, payload: PartFile, offset: int, nbytes: int) -> bytes:
        parts = []
        with as_store_error(payload.path, "cannot read part file"):
            if number not in self._fds:
                self._fds[number] = os.open(
                    payload.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
                )
            while nbytes:
                part = os.pread(self._fds[number], nbytes, offset)
                if not part:
                    raise StoreError(
                        f"part file {payload.path} ends at byte {offset}",
                        key=payload.path,
                        errno=errno.EIO,
                    )
                parts.append(part)
                offset, nbytes = offset + len(part), nbytes - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

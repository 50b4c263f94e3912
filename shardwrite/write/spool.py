"""Encoded units on their way to the commit, in memory or in part files.

Part files are neither synced nor published. A run that loses one encodes its units again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.codecs.stages import Buffer
from shardwrite.errors import SpecError
from shardwrite.stores.looking import as_store_error, opened, pread_all, write_all

# bytes of a part file to write or read at a time
_COPY_NBYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class PartFile:
    """A file that holds the encoded bytes of a block."""

    path: str  # path of the file
    nbytes: int  # size of the file in bytes


@dataclass(frozen=True, slots=True)
class EncodedBlock:
    """The encoded units of a block."""

    # Encoded size of each inner chunk in bytes, unit by unit, row-major in each unit. It is -1 for
    # an inner chunk that is empty.
    chunk_nbytes: npt.NDArray[np.int64]
    payload: npt.NDArray[np.uint8] | PartFile  # the encoded bytes, in the same order

    def __sizeof__(self) -> int:
        """Memory that the block takes, in bytes; dask asks for it to decide what to spill.

        Without this, a dataclass with slots counts 48 bytes, and none is ever spilled.
        """
        payload = 0 if isinstance(self.payload, PartFile) else self.payload.nbytes
        return 256 + self.chunk_nbytes.nbytes + payload


def no_spool(run_path: str) -> SpecError:
    """Error of a plan that needs part files, where workers do not see each other's files."""
    return SpecError(
        f"the plan keeps encoded chunks in files, and workers on other hosts do not see {run_path}",
        field="run_dir",
        value=None,
        remedy="give a directory that all processes of the run see, such as "
        'run_dir="/scratch/me/runs", or a larger memory_limit, or chunks of the source that are as '
        "large as shards",
    )


class Payload:
    """Encoded bytes that are appended: kept in memory up to a limit, then in a part file.

    If the ``with`` block is left by an exception, the part file is removed.

    - `path`: path of the part file. It is created only when the limit is exceeded.
    - `limit_nbytes`: number of bytes to keep in memory.
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
                # An error here must not hide the first one. The end of the run removes the file.
                with contextlib.suppress(OSError):
                    self._path.unlink()

    def extend(self, buffers: Sequence[Buffer]) -> None:
        """Append buffers, which may be reused afterwards."""
        for buffer in buffers:
            # Without the memoryview, numpy would add an array to the bytes element by element.
            self._memory += memoryview(buffer)
        if len(self._memory) > self._limit or (self._fd >= 0 and len(self._memory) >= _COPY_NBYTES):
            self._spool()

    def _spool(self) -> None:
        """Move the bytes in memory to the end of the part file."""
        with as_store_error(str(self._path), "cannot write part file"):
            if self._fd < 0:
                self._fd = opened(
                    self._path,
                    os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_WRONLY,
                    0o600,
                )
                self._limit = _COPY_NBYTES
            write_all(self._fd, self._memory)
        self._nbytes += len(self._memory)
        # Not emptied: a profiler in this process may still hold a view of it, with the frame of
        # `write_all`, and then it cannot be resized.
        self._memory = bytearray()

    def result(self) -> npt.NDArray[np.uint8] | PartFile:
        """All bytes: an array if they are still in memory, else the part file."""
        if self._fd < 0:
            return np.frombuffer(self._memory, dtype=np.uint8)
        self._spool()
        return PartFile(str(self._path), self._nbytes)


class Payloads:
    """Encoded bytes of several blocks, in memory or in part files.

    Part files are opened on first use, and closed at the end of the ``with`` block.
    """

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
        """Read inner chunks in sequence.

        Inner chunks that lie next to each other in a payload come as one buffer.

        - `block`: int64, shape (n,). Number of the block of each inner chunk; at least one.
        - `starts`: int64, shape (n,). Offset of each inner chunk in the payload of its block, in
          bytes.
        - `sizes`: int64, shape (n,). Encoded size of each inner chunk in bytes.
        """
        breaks = (
            np.flatnonzero((block[1:] != block[:-1]) | (starts[1:] != starts[:-1] + sizes[:-1])) + 1
        )
        firsts = np.concatenate([[0], breaks])
        lasts = np.concatenate([breaks, [len(block)]]) - 1
        buffers: list[Buffer] = []
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            number, start = int(block[first]), int(starts[first])
            stop = int(starts[last] + sizes[last])
            payload = self._payloads[number]
            if isinstance(payload, PartFile):
                if buffers:
                    yield buffers
                    buffers = []
                for offset in range(start, stop, _COPY_NBYTES):
                    yield [self._pread(number, payload, offset, min(_COPY_NBYTES, stop - offset))]
            else:
                buffers.append(payload[start:stop])
        if buffers:
            yield buffers

    def _pread(self, number: int, payload: PartFile, offset: int, nbytes: int) -> bytes:
        """Read exactly `nbytes` bytes of a part file from byte `offset` on."""
        with as_store_error(payload.path, "cannot read part file"):
            if number not in self._fds:
                self._fds[number] = opened(payload.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            return pread_all(self._fds[number], offset, nbytes)

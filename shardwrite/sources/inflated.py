"""Bytes that were deflated, of which ranges are read without keeping all of them.

The first read looks through all bytes: it compares their number and their CRC-32 with what is
claimed, and stops at the first byte too many. Where there are many bytes, it keeps the state of the
decompressor now and then. Later reads begin at the last state before their range.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from shardwrite.errors import CorruptShardError

_BLOCK_NBYTES = 2**18  # read from the file at a time
_PIECE_NBYTES = 2**20  # inflated at a time
_KEPT_NBYTES = 2**23  # kept as they are, if there are no more
_STEP_NBYTES, _N_STATES = 2**22, 32  # between states that are kept, and about how many


@dataclass(frozen=True, slots=True)
class _State:
    """A decompressor, the number of bytes that it has made, and of those that it was given."""

    n_made: int
    n_given: int
    decompressor: Any


class Inflated:
    """Bytes that are inflated as they are read.

    - `read_deflated`: function of an offset and a number of bytes that reads the deflated bytes.
    - `crc`: CRC-32 of the bytes.
    """

    def __init__(
        self,
        key: str,
        read_deflated: Callable[[int, int], bytes],
        n_deflated: int,
        nbytes: int,
        crc: int,
    ) -> None:
        self.nbytes = nbytes
        self._key, self._read, self._n_deflated, self._crc = key, read_deflated, n_deflated, crc
        self._states: list[_State] = []
        self._kept = b""
        self._kept_from = 0
        self._last: _State | None = None

    def read(self, offset: int, nbytes: int) -> bytes:
        """Read `nbytes` bytes from byte `offset` on.

        - Raises CorruptShardError if the bytes are not those that were deflated.
        """
        if not self._states:
            self._look_through()
        end = offset + nbytes
        if not self._kept_from <= offset <= end <= self._kept_from + len(self._kept):
            self._inflate(offset, end)
        return self._kept[offset - self._kept_from : end - self._kept_from]

    def _look_through(self) -> None:
        """Inflate all bytes once, and check them."""
        self._states = [_State(0, 0, zlib.decompressobj(-zlib.MAX_WBITS))]
        step = max(_STEP_NBYTES, self.nbytes // _N_STATES)
        crc, kept = 0, []
        for piece, state in self._pieces(self._states[0]):
            crc = zlib.crc32(piece, crc)
            if self.nbytes <= _KEPT_NBYTES:
                kept.append(piece)
            elif state.n_made - self._states[-1].n_made >= step:
                self._states.append(_copied(state))
            n_left = self._n_deflated - state.n_given + len(state.decompressor.unused_data)
            if state.n_made > self.nbytes or (state.decompressor.eof and n_left):
                raise self._corrupt("it holds more than it claims")
        if state.n_made != self.nbytes:
            raise self._corrupt(f"it holds {state.n_made:,} bytes and claims {self.nbytes:,}")
        if crc != self._crc:
            raise self._corrupt("its CRC-32 in the ZIP file does not fit")
        self._kept = b"".join(kept)

    def _inflate(self, offset: int, end: int) -> None:
        """Inflate and keep all bytes of a range."""
        last = self._last
        if last is not None and self._kept_from <= offset <= last.n_made:
            start, kept, first = last, [self._kept[offset - self._kept_from :]], offset
        else:
            start = next(state for state in reversed(self._states) if state.n_made <= offset)
            if last is not None and start.n_made < last.n_made <= offset:
                start = last
            kept, first = [], start.n_made
        self._last = start
        for piece, state in self._pieces(start) if start.n_made < end else ():
            self._last = state
            if kept or state.n_made > offset:
                first = first if kept else state.n_made - len(piece)
                kept.append(piece)
            if state.n_made >= end:
                break
        if not kept:
            first = self._last.n_made
        self._kept, self._kept_from = b"".join(kept), first

    def _pieces(self, state: _State) -> Iterator[tuple[bytes, _State]]:
        """Pieces of the bytes after a state, each with the state after it."""
        decompressor = _copied(state).decompressor
        n_made, n_given = state.n_made, state.n_given
        given = decompressor.unconsumed_tail
        while not decompressor.eof:
            if not given and n_given < self._n_deflated:
                given = self._read(n_given, min(_BLOCK_NBYTES, self._n_deflated - n_given))
                n_given += len(given)
            was_given = bool(given)
            try:
                piece = decompressor.decompress(given, _PIECE_NBYTES)
            except zlib.error as error:
                raise self._corrupt(f"it cannot be inflated: {error}") from error
            given = decompressor.unconsumed_tail
            if not piece and not was_given and not decompressor.eof:
                raise self._corrupt("its deflated bytes end too early")
            n_made += len(piece)
            yield piece, _State(n_made, n_given, decompressor)

    def _corrupt(self, why: str) -> CorruptShardError:
        return CorruptShardError(why, key=self._key)


def _copied(state: _State) -> _State:
    return _State(state.n_made, state.n_given, state.decompressor.copy())

"""Reading of the index and the inner chunks of a stored shard.

All code that reads a shard uses this module: readers, updates, verification, salvage and recovery.
The contents of an object are checked before they are used, and no more is read than the metadata
allow.

A search for the last whole state of a torn shard needs an index at the end that has a checksum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.codecs.stages import Buffer, Ranges
from shardwrite.config.table import READ_GAP, READ_REQUEST, value_of
from shardwrite.encode.unit import decode_tile
from shardwrite.errors import CorruptShardError, SpecError
from shardwrite.format.index import ShardIndex
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.grid import unravel

WHOLE_SHARE = 0.5  # share of a shard's inner chunks from which one read is faster than many


class Loaded:
    """A stretch of an object that was read by one request; the whole by default."""

    is_shared = True  # see `ObjectReader.is_shared`

    def __init__(self, source: Ranges, start: int = 0, stop: int | None = None) -> None:
        self._source, self._start, self.nbytes = source, start, source.nbytes
        stop = source.nbytes if stop is None else stop
        self._data = memoryview(source.read(start, stop - start)).cast("B")

    def read(self, offset: int, nbytes: int) -> Buffer:
        """See :meth:`Ranges.read`; bytes of the stretch are not copied."""
        first = offset - self._start
        if not 0 <= first <= first + nbytes <= len(self._data):
            return self._source.read(offset, nbytes)
        return self._data[first : first + nbytes]


def _requests(starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]) -> list[list[int]]:
    """First and last byte of each request for ranges, and how many of them it takes.

    The ranges are sorted by their first bytes.
    """
    gap, most = value_of(READ_GAP), value_of(READ_REQUEST)
    requests: list[list[int]] = []
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        if requests:
            first, last, n = requests[-1]
            if start - last <= gap and max(stop, last) - first <= most:
                requests[-1] = [first, max(stop, last), n + 1]
                continue
        requests.append([start, stop, 1])
    return requests


@dataclass(frozen=True, slots=True)
class LoadedIndex:
    """The index of a shard, as it was read."""

    index: ShardIndex
    span: tuple[int, int]  # first byte of the index in the shard, and the byte after the last
    nbytes: int  # that were read of it


class ShardReader:
    """Reader of a shard, which reads the index at once and inner chunks on demand.

    - `nbytes`: size of the shard in bytes, if it is only the beginning of the object. The default
      is the size of the object.
    - `loaded`: the index, if it is known; it is not read then.
    - `identity`: see `ObjectReader.identity`.
    - Raises CorruptShardError if the object is shorter than `nbytes`, or has no valid index.
    """

    def __init__(
        self,
        metadata: ArrayMetadata,
        key: str,
        source: Ranges,
        nbytes: int | None = None,
        *,
        loaded: LoadedIndex | None = None,
        identity: Any = None,
    ) -> None:
        self.metadata, self.key, self.source, self.identity = metadata, key, source, identity
        self.loaded = self._load(source, nbytes) if loaded is None else loaded
        self.index = self.loaded.index
        self.index_span, self.index_nbytes = self.loaded.span, self.loaded.nbytes

    def _load(self, source: Ranges, nbytes: int | None) -> LoadedIndex:
        """Read and check the index."""
        size = source.nbytes if nbytes is None else nbytes
        codec = self.metadata.format_of(self.key)
        load = getattr(codec, "load", None)
        try:
            if size > source.nbytes:
                raise CorruptShardError(  # noqa: TRY301
                    f"{source.nbytes} bytes are there, and the shard should have {size}"
                )
            start, stop = codec.span(size)
            if load is not None:
                index, n_read = load(source.read, size)
                return LoadedIndex(index, (start, stop), n_read)
            encoded = source.read(start, stop - start) if stop > start else b""
            return LoadedIndex(codec.decode(encoded, size), (start, stop), stop - start)
        except CorruptShardError as error:
            raise error.located(key=self.key) from error

    @property
    def is_distant(self) -> bool:
        """See :attr:`ObjectReader.is_distant`."""
        return getattr(self.source, "is_distant", False)

    def present(self) -> list[int]:
        """Ranks of the inner chunks that hold data."""
        ranks: list[int] = np.flatnonzero(~self.index.is_empty).tolist()
        return ranks

    def groups(self, ranks: npt.NDArray[np.int64], n_near: int = 1) -> list[ChunkGroup]:
        """Inner chunks that are wanted, in groups of those that one request reads.

        Groups may be read at the same time.

        - `ranks`: ranks of inner chunks that hold data.
        - `n_near`: number of groups if the shard is near, and several threads may read it.
        """
        if not self.is_distant:
            n = n_near if getattr(self.source, "is_shared", False) else 1
            parts = np.array_split(ranks.ravel(), max(1, min(n, ranks.size)))
            return [ChunkGroup(self, part.tolist()) for part in parts if len(part)]
        offsets, nbytes = self.index.table[ranks].astype(np.int64).T
        is_sound = nbytes <= self.metadata.pipeline.most_encoded_nbytes
        groups = [ChunkGroup(self, [rank]) for rank in ranks[~is_sound].tolist()]  # `chunk` refuses
        order = np.argsort(offsets[is_sound], kind="stable")
        starts, ordered = offsets[is_sound][order], ranks[is_sound][order].tolist()
        first = 0
        for start, stop, n in _requests(starts, starts + nbytes[is_sound][order]):
            groups.append(ChunkGroup(self, ordered[first : first + n], (start, stop)))
            first += n
        return groups

    def is_held(self, ranks: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which of these inner chunks are in memory since the shard was opened."""
        if not self.is_distant:
            return np.ones(ranks.shape, bool)
        start, stop = getattr(self.source, "held", (0, 0))
        offsets, nbytes = self.index.table[ranks].astype(np.int64).T
        return np.asarray((offsets >= start) & (offsets + nbytes <= stop))

    def release(self) -> None:
        """Forget what is held since the shard was opened."""
        release = getattr(self.source, "release", None)
        if release is not None:
            release()

    def span_of(self, rank: int) -> tuple[int, int] | None:
        """Offset and size of an inner chunk in the shard; None if it is empty.

        - Raises CorruptShardError if it takes more bytes than the metadata allow.
        """
        if self.index.is_empty[rank]:
            return None
        offset, nbytes = (int(v) for v in self.index.table[rank])
        most = self.metadata.pipeline.most_encoded_nbytes
        if nbytes > most:
            error = CorruptShardError(f"takes {nbytes} bytes where at most {most} can be")
            raise self._located(error, rank)
        return offset, nbytes

    def encoded(self, rank: int) -> Buffer | None:
        """Bytes of an inner chunk as they are stored; None if it is empty. See `span_of`."""
        span = self.span_of(rank)
        return None if span is None else self.source.read(*span)

    def chunk(self, rank: int) -> npt.NDArray[Any] | None:
        """Decode the inner chunk with a row-major rank; None if it is empty.

        - Raises CorruptShardError if the inner chunk takes more bytes than the metadata allow, or
          cannot be decoded. The error names the shard and the inner chunk.
        """
        encoded = self.encoded(rank)
        if encoded is None:
            return None
        try:
            return decode_tile(self.metadata, self.key, rank, encoded)
        except CorruptShardError as error:
            raise self._located(error, rank) from error

    def _located(self, error: CorruptShardError, rank: int) -> CorruptShardError:
        """An error that names the shard and an inner chunk."""
        offset, nbytes = (int(v) for v in self.index.table[rank])
        position = unravel(rank, self.metadata.grid.chunks_per_shard)
        return error.located(key=self.key, inner_chunk=position, offset=offset, nbytes=nbytes)


@dataclass(frozen=True, slots=True)
class ChunkGroup:
    """Inner chunks of a shard that one request reads."""

    shard: ShardReader
    ranks: list[int]
    span: tuple[int, int] | None = None  # of the request in the shard; None if each is read alone

    @property
    def nbytes(self) -> int:
        """Size of the request."""
        return 0 if self.span is None else self.span[1] - self.span[0]

    def read(self) -> ShardReader:
        """Make the request, and return a reader of the shard that has these inner chunks."""
        if self.span is None:
            return self.shard
        shard, stretch = self.shard, Loaded(self.shard.source, *self.span)
        return ShardReader(shard.metadata, shard.key, stretch, loaded=shard.loaded)


# ---- Search in a torn shard


_ENTRY_NBYTES = 16

_WINDOW_NBYTES = 4 * 2**20


def shard_up_to(metadata: ArrayMetadata, source: Ranges, end: int) -> ShardReader | None:
    """Reader of the shard in the first `end` bytes of an object; None if they are not a shard."""
    try:
        return ShardReader(metadata, "", source, end)
    except CorruptShardError:
        return None


def scan_for_end(metadata: ArrayMetadata, source: Ranges) -> int | None:
    """Largest size at which the beginning of a torn object is a whole shard, in bytes, or None.

    An object whose index is valid at its full size is not torn, whatever is wrong with its inner
    chunks, and the result is None. At a smaller size, bytes of an inner chunk may happen to be a
    valid index, such as that of a shard stored inside this one. So all inner chunks must decode as
    well.

    The search covers about what one append can have torn: all inner chunks of the shard, and two
    indexes.
    """
    codec = metadata.index_codec
    if codec.location != "end" or not codec.has_checksum:
        raise SpecError(
            "the index has no checksum, or does not lie at the end",
            field="scan",
            value=True,
            remedy="write the shard again from its source",
        )
    if shard_up_to(metadata, source, source.nbytes) is not None:
        return None
    # The last index of the object would begin at `stop` itself, and was not valid.
    stop = source.nbytes - codec.encoded_nbytes
    least = max(0, stop - 2 * codec.encoded_nbytes - _most_torn(metadata))
    while stop > least:
        start = max(least, stop - _WINDOW_NBYTES)
        window = source.read(start, stop - start + _ENTRY_NBYTES - 1)
        for size in _candidates(window, source.nbytes).tolist():
            end = int(start + size + codec.encoded_nbytes)
            shard = shard_up_to(metadata, source, end)
            if shard is not None and decodes(shard):
                return end
        stop = start
    return None


def decodes(shard: ShardReader) -> bool:
    """Whether all inner chunks of a shard decode."""
    try:
        for rank in shard.present():
            shard.chunk(rank)
    except CorruptShardError:
        return False
    return True


def _most_torn(metadata: ArrayMetadata) -> int:
    """Upper bound of the inner chunks' bytes that an append can have torn.

    For elements of variable length it is the limit of one inner chunk, for all chunks together.
    """
    n_chunks, most = metadata.grid.n_chunks_per_shard, metadata.pipeline.most_encoded_nbytes
    is_variable = metadata.dtype.hasobject or metadata.dtype.kind == "T"
    return most if is_variable else n_chunks * most


def _candidates(window: bytes, shard_nbytes: int) -> npt.NDArray[np.int64]:
    """Offsets in the window at which an index may begin, the last first.

    The first entry of an index is empty, or has an offset and a size that fit into the file.
    """
    candidates = []
    limit, empty = np.uint64(shard_nbytes), np.uint64(2**64 - 1)
    for first in range(min(8, len(window))):
        words = np.frombuffer(window, dtype="<u8", offset=first, count=(len(window) - first) // 8)
        offset, nbytes = words[:-1], words[1:]
        fits = ((offset <= limit) & (nbytes <= limit) & (nbytes > 0)) | (
            (offset == empty) & (nbytes == empty)
        )
        candidates.append(np.flatnonzero(fits) * 8 + first)
    return np.sort(np.concatenate([np.empty(0, np.int64), *candidates]))[::-1]

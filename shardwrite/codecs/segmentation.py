"""The encoding ``compressed_segmentation`` of Neuroglancer, by the package of that name.

The package (the ``precomputed`` extra) encodes and decodes single channels. A chunk begins with the
position of each channel. A channel begins with a header of two words for each block, with x as the
fastest axis. It tells where the table of labels of the block lies, how many bits a voxel takes, and
where these bits lie. All positions count words of 32 bits from the start of the channel.

The package reads whatever memory these headers point to, so they are checked here before. It also
takes codes of at most 16 bits. So blocks of more labels are refused, and read here.
"""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite.codecs.limits import chunk_limit
from shardwrite.codecs.stages import Buffer
from shardwrite.errors import CodecError, CorruptShardError

_WIDTHS = (0, 1, 2, 4, 8, 16, 32)
_MOST_LABELS = 2**16  # of a block
_WORD_NBYTES = 4

Labels = npt.NDArray[Any]
Words = npt.NDArray[np.uint32]
Slices = tuple[slice, ...]


def require_segmentation() -> Any:
    """The library of labels.

    - Raises CodecError if it is not installed.
    """
    try:
        return importlib.import_module("compressed_segmentation")
    except ImportError as error:
        raise CodecError(
            "compressed_segmentation needs the package of this name, which is not installed: "
            'pip install "shardwrite[precomputed]"',
            codec="compressed_segmentation",
        ) from error


class CompressedSegmentation:
    """Encoder and decoder of chunks of labels.

    - `block`: shape of a block along x, y and z.
    - `dtype`: dtype of the labels, ``uint32`` or ``uint64``.
    """

    name = "compressed_segmentation"
    is_lossy = False

    def __init__(self, block: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._library = require_segmentation()
        self._block = block
        self._dtype = dtype
        self._words_per_label = dtype.itemsize // _WORD_NBYTES

    def most_nbytes(self, shape: tuple[int, ...]) -> int:
        """Upper bound of the size of an encoded chunk of a shape, in bytes."""
        n_blocks = math.prod(self._counts(shape[1:]))
        per_block = 2 + math.prod(self._block) * (1 + self._words_per_label)
        return _WORD_NBYTES * shape[0] * (1 + n_blocks * per_block)

    def _counts(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Number of blocks along z, y and x."""
        return tuple(-(-n // b) for n, b in zip(shape, self._block[::-1], strict=True))

    def encode(self, voxels: Labels) -> Buffer:
        """Encode a chunk.

        - `voxels`: shape (channels, z, y, x). The labels.
        - Raises CodecError if a block has too many labels, or their tables take more than 64 MiB.
        """
        self._check_labels(voxels)
        try:
            # What the package writes of one channel begins with the position of this channel.
            parts = [
                memoryview(
                    self._library.compress(labels.transpose(), block_size=self._block, order="F")
                )[_WORD_NBYTES:]
                for labels in np.ascontiguousarray(voxels)
            ]
        except OverflowError as error:
            raise CodecError(
                "compressed_segmentation: the labels of a chunk take more than 64 MiB, which a "
                "block header cannot address; make chunks smaller",
                codec=self.name,
            ) from error
        sizes = [len(part) // _WORD_NBYTES for part in parts[:-1]]
        starts = np.cumsum([len(parts), *sizes]).astype("<u4")
        return b"".join((starts.tobytes(), *parts))

    def _check_labels(self, voxels: Labels) -> None:
        """Refuse blocks of so many labels that the package would never return."""
        z, y, x = (min(b, n) for b, n in zip(self._block[::-1], voxels.shape[1:], strict=True))
        if z * y * x <= _MOST_LABELS:
            return
        for corner in np.ndindex(len(voxels), *self._counts(voxels.shape[1:])):
            part = voxels[corner[0]]
            for axis, (n, size) in enumerate(zip(corner[1:], (z, y, x), strict=True)):
                part = part[(slice(None),) * axis + (slice(n * size, (n + 1) * size),)]
            if len(np.unique(part)) > _MOST_LABELS:
                raise CodecError(
                    f"compressed_segmentation: a block has more than {_MOST_LABELS:,} labels; make "
                    "blocks smaller",
                    codec=self.name,
                )

    def decode(self, data: Buffer, shape: tuple[int, ...]) -> Labels:
        """Decode a chunk.

        - Raises CorruptShardError if something lies past the end, or the bytes cannot be those of
          such a chunk.
        """
        nbytes, limit = math.prod(shape) * self._dtype.itemsize, chunk_limit()
        if nbytes > limit:  # a few bytes could stand for any number of equal labels
            raise CorruptShardError(
                f"{self.name}: a chunk of {nbytes} bytes, and {limit} are allowed; if that is "
                "right, raise shardwrite.read.chunk-limit in dask's configuration"
            )
        view = memoryview(data).cast("B")
        if len(view) % _WORD_NBYTES or len(view) < _WORD_NBYTES * shape[0]:
            raise CorruptShardError(f"{self.name}: {len(view)} bytes are no whole chunk")
        words = np.frombuffer(view, "<u4")
        if int(words[: shape[0]].min()) < shape[0]:
            raise CorruptShardError(f"{self.name}: a channel begins before the first one can")
        channels = [
            self._decode_channel(words[start:], shape[1:]) for start in words[: shape[0]].tolist()
        ]
        return channels[0][np.newaxis] if len(channels) == 1 else np.stack(channels)

    def _decode_channel(self, words: Words, shape: tuple[int, ...]) -> Labels:
        wide = self._check(words, shape)
        alone = b"".join((np.array([1], "<u4").tobytes(), words.tobytes()))
        labels: Labels = self._library.decompress(
            alone, shape[::-1], self._dtype, block_size=self._block, order="F"
        ).transpose()
        for box, found in wide:
            labels[box] = found
        return labels

    def _check(self, words: Words, shape: tuple[int, ...]) -> list[tuple[Slices, Labels]]:
        """Check that all that a channel points to lies in it.

        - Returns: the labels of blocks whose codes have 32 bits, and where they lie.
        - Raises CorruptShardError if something lies past the end.
        """
        counts, block = self._counts(shape), self._block[::-1]
        n_blocks = math.prod(counts)
        if len(words) < 2 * n_blocks:
            raise CorruptShardError(f"{self.name}: the headers of {n_blocks} blocks do not fit")
        headers = words[: 2 * n_blocks].reshape(-1, 2).astype(np.int64)
        tables, widths, places = headers[:, 0] & 0xFFFFFF, headers[:, 0] >> 24, headers[:, 1]
        is_known = np.isin(widths, _WIDTHS)
        if not is_known.all():
            bad = int(np.argmin(is_known))
            raise CorruptShardError(
                f"{self.name}: block {bad} claims {int(widths[bad])} bits for a voxel"
            )
        # Of a block at the end of an axis, or one larger than the chunk, only a part is there.
        extents = [
            np.minimum(b, n - b * np.arange(count))
            for n, b, count in zip(shape, block, counts, strict=True)
        ]
        z, y, x = (axis.reshape(-1) for axis in np.meshgrid(*extents, indexing="ij"))
        last = ((z - 1) * block[1] + y - 1) * block[2] + x - 1
        self._check_ends(words, np.where(widths > 0, places + (last * widths >> 5), 0))
        self._check_ends(words, tables + self._words_per_label - 1)
        # A table may be shorter than what its codes could tell, so these count near the end.
        most = tables + (1 << widths) * self._words_per_label
        wide = []
        for n in np.flatnonzero((most > len(words)) & (widths > 0)).tolist():
            extent = int(z[n]), int(y[n]), int(x[n])
            inside = np.ix_(*map(np.arange, extent))
            bits = ((inside[0] * block[1] + inside[1]) * block[2] + inside[2]) * int(widths[n])
            codes = words[int(places[n]) + (bits >> 5)].astype(np.int64) >> (bits & 31)
            codes &= (1 << int(widths[n])) - 1
            at = int(tables[n]) + codes * self._words_per_label
            self._check_ends(words, at + self._words_per_label - 1)
            if widths[n] == max(_WIDTHS):  # whose table could be larger than any channel
                corner = zip(np.unravel_index(n, counts), block, extent, strict=True)
                box = tuple(slice(int(i) * b, int(i) * b + size) for i, b, size in corner)
                parts = [words[at + k] for k in range(self._words_per_label)]
                found = np.stack(parts, axis=-1).view(self._dtype.newbyteorder("<"))
                wide.append((box, found[..., 0]))
        return wide

    def _check_ends(self, words: Words, at: Any) -> None:
        top = int(np.max(at))
        if top >= len(words):
            raise CorruptShardError(
                f"{self.name}: word {top} of a channel lies past its end at {len(words)}"
            )

"""Passage of encoded inner chunks from one array to another: what maps without decoding.

The inner chunks of two arrays have the same encoded bytes if their shapes, data types, fill values
and codecs are the same. A crc32c at the end is the exception: it is a checksum of all bytes before
it, so it can be added or dropped without decoding. If one of the arrays cuts inner chunks at its
edges, these are decoded and encoded again, and all others pass.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from shardwrite._dataclass import dataclass
from shardwrite.codecs.documents import Codec
from shardwrite.codecs.stages import Buffer, Crc32cStage
from shardwrite.errors import CorruptShardError
from shardwrite.format.metadata import ArrayMetadata

_CHECKSUM = "crc32c"
_CHECKED = frozenset(
    {_CHECKSUM, "gzip", "fletcher32"}
    | {f"numcodecs.{name}" for name in ("crc32", "crc32c", "adler32", "fletcher32")}
    | {f"numcodecs.{name}" for name in ("jenkins_lookup3", "gzip", "zlib", "bz2")}
)


@dataclass(frozen=True, slots=True)
class Passage:
    """How the bytes of an inner chunk change on their way from one array to another."""

    # Number of crc32c checksums that are verified and dropped at the end, and that are added
    n_dropped: int = 0
    n_added: int = 0
    # Most inner chunks that are decoded and encoded again, since they lie at the edges
    n_encoded: int = 0

    @property
    def is_plain(self) -> bool:
        """Whether the bytes of inner chunks that are not encoded again stay as they are."""
        return not self.n_dropped and not self.n_added

    @property
    def about_edges(self) -> str:
        """What happens to inner chunks at the edges, if it is not what happens to all others."""
        return f"up to {self.n_encoded:,} at the edges decoded and re-encoded, where they are cut"

    def __str__(self) -> str:
        changes = [
            *(["crc32c is verified and dropped"] if self.n_dropped else []),
            *(["crc32c is added"] if self.n_added else []),
        ]
        return ", ".join(changes) or "unchanged"

    def apply(self, data: Buffer) -> Buffer:
        """Bytes of an inner chunk in the other array.

        - Raises CorruptShardError if a checksum that is dropped does not fit.
        """
        stage = Crc32cStage()
        for _ in range(self.n_dropped):
            data = stage.decode(data, len(memoryview(data)))
        for _ in range(self.n_added):
            (data,) = stage.encode([data])
        return data


def what_differs(source: ArrayMetadata, target: ArrayMetadata) -> list[str]:
    """Names of what keeps encoded inner chunks of one array from passing to another.

    The list is empty if the inner chunks of the source can be copied into the target. Shape and
    form of the shards, keys, order of inner chunks, and crc32c at the end may differ, and one of
    the arrays may cut inner chunks at its edges.
    """
    facts = {
        "the shapes of the arrays": (source.grid.shape, target.grid.shape),
        "the shapes of the inner chunks": (source.grid.chunks, target.grid.chunks),
        "the data types": (source.document["data_type"], target.document["data_type"]),
        "the fill values": (_fill(source, target), _fill(target, source)),
        "the codecs of the inner chunks": (_payload(source)[0], _payload(target)[0]),
    }
    return [name for name, (first, second) in facts.items() if first != second]


def _fill(metadata: ArrayMetadata, other: ArrayMetadata) -> Any:
    """What is equal for fill values of the same bits; JSON has several forms of a NaN."""
    dtype = metadata.dtype
    if dtype != other.dtype or dtype.hasobject or dtype.kind == "T":
        return metadata.fill_value
    return np.full((), metadata.fill_value, dtype).tobytes()


def passage_between(source: ArrayMetadata, target: ArrayMetadata) -> Passage | None:
    """How inner chunks pass from one array to another; None if they must be decoded."""
    if what_differs(source, target):
        return None
    had, has = _payload(source)[1], _payload(target)[1]
    common = min(had, has)
    grid = source.grid
    n_whole = math.prod(n // c for n, c in zip(grid.shape, grid.chunks, strict=True))
    n_encoded = 0 if source.is_cut == target.is_cut else grid.n_inner_chunks - n_whole
    return Passage(had - common, has - common, n_encoded)


def _payload(metadata: ArrayMetadata) -> tuple[list[tuple[str, Codec]], int]:
    """Codecs of the inner chunks without the checksums at the end, and how many these are."""
    codecs = [(str(codec["name"]), _configuration(codec)) for codec in metadata.inner_codecs]
    n_checksums = 0
    while codecs and codecs[-1][0] == _CHECKSUM:
        codecs.pop()
        n_checksums += 1
    return codecs, n_checksums


def _configuration(codec: Codec) -> Codec:
    """Configuration of a codec, with the default of the specification where it is left out."""
    configuration: Codec = codec.get("configuration", {})
    if codec["name"] == "bytes":
        return {"endian": "little", **configuration}
    return configuration


def has_checksum(metadata: ArrayMetadata) -> bool:
    """Whether inner chunks have a checksum, so that wrong bytes are no chunk."""
    return any(
        codec["name"] in _CHECKED or bool(_configuration(codec).get("checksum"))
        for codec in metadata.inner_codecs
    )


def check_size(metadata: ArrayMetadata, nbytes: int) -> None:
    """Check the size of an encoded inner chunk, as far as the metadata tell.

    - Raises CorruptShardError if no inner chunk of the array can have this size.
    """
    pipeline = metadata.pipeline
    if pipeline.encoded_nbytes is not None and nbytes != pipeline.encoded_nbytes:
        raise CorruptShardError(f"takes {nbytes} bytes, and must take {pipeline.encoded_nbytes}")
    if not nbytes and pipeline.encoded_nbytes is None:
        raise CorruptShardError("is empty; no codec leaves nothing of an inner chunk")
    if nbytes > pipeline.most_encoded_nbytes:
        raise CorruptShardError(
            f"takes {nbytes} bytes where at most {pipeline.most_encoded_nbytes} can be"
        )

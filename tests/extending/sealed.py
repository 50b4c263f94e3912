"""A toy format of shards: a table at the end, sealed with a digest and four letters."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np

from shardwrite.errors import CorruptShardError
from shardwrite.format.index import Seal, ShardIndex
from shardwrite.format.sharding import register_shard_format

LETTERS = b"SEAL"


class Footer:
    """Offset and size of each inner chunk as big-endian numbers, their SHA-256, and the letters."""

    location = "end"
    base_nbytes = 0
    has_checksum = True

    def __init__(self, chunks_per_shard, digest_nbytes):
        self.chunks_per_shard, self.digest_nbytes = chunks_per_shard, digest_nbytes
        self.encoded_nbytes = 16 * math.prod(chunks_per_shard) + digest_nbytes + len(LETTERS)

    def seal(self, index):
        table = index.table.astype(">u8").tobytes()
        return Seal(index, b"", table + self.digest(table) + LETTERS)

    def seals(self, tables):
        return [self.seal(ShardIndex(table)) for table in tables]

    def span(self, shard_nbytes):
        if shard_nbytes < self.encoded_nbytes:
            raise CorruptShardError(f"{shard_nbytes} bytes are too few for a footer")
        return shard_nbytes - self.encoded_nbytes, shard_nbytes

    def decode(self, data, shard_nbytes):
        data = bytes(data)
        table = data[: -self.digest_nbytes - len(LETTERS)]
        if data[len(table) :] != self.digest(table) + LETTERS:
            raise CorruptShardError("the seal is broken")
        index = ShardIndex(np.frombuffer(table, ">u8").reshape(-1, 2).astype("u8"))
        index.check(shard_nbytes, self.span(shard_nbytes), self.chunks_per_shard)
        return index

    def digest(self, table):
        return hashlib.sha256(table).digest()[: self.digest_nbytes]


@register_shard_format
@dataclass(frozen=True)
class Sealed:
    """Shards whose footer has a digest of some bytes."""

    digest_nbytes: int = 8

    name = "sealed"

    def to_dict(self):
        return {"digest_nbytes": self.digest_nbytes}

    @classmethod
    def from_dict(cls, configuration):
        return cls(int(configuration["digest_nbytes"]))

    def build(self, chunks_per_shard):
        return Footer(chunks_per_shard, self.digest_nbytes)

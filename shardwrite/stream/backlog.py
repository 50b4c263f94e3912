"""Encoded layers that are not committed yet, grouped by shard."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from shardwrite.grid import Shape
from shardwrite.stream.buffers import Buffers
from shardwrite.stream.jobs import Jobs
from shardwrite.stream.layers import Layer
from shardwrite.stream.window import Encoded, Window


@dataclass(slots=True, eq=False)
class OpenShard:
    """A shard with layers that are encoded or being encoded."""

    index: Shape  # position of the shard in the array
    # Encoded layers that are not committed, by depth along the stream's axis
    pending: dict[int, Encoded] = field(default_factory=dict)
    # Number of the last committed version of each layer, by depth
    committed: dict[int, int] = field(default_factory=dict)
    n_encoding: int = 0  # number of layers that are being encoded
    # Held while the object of the shard is read or written
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def nbytes(self) -> int:
        """Encoded bytes that are not committed."""
        return sum(encoded.payload.nbytes for encoded in self.pending.values())


class Backlog:
    """All encoded layers of a stream that are not committed.

    - `buffers`: receives the memory of encoded layers after their commit.
    - `limit_nbytes`: encoded bytes above which the shard with the most pending bytes is committed.
    - `n_commits`, `committed_nbytes`: number of commits so far, and encoded bytes in them.
    """

    def __init__(
        self, jobs: Jobs, buffers: Buffers, layers_per_shard: int, limit_nbytes: int
    ) -> None:
        self._jobs, self._buffers = jobs, buffers
        self._layers_per_shard, self._limit = layers_per_shard, limit_nbytes
        self._shards: dict[Shape, OpenShard] = {}
        self._nbytes = 0
        self.n_commits = self.committed_nbytes = 0

    def begin(self, layer: Layer) -> OpenShard:
        """Register a layer that will be encoded, and return its shard."""
        with self._jobs.changed:
            shard = self._shards.setdefault(layer.shard, OpenShard(layer.shard))
            shard.n_encoding += 1
            return shard

    def enter(self, shard: OpenShard, depth: int, encoded: Encoded) -> None:
        """Keep an encoded layer, unless a later version of the same depth is known already."""
        with self._jobs.changed:
            shard.n_encoding -= 1
            last = shard.pending.get(depth)
            if encoded.number > max(
                shard.committed.get(depth, 0), 0 if last is None else last.number
            ):
                shard.pending[depth] = encoded
                nbytes = encoded.payload.nbytes - (0 if last is None else last.payload.nbytes)
                self._nbytes += nbytes
                self._jobs.hold(nbytes)

    def due(self, shard: OpenShard) -> OpenShard | None:
        """Shard that should be committed now, or None.

        This is `shard` if it is full, else the shard with the most pending bytes if the backlog
        exceeds its limit.
        """
        with self._jobs.changed:
            if (
                sum(encoded.is_whole for encoded in shard.pending.values())
                == self._layers_per_shard
            ):
                return shard
            return (
                max(self._shards.values(), key=lambda other: other.nbytes)
                if self._nbytes > self._limit
                else None
            )

    def pending(self) -> list[OpenShard]:
        """Shards with layers that are not committed."""
        with self._jobs.changed:
            return [shard for shard in self._shards.values() if shard.pending]

    def commit(self, window: Window, shard: OpenShard) -> None:
        """Commit all pending layers of a shard."""
        with shard.lock:
            with self._jobs.changed:
                pending, shard.pending = shard.pending, {}
                shard.committed.update(
                    {depth: encoded.number for depth, encoded in pending.items()}
                )
                nbytes = sum(encoded.payload.nbytes for encoded in pending.values())
                self._nbytes -= nbytes
            if pending:
                window.commit(shard.index, [pending[depth] for depth in sorted(pending)])
        for encoded in pending.values():
            if encoded.memory is not None:
                self._buffers.give(encoded.memory)
        with self._jobs.changed:
            self.n_commits, self.committed_nbytes = (
                self.n_commits + bool(pending),
                self.committed_nbytes + nbytes,
            )
            self._jobs.hold(-nbytes)
            if not shard.pending and not shard.n_encoding:
                self._shards.pop(shard.index, None)  # nothing is pending or being encoded

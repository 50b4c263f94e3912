"""Layers that are encoded and not committed yet, by shard."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from shardwrite.grid import Shape
from shardwrite.stream.buffers import Buffers
from shardwrite.stream.jobs import Jobs
from shardwrite.stream.layers import Layer
from shardwrite.stream.window import Encoded, Window

__all__ = ["Backlog", "OpenShard"]


@dataclass(slots=True, eq=False)
class OpenShard:
    """A shard of which something is encoded, or being encoded.

    Attributes
    ----------
    index : tuple of int
        Position in the array.
    pending : dict
        What is not committed, by depth along the stream's axis.
    committed : dict
        Number of what was committed last, by depth.
    n_encoding : int
        Layers that are being encoded.
    lock : threading.Lock
        Held while its object is read or written.
    """

    index: Shape
    pending: dict[int, Encoded] = field(default_factory=dict)
    committed: dict[int, int] = field(default_factory=dict)
    n_encoding: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def nbytes(self) -> int:
        """Bytes that are not committed."""
        return sum(encoded.payload.nbytes for encoded in self.pending.values())


class Backlog:
    """What is encoded and not committed.

    Parameters
    ----------
    jobs : Jobs
        Whose lock is taken, and which count the memory.
    buffers : Buffers
        Where encoded bytes go when they are committed.
    layers_per_shard : int
        Layers that make a shard full.
    limit_nbytes : int
        Above which the shard is committed of which most is there.

    Attributes
    ----------
    n_commits, committed_nbytes : int
        Commits so far, and encoded bytes in them.
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
        """The shard of a layer that is going to be encoded."""
        with self._jobs.changed:
            shard = self._shards.setdefault(layer.shard, OpenShard(layer.shard))
            shard.n_encoding += 1
            return shard

    def enter(self, shard: OpenShard, depth: int, encoded: Encoded) -> None:
        """Keep a layer, unless a later one of the same depth is there already."""
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
        """A shard that should be committed: this one if it is full, or the one of which most is there, where much is."""
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
        """Shards of which something is not committed."""
        with self._jobs.changed:
            return [shard for shard in self._shards.values() if shard.pending]

    def commit(self, window: Window, shard: OpenShard) -> None:
        """Commit what is there of a shard."""
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
                self._shards.pop(shard.index, None)  # all of it is in the array

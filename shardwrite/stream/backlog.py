"""What a stream has encoded and not committed yet, grouped by shard, and its threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from typing import Any, Generic, Protocol, TypeVar

from shardwrite._dataclass import dataclass
from shardwrite.grid import Shape
from shardwrite.host.stopping import busy
from shardwrite.stream.layers import Buffers, Layer
from shardwrite.stream.stretch import Encoded, Stretch

# ---- Threads, and the memory that they hold


class Jobs:
    """Thread pool of a stream.

    A job is a callable that is submitted to the pool. After a job has raised an exception, no
    further job starts, and the methods that check for errors raise the exception.

    - `changed`: lock of the state that jobs share. It is notified when a job ends, and when the
      held memory changes.
    """

    def __init__(self, n_threads: int) -> None:
        self._pool = ThreadPoolExecutor(n_threads, thread_name_prefix="shardwrite-stream")
        self.changed = threading.Condition()
        self.held_nbytes = self.peak_nbytes = 0
        self._waiting: set[object] = set()  # tickets of the jobs that have not begun
        self._n_running = 0
        self._error: BaseException | None = None

    def check(self) -> None:
        """Raise the first exception of a job, if there was one."""
        if self._error is not None:
            raise self._error

    def fail(self, error: BaseException) -> None:
        """Keep an exception, as if a job had raised it."""
        with self.changed:
            self._error = self._error or error

    def submit(self, job: Callable[..., None], *arguments: Any) -> None:
        """Submit a callable to the pool.

        - Raises RuntimeError if the system allows no thread for it.
        """
        ticket = object()
        try:
            with self.changed:
                self._waiting.add(ticket)
            self._pool.submit(self._run, ticket, job, arguments)
        except BaseException as error:
            if isinstance(error, Exception):  # and no Ctrl-C, of which the writer tells
                self.fail(error)
            with self.changed:  # if the queue of the pool has the job, no thread begins it any more
                self._waiting.discard(ticket)
            raise

    def _run(self, ticket: object, job: Callable[..., None], arguments: Sequence[Any]) -> None:
        with self.changed:
            if ticket not in self._waiting:
                return  # its submission was interrupted
            self._waiting.remove(ticket)
            self._n_running += 1
        try:
            with busy():
                if self._error is None:
                    job(*arguments)
        except BaseException as error:  # noqa: BLE001 (kept, and raised later)
            self.fail(error)
        finally:
            with self.changed:
                self._n_running -= 1
                self.changed.notify_all()

    @property
    def _is_idle(self) -> bool:
        return not (self._waiting or self._n_running)

    def idle(self) -> None:
        """Wait for the end of all jobs, and raise the exception of a job."""
        with self.changed:
            self.changed.wait_for(lambda: self._is_idle)
        self.check()

    def wait(self) -> bool:
        """Wait until `changed` is notified, and return True.

        If no job is submitted or running, return False at once. An exception of a job is raised.
        """
        with self.changed:
            is_busy = not self._is_idle
            if is_busy:
                self.changed.wait()
        self.check()
        return is_busy

    def hold(self, nbytes: int) -> None:
        """Add to the count of held memory; a negative number subtracts from it."""
        with self.changed:
            self.held_nbytes += nbytes
            self.peak_nbytes = max(self.peak_nbytes, self.held_nbytes)
            self.changed.notify_all()

    def shutdown(self) -> None:
        """End the threads after all submitted jobs."""
        self._pool.shutdown()


# ---- Shards


class _Held(Protocol):
    @property
    def nbytes(self) -> int: ...


_Key = TypeVar("_Key", bound=Hashable)
_Shard = TypeVar("_Shard", bound=_Held)


class Pending(Generic[_Key, _Shard]):
    """Shards with encoded chunks that are not written, by their keys.

    - `limit_nbytes`: bytes above which the shard with the most of them is due.
    - `nbytes`: bytes of all of them, which the caller counts.
    """

    def __init__(self, limit_nbytes: int) -> None:
        self.limit_nbytes, self.nbytes = limit_nbytes, 0
        self.shards: dict[_Key, _Shard] = {}

    def due(self, key: _Key, *, is_whole: bool) -> _Key | None:
        """Key of the shard that should be written now: of this one if it is whole."""
        if is_whole or self.nbytes <= self.limit_nbytes:
            return key if is_whole else None
        return max(self.shards, key=lambda other: self.shards[other].nbytes)


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
        self._layers_per_shard = layers_per_shard
        self._held: Pending[Shape, OpenShard] = Pending(limit_nbytes)
        self.n_commits = self.committed_nbytes = 0

    def begin(self, layer: Layer) -> OpenShard:
        """Register a layer that will be encoded, and return its shard."""
        with self._jobs.changed:
            shard = self._held.shards.setdefault(layer.shard, OpenShard(layer.shard))
            shard.n_encoding += 1
            return shard

    def enter(self, shard: OpenShard, depth: int, encoded: Encoded) -> None:
        """Keep an encoded layer, unless a later version of the same depth is known already."""
        with self._jobs.changed:
            shard.n_encoding -= 1
            last = shard.pending.get(depth)
            latest, known_nbytes = (0, 0) if last is None else (last.number, last.payload.nbytes)
            if encoded.number > max(shard.committed.get(depth, 0), latest):
                shard.pending[depth] = encoded
                nbytes = encoded.payload.nbytes - known_nbytes
                self._held.nbytes += nbytes
                self._jobs.hold(nbytes)

    def due(self, shard: OpenShard) -> OpenShard | None:
        """Shard that should be committed now, or None; see :class:`Pending`."""
        with self._jobs.changed:
            n_whole = sum(encoded.is_whole for encoded in shard.pending.values())
            due = self._held.due(shard.index, is_whole=n_whole == self._layers_per_shard)
            return None if due is None else self._held.shards[due]

    def pending(self) -> list[OpenShard]:
        """Shards with layers that are not committed."""
        with self._jobs.changed:
            return [shard for shard in self._held.shards.values() if shard.pending]

    def commit(self, stretch: Stretch, shard: OpenShard) -> None:
        """Commit all pending layers of a shard."""
        with shard.lock:
            with self._jobs.changed:
                pending, shard.pending = shard.pending, {}
                shard.committed |= {depth: encoded.number for depth, encoded in pending.items()}
                nbytes = sum(encoded.payload.nbytes for encoded in pending.values())
                self._held.nbytes -= nbytes
            if pending:
                stretch.commit(shard.index, [pending[depth] for depth in sorted(pending)])
        for encoded in pending.values():
            if encoded.memory is not None:
                self._buffers.give(encoded.memory)
        with self._jobs.changed:
            self.n_commits += bool(pending)
            self.committed_nbytes += nbytes
            self._jobs.hold(-nbytes)
            if not shard.pending and not shard.n_encoding:
                self._held.shards.pop(shard.index, None)  # nothing is pending or being encoded

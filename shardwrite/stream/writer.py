"""The writer of streams.

Callers copy blocks into the writer. Threads encode layers of inner chunks as these become whole,
and commit shards that are full. When encoded layers fill a quarter of the memory limit, the threads
also commit the shard with the most of them. A flush encodes and commits the rest.
"""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.checks import whole
from shardwrite.engines.local import LocalEngine
from shardwrite.entry.public import made_with, method_taking
from shardwrite.errors import IncompleteError, JournalError, ShardwriteError, SpecError, printable
from shardwrite.format.metadata import ArrayMetadata, parse_metadata
from shardwrite.format.strategies import AppendOnly, FixedOrder, Strategy, as_strategy
from shardwrite.grid import Box, Shape
from shardwrite.journal.neighbours import give_up_passing
from shardwrite.journal.rundir import holding
from shardwrite.options import (
    CastKeywords,
    DurabilityKeywords,
    EmptyKeywords,
    ExclusiveKeywords,
    MemoryKeywords,
    RunArguments,
    StrategyKeywords,
    arguments,
    option,
    options_from,
)
from shardwrite.place.target import Target, resolve_target
from shardwrite.plan.options import memory_limit_of
from shardwrite.plan.partition import check_growth, check_memory, check_whole
from shardwrite.plan.regions import as_region
from shardwrite.read.array import open_at
from shardwrite.results import Facts, Result, counted, duration, human, rounded
from shardwrite.runs.begin import check_unshared, check_updatable
from shardwrite.runs.job import RunOptions
from shardwrite.runs.old_shards import KeptShards, for_update
from shardwrite.runs.reads import refuse_reading
from shardwrite.runs.region_plan import cast_block, check_axis, check_can_update, check_cast, scalar
from shardwrite.runs.source_array import check_meaning, known_of_xarray
from shardwrite.stores.base import Capability, Store
from shardwrite.stream.backlog import Backlog, Jobs, OpenShard
from shardwrite.stream.layers import Block, Buffers, Layer, Layers
from shardwrite.stream.stretch import Encoded, Stretch

# ---- The report


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReport(Result):
    """Amounts and times of a stream so far.

    Attributes
    ----------
    path : str
        Path of the array.
    shape : tuple of int
        Shape of the array with all blocks that the writer has accepted.
    n_blocks : int
        Number of slices and blocks.
    raw_nbytes : int
        Decoded size of these blocks, in bytes.
    n_commits : int
        Number of commits of shards.
    committed_nbytes : int
        Size of the encoded inner chunks in these commits, in bytes.
    n_early : int
        Number of layers that were committed before they were whole, because memory ran short. A
        layer is the part of a shard that is one inner chunk thick along the stream's axis.
    peak_nbytes : int
        Maximum memory that was held at once, decoded and encoded, in bytes.
    seconds : float
        Time since the first block.
    waited_seconds : float
        Time that callers waited for memory, or for a flush.
    """

    _derived = ("nbytes_per_second",)

    path: str
    shape: Shape
    n_blocks: int
    raw_nbytes: int
    n_commits: int
    committed_nbytes: int
    n_early: int
    peak_nbytes: int
    seconds: float
    waited_seconds: float

    @property
    def nbytes_per_second(self) -> float:
        """Decoded bytes per second since the first block, including waits; 0 before it."""
        return self.raw_nbytes / self.seconds if self.seconds else 0.0

    def _rows(self) -> list[tuple[str, str]]:
        accepted, waited = "no blocks yet", duration(self.waited_seconds)
        if self.n_blocks:
            speed = f"{human(int(self.nbytes_per_second))}/s"
            accepted = f"{counted(self.n_blocks, 'block')}, {human(self.raw_nbytes)}, {speed}"
        rows = [
            ("array", f"{self.path}, {self.shape}"),
            ("taken", accepted),
            ("committed", f"{human(self.committed_nbytes)} in {counted(self.n_commits, 'commit')}"),
            ("memory", f"at most {human(self.peak_nbytes)} held"),
        ]
        if self.n_blocks:
            rows.append(("time", f"{duration(self.seconds)}, of which callers waited {waited}"))
        if self.n_early:
            early = f"{counted(self.n_early, 'layer')} written incomplete to free memory"
            rows.append(("early", early))
        return rows

    def __repr__(self) -> str:
        return (
            f"<StreamReport of {printable(self.path)}: {counted(self.n_blocks, 'block')}, "
            f"{human(self.raw_nbytes)} in, {human(self.committed_nbytes)} committed>"
        )

    def facts(self) -> Facts:
        """Return what is shown of the result, as text and in notebooks."""
        headline = [
            (f"{self.n_blocks:,}", "blocks"),
            (human(self.peak_nbytes), "held at most"),
            (human(self.raw_nbytes), "taken"),
            (human(self.committed_nbytes), "committed"),
            *([(duration(self.seconds), "time")] if self.n_blocks else []),
        ]
        return Facts(title="streamed", subject=self.path, headline=headline, rows=self._rows())


# ---- The writer


_MAX_EXTENT = 2**48

_DEFAULT_NBYTES = 2**30


def _auto(metadata: ArrayMetadata, store: Store) -> Strategy:
    if not metadata.is_sharded or Capability.EDIT not in store.capabilities:
        return FixedOrder()
    if not metadata.index_codec.has_checksum:
        return AppendOnly()
    if metadata.pipeline.encoded_nbytes is not None:
        return FixedOrder(in_place=True, max_unused=1.0)
    return AppendOnly(in_place=True)


@dataclass(slots=True)
class _Accepted:
    """Blocks of a writer that no flush has committed yet."""

    label: str
    n_blocks: int = 0

    def tell(self) -> None:
        """Warn about these blocks, if there are any, as the writer goes or the process ends."""
        if self.n_blocks:
            warnings.warn(
                f"the ShardWriter of {self.label} was never closed: {self.n_blocks} blocks since "
                "its last flush may be lost; use it in a with statement, or call close()",
                stacklevel=2,
            )


def _values_of(block: Any, metadata: ArrayMetadata, target: Target) -> npt.NDArray[Any]:
    """The block as an array."""
    if type(block) is not np.ndarray:
        refuse_reading(block, target.store, target.label)
    if type(block).__module__.startswith("xarray."):
        check_meaning(known_of_xarray(block, "block"), metadata, "block")
    if np.ma.is_masked(block):
        raise SpecError(
            "holds masked elements",
            field="block",
            value=type(block).__name__,
            remedy="say what they become with block.filled(value)",
        )
    reason, is_lazy = "", hasattr(block, "__dask_graph__")
    try:
        values = np.asarray(block)
    except ShardwriteError:
        raise
    except (TypeError, ValueError) as error:
        if is_lazy:  # it is an error of what is computed
            raise
        reason = f" ({error})"
    else:  # numpy takes what it does not know, such as a sparse matrix, for one object
        if values.ndim or values.dtype != object or not hasattr(block, "shape"):
            return values
    raise SpecError(
        f"is no array of numpy, and does not become one{reason}",
        field="block",
        value=type(block).__name__,
        remedy="convert it, for instance by its method toarray, todense or get",
    )


@arguments
class WriterArguments(
    EmptyKeywords,
    MemoryKeywords,
    ExclusiveKeywords,
    DurabilityKeywords,
    StrategyKeywords,
    CastKeywords,
    RunArguments,
):
    """Arguments of `ShardWriter`."""

    HELP: ClassVar[Mapping[str, str]] = {
        "axis": "Axis along which slices are appended and the array grows.",
        "casting": "The numpy rule for casting blocks to the dtype of the array.",
        "memory_limit": """Maximum size of the decoded and encoded data that the writer holds, in
        bytes or as text such as ``"2 GiB"``. Callers wait while it is exceeded. The default is 1
        GiB or a quarter of the memory, whichever is less.""",
        "write_empty_chunks": "Store inner chunks that contain only the fill value.",
    }

    _: KW_ONLY
    strategy: Any = option(
        "auto",
        """Write strategy for shards that are flushed before they are full. ``"auto"`` writes inner
        chunks of a fixed size directly to their place. It appends other inner chunks and a new
        index to the shard, or to a clone of it if the index has no checksum.""",
        kind="FixedOrder, AppendOnly, Hdf5 or str",
    )
    n_threads: int | None = option(
        None, "Number of threads that encode and commit; by default the number of cores."
    )


@made_with(WriterArguments)
class ShardWriter:
    """Writer of slices, or of blocks in any order, into an existing sharded array.

    Blocks are copied. Threads encode them as inner chunks become whole, and commit them when a
    shard is full, when memory runs short, or at :meth:`flush`. After a flush, the data are as
    durable as `durability` says and visible to readers, and the array has grown along `axis`.

    Raises
    ------
    SpecError
        If there is no sharded array, or it cannot be written with these arguments.
    PlanError
        If an inner chunk or the index of a shard does not fit into the memory.
    JournalError
        When a block is given, if another run writes the same shards, or if the shape of the array
        has changed since the writer was opened.

    Notes
    -----
    Several threads may use one writer; their blocks are accepted one after the other. Leaving the
    context flushes, also after an error. After a crash, opening the next writer or calling
    ``abandon`` restores every shard to the state of one of its commits. Slices that were not
    flushed may then be present inside the shape of the array, but not beyond it.

    Examples
    --------
    >>> import numpy as np, shardwrite, tempfile
    >>> path = tempfile.mkdtemp() + "/movie.zarr"
    >>> shardwrite.create(path, (0, 64, 64), "uint16", shards=(32, 64, 64), chunks=(1, 32, 32))
    >>> with shardwrite.ShardWriter(path) as writer:
    ...     for t in range(40):
    ...         writer.append(np.full((64, 64), t, dtype="uint16"))
    ...     writer.flush()
    ...     writer[50] = np.full((64, 64), 50, dtype="uint16")
    >>> y = shardwrite.from_sharded_zarr(path)
    >>> y.shape, y[[39, 45, 50], 0, 0].compute().tolist()
    ((51, 64, 64), [39, 0, 50])
    """

    @method_taking(WriterArguments)
    def __init__(self, call: WriterArguments) -> None:
        strategy, n_threads, casting = call.strategy, call.n_threads, call.casting
        target = resolve_target(call.store, call.name, call.run_dir)
        self._target = target.exclusively(when=call.exclusive)
        self._metadata = parse_metadata(open_at(self._target.place).metadata.text, writing=True)
        grid = self._metadata.grid
        self._axis = check_axis(call.axis, grid.ndim)
        slab = tuple(1 if i == self._axis else n for i, n in enumerate(grid.shape))
        check_whole(replace(grid, shape=slab), self._target.label)
        self._strategy: Strategy = (
            _auto(self._metadata, self._target.store)
            if isinstance(strategy, str) and strategy == "auto"
            else as_strategy(strategy)
        )
        check_can_update(self._metadata, self._strategy)
        check_updatable(self._target.store, self._strategy)
        check_unshared(self._target)
        self._strategy = for_update(self._target, self._metadata, self._strategy)
        self._kept = KeptShards(self._target, self._metadata, self._strategy)
        check_cast(self._metadata.dtype, self._metadata.dtype, casting, "block")
        if n_threads is not None:
            whole("n_threads", n_threads, "a number of threads")
        self._durability = self._target.durability(options_from(call, RunOptions).durability)
        self._casting, self._write_empty = casting, call.write_empty_chunks
        engine = LocalEngine("threads")
        self._limit = memory_limit_of(call.memory_limit) or min(
            _DEFAULT_NBYTES, engine.memory_limit_nbytes // 4
        )
        check_memory(grid, self._metadata.itemsize, engine.memory_limit_nbytes)
        self._jobs = Jobs(n_threads or engine.n_threads)
        with holding(self._target):
            give_up_passing(self._target)
        self._shape = list(grid.shape)
        self._layers = Layers(grid, self._axis)
        self._buffers = Buffers(self._limit // 4)
        self._stretch: Stretch | None = None
        per_shard = grid.chunks_per_shard[self._axis]
        self._backlog = Backlog(self._jobs, self._buffers, per_shard, self._limit // 4)
        self._caller = threading.RLock()
        self._n_encoded = self._n_blocks = self._n_raw = self._n_early = 0
        self._began = self._waited = 0.0
        self._is_closed = False
        self._accepted = _Accepted(self._target.label)
        weakref.finalize(self, self._accepted.tell)

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def shape(self) -> Shape:
        """Shape of the array with all blocks that were accepted."""
        return tuple(self._shape)

    def append(self, block: Any) -> None:
        """Append the next slice along the axis, or several.

        Parameters
        ----------
        block : array_like
            Several slices, with as many axes as the array, or a single slice without `axis`.

        Raises
        ------
        SpecError
            If the shape or dtype of the block does not fit, or the writer is closed.
        JournalError
            If another run writes the same shards, or has changed the shape of the array.
        ShardwriteError
            If the encoding or commit of an earlier block failed.
        """
        with self._caller:
            array = _values_of(block, self._metadata, self._target)
            if array.ndim == len(self._shape) - 1:
                array = np.expand_dims(array, self._axis)
            if array.ndim != len(self._shape) or any(
                n != m
                for i, (n, m) in enumerate(zip(array.shape, self._shape, strict=True))
                if i != self._axis
            ):
                wanted = tuple("any" if i == self._axis else n for i, n in enumerate(self._shape))
                remedy = f"give an array of shape {wanted}, or one without axis {self._axis}"
                raise SpecError(
                    "does not fit the array",
                    field="block.shape",
                    value=np.shape(block),
                    remedy=remedy,
                )
            start = tuple(n if i == self._axis else 0 for i, n in enumerate(self._shape))
            self._take(Box.from_shape(start, array.shape), array)

    def __setitem__(self, region: Any, block: Any) -> None:
        """Write a block into a region.

        Parameters
        ----------
        region : slice, int, Ellipsis or tuple of them
            Region in coordinates of the array, as numpy takes it. It may extend beyond the end
            along `axis`; the array then grows.
        block : array_like
            Elements of the region, with the shape that numpy gives it, or one scalar for all.

        Raises
        ------
        SpecError
            If the region is invalid, the shape or dtype of the block does not fit, or the writer
            is closed.
        JournalError
            If another run writes the same shards, or has changed the shape of the array.
        ShardwriteError
            If the encoding or commit of an earlier block failed.
        """
        with self._caller:
            where = as_region(
                region,
                tuple(_MAX_EXTENT if i == self._axis else n for i, n in enumerate(self._shape)),
            )
            box, element = where.box, scalar(block, self._metadata.dtype, self._casting)
            array = _values_of(block, self._metadata, self._target) if element is None else element
            if not where.accepts(array.shape) or box.stop[self._axis] > _MAX_EXTENT // 2:
                remedy = (
                    "give a block of the region's shape, "
                    f"and count from the beginning of axis {self._axis}"
                )
                raise SpecError(
                    "is not the region's", field="block.shape", value=array.shape, remedy=remedy
                )
            self._take(
                box,
                np.full(box.shape, array, dtype=array.dtype)
                if array.ndim == 0
                else array.reshape(box.shape),
            )

    def flush(self) -> None:
        """Commit all accepted blocks.

        On return, they are as durable as `durability` says, and readers see them.

        Raises
        ------
        SpecError
            If the writer is closed.
        ShardwriteError
            If something cannot be encoded, committed or published. After a failed encoding or
            commit, the writer accepts no more blocks.
        """
        with self._caller:
            self._check()
            if self._stretch is not None:
                self._commit_all()
                self._stretch.publish(self._shape)
            self._accepted.n_blocks = 0

    def close(self) -> None:
        """Flush, end the run, and stop the threads; a second call does nothing.

        Raises
        ------
        ShardwriteError
            If something cannot be encoded, committed or published.
        """
        with self._caller:
            if self._is_closed:
                return
            self._is_closed, self._accepted.n_blocks = True, 0
            try:
                self._jobs.idle()
                self._end_stretch()
            finally:
                self._jobs.shutdown()
                if self._stretch is not None:
                    self._stretch.lease.close()

    def report(self) -> StreamReport:
        """Return the amounts and times of the stream so far."""
        with self._jobs.changed:
            return StreamReport(
                path=self._target.label,
                shape=self.shape,
                n_blocks=self._n_blocks,
                raw_nbytes=self._n_raw,
                n_commits=self._backlog.n_commits,
                committed_nbytes=self._backlog.committed_nbytes,
                n_early=self._n_early,
                peak_nbytes=self._jobs.peak_nbytes,
                seconds=rounded(time.perf_counter() - self._began) if self._began else 0.0,
                waited_seconds=rounded(self._waited),
            )

    # ---- run by callers, one at a time

    def _check(self) -> None:
        self._jobs.check()
        if self._is_closed:
            raise SpecError(
                "is closed", field="writer", value=self._target.label, remedy="make another one"
            )

    def _take(self, box: Box, array: npt.NDArray[Any]) -> None:
        """Accept a block, and encode the layers that it completes."""
        self._check()
        array = cast_block(array, self._metadata.dtype, self._casting)
        if not box.size:
            return
        self._began = self._began or time.perf_counter()
        check_growth(
            self._metadata.grid, [max(n, b) for n, b in zip(self._shape, box.stop, strict=True)]
        )
        self._kept.check(box)
        nbytes = max(1, box.size * self._metadata.itemsize)
        self._make_room(nbytes)
        stretch = self._stretch_around(box)
        block = Block(box, array)
        can_be_direct = self._metadata.pipeline.is_identity
        if not can_be_direct:
            self._keep(block)  # first, as it takes long: up to here, an interrupt changes nothing
        with self._unbroken():
            self._jobs.hold(nbytes)
            self._n_blocks, self._n_raw = self._n_blocks + 1, self._n_raw + nbytes
            self._accepted.n_blocks += 1
            self._shape[self._axis] = max(self._shape[self._axis], box.stop[self._axis])
            whole, needless = self._layers.add(block)
            self._release(needless)
            direct = [layer for layer in whole if can_be_direct and layer.blocks == [block]]
            if can_be_direct and len(direct) < block.n_layers:
                self._keep(block)
            for layer in whole:
                self._encode(stretch, layer, is_whole=True, now=layer in direct)

    @contextlib.contextmanager
    def _unbroken(self) -> Iterator[None]:
        """Refuse all further work if the block is left half way, for instance by Ctrl-C.

        A block that was sorted into layers in part would be lost without an error.
        """
        try:
            yield
        except ShardwriteError as error:
            self._jobs.fail(error)
            raise
        except BaseException as error:
            message = (
                f"{type(error).__name__} has interrupted the writer of {self._target.label}: what "
                "the last flush has committed is kept, and what came later may be missing; open "
                "another writer, and give it that again"
            )
            self._jobs.fail(IncompleteError(message, missing=[]))
            raise

    def _keep(self, block: Block) -> None:
        """Copy the elements of a block, because its caller may change them afterwards."""
        elements = block.array
        if elements.dtype.hasobject or elements.dtype.kind == "T":
            block.array = elements.copy()
            return
        block.memory = self._buffers.take(elements.nbytes)
        block.array = block.memory.view(elements.dtype).reshape(elements.shape)
        np.copyto(block.array, elements)

    def _make_room(self, nbytes: int) -> None:
        """Wait until a block of `nbytes` bytes can be accepted.

        If no job runs that could free memory, commit early.
        """
        start = time.perf_counter()
        while self._jobs.held_nbytes and self._jobs.held_nbytes + nbytes > self._limit:
            if not self._jobs.wait():
                self._commit_all(early=True)
        self._waited += time.perf_counter() - start

    def _stretch_around(self, box: Box) -> Stretch:
        """Return the stretch around a box; the current one ends if the box is not inside it."""
        if self._stretch is not None and self._stretch.box.contains(box):
            return self._stretch
        self._end_stretch()
        stretch = Stretch.begin(
            self._target,
            self._metadata,
            self._axis,
            box,
            self._strategy,
            self._durability,
            self._buffers,
            write_empty=self._write_empty,
        )
        # Between two stretches, another process may have appended where this stream goes on.
        if self._n_blocks == 0 or box.stop[self._axis] > self._shape[self._axis]:
            try:
                self._check_shape()
            except BaseException:
                stretch.cancel()
                raise
        self._stretch = stretch
        stretch.list_before()
        return stretch

    def _check_shape(self) -> None:
        """Refuse to write if the shape of the array has changed since this writer was opened."""
        shape = tuple(self._target.shape)
        if shape != self.shape:
            message = (
                f"the shape of {self._target.label} became {shape}, and this writer knows "
                f"{self.shape}; open another one"
            )
            raise JournalError(message, path=self._target.label)

    def _end_stretch(self) -> None:
        if self._stretch is not None:
            self._commit_all(closing=True)
            self._stretch.end(self._shape, self.report().to_dict())
            self._stretch = None

    def _commit_all(self, *, early: bool = False, closing: bool = False) -> None:
        """Encode and commit everything that is held.

        Layers that are not whole are committed as they are. They stay open for further blocks,
        except with `early` (memory is needed) or `closing` (the stretch ends). With `early`, only
        the encoded layers are committed if there are any.
        """
        stretch = self._stretch
        if stretch is None:
            return
        start = time.perf_counter()
        self._jobs.idle()
        if early and self._backlog.pending():
            self._commit_pending(stretch)  # this may free enough memory
            return
        # Layers that are closed are known to this thread only.
        with self._unbroken() if early or closing else contextlib.nullcontext():
            self._commit_layers(stretch, early=early, closing=closing)
        if not early:
            self._waited += time.perf_counter() - start

    def _commit_layers(self, stretch: Stretch, *, early: bool, closing: bool) -> None:
        """Encode and commit the layers that are not whole, and all that is encoded."""
        layers = self._layers.close() if early or closing else self._layers.fresh
        pending = {
            (shard.index, depth) for shard in self._backlog.pending() for depth in shard.pending
        }
        if any((layer.shard, layer.depth) in pending for layer in layers):
            # An older version of a layer must be in the stored shard before the layer is encoded
            # again, because that reads missing elements from there.
            self._commit_pending(stretch)
        for layer in layers:
            if layer.is_fresh:
                self._encode(stretch, layer, is_whole=False)
        self._jobs.idle()
        self._commit_pending(stretch)
        if early or closing:
            self._n_early += len(layers) if early else 0
            self._release([block for layer in layers for block in layer.blocks])

    def _commit_pending(self, stretch: Stretch) -> None:
        for shard in self._backlog.pending():
            self._jobs.submit(self._backlog.commit, stretch, shard)
        self._jobs.idle()

    def _encode(self, stretch: Stretch, layer: Layer, *, is_whole: bool, now: bool = False) -> None:
        """Encode a layer in a job, or in this thread with `now`.

        `now` is for layers whose encoding takes no longer than the copy of the block that a job
        would need.
        """
        with self._unbroken():
            layer.is_fresh = False
            self._n_encoded += 1
            number, shard = self._n_encoded, self._backlog.begin(layer)
            if now:
                self._enter(shard, layer, stretch.encode(layer, number, is_whole=True))
                if self._backlog.due(shard) is not None:
                    self._jobs.submit(self._commit_due, stretch, shard)
            else:
                self._jobs.submit(self._encode_layer, stretch, shard, layer, number, is_whole)

    def _release(self, blocks: Sequence[Block]) -> None:
        """Release each block for one layer; a block that no layer needs frees its memory."""
        with self._jobs.changed:
            for block in blocks:
                block.n_layers -= 1
                if block.n_layers == 0:
                    self._jobs.hold(-max(1, block.array.size * self._metadata.itemsize))
                    if block.memory is not None:
                        self._buffers.give(block.memory)

    # ---- run by the threads of the pool

    def _encode_layer(
        self, stretch: Stretch, shard: OpenShard, layer: Layer, number: int, is_whole: bool
    ) -> None:
        if is_whole:
            encoded = stretch.encode(layer, number, is_whole=True)
        else:
            with shard.lock:
                encoded = stretch.encode(layer, number, is_whole=False)
        self._enter(shard, layer, encoded)
        self._commit_due(stretch, shard)

    def _enter(self, shard: OpenShard, layer: Layer, encoded: Encoded) -> None:
        self._backlog.enter(shard, layer.depth, encoded)
        if encoded.is_whole:
            self._release(layer.blocks)

    def _commit_due(self, stretch: Stretch, shard: OpenShard) -> None:
        due = self._backlog.due(shard)
        if due is not None:
            self._backlog.commit(stretch, due)

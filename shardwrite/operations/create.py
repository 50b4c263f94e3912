"""Creation of arrays without data, which regions or a stream fill later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardwrite.engines.local import active_engine
from shardwrite.entry.public import taking
from shardwrite.errors import SpecError
from shardwrite.format.document import ArrayOptions, make_metadata
from shardwrite.format.strategies import FixedOrder
from shardwrite.grid import Shape, Sized
from shardwrite.journal.holding import holding
from shardwrite.journal.ledger import Ledger
from shardwrite.operations.keywords import EXISTING
from shardwrite.options import (
    ArrayKeywords,
    BeginKeywords,
    ModeKeywords,
    NameKeywords,
    StateKeywords,
    described,
    metadata_of,
    taken_from,
)
from shardwrite.place.target import resolve_new
from shardwrite.plan.limits import check_new
from shardwrite.plan.model import SourceLayout
from shardwrite.plan.options import resolve_shapes
from shardwrite.plan.partition import Partition
from shardwrite.plan.plan import Plan
from shardwrite.runs.array_plan import naming_settings, resources_of, with_configured
from shardwrite.runs.execute import execute_missing
from shardwrite.runs.finished import has_ended
from shardwrite.runs.job import Job, RunOptions, for_new_array
from shardwrite.runs.source import NoChunks


@dataclass(frozen=True, repr=False, eq=False)
class CreateArguments(ModeKeywords, BeginKeywords, StateKeywords, NameKeywords, ArrayKeywords):
    """Arguments of `create`."""

    store: Any = field(metadata=EXISTING)
    shape: tuple[int, ...] = field(
        metadata=described(
            "Shape of the array. Give 0 for an axis along which a stream will make it grow.",
            kind="tuple of int",
        )
    )
    dtype: Any = field(metadata=described("Data type of the array.", kind="dtype_like"))
    shards: Sized | Mapping[str, Any] = field(
        kw_only=True, metadata=metadata_of(ArrayKeywords, "shards")
    )
    chunks: Sized = field(kw_only=True, metadata=metadata_of(ArrayKeywords, "chunks"))


@taking(CreateArguments)
def create(given: CreateArguments) -> None:
    """Create a sharded array that holds no data yet. Every element reads as the fill value.

    Raises
    ------
    SpecError
        If an argument does not fit, or something that may not be replaced exists there.
    TypeError
        If a keyword is unknown.
    JournalError
        If another run on the array has not ended.
    StoreError
        If the storage refuses.

    Examples
    --------
    >>> import dask.array as da, shardwrite, tempfile
    >>> path = tempfile.mkdtemp() + "/x.zarr"
    >>> shardwrite.create(path, (1000, 1000), "float32", shards=500, chunks=100, fill_value=-1)
    >>> _ = da.ones((10, 10), dtype="float32").to_sharded_zarr(
    ...     path, region=(slice(0, 10), slice(0, 10))
    ... )
    >>> shardwrite.from_sharded_zarr(path)[8:12, 0].compute().tolist()
    [1.0, 1.0, -1.0, -1.0]
    """
    asked = taken_from(given, ArrayOptions)
    kind, engine = _dtype_of(given.dtype), active_engine()
    array = with_configured(asked)
    extents = _shape_of(given.shape)
    whole = tuple((n,) for n in extents)
    with naming_settings(asked, array):
        shard_shape, chunk_shape, _ = resolve_shapes(
            extents, kind.itemsize or 1, array.shards, array.chunks, whole
        )
        check_new(extents, kind.itemsize or 1, shard_shape, chunk_shape)
        sharded = None if array.shards is None else shard_shape
        metadata = make_metadata(extents, kind, sharded, chunk_shape, array)
    edges = tuple((0, n) if n else (0,) for n in extents)
    plan = Plan(
        metadata=metadata,
        strategy=FixedOrder(),
        source=SourceLayout(whole, 0, "nothing", is_stable=True),
        partition=Partition(edges, edges),  # nothing is written, so nothing is cut
        resources=resources_of(engine),
    )
    known = Ledger(metadata.grid)
    known.is_done[:] = True
    options = for_new_array(taken_from(given, RunOptions))
    target = resolve_new(given.store, given.name, given.run_dir, array.format)
    job = Job(NoChunks(), plan, target, options)
    with holding(target):
        if not has_ended(job):
            execute_missing(job, engine, lambda _: None, lambda: known)


def _dtype_of(dtype: Any) -> np.dtype[Any]:
    """The argument `dtype` as a numpy dtype."""
    try:
        found: np.dtype[Any] = np.dtype(dtype)
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"no data type ({error})",
            field="dtype",
            value=str(dtype),
            remedy='give for instance "float32"',
        ) from None
    return found


def _shape_of(shape: Any) -> Shape:
    """The argument `shape` as a tuple of Python integers."""
    if isinstance(shape, np.ndarray) and shape.ndim:
        shape = list(shape)
    sizes = tuple(shape) if isinstance(shape, Sequence) and not isinstance(shape, str) else None
    are_sizes = sizes is not None and all(
        isinstance(n, int | np.integer) and not isinstance(n, bool) and n >= 0 for n in sizes
    )
    if sizes is None or not are_sizes:
        raise SpecError(
            "not a shape",
            field="shape",
            value=shape,
            remedy="give an integer, 0 or more, for each axis",
        )
    return tuple(int(n) for n in sizes)

"""Arrays that a conversion replaces or removes, and whose shards are files of HDF5."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np

from shardwrite.errors import SpecError
from shardwrite.format.hdf5_strategy import Hdf5, dataset_of
from shardwrite.format.strategy import Strategy
from shardwrite.grid import Shape
from shardwrite.journal import receipt_at
from shardwrite.plan import PlanOptions
from shardwrite.read.array import ShardedArray
from shardwrite.read.hdf5_shards import fits_hdf5, is_hdf5_at
from shardwrite.read.stored_array import StoredArray
from shardwrite.runs.consuming import ranks_there
from shardwrite.runs.hdf5_kept import KnownShards, keeping_hdf5, shards_at_ends

_N_THREADS = 16
_AT_A_TIME = 1024
_N_DIGITS = 64  # of a digest


def with_name(source: StoredArray, options: PlanOptions, begun: str | None = None) -> PlanOptions:
    """Options of a conversion, with the name of the dataset in the files that it replaces.

    - `begun`: what `named` gave when the same conversion was begun. Files of the array may be gone
      since.
    """
    metadata, strategy = source.array.metadata, options.strategy
    if not isinstance(strategy, Hdf5) or strategy.dataset is not None or not fits_hdf5(metadata):
        return options
    if begun is not None:
        return replace(options, strategy=replace(strategy, dataset=dataset_of(begun[_N_DIGITS:])))
    known = KnownShards(metadata, source.array.store, receipt_at(source.place))
    ends = shards_at_ends(metadata.grid)
    return replace(options, strategy=keeping_hdf5(known, strategy, ends, drops=True))


def named(digest: str, asked: Strategy, kept: Strategy) -> str:
    """A digest of a conversion, with the name of the dataset if it was taken from the files."""
    is_kept = isinstance(asked, Hdf5) and isinstance(kept, Hdf5) and asked.dataset != kept.dataset
    return f"{digest}{kept.label}" if is_kept else digest


def refuse_loss(
    sources: Sequence[StoredArray], options: PlanOptions, *, is_sharded: bool, is_consumed: bool
) -> None:
    """Refuse a conversion after which files of HDF5 are gone that are shards of an array."""
    if isinstance(options.strategy, Hdf5):
        return
    for source in sources:
        found = _first_file(source.array)
        if found is None:
            continue
        elsewhere = "leave consume out" if is_consumed else "give another place for the new array"
        kept = ', or call reshard with strategy="hdf5" for new files that hold only this dataset'
        raise SpecError(
            f"the shard {source.array.metadata.shard_key(found)!r} of {source.label} is also a "
            "file of HDF5, and nothing in it but the array would be kept",
            field="drop_hdf5",
            value=False,
            remedy=f"{elsewhere}, which leaves the files as they are{kept if is_sharded else ''}. "
            "To give them up, give drop_hdf5=True",
        )


def _first_file(array: ShardedArray) -> Shape | None:
    """Position of the first shard that is a file of HDF5; None if there is none."""
    metadata = array.metadata
    if not fits_hdf5(metadata):
        return None
    ranks = np.flatnonzero(ranks_there(array))
    look = partial(is_hdf5_at, metadata, array.store)
    with ThreadPoolExecutor(_N_THREADS) as pool:
        for start in range(0, len(ranks), _AT_A_TIME):
            at = np.unravel_index(ranks[start : start + _AT_A_TIME], metadata.grid.counts)
            indices = [tuple(index) for index in np.stack(at, axis=1).tolist()]
            for index, is_file in zip(indices, pool.map(look, indices), strict=True):
                if is_file:
                    return index
    return None

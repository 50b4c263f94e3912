"""Updates of arrays whose shards are files of HDF5: what they stay, and the name of the dataset.

Strategies are not stored in the document of an array. What a shard is, the shard itself tells. If
there is none, the receipt of the array tells it, or else a shard beside it.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from shardwrite.errors import SpecError, StoreError
from shardwrite.format.hdf5_strategy import DEFAULT_DATASET, Hdf5, dataset_of
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.strategy import Strategy
from shardwrite.grid import Box, Shape, ShardGrid
from shardwrite.journal import Receipt, read_receipt
from shardwrite.place.target import Target
from shardwrite.read.hdf5_shards import (
    HOW_TO_CHANGE,
    fits_hdf5,
    is_hdf5_at,
    look,
    names_in,
    other_name,
    refuse_hdf5,
)
from shardwrite.stores import Store

_MAX_LABELS = 10
_N_THREADS = 16
_FEW = 4  # shards for which threads are not worth it
_MOST_SEEN = 65536


@dataclass(frozen=True, slots=True)
class KnownShards:
    """What is known of the shards of an array."""

    metadata: ArrayMetadata
    store: Store
    receipt: Receipt | None

    @classmethod
    def of(cls, target: Target, metadata: ArrayMetadata) -> KnownShards:
        """The shards of an array."""
        return cls(metadata, target.store, read_receipt(target))

    def names_at(self, index: Shape, wanted: str | None = None) -> list[str] | None:
        """Names of datasets in a shard; empty if it is no file of HDF5.

        If it has `wanted`, that one may be the only name.

        None if the shard is not there, or cannot be read as such a file.
        """
        with contextlib.suppress(StoreError), contextlib.ExitStack() as stack:
            key = self.metadata.shard_key(index)
            reader = self.store.open(key)
            if reader is not None:
                stack.push(reader)
                is_file, has_wanted = look(self.metadata, key, reader, wanted)
                if wanted is not None and has_wanted:
                    return [wanted]
                if not is_file:
                    return []
                return names_in(self.metadata, key, reader, [wanted, *self._noted]) or None
        return None

    def is_hdf5(self, index: Shape) -> bool:
        """Whether a shard is a file of HDF5, or should be one if it cannot be read."""
        names = self.names_at(index)
        if names is None:
            is_found = is_hdf5_at(self.metadata, self.store, index)
            return is_found or bool(self.told_at(index))
        return bool(names)

    def told_at(self, index: Shape) -> list[str]:
        """Names of the dataset that a shard should have; empty if it should be a plain shard.

        The last update of the shard tells, or what made the array. If the receipt tells nothing, it
        is one of the shards beside it.
        """
        label = self._label_at(index)
        if label is not None:
            name = dataset_of(label)
            return [] if name is None else [name]
        for beside in _beside(index, self.metadata.grid):
            names = self.names_at(beside)
            if names is not None:
                return names
        return []

    @property
    def noted(self) -> str | None:
        """Name of the dataset that the receipt knows, of whichever shards."""
        return next(iter(self._noted), None)

    @property
    def _noted(self) -> list[str]:
        """Names of datasets in the receipt, the last one first."""
        if self.receipt is None:
            return []
        updates = [entry.identity.strategy for entry in reversed(self.receipt.updates)]
        found = map(dataset_of, [*updates, self.receipt.identity.strategy])
        names = dict.fromkeys(name for name in found if name is not None)
        return list(itertools.islice(names, _MAX_LABELS))

    def _label_at(self, index: Shape) -> str | None:
        """Label of the strategy that a shard was written by, as far as the receipt tells."""
        if self.receipt is None:
            return None
        bounds = self.metadata.grid.shard_box(index).bounds
        for entry in reversed(self.receipt.updates):
            label = entry.identity.strategy
            if label is not None and not entry.given_up and entry.overlaps(bounds):
                return label
        made = self.receipt.identity
        shape = tuple((made.metadata or {}).get("shape", ()))
        # `create` wrote nothing, and a download wrote what there was.
        is_of_run = made.tells_strategy and len(shape) == len(bounds)
        is_inside = is_of_run and all(a < n for (a, _), n in zip(bounds, shape, strict=True))
        label = made.strategy
        return label if is_inside or dataset_of(label) is not None else None


class KeptShards:
    """Looks at the shards of an array before a stream accepts a block for them, each once."""

    def __init__(self, target: Target, metadata: ArrayMetadata, strategy: Strategy) -> None:
        self._strategy, self._seen = strategy, set[Shape]()
        self._known = KnownShards.of(target, metadata) if fits_hdf5(metadata) else None

    def check(self, box: Box) -> None:
        """Refuse a block if the stream would make another file of one of HDF5.

        - `box`: box of the block. Shards behind the end of the array, as the stream has found it,
          are looked at when they are written.
        """
        if self._known is None:
            return
        grid = self._known.metadata.grid
        common = box.intersect(grid.whole)
        new = [index for index in grid.shards_in(common) if index not in self._seen]
        if len(new) > _FEW:
            with ThreadPoolExecutor(min(_N_THREADS, len(new))) as pool:
                list(pool.map(self._check_one, new))
        else:
            for index in new:
                self._check_one(index)
        if len(self._seen) > _MOST_SEEN:
            self._seen.clear()
        self._seen.update(new)

    def _check_one(self, index: Shape) -> None:
        if self._known is not None:
            keeping_hdf5(self._known, self._strategy, [index], drops=False)


def for_update(
    target: Target,
    metadata: ArrayMetadata,
    strategy: Strategy,
    box: Box | None = None,
    *,
    drops: bool = False,
) -> Strategy:
    """The strategy of an update, which keeps files of HDF5; see `keeping_hdf5`.

    The first shard and the last one are looked at. All of them are if some may have been dropped:
    then the receipt tells of files of HDF5, and these two are none.

    - `metadata`: its metadata, as they are after the update.
    - `box`: region that is written. If it is not given, two shards of the array are looked at.
    - `drops`: whether files of HDF5 may be dropped.
    """
    if not fits_hdf5(metadata):
        return strategy
    known = KnownShards.of(target, metadata)
    found = keeping_hdf5(known, strategy, shards_at_ends(metadata.grid, box), drops=drops)
    if box is not None and known.noted is not None and not isinstance(strategy, Hdf5):
        keeping_hdf5(known, strategy, metadata.grid.shards_in(box), drops=drops)
    return found


def keeping_hdf5(
    known: KnownShards, strategy: Strategy, indices: Iterable[Shape], *, drops: bool
) -> Strategy:
    """The strategy of an update, which keeps files of HDF5, and the name of their dataset.

    - `drops`: whether files of HDF5 may be dropped.
    """
    metadata = known.metadata
    if not fits_hdf5(metadata):
        return strategy
    if isinstance(strategy, Hdf5):
        return _named(known, strategy, indices, drops=drops)
    if drops and strategy.replaces:
        return strategy
    for index in indices:
        key = metadata.shard_key(index)
        with contextlib.suppress(StoreError), contextlib.ExitStack() as stack:
            reader = known.store.open(key)
            if reader is not None:
                stack.push(reader)
                refuse_hdf5(metadata, strategy, key, reader)
                continue
        if known.told_at(index):
            raise SpecError(
                f"the shards of the array are also files of HDF5, and the shard {key!r} would be "
                "none",
                field="strategy",
                value=strategy.label,
                remedy=HOW_TO_CHANGE,
            )
    return strategy


def shards_at_ends(grid: ShardGrid, box: Box | None = None) -> list[Shape]:
    """Positions of the first and the last shard that a box touches; of all shards by default."""
    if not grid.n_shards:
        return []
    first, last = (0,) * grid.ndim, tuple(n - 1 for n in grid.counts)
    if box is not None:
        first = tuple(a // s for a, s in zip(box.start, grid.shards, strict=True))
        last = tuple((b - 1) // s for b, s in zip(box.stop, grid.shards, strict=True))
    return sorted({first, last})


def _named(known: KnownShards, strategy: Hdf5, indices: Iterable[Shape], *, drops: bool) -> Hdf5:
    """A strategy whose name is that of the files; see `keeping_hdf5`."""
    if strategy.dataset is not None and drops:
        return strategy
    chosen, where = None, ""
    for index in indices:
        names, key = known.names_at(index, strategy.dataset), known.metadata.shard_key(index)
        here = f"in the shard {key!r}"
        if names is None:
            names, here = known.told_at(index), "in the shards of the array"
        if not names:
            continue
        if strategy.dataset is not None:
            if strategy.dataset not in names:
                raise other_name(strategy, names, here)
            continue
        noted = known.noted
        if len(names) > 1 and noted not in names:
            raise SpecError(
                f"the shard {key!r} has several datasets: {', '.join(map(repr, names))}",
                field="strategy.dataset",
                value=None,
                remedy=f'give the name of the array\'s dataset, as in strategy="hdf5:{names[0]}"',
            )
        name = noted if noted in names else names[0]
        if chosen not in (None, name):
            raise SpecError(
                f"the dataset is {chosen!r} {where}, and {name!r} {here}",
                field="strategy.dataset",
                value=None,
                remedy="give one of the names, as in strategy="
                f'"hdf5:{chosen}", with drop_hdf5=True',
            )
        chosen, where = name, here
    if strategy.dataset is not None:
        return strategy
    return replace(strategy, dataset=chosen or known.noted or DEFAULT_DATASET)


def _beside(index: Shape, grid: ShardGrid) -> Iterator[Shape]:
    """Positions of the shards beside one, along each axis: before it, and then behind it."""
    for step in (-1, 1):
        for axis, at in enumerate(index):
            if 0 <= at + step < grid.counts[axis]:
                yield (*index[:axis], at + step, *index[axis + 1 :])

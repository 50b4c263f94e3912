"""Shards that an update must keep what they are: plain ones, or files of another format, too.

Strategies are not stored in the document of an array. What a shard is, the shard itself tells. If
there is none, the receipt of the array tells it, or else a shard beside it.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from shardwrite._dataclass import dataclass
from shardwrite.errors import SpecError, StoreError
from shardwrite.format.frame import Signature, framing_of, signature_for_label, signatures_in
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.strategies import Strategy
from shardwrite.grid import Box, Shape, ShardGrid
from shardwrite.journal.receipt import Receipt, read_receipt
from shardwrite.place.target import Target
from shardwrite.read.signatures import refuse_change, signature_of
from shardwrite.stores.base import ObjectReader, Store

_N_THREADS = 16
_FEW = 4  # shards for which threads are not worth it
_MOST_SEEN = 65536
_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class OldShards:
    """Shards of an array, and what its receipt notes of them; see `format.frame.OldShards`."""

    metadata: ArrayMetadata
    store: Store
    receipt: Receipt | None

    @classmethod
    def of(cls, target: Target, metadata: ArrayMetadata) -> OldShards:
        """The shards of an array."""
        return cls(metadata, target.store, read_receipt(target))

    @property
    def labels(self) -> Sequence[str]:
        """See `format.frame.OldShards`."""
        if self.receipt is None:
            return []
        updates = [entry.identity.strategy for entry in reversed(self.receipt.updates)]
        known = dict.fromkeys([*updates, self.receipt.identity.strategy])
        return [label for label in known if label is not None]

    def label_at(self, index: Shape) -> str | None:
        """See `format.frame.OldShards`."""
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
        return label if is_inside or signature_for_label(label) is not None else None

    def look(self, index: Shape, what: Callable[[ObjectReader], _Found]) -> _Found | None:
        """See `format.frame.OldShards`."""
        with contextlib.suppress(StoreError), contextlib.ExitStack() as stack:
            reader = self.store.open(self.metadata.shard_key(index))
            if reader is not None:
                stack.push(reader)
                return what(reader)
        return None

    def beside(self, index: Shape) -> Iterator[Shape]:
        """See `format.frame.OldShards`: before it along each axis, and then behind it."""
        for step in (-1, 1):
            for axis, at in enumerate(index):
                if 0 <= at + step < self.metadata.grid.counts[axis]:
                    yield (*index[:axis], at + step, *index[axis + 1 :])

    def kind_of(self, index: Shape) -> Signature | None:
        """Signature that a shard has, or should have if it cannot be read; None if it is plain."""
        found = self.look(index, lambda reader: [signature_of(self.metadata, reader)])
        return self.told_at(index) if found is None else found[0]

    def told_at(self, index: Shape) -> Signature | None:
        """Signature that a shard should have; None if it should be a plain shard.

        The last update of the shard tells, or what made the array. If the receipt tells nothing, it
        is one of the shards beside it.
        """
        label = self.label_at(index)
        if label is not None:
            return signature_for_label(label)
        for beside in self.beside(index):
            found = self.look(beside, lambda reader: [signature_of(self.metadata, reader)])
            if found is not None:
                return found[0]
        return None


class KeptShards:
    """Looks at the shards of an array before a stream accepts a block for them, each once."""

    def __init__(self, target: Target, metadata: ArrayMetadata, strategy: Strategy) -> None:
        self._strategy, self._seen = strategy, set[Shape]()
        self._store, self._metadata = target.store, metadata
        self._known = OldShards.of(target, metadata) if signatures_in(metadata) else None

    def check(self, box: Box) -> None:
        """Refuse a block if the stream would make something else of a shard, or meets a link.

        - `box`: box of the block. Shards behind the end of the array, as the stream has found it,
          are looked at when they are written.
        """
        if self._known is None and self._store.local_root is None:
            return
        grid = self._metadata.grid
        common = grid.rounded_to_shards(box).intersect(grid.whole)
        new = [index for index in grid.shards_in(common) if index not in self._seen]
        if len(new) > _FEW:
            with ThreadPoolExecutor(min(_N_THREADS, len(new))) as pool:
                list(pool.map(self._check_shard, new, itertools.repeat(box)))
        else:
            for index in new:
                self._check_shard(index, box)
        if len(self._seen) > _MOST_SEEN:
            self._seen.clear()
        self._seen.update(new)

    def _check_shard(self, index: Shape, box: Box) -> None:
        """Refuse a link, and to write a shard by a strategy that would not keep what it is."""
        grid, key = self._metadata.grid, self._metadata.shard_key(index)
        is_whole = box.contains(grid.shard_box(index).intersect(grid.whole))
        self._store.check_no_links([key], are_whole=is_whole)
        if self._known is not None:
            keeping(self._known, self._strategy, [index], drops=False)


def for_update(
    target: Target,
    metadata: ArrayMetadata,
    strategy: Strategy,
    box: Box | None = None,
    *,
    drops: bool = False,
) -> Strategy:
    """The strategy of an update, which keeps what shards are; see `keeping`.

    The first shard and the last one are looked at. All of them are if some may have been dropped:
    then the receipt tells of files of another format, and these two are none.

    - `metadata`: its metadata, as they are after the update.
    - `box`: region that is written. If it is not given, two shards of the array are looked at.
    - `drops`: whether files of another format may be dropped.
    """
    if not signatures_in(metadata):
        return strategy
    known = OldShards.of(target, metadata)
    found = keeping(known, strategy, shards_at_ends(metadata.grid, box), drops=drops)
    if (
        box is not None
        and any(map(signature_for_label, known.labels))
        and framing_of(strategy) is None
    ):
        keeping(known, strategy, metadata.grid.shards_in(box), drops=drops)
    return found


def keeping(
    known: OldShards, strategy: Strategy, indices: Iterable[Shape], *, drops: bool
) -> Strategy:
    """The strategy of an update, which keeps shards that are files of another format.

    - `drops`: whether such files may be dropped.
    """
    metadata, framing = known.metadata, framing_of(strategy)
    if framing is not None:
        return framing.for_update(known, indices, drops=drops)
    if not signatures_in(metadata) or (drops and strategy.replaces):
        return strategy
    for index in indices:
        key = metadata.shard_key(index)

        def look(reader: ObjectReader, key: str = key) -> bool:
            refuse_change(metadata, strategy, key, reader)
            return True

        if known.look(index, look):
            continue
        signature = known.told_at(index)
        if signature is not None:
            raise SpecError(
                f"the shards of the array are also {signature.title_of_many}, and the shard "
                f"{key!r} would be none",
                field="strategy",
                value=strategy.label,
                remedy=signature.remedy,
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

"""Elements beyond the shape of an array, in shards that lie inside of it in part.

An append or a stream writes shards first, and enlarges the shape afterwards. If it is given up in
between, elements that it has written lie beyond the shape. They would appear as values of the array
as soon as something else makes it larger. So they are cleared.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.codecs.stages import Buffer
from shardwrite.errors import CorruptShardError, StoreError
from shardwrite.format.frame import Frame, frame_at
from shardwrite.format.index import ShardIndex
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.order import place
from shardwrite.format.strategies import Strategy
from shardwrite.grid import Box, Shape, ravel, unravel
from shardwrite.journal.replay import Replay
from shardwrite.journal.rundir import RunDirectory
from shardwrite.seams import resolve
from shardwrite.stores.base import Capability, ObjectWriter, Store
from shardwrite.stores.posix import NO_ROOM, telling_room_for
from shardwrite.stores.removal import Proof

if TYPE_CHECKING:
    from shardwrite.journal.undo import Change
    from shardwrite.read.stored_shard import ExistingShard


@dataclass(frozen=True, slots=True)
class Rights:
    """What a process may do to shards of a run."""

    proof: Proof  # proof that the shards may be removed, if nothing is left in them
    # Called right before a shard is changed, replaced or removed. If it raises, the shard stays as
    # it is.
    check: Callable[[], None]
    # Whether the run has changed shards in place. Where a full disk has no room for a new object,
    # they are then changed in place, too.
    in_place: bool = False


def clear_beyond(
    store: Store,
    metadata: ArrayMetadata,
    shards: Iterable[Shape],
    durability: str,
    rights: Rights,
    scope: str,
) -> list[Shape]:
    """Give elements beyond the shape of an array the fill value, in a new object for each shard.

    Shards that are damaged stay as they are. What an earlier process of the same scope has left is
    removed first, so that it publishes nothing if it was only frozen.

    - `shards`: positions of shards in the shard grid. Those that lie inside of the shape stay.
    """
    grid, removed = metadata.grid, []
    for index in shards:
        if grid.whole.contains(grid.shard_box(index)):
            continue
        store.discard_scope(metadata.shard_key(index), scope)
        shard = _opened(store, metadata, index)
        if shard is None:
            continue
        with shard:
            try:
                new = _without_outside(shard, grid.shard_box(index).start)
            except CorruptShardError:
                continue  # verify tells of it
            if new is None:
                continue
            frame = _frame_of(shard, index)
            attempt = f"{scope}.{uuid.uuid4().hex}"
            try:
                with (
                    telling_room_for(shard.reader.nbytes, shard.key),
                    store.transaction(
                        durability, attempt, rights.check, proof=rights.proof
                    ) as transaction,
                ):
                    if not (new[0] >= 0).any():
                        transaction.remove(shard.key, shard.check_current)
                        removed.append(index)
                        continue
                    transaction.expect_nbytes(shard.reader.nbytes)
                    writer = transaction.create(shard.key)
                    if Capability.CONDITIONAL in store.capabilities:
                        writer.expect(shard.reader.version)
                    _write(shard, writer, frame, *new)
                    writer.finish(shard.check_current)
            except StoreError as error:
                if error.errno not in NO_ROOM or not rights.in_place or frame is not None:
                    raise
                from shardwrite.journal.undo import change_in_place, shard_claim  # full disks

                change, version = _cleared_in_place(shard, *new), shard.reader.version
                with shard_claim(str(rights.proof.run_path), shard.key) as claim:
                    change_in_place(claim, store, change, durability, version, rights.check)
    return removed


def _opened(store: Store, metadata: ArrayMetadata, index: Shape) -> ExistingShard | None:
    try:
        from shardwrite.read.stored_shard import open_shard  # for elements beyond the shape

        return open_shard(metadata, store, index)
    except CorruptShardError:
        return None  # verify tells of it


def _without_outside(
    shard: ExistingShard, origin: Shape
) -> tuple[npt.NDArray[np.int64], dict[int, Buffer]] | None:
    """Sizes of the inner chunks without what lies beyond the array, and those encoded anew.

    It is None if nothing lies beyond. An inner chunk that is empty has the size -1.
    """
    metadata, nbytes = shard.metadata, shard.stored().nbytes.copy()
    grid, changed = metadata.grid, dict[int, Buffer]()
    for rank in shard.present():
        at = unravel(rank, grid.chunks_per_shard)
        start = tuple(o + i * c for o, i, c in zip(origin, at, grid.chunks, strict=True))
        box = Box(start, tuple(a + c for a, c in zip(start, grid.chunks, strict=True)))
        if grid.whole.contains(box):
            continue
        inside = box.intersect(grid.whole)
        tiles = np.empty((1, *grid.chunks), dtype=metadata.pipeline.stored_dtype)
        tiles[...] = metadata.fill_value
        part = (0, *inside.shift(start).slices)
        old = shard.chunk(rank) if inside.size else None
        if old is not None:
            tiles[part] = old[part[1:]]
        if metadata.fill_pattern.empty(tiles).all():
            nbytes[rank] = -1
            continue
        (encoded,) = metadata.pipeline.encode(tiles, None)
        offset, size = (int(v) for v in shard.index.table[rank])
        if bytes(encoded) != bytes(shard.source.read(offset, size)):
            nbytes[rank], changed[rank] = len(encoded), bytes(encoded)
    if not changed and (nbytes == shard.stored().nbytes).all():
        return None
    return nbytes, changed


def _write(
    shard: ExistingShard,
    writer: ObjectWriter,
    frame: Frame | None,
    nbytes: npt.NDArray[np.int64],
    changed: dict[int, Buffer],
) -> None:
    """Write a shard anew, within its frame if it has one."""

    def write_chunks(writer: ObjectWriter, ranks: npt.NDArray[np.int64]) -> None:
        for rank in ranks.tolist():
            data = changed.get(rank)
            if data is None:
                old, size = (int(v) for v in shard.index.table[rank])
                data = shard.source.read(old, size)
            writer.write([data])

    if frame is None:
        _write_plain(shard, writer, nbytes, write_chunks)
        return
    layout = frame.close(nbytes)
    index = ShardIndex.build(layout.offsets, nbytes)
    from shardwrite.place.framed import write_framed  # for shards that are files of another format

    write_framed(writer, layout, shard.metadata.index_codec.seal(index), write_chunks)


def _write_plain(
    shard: ExistingShard,
    writer: ObjectWriter,
    nbytes: npt.NDArray[np.int64],
    write_chunks: Callable[[ObjectWriter, npt.NDArray[np.int64]], None],
) -> None:
    """Write inner chunks in the sequence of the old shard, and the index."""
    codec, stored = shard.metadata.index_codec, shard.stored()
    placement = place(nbytes, np.argsort(stored.offsets, kind="stable"), codec.base_nbytes, stored)
    seal = codec.seal(ShardIndex.build(placement.offsets, nbytes))
    if seal.prefix:
        writer.write([seal.prefix])
    end = codec.base_nbytes
    for rank in placement.sequence:
        offset = int(placement.offsets[rank])
        if offset > end:
            writer.skip(offset - end)
        write_chunks(writer, np.array([rank]))
        end = offset + int(nbytes[rank])
    if seal.suffix:
        writer.write([seal.suffix])


def _cleared_in_place(
    shard: ExistingShard, nbytes: npt.NDArray[np.int64], changed: dict[int, Buffer]
) -> Change:
    """Change that appends the inner chunks that are encoded anew, and writes the index."""
    old_nbytes, offsets = shard.reader.nbytes, shard.stored().offsets.copy()
    end, writes = old_nbytes, list[tuple[int, Buffer]]()
    for rank, data in changed.items():
        offsets[rank] = end
        writes.append((end, data))
        end += len(data)
    seal = shard.metadata.index_codec.seal(ShardIndex.build(offsets, nbytes))
    writes.append((0 if seal.prefix else end, seal.prefix or seal.suffix))
    spans = [(start, start + len(data)) for start, data in writes]
    from shardwrite.journal.undo import Change, OldBytes  # for full disks

    saved = OldBytes(shard.reader, [span for span in spans if span[0] < old_nbytes])
    return Change(shard.key, old_nbytes, writes, saved, spans)


def _frame_of(shard: ExistingShard, index: Shape) -> Frame | None:
    """Frame of a shard that is a file of another format, too; None if it is a plain one."""
    from shardwrite.read.signatures import signature_of  # for elements beyond the shape

    signature = signature_of(shard.metadata, shard.reader)
    if signature is None:
        return None
    strategy: Strategy | None = resolve("old shard", signature.strategy)(shard)
    return None if strategy is None else frame_at(strategy, shard.metadata, index)


def clear_edges(
    over: RunDirectory,
    array: ArrayMetadata,
    part: ArrayMetadata,
    store: Store,
    found: Replay,
    is_changed: npt.NDArray[np.bool_],
    check: Callable[[], None],
) -> None:
    """Clear what an update has written beyond the array, in shards that are partly inside of it."""
    first, counts = part.first_shard, part.grid.counts
    shards = [
        tuple(int(i) + f for i, f in zip(index, first, strict=True))
        for index in np.argwhere(is_changed).tolist()
    ]
    inside = [i for i in shards if all(a < n for a, n in zip(i, array.grid.counts, strict=True))]
    proof = over.proof(lambda: [array.shard_key(index) for index in inside])
    level, scope = over.target.durability(), f"edges-{over.run}"
    in_place = "in place" in (over.record.identity.strategy or "")
    rights = Rights(proof, check, in_place)
    removed = set(clear_beyond(store, array, inside, level, rights, scope))
    for index in inside:
        rank = ravel(tuple(i - f for i, f in zip(index, first, strict=True)), counts)
        size = store.size(array.shard_key(index))
        if index in removed:
            found.ledger.is_done[rank], found.ledger.nbytes[rank] = True, 0
        elif size is not None and found.ledger.is_done[rank]:
            found.ledger.nbytes[rank] = size

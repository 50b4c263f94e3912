"""Comparison of encoded inner chunks with those that another array gives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shardwrite.engines.local import Engine
from shardwrite.errors import CorruptShardError, ShardwriteError, StoreError
from shardwrite.format.passage import Passage
from shardwrite.grid import Shape, unravel
from shardwrite.read.array import ShardedArray
from shardwrite.read.inspection import look_in_batches
from shardwrite.read.stored_shard import read_again
from shardwrite.stores.base import Capability, require
from shardwrite.write.copying import Donor, Shards, origins

_BATCH_SHARDS = 64


def compare_encoded(
    engine: Engine, array: ShardedArray, donor: Donor, skip: set[int]
) -> dict[int, str]:
    """Compare the encoded inner chunks of an array with those that another array gives.

    A chunk that only one of them stores differs, unless it holds only the fill value.

    - `donor`: the other array, and how its bytes change.
    - `skip`: ranks of the shards that are not compared.
    """
    if not engine.shares_memory:
        require(donor.array.store, Capability.SHARED, field="against", value=repr(donor.array))
    ranks = np.setdiff1d(np.arange(array.metadata.grid.n_shards), np.array(sorted(skip), np.int64))
    messages: dict[int, str] = {}

    def collect(_: int, part: dict[int, str]) -> None:
        messages.update(part)

    look_in_batches(engine, array, differing, ranks, _BATCH_SHARDS, collect, donor)
    return messages


def differing(array: ShardedArray, ranks: npt.NDArray[np.int64], donor: Donor) -> dict[int, str]:
    """Compare some shards of an array with those of another; see `compare_encoded`."""
    messages = _compared(array, donor, ranks.tolist())
    for rank, message in messages.items():
        key = array.metadata.key_of_rank(rank)
        read_again(donor.array.store, key, CorruptShardError(message, key=key))
    return _compared(array.afresh(), donor, list(messages))


def _compared(array: ShardedArray, donor: Donor, ranks: Sequence[int]) -> dict[int, str]:
    """Compare shards once; see `differing`.

    The other array is read past what this machine has kept of it: what was copied may have come
    from there, and would be the same.
    """
    messages = {}
    counts = array.metadata.grid.counts
    with (
        array.decided.holds(),
        Shards(array) as ours,
        Shards(donor.array.afresh(), None, donor.listed) as theirs,
    ):
        for rank in ranks:
            try:
                message = _difference(unravel(rank, counts), rank, donor, ours, theirs)
                ours.check_same()
                theirs.check_same()
            except StoreError:
                raise  # a storage that refuses says nothing about the bytes
            except ShardwriteError as error:
                message = f"cannot be compared: {error}"
            if message:
                messages[rank] = message
    return messages


def _difference(index: Shape, rank: int, donor: Donor, ours: Shards, theirs: Shards) -> str:
    """How a shard differs; empty if it does not."""
    grid, given_grid = ours.metadata.grid, theirs.metadata.grid
    numbers, places = origins(grid, index, given_grid)
    own = Donor(ours.array, Passage(), check=False, drop_empty=False)
    differing = []
    for chunk in np.flatnonzero(numbers >= 0).tolist():
        number, source_rank = int(numbers[chunk]), int(places[chunk])
        source = unravel(number, given_grid.counts)
        there = unravel(source_rank, given_grid.chunks_per_shard)
        theirs_encoded = theirs.encoded(number, source, source_rank)
        ours_encoded = ours.encoded(rank, index, chunk)
        place = unravel(chunk, grid.chunks_per_shard)
        if theirs_encoded is not None and ours_encoded is not None:
            passed = donor.passed(theirs_encoded, source, there)
            is_same = passed is not None and bytes(passed) == bytes(ours_encoded)
        elif theirs_encoded is not None:
            is_same = donor.is_empty(theirs.metadata.pipeline.decode(theirs_encoded), source, there)
        else:
            is_same = ours_encoded is None or own.is_empty(
                ours.metadata.pipeline.decode(ours_encoded), index, place
            )
        if not is_same:
            differing.append(place)
    if not differing:
        return ""
    return (
        f"{len(differing):,} encoded inner chunks differ from those of the source, "
        f"first {differing[0]}"
    )

"""Accept an array as another program has left it: its receipt is made to say what is there.

This is a run of its own beside the array, so that no update goes on meanwhile. If it dies, it is
given up like a salvage.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from shardwrite.engines import active_engine
from shardwrite.errors import CorruptShardError, JournalError, RunEndedError, StoreError
from shardwrite.format.manifest import without_keys
from shardwrite.format.strategies import FixedOrder
from shardwrite.journal import (
    Contents,
    Intent,
    Ledger,
    RunDirectory,
    begin_beside,
    begin_run,
    end_run,
    give_up,
    make_way,
    own_journals,
    present_listed,
    require_trusted,
    taking_part,
)
from shardwrite.place.target import Target
from shardwrite.plan import Identity, ShardWindow
from shardwrite.read.array import ShardedArray
from shardwrite.read.inspection import stored_sizes
from shardwrite.runs.needs import check_updatable
from shardwrite.runs.receipts import updated_receipt
from shardwrite.stores import as_store_error


def accept_as_it_is(target: Target, array: ShardedArray, bad: Sequence[tuple[str, str]]) -> None:
    """Make the receipt of an array say that its objects and its metadata are right as they are.

    - Raises CorruptShardError if there is a bad shard.
    """
    if bad:
        key, message = bad[0]
        raise CorruptShardError(
            f"{target.label} is not accepted, since {len(bad)} shards are bad: {message}; write "
            "them again from their source with repair (shardwrite repair --source)",
            key=key,
        )
    check_updatable(target.store, FixedOrder())
    require_trusted(target)
    directory = _begin(target, array)
    try:
        with taking_part(directory.path, driver := uuid.uuid4().hex[:12]):
            _accept(directory, array, driver)
    except Exception:
        # The first error is raised, not one of the clean-up.
        with contextlib.suppress(StoreError, JournalError, RunEndedError):
            give_up(directory)
        raise


def _begin(target: Target, array: ShardedArray) -> RunDirectory:
    """Begin a run that no other run on the array goes along with."""
    grid, name = array.metadata.grid, uuid.uuid4().hex
    intent = Intent(
        digest=name,
        mode="r+",
        identity=Identity(mode="r+", salvage=True, region=grid.whole.bounds),
        shards_from=ShardWindow((0,) * grid.ndim, grid.counts),
    )
    own = replace(target, update=f"accept-{name[:16]}")
    make_way(own, intent, restart=False)
    create = partial(
        begin_run,
        own,
        intent,
        array.metadata.text,
        restart=False,
        durability=target.durability(),
    )
    return begin_beside(own, create)[0]


def _accept(directory: RunDirectory, array: ShardedArray, driver: str) -> None:
    target, metadata = directory.target, array.metadata
    level = target.durability()
    sizes = stored_sizes(active_engine(), array, np.arange(metadata.grid.n_shards))
    with as_store_error(target.label, "cannot accept"):
        listed = present_listed(metadata, target.store)
        with directory.ending():
            document = without_keys(target.document)
            if document != metadata.document:
                raise JournalError(
                    f"the metadata of {target.label} have changed meanwhile; verify it again",
                    path=target.label,
                )
            directory.change(listed, level, driver)
            nothing = Ledger(metadata.grid)
            # Another program may have changed what earlier updates have written.
            receipt = updated_receipt(directory, metadata, nothing, {}, level).all_replaced()
            contents = Contents.of(np.maximum(sizes, 0))
            accepted = replace(receipt, contents=contents, accepted=document)
            directory.leave(accepted, level, driver)
        end_run(directory, own_journals(driver))

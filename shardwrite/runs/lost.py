"""A check, before an array is copied or converted, that no object of its receipt is missing."""

from __future__ import annotations

import numpy as np

from shardwrite.errors import ChangedError, SpecError
from shardwrite.grid import unravel
from shardwrite.journal import receipt_at
from shardwrite.read.stored_array import StoredArray, check_names_of
from shardwrite.read.survey import ranks_of_objects
from shardwrite.runs.kept import HOW_TO_GO_ON

_MOST_NAMED, _MOST_TOLD = 1000, 4


def check_nothing_lost(source: StoredArray) -> None:
    """Refuse an array that has lost objects, which a copy would take for empty.

    The array is listed to the end if it lies on this machine, or has a receipt that says which of
    its shards are empty. Otherwise the first chunk ends the listing.

    - `source`: the array. One whose objects are being removed, as they are consumed, is not looked
      at.
    - Raises ChangedError if an object is missing that the receipt names.
    """
    if source.known_identity or source.is_in_file:
        return
    check_names_of(source)
    if not source.is_v3:
        return
    receipt, metadata = receipt_at(source.place), source.array.metadata
    if receipt is None:
        return
    try:
        noted = receipt.nbytes_on(metadata.grid)
    except SpecError:  # it is of another array; `verify` tells
        return
    if noted is None:
        return
    there = ranks_of_objects(source.array, source.label)
    lost = np.setdiff1d(np.flatnonzero(noted), there)
    if not len(lost):
        return
    missing = [
        metadata.shard_key(unravel(rank, metadata.grid.counts))
        for rank in lost[:_MOST_NAMED].tolist()
    ]
    told = ", ".join(missing[:_MOST_TOLD]) + (", ..." if len(lost) > _MOST_TOLD else "")
    raise ChangedError(
        f"{source.label} is not what its last run left. {len(lost):,} shards are gone ({told}), "
        f"and a copy would hold the fill value there: {HOW_TO_GO_ON}. The same call goes on then",
        path=source.label,
        changed=[],
        missing=missing,
    )

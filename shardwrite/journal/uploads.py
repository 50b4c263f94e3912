"""Uploads in parts that processes have left which were killed.

A process that lives aborts or completes what it has begun, so what is left belongs to a dead one.
A service tells for each upload its key and a name, but not who has begun it. So uploads are aborted
only where no other process works on the array. Should one do so after all, which nobody here knows
of, it gets an error for its next part, and begins that shard again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from shardwrite.format.bounds import most_nbytes_of
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.journal.replay import drivers_on
from shardwrite.place.target import Target
from shardwrite.stores import put_limit


def uploads_left(
    target: Target, metadata: ArrayMetadata, own: Collection[str] = (), *, looking: bool = False
) -> Sequence[tuple[str, str]]:
    """Uploads to shards of an array that no living process has begun: their keys and names."""
    if most_nbytes_of(metadata) <= put_limit():
        return ()
    found = [
        (key, upload)
        for key, upload in target.store.uploads()
        if metadata.shard_index(key) is not None
    ]
    # The leases are read after the list, so that whoever has begun one of these has a lease by now.
    return found if found and drivers_on(target, looking=looking) <= set(own) else ()


def abort_uploads(target: Target, metadata: ArrayMetadata, own: Collection[str] = ()) -> int:
    """Abort the uploads that `uploads_left` finds, and return how many there were."""
    left = uploads_left(target, metadata, own)
    for key, upload in left:
        target.store.abort_upload(key, upload)
    return len(left)

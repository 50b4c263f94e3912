"""The manifest of an array while runs change the array.

Keys of chunks are added before a run commits, and removed when it ends or is given up. Each change
is made under the lock of the array's document. So the list names all chunks that hold data at any
time, also after a crash, and exactly these when no run is open.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from shardwrite.codecs.documents import Document
from shardwrite.format.manifest import (
    Coords,
    chunks_in,
    has_manifest,
    with_added,
    with_present,
)
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.grid import Box
from shardwrite.journal.documents import DocumentChange
from shardwrite.journal.rundir import RunDirectory
from shardwrite.stores import Store


def list_before(
    run: RunDirectory, part: ArrayMetadata, region: Box, durability: str, driver: str
) -> None:
    """List the inner chunks that a run may write, before it commits anything.

    Chunks outside of the array are left out; those that the run adds to it are listed as soon as
    the shape of the array has them. Nothing is done if the array keeps no manifest.

    - Raises RunEndedError if the run has ended meanwhile.
    """
    if not has_manifest(part.document):
        return
    with run.ending():
        run.change(partial(all_listed, part, region), durability, driver)


def all_listed(part: ArrayMetadata, region: Box, document: Document) -> Document:
    """Document whose manifest also lists all chunks that a region touches inside the array."""
    return with_added(document, chunks_in(region, document["shape"], part.grid.chunks))


def present_listed(part: ArrayMetadata, store: Store) -> DocumentChange:
    """Look which chunks of a part of an array hold data, for its manifest.

    No other run may write the shards of the part until the document was changed.

    - Returns: makes a document whose manifest lists exactly these chunks of the part. It does
      nothing if the array keeps no manifest, and then no index is read.
    - Raises CorruptShardError if the index of a shard is not valid.
    """
    if not has_manifest(part.document):
        return _same
    from shardwrite.read.array import ShardedArray  # for arrays with a manifest
    from shardwrite.read.chunk_table import stored_coords_here

    grid = part.grid
    per_shard = grid.chunks_per_shard
    start = tuple(a * n for a, n in zip(part.first_shard, per_shard, strict=True))
    stop = tuple(a + k * n for a, k, n in zip(start, grid.counts, per_shard, strict=True))
    coords = stored_coords_here(ShardedArray(part, store))
    return partial(_exact, part, Box(start, stop), coords + np.array(start, dtype=np.int64))


def _exact(part: ArrayMetadata, box: Box, coords: Coords, document: Document) -> Document:
    """Document whose manifest lists those chunks of a box that hold data inside the array."""
    shape = document["shape"]
    whole = chunks_in(Box((0,) * len(shape), tuple(shape)), shape, part.grid.chunks)
    is_inside = (coords < np.array(whole.stop, dtype=np.int64)).all(axis=1)
    return with_present(document, box, coords[is_inside])


def _same(document: Document) -> Document:
    return document

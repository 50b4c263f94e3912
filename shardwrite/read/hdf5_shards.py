"""Recognition of shards that are files of HDF5, which other strategies must not change.

Strategies are not stored with an array. So an update looks at the shard itself before it changes
it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from functools import lru_cache

from shardwrite.encode.reader import Ranges
from shardwrite.errors import SpecError, StoreError
from shardwrite.format.hdf5_file import LOOKED_AT, SIGNATURE, describe, signature_places
from shardwrite.format.hdf5_strategy import Hdf5
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.strategy import Strategy
from shardwrite.grid import Shape
from shardwrite.read.hdf5_names import dataset_names
from shardwrite.stores import Store

__all__ = [
    "HOW_TO_CHANGE",
    "fits_hdf5",
    "is_hdf5",
    "is_hdf5_at",
    "other_name",
    "refuse_hdf5",
    "refuse_hdf5_among",
]

HOW_TO_CHANGE = (
    'give strategy="hdf5", which keeps such files. For plain shards, give drop_hdf5=True to '
    "write_region, erase or repair, with a strategy that writes whole shards, such as "
    '"fixed-order"'
)
"""What can be done where a strategy would make plain shards of files of HDF5."""

_FIRST_NBYTES = LOOKED_AT + len(SIGNATURE)


def is_hdf5(metadata: ArrayMetadata, source: Ranges) -> bool:
    """Whether an object of an array starts as a file of HDF5, after a user block or without one.

    Parameters
    ----------
    metadata : ArrayMetadata
        The array.
    source : Ranges
        The object.
    """
    if source.nbytes < len(SIGNATURE):
        return False
    first = bytes(source.read(0, min(_FIRST_NBYTES, source.nbytes)))
    for at in signature_places(metadata):
        end = at + len(SIGNATURE)
        if end > source.nbytes:
            return False
        found = first[at:end] if end <= len(first) else bytes(source.read(at, len(SIGNATURE)))
        if found == SIGNATURE:
            return True
    return False


def refuse_hdf5(metadata: ArrayMetadata, strategy: Strategy, key: str, source: Ranges) -> None:
    """Refuse to change a shard that is a file of HDF5 by a strategy that makes something else.

    Raises
    ------
    SpecError
        If the shard is such a file, and the strategy is not `Hdf5`. Or if the strategy would give
        the dataset in the file another name.
    """
    if not fits_hdf5(metadata) or not is_hdf5(metadata, source):
        return
    if not isinstance(strategy, Hdf5):
        raise SpecError(
            f"the shard {key!r} is also a file of HDF5, and would not be one afterwards",
            field="strategy",
            value=strategy.label,
            remedy=HOW_TO_CHANGE,
        )
    name = strategy.name_in_file
    names = dataset_names(source, metadata.grid.chunks, [name], is_enough=True)
    if names and name not in names:
        raise other_name(strategy, names, f"in the shard {key!r}")


def other_name(strategy: Hdf5, names: Sequence[str], where: str) -> SpecError:
    """The error about a strategy that would give a dataset another name."""
    return SpecError(
        f"the dataset {where} is {' or '.join(map(repr, names))}, and would become "
        f"{strategy.name_in_file!r}",
        field="strategy.dataset",
        value=strategy.dataset,
        remedy='give strategy="hdf5", which keeps the name. To write files with another name in '
        "place of these, also give drop_hdf5=True to write_region, erase or repair",
    )


def refuse_hdf5_among(
    metadata: ArrayMetadata, strategy: Strategy, store: Store, indices: Iterable[Shape]
) -> None:
    """Refuse to change shards of which one is a file of HDF5; see `refuse_hdf5`.

    A shard that cannot be read may be replaced, since no program could read it as such a file. No
    shard is looked at if HDF5 has no counterpart of the array.

    Raises
    ------
    SpecError
        If one of these shards is such a file, and the strategy is not `Hdf5`.
    """
    if not fits_hdf5(metadata):
        return
    for index in indices:
        key = metadata.shard_key(index)
        with contextlib.suppress(StoreError), contextlib.ExitStack() as stack:
            reader = store.open(key)
            if reader is not None:
                stack.push(reader)
                refuse_hdf5(metadata, strategy, key, reader)


def is_hdf5_at(metadata: ArrayMetadata, store: Store, index: Shape) -> bool:
    """Whether the shard at a position of the shard grid is a file of HDF5; see `refuse_hdf5`."""
    if not fits_hdf5(metadata):
        return False
    with contextlib.suppress(StoreError), contextlib.ExitStack() as stack:
        reader = store.open(metadata.shard_key(index))
        if reader is not None:
            stack.push(reader)
            return is_hdf5(metadata, reader)
    return False


@lru_cache(maxsize=32)
def fits_hdf5(metadata: ArrayMetadata) -> bool:
    """Whether shards of an array can be files of HDF5."""
    try:
        describe(metadata, Hdf5())
    except SpecError:
        return False
    return True

"""Recognition of shards that are files of HDF5, which other strategies must not change.

Strategies are not stored with an array. So an update looks at the shard itself before it changes
it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from functools import lru_cache

from shardwrite.codecs.stages import Buffer
from shardwrite.encode.reader import Ranges
from shardwrite.errors import SpecError, StoreError
from shardwrite.format.hdf5_file import LOOKED_AT, SIGNATURE, describe, signature_places
from shardwrite.format.hdf5_groups import has_dataset
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
    "look",
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
    return look(metadata, source, None)[0]


def look(metadata: ArrayMetadata, source: Ranges, name: str | None) -> tuple[bool, bool]:
    """Look at an object of an array, without the library of HDF5.

    Parameters
    ----------
    metadata : ArrayMetadata
        The array.
    source : Ranges
        The object.
    name : str, optional
        Name of a dataset.

    Returns
    -------
    is_file : bool
        Whether it starts as a file of HDF5; see `is_hdf5`.
    has_name : bool
        Whether it surely has a dataset of this name. Where this is False, the library must tell.
    """
    start = _Start(source)
    at = _signature_at(metadata, start)
    if at is None or name is None:
        return at is not None, False
    return True, has_dataset(start.read, at, name, metadata.grid.chunks)


class _Start:
    """An object whose first bytes were read at once; see `Ranges`."""

    def __init__(self, source: Ranges) -> None:
        self.nbytes, self._source = source.nbytes, source
        self._first = bytes(source.read(0, min(_FIRST_NBYTES, source.nbytes)))

    def read(self, offset: int, nbytes: int) -> Buffer:
        """See `Ranges`."""
        if offset + nbytes <= len(self._first):
            return self._first[offset : offset + nbytes]
        left = min(nbytes, self.nbytes - offset)
        return self._source.read(offset, left) if left > 0 else b""


def _signature_at(metadata: ArrayMetadata, start: _Start) -> int | None:
    """Where the signature of HDF5 stands in an object; None if it is no such file."""
    for at in signature_places(metadata):
        if at + len(SIGNATURE) > start.nbytes:
            return None
        if start.read(at, len(SIGNATURE)) == SIGNATURE:
            return at
    return None


def refuse_hdf5(metadata: ArrayMetadata, strategy: Strategy, key: str, source: Ranges) -> None:
    """Refuse to change a shard that is a file of HDF5 by a strategy that makes something else.

    Raises
    ------
    SpecError
        If the shard is such a file, and the strategy is not `Hdf5`. Or if the strategy would give
        the dataset in the file another name.
    """
    if not fits_hdf5(metadata):
        return
    name = strategy.name_in_file if isinstance(strategy, Hdf5) else None
    is_file, has_name = look(metadata, source, name)
    if not is_file or has_name:
        return
    if not isinstance(strategy, Hdf5):
        raise SpecError(
            f"the shard {key!r} is also a file of HDF5, and would not be one afterwards",
            field="strategy",
            value=strategy.label,
            remedy=HOW_TO_CHANGE,
        )
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

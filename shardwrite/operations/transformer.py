"""The storage transformer of 2022 as a store of zarr-python."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from shardwrite.entry.public import public
from shardwrite.errors import SpecError
from shardwrite.format.transformer_keys import checked_counts
from shardwrite.stores import is_file, local_path

if TYPE_CHECKING:
    from shardwrite.read.transformer_view import TransformerView


@public
def transformer_view(
    store: Any, chunks_per_shard: Any, *, path: str = "", read_only: bool = False
) -> TransformerView:
    """View the shards of an array as a store with one key for each chunk.

    This is the storage transformer of 2022, on the interface of zarr-python's stores. A chunk key
    ends in ``c/0/1``, ``c.0.1``, ``c0/1`` or ``c0.1``. The numbers of a shard's key are those of
    its chunks, divided by `chunks_per_shard`. All other keys are those of the store below.

    Parameters
    ----------
    store : zarr.abc.store.Store, str or path
        The store below, which holds the shards, or its directory.
    chunks_per_shard : int, sequence of int, or array of integers
        Number of chunks in a shard along each axis.
    path : str, optional
        Path of the array in the store, for instance ``"data/root/x"``. By default every key that
        ends as those of chunks, with one number for each axis, is that of a chunk.
    read_only : bool, optional
        Refuse all changes.

    Returns
    -------
    TransformerView
        A store. Besides the methods of `zarr.abc.store.Store` it has those of the document of 2022:
        ``set_partial_values``, ``erase_values`` and ``erase_prefix``.

    Raises
    ------
    SpecError
        If an argument has a wrong value.

    Notes
    -----
    To write a chunk is to write its whole shard again. The coroutines of one event loop take
    turns, so that zarr-python can write the chunks of a shard at once, also through several views
    of one store. Two processes must not write chunks of the same shard at the same time.

    A shard whose index cannot be right raises `CorruptShardError`.

    Examples
    --------
    >>> import numpy as np, shardwrite, zarr
    >>> objects = {}
    >>> below = zarr.storage.MemoryStore(objects)
    >>> view = shardwrite.transformer_view(below, (2, 2))
    >>> x = zarr.create_array(view, shape=(8, 8), chunks=(2, 2), dtype="u1", compressors=None)
    >>> x[...] = np.arange(64).reshape(8, 8)
    >>> int(x[5, 3])
    43
    >>> sorted(key for key in objects if key != "zarr.json")
    ['c/0/0', 'c/0/1', 'c/1/0', 'c/1/1']
    """
    from zarr.abc.store import Store
    from zarr.storage import LocalStore

    from shardwrite.read.transformer_view import TransformerView

    if isinstance(store, str | os.PathLike):
        store = LocalStore(_directory(os.fspath(store)), read_only=read_only)
    if not isinstance(store, Store):
        raise SpecError(
            "not a store",
            field="store",
            value=type(store).__name__,
            remedy="give a store of zarr-python, or the path of a directory",
        )
    is_plain = isinstance(path, str) and path == path.strip("/") and "//" not in path
    if not is_plain:
        remedy = 'give the path of an array, for instance "data/root/x"'
        raise SpecError("not a path in a store", field="path", value=path, remedy=remedy)
    counts = checked_counts(chunks_per_shard)
    return TransformerView(store, counts, path, read_only=read_only)


def _directory(given: Any) -> str:
    """Path of the directory that a user gives for a store."""
    path = local_path(given) if isinstance(given, str) else ""
    if not path or "\0" in path or "://" in path or is_file(path):
        raise SpecError(
            "not the path of a directory",
            field="store",
            value=given,
            remedy="give a directory, or a store of zarr-python, such as "
            "zarr.storage.ZipStore(...) or zarr.storage.FsspecStore.from_url(...)",
        )
    return path

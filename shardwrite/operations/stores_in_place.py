"""Shards for a whole store in its place, and back: `shard_store` and `unshard_store`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardwrite.entry.public import public
from shardwrite.operations.conversion import Conversion
from shardwrite.operations.convert import reshard
from shardwrite.options import Manifest


@public
def shard_store(
    path: Any,
    shard_shape: int | Sequence[int] = 8,
    *,
    manifest: Manifest = None,
    drop_hdf5: bool = False,
) -> Conversion:
    """Put all arrays of a store into shards, in place, and note that in the store's attributes.

    It is the same as ``reshard(path, shard_shape)``. Encoded chunks are copied as they are. Arrays
    that have these shards are skipped. Under ``"notes"``, the attributes of the root then say that
    readers need the sharding codec.

    Parameters
    ----------
    path : str or path
        The array, or the group with all that it holds.
    shard_shape : int or sequence of int
        Shape of a shard in inner chunks: ``8`` along each axis, or ``(4, 4, 16)``. If you give a
        sequence, arrays with another number of dimensions keep the shards that they have, and the
        result says so.
    manifest : {"nonempty_chunks"}, optional
        See :func:`shard`.
    drop_hdf5 : bool
        See :func:`shard`.

    Returns
    -------
    Conversion
        What was done, and which arrays were skipped.

    Notes
    -----
    The call can be interrupted at any time: the old data or the new data are at the path, and the
    same call finishes. The note is written last. :func:`shard` has more options, and writes no
    note. Errors are those of :func:`shard`.

    Raises
    ------
    SpecError
        Before anything is written, if the shape fits no array or the path cannot be converted in
        its place. Also if ``"notes"`` in the attributes is neither a text nor a list of texts.

    Examples
    --------
    >>> import shardwrite, tempfile, zarr
    >>> path = tempfile.mkdtemp() + "/scan.zarr"
    >>> made = zarr.create_group(path).create_array("v", shape=(16, 16), chunks=(1, 1), dtype="u1")
    >>> made[...] = 1
    >>> shardwrite.shard_store(path, 8).n_shards
    4
    >>> shardwrite.shard_store(path, 8).is_skipped
    True
    >>> zarr.open_group(path).attrs["notes"][:29]
    'Arrays of this store are shar'
    """
    return reshard(path, shard_shape, manifest=manifest, drop_hdf5=drop_hdf5)


@public
def unshard_store(path: Any, *, drop_hdf5: bool = False) -> Conversion:
    """Make one file of each chunk of a store again, in place, and remove the note on sharding.

    It is the same as ``reshard(path, None)``. Arrays without shards stay as they are.

    Parameters
    ----------
    path : str or path
        The array, or the group with all that it holds.
    drop_hdf5 : bool
        See :func:`shard`.

    Returns
    -------
    Conversion
        What was done, and which arrays were skipped.

    Notes
    -----
    See :func:`shard_store`.

    Raises
    ------
    SpecError
        Before anything is written, if the path cannot be converted in its place.

    Examples
    --------
    >>> import shardwrite, tempfile, zarr
    >>> path = tempfile.mkdtemp() + "/scan.zarr"
    >>> zarr.create_array(path, shape=(16, 16), chunks=(1, 1), shards=(8, 8), dtype="u1")[...] = 1
    >>> shardwrite.unshard_store(path).n_shards
    256
    >>> shardwrite.unshard_store(path).is_skipped
    True
    """
    return reshard(path, None, drop_hdf5=drop_hdf5)

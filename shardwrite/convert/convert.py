"""Conversions of arrays that exist: into shards, out of shards, and into other shards.

Encoded inner chunks are copied where they can be, and no chunk is decoded for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from shardwrite.convert.arrays import TreeConversion, call_of, open_whole, planned, refuse_loss
from shardwrite.convert.keywords import (
    PlanReshardArguments,
    ReshardArguments,
    ShardArguments,
    UnshardArguments,
)
from shardwrite.convert.plan import Conversion, ConversionPlan
from shardwrite.convert.trees import convert_tree, short_form
from shardwrite.engines import active_engine
from shardwrite.entry.public import public, taking
from shardwrite.options import Manifest, options_from
from shardwrite.plan.options import PlanOptions
from shardwrite.sources.inside import InsideStore
from shardwrite.volumes.source import open_tree


@taking(ShardArguments)
def shard(given: ShardArguments) -> Conversion:
    """Put the chunks of an existing array into shards, and copy them as they are.

    Nothing is decoded, except for data in HDF5 files for which Zarr has no codecs. Chunks that are
    missing stay missing, and a stored chunk of the fill value stays stored. If the source has
    shards, its inner chunks are put into the new shards.

    If the source is a group, all of its arrays are converted, and none appears before all are
    whole. With ``consume=True``, one follows the other, and each appears as soon as it is whole.
    Groups and attributes are copied, too.

    Returns
    -------
    Conversion
        What was done, and why something was skipped or re-encoded.

    Notes
    -----
    If files of `src` change meanwhile, the shards made of them are written once more, before `dst`
    appears. In a bucket, `src` must not change meanwhile.

    A conversion in place can be interrupted at any time: the old data or the new data are at the
    old name, and the same call finishes. Until then, nothing else may write there;
    :func:`abandon` gives the conversion up. Where the file system cannot exchange two names,
    nothing is at the name for a moment, between two renames.

    With ``consume=True``, `src` has no ``zarr.json`` or ``.zarray`` from the first removal on, so
    that nobody reads removed chunks as the fill value. After an interruption, the same call
    finishes. Until then, some of the data are in `src` and others in `dst`: remove neither.
    :func:`abandon` gives it up only if nothing was removed yet.

    Raises
    ------
    SpecError, PlanError, JournalError
        Before anything is written, if an argument does not fit, or another run is in the way.
    CorruptShardError
        If a chunk of the source cannot be one, or its checksum or index is wrong.
    IncompleteError
        If the process was asked to stop and shards are missing.
    StoreError
        If the storage refuses, or the source changes again and again.
    RunEndedError, WorkersLostError
        See :func:`to_sharded_zarr`.

    Examples
    --------
    >>> import dask.array as da, shardwrite, tempfile
    >>> path = tempfile.mkdtemp()
    >>> _ = da.arange(1000, chunks=100).to_sharded_zarr(path + "/a", shards=None, chunks=10)
    >>> done = shardwrite.shard(path + "/a", path + "/b", shards=50)
    >>> done.n_chunks_copied, done.n_chunks_encoded, done.n_shards
    (100, 0, 2)
    """
    shards = "auto" if given.shards is None else given.shards
    return _convert(options_from(given, ReshardArguments, shards=shards))


@taking(UnshardArguments)
def unshard(given: UnshardArguments) -> Conversion:
    """Make one file of each chunk of a sharded array, and copy the chunks as they are.

    Returns
    -------
    Conversion
        What was done, and why something was skipped or re-encoded.

    Raises
    ------
    TypeError
        If a keyword is unknown.

    Notes
    -----
    Other errors are those of :func:`shard`.

    Examples
    --------
    >>> import dask.array as da, shardwrite, tempfile
    >>> path = tempfile.mkdtemp()
    >>> _ = da.arange(1, 101, chunks=50).to_sharded_zarr(path + "/a", shards=50, chunks=10)
    >>> shardwrite.unshard(path + "/a", path + "/b").n_shards
    10
    >>> shardwrite.unshard(path + "/b").is_skipped
    True
    """
    return _convert(options_from(given, ReshardArguments, shards=None))


@taking(ReshardArguments)
def reshard(given: ReshardArguments) -> Conversion:
    """Write an existing array with other shards, inner chunks or codecs.

    If inner chunks and codecs stay the same, encoded chunks are copied as they are. Otherwise all
    chunks are decoded and re-encoded, and the result says why.

    ``reshard(path, 4)`` is :func:`shard_store`, and ``reshard(path, None)`` is
    :func:`unshard_store`.

    Returns
    -------
    Conversion
        What was done, and why something was skipped or re-encoded.

    Notes
    -----
    Errors are those of :func:`shard`, and those of :func:`to_sharded_zarr` if chunks are encoded
    again.

    Examples
    --------
    >>> import dask.array as da, shardwrite, tempfile
    >>> path = tempfile.mkdtemp()
    >>> _ = da.arange(1, 101, chunks=50).to_sharded_zarr(path + "/a", shards=50, chunks=10)
    >>> shardwrite.reshard(path + "/a", path + "/b", 10).n_chunks_copied
    10
    >>> done = shardwrite.reshard(path + "/a", path + "/c", 10, chunks=5)
    >>> done.n_chunks_encoded, done.arrays[0].why
    (20, ('the shapes of the inner chunks differ',))
    """
    return _convert(given)


def _convert(given: ReshardArguments) -> Conversion:
    dst, shards, is_store = short_form(given.dst, given.shards)
    call = call_of(replace(given, dst=dst, shards=shards), is_store=is_store)
    return convert_tree(given.src, call, active_engine())


@taking(PlanReshardArguments)
def plan_reshard(given: PlanReshardArguments) -> ConversionPlan:
    """Plan what :func:`shard`, :func:`unshard` and :func:`reshard` would do. Nothing is written.

    The source is listed once, and its objects are looked at: all of them, or a sample if there are
    more than 20,000.

    Returns
    -------
    ConversionPlan
        Chunks that are copied and re-encoded and why, files before and after, bytes, memory.

    Raises
    ------
    SpecError, PlanError
        If an argument does not fit.
    CorruptShardError, StoreError
        If objects of the source are bad, or cannot be read.

    Examples
    --------
    >>> import dask.array as da, shardwrite, tempfile
    >>> path = tempfile.mkdtemp() + "/a"
    >>> _ = da.arange(1, 1001, chunks=100).to_sharded_zarr(path, shards=None, chunks=10)
    >>> plan = shardwrite.plan_reshard(path, shards=50)
    >>> plan.n_files_before, plan.n_files_after, plan.n_chunks_copied, plan.n_chunks_encoded
    (100, 2, 100, 0)
    """
    call = call_of(options_from(given, ReshardArguments))
    engine = active_engine()
    tree = open_whole(given.src, call.patterns.want)
    made = TreeConversion.of(tree, call, engine).made
    return ConversionPlan(
        source=tree.place.label,
        arrays=tuple(planned(one, engine) for one in made),
        left_out=tree.left_out,
        is_one_file=isinstance(tree.place.store, InsideStore),
    )


def preview_loss(src: Any, made: ConversionPlan, strategy: Any, *, is_consumed: bool) -> None:
    """Refuse a conversion that would lose files of another format; see `refuse_loss`."""
    if all(one.how == "skipped" for one in made.arrays):
        return
    names = {one.name for one in made.arrays}
    tree = open_tree(src, lambda name: name in names)
    is_sharded = any(one.shards is not None for one in made.arrays)
    options = PlanOptions(strategy=strategy)
    refuse_loss(tree, options, is_sharded=is_sharded, is_consumed=is_consumed)


# ---- Whole stores in their place: `shard_store` and `unshard_store`


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

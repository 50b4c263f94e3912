"""Conversions of arrays that exist: into shards, out of shards, and into other shards.

Encoded inner chunks are copied where they can be, and no chunk is decoded for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardwrite.engines import active_engine
from shardwrite.entry.public import public
from shardwrite.grid import Sized
from shardwrite.operations.conversion import Conversion, ConversionPlan
from shardwrite.operations.converting import Progress, call_of, plan_all, planned
from shardwrite.operations.whole_trees import AUTO, IN_PLACE, convert_tree, short_form
from shardwrite.options import Manifest
from shardwrite.sources.volume_arrays import open_tree
from shardwrite.stores.inside import InsideStore
from shardwrite.write.donor import Check


@public
def shard(
    src: Any,
    dst: Any = None,
    shards: Sized = "auto",
    *,
    checksum: bool | None = None,
    index_location: str | None = None,
    dimension_names: Sequence[str | None] | None = None,
    manifest: Manifest = None,
    check: Check = False,
    drop_empty: bool = False,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    min_chunks: int = 2,
    strategy: Any = "fixed-order",
    mode: str = "w-",
    durability: str | None = None,
    run_dir: Any = None,
    restart: bool = False,
    recheck: bool = False,
    memory_limit: int | str | None = None,
    source_id: str | None = None,
    consume: bool = False,
    while_growing: int | str | None = None,
    drop_hdf5: bool = False,
    progress: Progress = False,
) -> Conversion:
    """Put the chunks of an existing array into shards, and copy them as they are.

    Nothing is decoded, except for data in HDF5 files for which Zarr has no codecs. Chunks that are
    missing stay missing, and a stored chunk of the fill value stays stored. If the source has
    shards, its inner chunks are put into the new shards.

    If the source is a group, its arrays are converted one after the other. Each appears as soon
    as it is whole. Groups and attributes are copied, too.

    Parameters
    ----------
    src : str, path, or store or node of zarr-python
        The existing array, or a group with all arrays in it: a directory; a URL; a store of
        zarr-python or obstore; or a node of zarr-python. It may be of Zarr v2, and lie in a ZIP
        file. A file of HDF5 or NetCDF-4 is also a source. ``file.h5::path`` names a group or an
        array in a file.
    dst : str, path, or store or node of zarr-python, optional
        Where the new array or group goes. Without it, `src` is converted in place, unless it has
        these shards already. The new data are written beside the old data, and are compared with
        them. Then they take the old name, and the old data are removed. This needs room for both.
    shards : int, sequence of int, or str
        Shape of a shard in inner chunks: ``8`` along each axis, or ``(4, 4, 16)``. Or its decoded
        size, such as ``"256MB"``. Or the dimensions that a shard spans as a whole, such as
        ``"XYZ"`` or ``"lat,lon"``; it has one inner chunk along every other axis. ``"auto"`` makes
        shards of at most 64 MiB.
    checksum : bool, optional
        True adds a crc32c at the end of each chunk. False checks it and drops it. None leaves
        chunks as they are. A new crc32c cannot show that the bytes were damaged before; see
        `check`.
    index_location : {"end", "start"}, optional
        Position of the index in each shard. By default as in the source, or at the end.
    dimension_names : sequence of str or None, optional
        Names of the dimensions. By default as in the source.
    manifest : {"nonempty_chunks"}, optional
        Keep the list of the inner chunks that hold data in an attribute of this name, as
        zarr-vectors does. shardwrite keeps it up to date. If the source has the list, the new
        array has it, too.
    check : bool or "twice"
        Decode each chunk before it is copied. ``"twice"`` also reads chunks that have no checksum a
        second time, from the storage and not from a cache, and compares.
    drop_empty : bool
        Leave out chunks that hold only the fill value. All chunks are decoded for that.
    include, exclude : str or sequence of str
        Patterns for the paths of arrays in a group, such as ``"images/*"``. With `include`, only
        arrays that fit one of its patterns are converted. Arrays that fit a pattern of `exclude`
        are left out.
    min_chunks : int
        In a group, arrays with fewer inner chunks keep the shards that they have.
    strategy, mode, durability, run_dir, restart, recheck, memory_limit, progress
        See :func:`to_sharded_zarr`.
    source_id : str, optional
        Identifier of the source. Runs with the same identifier have the same data. By default it is
        derived from the place, the document of the array, and its time.
    consume : bool
        Remove each file of `src` as soon as the shards with its data are durable and were compared
        with it. Use this if there is no room for two copies. There is no way back: in the end,
        `src` is gone. `src` must be a directory, with `dst` elsewhere, and all its chunks must be
        copied as they are. A hierarchy is converted as a whole, array by array.
    while_growing : int or str, optional
        Axis, by its number or name, along which another program still writes `src` step by step.
        Only shards whose steps are complete are written. Complete are the last step whose chunks
        are all there, and after which another one has begun, and all steps before it. Make the
        same call again to convert what has come since. When `src` is whole, make the call without
        this keyword. Then `dst` appears. The shape of `src` must not change meanwhile.
    drop_hdf5 : bool
        Allow a conversion in place, or with `consume`, of an array whose shards are also HDF5
        files. They are removed, with everything else that they hold. Without it, only the strategy
        :class:`Hdf5` converts such an array, and the new files hold only its dataset.

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
    return reshard(
        src,
        dst,
        "auto" if shards is None else shards,
        checksum=checksum,
        index_location=index_location,
        dimension_names=dimension_names,
        manifest=manifest,
        check=check,
        drop_empty=drop_empty,
        include=include,
        exclude=exclude,
        min_chunks=min_chunks,
        strategy=strategy,
        mode=mode,
        durability=durability,
        run_dir=run_dir,
        restart=restart,
        recheck=recheck,
        memory_limit=memory_limit,
        source_id=source_id,
        consume=consume,
        while_growing=while_growing,
        drop_hdf5=drop_hdf5,
        progress=progress,
    )


@public
def unshard(src: Any, dst: Any = None, **keywords: Any) -> Conversion:
    """Make one file of each chunk of a sharded array, and copy the chunks as they are.

    Parameters
    ----------
    src, dst
        See :func:`shard`.
    **keywords
        Other keywords of :func:`shard`, except `shards` and `index_location`.

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
    unknown = {"shards", "chunks", "compressors", "index_location"} & set(keywords)
    if unknown:
        raise TypeError(f"unexpected keywords {sorted(unknown)}; reshard takes them")
    return reshard(src, dst, None, **keywords)


@public
def reshard(
    src: Any,
    dst: Any = IN_PLACE,
    shards: Sized = AUTO,
    *,
    chunks: Sized = None,
    compressors: Any = "keep",
    checksum: bool | None = None,
    index_location: str | None = None,
    dimension_names: Sequence[str | None] | None = None,
    manifest: Manifest = None,
    check: Check = False,
    drop_empty: bool = False,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    min_chunks: int | None = None,
    strategy: Any = "fixed-order",
    mode: str = "w-",
    durability: str | None = None,
    run_dir: Any = None,
    restart: bool = False,
    recheck: bool = False,
    memory_limit: int | str | None = None,
    source_id: str | None = None,
    consume: bool = False,
    while_growing: int | str | None = None,
    drop_hdf5: bool = False,
    progress: Progress = False,
) -> Conversion:
    """Write an existing array with other shards, inner chunks or codecs.

    If inner chunks and codecs stay the same, encoded chunks are copied as they are. Otherwise all
    chunks are decoded and re-encoded, and the result says why.

    ``reshard(path, 4)`` is :func:`shard_store`, and ``reshard(path, None)`` is
    :func:`unshard_store`.

    Parameters
    ----------
    src
        See :func:`shard`.
    dst : str, path, or store or node of zarr-python, optional
        See :func:`shard`. In its place you can give `shards`, as a number, a sequence of numbers
        or None. Then, and if you leave `dst` out, `src` is converted in place.
    shards : int, sequence of int, str or None
        See :func:`shard`. None makes an array without shards.
    chunks : int, sequence of int or str, optional
        Shape of an inner chunk **in elements**, or its decoded size, such as ``"1MB"``. By default
        the inner chunks stay.
    compressors : codec, sequence of codec, "auto", "keep" or None
        Compressors of the inner chunks, as in :func:`to_sharded_zarr`: a name alone is followed by
        crc32c, and a list is taken as it is. ``"keep"`` leaves them as they are. With others, an
        array of shards within shards gets a single level of shards.
    checksum, index_location, dimension_names, manifest, check, drop_empty, include, exclude
        See :func:`shard`.
    min_chunks : int, optional
        See :func:`shard`. By default 2, and 0 in ``reshard(path, 4)`` and ``reshard(path, None)``.
    source_id, consume, while_growing, drop_hdf5
        See :func:`shard`.
    strategy, mode, durability, run_dir, restart, recheck, memory_limit, progress
        See :func:`to_sharded_zarr`.

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
    dst, shards, is_store = short_form(dst, shards)
    call = call_of(
        dst,
        shards,
        chunks=chunks,
        compressors=compressors,
        checksum=checksum,
        index_location=index_location,
        dimension_names=dimension_names,
        manifest=manifest,
        check=check,
        drop_empty=drop_empty,
        include=include,
        exclude=exclude,
        min_chunks=(0 if is_store else 2) if min_chunks is None else min_chunks,
        is_store=is_store,
        strategy=strategy,
        mode=mode,
        durability=durability,
        run_dir=run_dir,
        restart=restart,
        recheck=recheck,
        memory_limit=memory_limit,
        source_id=source_id,
        consume=consume,
        while_growing=while_growing,
        drop_hdf5=drop_hdf5,
        progress=progress,
    )
    return convert_tree(src, call, active_engine())


@public
def plan_reshard(
    src: Any,
    shards: Sized = "auto",
    *,
    chunks: Sized = None,
    compressors: Any = "keep",
    checksum: bool | None = None,
    index_location: str | None = None,
    dimension_names: Sequence[str | None] | None = None,
    manifest: Manifest = None,
    check: Check = False,
    drop_empty: bool = False,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    min_chunks: int = 2,
    strategy: Any = "fixed-order",
    memory_limit: int | str | None = None,
    dst: Any = None,
) -> ConversionPlan:
    """Plan what :func:`shard`, :func:`unshard` and :func:`reshard` would do. Nothing is written.

    The source is listed once, and its objects are looked at: all of them, or a sample if there are
    more than 20,000.

    Parameters
    ----------
    src, shards, chunks, compressors, checksum, index_location, dimension_names, check, drop_empty
        See :func:`reshard`. ``shards=None`` plans what :func:`unshard` would do.
    manifest, include, exclude, min_chunks
        See :func:`shard`.
    strategy, memory_limit
        See :func:`to_sharded_zarr`.
    dst : str, path, or store
        Where the result would go. A bucket needs more memory than a file system. By default, the
        result takes the place of the source.

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
    call = call_of(
        dst,
        shards,
        chunks=chunks,
        compressors=compressors,
        checksum=checksum,
        index_location=index_location,
        dimension_names=dimension_names,
        manifest=manifest,
        check=check,
        drop_empty=drop_empty,
        include=include,
        exclude=exclude,
        min_chunks=min_chunks,
        strategy=strategy,
        memory_limit=memory_limit,
    )
    engine = active_engine()
    tree = open_tree(src, call.wanted.patterns.want)
    made = plan_all(tree, call, engine)
    return ConversionPlan(
        source=tree.place.label,
        arrays=tuple(planned(one, engine) for one in made),
        left_out=tree.left_out,
        is_one_file=isinstance(tree.place.store, InsideStore),
    )

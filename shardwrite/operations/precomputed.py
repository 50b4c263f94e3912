"""Writing of volumes of Neuroglancer precomputed, in shards.

A scale is an array whose shards have the format of Neuroglancer. It is planned, written, resumed
and verified as all arrays are. Its directory also holds a ``zarr.json`` that describes it to this
package, and the receipt. The ``info`` of the volume is written last, so that no reader finds a
scale that is not whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

from shardwrite.engines import Engine, active_engine
from shardwrite.entry.public import public
from shardwrite.format.precomputed.new import ScaleOptions, merged_info
from shardwrite.journal import change_info, read_volume
from shardwrite.operations.scattered import write_scattered
from shardwrite.operations.volume_scales import ScaleOfArray, noting_axes, scales_of
from shardwrite.options import MAX_GRAPH_TASKS, MAX_SOURCE_RERUNS
from shardwrite.place.scale import ScaleTargets, has_spool
from shardwrite.place.target import resolve_target
from shardwrite.place.url import at_url, without_kind
from shardwrite.plan import Plan, PlanOptions
from shardwrite.plan.sizes import parse_nbytes
from shardwrite.runs.execute import execute
from shardwrite.runs.gathered import remove_spool
from shardwrite.runs.job import Job
from shardwrite.runs.options import RunOptions, for_new_array
from shardwrite.runs.progress import reporting
from shardwrite.runs.result import VolumeResult, WriteResult, volume_result
from shardwrite.write.context import GroupReport


@public
def plan_precomputed(
    x: Any,
    path: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    *,
    axes: str | None = None,
    resolution: Any,
    voxel_offset: Any = (0, 0, 0),
    type: str = "image",  # noqa: A002 (the word of the format)
    encoding: str | None = None,
    compressed_segmentation_block_size: Any = None,
    jpeg_quality: int | None = None,
    chunks: Any = 64,
    sharding: Any = "auto",
    shard_nbytes: int | str = "128 MiB",
    index_nbytes: int | str = "12.5 kB",
    key: str | None = None,
    scales: Mapping[Sequence[float], Any] | None = None,
    write_empty_chunks: bool = False,
    memory_limit: int | str | None = None,
    source_id: str | None = None,
    max_graph_tasks: int = MAX_GRAPH_TASKS,
    max_source_reruns: float = MAX_SOURCE_RERUNS,
) -> Plan:
    """Plan how an array would be written as a scale of a Neuroglancer volume.

    Nothing is computed, read or written. The plan shows how many files there will be, how many
    bytes of index a reader fetches before a chunk, and the memory of a process.

    Parameters
    ----------
    x, axes, resolution, voxel_offset, type, chunks, sharding, shard_nbytes, index_nbytes
        See :func:`to_precomputed`.
    path, storage_options
        Where the volume would go. In a bucket, shards wait in memory until they are put, and the
        plan counts that. By default they do not wait.
    encoding, compressed_segmentation_block_size, jpeg_quality
        See :func:`to_precomputed`.
    key, scales, write_empty_chunks, memory_limit, source_id, max_graph_tasks, max_source_reruns
        See :func:`to_precomputed`.

    Returns
    -------
    Plan
        The plan, which can be printed. If `scales` are given, it also holds their plans. If the
        chunks of a shard are scattered, it is the plan of the spool, and so is its number of
        shards. Its `gathering` is then the plan of the shards of the scale.

    Raises
    ------
    SpecError
        If an argument is not valid. The error has the field, its value and a remedy.
    PlanError
        If the plan exceeds the memory, the number of tasks, or `max_source_reruns`.

    Examples
    --------
    >>> import dask.array as da, shardwrite
    >>> x = da.zeros((100, 512, 512), chunks=64, dtype="uint8")
    >>> p = shardwrite.plan_precomputed(x, axes="zyx", resolution=(4, 4, 40), shard_nbytes="8MB")
    >>> p.n_shards, p.shards_for((0, 0, 0))[0].key
    (8, '0.shard')
    """
    options = ScaleOptions(
        type=type,
        resolution=resolution,
        voxel_offset=voxel_offset,
        encoding=encoding,
        compressed_segmentation_block_size=compressed_segmentation_block_size,
        jpeg_quality=jpeg_quality,
        chunks=chunks,
        sharding=sharding,
        key=key,
        shard_nbytes=_nbytes(shard_nbytes, "shard_nbytes"),
        index_nbytes=_nbytes(index_nbytes, "index_nbytes"),
    )
    volume = scales_of(x, axes, options, scales)
    store = (
        None
        if path is None
        else resolve_target(at_url(without_kind(path), storage_options), None, is_read=True).store
    )
    planned = PlanOptions(
        write_empty_chunks=write_empty_chunks,
        memory_limit=memory_limit,
        source_id=source_id,
        max_graph_tasks=max_graph_tasks,
        max_source_reruns=max_source_reruns,
    )
    first, *others = (each.planned(planned, store)[1] for each in volume)
    return replace(first, scales=tuple(others))


@public
def to_precomputed(
    x: Any,
    path: Any,
    storage_options: Mapping[str, Any] | None = None,
    *,
    axes: str | None = None,
    resolution: Any,
    voxel_offset: Any = (0, 0, 0),
    type: str = "image",  # noqa: A002 (the word of the format)
    encoding: str | None = None,
    compressed_segmentation_block_size: Any = None,
    jpeg_quality: int | None = None,
    chunks: Any = 64,
    sharding: Any = "auto",
    shard_nbytes: int | str = "128 MiB",
    index_nbytes: int | str = "12.5 kB",
    key: str | None = None,
    scales: Mapping[Sequence[float], Any] | None = None,
    write_empty_chunks: bool = False,
    durability: str | None = None,
    run_dir: Any = None,
    restart: bool = False,
    recheck: bool = False,
    memory_limit: int | str | None = None,
    source_id: str | None = None,
    max_graph_tasks: int = MAX_GRAPH_TASKS,
    max_source_reruns: float = MAX_SOURCE_RERUNS,
    keep_report: bool = False,
    progress: bool | Callable[[GroupReport], None] = False,
) -> VolumeResult:
    """Write an array as a scale of a volume of Neuroglancer precomputed, in shards.

    `x` may have any chunks. Each shard is committed by exactly one task, and becomes visible only
    when it is whole. The ``info`` of the volume is written last. An interrupted call goes on when
    it is made again.

    Parameters
    ----------
    x : array_like
        The source, as in :func:`to_sharded_zarr`. Its dtype is ``uint8``, ``uint16``, ``uint32``,
        ``uint64``, ``int8``, ``int16``, ``int32`` or ``float32``. The encoded chunks of a
        `zarr.Array` are copied if they are what the scale needs; see the notes.
    path : str, path, or store
        The directory of the volume, the URL of a bucket such as ``"s3://bucket/volume"``, or a
        store as in :func:`to_sharded_zarr`. If it has an ``info``, the scale is added to it. A URL
        may begin with ``precomputed://``, as in Neuroglancer.
    storage_options : mapping, optional
        Options for a URL, as in :func:`to_sharded_zarr`.
    axes : str, optional
        Axes of `x`: the letters x, y and z in any order, with c for channels if there are any. By
        default the names of its dimensions tell them, and they must not say otherwise. With
        ``"zyx"`` or ``"czyx"`` no bytes are transposed.
    resolution : sequence of float
        Size of a voxel in nanometres, along x, y and z.
    voxel_offset : sequence of int
        Position of the first voxel, along x, y and z.
    type : {"image", "segmentation"}
        Kind of the volume.
    encoding : {"gzip", "raw", "compressed_segmentation", "png", "jpeg"}, optional
        Encoding of the chunks. By default what `sharding` says, or else gzip. In the format,
        ``gzip`` and ``raw`` both have the encoding ``raw``, and gzip is the ``data_encoding`` of
        the shards. So raw chunks are gzipped if `sharding` says so.
        ``compressed_segmentation`` is for labels, ``uint32`` or ``uint64``, and the shards compress
        it once more. ``png`` is for one to four channels of ``uint8`` or ``uint16``. ``jpeg`` is
        for one or three channels of ``uint8``, and changes values. It needs simplejpeg, and is
        refused for a segmentation.
    compressed_segmentation_block_size : sequence of int, optional
        Shape of a block along x, y and z, in voxels; by default ``(8, 8, 8)``. Each block has a
        table of its labels. It may be larger than a chunk.
    jpeg_quality : int, optional
        Quality of 1 to 100; by default 75. Channels are stored with all pixels (4:4:4).
    chunks : int or sequence of int
        Shape of a chunk along x, y and z. A chunk holds all channels.
    sharding : "auto", mapping or ShardingParameters
        Parameters of the shards, as in ``info``. A mapping may leave out ``@type``, ``hash`` and
        the encodings. With the hash ``"identity"``, a shard is a box of the volume, unless the
        bits are too few for all ids. Then, and with ``"murmurhash3_x86_128"``, its chunks lie all
        over the volume, and all chunks are written twice; see the notes.
    shard_nbytes : int or str
        Largest decoded size of a shard, for ``sharding="auto"``.
    index_nbytes : int or str
        Largest index that a reader fetches before a chunk, for ``sharding="auto"``.
    key : str, optional
        Name of the scale, which is its directory in that of the volume. By default it is made of
        the resolution, such as ``"4_4_40"``.
    scales : mapping of sequence of float to array_like, optional
        Coarser or finer arrays of the same image, by the sizes of their voxels in nanometres. Each
        becomes one more scale, with the axes and the other parameters of `x`. Its offset is where
        `x` begins, in its own voxels. All scales enter ``info`` at the end, together. They are
        written in one task graph, so that work which they share with `x` is done once. Only arrays
        that take several graphs, and chunks that are scattered, are written one after the other.
    write_empty_chunks : bool
        Store also chunks that hold only zeros. Readers take a chunk that is missing for zeros.
    durability, run_dir, restart, recheck, memory_limit, source_id
        See :func:`to_sharded_zarr`.
    max_graph_tasks, max_source_reruns, keep_report, progress
        See :func:`to_sharded_zarr`.

    Returns
    -------
    VolumeResult
        What was written of `x`. Its path is that of the scale. It also holds the results of
        `scales`.

    Raises
    ------
    SpecError, PlanError, StoreError, JournalError
        Before any shard is written, if an argument does not fit, or something else stands there. A
        JournalError says that another plan was begun for the scale, and what differs or who works
        on it.
    IncompleteError
        If the process was asked to stop and shards are missing.
    SourceError, CodecError, StoreError
        If a task fails. Its shard is not committed, and the scale does not enter ``info``.
    RunEndedError
        If another process took over the run, or ended it.
    WorkersLostError
        If a cluster has lost its workers.

    See Also
    --------
    plan_precomputed : Shows what would be written.
    from_precomputed : Reads volumes.

    Notes
    -----
    Besides the shards, the directory of the scale holds a ``zarr.json`` and a receipt, by which
    :func:`verify` and this function know what was written. Readers of volumes ignore both. To give
    up a call that was interrupted, use :func:`abandon` on the scale.

    If the chunks of a shard are scattered, they are first encoded into a *spool* beside the scale,
    whose name begins with a dot. Then each shard is gathered out of it. The spool takes about as
    many bytes as the scale, and is removed at the end. Its ``zarr.json`` describes an array that
    has the chunks of the volume one after the other, so read the values by
    :func:`from_precomputed`. :func:`verify` and :func:`repair` take a source in the shape of the
    volume. To repair a shard, they read all of it.

    Encoded chunks of a `zarr.Array` are copied if it has the axes zyx or czyx, the same chunks, the
    fill value 0, and no compression or gzip as `encoding` says. A crc32c after it is verified and
    dropped. Chunks that reach beyond the array are decoded and re-encoded, since a volume cuts
    them. The plan says how many these are, or why all chunks are decoded. Chunks of zeros that the
    array stores are copied, too. The gzip keeps the level that it has there.

    Examples
    --------
    >>> import dask.array as da, shardwrite, tempfile
    >>> x = da.arange(100 * 80 * 60, chunks=50_000, dtype="uint32").reshape(60, 80, 100)
    >>> path = tempfile.mkdtemp() + "/volume"
    >>> shardwrite.to_precomputed(x, path, axes="zyx", resolution=(4, 4, 40)).n_shards
    1
    >>> int(shardwrite.from_precomputed(path, axes="zyx")[1, 2, 3].compute())
    8203

    Write two scales, and compute `x` once:

    >>> scales = {(8, 8, 40): x[:, ::2, ::2]}
    >>> path = tempfile.mkdtemp() + "/volume"
    >>> result = shardwrite.to_precomputed(
    ...     x, path, axes="zyx", resolution=(4, 4, 40), scales=scales
    ... )
    >>> [each.path.rpartition("/")[2] for each in (result, *result.scales)]
    ['4_4_40', '8_8_40']
    """
    options = ScaleOptions(
        type=type,
        resolution=resolution,
        voxel_offset=voxel_offset,
        encoding=encoding,
        compressed_segmentation_block_size=compressed_segmentation_block_size,
        jpeg_quality=jpeg_quality,
        chunks=chunks,
        sharding=sharding,
        key=key,
        shard_nbytes=_nbytes(shard_nbytes, "shard_nbytes"),
        index_nbytes=_nbytes(index_nbytes, "index_nbytes"),
    )
    volume = scales_of(x, axes, options, scales)
    where = resolve_target(at_url(without_kind(path), storage_options), None, run_dir)
    places = [ScaleTargets.of(where, each.wanted.scale.key, run_dir) for each in volume]
    run = for_new_array(
        RunOptions(
            durability=durability,
            restart=restart,
            recheck=recheck,
            keep_report=keep_report,
            remedy_if_there="give another key, or remove that scale yourself",
        )
    )
    planned = PlanOptions(
        write_empty_chunks=write_empty_chunks,
        memory_limit=memory_limit,
        source_id=source_id,
        max_graph_tasks=max_graph_tasks,
        max_source_reruns=max_source_reruns,
    )
    jobs = [
        Job(
            chunks,
            noting_axes(plan, each.axes),
            place.spool if each.wanted.is_scattered else place.scale,
            run,
        )
        for each, place in zip(volume, places, strict=True)
        for chunks, plan in [each.planned(planned, where.store)]
    ]

    def entered(old: Any) -> Any:
        return reduce(merged_info, (each.wanted for each in volume), old)

    entered(read_volume(where.place))  # What cannot be entered is refused before a run.
    engine = active_engine()
    results = _results(volume, places, jobs, engine, progress)
    change_info(where, entered, jobs[0].durability)
    for each, place in zip(volume, places, strict=True):
        if each.wanted.is_scattered and has_spool(place.spool):
            remove_spool(place.spool)
    return volume_result(results)


def _results(
    volume: list[ScaleOfArray],
    places: list[ScaleTargets],
    jobs: list[Job],
    engine: Engine,
    progress: bool | Callable[[GroupReport], None],
) -> list[WriteResult]:
    """Write all scales: first those whose shards are boxes, together, and then the others."""
    boxes = [job for each, job in zip(volume, jobs, strict=True) if not each.wanted.is_scattered]
    together: Iterator[WriteResult] = iter(())
    if boxes:
        with reporting(progress, sum(job.plan.raw_nbytes for job in boxes)) as on_report:
            together = iter(execute(boxes, engine, on_report))
    return [
        write_scattered(each.wanted, job, place.scale, engine, progress)
        if each.wanted.is_scattered
        else next(together)
        for each, place, job in zip(volume, places, jobs, strict=True)
    ]


def _nbytes(given: int | str, field: str) -> int:
    return parse_nbytes(given if isinstance(given, str) else f"{given}", field)

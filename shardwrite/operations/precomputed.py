"""Writing of volumes of Neuroglancer precomputed, in shards.

A scale is an array whose shards have the format of Neuroglancer. It is planned, written, resumed
and verified as all arrays are. Its directory also holds a ``zarr.json`` that describes it to this
package, and the receipt. The ``info`` of the volume is written last, so that no reader finds a
scale that is not whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from typing import Any

from shardwrite.engines import Engine, active_engine
from shardwrite.entry.public import taking
from shardwrite.format.precomputed.new import ScaleOptions, merged_info
from shardwrite.journal.volume_info import change_info, read_volume
from shardwrite.operations.scale_keywords import PlanPrecomputedArguments, PrecomputedArguments
from shardwrite.operations.scattered import write_scattered
from shardwrite.operations.volume_scales import ScaleOfArray, noting_axes, scales_of
from shardwrite.options import taken_from
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


@taking(PlanPrecomputedArguments)
def plan_precomputed(given: PlanPrecomputedArguments) -> Plan:
    """Plan how an array would be written as a scale of a Neuroglancer volume.

    Nothing is computed, read or written. The plan shows how many files there will be, how many
    bytes of index a reader fetches before a chunk, and the memory of a process.

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
    volume = _scales_of(given)
    store = (
        None if given.path is None else resolve_target(_volume_of(given), None, is_read=True).store
    )
    planned = taken_from(given, PlanOptions)
    first, *others = (each.planned(planned, store)[1] for each in volume)
    return replace(first, scales=tuple(others))


@taking(PrecomputedArguments)
def to_precomputed(given: PrecomputedArguments) -> VolumeResult:
    """Write an array as a scale of a volume of Neuroglancer precomputed, in shards.

    `x` may have any chunks. Each shard is committed by exactly one task, and becomes visible only
    when it is whole. The ``info`` of the volume is written last. An interrupted call goes on when
    it is made again.

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
    volume = _scales_of(given)
    where = resolve_target(
        at_url(without_kind(given.path), given.storage_options), None, given.run_dir
    )
    places = [ScaleTargets.of(where, each.wanted.scale.key, given.run_dir) for each in volume]
    remedy = "give another key, or remove that scale yourself"
    run = for_new_array(taken_from(given, RunOptions, remedy_if_there=remedy))
    planned = taken_from(given, PlanOptions)
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
    results = _results(volume, places, jobs, engine, given.progress)
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


def _volume_of(given: PlanPrecomputedArguments | PrecomputedArguments) -> Any:
    return at_url(without_kind(given.path), given.storage_options)


def _scales_of(given: PlanPrecomputedArguments | PrecomputedArguments) -> list[ScaleOfArray]:
    options = taken_from(
        given,
        ScaleOptions,
        shard_nbytes=_nbytes(given.shard_nbytes, "shard_nbytes"),
        index_nbytes=_nbytes(given.index_nbytes, "index_nbytes"),
    )
    return scales_of(given.x, given.axes, options, given.scales)


def _nbytes(given: int | str, field: str) -> int:
    return parse_nbytes(given if isinstance(given, str) else f"{given}", field)

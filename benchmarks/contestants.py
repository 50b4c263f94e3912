"""The writers compared, each used the way that suits it best among the ways that are correct.

All of them get the same shapes, codecs and codec settings, and none waits for the disk but those whose name says so.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dask
import dask.array as da

from benchmarks.bare_loop import document, write_bare_loop
from benchmarks.cases import Case
from benchmarks.data import DTYPE, ArraySource

__all__ = [
    "CONTESTANTS",
    "Contestant",
    "Writer",
    "dask_array",
    "expected_bytes",
    "regions",
    "scheduler",
    "zarr_codecs",
]


Writer = Callable[[ArraySource, Case, Path, int], None]
"""Writes a source to a path with a number of threads."""


@dataclass(frozen=True)
class Contestant:
    """One writer.

    Parameters
    ----------
    name : str
        What `--contestants` calls it.
    write : callable
        Writes a source to a path; this call is what is timed.
    distribution : str
        Distribution that has to be installed, whose version is reported.
    environment : dict
        Environment variables of its processes.
    uses_dask : bool
        Whether it runs on the dask scheduler of the case.
    note : str
        What a reader of the figures has to know.
    is_asked_for : bool
        Whether it takes part only where it is named.
    is_bar : bool
        Whether it is no writer that anybody could use, but what the machine gives; it counts as nobody's peer.
    whole_shards_only : bool
        Whether it can only take sources whose chunks are whole shards.
    refuses : tuple of str
        Codecs that it refuses, keys of `benchmarks.cases.CODECS`.
    strategy : str
        Write strategy of shardwrite.
    """

    name: str
    write: Writer
    distribution: str
    environment: dict[str, str] = field(default_factory=dict)
    uses_dask: bool = True
    note: str = ""
    is_asked_for: bool = False
    is_bar: bool = False
    whole_shards_only: bool = False
    refuses: tuple[str, ...] = ()
    strategy: str = "fixed-order"

    def takes(self, case: Case) -> bool:
        """Whether it can write a case."""
        return case.codec not in self.refuses and (case.whole_shards or not self.whole_shards_only)


def dask_array(source: ArraySource, case: Case) -> Any:
    """The source in the dask chunks of a case."""
    from_array: Any = da.from_array
    return from_array(source, chunks=case.dask_chunks, name=False, lock=False)


def zarr_codecs(case: Case) -> list[Any]:
    """The compressor of a case as zarr-python's own objects."""
    from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

    classes: dict[str, Any] = {"zstd": ZstdCodec, "blosc": BloscCodec, "gzip": GzipCodec}
    return [classes[codec["name"]].from_dict(codec) for codec in case.compressor.metadata()]


def _with_durability(durability: str, strategy: str = "fixed-order") -> Writer:
    """Our own writer at a level, with a strategy."""

    def write(source: ArraySource, case: Case, path: Path, threads: int) -> None:  # noqa: ARG001  # dask's own
        importlib.import_module("shardwrite").to_sharded_zarr(
            dask_array(source, case),
            str(path),
            shards=case.shards,
            chunks=case.chunks,
            compressors=zarr_codecs(case),
            fill_value=0,
            strategy=strategy,
            durability=durability,
        )

    return write


class _NoJournal:
    """Takes lines and forgets them."""

    begun = 0.0

    def append(self, fields: Any) -> None:
        """Nothing."""


def _without_journal(durability: str) -> Writer:
    """The same with the journal switched off, which nobody can do but this benchmark: what it costs is the difference."""

    def write(source: ArraySource, case: Case, path: Path, threads: int) -> None:
        commit: Any = importlib.import_module("shardwrite.write.commit")
        commit.journal_for = lambda *_: _NoJournal()
        _with_durability(durability)(source, case, path, threads)

    return write


def _write_dask_zarr(source: ArraySource, case: Case, path: Path, threads: int) -> None:  # noqa: ARG001  # dask's own
    """Store blocks of whole shards, without a lock.

    `dask.array.to_zarr` is not used: given a zarr array it may rechunk to blocks that share shards, and then
    writers lose each other's data. Blocks that already consist of whole shards are kept as they are.
    """
    import zarr

    x = dask_array(source, case)
    target = zarr.create_array(
        str(path),
        shape=x.shape,
        dtype=DTYPE,
        shards=case.shards,
        chunks=case.chunks,
        compressors=zarr_codecs(case) or None,
        fill_value=0,
        zarr_format=3,
    )
    if not case.whole_shards:
        x = x.rechunk(case.shards)
    store: Any = da.store
    store(x, target, lock=False)


def expected_bytes(source: ArraySource, case: Case, compression_ratio: float, strategy: str) -> int:
    """Memory that our own plan says to expect of all processes together, on the scheduler that is active.

    Parameters
    ----------
    source : ArraySource
        The data.
    case : Case
        What is written.
    compression_ratio : float
        Decoded over encoded bytes.
    strategy : str
        Write strategy.
    """
    plan = importlib.import_module("shardwrite").plan(
        dask_array(source, case),
        shards=case.shards,
        chunks=case.chunks,
        compressors=zarr_codecs(case),
        fill_value=0,
        strategy=strategy,
        compression_ratio=compression_ratio,
    )
    return int(plan.expected_memory.total_nbytes) * max(1, case.workers)


def _write_tensorstore(source: ArraySource, case: Case, path: Path, threads: int) -> None:
    """As :func:`_put_regions`, and wait for no disk."""
    _put_regions(source, case, path, threads, sync=False)


def _write_tensorstore_sync(source: ArraySource, case: Case, path: Path, threads: int) -> None:
    """As :func:`_put_regions`, with its own default: each file is synced."""
    _put_regions(source, case, path, threads, sync=True)


def _put_regions(source: ArraySource, case: Case, path: Path, threads: int, *, sync: bool) -> None:
    """Write regions of whole shards, each read, put and committed in a transaction of its own, without dask."""
    import tensorstore as ts

    made = document(source.shape, case)
    target = ts.open(
        {
            "driver": "zarr3",
            "kvstore": {"driver": "file", "path": str(path)},
            "create": True,
            "metadata": {
                name: made[name]
                for name in ("shape", "data_type", "fill_value", "chunk_grid", "codecs")
            },
            "context": {
                "data_copy_concurrency": {"limit": threads},
                "file_io_concurrency": {"limit": threads},
                "file_io_sync": sync,
                "cache_pool": {"total_bytes_limit": 0},
            },
        }
    ).result()

    def put(region: tuple[slice, ...]) -> None:
        block = source[region]
        transaction = ts.Transaction()
        target.with_transaction(transaction)[region].write(
            block, can_reference_source_data_indefinitely=True
        ).result()
        transaction.commit_async().result()

    batch = case.dask_chunks if case.whole_shards else case.shards
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(put, regions(source.shape, batch)):
            pass


def regions(shape: tuple[int, ...], step: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """Boxes of a step that cover a shape, row-major."""
    axes = [
        [slice(i, min(i + s, n)) for i in range(0, n, s)] for n, s in zip(shape, step, strict=True)
    ]
    return itertools.product(*axes)


CONTESTANTS: dict[str, Contestant] = {
    entry.name: entry
    for entry in (
        Contestant("shardwrite", _with_durability("none"), "shardwrite"),
        Contestant(
            "shardwrite-old",
            _with_durability("none"),
            "shardwrite",
            note="the commit that --old names",
            is_asked_for=True,
        ),
        Contestant(
            "shardwrite-no-journal",
            _without_journal("none"),
            "shardwrite",
            note="journal switched off",
            is_asked_for=True,
        ),
        Contestant(
            "shardwrite-full",
            _with_durability("full"),
            "shardwrite",
            note="durability full",
            is_asked_for=True,
        ),
        Contestant(
            "shardwrite-full-no-journal",
            _without_journal("full"),
            "shardwrite",
            note="durability full, journal switched off",
            is_asked_for=True,
        ),
        Contestant(
            "shardwrite-hdf5",
            _with_durability("none", "hdf5"),
            "shardwrite",
            note="shards that are HDF5 files",
            is_asked_for=True,
            refuses=("gzip",),
            strategy="hdf5",
        ),
        Contestant(
            "dask+zarr-python",
            _write_dask_zarr,
            "zarr",
            note="dask.array.store of whole-shard blocks, lock=False",
        ),
        Contestant(
            "dask+zarr-fused",
            _write_dask_zarr,
            "zarr",
            environment={
                "ZARR_CODEC_PIPELINE__PATH": "zarr.core.codec_pipeline.FusedCodecPipeline"
            },
            note="the same through a codec pipeline that zarr-python 3.3 and up have, and take where they are asked to",
            is_asked_for=True,
        ),
        Contestant(
            "dask+zarrs",
            _write_dask_zarr,
            "zarrs",
            environment={"ZARR_CODEC_PIPELINE__PATH": "zarrs.ZarrsCodecPipeline"},
            note="the same through the zarrs codec pipeline",
        ),
        Contestant(
            "tensorstore",
            _write_tensorstore,
            "tensorstore",
            uses_dask=False,
            note="one process without dask in every case; reads whole-shard regions whatever the dask chunks are",
        ),
        Contestant(
            "tensorstore-sync",
            _write_tensorstore_sync,
            "tensorstore",
            uses_dask=False,
            note="the same with each file synced, as is its default",
            is_asked_for=True,
        ),
        Contestant(
            "bare-loop",
            write_bare_loop,
            "numpy",
            uses_dask=False,
            note="the bar and nobody's peer: copy tiles, encode, writev in threads of one process, without scheduler or journal; "
            "only where dask chunks are whole shards",
            is_bar=True,
            whole_shards_only=True,
        ),
    )
}


@contextmanager
def scheduler(
    contestant: Contestant, case: Case, threads: int, scratch: Path
) -> Iterator[list[int]]:
    """Run the dask scheduler that a case asks for.

    Parameters
    ----------
    contestant : Contestant
        Who is measured.
    case : Case
        What is written.
    threads : int
        Threads of the threaded scheduler.
    scratch : Path
        Where worker processes keep their files.

    Yields
    ------
    list of int
        Ids of the worker processes.
    """
    if not (contestant.uses_dask and case.workers):
        with dask.config.set(scheduler="threads", num_workers=threads):
            yield []
        return
    distributed: Any = importlib.import_module("distributed")
    with (
        distributed.LocalCluster(
            n_workers=case.workers,
            threads_per_worker=1,
            processes=True,
            memory_limit=0,
            dashboard_address=None,
            local_directory=str(scratch),
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.wait_for_workers(case.workers)
        yield list(client.run(_process_id).values())


def _process_id() -> int:
    import os

    return os.getpid()

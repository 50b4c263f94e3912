"""The bar: a bare loop that copies tiles, encodes them and writes them, in threads.

No scheduler, no plan, no journal, and nothing for sources that do not come in whole shards; the format is the same, and so are the
codec's library and level. Each shard goes to a temporary file that is renamed when it is whole.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import crc32c
import numpy as np
import numpy.typing as npt

from benchmarks.cases import Case, Codec
from benchmarks.data import DTYPE, ArraySource

__all__ = ["document", "write_bare_loop"]

Encode = Callable[[npt.NDArray[np.uint16]], Any]
_IOV_MAX = 1024
_BATCH_NBYTES = 2 * 2**20
_thread = threading.local()


def document(shape: tuple[int, ...], case: Case) -> dict[str, Any]:
    """The metadata of a sharded array, its index last in each shard.

    Parameters
    ----------
    shape : tuple of int
        Of the array.
    case : Case
        Shards, inner chunks and codec.
    """
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    sharding = {
        "chunk_shape": list(case.chunks),
        "codecs": [little, *case.compressor.metadata()],
        "index_codecs": [little, {"name": "crc32c"}],
        "index_location": "end",
    }
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": DTYPE.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(case.shards)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        "attributes": {},
        "storage_transformers": [],
    }


def write_bare_loop(source: ArraySource, case: Case, path: Path, threads: int) -> None:
    """Write regions of whole shards, a region at a time in each thread.

    Parameters
    ----------
    source : ArraySource
        The data; each region is read once, as other writers without dask read it.
    case : Case
        In which layout; its dask chunks hold whole shards.
    path : Path
        Where to.
    threads : int
        How many.
    """
    path.mkdir(parents=True)
    (path / "zarr.json").write_text(json.dumps(document(source.shape, case)))
    for index in itertools.product(
        *(range(-(-n // s)) for n, s in zip(source.shape[:-1], case.shards[:-1], strict=True))
    ):
        path.joinpath("c", *map(str, index)).mkdir(parents=True, exist_ok=True)

    root = f"{path}/c"

    def put(corner: tuple[int, ...]) -> None:
        region = tuple(
            slice(a, min(a + d, n))
            for a, d, n in zip(corner, case.dask_chunks, source.shape, strict=True)
        )
        block = source[region]
        for start in itertools.product(
            *(range(0, n, s) for n, s in zip(block.shape, case.shards, strict=True))
        ):
            index = [(a + b) // s for a, b, s in zip(corner, start, case.shards, strict=True)]
            shard = block[tuple(slice(a, a + s) for a, s in zip(start, case.shards, strict=True))]
            _write_shard(shard, case, "/".join((root, *map(str, index[:-1]))), str(index[-1]))

    corners = itertools.product(
        *(range(0, n, d) for n, d in zip(source.shape, case.dask_chunks, strict=True))
    )
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(put, corners):
            pass


def _write_shard(shard: npt.NDArray[np.uint16], case: Case, directory: str, name: str) -> None:
    """Encode some slabs of inner chunks after others, and write what is not empty."""
    encode = _encoder(case)
    counts = tuple(s // c for s, c in zip(case.shards, case.chunks, strict=True))
    per_slab = math.prod(counts[1:])
    n_slabs = min(counts[0], max(1, _BATCH_NBYTES // (2 * math.prod(case.chunks) * per_slab)))
    index = np.full((counts[0] * per_slab, 2), 2**64 - 1, dtype="<u8")
    temporary, fd, end = f"{directory}/.{name}.partial", -1, 0
    for row in range(0, -(-shard.shape[0] // case.chunks[0]), n_slabs):
        batch = (min(n_slabs, counts[0] - row), *counts[1:])
        tiles = _buffer((math.prod(batch), *case.chunks))
        _copy_tiles(
            shard[row * case.chunks[0] :][: batch[0] * case.chunks[0]], tiles, batch, case.chunks
        )
        present = np.flatnonzero(tiles.reshape(len(tiles), -1).any(axis=1))
        if not len(present):
            continue
        if fd < 0:
            fd = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)
        encoded = [encode(tiles[i]) for i in present]
        sizes = np.array([memoryview(part).nbytes for part in encoded], dtype=np.int64)
        ends = end + np.cumsum(sizes)
        index[row * per_slab + present, 0], index[row * per_slab + present, 1] = ends - sizes, sizes
        _write_all(fd, encoded, int(ends[-1]) - end)
        end = int(ends[-1])
    if fd < 0:
        return
    table = index.tobytes()
    _write_all(fd, [table, crc32c.crc32c(table).to_bytes(4, "little")], len(table) + 4)
    os.close(fd)
    os.rename(temporary, f"{directory}/{name}")


def _copy_tiles(
    part: npt.NDArray[np.uint16],
    tiles: npt.NDArray[np.uint16],
    counts: tuple[int, ...],
    chunks: tuple[int, ...],
) -> None:
    """One strided copy of a part of a shard into contiguous inner chunks; what it lacks on the array's edge is fill value."""
    extent = tuple(n * c for n, c in zip(counts, chunks, strict=True))
    if part.shape != extent:
        whole = np.zeros(extent, dtype=DTYPE)
        whole[tuple(slice(n) for n in part.shape)] = part
        part = whole
    split = part.reshape([n for pair in zip(counts, chunks, strict=True) for n in pair])
    axes = (*range(0, 2 * len(counts), 2), *range(1, 2 * len(counts), 2))
    np.copyto(tiles.reshape((*counts, *chunks)), split.transpose(axes))


def _buffer(shape: tuple[int, ...]) -> npt.NDArray[np.uint16]:
    """A buffer that the thread keeps."""
    kept: npt.NDArray[np.uint16] | None = getattr(_thread, "tiles", None)
    if kept is None or kept[: shape[0]].shape != shape:
        kept = _thread.tiles = np.empty(shape, dtype=DTYPE)
    return kept[: shape[0]]


def _encoder(case: Case) -> Encode:
    """The codec, its context kept by the thread."""
    known: tuple[str, Encode] | None = getattr(_thread, "encoder", None)
    if known is None or known[0] != case.codec:
        known = _thread.encoder = case.codec, _make_encoder(case.compressor)
    return known[1]


def _make_encoder(codec: Codec) -> Encode:
    settings = codec.configuration
    if codec.name == "zstd":
        import zstandard

        context: Any = zstandard.ZstdCompressor(
            level=settings["level"], write_checksum=settings["checksum"]
        )
        return lambda tile: context.compress(tile)
    if codec.name == "gzip":
        from isal import isal_zlib

        return lambda tile: isal_zlib.compress(tile, level=settings["level"], wbits=31)
    if codec.name == "blosc":
        from numcodecs import blosc

        blosc.use_threads = False
        name, level, blocksize = (
            settings["cname"].encode(),
            settings["clevel"],
            settings["blocksize"],
        )
        shuffle = {
            "noshuffle": blosc.NOSHUFFLE,
            "shuffle": blosc.SHUFFLE,
            "bitshuffle": blosc.BITSHUFFLE,
        }[settings["shuffle"]]
        return lambda tile: blosc.compress(tile, name, level, shuffle, blocksize)
    return lambda tile: tile


def _write_all(fd: int, buffers: list[Any], nbytes: int) -> None:
    """Write buffers, as many as the system takes at a time."""
    written = sum(
        os.writev(fd, buffers[first : first + _IOV_MAX])
        for first in range(0, len(buffers), _IOV_MAX)
    )
    if written != nbytes:
        raise OSError(f"{written} bytes were written where {nbytes} should have been")

"""Whether what was written is what was asked for: layout, shard indexes and data."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import crc32c
import numpy as np
import numpy.typing as npt

from benchmarks.cases import Case
from benchmarks.data import Source

__all__ = ["CheckError", "check_data", "check_layout"]

_EMPTY = np.uint64(2**64 - 1)
_INDEXES = 16


class CheckError(Exception):
    """Something written is not what was asked for."""


def check_layout(source: Source, case: Case, path: Path) -> dict[str, int]:
    """Compare metadata, the set of shard files and shard indexes with the source.

    Parameters
    ----------
    source : Source
        What was to be written.
    case : Case
        In which layout.
    path : Path
        Where it was written.

    Returns
    -------
    dict
        Numbers of files, and of indexes looked at.

    Raises
    ------
    CheckError
        At the first difference.
    """
    index_first = _check_metadata(source, case, path)
    grid = [range(-(-n // s)) for n, s in zip(source.shape, case.shards, strict=True)]
    expected = {
        ids
        for ids in itertools.product(*grid)
        if _has_data(source.mapped[_region(ids, case.shards)])
    }
    files = [file for file in (path / "c").rglob("*") if file.is_file()]
    found = {
        tuple(int(part) for part in file.relative_to(path / "c").parts): file for file in files
    }
    if set(found) != expected:
        extra, missing = len(set(found) - expected), len(expected - set(found))
        raise CheckError(
            f"{len(found)} shard files where {len(expected)} have data: {missing} missing, {extra} too many"
        )
    if others := [
        p.name
        for p in path.iterdir()
        if p.name not in {"c", "zarr.json", "shardwrite-receipt.json"}
    ]:
        raise CheckError(f"left behind: {', '.join(sorted(others))}")
    picked = sorted(expected)[:: max(1, len(expected) // _INDEXES)]
    for ids in picked:
        _check_index(source, case, ids, found[ids], index_first=index_first)
    return {"files": len(found), "indexes_checked": len(picked)}


def _has_data(values: npt.NDArray[np.uint16]) -> bool:
    """Whether a shard has data; for most shards the first row tells."""
    return bool(values[:1].any() or values.any())


def _region(ids: tuple[int, ...], step: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(i * s, (i + 1) * s) for i, s in zip(ids, step, strict=True))


def _check_metadata(source: Source, case: Case, path: Path) -> bool:
    """Check the metadata and tell whether indexes come first in shards."""
    document: dict[str, Any] = json.loads((path / "zarr.json").read_text())
    sharding = [codec for codec in document["codecs"] if codec["name"] == "sharding_indexed"]
    if len(sharding) != 1:
        raise CheckError("the array is not sharded")
    configuration = sharding[0]["configuration"]
    codecs = [codec["name"] for codec in configuration["codecs"]]
    wanted: dict[str, tuple[Any, Any]] = {
        "shape": (document["shape"], list(source.shape)),
        "data type": (document["data_type"], "uint16"),
        "fill value": (document["fill_value"], 0),
        "shards": (document["chunk_grid"]["configuration"]["chunk_shape"], list(case.shards)),
        "inner chunks": (configuration["chunk_shape"], list(case.chunks)),
        "codecs": (codecs, ["bytes", *(codec["name"] for codec in case.compressor.metadata())]),
        "index codecs": (
            [codec["name"] for codec in configuration["index_codecs"]],
            ["bytes", "crc32c"],
        ),
    }
    for codec, asked in zip(configuration["codecs"][1:], case.compressor.metadata(), strict=False):
        for key, value in asked["configuration"].items():
            wanted[f"{asked['name']} {key}"] = (
                codec["configuration"].get(key, False if key == "checksum" else None),
                value,
            )
    for what, (got, want) in wanted.items():
        if got != want:
            raise CheckError(f"{what}: {got} where {want} was asked for")
    return bool(configuration.get("index_location", "end") == "start")


def _check_index(
    source: Source, case: Case, ids: tuple[int, ...], file: Path, *, index_first: bool
) -> None:
    """Parse a shard's index and compare its entries with the inner chunks that have data."""
    grid = tuple(s // c for s, c in zip(case.shards, case.chunks, strict=True))
    length = 16 * math.prod(grid) + 4
    size = file.stat().st_size
    with file.open("rb") as stream:
        if not index_first:
            stream.seek(max(0, size - length))
        raw = stream.read(length)
    if len(raw) != length or crc32c.crc32c(raw[:-4]) != int.from_bytes(raw[-4:], "little"):
        raise CheckError(f"shard {ids}: index does not parse")
    entries = np.frombuffer(raw[:-4], dtype="<u8").reshape(*grid, 2)
    present = entries[..., 0] != _EMPTY
    block = np.zeros(case.shards, dtype=np.uint16)
    data = source.mapped[_region(ids, case.shards)]
    block[tuple(slice(n) for n in data.shape)] = data
    split = block.reshape([n for pair in zip(grid, case.chunks, strict=True) for n in pair])
    wanted = np.asarray(split.any(axis=tuple(range(1, 2 * len(grid), 2))))
    if not np.array_equal(present, wanted):
        raise CheckError(
            f"shard {ids}: {int(present.sum())} entries where {int(wanted.sum())} inner chunks have data"
        )
    begin, extent = entries[present].T.astype(np.int64)
    order = np.argsort(begin)
    ends = (begin + extent)[order]
    first, last = (length, size) if index_first else (0, size - length)
    if (begin[order][1:] < ends[:-1]).any() or begin.min() < first or ends[-1] > last:
        raise CheckError(f"shard {ids}: entries overlap or leave the file")


def check_data(
    source: Source, case: Case, path: Path, *, everything: bool, regions: int = 8
) -> int:
    """Read back with zarr-python and compare with the source.

    Parameters
    ----------
    source : Source
        What was to be written.
    case : Case
        In which layout.
    path : Path
        Where it was written.
    everything : bool
        Whether to read all of it.
    regions : int
        How many random regions, up to half a shard long in each axis, are read otherwise.

    Returns
    -------
    int
        Elements compared.

    Raises
    ------
    CheckError
        At the first difference.
    """
    import zarr

    with zarr.config.set({"codec_pipeline.path": "zarr.core.codec_pipeline.BatchedCodecPipeline"}):
        written = zarr.open_array(str(path), mode="r")
        if everything:
            grid = [
                range(0, n, s) for n, s in zip(source.shape, _read_step(source, case), strict=True)
            ]
            boxes = [
                tuple(slice(i, i + s) for i, s in zip(start, _read_step(source, case), strict=True))
                for start in itertools.product(*grid)
            ]
        else:
            rng = np.random.default_rng(11)
            boxes = []
            for _ in range(regions):
                lengths = [
                    min(n, max(1, s // 2)) for n, s in zip(source.shape, case.shards, strict=True)
                ]
                starts = [
                    int(rng.integers(0, n - m + 1))
                    for n, m in zip(source.shape, lengths, strict=True)
                ]
                boxes.append(tuple(slice(i, i + m) for i, m in zip(starts, lengths, strict=True)))
        compared = 0
        for box in boxes:
            want = source.mapped[box]
            if not np.array_equal(np.asarray(written[box]), want):
                raise CheckError(f"data differ in {box}")
            compared += want.size
    return compared


def _read_step(source: Source, case: Case) -> tuple[int, ...]:
    """Regions of some whole shards and at least 32 MiB, where the array has so much."""
    step = list(case.shards)
    for axis in reversed(range(len(step))):
        while math.prod(step) < 1 << 24 and step[axis] < source.shape[axis]:
            step[axis] *= 2
    return tuple(step)

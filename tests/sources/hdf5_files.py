"""HDF5 files with a dataset whose chunks are in any index of HDF5, made from a seed.

The kinds are those of the format: a single chunk, an implicit index, a fixed array, an extensible
array, a B-tree of version 2 and one of version 1. Which one a file gets is decided by the library,
from the versions that it may write, the largest shape, the filters, and when room is made.

`python tests/sources/hdf5_files.py 399` checks as many files, and prints which of them failed.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import h5py
import hdf5plugin
import numpy as np

import shardwrite
from shardwrite import SpecError

NAME = "a/x"
FILTERS = (
    {},
    {},
    {"compression": "gzip"},
    {"compression": "gzip", "shuffle": True},
    {"fletcher32": True},
    {"shuffle": True, **hdf5plugin.Zstd()},
    {"compression": "lzf"},
)
DTYPES = ("u1", "<i2", ">i4", "<f4", "f8", "bool", "c8")


@dataclass(frozen=True)
class Made:
    """A file of HDF5, what its dataset holds by h5py, and the kind of its index."""

    path: Path
    kind: str
    values: np.ndarray


def _sizes(rng: np.random.Generator, n_axes: int) -> tuple[tuple, tuple, tuple]:
    """Shape, chunks and largest shape."""
    longest = (40, 20, 12, 7, 5)[n_axes - 1]
    shape = [int(rng.integers(1, longest + 1)) for _ in range(n_axes)]
    chunks = [int(rng.integers(1, max(2, n))) for n in shape]
    most: list[int | None] = [n + int(rng.integers(0, 9)) if rng.integers(2) else n for n in shape]
    unlimited = rng.permutation(n_axes)[: rng.choice([0, 1, 1, 1, n_axes])]
    if rng.integers(8) == 0:
        return tuple(shape), tuple(shape), tuple(shape)  # one chunk
    for axis in unlimited:
        most[axis] = None
        chunks[axis] = min(64, chunks[axis] + int(rng.integers(0, 3)))
    return tuple(shape), tuple(chunks), tuple(most)


def make(directory: Path, seed: int) -> Made:
    """Make a file of the name `<seed>.h5`."""
    rng = np.random.default_rng(seed)
    n_axes = int(rng.integers(1, 6))
    shape, chunks, most = _sizes(rng, n_axes)
    version = ("earliest", "v110", "latest")[rng.integers(3)]
    filters = FILTERS[rng.integers(len(FILTERS))]
    is_early = bool(rng.integers(4) == 0)
    filters = {} if is_early and rng.integers(2) else filters
    dtype = np.dtype(DTYPES[rng.integers(len(DTYPES))])
    values = rng.integers(0, 250, shape).astype(dtype)
    path = directory / f"{seed}.h5"
    block = int(rng.choice([0, 0, 512, 4096]))
    bounds = (version, "v110" if version != "latest" else "latest")
    with h5py.File(path, "w", libver=bounds, userblock_size=block) as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        if is_early:
            properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        small = tuple(max(1, n - int(rng.integers(0, 3))) for n in shape)
        is_grown = any(a is None for a in most) and bool(rng.integers(2))
        start = tuple(
            a if b is None and is_grown else n for n, a, b in zip(shape, small, most, strict=True)
        )
        dataset = file.create_dataset(
            NAME,
            start,
            dtype,
            chunks=chunks,
            maxshape=most,
            fillvalue=dtype.type(1),
            dcpl=properties,
            **filters,
        )
        if is_grown and rng.integers(2):
            dataset[...] = values[tuple(slice(n) for n in start)]
            dataset.resize(
                tuple(n + 2 if m is None else n for n, m in zip(start, most, strict=True))
            )
        dataset.resize(shape)
        grid = [range(0, n, c) for n, c in zip(shape, chunks, strict=True)]
        share = rng.choice([1.0, 1.0, 0.6, 0.1])
        for corner in itertools.product(*grid):
            if rng.random() < share:
                box = tuple(
                    slice(a, min(a + c, n)) for a, c, n in zip(corner, chunks, shape, strict=True)
                )
                dataset[box] = values[box]
    with h5py.File(path) as file:
        return Made(path, _kind(version, shape, chunks, most, filters, is_early), file[NAME][...])


def _kind(version, shape, chunks, most, filters, is_early) -> str:
    """Index that the library takes by the specification of the format."""
    if version == "earliest":
        return "B-tree of version 1"
    n_unlimited = most.count(None)
    if n_unlimited > 1:
        return "B-tree of version 2"
    if n_unlimited:
        return f"extensible array, axis {most.index(None)}"
    if shape == chunks and most == chunks:
        return "single chunk"
    return "implicit" if is_early and not filters else "fixed array"


def check(made: Made, home: Path) -> str:
    """Compare what each operation makes of a file with what h5py reads; how it was adopted."""
    source = f"{made.path}::{NAME}"
    rng = np.random.default_rng(0)
    with h5py.File(made.path) as file:
        chunks = file[NAME].chunks
    other = tuple(int(rng.integers(1, n + 1)) for n in made.values.shape)
    shardwrite.shard(source, home / "shard", 2, durability="none")
    shardwrite.reshard(source, home / "reshard", 2, chunks=other, durability="none")
    outputs, adopted = [home / "shard", home / "reshard"], "adopted"
    try:
        shardwrite.adopt([str(made.path)], home / "adopt", dataset=NAME)
        outputs.append(home / "adopt")
    except SpecError as error:
        adopted = error.message
    for output in outputs:
        got = shardwrite.open_sharded(output)[...]
        assert got.shape == made.values.shape, output.name
        assert got.astype(made.values.dtype).tobytes() == made.values.tobytes(), output.name
        assert shardwrite.verify(output, against=source).is_good, output.name
    changed = made.values.copy()
    place = tuple(int(rng.integers(n)) for n in changed.shape)
    changed[place] = changed.dtype.type(0 if changed[place] else 1)
    shardwrite.to_sharded_zarr(
        changed, home / "changed", shards=chunks, chunks=chunks, durability="none"
    )
    assert not shardwrite.verify(home / "changed", against=source).is_good, "a difference is missed"
    return adopted


def main() -> None:
    """Check some files."""
    n_files, first = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    kinds, adopted, failed = Counter(), Counter(), []
    for seed in range(first, first + n_files):
        with tempfile.TemporaryDirectory() as directory:
            made = make(Path(directory), seed)
            kinds[made.kind] += 1
            try:
                adopted[check(made, Path(directory))] += 1
            except Exception as error:
                failed.append(seed)
                traceback.print_exception(error, limit=-2)
                print(seed, made.kind)
    print(*(f"{n:4} {kind}" for kind, n in sorted((kinds + adopted).items())), sep="\n")
    print(f"{n_files} files with h5py {h5py.__version__}, {len(failed)} failed: {failed}")


if __name__ == "__main__":
    main()

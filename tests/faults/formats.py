"""Arrays in other formats are made, and a region of each is changed.

Their shards are files of HDF5, or those of the storage transformer. Or they hold shards, or a
checksum stands around each.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import dask.array as da
import h5py
import hdf5plugin  # noqa: F401 (which lets h5py read what zstd encoded)
import numpy as np
from zarr.codecs import BytesCodec, ShardingCodec

import shardwrite

sys.path.insert(0, str(Path(__file__).parent))
from driver import Operation, acknowledging, nothing

OLD = np.arange(1, 1 + 12 * 20, dtype="u2").reshape(12, 20)
WHERE = (slice(1, 11), slice(3, 19))
CHANGED = OLD.copy()
CHANGED[WHERE] += 1000
WITHIN = ShardingCodec(chunk_shape=(1, 2), codecs=[BytesCodec()])
# So little that a run has several tasks. What is around inner chunks of HDF5 takes most of its
# memory, so there the source has chunks of which no task may take many.
OF_EACH = {"shards": (4, 8), "chunks": (2, 4), "source_id": "values", "memory_limit": "1kB"}
OF_HDF5 = {"memory_limit": "80kB"}
FORMATS: dict[str, dict[str, Any]] = {
    "hdf5": {**OF_HDF5, "strategy": shardwrite.Hdf5(index="end")},
    "hdf5, index first": {**OF_HDF5, "strategy": shardwrite.Hdf5(index="start")},
    "transformer": {"name": "x", "format": "transformer-2022"},
    "nested": {"serializer": WITHIN, "memory_limit": "1.1kB"},
    "around": {"shards": None, "chunks": (4, 8), "serializer": WITHIN, "compressors": "crc32c"},
}


def key_of(kind: str, rank: int) -> str:
    """Name of a shard."""
    i, j = np.unravel_index(rank, (3, 3))
    return f"data/root/x/c{i}/{j}" if kind == "transformer" else f"c/{i}/{j}"


def source(kind: str, values: np.ndarray) -> da.Array:
    return da.from_array(values, chunks=2 if kind.startswith("hdf5") else 4)


def make(kind: str, path: Path, **more: Any) -> None:
    source(kind, OLD).to_sharded_zarr(path, **{**OF_EACH, **FORMATS[kind], **more})


def make_and_tell(kind: str, path: Path) -> None:
    make(kind, path, progress=acknowledging(path, partial(key_of, kind)))


def change(kind: str, path: Path) -> None:
    given = {**OF_EACH, **FORMATS[kind], "source_id": "new"}
    how = {name: given[name] for name in ("name", "strategy", "memory_limit") if name in given}
    told = acknowledging(path, partial(key_of, kind))
    x = source(kind, CHANGED)[WHERE]
    shardwrite.write_region(x, path, WHERE, progress=told, source_id="new", **how)


def check(kind: str, wanted: np.ndarray, path: Path) -> None:
    """The values are there, also for h5py."""
    name = {"name": "x"} if kind == "transformer" else {}
    found = shardwrite.from_sharded_zarr(path, **name).compute()
    np.testing.assert_array_equal(found, wanted)
    assert shardwrite.verify(path, deep=True, **name).is_good
    for shard in sorted((path / "c").rglob("*")) if kind.startswith("hdf5") else ():
        if shard.is_file():
            i, j = (int(n) for n in shard.relative_to(path / "c").parts)
            part = wanted[4 * i : 4 * i + 4, 8 * j : 8 * j + 8]
            with h5py.File(shard) as file:
                np.testing.assert_array_equal(file["data"][:, :], part)


def of(kind: str, prepare: Any, perform: Any, wanted: np.ndarray) -> Operation:
    """One of them, in a format."""
    steps = [partial(step, kind) if step is not nothing else step for step in (prepare, perform)]
    return Operation(*steps, check=partial(check, kind, wanted), is_exact=True)


OF_FORMATS = {
    **{f"make {kind}": of(kind, nothing, make_and_tell, OLD) for kind in FORMATS},
    **{f"change {kind}": of(kind, make, change, CHANGED) for kind in FORMATS},
}

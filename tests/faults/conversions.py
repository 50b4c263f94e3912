"""Arrays are converted with keywords that are drawn once: into another place, or in their own.

Every encoded chunk that passes is the same to the byte.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.array as da
import h5py
import hdf5plugin
import numpy as np

import shardwrite
from shardwrite.read.stored_array import stored_at
from shardwrite.sources.opening import place_of

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import oracle
import seams
from driver import Operation, acknowledging

SHAPE, SMALL, CHUNK = (96, 96), (48, 48), 4
DATASET = "images/x"
IN_PLACE = [(None, 3), (8, 3), (24, None)]
"""Shards before and afterwards, where they are converted in their place."""


def payloads(path: Path | str, n_cut: int = 0) -> dict[tuple[int, ...], str]:
    """sha256 of the encoded bytes of each inner chunk without the last few, by its position."""
    chunks = seams.chunks_of(stored_at(place_of(path)).array).items()
    return {at: hashlib.sha256(data[: len(data) - n_cut]).hexdigest() for at, data in chunks}


@dataclass(frozen=True)
class Conversion:
    """How the source is written, how it is converted, and whether its chunks pass."""

    wanted: np.ndarray
    made: dict[str, Any]
    how: dict[str, Any]
    passes: bool
    is_hdf5: bool = False
    is_in_place: bool = False

    def source(self, path: Path) -> Path | str:
        """What is converted or, where that is changed, a copy of it."""
        source = path.with_name("source")
        return f"{source}::{DATASET}" if self.is_hdf5 else source

    def prepare(self, path: Path) -> None:
        if self.is_hdf5:
            make_hdf5(path.with_name("source"), self.wanted)
            return
        source = self.source(path)
        da.from_array(self.wanted, chunks=24).to_sharded_zarr(source, **self.made)
        if self.is_in_place:
            shutil.copytree(source, path)

    def perform(self, path: Path) -> None:
        if self.is_in_place:
            shardwrite.reshard(path, **self.how)
            return
        counts = [-(-n // s) for n, s in zip(self.wanted.shape, self._shard, strict=True)]

        def key_of(rank: int) -> str:
            return "c/" + "/".join(map(str, np.unravel_index(rank, counts)))

        told = acknowledging(path, key_of)
        shardwrite.reshard(self.source(path), path, progress=told, **self.how)

    @property
    def _shard(self) -> tuple[int, ...]:
        n_chunks = np.broadcast_to(self.how["shards"] or 1, 2)
        return tuple(CHUNK * int(n) for n in n_chunks)

    def look(self, path: Path, is_done: bool) -> None:
        """What is converted in its place is there at all times, for all readers. Elsewhere, each
        shard is there or not."""
        if self.is_in_place:
            oracle.check_values(path, self.wanted)
        elif path.exists() and not is_done:
            oracle.check_partial(path, set(), self.wanted)

    def check(self, path: Path) -> None:
        """The array is whole, and what passed is the same to the byte."""
        oracle.check_whole(path, self.wanted)
        source = self.source(path)
        if not self.passes:
            assert set(payloads(source)) == set(payloads(path))
            return
        has_checksum = self.made["compressors"] == "auto"
        keeps = self.how["checksum"] is None or self.how["checksum"] == has_checksum
        cut = (0, 0) if keeps else (4, 0) if has_checksum else (0, 4)
        found = payloads(path, cut[1])
        assert found == payloads(source, cut[0])
        assert found, "no chunk passed"


def drawn(number: int, *, is_hdf5: bool = False, is_in_place: bool = False) -> Operation:
    """One of them."""
    rng = np.random.default_rng([1, number])
    made = {
        "shards": [None, 8, 24][int(rng.integers(3))],
        "chunks": CHUNK,
        "compressors": "auto" if rng.random() < 0.5 else None,
        "write_empty_chunks": bool(rng.random() < 0.3),
        "durability": "none",
    }
    how = {
        "shards": [None, 2, 3, (1, 6)][int(rng.integers(4))],
        "checksum": [None, True, False][int(rng.integers(3))],
        "check": bool(rng.random() < 0.3),
        "durability": str(rng.choice(["full", "batch", "none"])),
        "mode": "w-",
    }
    passes = bool(rng.random() < 0.8)
    how |= {} if passes else {"compressors": "gzip"}
    shape, n = (SMALL, 16) if is_in_place else (SHAPE, 32)
    if is_in_place:
        how["durability"] = str(rng.choice(["full", "batch"]))
        made["shards"], how["shards"] = IN_PLACE[number % len(IN_PLACE)]
    if is_hdf5:
        made |= {"shards": None, "compressors": None}
    empty = (slice(0, n), slice(n, 2 * n)) if rng.random() < 0.7 else None
    wanted = oracle.values(shape, int(rng.integers(100)), empty)
    one = Conversion(wanted, made, how, passes, is_hdf5, is_in_place)
    return Operation(one.prepare, one.perform, look=one.look, check=one.check, is_exact=True)


def make_hdf5(path: Path, values: np.ndarray) -> None:
    """A dataset of chunks of which those without data are missing."""
    with h5py.File(path, "w") as file:
        x = file.create_dataset(
            DATASET,
            values.shape,
            values.dtype,
            chunks=(CHUNK,) * values.ndim,
            fletcher32=True,
            **hdf5plugin.Zstd(),  # which all three readers of the oracle know
        )
        for at in np.ndindex(*(n // CHUNK for n in values.shape)):
            box = tuple(slice(i * CHUNK, (i + 1) * CHUNK) for i in at)
            if values[box].any():
                x[box] = values[box]


BESIDE = {f"conversion {n}": drawn(n) for n in range(24)}
OF_HDF5 = {f"conversion of HDF5 {n}": drawn(n, is_hdf5=True) for n in range(12)}
IN_THEIR_PLACE = {f"conversion in place {n}": drawn(n, is_in_place=True) for n in range(24)}

"""Scales of a volume of Neuroglancer are written, or bad shards of one are written again.

Where the hash scatters the chunks, they wait in a spool until their shards are gathered. In parts,
two rounds of them are written, and `finalize` gathers the rest.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import zarr

import shardwrite
from shardwrite.volumes.scale import scattered_ids
from shardwrite.volumes.sharding import MortonCode, ShardingParameters

sys.path.insert(0, str(Path(__file__).parent))
from driver import Operation, acknowledging, nothing

VALUES = np.arange(1, 1 + 6 * 10 * 12, dtype="u2").reshape(6, 10, 12)
KEY = "4_4_40"
COARSER = VALUES[:, ::4, ::4]
COARSER_KEY, COARSER_RESOLUTION = "16_16_40", (16, 16, 40)
OTHER = VALUES[:, ::2, ::2]
OTHER_KEY, OTHER_RESOLUTION = "8_8_40", (8, 8, 40)
N_PARTS = 3
NEW = {
    "axes": "zyx",
    "resolution": (4, 4, 40),
    "chunks": 4,
    "shard_nbytes": 260,
    "memory_limit": "8kB",
    "source_id": "values",
}
SCATTERED = ShardingParameters(
    hash="murmurhash3_x86_128", preshift_bits=0, minishard_bits=1, shard_bits=4
)


def stored_source() -> zarr.Array:
    """The values as a Zarr array whose chunks can be copied, except for those at the edges."""
    store = zarr.storage.MemoryStore()
    return zarr.create_array(store, data=VALUES, chunks=(4, 4, 4), compressors=None)


def scale_at(path: Path, key: str) -> np.ndarray:
    return shardwrite.from_precomputed(path, scale=key, axes="zyx").compute()


@dataclass(frozen=True)
class Volume:
    """How a scale is written."""

    is_scattered: bool = False  # whether the hash scatters the chunks
    is_repair: bool = False  # whether bad shards are written again, torn and missing ones
    in_parts: bool = False
    has_coarser: bool = False  # whether the same call also writes a coarser scale
    has_copies: bool = False  # whether encoded chunks of a Zarr array are copied

    @property
    def new(self) -> dict[str, Any]:
        """Keywords of the call."""
        encoding = {"encoding": "raw"} if self.has_copies else {}
        return NEW | ({"sharding": SCATTERED} if self.is_scattered else {}) | encoding

    @property
    def source(self) -> da.Array:
        """The values of the scale."""
        return da.from_array(VALUES, chunks=(6, 10, 6))

    def make_other(self, path: Path) -> None:
        """A volume with another scale, and a field that is not ours."""
        other = {**self.new, "resolution": OTHER_RESOLUTION, "source_id": "old"}
        shardwrite.to_precomputed(da.from_array(OTHER, chunks=-1), path, **other)
        info = json.loads((path / "info").read_text())
        (path / "info").write_text(json.dumps({"mesh": "mesh", **info}))

    def make_bad(self, path: Path) -> None:
        """A volume some of whose shards are torn, and some are missing."""
        shardwrite.to_precomputed(self.source, path, **self.new)
        shards = sorted((path / KEY).glob("*.shard"))
        for torn in shards[1::4]:
            os.truncate(torn, 20)
        for missing in shards[2::4]:
            missing.unlink()

    def perform(self, path: Path) -> None:
        told = acknowledging(path, lambda rank: self._key_of(path, rank))
        if self.is_repair:
            shardwrite.repair(path / KEY, self.source, progress=told)
        elif self.in_parts:
            self._write_parts(path / KEY, told)
        else:
            scales = {COARSER_RESOLUTION: COARSER} if self.has_coarser else None
            x = stored_source() if self.has_copies else self.source
            shardwrite.to_precomputed(x, path, scales=scales, progress=told, **self.new)

    def _write_parts(self, path: Path, told: Callable[[Any], object]) -> None:
        """Spool all parts, gather two of them, and leave the third to `finalize`."""
        x = stored_source() if self.has_copies else self.source
        with dask.config.set(num_workers=1):
            shardwrite.prepare(x, path, shardwrite.plan_precomputed(x, **self.new))
            for part in range(N_PARTS):
                shardwrite.write_part(x, path, part, N_PARTS, source_id="values")
            for part in range(N_PARTS - 1):
                shardwrite.write_part(x, path, part, N_PARTS, source_id="values", progress=told)
            shardwrite.finalize(path, progress=told)

    @cached_property
    def _metadata(self) -> Any:
        return shardwrite.plan_precomputed(self.source, **NEW).metadata

    @cached_property
    def _n_coarser(self) -> int:
        coarser = {**NEW, "resolution": COARSER_RESOLUTION}
        return shardwrite.plan_precomputed(COARSER, **coarser).n_shards

    def _key_of(self, path: Path, rank: int) -> str:
        """Name of a shard, or nothing for one that may be of the spool, or of either scale."""
        is_early = self.is_scattered and not self.in_parts and not Path(path / KEY).exists()
        if self.is_repair or is_early or (self.has_coarser and rank < self._n_coarser):
            return ""
        if self.is_scattered:
            numbers = scattered_ids(SCATTERED, MortonCode((3, 3, 2))).numbers
            return f"{KEY}/{SCATTERED.key_of(int(numbers[rank]))}"
        index = np.unravel_index(rank, self._metadata.grid.counts)
        return f"{KEY}/{self._metadata.shard_key(tuple(int(i) for i in index))}"

    def check(self, path: Path) -> None:
        """What must hold of the values when the call has returned."""
        wanted = {KEY: VALUES} | ({COARSER_KEY: COARSER} if self.has_coarser else {})
        for key, values in wanted.items():
            np.testing.assert_array_equal(scale_at(path, key), values)
            assert shardwrite.verify(path / key, deep=True).is_good

    def look(self, path: Path, is_done: bool) -> None:
        """The other scale is there at any time, and what is listed is whole."""
        np.testing.assert_array_equal(scale_at(path, OTHER_KEY), OTHER)
        scales = json.loads((path / "info").read_text())["scales"]
        if any(scale["key"] == KEY for scale in scales):
            self.check(path)


SCALES = {
    "scale": Volume(),
    "scattered scale": Volume(is_scattered=True),
    "scale in parts": Volume(is_scattered=True, in_parts=True),
    "two scales": Volume(has_coarser=True),
    "copied scale": Volume(has_copies=True),
    "copied scale in parts": Volume(is_scattered=True, in_parts=True, has_copies=True),
}
REPAIRS = {
    "repair of a scale": Volume(is_repair=True),
    "repair of a scattered scale": Volume(is_scattered=True, is_repair=True),
}


def operation(volume: Volume, prepare: Callable[[Path], object], **more: Any) -> Operation:
    return Operation(prepare, volume.perform, check=volume.check, is_exact=True, **more)


VOLUMES = {
    **{
        f"first {name}": operation(volume, nothing, published="x/info")
        for name, volume in SCALES.items()
    },
    **{
        name: operation(volume, volume.make_other, published="x/info", look=volume.look)
        for name, volume in SCALES.items()
    },
    **{name: operation(volume, volume.make_bad) for name, volume in REPAIRS.items()},
}

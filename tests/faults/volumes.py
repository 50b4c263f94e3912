"""Kills, failing calls and power cuts while a scale is added to a volume of Neuroglancer; see
`struck`.

Run as ``python tests/faults/volumes.py --fault kill --every 1``, with ``--fault fail``, or as root
with ``--fault cut --cases 100``, or through `test_volumes.py`. With
``--hash murmurhash3_x86_128``, chunks wait in a spool until their shards are gathered. With
``--repair``, bad shards of a scale are written again, which spools their chunks if the hash
scatters them. With ``--parts``, a scale whose hash scatters the chunks is written in parts: two
rounds of them, and `finalize`. With ``--scales``, one call writes two scales. With ``--copies``,
encoded chunks of a Zarr array are copied, also together with ``--parts``.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import zarr

sys.path.insert(0, str(Path(__file__).parent))
import struck

import shardwrite
from shardwrite.volumes.scale import scattered_ids
from shardwrite.volumes.sharding import HASHES, MortonCode, ShardingParameters

VALUES = np.arange(1, 1 + 6 * 10 * 12, dtype="u2").reshape(6, 10, 12)
KEY = "4_4_40"
COARSER = VALUES[:, ::4, ::4]
COARSER_KEY, COARSER_RESOLUTION = "16_16_40", (16, 16, 40)
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


class Volume(struck.Call):
    """A scale that is added to a volume, or whose bad shards are written again.

    Parameters
    ----------
    is_scattered : bool
        Whether the hash scatters the chunks.
    is_repair : bool
        Whether bad shards are written again. Some of them are torn, and some are missing.
    in_parts : bool
        Whether it is written in parts.
    has_coarser : bool
        Whether the same call also writes a coarser scale.
    has_copies : bool
        Whether the source is a Zarr array whose encoded chunks are copied.
    """

    def __init__(
        self,
        *,
        is_scattered: bool,
        is_repair: bool,
        in_parts: bool = False,
        has_coarser: bool = False,
        has_copies: bool = False,
    ) -> None:
        self.is_scattered, self.is_repair, self.in_parts = is_scattered, is_repair, in_parts
        self.has_coarser, self.has_copies = has_coarser, has_copies
        self.states = ["bad shards"] if is_repair else ["nothing", "a scale"]
        self.new = {**NEW, "sharding": SCATTERED} if is_scattered else NEW
        if has_copies:
            self.new = {**self.new, "encoding": "raw"}

    def make_before(self, root: Path, before: str) -> None:
        """A volume with another scale and a field that is not ours, or with bad shards."""
        if before == "nothing":
            return
        with dask.config.set(scheduler="sync"):
            if before == "bad shards":
                shardwrite.to_precomputed(self.source, root, **self.new)
                shards = sorted((root / KEY).glob("*.shard"))
                for torn in shards[1::4]:
                    os.truncate(torn, 20)
                for missing in shards[2::4]:
                    missing.unlink()
                return
            x = da.from_array(VALUES[:, ::2, ::2], chunks=-1)
            other = {**self.new, "resolution": (8, 8, 40), "source_id": "old"}
            shardwrite.to_precomputed(x, root, **other)
        info = json.loads((root / "info").read_text())
        (root / "info").write_text(json.dumps({"mesh": "mesh", **info}))

    def make(self, root: Path, before: str, told: Callable[[Any], object]) -> None:
        """See `struck.Call`."""
        if self.is_repair:
            shardwrite.repair(root / KEY, self.source, progress=told)
        elif self.in_parts:
            self._make_parts(root / KEY, told)
        else:
            scales = {COARSER_RESOLUTION: COARSER} if self.has_coarser else None
            x = stored_source() if self.has_copies else self.source
            shardwrite.to_precomputed(x, root, scales=scales, progress=told, **self.new)

    def _make_parts(self, path: Path, told: Callable[[Any], object]) -> None:
        """Spool all parts, gather two of them, and leave the third to `finalize`."""
        x = stored_source() if self.has_copies else self.source
        with dask.config.set(num_workers=1):
            shardwrite.prepare(x, path, shardwrite.plan_precomputed(x, **self.new))
            for part in range(N_PARTS):
                shardwrite.write_part(x, path, part, N_PARTS, source_id="values")
            for part in range(N_PARTS - 1):
                shardwrite.write_part(x, path, part, N_PARTS, source_id="values", progress=told)
            shardwrite.finalize(path, progress=told)

    @property
    def source(self) -> da.Array:
        """The values of the scale."""
        return da.from_array(VALUES, chunks=(6, 10, 6))

    @cached_property
    def _metadata(self) -> Any:
        return shardwrite.plan_precomputed(self.source, **NEW).metadata

    @cached_property
    def _n_coarser(self) -> int:
        coarser = {**NEW, "resolution": COARSER_RESOLUTION}
        return shardwrite.plan_precomputed(COARSER, **coarser).n_shards

    def key_of(self, root: Path, rank: int) -> str:
        """See `struck.Call`."""
        is_early = self.is_scattered and not self.in_parts and not (root / KEY).exists()
        if self.is_repair or is_early:
            return ""  # this is a shard of the spool, or may be one
        if self.has_coarser and rank < self._n_coarser:
            return ""  # this may be a shard of either scale
        if self.is_scattered:
            numbers = scattered_ids(SCATTERED, MortonCode((3, 3, 2))).numbers
            return f"{KEY}/{SCATTERED.key_of(int(numbers[rank]))}"
        index = np.unravel_index(rank, self._metadata.grid.counts)
        return f"{KEY}/{self._metadata.shard_key(tuple(int(i) for i in index))}"

    def is_shard(self, name: str) -> bool:
        """See `struck.Call`."""
        return name.endswith(".shard")

    def is_counted(self, path: Path) -> bool:
        """Copies of bad shards have names of their own."""
        return super().is_counted(path) and f"{KEY}.quarantine" not in path.parts

    def trouble_in(self, before: str, found: struck.Tree, new: struck.Tree) -> str:
        """See `struck.Call`."""
        is_early = not self.is_repair and found.get("info") == new["info"] and found != new
        return "the info has a scale that is not whole" if is_early else ""

    def check(self, root: Path, before: str) -> None:
        """See `struck.Call`."""
        there = shardwrite.from_precomputed(root, scale=KEY, axes="zyx").compute()
        np.testing.assert_array_equal(there, VALUES)
        assert shardwrite.verify(root / KEY, deep=True).is_good
        if self.has_coarser:
            there = shardwrite.from_precomputed(root, scale=COARSER_KEY, axes="zyx").compute()
            np.testing.assert_array_equal(there, COARSER)
            assert shardwrite.verify(root / COARSER_KEY, deep=True).is_good


def main() -> None:
    arguments = struck.parser(__doc__)
    arguments.add_argument("--hash", choices=HASHES, default=HASHES[0])
    arguments.add_argument("--repair", action="store_true", help="repair a scale, and write none")
    arguments.add_argument("--parts", action="store_true", help="write the scale in parts")
    arguments.add_argument("--scales", action="store_true", help="write two scales in one call")
    arguments.add_argument("--copies", action="store_true", help="copy encoded chunks")
    given = arguments.parse_args()
    is_scattered = given.parts or given.hash != HASHES[0]
    call = Volume(
        is_scattered=is_scattered,
        is_repair=given.repair,
        in_parts=given.parts,
        has_coarser=given.scales,
        has_copies=given.copies,
    )
    struck.main(call, given)


if __name__ == "__main__":
    main()

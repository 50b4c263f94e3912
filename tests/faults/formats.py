"""Kills, failing calls and power cuts while arrays in other formats are made and changed; see
`struck`.

Run as ``python tests/faults/formats.py --format hdf5 --fault kill --every 1``, with
``--fault fail``, or as root with ``--fault cut --cases 100``, or through `test_formats.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import h5py
import hdf5plugin  # noqa: F401 (which lets h5py read what zstd encoded)
import numpy as np
from zarr.codecs import BytesCodec, ShardingCodec

sys.path.insert(0, str(Path(__file__).parent))
import struck

import shardwrite

FORMATS = ("hdf5", "hdf5, index first", "transformer", "nested", "around")
OLD = np.arange(1, 1 + 12 * 20, dtype="u2").reshape(12, 20)
WHERE = (slice(1, 11), slice(3, 19))
LAYOUT = {"shards": (4, 8), "chunks": (2, 4), "source_id": "values"}
WITHIN = ShardingCodec(chunk_shape=(1, 2), codecs=[BytesCodec()])
OF_CODECS = {
    "nested": {"serializer": WITHIN},
    "around": {"shards": None, "chunks": (4, 8), "serializer": WITHIN, "compressors": "crc32c"},
}
# So little that a run has several tasks. What is around inner chunks of HDF5 takes most of its
# memory, so there the source has chunks of which no task may take many.
MEMORY, MEMORY_OF_HDF5 = "1kB", "80kB"


class Array(struck.Call):
    """An array that is made, and one of which a region is changed.

    Parameters
    ----------
    kind : {"hdf5", "hdf5, index first", "transformer", "nested", "around"}
        Its shards are files of HDF5, or those of the storage transformer. Or they hold shards, or a
        checksum stands around each.
    """

    def __init__(self, kind: str) -> None:
        self.states = ["nothing", "an array"]
        self.is_transformer, self.is_hdf5 = kind == "transformer", kind.startswith("hdf5")
        self.name = {"name": "x"} if self.is_transformer else {}
        index = "start" if kind.endswith("first") else "end"
        self.strategy = {"strategy": shardwrite.Hdf5(index=index)} if self.is_hdf5 else {}
        self.how = {
            **self.name,
            **self.strategy,
            "memory_limit": MEMORY_OF_HDF5 if self.is_hdf5 else MEMORY,
        }
        self.chunks = 2 if self.is_hdf5 else 4
        self.new = {**LAYOUT, **OF_CODECS.get(kind, {}), **self.how}
        if self.is_transformer:
            self.new["format"] = "transformer-2022"

    def make_before(self, root: Path, before: str) -> None:
        """See `struck.Call`."""
        if before != "nothing":
            with dask.config.set(scheduler="sync"):
                da.from_array(OLD, chunks=self.chunks).to_sharded_zarr(root, **self.new)

    def make(self, root: Path, before: str, told: Callable[[Any], object]) -> None:
        """See `struck.Call`."""
        x = da.from_array(self.wanted(before), chunks=self.chunks)
        if before == "nothing":
            x.to_sharded_zarr(root, progress=told, **self.new)
        else:
            shardwrite.write_region(
                x[WHERE], root, WHERE, progress=told, source_id="new", **self.how
            )

    def wanted(self, before: str) -> Any:
        """Values of the whole array in the end."""
        values = OLD.copy()
        if before != "nothing":
            values[WHERE] += 1000
        return values

    def key_of(self, root: Path, rank: int) -> str:
        """See `struck.Call`."""
        i, j = (int(n) for n in np.unravel_index(rank, (3, 3)))
        return f"data/root/x/c{i}/{j}" if self.is_transformer else f"c/{i}/{j}"

    def is_shard(self, name: str) -> bool:
        """See `struck.Call`."""
        return name.startswith(("c/", "data/"))

    def check(self, root: Path, before: str) -> None:
        """See `struck.Call`."""
        wanted = self.wanted(before)
        found = shardwrite.from_sharded_zarr(root, **self.name).compute()
        np.testing.assert_array_equal(found, wanted)
        assert shardwrite.verify(root, deep=True, **self.name).is_good
        for path in sorted((root / "c").rglob("*")) if self.is_hdf5 else ():
            if path.is_file():
                i, j = (int(n) for n in path.relative_to(root / "c").parts)
                part = wanted[4 * i : 4 * i + 4, 8 * j : 8 * j + 8]
                with h5py.File(path) as file:
                    np.testing.assert_array_equal(file["data"][:, :], part)


def main() -> None:
    arguments = struck.parser(__doc__)
    arguments.add_argument("--format", choices=FORMATS, default=FORMATS[0])
    given = arguments.parse_args()
    struck.main(Array(given.format), given)


if __name__ == "__main__":
    main()

"""A program that writes a volume, and stands still when half of its shards are written."""

from __future__ import annotations

_PROGRAM = """
import pathlib, sys, time
import dask, dask.array as da, numpy as np
import shardwrite

values = {values}

def slow(block):
    if len(list(pathlib.Path(sys.argv[1]).rglob("*.shard"))) > 3:
        print("half", flush=True)
        time.sleep(120)
    return block

x = da.from_array(values, chunks={chunks}).map_blocks(
    slow, dtype=values.dtype, meta=np.empty((0, 0, 0), values.dtype)
)
with dask.config.set(scheduler="synchronous"):
    shardwrite.to_precomputed(
        x, sys.argv[1], source_id="values", axes="zyx", resolution=(4, 4, 40), chunks={chunks},
        durability="none", **{how},
    )
"""


def program(values: str, chunks: int, **how: object) -> str:
    """Text of the program; it takes the directory of the volume, and says "half" at half time.

    Parameters
    ----------
    values : str
        Expression of the voxels, along z, y and x.
    chunks : int
        Size of a chunk.
    **how
        More keywords of `shardwrite.to_precomputed`.
    """
    return _PROGRAM.format(values=values, chunks=chunks, how=how)

"""Write a dataset of many variables, slowly, as a program that may be killed.

python killed.py STORE N_VARIABLES SECONDS: the last one is what each chunk takes. It prints how
many shards were there before.
"""

from __future__ import annotations

import sys
import time

import dask.array as da
import numpy as np
import xarray as xr

import shardwrite


def dataset(n_variables: int, seconds: float) -> xr.Dataset:
    """Variables of twelve chunks, which become six shards of 0.4 MB."""

    def slowly(block, number):
        time.sleep(seconds)
        return block + number

    x = da.from_array(np.arange(120 * 3000, dtype="f8").reshape(120, 3000) / 2, chunks=(10, 3000))
    packed = {"dtype": "i4", "scale_factor": 0.5, "_FillValue": -1}
    return xr.Dataset(
        {
            f"v{n:02}": xr.Variable(
                ("time", "x"), x.map_blocks(slowly, n, dtype="f8"), {"n": n}, packed
            )
            for n in range(n_variables)
        },
        {"time": np.datetime64("2000-01-01", "ns") + np.arange(120) * np.timedelta64(1, "h")},
        {"title": "many variables"},
    )


if __name__ == "__main__":
    store, n_variables, seconds = sys.argv[1:]
    result = shardwrite.write_dataset(
        dataset(int(n_variables), float(seconds)),
        store,
        shards={"time": 20},
        chunks={"time": 10, "x": 1000},
    )
    print(result.n_resumed_shards)

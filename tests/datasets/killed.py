"""Write or append a dataset of many variables, slowly, as a program that may be killed.

python killed.py STORE N_VARIABLES SECONDS [append] [workers] [named]: the third one is what each
chunk takes. It prints how many shards were there before.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import dask.array as da
import numpy as np
import xarray as xr

import shardwrite
from shardwrite.place.directory import Directory
from shardwrite.stores.posix import PosixWriter

SIZES = {"shards": {"time": 20}, "chunks": {"time": 10, "x": 1000}}


def dataset(n_variables: int, seconds: float, start: int = 0) -> xr.Dataset:
    """Variables of twelve chunks, which become six shards of 0.4 MB."""

    def slowly(block, number):
        time.sleep(seconds)
        return block + number + start

    x = da.from_array(np.arange(120 * 3000, dtype="f8").reshape(120, 3000) / 2, chunks=(10, 3000))
    packed = {"dtype": "i4", "scale_factor": 0.5, "_FillValue": -1}
    hours = np.arange(start, start + 120) * np.timedelta64(1, "h")
    return xr.Dataset(
        {
            f"v{n:02}": xr.Variable(
                ("time", "x"), x.map_blocks(slowly, n, dtype="f8"), {"n": n}, packed
            )
            for n in range(n_variables)
        },
        {"time": np.datetime64("2000-01-01", "ns") + hours},
        {"title": "many variables"},
    )


@contextlib.contextmanager
def documents_written(n: int, leaf: str = "") -> Iterator[None]:
    """Have this process die, as it were, before it writes one document more than so many.

    It dies before the names of those that are written together, too.

    - `leaf`: name of those that count; all files but shards if it is empty.
    """
    from helpers import Killed  # which the program has not on its path

    write, publish = Directory.write, PosixWriter.publish
    left, counted = [n], [False]

    def count(path: Path) -> None:
        if not counted[0]:
            left[0] -= path.name == leaf if leaf else not path.name.isdigit()
        if left[0] < 0:
            raise Killed

    def write_or_die(place: Directory, name: str, *args: Any, **how: Any) -> Any:
        count(place.path / name)
        counted[0] = True
        try:
            return write(place, name, *args, **how)
        finally:
            counted[0] = False

    def publish_or_die(writer: PosixWriter) -> None:
        count(Path(writer.path))
        publish(writer)

    with (
        mock.patch.object(Directory, "write", write_or_die),
        mock.patch.object(PosixWriter, "publish", publish_or_die),
    ):
        yield


def main(store: str, n_variables: str, seconds: str, *words: str) -> None:
    is_append = "append" in words
    how = {"append_dim": "time"} if is_append else {}
    how |= {"source_id": "it"} if "named" in words else {}
    with contextlib.ExitStack() as stack:
        if "workers" in words:
            from distributed import Client

            stack.enter_context(
                Client(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50)
            )
        ds = dataset(int(n_variables), float(seconds), 120 if is_append else 0)
        result = shardwrite.write_dataset(ds, store, **how, **SIZES)
    print(result.n_resumed_shards)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Print how many system calls on names and files a shard takes: ``python tests/calls.py``, or
``python tests/calls.py COMMIT`` for a commit.

Each row is one way to write, in a process of one thread that is traced by strace. All calls on the
array and on the state of the run are counted, such as open, write, close and rename. Calls for 100
shards are taken from those for 600, so that what a run costs once is not counted. Shards have
64 kB, and ten of them a directory, but for what a row says.

The last rows say how many calls an array takes that is written with others by one call: a new one,
also in a group that is there; one that the same call has written before; and a variable of a
dataset that is appended to. Their values are all fill values, so that there are no shards. Calls
for 10 arrays are taken from those for 40.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from commits import ROOT, parser_of, tree_of

PROGRAM = """
import sys, dask, dask.array as da, numpy as np
import shardwrite
path, n_shards, durability, layout = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
shapes = {
    "tens": ((n_shards // 10 * 128, 10 * 256), (128, 256), (32, 256)),
    "own": ((n_shards // 10 * 32, 10 * 256, 4), (32, 256, 4), (32, 64, 4)),
    "tasks": ((n_shards // 10 * 1024, 10 * 2048), (1024, 2048), (1024, 1024)),
}
shape, shards, chunks = shapes[layout]
source = shards if layout == "tasks" else -1
x = da.full(shape, 7, dtype="u2", chunks=source)
x = x.map_blocks(np.array, dtype="u2", name="x")
how = {"compressors": None} if layout == "tasks" else {}
with dask.config.set(scheduler="sync"):
    x.to_sharded_zarr(path, shards=shards, chunks=chunks, durability=durability, source_id="x")
"""
MANY = """
import sys, dask, dask.array as da
import shardwrite
path, n_arrays, durability, case = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
arrays = [da.zeros((32, 32), dtype="u2", chunks=-1) for _ in range(n_arrays)]
names = [f"a{number}" for number in range(n_arrays)]
if case == "in a group":
    import zarr
    zarr.create_group(path)
with dask.config.set(scheduler="sync"):
    for _ in range(2 if case == "again" else 1):
        shardwrite.store(
            arrays, [path] * n_arrays, names=names, shards=32, chunks=16, durability=durability,
            source_id="x",
        )
"""
APPEND = """
import sys, dask, dask.array as da, xarray as xr
import shardwrite
path, n_arrays, durability, case = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
steps = xr.Dataset(
    {f"a{n}": (("t", "x"), da.zeros((4, 32), dtype="u2", chunks=-1)) for n in range(n_arrays)}
)
with dask.config.set(scheduler="sync"):
    shardwrite.write_dataset(
        steps, path, shards={"t": 4, "x": 32}, chunks={"t": 4, "x": 16}, durability=durability
    )
    if case == "append":
        shardwrite.write_dataset(steps, path, append_dim="t", durability=durability)
"""
ROWS = {
    "full": ("full", "tens"),
    "batch": ("batch", "tens"),
    "none": ("none", "tens"),
    "full, a directory for each shard": ("full", "own"),
    "none, a directory for each shard": ("none", "own"),
    "full, shards of 4 MiB": ("full", "tasks"),
    "none, shards of 4 MiB": ("none", "tasks"),
}


# Ways to write many arrays by one call, each with its program. If that calls twice, the second call
# counts, and the second word is the way with the first call alone.
CASES = {
    "new": (MANY, ""),
    "in a group": (MANY, ""),
    "again": (MANY, "new"),
    "append": (APPEND, "first"),
}


def counted(text: str, n: int, *words: str, root: Path = ROOT) -> Counter[str]:
    """System calls of a program on what it writes and the state of its run, by name.

    - `n`: number of shards, or of arrays.
    """
    with tempfile.TemporaryDirectory() as scratch:
        program, log, path = (Path(scratch, name) for name in ("program.py", "log", "x.zarr"))
        program.write_text(text)
        # -y tells the path of each descriptor
        command = ["strace", "-f", "-qq", "-y", "-e", "trace=file,desc", "-o", str(log)]
        ended = subprocess.run(
            [*command, sys.executable, str(program), str(path), str(n), *words],
            env={**os.environ, "PYTHONPATH": str(root)},
            capture_output=True,
            text=True,
        )
        if ended.returncode:
            raise RuntimeError(ended.stderr[-3000:])
        calls = re.findall(rf'^\d+ +(\w+)\(.*{path}[./">].*', log.read_text(), re.MULTILINE)
    return Counter(calls)


def per_shard(row: str, root: Path = ROOT, n_few: int = 100, n_many: int = 600) -> dict[str, float]:
    """System calls for each shard, by name."""
    few, many = (counted(PROGRAM, n, *ROWS[row], root=root) for n in (n_few, n_many))
    return _each(few, many, n_many - n_few)


def per_array(durability: str, case: str = "new", root: Path = ROOT) -> dict[str, float]:
    """System calls for each array of a call on many, by name; see `CASES`."""
    program, first = CASES[case]
    words = [durability, case], [durability, first]
    few, many = (counted(program, n, *words[0], root=root) for n in (10, 40))
    if first:  # a call that comes before the one that is counted
        few.subtract(counted(program, 10, *words[1], root=root))
        many.subtract(counted(program, 40, *words[1], root=root))
    return _each(few, many, 30)


def _each(few: Counter[str], many: Counter[str], n_more: int) -> dict[str, float]:
    many.subtract(few)
    return {name: n / n_more for name, n in sorted(many.items()) if n}


def main() -> None:
    """Print a table."""
    chosen = parser_of(__doc__ or "").parse_args()
    with tree_of(chosen.commit) as root:
        rows: dict[str, Callable[[], dict[str, float]]] = {
            **{row: partial(per_shard, row, root) for row in ROWS},
            **{
                f"{level}, an array, {case}": partial(per_array, level, case, root)
                for case, level in itertools.product(CASES, ("full", "none"))
            },
        }
        for row, count in rows.items():
            calls = count()
            parts = ", ".join(f"{name} {n:.2f}" for name, n in calls.items() if abs(n) >= 0.005)
            print(f"{row}: {sum(calls.values()):.1f} ({parts})", flush=True)


if __name__ == "__main__":
    main()

"""Print how many system calls on names and files a shard takes: ``python tests/calls.py``, or
``python tests/calls.py COMMIT`` for a commit.

Each row is one way to write, in a process of one thread that is traced by strace. All calls on the
array and on the state of the run are counted, such as open, write, close and rename. Calls for 100
shards are taken from those for 600, so that what a run costs once is not counted. Shards have
64 kB, and ten of them a directory, but for what a row says.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
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
ROWS = {
    "full": ("full", "tens"),
    "batch": ("batch", "tens"),
    "none": ("none", "tens"),
    "full, a directory for each shard": ("full", "own"),
    "none, a directory for each shard": ("none", "own"),
    "full, shards of 4 MiB": ("full", "tasks"),
    "none, shards of 4 MiB": ("none", "tasks"),
}


def counted(durability: str, layout: str, n_shards: int, root: Path) -> Counter[str]:
    """System calls of a write on its array and the state of its run, by name."""
    with tempfile.TemporaryDirectory() as scratch:
        program, log, path = (Path(scratch, name) for name in ("program.py", "log", "x.zarr"))
        program.write_text(PROGRAM)
        # -y tells the path of each descriptor
        command = ["strace", "-f", "-qq", "-y", "-e", "trace=file,desc", "-o", str(log)]
        words = [str(path), str(n_shards), durability, layout]
        ended = subprocess.run(
            [*command, sys.executable, str(program), *words],
            env={**os.environ, "PYTHONPATH": str(root)},
            capture_output=True,
            text=True,
        )
        if ended.returncode:
            raise RuntimeError(ended.stderr[-3000:])
        calls = re.findall(rf"^\d+ +(\w+)\(.*{path}[./].*", log.read_text(), re.MULTILINE)
    return Counter(calls)


def per_shard(row: str, root: Path = ROOT, n_few: int = 100, n_many: int = 600) -> dict[str, float]:
    """System calls for each shard, by name."""
    few, many = (counted(*ROWS[row], n, root) for n in (n_few, n_many))
    many.subtract(few)
    return {name: n / (n_many - n_few) for name, n in sorted(many.items()) if n}


def main() -> None:
    """Print a table."""
    chosen = parser_of(__doc__ or "").parse_args()
    with tree_of(chosen.commit) as root:
        for row in ROWS:
            calls = per_shard(row, root)
            parts = ", ".join(f"{name} {n:.2f}" for name, n in calls.items() if abs(n) >= 0.005)
            print(f"{row}: {sum(calls.values()):.1f} ({parts})", flush=True)


if __name__ == "__main__":
    main()

"""Two versions of this package write the same bytes: ``python tests/same_bytes.py --old 3e6cb07
--cases 300``.

Each case draws an array, a layout, a strategy and what is done to the array: it is written,
updated, erased in parts, compacted, streamed or written in parts. Both versions do the same, each
in processes of its own, with as many threads and as much memory. Then every file of the two arrays
is compared, but for receipts, which tell the time.

One difference is meant. `FixedOrder(in_place=True)` gives each inner chunk of a fixed size a place
of its own when it updates whole shards. Up to 3e6cb07 it did so in direct plans only, and packed
them tight in fused ones. Such cases are counted by themselves.

Gzip has level 5 here. ISA-L encodes levels 1 to 3, and does not always give the same bytes for the
same small input.

The old version is a commit of this repository, or a directory with a checkout.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from commits import ROOT, tree_of

RECEIPT = "shardwrite-receipt.json"
BLOCK = 25


def write_case(path: Path, seed: int) -> bool:
    """Draw a case and do what it says, by the package that is imported here; whether a difference
    is meant."""
    import dask
    import dask.array as da
    import numpy as np

    import shardwrite
    from shardwrite import AppendOnly, FixedOrder, ShardWriter

    rng = np.random.default_rng(seed)
    n_axes = int(rng.integers(1, 4))
    chunks = tuple(int(n) for n in rng.integers(1, 7, n_axes))
    shards = tuple(c * int(k) for c, k in zip(chunks, rng.integers(1, 5, n_axes), strict=True))
    shape = tuple(int(n) for n in rng.integers(1, 40, n_axes))
    dtype = np.dtype(
        str(
            rng.choice(
                ["u1", "<i2", ">u2", "<u4", "<i8", "<f4", "<f8", "?", "<c8", "<M8[s]", "S5", "<U3"]
            )
        )
    )
    raw = rng.integers(0, 200, shape)
    raw[rng.random(shape) < rng.choice([0.0, 0.5, 0.95])] = 0
    values = raw.astype(dtype) if dtype.kind != "M" else raw.astype("i8").astype(dtype)
    source_chunks = tuple(int(n) for n in rng.integers(1, 40, n_axes))
    strategies = [
        FixedOrder(str(rng.choice(["C", "F", "morton"]))),
        AppendOnly(),
        FixedOrder(
            str(rng.choice(["C", "F", "morton"])),
            in_place=True,
            max_unused=float(rng.choice([0.25, 1.0])),
        ),
        AppendOnly(in_place=True),
    ]
    codecs = [
        {},
        {"compressors": None},
        {"compressors": [{"name": "gzip", "configuration": {"level": 5}}]},
    ]
    layout = {
        "shards": shards,
        "chunks": chunks,
        "index_location": str(rng.choice(["start", "end"])),
        **codecs[int(rng.integers(len(codecs)))],
    }
    keywords = {
        "strategy": strategies[int(rng.integers(2))],
        "durability": "none",
        "publish": str(rng.choice(["first", "last"])),
    }

    def drawn_region() -> tuple[slice, ...]:
        starts = [int(rng.integers(0, n)) for n in shape]
        return tuple(
            slice(a, int(rng.integers(a + 1, n + 1))) for a, n in zip(starts, shape, strict=True)
        )

    def source(of) -> da.Array:
        return da.from_array(
            of, chunks=tuple(min(c, n) for c, n in zip(source_chunks, of.shape, strict=True))
        )

    is_meant = False
    what = str(rng.choice(["write", "updates", "stream", "parts"]))
    with dask.config.set(scheduler="sync"):
        if what == "stream":
            shardwrite.create(path, (0, *shape[1:]), dtype, **layout)
            strategy = strategies[int(rng.integers(len(strategies)))]
            with ShardWriter(path, strategy=strategy, durability="none", n_threads=1) as writer:
                for t, row in enumerate(values):
                    writer.append(row)
                    if t % 5 == 4:
                        writer.flush()
        elif what == "parts":
            x = source(values)
            shardwrite.prepare(
                x, path, shardwrite.plan(x, **layout, source_id="drawn"), durability="none"
            )
            for part in range(3):
                shardwrite.write_part(x, path, part, 3, source_id="drawn")
            shardwrite.finalize(path, n_parts=3)
        else:
            source(values).to_sharded_zarr(path, **layout, **keywords)
        for _ in range(int(rng.integers(1, 5)) if what == "updates" else 0):
            region, strategy = drawn_region(), strategies[int(rng.integers(len(strategies)))]
            step = str(rng.choice(["update", "update", "erase", "compact"]))
            if step == "update":
                is_meant |= (
                    layout.get("compressors", "auto") is None
                    and isinstance(strategy, FixedOrder)
                    and strategy.in_place
                )
                source(np.roll(values, 3)[region]).to_sharded_zarr(
                    path, region=region, strategy=strategy, durability="none"
                )
            elif step == "erase":
                shardwrite.erase(path, region, strategy=strategy, durability="none")
            else:
                shardwrite.compact(path, above=0.1, durability="none")
    return is_meant


def tree(path: Path) -> dict[str, str]:
    """A digest of every file of an array, and what lies beside it."""
    files = [p for p in sorted(path.rglob("*")) if p.is_file() and p.name != RECEIPT]
    return {str(p.relative_to(path)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def work(directory: Path, seeds: range) -> None:
    """Write cases; of each the files' digests, or what it raised."""
    import shardwrite

    assert Path(shardwrite.__file__).is_relative_to(Path.cwd()), (
        f"{shardwrite.__file__} is not the version that was asked for"
    )
    for seed in seeds:
        home = directory / str(seed)
        home.mkdir()
        is_meant = False
        try:
            is_meant = write_case(home / "x.zarr", seed)
        except Exception as error:
            (home / "raised").write_text(type(error).__name__)
        print(json.dumps([tree(home), is_meant]), flush=True)


def written_by(checkout: Path, seeds: range) -> list[tuple[dict[str, str], bool]]:
    """What the package of a checkout writes, and whether another version may write something else."""
    with tempfile.TemporaryDirectory(
        dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    ) as directory:
        command = [
            sys.executable,
            __file__,
            "--work",
            directory,
            "--seeds",
            str(seeds.start),
            str(seeds.stop),
        ]
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        done = subprocess.run(
            command, cwd=checkout, env=environment, capture_output=True, text=True
        )
        assert not done.returncode, done.stderr[-3000:]
        return [json.loads(line) for line in done.stdout.splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--old", help="the commit, or the directory, to compare this version with")
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--seeds", type=int, nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.work:
        work(chosen.work, range(*chosen.seeds))
        return
    if not chosen.old:
        parser.error("--old is needed")
    different, meant, n_files, n_raised = [], [], 0, 0
    with tree_of(chosen.old) as old:
        for start in range(chosen.seed, chosen.seed + chosen.cases, BLOCK):
            seeds = range(start, min(start + BLOCK, chosen.seed + chosen.cases))
            for seed, (before, _), (after, is_meant) in zip(
                seeds, written_by(old, seeds), written_by(ROOT, seeds), strict=True
            ):
                n_files += len(after)
                n_raised += "raised" in after
                if before != after:
                    names = {
                        name for name in {*before, *after} if before.get(name) != after.get(name)
                    }
                    (meant if is_meant else different).append(
                        {"seed": seed, "files": sorted(names)[:5]}
                    )
    summary = {
        "cases": chosen.cases,
        "files": n_files,
        "refused": n_raised,
        "meant to differ": len(meant),
        "different": different,
    }
    print(json.dumps(summary, indent=1))
    sys.exit(bool(different))


if __name__ == "__main__":
    main()

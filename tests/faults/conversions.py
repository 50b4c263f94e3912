"""SIGKILL at random moments of a conversion: the same call again finishes, and every encoded chunk
that passes is the same to the byte.

One process that never starts a thread forks a child for each step. Run as
``python tests/faults/conversions.py --kills 200 --seed 0 --json out.json``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import dask
import dask.array as da
import h5py
import hdf5plugin
import numpy as np

import shardwrite
from shardwrite.read.stored_array import stored_at
from shardwrite.sources.opening import place_of

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
import oracle
import seams
from helpers import MEMORY
from kills import child, ended_well, is_over, slowly
from leftovers import left_over

for _name in shardwrite.__all__:  # Everything is imported before processes are forked.
    getattr(shardwrite, _name)

_OWN = ("log", "acks", "source*", "kept")
SHAPE, SMALL, CHUNK = (96, 96), (48, 48), 4
DATASET = "images/x"


@dataclass
class Kill:
    """One kill and what came of it.

    Attributes
    ----------
    keywords : dict
        Of the call.
    acked, there, copied : int
        Shards that were acknowledged before the kill, that were there after it, and chunks that
        passed in the end.
    finished : bool
        Whether the conversion ended before the kill came.
    trouble : str
        Why the judgement failed.
    left : list of str
        Names that are left over in the end.
    """

    keywords: dict
    acked: int = 0
    there: int = 0
    copied: int = 0
    finished: bool = False
    trouble: str = ""
    left: list[str] = field(default_factory=list)

    @property
    def vacuous(self) -> bool:
        """Whether nothing was interrupted."""
        return self.finished or not self.there


def payloads(path, n_cut: int = 0) -> dict[tuple[int, ...], str]:
    """sha256 of the encoded bytes of each inner chunk without the last few, by its position."""
    chunks = seams.chunks_of(stored_at(place_of(path)).array).items()
    return {at: hashlib.sha256(data[: len(data) - n_cut]).hexdigest() for at, data in chunks}


def draw(rng) -> tuple[dict, dict, bool]:
    """How the source is written, how it is converted, and whether its chunks pass."""
    has_checksum = bool(rng.random() < 0.5)
    made = {
        "shards": [None, 8, 24][int(rng.integers(3))],
        "chunks": CHUNK,
        "compressors": "auto" if has_checksum else None,
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
    if not passes:
        how |= {"compressors": "gzip"}
    return made, how, passes


def make_hdf5(path, values):
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


def convert(source, path, acks, scheduler, how):
    with dask.config.set(scheduler=scheduler, num_workers=2):
        shardwrite.reshard(source, path, progress=acks, **how)


def judge(source, path, wanted, how, has_checksum, passes):
    """The array is whole, and what passed is the same to the byte."""
    oracle.check_whole(path, wanted)
    oracle.check_tidy(path)
    if not passes:
        assert set(payloads(source)) == set(payloads(path))
        return
    keeps = how["checksum"] is None or how["checksum"] == has_checksum
    cut = (0, 0) if keeps else (4, 0) if has_checksum else (0, 4)
    assert payloads(source, cut[0]) == payloads(path, cut[1])


def kill_in_place(directory, rng) -> Kill:
    """One conversion in its place, one kill: at all times, the old array or the new one is there."""
    made, how, passes = draw(rng)
    how["durability"] = str(rng.choice(["full", "batch"]))
    made["shards"], how["shards"] = [(None, 3), (8, 3), (24, None)][int(rng.integers(3))]
    path, log = directory / "x.zarr", directory / "log"
    empty = (slice(0, 16), slice(16, 32)) if rng.random() < 0.7 else None
    wanted = oracle.values(SMALL, int(rng.integers(100)), empty)
    scheduler = str(rng.choice(["sync", "threads"]))
    found = Kill({**how, "from": made["shards"], "scheduler": scheduler, "in_place": True})
    pid = child(lambda: da.from_array(wanted, chunks=24).to_sharded_zarr(path, **made), log=log)
    found.trouble = ended_well(pid, log)
    kept = directory / "kept"
    shutil.copytree(path, kept)
    acks = oracle.Acks(directory / "acks")
    pid = child(convert, path, None, slowly(acks), scheduler, how, log=log)
    goal = int(rng.integers(1, 6))
    while len(acks.ranks()) < goal and not is_over(pid):
        time.sleep(0.0005)
    # In one half of the cases, the comparison, the exchange or the removal is under way by then.
    time.sleep(rng.uniform(0, 0.006 if rng.random() < 0.5 else 0.4))
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    found.finished = os.WIFEXITED(status)
    found.acked, found.there = SMALL[0] * SMALL[1] // CHUNK**2, len(acks.ranks())
    pid = child(oracle.check_values, path, wanted, log=log)
    found.trouble += ended_well(pid, log)
    pid = child(convert, path, None, lambda report: None, scheduler, how, log=log)
    found.trouble += ended_well(pid, log)
    has_checksum = made["compressors"] == "auto"
    pid = child(judge, kept, path, wanted, how, has_checksum, passes, log=log)
    found.trouble += ended_well(pid, log)
    found.left = left_over(directory, own=_OWN)
    found.copied = len(payloads(path)) if not found.trouble and passes else 0
    return found


def kill_once(directory, rng, *, is_hdf5: bool = False) -> Kill:
    """One conversion, one kill."""
    made, how, passes = draw(rng)
    if is_hdf5:
        made |= {"shards": None, "compressors": None}
    source, path, log = directory / "source", directory / "x.zarr", directory / "log"
    empty = (slice(0, 32), slice(32, 64)) if rng.random() < 0.7 else None
    wanted = oracle.values(SHAPE, int(rng.integers(100)), empty)
    scheduler = str(rng.choice(["sync", "threads"]))
    found = Kill({**how, "from": made["shards"], "scheduler": scheduler})
    if is_hdf5:
        pid = child(make_hdf5, source, wanted, log=log)
        source = f"{source}::{DATASET}"
    else:
        pid = child(
            lambda: da.from_array(wanted, chunks=48).to_sharded_zarr(source, **made), log=log
        )
    found.trouble = ended_well(pid, log)
    acks = oracle.Acks(directory / "acks")
    pid = child(convert, source, path, slowly(acks), scheduler, how, log=log)
    goal = int(rng.integers(1, 8))
    while len(acks.ranks()) < goal and not is_over(pid):
        time.sleep(0.0005)
    time.sleep(rng.uniform(0, 0.006))
    found.acked = len(acks.ranks())
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    found.finished = os.WIFEXITED(status)
    found.there = sum(p.is_file() for p in (path / "c").rglob("*")) if path.exists() else 0
    if found.acked:
        pid = child(oracle.check_partial, path, acks.ranks(), wanted, log=log)
        found.trouble += ended_well(pid, log)
    pid = child(convert, source, path, lambda report: None, scheduler, how, log=log)
    found.trouble += ended_well(pid, log)
    has_checksum = made["compressors"] == "auto"
    pid = child(judge, source, path, wanted, how, has_checksum, passes, log=log)
    found.trouble += ended_well(pid, log)
    found.left = left_over(directory, own=_OWN)
    found.copied = len(payloads(path)) if not found.trouble and passes else 0
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--hdf5", action="store_true", help="the source is a dataset of HDF5")
    parser.add_argument("--in-place", action="store_true", help="the array is converted in place")
    given = parser.parse_args()
    kills = []
    for number in range(given.kills):
        top = MEMORY
        directory = Path(tempfile.mkdtemp(prefix="conversions-", dir=top))
        rng = np.random.default_rng([given.seed, number])
        try:
            kills.append(
                kill_in_place(directory, rng)
                if given.in_place
                else kill_once(directory, rng, is_hdf5=given.hdf5)
            )
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    summary = {
        "kills": len(kills),
        "vacuous": sum(kill.vacuous for kill in kills),
        "acked": sum(kill.acked for kill in kills),
        "chunks that passed": sum(kill.copied for kill in kills),
        "left": sum(len(kill.left) for kill in kills),
        "troubles": [kill.trouble for kill in kills if kill.trouble],
    }
    print(json.dumps(summary, indent=1))
    if given.json:
        found = {"summary": summary, "kills": [asdict(kill) for kill in kills]}
        given.json.write_text(json.dumps(found))
    sys.exit(1 if summary["troubles"] else 0)


if __name__ == "__main__":
    main()

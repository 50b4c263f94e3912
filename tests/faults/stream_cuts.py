"""Power cuts under streams: what was flushed at level full is there afterwards, and the next writer
goes on.

The machine and the cuts are those of `power_cut.py`, whose head says what they simulate. Run as
``python tests/faults/stream_cuts.py --states 100 --filesystem ext4``, as root.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import dask
import numpy as np

import shardwrite
from shardwrite import ShardWriter

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import oracle
import power_cut
import seams
import update_cuts

SHAPE, SHARDS, CHUNKS = (24, 64, 64), (8, 64, 32), (1, 32, 32)


@dataclass
class State:
    """What one cut left: slices flushed before it, of these the lost, and inner chunks that are
    neither there nor empty."""

    flushed: int = 0
    lost: int = 0
    torn: int = 0
    trouble: str = ""


def feed(
    path: Path, strategy: str, durability: str, first: int, flushed: list[int], *, most: int
) -> None:
    """Append slices, and flush after every one or few."""
    whole = oracle.values(SHAPE, 1)
    with ShardWriter(
        path, strategy=update_cuts.STRATEGIES[strategy], durability=durability, n_threads=2
    ) as writer:
        for t in range(first, SHAPE[0]):
            writer.append(whole[t])
            if t % most == 0:
                writer.flush()
                flushed.append(t + 1)
    flushed.append(SHAPE[0])


def judge(state: State, path: Path) -> None:
    """Every slice by every reader."""
    whole = oracle.values(SHAPE, 1)
    for seen in oracle.read_everywhere(path, oracle.metadata_of(path)).values():
        is_there = [t < len(seen) and bool((seen[t] == whole[t]).all()) for t in range(SHAPE[0])]
        state.lost = max(state.lost, state.flushed - sum(is_there[: state.flushed]))
        for t in range(len(seen)):
            chunks = [v[t].reshape(2, 32, 2, 32) for v in (seen, whole)]
            good = (chunks[0] == chunks[1]).all(axis=(1, 3)) | (chunks[0] == 0).all(axis=(1, 3))
            state.torn += int((~good).sum())


def run_state(
    machine: power_cut.Machine, seed: int, number: int, strategy: str, durability: str
) -> State:
    """One stream, one cut."""
    rng, state, flushed = np.random.default_rng([seed, number]), State(), [0]
    home = machine.root / f"stream-{seed}-{number}"
    path = home / "x.zarr"
    layout = {
        "index_location": ["start", "end"][rng.integers(2)],
        "compressors": ["auto", None][rng.integers(2)],
    }
    shardwrite.create(path, (0, *SHAPE[1:]), "u4", shards=SHARDS, chunks=CHUNKS, **layout)
    when, delay, most = int(rng.integers(1, 9)), rng.uniform(0, 0.01), int(rng.integers(1, 3))

    def work() -> None:
        try:
            with dask.config.set({"shardwrite.retry-pauses": [0, 0, 0]}):
                feed(path, strategy, durability, 0, flushed, most=most)
        except shardwrite.ShardwriteError:
            pass  # the disk has gone, as it should

    worker = threading.Thread(target=work)
    worker.start()
    while worker.is_alive() and len(flushed) <= when:
        time.sleep(0.0005)
    time.sleep(delay)
    state.flushed = flushed[-1]
    machine.cut(rng)
    worker.join()
    machine.restart()
    with seams.after_restart(f"{seed} {number}"):
        try:
            if (
                durability == "none"
            ):  # the run's own files may be torn, too, so that there is no recovery
                judge(state, path)
            shardwrite.abandon(path)
            judge(state, path)
            found = shardwrite.verify(path, deep=True)
            assert found.is_good or durability == "none", found
            feed(
                path, strategy, durability, shardwrite.open_sharded(path).shape[0], flushed, most=3
            )
            oracle.check_whole(path, oracle.values(SHAPE, 1))
        except Exception as error:
            state.trouble = f"{type(error).__name__}: {error}"
    shutil.rmtree(home, ignore_errors=True)
    return state


def run(
    directory,
    filesystem: str,
    strategy: str,
    n_states: int,
    *,
    durability: str = "full",
    seed: int = 0,
    is_last: Callable[[State], object] | None = None,
) -> list[State]:
    """Many states on one machine, up to the first that is the last one."""
    with power_cut.Machine(directory, filesystem) as machine:
        states = (
            run_state(machine, seed, number, strategy, durability) for number in range(n_states)
        )
        return power_cut.up_to(states, is_last)


def summary(states: list[State]) -> dict:
    """Totals."""
    totals = {
        name: sum(getattr(state, name) for state in states) for name in ("flushed", "lost", "torn")
    }
    return {
        "states": len(states),
        **totals,
        "troubles": sorted({state.trouble[:300] for state in states if state.trouble}),
    }


def main() -> None:
    parser = power_cut.parser("Cut the power under a stream, many times.", "states", 100)
    parser.add_argument(
        "--strategy", choices=sorted(update_cuts.STRATEGIES), default="append in place"
    )
    parser.add_argument("--durability", choices=("full", "batch", "none"), default="full")
    given = parser.parse_args()
    if why := power_cut.missing(given.filesystem):
        sys.exit(why)
    with tempfile.TemporaryDirectory() as directory:
        states = run(
            directory,
            given.filesystem,
            given.strategy,
            given.states,
            durability=given.durability,
            seed=given.seed,
        )
    power_cut.tell(
        {"filesystem": given.filesystem, "strategy": given.strategy, **summary(states)},
        states,
        given.json,
    )


if __name__ == "__main__":
    main()

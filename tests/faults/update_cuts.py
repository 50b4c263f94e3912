"""Power cuts under updates of an array that exists, by every strategy: after recovery each shard is
old or new, and what was acknowledged is new.

The machine and the cuts are those of `power_cut.py`, whose head says what they simulate. Run as
``python tests/faults/update_cuts.py --states 100 --filesystem ext4 --json out.json``, as root.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import dask
import dask.array as da
import numpy as np

import shardwrite
from shardwrite import AppendOnly, FixedOrder

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import oracle
import power_cut
import seams

SHAPE, SHARD, CHUNK = (256, 256), 64, 16
STRATEGIES = {
    "replace": FixedOrder("C"),
    "clone": AppendOnly(),
    "in place": FixedOrder("C", in_place=True, max_unused=1.0),
    "append in place": AppendOnly(in_place=True),
}


@dataclass
class State:
    """What one cut left.

    Attributes
    ----------
    number : int
        Its seed, with the run's.
    strategy, compressed, location : str
        What was updated, and how.
    acked, new : int
        Shards acknowledged before the cut; that are new after recovery.
    lost, torn : list of int
        Acknowledged but not new; neither old nor new.
    finished : bool
        The update was over before the cut.
    error, trouble : str
        What the writer raised; why the same call again did not finish it.
    """

    number: int
    strategy: str
    compressed: bool
    location: str
    acked: int = 0
    new: int = 0
    lost: list[int] = field(default_factory=list)
    torn: list[int] = field(default_factory=list)
    finished: bool = False
    error: str = ""
    trouble: str = ""

    @property
    def vacuous(self) -> bool:
        """No evidence: nothing was acknowledged, or nothing was under way."""
        return self.finished or not self.acked


def run_state(
    machine: power_cut.Machine,
    acks_path: Path,
    seed: int,
    number: int,
    strategy: str,
    durability: str,
) -> State:
    """One array, one update, one cut."""
    rng = np.random.default_rng([seed, number])
    state = State(number, strategy, bool(rng.integers(2)), ["start", "end"][rng.integers(2)])
    home = machine.root / f"update-{seed}-{number}"
    path = home / "x.zarr"
    old, new = oracle.values(SHAPE, 0), oracle.values(SHAPE, 1)
    layout = {} if state.compressed else {"compressors": None}
    da.from_array(old, chunks=SHARD).to_sharded_zarr(
        path, shards=SHARD, chunks=CHUNK, index_location=state.location, **layout
    )
    region = tuple(
        slice(int(rng.integers(1, SHARD)), n - int(rng.integers(0, SHARD))) for n in SHAPE
    )
    if (
        strategy.startswith(("in place", "append")) and rng.random() < 0.7
    ):  # small changes stay in place
        region = (slice(8, 24), slice(8, SHAPE[1] - 8))
    after = old.copy()
    after[region] = new[region]
    source = da.from_array(new[region], chunks=(SHARD, 40))
    keywords = {
        "region": region,
        "strategy": STRATEGIES[strategy],
        "durability": durability,
        "memory_limit": "300kB",
    }
    acks_path.unlink(missing_ok=True)
    acks = oracle.Acks(acks_path)
    n_touched = len(range(region[0].start // SHARD, -(-region[0].stop // SHARD))) * 4
    recorder = power_cut.Recorder(path, acks, int(rng.integers(1, 1 + max(1, n_touched * 2 // 3))))
    delay, acked = rng.uniform(0, 0.004), set()

    def cut() -> None:
        recorder.is_time.wait(60)
        time.sleep(delay)
        acked.update(acks.ranks())
        machine.cut(rng)

    with ThreadPoolExecutor(1) as cutter:
        cutting = cutter.submit(cut)
        try:
            with (
                power_cut.scheduler("sync"),
                dask.config.set({"shardwrite.retry-pauses": [0, 0, 0]}),
            ):
                source.to_sharded_zarr(path, progress=recorder, **keywords)
            state.finished = True
        except Exception as error:
            state.error = f"{type(error).__name__}: {error}"
        finally:
            recorder.is_time.set()
        cutting.result()
    machine.restart()
    state.acked = len(acked)
    with seams.after_restart(f"{seed} {number}"):
        if not strategy.endswith("in place"):
            judge(state, path, acked, old, after, region)  # without any recovery
        copy = Path(tempfile.mkdtemp()) / "x.zarr"  # recovered by giving it up, beside what goes on
        shutil.copytree(path, copy)
        beside = seams.state_beside(path)
        if beside.exists():
            shutil.copytree(beside, seams.state_beside(copy))
        try:
            shardwrite.abandon(copy)
            judge(state, copy, acked, old, after, region)
            with power_cut.scheduler("sync"):
                source.to_sharded_zarr(path, **keywords)
            oracle.check_whole(path, after)
        except Exception as error:
            state.trouble = f"{type(error).__name__}: {error}"
    shutil.rmtree(copy.parent)
    shutil.rmtree(home, ignore_errors=True)
    return state


def judge(
    state: State,
    path: Path,
    acked: set[int],
    old: np.ndarray,
    after: np.ndarray,
    region: tuple[slice, ...],
) -> None:
    """Every shard by every reader; ranks are those of the region's own grid."""
    first = [s.start // SHARD for s in region]
    counts = [-(-s.stop // SHARD) - f for s, f in zip(region, first, strict=True)]
    state.new, lost, torn = 0, set(state.lost), set(state.torn)
    metadata = oracle.metadata_of(path)
    for found in oracle.read_everywhere(path, metadata).values():
        for rank, at in enumerate(np.ndindex(*counts)):
            shard = tuple(
                slice((f + i) * SHARD, (f + i + 1) * SHARD) for f, i in zip(first, at, strict=True)
            )
            is_new, is_old = (
                bool((found[shard] == version[shard]).all()) for version in (after, old)
            )
            state.new += is_new
            if rank in acked and not is_new:
                lost.add(rank)
            elif not (is_new or is_old):
                torn.add(rank)
    state.lost, state.torn = sorted(lost), sorted(torn)


def run(
    directory,
    filesystem: str,
    strategy: str,
    n_states: int,
    *,
    durability: str = "full",
    seed: int = 0,
) -> list[State]:
    """Many states on one machine."""
    with power_cut.Machine(directory, filesystem) as machine:
        acks = Path(directory) / "acks"
        return [
            run_state(machine, acks, seed, number, strategy, durability)
            for number in range(n_states)
        ]


def summary(states: list[State]) -> dict:
    """Totals of the states that are evidence, and how many are none."""
    evidence = [state for state in states if not state.vacuous]
    return {
        "states": len(states),
        "vacuous": len(states) - len(evidence),
        "acked": sum(state.acked for state in evidence),
        "lost": sum(len(state.lost) for state in states),
        "torn": sum(len(state.torn) for state in states),
        "errors": dict(Counter(state.error.split(":")[0] for state in states if state.error)),
        "troubles": dict(Counter(state.trouble[:200] for state in states if state.trouble)),
    }


def main() -> None:
    parser = power_cut.parser("Cut the power under an update, many times.", "states", 100)
    parser.add_argument("--strategy", choices=sorted(STRATEGIES), default="replace")
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
    document = {
        "filesystem": given.filesystem,
        "strategy": given.strategy,
        "durability": given.durability,
        **summary(states),
    }
    power_cut.tell(document, states, given.json)


if __name__ == "__main__":
    main()

"""SIGKILL at random moments: write, kill, judge, write again, judge again.

One process that never starts a thread imports everything and forks a child for each step, so that a
kill costs milliseconds, not the start of an interpreter. The child that writes is killed; another
judges what is left; a third makes the same call again.

Run as ``python tests/faults/kills.py --kills 200 --seed 0 --json out.json``, or with ``--shards
10000 --kills 20 --one-array`` for one job that is killed again and again; with ``--groups``
instead, its groups have thousands of shards, and each kill is told of.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import signal
import sys
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import dask
import numpy as np

import shardwrite

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import oracle
import seams
from helpers import scratch
from leftovers import left_over

for _name in shardwrite.__all__:  # Everything is imported before processes are forked.
    getattr(shardwrite, _name)

N_THREADS = 2
GROUP_PAUSE = 0.004  # seconds that a shard of a large group takes at least
SLACK_SECONDS = 0.2  # of a machine that has other work


_OWN = ("log", "acks*")


@dataclass
class Kill:
    """One kill and what came of it.

    Attributes
    ----------
    keywords : dict
        Of the call.
    acked, there, lost : int
        Shards that were acknowledged before the kill; that were there after it; acknowledged ones
        that were not, or wrong.
    redone, in_flight : int
        Shards that were there and were written again; most that were in flight when the kill came.
    redone_acked : int
        Those of them that were acknowledged.
    finished : bool
        Whether the writer ended before the kill came.
    trouble : str
        Why the judgement failed.
    left : list of str
        Names that are left over in the end.
    """

    keywords: dict
    acked: int = 0
    there: int = 0
    lost: int = 0
    redone: int = 0
    redone_acked: int = 0
    in_flight: int = 0
    finished: bool = False
    trouble: str = ""
    left: list[str] = field(default_factory=list)

    @property
    def vacuous(self) -> bool:
        """Whether nothing was interrupted: nothing was there yet, or all was done."""
        return self.finished or not self.there


def child(function, *arguments, log):
    """Start a function in a process of its own; its pid."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        function(*arguments)
        status = 0
    except BaseException:
        Path(log).write_text(traceback.format_exc())
    finally:
        os._exit(status)


def ended_well(pid, log):
    """Wait for a child; what went wrong in it."""
    _, status = os.waitpid(pid, 0)
    return (
        ""
        if status == 0
        else Path(log).read_text()
        if Path(log).exists()
        else f"ended with status {status}"
    )


def is_over(pid):
    """Whether a child has ended; it can still be waited for."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def write(x, path, acks, scheduler, keywords):
    with dask.config.set(scheduler=scheduler, num_workers=N_THREADS):
        x.to_sharded_zarr(path, progress=acks, **keywords)


def slowly(acks):
    """Acknowledge, and give the killer time to come in between."""

    def acknowledge(report):
        acks(report)
        time.sleep(0.003)

    return acknowledge


def shards_on_disk(path):
    """Inode and time of every shard's file, by its path in the array."""
    built = seams.built_at(path)
    return {
        p.relative_to(built): (p.stat().st_ino, p.stat().st_mtime_ns)
        for p in (built / "c").rglob("*")
        if p.is_file() and p.suffix != ".swtmp"
    }


def ranks_of(files, counts):
    return {
        int(np.ravel_multi_index(tuple(int(i) for i in file.parts[1:]), counts)) for file in files
    }


def draw(rng, directory):
    """A source, and how to write it."""
    shape = (96, 96)
    layout = rng.choice(["fused", "direct", "slabs"])
    chunks = {"fused": (24, 96), "direct": (10, 17), "slabs": (2, 96)}[layout]
    keywords = {
        "shards": {"fused": 8, "direct": 32, "slabs": 24}[layout],
        "chunks": 4,
        "memory_limit": {"fused": "60kB", "direct": "100kB", "slabs": "200kB"}[layout],
        "durability": str(rng.choice(["full", "batch", "none"])),
        "publish": str(rng.choice(["last", "first"])),
        "strategy": str(rng.choice(["C", "morton"])),
    }
    empty = (slice(0, 32), slice(32, 64)) if rng.random() < 0.5 else None
    wanted = oracle.values(shape, int(rng.integers(100)), empty)
    replaces = rng.random() < 0.3
    path = directory / "x.zarr"
    old = oracle.source(shape, chunks, version=1000) if replaces else None
    if replaces:
        keywords |= {"mode": "w", "source_id": "the values of this test"}
    scheduler = str(rng.choice(["sync", "threads"]))
    if rng.random() < 0.5:  # in groups, beside whose root the state lies
        import zarr

        path = directory / "root.zarr" / "g" / "x.zarr"
        zarr.create_group(path.parents[1])
        zarr.create_group(path.parent)
    import dask.array as da

    return (
        da.from_array(wanted, chunks=chunks),
        wanted,
        old,
        path,
        keywords,
        scheduler,
    )


def most_in_flight(plan):
    """Shards that may be committed and not in the journal yet: a task's, for each thread."""
    return plan.resources.n_threads * max(
        len(list(plan.metadata.grid.shards_in(box)))
        for box in map(plan.partition.group_box, range(plan.partition.n_groups))
    )


def kill_once(directory, rng) -> Kill:
    """One array, one kill."""
    x, wanted, old, path, keywords, scheduler = draw(rng, directory)
    log, acks = directory / "log", oracle.Acks(directory / "acks")
    found = Kill({**keywords, "scheduler": scheduler})
    with dask.config.set(
        scheduler=scheduler, num_workers=N_THREADS
    ):  # tasks are larger where there are fewer threads
        plan = shardwrite.plan(
            x, **{k: keywords[k] for k in ("shards", "chunks", "memory_limit", "strategy")}
        )
    found.in_flight = most_in_flight(plan)
    if old is not None:
        pid = child(
            write,
            old,
            path,
            lambda report: None,
            "sync",
            keywords | {"source_id": "an older array"},
            log=log,
        )
        found.trouble = ended_well(pid, log)
    pid = child(write, x, path, slowly(acks), scheduler, keywords, log=log)
    goal = int(rng.integers(1, max(2, plan.n_shards * 4 // 5)))
    while len(acks.ranks()) < goal and not is_over(pid):
        time.sleep(0.0005)
    time.sleep(rng.uniform(0, 0.006))
    acked = acks.ranks()
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    found.finished = os.WIFEXITED(status)
    found.acked = len(acked)
    run = list(seams.state_beside(path).glob("run-*"))
    is_aside = seams.built_at(path) != path
    was_moved = (
        old is None
        or bool(acked)
        or found.finished
        or is_aside
        or bool(run and (run[0] / "replaced").exists())
    )
    if is_aside and old is not None:
        pid = child(oracle.check_values, path, oracle.values(wanted.shape, 1000), log=log)
        found.trouble += ended_well(pid, log)
    counts = plan.metadata.grid.counts
    before = shards_on_disk(path) if was_moved and seams.built_at(path).exists() else {}
    found.there = len(before)
    candidates = [wanted] if was_moved else [oracle.values(wanted.shape, 1000), wanted]
    if run or (path / "zarr.json").exists():
        found.trouble += ended_well(
            child(oracle.check_partial, path, acked, *candidates, log=log), log
        )
        found.lost = int("lost" in found.trouble)
    else:
        assert not acked, "shards were acknowledged before the run began"
    found.trouble += ended_well(
        child(write, x, path, lambda report: None, scheduler, keywords, log=log), log
    )
    found.trouble += ended_well(child(oracle.check_whole, path, wanted, log=log), log)
    found.left = left_over(directory, own=_OWN)
    after = shards_on_disk(path)
    redone = [file for file in before if after.get(file) != before[file]]
    found.redone = len(redone)
    found.redone_acked = len(ranks_of(redone, counts) & acked)
    return found


def kill_many(n_kills, seed) -> list[Kill]:
    """Many arrays, a kill each."""
    kills = []
    for number in range(n_kills):
        directory = scratch("kills-")
        try:
            kills.append(kill_once(directory, np.random.default_rng([seed, number])))
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    return kills


def kill_one_array(n_shards, n_kills, seed) -> list[Kill]:
    """One array, killed again and again on its way."""
    import dask.array as da

    rng = np.random.default_rng(seed)
    side = round(n_shards**0.5)
    wanted = oracle.values((side * 8, side * 8), seed)
    x = da.from_array(wanted, chunks=(8 * 5, 8 * 5))
    directory = scratch("kills-")
    path, log = directory / "x.zarr", directory / "log"
    keywords = {"shards": 8, "chunks": 4, "memory_limit": "200kB"}
    with dask.config.set(scheduler="threads", num_workers=N_THREADS):
        plan = shardwrite.plan(x, **keywords)
    in_flight = most_in_flight(plan)
    kills = []
    try:
        for number in range(n_kills):
            acks = oracle.Acks(directory / f"acks-{number}")
            found = Kill(keywords, in_flight=in_flight)
            before = shards_on_disk(path) if path.exists() else {}
            pid = child(write, x, path, acks, "threads", keywords, log=log)
            goal = int(
                rng.uniform(0.5, 1.5) * (side * side - n_kills * in_flight) / (n_kills + 1)
            )  # so that some are left for all
            deadline = time.monotonic() + 60
            while len(acks.ranks()) < goal and time.monotonic() < deadline and not is_over(pid):
                time.sleep(0.005)
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            found.finished = os.WIFEXITED(status)
            if found.finished and status:
                found.trouble = log.read_text()
            found.acked = len(acks.ranks())
            after = shards_on_disk(path)
            found.there = len(after)
            found.redone = sum(after.get(file) != identity for file, identity in before.items())
            kills.append(found)
        last = Kill(keywords, in_flight=in_flight, there=len(shards_on_disk(path)))
        before = shards_on_disk(path)
        last.trouble = ended_well(
            child(write, x, path, lambda report: None, "threads", keywords, log=log), log
        )
        after = shards_on_disk(path)
        last.redone = sum(after.get(file) != identity for file, identity in before.items())
        last.trouble += ended_well(child(oracle.check_whole, path, wanted, log=log), log)
        last.left = left_over(directory, own=_OWN)
        kills.append(last)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return kills


def write_slowly(x, path, keywords):
    """Write, and take a while for each shard, whatever this machine."""
    seams.after(None, "rename a file", lambda _: time.sleep(GROUP_PAUSE))
    write(x, path, lambda report: None, "threads", keywords)


def journalled(path):
    """Files of the shards that the journals of the run at a path know."""
    counts = oracle.metadata_of(path).grid.counts
    return {
        Path("c", *map(str, np.unravel_index(rank, counts))) for rank in seams.done_shards(path)
    }


def lately(path, shards, seconds):
    """How many shards were written so shortly before the last one, and those that were in flight
    then."""
    last = max(time_ns for _, time_ns in shards.values())
    return sum(time_ns >= last - seconds * 1e9 for _, time_ns in shards.values()) + N_THREADS


def kill_groups(n_shards, n_kills, seed) -> list[Kill]:
    """One array in a few groups of very many shards each, killed again and again; what a kill costs
    is told for each."""
    import dask.array as da

    rng = np.random.default_rng(seed)
    side = round(n_shards**0.5)
    wanted = oracle.values((side * 8, side * 8), seed)
    x = da.from_array(wanted, chunks=(-(-side // 4) * 8, side * 8))
    directory = scratch("kills-")
    path, log = directory / "x.zarr", directory / "log"
    keywords = {"shards": 8, "chunks": 4, "durability": "none", "source_id": "groups"}
    with dask.config.set(scheduler="threads", num_workers=N_THREADS):
        assert shardwrite.plan(x, shards=8, chunks=4, source_id="groups").partition.n_groups <= 4
    kills, before, unknown = [], {}, set()
    try:
        for number in range(n_kills + 1):
            found = Kill({**keywords, "shards of a group": side * -(-side // 4)})
            pid = child(write_slowly, x, path, keywords, log=log)
            if number < n_kills:
                while not is_over(pid) and not (
                    path.exists() and set(shards_on_disk(path)) - set(before)
                ):
                    time.sleep(0.01)
                time.sleep(rng.uniform(0.2, 1.6))
                os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            found.finished = os.WIFEXITED(status)
            found.trouble = log.read_text() if found.finished and status else ""
            after = shards_on_disk(path)
            rewritten = {file for file, identity in before.items() if after.get(file) != identity}
            if rewritten - unknown:
                found.trouble += (
                    f"{len(rewritten - unknown)} shards were in the journal and were written again"
                )
            if kills:
                print(
                    f"kill {number}: {len(unknown)} to be done again, at most {kills[-1].in_flight}",
                    flush=True,
                )
            found.there = len(after)
            if not found.finished:
                unknown = set(after) - journalled(path)
                found.redone, found.in_flight = len(unknown), lately(path, after, 1 + SLACK_SECONDS)
                found.acked = len(after) - len(unknown)
            kills.append(found)
            before = after
            if found.finished:
                break
        kills[-1].trouble += ended_well(child(oracle.check_whole, path, wanted, log=log), log)
        kills[-1].left = left_over(directory, own=_OWN)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return kills


def summary(kills) -> dict:
    """Sums over many kills."""
    return {
        "kills": len(kills),
        "vacuous": sum(kill.vacuous for kill in kills),
        "acked": sum(kill.acked for kill in kills),
        "lost": sum(kill.lost for kill in kills),
        "redone": [kill.redone for kill in kills],
        "redone_acked": sum(kill.redone_acked for kill in kills),
        "most_in_flight": max(kill.in_flight for kill in kills),
        "left": sum(len(kill.left) for kill in kills),
        "troubles": [kill.trouble for kill in kills if kill.trouble],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one-array", action="store_true", help="kill one job again and again")
    parser.add_argument(
        "--groups",
        action="store_true",
        help="the same of a job in four groups, and what each kill costs",
    )
    parser.add_argument("--shards", type=int, default=10_000, help="of that job")
    parser.add_argument("--json", help="write every kill to this file")
    given = parser.parse_args()
    gc.freeze()  # Forked processes need not go through, and so copy, what is there already.
    if given.one_array or given.groups:
        kills = (kill_groups if given.groups else kill_one_array)(
            given.shards, given.kills, given.seed
        )
    else:
        kills = kill_many(given.kills, given.seed)
    if given.json:
        Path(given.json).write_text(
            json.dumps({"summary": summary(kills), "kills": [asdict(kill) for kill in kills]})
        )
    print(json.dumps(summary(kills), indent=1))


if __name__ == "__main__":
    main()

"""Updates that read what they change, killed at any moment and made again: as if made once.

Each case makes arrays, kills one of twelve calls once or more, and makes it again. With threads,
the kill comes before a drawn effect on the file system. With two workers, and in a bucket, it comes
at a drawn moment. Tasks of the call that was killed may then still run on the workers, and half of
the time, one of these is killed before. In the end, the values are those of numpy, and nothing is
left over. One process that never starts a thread forks a child for each step.

Run as ``python tests/faults/self_reading.py --cases 100 --where threads --seed 0 --json out.json``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import dask
import dask.array as da
import numpy as np
import zarr
from obstore.store import S3Store  # noqa: F401 (imported before processes are forked)

import shardwrite

sys.path.insert(0, str(Path(__file__).parents[1] / "buckets"))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import servers
from effects import before_effect
from in_buckets import in_child, in_other_process, run_by_child, scratch_directory, until
from kills import child
from leftovers import left_over
from update_cuts import STRATEGIES

for _name in shardwrite.__all__:  # everything is imported before processes are forked
    getattr(shardwrite, _name)

SHAPE, SHARDS, CHUNKS = (48, 60), (16, 20), (8, 5)
WHERE = ("threads", "workers", "moto")
AGAIN = 0.4
"""How often the call that goes on is killed, too."""
KEPT = {"zarr.json", "shardwrite-receipt.json"}


# ---- Twelve calls, each with what numpy makes of the arrays


def values(version: int) -> np.ndarray:
    n = np.arange(np.prod(SHAPE), dtype=np.int64).reshape(SHAPE)
    return ((n * 7919 + version * 104729) % 1_000_003 + 1).astype(np.int32)


OTHER = values(2) % 5


@dataclass(frozen=True)
class Call:
    """One call.

    Attributes
    ----------
    act : callable
        Makes it, given the root of both arrays, and keywords.
    numpy : callable
        Gives both arrays after it, given the arrays before it.
    """

    act: Callable
    numpy: Callable


def opened(root, name="x"):
    return shardwrite.from_sharded_zarr(f"{root}/{name}")


def update(make, region=...):
    def act(root, **how):
        made = make(opened(root)).astype(np.int32)
        return made.to_sharded_zarr(f"{root}/x", region=region, **how)

    return act


def alone(make, region=...):
    """What numpy makes of `x` alone."""

    def of(x, z):
        new = x.copy()
        new[region] = make(x)
        return new, z

    return of


def of_both(make, region=...):
    return Call(update(make, region), alone(make, region))


def where_other(y):
    xp = np if isinstance(y, np.ndarray) else da
    other = OTHER if xp is np else da.from_array(OTHER, chunks=(17, 60))
    return xp.where(y % 3 == 0, y, other)


def opens_it(root):
    """A block function that opens the array by itself."""

    def block(block, block_info=None):
        where = tuple(slice(a, b) for a, b in block_info[0]["array-location"])
        there = shardwrite.open_sharded(f"{root}/x")
        return there[(slice(None), slice(None))][::-1][where] + block

    return block


def unseen(root, **how):
    ones = da.ones(SHAPE, dtype=np.int32, chunks=(20, 30))
    made = ones.map_blocks(opens_it(root), dtype=np.int32)
    return made.to_sharded_zarr(f"{root}/x", region=..., staged=True, **how)


def swap_regions(root, **how):
    y, path = opened(root), f"{root}/x"
    halves = [np.s_[:16], np.s_[32:48]]
    return shardwrite.store([y[32:48], y[:16]], [path] * 2, regions=halves, **how)


def swapped(x, z):
    return np.concatenate([x[32:48], x[16:32], x[:16]]), z


def swap_arrays(root, **how):
    arrays = [opened(root, "z"), opened(root, "x")]
    return shardwrite.store(arrays, [f"{root}/x", f"{root}/z"], regions=..., **how)


def append(root, **how):
    made = opened(root)[: SHAPE[0]] * 2
    return made.to_sharded_zarr(f"{root}/x", region="append", axis=0, **how)


CALLS = {
    "plus one": of_both(lambda y: y + 1),
    "flip": of_both(lambda y: y[::-1]),
    "roll": Call(update(lambda y: da.roll(y, 7, axis=1)), alone(lambda x: np.roll(x, 7, axis=1))),
    "shift": of_both(lambda y: y[:-11], np.s_[11:]),
    "where": of_both(where_other),
    "transpose": of_both(lambda y: y[:40, :40].T, np.s_[2:42, 5:45]),
    "running sum": of_both(lambda y: y.cumsum(axis=0) % 1_000_003),
    "less its mean": of_both(lambda y: y - y.sum() // y.size),
    "swap of regions": Call(swap_regions, swapped),
    "swap of arrays": Call(swap_arrays, lambda x, z: (z, x)),
    "append": Call(append, lambda x, z: (np.concatenate([x, 2 * x]), z)),
    "opened by itself": Call(unseen, alone(lambda x: x[::-1] + 1)),
}


# ---- Cases


@dataclass
class Case:
    """A call that is killed, and what came of it.

    Attributes
    ----------
    call, strategy, where : str
        What was killed, how shards are changed, and who ran the tasks, or where the arrays lie.
    kills : int
        How often it was killed.
    lost : int
        Whether values are not those of one application.
    left : int
        Names that were left over.
    trouble : str
        What went wrong.
    """

    call: str
    strategy: str
    where: str
    kills: int = 0
    lost: int = 0
    left: int = 0
    trouble: str = ""


def draw(number: int, where: str) -> Case:
    """Each call with each strategy, one after the other."""
    calls, strategies = list(CALLS), list(STRATEGIES)
    number %= len(calls) * len(strategies)
    strategy = strategies[(number + number // len(calls)) % len(strategies)]
    return Case(calls[number % len(calls)], strategy if where != "moto" else "replace", where)


def make(root: str) -> None:
    with dask.config.set(scheduler="sync"):
        for version, name in enumerate("xz"):
            x = da.from_array(values(version), chunks=SHARDS)
            x.to_sharded_zarr(f"{root}/{name}", shards=SHARDS, chunks=CHUNKS)


def act(case: Case, root: str, notes: Path, kill_at: int = 0) -> None:
    """The call. With `kill_at`, it is killed before that effect.

    In `notes`, ``begun`` appears when it begins, and ``extent`` when it has ended.
    """
    how = {"strategy": STRATEGIES[case.strategy], "source_id": "it"}
    call, begun, extent = CALLS[case.call].act, notes / "begun", notes / "extent"

    def timed() -> None:
        since = time.monotonic()
        call(root, **how)
        extent.write_text(str(time.monotonic() - since))

    def strike(_: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if case.where == "workers":
        from distributed import Client

        with Client(os.environ["SELF_READING_CLUSTER"]) as client:
            client.wait_for_workers(1, timeout=60)  # of which one may have been killed before
            begun.write_text(json.dumps(list(client.run(os.getpid).values())))
            timed()
        return
    with dask.config.set(scheduler="threads", num_workers=2):
        if case.where == "moto":
            begun.touch()
            timed()
            return
        with before_effect(kill_at, strike) as n_effects:
            call(root, **how)
        extent.write_text(str(n_effects()))


@contextlib.contextmanager
def two_workers():
    """Address of a cluster of this process."""
    from distributed import LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        yield cluster.scheduler_address


def cluster_of_two():
    """A cluster that another process runs; its address."""
    return run_by_child(two_workers, "the cluster", is_killed=True)


def judge(case: Case, root: str, notes: Path) -> None:
    """Readers see one application; what is left over is noted."""
    wanted = CALLS[case.call].numpy(values(0), values(1))
    for name, new in zip("xz", wanted, strict=True):
        found = shardwrite.open_sharded(f"{root}/{name}")
        np.testing.assert_array_equal(found[(slice(None),) * 2], new, err_msg=f"lost: {name}")
        if case.where != "moto":
            np.testing.assert_array_equal(zarr.open_array(f"{root}/{name}")[...], new)
    assert shardwrite.verify(f"{root}/x", deep=True).is_good
    if case.where == "moto":
        prefix = servers.below_bucket(root)
        keys = servers.Server(os.environ["AWS_ENDPOINT_URL"]).keys(prefix)
        left = [k for k in keys if "/c/" not in k and k.rpartition("/")[2] not in KEPT]
    else:
        left = left_over(Path(root), own=())
    notes.write_text("\n".join(left))


@contextlib.contextmanager
def place(case: Case, seed: int, number: int, scratch: Path):
    if case.where == "moto":
        yield f"s3://{servers.BUCKET}/case-{seed}-{number}"
        return
    home = scratch / f"case-{seed}-{number}"
    home.mkdir()
    yield str(home)
    shutil.rmtree(home)


def measured(case: Case, seed: int, scratch: Path) -> float:
    """Effects that a call has with threads, or its seconds."""
    with place(case, seed, -1 - list(CALLS).index(case.call), scratch) as root:
        trouble = in_child(scratch, make, root)
        trouble += in_child(scratch, act, case, root, scratch)
        trouble += in_child(scratch, judge, case, root, scratch / "left")
        left = (scratch / "left").read_text() if not trouble else ""
        assert trouble + left == "", (case, trouble, left)
        return float((scratch / "extent").read_text())


def kill(case: Case, root: str, scratch: Path, extent: float, rng: np.random.Generator) -> bool:
    """Kill the call once; whether it was interrupted."""
    log, begun = scratch / "log", scratch / "begun"
    log.unlink(missing_ok=True)
    begun.unlink(missing_ok=True)
    if case.where == "threads":
        at = int(rng.integers(1, int(extent) + 1))
        pid = child(act, case, root, scratch, at, log=log)
    else:
        pid = child(act, case, root, scratch, log=log)
        until(begun.exists, pid, 300)  # workers that were killed before come back
        if case.where == "workers" and rng.random() < 0.5:
            until(lambda: False, pid, float(rng.uniform(0, extent)))
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(rng.choice(json.loads(begun.read_text()))), signal.SIGKILL)
            (scratch / "struck").touch()
        until(lambda: False, pid, float(rng.uniform(0, extent)))
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status) and status:
        case.trouble += log.read_text()
    return os.WIFSIGNALED(status)


def run_case(case: Case, seed: int, number: int, scratch: Path, extent: float) -> Case:
    rng = np.random.default_rng([seed, number])
    with place(case, seed, number, scratch) as root:
        case.trouble = in_child(scratch, make, root)
        while kill(case, root, scratch, extent, rng):
            case.kills += 1
            if rng.random() > AGAIN:
                break
        case.trouble += in_child(scratch, act, case, root, scratch)
        wrong = in_child(scratch, judge, case, root, scratch / "left")
        case.lost = int("Mismatched" in wrong or "Shape" in wrong or "shape" in wrong)
        case.trouble += wrong
        left = (scratch / "left").read_text().split() if not wrong else []
        case.left = len(left)
        if left:
            case.trouble += f"left over: {left}"
    return case


def run(n_cases: int, seed: int, where: str, begin: int = 0) -> list[Case]:
    """Cases in one place, one after the other."""
    cases, known = [], {}
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(scratch_directory())
        struck, cluster = scratch / "struck", stack.enter_context(contextlib.ExitStack())
        if where == "moto":
            os.environ.update(stack.enter_context(in_other_process("moto")).environment)
        for number in range(begin, begin + n_cases):
            if where == "workers" and (number == begin or struck.exists()):
                cluster.close()
                os.environ["SELF_READING_CLUSTER"] = cluster.enter_context(cluster_of_two())
                struck.unlink(missing_ok=True)
            case = draw(number, where)
            what = case.call, case.strategy
            if what not in known:
                known[what] = measured(draw(number, where), seed, scratch)
            cases.append(run_case(case, seed, number, scratch, known[what]))
    return cases


def summary(cases: list[Case]) -> dict:
    """Totals."""
    return {
        "cases": len(cases),
        "kills": sum(case.kills for case in cases),
        "vacuous": sum(not case.kills for case in cases),
        "acked": None,
        "torn": 0,
        **{name: sum(getattr(case, name) for case in cases) for name in ("lost", "left")},
        "calls": dict(Counter(case.call for case in cases if case.kills)),
        "strategies": dict(Counter(case.strategy for case in cases if case.kills)),
        "troubles": [
            f"{case.call}, {case.strategy}, {case.where}: {case.trouble}"
            for case in cases
            if case.trouble
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=48)
    parser.add_argument("--begin", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--where", choices=WHERE, default="threads")
    parser.add_argument("--json", help="write every case to this file")
    given = parser.parse_args()
    cases = run(given.cases, given.seed, given.where, given.begin)
    if given.json:
        document = {"summary": summary(cases), "cases": [asdict(case) for case in cases]}
        Path(given.json).write_text(json.dumps(document))
    print(json.dumps(summary(cases), indent=1))


if __name__ == "__main__":
    main()

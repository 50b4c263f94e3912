"""A crash test that runs for as long as it is let.

Clients work on one tree of arrays, a fault strikes, everything is judged, what was interrupted is
ended, and everything is judged again; and so on with the same tree. What each array must hold is
kept outside the tree and judged by zarr-python (see `checker.py`).

Run as ``python -m tests.crash --minutes 10``. It prints its seed. A failure is tried again with
fewer operations, the shortest history that fails is printed, and the trees before and after it are
kept. Results are lines of JSON in ``--directory``; ``--summary FILES`` adds them up, and ``--keep``
appends the sums of each file to ``tests/crash/runs.jsonl``, of which docs/reliability-measured.md
tells (see `campaign.py`). Several can run at once, with seeds and directories of their own.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))
sys.path.insert(0, str(Path(__file__).parents[1] / "buckets"))
import preloaded
from helpers import MEMORY

HERE = Path(__file__).parent

KEPT = HERE / "runs.jsonl"
ROUNDS = 40  # of one tree


def warm_up() -> None:
    """Import everything, and do some of it once, before processes are forked."""
    import distributed  # noqa: F401
    import zarr.core.sync

    import shardwrite

    for name in shardwrite.__all__:
        getattr(shardwrite, name)
    import rounds
    import worlds
    from operations import Client, Log, draw

    with tempfile.TemporaryDirectory() as directory:
        world = worlds.World(Path(directory))
        zarr.create_group(world.root)
        log = Log(Path(directory) / "log", "warm")
        for kind, name in (("write", "a"), ("update", "a"), ("write", "s"), ("stream", "s")):
            operation = draw(random.Random(1), kind, name, 1, world)
            rounds.attempt(Client(world, log), {**operation, "scheduler": "sync", "by": "path"})
        log.close()
        shardwrite.verify(world.place("a"), deep=True)
        rounds.checker.look(world.store(), "a")
    zarr.core.sync.cleanup_resources()  # its threads would not be there in a child
    for thread in threading.enumerate()[1:]:
        thread.join(5)
    assert threading.active_count() == 1, threading.enumerate()
    gc.freeze()


def commit() -> str:
    command = ["git", "-C", str(HERE), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "unknown"


def run(given: argparse.Namespace, directory: Path) -> int:
    """Trees, one after the other, until time is up or something is wrong; how often it was."""
    import worlds

    at, end, number, n_failures = commit(), time.monotonic() + given.minutes * 60, given.first, 0
    names = [name for name in given.worlds if not worlds.WORLDS[name].missing()]
    while time.monotonic() < end and number < given.first + given.rounds:
        rng = random.Random(f"{given.seed} {number}")
        name = rng.choices(names, [given.worlds[name] for name in names])[0]
        with (directory / "results.jsonl").open("a") as results:
            for line in run_tree(given, directory, name, rng, number, end):
                fixed = {"seed": given.seed, "commit": at, "world": name, "options": given.without}
                results.write(json.dumps({**fixed, **line}) + "\n")
                results.flush()
                number += 1
                n_failures += bool(line["troubles"])
        if n_failures and not given.go_on:
            break
    print(f"{number - given.first} rounds, {n_failures} failures", flush=True)
    return n_failures


def run_tree(given, directory: Path, name: str, rng: random.Random, first: int, end: float) -> Any:
    """The rounds of one tree, each as a line of the results."""
    import plans
    import shrinking
    import worlds
    from rounds import Campaign

    outside, version = directory / "outside", 0
    shutil.rmtree(outside, ignore_errors=True)
    world = worlds.WORLDS[name](directory)
    if given.faults:
        world.faults = {kind: n for kind, n in world.faults.items() if kind in given.faults}
    with world.opened():
        campaign = Campaign(world, outside)
        campaign.begin(consolidated=rng.random() < 0.5)
        for number in range(first, min(first + ROUNDS, given.first + given.rounds)):
            if time.monotonic() > end:
                return
            rng, started = random.Random(f"{given.seed} {number}"), time.monotonic()
            plan = plans.draw(rng, number, campaign, version, given.without)
            version = plan["version"]
            with (outside / "plans.jsonl").open("a") as file:
                file.write(json.dumps(plan) + "\n")
            snapshot = shrinking.Snapshot(campaign, directory / "before")
            outcome = campaign.run(plan)
            yield {
                "round": number,
                "fault": plan["fault"]["kind"],
                "settle": plan["settle"],
                **vars(outcome),
                "seconds": round(time.monotonic() - started, 3),
            }
            if outcome.troubles:
                kept = directory / f"failed-{given.seed}-{number}"
                shutil.rmtree(kept, ignore_errors=True)
                for part in (world.tree(), outside, directory / "before"):
                    shutil.copytree(part, kept / part.name, symlinks=True)
                print(f"\nround {number}, {name}\n{shrinking.told(plan)}")
                print("\n".join(outcome.troubles), flush=True)
                if given.shrink:
                    shorter, outcome, n_failed = shrinking.shrink(snapshot, plan, outcome)
                    print(f"failed again {n_failed} of {shrinking.TRIES} times; the shortest:")
                    print(f"{shrinking.told(shorter)}\n" + "\n".join(outcome.troubles), flush=True)
                return


def summary(files: list[Path]) -> dict[str, Any]:
    """Sums over stored results."""
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    sums: dict[str, Counter[str]] = {name: Counter() for name in ("operations", "ends", "faults")}
    for line in lines:
        for name in ("operations", "ends"):
            sums[name].update(line[name])
        sums["faults"][line["fault"]] += line["fired"]
    words = Counter(text.partition(":")[0] for line in lines for text in line["troubles"])
    return {
        "commits": sorted({line["commit"] for line in lines}),
        "seeds": len({line["seed"] for line in lines}),
        "restarts": len(lines),
        "vacuous": sum(not line["fired"] for line in lines),
        "acked": sum(line["acked"] for line in lines),
        "readings": sum(line.get("readings", 0) for line in lines),
        "failed rounds": sum(bool(line["troubles"]) for line in lines),
        "troubles": words,
        "hours": round(sum(line["seconds"] for line in lines) / 3600, 2),
        **sums,
    }


def main() -> int:
    worlds = {"directory": 6, "small disk": 2, "power": 2, "bucket": 2}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=10**9, help="end after so many")
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--directory", type=Path, help="for trees, results and failures")
    parser.add_argument("--resume", type=Path, help="go on in this directory, with its seed")
    parser.add_argument("--worlds", nargs="+", choices=worlds, default=[*worlds])
    parser.add_argument("--faults", nargs="+", help="of the worlds; all by default")
    parser.add_argument("--without", nargs="*", default=[], help="operations to leave out")
    parser.add_argument("--go-on", action="store_true", help="after failures, with a new tree")
    parser.add_argument("--shrink", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--summary", nargs="+", type=Path, help="add up results, and do no more")
    parser.add_argument("--keep", action="store_true", help="store the sums of each file")
    given = parser.parse_args()
    if given.summary:
        if given.keep:
            with KEPT.open("a") as file:
                file.writelines(json.dumps(summary([path])) + "\n" for path in given.summary)
        print(json.dumps(summary(given.summary), indent=1))
        return 0
    if why := preloaded.missing():
        sys.exit(why)
    if "SHIM" not in os.environ:
        with tempfile.TemporaryDirectory() as directory:
            command = [
                sys.executable,
                "-m",
                "tests.crash",
                *sys.argv[1:],
                "--seed",
                str(given.seed),
            ]
            environment = preloaded.environment(preloaded.build(Path(directory)))
            return subprocess.run(command, env=environment, check=False).returncode
    if given.resume:
        given.directory = given.resume
        last = json.loads((given.resume / "results.jsonl").read_text().splitlines()[-1])
        given.seed, given.first = last["seed"], last["round"] + 1
    place = MEMORY
    with contextlib.ExitStack() as stack:
        directory = given.directory
        if directory is None:
            directory = Path(tempfile.mkdtemp(prefix="crash-", dir=place))
        directory.mkdir(parents=True, exist_ok=True)
        given.worlds = {name: worlds[name] for name in given.worlds}
        print(f"seed {given.seed}, in {directory}", flush=True)
        warm_up()
        n_failures = run(given, directory.resolve())
        if not n_failures and given.directory is None:
            stack.callback(shutil.rmtree, directory)
    return 1 if n_failures else 0


if __name__ == "__main__":
    sys.exit(main())

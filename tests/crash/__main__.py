"""A crash test that runs for as long as it is let.

Clients work on one tree of arrays, a fault strikes, everything is judged, what was interrupted is
ended, everything is judged again; and so on with the same tree. What each array must hold is kept
outside the tree and judged by zarr-python (`checker.py`).

Run as ``python -m tests.crash --minutes 10``. It prints its seed. A failure is tried again with
fewer operations, and the shortest history that fails is printed; the tree before and after it is
kept. Results are lines of JSON in ``--directory``; ``--summary FILES`` adds them up.
"""

from __future__ import annotations

import argparse
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
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "faults"), str(HERE.parent / "buckets")]
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import preloaded

FAULTS = {"none": 1, "kill": 4, "kill at": 6, "fail": 4, "freeze": 1}
ROUNDS = 40
"""Of one tree."""


def warm_up() -> None:
    """Import everything, and do some of it once, before processes are forked."""
    import distributed  # noqa: F401
    import zarr.core.sync

    import shardwrite

    for name in shardwrite.__all__:
        getattr(shardwrite, name)
    import rounds

    with tempfile.TemporaryDirectory() as directory:
        campaign = rounds.Campaign(Path(directory) / "tree", Path(directory) / "outside")
        zarr.create_group(campaign.root)
        log = rounds.Log(campaign.outside / "log", "warm")
        for kind, name in (("write", "a"), ("update", "a"), ("write", "s"), ("stream", "s")):
            operation = rounds.operations.draw(random.Random(1), kind, name, 1, ["none"])
            rounds.attempt(
                rounds.Client(campaign.root, log), {**operation, "scheduler": "sync", "by": "path"}
            )
        rounds.shardwrite.verify(campaign.root / "a", deep=True)
        rounds.checker.look(zarr.storage.LocalStore(campaign.root), "a")
    zarr.core.sync.cleanup_resources()  # its thread would not be there in a child
    for thread in threading.enumerate()[1:]:
        thread.join(5)
    assert threading.active_count() == 1, threading.enumerate()
    gc.freeze()


def commit() -> str:
    run = subprocess.run(
        ["git", "-C", HERE, "describe", "--always", "--dirty"], capture_output=True, text=True
    )
    return run.stdout.strip() or "unknown"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=10**9, help="end after so many")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--directory", type=Path, help="for trees, results and failures")
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=[*FAULTS])
    parser.add_argument("--without", nargs="*", default=[], help="operations to leave out")
    parser.add_argument("--go-on", action="store_true", help="after failures, with a new tree")
    given = parser.parse_args()
    if why := preloaded.missing():
        sys.exit(why)
    if "SHIM" not in os.environ:
        with tempfile.TemporaryDirectory() as directory:
            environment = preloaded.environment(preloaded.build(Path(directory)))
            command = [sys.executable, "-m", "tests.crash", *sys.argv[1:]]
            if "--seed" not in sys.argv:
                command += ["--seed", str(given.seed)]
            return subprocess.run(command, env=environment, check=False).returncode
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    directory = given.directory or Path(tempfile.mkdtemp(prefix="crash-", dir=place))
    directory.mkdir(parents=True, exist_ok=True)
    print(f"seed {given.seed}, in {directory}", flush=True)
    warm_up()
    return run(given, directory)


def run(given, directory: Path) -> int:
    import rounds

    at, end, number, n_failures = commit(), time.monotonic() + given.minutes * 60, 0, 0
    results = (directory / "results.jsonl").open("a")
    options = {
        "without": given.without,
        "faults": {name: FAULTS[name] for name in given.faults},
        "durabilities": ["full", "batch", "none"],
    }
    campaign = None
    while time.monotonic() < end and number < given.rounds:
        rng = random.Random(f"{given.seed} {number}")
        if campaign is None or campaign.n_rounds == ROUNDS:
            tree = directory / "tree"
            shutil.rmtree(tree, ignore_errors=True)
            shutil.rmtree(directory / "outside", ignore_errors=True)
            campaign, options["version"] = rounds.Campaign(tree, directory / "outside"), 0
            campaign.begin(consolidated=rng.random() < 0.5)
        plan = rounds.draw(rng, number, campaign, options)
        options["version"] = plan["version"]
        with (campaign.outside / "plans.jsonl").open("a") as plans:
            plans.write(json.dumps(plan) + "\n")
        started = time.monotonic()
        outcome = campaign.run(plan)
        campaign.n_rounds += 1
        line = {
            "seed": given.seed,
            "round": number,
            "commit": at,
            "fault": plan["fault"]["kind"],
            "fired": outcome.fired,
            "settle": plan["settle"],
            "operations": outcome.operations,
            "ends": outcome.ends,
            "acked": outcome.acked,
            "troubles": outcome.troubles,
            "seconds": round(time.monotonic() - started, 3),
        }
        results.write(json.dumps(line) + "\n")
        results.flush()
        if outcome.troubles:
            n_failures += 1
            print(json.dumps(plan))
            print("\n".join(outcome.troubles), flush=True)
            for part in ("tree", "outside"):
                shutil.copytree(directory / part, directory / f"failed-{number}" / part)
            campaign = None
            if not given.go_on:
                return 1
        number += 1
    print(f"{number} rounds, {n_failures} failures")
    return 1 if n_failures else 0


if __name__ == "__main__":
    sys.exit(main())

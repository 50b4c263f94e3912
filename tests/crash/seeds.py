"""Bugs that are put into copies of the package, and how long the crash test takes to find each.

A finding counts only if the same rounds find nothing in a copy without the bug.

Run as ``python -m tests.crash.seeds --minutes 10``, or with ``--bugs NAME ...``. Each line that it
prints is also appended to ``tests/crash/bugs.jsonl`` with ``--keep``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PLACES = (HERE / "bugs", HERE.parent / "faults" / "bugs")
BY_FAULT = {
    ("power", "cut"): ("no-fsync", "no-directory-fsync", "renamed-before-sync"),
    ("directory", "freeze"): ("late-rename", "token-not-opened", "removed-by-path"),
    ("directory", "slow", "none"): ("lease-not-renewed", "lease-ignored"),
    ("directory", "fail"): ("ack-before-rename", "short-write-ignored", "entered-before-committed"),
    ("directory", "kill at"): (
        "index-before-data",
        "record-after-change",
        "recovered-in-place",
        "removed-too-early",
    ),
    ("directory", "none", "freeze"): ("shared-temporary-name",),
}
BUGS = {
    bug: ("--worlds", world, "--faults", *faults)
    for (world, *faults), bugs in BY_FAULT.items()
    for bug in bugs
}
"""The faults that can show each bug, with all operations and options."""


def copied(to: Path, bug: str) -> None:
    """A copy of the package and of the crash test, with a bug or, by its empty name, without."""
    ignored = shutil.ignore_patterns("__pycache__", "node_modules")
    for part in ("shardwrite", "tests/crash", "tests/faults", "tests/buckets", "tests/forks"):
        shutil.copytree(ROOT / part, to / part, ignore=ignored)
    for file in ("__init__", "helpers", "seams"):  # other packages are called "tests", too
        shutil.copy(ROOT / f"tests/{file}.py", to / "tests")
    for place in PLACES if bug else ():
        if (place / f"{bug}.patch").exists():
            with (place / f"{bug}.patch").open() as patch:
                command = ["patch", "-p1", "--quiet", "--fuzz=0"]
                subprocess.run(command, stdin=patch, cwd=to, check=True)
            return
    if bug:
        raise FileNotFoundError(bug)


def hunt(bug: str, minutes: float, seed: int, *more: str) -> dict:
    """Run the crash test on a copy until it finds something; when, what it was, and if the same
    rounds find something without the bug, too."""
    begin = time.monotonic()
    options = [*BUGS.get(bug, []), *more]
    lines = rounds_of(bug, seed, "--minutes", str(minutes), *options)
    seconds, troubles = time.monotonic() - begin, lines[-1]["troubles"]
    control = []
    if troubles and bug:
        control = rounds_of("", seed, "--rounds", str(len(lines)), *options)[-1]["troubles"]
    return {
        "bug": bug,
        "seed": seed,
        "options": " ".join(options),
        "seconds": round(seconds, 1),
        "restarts": len(lines),
        "said": troubles[0][:200] if troubles else "",
        "control": control[0][:200] if control else "",
    }


def rounds_of(bug: str, seed: int, *options: str) -> list[dict]:
    """What the rounds of a crash test on a copy came to; the first failure ends it."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="crash-bug-", dir=place) as directory:
        root, out = Path(directory) / "copy", Path(directory) / "out"
        copied(root, bug)
        environment = {k: v for k, v in os.environ.items() if k not in ("SHIM", "LD_PRELOAD")}
        command = [sys.executable, "-m", "tests.crash", "--seed", str(seed), *options]
        ended = subprocess.run(
            [*command, "--directory", str(out), "--no-shrink"],
            cwd=root,
            env={**environment, "PYTHONPATH": str(root)},
            capture_output=True,
            text=True,
            check=False,
        )
        lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
        if bool(lines[-1]["troubles"]) != bool(ended.returncode):
            raise RuntimeError(ended.stderr[-3000:])
        return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--bugs", nargs="+", choices=BUGS, default=[*BUGS])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", action="store_true")
    given, more = parser.parse_known_args()
    n_missed = 0
    for bug in given.bugs:
        line = hunt(bug, given.minutes, given.seed, *more)
        n_missed += not line["said"] or bool(line["control"])
        print(json.dumps(line), flush=True)
        if given.keep:
            with (HERE / "bugs.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
    return 1 if n_missed else 0


if __name__ == "__main__":
    sys.exit(main())

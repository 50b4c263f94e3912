"""Compare checkouts of the package: `python -m benchmarks.trees --trees OLD,NEW --dir /dev/shm/x`.

Checkouts take turns, and each measurement is a fresh process that runs the checkout's own
`benchmarks.one`. The first checkout is measured twice under two names. The ratio between these two
shows how far equal code differs here.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.cases import SCALES, Case, select
from benchmarks.contestants import CONTESTANTS
from benchmarks.data import ensure_source

__all__ = ["Runs", "main"]

_CONTESTANT = "shardwrite"


class Runs:
    """Seconds of each checkout for one case.

    Parameters
    ----------
    names : list of str
        Names of the checkouts; the first two stand for the same one.
    """

    def __init__(self, names: list[str]) -> None:
        self.seconds: dict[str, list[float]] = {name: [] for name in names}

    def add(self, name: str, seconds: float) -> None:
        """Add a measurement of a checkout."""
        self.seconds[name].append(seconds)

    def ratio(self, name: str) -> float:
        """Median time of a checkout over that of the first one."""
        first = next(iter(self.seconds))
        return statistics.median(self.seconds[name]) / statistics.median(self.seconds[first])

    def is_slower(self, name: str) -> bool:
        """Whether a checkout takes longer than the first by more than 3 % and more than A/A."""
        again = list(self.seconds)[1]
        return self.ratio(name) - 1 > max(0.03, abs(self.ratio(again) - 1))


def _measure(case: Case, tree: Path, options: argparse.Namespace, sources: Path) -> float:
    """Seconds of one write by a checkout, in a fresh process."""
    with tempfile.TemporaryDirectory(dir=options.dir) as directory:
        place = Path(directory)
        result = place / "result.json"
        (place / "run").mkdir()
        command = [sys.executable, "-m", "benchmarks.one", case.name, _CONTESTANT]
        command += [
            "--scale",
            options.scale,
            "--sources",
            str(sources),
            "--dir",
            str(place / "run"),
        ]
        command += ["--threads", str(options.threads), "--result", str(result)]
        ended = subprocess.run(
            command,
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree)},
            capture_output=True,
            text=True,
            check=False,
        )
        measured = json.loads(result.read_text()) if result.exists() else {}
        if measured.get("status") != "ok":
            raise SystemExit(f"{tree}: {measured.get('reason') or ended.stderr[-2000:]}")
    return float(measured["seconds"])


def _table(found: dict[str, Runs], options: argparse.Namespace) -> Table:
    table = Table(
        title=f"seconds, medians of {options.repeats}, and times the first; scale {options.scale}"
    )
    names = list(next(iter(found.values())).seconds)
    for heading in ("case", *names):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for case, runs in found.items():
        cells = [
            f"{statistics.median(runs.seconds[name]):.3f} · {runs.ratio(name):.2f}"
            + ("  slower" if runs.is_slower(name) else "")
            for name in names
        ]
        table.add_row(case, *cells)
    return table


def main() -> int:
    """Measure as the command line says.

    Returns
    -------
    int
        1 if a checkout is slower than the first.
    """
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.trees", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("--trees", required=True, help="checkouts, comma-separated")
    parser.add_argument("--cases", default="", help="comma-separated names; all by default")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--scale", choices=SCALES, default="default")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dir", type=Path, help="where to write, and where sources are kept")
    options = parser.parse_args()
    trees = [Path(tree).resolve() for tree in options.trees.split(",")]
    places = {trees[0].name: trees[0], f"{trees[0].name} again": trees[0]}
    places |= {tree.name: tree for tree in trees[1:]}
    options.dir = Path(options.dir or tempfile.gettempdir()).resolve()
    options.dir.mkdir(parents=True, exist_ok=True)
    sources = options.dir / "sources"
    console = Console(width=None if sys.stdout.isatty() else 132)
    found: dict[str, Runs] = {}
    for case in select([part for part in options.cases.split(",") if part] or None):
        if not CONTESTANTS[_CONTESTANT].takes(case):
            continue
        ensure_source(case, options.scale, sources)
        runs = found[case.name] = Runs(list(places))
        for repeat in range(options.repeats):
            turn = repeat % len(places)
            for name in [*places][turn:] + [*places][:turn]:
                runs.add(name, _measure(case, places[name], options, sources))
        for name in places:
            console.print(f"{case.name} {name}: {runs.ratio(name):.3f}", highlight=False)
    console.print(_table(found, options))
    return int(any(runs.is_slower(name) for runs in found.values() for name in runs.seconds))


if __name__ == "__main__":
    sys.exit(main())

"""Compare writers side by side: `python -m benchmarks.side_by_side`.

Every measurement runs in a process of its own; contestants alternate, and each repeat starts with another one.
With ``--old``, a commit or a checkout, the contestant ``shardwrite-old`` is the package of that version. Give this
version itself to see how far two equal contestants differ.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.aims import aims_markdown, memory_markdown
from benchmarks.cases import SCALES, Case, select
from benchmarks.contestants import CONTESTANTS
from benchmarks.data import ensure_source
from benchmarks.lines import lines, rates_of
from benchmarks.measure import machine, versions
from benchmarks.report import Report, cell_text
from tests.commits import checked_out

__all__ = ["main", "run"]

_ROOT = Path(__file__).resolve().parent.parent


def _environment(name: str, threads: int, old: Path | None) -> dict[str, str]:
    environment = dict(os.environ)
    paths = [str(_ROOT)]
    if name == "shardwrite-old":
        paths.insert(0, str(old))
        environment["PYTHONSAFEPATH"] = "1"  # the directory of the process is that of this version
    paths = [*paths, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    count = str(threads)
    for variable in (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "RAYON_NUM_THREADS",
        "BLOSC_NTHREADS",
    ):
        environment[variable] = count
    return environment | CONTESTANTS[name].environment


def _package_of(commit: str, workplace: Path) -> Path:
    """A directory with nothing but the package of a version; the benchmarks are those of this one."""
    alone = workplace / "package"
    alone.mkdir()
    (alone / "shardwrite").symlink_to(checked_out(commit, workplace / "old") / "shardwrite")
    return alone


def _spawn(
    case: Case,
    name: str,
    options: argparse.Namespace,
    sources: Path,
    workplace: Path,
    old: Path | None,
) -> dict[str, Any]:
    """Measure once in a fresh process; whatever goes wrong there is a FAIL."""
    directory = Path(tempfile.mkdtemp(prefix="run-", dir=workplace))
    result = workplace / "result.json"
    result.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "benchmarks.one",
        case.name,
        name,
        "--scale",
        options.scale,
        "--sources",
        str(sources),
    ]
    command += ["--dir", str(directory), "--threads", str(options.threads), "--result", str(result)]
    if options.full_check or options.scale == "small":
        command.append("--full-check")
    if options.cold:
        command.append("--cold")
    try:
        ended = subprocess.run(
            command,
            env=_environment(name, options.threads, old),
            cwd=_ROOT,
            capture_output=True,
            text=True,
            timeout=options.timeout,
            check=False,
        )
        if result.exists():
            measured: dict[str, Any] = json.loads(result.read_text())
            return measured
        return {
            "status": "FAIL",
            "reason": f"ended with {ended.returncode}",
            "trace": ended.stderr[-2000:],
        }
    except subprocess.TimeoutExpired:
        return {"status": "FAIL", "reason": f"longer than {options.timeout} s"}
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def run(options: argparse.Namespace, console: Console) -> Report:
    """Measure everything that the options ask for.

    Parameters
    ----------
    options : argparse.Namespace
        The command line.
    console : rich.console.Console
        For progress.

    Returns
    -------
    Report
        All figures.
    """
    cases = select(options.cases)
    names: list[str] = options.contestants
    base = Path(options.dir).resolve() if options.dir else None
    if base is not None:
        base.mkdir(parents=True, exist_ok=True)
    workplace = Path(tempfile.mkdtemp(prefix="side-by-side-", dir=base))
    sources = (base or workplace) / "sources"
    try:
        old = _package_of(options.old, workplace) if options.old else None
        report = Report(
            machine=machine(workplace),
            versions=versions(),
            settings={
                "scale": options.scale,
                "threads": options.threads,
                "repeats": options.repeats,
                "once_above": options.once_above,
                "contestants": names,
                "old": options.old,
            },
        )
        for case in cases:
            ensure_source(case, options.scale, sources)
            for repeat in range(options.repeats):
                turn = repeat % len(names)
                for name in names[turn:] + names[:turn]:
                    if not CONTESTANTS[name].takes(case) or report.is_enough(
                        case, name, options.once_above
                    ):
                        continue
                    measured = _spawn(case, name, options, sources, workplace, old)
                    report.add(case, name, measured)
                    console.print(
                        f"{case.name} #{repeat + 1} {name}: {cell_text(measured)}",
                        highlight=False,
                        markup=False,
                    )
            if options.json:
                options.json.write_text(report.to_json())
    finally:
        shutil.rmtree(workplace, ignore_errors=True)
    return report


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def main() -> int:
    """Run the comparison that the command line asks for.

    Returns
    -------
    int
        1 where a measurement failed.
    """
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.side_by_side", description=__doc__.split("\n", maxsplit=1)[0]
    )
    parser.add_argument(
        "--cases",
        type=_names,
        help="comma-separated names; NAME* for all that begin so (default: all)",
    )
    usual = [name for name, entry in CONTESTANTS.items() if not entry.is_asked_for]
    parser.add_argument(
        "--contestants",
        type=_names,
        default=usual,
        help=f"comma-separated, of {', '.join(CONTESTANTS)}",
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--old", help="a commit, or a checkout, whose package is shardwrite-old")
    text = "who once took more than so many seconds for a case is not repeated there"
    parser.add_argument("--once-above", type=float, metavar="SECONDS", help=text)
    parser.add_argument("--scale", choices=SCALES, default="default")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--dir",
        type=Path,
        help="where to write; sources are kept there (default: a temporary directory)",
    )
    parser.add_argument(
        "--timeout", type=float, default=1800.0, help="seconds for one measurement, checks included"
    )
    parser.add_argument(
        "--full-check", action="store_true", help="read everything back, as always at scale small"
    )
    text = "measure the first write of a process, from a source that is not in the page cache"
    parser.add_argument("--cold", action="store_true", help=text)
    parser.add_argument("--json", type=Path, help="file for all raw figures")
    parser.add_argument("--markdown", type=Path, help="file for the tables")
    parser.add_argument(
        "--plot", type=Path, help="SVG file for throughput against the size of inner chunks"
    )
    options = parser.parse_args()
    try:
        select(options.cases)
    except ValueError as error:
        parser.error(str(error))
    if unknown := [name for name in options.contestants if name not in CONTESTANTS]:
        parser.error(
            f"no contestant is called {', '.join(unknown)}; there are {', '.join(CONTESTANTS)}"
        )
    if ("shardwrite-old" in options.contestants) != bool(options.old):
        parser.error("--old and the contestant shardwrite-old go together")
    console = Console()
    if not console.is_terminal:
        console = Console(width=132)
    report = run(options, console)
    report.print(console)
    console.print(aims_markdown(report), memory_markdown(report), highlight=False, markup=False)
    if options.json:
        options.json.write_text(report.to_json())
    if options.markdown:
        options.markdown.write_text(
            f"{report.to_markdown()}{aims_markdown(report)}{memory_markdown(report)}"
        )
    if options.plot:
        values = {
            case: {name: row.rate(name) for name in row.raw} for case, row in report.rows.items()
        }
        options.plot.write_text(lines(rates_of(values), "Throughput by size of inner chunks"))
    return int(report.failed)


if __name__ == "__main__":
    sys.exit(main())

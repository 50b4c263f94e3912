"""The page of figures: ``python -m benchmarks.figures --memory DIR --disk DIR`` measures everything and makes the page anew.

Each measurement is stored as soon as it is there, as a CSV file in ``docs/figures``. ``page`` makes the page from what is stored,
without measuring. ``check``, before a release, refuses measurements that are missing, too old, or not those of a commit, and losses
that nobody has explained. ``--tiny`` measures so little that only the command itself is tried; give it another ``--output``.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.aims import aims_markdown
from benchmarks.bars import bars
from benchmarks.lines import lines, rates_of
from benchmarks.measure import machine, versions
from benchmarks.questions import EQUAL, MEASUREMENTS, QUESTIONS, WHY_MISSED, Measurement, Question
from benchmarks.results import RATE, Results, numbers_of, report_of
from tests.commits import n_changes

__all__ = ["check", "main", "measure", "page"]

_ROOT = Path(__file__).resolve().parent.parent
_OUTPUT = _ROOT / "docs" / "figures.md"
_SIDE = "side-by-side"  # the measurement that other pages show, too
_AIMS = "aims.txt"  # a table, made from single repeats
MOST_CHANGES = 100
_HEAD = """# Figures

Each figure answers one question. One command measures all of them, and makes this page:

    python -m benchmarks.figures --memory /dev/shm/shardwrite --disk /path/on/a/disk

The [last section](#machine-and-versions) says how long that took. With `--only`, it measures some of
them, and `python -m benchmarks.figures page` makes the page of what is stored. You can also run each command
by itself; `MEMORY`, `DISK` and `SCRATCH` stand for directories. This is one of the small ones:

```bash
python -m benchmarks.codecs --mbytes 1 --repeats 1 --sides 32
```

For a summary, read [speed](speed.md). Before you look at numbers:

- The machine has two cores, and others use it, too. Ratios tell more than seconds do.
- Each measurement runs in a fresh process, contestants in turn. What was written is read back, and
  its layout is checked.
- Less than {equal:.0%} apart counts as equal. Where another program is better by more, the figure says
  so, and why.
- Everything is **warm** where nothing else is said. The first write of a process is
  [apart](#{cold}).
- Each figure links its numbers. The head of that file has the machine, all versions and the command.
"""


def _anchor(title: str) -> str:
    kept = "".join(c for c in title.lower() if c.isalnum() or c in " -")
    return kept.replace(" ", "-")


def _of(measurement: Measurement) -> list[str]:
    """Paths whose changes make the numbers old."""
    return [f"shardwrite/{folder}" for folder in measurement.of] or ["shardwrite"]


def measure(name: str, measurement: Measurement, places: dict[str, Path], *, tiny: bool) -> Results:
    """Run the commands of a measurement.

    Parameters
    ----------
    name : str
        What it is called.
    measurement : Measurement
        What to run.
    places : dict of str to Path
        What ``MEMORY`` and ``DISK`` stand for.
    tiny : bool
        Whether to run the commands that only show that they work.
    """
    commands = measurement.tiny if tiny else measurement.commands
    where = places["DISK" if any("DISK" in text for text in commands) else "MEMORY"]
    facts = {
        **machine(where),
        **versions(),
        "command": " && ".join(f"python -m {t}" for t in commands),
    }
    begun, numbers = time.monotonic(), []
    for text in commands:
        with tempfile.TemporaryDirectory() as scratch:
            words = shlex.split(text)
            for place, path in {**places, "SCRATCH": Path(scratch)}.items():
                words = [word.replace(place, str(path)) for word in words]
            ended = subprocess.run(
                [sys.executable, "-m", *words],
                cwd=_ROOT,
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            numbers += numbers_of(measurement.kind, ended.stdout, Path(scratch))
    if not numbers:
        raise SystemExit(f"{name}: the command has printed no numbers")
    facts["seconds"] = f"{time.monotonic() - begun:.0f}"
    return Results({key.replace("_", " "): str(value) for key, value in facts.items()}, numbers)


def _stored(directory: Path) -> dict[str, Results]:
    return {
        name: Results.read(directory / f"{name}.csv")
        for name in MEASUREMENTS
        if (directory / f"{name}.csv").exists()
    }


def check(directory: Path, most_changes: int) -> Iterator[str]:
    """Why these figures must not be released.

    Parameters
    ----------
    directory : Path
        Where the results are stored.
    most_changes : int
        How many changes of what was measured there may be since.
    """
    stored = _stored(directory)
    for name, measurement in MEASUREMENTS.items():
        if name not in stored:
            yield f"{name}: was never measured"
            continue
        commit = stored[name].commit
        if commit.endswith("+"):
            yield f"{name}: files differed from the commit {commit[:-1]}"
        changes = n_changes(commit.rstrip("+"), *_of(measurement))
        if changes is None:
            yield f"{name}: its commit {commit} is not in this clone: fetch all commits"
        elif changes > most_changes:
            yield f"{name}: is {changes:,} changes old"
    for name, question in QUESTIONS.items():
        if question.of in stored:
            if not question.shown(stored[question.of]):
                yield f"{name}: {question.of} has no numbers for it"
            for loss in question.losses(stored[question.of]):
                if not loss.cause:
                    yield f"{name}: nobody says why {loss.by} is better in {loss.case}"
    if (directory / _AIMS).exists():
        for aim, why in _missed((directory / _AIMS).read_text()):
            if not why:
                yield f"nobody says why this aim is missed: {aim}"


def page(output: Path) -> None:
    """Make the page and its figures from what is stored.

    Parameters
    ----------
    output : Path
        The page. Results and figures lie in a folder beside it, which has its name.
    """
    directory = output.with_suffix("")
    directory.mkdir(parents=True, exist_ok=True)
    stored = _stored(directory)
    parts = [_HEAD.format(equal=EQUAL, cold=_anchor(QUESTIONS["cold"].title))]
    for name, question in QUESTIONS.items():
        results = stored.get(question.of)
        parts.append(_section(name, question, results, directory))
    if (directory / _AIMS).exists():
        parts.append(_aims((directory / _AIMS).read_text()))
    parts.append(_circumstances(stored))
    if _SIDE in stored and (rates := rates_of(stored[_SIDE].values(RATE))):
        (directory / f"{_SIDE}.svg").write_text(lines(rates, "Throughput by size of inner chunks"))
    output.write_text("\n".join(parts))


def _missed(aims: str) -> Iterator[tuple[str, str]]:
    """Each aim that is missed, and why; nothing where nobody has said so."""
    for line in aims.splitlines():
        if "**missed**" in line:
            aim, _, ratio = (cell.strip() for cell in line.strip("|").split("|")[:3])
            yield f"{aim}: {ratio}", WHY_MISSED.get(aim, "")


def _aims(aims: str) -> str:
    lines = ["## What is aimed at", "", f"Of the measurement {_SIDE}:", "", aims]
    lines += [f"- **{aim}**. {why or 'Nobody has said why'}." for aim, why in _missed(aims)]
    return "\n".join([*lines, ""])


_MACHINE = ("cpu", "cores", "memory gib", "file system", "kernel")
_OTHERS = ("load at start", "date", "commit", "command", "seconds", "remark")


def _circumstances(stored: dict[str, Results]) -> str:
    """Machines and versions, each set of them once."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, results in stored.items():
        machine_text = ", ".join(f"{key} {results.facts[key]}" for key in _MACHINE)
        versions_text = ", ".join(
            f"{key} {value}"
            for key, value in results.facts.items()
            if key not in {*_MACHINE, *_OTHERS}
        )
        alike.setdefault((machine_text, versions_text), []).append(name)
    lines = ["## Machine and versions", "", "| measured | machine | versions |", "|---|---|---|"]
    for (machine_text, versions_text), names in alike.items():
        lines.append(f"| {', '.join(names)} | {machine_text} | {versions_text} |")
    seconds = sum(float(results.facts.get("seconds", 0)) for results in stored.values())
    lines += [
        "",
        f"What is stored took {seconds / 60:.0f} minutes to measure, as far as that was noted.",
        "",
    ]
    return "\n".join(lines)


def _section(name: str, question: Question, results: Results | None, directory: Path) -> str:
    measurement = MEASUREMENTS[question.of]
    lines = [f"## {question.title}", "", *(f"- {text}" for text in question.caveats), ""]
    lines += [question.about, ""]
    if results is None or not question.shown(results):
        lines += [
            f"This was not measured yet. `python -m benchmarks.figures --only {question.of}` does it.",
            "",
        ]
        return "\n".join(lines)
    drawn = bars(
        question.shown(results),
        title=question.title,
        unit=question.quantity,
        ours=question.ours,
        is_log=question.is_log,
    )
    (directory / f"{name}.svg").write_text(drawn)
    lines += [f"![{question.title}]({directory.name}/{name}.svg)", ""]
    for loss in question.losses(results):
        lines.append(
            f"- **{loss.case}**: {loss.by} has {loss.best:.3g}, and we have {loss.ours:.3g}. {loss.cause or 'Nobody has said why'}."
        )
    if lines[-1]:
        lines.append("")
    changes = n_changes(results.commit.rstrip("+"), *_of(measurement))
    since = "An unknown number of" if changes is None else f"{changes:,}"
    when = f"measured at the commit {results.commit} on {results.facts['date']}"
    between = f"{since} changes of what it measures came since"
    lines += [f"[Numbers]({directory.name}/{question.of}.csv), {when}. {between}.", ""]
    return "\n".join(lines)


def main() -> None:
    """Measure, make the page, or check."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.figures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("step", nargs="?", default="measure", choices=("measure", "page", "check"))
    parser.add_argument(
        "--only",
        default=",".join(MEASUREMENTS),
        help=f"comma-separated, of {', '.join(MEASUREMENTS)}",
    )
    parser.add_argument(
        "--memory", type=Path, help="a directory on a memory file system of 16 GiB or more"
    )
    parser.add_argument("--disk", type=Path, help="a directory on a disk")
    parser.add_argument(
        "--tiny", action="store_true", help="measure so little that it tells nothing"
    )
    parser.add_argument(
        "--most-changes", type=int, default=MOST_CHANGES, help="of what was measured"
    )
    parser.add_argument("--output", type=Path, default=_OUTPUT, help="the page")
    options = parser.parse_args()
    names = options.only.split(",")
    if unknown := [name for name in names if name not in MEASUREMENTS]:
        parser.error(f"nothing is called {', '.join(unknown)}")
    if options.step == "check":
        reasons = list(check(options.output.with_suffix(""), options.most_changes))
        print("\n".join(reasons) or "every figure is new")
        sys.exit(1 if reasons else 0)
    if options.step == "measure":
        if options.memory is None or options.disk is None:
            parser.error("give --memory and --disk")
        if options.tiny and options.output == _OUTPUT:
            parser.error("with --tiny, give another --output")
        places = {"MEMORY": options.memory.resolve(), "DISK": options.disk.resolve()}
        for directory in places.values():
            directory.mkdir(parents=True, exist_ok=True)
        for name in names:
            results = measure(name, MEASUREMENTS[name], places, tiny=options.tiny)
            directory = options.output.with_suffix("")
            results.write(directory / f"{name}.csv")
            if name == _SIDE:
                (directory / _AIMS).write_text(aims_markdown(report_of(results)).lstrip())
            print(f"{name}: {results.facts['seconds']} s", flush=True)
    page(options.output)


if __name__ == "__main__":
    main()

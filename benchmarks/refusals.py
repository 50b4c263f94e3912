"""How long a mistake waits for its message: ``python -m benchmarks.refusals``.

The mistakes are those of `tests/mistakes`, made in one process that has imported everything. Each is made several times, and the
fastest counts, since a mistake is found by the same work each time. The first time is shown beside it: it may import what no mistake
before it has needed. On a machine that has other things to do, look at the time of the processor. With ``--check``, the program ends
with 1 if the fastest call of a mistake takes longer than the limit.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shlex
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["LIMIT_SECONDS", "Refusal", "main", "refusals"]

LIMIT_SECONDS = 0.1
_MISTAKES = Path(__file__).resolve().parent.parent / "tests" / "mistakes"


@dataclass(frozen=True)
class Refusal:
    """How long one mistake took.

    Parameters
    ----------
    mistake : str
        Its name, or the command line.
    where : {"Python", "shell"}
        Where it is made.
    first, fastest : float
        Time of the first and of the fastest call, in seconds.
    processor : float
        Least time that the processor has spent on a call, in seconds.
    """

    mistake: str
    where: str
    first: float
    fastest: float
    processor: float


def _calls(place: Any) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """All mistakes: name, where they are made, and what makes them."""
    from click.testing import CliRunner

    test_mistakes = importlib.import_module("test_mistakes")

    def in_python(mistake: str) -> None:
        call, kind, *_ = test_mistakes.IN_PYTHON[mistake]
        try:
            call(place)
        except kind:
            return
        raise RuntimeError(f"{mistake}: it was not refused")

    def in_shell(line: str) -> None:
        ended = CliRunner().invoke(test_mistakes.main, shlex.split(line))
        if ended.exit_code != test_mistakes.ON_THE_COMMAND_LINE[line][0]:
            raise RuntimeError(f"{line}: it ended with {ended.exit_code}")

    for mistake in test_mistakes.IN_PYTHON:
        yield mistake, "Python", lambda mistake=mistake: in_python(mistake)  # type: ignore[misc]
    for line in test_mistakes.ON_THE_COMMAND_LINE:
        yield line, "shell", lambda line=line: in_shell(line)  # type: ignore[misc]


def refusals(directory: Path, repeats: int) -> list[Refusal]:
    """Make every mistake in a directory, and return how long each took, the slowest first.

    Parameters
    ----------
    directory : Path
        Where to write the files in which mistakes are made.
    repeats : int
        How often each is made.
    """
    import dask

    sys.path.insert(0, str(_MISTAKES))
    workplace = importlib.import_module("workplace")
    before, found = Path.cwd(), []
    try:
        with dask.config.set(scheduler="sync"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for mistake, where, call in _calls(workplace.Workplace(directory)):
                seconds, processor = [], []
                for _ in range(repeats):
                    begun, used = time.perf_counter(), time.process_time()
                    call()
                    seconds.append(time.perf_counter() - begun)
                    processor.append(time.process_time() - used)
                found.append(Refusal(mistake, where, seconds[0], min(seconds), min(processor)))
    finally:
        os.chdir(before)
        sys.path.remove(str(_MISTAKES))
    return sorted(found, key=lambda one: -one.fastest)


def main() -> None:
    """Arguments in, a table out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rows", type=int, default=10, help="how many of the slowest to print")
    parser.add_argument("--dir", type=Path, help="where to write (default: a temporary directory)")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--check", action="store_true", help="fail if a mistake takes too long")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir) as directory:
        found = refusals(Path(directory).resolve(), given.repeats)
    slow = sum(one.fastest > LIMIT_SECONDS for one in found)
    print(f"{len(found)} mistakes; {slow} take longer than {LIMIT_SECONDS:g} s\n")
    print("| all mistakes | median (ms) | slowest (ms) |\n|---|---:|---:|")
    for title, times in (
        ("fastest call", [one.fastest for one in found]),
        ("processor", [one.processor for one in found]),
    ):
        print(f"| {title} | {statistics.median(times) * 1e3:.1f} | {max(times) * 1e3:.1f} |")
    print()
    print("| the slowest mistakes | made in | fastest (ms) | processor (ms) | first (ms) |")
    print("|---|---|---:|---:|---:|")
    for one in found[: given.rows]:
        shown = one.mistake.replace("|", "\\|")
        times_ms = (1e3 * seconds for seconds in (one.fastest, one.processor, one.first))
        print(f"| {shown} | {one.where} | {' | '.join(f'{ms:.1f}' for ms in times_ms)} |")
    if given.json:
        given.json.write_text(json.dumps([asdict(one) for one in found], indent=2))
    sys.exit(given.check and slow > 0)


if __name__ == "__main__":
    main()

"""All figures of the documentation, from one command: ``python -m benchmarks.figures --memory DIR --disk DIR --output PAGE``.

Each part is a command of its own that anybody can run by itself; what it prints goes into the page, under the command. A part
that is not asked for stays as it is in the page.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import machine, versions

__all__ = ["PARTS", "Part", "main"]

_SLOW_SECONDS = 8
_SIDE = "benchmarks.side_by_side --markdown SCRATCH/table"
_LARGE = "zstd-64,zstd-16,lz4-64,lz4-16,none-64,none-16,gzip-64"
_SYNCED = "shardwrite-full,tensorstore-sync,shardwrite,tensorstore"
_ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Part:
    """One section of the page.

    Parameters
    ----------
    title : str
        Its heading.
    about : str
        What was done.
    commands : tuple of str
        Modules with their arguments; ``MEMORY``, ``DISK`` and ``SCRATCH`` stand for directories, ``PICTURE`` for a file beside the
        page. If there is a ``SCRATCH/table`` afterwards, it is taken, and not what is printed.
    """

    title: str
    about: str
    commands: tuple[str, ...]


PARTS: dict[str, Part] = {
    "side-by-side": Part(
        "Side by side",
        "1 GiB of uint16 (many-shards: 20,000 of 16 KiB) into a memory file system, contestants in turn, each measurement in "
        "a fresh process, what was written read back and its layout checked.",
        (
            f"{_SIDE} --scale default --repeats 3 --once-above {_SLOW_SECONDS} --dir MEMORY --plot PICTURE",
        ),
    ),
    "bare-loop": Part(
        "Against a bare loop, 4 GiB",
        "So much that what a run costs before its first shard and after its last does not decide.",
        (
            f"{_SIDE} --scale large --repeats 2 --cases {_LARGE} --contestants shardwrite,bare-loop --dir MEMORY",
        ),
    ),
    "durability": Part(
        "What durability costs, on a disk",
        "Level full (each shard and its directory synced, then acknowledged), against tensorstore as it comes (each file synced); "
        "and both without.",
        (
            f"{_SIDE} --scale small --repeats 3 --cases zstd-64,none-64,many-shards --contestants {_SYNCED} --dir DISK",
        ),
    ),
    "scale": Part(
        "A million shards",
        "Plans made, and tasks sent through a `distributed` scheduler to two workers that encode and write nothing; journal and "
        "reports are real. Then arrays of shards of 16 KiB, written with the threads of one process.",
        (
            "benchmarks.scale plan --sources blocks,shards,line --shards 10000,1000000,10000000",
            "benchmarks.scale run --sources blocks,shards --shards 10000,1000000 --directory MEMORY",
            "benchmarks.scale local --sources shards --shards 100000,1000000 --directory MEMORY",
        ),
    ),
    "scaling": Part(
        "Scaling",
        "512³ uint16 from blocks that the tasks make themselves (which is in the time, and does not depend on the writer). Strong: "
        "the same array for all; weak: an array for each thread. Threads in one process, or worker processes of a cluster; more "
        "threads than cores gain nothing.",
        (
            "benchmarks.throughput --directory MEMORY --workers 0,1,2 --threads 1,2 --scaling strong,weak --output SCRATCH/lines",
        ),
    ),
    "codecs": Part(
        "Implementations of codecs",
        "With the extra `fast`; `taken` is what shardwrite does.",
        ("benchmarks.codecs --dir MEMORY/sources",),
    ),
    "update": Part(
        "Updating one inner chunk",
        "Of 32,768 in a shard of 1 GiB of float32 (621 MB encoded); bytes of system calls.",
        ("benchmarks.update --repeats 3 --dir MEMORY",),
    ),
    "verify": Part(
        "Verifying",
        "128 MiB (many-shards: 2,000 shards), two threads, everything in the page cache.",
        ("benchmarks.verify --dir MEMORY",),
    ),
    "stream": Part(
        "Slices as an instrument gives them",
        "Slices of 8.4 MB one by one; `bare` is one thread that writes the same bytes from one buffer.",
        ("benchmarks.stream --dir MEMORY",),
    ),
    "first-call": Part(
        "The first call of a process",
        "CPU seconds of fresh processes, everything in the page cache.",
        ("benchmarks.start_up --dir MEMORY",),
    ),
    "precomputed": Part(
        "Volumes of Neuroglancer",
        "128 MiB in shards of 16 MiB with the same parameters for all. Chunks are read one by one at random, and shards one by one, "
        "by one thread. cloud-volume makes shards as igneous does, in two processes.",
        ("benchmarks.precomputed --dir MEMORY",),
    ),
    "refusals": Part(
        "How long a mistake waits for its message",
        "All mistakes of `tests/mistakes` in one process, after all imports; the fastest of five calls.",
        ("benchmarks.refusals --dir MEMORY",),
    ),
}


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- {name} -->", f"<!-- end of {name} -->"


def _facts(directory: Path) -> str:
    found = {**machine(directory), **versions()}
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in found.items())


def measure(name: str, options: argparse.Namespace) -> str:
    """Run a part, and give its section.

    Parameters
    ----------
    name : str
        A key of `PARTS`.
    options : argparse.Namespace
        The command line.
    """
    part = PARTS[name]
    lines = [f"## {part.title}", "", part.about, ""]
    begun = time.monotonic()
    for text in part.commands:
        picture = options.output.with_name(f"{options.output.stem}-{name}.png")
        with tempfile.TemporaryDirectory() as scratch:
            places = {
                "MEMORY": options.memory,
                "DISK": options.disk,
                "SCRATCH": scratch,
                "PICTURE": picture,
            }
            command = shlex.split(text)
            for place, path in places.items():
                command = [word.replace(place, str(path)) for word in command]
            ended = subprocess.run(
                [sys.executable, "-m", *command],
                cwd=_ROOT,
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            table = Path(scratch) / "table"
            printed = table.read_text() if table.exists() else ended.stdout
        lines += [f"`python -m {text}`", "", *_as_markdown(printed), ""]
        if "PICTURE" in text:
            lines += [f"![{part.title}]({picture.name})", ""]
    where = options.disk if any("DISK" in text for text in part.commands) else options.memory
    lines += [f"Taken in {time.monotonic() - begun:.0f} s: {_facts(where)}."]
    return "\n".join(lines)


def _as_markdown(printed: str) -> list[str]:
    """Tables as they are, anything else as text that keeps its lines."""
    lines = printed.strip().splitlines()
    return lines if any(line.startswith("|") for line in lines) else ["```text", *lines, "```"]


def main() -> None:
    """Measure the parts that are asked for, each into the page as soon as it is there."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.figures", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument(
        "--parts",
        default=",".join(PARTS),
        help=f"comma-separated, of {', '.join(PARTS)} (default: all)",
    )
    parser.add_argument(
        "--memory",
        type=Path,
        required=True,
        help="a directory on a memory file system of 16 GiB or more",
    )
    parser.add_argument("--disk", type=Path, required=True, help="a directory on a disk")
    parser.add_argument(
        "--output", type=Path, required=True, help="the page; its pictures go beside it"
    )
    options = parser.parse_args()
    options.memory, options.disk, options.output = (
        p.resolve() for p in (options.memory, options.disk, options.output)
    )
    names = options.parts.split(",")
    if unknown := [name for name in names if name not in PARTS]:
        parser.error(f"no part is called {', '.join(unknown)}")
    for directory in (options.memory, options.disk):
        directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        section = measure(name, options)
        begin, end = _marks(name)
        page = options.output.read_text() if options.output.exists() else "# Figures\n"
        if begin not in page:
            page = f"{page.rstrip()}\n\n{begin}\n{end}\n"
        head, _, rest = page.partition(begin)
        options.output.write_text(f"{head}{begin}\n{section}\n{end}{rest.partition(end)[2]}")
        print(f"{name}: done", flush=True)


if __name__ == "__main__":
    main()

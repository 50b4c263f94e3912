"""Demonstration: from a file of real data to a checked array, with a kill in the middle."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
import zarr
from rich.console import Console
from rich.text import Text

import shardwrite
from shardwrite.cli.common import command
from shardwrite.cli.options import dry_run_option
from shardwrite.cli.terminal import echo
from shardwrite.errors import ShardwriteError
from shardwrite.host.libraries import library
from shardwrite.sources.registry import open_source

_TIMES = 6  # how often each voxel is repeated along each axis of space
_SHARDS, _CHUNKS = (1, 72, 192, 256), (1, 24, 32, 32)
_AXES = ("echo", "z", "y", "x")
_KILLED_AT = 0.4  # share of the shards that are done then
_LOOK_SECONDS = 0.02
_PROGRAM = (sys.executable, "-c", "from shardwrite.cli import main; main()")


def _volume() -> Path:
    """Path of an MRI scan, (128, 96, 24, 2), int16, in nibabel's test data (MIT licence)."""
    nibabel = library("nibabel", "demo", field="demo", value="nibabel")
    return Path(nibabel.__file__).parent / "tests" / "data" / "example4d.nii.gz"


def _enlarged() -> npt.NDArray[Any]:
    """The scan with the axes of `_AXES`, and each voxel repeated."""
    source = open_source(str(_volume()))
    values = np.asarray(source[tuple(slice(0, n) for n in source.shape)]).transpose()
    for axis in (1, 2, 3):
        values = values.repeat(_TIMES, axis=axis)
    return values


@command()
@click.option(
    "--directory",
    type=click.Path(file_okay=False),
    default="demo-output",
    help="Where to write.",
)
@click.option(
    "--workers",
    type=click.IntRange(0),
    default=0,
    help="Processes of a local cluster; 0 for threads.",
)
@dry_run_option
def demo(directory: str, workers: int, dry_run: bool, as_json: bool) -> None:
    """Write an MRI scan, kill that half way, go on, check and show the array.

    The scan comes with the package nibabel. The demo repeats each voxel, so that there are 255 MB.
    Each step is a command that you can run yourself. In the end, zarr-python reads the array.
    """
    folder = Path(directory)
    scan, path, page = folder / "scan.npy", folder / "scan.zarr", folder / "report.html"
    sizes = {"--shards": _SHARDS, "--chunks": _CHUNKS}
    layout = [word for name, size in sizes.items() for word in (name, ",".join(map(str, size)))]
    write = ["write", str(scan), str(path), *layout, "--strategy", "morton"]
    write += ["--dimension-names", ",".join(_AXES), "--keep-report"]
    write += ["--workers", str(workers)] if workers else []
    verify = ["verify", str(path), "--deep", "--against", str(scan)]
    if dry_run:
        plan = shardwrite.plan(_enlarged(), shards=_SHARDS, chunks=_CHUNKS, strategy="morton")
        echo(plan.to_json() if as_json else f"{plan}\n\nwould be written to {path}")
        return
    folder.mkdir(parents=True, exist_ok=True)
    values = _enlarged()
    np.save(scan, values)
    if not as_json:
        echo(
            f"{scan}: {_volume().name} of nibabel, each voxel repeated {_TIMES} times along an axis"
        )
        _run(["plan", str(scan), *layout, "--strategy", "morton"])
    if path.exists():  # of an earlier demo
        write += ["--overwrite"]
    earlier = _report(path)
    left = earlier is not None and earlier.state == "interrupted"  # it was killed itself
    killed_at = _run_and_kill([*write, *(["--restart"] if left else [])], path, quiet=as_json)
    result = _run(write, quiet=as_json)
    checked = _run(verify, quiet=as_json)
    read_back = np.asarray(zarr.open_array(path, mode="r")[:])
    is_equal = bool(np.array_equal(read_back, values))
    if as_json:
        facts = {"killed_at": killed_at, "result": json.loads(result)}
        echo(json.dumps({**facts, "verify": json.loads(checked), "equal": is_equal}, indent=2))
    else:
        _run(["report", str(path), "--html", str(page)])
        _show(read_back[0, read_back.shape[1] // 2])
        echo(
            f"read back with zarr-python {zarr.__version__}: "
            f"{'identical' if is_equal else 'DIFFERENT'}, {path}; report: {page}"
        )
    if not is_equal:
        raise SystemExit(1)


def _run(words: list[str], *, quiet: bool = False) -> str:
    """Run a command of shardwrite and show it; or run it with ``--json``, and return that."""
    if quiet:
        words = [*words, "--json"]
    else:
        echo(f"\n$ shardwrite {shlex.join(words)}")
        sys.stdout.flush()
    done = subprocess.run([*_PROGRAM, *words], capture_output=quiet, text=True)  # noqa: S603
    if done.returncode:
        echo(done.stderr or "")
        raise SystemExit(done.returncode)
    return done.stdout or ""


def _report(path: Path) -> shardwrite.RunReport | None:
    """How the run on an array goes or went; None if there is no array."""
    try:
        return shardwrite.report(path)
    except ShardwriteError:
        return None


def _run_and_kill(words: list[str], path: Path, *, quiet: bool) -> float:
    """Run a command, kill it while it writes, and return which share of the shards was done."""
    if not quiet:
        echo(f"\n$ shardwrite {shlex.join(words)}")
        sys.stdout.flush()
    output = subprocess.DEVNULL if quiet else None
    share = 0.0
    command = [*_PROGRAM, *words]
    with subprocess.Popen(command, stdout=output, stderr=output) as process:  # noqa: S603
        while process.poll() is None and share < _KILLED_AT:
            time.sleep(_LOOK_SECONDS)
            now = _report(path)
            if now is not None and now.state == "running":  # what is finished is of an earlier demo
                share = now.n_done / now.n_shards
        process.kill()
    if not quiet:
        killed = f"Killed when {share:.0%} of the shards were done. The same command goes on"
        done = "Done before it could be killed. The same command has nothing left to do"
        echo(f"\n{done if process.returncode == 0 else killed}:")
    return share


def _show(image: npt.NDArray[Any], width: int = 64) -> None:
    """Print an image in grey, two rows per line, if standard output is a terminal."""
    console = Console()
    if not console.is_terminal:
        return
    step = max(1, image.shape[1] // width)
    small = image[::step, ::step].astype(float)
    grey = (255 * (small - small.min()) / max(1.0, float(np.ptp(small)))).astype(int)
    for upper, lower in zip(grey[0::2], grey[1::2], strict=False):
        line = Text()
        for u, v in zip(upper, lower, strict=True):
            line.append("▀", style=f"rgb({u},{u},{u}) on rgb({v},{v},{v})")
        console.print(line)

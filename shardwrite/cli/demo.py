"""Demonstration: from a file of real data to a checked array, on a cluster of this machine."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
import zarr
from distributed import Client, LocalCluster
from rich.console import Console
from rich.text import Text

import shardwrite
from shardwrite.cli.common import command
from shardwrite.cli.options import dry_run_option, json_option
from shardwrite.cli.terminal import Grouped, echo
from shardwrite.errors import SpecError
from shardwrite.host.environment import configured
from shardwrite.read.source import as_dask
from shardwrite.sources.registry import open_source

_SHARDS, _CHUNKS = (64, 64, 24, 1), (16, 16, 8, 1)


def _volume() -> Path:
    """Path of an MRI scan, (128, 96, 24, 2), int16, in nibabel's test data (MIT licence)."""
    spec = importlib.util.find_spec("nibabel")
    if spec is None or spec.origin is None:
        raise SpecError(
            "needs a package that is not installed",
            field="demo",
            value="nibabel",
            remedy='pip install "shardwrite[demo]"',
        )
    return Path(spec.origin).parent / "tests" / "data" / "example4d.nii.gz"


@click.command(cls=Grouped)
@click.option(
    "--directory",
    type=click.Path(file_okay=False),
    default="demo-output",
    help="Where to write.",
)
@click.option(
    "--workers",
    type=click.IntRange(1),
    default=2,
    help="Processes of the local cluster.",
)
@dry_run_option
@json_option
@command
def demo(directory: str, workers: int, dry_run: bool, as_json: bool) -> None:
    """Write a real MRI scan on a local cluster, check it and show it.

    The scan comes with the package nibabel. The demo reads the result back with zarr-python.
    """
    source = open_source(str(_volume()))
    slices = (source.shape[0], source.shape[1], 1, source.shape[3])  # as a scanner delivers them
    path = Path(directory) / "mri.zarr"
    if dry_run:
        x = as_dask(source).rechunk(slices)
        plan = shardwrite.plan(x, shards=_SHARDS, chunks=_CHUNKS, strategy="morton")
        echo(plan.to_json() if as_json else f"{plan}\n\nwould be written to {path}")
        return
    with (
        configured(),
        LocalCluster(
            n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        Client(cluster),
    ):
        x = as_dask(source).rechunk(slices)
        plan = shardwrite.plan(x, shards=_SHARDS, chunks=_CHUNKS, strategy="morton")
        result = shardwrite.to_sharded_zarr(
            x,
            path,
            shards=_SHARDS,
            chunks=_CHUNKS,
            strategy="morton",
            dimension_names=["x", "y", "z", "echo"],
            mode="w",
            progress=not as_json,
        )
    report = shardwrite.verify(path, deep=True)
    read_back = np.asarray(zarr.open_array(path, mode="r")[:])
    expected = source[tuple(slice(0, n) for n in source.shape)]
    is_equal = bool(np.array_equal(read_back, expected))
    if as_json:
        echo(
            json.dumps(
                {"result": result.to_dict(), "verify": report.to_dict(), "equal": is_equal},
                indent=2,
            )
        )
    else:
        echo(
            f"source: {_volume().name}, {source.shape} {source.dtype}, in slices {slices}\n\n"
            f"{plan}\n\n{result}\n\n{report}\n"
        )
        _show(read_back[:, :, read_back.shape[2] // 2, 0])
        echo(
            f"read back with zarr-python {zarr.__version__}: "
            f"{'identical' if is_equal else 'DIFFERENT'}, {path}"
        )
    if not (is_equal and report.is_good):
        raise SystemExit(1)


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

"""The benchmark of datasets measures all contestants, and compares them with the best of xarray."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

pytest.importorskip("xarray")

from benchmarks import datasets
from benchmarks.results import numbers_of


def test_the_table_compares_medians(tmp_path):
    def runs(*seconds):
        return [{"seconds": s, "decoded": 6e6, "memory": 5 * 2**20, "stored": 7e6} for s in seconds]

    found = {"a": {"shardwrite": runs(1, 2, 9), "xarray": runs(4, 4, 4), "xarray-zarrs": runs(3)}}
    console = Console(width=120, file=io.StringIO())
    with console.capture() as shown:
        console.print(datasets._table(found))
    numbers = numbers_of("table 1 1", shown.get(), tmp_path)
    told = {
        quantity: {n.by: n.value for n in numbers if n.quantity == quantity}
        for quantity in ("MB/s", "seconds", "times xarray's best", "MiB above idle", "MB")
    }
    assert told == {
        "MB/s": {"shardwrite": 3, "xarray": 1.5, "xarray-zarrs": 2},
        "seconds": {"shardwrite": 2, "xarray": 4, "xarray-zarrs": 3},
        "times xarray's best": {"shardwrite": 1.5, "xarray": 0.75, "xarray-zarrs": 1},
        "MiB above idle": {"shardwrite": 5, "xarray": 5, "xarray-zarrs": 5},
        "MB": {"shardwrite": 7, "xarray": 7, "xarray-zarrs": 7},
    }


@pytest.mark.long
def test_a_small_run(tmp_path):
    pytest.importorskip("zarrs")
    words = [
        "--nbytes",
        "1",
        "--repeats",
        "1",
        "--cases",
        "aligned-lz4",
        "--cold",
        "--dir",
        tmp_path,
    ]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.datasets", *words],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in datasets.CONTESTANTS)
    assert not list(tmp_path.iterdir())

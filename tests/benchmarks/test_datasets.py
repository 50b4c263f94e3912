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


def test_the_table_compares_medians():
    def runs(*seconds):
        return [{"seconds": s, "memory": 5e6, "stored": 7e6} for s in seconds]

    found = {"a": {"shardwrite": runs(1, 2, 9), "xarray": runs(4, 4, 4), "xarray-zarrs": runs(3)}}
    console = Console(width=120, file=io.StringIO())
    with console.capture() as shown:
        console.print(datasets._table(found, "it"))
    rows = [line.split("│")[1:-1] for line in shown.get().splitlines() if "│" in line]
    cells = [[cell.strip() for cell in row] for row in rows]
    assert [row[1:4] for row in cells] == [
        ["shardwrite", "2.000", "1.50"],
        ["xarray", "4.000", "0.75"],
        ["xarray-zarrs", "3.000", "1.00"],
    ]


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

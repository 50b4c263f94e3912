"""Throughput against the size of inner chunks, for all contestants."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

from benchmarks.cases import CODECS
from benchmarks.report import Report

__all__ = ["plot_chunk_sizes"]


def plot_chunk_sizes(report: Report, path: Path) -> None:
    """Write a panel for each codec as a picture.

    Parameters
    ----------
    report : Report
        A run of the aligned cases.
    path : Path
        The picture; its suffix says in which format.
    """
    figure_of: Any = importlib.import_module("matplotlib.figure").Figure
    panels = {
        codec: [row for name, row in report.rows.items() if name.startswith(f"{codec}-")]
        for codec in CODECS
    }
    panels = {codec: rows for codec, rows in panels.items() if rows}
    figure = figure_of(figsize=(3 * len(panels), 3.4), layout="constrained")
    names = list(
        dict.fromkeys(name for rows in panels.values() for row in rows for name in row.raw)
    )
    for axes, (codec, rows) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
    ):
        for number, name in enumerate(names):
            points = sorted((row.case.chunks[0], row.rate(name)) for row in rows if name in row.raw)
            known = [(side, rate) for side, rate in points if not math.isnan(rate)]
            style = "k:" if name == "bare-loop" else "o-"
            colour = {} if name == "bare-loop" else {"color": f"C{number}"}
            axes.plot(
                [side for side, _ in known],
                [rate for _, rate in known],
                style,
                label=name,
                **colour,
            )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(
            sorted({row.case.chunks[0] for row in rows}),
            [f"{row.case.chunks[0]}³" for row in rows][::-1],
        )
        axes.set_title(codec)
        axes.grid(alpha=0.3, which="both")
    figure.axes[0].set_ylabel("decoded MB/s")
    figure.axes[0].legend(fontsize=7)
    figure.supxlabel("inner chunk")
    figure.savefig(path, dpi=100)

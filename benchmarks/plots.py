"""Pictures of benchmarks: shared axes, plain ticks, and each line labelled at its end.

``python -m benchmarks.plots docs/figures/side-by-side.csv PICTURE`` draws throughput against the size of inner chunks again, from what
is stored.
"""

from __future__ import annotations

import argparse
import importlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cases import CODECS
from benchmarks.report import Report
from benchmarks.results import Results, report_of

__all__ = [
    "Rates",
    "figure_of",
    "label_ends",
    "plain_log_ticks",
    "plot_chunk_sizes",
    "plot_rates",
    "rates_of",
    "style_of",
]

Rates = Mapping[str, Mapping[str, Sequence[tuple[int, float]]]]
"""For each codec and contestant: sides of inner chunks in elements, and decoded MB/s."""

# Okabe and Ito, 2008: readers of all kinds of colour vision tell these apart; markers help in print
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#666666")
_MARKERS = "osD^vPX"
_BAR = "bare-loop"
_LINE_HEIGHT = 1.25  # of the distance between labels, in heights of their text


def figure_of(width: float, height: float) -> Any:
    """An empty figure of a size in inches; it needs no display.

    Parameters
    ----------
    width, height : float
        Size in inches.
    """
    figure: Any = importlib.import_module("matplotlib.figure").Figure
    return figure(figsize=(width, height), dpi=150, layout="constrained")


def style_of(number: int, name: str = "") -> dict[str, Any]:
    """Colour, marker and line of a series.

    Parameters
    ----------
    number : int
        Number of the series.
    name : str
        Its name; the bare loop, which is no contestant, is a dotted line.
    """
    if name == _BAR:
        return {"color": "black", "linestyle": ":"}
    k = number % len(_COLOURS)
    return {"color": _COLOURS[k], "marker": _MARKERS[k], "markersize": 4.5, "linewidth": 1.6}


def plain_log_ticks(axis: Any, low: float, high: float) -> None:
    """Put plain numbers at 1, 2 and 5 times powers of ten on a logarithmic axis.

    Parameters
    ----------
    axis : matplotlib.axis.Axis
        The axis.
    low, high : float
        Smallest and largest value, both above 0.
    """
    steps = (1, 2, 5) if high / low < 300 else (1, 3) if high / low < 2000 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [k * 10.0**power for power in powers for k in steps]
    shown = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
    axis.set_ticks(shown, [f"{tick:,.10g}" for tick in shown])
    axis.set_ticks([], minor=True)


def label_ends(axes: Any, ends: Mapping[str, tuple[float, float, str]], size: float = 8) -> None:
    """Write the name of each line at its end, in its colour, so that no two names overlap.

    Parameters
    ----------
    axes : matplotlib.axes.Axes
        The axes, with limits that do not change any more.
    ends : mapping of str to (float, float, str)
        For each name: position of the end of its line in data coordinates, and its colour.
    size : float
        Size of the text in points.
    """
    figure = axes.figure
    figure.draw_without_rendering()
    to_pixels = axes.transData
    least = size * _LINE_HEIGHT * figure.dpi / 72
    places = sorted((to_pixels.transform((x, y))[1], name) for name, (x, y, _) in ends.items())
    heights: list[float] = []
    for height, _ in places:
        heights.append(max(height, heights[-1] + least) if heights else height)
    # what was pushed up lies too high on average
    over = sum(h - p for h, (p, _) in zip(heights, places, strict=True)) / max(1, len(places))
    for height, (_, name) in zip(heights, places, strict=True):
        x, y, colour = ends[name]
        moved = (height - over - to_pixels.transform((x, y))[1]) * 72 / figure.dpi
        axes.annotate(
            name,
            (x, y),
            xytext=(8, moved),
            textcoords="offset points",
            va="center",
            fontsize=size,
            color=colour,
            annotation_clip=False,
        )


def rates_of(report: Report) -> Rates:
    """The rates of the aligned cases of a report, whose names are a codec and a side."""
    found: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for case_name, row in report.rows.items():
        codec = case_name.rpartition("-")[0]
        for name in row.raw if codec in CODECS else ():
            if not math.isnan(row.rate(name)):
                own = found.setdefault(codec, {}).setdefault(name, [])
                own.append((row.case.chunks[0], row.rate(name)))
    return found


def plot_chunk_sizes(report: Report, path: Path) -> None:
    """Write a panel for each codec as a picture.

    Parameters
    ----------
    report : Report
        A run of the aligned cases.
    path : Path
        The picture; its suffix says in which format.
    """
    plot_rates(rates_of(report), path)


def plot_rates(rates: Rates, path: Path) -> None:
    """Draw throughput against the size of inner chunks: a panel for each codec, with shared axes.

    Parameters
    ----------
    rates : mapping
        The rates.
    path : Path
        The picture; its suffix says in which format.
    """
    panels = {codec: rates[codec] for codec in CODECS if codec in rates}
    names = list(dict.fromkeys(name for own in panels.values() for name in own))
    points = [point for own in panels.values() for line in own.values() for point in line]
    sides = sorted({side for side, _ in points})
    low, high = (f(rate for _, rate in points) for f in (min, max))
    figure = figure_of(2.3 * len(panels) + 1.6, 3.6)
    grid = figure.subplots(1, len(panels), squeeze=False, sharex=True, sharey=True)[0]
    for axes, (codec, own) in zip(grid, panels.items(), strict=True):
        for number, name in enumerate(names):
            line = sorted(own.get(name, ()))
            axes.plot([s for s, _ in line], [r for _, r in line], **style_of(number, name))
        axes.set_title({"none": "not compressed"}.get(codec, codec), fontsize=10)
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    first, last = grid[0], grid[-1]
    first.set_xscale("log", base=2)
    first.set_yscale("log")
    first.set_ylim(low / 1.3, high * 1.3)
    first.set_xlim(sides[0] / 1.2, sides[-1] * 1.2)
    first.set_xticks(sides, [f"{side}³" for side in sides])
    first.set_xticks([], minor=True)
    plain_log_ticks(first.yaxis, low / 1.3, high * 1.3)
    first.set_ylabel("throughput (decoded MB/s)")
    figure.supxlabel("size of an inner chunk (elements)", fontsize=10)
    ends = {}
    for number, name in enumerate(names):
        line = sorted(panels[list(panels)[-1]].get(name, ()))
        if line:
            ends[name] = (*line[-1], style_of(number, name)["color"])
    label_ends(last, ends)
    figure.savefig(path)


def main() -> None:
    """Draw the picture from stored results."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.plots", description=(__doc__ or "").split("\n", maxsplit=1)[0]
    )
    parser.add_argument("results", type=Path, help="CSV file of side_by_side")
    parser.add_argument("picture", type=Path, help="PNG or SVG file to write")
    options = parser.parse_args()
    plot_rates(rates_of(report_of(Results.read(options.results))), options.picture)


if __name__ == "__main__":
    main()

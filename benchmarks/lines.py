"""Throughput against the size of inner chunks: a panel for each codec, as an SVG that fits light and dark pages and phones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from benchmarks.bars import SHADES
from benchmarks.cases import CODECS

__all__ = ["Rates", "lines", "rates_of"]

Rates = Mapping[str, Mapping[str, Sequence[tuple[int, float]]]]
"""For each codec and contestant: sides of inner chunks in elements, and decoded MB/s."""

_WIDTH, _LEFT, _PANEL_WIDTH, _PANEL_HEIGHT = 400, 46, 140, 160
_COLUMNS, _BETWEEN, _HEAD, _ROW = 2, 54, 32, 222  # panels in a row, and pixels around them
_LEGEND_COLUMNS, _LEGEND_STEP = (14, 180), 22
# Okabe and Ito, 2008: readers of all kinds of colour vision tell these apart; shapes help in print
_COLOURS = {
    "shardwrite": ("#0072b2", "#56b4e9"),
    "dask+zarr-python": ("#b3541e", "#e8925a"),
    "dask+zarrs": ("#00805d", "#3fc79f"),
    "tensorstore": ("#a8558a", "#dd9bc6"),
    "bare-loop": ("#57606a", "#9da7b3"),
}  # in light and in dark mode
_BAR, _OURS = "bare-loop", "shardwrite"


def rates_of(values: Mapping[str, Mapping[str, float]]) -> Rates:
    """The rates of the aligned cases, whose names are a codec and a side; by case and by whom."""
    found: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for case, own in values.items():
        codec, _, side = case.rpartition("-")
        for name, rate in own.items() if codec in CODECS else ():
            if not math.isnan(rate):
                found.setdefault(codec, {}).setdefault(name, []).append((int(side), rate))
    return found


def _style(names: Sequence[str]) -> str:
    parts = [
        SHADES,
        "  .grid { stroke: #57606a; stroke-opacity: .25 }",
        "  .line { fill: none; stroke-width: 2 } .thick { stroke-width: 3.5 } .dotted { stroke-dasharray: 2 4 }",
        "  .tick, .side { font-size: 12px } .tick { text-anchor: end } .side { text-anchor: middle }",
    ]
    for mode, rule in enumerate(("{}", "@media (prefers-color-scheme: dark) {{ {} }}")):
        colours = [_COLOURS.get(name, _COLOURS[_BAR])[mode] for name in names]
        own = (f".s{k} {{ stroke: {c} }} .m{k} {{ fill: {c} }}" for k, c in enumerate(colours))
        parts.append(f"  {rule.format(' '.join(own))}")
    return "\n".join(parts)


def _mark(number: int, x: float, y: float) -> str:
    """A shape of its own for each contestant."""
    shapes = ("", "M-4 -4h8v8h-8z", "M0 -5l5 9h-10z", "M0 -5l5 5l-5 5l-5 -5z")
    kind = f'class="m{number}"'
    if number % len(shapes) == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" {kind}/>'
    return (
        f'<path transform="translate({x:.1f} {y:.1f})" d="{shapes[number % len(shapes)]}" {kind}/>'
    )


def _drawn(number: int, name: str, points: Sequence[tuple[float, float]]) -> list[str]:
    """A line through points in pixels, with a mark at each; the bare loop, which is no contestant, is dotted."""
    kind = " thick" * (name == _OURS) + " dotted" * (name == _BAR)
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    marks = [] if name == _BAR else [_mark(number, x, y) for x, y in points]
    return [f'<polyline class="line s{number}{kind}" points="{path}"/>', *marks]


def _panel(
    own: Mapping[str, Sequence[tuple[int, float]]],
    names: Sequence[str],
    sides: Sequence[int],
    ends: tuple[float, float],
    corner: tuple[float, float],
) -> list[str]:
    """Grid, numbers and lines of one codec; `ends` are logarithms of the lowest and the highest rate."""
    (low, high), (left, top) = ends, corner
    step = (_PANEL_WIDTH - 24) / max(1, len(sides) - 1)
    places = {side: left + 12 + step * k for k, side in enumerate(sides)}

    def height(rate: float) -> float:
        return top + _PANEL_HEIGHT * (high - math.log10(rate)) / (high - low)

    parts = []
    for power in range(math.ceil(low), math.floor(high) + 1):
        y = height(10.0**power)
        parts.append(f'<path class="grid" d="M{left} {y:.1f}h{_PANEL_WIDTH}"/>')
        parts.append(f'<text class="tick" x="{left - 6}" y="{y + 4:.1f}">{10**power:,}</text>')
    for side, x in places.items():
        parts.append(
            f'<text class="side" x="{x:.1f}" y="{top + _PANEL_HEIGHT + 16}">{side}³</text>'
        )
    for number, name in enumerate(names):
        if line := [(places[side], height(rate)) for side, rate in sorted(own.get(name, ()))]:
            parts += _drawn(number, name, line)
    return parts


def lines(rates: Rates, title: str) -> str:
    """Draw a panel for each codec; all have the same axes.

    Parameters
    ----------
    rates : mapping
        The rates.
    title : str
        What is shown.
    """
    panels = {codec: rates[codec] for codec in CODECS if codec in rates}
    names = list(dict.fromkeys(name for own in panels.values() for name in own))
    points = [point for own in panels.values() for line in own.values() for point in line]
    sides = sorted({side for side, _ in points})
    logs = [math.log10(rate) for _, rate in points]
    ends = math.floor(min(logs) * 2) / 2, max(logs) + 0.05
    parts, y = [], 24
    for number, name in enumerate(names):
        column = number % len(_LEGEND_COLUMNS)
        y += _LEGEND_STEP * (number > 0 and column == 0)
        x = _LEGEND_COLUMNS[column]
        parts += _drawn(number, name, [(x, y - 5), (x + 28, y - 5)])
        parts.append(f'<text x="{x + 38}" y="{y}">{escape(name)}</text>')
    y += _LEGEND_STEP
    axis = "decoded MB/s, on a logarithmic axis; more is better"
    parts.append(f'<text class="unit" x="14" y="{y}">{axis}</text>')
    y += _HEAD
    for index, (codec, own) in enumerate(panels.items()):
        left = _LEFT + index % _COLUMNS * (_PANEL_WIDTH + _BETWEEN)
        top = y + index // _COLUMNS * _ROW
        shown = {"none": "not compressed"}.get(codec, codec)
        parts.append(f'<text class="case" x="{left}" y="{top - 8}">{escape(shown)}</text>')
        parts += _panel(own, names, sides, ends, (left, top))
    y += math.ceil(len(panels) / _COLUMNS) * _ROW - 18
    axis = "size of an inner chunk, in elements"
    parts.append(f'<text class="unit" x="{_LEFT}" y="{y}">{axis}</text>')
    height, body = y + 10, "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'height="{height}" role="img" aria-label="{escape(title)}">\n<style>{_style(names)}\n</style>\n'
        f'<rect class="page" x=".5" y=".5" width="{_WIDTH - 1}" height="{height - 1}" rx="6"/>\n{body}\n</svg>\n'
    )

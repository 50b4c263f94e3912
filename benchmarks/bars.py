"""Bars with their numbers, as an SVG that fits light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

__all__ = ["SHADES", "bars"]

_LEFT, _ROOM, _WIDTH, _STEP, _BAR, _GAP = 250, 330, 660, 17, 13, 26
SHADES = """
  text { font: 12.5px sans-serif; fill: #24292f }
  .page { fill: #ffffff; stroke: #d0d7de }
  .case { font-weight: bold }
  .unit { font-size: 12px; fill: #57606a }
  .ours { fill: #0072b2 }
  .other { fill: #9aa4ae }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 }
    .page { fill: #0d1117; stroke: #30363d }
    .unit { fill: #9da7b3 }
    .ours { fill: #56b4e9 }
    .other { fill: #6e7781 }
  }"""
"""Of texts, the page and bars, in light and in dark mode."""


def _shown(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:,.0f} M"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def bars(
    values: Mapping[str, Mapping[str, float]],
    *,
    title: str,
    unit: str,
    ours: Sequence[str],
    is_log: bool,
) -> str:
    """Draw a group of bars for each case.

    Parameters
    ----------
    values : mapping
        For each case, the values by whom.
    title, unit : str
        What is shown, and in what.
    ours : sequence of str
        Whose bars have another colour.
    is_log : bool
        Whether lengths are those of logarithms: ten times as much is so many pixels more, wherever it begins.
    """
    all_values = [value for own in values.values() for value in own.values() if value > 0] or [1.0]
    low, high = min(all_values), max(all_values)
    first = 10 ** math.floor(math.log10(low) - 0.01)

    def length(value: float) -> float:
        if value <= 0:
            return 0.0
        return _ROOM * (
            math.log(value / first) / math.log(high / first) if is_log else value / high
        )

    axis = f"{unit}; the axis is logarithmic, from {_shown(first)}" if is_log else unit
    parts, y = [f'<text class="unit" x="14" y="22">{escape(axis)}</text>'], 30
    for case, own in values.items():
        y += _GAP
        parts.append(f'<text class="case" x="14" y="{y - 6}">{escape(case)}</text>')
        for by, value in own.items():
            kind = "ours" if by in ours else "other"
            n = length(value)
            parts += [
                f'<text x="24" y="{y + 11}">{escape(by)}</text>',
                f'<rect x="{_LEFT}" y="{y}" width="{n:.1f}" height="{_BAR}" class="{kind}"/>',
                f'<text x="{_LEFT + n + 5:.1f}" y="{y + 11}">{_shown(value)}</text>',
            ]
            y += _STEP
    height = y + 12
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(title)}">\n<style>{SHADES}\n</style>\n'
        f'<rect class="page" x=".5" y=".5" width="{_WIDTH - 1}" height="{height - 1}" rx="6"/>\n{body}\n</svg>\n'
    )

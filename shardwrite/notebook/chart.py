"""Charts as SVG, made from a template: axes with names and ticks, and marks with labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Chart", "Label", "Line", "Rect", "Scale", "Tick", "scale_of"]


@dataclass(frozen=True, slots=True)
class Tick:
    """A tick of an axis.

    Attributes
    ----------
    at : float
        Position in pixels.
    text : str
        Its label.
    """

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Rect:
    """A rectangle in pixels.

    Attributes
    ----------
    x, y, width, height : float
        Position and size.
    kind : str
        Its role, which decides the colour.
    title : str
        Text that is shown under the mouse pointer.
    """

    x: float
    y: float
    width: float
    height: float
    kind: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points in pixels.

    Attributes
    ----------
    points : sequence of (float, float)
        The points.
    kind : str
        Its role, which decides the colour.
    """

    points: Sequence[tuple[float, float]]
    kind: str

    @property
    def text(self) -> str:
        """The points as SVG has them."""
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in self.points)


@dataclass(frozen=True, slots=True)
class Label:
    """A text at a position in pixels.

    Attributes
    ----------
    x, y : float
        Position of the baseline.
    text : str
        The text.
    anchor : {"start", "middle", "end"}
        Which part of the text lies at the position.
    kind : str
        Its role, which decides the colour.
    """

    x: float
    y: float
    text: str
    anchor: str = "start"
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart; the template draws the axes around its plot area.

    Attributes
    ----------
    title, caption : str
        Heading above the chart, and explanation below it.
    width, height : float
        Size of the whole chart in pixels.
    left, top, right, bottom : float
        Edges of the plot area in pixels.
    x_name, y_name : str
        Names of the axes, with units.
    x_ticks, y_ticks : sequence of Tick
        Ticks of the axes.
    rects, lines, labels : sequence
        Marks, in the order in which they are drawn.
    """

    title: str
    caption: str
    width: float
    height: float
    left: float
    top: float
    right: float
    bottom: float
    x_name: str
    y_name: str
    x_ticks: Sequence[Tick] = ()
    y_ticks: Sequence[Tick] = ()
    rects: Sequence[Rect] = ()
    lines: Sequence[Line] = ()
    labels: Sequence[Label] = ()


@dataclass(frozen=True, slots=True)
class Scale:
    """Map from values of an axis to pixels.

    Attributes
    ----------
    last : float
        Value at the end of the axis, which begins at 0.
    first_px, last_px : float
        Positions of 0 and of `last` in pixels.
    step : float
        Distance of ticks: 1, 2 or 5 times a power of ten.
    """

    last: float
    first_px: float
    last_px: float
    step: float

    def at(self, value: float) -> float:
        """Position of a value, in pixels."""
        share = min(1.0, max(0.0, value / self.last)) if self.last > 0 else 0.0
        return round(self.first_px + share * (self.last_px - self.first_px), 2)

    def ticks(self) -> list[Tick]:
        """Ticks at whole steps, without units."""
        n = int(self.last / self.step + 1e-9) if self.last > 0 else 0
        digits = max(0, -math.floor(math.log10(self.step) + 1e-9))
        return [Tick(self.at(k * self.step), f"{k * self.step:,.{digits}f}") for k in range(n + 1)]


def scale_of(largest: float, first_px: float, last_px: float, n_ticks: int = 5) -> Scale:
    """Make the scale of an axis from 0 to a value.

    Parameters
    ----------
    largest : float
        The largest value.
    first_px, last_px : float
        Ends of the axis in pixels.
    n_ticks : int
        Number of ticks to aim at.

    Examples
    --------
    >>> [tick.text for tick in scale_of(930, 0, 100).ticks()]
    ['0', '200', '400', '600', '800']
    """
    largest = largest if largest > 0 and math.isfinite(largest) else 1.0
    rough = largest / n_ticks
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(k * power for k in (1, 2, 5, 10) if k * power >= rough * (1 - 1e-9))
    return Scale(largest, first_px, last_px, step)

"""Cards, bars, charts and pages of HTML, made from templates.

The HTML holds its own styles, and no script, and it loads nothing from elsewhere. Every text is
escaped. Colours follow the theme of Jupyter or VS Code, or else that of the system.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from shardwrite._dataclass import dataclass
from shardwrite.errors import printable
from shardwrite.results import Facts

if TYPE_CHECKING:
    from jinja2 import Environment


# ---- Charts as SVG


LEFT, TOP, RIGHT = 150, 26, 700
"""Edges of the plot area of a chart in pixels, unless it says others."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A tick of an axis."""

    at: float  # position in pixels
    text: str  # its label


@dataclass(frozen=True, slots=True)
class Rect:
    """A rectangle in pixels."""

    x: float  # position and size
    y: float
    width: float
    height: float
    kind: str  # its role, which decides the colour
    title: str = ""  # text that is shown under the mouse pointer


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points in pixels."""

    points: Sequence[tuple[float, float]]
    kind: str  # its role, which decides the colour

    @property
    def text(self) -> str:
        """The points as SVG has them."""
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in self.points)


@dataclass(frozen=True, slots=True)
class Label:
    """A text at a position in pixels."""

    x: float  # position of the baseline
    y: float
    text: str
    anchor: str = "start"  # which part of the text lies at the position
    kind: str = ""  # its role, which decides the colour


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart; the template draws the axes around its plot area."""

    title: str  # heading above the chart, and explanation below it
    caption: str
    bottom: float  # edges of the plot area in pixels
    left: float = LEFT
    top: float = TOP
    right: float = RIGHT
    width: float = 720  # of the whole chart
    x_name: str  # names of the axes, with units
    y_name: str
    x_ticks: Sequence[Tick] = ()  # ticks of the axes
    y_ticks: Sequence[Tick] = ()
    rects: Sequence[Rect] = ()  # marks, in the order in which they are drawn
    lines: Sequence[Line] = ()
    labels: Sequence[Label] = ()

    @property
    def height(self) -> float:
        """Height of the whole chart, with what stands below the plot area."""
        return self.bottom + 36


@dataclass(frozen=True, slots=True)
class Scale:
    """Map from values of an axis to pixels."""

    last: float  # value at the end of the axis, which begins at 0
    first_px: float  # positions of 0 and of `last` in pixels
    last_px: float
    step: float  # distance of ticks: 1, 2 or 5 times a power of ten

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


# ---- Cards, bars and pages


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """State of a run, as a bar with a text beside it."""

    share: float  # share of the work that is done, from 0 to 1
    text: str  # the text beside the bar
    state: str = "running"  # whether the run goes on, has ended, or was stopped by an error


@cache
def _templates() -> Environment:
    # Most programs never show HTML.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("shardwrite.show"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def card_html(card: Facts) -> str:
    """Make the HTML of a card."""
    return printable(_templates().get_template("card.html.j2").render(card=card))


def bar_html(bar: Bar) -> str:
    """Make the HTML of a bar."""
    return printable(_templates().get_template("bar.html.j2").render(bar=bar))


def chart_html(chart: Chart) -> str:
    """Make the HTML of a chart, for the drawing of a card."""
    return printable(_templates().get_template("chart.html.j2").render(chart=chart))


def page_html(title: str, body: str) -> str:
    """Make a page of its own.

    - `body`: HTML of the page. It is not escaped.
    """
    page = _templates().get_template("page.html.j2")
    return printable(page.render(title=title, body=body))

"""Cards, bars and pages of HTML, made from templates.

The HTML holds its own styles, and no script, and it loads nothing from elsewhere. Every text is
escaped. Colours follow the theme of Jupyter or VS Code, or else that of the system.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from shardwrite.errors import printable
from shardwrite.notebook.chart import Chart
from shardwrite.results import Facts

if TYPE_CHECKING:
    from jinja2 import Environment


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
        loader=PackageLoader("shardwrite.notebook"),
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

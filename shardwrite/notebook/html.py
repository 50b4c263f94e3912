"""Cards, bars and pages of HTML, made from templates.

The HTML holds its own styles, and no script, and it loads nothing from elsewhere. Every text is
escaped. Colours follow the theme of Jupyter or VS Code, or else that of the system.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from shardwrite.errors import printable
from shardwrite.notebook.chart import Chart

if TYPE_CHECKING:
    from jinja2 import Environment

Rows = Sequence[tuple[str, str]]
"""Pairs of a name and a text, which may have several lines."""


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of an array, in elements."""

    name: str  # name of the axis
    extent: int  # extent of the array
    shard: int  # extent of a shard and of an inner chunk
    chunk: int  # extent of a shard and of an inner chunk
    n_shards: int  # number of shards along the axis


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Facts that a notebook shows about one object."""

    title: str  # name of the kind of object, such as ``plan``
    subject: str = ""  # name of the object itself, such as the path of an array
    headline: Rows = ()  # the most important numbers, each with the words that follow it
    axes: Sequence[Axis] = ()  # axes of the array
    problems: Rows = ()  # faults, which are shown in red, and remarks; each has a name and a text
    notes: Rows = ()  # faults, which are shown in red, and remarks; each has a name and a text
    rows: Rows = ()  # rows of the table of all other facts
    drawing: str = ""  # HTML to show below the table. It is not escaped.


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


def card_html(card: Card) -> str:
    """Make the HTML of a card."""
    return printable(_templates().get_template("card.html.j2").render(card=card))


def bar_html(bar: Bar) -> str:
    """Make the HTML of a bar."""
    return printable(_templates().get_template("bar.html.j2").render(bar=bar))


def chart_html(chart: Chart) -> str:
    """Make the HTML of a chart, for the drawing of a card."""
    return printable(_templates().get_template("chart.html.j2").render(chart=chart))


def page_html(title: str, body: str, *, reload_seconds: int = 0) -> str:
    """Make a page of its own.

    - `body`: HTML of the page. It is not escaped.
    - `reload_seconds`: time after which a browser loads the page again; 0 for never.
    """
    page = _templates().get_template("page.html.j2")
    return printable(page.render(title=title, body=body, reload_seconds=reload_seconds))

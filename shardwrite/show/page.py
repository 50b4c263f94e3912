"""HTML of a census: a table, and the shard grid as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape
from itertools import groupby

from shardwrite.grid import unravel
from shardwrite.read.census import STATES, Census, ShardState
from shardwrite.results import Facts, human
from shardwrite.show.fold import (
    CELLS_WITH_LINES,
    GAP,
    PALETTE,
    Folded,
    caption_of,
    fold,
    hex_of,
    legend_of,
    shades_of,
)
from shardwrite.show.html import card_html, page_html

NOTEBOOK_CELLS = 2_500
_PAGE_CELLS = 20_000
_PROBLEMS = {
    "missing": "A missing shard has no file, but should have one.",
    "bad": "A bad shard has a fault. A report names each of them.",
}
_CELL_PX, _PICTURE_PX = 24.0, 720


def html(census: Census) -> str:
    """Make an HTML page of a census.

    The page holds the table and a picture of the shard grid, which shows the index and size of the
    shard under the mouse pointer.

    - `census`: the census. In a large grid, a cell of the picture stands for many shards.
    """
    return page_html(f"census of {census.path}", fragment(census, _PAGE_CELLS))


def fragment(census: Census, n_cells: int = NOTEBOOK_CELLS) -> str:
    """Make the card of a census, with a picture of at most `n_cells` cells."""
    side = math.isqrt(n_cells)
    picture = fold(census.states, census.stored_nbytes, side, side)
    caption = escape(caption_of(census, picture))
    drawing = (
        f"<figure>{_svg(census, picture, caption)}"
        f"<figcaption><div>{_legend(census)}</div>{caption}</figcaption></figure>"
    )
    counts = census.counts
    headline = [
        (f"{counts['written']:,}", f"of {census.states.size:,} shards are written"),
        (human(census.total_nbytes), "stored"),
        (f"{census.stored_fraction:.1%}", "of the inner chunks hold data"),
    ]
    problems = [(f"{counts[s]:,} {s}", told) for s, told in _PROBLEMS.items() if counts[s]]
    return card_html(
        Facts(
            title="census",
            subject=census.path,
            headline=headline,
            problems=problems,
            notes=[("warning", text) for text in census.warnings],
            rows=[row for row in census.rows if row[0] != "warning"],
            drawing=drawing,
        )
    )


def _legend(census: Census) -> str:
    swatch = "<span style='display:inline-block;width:.8em;height:.8em;background:{}'></span>"
    return "".join(
        "<span style='margin-right:1.5em;white-space:nowrap'>"
        f"{''.join(swatch.format(hex_of(c)) for c in colours)} {words}</span>"
        for _, colours, words in legend_of(census)
    )


def _svg(census: Census, picture: Folded, caption: str) -> str:
    rows, columns = picture.states.shape
    if not rows:
        return ""
    cell = min(_CELL_PX, _PICTURE_PX / max(rows, columns))
    return (
        "<svg xmlns='http://www.w3.org/2000/svg' role='img' "
        f"aria-label='{caption}' viewBox='0 0 {columns} {rows}' "
        "class='sw-grid' "
        f"width='{columns * cell:.0f}' height='{rows * cell:.0f}' shape-rendering='crispEdges'>"
        f"{''.join(_rects(census, picture))}</svg>"
    )


def _rects(census: Census, picture: Folded) -> Iterator[str]:
    """Make one rectangle for each cell.

    In a large picture, neighbouring shards of one state other than written share a rectangle.
    """
    has_lines = max(picture.states.shape) <= CELLS_WITH_LINES
    size = 0.94 if has_lines else 1
    fills = [hex_of(colour) for colour in PALETTE.tolist()]
    for y, (states, shades) in enumerate(
        zip(picture.states.tolist(), shades_of(picture, census).tolist(), strict=True)
    ):
        is_alone = (picture.n_shards[y] > 1) | (picture.states[y] == ShardState.WRITTEN) | has_lines
        runs = [
            (state, x if alone else -1)
            for x, (state, alone) in enumerate(zip(states, is_alone.tolist(), strict=True))
        ]
        for (state, _), cells in groupby(range(len(runs)), runs.__getitem__):
            if state == GAP:
                continue
            x, *others = cells
            width = len(others) + size
            title = _title(census, picture, y, x, x + len(others))
            yield (
                f"<rect x='{x}' y='{y}' width='{width}' height='{size}' "
                f"fill='{fills[shades[x]]}'><title>{title}</title></rect>"
            )


def _title(census: Census, picture: Folded, y: int, start: int, stop: int) -> str:
    """Describe the shards in the cells of row `y` from `start` to `stop`, both included."""
    first, last = (
        unravel(int(rank), census.states.shape)
        for rank in (picture.first[y, start], picture.last[y, stop])
    )
    state, nbytes = STATES[picture.states[y, start]], picture.mean_nbytes[y, start]
    if picture.n_shards[y, start] > 1:
        size = f"; written ones have {human(nbytes)} on average" if nbytes else ""
        return f"{picture.n_shards[y, start]:,} shards, {first} to {last}, at worst {state}{size}"
    if start < stop:
        return f"shards {first} to {last}: {state}"
    return f"shard {first}: {state}" + (f", {int(nbytes):,} bytes" if state == "written" else "")

"""PNG file of the shard grid, drawn with matplotlib."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from shardwrite.grid import unravel
from shardwrite.host.libraries import library
from shardwrite.read.census import Census
from shardwrite.results import human
from shardwrite.show.fold import (
    CELLS_WITH_LINES,
    GAP,
    PALETTE,
    SIZE_COLOURS,
    Folded,
    caption_of,
    fold,
    hex_of,
    legend_of,
    shades_of,
)

# Grounds and texts, as cards have them in light and in dark.
_LIGHT, _DARK = ((255, 255, 255), "#1b1f24"), ((20, 23, 27), "#e6e9ec")

_INCHES, _DPI = (8.0, 6.0), 150
# most cells along each axis: each has at least two pixels, or scaling could hide a bad one
_CELLS = 300
_N_TICKS = 8


def write_png(census: Census, path: str | os.PathLike[str], *, is_dark: bool = False) -> None:
    """Draw the shard grid as a PNG file of 1200 by 900 pixels.

    - `path`: file to write. An existing file is replaced.
    """
    # not pyplot, which keeps figures in memory and may need a display
    library("matplotlib.figure", "plot", field="png", value=os.fspath(path))
    from matplotlib.figure import Figure
    from matplotlib.legend_handler import HandlerTuple
    from matplotlib.patches import Patch

    picture = fold(census.states, census.stored_nbytes, _CELLS, _CELLS)
    ground, ink = _DARK if is_dark else _LIGHT
    figure = Figure(figsize=_INCHES, dpi=_DPI, layout="constrained", facecolor=hex_of(ground))
    # a path may hold dollar signs
    figure.suptitle(census.path, fontsize=10, parse_math=False, color=ink)
    axes = figure.add_subplot(xticks=[], yticks=[], frame_on=False)
    axes.set_title(caption_of(census, picture), fontsize=8, color=ink)
    if picture.states.size:
        colours = np.full((GAP + 1, 3), ground, np.uint8)  # gaps look like the background
        colours[: len(PALETTE)] = PALETTE
        axes.imshow(colours[shades_of(picture, census)], interpolation="nearest")
        _draw_lines(axes, picture, hex_of(ground))
        _draw_ticks(axes, census, picture, ink)
        _draw_scale(figure, axes, census, ink)
        entries = list(legend_of(census))
        swatches: list[Any] = [
            tuple(Patch(color=hex_of(colour)) for colour in steps) for _, steps, _ in entries
        ]
        figure.legend(
            swatches,
            [words for _, _, words in entries],
            handler_map={tuple: HandlerTuple(ndivide=None, pad=0)},
            loc="outside lower center",
            ncols=3,
            fontsize=8,
            frameon=False,
            labelcolor=ink,
            handlelength=4,
        )
    figure.savefig(path, format="png")


def _draw_lines(axes: Any, picture: Folded, ground: str) -> None:
    """Draw lines of the ground's colour between the cells, if there is room for them."""
    rows, columns = picture.states.shape
    if max(rows, columns) <= CELLS_WITH_LINES:
        width = min(1.5, 40 / max(rows, columns))
        axes.vlines(np.arange(1, columns) - 0.5, -0.5, rows - 0.5, ground, linewidth=width)
        axes.hlines(np.arange(1, rows) - 0.5, -0.5, columns - 0.5, ground, linewidth=width)


def _draw_ticks(axes: Any, census: Census, picture: Folded, ink: str) -> None:
    """Number the shards along both axes of a grid of two dimensions."""
    grid = census.states.shape
    if len(grid) != 2:
        return
    cells = (picture.first[:, 0], picture.first[0, :])
    for k, (axis, name) in enumerate(((axes.yaxis, 0), (axes.xaxis, 1))):
        step = -(-len(cells[k]) // _N_TICKS)
        places = range(0, len(cells[k]), step)
        numbers = [unravel(int(cells[k][place]), grid)[k] for place in places]
        axis.set_ticks(places, [f"{number:,}" for number in numbers], fontsize=8)
        axis.set_label_text(f"shard along axis {name}", fontsize=8, color=ink)
    axes.tick_params(length=0, labelcolor=ink)


def _draw_scale(figure: Any, axes: Any, census: Census, ink: str) -> None:
    """Draw the scale of stored bytes, if written shards differ in size."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    low, high = census.min_nbytes, census.max_nbytes
    if low == high:
        return
    steps = ListedColormap([hex_of(colour) for colour in SIZE_COLOURS])
    bar = figure.colorbar(
        ScalarMappable(Normalize(low, high), steps), ax=axes, shrink=0.6, aspect=24
    )
    ticks = np.linspace(low, high, 5)
    bar.set_ticks(ticks, labels=[human(tick) for tick in ticks], fontsize=8)
    bar.set_label("stored bytes of a shard", fontsize=8, color=ink)
    bar.ax.tick_params(color=ink, labelcolor=ink)
    bar.outline.set_visible(False)

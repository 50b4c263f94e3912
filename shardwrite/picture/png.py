"""PNG file of the shard grid, drawn with matplotlib."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from shardwrite.errors import SpecError
from shardwrite.picture.census import Census
from shardwrite.picture.fold import GAP, fold
from shardwrite.picture.look import PALETTE, caption_of, hex_of, legend_of, shades_of

__all__ = ["write_png"]

_INCHES, _DPI = (8.0, 6.0), 150
# most cells along each axis: each has at least two pixels, or scaling could hide a bad one
_CELLS = 300


def write_png(census: Census, path: str | os.PathLike[str]) -> None:
    """Draw the shard grid as a PNG file of 1200 by 900 pixels.

    Parameters
    ----------
    census : Census
        Census of the array to draw.
    path : str or path
        File to write. An existing file is replaced.

    Raises
    ------
    SpecError
        If matplotlib is not installed.
    """
    try:
        # not pyplot, which keeps figures in memory and may need a display
        from matplotlib.figure import Figure
        from matplotlib.legend_handler import HandlerTuple
        from matplotlib.patches import Patch
    except ImportError:
        raise SpecError(
            "needs a package that is not installed",
            field="png",
            value="matplotlib",
            remedy='pip install "shardwrite[plot]"',
        ) from None
    picture = fold(census.states, census.stored_nbytes, _CELLS, _CELLS)
    figure = Figure(figsize=_INCHES, dpi=_DPI, layout="constrained")
    figure.suptitle(census.path, fontsize=10, parse_math=False)  # a path may hold dollar signs
    axes = figure.add_subplot(xticks=[], yticks=[], frame_on=False)
    axes.set_xlabel(caption_of(census, picture), fontsize=8)
    if picture.states.size:
        colours = np.full((GAP + 1, 3), 255, np.uint8)  # gaps are white like the background
        colours[: len(PALETTE)] = PALETTE
        axes.imshow(colours[shades_of(picture, census)], interpolation="nearest")
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
            handlelength=4,
        )
    figure.savefig(path, format="png")

"""Picture of the shard grid in the terminal: coloured half blocks, or characters without colour."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import numpy as np
from rich.color import Color
from rich.columns import Columns
from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from shardwrite._dataclass import dataclass
from shardwrite.grid import ceil_div
from shardwrite.read.census import Census
from shardwrite.show.fold import GAP, PALETTE, Folded, caption_of, fold, legend_of, shades_of

_SYMBOLS = "-#.?!"  # by state
_LARGEST_CELL = 4  # columns of a cell in a small grid, which is enlarged


@dataclass(frozen=True, slots=True, eq=False)
class TerminalPicture:
    """Picture of the shard grid that rich can print."""

    census: Census  # census of the array to show
    width: int  # most columns to fill

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[Segment | Columns | Text]:
        width = max(1, min(self.width, options.max_width))
        has_colours = (
            console.color_system is not None and not console.no_color and not options.ascii_only
        )
        # a character is twice as high as wide, so the picture has half as many lines as columns
        picture = fold(
            self.census.states,
            self.census.stored_nbytes,
            width if has_colours else ceil_div(width, 2),
            width,
        )
        yield from self._blocks(picture, width) if has_colours else self._letters(picture)
        yield Text("")
        yield Columns(self._legend(has_colours), padding=(0, 3))
        yield Text(caption_of(self.census, picture))

    def _blocks(self, picture: Folded, width: int) -> Iterator[Segment]:
        shades = shades_of(picture, self.census)
        factor = max(1, min(_LARGEST_CELL, width // max(1, *shades.shape)))
        shades = shades.repeat(factor, 0).repeat(factor, 1)
        shades = np.pad(shades, ((0, shades.shape[0] % 2), (0, 0)), constant_values=GAP)
        for upper, lower in zip(shades[::2].tolist(), shades[1::2].tolist(), strict=True):
            for (above, below), cells in groupby(zip(upper, lower, strict=True)):
                yield _half_blocks(above, below, sum(1 for _ in cells))
            yield Segment.line()

    @staticmethod
    def _letters(picture: Folded) -> Iterator[Segment]:
        for row in picture.states.tolist():
            yield Segment(
                "".join(" " if state == GAP else _SYMBOLS[state] for state in row).rstrip()
            )
            yield Segment.line()

    def _legend(self, has_colours: bool) -> Iterator[Text]:
        for state, colours, words in legend_of(self.census):
            blocks = [
                ("█" if len(colours) > 1 else "██", Style(color=Color.from_rgb(*colour)))
                for colour in colours
            ]
            yield Text.assemble(*(blocks if has_colours else _SYMBOLS[state]), f" {words}")


def _half_blocks(above: int, below: int, n: int) -> Segment:
    """Draw `n` pairs of cells, one above the other, in two shades.

    A gap shows the background of the terminal.
    """
    upper, lower = (
        None if shade == GAP else Color.from_rgb(*PALETTE[shade].tolist())
        for shade in (above, below)
    )
    if upper is None:
        return Segment(("▄" if lower else " ") * n, Style(color=lower))
    return Segment("▀" * n, Style(color=upper, bgcolor=lower))


def terminal_picture(census: Census, width: int = 80) -> TerminalPicture:
    """Make a picture of the shard grid, with a legend, that rich can print.

    It is drawn with half blocks, or with characters if the console has no colours.

    - `width`: most columns to fill. A narrower console limits them further.
    """
    return TerminalPicture(census, width)

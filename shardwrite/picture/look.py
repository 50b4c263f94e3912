"""Colours, legend and caption that all pictures share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from shardwrite.picture.fold import Folded
from shardwrite.read.census import LEGEND_ORDER, STATES, Array, Census, ShardState, times
from shardwrite.results import human

RGB = tuple[int, int, int]
STATE_COLOURS: tuple[RGB, ...] = (
    (185, 60, 255),
    (0, 0, 0),
    (44, 46, 58),
    (255, 156, 225),
    (226, 38, 38),
)
# The states differ from each other and from all steps of the scale, also to colour-blind readers.
# viridis has steps that look even, also to colour-blind readers; its darkest fifth is left out,
# because it would look like empty shards
SIZE_COLOURS: tuple[RGB, ...] = (
    (65, 68, 135), (51, 98, 141), (39, 127, 142), (31, 154, 138), (74, 193, 109),
    (160, 218, 57), (253, 231, 37),
)  # fmt: skip
PALETTE = np.array(STATE_COLOURS + SIZE_COLOURS, np.uint8)


def shades_of(picture: Folded, census: Census) -> Array:
    """Map the cells of a picture to indices of `PALETTE`; ``GAP`` stays ``GAP``."""
    low, high, n = census.min_nbytes, census.max_nbytes, len(SIZE_COLOURS)
    position = (
        (picture.mean_nbytes - low) / (high - low)
        if high > low
        else np.full(picture.states.shape, 0.5)
    )
    steps = len(STATES) + np.clip(position * n, 0, n - 1).astype(np.uint8)
    return np.where(picture.states == ShardState.WRITTEN, steps, picture.states).astype(np.uint8)


def legend_of(census: Census) -> Iterator[tuple[ShardState, tuple[RGB, ...], str]]:
    """Iterate over the states that occur, each with its colours and its text."""
    low, high = human(census.min_nbytes), human(census.max_nbytes)
    for state in LEGEND_ORDER:
        name = STATES[state]
        count = census.counts[name]
        if count and state == ShardState.WRITTEN:
            is_even = census.min_nbytes == census.max_nbytes
            middle = len(SIZE_COLOURS) // 2
            colours = SIZE_COLOURS[middle : middle + 1] if is_even else SIZE_COLOURS
            yield state, colours, f"{count:,} {name}, {low}" + ("" if is_even else f" to {high}")
        elif count:
            yield state, STATE_COLOURS[state : state + 1], f"{count:,} {name}"


def caption_of(census: Census, picture: Folded) -> str:
    """Describe in one line what a picture shows."""
    grid = census.states.shape
    parts = [f"shard grid {times(grid)}"]
    if len(grid) > 2 and census.states.size:
        parts.append(f"{math.prod(grid[:-2]):,} planes of the last two axes")
    if (largest := int(picture.n_shards.max(initial=0))) > 1:
        parts.append(f"each cell shows the worst of up to {largest:,} shards")
    return "; ".join(parts)


def hex_of(colour: Iterable[int]) -> str:
    """Format a colour for HTML, such as ``#2c2e3a``."""
    return "#" + "".join(f"{value:02x}" for value in colour)

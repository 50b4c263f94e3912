"""Plans as notebooks show them: headline numbers, axes, and a picture of the grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from shardwrite.format.metadata import ArrayMetadata
from shardwrite.grid import ceil_div
from shardwrite.plan.model import PlanFacts
from shardwrite.plan.render import gathering_rows, index_text, plan_rows
from shardwrite.results import Axis, Facts, counted, human

_PICTURE_PX = 220
_MAX_LINES = 40


def axes_of(metadata: ArrayMetadata) -> list[Axis]:
    """Axes of an array, with the names that its document gives them, or with their numbers."""
    grid = metadata.grid
    names = metadata.document.get("dimension_names") or [None] * grid.ndim
    return [
        Axis(str(number) if name is None else name, *sizes)
        for number, (name, *sizes) in enumerate(
            zip(names, grid.shape, grid.shards, grid.chunks, grid.counts, strict=True)
        )
    ]


def array_facts(metadata: ArrayMetadata) -> Facts:
    """Make the facts of an array."""
    grid = metadata.grid
    noun = "shards" if metadata.is_sharded else "chunks"
    return Facts(
        title="array",
        subject=f"{grid.shape} {metadata.dtype}",
        headline=[
            (f"{grid.n_shards:,}", f"{noun}, each a file unless it is empty"),
            (human(metadata.raw_nbytes), "decoded"),
            (human(math.prod(grid.chunks) * metadata.itemsize), "per inner chunk"),
        ],
        axes=axes_of(metadata),
        rows=[
            ("codecs", " + ".join(codec["name"] for codec in metadata.inner_codecs)),
            ("index", index_text(metadata)),
            ("fill value", str(metadata.document["fill_value"])),
        ],
    )


def plan_facts(plan: PlanFacts, gathering: PlanFacts | None = None) -> Facts:
    """Make the facts of a plan."""
    needed, allowed = plan.memory.total_nbytes, plan.resources.memory_limit_nbytes
    problems = []
    if not plan.fits:
        told = f"A process needs {human(needed)}, and may use {human(allowed)}."
        problems.append(("does not fit into the memory", told))
    spool = "" if gathering is None else f", gathered out of a spool of {plan.n_shards:,}"
    rows = plan_rows(plan)
    if gathering is not None:
        above = [(f"scale: {name}", cell) for name, cell in gathering_rows(plan, gathering)[1:]]
        rows = [*above, *((f"spool: {name}", cell) for name, cell in rows)]
    return Facts(
        title="plan" if gathering is None else "plan of a scale and its spool",
        subject=f"{plan.metadata.grid.shape} {plan.metadata.dtype}",
        headline=[
            (f"{(gathering or plan).n_shards:,}", f"files at most{spool}"),
            (human(needed), "memory per process at most"),
            (human(plan.raw_nbytes), "to write"),
            (f"{plan.n_tasks:,}", "tasks"),
        ],
        axes=axes_of(plan.metadata),
        problems=problems,
        rows=rows,
        drawing=_picture(plan),
    )


def plan_line(plan: PlanFacts, gathering: PlanFacts | None = None) -> str:
    """Describe a plan in one line. The parameters are those of `plan_facts`."""
    spool = "" if gathering is None else f" out of a spool of {plan.n_shards:,}"
    return (
        f"<Plan: {plan.metadata.grid.shape} {plan.metadata.dtype}, {human(plan.raw_nbytes)}, "
        f"up to {counted((gathering or plan).n_shards, 'file')}{spool}, "
        f"at most {human(plan.memory.total_nbytes)} per process>"
    )


def _picture(plan: PlanFacts) -> str:
    """Draw the last two axes of the grid as SVG.

    The array is shaded, and shards and inner chunks are drawn as strong and fine lines. Lines that
    would lie too close together are left out. The result is an empty text if the array has no axes
    or no shards.
    """
    grid = plan.metadata.grid
    if grid.ndim == 0 or not grid.n_shards:
        return ""
    shape, shards, chunks, counts = (
        tuple(t[-2:]) if grid.ndim > 1 else (1, t[0])
        for t in (grid.shape, grid.shards, grid.chunks, grid.counts)
    )
    height, width = (k * s for k, s in zip(counts, shards, strict=True))
    scale = _PICTURE_PX / max(height, width)
    size = f"width='{shape[1] * scale:.1f}' height='{shape[0] * scale:.1f}'"
    lines = [f"<rect class='sw-array' {size} fill='#cfe3f5'/>"]
    for name, sizes, colour, stroke in (
        ("sw-chunk", chunks, "#9ab", 0.3),
        ("sw-shard", shards, "#234", 1.0),
    ):
        if all(
            ceil_div(extent, size) <= _MAX_LINES
            for extent, size in zip((height, width), sizes, strict=True)
        ):
            style = f"class='{name}' stroke='{colour}' stroke-width='{stroke}'"
            lines += _grid_lines(height, width, sizes, scale, style)
    note = escape(_caption(plan, counts))
    return (
        f"<figure><svg width='{width * scale + 2:.0f}' height='{height * scale + 2:.0f}' "
        f"role='img' aria-label='{note}'>"
        f"{''.join(lines)}</svg><figcaption>{note}</figcaption></figure>"
    )


def _caption(plan: PlanFacts, counts: Sequence[int]) -> str:
    names = [axis.name for axis in axes_of(plan.metadata)]
    grid = plan.metadata.grid
    told = f"{counts[0]} x {counts[1]} shards"
    if grid.ndim > 1:
        told += f" along axes {names[-2]} and {names[-1]}"
    if grid.ndim > 2:
        told += f", {math.prod(grid.counts[:-2])} such planes"
    return told


def _grid_lines(
    height: int, width: int, sizes: Sequence[int], scale: float, style: str
) -> list[str]:
    rows = [y * scale for y in range(0, height + 1, sizes[0])]
    columns = [x * scale for x in range(0, width + 1, sizes[1])]
    across = [
        f"<line x1='0' x2='{width * scale:.1f}' y1='{y:.1f}' y2='{y:.1f}' {style}/>" for y in rows
    ]
    down = [
        f"<line y1='0' y2='{height * scale:.1f}' x1='{x:.1f}' x2='{x:.1f}' {style}/>"
        for x in columns
    ]
    return across + down

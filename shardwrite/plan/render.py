"""Tables of plans and results for the terminal and for notebooks, and a picture of the grid."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from shardwrite.grid import ceil_div
from shardwrite.plan.model import PlanFacts

__all__ = ["human", "plan_html", "plan_text", "table_html", "table_text"]

Rows = Sequence[tuple[str, str]]
_PICTURE_PX = 220
_MAX_LINES = 40


def human(nbytes: float) -> str:
    """Format a number of bytes in decimal units.

    Examples
    --------
    >>> human(2_147_483_648)
    '2.15 GB'
    >>> human(999_960)
    '1 MB'
    """
    nbytes = min(nbytes, 1e300)  # a larger integer may not fit into a float
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(nbytes) < 999.5:  # larger values would be rounded to 1000
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.4g} PB"


def table_text(title: str, rows: Rows) -> str:
    """Format a table of two columns as text.

    `rows` are pairs of a name and a cell. A cell may have several lines.
    """
    width = max(len(name) for name, _ in rows)
    lines = [title]
    for name, cell in rows:
        for number, line in enumerate(cell.split("\n")):
            lines.append(f"  {name if number == 0 else '':<{width}}  {line}")
    return "\n".join(lines)


def table_html(title: str, rows: Rows) -> str:
    """Format a table of two columns as HTML; `rows` are as in `table_text`."""
    body = "".join(
        f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
        f"<td style='text-align:left'>{html.escape(cell).replace(chr(10), '<br>')}</td></tr>"
        for name, cell in rows
    )
    return f"<table><caption>{html.escape(title)}</caption>{body}</table>"


def _index(plan: PlanFacts) -> str:
    codec = plan.metadata.index_codec
    if not plan.metadata.is_sharded:
        return "none: each chunk is a file"
    return f"{human(codec.encoded_nbytes)} at the {codec.location} of each shard"


def _rows(plan: PlanFacts) -> list[tuple[str, str]]:
    grid = plan.metadata.grid
    per_shard = math.prod(grid.shards) * plan.metadata.itemsize
    rows = [
        ("array", f"{grid.shape} {plan.metadata.dtype}, {human(plan.raw_nbytes)}"),
        (
            "shards",
            (
                f"{grid.shards}, {human(per_shard)} decoded; "
                f"{plan.n_shards:,} files at most, grid {grid.counts}"
            ),
        ),
        (
            "inner chunks",
            (
                f"{grid.chunks}, {grid.n_chunks_per_shard:,} in a shard, "
                f"{plan.n_inner_chunks:,} in the array"
            ),
        ),
        ("overhang", f"{grid.overhang_fraction:.1%} of the shards' volume lies beyond the array"),
        ("codecs", " + ".join(codec["name"] for codec in plan.metadata.inner_codecs)),
        ("index", _index(plan)),
        ("strategy", plan.strategy.label),
        (
            "source",
            (
                f"{plan.source.n_chunks:,} chunks, {plan.source.n_tasks:,} tasks, "
                f"each run {plan.source_reruns:.3g} times"
            ),
        ),
        (
            "tasks",
            f"{plan.n_tasks:,} in {len(plan.waves)} graphs; {plan.layout}: {_LAYOUTS[plan.layout]}",
        ),
        (
            "units",
            (
                f"{plan.n_units:,}; groups of shards {plan.partition.largest_group}, "
                f"blocks {plan.partition.largest_block}"
            ),
        ),
        ("memory", _memory_cell(plan)),
    ]
    if plan.compression_ratio:
        rows.append(
            (
                "expected",
                (
                    f"{human(plan.expected_memory.total_nbytes)} "
                    f"at a compression of {plan.compression_ratio:g}x"
                ),
            )
        )
    if plan.notes:
        rows.append(("chosen", "\n".join(plan.notes)))
    if plan.array_region is not None:
        where = ", ".join(f"{a}:{b}" for a, b in plan.array_region.bounds)
        rows.append(
            (
                "region",
                (
                    f"[{where}]; of its {plan.n_shards:,} shards "
                    f"{len(plan.shared_shards):,} only in part"
                ),
            )
        )
    rows.append(("digest", plan.digest))
    return rows


def _memory_cell(plan: PlanFacts) -> str:
    memory, resources = plan.memory, plan.resources
    return (
        f"{human(memory.total_nbytes)} a process of {resources.n_threads} threads at worst, "
        f"{human(plan.memory_per_thread_nbytes)} a thread; "
        f"limit {human(resources.memory_limit_nbytes)}\n"
        f"source {human(memory.source_nbytes)}, "
        f"kept for a second task {human(memory.border_nbytes)}, "
        f"encoding {human(memory.encode_nbytes)}, waiting for commit {human(memory.waiting_nbytes)}"
    )


_LAYOUTS = {
    "fused": "a task encodes and commits",
    "direct": "tasks encode units, others commit shards",
    "staged": "units go to part files, then shards are committed",
}


def plan_text(plan: PlanFacts) -> str:
    """Format a plan as a text table."""
    return table_text("plan", _rows(plan))


def plan_html(plan: PlanFacts) -> str:
    """Format a plan as an HTML table beside a picture of the grid."""
    return (
        f"<div style='display:flex;gap:2em'>{table_html('plan', _rows(plan))}{_picture(plan)}</div>"
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
    lines = [
        f"<rect width='{shape[1] * scale:.1f}' height='{shape[0] * scale:.1f}' fill='#cfe3f5'/>"
    ]
    for sizes, colour, stroke in ((chunks, "#9ab", 0.3), (shards, "#234", 1.0)):
        if all(
            ceil_div(extent, size) <= _MAX_LINES
            for extent, size in zip((height, width), sizes, strict=True)
        ):
            lines += _grid_lines(
                height, width, sizes, scale, f"stroke='{colour}' stroke-width='{stroke}'"
            )
    note = f"{counts[0]} x {counts[1]} shards" + (
        f", {math.prod(grid.counts[:-2])} such planes" if grid.ndim > 2 else ""
    )
    return (
        f"<figure><svg width='{width * scale + 2:.0f}' height='{height * scale + 2:.0f}' "
        f"role='img' aria-label='{note}'>"
        f"{''.join(lines)}</svg><figcaption>{note}</figcaption></figure>"
    )


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

"""Plans as people see them: tables as text, and cards for notebooks with a picture of the grid."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from html import escape

from shardwrite.codecs.documents import attributes_of
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.grid import ceil_div
from shardwrite.plan.estimate import Requests, Traffic
from shardwrite.plan.model import PlanFacts
from shardwrite.results import ABOVE, Axis, Facts, counted, human, table_text

# ---- Tables


_CELL_WIDTH = 80


def index_text(metadata: ArrayMetadata) -> str:
    """Say where the index of a shard lies, and how large it is."""
    codec = metadata.index_codec
    if not metadata.is_sharded:
        return "none: each chunk is a file"
    return f"{human(codec.encoded_nbytes)} at the {codec.location} of each shard"


def plan_rows(plan: PlanFacts) -> list[tuple[str, str]]:
    """Rows of a plan as a table: pairs of a name and a cell."""
    grid, metadata = plan.metadata.grid, plan.metadata
    shards = f"{grid.shards}, {human(metadata.shard_nbytes)} decoded"
    per_shard = f"{grid.n_chunks_per_shard:,} per shard, {plan.n_inner_chunks:,} in the array"
    source = f"{counted(plan.source.n_chunks, 'chunk')}, {counted(plan.source.n_tasks, 'task')}"
    if plan.source_reruns > 1:
        source += f", each run {plan.source_reruns:.3g} times on average"
    groups, blocks = plan.partition.largest_group, plan.partition.largest_block
    rows = [
        ("array", f"{grid.shape} {metadata.dtype}, {human(plan.raw_nbytes)}"),
        ("shards", f"{shards}; up to {counted(plan.n_shards, 'file')}, grid {grid.counts}"),
        ("inner chunks", f"{grid.chunks}, {per_shard}"),
        ("codecs", " + ".join(codec["name"] for codec in metadata.inner_codecs)),
        ("index", index_text(metadata)),
        ("strategy", plan.strategy.label),
        ("source", source),
        ("tasks", f"{_tasks(plan)}; {plan.layout}: {_LAYOUTS[plan.layout]}"),
        ("cut", f"shards in groups of up to {groups}, encoded in blocks of up to {blocks}"),
        ("memory", _memory_cell(plan)),
    ]
    if plan.is_staged:
        told = f"at most {human(plan.staged_nbytes)} at a time on disk"
        rows.append(("part files", f"{told}; a kill loses what is in them"))
    if plan.resources.scratch is not None:
        told = f"at most {human(plan.scratch_nbytes)} per process in {plan.resources.scratch}"
        rows.append(("scratch", f"{told}, for shards that wait until they are put"))
    if plan.compression_ratio:
        expected = human(plan.expected_memory.total_nbytes)
        rows.append(("expected", f"{expected} at a compression of {plan.compression_ratio:g}x"))
    if grid.overhang_fraction:
        told = f"{grid.overhang_fraction:.1%} of the shards' volume is outside the array"
        rows.append(("edge", told))
    if plan.notes:
        rows.append(("chosen sizes", "\n".join(plan.notes)))
    if plan.array_region is None:
        rows += _kept_rows(metadata)
    else:
        where = ", ".join(f"{a}:{b}" for a, b in plan.array_region.bounds)
        touched = f"{counted(plan.n_shards, 'shard')}, {len(plan.shared_shards):,} only in part"
        rows.append(("region", f"[{where}]; touches {touched}"))
    if plan.staged_with is not None:
        told = f"at most {human(plan.kept_nbytes)}, until all shards are written"
        rows.append(("kept values", f"{told}; they are computed before any shard changes"))
    if plan.traffic is not None:
        rows += _traffic_rows(plan.traffic)
    rows.append(("digest", plan.digest))
    return rows


def _traffic_rows(traffic: Traffic) -> list[tuple[str, str]]:
    """Rows of what a run asks of an object store."""
    requests = f"at most {traffic.requests}"
    if traffic.hourly != Requests():
        requests += f"\nand in each hour {traffic.hourly}, for the state of the run"
    put = f"{'about' if traffic.is_expected else 'at most'} {human(traffic.put_nbytes)} put"
    if traffic.get_nbytes:
        put += f", at most {human(traffic.get_nbytes)} read"
    return [("requests", requests), ("transferred", put)]


def _kept_rows(metadata: ArrayMetadata) -> list[tuple[str, str]]:
    """Rows of the names of axes and of attributes, where the new array has any."""
    names = metadata.document.get("dimension_names") or []
    lists = {
        "axis names": ["(none)" if name is None else name for name in names],
        "attributes": list(attributes_of(metadata.document)),
    }
    return [
        (title, "\n".join(textwrap.wrap(", ".join(words), _CELL_WIDTH, break_long_words=False)))
        for title, words in lists.items()
        if words
    ]


def _memory_cell(plan: PlanFacts) -> str:
    memory, resources = plan.memory, plan.resources
    allowed = resources.memory_limit_nbytes
    is_above = plan.fits and memory.total_nbytes > allowed
    return (
        f"at most {human(memory.total_nbytes)} per process "
        f"with {counted(resources.n_threads, 'thread')}, {ABOVE}; "
        f"limit {human(allowed)}{' for data alone' if is_above else ''}"
    ) + "".join(f"\n{human(nbytes)} for {what}" for nbytes, what in memory.parts if nbytes)


def _tasks(plan: PlanFacts) -> str:
    """Say how many tasks there are, and in how many graphs unless it is one."""
    n_graphs = len(plan.waves)
    return f"{plan.n_tasks:,}" + (f" in {n_graphs:,} graphs, one by one" if n_graphs > 1 else "")


_LAYOUTS = {
    "fused": "each task encodes and writes whole shards",
    "direct": "some tasks encode parts of shards, others write the shards",
    "staged": "encoded parts go to temporary files first, then shards are written",
}


def gathering_rows(spooling: PlanFacts, gathering: PlanFacts) -> list[tuple[str, str]]:
    """Rows of a scale whose shards are gathered out of a spool."""
    shape, dtype = spooling.metadata.grid.shape, spooling.metadata.dtype
    return [
        ("scale", f"{shape} {dtype}, {human(spooling.raw_nbytes)}"),
        ("shards", f"up to {counted(gathering.n_shards, 'file')}, gathered out of a spool"),
        ("tasks", f"{_tasks(gathering)}, after those of the spool"),
        ("chosen sizes", "\n".join(gathering.notes)),
    ]


def plan_text(plan: PlanFacts, gathering: PlanFacts | None = None) -> str:
    """Format a plan as a text table."""
    if gathering is None:
        return table_text("plan", plan_rows(plan))
    scale = table_text("plan of the scale", gathering_rows(plan, gathering))
    spool = table_text("plan of its spool, which is written first", plan_rows(plan))
    return f"{scale}\n\n{spool}"


# ---- Cards


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
            (human(metadata.chunk_nbytes), "per inner chunk"),
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
        problem = f"A process needs {human(plan.bound.total_nbytes)}, and may use {human(allowed)}."
        problems.append(("does not fit into the memory", problem))
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
    caption = f"{counts[0]} x {counts[1]} shards"
    if grid.ndim > 1:
        caption += f" along axes {names[-2]} and {names[-1]}"
    if grid.ndim > 2:
        caption += f", {math.prod(grid.counts[:-2])} such planes"
    return caption


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

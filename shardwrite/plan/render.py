"""Tables of plans and results as text, and numbers in words."""

from __future__ import annotations

import math
import textwrap

from shardwrite.codecs.documents import attributes_of
from shardwrite.errors import printable
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.notebook.html import Rows
from shardwrite.plan.model import PlanFacts
from shardwrite.plan.requests import Requests, Traffic

_CELL_WIDTH = 80


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


def duration(seconds: float) -> str:
    """Format a duration. A short one is not rounded to zero.

    Examples
    --------
    >>> duration(0.00042), duration(3.14159), duration(125), duration(7322)
    ('0.42 ms', '3.14 s', '2 min 5 s', '2 h 2 min')
    """
    if 0 < seconds < 0.01:
        return f"{1000 * seconds:.2g} ms"
    if seconds < 100:
        return f"{seconds:.2f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"


def rounded(seconds: float) -> float:
    """Seconds to the millisecond; only 0 becomes 0.

    Examples
    --------
    >>> rounded(3.14159), rounded(0.00042), rounded(0.0)
    (3.142, 0.001, 0.0)
    """
    return max(0.001, round(seconds, 3)) if seconds else 0.0


def counted(number: int, noun: str) -> str:
    """Format a number of things.

    Examples
    --------
    >>> counted(1, "file"), counted(2000, "file"), counted(2, "process")
    ('1 file', '2,000 files', '2 processes')
    """
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{number:,} {noun if number == 1 else plural}"


def table_text(title: str, rows: Rows) -> str:
    """Format a table of two columns as text.

    `rows` are pairs of a name and a cell. A cell may have several lines. Control characters,
    such as a name can have, are spelt out.
    """
    width = max(len(name) for name, _ in rows)
    lines = [title]
    for name, cell in rows:
        for number, line in enumerate(cell.split("\n")):
            lines.append(f"  {name if number == 0 else '':<{width}}  {line}")
    return printable("\n".join(lines))


def index_text(metadata: ArrayMetadata) -> str:
    """Say where the index of a shard lies, and how large it is."""
    codec = metadata.index_codec
    if not metadata.is_sharded:
        return "none: each chunk is a file"
    return f"{human(codec.encoded_nbytes)} at the {codec.location} of each shard"


def plan_rows(plan: PlanFacts) -> list[tuple[str, str]]:
    """Rows of a plan as a table: pairs of a name and a cell."""
    grid = plan.metadata.grid
    per_shard = math.prod(grid.shards) * plan.metadata.itemsize
    rows = [
        ("array", f"{grid.shape} {plan.metadata.dtype}, {human(plan.raw_nbytes)}"),
        (
            "shards",
            (
                f"{grid.shards}, {human(per_shard)} decoded; "
                f"up to {counted(plan.n_shards, 'file')}, grid {grid.counts}"
            ),
        ),
        (
            "inner chunks",
            (
                f"{grid.chunks}, {grid.n_chunks_per_shard:,} per shard, "
                f"{plan.n_inner_chunks:,} in the array"
            ),
        ),
        ("codecs", " + ".join(codec["name"] for codec in plan.metadata.inner_codecs)),
        ("index", index_text(plan.metadata)),
        ("strategy", plan.strategy.label),
        (
            "source",
            (
                f"{counted(plan.source.n_chunks, 'chunk')}, "
                f"{counted(plan.source.n_tasks, 'task')}{_reruns(plan)}"
            ),
        ),
        (
            "tasks",
            f"{_tasks(plan)}; {plan.layout}: {_LAYOUTS[plan.layout]}",
        ),
        (
            "cut",
            (
                f"shards in groups of up to {plan.partition.largest_group}, "
                f"encoded in blocks of up to {plan.partition.largest_block}"
            ),
        ),
        ("memory", _memory_cell(plan)),
    ]
    if plan.is_staged:
        told = f"at most {human(plan.staged_nbytes)} at a time on disk"
        rows.append(("part files", f"{told}; a kill loses what is in them"))
    if plan.resources.scratch is not None:
        told = f"at most {human(plan.scratch_nbytes)} per process in {plan.resources.scratch}"
        rows.append(("scratch", f"{told}, for shards that wait until they are put"))
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
    if grid.overhang_fraction:
        rows.append(
            ("edge", f"{grid.overhang_fraction:.1%} of the shards' volume is outside the array")
        )
    if plan.notes:
        rows.append(("chosen sizes", "\n".join(plan.notes)))
    if plan.array_region is None:
        rows += _kept_rows(plan.metadata)
    if plan.array_region is not None:
        where = ", ".join(f"{a}:{b}" for a, b in plan.array_region.bounds)
        rows.append(
            (
                "region",
                (
                    f"[{where}]; touches {counted(plan.n_shards, 'shard')}, "
                    f"{len(plan.shared_shards):,} only in part"
                ),
            )
        )
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
    rows = [("requests", requests), ("transferred", put)]
    told = [
        f"{amount:,.4g} {what}"
        for amount, what in (
            (traffic.cost, "for the requests"),
            (traffic.hourly_cost if traffic.hourly != Requests() else None, "for each hour"),
            (traffic.monthly_cost, "a month for what is put"),
        )
        if amount is not None
    ]
    return [*rows, ("cost", ", ".join(told))] if told else rows


def _kept_rows(metadata: ArrayMetadata) -> list[tuple[str, str]]:
    """Rows of the names of axes and of attributes, where the new array has any."""
    names = metadata.document.get("dimension_names") or []
    told = {
        "axis names": ["(none)" if name is None else name for name in names],
        "attributes": list(attributes_of(metadata.document)),
    }
    return [
        (title, "\n".join(textwrap.wrap(", ".join(words), _CELL_WIDTH, break_long_words=False)))
        for title, words in told.items()
        if words
    ]


def _memory_cell(plan: PlanFacts) -> str:
    memory, resources = plan.memory, plan.resources
    shares = (
        ("source chunks", memory.source_nbytes),
        ("source chunks that a later task needs, too", memory.border_nbytes),
        ("encoding", memory.encode_nbytes),
        ("encoded data that wait for their shard", memory.waiting_nbytes),
        ("shards that wait until they are put", memory.held_nbytes),
    )
    return (
        f"at most {human(memory.total_nbytes)} per process "
        f"with {counted(resources.n_threads, 'thread')}; "
        f"limit {human(resources.memory_limit_nbytes)}"
    ) + "".join(f"\n{human(nbytes)} for {what}" for what, nbytes in shares if nbytes)


def _reruns(plan: PlanFacts) -> str:
    """Say how often a source task runs, unless each runs once."""
    return f", each run {plan.source_reruns:.3g} times on average" if plan.source_reruns > 1 else ""


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

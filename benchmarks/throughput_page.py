"""Plots of throughput runs, and one page that holds all of them."""

from __future__ import annotations

import base64
import html
import importlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

__all__ = ["PLOTS", "with_efficiency", "write_page"]

Line = dict[str, Any]
_VARIED = (
    "kind",
    "scaling",
    "shards",
    "chunks",
    "source_chunks",
    "codec",
    "strategy",
    "durability",
)
_MEDIANS = (
    "decoded_bytes_per_s",
    "encoded_bytes_per_s",
    "seconds",
    "source_seconds",
    "peak_anonymous_bytes",
    "write_amplification",
)
_STYLE = """body{font:15px/1.5 sans-serif;max-width:75rem;margin:2rem auto;padding:0 1rem}img{max-width:36rem;width:100%}
table{border-collapse:collapse;font-size:13px}td,th{padding:.2rem .6rem;border-bottom:1px solid #ccc;text-align:right}
td:first-child,th:first-child{text-align:left}"""

# Okabe and Ito, 2008: readers of all kinds of colour vision tell these apart; markers help in print
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#666666")
_MARKERS = "osD^vPX"
_LINE_HEIGHT = 1.25  # of the distance between labels, in heights of their text


def _figure(width: float, height: float) -> Any:
    """An empty figure of a size in inches; it needs no display."""
    figure: Any = importlib.import_module("matplotlib.figure").Figure
    return figure(figsize=(width, height), dpi=150, layout="constrained")


def _style_of(number: int) -> dict[str, Any]:
    """Colour, marker and line of a series."""
    k = number % len(_COLOURS)
    return {"color": _COLOURS[k], "marker": _MARKERS[k], "markersize": 4.5, "linewidth": 1.6}


def _label_ends(axes: Any, ends: Mapping[str, tuple[float, float, str]], size: float = 8) -> None:
    """Write the name of each line at its end, in its colour, so that no two names overlap."""
    figure = axes.figure
    figure.draw_without_rendering()
    to_pixels = axes.transData
    least = size * _LINE_HEIGHT * figure.dpi / 72
    places = sorted((to_pixels.transform((x, y))[1], name) for name, (x, y, _) in ends.items())
    heights: list[float] = []
    for height, _ in places:
        heights.append(max(height, heights[-1] + least) if heights else height)
    # what was pushed up lies too high on average
    over = sum(h - p for h, (p, _) in zip(heights, places, strict=True)) / max(1, len(places))
    for height, (_, name) in zip(heights, places, strict=True):
        x, y, colour = ends[name]
        moved = (height - over - to_pixels.transform((x, y))[1]) * 72 / figure.dpi
        axes.annotate(
            name,
            (x, y),
            xytext=(8, moved),
            textcoords="offset points",
            va="center",
            fontsize=size,
            color=colour,
            annotation_clip=False,
        )


def _label(line: Line) -> str:
    shapes = ("x".join(map(str, line[name])) for name in ("shards", "chunks"))
    return f"{line['kind']} {' / '.join(shapes)} {line['codec']} {line['strategy']} {line['durability']}"


def _series_of(line: Line) -> str:
    shape = (
        line["shape"]
        if line["scaling"] == "strong"
        else [line["shape"][0] // line["n_threads"], *line["shape"][1:]]
    )
    return json.dumps([shape, *(line[name] for name in _VARIED)])


def with_efficiency(lines: Sequence[Line]) -> list[Line]:
    """Medians of the repeats, with how efficient more threads are than the fewest of the same series.

    Parameters
    ----------
    lines : sequence of dict
        Runs.

    Returns
    -------
    list of dict
        One for each series and number of workers and threads, with `label`, `efficiency` and the worst `spread` of the repeats.

    Notes
    -----
    Efficiency is throughput over that with the fewest threads, over the ratio of threads. With an array that stays the same
    that is strong scaling, and weak scaling with one that grows.
    """
    groups: dict[tuple[str, int, int], list[Line]] = {}
    for line in lines:
        groups.setdefault(
            (_series_of(line), line["n_workers"], line["threads_per_worker"]), []
        ).append(line)
    points = []
    for (series, _, _), repeats in groups.items():
        seconds = [line["seconds"] for line in repeats]
        point = {
            **repeats[0],
            **{name: median(line[name] for line in repeats) for name in _MEDIANS},
        }
        point["seconds_per_shard"] = {
            name: median(line["seconds_per_shard"][name] for line in repeats)
            for name in repeats[0]["seconds_per_shard"]
        }
        points.append(
            {
                **point,
                "series": series,
                "label": _label(point),
                "repeats": len(repeats),
                "spread": max(seconds) / min(seconds),
            }
        )
    points.sort(key=lambda point: (point["series"], point["n_threads"], point["n_workers"]))
    for point in points:
        base = next(other for other in points if other["series"] == point["series"])
        gain = point["decoded_bytes_per_s"] / base["decoded_bytes_per_s"]
        point["efficiency"] = gain / (point["n_threads"] / base["n_threads"])
    return points


PLOTS: dict[str, tuple[str, Callable[[Line], float]]] = {
    "throughput": ("decoded MB/s", lambda point: point["decoded_bytes_per_s"] / 1e6),
    "efficiency": ("efficiency against the fewest threads", lambda point: point["efficiency"]),
    "memory": (
        "peak anonymous memory of a process, MiB",
        lambda point: point["peak_anonymous_bytes"] / 2**20,
    ),
    "latency": (
        "seconds a shard, median (solid) and p99 (dashed)",
        lambda point: point["seconds_per_shard"]["p50"],
    ),
}


def _plot(name: str, points: Sequence[Line]) -> bytes:
    """One plot over the number of threads, as PNG."""
    figure = _figure(7.6, 4.2)
    axes = figure.subplots()
    title, value = PLOTS[name]
    ends = {}
    for number, series in enumerate(dict.fromkeys(point["series"] for point in points)):
        own = [point for point in points if point["series"] == series]
        threads = [point["n_threads"] for point in own]
        values = [value(point) for point in own]
        style = _style_of(number)
        axes.plot(threads, values, **style)
        ends[f"{own[0]['scaling']}, {own[0]['label']}"] = (threads[-1], values[-1], style["color"])
        if name == "latency":
            slowest = [point["seconds_per_shard"]["p99"] for point in own]
            axes.plot(threads, slowest, **{**style, "linestyle": "--", "markersize": 0})
    axes.set_xlabel("threads in all workers")
    axes.set_ylabel(title)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.set_xticks(sorted({point["n_threads"] for point in points}))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25, linewidth=0.6)
    _label_ends(axes, ends, 7)
    written = io.BytesIO()
    figure.savefig(written, format="png")
    return written.getvalue()


def _table(points: Sequence[Line]) -> str:
    """All figures, as HTML."""
    head = (
        "series", "workers", "threads", "array", "MB/s decoded", "MB/s encoded", "source alone, s", "s", "files", "reads",
        "written / stored", "s a shard p50", "p90", "p99", "max", "MiB", "efficiency", "repeats", "slowest / fastest",
    )  # fmt: skip
    rows = []
    for point in points:
        latency = point["seconds_per_shard"]
        cells = (
            f"{point['scaling']}, {point['label']}",
            point["n_workers"],
            point["threads_per_worker"],
            "x".join(map(str, point["shape"])),
            f"{point['decoded_bytes_per_s'] / 1e6:.0f}",
            f"{point['encoded_bytes_per_s'] / 1e6:.0f}",
            f"{point['source_seconds']:.2f}",
            f"{point['seconds']:.2f}",
            point["files"],
            point["shard_reads"],
            f"{point['write_amplification']:.3f}",
            *(f"{latency[name]:.4f}" for name in ("p50", "p90", "p99", "max")),
            f"{point['peak_anonymous_bytes'] / 2**20:.0f}",
            f"{point['efficiency']:.2f}",
            point["repeats"],
            f"{point['spread']:.2f}",
        )
        rows.append("".join(f"<td>{html.escape(str(cell))}</td>" for cell in cells))
    header = "".join(f"<th>{html.escape(text)}</th>" for text in head)
    return f"<table><tr>{header}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def write_page(path: Path, lines: Sequence[Line]) -> None:
    """Write the plots as PNG files beside a page, and the page, which needs none of them.

    Parameters
    ----------
    path : Path
        The page.
    lines : sequence of dict
        Runs.
    """
    points = with_efficiency(lines)
    images = []
    for name, (title, _) in PLOTS.items():
        image = _plot(name, points)
        path.with_name(f"{path.stem}-{name}.png").write_bytes(image)
        encoded = base64.b64encode(image).decode()
        images.append(f'<img alt="{html.escape(title)}" src="data:image/png;base64,{encoded}">')
    known = list(dict.fromkeys(json.dumps([line["machine"], line["versions"]]) for line in lines))
    facts = "".join(
        f"<p>{html.escape(', '.join(f'{key} {value}' for part in json.loads(text) for key, value in part.items()))}</p>"
        for text in known
    )
    body = (
        f"<h1>Throughput of shardwrite</h1>{facts}<p>Each run writes a synthetic array; tasks make its blocks "
        "themselves, which is in the time (alone it takes what the table says). Planning and publishing are in it, too. Layout, "
        "indexes and some of the data were checked before a figure was taken. Memory is that of the largest process that runs "
        "tasks; seconds a shard are those of the task that commits it, over the shards it commits.</p>"
        f"{''.join(images)}{_table(points)}"
    )
    path.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Throughput</title><style>{_STYLE}</style>{body}</html>\n'
    )

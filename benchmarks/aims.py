"""What is aimed at in the side-by-side comparison, and whether it is reached: ratios of one run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from benchmarks.cases import CODECS
from benchmarks.report import OURS, REFERENCE, Report, Row, geometric_mean, peers_of

__all__ = ["aims_markdown", "memory_markdown"]

_ALIGNED = {f"{codec}-{inner}" for codec in CODECS for inner in (64, 32, 16)}
_CHUNKED_BY_DASK = {
    "small-blocks": "zstd-32",
    "slabs": "zstd-64",
    "unaligned": "zstd-64",
    "two-workers": "zstd-32",
}
"""Cases in which dask's chunks are not whole shards, or other processes write; and the same inner chunks without that."""

_MEMORY_RANGE = (0.5, 1.25)
_Ratio = Callable[[Row], float]


def _best_dask_peer(row: Row) -> float:
    rates = [row.rate(name) for name in peers_of(row) if name.startswith("dask+")]
    return row.rate(OURS) / max((rate for rate in rates if not math.isnan(rate)), default=math.nan)


def _against(peer: str | None) -> _Ratio:
    return lambda row: row.ratio(peer)


def _synced(row: Row) -> float:
    return row.rate(f"{OURS}-full") / row.rate("tensorstore-sync")


def _as_hdf5(row: Row) -> float:
    return row.rate(f"{OURS}-hdf5") / row.rate(OURS)


def _memory_ratio(row: Row) -> float:
    return row.memory(OURS) / row.expected(OURS)


def _memory_of_best_peer(row: Row) -> float:
    """Memory of ours over that of the peer that takes least; all have as many threads."""
    return row.memory(OURS) / min((row.memory(name) for name in peers_of(row)), default=math.nan)


def aims_markdown(report: Report) -> str:
    """A table: aim, cases, ratio, and whether it is reached.

    Parameters
    ----------
    report : Report
        One run.
    """
    rows = [row for row in report.rows.values() if OURS in row.raw]

    def named(names: Iterable[str]) -> list[Row]:
        return [row for row in rows if row.case.name in set(names)]

    aligned, by_dask = named(_ALIGNED), named(_CHUNKED_BY_DASK)
    finest = [row for row in aligned if row.case.name.endswith("-16")]
    same_aligned = {
        name: report.rows[twin] for name, twin in _CHUNKED_BY_DASK.items() if twin in report.rows
    }
    paired = [row for row in by_dask if row.case.name in same_aligned]

    def over_aligned(row: Row) -> float:
        return row.rate(OURS) / same_aligned[row.case.name].rate(OURS)

    lines = [
        _least("aligned, over the best peer", aligned, _against(None), 1.0),
        _mean("aligned, over the best peer", aligned, _against(None), 1.5),
        _least("aligned, over the bare loop", aligned, _against("bare-loop"), 0.8),
        _least("chunked by dask, over the best peer that uses dask", by_dask, _best_dask_peer, 1.5),
        _least("chunked by dask, over our own aligned case", paired, over_aligned, 0.7),
        _least(
            "chunked by dask, over tensorstore, which does without dask",
            by_dask,
            _against("tensorstore"),
            1.0,
        ),
        _mean("all, over dask+zarr-python", rows, _against(REFERENCE), 3.0),
        _mean("inner chunks of 16 a side, over dask+zarr-python", finest, _against(REFERENCE), 8.0),
        _least("sparse, over the best peer", named(["sparse"]), _against(None), 1.5),
        _least(
            "many small shards, over dask+zarr-python",
            named(["many-shards"]),
            _against(REFERENCE),
            10.0,
        ),
        _least(
            "many small shards, over tensorstore",
            named(["many-shards"]),
            _against("tensorstore"),
            1.0,
        ),
        _least("each shard synced, over tensorstore with each file synced", rows, _synced, 1.0),
        _least("shards that are HDF5 files, over plain shards", rows, _as_hdf5, 0.9),
        _range("memory, measured over what the plan expects", rows, _memory_ratio),
        _most("memory, over the peer that takes least", rows, _memory_of_best_peer, 1.0),
    ]
    head = ["", "| aim | of cases | ratio | aimed at | |", "|---|---:|---:|---:|---|"]
    return "\n".join([*head, *filter(None, lines)]) + "\n"


def _values(rows: Iterable[Row], ratio: _Ratio) -> dict[str, float]:
    found = {row.case.name: ratio(row) for row in rows}
    return {name: value for name, value in found.items() if not math.isnan(value)}


def _line(what: str, n: int, ratio: str, aim: str, *, is_reached: bool) -> str:
    return f"| {what} | {n} | {ratio} | {aim} | {'reached' if is_reached else '**missed**'} |"


def _least(what: str, rows: Iterable[Row], ratio: _Ratio, aim: float) -> str | None:
    return _each(what, _values(rows, ratio), aim, at_most=False)


def _most(what: str, rows: Iterable[Row], ratio: _Ratio, aim: float) -> str | None:
    return _each(what, _values(rows, ratio), aim, at_most=True)


def _each(what: str, values: dict[str, float], aim: float, *, at_most: bool) -> str | None:
    if not values:
        return None
    name = (max if at_most else min)(values, key=values.__getitem__)
    n_reached = sum(value <= aim if at_most else value >= aim for value in values.values())
    text = f"{'most' if at_most else 'least'} {values[name]:.2f} ({name}); {n_reached} of {len(values)} reach it"
    return _line(
        what,
        len(values),
        text,
        f"each {'≤' if at_most else '≥'} {aim:g}",
        is_reached=n_reached == len(values),
    )


def _mean(what: str, rows: Iterable[Row], ratio: _Ratio, aim: float) -> str | None:
    values = _values(rows, ratio)
    if not values:
        return None
    mean = geometric_mean(list(values.values()))
    return _line(
        what, len(values), f"geometric mean {mean:.2f}", f"≥ {aim:g}", is_reached=mean >= aim
    )


def _range(what: str, rows: Iterable[Row], ratio: _Ratio) -> str | None:
    values = _values(rows, ratio)
    if not values:
        return None
    low, high = _MEMORY_RANGE
    least, most = (extreme(values, key=values.__getitem__) for extreme in (min, max))
    text = f"{values[least]:.2f} ({least}) to {values[most]:.2f} ({most})"
    is_reached = values[least] >= low and values[most] <= high
    return _line(what, len(values), text, f"{low:g} to {high:g}", is_reached=is_reached)


def memory_markdown(report: Report) -> str:
    """A table: what the plan expects, what was measured, and what each thread of each contestant takes.

    Parameters
    ----------
    report : Report
        One run.
    """
    names = list(dict.fromkeys(name for row in report.rows.values() for name in row.raw))
    if OURS not in names:
        return ""
    threads = report.settings["threads"]
    lines = [
        "",
        "Peak anonymous memory above idle, MiB.",
        "",
        f"| case | expected | measured | ratio | {' | '.join(f'{name}, a thread' for name in names)} |",
        f"|---|{'---:|' * (3 + len(names))}",
    ]
    for row in report.rows.values():
        if OURS not in row.raw or row.failed(OURS):
            continue
        each = [
            f"{row.memory(name) / threads:.0f}" if name in row.raw and not row.failed(name) else "-"
            for name in names
        ]
        ours = f"{row.expected(OURS):.0f} | {row.memory(OURS):.0f} | {_memory_ratio(row):.2f}"
        lines.append(f"| {row.case.name} | {ours} | {' | '.join(each)} |")
    return "\n".join(lines) + "\n"

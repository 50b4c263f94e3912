"""Tables, ratios and raw figures of a comparison."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.cases import Case
from benchmarks.contestants import CONTESTANTS

__all__ = ["OURS", "REFERENCE", "Report", "Row", "cell_text", "geometric_mean", "peers_of"]

OURS = "shardwrite"
REFERENCE = "dask+zarr-python"
_BARS = [name for name, entry in CONTESTANTS.items() if entry.is_bar]
_FAILED = math.nan
_MEAN = "geometric mean"


def cell_text(measured: Mapping[str, Any]) -> str:
    """One measurement in words.

    Parameters
    ----------
    measured : mapping
        What `benchmarks.one` found.
    """
    if measured["status"] != "ok":
        return f"FAIL: {measured.get('reason', 'unknown')}"
    rate = measured["decoded_bytes"] / measured["seconds"] / 1e6
    return f"{rate:.0f} MB/s, {measured['encoded_bytes'] / 1e6:.1f} MB, +{measured['peak_anonymous_bytes'] / 2**20:.0f} MiB"


@dataclass
class Row:
    """All measurements of one case."""

    case: Case
    raw: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def failed(self, name: str) -> bool:
        """Whether any repeat of a contestant failed."""
        return any(measured["status"] != "ok" for measured in self.raw.get(name, ()))

    def _median(self, name: str, key: str) -> float:
        repeats = self.raw.get(name)
        return (
            median(float(measured[key]) for measured in repeats)
            if repeats and not self.failed(name)
            else _FAILED
        )

    def rate(self, name: str) -> float:
        """Median of decoded MB/s; NaN where there is none."""
        return self._median(name, "decoded_bytes") / self._median(name, "seconds") / 1e6

    def spread(self, name: str) -> float:
        """Time of the slowest repeat over that of the fastest."""
        times = [float(measured["seconds"]) for measured in self.raw[name]]
        return max(times) / min(times)

    def encoded(self, name: str) -> float:
        """MB written."""
        return self._median(name, "encoded_bytes") / 1e6

    def memory(self, name: str) -> float:
        """Median of peak anonymous MiB above idle."""
        return self._median(name, "peak_anonymous_bytes") / 2**20

    def expected(self, name: str) -> float:
        """MiB of memory that the plan says to expect, NaN where there is no plan."""
        return (
            self._median(name, "expected_anonymous_bytes") / 2**20
            if name.startswith(OURS)
            else _FAILED
        )

    def ratio(self, peer: str | None) -> float:
        """Rate of shardwrite over that of another contestant, or of the fastest peer for None."""
        if peer is not None:
            return self.rate(OURS) / self.rate(peer)
        return self.rate(OURS) / max(
            (r for r in map(self.rate, peers_of(self)) if not math.isnan(r)), default=_FAILED
        )


def peers_of(row: Row) -> list[str]:
    """Who else wrote a case, and could have been used for it.

    Parameters
    ----------
    row : Row
        The case.
    """
    return [name for name in row.raw if not name.startswith(OURS) and name not in _BARS]


@dataclass
class Report:
    """Everything measured in one run.

    Parameters
    ----------
    machine, versions, settings : dict
        Circumstances.
    """

    machine: dict[str, Any]
    versions: dict[str, str]
    settings: dict[str, Any]
    rows: dict[str, Row] = field(default_factory=dict)

    def add(self, case: Case, name: str, measured: dict[str, Any]) -> None:
        """Take in one measurement.

        Parameters
        ----------
        case : Case
            What was written.
        name : str
            Who wrote it.
        measured : dict
            What `benchmarks.one` found.
        """
        self.rows.setdefault(case.name, Row(case)).raw.setdefault(name, []).append(measured)

    def is_enough(self, case: Case, name: str, once_above: float | None) -> bool:
        """Whether a contestant took so long for a case that it is not measured again.

        Parameters
        ----------
        case : Case
            What is written.
        name : str
            Who writes it.
        once_above : float or None
            Seconds that are long.
        """
        row = self.rows.get(case.name)
        repeats = row.raw.get(name, []) if row is not None else []
        return once_above is not None and any(
            measured.get("seconds", 0.0) > once_above for measured in repeats
        )

    @property
    def failed(self) -> bool:
        """Whether any measurement failed."""
        return any(row.failed(name) for row in self.rows.values() for name in row.raw)

    @property
    def _names(self) -> list[str]:
        return [name for name in CONTESTANTS if any(name in row.raw for row in self.rows.values())]

    def _table(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows of the one table that both outputs show."""
        names = self._names
        against = (
            [None, REFERENCE, *(name for name in names if name in _BARS)] if OURS in names else []
        )
        header = ["case", *names, *(f"vs {peer or 'best peer'}" for peer in against)]
        body = []
        for row in self.rows.values():
            ratios = [_ratio(row.ratio(peer)) for peer in against]
            body.append([row.case.name, *(self._cell(row, name) for name in names), *ratios])
        whole = [
            row
            for row in self.rows.values()
            if not any(math.isnan(row.rate(name)) for name in names if name not in _BARS)
        ]
        rates = {name: [row.rate(name) for row in whole] for name in names}
        means = [
            _FAILED if any(map(math.isnan, rates[name])) else geometric_mean(rates[name])
            for name in names
        ]
        ratio_means = [
            _ratio(geometric_mean([row.ratio(peer) for row in whole])) for peer in against
        ]
        body.append([f"{_MEAN} of {len(whole)}", *map(_number, means), *ratio_means])
        return header, body

    def _cell(self, row: Row, name: str) -> str:
        if name not in row.raw:
            return "-"
        if row.failed(name):
            return "FAIL"
        return f"{_number(row.rate(name))} · {row.encoded(name):.1f} · {_number(row.memory(name))}"

    def _failures(self) -> list[str]:
        seen = {
            f"{row.case.name}, {name}: {measured.get('reason', 'unknown')}": None
            for row in self.rows.values()
            for name, repeats in row.raw.items()
            for measured in repeats
            if measured["status"] != "ok"
        }
        return list(seen)

    def _circumstances(self) -> list[str]:
        facts = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in self.machine.items())
        found = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        spreads = [
            row.spread(name)
            for row in self.rows.values()
            for name in row.raw
            if not row.failed(name)
        ] or [_FAILED]
        scale, threads, repeats = (self.settings[key] for key in ("scale", "threads", "repeats"))
        once = self.settings.get("once_above")
        once_text = f", one where it took more than {once:g} s" if once is not None else ""
        return [
            f"Machine: {facts}.",
            f"Versions: {found}.",
            f"Scale {scale}, {threads} threads on as many cores, medians of {repeats} repeats{once_text}.",
            "Durability none where nothing else is said.",
            f"Slowest over fastest repeat: median {_number(median(spreads), 2)}, worst {_number(max(spreads), 2)}.",
            "Cells: decoded MB/s · MB on disk · peak anonymous MiB above idle.",
            "Geometric means are over the cases in which every contestant has a figure; against the bar, over those that it takes.",
            *(
                f"{name}: {CONTESTANTS[name].note}."
                for name in self._names
                if CONTESTANTS[name].note
            ),
        ]

    def print(self, console: Console) -> None:
        """Show the table.

        Parameters
        ----------
        console : rich.console.Console
            Where.
        """
        header, body = self._table()
        table = Table(title="decoded MB/s · MB on disk · peak anonymous MiB above idle")
        for number, name in enumerate(header):
            table.add_column(name, justify="right" if number else "left", no_wrap=number == 0)
        for line in body:
            if line[0].startswith(_MEAN):
                table.add_section()
            table.add_row(*(f"[bold red]{text}[/]" if text == "FAIL" else text for text in line))
        console.print(table)
        for line_of_text in (*self._failures(), *self._circumstances()):
            console.print(line_of_text, highlight=False, markup=False)

    def to_markdown(self) -> str:
        """The table, the cases and the circumstances in Markdown."""
        header, body = self._table()
        lines = [f"| {' | '.join(header)} |", f"|---|{'---:|' * (len(header) - 1)}"]
        lines += [f"| {' | '.join(line)} |" for line in body]
        lines += ["", *(f"- {text}" for text in self._circumstances()), "", "Cases:", ""]
        lines += [f"- `{row.case.name}`: {row.case.describe()}" for row in self.rows.values()]
        if failures := self._failures():
            lines += ["", "Failures:", "", *(f"- {text}" for text in failures)]
        return "\n".join(lines) + "\n"

    def to_json(self) -> str:
        """All raw repeats with the circumstances."""
        document = {
            "machine": self.machine,
            "versions": self.versions,
            "settings": self.settings,
            "cases": {
                key: {"description": row.case.describe(), "repeats": row.raw}
                for key, row in self.rows.items()
            },
            "medians": {
                key: {
                    name: None
                    if row.failed(name)
                    else {
                        "mb_per_s": row.rate(name),
                        "encoded_mb": row.encoded(name),
                        "memory_mib": row.memory(name),
                    }
                    for name in row.raw
                }
                for key, row in self.rows.items()
            },
        }
        return json.dumps(document, indent=1) + "\n"


def geometric_mean(values: list[float]) -> float:
    """Of those that are known and positive.

    Parameters
    ----------
    values : list of float
        NaN where there is none.
    """
    known = [value for value in values if value > 0 and not math.isnan(value)]
    return math.exp(sum(map(math.log, known)) / len(known)) if known else _FAILED


def _number(value: float, digits: int = 0) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def _ratio(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}x"

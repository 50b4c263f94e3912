"""Stored results: a CSV file for each measurement, with the commit and the machine in its head.

The head is lines that begin with ``#``, such as ``# commit: 2d8870e8``; pandas reads the rest with ``comment="#"``. Each further
line is one number: the case, who did it, the quantity with its unit, the number of the repeat, and the value. Where a command gives
only one number of all repeats, the repeat is ``all``.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cases import CASES
from benchmarks.report import Report

__all__ = [
    "Number",
    "Results",
    "cells_of_tables",
    "lines_of_scale",
    "lines_of_throughput",
    "numbers_of",
    "raw_side_by_side",
    "report_of",
    "side_by_side",
    "streams",
]  # fmt: skip

RATE, DISK, MEMORY, EXPECTED = "MB/s", "MB on disk", "MiB above idle", "MiB expected"
_COLUMNS = ("case", "by", "quantity", "repeat", "value")
_ALL = "all"


@dataclass(frozen=True)
class Number:
    """One number that was measured.

    Parameters
    ----------
    case : str
        What was done.
    by : str
        By whom.
    quantity : str
        What was measured, with its unit.
    value : float
        The number.
    repeat : str
        Number of the repeat.
    """

    case: str
    by: str
    quantity: str
    value: float
    repeat: str = _ALL


@dataclass
class Results:
    """All numbers of one measurement.

    Parameters
    ----------
    facts : dict
        Commit, date, machine, versions, and the seconds that it took.
    numbers : list of Number
        In the order in which they were measured.
    """

    facts: dict[str, str]
    numbers: list[Number] = field(default_factory=list)

    @property
    def commit(self) -> str:
        """The commit that was measured; it ends with ``+`` if files differed from it."""
        return self.facts["commit"]

    def values(self, quantity: str) -> dict[str, dict[str, float]]:
        """Median over repeats, by case and by whom."""
        found: dict[str, dict[str, list[float]]] = {}
        for one in self.numbers:
            if one.quantity == quantity:
                found.setdefault(one.case, {}).setdefault(one.by, []).append(one.value)
        return {
            case: {by: median(values) for by, values in own.items()} for case, own in found.items()
        }

    def write(self, path: Path) -> None:
        """Write the file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", newline="") as file:
            file.writelines(f"# {key}: {value}\n" for key, value in self.facts.items())
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(_COLUMNS)
            for one in self.numbers:
                writer.writerow((one.case, one.by, one.quantity, one.repeat, f"{one.value:.10g}"))

    @classmethod
    def read(cls, path: Path) -> Results:
        """Read the file."""
        lines = path.read_text().splitlines()
        head = [line[2:].partition(": ") for line in lines if line.startswith("# ")]
        body = csv.DictReader(line for line in lines if not line.startswith("#"))
        numbers = [
            Number(row["case"], row["by"], row["quantity"], float(row["value"]), row["repeat"])
            for row in body
        ]
        return cls({key: value for key, _, value in head}, numbers)


def _tables(printed: str) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Header and rows of each Markdown table."""
    rows: list[list[str]] = []
    for line in [*printed.splitlines(), ""]:
        if line.startswith("|"):
            cells = re.split(r"(?<!\\)\|", line.strip()[1:-1])
            rows.append([cell.strip().replace("**", "").replace("\\|", "|") for cell in cells])
        elif rows:
            yield rows[0], rows[2:]
            rows = []


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", "").removesuffix("x"))
    except ValueError:
        return None


def cells_of_tables(printed: str, n_cases: int, n_names: int) -> Iterator[Number]:
    """Each number in tables.

    Parameters
    ----------
    printed : str
        What a command has printed.
    n_cases, n_names : int
        How many columns say what was done, and how many of the next say by whom.
    """
    for header, rows in _tables(printed):
        for row in rows:
            case, by = ", ".join(row[:n_cases]), ", ".join(row[n_cases : n_cases + n_names])
            for quantity, cell in zip(
                header[n_cases + n_names :], row[n_cases + n_names :], strict=False
            ):
                value = _number(cell)
                if value is not None:
                    yield Number(case, by, quantity, value)


def streams(printed: str) -> Iterator[Number]:
    """The table of `benchmarks.stream`, whose first column has the contestant and the codec."""
    for one in cells_of_tables(printed, 0, 1):
        by, _, codec = one.by.partition(" ")
        yield Number(codec or "raw", by, one.quantity, one.value)


def side_by_side(printed: str) -> Iterator[Number]:
    """The tables of `benchmarks.side_by_side`, which have medians."""
    for header, rows in _tables(printed):
        for row in rows:
            if header[0] != "case" or row[0] not in CASES:
                continue
            if header[1] == "expected":
                yield Number(row[0], "shardwrite", EXPECTED, float(row[1]))
                continue
            for by, cell in zip(header[1:], row[1:], strict=True):
                values = cell.split(" · ")
                if len(values) == 3:
                    for quantity, value in zip((RATE, DISK, MEMORY), values, strict=True):
                        yield Number(row[0], by, quantity, float(value))


def raw_side_by_side(document: Mapping[str, Any]) -> Iterator[Number]:
    """Each repeat in the JSON of `benchmarks.side_by_side`.

    Raises
    ------
    ValueError
        If a measurement has failed.
    """
    for case, about in document["cases"].items():
        for by, repeats in about["repeats"].items():
            for repeat, one in enumerate(repeats, 1):
                if one["status"] != "ok":
                    raise ValueError(f"{case}, {by}: {one.get('reason', 'unknown')}")
                values = {
                    RATE: one["decoded_bytes"] / one["seconds"] / 1e6,
                    DISK: one["encoded_bytes"] / 1e6,
                    MEMORY: one["peak_anonymous_bytes"] / 2**20,
                }
                if by == "shardwrite":
                    values[EXPECTED] = one["expected_anonymous_bytes"] / 2**20
                for quantity, value in values.items():
                    yield Number(case, by, quantity, value, str(repeat))


def report_of(results: Results) -> Report:
    """The comparison whose numbers are stored, for tables of aims and for plots."""
    report = Report(machine={}, versions={}, settings={})
    values = {name: results.values(name) for name in (RATE, DISK, MEMORY, EXPECTED)}
    for case, rates in values[RATE].items():
        for by, rate in rates.items():
            expected = values[EXPECTED].get(case, {}).get(by)
            measured = {
                "status": "ok",
                "seconds": 1.0,
                "decoded_bytes": rate * 1e6,
                "encoded_bytes": values[DISK][case][by] * 1e6,
                "peak_anonymous_bytes": values[MEMORY][case][by] * 2**20,
                "expected_anonymous_bytes": None if expected is None else expected * 2**20,
            }
            report.add(CASES[case], by, measured)
    return report


_SCALE = re.compile(
    r"(?P<what>plan|run|local) (?P<source>\w+): (?P<shards>[\d,]+) shards(?:, [\d,]+ tasks|, (?P<step>\w+)): (?P<seconds>[\d.]+) s"
)
_PEAK = re.compile(r"(peak|client|scheduler) (\d+) MiB")


def lines_of_scale(printed: str) -> Iterator[Number]:
    """What `benchmarks.scale` prints."""
    for line in printed.splitlines():
        found = _SCALE.match(line)
        if found is None:
            continue
        by = f"{found['what']} {found['step'] or found['source']}"
        case = f"{found['shards']} shards"
        yield Number(case, by, "s", float(found["seconds"]))
        for who, peak in _PEAK.findall(line):
            quantity = "MiB, at the peak" if who == "peak" else f"MiB, {who}"
            yield Number(case, by, quantity, float(peak))
        if each := re.search(r"(\d+) us a shard", line):
            yield Number(case, by, "µs a shard", float(each[1]))


def lines_of_throughput(printed: str) -> Iterator[Number]:
    """What `benchmarks.throughput` prints."""
    pattern = r"^(threads|processes) (\d+)x(\d+), (strong|weak) .*: (\d+) MB/s"
    for kind, workers, threads, scaling, rate in re.findall(pattern, printed, re.MULTILINE):
        by = f"{threads} threads" if kind == "threads" else f"{workers} processes of {threads}"
        yield Number(f"{scaling} scaling", by, RATE, float(rate))


def numbers_of(kind: str, printed: str, scratch: Path) -> list[Number]:
    """Numbers that a command has printed, or left in a directory.

    Parameters
    ----------
    kind : str
        How to read it: a key of the table in this function, or ``table 1 2`` for a table of which one column says what was done
        and two say by whom.
    printed : str
        What it has printed.
    scratch : Path
        Where `side_by_side` leaves its JSON.
    """
    raw = scratch / "raw.json"
    if kind == "side by side" and raw.exists():
        return list(raw_side_by_side(json.loads(raw.read_text())))
    readers = {
        "side by side": side_by_side,
        "scale": lines_of_scale,
        "throughput": lines_of_throughput,
        "streams": streams,
    }
    if kind in readers:
        return list(readers[kind](printed))
    _, n_cases, n_names = kind.split()
    return list(cells_of_tables(printed, int(n_cases), int(n_names)))

"""What a run did, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from shardwrite.commit import GroupReport
from shardwrite.plan.render import human, table_html, table_text

__all__ = ["WriteResult", "merge_reports"]


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What was written.

    Attributes
    ----------
    path : str
        The array.
    n_shards, n_empty_shards : int
        Shards with a file, and shards that are all fill value and have none.
    n_chunks, n_empty_chunks : int
        In-bounds inner chunks, and those of them that are all fill value.
    raw_nbytes, stored_nbytes : int
        Decoded bytes of the array, and bytes of the shards.
    seconds : float
        From the first task to the published array; with ``compute=False`` the tasks' own seconds together.
    n_tasks : int
        Tasks of all graphs, the source's included.
    peak_nbytes_by_process : dict of str to int
        Most memory that each worker process had resident in its life, in bytes.
    layout : str
        ``fused``, ``direct`` or ``staged``.
    """

    path: str
    n_shards: int
    n_empty_shards: int
    n_chunks: int
    n_empty_chunks: int
    raw_nbytes: int
    stored_nbytes: int
    seconds: float
    n_tasks: int
    layout: str
    peak_nbytes_by_process: dict[str, int] = field(default_factory=dict)

    @property
    def throughput(self) -> float:
        """Decoded bytes per second."""
        return self.raw_nbytes / self.seconds if self.seconds else 0.0

    @property
    def compression_ratio(self) -> float:
        """Decoded over stored bytes; 0 where nothing is stored."""
        return self.raw_nbytes / self.stored_nbytes if self.stored_nbytes else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        return {**asdict(self), "throughput": self.throughput, "compression_ratio": self.compression_ratio}

    def _rows(self) -> list[tuple[str, str]]:
        rows = [
            ("array", self.path),
            ("shards", f"{self.n_shards:,} files" + (f", {self.n_empty_shards:,} all fill value" if self.n_empty_shards else "")),
            ("inner chunks", f"{self.n_chunks:,}" + (f", {self.n_empty_chunks:,} of them empty" if self.n_empty_chunks else "")),
            ("bytes", f"{human(self.raw_nbytes)} in, {human(self.stored_nbytes)} out ({self.compression_ratio:.2f}x)"),
            ("time", f"{self.seconds:.2f} s, {human(self.throughput)}/s"),
            ("tasks", f"{self.n_tasks:,} ({self.layout})"),
        ]
        if self.peak_nbytes_by_process:
            peak = max(self.peak_nbytes_by_process.values())
            rows.append(("peak memory", f"{human(peak)} in the largest of {len(self.peak_nbytes_by_process)} processes"))
        return rows

    def __str__(self) -> str:
        return table_text("written", self._rows())

    def _repr_html_(self) -> str:
        return table_html("written", self._rows())


def merge_reports(path: str, reports: Iterable[GroupReport], *, seconds: float, n_tasks: int, layout: str) -> WriteResult:
    """One result of many reports."""
    totals = dict.fromkeys(("n_shards", "n_empty_shards", "n_chunks", "n_empty_chunks", "raw_nbytes", "stored_nbytes"), 0)
    peaks: dict[str, int] = {}
    for report in reports:
        for name in totals:
            totals[name] += getattr(report, name)
        peaks[report.process] = max(peaks.get(report.process, 0), report.peak_nbytes)
    return WriteResult(path=path, **totals, seconds=seconds, n_tasks=n_tasks, layout=layout, peak_nbytes_by_process=peaks)

"""Results of runs, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, replace
from types import UnionType
from typing import Any

from shardwrite.codecs.documents import JSON
from shardwrite.errors import JournalError
from shardwrite.journal import Ledger
from shardwrite.plan import Plan
from shardwrite.plan.render import human, table_html, table_text

__all__ = ["Effort", "WriteResult", "result_from_receipt", "result_of"]


@dataclass(frozen=True, slots=True)
class WriteResult:
    """Result of a run.

    The counts cover what the run writes: the array, the shards that an update touches, or one
    part.

    Attributes
    ----------
    path : str
        Path of the array.
    n_shards, n_empty_shards : int
        Number of shards with a file, and of shards without one, which hold only the fill value.
    n_chunks, n_empty_chunks : int
        Number of inner chunks that overlap the array, and of those that are empty among them.
    raw_nbytes, stored_nbytes : int
        Decoded bytes that were written, and bytes of the shards' files.
    seconds : float
        Seconds from the start of the call until the last shard was committed. With
        ``compute=False``, the sum over all tasks that commit. It is 0 if the run had ended before
        the call.
    n_tasks : int
        Number of tasks in all graphs, including the source's tasks. For one part, the number of
        its groups.
    peak_nbytes_by_process : dict of str to int
        Peak of the resident memory of each worker process, in bytes.
    layout : str
        ``fused``, ``direct`` or ``staged``.
    n_resumed_shards : int
        Number of shards that an earlier call had committed.
    n_retried_tasks : int
        Number of times that a task was given up because its workers had died, and then run again.
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
    n_resumed_shards: int = 0
    n_retried_tasks: int = 0
    peak_nbytes_by_process: dict[str, int] = field(default_factory=dict)

    @property
    def throughput(self) -> float:
        """Decoded bytes per second."""
        return self.raw_nbytes / self.seconds if self.seconds else 0.0

    @property
    def compression_ratio(self) -> float:
        """Ratio of decoded to stored bytes; 0 if nothing is stored."""
        return self.raw_nbytes / self.stored_nbytes if self.stored_nbytes else 0.0

    def to_dict(self) -> dict[str, Any]:
        """All fields and properties as a dictionary that can be stored as JSON."""
        return {
            **asdict(self),
            "throughput": self.throughput,
            "compression_ratio": self.compression_ratio,
        }

    def _rows(self) -> list[tuple[str, str]]:
        rows = [
            ("array", self.path),
            (
                "shards",
                f"{self.n_shards:,} files"
                + (f", {self.n_empty_shards:,} all fill value" if self.n_empty_shards else ""),
            ),
            (
                "inner chunks",
                f"{self.n_chunks:,}"
                + (f", {self.n_empty_chunks:,} of them empty" if self.n_empty_chunks else ""),
            ),
            (
                "bytes",
                (
                    f"{human(self.raw_nbytes)} in, {human(self.stored_nbytes)} out "
                    f"({self.compression_ratio:.2f}x)"
                ),
            ),
            ("time", f"{self.seconds:.2f} s, {human(self.throughput)}/s"),
            ("tasks", f"{self.n_tasks:,} ({self.layout})"),
        ]
        if self.n_resumed_shards:
            rows.append(("resumed", f"{self.n_resumed_shards:,} shards were committed before"))
        if self.n_retried_tasks:
            rows.append(("retried", f"{self.n_retried_tasks:,} tasks, whose workers had died"))
        if self.peak_nbytes_by_process:
            peak = max(self.peak_nbytes_by_process.values())
            rows.append(
                (
                    "peak memory",
                    f"{human(peak)} in the largest of {len(self.peak_nbytes_by_process)} processes",
                )
            )
        return rows

    def __str__(self) -> str:
        return table_text("written", self._rows())

    def _repr_html_(self) -> str:
        return table_html("written", self._rows())


@dataclass(frozen=True, slots=True)
class Effort:
    """What a run took.

    Attributes
    ----------
    seconds : float
        Duration of the run.
    n_tasks : int
        Number of tasks.
    n_resumed : int
        Number of shards that were done before.
    n_retried : int
        Number of times that a task was run again.
    """

    seconds: float
    n_tasks: int
    n_resumed: int
    n_retried: int


def result_of(path: str, plan: Plan, ledger: Ledger, effort: Effort) -> WriteResult:
    """Make the result of a run from its ledger.

    Parameters
    ----------
    path : str
        Path of the array.
    plan : Plan
        The plan. If it updates a region, the decoded bytes are those of the region, and otherwise
        those of the shards that are done.
    ledger : Ledger
        The shards that are done.
    effort : Effort
        What the run took.
    """
    totals = ledger.totals(plan.metadata.itemsize)
    return WriteResult(
        path=path,
        **(totals if plan.region is None else {**totals, "raw_nbytes": plan.raw_nbytes}),
        seconds=effort.seconds,
        n_tasks=effort.n_tasks,
        layout=plan.layout,
        n_resumed_shards=effort.n_resumed,
        n_retried_tasks=effort.n_retried,
        peak_nbytes_by_process=dict(ledger.peaks),
    )


def result_from_receipt(kept: Mapping[str, JSON] | None, path: str) -> WriteResult:
    """Read the result that a receipt holds.

    All of its shards count as resumed, and its duration is 0.

    Parameters
    ----------
    kept : mapping or None
        The result as parsed from JSON, if there is one.
    path : str
        Path of the array.

    Raises
    ------
    JournalError
        If the receipt does not hold a valid result.
    """
    found = (
        {field.name: kept.get(field.name, _missing(field)) for field in fields(WriteResult)}
        if kept is not None
        else {}
    )
    wrong = [name for name, value in found.items() if not isinstance(value, _KINDS.get(name, int))]
    if wrong or not found:
        what = f"it is wrong in {', '.join(wrong)}" if wrong else "there is none"
        raise JournalError(
            f"the receipt of {path} does not hold a result ({what}); remove the receipt", path=path
        )
    result = WriteResult(**found)
    return replace(result, n_resumed_shards=result.n_shards + result.n_empty_shards, seconds=0.0)


_KINDS: dict[str, type | UnionType] = {
    "path": str,
    "layout": str,
    "seconds": int | float,
    "peak_nbytes_by_process": dict,
}


def _missing(field: Field[Any]) -> Any:
    """Value for a field that a receipt does not have.

    It is the field's default, because fields with a default were added in later versions. None
    stands for a field without a default, and is refused afterwards.
    """
    if field.default_factory is not MISSING:
        return field.default_factory()
    return None if field.default is MISSING else field.default

"""What a run did, for people and for programs."""

from __future__ import annotations

from dataclasses import MISSING, Field, asdict, dataclass, field, fields, replace
from typing import Any

from shardwrite.errors import JournalError
from shardwrite.journal import Ledger
from shardwrite.plan.render import human, table_html, table_text

__all__ = ["WriteResult", "result_from_receipt", "result_of"]


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
    n_resumed_shards : int
        Shards that an earlier call had committed already.
    n_retried_tasks : int
        Tasks that were given to other workers because those that ran them had died, again and again.
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
        """Decoded over stored bytes; 0 where nothing is stored."""
        return self.raw_nbytes / self.stored_nbytes if self.stored_nbytes else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
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
                f"{human(self.raw_nbytes)} in, {human(self.stored_nbytes)} out ({self.compression_ratio:.2f}x)",
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


def result_of(
    path: str,
    ledger: Ledger,
    itemsize: int,
    *,
    seconds: float,
    n_tasks: int,
    layout: str,
    n_resumed: int,
    n_retried: int,
    raw_nbytes: int | None,
) -> WriteResult:
    """The result of what a ledger says is done; `raw_nbytes` where that is not all of its shards' elements."""
    totals = ledger.totals(itemsize)
    return WriteResult(
        path=path,
        **(totals if raw_nbytes is None else {**totals, "raw_nbytes": raw_nbytes}),
        seconds=seconds,
        n_tasks=n_tasks,
        layout=layout,
        n_resumed_shards=n_resumed,
        n_retried_tasks=n_retried,
        peak_nbytes_by_process=dict(ledger.peaks),
    )


def result_from_receipt(kept: Any, path: str) -> WriteResult:
    """The result that a receipt keeps as a document; all of its shards were there before.

    Parameters
    ----------
    kept : object
        The document.
    path : str
        Of the array.

    Raises
    ------
    JournalError
        If the receipt does not say what it should.
    """
    found = (
        {field.name: kept.get(field.name, _missing(field)) for field in fields(WriteResult)}
        if isinstance(kept, dict)
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


_KINDS: dict[str, Any] = {
    "path": str,
    "layout": str,
    "seconds": int | float,
    "peak_nbytes_by_process": dict,
}


def _missing(field: Field[Any]) -> Any:
    """What stands for a field that a document does not have: the default of those that came later, else nothing."""
    if field.default_factory is not MISSING:
        return field.default_factory()
    return None if field.default is MISSING else field.default

"""What a repair has done, and what it has left to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from shardwrite.errors import printable
from shardwrite.results import Facts, Result, counted
from shardwrite.runs.result import WriteResult

_INTERRUPTED = (
    "an earlier repair has not ended; repair again with the source, or give it up with "
    "shardwrite abandon"
)


@dataclass(frozen=True, slots=True)
class RepairTask:
    """A shard that must be written again."""

    key: str  # storage key of the shard
    index: tuple[int, ...]  # position of the shard in the shard grid
    # Elements of the shard: ``(start, stop)`` along each axis. It is the whole volume if the hash
    # of a volume scatters the chunks of the shard.
    region: tuple[tuple[int, int], ...]
    reason: str  # description of the fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair(Result):
    """Report of a repair: the work that was done, and the work that is left.

    Attributes
    ----------
    path : str
        Path of the array.
    tasks : tuple of RepairTask
        The shards that must be written again. If `result` is not None, they were written.
    n_temporaries : int
        Number of stale temporary files that were removed; if `is_look`, that were found.
    quarantined : tuple of str
        Paths of the copies of bad shards.
    salvaged : tuple of str
        One text for each shard that was cut back to an earlier state, and how that was found. Or
        for each HDF5 file that got a new index.
    result : WriteResult or None
        Result of writing the shards; None if none was written.
    is_look : bool
        Whether nothing was changed, because the call gave no source and asked for no salvage.
    is_interrupted : bool
        Whether an earlier repair has not ended. Updates are refused until it ends.
    changed : tuple of str
        Keys of good shards that another program has changed since they were written here. With a
        source they are in `tasks`.
    warnings : tuple of str
        If `is_look`, warnings about the files beside the array; see :class:`Report`. Of a salvage,
        one text for each HDF5 file that it could not mend, and why.
    is_compared : bool
        Whether every value was compared with the source.
    """

    path: str
    tasks: tuple[RepairTask, ...]
    n_temporaries: int
    quarantined: tuple[str, ...]
    salvaged: tuple[str, ...]
    result: WriteResult | None = None
    is_look: bool = False
    is_interrupted: bool = False
    changed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    is_compared: bool = False

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return (not self.tasks or self.result is not None) and not self.is_interrupted

    def to_dict(self) -> dict[str, Any]:
        """All fields and `is_done`, as a dictionary that JSON can hold."""
        return {
            **asdict(self),
            "result": self.result.to_dict() if self.result else None,
            "is_done": self.is_done,
        }

    def _rows(self) -> list[tuple[str, str]]:
        """Rows of the table, without the list of shards."""
        done = (
            "written again"
            if self.result is not None
            else "to write again; give the source to do it"
        )
        left = counted(self.n_temporaries, "temporary file")
        rows = [
            ("array", self.path),
            ("shards", f"{len(self.tasks):,} {done}" if self.tasks else "all are good"),
            ("leftovers", left + (" to remove" if self.is_look else " removed")),
        ]
        rows += [("compared", "with the source, every value")] if self.is_compared else []
        rows += [] if self.is_look else [("quarantined", f"{len(self.quarantined):,}")]
        rows += [("interrupted", _INTERRUPTED)] if self.is_interrupted else []
        rows += [("salvaged", text) for text in self.salvaged]
        if self.changed:
            told = "shards, by another program, since they were written here"
            rows.append(("changed", f"{len(self.changed):,} {told}"))
        return rows

    def _faults(self) -> list[tuple[str, str]]:
        """One row for each shard that was bad, or still is."""
        return [
            (task.key, f"[{', '.join(f'{a}:{b}' for a, b in task.region)}] {task.reason}")
            for task in self.tasks[:50]
        ]

    @property
    def _title(self) -> str:
        return "repaired" if self.is_done else "to repair"

    def __repr__(self) -> str:
        told = f"{self._title}: {counted(len(self.tasks), 'shard')}" if self.tasks else "all good"
        return f"<Repair of {printable(self.path)}, {told}>"

    def facts(self) -> Facts:
        """Return what is shown of the result, as text and in notebooks."""
        faults = self._faults()
        headline = [
            (f"{len(self.tasks):,}", f"shards {'written again' if self.is_done else 'to write'}"),
            (f"{len(self.salvaged):,}", "salvaged"),
            (f"{len(self.quarantined):,}", "in quarantine"),
        ]
        return Facts(
            title=self._title,
            subject=self.path,
            headline=headline,
            problems=[] if self.is_done else faults,
            notes=[("warning", text) for text in self.warnings],
            rows=[*self._rows(), *(faults if self.is_done else [])],
        )

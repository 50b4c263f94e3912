"""The report of a verification."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.errors import printable
from shardwrite.results import Facts, Result, counted, human
from shardwrite.runs.kept import HOW_TO_GO_ON


@dataclass(frozen=True, slots=True)
class Problem:
    """A fault of a shard, or of an entry in the consolidated metadata of a group."""

    key: str  # storage key of the shard, or path of the node in the group
    index: tuple[int, ...]  # position of the shard in the shard grid; empty for a node
    # Description of the fault, with the inner chunk and the bytes where they are known
    message: str
    remedy: str  # advice on how to repair it
    # The system's number of the error, if the storage refused to read the shard
    errno: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Result):
    """Report of a verification.

    Attributes
    ----------
    path : str
        Path of the array.
    expected_by : str
        The record that tells lost shards from empty ones: ``receipt`` or ``journal``, or an empty
        text if there is none.
    n_shards : int
        Number of shards in the shard grid.
    n_present, n_absent : int
        Number of shards with and without a file. Shards without a file read as the fill value.
    n_missing, n_pending : int
        Number of shards without a file that should have one, and of shards without a file that a
        run has still to write.
    n_inner_chunks : int
        Number of inner chunks that overlap the array.
    n_stored_chunks : int
        Number of inner chunks that hold data.
    raw_nbytes, stored_nbytes, used_nbytes, unused_nbytes : int
        Bytes of the decoded array, of the readable shard files, and of the inner chunks in them.
        Unused bytes in these files belong to no inner chunk and no index.
    orders : dict of str to int
        Number of shards for each order of inner chunks: ``C``, ``F``, ``morton`` or ``other``;
        ``any`` counts shards with fewer than two inner chunks that hold data.
    deep : bool
        Whether every inner chunk was decoded.
    against : bool
        Whether the array was compared with a source.
    is_encoded : bool
        Whether encoded inner chunks were compared with those of the source, and no values.
    problems : tuple of Problem
        The faults, in order of the shards; empty if none was found.
    changed : tuple of Problem
        Good shards whose objects are not those that were written here, by the sizes in the receipt.
        Another program has written or replaced them since.
    warnings : tuple of str
        Warnings about interrupted removals of runs beside the array, and about files there that
        are not trusted. With files that are not trusted, it is unknown whether a run has still to
        write shards. Also warnings if the receipt does not fit the array, and if inner chunks share
        their bytes, or a group above does not list the array in its consolidated metadata.
    n_nodes : int or None
        Number of arrays and groups below, if it is a group that was verified. Then there are no
        shards, and `problems` are the nodes that its consolidated metadata does not list as they
        are.
    states : numpy.ndarray of uint8
        `ShardState` of each shard, in the shape of the shard grid.
    stored : numpy.ndarray of int64
        Size of each shard's file in bytes, in the shape of the shard grid; 0 if there is no file or
        its index cannot be read.
    """

    _derived = ("is_good", "is_complete")

    path: str
    expected_by: str
    n_shards: int
    n_present: int
    n_absent: int
    n_missing: int
    n_pending: int
    n_inner_chunks: int
    n_stored_chunks: int
    raw_nbytes: int
    stored_nbytes: int
    used_nbytes: int
    unused_nbytes: int
    orders: dict[str, int]
    deep: bool
    against: bool
    problems: tuple[Problem, ...]
    changed: tuple[Problem, ...] = ()
    is_encoded: bool = False
    warnings: tuple[str, ...] = ()
    n_nodes: int | None = None
    states: npt.NDArray[np.uint8] = field(repr=False, compare=False)
    stored: npt.NDArray[np.int64] = field(repr=False, compare=False)

    @property
    def is_good(self) -> bool:
        """Whether no problem was found."""
        return not self.problems

    @property
    def is_complete(self) -> bool:
        """Whether no shard is left for a run to write."""
        return not self.n_pending

    @property
    def is_whole(self) -> bool:
        """Whether no shard is left for a run to write, and none is missing or bad."""
        return self.is_complete and self.is_good

    @property
    def told_progress(self) -> str:
        """Text that says how far the run that makes the array is."""
        done = self.n_shards - self.n_pending
        share = done / self.n_shards if self.n_shards else 1.0
        return f"{done:,} of {self.n_shards:,} shards are done ({share:.0%})"

    def to_dict(self) -> dict[str, Any]:
        """All fields except `states` and `stored`, as a dictionary that JSON can hold."""
        found = Result.to_dict(self)
        return {name: found[name] for name in found if name not in ("states", "stored")}

    def _rows(self) -> list[tuple[str, str]]:
        """Rows of the table about the array and the checks, or about the group."""
        problems = ("problems", "none" if self.is_good else str(len(self.problems)))
        if self.n_nodes is not None:
            against = "consolidated metadata, against the documents of all nodes"
            return [
                ("group", self.path),
                ("below", f"{self.n_nodes:,} arrays and groups"),
                ("checked", against if self.expected_by else "nothing: it lists no nodes"),
                ("not checked", "the shards of its arrays, which have paths of their own"),
                problems,
            ]
        ratio = self.raw_nbytes / self.stored_nbytes if self.stored_nbytes else 0.0
        absent = {
            "receipt": f"{self.n_missing:,} missing, all others are empty on purpose",
            "journal": f"{self.n_missing:,} missing, {self.n_pending:,} still to be written",
        }
        checked = ["indexes"]
        checked += ["every inner chunk"] if self.deep else []
        what = "every encoded chunk" if self.is_encoded else "every value"
        checked += [f"{what} against the source"] if self.against else []
        present = f"{self.n_present:,} of {self.n_shards:,} are present"
        if self.n_present < self.n_shards:
            present += "; absent ones read as the fill value"
        nbytes = f"{human(self.raw_nbytes)} decoded, {human(self.stored_nbytes)} stored"
        if self.n_pending:
            nbytes += " so far"
        if ratio and self.is_whole:
            nbytes += f" ({ratio:.2f}x)"
        orders = [f"{name}: {count:,}" for name, count in sorted(self.orders.items())]
        return [
            ("array", self.path),
            ("shards", present),
            ("absent", absent.get(self.expected_by, "unknown whether they are empty or lost")),
            ("inner chunks", f"{self.n_stored_chunks:,} of {self.n_inner_chunks:,} hold data"),
            ("bytes", nbytes),
            ("unused", human(self.unused_nbytes)),
            ("order", ", ".join(orders) or "none"),
            ("checked", ", ".join(checked)),
            problems,
        ]

    def _changes(self) -> list[tuple[str, str]]:
        """Rows about the shards that another program has changed."""
        rows = []
        if self.changed:
            told = f"{len(self.changed):,} shards, by another program, since they were written here"
            rows.append(("changed", f"{told}\n{HOW_TO_GO_ON}"))
        return rows + [(problem.key, problem.message) for problem in self.changed[:8]]

    def _faults(self) -> list[tuple[str, str]]:
        """Rows about the problems."""
        return [
            (problem.key, f"{problem.message}\n{problem.remedy}") for problem in self.problems[:50]
        ]

    @property
    def _headline(self) -> list[tuple[str, str]]:
        if self.n_nodes is not None:
            return [(f"{self.n_nodes:,}", "arrays and groups below")]
        return [
            (f"{self.n_present:,}", f"of {self.n_shards:,} shards are present"),
            (human(self.raw_nbytes), "decoded"),
            (human(self.stored_nbytes), "stored so far" if self.n_pending else "stored"),
        ]

    def __repr__(self) -> str:
        problems = counted(len(self.problems), "problem") if self.problems else "no problems"
        headline = " ".join(self._headline[0])
        return f"<Report of {printable(self.path)}: {headline}, {problems}>"

    def facts(self) -> Facts:
        """Return what is shown of the result, as text and in notebooks."""
        return Facts(
            title="verified",
            subject=self.path,
            headline=[
                *self._headline,
                (f"{len(self.problems):,}" if self.problems else "no", "problems"),
            ],
            problems=[*self._faults(), *self._changes()],
            notes=[
                *([("unfinished", self.told_progress)] if self.n_pending else []),
                *(("warning", text) for text in self.warnings),
            ],
            rows=self._rows(),
        )

"""What transfers are planned to do, and what they have done, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from shardwrite.errors import printable
from shardwrite.plan.requests import Requests
from shardwrite.results import Facts, Result, counted, duration, human
from shardwrite.runs.result import WriteResult, told_of_rereads

__all__ = ["PlannedTransfer", "Requests", "Transfer", "TransferPlan", "TransferredArray"]

_MAX_SHOWN = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTransfer:
    """How one array will be copied."""

    name: str  # path of the array in its hierarchy; empty for the array itself
    n_objects: int  # number of its shards, or of its chunks if it is not sharded
    nbytes: int  # size in bytes of all of them, and of the largest one
    largest_nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferPlan(Result):
    """Plan of an upload or a download. Make one with :func:`shardwrite.plan_transfer`.

    Attributes
    ----------
    source, path : str
        Names of the source, and of the place of the copy.
    arrays : tuple of PlannedTransfer
        The arrays.
    n_groups : int
        Number of groups.
    requests_to_source, requests_to_target : Requests or None
        Requests to the object stores on either side; None for a directory.
    memory_nbytes : int
        Estimated memory of a worker process, in bytes.
    scratch_nbytes : int
        Room on its disk that a worker process needs for shards that wait, in bytes.
    run_dir : str
        Directory of the state of the runs; empty if it lies beside each copy.
    left_out : tuple of (str, str)
        Name of each node that is not copied, and why.
    """

    source: str
    path: str
    arrays: tuple[PlannedTransfer, ...]
    n_groups: int
    requests_to_source: Requests | None
    requests_to_target: Requests | None
    memory_nbytes: int
    scratch_nbytes: int = 0
    run_dir: str = ""
    left_out: tuple[tuple[str, str], ...] = ()

    @property
    def n_objects(self) -> int:
        """Number of shards and chunks of all arrays."""
        return sum(array.n_objects for array in self.arrays)

    @property
    def nbytes(self) -> int:
        """Size of all shards and chunks, in bytes."""
        return sum(array.nbytes for array in self.arrays)

    def to_dict(self) -> dict[str, Any]:
        """All fields and sums as a dictionary that can be stored as JSON."""
        return {**asdict(self), "n_objects": self.n_objects, "nbytes": self.nbytes}

    def to_json(self, indent: int | None = 2) -> str:
        """Return the facts of :meth:`to_dict` as JSON text.

        Parameters
        ----------
        indent : int or None
            Spaces of each level, or None for one line.
        """
        return json.dumps(self.to_dict(), indent=indent)

    def _rows(self) -> list[tuple[str, str]]:
        rows = [
            ("source", self.source),
            ("copy", self.path),
            ("nodes", f"{counted(len(self.arrays), 'array')}, {counted(self.n_groups, 'group')}"),
            ("objects", f"{self.n_objects:,}, {human(self.nbytes)}, copied as they are"),
        ]
        for side, requests in (
            ("source", self.requests_to_source),
            ("target", self.requests_to_target),
        ):
            if requests is not None:
                rows.append((f"requests to {side}", f"about {requests}"))
        rows.append(("memory", f"{human(self.memory_nbytes)} a process at worst"))
        if self.scratch_nbytes:
            rows.append(("scratch", f"{human(self.scratch_nbytes)} a process at worst"))
        if self.run_dir:
            rows.append(("run state", self.run_dir))
        if len(self.arrays) > 1:
            rows += [
                (array.name, f"{counted(array.n_objects, 'object')}, {human(array.nbytes)}")
                for array in self.arrays[:_MAX_SHOWN]
            ]
        return rows + [(name or "/", f"left out: {why}") for name, why in self.left_out]

    def __repr__(self) -> str:
        return (
            f"<TransferPlan of {printable(self.source)} to {printable(self.path)}: "
            f"{counted(self.n_objects, 'object')}, {human(self.nbytes)}>"
        )

    def facts(self) -> Facts:
        """Return what is shown of the result, as text and in notebooks."""
        headline = [
            (f"{self.n_objects:,}", "objects"),
            (human(self.nbytes), "stored"),
            (human(self.memory_nbytes), "memory per process at most"),
        ]
        return Facts(title="transfer", subject=self.path, headline=headline, rows=self._rows())


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferredArray:
    """What became of one array."""

    name: str  # path of the array in its hierarchy; empty for the array itself
    path: str  # path of the copy
    result: WriteResult  # result of the run


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer(Result):
    """Result of an upload or a download.

    Attributes
    ----------
    source, path : str
        Names of the source, and of the copy.
    arrays : tuple of TransferredArray
        What became of each array.
    n_groups : int
        Number of groups.
    seconds : float
        Duration in seconds.
    left_out : tuple of (str, str)
        Name of each node that was not copied, and why.
    n_removed : int
        Number of objects of the source that this call has removed, with ``consume=True``.
    """

    source: str
    path: str
    arrays: tuple[TransferredArray, ...]
    n_groups: int
    seconds: float
    left_out: tuple[tuple[str, str], ...] = ()
    n_removed: int = 0

    def _results(self) -> Sequence[WriteResult]:
        return [array.result for array in self.arrays]

    @property
    def n_objects(self) -> int:
        """Number of shards and chunks of the copy."""
        return sum(result.n_shards for result in self._results())

    @property
    def n_resumed(self) -> int:
        """Number of shards and chunks, empty ones included, that an earlier call had copied."""
        return sum(result.n_resumed_shards for result in self._results())

    @property
    def n_reread_chunks(self) -> int:
        """Number of reads of the source that were made again, since their bytes were wrong."""
        return sum(result.n_reread_chunks for result in self._results())

    @property
    def stored_nbytes(self) -> int:
        """Size of all shards and chunks of the copy, in bytes."""
        return sum(result.stored_nbytes for result in self._results())

    def to_dict(self) -> dict[str, Any]:
        """All fields and sums as a dictionary that can be stored as JSON."""
        arrays = [{**asdict(array), "result": array.result.to_dict()} for array in self.arrays]
        sums = ("n_objects", "n_resumed", "n_reread_chunks", "stored_nbytes")
        return {
            **asdict(self),
            "arrays": arrays,
            "left_out": [list(pair) for pair in self.left_out],
            **{name: getattr(self, name) for name in sums},
        }

    def _rows(self) -> list[tuple[str, str]]:
        rows = [
            ("source", self.source),
            ("copy", self.path),
            ("nodes", f"{counted(len(self.arrays), 'array')}, {counted(self.n_groups, 'group')}"),
            ("objects", f"{self.n_objects:,}, {human(self.stored_nbytes)}"),
            ("time", duration(self.seconds)),
        ]
        if self.n_resumed:
            rows.append(("resumed", f"{self.n_resumed:,} objects were copied by an earlier call"))
        if self.n_reread_chunks:
            rows.append(("second reads", told_of_rereads(self.n_reread_chunks)))
        if self.n_removed:
            rows.append(("consumed", f"{self.n_removed:,} files of the source are removed"))
        return rows + [(name or "/", f"left out: {why}") for name, why in self.left_out]

    def __repr__(self) -> str:
        return (
            f"<Transfer of {printable(self.source)} to {printable(self.path)}: "
            f"{counted(self.n_objects, 'object')}, {human(self.stored_nbytes)}>"
        )

    def facts(self) -> Facts:
        """Return what is shown of the result, as text and in notebooks."""
        headline = [
            (f"{self.n_objects:,}", "objects"),
            (human(self.stored_nbytes), "stored"),
            (duration(self.seconds), "time"),
        ]
        return Facts(title="transferred", subject=self.path, headline=headline, rows=self._rows())

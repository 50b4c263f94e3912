"""What a stream's writer did, and what it can hold."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from shardwrite.grid import Shape
from shardwrite.plan.render import human, table_html, table_text

__all__ = ["StreamReport"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReport:
    """What a writer has taken so far.

    Attributes
    ----------
    path : str
        The array.
    shape : tuple of int
        Of the array with all that was taken.
    n_blocks : int
        Slices and blocks.
    raw_nbytes : int
        Their decoded size.
    n_commits : int
        Commits of shards.
    committed_nbytes : int
        Encoded inner chunks that these have written.
    n_early : int
        Layers of inner chunks that were committed before they were whole, because memory ran short.
    peak_nbytes : int
        Most that was held at once, decoded and encoded.
    seconds : float
        Since the first block.
    waited_seconds : float
        How long callers waited for room, or for a flush.
    """

    path: str
    shape: Shape
    n_blocks: int
    raw_nbytes: int
    n_commits: int
    committed_nbytes: int
    n_early: int
    peak_nbytes: int
    seconds: float
    waited_seconds: float

    @property
    def nbytes_per_second(self) -> float:
        """Decoded bytes per second that the writer could hold without a wait, so far."""
        return self.raw_nbytes / self.seconds if self.seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        return {**asdict(self), "nbytes_per_second": self.nbytes_per_second}

    def _rows(self) -> list[tuple[str, str]]:
        return [
            ("array", f"{self.path}, {self.shape}"),
            (
                "taken",
                f"{self.n_blocks:,} blocks, {human(self.raw_nbytes)}, {human(int(self.nbytes_per_second))}/s",
            ),
            ("committed", f"{human(self.committed_nbytes)} in {self.n_commits:,} commits"),
            ("early", f"{self.n_early:,} layers before they were whole, for want of memory"),
            ("memory", f"{human(self.peak_nbytes)} held at most"),
            ("time", f"{self.seconds:.2f} s, of these {self.waited_seconds:.2f} s waiting"),
        ]

    def __str__(self) -> str:
        return table_text("streamed", self._rows())

    def _repr_html_(self) -> str:
        return table_html("streamed", self._rows())

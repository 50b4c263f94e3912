"""Report of the writer of a stream."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from shardwrite.errors import printable
from shardwrite.grid import Shape
from shardwrite.results import Facts, Result, counted, duration, human


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReport(Result):
    """Amounts and times of a stream so far.

    Attributes
    ----------
    path : str
        Path of the array.
    shape : tuple of int
        Shape of the array with all blocks that the writer has accepted.
    n_blocks : int
        Number of slices and blocks.
    raw_nbytes : int
        Decoded size of these blocks, in bytes.
    n_commits : int
        Number of commits of shards.
    committed_nbytes : int
        Size of the encoded inner chunks in these commits, in bytes.
    n_early : int
        Number of layers that were committed before they were whole, because memory ran short. A
        layer is the part of a shard that is one inner chunk thick along the stream's axis.
    peak_nbytes : int
        Maximum memory that was held at once, decoded and encoded, in bytes.
    seconds : float
        Time since the first block.
    waited_seconds : float
        Time that callers waited for memory, or for a flush.
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
        """Decoded bytes per second since the first block, including waits; 0 before it."""
        return self.raw_nbytes / self.seconds if self.seconds else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return all values as a dictionary that JSON can hold."""
        return {**asdict(self), "nbytes_per_second": self.nbytes_per_second}

    def _rows(self) -> list[tuple[str, str]]:
        waited = duration(self.waited_seconds)
        return [
            ("array", f"{self.path}, {self.shape}"),
            (
                "taken",
                (
                    f"{counted(self.n_blocks, 'block')}, {human(self.raw_nbytes)}, "
                    f"{human(int(self.nbytes_per_second))}/s"
                    if self.n_blocks
                    else "no blocks yet"
                ),
            ),
            ("committed", f"{human(self.committed_nbytes)} in {counted(self.n_commits, 'commit')}"),
            ("memory", f"at most {human(self.peak_nbytes)} held"),
            *(
                [("time", f"{duration(self.seconds)}, of which callers waited {waited}")]
                if self.n_blocks
                else []
            ),
        ] + (
            [("early", f"{counted(self.n_early, 'layer')} written incomplete to free memory")]
            if self.n_early
            else []
        )

    def __repr__(self) -> str:
        return (
            f"<StreamReport of {printable(self.path)}: {counted(self.n_blocks, 'block')}, "
            f"{human(self.raw_nbytes)} in, {human(self.committed_nbytes)} committed>"
        )

    def facts(self) -> Facts:
        """Return what is shown of the result, as text and in notebooks."""
        headline = [
            (f"{self.n_blocks:,}", "blocks"),
            (human(self.peak_nbytes), "held at most"),
            (human(self.raw_nbytes), "taken"),
            (human(self.committed_nbytes), "committed"),
            *([(duration(self.seconds), "time")] if self.n_blocks else []),
        ]
        return Facts(title="streamed", subject=self.path, headline=headline, rows=self._rows())

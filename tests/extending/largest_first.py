"""A write strategy as somebody else would add one: the largest inner chunk first, each aligned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import shardwrite
from shardwrite.format.order import KEEP, Placement, Ranks, Revision, Stored
from shardwrite.format.strategies import Strategy, rewritten


@shardwrite.register_strategy
@dataclass(frozen=True)
class LargestFirst(Strategy):
    """Strategy that writes large inner chunks first, and begins each at a multiple of some bytes.

    Parameters
    ----------
    align_nbytes : int
        Every inner chunk begins at a multiple of this number of bytes.
    """

    name: ClassVar[str] = "largest-first"
    align_nbytes: int = 512

    @property
    def label(self) -> str:
        return f"largest-first (aligned to {self.align_nbytes})"

    def streams(self, fixed_nbytes: int | None) -> bool:
        return False  # the largest is known only when all are encoded

    def lay_out(
        self, nbytes: Ranks, sequence: Ranks, base: int, fixed_nbytes: int | None
    ) -> Placement:
        present = sequence[nbytes[sequence] >= 0]
        present = present[np.argsort(-nbytes[present], kind="stable")]
        offsets, end = np.zeros(len(nbytes), dtype=np.int64), base
        for rank in present.tolist():
            offsets[rank] = -(-end // self.align_nbytes) * self.align_nbytes
            end = int(offsets[rank] + nbytes[rank])
        return Placement(offsets, present, end - base)

    def revise(self, old: Stored, nbytes: Ranks, sequence: Ranks, base: int) -> Revision:
        merged = np.where(nbytes == KEEP, old.nbytes, nbytes)
        placed = self.lay_out(merged, sequence, base, old.fixed_nbytes)
        return rewritten(placed, merged, base)

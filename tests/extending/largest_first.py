"""A write strategy as somebody else would add one: the largest inner chunk first, each aligned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import numpy as np

import shardwrite
from shardwrite.format.order import KEEP, Placement, Ranks, Revision, Stored


@shardwrite.register_strategy
@dataclass(frozen=True)
class LargestFirst:
    """Strategy that writes large inner chunks first, and begins each at a multiple of some bytes.

    Parameters
    ----------
    align_nbytes : int
        Every inner chunk begins at a multiple of this number of bytes.
    """

    name: ClassVar[str] = "largest-first"
    streaming_order: ClassVar[str] = "C"
    in_place: ClassVar[bool] = False
    replaces: ClassVar[bool] = True
    depends_on_cut: ClassVar[bool] = False
    align_nbytes: int = 512

    @property
    def label(self) -> str:
        return f"largest-first (aligned to {self.align_nbytes})"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, parameters: Mapping[str, Any]) -> Self:
        return cls(**parameters)

    def sequence(self, chunks_per_shard: tuple[int, ...], units: Sequence[Ranks]) -> Ranks:
        return np.arange(np.prod(chunks_per_shard), dtype=np.int64)

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
        new = self.lay_out(merged, sequence, base, old.fixed_nbytes)
        return Revision("rewrite", new.offsets, merged, new.sequence, 0, base + new.data_nbytes)

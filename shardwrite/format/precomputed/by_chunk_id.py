"""The write strategy of volumes: chunks lie in the order of their ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from shardwrite.codecs.documents import JSON
from shardwrite.format.order import BY_CHUNK_ID, permutation
from shardwrite.format.placement import KEEP, Placement, Ranks, Revision, Stored, place
from shardwrite.format.registry import register_strategy
from shardwrite.grid import Shape


@register_strategy
@dataclass(frozen=True, slots=True)
class ByChunkId:
    """Strategy that writes the chunks of a shard end to end, by ascending chunk id."""

    name: ClassVar[str] = "chunk-id"
    label: ClassVar[str] = "chunk-id"
    streaming_order: ClassVar[str] = BY_CHUNK_ID
    in_place: ClassVar[bool] = False
    replaces: ClassVar[bool] = True
    depends_on_cut: ClassVar[bool] = False

    def to_dict(self) -> Mapping[str, JSON]:
        """See :meth:`Strategy.to_dict`; there are no parameters."""
        return {}

    @classmethod
    def from_dict(cls, parameters: Mapping[str, Any]) -> Self:
        """See :meth:`Strategy.from_dict`."""
        return cls(**parameters)

    def sequence(
        self,
        chunks_per_shard: Shape,
        units: Sequence[Ranks],  # noqa: ARG002 (other strategies need it)
    ) -> Ranks:
        """See :meth:`Strategy.sequence`; the result depends on the grid only."""
        return permutation(chunks_per_shard, BY_CHUNK_ID)

    def lay_out(
        self,
        nbytes: Ranks,
        sequence: Ranks,
        base: int,
        fixed_nbytes: int | None,  # noqa: ARG002 (other strategies need it)
    ) -> Placement:
        """See :meth:`Strategy.lay_out`."""
        return place(nbytes, sequence, base)

    def streams(self, fixed_nbytes: int | None) -> bool:  # noqa: ARG002 (other strategies need it)
        """See :meth:`Strategy.streams`; always True."""
        return True

    def revise(self, old: Stored, nbytes: Ranks, sequence: Ranks, base: int) -> Revision:
        """See :meth:`Strategy.revise`; a shard is always written anew."""
        merged = np.where(nbytes == KEEP, old.nbytes, nbytes)
        made = place(merged, sequence, base, old)
        end = base + made.data_nbytes
        return Revision("rewrite", made.offsets, merged, made.sequence, 0, end)

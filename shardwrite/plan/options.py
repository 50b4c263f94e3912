"""Keywords that control a plan but do not describe the array, as a value."""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

from shardwrite.errors import SpecError
from shardwrite.format.strategies import FixedOrder, as_strategy
from shardwrite.format.strategy import Strategy
from shardwrite.options import MAX_GRAPH_TASKS, MAX_SOURCE_RERUNS, PlanKeywords
from shardwrite.plan.sizes import parse_nbytes


@dataclass(frozen=True, kw_only=True)
class PlanOptions(PlanKeywords):
    """Keywords that control a plan, checked. The name of a strategy or an order is replaced."""

    strategy: Strategy = field(default_factory=FixedOrder)

    def __post_init__(self) -> None:
        ratio, source_id = self.compression_ratio, self.source_id
        for keyword, is_good, remedy in (
            (
                "write_empty_chunks",
                isinstance(self.write_empty_chunks, bool),
                "give True or False",
            ),
            (
                "compression_ratio",
                ratio is None or _is_positive(ratio, Real),
                "give for instance 2.5, or None",
            ),
            (
                "max_graph_tasks",
                _is_positive(self.max_graph_tasks, Integral),
                f"give for instance {MAX_GRAPH_TASKS}",
            ),
            (
                "max_source_reruns",
                _is_positive(self.max_source_reruns, Real),
                f"give for instance {MAX_SOURCE_RERUNS}",
            ),
            (
                "source_id",
                source_id is None or (isinstance(source_id, str) and bool(source_id)),
                "give a text, or None",
            ),
        ):
            if not is_good:
                raise SpecError(
                    "not what this keyword takes",
                    field=keyword,
                    value=getattr(self, keyword),
                    remedy=remedy,
                )
        object.__setattr__(self, "strategy", as_strategy(self.strategy))
        memory_limit_of(self.memory_limit)

    @property
    def memory_limit_nbytes(self) -> int | None:
        """The keyword `memory_limit` in bytes; None if it is not given."""
        return memory_limit_of(self.memory_limit)


def _is_positive(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool) and bool(value > 0)


def memory_limit_of(limit: Any) -> int | None:
    """The keyword `memory_limit` in bytes; None if it is not given.

    - Raises SpecError if it is not a positive number of bytes.
    """
    if isinstance(limit, str):
        limit = parse_nbytes(limit, "memory_limit")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise SpecError(
            "not a positive number of bytes",
            field="memory_limit",
            value=limit,
            remedy='give for instance "4GB"',
        )
    return limit

"""Keywords that control a plan but do not describe the array, as a value."""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

from shardwrite.errors import SpecError
from shardwrite.format.strategies import FixedOrder, as_strategy
from shardwrite.format.strategy import Strategy
from shardwrite.plan.model import MAX_GRAPH_TASKS, MAX_SOURCE_RERUNS
from shardwrite.plan.sizes import parse_nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Keywords that control a plan."""

    # The write strategy. The name of a strategy or of an order may be given, and is replaced by the
    # strategy.
    strategy: Strategy = field(default_factory=FixedOrder)
    # Store also inner chunks and shards that hold only the fill value
    write_empty_chunks: bool = False
    # Bytes that a worker process may use, as a number or a text such as ``"4GB"``. The limit of the
    # engine by default.
    memory_limit: int | str | None = None
    # Identifier of the source. Runs with the same identifier have the same data.
    source_id: str | None = None
    # Expected ratio of decoded to encoded size; the worst case is 1
    compression_ratio: float | None = None
    max_graph_tasks: int = MAX_GRAPH_TASKS  # number of tasks that the scheduler may hold at a time
    # How often a source task may run on average, if several waves need it
    max_source_reruns: float = MAX_SOURCE_RERUNS

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

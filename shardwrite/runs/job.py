"""Jobs: what to write, where, and how to run it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardwrite.journal import Intent, StrategyFacts
from shardwrite.place.target import Target
from shardwrite.plan import Plan, ShardWindow
from shardwrite.runs.options import RunOptions

if TYPE_CHECKING:
    from shardwrite.runs.source import ChunkSource

__all__ = ["Job", "intent_of", "target_of_update"]

_NOT_FIGURES = ("format", "identity", "gathering")


@dataclass(frozen=True, slots=True)
class Job:
    """One array to write: what, how, and where."""

    source: ChunkSource  # such as `ArrayChunks`; `NoChunks` if a run is only finished
    plan: Plan
    target: Target  # as `resolve_target` makes it; for an update, see `target_of_update`
    options: RunOptions

    def __post_init__(self) -> None:
        if self.source.region != self.plan.region:
            raise ValueError(
                f"the source covers {self.source.region}, and the plan {self.plan.region}"
            )

    @property
    def is_staged(self) -> bool:
        """Whether all units go to part files before shards are committed."""
        return self.plan.is_staged and not self.source.is_encoded

    @property
    def is_update(self) -> bool:
        """Whether the job writes into a region of an existing array."""
        return self.plan.region is not None

    @property
    def durability(self) -> str:
        """Durability level of the run."""
        return self.target.durability(self.options.durability)

    @property
    def makes_array(self) -> bool:
        """Whether the job makes an array, rather than updates or repairs an existing one."""
        return self.options.mode != "r+"


def intent_of(plan: Plan, mode: str) -> Intent:
    """What a run of a plan will write.

    With mode ``"r+"``, its digest and identity differ from those of the run that made the array.
    """
    is_change = mode == "r+"
    figures = plan.to_dict()
    return Intent(
        digest=plan.digest + ("+" if is_change else ""),
        mode=mode,
        identity=replace(plan.identity, mode="r+") if is_change else plan.identity,
        shards_from=None
        if plan.region is None
        else ShardWindow(plan.first_shard, plan.metadata.grid.counts),
        strategy=StrategyFacts(plan.strategy.name, dict(plan.strategy.to_dict())),
        partition=plan.partition.cuts,
        copies=plan.source.is_encoded,
        figures={name: figures[name] for name in figures if name not in _NOT_FIGURES},
    )


def target_of_update(target: Target, plan: Plan) -> Target:
    """The target of an update, which has a run directory of its own beside the array."""
    digest = intent_of(plan, "r+").digest
    return replace(target, update=hashlib.sha256(digest.encode()).hexdigest()[:16])

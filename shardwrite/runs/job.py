"""Jobs: what to write, where, and how to run it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

from shardwrite.errors import SpecError
from shardwrite.journal import Intent
from shardwrite.place.target import Target
from shardwrite.plan import Plan, ShardWindow
from shardwrite.runs.source import ChunkSource
from shardwrite.stores import DURABILITIES

__all__ = ["Job", "Options", "intent_of", "options_for_new", "target_of_update"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a job is run; none of this changes what is written.

    Attributes
    ----------
    mode : {"w-", "w", "r+"}
        ``"w-"`` refuses to overwrite, ``"w"`` replaces an existing array, and ``"r+"`` writes
        into one. An unfinished run goes on in the same way with ``"w-"`` and ``"w"``.
    publish : {"last", "first"}
        Whether ``zarr.json`` appears when the array is whole, or at the start of the run.
    durability : {"full", "batch", "none"}
        Whether shards are synced to disk one by one before they count as committed, many at a
        time, or not at all.
    restart : bool
        Remove the shards of an unfinished run and start over; give up an unfinished update.
    recheck : bool
        Before an unfinished run is continued, decode the shards that its journals call committed.

    Raises
    ------
    SpecError
        If a value is not one of the choices.
    """

    mode: str = "w-"
    publish: str = "last"
    durability: str = "full"
    restart: bool = False
    recheck: bool = False

    def __post_init__(self) -> None:
        choices = (
            ("mode", ("w-", "w", "r+")),
            ("publish", ("last", "first")),
            ("durability", DURABILITIES),
        )
        for field, allowed in (*choices, ("restart", (False, True)), ("recheck", (False, True))):
            value = getattr(self, field)
            if value not in allowed:
                # "r+" is for internal use.
                shown = [choice for choice in allowed if choice != "r+"]
                raise SpecError(
                    "no such choice", field=field, value=value, remedy=f"use one of {shown}"
                )


def options_for_new(**given: Any) -> Options:
    """Options of a run that makes an array.

    Parameters
    ----------
    **given
        Fields of `Options`.

    Raises
    ------
    SpecError
        If a value is not one of the choices, or the mode is ``"r+"``. Operations that write into
        an existing array have checks of their own.
    """
    options = Options(**given)
    if options.mode == "r+":
        raise SpecError(
            "no such choice", field="mode", value="r+", remedy=f"use one of {['w-', 'w']}"
        )
    return options


@dataclass(frozen=True, slots=True)
class Job:
    """One array to write.

    Attributes
    ----------
    source : ChunkSource
        The chunks to write, such as `ArrayChunks` of a dask array; `NoChunks` if a run is only
        finished.
    plan : Plan
        How the array is written.
    target : Target
        Where the array goes, as `resolve_target` makes it. For an update, see `target_of_update`.
    options : Options
        How the job is run.

    Raises
    ------
    ValueError
        If the source covers another region than the plan.
    """

    source: ChunkSource
    plan: Plan
    target: Target
    options: Options

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
        partition=plan.partition.cuts,
        figures={name: figures[name] for name in figures if name not in ("format", "identity")},
    )


def target_of_update(target: Target, plan: Plan) -> Target:
    """The target of an update, which has a run directory of its own beside the array.

    Parameters
    ----------
    target : Target
        The array.
    plan : Plan
        Plan of the update.
    """
    digest = intent_of(plan, "r+").digest
    return replace(target, update=hashlib.sha256(digest.encode()).hexdigest()[:16])

"""What operations would do, as the option ``--dry-run`` shows it. Nothing is written here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardwrite._dataclass import dataclass
from shardwrite.convert.swap import find_in_place
from shardwrite.engines.local import LocalEngine
from shardwrite.errors import IncompleteError
from shardwrite.journal.begin import find_run, is_complete
from shardwrite.journal.neighbours import unfinished
from shardwrite.journal.rundir import RunDirectory
from shardwrite.journal.state_work import fetched
from shardwrite.operations.compact import Compaction, looked_at, unused
from shardwrite.operations.region import (
    holds_arrays,
    nothing_in,
    plan_region,
    region_of,
    targets_in,
)
from shardwrite.operations.steps import PartSource, Share, run_in_parts
from shardwrite.place.target import Target, resolve_place, resolve_target
from shardwrite.plan.options import memory_limit_of
from shardwrite.plan.plan import Part, Plan, check_part
from shardwrite.read.array import open_at
from shardwrite.runs.array_plan import resources_of
from shardwrite.seams import all_of


@dataclass(frozen=True, slots=True)
class Abandoned:
    """What would be given up."""

    in_place: bool  # whether it is a conversion in place
    regions: Sequence[Sequence[tuple[int, int]]]  # otherwise, region of each update or repair
    of_wing: bool = False  # whether it is unfinished work that a wing knows


def preview_erase(
    store: Any, region: Any, *, name: str | None, strategy: Any, drop_hdf5: bool = False
) -> Plan:
    """Plan how a region would be erased, and raise what `erase` would raise before it writes."""
    nothing, where = nothing_in(store, region, name)
    how = {"strategy": strategy, "drop_hdf5": drop_hdf5}
    return plan_region(nothing, store, where, name=name, casting="no", **how)


def preview_compact(store: Any, *, name: str | None, above: float) -> Compaction:
    """What :func:`compact` would rewrite, and about how many bytes would be left.

    - Raises CorruptShardError if a shard is bad.
    """
    target = resolve_target(store, name)
    table, wasteful = looked_at(target, open_at(target.place), above)
    waste, stored = unused(table), int(table.stored_nbytes.sum())
    return Compaction(
        path=target.label,
        n_shards=int(table.is_present.sum()),
        n_rewritten=int(wasteful.sum()),
        stored_nbytes_before=stored,
        stored_nbytes=stored - int(waste[wasteful].sum()),
        unused_nbytes_before=int(waste.sum()),
        unused_nbytes=int(waste[~wasteful].sum()),
        seconds=0.0,
    )


def preview_abandon(store: Any, *, name: str | None) -> Abandoned:
    """What :func:`abandon` would give up."""
    target = fetched(resolve_target(store, name, is_read=True))
    place = target.place
    path = place.tree_path
    if path is not None and find_in_place(path):
        return Abandoned(in_place=True, regions=())
    if any(is_there(target, None) for is_there in all_of("unfinished")):
        return Abandoned(in_place=False, regions=(), of_wing=True)
    if holds_arrays(place):
        arrays = targets_in(resolve_place(store, name, is_read=True), None)
        each = (_unfinished(one) for array in arrays for one in (*array.others, array))
        found = [run for run in each if run is not None]
        stays = [run for run in found if run.makes_array and not run.can_put_back]
        if stays:
            raise unfinished(stays[0])
        return Abandoned(in_place=False, regions=[region_of(run) for run in found])
    whole = _unfinished(target)
    if whole is None or not whole.replaces_array:
        open_at(place)
    if whole is not None and whole.makes_array and not whole.can_put_back:
        raise unfinished(whole)
    found = [run for each in target.others if (run := _unfinished(each)) is not None]
    runs = [*found, *([] if whole is None else [whole])]
    return Abandoned(in_place=False, regions=[region_of(run) for run in runs])


def _unfinished(target: Target) -> RunDirectory | None:
    """The run beside an array, unless only its end is left, which the next call makes."""
    run = find_run(target)
    return None if run is not None and is_complete(run, looking=True) else run


def preview_part(
    x: Any, store: Any, part: tuple[int, int], *, name: str | None, source_id: str
) -> Part:
    """The part of a plan that :func:`write_part` would write.

    - Raises IncompleteError if no run was begun there, or it has ended.
    """
    part = check_part(*part)
    source, target = PartSource.of(x, source_id), fetched(resolve_target(store, name))
    run = find_run(target)
    if run is None:
        raise IncompleteError(
            f"nothing was begun for {target.label}, or it is done; "
            "call prepare first (shardwrite init)",
            missing=[],
        )
    engine, limit = LocalEngine("threads"), memory_limit_of(None)
    own = run_in_parts(run, engine, None, limit)
    if own is not None:
        return own.part(Share(source, *part))
    _, plan = source.planned(run, resources_of(engine, limit))
    return plan.part(*part)

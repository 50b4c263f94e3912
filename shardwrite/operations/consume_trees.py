"""Conversions that consume a hierarchy: its arrays one after the other, and then its groups.

The steps are those of :mod:`shardwrite.journal.consuming`, with one record for the whole hierarchy.
First, the objects of all arrays are listed. Then the documents of the groups are moved aside. The
groups are removed after the last array.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from shardwrite.engines import Engine
from shardwrite.errors import JournalError, ShardwriteError, StoreError
from shardwrite.journal.consuming import Checked, Consumption, consumption_of
from shardwrite.journal.in_place import InPlace, layout_of, work_of
from shardwrite.operations.consuming import (
    check_copied,
    check_target,
    consume_one,
    consumed_path,
    digest_of,
    finished,
    has_document,
    known,
    refuse_scale,
    refused,
)
from shardwrite.operations.conversion import ConvertedArray
from shardwrite.operations.converting import Call, One, plan_all, refuse_loss_of
from shardwrite.operations.hierarchy import consolidate, make_groups
from shardwrite.operations.in_place import INTO, give_back, taken_over
from shardwrite.operations.unfinished import refuse_runs
from shardwrite.place.base import Place
from shardwrite.place.directory import Directory
from shardwrite.place.target import Target, resolve_place, resolve_target
from shardwrite.read.hierarchy import Group, Hierarchy, group_at, open_hierarchy
from shardwrite.read.stored_array import check_apart, stored_at
from shardwrite.runs.consuming import ranks_there
from shardwrite.runs.progress import reporting
from shardwrite.stores import CONVERSION_SUFFIX, as_store_error, listed, make_directories

Consumed = tuple[tuple[ConvertedArray, ...], int]


def is_tree(place: Place, call: Call) -> bool:
    """Whether a hierarchy is to be consumed, or was consumed, and not a single array."""
    if not isinstance(place, Directory) or call.dst is None:
        return False  # which is refused as for an array
    begun = layout_of(place.path)
    if INTO in begun:
        return "" not in begun
    if has_document(place):
        return place.kind() in ("group", "v2 group")
    return bool(_finished(place, call))


def consume_tree(place: Place, call: Call, engine: Engine) -> Consumed:
    """Convert a hierarchy, and remove its objects as soon as what is made of them is durable.

    - Raises CorruptShardError if a new shard is not what it should be. What it was made of is not
      removed.
    """
    path = consumed_path(place, call)
    if not has_document(place) and work_of(path) is None:
        return _finished(place, call), 0
    new = resolve_place(call.dst, None)
    check_apart(place, new)
    tree = _tree_at(Directory(path))
    made = plan_all(tree, call, engine, layout_of(path))
    targets = {one.name: resolve_target(call.dst, one.name, call.run_dir) for one in made}
    _check(path, tree, made, targets, call)
    refuse_loss_of([source for _, source in tree.arrays], call)
    layout = {f"{group.name}/": "group" for group in tree.groups}
    layout |= {one.name: digest_of(one.planned, call) for one in made}
    with InPlace.begun(path, {**layout, INTO: new.label}) as work:
        states = {name: consumption_of(path, work.work, name) for name in layout}
        try:
            refuse_runs(tree)
            _list(tree, made, states, path)
            done = _consume(tree, made, targets, states, call, engine)
            work.finish()
        except ShardwriteError as error:
            if work.is_lost:
                raise taken_over(work) from error
            if any(True for state in states.values() for _ in state.checked()):
                error.add_note(
                    f"objects of {path} may be removed already: make the same call again to finish"
                )
            else:  # nothing was removed, and readers find the arrays again
                give_back(work)
                work.give_up()
            raise
        finally:
            for state in states.values():
                state.close()
    return done


def _tree_at(place: Directory) -> Hierarchy:
    """The hierarchy, whose documents may have been moved aside."""
    work = work_of(place.path)
    if work is None:
        return open_hierarchy(place, lambda _: True)
    groups: list[Group] = []
    arrays = []
    for name in layout_of(place.path):
        node = place.member(name.strip("/")) if name.strip("/") else place
        state = consumption_of(place.path, work, name)
        documents = node if state.aside is None else Directory(state.aside)
        if name.endswith("/"):
            groups.append(group_at(documents, name.strip("/")))
        elif name != INTO:
            arrays.append((name, known(stored_at(documents), node, state)))
    return Hierarchy(place, tuple(groups), tuple(arrays))


def _check(
    path: Path, tree: Hierarchy, made: Sequence[One], targets: Mapping[str, Target], call: Call
) -> None:
    """Refuse a hierarchy that cannot be consumed."""
    for group in tree.groups:
        for entry in listed(path / group.name):
            if entry.name.endswith(CONVERSION_SUFFIX):
                raise JournalError(
                    f"{entry} holds a conversion that has not ended. Make the same call again to "
                    "finish it, or give it up with abandon (shardwrite abandon)",
                    path=str(entry),
                )
    for name, why in tree.left_out:
        raise refused(f"{name!r} would be left ({why})", "convert the arrays one by one")
    for one in made:
        check_target(targets[one.name], call)
        check_copied(one)
        refuse_scale(one.planned.source)
        if tree.place.member(one.name).is_mount_point():
            raise refused(f"{one.name!r} is a mount point", "convert the arrays one by one")


def _list(
    tree: Hierarchy, made: Sequence[One], states: Mapping[str, Consumption], path: Path
) -> None:
    """List the objects of all arrays, before the documents of any group are moved."""
    if all(state.is_listed for state in states.values()):
        return
    if not has_document(tree.place):
        raise StoreError(
            f"another program has removed the group {path} meanwhile. Make the call again, which "
            "tells whether that was the same conversion",
            key=str(path),
            errno=errno.ENOENT,
        )
    for state in states.values():
        with as_store_error(str(state.work), "cannot make"):
            make_directories(state.work, "full")
    for one in made:
        source = one.planned.source
        states[one.name].list_objects(source.identity, ranks_there(source.array))
    for group in tree.groups:
        states[f"{group.name}/"].list_objects("", np.zeros(0, dtype=bool))


def _consume(
    tree: Hierarchy,
    made: Sequence[One],
    targets: Mapping[str, Target],
    states: Mapping[str, Consumption],
    call: Call,
    engine: Engine,
) -> Consumed:
    """Make the new hierarchy, and remove the old one but for its last directories."""
    level = min(target.durability(call.run.durability) for target in targets.values())
    make_groups(tree, _every, call.dst, call.run.mode, level)
    for group in tree.groups:
        states[f"{group.name}/"].hide()
    done = []
    with reporting(call.progress, sum(one.planned.plan.raw_nbytes for one in made)) as on_report:
        for one in made:
            this = replace(call, progress=on_report)
            done.append(consume_one(one, this, targets[one.name], engine, states[one.name]))
    consolidate(tree, _every, [(one.name, one.planned) for one in made], call.dst, level)
    for group in reversed(tree.groups):
        state = states[f"{group.name}/"]
        state.remove_rest(state.enter(Checked((), (), (), ())))
    return tuple(array for array, _ in done), sum(n for _, n in done)


def _every(_: Group) -> bool:
    return True


def _finished(place: Place, call: Call) -> tuple[ConvertedArray, ...]:
    """The results if a conversion has consumed the hierarchy and ended, so that it is gone."""
    new = resolve_place(call.dst, None)
    if new.kind_for_group() != "group":
        return ()
    names = [name for name, _ in open_hierarchy(new, lambda _: True).arrays]
    found = [
        finished(name, place.member(name), resolve_target(call.dst, name, call.run_dir))
        for name in names
    ]
    return tuple(array for array in found if array is not None)

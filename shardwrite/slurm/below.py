"""Runs that belong to one target: that of an array, or those of all arrays in a group."""

from __future__ import annotations

import stat
from collections.abc import Iterator

from shardwrite.journal import RunDirectory, fetched, find_run, look_beside
from shardwrite.journal.in_place import new_tree_of
from shardwrite.place.base import RUN_SUFFIX
from shardwrite.place.directory import Directory
from shardwrite.place.scale import places_around
from shardwrite.place.target import Target, resolve_target
from shardwrite.runs.gathered import is_gathering
from shardwrite.stores import listed, mode_of


def targets_at(target: Target) -> list[Target]:
    """The arrays that commands for a target mean.

    - Returns: the target itself, and its spool if it has one; see `spool_at`. If a group stands
      there, each array in it that is there, or that was begun. If it is being converted in its
      place, the new arrays.
    """
    spool = spool_at(target)
    if spool is not None:
        return [target, spool]
    if not isinstance(target.place, Directory):
        return [target]
    new = new_tree_of(target.place.path)
    place = target.place if new is None else Directory(new)
    if place.kind() != "group":
        return [target if new is None else resolve_target(new, None)]
    return list(_arrays_in(place, ""))


def spool_at(target: Target) -> Target | None:
    """Place of the spool of a scale that is being made, if its hash scatters the chunks."""
    run = look_beside(target).run
    places = places_around(target, None) if run is not None and is_gathering(run) else None
    spool = None if places is None else fetched(places.spool)
    return None if spool is None or look_beside(spool).run is None else spool


def runs_at(target: Target) -> list[RunDirectory]:
    """Runs of a target that have not ended; see `targets_at`."""
    found = (find_run(each) for each in targets_at(target))
    return [run for run in found if run is not None]


def _arrays_in(root: Directory, name: str) -> Iterator[Target]:
    """Arrays in a group that are there, or that were begun, in the order of their names."""
    group = root.member(name) if name else root
    leaves = {
        entry.name.removesuffix(RUN_SUFFIX)
        for entry in listed(group.path)
        if stat.S_ISDIR(mode_of(entry, follow=False))
    }
    for leaf in sorted(leaves):
        path = f"{name}/{leaf}" if name else leaf
        member = root.member(path)
        kind = member.kind()
        if kind == "group":
            yield from _arrays_in(root, path)
            continue
        target = resolve_target(root.path, path)
        if kind == "array" or find_run(target) is not None:
            yield target

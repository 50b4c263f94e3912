"""Conversions that consume an array, for those without room for two copies.

:mod:`shardwrite.journal.consuming` lists the steps, and what a crash leaves after each.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

from shardwrite.engines import Engine
from shardwrite.errors import ShardwriteError, StoreError
from shardwrite.journal.consuming import Consumption
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
from shardwrite.operations.converting import Call, One, keeping_names, refuse_loss_of
from shardwrite.operations.in_place import INTO, taken_over
from shardwrite.operations.unfinished import refuse_runs
from shardwrite.place.base import Place
from shardwrite.place.directory import Directory
from shardwrite.place.target import resolve_target
from shardwrite.read.hierarchy import Hierarchy, open_hierarchy
from shardwrite.read.stored_array import StoredArray, check_apart, stored_at
from shardwrite.runs.conversion import Converting, convert_array
from shardwrite.stores import Store


def convert_and_consume(place: Place, call: Call, engine: Engine) -> tuple[ConvertedArray, int]:
    """Convert an array, and remove its objects as soon as what is made of them is durable.

    Errors are those of `consume_into`.
    """

    def plan(source: StoredArray, into: Store) -> Converting:
        begun = layout_of(consumed_path(place, call)).get("")
        options = keeping_names(source, call.options, begun)
        made = convert_array(source, engine, call.wanted.options, options, into)
        check_copied(One("", made))
        refuse_loss_of([source], call)
        return made

    return consume_into(place, call, engine, plan)


def consume_into(
    place: Place, call: Call, engine: Engine, plan: Callable[[StoredArray, Store], Converting]
) -> tuple[ConvertedArray, int]:
    """Make an array of one that is consumed.

    - `plan`: plans what is made of the array in a store. Its chunks or objects are copied as they
      are.
    - Raises CorruptShardError if a new shard is not what it should be. What it was made of is not
      removed.
    """
    path = consumed_path(place, call)
    target = resolve_target(call.dst, None, call.run_dir)
    check_target(target, call)
    check_apart(place, target.place)
    if not has_document(place) and work_of(path) is None:
        done = finished("", place, target)
        if done is not None:
            return done, 0
    source = _source_at(place, path)
    refuse_scale(source)
    made = plan(source, target.store)
    layout = {"": digest_of(made, call), INTO: target.label}
    with InPlace.begun(path, layout) as work:
        state = Consumption(path, work.work)
        try:
            refuse_runs(Hierarchy(place, (), (("", source),)))
            if not state.is_listed and not has_document(place):
                raise StoreError(
                    f"another program has removed the array {path} meanwhile. Make the call again, "
                    "which tells whether that was the same conversion",
                    key=str(path),
                    errno=errno.ENOENT,
                )
            array, n_removed = consume_one(One("", made), call, target, engine, state)
            work.finish()
        except ShardwriteError as error:
            if work.is_lost:
                raise taken_over(work) from error
            if state.aside is None:
                work.give_up()  # nothing was removed, and readers still find the array
            else:
                error.add_note(
                    f"objects of {path} may be removed already: make the same call again to finish"
                )
            raise
        finally:
            state.close()
    return array, n_removed


def _source_at(place: Place, path: Path) -> StoredArray:
    """The array, whose documents may have been moved aside."""
    work = work_of(path)
    state = None if work is None else Consumption(path, work)
    aside = None if state is None else state.aside
    if state is not None and aside is not None:
        return known(stored_at(Directory(aside)), place, state)
    tree = open_hierarchy(place, lambda _: True)
    if not tree.is_array:
        raise refused(
            "it is no single array",
            "give the path of an array, or leave consume out",
        )
    found = tree.arrays[0][1]
    return found if state is None else known(found, place, state)

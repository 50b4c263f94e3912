"""Conversions that consume an array or a hierarchy, for those without room for two copies.

:mod:`shardwrite.convert.removal` lists the steps, and what a crash leaves after each. A hierarchy
has one record. First, the objects of all arrays are listed. Then the documents of the groups are
moved aside. The arrays follow one after the other. The groups are removed after the last array.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from shardwrite.convert.arrays import (
    ConversionCall,
    NamedConversion,
    TreeConversion,
    check_apart,
    digest_with_label,
    make_groups,
    refuse_loss_of,
    refuse_runs,
)
from shardwrite.convert.plan import ConvertedArray
from shardwrite.convert.removal import (
    Consumer,
    Consumption,
    WholeObjects,
    consumption_of,
    execute_consuming,
    give_back,
    ranks_there,
    states_of,
)
from shardwrite.convert.swap import InPlace, layout_of, tidy_ended, work_of
from shardwrite.engines.local import Engine
from shardwrite.errors import (
    CorruptShardError,
    JournalError,
    ShardwriteError,
    SpecError,
    StoreError,
)
from shardwrite.format.node import CONSOLIDATED_OF_V2, DOCUMENT, DOCUMENTS_OF_V2
from shardwrite.format.sharding import why_kept
from shardwrite.journal.documents import has_consolidated
from shardwrite.journal.neighbours import tidy
from shardwrite.journal.receipt import read_receipt
from shardwrite.journal.rundir import holding
from shardwrite.place.base import Place
from shardwrite.place.directory import Directory
from shardwrite.place.target import (
    Target,
    document_of,
    refuse_hierarchy,
    resolve_place,
    resolve_target,
)
from shardwrite.read.array import ShardedArray
from shardwrite.read.hierarchy import Group, Hierarchy, group_at, open_hierarchy
from shardwrite.read.stored_array import stored_at
from shardwrite.runs.execute import reporting
from shardwrite.runs.job import Job
from shardwrite.runs.stored_chunks import StoredChunks
from shardwrite.stores.directories import CONVERSION_SUFFIX, make_directories
from shardwrite.stores.looking import as_store_error, is_there, listed

_GONE = "its source was consumed, and this was finished before"

Consumed = tuple[tuple[ConvertedArray, ...], int]
"""What became of the arrays, and the number of objects that were removed."""


def refused(why: str, remedy: str) -> SpecError:
    """The error about a source that cannot be consumed."""
    return SpecError(
        f"the source cannot be consumed: {why}", field="consume", value=True, remedy=remedy
    )


def consumed_path(place: Place, call: ConversionCall) -> Path:
    """Directory of a source that can be consumed, as far as is known without a look inside."""
    if call.dst is None:
        raise refused(
            "without a second path, the source is converted in its place",
            "give the path of the new array",
        )
    if not isinstance(place, Directory):
        raise refused("it is no directory", "leave consume out")
    if call.run.mode != "w-":
        raise refused("something could be replaced", "leave out mode (--overwrite)")
    if call.patterns.include or call.patterns.exclude:
        raise refused("it is consumed as a whole", "leave out include and exclude")
    if place.is_link() or place.is_mount_point():
        raise refused("it is a symbolic link or a mount point", "give the directory itself")
    for group in place.path.parents:
        if is_there(group / DOCUMENT):
            above = Directory(group)
            lists = has_consolidated(document_of(above), above)
        elif is_there(group / DOCUMENTS_OF_V2[1]):
            lists = is_there(group / CONSOLIDATED_OF_V2)
        else:
            break
        if lists:
            raise refused(
                f"the consolidated metadata of {group} would go on to show it, and its chunks "
                "would be read as the fill value",
                "move the array out of the group before",
            )
    return place.path


def has_document(place: Place) -> bool:
    """Whether the document of an array or a group stands at a place."""
    return any(place.has(leaf) for leaf in (DOCUMENT, *DOCUMENTS_OF_V2))


def consume_one(
    one: NamedConversion, call: ConversionCall, target: Target, engine: Engine, state: Consumption
) -> tuple[ConvertedArray, int]:
    """Write an array, and consume what it is made of; its objects are listed.

    - `call`: the call. Its mode and durability are those of this array.
    """
    made = one.planned
    if not isinstance(made.chunks, StoredChunks | WholeObjects):
        raise TypeError("a source whose chunks are not copied as they are is not consumed")
    consumer = Consumer(
        state, made.source.array, ShardedArray(made.metadata, target.store), made.passage, engine
    )
    # What is removed elsewhere must not lie in the directory of a run, which people remove.
    durability = target.durability(call.run.durability)
    run = replace(call.run, durability=durability, keeps_old=False)
    job = Job(replace(made.chunks, listed=state.listed), made.plan, target, run)
    try:
        result = execute_consuming(job, engine, call.progress, consumer)
    except CorruptShardError:
        state.has_failed = True
        raise
    left = f"files in {state.path} that are not its own are left there"
    why = (*([one.kept] if one.kept else []), *([] if consumer.finish() else [left]))
    array = ConvertedArray(name=one.name, path=target.label, how="copied", why=why, result=result)
    return array, consumer.n_removed


Plan = Callable[[Hierarchy], TreeConversion]


def convert_and_consume(place: Place, call: ConversionCall, engine: Engine) -> Consumed:
    """Convert an array or a hierarchy, and remove its objects; see `consume`."""

    def plan(tree: Hierarchy) -> TreeConversion:
        planned = TreeConversion.of(tree, call, engine, layout_of(consumed_path(place, call)))
        for one in planned.made:
            if one.planned.passage is None:
                whose = f"the chunks of {one.name!r}" if one.name else "its chunks"
                raise refused(
                    f"{whose} must be decoded and re-encoded ({', '.join(one.planned.reasons)})",
                    "leave consume out, or keep inner chunks and codecs",
                )
        refuse_loss_of(tree, call)
        return planned

    return consume(place, call, engine, plan)


def consume(place: Place, call: ConversionCall, engine: Engine, plan: Plan) -> Consumed:
    """Make a new tree, and remove each object of the old one once what is made of it is durable.

    - `plan`: plans what is made of the arrays. Their chunks or objects are copied as they are.
    - Raises CorruptShardError if a new shard is not what it should be. What it was made of is not
      removed.
    """
    path, new = consumed_path(place, call), resolve_place(call.dst, None)
    refuse_hierarchy(new, "dst")
    if resolve_target(call.dst, None, call.run_dir).durability(call.run.durability) == "none":
        raise refused(
            "what is made of it would not be durable", 'give durability="full" or "batch"'
        )
    check_apart(place, new)
    tidy_ended(path)
    if not has_document(place) and work_of(path) is None:
        done = _finished(place, new, call)
        if done:
            return done, 0
    tree = _tree_at(Directory(path))
    planned = plan(tree)
    _check(path, planned)
    layout = {f"{group.name}/": "group" for group in tree.groups}
    layout |= {one.name: digest_with_label(one, call) for one in planned.made}
    with _consuming(path, layout, new.label) as states:
        refuse_runs(tree)
        _list(planned, states)
        return _consume(planned, states, engine)


@contextlib.contextmanager
def _consuming(
    path: Path, layout: Mapping[str, str], into: str
) -> Iterator[dict[str, Consumption]]:
    """Begin to consume a tree, or go on, and remove the record when all of it is done.

    After an error, readers find the tree again, unless something of it was removed.
    """
    with InPlace.begun(path, layout, into) as work:
        states = states_of(work)
        try:
            yield states
            work.finish()
        except ShardwriteError as error:
            try:
                if not work.is_lost:
                    give_back(work, states)
            except ShardwriteError:  # it says so, or cannot tell; the first error is to be reported
                error.add_note(
                    f"objects of {path} may be removed already: make the same call again to finish"
                )
                for state in states.values():
                    if state.has_failed and state.aside is not None:
                        error.add_note(
                            f"if a shard in {state.path} is bad, put a good copy in its place. To "
                            f"make one, copy the documents from {state.aside}, and the bad shard "
                            "under its key, into an empty directory, and call repair there"
                        )
            raise
        finally:
            for state in states.values():
                state.close()


def _tree_at(place: Directory) -> Hierarchy:
    """The array or hierarchy, whose documents may have been moved aside.

    What was listed of an array is known under the identity that it had then.
    """
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
        else:
            found = stored_at(documents)
            if state.is_listed:
                array = ShardedArray(found.array.metadata, node.store)
                found = replace(found, place=node, array=array, known_identity=state.identity)
            arrays.append((name, found))
    return Hierarchy(place, tuple(groups), tuple(arrays))


def _check(path: Path, planned: TreeConversion) -> None:
    """Refuse a hierarchy that cannot be consumed."""
    tree = planned.tree
    if "" not in tree.documents:
        raise refused(
            "it is no single array, and no group",
            "give the path of an array or a group, or leave consume out",
        )
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
    for one in planned.made:
        why = why_kept(one.planned.source.array.metadata.document)
        if why:
            raise refused(why, "leave consume out")
        if one.name and tree.place.member(one.name).is_mount_point():
            raise refused(f"{one.name!r} is a mount point", "convert the arrays one by one")


def _list(planned: TreeConversion, states: Mapping[str, Consumption]) -> None:
    """List the objects of all arrays, before the documents of any group are moved."""
    if all(state.is_listed for state in states.values()):
        return
    tree, label = planned.tree, planned.tree.place.label
    if not has_document(tree.place):
        raise StoreError(
            f"another program has removed {label} meanwhile. Make the call again, which tells "
            "whether that was the same conversion",
            key=label,
            errno=errno.ENOENT,
        )
    for state in states.values():
        with as_store_error(str(state.work), "cannot make"):
            make_directories(state.work, "full")
    for one in planned.made:
        source = one.planned.source
        states[one.name].list_objects(source.identity, ranks_there(source.array))
    for group in tree.groups:
        states[f"{group.name}/"].list_objects("", np.zeros(0, dtype=bool))


def _consume(
    planned: TreeConversion, states: Mapping[str, Consumption], engine: Engine
) -> Consumed:
    """Make the new hierarchy, and remove the old one but for its last directories."""
    tree, call = planned.tree, planned.call
    level = min(target.durability(call.run.durability) for target in planned.targets.values())
    make_groups(planned.groups(), level)
    for group in tree.groups:
        states[f"{group.name}/"].hide()
    done = []
    with reporting(call.progress, planned.raw_nbytes) as on_report:
        for one in planned.made:
            this = replace(call, progress=on_report)
            # Each array is a run of its own, which sees what the ones before it have left.
            target = resolve_target(call.dst, one.name or None, call.run_dir)
            done.append(consume_one(one, this, target, engine, states[one.name]))
    planned.consolidate(level)
    for group in reversed(tree.groups):
        state = states[f"{group.name}/"]
        state.remove_rest(state.enter())
    return tuple(array for array, _ in done), sum(n for _, n in done)


def _finished(place: Place, new: Place, call: ConversionCall) -> tuple[ConvertedArray, ...]:
    """The results if a conversion has consumed the tree and ended, so that it is gone."""
    is_group = new.kind_for_group() == "group"
    names = [name for name, _ in open_hierarchy(new, lambda _: True).arrays] if is_group else [""]
    done = []
    for name in names:
        target = resolve_target(call.dst, name or None, call.run_dir)
        receipt, old = read_receipt(target), place.member(name) if name else place
        made_of = "" if receipt is None else receipt.identity.source or ""
        if made_of.startswith(f"stored:{old.store.token}:"):
            with holding(target):
                tidy(target)  # the end of its run may have been interrupted
            path = target.label
            done.append(ConvertedArray(name=name, path=path, how="skipped", why=(_GONE,)))
    return tuple(done)

"""Conversions that consume their source, for those without room for two copies.

:mod:`shardwrite.journal.consuming` lists the steps, and what a crash leaves after each.
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from shardwrite.engines import Engine
from shardwrite.errors import ShardwriteError, SpecError, StoreError
from shardwrite.format.node import CONSOLIDATED_OF_V2, DOCUMENT, DOCUMENTS_OF_V2
from shardwrite.journal import (
    Consumption,
    InPlace,
    has_consolidated,
    read_receipt,
    refuse_in_store,
    tidy,
    work_of,
)
from shardwrite.operations.conversion import ConvertedArray
from shardwrite.operations.converting import Call
from shardwrite.operations.in_place import INTO, refuse_runs, taken_over
from shardwrite.place.base import Place
from shardwrite.place.directory import Directory
from shardwrite.place.target import Target, document_of, resolve_target
from shardwrite.read.array import ShardedArray
from shardwrite.read.hierarchy import Hierarchy, open_hierarchy
from shardwrite.read.stored_array import StoredArray, check_apart, stored_at
from shardwrite.runs.consuming import Consumer, execute_consuming, ranks_there
from shardwrite.runs.conversion import Converting, convert_array
from shardwrite.runs.job import Job
from shardwrite.runs.progress import reporting
from shardwrite.runs.stored_chunks import StoredChunks
from shardwrite.runs.whole_objects import WholeObjects
from shardwrite.stores import is_there

__all__ = ["consume_into", "convert_and_consume"]

_GONE = "its source was consumed, and this was finished before"


def convert_and_consume(place: Place, call: Call, engine: Engine) -> tuple[ConvertedArray, int]:
    """Convert an array, and remove its objects as soon as what is made of them is durable.

    Parameters
    ----------
    place, call, engine
        See `consume_into`.

    Returns
    -------
    array : ConvertedArray
    n_removed : int
        Number of objects that this call has removed.

    Notes
    -----
    Errors are those of `consume_into`.
    """

    def plan(source: StoredArray) -> Converting:
        made = convert_array(source, engine, call.wanted.options, call.options)
        if made.passage is None:
            why = ", ".join(made.reasons)
            raise _refused(
                f"its chunks must be decoded and re-encoded ({why})",
                "leave consume out, or keep inner chunks and codecs",
            )
        return made

    return consume_into(place, call, engine, plan)


def consume_into(
    place: Place, call: Call, engine: Engine, plan: Callable[[StoredArray], Converting]
) -> tuple[ConvertedArray, int]:
    """Make an array of one that is consumed.

    Parameters
    ----------
    place : Place
        Place of the array that is consumed.
    call : Call
        The call.
    engine : Engine
        The engine that runs the tasks.
    plan : callable
        Plans what is made of the array, whose chunks or objects are copied as they are.

    Returns
    -------
    array : ConvertedArray
    n_removed : int
        Number of objects that this call has removed.

    Raises
    ------
    SpecError
        Before anything is written, if the array cannot be consumed.
    JournalError
        If a run on the array has not ended, or another conversion of it was begun.
    CorruptShardError
        If a new shard is not what it should be. What it was made of is not removed.
    StoreError
        If the storage refuses, or an object of the array is missing that was there.
    """
    path = _path_of(place, call)
    target = resolve_target(call.dst, None, call.run_dir)
    refuse_in_store(target)
    check_apart(place, target.place)
    level = target.durability(call.run.durability)
    if level == "none":
        raise _refused("what is made of it would not be durable", 'give durability="full"')
    done = _finished(place, path, target)
    if done is not None:
        return done, 0
    source = _source_at(place, path)
    made = plan(source)
    layout = {"": _digest_of(made, call), INTO: target.label}
    with InPlace.begun(path, layout) as work:
        state = Consumption(path, work.work)
        try:
            refuse_runs(Hierarchy(place, (), (("", source),)))
            if not state.is_listed and not _has_document(place):
                raise StoreError(
                    f"another program has removed the array {path} meanwhile. Make the call again, "
                    "which tells whether that was the same conversion",
                    key=str(path),
                    errno=errno.ENOENT,
                )
            return _consume(made, call, target, engine, state, work)
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


def _consume(
    made: Converting, call: Call, target: Target, engine: Engine, state: Consumption, work: InPlace
) -> tuple[ConvertedArray, int]:
    source = made.source.array
    if not state.is_listed:
        state.list_objects(made.source.identity, ranks_there(source))
    if not isinstance(made.chunks, StoredChunks | WholeObjects):
        raise TypeError("a source whose chunks are not copied as they are is not consumed")
    consumer = Consumer(
        state, source, ShardedArray(made.metadata, target.store), made.passage, engine
    )
    run = replace(call.run, durability=target.durability(call.run.durability))
    job = Job(replace(made.chunks, listed=state.listed), made.plan, target, run)
    with reporting(call.progress, made.plan.raw_nbytes) as on_report:
        result = execute_consuming(job, engine, on_report, consumer)
    is_empty = consumer.finish()
    work.finish()
    left = () if is_empty else (f"files in {state.path} that are not its own are left there",)
    array = ConvertedArray(name="", path=target.label, how="copied", why=left, result=result)
    return array, consumer.n_removed


def _refused(why: str, remedy: str) -> SpecError:
    return SpecError(
        f"the source cannot be consumed: {why}", field="consume", value=True, remedy=remedy
    )


def _path_of(place: Place, call: Call) -> Path:
    """Directory of an array that can be consumed, as far as is known without a look inside."""
    if call.dst is None:
        raise _refused(
            "without a second path, the source is converted in its place",
            "give the path of the new array",
        )
    if not isinstance(place, Directory):
        raise _refused("it is no directory", "leave consume out")
    if call.run.mode != "w-":
        raise _refused("something could be replaced", "leave out mode (--overwrite)")
    if call.wanted.patterns.include or call.wanted.patterns.exclude:
        raise _refused("only single arrays are", "leave out include and exclude")
    if place.is_link() or place.is_mount_point():
        raise _refused("it is a symbolic link or a mount point", "give the directory itself")
    for group in place.path.parents:
        if is_there(group / DOCUMENT):
            above = Directory(group)
            lists = has_consolidated(document_of(above), above)
        elif is_there(group / DOCUMENTS_OF_V2[1]):
            lists = is_there(group / CONSOLIDATED_OF_V2)
        else:
            break
        if lists:
            raise _refused(
                f"the consolidated metadata of {group} would go on to show it, and its chunks "
                "would be read as the fill value",
                "move the array out of the group before",
            )
    return place.path


def _source_at(place: Place, path: Path) -> StoredArray:
    """The array, whose documents may have been moved aside."""
    work = work_of(path)
    state = None if work is None else Consumption(path, work)
    aside = None if state is None else state.aside
    if state is None or aside is None:
        tree = open_hierarchy(place, lambda _: True)
        if not tree.is_array:
            raise _refused(
                "it is a group, and only single arrays are consumed",
                "convert its arrays one by one, or leave consume out",
            )
        found = tree.arrays[0][1]
        # What was listed is known under the identity that it had then.
        return found if state is None or not state.is_listed else _known(found, state)
    found = stored_at(Directory(aside))
    array = ShardedArray(found.array.metadata, place.store)
    return _known(replace(found, place=place, array=array), state)


def _known(found: StoredArray, state: Consumption) -> StoredArray:
    return replace(found, known_identity=state.identity)


def _digest_of(made: Converting, call: Call) -> str:
    """Digest of what the array becomes."""
    facts = [made.metadata.document, call.wanted.options.drop_empty]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _has_document(place: Place) -> bool:
    return any(place.has(leaf) for leaf in (DOCUMENT, *DOCUMENTS_OF_V2))


def _finished(place: Place, path: Path, target: Target) -> ConvertedArray | None:
    """The result if a conversion has consumed an array and ended, so that the array is gone."""
    if _has_document(place) or work_of(path) is not None:
        return None
    receipt = read_receipt(target)
    made_of = "" if receipt is None else receipt.identity.source or ""
    if not made_of.startswith(f"stored:{place.store.token}:"):
        return None
    tidy(target)  # the end of its run may have been interrupted
    return ConvertedArray(name="", path=target.label, how="skipped", why=(_GONE,))

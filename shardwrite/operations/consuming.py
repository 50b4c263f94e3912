"""What conversions that consume an array share with those that consume a hierarchy."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

from shardwrite.engines import Engine
from shardwrite.errors import SpecError
from shardwrite.format.node import CONSOLIDATED_OF_V2, DOCUMENT, DOCUMENTS_OF_V2
from shardwrite.format.sharding import why_kept
from shardwrite.journal import has_consolidated, holding, read_receipt, tidy
from shardwrite.journal.consuming import Consumption
from shardwrite.operations.conversion import ConvertedArray
from shardwrite.operations.converting import Call, One, labelled
from shardwrite.place.base import Place
from shardwrite.place.directory import Directory
from shardwrite.place.target import Target, document_of
from shardwrite.read.array import ShardedArray
from shardwrite.read.stored_array import StoredArray
from shardwrite.runs.consuming import Consumer, execute_consuming, ranks_there
from shardwrite.runs.conversion import Converting
from shardwrite.runs.job import Job
from shardwrite.runs.progress import reporting
from shardwrite.runs.stored_chunks import StoredChunks
from shardwrite.runs.whole_objects import WholeObjects
from shardwrite.stores import is_there

_GONE = "its source was consumed, and this was finished before"


def refused(why: str, remedy: str) -> SpecError:
    """The error about a source that cannot be consumed."""
    return SpecError(
        f"the source cannot be consumed: {why}", field="consume", value=True, remedy=remedy
    )


def consumed_path(place: Place, call: Call) -> Path:
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
    if call.wanted.patterns.include or call.wanted.patterns.exclude:
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


def check_target(target: Target, call: Call) -> None:
    """Refuse a target on which no source can be consumed."""
    if target.durability(call.run.durability) == "none":
        raise refused(
            "what is made of it would not be durable", 'give durability="full" or "batch"'
        )


def refuse_scale(source: StoredArray) -> None:
    """Refuse to consume a scale of a volume of Neuroglancer."""
    why = why_kept(source.array.metadata.document)
    if why:
        raise refused(why, "leave consume out")


def check_copied(one: One) -> None:
    """Refuse a conversion that cannot copy the encoded chunks of an array as they are."""
    if one.planned.passage is None:
        whose, why = one.name and f"the chunks of {one.name!r}", ", ".join(one.planned.reasons)
        raise refused(
            f"{whose or 'its chunks'} must be decoded and re-encoded ({why})",
            "leave consume out, or keep inner chunks and codecs",
        )


def has_document(place: Place) -> bool:
    """Whether the document of an array or a group stands at a place."""
    return any(place.has(leaf) for leaf in (DOCUMENT, *DOCUMENTS_OF_V2))


def known(found: StoredArray, place: Place, state: Consumption) -> StoredArray:
    """An array whose objects may be listed, and its documents moved aside.

    What was listed is known under the identity that it had then.
    """
    if not state.is_listed:
        return found
    array = ShardedArray(found.array.metadata, place.store)
    return replace(found, place=place, array=array, known_identity=state.identity)


def digest_of(made: Converting, call: Call) -> str:
    """Digest of what the array becomes, and the label of a strategy; see `labelled`."""
    facts = [made.metadata.document, call.wanted.options.drop_empty]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    return labelled(digest, call.options.strategy, made.plan.strategy)


def consume_one(
    one: One, call: Call, target: Target, engine: Engine, state: Consumption
) -> tuple[ConvertedArray, int]:
    """Write an array, and consume what it is made of; see `convert_and_consume`.

    - `call`: the call. Its mode and durability are those of this array.
    """
    made = one.planned
    if not state.is_listed:
        state.list_objects(made.source.identity, ranks_there(made.source.array))
    if not isinstance(made.chunks, StoredChunks | WholeObjects):
        raise TypeError("a source whose chunks are not copied as they are is not consumed")
    consumer = Consumer(
        state, made.source.array, ShardedArray(made.metadata, target.store), made.passage, engine
    )
    run = replace(call.run, durability=target.durability(call.run.durability))
    job = Job(replace(made.chunks, listed=state.listed), made.plan, target, run)
    with reporting(call.progress, made.plan.raw_nbytes) as on_report:
        result = execute_consuming(job, engine, on_report, consumer)
    left = f"files in {state.path} that are not its own are left there"
    why = (*([one.kept] if one.kept else []), *([] if consumer.finish() else [left]))
    array = ConvertedArray(name=one.name, path=target.label, how="copied", why=why, result=result)
    return array, consumer.n_removed


def finished(name: str, place: Place, target: Target) -> ConvertedArray | None:
    """The result for an array that is gone, if a conversion has consumed it and ended."""
    receipt = read_receipt(target)
    made_of = "" if receipt is None else receipt.identity.source or ""
    if not made_of.startswith(f"stored:{place.store.token}:"):
        return None
    with holding(target):
        tidy(target)  # the end of its run may have been interrupted
    return ConvertedArray(name=name, path=target.label, how="skipped", why=(_GONE,))

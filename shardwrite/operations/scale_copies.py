"""Encoded inner chunks of a Zarr array that become chunks of a scale without being decoded."""

from __future__ import annotations

from dataclasses import replace

from shardwrite.engines import Engine
from shardwrite.errors import redacted
from shardwrite.format.document import ArrayOptions
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.passage import passage_between, what_differs
from shardwrite.plan import Plan, PlanOptions, SourceLayout
from shardwrite.read.stored_array import StoredArray
from shardwrite.results import human
from shardwrite.runs.array_plan import resources_of, waiting
from shardwrite.runs.conversion import plan_of_copies
from shardwrite.runs.lost import check_nothing_lost
from shardwrite.runs.stored_behind import Behind
from shardwrite.runs.stored_chunks import StoredChunks
from shardwrite.stores import Capability, Store


def alike(options: ArrayOptions, stored: Behind) -> ArrayOptions:
    """Keywords of a scale with the gzip of a stored array, whatever its level is."""
    if not isinstance(stored, StoredArray):
        return options
    of_source = [c for c in stored.array.metadata.inner_codecs if c["name"] == "gzip"]
    if len(of_source) != 1 or not options.compressors:
        return options
    return replace(options, compressors=tuple(dict(codec) for codec in of_source))


def plan_copies(
    stored: StoredArray,
    metadata: ArrayMetadata,
    engine: Engine,
    options: PlanOptions,
    store: Store | None,
) -> tuple[StoredChunks, Plan] | str:
    """Plan how the chunks of a stored array become those of a scale; or why they must be decoded.

    - Raises ChangedError if the stored array has lost objects.
    """
    array = stored.array
    passage = passage_between(array.metadata, metadata)
    if passage is None:
        return f"{' and '.join(what_differs(array.metadata, metadata))} differ"
    if options.write_empty_chunks:
        return "write_empty_chunks needs their values"
    if not engine.shares_memory and Capability.SHARED not in array.store.capabilities:
        return "other processes cannot open the store of the array"
    check_nothing_lost(stored)
    given = options.source_id
    identity = stored.identity if given is None else redacted(given)
    is_stable = given is not None
    layout = SourceLayout(metadata.grid.sizes, 0, identity, is_stable, is_encoded=True)
    resources = waiting(resources_of(engine, options.memory_limit_nbytes), store, metadata)
    decodes = passage.n_encoded > 0
    made, nbytes = plan_of_copies(metadata, layout, resources, options, decodes=decodes)
    notes = [f"encoded chunks are copied, {passage}"]
    if passage.n_encoded:
        notes.append(passage.about_edges)
    notes.append(f"a process takes up to {human(nbytes)} of memory while it copies chunks")
    return StoredChunks(metadata, None, array), replace(made, notes=(*notes, *made.notes))

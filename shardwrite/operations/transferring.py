"""The copy of a hierarchy with the same documents and objects: what is checked, planned and run.

The arrays are copied first. None of them is published before all of them are whole, and all objects
were compared with the journal. Then the documents of groups are written, the root's last, and in
the end the ``info`` of volumes.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardwrite.codecs.documents import Document
from shardwrite.engines import Engine
from shardwrite.errors import CorruptShardError, SpecError, StoreError
from shardwrite.format.bounds import most_nbytes_of, sealing_nbytes_of
from shardwrite.format.manifest import has_manifest
from shardwrite.format.node import DOCUMENT
from shardwrite.format.sharding import why_kept
from shardwrite.journal import enter_above, read_receipt
from shardwrite.operations.consume import consume_into
from shardwrite.operations.converting import Call
from shardwrite.operations.hierarchy import put_document
from shardwrite.operations.steps import steps_of
from shardwrite.operations.traffic import (
    LISTED_AT_ONCE,
    TAIL_NBYTES,
    TRIED,
)
from shardwrite.operations.transferred import (
    PlannedTransfer,
    Transfer,
    TransferPlan,
    TransferredArray,
)
from shardwrite.operations.unfinished import refuse_runs
from shardwrite.operations.volumes import (
    beside_scales,
    check_info,
    infos_of,
    put_infos,
    withdraw_scales,
)
from shardwrite.place.base import Place, names_above
from shardwrite.place.checks import refuse_kept
from shardwrite.place.directory import Directory
from shardwrite.place.objects import InStore
from shardwrite.place.run_state import run_state_beside
from shardwrite.place.scale import around
from shardwrite.place.target import (
    Target,
    document_if_there,
    document_of,
    refuse_names,
    resolve_place,
    target_at,
)
from shardwrite.place.transformer import TransformerPlace
from shardwrite.plan.estimate import n_at_once
from shardwrite.plan.requests import Requests
from shardwrite.read.hierarchy import Hierarchy, open_hierarchy
from shardwrite.read.inspection import stored_sizes
from shardwrite.read.stored_array import StoredArray, check_apart
from shardwrite.read.survey import ranks_of_objects
from shardwrite.results import rounded
from shardwrite.runs.conversion import Converting
from shardwrite.runs.execute import execute
from shardwrite.runs.job import Job
from shardwrite.runs.options import RunOptions
from shardwrite.runs.progress import OnReport, reporting
from shardwrite.runs.result import result_from_receipt
from shardwrite.runs.whole_objects import WholeObjects, plan_transfer_of
from shardwrite.sources.opening import place_of
from shardwrite.stores import COPIED_NBYTES, Store

# Requests that do not depend on the number of objects: for an array that is written (its mark,
# document and receipt are put, and it is looked at step by step), for an array that is read, for a
# group or a volume, and whether the place is a hierarchy of 2022.
_WRITTEN = Requests(n_put=3, n_get=24, n_list=10)
_READ = Requests(n_get=8, n_list=2)
_GROUP = Requests(n_put=1, n_get=7)
_IS_HIERARCHY = Requests(n_get=1)


@dataclass(frozen=True, slots=True)
class Transferring:
    """A transfer that was checked."""

    tree: Hierarchy  # the source
    place: Directory | InStore  # place of the copy
    # Directory of the run state; None if it lies beside the copy, or the configuration says where
    run_dir: Any
    is_default: bool  # whether no user has given that directory
    # The ``info`` of each volume of Neuroglancer in the source, by its path
    infos: dict[str, bytes]

    @property
    def left_out(self) -> tuple[tuple[str, str], ...]:
        """Path of what is not copied, and why."""
        return (*self.tree.left_out, *beside_scales(self.infos))

    def at(self, name: str) -> Directory | InStore:
        """Place of the copy of a node."""
        return self.place.member(name) if name else self.place

    def target(self, name: str) -> Target:
        """Place of the copy of an array, and of the state of its run.

        The run sees no groups above, because it would make those that are missing.
        """
        place = self.at(name)
        if name and isinstance(place, Directory):
            place = Directory(place.path)
        elif name and isinstance(place, InStore):
            place = InStore(place.base.at(place.name))
        return target_at(place, self.run_dir)

    def documents(self) -> dict[str, bytes]:
        """Documents of the groups as they stand in the source, by name, the root's last."""
        found: dict[str, bytes] = {}
        for group in reversed(self.tree.groups):
            node = self.tree.place.member(group.name) if group.name else self.tree.place
            data = node.read(DOCUMENT)
            if data is None:
                raise _not_as_it_is(node.label, "a group of Zarr v2")
            found[group.name] = data
        return found


def open_transfer(src: Any, dst: Any, run_dir: Any) -> Transferring:
    """Open the source of a transfer, and refuse what cannot be copied as it is."""
    tree = open_hierarchy(place_of(src), lambda _: True)
    names = [*(group.name for group in tree.groups), *(name for name, _ in tree.arrays)]
    refuse_names(names, tree.place.label, as_text=True, as_it_is=True)
    for _, source in tree.arrays:
        _check_source(source)
    place = resolve_place(dst, None, asks=False)
    refuse_hierarchy(place)
    check_apart(tree.place, place)
    refuse_runs(tree, is_kept=True)
    chosen = run_state_beside(tree.place.store.local_root, place, run_dir)
    return Transferring(tree, place, chosen, chosen is not run_dir, infos_of(tree))


def _check_source(source: StoredArray) -> None:
    """Refuse an array whose document is not the one that describes its objects."""
    if not source.is_v3:
        raise _not_as_it_is(source.label, "an array of Zarr v2")
    if source.is_in_file:
        raise _not_as_it_is(source.label, "an array inside of a file")
    if isinstance(source.place, TransformerPlace):
        raise _not_as_it_is(source.label, "an array of the storage transformer of 2022")


def refuse_hierarchy(place: Place) -> None:
    """Refuse to copy to a place in a hierarchy of 2022."""
    if isinstance(place, TransformerPlace):
        raise SpecError(
            "is in a hierarchy of 2022",
            field="dst",
            value=place.label,
            remedy="give another place",
        )


def _not_as_it_is(label: str, what: str) -> SpecError:
    return SpecError(
        f"{what} is not copied as it is",
        field="src",
        value=label,
        remedy="use reshard, which makes a Zarr v3 array of it, there or in a directory first",
    )


def transfer(
    wanted: Transferring, run: RunOptions, progress: bool | OnReport, engine: Engine
) -> Transfer:
    """Copy a hierarchy."""
    start = time.perf_counter()
    tree = wanted.tree
    documents = wanted.documents()
    places = {name: wanted.at(name) for name in documents}
    for name, place in places.items():
        _check_group(place, documents[name], run.mode)
    volumes = {name: target_at(wanted.at(name), wanted.run_dir) for name in wanted.infos}
    for name, target in volumes.items():
        check_info(target.place, wanted.infos[name], run.mode)
    jobs = []
    for name, source in tree.arrays:
        plan = plan_transfer_of(source, engine)
        _check_sizes(source, wanted.place.store, engine)
        jobs.append(Job(WholeObjects(source.array), plan, wanted.target(name), run))
    if run.mode == "w":
        for (name, _), job in zip(tree.arrays, jobs, strict=True):
            _check_replaced(job, name, wanted.infos)
        withdraw_scales(volumes, wanted.infos, jobs[0].durability)
    with (
        _explaining(wanted),
        reporting(progress, sum(job.plan.raw_nbytes for job in jobs)) as on_report,
    ):
        results = execute(jobs, engine, on_report, looks_again=True)
    for name, place in places.items():
        if place.read(DOCUMENT) != documents[name]:
            put_document(place, documents[name], run.durability)
    if documents:
        enter_above(
            wanted.place,
            lambda: _nodes_of(wanted),
            jobs[0].durability,
            jobs[0].target.beside.parent,
        )
    put_infos(volumes, wanted.infos, jobs[0].durability)
    if wanted.is_default:
        _remove_if_empty(wanted.run_dir)
    arrays = tuple(
        TransferredArray(name=name, path=job.target.label, result=result)
        for (name, _), job, result in zip(tree.arrays, jobs, results, strict=True)
    )
    return Transfer(
        source=tree.place.label,
        path=wanted.place.label,
        arrays=arrays,
        n_groups=len(documents),
        seconds=rounded(time.perf_counter() - start),
        left_out=wanted.left_out,
    )


def _check_sizes(source: StoredArray, store: Store, engine: Engine) -> None:
    """Refuse objects that are larger than a store takes, before the first one is copied.

    They are looked at only if their array may have such large ones.
    """
    limit, array = store.put_limit, source.array
    if limit is None or most_nbytes_of(array.metadata) <= limit:
        return
    sizes = stored_sizes(engine, array, ranks_of_objects(array, source.label))
    store.check_nbytes(int(sizes.max(initial=0)), exists=True)


def _check_replaced(job: Job, name: str, infos: Mapping[str, bytes]) -> None:
    """Refuse to replace a scale of a volume by what its ``info`` does not describe."""
    place, metadata = job.target.place, job.plan.metadata
    if not why_kept(metadata.document):
        refuse_kept(job.target)
        return
    has_own_info = any(not volume or name.startswith(f"{volume}/") for volume in infos)
    above, there = around(place), None if has_own_info else document_if_there(place)
    if above is not None and above[2] and there is not None and why_kept(there):
        steps_of(metadata).check_new(
            job.target, metadata, None
        )  # the info that stands there will stay


def transfer_and_consume(src: Any, call: Call, engine: Engine) -> Transfer:
    """Copy an array, and remove each of its objects once the copy is durable and was compared."""
    start = time.perf_counter()
    source, place = place_of(src), resolve_place(call.dst, None, asks=False)
    chosen = run_state_beside(source.store.local_root, place, call.run_dir)

    def plan(found: StoredArray, into: Store) -> Converting:
        _check_source(found)
        _check_sizes(found, into, engine)
        chunks = WholeObjects(found.array)
        return Converting(found, chunks, plan_transfer_of(found, engine), None, (), 0)

    array, n_removed = consume_into(source, replace(call, run_dir=chosen), engine, plan)
    result = array.result
    if result is None:  # it was finished before
        target = target_at(place, chosen)
        receipt = read_receipt(target)
        if receipt is None:
            raise TypeError("a copy that was finished before has a receipt")
        result = result_from_receipt(receipt.result, target.label)
    if chosen is not call.run_dir:
        _remove_if_empty(chosen)
    return Transfer(
        source=source.label,
        path=array.path,
        arrays=(TransferredArray(name="", path=array.path, result=result),),
        n_groups=0,
        seconds=rounded(time.perf_counter() - start),
        n_removed=n_removed,
    )


def _check_group(place: Place, document: bytes, mode: str) -> None:
    """Refuse to put the document of a group where something else stands."""
    kind = place.kind_for_group()
    if kind not in ("nothing", "group"):
        raise SpecError(
            "something that is no Zarr v3 group stands there",
            field="dst",
            value=place.label,
            remedy="give another place, or remove it yourself",
        )
    if kind == "group" and mode == "w-" and place.read(DOCUMENT) != document:
        raise SpecError(
            "another group stands there",
            field="dst",
            value=place.label,
            remedy='give another place, or mode="w" to replace its document',
        )


def _nodes_of(wanted: Transferring) -> dict[str, Document]:
    """Documents of the nodes of a copy, without those below a group that has none."""
    found = {group.name: group.document for group in wanted.tree.groups}
    for name, source in wanted.tree.arrays:
        document = source.array.metadata.document
        # What a manifest lists stands only in the document that was published.
        found[name] = document_of(wanted.at(name)) if has_manifest(document) else document
    return {
        name: node
        for name, node in found.items()
        if not name or all(above in found for above in names_above(name))
    }


@contextlib.contextmanager
def _explaining(wanted: Transferring) -> Iterator[None]:
    """Add to an error what a user can do about it."""
    try:
        yield
    except CorruptShardError as error:
        error.add_note(
            f"this shard of {wanted.tree.place.label} is bad, and nothing is published. Write it "
            "again from its source with repair, and make the same call again"
        )
        raise
    except StoreError as error:
        if wanted.is_default:
            error.add_note(
                f"the state of the upload lies in {wanted.run_dir}; for another place, give for "
                'instance run_dir="/scratch/me/runs"'
            )
        raise


def _remove_if_empty(directory: Path) -> None:
    # Another upload of the same source may have its state there.
    with contextlib.suppress(OSError):
        directory.rmdir()


def plan_of(wanted: Transferring, engine: Engine) -> TransferPlan:
    """Plan a transfer: objects, bytes, requests and memory. The source is listed."""
    tree, place = wanted.tree, wanted.place
    arrays, memory, scratch = [], 0, 0
    for name, source in tree.arrays:
        ranks = ranks_of_objects(source.array, source.label)
        sizes = stored_sizes(engine, source.array, ranks)
        sizes = sizes[sizes >= 0]
        largest = int(sizes.max(initial=0))
        place.store.check_nbytes(largest, exists=True)
        arrays.append(
            PlannedTransfer(
                name=name, n_objects=len(sizes), nbytes=int(sizes.sum()), largest_nbytes=largest
            )
        )
        n_threads = plan_transfer_of(source, engine).resources.n_threads
        piece = min(largest, COPIED_NBYTES)
        metadata, held = source.array.metadata, largest
        if place.store.scratch is not None:
            held = place.store.held_nbytes(largest)
            decoded = math.prod(metadata.grid.shards) * metadata.itemsize
            together = n_at_once(decoded + sealing_nbytes_of(metadata))
            scratch = max(scratch, n_threads * largest * (1 + together if together > 1 else 1))
        memory = max(memory, n_threads * (piece if isinstance(place, Directory) else held + piece))
    n_groups, n_volumes = len(tree.groups), len(wanted.infos)
    is_remote = tree.place.store.local_root is None
    return TransferPlan(
        source=tree.place.label,
        path=place.label,
        arrays=tuple(arrays),
        n_groups=n_groups,
        requests_to_source=_reads(arrays, n_groups, n_volumes) if is_remote else None,
        requests_to_target=_writes(arrays, n_groups + n_volumes)
        if place.store.local_root is None
        else None,
        memory_nbytes=memory,
        scratch_nbytes=scratch,
        run_dir="" if wanted.run_dir is None else str(wanted.run_dir),
        left_out=wanted.left_out,
    )


def _reads(arrays: Sequence[PlannedTransfer], n_groups: int, n_volumes: int) -> Requests:
    """Requests that read all objects."""
    n_listed = sum(array.n_objects for array in arrays) // LISTED_AT_ONCE
    found = Requests(n_get=n_groups * _GROUP.n_get + n_volumes, n_list=1 + n_listed)
    found += _IS_HIERARCHY
    for array in arrays:
        n_get = 2 * array.n_objects
        if array.largest_nbytes > TAIL_NBYTES:
            n_get += array.n_objects + array.nbytes // COPIED_NBYTES
        found += _READ + Requests(n_get=n_get, n_list=array.n_objects // LISTED_AT_ONCE)
    return found


def _writes(arrays: Sequence[PlannedTransfer], n_documents: int) -> Requests:
    """Requests that put all objects and the documents around them, and look at them again."""
    found = TRIED + _IS_HIERARCHY
    found += Requests(n_documents * _GROUP.n_put, n_documents * _GROUP.n_get)
    for array in arrays:
        n = array.n_objects
        found += _WRITTEN + Requests(n, n, n // LISTED_AT_ONCE)
    return found

"""The copy of a hierarchy with the same documents and objects: what is checked, planned and run.

The arrays are copied first. None of them is published before all of them are whole, and all objects
were compared with the journal. Then the documents of groups are written, the root's last, and in
the end the ``info`` of volumes.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from shardwrite._dataclass import dataclass
from shardwrite._lazy import if_loaded
from shardwrite.codecs.documents import Document
from shardwrite.config.table import RUN_DIR, value_of
from shardwrite.convert.arrays import (
    ConversionCall,
    NamedConversion,
    TreeConversion,
    as_published,
    check_apart,
    check_group,
    list_nodes,
    make_groups,
    members_in,
    open_whole,
    put_document,
    refuse_runs,
    with_list,
    without_list,
)
from shardwrite.convert.consume import consume, refused
from shardwrite.convert.plan import told_of_left_out, told_of_source
from shardwrite.convert.removal import WholeObjects, plan_transfer_of
from shardwrite.convert.run import ArrayConversion
from shardwrite.engines.local import Engine
from shardwrite.errors import CorruptShardError, ShardwriteError, SpecError, StoreError, printable
from shardwrite.format.node import DOCUMENT
from shardwrite.format.sharding import why_kept
from shardwrite.journal.documents import enter_above
from shardwrite.journal.receipt import read_receipt
from shardwrite.legacy.place import TransformerPlace
from shardwrite.operations.plan import LISTED_AT_ONCE, TAIL_NBYTES, TRIED
from shardwrite.operations.steps import steps_of
from shardwrite.place.base import Place, names_above
from shardwrite.place.directory import Directory
from shardwrite.place.objects import InStore
from shardwrite.place.target import (
    Target,
    document_if_there,
    document_of,
    refuse_hierarchy,
    refuse_kept,
    refuse_names,
    resolve_place,
    target_at,
)
from shardwrite.plan.estimate import Requests, n_at_once
from shardwrite.read.hierarchy import Group, Hierarchy, open_hierarchy
from shardwrite.read.inspection import ranks_of_objects, stored_sizes
from shardwrite.read.stored_array import StoredArray
from shardwrite.results import Facts, Result, counted, duration, human, rounded
from shardwrite.runs.execute import OnReport, execute
from shardwrite.runs.job import Job, RunOptions
from shardwrite.runs.result import WriteResult, result_from_receipt
from shardwrite.sources.opening import place_of
from shardwrite.stores.base import COPIED_NBYTES, Store
from shardwrite.stores.directories import RUN_SUFFIX
from shardwrite.stores.looking import parse_document
from shardwrite.volumes.documents import parsed, replace_info, volume_and_key
from shardwrite.volumes.info import INFO, Scale, parse_info
from shardwrite.volumes.new import OTHER_PARTS, NewScale, merged_info
from shardwrite.volumes.scale import PrecomputedShards

__all__ = ["PlannedTransfer", "Requests", "Transfer", "TransferPlan", "TransferredArray"]


# ---- Volumes of Neuroglancer in the hierarchy: their ``info``, which follows last


def infos_of(tree: Hierarchy) -> dict[str, bytes]:
    """The ``info`` of each volume in a hierarchy as it stands there, by the path of the volume."""
    scales = {
        name
        for name, source in tree.arrays
        if name and isinstance(source.array.metadata.shard_format, PrecomputedShards)
    }
    found: dict[str, bytes] = {}
    for scale in sorted(scales):
        for name in reversed(["", *names_above(scale)]):
            if name not in found and (data := tree.at(name).read(INFO)) is not None:
                found[name] = data
            if name in found:
                break
    for name, data in found.items():
        label = tree.at(name).label
        _check_scales(label, f"{name}/" if name else "", parsed(data, label), scales)
    return found


def _check_scales(label: str, above: str, document: Any, scales: set[str]) -> None:
    """Refuse an ``info`` that would stand over scales which are not copied."""
    try:
        keys = [scale.key for scale in parse_info(document).scales]
    except ShardwriteError as error:
        error.add_note(f"this is {label}/{INFO}")
        raise
    missing = [key for key in keys if above + key not in scales]
    if missing:
        raise SpecError(
            f"its {INFO} has the scale {missing[0]!r}, which shardwrite has not written, so that "
            "the copy would lack it",
            field="src",
            value=label,
            remedy="copy the whole directory with another tool, or the path of one scale",
        )


def beside_scales(infos: Mapping[str, bytes]) -> tuple[tuple[str, str], ...]:
    """Path of what else belongs to volumes and is not copied, and why."""
    return tuple(
        (f"{name}/{value}" if name else value, f"the {member} of a volume, which are no scale")
        for name, data in infos.items()
        for member in OTHER_PARTS
        if isinstance(value := parsed(data).get(member), str)
    )


def check_info(place: Place, data: bytes, mode: str) -> None:
    """Refuse to put an ``info`` where one stands that says something else.

    It is that of the same volume if both have the same scales, one has those of the other and
    more, or they share some.

    - `mode`: whether any other may be replaced.
    """
    there = place.read(INFO)
    if there is None or there == data or mode == "w":
        return
    old, new = (_scales(one) for one in (there, data))
    if old is None or new is None or old[0] != new[0] or not _are_of_one(old[1], new[1]):
        raise _of_another(place.label)


def _are_of_one(old: Sequence[Scale], new: Sequence[Scale]) -> bool:
    """Whether scales can be of one volume: some are the same, and others have other keys."""
    keys = {scale.key for scale in new}
    shared = [scale for scale in old if scale.key in keys]
    return bool(shared) and set(shared) <= set(new)


def _of_another(label: str) -> SpecError:
    return SpecError(
        f"the {INFO} of another volume stands there",
        field="dst",
        value=label,
        remedy='give another place, or mode="w" to replace it',
    )


def _scales(data: bytes) -> tuple[object, tuple[Scale, ...]] | None:
    """What the scales of a volume have in common, and the scales; None if it is no volume."""
    try:
        found = parse_info(parsed(data))
    except SpecError:
        return None
    return (found.kind, found.dtype, found.n_channels), found.scales


def withdraw_scales(
    targets: Mapping[str, Target], infos: Mapping[str, bytes], durability: str
) -> None:
    """Take the scales out of each ``info`` that the new one describes otherwise, or lacks.

    Readers would read the new objects by the old description. Without any scale, the volume is an
    error to them.
    """

    def without(there: bytes | None, data: bytes) -> bytes | None:
        if there is None or there == data or _scales(there) is None:
            return None
        old, new = parsed(there), parsed(data)
        left = {**old, "scales": [one for one in old["scales"] if one in new["scales"]]}
        return None if left == old else json.dumps(left).encode()

    for name, data in infos.items():
        replace_info(targets[name], partial(without, data=data), durability)


def put_infos(targets: Mapping[str, Target], infos: Mapping[str, bytes], durability: str) -> None:
    """Put the ``info`` of each volume, by its path, unless the same stands there.

    Scales that another call has entered meanwhile stay in it.
    """
    for name, data in infos.items():
        label = targets[name].label
        replace_info(targets[name], partial(_joined, data=data, label=label), durability)


def _joined(there: bytes | None, data: bytes, label: str) -> bytes:
    """The new ``info``, with the scales of the one that stands there and that the new one lacks."""
    old, new = (None if one is None else _scales(one) for one in (there, data))
    if there is None or old is None or new is None:
        return data
    keys = {scale.key for scale in new[1]}
    others = [entry for entry in parsed(there)["scales"] if entry["key"] not in keys]
    if not others:
        return data
    if old[0] != new[0]:
        raise _of_another(label)
    joined = parsed(data)
    for entry in others:
        volume = parse_info({**joined, "scales": [entry]})
        joined = merged_info(joined, NewScale(volume, entry))
    return there if joined == parsed(there) else json.dumps(joined, indent=2).encode() + b"\n"


# ---- Plans and results


_MAX_SHOWN = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTransfer:
    """How one array will be copied."""

    name: str  # path of the array in its hierarchy; empty for the array itself
    n_objects: int  # number of its shards, or of its chunks if it is not sharded
    nbytes: int  # size in bytes of all of them, and of the largest one
    largest_nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferPlan(Result):
    """Plan of an upload or a download. Make one with :func:`shardwrite.plan_transfer`.

    Attributes
    ----------
    source, path : str
        Names of the source, and of the place of the copy.
    arrays : tuple of PlannedTransfer
        The arrays.
    n_groups : int
        Number of groups.
    requests_to_source, requests_to_target : Requests or None
        Requests to the object stores on either side; None for a directory.
    memory_nbytes : int
        Estimated memory of a worker process, in bytes.
    scratch_nbytes : int
        Room on its disk that a worker process needs for shards that wait, in bytes.
    run_dir : str
        Directory of the state of the runs; empty if it lies beside each copy.
    left_out : tuple of (str, str)
        Name of each node that is not copied, and why.
    """

    _derived = ("n_objects", "nbytes")

    source: str
    path: str
    arrays: tuple[PlannedTransfer, ...]
    n_groups: int
    requests_to_source: Requests | None
    requests_to_target: Requests | None
    memory_nbytes: int
    scratch_nbytes: int = 0
    run_dir: str = ""
    left_out: tuple[tuple[str, str], ...] = ()

    @property
    def n_objects(self) -> int:
        """Number of shards and chunks of all arrays."""
        return sum(array.n_objects for array in self.arrays)

    @property
    def nbytes(self) -> int:
        """Size of all shards and chunks, in bytes."""
        return sum(array.nbytes for array in self.arrays)

    def _rows(self) -> list[tuple[str, str]]:
        rows = [
            ("source", self.source),
            ("copy", self.path),
            ("nodes", f"{counted(len(self.arrays), 'array')}, {counted(self.n_groups, 'group')}"),
            ("objects", f"{self.n_objects:,}, {human(self.nbytes)}, copied as they are"),
        ]
        for side, requests in (
            ("source", self.requests_to_source),
            ("target", self.requests_to_target),
        ):
            if requests is not None:
                rows.append((f"requests to {side}", f"about {requests}"))
        rows.append(("memory", f"{human(self.memory_nbytes)} a process at worst"))
        if self.scratch_nbytes:
            rows.append(("scratch", f"{human(self.scratch_nbytes)} a process at worst"))
        if self.run_dir:
            rows.append(("run state", self.run_dir))
        if len(self.arrays) > 1:
            rows += [
                (array.name, f"{counted(array.n_objects, 'object')}, {human(array.nbytes)}")
                for array in self.arrays[:_MAX_SHOWN]
            ]
        return rows + told_of_left_out(self.left_out)

    def __repr__(self) -> str:
        return (
            f"<TransferPlan of {printable(self.source)} to {printable(self.path)}: "
            f"{counted(self.n_objects, 'object')}, {human(self.nbytes)}>"
        )

    def facts(self) -> Facts:
        """Return what is shown of the result, as text and in notebooks."""
        headline = [
            (f"{self.n_objects:,}", "objects"),
            (human(self.nbytes), "stored"),
            (human(self.memory_nbytes), "memory per process at most"),
        ]
        return Facts(title="transfer", subject=self.path, headline=headline, rows=self._rows())


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferredArray:
    """What became of one array."""

    name: str  # path of the array in its hierarchy; empty for the array itself
    path: str  # path of the copy
    result: WriteResult  # result of the run


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer(Result):
    """Result of an upload or a download.

    Attributes
    ----------
    source, path : str
        Names of the source, and of the copy.
    arrays : tuple of TransferredArray
        What became of each array.
    n_groups : int
        Number of groups.
    seconds : float
        Duration in seconds.
    left_out : tuple of (str, str)
        Name of each node that was not copied, and why.
    n_removed : int
        Number of objects of the source that this call has removed, with ``consume=True``.
    """

    _derived = ("n_objects", "n_resumed", "n_reread_chunks", "stored_nbytes")

    source: str
    path: str
    arrays: tuple[TransferredArray, ...]
    n_groups: int
    seconds: float
    left_out: tuple[tuple[str, str], ...] = ()
    n_removed: int = 0

    def _results(self) -> Sequence[WriteResult]:
        return [array.result for array in self.arrays]

    @property
    def n_objects(self) -> int:
        """Number of shards and chunks of the copy."""
        return sum(result.n_shards for result in self._results())

    @property
    def n_resumed(self) -> int:
        """Number of shards and chunks, empty ones included, that an earlier call had copied."""
        return sum(result.n_resumed_shards for result in self._results())

    @property
    def n_reread_chunks(self) -> int:
        """Number of reads of the source that were made again, since their bytes were wrong."""
        return sum(result.n_reread_chunks for result in self._results())

    @property
    def stored_nbytes(self) -> int:
        """Size of all shards and chunks of the copy, in bytes."""
        return sum(result.stored_nbytes for result in self._results())

    def _rows(self) -> list[tuple[str, str]]:
        rows = [
            ("source", self.source),
            ("copy", self.path),
            ("nodes", f"{counted(len(self.arrays), 'array')}, {counted(self.n_groups, 'group')}"),
            ("objects", f"{self.n_objects:,}, {human(self.stored_nbytes)}"),
            ("time", duration(self.seconds)),
        ]
        if self.n_resumed:
            rows.append(("resumed", f"{self.n_resumed:,} objects were copied by an earlier call"))
        rows += told_of_source(self.n_reread_chunks, self.n_removed)
        return rows + told_of_left_out(self.left_out)

    def __repr__(self) -> str:
        return (
            f"<Transfer of {printable(self.source)} to {printable(self.path)}: "
            f"{counted(self.n_objects, 'object')}, {human(self.stored_nbytes)}>"
        )

    def facts(self) -> Facts:
        """Return what is shown of the result, as text and in notebooks."""
        headline = [
            (f"{self.n_objects:,}", "objects"),
            (human(self.stored_nbytes), "stored"),
            (duration(self.seconds), "time"),
        ]
        return Facts(title="transferred", subject=self.path, headline=headline, rows=self._rows())


# ---- The transfer


# Requests that do not depend on the number of objects: for an array that is written (its mark,
# document and receipt are put, and it is looked at step by step), for an array that is read, for a
# group or a volume, and whether the place is a hierarchy of 2022.
_WRITTEN = Requests(n_put=3, n_get=9, n_list=2)

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
            node = self.tree.at(group.name)
            data = node.read(DOCUMENT)
            if data is None:
                raise _not_as_it_is(node.label, "a group of Zarr v2")
            found[group.name] = data
        return found


def open_transfer(src: Any, dst: Any, run_dir: Any) -> Transferring:
    """Open the source of a transfer, and refuse what cannot be copied as it is."""
    tree = open_whole(src, lambda _: True, lambda src, want: open_hierarchy(place_of(src), want))
    refuse_names(list(tree.documents), tree.place.label, as_text=True, as_it_is=True)
    for _, source in tree.arrays:
        _check_source(source)
    place = resolve_place(dst, None, asks=False)
    refuse_hierarchy(place, "dst")
    check_apart(tree.place, place)
    refuse_runs(tree, is_kept=True)
    chosen = _run_state_beside(tree.place.store.local_root, place, run_dir)
    return Transferring(tree, place, chosen, chosen is not run_dir, infos_of(tree))


def _run_state_beside(source: Path | None, place: Place, run_dir: Any) -> Any:
    """Directory for the run state of what is copied from a directory, beside that directory.

    - `source`: the directory; None if the source lies in none.
    - Returns: None if the state has a place already, or needs a directory that only a user can
      name.
    """
    is_known = run_dir is not None or value_of(RUN_DIR) is not None
    in_store = if_loaded("shardwrite.place.objects", "InStore")
    if is_known or source is None or not isinstance(place, in_store) or place.base.is_in_memory:
        return run_dir
    return source.parent / f"{source.name}.upload{RUN_SUFFIX}"


def _check_source(source: StoredArray) -> None:
    """Refuse an array whose document is not the one that describes its objects."""
    if not source.is_v3:
        raise _not_as_it_is(source.label, "an array of Zarr v2")
    if source.is_in_file:
        raise _not_as_it_is(source.label, "an array inside of a file")
    if isinstance(source.place, TransformerPlace):
        raise _not_as_it_is(source.label, "an array of the storage transformer of 2022")


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
        plain = without_list(parse_document(documents[name], tree.place.label))
        check_group(place, run.mode, lambda there: without_list(document_of(there)), plain)
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
    with _explaining(wanted):
        results = execute(jobs, engine, progress, looks_again=True)
    for group in reversed(tree.groups):
        _put_group(wanted, group, documents[group.name], run.durability)
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


def _put_group(wanted: Transferring, group: Group, data: bytes, durability: str | None) -> None:
    """Put the document of a group, as it is unless its list does not fit what is in the copy.

    Readers take an array that is listed and not there for one of fill values.
    """
    place, above = wanted.at(group.name), f"{group.name}/" if group.name else ""
    copied = {name.removeprefix(above) for name in wanted.tree.documents if name.startswith(above)}
    nodes = as_published(wanted.tree.documents, wanted.at)
    fitting = members_in(with_list(place, group, nodes, document_if_there(place) or {}))
    if copied.issuperset({*members_in(parse_document(data, place.label)), *fitting}):
        if place.read(DOCUMENT) != data:
            put_document(place, data, durability)
        return
    make_groups([(group, place)], durability)
    list_nodes(place, group, nodes, durability)


def _check_sizes(source: StoredArray, store: Store, engine: Engine) -> None:
    """Refuse objects that are larger than a store takes, before the first one is copied.

    They are looked at only if their array may have such large ones.
    """
    limit, array = store.put_limit, source.array
    if limit is None or array.metadata.most_nbytes <= limit:
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
    above, there = volume_and_key(place), None if has_own_info else document_if_there(place)
    if above is not None and above[2] and there is not None and why_kept(there):
        steps_of(metadata).check_new(
            job.target, metadata, None
        )  # the info that stands there will stay


def transfer_and_consume(src: Any, call: ConversionCall, engine: Engine) -> Transfer:
    """Copy an array, and remove each of its objects once the copy is durable and was compared."""
    start = time.perf_counter()
    source, place = place_of(src), resolve_place(call.dst, None, asks=False)
    chosen = _run_state_beside(source.store.local_root, place, call.run_dir)
    is_default = chosen is not call.run_dir

    def plan(tree: Hierarchy) -> TreeConversion:
        if not tree.is_array:
            raise refused(
                "it is no single array", "give the path of an array, or leave consume out"
            )
        found = tree.arrays[0][1]
        _check_source(found)
        _check_sizes(found, place.store, engine)
        chunks = WholeObjects(found.array)
        made = ArrayConversion(found, chunks, plan_transfer_of(found, engine), None, (), 0)
        return TreeConversion(tree, call, (NamedConversion("", made),))

    call = replace(call, run_dir=chosen)
    (array,), n_removed = consume(source, call, engine, plan)
    result = array.result
    if result is None:  # it was finished before
        target = target_at(place, chosen)
        receipt = read_receipt(target)
        if receipt is None:
            raise TypeError("a copy that was finished before has a receipt")
        result = result_from_receipt(receipt.result, target.label)
    if is_default:
        _remove_if_empty(chosen)
    return Transfer(
        source=source.label,
        path=array.path,
        arrays=(TransferredArray(name="", path=array.path, result=result),),
        n_groups=0,
        seconds=rounded(time.perf_counter() - start),
        n_removed=n_removed,
    )


def _nodes_of(wanted: Transferring) -> dict[str, Document]:
    """Documents of the nodes of a copy, without those below a group that has none."""
    found = as_published(wanted.tree.documents, wanted.at)
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
            decoded = metadata.shard_nbytes
            together = n_at_once(decoded + metadata.sealing_nbytes)
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

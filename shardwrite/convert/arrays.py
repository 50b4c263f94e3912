"""Conversion of a hierarchy, array by array: which nodes are wanted, the new groups, and the runs.

An array may be one that another program still writes. That program is taken to write one step along
an axis after the other, a step being one layer of chunks (or of shards) of the array. A step counts
as complete if all of its objects are there and one of a later step is, too. A chunk that is there
may still be in the making.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.checks import is_whole, whole
from shardwrite.codecs.documents import Document
from shardwrite.convert.keywords import IN_PLACE, ReshardArguments
from shardwrite.convert.plan import ConvertedArray, PlannedArray
from shardwrite.convert.removal import met_by, ranks_there
from shardwrite.convert.run import (
    ArrayConversion,
    ConversionOptions,
    convert_array,
)
from shardwrite.convert.swap import consumption_at
from shardwrite.engines.local import Engine
from shardwrite.errors import JournalError, ShardwriteError, SpecError
from shardwrite.format.frame import Signature, framing_of, signatures_in
from shardwrite.format.manifest import rendered
from shardwrite.format.node import DOCUMENT, consolidated, has_manifest
from shardwrite.grid import Shape, ShardGrid
from shardwrite.journal.documents import alone_with, change_document
from shardwrite.journal.neighbours import look_beside
from shardwrite.journal.receipt import receipt_at
from shardwrite.journal.rundir import refuse_unfinished
from shardwrite.options import options_from
from shardwrite.place.base import Place, names_above, opened_once
from shardwrite.place.directory import Directory
from shardwrite.place.seen import Seen
from shardwrite.place.target import (
    Target,
    conversion_beside,
    document_if_there,
    document_of,
    refuse_hierarchy,
    refuse_names,
    resolve_place,
    resolve_target,
)
from shardwrite.plan.options import PlanOptions
from shardwrite.read.array import ShardedArray
from shardwrite.read.hierarchy import Group, Hierarchy
from shardwrite.read.inspection import Survey, inspect_shards, ranks_of_objects
from shardwrite.read.signatures import signature_at
from shardwrite.read.stored_array import StoredArray
from shardwrite.runs.execute import OnReport, Run, execute, reporting
from shardwrite.runs.job import Job, RunOptions, for_new_array
from shardwrite.runs.old_shards import OldShards, keeping, shards_at_ends
from shardwrite.runs.result import WriteResult
from shardwrite.sources.opening import place_of
from shardwrite.stores.base import Capability
from shardwrite.stores.directories import make_directories
from shardwrite.stores.looking import as_store_error
from shardwrite.volumes.source import open_tree
from shardwrite.write.context import GroupReport

_SCOPE = "conversion"

_LIST = "consolidated_metadata"


# ---- Wanted nodes, and the new groups


@dataclass(frozen=True, slots=True)
class Patterns:
    """Which arrays of a hierarchy are wanted, by their paths in it."""

    # Patterns such as ``"images/*"``. An array is wanted if it fits one of the first, or there are
    # none, and it fits none of the second. A pattern that fits a group fits all that it holds.
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    @classmethod
    def of(cls, include: Any, exclude: Any) -> Patterns:
        """Patterns from what a user gives: a text, or a sequence of texts."""
        return cls(_patterns(include, "include"), _patterns(exclude, "exclude"))

    def want(self, name: str) -> bool:
        """Whether an array is wanted."""
        return (not self.include or _fits(name, self.include)) and not _fits(name, self.exclude)

    def groups_of(self, tree: Hierarchy) -> list[Group]:
        """Groups that are made: without patterns all, else the root and those above arrays."""
        has_any = bool(self.include or self.exclude)
        names = [name for name, _ in tree.arrays]
        return [
            group
            for group in tree.groups
            if not (has_any and group.name)
            or any(name.startswith(f"{group.name}/") for name in names)
        ]


def _patterns(given: Any, field: str) -> tuple[str, ...]:
    several = [] if given is None else given
    is_one = isinstance(given, str) or not isinstance(several, Iterable)
    found = (given,) if is_one else tuple(several)
    if not all(isinstance(pattern, str) and pattern for pattern in found):
        raise SpecError(
            "not patterns", field=field, value=given, remedy='give for instance "images/*"'
        )
    return found


def _fits(name: str, patterns: Sequence[str]) -> bool:
    parts = name.split("/")
    above = ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]
    return any(fnmatchcase(path, pattern) for path in above for pattern in patterns)


def check_group(place: Place, mode: str, read: Callable[[Place], object], wanted: object) -> None:
    """Refuse to make a group where something else stands.

    - `mode`: whether the document of a group may be replaced.
    - `read`: reads what must be `wanted` of a group that stands there.
    """
    kind = place.kind_for_group()
    if kind not in ("nothing", "group"):
        raise SpecError(
            "something that is no Zarr v3 group stands there",
            field="dst",
            value=place.label,
            remedy="give another place, or remove it yourself",
        )
    if kind == "group" and mode == "w-" and read(place) != wanted:
        raise SpecError(
            "another group stands there",
            field="dst",
            value=place.label,
            remedy='give another place, or mode="w" to replace its document',
        )


def make_groups(groups: Sequence[tuple[Group, Place]], durability: str | None) -> None:
    """Make groups that are missing, without consolidated metadata.

    Groups that are there with the same documents stay as they are.
    """
    for group, place in groups:
        if not place.has(DOCUMENT):
            put_document(place, rendered(group.document).encode(), durability)
            continue

        def with_attributes(there: Document, group: Group = group) -> Document:
            listed = {_LIST: there[_LIST]} if _LIST in there else {}
            return there if without_list(there) == group.document else {**group.document, **listed}

        change_document(place, with_attributes, level_of(place, durability), _SCOPE)


def as_published(
    documents: Mapping[str, Document], at: Callable[[str], Place]
) -> dict[str, Document]:
    """Documents of nodes as they were published: only there stands what a manifest lists.

    - `at`: the place of a node, by its path.
    """
    return {
        name: document_of(at(name)) if has_manifest(document) else document
        for name, document in documents.items()
    }


def without_list(document: Document) -> Document:
    """Document of a group without its consolidated metadata."""
    return {name: value for name, value in document.items() if name != _LIST}


def put_document(place: Place, data: bytes, durability: str | None, leaf: str = DOCUMENT) -> None:
    """Write the document of a group, and make its directory if it lies in one."""
    place.store.discard_scope(leaf, _SCOPE)  # of a call that was killed
    root = place.store.local_root
    level = level_of(place, durability)
    if root is not None:
        with as_store_error(place.label, "cannot make"):
            make_directories(root, level)
    with alone_with(place) as check:
        attempt = f"{_SCOPE}.{uuid.uuid4().hex}"
        place.write(leaf, data, durability=level, attempt=attempt, guard=check)


def level_of(place: Place, durability: str | None) -> str:
    """Durability level of the document of a group."""
    is_durable = Capability.DURABLE in place.store.capabilities
    return durability or ("full" if is_durable else "none")


# ---- Arrays that another program still writes: what will not change is converted


def settled_shards(source: ShardedArray, grid: ShardGrid, axis: int) -> npt.NDArray[np.bool_]:
    """For each shard of a new array, whether no chunk can come any more that belongs into it.

    - `source`: the array that is still written. It is listed once.
    """
    of_source = source.metadata.grid
    others = tuple(other for other in range(of_source.ndim) if other != axis)
    there = ranks_there(source).reshape(of_source.counts)
    is_complete = np.atleast_1d(there.all(axis=others))
    begun = np.flatnonzero(there.any(axis=others))
    n_before_last = int(begun[-1]) if len(begun) else 0
    complete = np.flatnonzero(is_complete[:n_before_last])
    end = (int(complete[-1]) + 1) * of_source.shards[axis] if len(complete) else 0
    ends = np.minimum((np.arange(grid.counts[axis]) + 1) * grid.shards[axis], grid.shape[axis])
    shape = [1] * grid.ndim
    shape[axis] = grid.counts[axis]
    return np.broadcast_to((ends <= end).reshape(shape), grid.counts).ravel()


# ---- Plans of all arrays, and their runs


_N_THREADS = 16

_AT_A_TIME = 1024

_N_DIGITS = 64  # of a digest

Progress = bool | Callable[[GroupReport], None]


@dataclass(frozen=True, slots=True)
class ConversionCall:
    """Which arrays a call converts, and what it makes of them. The source is opened later."""

    dst: Any
    wanted: ConversionOptions  # what an array becomes
    patterns: Patterns  # which arrays of a hierarchy are wanted
    # Arrays of a hierarchy that have fewer inner chunks keep the shards that they have
    min_chunks: int
    options: PlanOptions
    run: RunOptions
    run_dir: Any
    progress: Progress
    consume: bool = False
    while_growing: int | str | None = None
    drop_hdf5: bool = False
    # Whether the root tells of the shards, and arrays that have another number of dimensions than a
    # shard keep the shards that they have
    is_store: bool = False

    @property
    def removes_source(self) -> bool:
        """Whether the call removes the source, or puts the new array in its place."""
        return self.consume or self.dst is None

    @property
    def _n_axes(self) -> int | None:
        """Number of dimensions that arrays must have to get the shards; None for any."""
        shards = self.wanted.shards
        if not self.is_store or shards is None or isinstance(shards, (str, int)):
            return None
        return len(shards)

    def keeps(self, grid: ShardGrid) -> str:
        """Why an array of a hierarchy keeps its shards; empty if it does not."""
        if grid.n_inner_chunks < self.min_chunks:
            return f"of fewer than {self.min_chunks} inner chunks (min_chunks)"
        if self._n_axes not in (None, len(grid.shape)):
            return f"{len(grid.shape)} dimensions, and shards of {self._n_axes} were asked for"
        return ""

    def check_fits(self, n_axes: Collection[int]) -> None:
        """Refuse a shape of shards that fits no array; they have these numbers of dimensions."""
        if self._n_axes is not None and self._n_axes not in n_axes:
            raise SpecError(
                f"no array has {self._n_axes} dimensions",
                field="shards",
                value=self.wanted.shards,
                remedy=f"give as many numbers as an array has dimensions {tuple(n_axes)}, or one",
            )


def call_of(given: ReshardArguments, *, is_store: bool = False) -> ConversionCall:
    """Check the arguments of :func:`shardwrite.reshard`, and make one value of them.

    - `is_store`: whether the root tells of the shards.
    """
    min_chunks, dst = given.min_chunks, None if given.dst is IN_PLACE else given.dst
    if min_chunks is None:
        min_chunks = 0 if is_store else 2
    min_chunks = whole("min_chunks", min_chunks, "a number of chunks", least=0)
    if given.while_growing is not None and (given.consume or dst is None):
        raise SpecError(
            "an array that is still written cannot be "
            + ("consumed" if given.consume else "converted in its place"),
            field="while_growing",
            value=given.while_growing,
            remedy="give another place for what is made, and leave out consume",
        )
    return ConversionCall(
        dst,
        options_from(given, ConversionOptions),
        Patterns.of(given.include, given.exclude),
        min_chunks,
        options_from(given, PlanOptions),
        for_new_array(options_from(given, RunOptions, drop_hdf5=False)),
        given.run_dir,
        given.progress,
        given.consume,
        given.while_growing,
        given.drop_hdf5,
        is_store,
    )


@dataclass(frozen=True, slots=True)
class NamedConversion:
    """The conversion of one array of a hierarchy."""

    name: str  # its path in the hierarchy
    planned: ArrayConversion
    kept: str = ""  # why its shards stay as they are; empty if they are as asked for

    @property
    def how(self) -> str:
        """How its chunks pass."""
        return "re-encoded" if self.planned.passage is None else "copied"

    @property
    def n_odd(self) -> int:
        """Number of chunks that are re-encoded although all others are copied."""
        passage = self.planned.passage
        return (
            0 if passage is None else self.planned.source.copy_limits.n_decoded + passage.n_encoded
        )

    @property
    def why(self) -> tuple[str, ...]:
        """Why chunks are re-encoded, or shards are kept."""
        passage, told = self.planned.passage, self.planned.source.copy_limits
        odd = []
        if passage is not None and passage.n_encoded:
            odd.append(passage.about_edges)
        elif self.n_odd:
            odd.append(f"{self.n_odd:,} decoded and re-encoded, since {told.why_some}")
        return (*self.planned.reasons, *odd, *([self.kept] if self.kept else []))

    def done(self, path: str, result: WriteResult, n_odd: int, n_left: int = 0) -> ConvertedArray:
        """What became of the array; the arguments are as in `ConvertedArray`."""
        n_odd = min(n_odd, result.n_chunks - result.n_empty_chunks)
        return ConvertedArray(
            name=self.name,
            path=path,
            how=self.how,
            why=self.why,
            result=result,
            n_odd=n_odd,
            n_left=n_left,
        )

    def digest(self, *, drop_empty: bool) -> str:
        """Digest of what the array becomes, by which the same call is known again."""
        facts = [self.planned.metadata.document, drop_empty]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def planned(one: NamedConversion, engine: Engine) -> PlannedArray:
    """Facts about a conversion of one array, after a survey of its objects."""
    planned = one.planned
    array = planned.source.array
    old, new = array.metadata, planned.metadata
    look = planned.source.survey
    found = _survey(array, engine, planned.source.label) if look is None else look()
    n_chunks = 0 if planned.is_there else found.n_chunks
    n_encoded = min(one.n_odd, n_chunks) if one.how == "copied" else n_chunks
    return PlannedArray(
        name=one.name,
        shape=old.grid.shape,
        old_shards=old.grid.shards if old.is_sharded else None,
        shards=new.grid.shards if new.is_sharded else None,
        old_chunks=old.grid.chunks,
        chunks=new.grid.chunks,
        how="skipped" if planned.is_there else one.how,
        why=(HAS_LAYOUT,) if planned.is_there else one.why,
        change=str(planned.passage or ""),
        n_chunks_copied=n_chunks - n_encoded,
        n_chunks_encoded=n_encoded,
        n_files_before=1 if planned.source.is_in_file else found.n_objects,
        n_files_after=_n_objects_in(found, old.grid, new.grid, is_sharded=new.is_sharded),
        nbytes=found.nbytes,
        is_estimate=found.is_estimate,
        memory_nbytes=planned.memory_nbytes,
        notes=(*planned.plan.notes, *([f"shards kept: {one.kept}"] if one.kept else [])),
    )


_MOST_LOOKED_AT = 20_000


def _survey(array: ShardedArray, engine: Engine, label: str) -> Survey:
    """List an array, and look at its objects.

    - Raises CorruptShardError if an object that was looked at is bad.
    """
    ranks = ranks_of_objects(array, label)
    looked_at = ranks
    if len(ranks) > _MOST_LOOKED_AT:
        looked_at = ranks[np.linspace(0, len(ranks) - 1, _MOST_LOOKED_AT).astype(np.int64)]
    table = inspect_shards(engine, array, looked_at, deep=False)
    table.refuse_bad(label)
    share = len(ranks) / len(looked_at) if len(looked_at) else 1.0
    if share == 1:
        ranks = ranks[table.is_present]
    return Survey(
        ranks,
        round(int(table.n_chunks.sum()) * share),
        round(int(table.stored_nbytes.sum()) * share),
        share > 1,
    )


def _n_objects_in(found: Survey, source: ShardGrid, target: ShardGrid, *, is_sharded: bool) -> int:
    """Number of objects that the chunks of an array make in another grid, at most."""
    if not is_sharded and source.chunks == target.chunks and not found.is_estimate:
        return found.n_chunks
    if found.ranks is None:
        return target.n_shards
    if not len(found.ranks):
        return 0
    if not source.ndim:
        return 1
    firsts, lasts = met_by(found.ranks, source, target)
    n_each = np.prod([last - first + 1 for first, last in zip(firsts, lasts, strict=True)], axis=0)
    if (n_each == 1).all():
        return len(np.unique(np.ravel_multi_index(firsts, target.counts)))
    return int(min(n_each.sum(), target.n_shards))


def refuse_loss_of(tree: Hierarchy, call: ConversionCall) -> None:
    """Refuse a call that loses files of another format; see `refuse_loss`."""
    if call.removes_source and not call.drop_hdf5:
        is_sharded = call.wanted.shards is not None
        refuse_loss(tree, call.options, is_sharded=is_sharded, is_consumed=call.consume)


def refuse_loss(
    tree: Hierarchy, options: PlanOptions, *, is_sharded: bool, is_consumed: bool
) -> None:
    """Refuse a conversion after which shards are gone that are files of another format, too."""
    for _, source in tree.arrays:
        found = _first_file(source.array)
        if found is None or found[1].strategy == options.strategy.name:
            continue
        index, signature = found
        elsewhere = "leave consume out" if is_consumed else "give another place for the new array"
        kept = (
            f', or call reshard with strategy="{signature.strategy}" for new files that hold only '
            "this dataset"
        )
        raise SpecError(
            f"the shard {source.array.metadata.shard_key(index)!r} of {source.label} is also a "
            f"{signature.title}, and nothing in it but the array would be kept",
            field="drop_hdf5",
            value=False,
            remedy=f"{elsewhere}, which leaves the files as they are{kept if is_sharded else ''}. "
            "To give them up, give drop_hdf5=True",
        )


def _first_file(array: ShardedArray) -> tuple[Shape, Signature] | None:
    """Position and signature of the first shard that is a file of another format, if any is."""
    metadata = array.metadata
    if not signatures_in(metadata):
        return None
    ranks = np.flatnonzero(ranks_there(array))
    look = partial(signature_at, metadata, array.store)
    with ThreadPoolExecutor(_N_THREADS) as pool:
        for start in range(0, len(ranks), _AT_A_TIME):
            at = np.unravel_index(ranks[start : start + _AT_A_TIME], metadata.grid.counts)
            indices = [tuple(index) for index in np.stack(at, axis=1).tolist()]
            for index, signature in zip(indices, pool.map(look, indices), strict=True):
                if signature is not None:
                    return index, signature
    return None


def keeping_names(source: StoredArray, options: PlanOptions, begun: str | None) -> PlanOptions:
    """Options of a conversion, of which the strategy keeps what the files have that it replaces.

    - `begun`: what `digest_with_label` gave when the same conversion was begun. Files of the array
      may be gone since.
    """
    framing, metadata = framing_of(options.strategy), source.array.metadata
    if framing is None or not signatures_in(metadata):
        return options
    if begun is not None:
        return replace(options, strategy=framing.strategy_from_label(begun[_N_DIGITS:]))
    known = OldShards(metadata, source.array.store, receipt_at(source.place))
    strategy = keeping(known, options.strategy, shards_at_ends(metadata.grid), drops=True)
    return replace(options, strategy=strategy)


def digest_with_label(one: NamedConversion, call: ConversionCall) -> str:
    """Digest of a conversion, with the label of its strategy if the files have decided it."""
    digest = one.digest(drop_empty=call.wanted.drop_empty)
    asked, kept = call.options.strategy, one.planned.plan.strategy
    return f"{digest}{kept.label}" if framing_of(asked) and asked != kept else digest


HAS_LAYOUT = "it has this layout already"


@dataclass(frozen=True)
class TreeConversion:
    """A conversion of a hierarchy, planned array by array."""

    tree: Hierarchy  # the source
    call: ConversionCall
    made: tuple[NamedConversion, ...]  # the conversions of its arrays

    @classmethod
    def of(
        cls,
        tree: Hierarchy,
        call: ConversionCall,
        engine: Engine,
        begun: Mapping[str, str] | None = None,
    ) -> Self:
        """Plan the conversion of each array, before anything is written.

        - `begun`: what an interrupted call that consumes the source was begun with, by array.
        """
        into = (tree.place if call.dst is None else resolve_place(call.dst, None)).store
        if not tree.arrays and tree.left_out:
            raise SpecError(
                "no array is left",
                field="include",
                value=[*call.patterns.include, *call.patterns.exclude],
                remedy='give patterns that fit paths of arrays, such as "images/*"',
            )
        names = [name for name, _ in tree.arrays]
        groups = [group.name for group in call.patterns.groups_of(tree)]
        is_directory = into.local_root is not None and not call.consume
        refuse_names([*groups, *names], tree.place.label, as_text=not is_directory)
        dst, seen = opened_once(call.dst), Seen()
        for name in () if call.dst is None else ("", *groups, *names):
            refuse_hierarchy(resolve_place(dst, name or None, seen=seen), "dst")
        made = []
        shapes = [source.array.metadata.grid.shape for _, source in tree.arrays]
        call.check_fits(sorted({len(shape) for shape in shapes}))
        for name, source in tree.arrays:
            what = call.wanted
            grid = source.array.metadata.grid
            kept = "" if tree.is_array else call.keeps(grid)
            if kept:
                shards = grid.chunks_per_shard if source.array.metadata.is_sharded else None
                what = ConversionOptions(
                    shards=shards,
                    check=what.check,
                    drop_empty=what.drop_empty,
                    checksum=what.checksum,
                    manifest=what.manifest,
                )
            try:
                options = call.options
                if call.removes_source:
                    options = keeping_names(source, options, (begun or {}).get(name))
                made.append(
                    NamedConversion(name, convert_array(source, engine, what, options, into), kept)
                )
            except ShardwriteError as error:
                if name:
                    error.add_note(f"this is the array {name!r}; exclude={name!r} leaves it out")
                raise
        return cls(tree, call, tuple(made))

    @property
    def label(self) -> str:
        """Text that names the new array or group."""
        return resolve_place(self.call.dst, None).label

    @property
    def raw_nbytes(self) -> int:
        """Decoded bytes of all arrays."""
        return sum(one.planned.plan.raw_nbytes for one in self.made)

    @cached_property
    def targets(self) -> Mapping[str, Target]:
        """Target of the conversion of each array, by the name of the array."""
        into, run_dir, seen = opened_once(self.call.dst), self.call.run_dir, Seen()
        names = [one.name for one in self.made]
        return {name: resolve_target(into, name or None, run_dir, seen=seen) for name in names}

    def jobs(self, documents: Mapping[str, Document] | None = None) -> list[Job]:
        """What is written of each array.

        - `documents`: those of the new groups, if they are made after the arrays.
        """
        return [
            Job(
                one.planned.chunks,
                one.planned.plan,
                self.targets[one.name],
                self.call.run,
                documents or {},
            )
            for one in self.made
        ]

    def execute(self, engine: Engine) -> tuple[ConvertedArray, ...]:
        """Run the conversions, of which none is published before all of them are whole."""
        call = self.call
        growing = [_settled(one, call.while_growing) for one in self.made]
        groups = self.groups()
        jobs = self.jobs({place.name: group.document for group, place in groups})
        with reporting(call.progress, self.raw_nbytes) as on_report:
            if call.while_growing is None:
                done = [(result, 0) for result in execute(jobs, engine, on_report)]
            else:  # groups come first, so that what is there can be opened
                make_groups(groups, call.run.durability)
                done = [
                    _write_settled(job, engine, on_report, is_settled)
                    for job, is_settled in zip(jobs, growing, strict=True)
                    if is_settled is not None
                ]
        make_groups(groups, call.run.durability)
        arrays = tuple(
            one.done(job.target.label, result, one.n_odd, n_left)
            for one, job, (result, n_left) in zip(self.made, jobs, done, strict=True)
        )
        if not any(array.n_left for array in arrays):
            self.consolidate(call.run.durability)
        return arrays

    # ---- The new groups, which are made once all arrays are whole

    def groups(self) -> list[tuple[Group, Place]]:
        """The groups and where they come, after a check of what stands there."""
        call, seen = self.call, Seen()
        groups: list[tuple[Group, Place]] = [
            (group, resolve_place(call.dst, group.name or None, seen=seen))
            for group in call.patterns.groups_of(self.tree)
        ]
        for group, place in groups:
            check_group(
                place, call.run.mode, lambda there: without_list(document_of(there)), group.document
            )
        return groups

    def consolidate(self, durability: str | None) -> None:
        """Write the consolidated metadata of each new group whose old group had such metadata.

        Other nodes that stand there stay listed. What a process that was killed has left of a
        group's document is removed.
        """
        dst, groups = self.call.dst, self.call.patterns.groups_of(self.tree)
        documents = {group.name: group.document for group in groups}
        documents |= {one.name: one.planned.metadata.document for one in self.made}
        documents = as_published(documents, lambda name: resolve_place(dst, name or None))
        for group in groups:
            place = resolve_place(dst, group.name or None)
            place.store.discard_scope(DOCUMENT, _SCOPE)
            if group.is_consolidated:
                list_nodes(place, group, documents, durability)


def list_nodes(
    place: Place, group: Group, documents: Mapping[str, Document], durability: str | None
) -> None:
    """Let the document of a new group list the new nodes in it; see `with_list`."""
    change = partial(with_list, place, group, documents)
    change_document(place, change, level_of(place, durability), _SCOPE)


def members_in(document: Document) -> dict[str, Document]:
    """What the consolidated metadata of a group list, by path."""
    found: dict[str, Document] = (document.get(_LIST) or {}).get("metadata", {})
    return found


def with_list(
    place: Place, group: Group, documents: Mapping[str, Document], there: Document
) -> Document:
    """Document of a new group that lists the new nodes in it, beside others that stand there.

    Groups between are listed, too. What lies in one without a document is not, as zarr-python then
    opens nothing by the list.
    """
    above = f"{group.name}/" if group.name else ""
    members = {
        name.removeprefix(above): document
        for name, document in sorted(documents.items())
        if name and name != group.name and name.startswith(above)
    }
    between = {above for name in members for above in names_above(name)[1:]} - members.keys()
    found = {name: document_if_there(place.member(name)) for name in between}
    members |= {name: without_list(document) for name, document in found.items() if document}
    members = {
        name: document
        for name, document in members.items()
        if members.keys() >= {*names_above(name)[1:]}
    }
    stay = {
        name: document
        for name, document in members_in(there).items()
        if name not in members and place.member(name).has(DOCUMENT)
    }
    return consolidated(group.document, dict(sorted({**stay, **members}.items())))


def _write_settled(
    job: Job, engine: Engine, on_report: OnReport, is_settled: npt.NDArray[np.bool_]
) -> tuple[WriteResult, int]:
    """Write some shards of an array; the result, and the number of those that are left."""
    with Run.open([job], engine, on_report) as run:
        (result,) = run.execute(select=is_settled)
        return result, sum(len(session.ledger.missing) for session in run.sessions)


def _settled(one: NamedConversion, axis: int | str | None) -> npt.NDArray[np.bool_] | None:
    """Which shards of a new array no chunk can come into any more; None if nobody writes."""
    if axis is None:
        return None
    source, about = one.planned.source, f" (array {one.name!r})" if one.name else ""
    names, ndim = list(source.names or ()), len(source.array.metadata.grid.shape)
    at = names.index(axis) if isinstance(axis, str) and axis in names else axis
    if not is_whole(at, 0, ndim - 1):
        known = ", ".join(repr(name) for name in names if name)
        raise SpecError(
            f"no axis of the array{about}",
            field="while_growing",
            value=axis,
            remedy=f"give a number from 0 to {ndim - 1}{f', or one of {known}' if known else ''}",
        )
    if one.planned.passage is None or source.is_in_file:
        raise SpecError(
            "only chunks that are copied as they are, out of a directory or a store, can be "
            f"converted while others come{about}",
            field="while_growing",
            value=axis,
            remedy="keep inner chunks and codecs, or convert the array when it is whole",
        )
    return settled_shards(source.array, one.planned.metadata.grid, at)


# ---- Places that lie in one another


def check_apart(source: Place, target: Place) -> None:
    """Refuse two places of which one is the other, or lies in it."""
    source_path, other = source.store.local_path, target.store.local_root
    if source_path is not None and other is not None:
        paths = Path(os.path.realpath(source_path)), Path(os.path.realpath(other))
        is_apart = not (paths[0].is_relative_to(paths[1]) or paths[1].is_relative_to(paths[0]))
        is_apart &= not _is_same_directory(*paths)
    else:
        tokens = _beginning(source), _beginning(target)
        is_apart = not (tokens[0].startswith(tokens[1]) or tokens[1].startswith(tokens[0]))
    if not is_apart:
        raise SpecError(
            f"lies where {source.label} lies, which is the source",
            field="dst",
            value=target.label,
            remedy="give a place outside of the source",
        )


def _beginning(place: Place) -> str:
    """How the tokens of all places below a place begin.

    A bucket and a path in it may be opened as one, or one after the other. Then a slash more stands
    before the path, or after it.
    """
    token = place.store.token.replace(" /", " ", 1).rstrip("/")
    return token if token.endswith(" ") else f"{token}/"


def _is_same_directory(one: Path, other: Path) -> bool:
    """Whether two paths lead to one directory, by whatever mounts."""
    with as_store_error(str(other), "cannot look at"):
        try:
            return os.path.samestat(os.stat(one), os.stat(other))
        except FileNotFoundError:
            return False


# ---- Hierarchies that are consumed or have open runs, which are neither converted nor copied


def refuse_consumed(place: Place) -> None:
    """Refuse what lies at a place if it is being consumed, or a tree is in which it lies."""
    path = place.tree_path
    for tree in () if path is None else (path, *path.parents):
        record = consumption_at(tree) if tree.name else None
        if record is not None:
            raise _consumed(tree, record.into)


def _consumed(path: Path, into: str) -> JournalError:
    return JournalError(
        f"{path} is being consumed into {into}, so that parts of it are gone or will be. Make that "
        "call again, with consume=True, to finish it, or give it up with abandon (shardwrite "
        "abandon), as long as nothing of it was removed",
        path=str(conversion_beside(path)),
    )


def open_whole(
    src: Any,
    want: Callable[[str], bool],
    opened: Callable[[Any, Callable[[str], bool]], Hierarchy] = open_tree,
) -> Hierarchy:
    """Open what is converted or copied, unless something of it that is wanted is being consumed."""
    place = place_of(src)
    refuse_consumed(place)
    tree = opened(src, want)
    root = tree.place.tree_path
    trees = {} if root is None else {name: root / name for name in tree.conversions}
    for name, path in trees.items():
        record = consumption_at(path)
        if record is not None and any(want(f"{name}/{node}".strip("/")) for node in record.layout):
            raise _consumed(path, record.into)
    return tree


_END_IT = (
    "Finish it by the same call, or give it up with abandon (shardwrite abandon), and then convert "
    "or copy the array"
)


def refuse_runs(tree: Hierarchy, *, is_kept: bool = False) -> None:
    """Refuse a hierarchy if a run on one of its arrays has not ended.

    - `is_kept`: whether the hierarchy is only read. Untrusted state beside it is then ignored,
      because anybody may have put it there.
    """
    for name, source in tree.arrays:
        place = tree.at(name)
        if not isinstance(place, Directory):
            unknown = place.unknown_run()  # its state may lie in another array, or elsewhere
            if unknown is not None:
                raise JournalError(f"{unknown.told}. {_END_IT}", path=source.label)
            refuse_unfinished(place, _END_IT)
            continue
        beside = look_beside(Target(place, place.beside))
        if beside.untrusted is not None and not is_kept:
            raise beside.untrusted
        if beside.run is not None and beside.run.makes_array:
            why = (
                f"the run that replaces {source.label} has not ended, and may do so meanwhile"
                if beside.run.is_aside
                else f"the run that makes {source.label} has not ended, so shards are missing"
            )
            raise JournalError(
                f"{why}. Make the same call again to finish it, and then convert or copy the array",
                path=str(place.beside),
            )
        if beside.run is not None or beside.updates:
            raise JournalError(
                f"a run on {source.label} has not ended. {_END_IT}", path=str(place.beside)
            )

"""Verification of arrays, and a census of their shards.

The journal or the receipt of an array and the indexes of its shards tell whether it is whole. On
request, every inner chunk is decoded, and values are compared with the source.

An array can also be accepted as another program has left it. That is a run of its own beside the
array, so that no update goes on meanwhile. If it dies, it is given up like a salvage.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

import shardwrite._dask as dask
from shardwrite._dataclass import dataclass
from shardwrite.codecs.documents import Document
from shardwrite.engines import active_engine
from shardwrite.engines.local import Engine
from shardwrite.entry.public import taking
from shardwrite.errors import CorruptShardError, JournalError, SpecError, StoreError
from shardwrite.format.metadata import ArrayMetadata, SourceMetadata, metadata_of_document
from shardwrite.format.node import kind_of_document, without_keys
from shardwrite.format.passage import passage_between
from shardwrite.format.sharding import ScatteredChunks
from shardwrite.format.strategies import FixedOrder
from shardwrite.grid import ravel, unravel
from shardwrite.journal.documents import has_consolidated, present_listed
from shardwrite.journal.ledger import Ledger
from shardwrite.journal.lines import own_journals, taking_part
from shardwrite.journal.neighbours import (
    Beside,
    begin_passing,
    giving_up,
    look_beside,
)
from shardwrite.journal.receipt import Contents, read_receipt
from shardwrite.journal.replay import replay
from shardwrite.journal.rundir import RunDirectory, holding
from shardwrite.journal.takeover import end_run
from shardwrite.journal.trust import require_trusted
from shardwrite.operations.report import Problem, Report
from shardwrite.options import ExistingArguments, RunArguments, arguments, option
from shardwrite.place.base import Place
from shardwrite.place.target import (
    Target,
    document_if_there,
    document_of,
    resolve_place,
    resolve_target,
)
from shardwrite.plan.identity import Identity, ShardWindow
from shardwrite.plan.partition import check_whole
from shardwrite.read.array import ShardedArray, open_at
from shardwrite.read.census import Census, ShardState
from shardwrite.read.hierarchy import documents_below
from shardwrite.read.inspection import ORDERS_FOUND, ShardTable, inspect_shards, stored_sizes
from shardwrite.read.source import as_dask, by_inner_chunks
from shardwrite.read.stored_array import (
    REMEDY,
    OtherNames,
    StoredArray,
    check_names_of,
    other_names,
    stored_at,
)
from shardwrite.results import counted
from shardwrite.runs.kept import HOW_TO_GO_ON, noted_sizes
from shardwrite.runs.result import updated_receipt
from shardwrite.runs.source_array import SourceArray, as_written_array, is_in_order
from shardwrite.seams import all_of, needed
from shardwrite.stores.looking import as_store_error, is_there, mode_of

if TYPE_CHECKING:
    from shardwrite.write.copying import Donor

# ---- Acceptance of an array as another program has left it, by a new receipt


def accept_as_it_is(target: Target, array: ShardedArray, bad: Sequence[tuple[str, str]]) -> None:
    """Make the receipt of an array say that its objects and its metadata are right as they are.

    - Raises CorruptShardError if there is a bad shard.
    """
    if bad:
        key, message = bad[0]
        raise CorruptShardError(
            f"{target.label} is not accepted, since {len(bad)} shards are bad: {message}; write "
            "them again from their source with repair (shardwrite repair --source)",
            key=key,
        )
    from shardwrite.runs.begin import check_updatable

    check_updatable(target.store, FixedOrder())
    require_trusted(target)
    grid = array.metadata.grid
    identity = Identity(mode="r+", salvage=True, region=grid.whole.bounds)
    window = ShardWindow((0,) * grid.ndim, grid.counts)
    directory = begin_passing(target, "accept", array.metadata.text, identity, window)
    with giving_up(directory), taking_part(directory.shared, directory.driver):
        _accept(directory, array)


def _accept(directory: RunDirectory, array: ShardedArray) -> None:
    target, metadata = directory.target, array.metadata
    sizes = stored_sizes(active_engine(), array, np.arange(metadata.grid.n_shards))
    with as_store_error(target.label, "cannot accept"):
        listed = present_listed(metadata, target)
        with directory.ending():
            document = without_keys(target.document)
            if document != metadata.document:
                raise JournalError(
                    f"the metadata of {target.label} have changed meanwhile; verify it again",
                    path=target.label,
                )
            directory.change(listed)
            nothing = Ledger(metadata.grid)
            # Another program may have changed what earlier updates have written.
            receipt = updated_receipt(directory, metadata, nothing, {}, directory.level)
            contents = Contents.of(np.maximum(sizes, 0))
            accepted = replace(
                receipt.all_replaced(),
                empty=contents.empty,
                sizes=contents.sizes,
                accepted=document,
            )
            directory.write_receipt(accepted)
        end_run(directory, own_journals(directory.driver))


# ---- Consolidated metadata of groups


_REMEDY = (
    "make the call again that has written it, or consolidate the group anew with "
    "zarr.consolidate_metadata"
)

_LIST = "consolidated_metadata"


def is_group(place: Place) -> bool:
    """Whether a group of Zarr v3 stands at a place."""
    return not place.hierarchy and place.kind() == "group"


def verify_group(place: Place, **others: bool) -> Report:
    """Compare the consolidated metadata of a group, and of all groups below, with their nodes."""
    for field, is_wanted in others.items():
        if is_wanted:
            raise SpecError(
                "is for arrays, and a group stands there",
                field=field,
                value=place.label,
                remedy="leave it out, or give the path of an array",
            )
    lists = _lists(place)
    while True:
        documents = documents_below(place)
        problems = [
            problem
            for group, listed in lists.items()
            for problem in _differences(group, listed, documents)
        ]
        again = _lists(place) if problems else lists
        if again == lists:  # else another process has written an array meanwhile
            break
        lists = again
    nothing = np.zeros(0, dtype=np.int64)
    return Report(
        path=place.label,
        expected_by="consolidated metadata" if lists else "",
        n_shards=0,
        n_present=0,
        n_absent=0,
        n_missing=0,
        n_pending=0,
        n_inner_chunks=0,
        n_stored_chunks=0,
        raw_nbytes=0,
        stored_nbytes=0,
        used_nbytes=0,
        unused_nbytes=0,
        orders={},
        deep=False,
        against=False,
        problems=tuple(problems),
        n_nodes=len(documents),
        states=nothing.astype(np.uint8),
        stored=nothing,
    )


def _lists(place: Place) -> dict[str, dict[str, Document]]:
    """What the group, and each group below, lists, if it has consolidated metadata."""
    below = documents_below(place)
    names = ["", *(name for name in below if kind_of_document(below[name]) == "group")]
    lists = {}
    for name in names:
        group = place.member(name) if name else place
        document = document_if_there(group)
        if document is not None and has_consolidated(document, group):
            lists[name] = document[_LIST]["metadata"]
    return lists


def _differences(
    group: str, listed: dict[str, Document], documents: dict[str, Document]
) -> list[Problem]:
    """Nodes that a group does not list as they are."""
    above = f"{group}/" if group else ""
    nodes = {name: documents[name] for name in documents if name.startswith(above)}
    inside = f" of {group}" if group else ""
    problems = []
    for name in sorted({*nodes, *(f"{above}{name}" for name in listed)}):
        entry = listed.get(name.removeprefix(above))
        if name not in nodes:
            what = f"the consolidated metadata{inside} lists it, and no node stands there"
        elif entry is None:
            what = f"the consolidated metadata{inside} does not list it, so readers do not see it"
        elif _plain(entry) != _plain(nodes[name]):
            what = f"the consolidated metadata{inside} lists another document than stands there"
        else:
            continue
        problems.append(Problem(name, (), what, _REMEDY))
    return problems


def _plain(document: Document) -> Document:
    """Document of a node without the lists of groups, which each group has for itself."""
    return {name: value for name, value in document.items() if name != _LIST}


def unlisted_in(place: Place) -> tuple[str, ...]:
    """Warnings about the groups above that do not list an array as it is, or cannot be read."""
    warnings = []
    own = document_of(place)
    try:
        for group in place.groups_above():
            document = document_of(group)
            if kind_of_document(document) != "group" or not has_consolidated(document, group):
                continue
            if document[_LIST]["metadata"].get(place.name_in(group)) != own:
                warnings.append(
                    f"the consolidated metadata of {group.label} does not list the array as it is, "
                    f"so readers of the group do not see it so; {_REMEDY}"
                )
    except (SpecError, StoreError) as error:  # no fault of the array
        warnings.append(f"it is unknown whether groups above list the array: {error}")
    return tuple(warnings)


# ---- Verification of an array


_RECOVER = (
    "an update of the array was interrupted: run it again, or shardwrite abandon; if it is bad "
    "then, write it again"
)

_REWRITE = "write it again: shardwrite repair, with the source"

_LOOK_AGAIN = "it need not be bad: have the storage give it, and verify again"

_REPLACE = "if the source is right, write it anew: shardwrite repair --compare, with the source"


@dataclass(frozen=True, slots=True)
class Opened:
    """An open array, published or only begun, with its place and the runs beside it."""

    target: Target
    array: ShardedArray
    beside: Beside


def open_begun(store: Any, name: str | None, run_dir: Any = None) -> Opened:
    """Open an array for reading, whether it is published or only begun.

    The run directory beside the array is looked at once, and nothing is changed.
    """
    target = resolve_target(store, name, run_dir, is_read=True)
    if target.in_store:
        from shardwrite.journal.state_work import fetched  # for states in buckets

        target = fetched(target)
    beside = look_beside(target)
    run = beside.run
    if target.is_published and (
        run is None or not run.record.replaces or run.is_aside or is_there(run.path / "replaced")
    ):
        return Opened(target, open_at(target.place), beside)
    if beside.untrusted is not None:
        raise beside.untrusted
    if run is None:
        refuse_waiting(target, run_dir)
        return Opened(target, open_at(target.place), beside)  # raises, and gives the reason
    return Opened(
        target,
        ShardedArray(metadata_of_document(run.document), run.store),
        beside,
    )


def refuse_waiting(target: Target, run_dir: Any) -> None:
    """Refuse to open an array of which nothing is there yet but what a wing knows."""
    for refuse in all_of("not whole"):
        refuse(target, run_dir)


@dataclass(frozen=True, slots=True)
class _Expected:
    """Which shards there should be."""

    by: str = ""  # name of the record that tells it; empty if there is none
    # What the record tells. One made from a receipt only tells which shards are empty by design:
    # `nbytes` is 0 for these and -1 for all others.
    ledger: Ledger | None = None
    sizes: npt.NDArray[np.int64] | None = None  # sizes by the receipt; see `noted_sizes`
    warnings: tuple[str, ...] = ()  # warnings about the record


def _expected(target: Target, beside: Beside, metadata: ArrayMetadata) -> _Expected:
    """Read which shards there should be, from the journal of a run or from the receipt."""
    run = beside.run
    is_old = run is not None and run.record.replaces and run.is_aside  # another one is whole
    if run is not None and run.makes_array and not is_old:
        return _Expected("journal", replay(run, metadata, looking=True).ledger)
    receipt = read_receipt(target)
    if receipt is None or receipt.contents.empty is None:
        return _Expected()
    open_runs = [*beside.updates, *([] if run is None or run.is_aside else [run])]
    try:
        empty = receipt.nbytes_on(metadata.grid)
        sizes = noted_sizes(receipt, metadata, open_runs)
    except SpecError as error:
        return _Expected(warnings=(f"the receipt is not used: {error}",))
    if empty is None or sizes is None:
        return _Expected()
    ledger = Ledger(metadata.grid)
    ledger.is_done[:] = True
    ledger.nbytes[:] = np.where(empty.ravel() == 0, 0, -1)
    return _Expected("receipt", ledger, sizes.ravel())


def _changed(table: ShardTable, expected: _Expected) -> dict[int, str]:
    """A message for each good shard whose object is not the one that was written here, by rank."""
    sizes = expected.sizes
    if sizes is None:
        return {}
    return {
        rank: f"{int(table.stored_nbytes[rank])} bytes, and the receipt says "
        + (f"{int(sizes[rank])}" if sizes[rank] else "that it is empty")
        for rank in table.against(sizes).changed.tolist()
    }


def _states(
    table: ShardTable, expected: Ledger | None, by: str
) -> tuple[npt.NDArray[np.uint8], dict[int, str]]:
    """State of every shard, and a message for each shard with a fault, by rank."""
    states = np.where(table.is_present, ShardState.WRITTEN, ShardState.EMPTY).astype(np.uint8)
    wrong = dict(table.problems)
    if expected is not None:
        states[~expected.is_done & ~table.is_present] = ShardState.PENDING
        missing, changed, _ = table.against(expected.nbytes, expected.index_crcs)
        states[missing] = ShardState.MISSING
        wrong |= dict.fromkeys(
            missing.tolist(), f"the {by} says that it was written, and there is no object"
        )
        for rank in changed[expected.nbytes[changed] > 0].tolist():
            sizes = f"{int(table.stored_nbytes[rank])} bytes, not {int(expected.nbytes[rank])}"
            wrong[rank] = f"is not what the {by} says: {sizes}, or another index"
    bad = [rank for rank in wrong if states[rank] != ShardState.MISSING]
    states[bad] = ShardState.BAD
    return states, wrong


@arguments
class CensusArguments(ExistingArguments):
    """Arguments of `census`."""

    _: KW_ONLY
    on_shards: Callable[[int], None] | None = option(
        None,
        "Function that is called with the number of shards that were checked since its last call.",
        kind="callable",
        flag=None,
    )


@arguments
class VerifyArguments(CensusArguments, RunArguments):
    """Arguments of `verify`."""

    section: ClassVar[str] = "Options"

    _: KW_ONLY
    deep: bool = option(
        False,
        """Decode every inner chunk as well, to find faults that only a codec or the checksum of an
        inner chunk can show. Check also that HDF5 can read shards that are HDF5 files.""",
        command_help="Also decode every inner chunk.",
    )
    against: Any = option(
        None,
        """A source with the array's shape and dtype. Every value is compared with it, bit by bit.
        The path of a Zarr array is also a source; if the array could have taken its encoded chunks
        as they are, these are compared, and nothing is decoded. So is the path of a dataset in an
        HDF5 file, of which HDF5 reads the values. For a scale of a volume, the names of the
        source's dimensions tell its axes. If it has no such names, its axes have the order of the
        array that was written.""",
        kind="array_like, str or path",
        parser="src",
        command_help="Compare with SRC, bit by bit. Encoded chunks are compared if those of SRC "
        "could have been copied, and values otherwise. Of HDF5 files, values are compared.",
    )
    accept: bool = option(
        False,
        """Accept the array as it is, if no shard is bad. Its receipt then says that shards without
        an object are empty, and that the others and the metadata are right.""",
        command_help="Accept the array as another program has left it, unless a shard is bad.",
    )


@taking(VerifyArguments)
def verify(call: VerifyArguments) -> Report:
    """Check every shard of an array, in parallel on the active engine.

    The array may be unfinished. Of a group, the consolidated metadata are compared with the
    documents of the nodes below it, and no shards are checked.

    Returns
    -------
    Report
        The report; `is_good`, `is_complete` and `problems` sum it up. It warns if a group above
        does not list the array as it is in its consolidated metadata.

    Raises
    ------
    SpecError
        If there is no sharded array or group, it has too many shards to check, or `against` has
        another shape or dtype. Also if `deep`, `against` or `accept` is given with a group.
    JournalError
        If the files beside the array that describe a run are damaged. Also if they are not
        trusted and the array is not published. With `accept`, also if a run has not ended.
    CorruptShardError
        With `accept`, if a shard is bad. Nothing is accepted then.

    Examples
    --------
    >>> import dask.array as da, os, shardwrite, tempfile
    >>> path = tempfile.mkdtemp() + "/x.zarr"; x = da.arange(100, chunks=10)
    >>> _ = x.to_sharded_zarr(path, shards=40, chunks=8)
    >>> shardwrite.verify(path, deep=True, against=x).is_good
    True

    Another program has emptied a shard:

    >>> os.remove(path + "/c/1")
    >>> [problem.key for problem in shardwrite.verify(path).problems]
    ['c/1']
    >>> shardwrite.verify(path, accept=True).is_good, shardwrite.verify(path).is_good
    (True, True)
    """
    where = call.store, call.name
    place = resolve_place(*where, is_read=True)
    if is_group(place):
        return verify_group(
            place, deep=call.deep, accept=call.accept, against=call.against is not None
        )
    changed = [resolve_target(*where, call.run_dir, is_read=True)] if call.accept else []
    with holding(*changed):
        return verify_opened(
            open_begun(*where, call.run_dir),
            deep=call.deep,
            against=call.against,
            accept=call.accept,
            on_shards=call.on_shards,
        )


def verify_opened(
    opened: Opened,
    *,
    deep: bool = False,
    against: Any = None,
    accept: bool = False,
    on_shards: Callable[[int], None] | None = None,
) -> Report:
    """Verify an open array; see :func:`verify`."""
    target, array, beside = opened.target, opened.array, opened.beside
    check_whole(array.metadata.grid, target.label)
    donor, against = _given(against, array.metadata)
    grid = array.metadata.grid
    engine = active_engine()
    expected = _expected(target, beside, array.metadata)
    table = inspect_shards(engine, array, np.arange(grid.n_shards), deep=deep, on_shards=on_shards)
    run = beside.run
    if run is not None and run.is_written_over and expected.ledger:
        table.forget(expected.ledger.nbytes <= 0)  # they may still be those of the old array
    states, wrong = _states(table, expected.ledger, expected.by)
    remedies = dict.fromkeys(wrong, how_to_mend(beside)) | dict.fromkeys(table.errnos, _LOOK_AGAIN)
    if donor is not None or against is not None:
        _compare(engine, array, against if donor is None else donor, states, wrong, remedies)
    if accept:
        bad = [rank for rank in wrong if states[rank] != ShardState.MISSING]
        bad_shards = _problems(array.metadata, wrong, remedies, bad)
        accept_as_it_is(target, array, [(problem.key, problem.message) for problem in bad_shards])
        expected, wrong = _Expected("receipt"), {}
        states[states == ShardState.MISSING] = ShardState.EMPTY
    other = _changed(table, expected)
    problems = _problems(array.metadata, wrong, remedies, wrong, table.errnos)
    changed = _problems(array.metadata, other, dict.fromkeys(other, HOW_TO_GO_ON), other)
    report = _report(
        target.label,
        expected.by,
        array.metadata,
        table,
        states,
        problems,
        deep=deep,
        against=donor is not None or against is not None,
    )
    is_settled = target.is_published and beside.run is None and not beside.updates
    unlisted = unlisted_in(target.place) if is_settled else ()
    foreign = _named_otherwise(array, table, expected)
    if foreign is not None and not foreign.n_own:
        other_files = Problem(foreign.first, (), foreign.message, REMEDY)
        report = replace(report, problems=(other_files, *report.problems))
    elif foreign is not None:
        unlisted = (f"{foreign.message}; {REMEDY}", *unlisted)
    warnings = (*beside.warnings, *expected.warnings, *_shared(array.metadata, table), *unlisted)
    return replace(report, is_encoded=donor is not None, changed=changed, warnings=warnings)


def _named_otherwise(
    array: ShardedArray, table: ShardTable, expected: _Expected
) -> OtherNames | None:
    """Files that are named like chunks of another array, where it is unknown why chunks are absent.

    The array is listed then.
    """
    is_explained = expected.by and table.is_present.any()
    if table.is_present.all() or is_explained or not array.store.lists:
        return None
    return other_names(array.store.list_keys(), array.metadata, to_the_end=True)


def _shared(metadata: ArrayMetadata, table: ShardTable) -> tuple[str, ...]:
    """Warning about inner chunks that share their bytes, which some programs write."""
    shards = np.flatnonzero(table.n_shared)
    if not len(shards):
        return ()
    key = metadata.key_of_rank(table.ranks[shards[0]])
    told = f"{int(table.n_shared.sum()):,} inner chunks have the same bytes as another one"
    return (f"{told} of their shard, in {len(shards):,} shards, first in {key}; both are kept",)


def _problems(
    metadata: ArrayMetadata,
    texts: Mapping[int, str],
    remedies: Mapping[int, str],
    ranks: Iterable[int],
    errnos: Mapping[int, int] = MappingProxyType({}),
) -> tuple[Problem, ...]:
    """Problems of some shards, in order of their ranks."""
    return tuple(
        Problem(metadata.shard_key(index), index, texts[rank], remedies[rank], errnos.get(rank))
        for rank, index in ((rank, unravel(rank, metadata.grid.counts)) for rank in sorted(ranks))
    )


def _given(against: Any, metadata: ArrayMetadata) -> tuple[Donor | None, dask.array.Array | None]:
    """What an array is compared with: another array that gives encoded chunks, or values."""
    if against is None:
        return None, None
    if not isinstance(against, str | os.PathLike):
        check_lossless(metadata, "against", type(against).__name__)
        return None, as_written_array(against, metadata, "against")
    stored = stored_at(_place_of(against))
    check_names_of(stored)
    donor = stored.array
    axes = SourceMetadata(dimension_names=None if stored.names is None else tuple(stored.names))
    if stored.copy_limits.values is not None:
        # What is compared must not be read by the places of chunks, by which it was copied.
        values = as_dask(stored.copy_limits.values).astype(donor.metadata.dtype, copy=False)
        check_lossless(metadata, "against", str(against))
        return None, as_written_array(SourceArray(values, axes), metadata, "against")
    passage = passage_between(donor.metadata, metadata)
    if passage is not None and passage.n_encoded == 0 and _is_alike(stored, metadata):
        from shardwrite.write.copying import Donor

        return Donor(donor, passage, check=False, drop_empty=False), None
    check_lossless(metadata, "against", str(against))
    return None, as_written_array(SourceArray(by_inner_chunks(donor), axes), metadata, "against")


def _is_alike(found: StoredArray, metadata: ArrayMetadata) -> bool:
    """Whether an array of the same shape has equal values at equal places."""
    # Where chunks are scattered, only one kind of array has them in the same places.
    if isinstance(metadata.placed, ScatteredChunks):
        return found.array.metadata.placed == metadata.placed
    return is_in_order(metadata, found.names, "against")


def _place_of(against: str | os.PathLike[str]) -> Place:
    """Place of an array that has a path: a directory, or what a wing finds at another path."""
    if stat.S_ISDIR(mode_of(against)):
        return resolve_place(against, None, is_read=True)
    open_: Callable[[Any], Place] = needed(
        "place", "file", "no directory", field="against", value=os.fspath(against)
    )
    return open_(against)


def check_lossless(metadata: ArrayMetadata, field: str, value: object) -> None:
    """Refuse to compare values that the codecs of an array have changed."""
    if metadata.is_lossy:
        raise SpecError(
            "the chunks are stored with a loss, so that no value need be the same",
            field=field,
            value=value,
            remedy="leave it out; deep=True decodes every chunk"
            if field == "against"
            else "leave it out; chunks that cannot be decoded are found without it",
        )


def how_to_mend(beside: Beside) -> str:
    """Advice on a bad shard; it depends on whether an update of the array was interrupted."""
    return _RECOVER if beside.updates else _REWRITE


def _compare(
    engine: Engine,
    array: ShardedArray,
    source: dask.array.Array | Donor,
    states: npt.NDArray[np.uint8],
    wrong: dict[int, str],
    remedies: dict[int, str],
) -> None:
    """Enter shards whose values differ from the source into `states`, `wrong` and `remedies`.

    Shards that are known to be bad or are not written yet are not compared.
    """
    from shardwrite.read.compare import compare
    from shardwrite.write.comparing import compare_encoded
    from shardwrite.write.copying import Donor

    skip = {
        int(rank) for rank in np.flatnonzero(np.isin(states, (ShardState.BAD, ShardState.PENDING)))
    }
    messages = (
        compare_encoded(engine, array, source, skip)
        if isinstance(source, Donor)
        else compare(engine, array, source, skip)
    )
    for rank, message in messages.items():
        wrong.setdefault(rank, message)
        remedies[rank] = _REPLACE
        if states[rank] != ShardState.MISSING:
            states[rank] = ShardState.BAD


def _report(
    path: str,
    by: str,
    metadata: ArrayMetadata,
    table: ShardTable,
    states: npt.NDArray[np.uint8],
    problems: Sequence[Problem],
    *,
    deep: bool,
    against: bool,
) -> Report:
    grid = metadata.grid
    unreadable = [ravel(problem.index, grid.counts) for problem in problems]
    seen = table.is_present.copy()
    seen[unreadable] &= table.stored_nbytes[unreadable] > 0
    counts = np.bincount(table.orders[seen], minlength=len(ORDERS_FOUND))
    stored, used = int(table.stored_nbytes.sum()), int(table.used_nbytes.sum())
    n_present = int(table.is_present.sum())
    return Report(
        path=path,
        expected_by=by,
        n_shards=grid.n_shards,
        n_present=n_present,
        n_absent=grid.n_shards - n_present,
        n_missing=int((states == ShardState.MISSING).sum()),
        n_pending=int((states == ShardState.PENDING).sum()),
        n_inner_chunks=grid.n_inner_chunks,
        n_stored_chunks=int(table.n_chunks.sum()),
        raw_nbytes=metadata.raw_nbytes,
        stored_nbytes=stored,
        used_nbytes=used,
        unused_nbytes=stored - used - int(table.index_nbytes.sum()),
        orders={name: int(n) for name, n in zip(ORDERS_FOUND, counts, strict=True) if n},
        deep=deep,
        against=against,
        problems=tuple(problems),
        states=states.reshape(grid.counts),
        stored=table.stored_nbytes.reshape(grid.counts),
    )


@taking(CensusArguments)
def census(call: CensusArguments) -> Census:
    """Count the inner chunks that hold data, from the indexes of the shards alone.

    Returns
    -------
    Census
        The counts, and a picture of the shard grid.

    Raises
    ------
    SpecError
        If there is no sharded array, or it has too many shards to check.
    JournalError
        See :func:`verify`.

    Examples
    --------
    >>> import dask.array as da, shardwrite, tempfile
    >>> path = tempfile.mkdtemp() + "/x.zarr"; x = da.arange(100, chunks=10) // 40
    >>> _ = x.to_sharded_zarr(path, shards=40, chunks=8)
    >>> found = shardwrite.census(path)
    >>> found.n_stored_chunks, found.counts["written"], found.counts["empty"]
    (8, 2, 1)
    """
    return census_opened(open_begun(call.store, call.name), call.on_shards)


def census_opened(opened: Opened, on_shards: Callable[[int], None] | None = None) -> Census:
    """Count the inner chunks of an open array; see :func:`census`."""
    report = verify_opened(opened, on_shards=on_shards)
    return Census(
        path=report.path,
        n_inner_chunks=report.n_inner_chunks,
        n_stored_chunks=report.n_stored_chunks,
        chunks_per_shard=opened.array.metadata.grid.chunks_per_shard,
        states=report.states,
        stored_nbytes=report.stored,
        warnings=(
            *report.warnings,
            *(p.message for p in report.problems if not p.index),
            *_unread(report.problems),
        ),
    )


def _unread(problems: Sequence[Problem]) -> tuple[str, ...]:
    """Warning about shards that count as bad because the storage refused to read them."""
    unread = [problem for problem in problems if problem.errno is not None]
    if not unread:
        return ()
    told = f"{counted(len(unread), 'shard')} could not be read and count as bad, first"
    return (f"{told} {unread[0].key}: {unread[0].message}; {_LOOK_AGAIN}",)

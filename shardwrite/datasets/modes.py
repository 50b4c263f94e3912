"""Whether a call makes arrays, or changes those of a group that exists."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from shardwrite.checks import choice, is_whole
from shardwrite.datasets.encode import nodes_of
from shardwrite.datasets.keywords import Call, CallT
from shardwrite.datasets.planned import Destination, Planned, planned, planned_into
from shardwrite.engines.local import Engine
from shardwrite.errors import SpecError, redacted
from shardwrite.journal.begin import record_of, tidied_run
from shardwrite.journal.receipt import read_receipt
from shardwrite.journal.rundir import RunDirectory, holding, in_one_state
from shardwrite.journal.takeover import TAKEN
from shardwrite.place.base import Place
from shardwrite.place.target import Target
from shardwrite.runs.job import digest_of

_MODES = ("w-", "w", "a", "a-", "r+")


def with_mode(call: CallT) -> CallT:
    """The call with its mode, which is that of xarray if none is given, after a look at both."""
    is_append, is_region = call.append_dim is not None, call.region is not None
    mode = call.mode
    if mode is None:
        mode = "a" if is_append else "r+" if is_region else "w-"
    choice("mode", mode, _MODES, what="mode")
    if is_append and is_region:
        raise SpecError(
            "is given with append_dim",
            field="region",
            value=call.region,
            remedy="append whole steps, or write into a region of steps that exist",
        )
    for field, is_given, allowed in (
        ("append_dim", is_append, ("a", "a-")),
        ("region", is_region, ("a", "a-", "r+")),
    ):
        if is_given and mode not in allowed:
            raise SpecError(
                f"{field} is given, which writes into arrays that exist",
                field="mode",
                value=mode,
                remedy=f"leave it out, or give {' or '.join(allowed)}",
            )
    if is_append and not isinstance(call.append_dim, str):
        raise SpecError(
            "no name of a dimension",
            field="append_dim",
            value=call.append_dim,
            remedy='give for instance "time"',
        )
    if is_region:
        _check_region(call.region)
    return replace(call, mode=mode)


def _check_region(region: Any) -> None:
    """Refuse what is no region of xarray."""
    if isinstance(region, Mapping):
        wrong = [where for where in region.values() if not (_is_auto(where) or _is_range(where))]
    else:
        wrong = [] if _is_auto(region) else [region]
    if wrong:
        raise SpecError(
            f"{wrong[0]!r} is no part of a dimension",
            field="region",
            value=region,
            remedy='give a mapping such as {"time": slice(24, 48)} of whole numbers without a '
            'step; or "auto", for all dimensions or in such a mapping',
        )


def _is_auto(where: Any) -> bool:
    return isinstance(where, str) and where == "auto"


def _is_range(where: Any) -> bool:
    if not isinstance(where, slice) or where.step not in (None, 1):
        return False
    return all(end is None or is_whole(end) for end in (where.start, where.stop))


@contextlib.contextmanager
def plans_of(
    call: Call, into: Destination | None, engine: Engine, *, settles: bool = False
) -> Iterator[Planned]:
    """Plans of all variables.

    An append depends on what earlier runs have left. So in a bucket their lease is held while the
    block lasts.

    - `call`: the call, as `with_mode` returns it.
    - `settles`: whether the call writes, and finishes what is left of updates that were given up.
    """
    if call.mode in ("w-", "w"):
        yield planned(call, into, engine)
        return
    if into is None:
        raise SpecError(
            "is needed, since the arrays in it decide where values go",
            field="store",
            value=None,
            remedy="give the store",
        )
    if not _has_group(into.place(""), call.mode):
        yield planned(call, into, engine)
        return
    given = nodes_of(call.ds, call.encoding, call.keep_bits)
    nodes = [node.into(into.place(node.path)) for node in given]
    paths = [node.label(name) for node in nodes for name in node.dataset.variables]
    targets = {path: into.target(path) for path in paths}
    with contextlib.ExitStack() as stack:
        if settles and call.append_dim is not None:
            placed = in_one_state(list(targets.values()), begins=True)
            targets = dict(zip(targets, placed, strict=True))
            stack.enter_context(holding(*placed))
        if call.mode != "r+" and (made := _made_before(call, into, engine, targets)) is not None:
            yield made
            return
        for target in targets.values() if settles else ():
            _settle_given_up(target)
        with into.seen.remembering():
            found = planned_into(call, nodes, targets, into, engine)
        yield found


def _settle_given_up(target: Target) -> None:
    """Finish what is left of updates of an array that were given up.

    - Raises UntrustedStateError if the run state beside the array is not trusted.
    """
    for other in target.others:
        record = record_of(other)
        if record is not None and RunDirectory(other, record).is_in(TAKEN):
            tidied_run(other)


def _has_group(place: Place, mode: str | None) -> bool:
    """Whether there is a group to write into; if a call cannot make one, it is refused."""
    kind = place.kind_for_group()
    if kind in ("v2", "v2 group"):
        raise SpecError(
            "the store is one of Zarr v2, and only arrays of Zarr v3 are changed",
            field="store",
            value=place.label,
            remedy="write it into another store first: "
            'xarray.open_zarr(store, chunks={}).shardwrite.to_zarr("new.zarr")',
        )
    if kind != "group" and mode == "r+":
        raise SpecError(
            "there is no group to write into",
            field="store",
            value=place.label,
            remedy="write the whole dataset first, without region",
        )
    return kind == "group"


def _made_before(
    call: Call, into: Destination, engine: Engine, targets: Mapping[str, Target]
) -> Planned | None:
    """Plans of new arrays, if this call makes them, and its end was interrupted; else None.

    A `source_id` tells of a call that has made them before and returned, too.
    """
    records = {name: record_of(target) for name, target in targets.items()}
    digests = {name: r.digest for name, r in records.items() if r is not None and r.makes_array}
    if not digests and call.source_id is not None:
        receipts = {name: read_receipt(target) for name, target in targets.items()}
        source = redacted(call.source_id)
        digests = {
            name: r.digest
            for name, r in receipts.items()
            if r is not None and r.identity.source == source
        }
    if not digests:
        return None
    made = planned(call, into, engine)
    is_same = any(digest_of(v.plan, "w-") == digests.get(v.path) for v in made.variables)
    return made if is_same else None

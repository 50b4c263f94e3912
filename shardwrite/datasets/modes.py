"""Whether a call makes arrays, or changes those of a group that exists."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from shardwrite.checks import is_whole
from shardwrite.datasets.encode import nodes_of
from shardwrite.datasets.existing import Changes
from shardwrite.datasets.planned import Call, Planned, in_group, planned, planned_into, targets_of
from shardwrite.engines.local import Engine
from shardwrite.errors import SpecError, redacted
from shardwrite.journal.begin import record_of
from shardwrite.journal.neighbours import settle_given_up
from shardwrite.journal.receipt import read_receipt
from shardwrite.journal.rundir import holding, in_one_state
from shardwrite.place.base import Place
from shardwrite.place.seen import Seen
from shardwrite.place.target import Target, resolve_place
from shardwrite.runs.job import digest_of

_MODES = ("w-", "w", "a", "a-", "r+")


def mode_of(call: Call) -> str:
    """The mode of a call, which is that of xarray if none is given."""
    is_append, is_region = call.append_dim is not None, call.region is not None
    mode = call.mode
    if mode is None:
        mode = "a" if is_append else "r+" if is_region else "w-"
    if mode not in _MODES:
        raise SpecError(
            "no such mode", field="mode", value=mode, remedy=f"give one of {', '.join(_MODES)}"
        )
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
    return mode


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
    call: Call, store: Any, engine: Engine, *, settles: bool = False
) -> Iterator[tuple[Planned, Changes | None]]:
    """Plans of all variables, and how they go into arrays that exist; None for new arrays.

    An append depends on what earlier runs have left. So in a bucket their lease is held while the
    block lasts.

    - `settles`: whether the call writes, and finishes what is left of updates that were given up.
    """
    mode = mode_of(call)
    changes = Changes(mode, call.append_dim, call.region)
    if mode in ("w-", "w") or not _has_group(call, store, mode):
        yield planned(call, store, engine), None
        return
    given, seen = nodes_of(call.ds, call.encoding, call.keep_bits), Seen()
    nodes = [node.into(_place_of(call, store, node.path, seen)) for node in given]
    targets, is_append = targets_of(call, store, nodes, seen), changes.append_dim is not None
    with contextlib.ExitStack() as stack:
        if settles and is_append:
            placed = in_one_state(list(targets.values()), begins=True)
            targets = dict(zip(targets, placed, strict=True))
            stack.enter_context(holding(*placed))
        if mode != "r+" and (made := _made_before(call, store, engine, targets)) is not None:
            yield made, None
            return
        for target in targets.values() if settles else ():
            settle_given_up(target)
        with seen.remembering():
            place_of = partial(_place_of, call, store, seen=seen)
            found = planned_into(call, nodes, targets, place_of, changes, engine)
        yield found, changes


def _place_of(call: Call, store: Any, path: str, seen: Seen | None = None) -> Place:
    """Place of a group, by its path in the object."""
    return resolve_place(store, in_group(call, path) or None, seen=seen)


def _has_group(call: Call, store: Any, mode: str) -> bool:
    """Whether there is a group to write into; if a call cannot make one, it is refused."""
    if store is None:
        raise SpecError(
            "is needed, since the arrays in it decide where values go",
            field="store",
            value=None,
            remedy="give the store",
        )
    place = _place_of(call, store, "")
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
    call: Call, store: Any, engine: Engine, targets: dict[str, Target]
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
    made = planned(call, store, engine)
    is_same = any(digest_of(v.plan, "w-") == digests.get(v.path) for v in made.variables)
    return made if is_same else None

"""Find the run beside an array, begin a new one, and refuse a run of another plan.

The layout of a run's directory and the numbered steps of a run are described in
:mod:`shardwrite.journal.rundir`.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

from crc32c import crc32c

from shardwrite._dataclass import dataclass
from shardwrite.codecs.documents import JSON, Document
from shardwrite.errors import JournalError, RunEndedError, SpecError, StoreError
from shardwrite.format.node import DOCUMENT
from shardwrite.journal.documents import check_groups_above
from shardwrite.journal.lease import (
    live_holders,
    note_failed,
    signature,
    this_process,
    work_files,
)
from shardwrite.journal.lines import TOKEN
from shardwrite.journal.plan_record import Intent, RunRecord, Together, new_name
from shardwrite.journal.receipt import read_receipt
from shardwrite.journal.replay import journals_of
from shardwrite.journal.rundir import (
    RunDirectory,
    check_held,
    confirm,
    held,
    other_version,
)
from shardwrite.journal.takeover import (
    ENDED,
    TAKEN,
    cancel_begin,
    discard_run,
    drop_orphan,
    end_run,
    make_end,
    refuse_consuming,
    remove_orphans,
    settle,
    tidy_home,
)
from shardwrite.journal.trust import check_name, require_trusted, require_trusted_run
from shardwrite.place.directory import Directory, run_in
from shardwrite.place.target import (
    Target,
    check_surroundings,
    check_target,
    firsts_of,
    refuse_in_place,
    standing,
)
from shardwrite.records import OtherVersionError
from shardwrite.stores.directories import NEW, fsync_directory, make_directories, state_beside
from shardwrite.stores.looking import (
    PATH_MAX,
    as_store_error,
    check_readable,
    is_file,
    is_there,
    parse_json,
    read_file,
    write_new,
)
from shardwrite.stores.posix import check_movable, keep_room
from shardwrite.stores.removal import link_from, remove_state, temporary_path

# ---- Runs whose array is gone: removed, or replaced by another one


def has_lost_array(run: RunDirectory) -> bool:
    """Whether the array of a run was removed. Another one may stand there.

    An array counts as another one if its number of axes, data type, shards, chunks or codecs are
    others. It is not compared with a run that replaces an array.

    - `run`: A run that has not ended.
    """
    place = run.target.place
    if run.record.aside and not run.record.replaces and is_there(run.path / NEW):
        return False
    kind = place.kind()
    if kind == "array":
        if run.makes_array and run.record.replaces:
            return False
        found = run.target.document_if_there
        if found is not None:
            planned = begun_with(run)
            return planned is not None and _essentials(found) != _essentials(planned)
        kind = "nothing"  # it was removed a moment ago
    if not run.makes_array:
        return kind in ("nothing", "group", "v2")
    if place.is_occupied() or run.record.replaces or not isinstance(place, Directory):
        return False  # a place in another store has a mark
    return bool(journals_of(run))  # begun once there was a directory for the shards


def _has_lost_all(run: RunDirectory) -> bool:
    """Whether all arrays of a run are gone."""
    return has_lost_array(run) and all(map(has_lost_array, run.outputs()))


def begun_with(run: RunDirectory) -> Document | None:
    """Document of the array with which a run began, or None if the run has ended meanwhile."""
    try:
        return run.document
    except StoreError:
        if not run.has_ended:
            raise
        return None


def _essentials(document: Document) -> tuple[object, ...]:
    """What stays the same in a document that other programs write again; it may be damaged."""
    shape = document.get("shape")
    return (
        len(shape) if isinstance(shape, list) else shape,
        document.get("data_type"),
        document.get("chunk_grid"),
        _names_and_chunks(document.get("codecs")),
    )


def _names_and_chunks(codecs: JSON) -> list[object]:
    found: list[object] = []
    for codec in codecs if isinstance(codecs, list) else []:
        name = codec.get("name") if isinstance(codec, Mapping) else codec
        configuration = codec.get("configuration") if isinstance(codec, Mapping) else None
        known = configuration if isinstance(configuration, Mapping) else {}
        inner = known.get("codecs")
        found.append(
            (name, known.get("chunk_shape"), None if inner is None else _names_and_chunks(inner))
        )
    return found


# ---- Finding and beginning a run


_MAX_TRIES = 8


def find_run(target: Target, seen: Collection[Path] | None = None) -> RunDirectory | None:
    """Find the run beside an array that has not ended.

    Nothing on disk is changed.

    - `seen`: paths that `require_trusted` has already checked. Only these are followed. By default,
      the check is made now.
    - Returns: the run, or None where there is none.
    - Raises UntrustedStateError if the run state is not trusted, or if the plan names another
      array.
    """
    found = _planned(target, seen)
    return found if found is not None and _stands(found) else None


def tidied_run(target: Target, seen: Collection[Path] = ()) -> RunDirectory | None:
    """Find the run beside an array, after finishing a removal that was interrupted.

    A run that nobody works on, and whose array is gone, is removed, and one that is complete is
    ended. It is for writers, because it changes what lies beside the array. It returns and raises
    what `find_run` does.

    - `seen`: paths that `require_trusted` has already checked. If there was no plan among them, it
      is looked for again, because another process may have begun since.
    """
    found = _planned(target, seen if target.run_path / "plan.json" in seen else None)
    if found is None:
        if is_there(target.run_path):
            remove_orphans(target)
        tidy_home(target)
        return None
    if _stands(found):
        if _is_orphan(found):
            drop_orphan(found)
        elif is_complete(found):
            end_run(found)
        else:
            return found
        return None
    over = replace(found, state=TAKEN if found.is_in(TAKEN) else ENDED)
    make_end(over)
    settle(over)
    return None


def _is_orphan(found: RunDirectory) -> bool:
    """Whether all arrays of a run are gone, and nobody works on it."""
    if not _has_lost_all(found) or live_holders(found.shared):
        return False
    for one in (found, *found.outputs()):
        one.target.place.forget()  # nothing is removed because of an earlier look
    return _has_lost_all(found)


def drop_removed(target: Target) -> None:
    """Remove runs on arrays in groups above a new array, which somebody has removed with them.

    - Raises JournalError if somebody works on one, or it replaces an array.
    """
    if not isinstance(target.place, Directory):
        return
    left = (Target(place, state) for place, state in target.place.left_of_removed())
    for one in itertools.chain.from_iterable((array, *array.others) for array in left):
        found, place = tidied_run(one), one.directory
        if found is None:
            continue
        replaces = any(output.record.replaces for output in found.outputs())
        if not found.makes_array or replaces or live_holders(found.shared):
            state = state_beside(place.root)
            raise JournalError(
                f"{place.root} was removed while a run on {place.name} in it had not ended. Stop "
                f"that run if it is still at work, and remove {state}, too",
                path=str(state),
            )
        drop_orphan(found)


def look_at_run(target: Target, seen: Collection[Path]) -> tuple[RunDirectory | None, str]:
    """Find the run beside an array, and say if the removal of a run was interrupted.

    Nothing on disk is changed.

    - `seen`: paths that `require_trusted` has already checked. Only these are followed.
    """
    found = _planned(target, seen)
    if found is None:
        return None, ""
    if not _stands(found):
        return None, _interrupted_removal(found)
    if _has_lost_all(found):
        return None, (
            f"run {found.run} in {found.target.run_path} was for an array that is gone; the next "
            "write removes what is left of it"
        )
    return found, ""


def _interrupted_removal(found: RunDirectory) -> str:
    """Message about a run whose removal was interrupted."""
    # The directory keeps its zarr.json until the shards are settled.
    if not is_there(replace(found, state=TAKEN).document_path):
        return (
            f"run {found.run} is over, and its files in {found.target.run_path} were not all "
            "removed; the next write removes them"
        )
    what = (
        "leaves each shard old or new"
        if not found.makes_array
        else "takes its shards away, as far as they are there"
    )
    return (
        f"run {found.run} was given up, and its removal was interrupted; the next write finishes "
        f"that, which {what}"
    )


def _stands(run: RunDirectory) -> bool:
    """Whether a run that ``plan.json`` names has neither ended nor been taken away."""
    return not run.is_in(TAKEN) and is_there(run.path)


def is_complete(run: RunDirectory, *, looking: bool = False) -> bool:
    """Whether nobody works on a run, and the receipt says that it is complete.

    Its end was interrupted, or a power cut has brought it back: removing its directory need not be
    durable for a call to return. What it has replaced must not be put back then. A run that was
    interrupted while it handed over its arrays is complete, too.
    """
    if run.record.durability == "none" or not run.is_written:
        return False
    others = list(run.outputs(but=[run.number]))
    if not all(one.is_written for one in others):
        return False
    replaced = [one for one in (run, *others) if one.record.aside and one.record.replaces]
    is_committed = not replaced or any(one.is_handed_over for one in replaced)
    return is_committed and not live_holders(run.shared, looking=looking)


def others_are_complete(run: RunDirectory, but: Collection[int]) -> bool:
    """Whether the receipts of all arrays of a run, but some, say that it is complete."""
    return all(map(has_receipt, run.outputs(but)))


def has_receipt(run: RunDirectory) -> bool:
    """Whether the receipt of an array says that the run on it is complete."""
    receipt = read_receipt(run.target)
    return receipt is not None and receipt.names(run.run)


def _planned(target: Target, seen: Collection[Path] | None = None) -> RunDirectory | None:
    """The run that ``plan.json`` names, even if it has ended, or None where there is no plan."""
    path = target.run_path / "plan.json"
    if path not in (require_trusted(target) if seen is None else seen):
        return None  # there was no plan when the state was checked
    data = read_file(path)
    if data is None:
        return None
    run = begun_run(target, data)
    if run.record.together is not None:
        require_trusted_run(target, run.shared, run.path.name)
    return run


def begun_run(target: Target, data: bytes) -> RunDirectory:
    """The run that a ``plan.json`` names.

    - `data`: content of the file.
    - Raises UntrustedStateError if the plan names another array.
    """
    path = target.run_path / "plan.json"
    try:
        record = RunRecord.from_json(data, is_update=bool(target.update))
    except OtherVersionError as error:
        raise other_version(target, path, error) from error
    except ValueError as error:
        raise JournalError(
            f"{path} is no whole plan ({error}). Move {target.run_path} away after a look, and "
            "keep it: it may hold an array that was being replaced, or what is needed to undo a "
            "change",
            path=str(path),
        ) from error
    check_name(target, record.array)
    return RunDirectory(target, record)


def record_of(target: Target) -> RunRecord | None:
    """Record in ``plan.json``, or None where the file is missing or damaged.

    `find_run` tells what is wrong with a damaged file.

    - Raises UntrustedStateError if the run state beside the array is not trusted.
    """
    require_trusted(target)
    return _record_in_place(target)


def _record_in_place(target: Target) -> RunRecord | None:
    """Record as `record_of` returns it; the state beside the array was checked."""
    path = target.run_path / "plan.json"
    data = read_file(path)
    try:
        return None if data is None else RunRecord.from_json(data, is_update=bool(target.update))
    except OtherVersionError as error:
        raise other_version(target, path, error) from error
    except ValueError:
        return None


def interrupted_end(target: Target) -> str:
    """Name of the run whose end (step 6) was interrupted, or an empty text."""
    seen = require_trusted(target)
    record = _record_in_place(target)
    if record is None:
        names = (path.name for path in sorted(seen) if path.parent == target.run_path)
        ended = (name.removeprefix(f"{ENDED}-") for name in names if name.startswith(f"{ENDED}-"))
        return next(ended, "")
    run = RunDirectory(target, record)
    is_over = not (run.is_in("run") or run.is_in(TAKEN)) or is_complete(run)
    return record.run if is_over else ""


@dataclass(frozen=True, slots=True)
class Request:
    """An array that a run is to write."""

    target: Target
    intent: Intent
    document: str  # metadata document with which the run begins
    n_shards: int = 0  # number of shards, if the run writes several arrays
    # Whether an array that is replaced stays until the new one is whole, where that is possible
    keeps_old: bool = False


def begin_runs(
    requests: Sequence[Request],
    *,
    restart: bool,
    durability: str,
    free: Collection[Target] = frozenset(),
    are_checked: bool = False,
) -> list[tuple[RunDirectory, bool]]:
    """Take steps 1 and 2: begin one run for all arrays that no run writes yet, and find the others.

    - `free`: targets where nothing stood a moment ago, and what lies above was looked at. Once
      their plans are linked, each of them is looked at again.
    - `are_checked`: whether the caller has just looked what lies around the others.
    - Returns: for each array its run, and whether that is new.
    """
    firsts = firsts_of(request.target for request in requests if request.target not in free)
    for request in requests:
        check_held(request.target, makes_array=request.intent.makes_array)
        if request.target not in free and not are_checked:
            check_surroundings(request.target, looks_above=request.target in firsts)
    begun: dict[Target, tuple[RunDirectory, bool]] = {}
    names = [request.target.name for request in requests]
    for attempt in range(_MAX_TRIES):
        for request in requests if attempt else ():
            request.target.place.forget()  # other processes begin and end runs there
        for request in requests:
            if request.target in free:
                continue
            found = tidied_run(request.target)
            if restart and found is not None and _starts_over(found, request.intent, names):
                found = None
            if found is not None and request.target not in begun:
                if found.digest != request.intent.digest:
                    _refuse_other(found, request.intent)
                confirm(request.target)
                begun[request.target] = found, False
        restart, unseen, free = False, free, frozenset()
        if not all(map(_claim_rest, {run.run: run for run, _ in begun.values()}.values())):
            begun.clear()
            continue
        new = [request for request in requests if request.target not in begun]
        if not new:
            break
        seen = [request for request in new if request.target not in unseen]
        if not _may_begin(seen):
            continue  # another process has begun a run, and what stands there is that run's
        made = _create(new, durability, unseen)
        if made is None:
            continue
        stands = standing([one.target for one in made])
        changed = [
            one for one in made if one.record.replaces != _replaces(one.target, one.record, stands)
        ]
        if all(map(_is_joined, changed)):
            _check_alone(made, stands)
            _confirm_new(made[0])
            begun |= {one.target: (one, not changed) for one in made}
            break
        # Another run has ended since the target was checked.
        cancel_begin(made[0], is_claimed=True)
    else:
        where = requests[0].target.run_path
        raise JournalError(f"runs begin and end in {where} all the time", path=str(where))
    return [begun[request.target] for request in requests]


def _starts_over(found: RunDirectory, intent: Intent, names: Collection[str]) -> bool:
    """Give up a run that is there, unless it is of another kind; whether it was given up.

    - `names`: paths of the arrays that the call writes.
    """
    if found.makes_array != intent.makes_array:
        return False
    refuse_consuming(found)
    _refuse_losing(found, intent)
    outputs = (one.record.together for one in found.outputs())
    others = [one.name for one in outputs if one is not None and one.name not in names]
    if others:
        raise JournalError(
            f"the run on {found.target.label} writes {len(others):,} other arrays, too, such as "
            f"{others[-1]!r}, and they would have to start over with it. Make the call that writes "
            "all of them with restart=True",
            path=str(found.target.run_path),
        )
    discard_run(found)
    return True


def _may_begin(requests: Sequence[Request]) -> bool:
    """Whether a run may begin; False if another process has just begun one."""
    firsts = firsts_of(request.target for request in requests)
    changing = firsts_of(r.target for r in requests if _changes_groups(r.intent))
    for request in requests:
        target, is_first = request.target, request.target in firsts
        try:
            check_target(target, request.intent.mode, looks_above=is_first)
            if target in changing:
                check_groups_above(target.place)
        except SpecError:
            target.place.forget()  # nothing is refused because of an earlier look
            if tidied_run(target) is not None:
                return False
            check_target(target, request.intent.mode, looks_above=is_first)
            if target in changing:
                check_groups_above(target.place)
    return True


def _is_joined(run: RunDirectory) -> bool:
    """Whether what has changed in the place of a new run is the work of those who have joined it.

    They may do so as soon as the plan is linked, and be at the end of the run before this process
    looks. What another run has left there has its receipt.
    """
    if not work_files(run.shared, TOKEN) or has_lost_array(run):
        return False
    receipt = read_receipt(run.target)
    return receipt is None or receipt.names(run.run)


def _replaces(target: Target, intent: Intent, stands: Callable[[Path], bool] | None = None) -> bool:
    """Whether a run makes an array where something stands; see `standing`."""
    if not intent.makes_array or target.recovers:
        return False
    if stands is not None and isinstance(target.place, Directory):
        return stands(target.place.path)
    return target.place.is_occupied()


def _refuse_losing(found: RunDirectory, intent: Intent) -> None:
    """Refuse to start over a run that replaces an array, with a call that replaces none.

    The old array would be put back, and then be in the way.
    """
    if found.can_put_back and intent.mode != "w":
        raise JournalError(
            f"an unfinished run replaces the array at {found.target.label}, and this call says "
            "nothing of replacing one. To keep the old array, call abandon (shardwrite "
            'abandon). To replace it by this one, give mode="w" and restart=True '
            "(--overwrite --restart)",
            path=str(found.target.run_path),
        )


def _check_alone(made: Sequence[RunDirectory], stands: Callable[[Path], bool]) -> None:
    """Refuse to go on where an array is being converted in its place.

    A conversion looks for runs once it has left its record, so that one of the two sees the other.
    """
    above = dict[Path, None]()
    try:
        for one in made:
            directory = one.target.place.local_path
            if directory is not None:
                refuse_in_place(directory, above, stands)
    except JournalError:
        cancel_begin(made[0], is_claimed=True)
        raise


def _confirm_new(made: RunDirectory) -> None:
    """Have the new run in the bucket, too, if its state lies there, before it changes anything."""
    try:
        confirm(made.target)
    except BaseException:
        cancel_begin(made, is_claimed=True)
        raise


def _create(
    requests: Sequence[Request], durability: str, fresh: Collection[Target] = ()
) -> list[RunDirectory] | None:
    """Create a run on disk; None where another process was first.

    - `fresh`: targets where nothing stood a moment ago. The caller looks again.
    """
    is_begun = False
    name = new_name()
    made = _runs_of(requests, name, fresh, durability)
    first = made[0]
    draft = first.shared.with_name(f"draft-{name},{signature()}")
    try:
        # The draft gets the array's mode and group. Its owner stays this user: it must be trusted.
        make_directories(draft, durability, like=first.target.place.rights_like)
        for one, request in zip(made, requests, strict=True):
            _write_draft(one, request, draft / one.path.relative_to(first.shared), durability)
        is_several = first.path != first.shared and durability != "none"
        if is_several:
            fsync_directory(draft)
        os.rename(draft, first.shared)
        is_begun = True
        if is_several:  # else whoever claims syncs it
            fsync_directory(first.shared.parent)
        if _claim_all(made):
            return made
    except BaseException as error:
        note_failed(draft, first.shared)
        with contextlib.suppress(OSError):  # the first error is the one to report
            remove_state(draft)
        is_ended = is_begun and isinstance(error, FileNotFoundError) and first.has_ended
        cancel_begin(first, is_claimed=any(map(_has_claimed, made)), known=made)
        if is_ended:
            path = str(first.path)
            raise RunEndedError("another process has ended this run", path=path) from error
        if not isinstance(error, OSError):
            raise
        message = (
            f"store={first.target.label!r}: cannot write beside it: {error}; give a directory that "
            "can be written to"
        )
        raise StoreError(message, key=str(first.path), errno=error.errno) from None
    cancel_begin(first, is_claimed=any(map(_has_claimed, made)), known=made)
    return None


def _runs_of(
    requests: Sequence[Request], name: str, fresh: Collection[Target], durability: str
) -> list[RunDirectory]:
    """The run of a name, as each of its arrays has it."""
    begun_by, n_shards = this_process(), sum(request.n_shards for request in requests)
    is_in_group = cache(_is_in_group)

    def run_of(number: int, request: Request) -> RunDirectory:
        target, intent = request.target, request.intent
        document = request.document.encode()
        replaces = target not in fresh and _replaces(target, intent)
        record = RunRecord(
            **{each.name: getattr(intent, each.name) for each in fields(Intent)},
            run=name,
            replaces=replaces,
            aside=request.keeps_old
            and (target.is_published if replaces else is_in_group(target.directory.path.parent)),
            length=_length_before(request) if len(requests) > 1 else None,
            durability=durability,
            begun_by=begun_by,
            document_crc32c=crc32c(document),
            array=target.place.array_name,
            together=_together(target, number, len(requests), n_shards)
            if len(requests) > 1
            else None,
        )
        own = document if record.together is not None else None
        return RunDirectory(target, record, begun_with=own)

    return list(itertools.starmap(run_of, enumerate(requests)))


def _is_in_group(directory: Path) -> bool:
    """Whether what lies in a directory lies in a group, where readers would list it."""
    return any(is_file(path / DOCUMENT) for path in (directory, *directory.parents) if path.name)


def _length_before(request: Request) -> int | None:
    """Length of the array along the axis of an append."""
    identity = request.intent.identity
    shape = None if identity.append_axis is None else request.target.shape_if_there
    return None if shape is None else shape[identity.append_axis or 0]


def _together(target: Target, number: int, n_arrays: int, n_shards: int) -> Together:
    """What the record of one of several arrays says of the others."""
    if target.home is None:
        raise ValueError("these arrays are in no common hierarchy")
    return Together(
        number=number,
        n_arrays=n_arrays,
        n_shards=n_shards,
        name=target.name,
        home=os.path.relpath(target.home, target.run_path),
        state=os.path.relpath(target.run_path, target.home),
    )


def _write_draft(one: RunDirectory, request: Request, directory: Path, durability: str) -> None:
    """Write the files of an array into the draft of a run."""
    document, plan = request.document.encode(), one.record.to_json()
    _check_readable(document, plan)
    _check_length(directory)
    if one.path != one.shared:
        os.mkdir(directory)
    is_durable = durability != "none"
    write_new(directory / DOCUMENT, document, is_durable=is_durable)
    write_new(directory / "plan.json", plan, is_durable=is_durable)
    if one.record.aside and not one.record.replaces:
        os.mkdir(directory / NEW)
    if is_durable:
        fsync_directory(directory)
    if one.number == 0:  # once for all arrays of the run
        keep_room(directory / "plan.json")
    place = one.target.place
    if isinstance(place, Directory) and one.record.replaces:
        check_movable(place.path, directory)


def _check_length(draft: Path) -> None:
    """Refuse a place where the run could not make its longest names later.

    - Raises OSError if the path of a temporary would be too long there.
    """
    longest = temporary_path(str(draft), "plan.json", uuid.uuid4().hex)
    if len(os.fsencode(longest)) >= PATH_MAX:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), longest)


def _claim_all(runs: Sequence[RunDirectory]) -> bool:
    """Link the plans of all arrays of a run to their places; False if another run has one there.

    Each directory that has a new entry is synced once, when all arrays have theirs.
    """
    changed = dict[Path, None]()
    for run in runs:
        made = () if run.record.together is None else _make_beside(run, "none")
        if not _claim(run):
            return False
        changed |= dict.fromkeys(path.parent for path in (*made, run.target.run_path))
        _mark(run)
    for directory in changed if runs[0].record.durability != "none" else ():
        fsync_directory(directory)
    return True


def _make_beside(run: RunDirectory, durability: str) -> Collection[Path]:
    """Make the directory of the run state of one of several arrays; see `make_directories`."""
    has_array = run.record.replaces or not run.makes_array
    like = run.target.place.rights_like if has_array else None
    return make_directories(run.target.run_path, durability, like=like)


def _claim(run: RunDirectory) -> bool:
    """Link the plan of a run to its place; False if another run has one there.

    A link is atomic, and fails where there is a plan already. Its name is synced, and that of the
    directory is not.
    """
    target = run.target
    plan = target.run_path / "plan.json"
    for attempt in itertools.count(1):
        try:
            link_from(run.path / "plan.json", plan, lambda: f"draft-{run.run},{signature()}")
            break
        except FileExistsError:
            return _has_claimed(run)
        except FileNotFoundError:
            if run.record.together is None or attempt == _MAX_TRIES or not is_there(run.path):
                raise
            _make_beside(run, run.record.durability)
    if run.record.durability != "none":
        fsync_directory(plan.parent)
    return True


def _mark(run: RunDirectory) -> None:
    """Leave the mark of a run in an array that is there, if it needs one.

    Whoever begins a run looks for marks of others only after that.
    """
    is_old = run.record.replaces or not run.makes_array
    if is_old and run.target.leaves_marks and run.target.is_published:
        run.target.directory.put_mark(run, run.record.durability)


def _has_claimed(run: RunDirectory) -> bool:
    """Whether the plan of a run is in its place."""
    return run_in(run.target.run_path / "plan.json") == run.run


def _claim_rest(run: RunDirectory) -> bool:
    """Finish the begin of a run on several arrays that was interrupted amid its claims.

    - Returns: False if another process has ended the run meanwhile.
    """
    try:
        with as_store_error(str(run.shared), "cannot go on with"):
            for one in run.outputs():
                if is_there(one.target.run_path / "plan.json"):
                    _mark(one)
                    continue
                is_same = one.record.replaces == _replaces(one.target, one.record)
                if is_same and _claim_all([one]):
                    continue
                if is_there(run.shared):  # else the run has ended, and no plan of it is left
                    raise JournalError(
                        f"another call has written {one.target.label} since the run {run.run} was "
                        "begun, which writes it, too. Make this call again with restart=True",
                        path=str(one.target.run_path),
                    )
                return False
    except StoreError as error:
        if error.errno != errno.ENOENT or is_there(run.shared):
            raise
        return False
    return True


def _check_readable(*documents: bytes) -> None:
    """Refuse documents that nobody could read again."""
    about, remedy = {"field": "attributes", "value": "..."}, "store such data as an array"
    for document in documents:
        check_readable(document, "make a document of", **about, remedy=remedy)
        try:
            parse_json(document)
        except ValueError as error:
            why = f"make a document that nobody could read ({error})"
            raise SpecError(why, **about, remedy=remedy) from None


def refuse_other_run(target: Target, intent: Intent) -> None:
    """Refuse to prepare a run if one of another plan is in its way, before anything is written."""
    found = tidied_run(target)
    if found is not None and found.digest != intent.digest:
        _refuse_other(found, intent)


def _refuse_other(found: RunDirectory, intent: Intent) -> None:
    """Raise the error for a run of another plan."""
    holders = live_holders(found.shared)
    if holders:
        raise held(found, holders[0])
    changed = differences(found.record.identity.to_dict(), intent.identity.to_dict())
    giving_up = (
        'start over with mode="w" and restart=True (--overwrite --restart), which takes its shards '
        "away; or call abandon (shardwrite abandon), which keeps the old array"
        if found.can_put_back
        else "start over with restart=True (--restart), which takes its shards away"
        if found.makes_array
        else "give it up with abandon (shardwrite abandon), which leaves each of its shards as it "
        "is, old or new"
    )
    raise JournalError(
        f"another plan was begun for {found.target.label} and has not ended; it differs in "
        f"{'; '.join(changed)}. Run it again as it was to finish it, or {giving_up}"
        f"{same_source_remedy(changed)}{_same_attributes_remedy(changed)}",
        path=str(found.target.run_path),
        differences=changed,
    )


def _same_attributes_remedy(changed: Sequence[str]) -> str:
    """What to do if a run differs in its attributes, and the source in these alone; else nothing.

    The identity of a source that is an array covers the version of its document.
    """
    told = [each for each in changed if not each.startswith("source: ")]
    if not told or not all(each.startswith("metadata.attributes") for each in told):
        return ""
    return (
        ". If somebody has changed the attributes of the source meanwhile, put them back as they "
        "were, and make the same call again with shardwrite.source.accept=True in dask's "
        "configuration (--accept-source). Change them once the new array is there"
    )


def _changes_groups(intent: Intent) -> bool:
    """Whether a run changes what groups above list of its array."""
    identity = intent.identity
    return intent.makes_array or identity.append_axis is not None or identity.stream


def same_source_remedy(changed: Sequence[str]) -> str:
    """What to do if a run differs only in its source, as the end of a sentence; else nothing."""
    if len(changed) != 1 or not changed[0].startswith("source: "):
        return ""
    return (
        ". If only the name or the time of the source has changed, and its data are the same, set "
        "shardwrite.source.accept=True in dask's configuration (--accept-source), or give the "
        "former source_id (--source-id)"
    )


def differences(old: JSON, new: JSON, at: str = "") -> list[str]:
    """Fields in which two documents differ, each with both of its values, shortened.

    - `at`: name of the field that holds the two values, with dots for nested fields. It is empty
      for whole documents.
    """
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        found = []
        for name in [*old, *(name for name in new if name not in old)]:
            found += differences(old.get(name), new.get(name), f"{at}.{name}" if at else str(name))
        return found
    if old is new or old == new:  # NaN, which some programs write, is the same object
        return []
    if isinstance(old, list) and isinstance(new, list) and _names(old) == _names(new) != []:
        pairs = enumerate(zip(old, new, strict=True))
        return [told for i, (a, b) in pairs for told in differences(a, b, f"{at}[{i}]")]
    return [f"{at}: {_short(old)} there, {_short(new)} now"]


def _names(values: list[JSON]) -> list[JSON]:
    """Names of the codecs in a list; empty if these are no codecs."""
    if not all(isinstance(each, Mapping) and "name" in each for each in values):
        return []
    return [each["name"] for each in values if isinstance(each, Mapping)]


def _short(value: JSON) -> str:
    """A value as JSON of at most 80 characters."""
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."

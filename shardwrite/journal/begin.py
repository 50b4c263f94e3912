"""Finding the run that stands beside an array, beginning one, and refusing another.

The run's directory and the order of a run's effects are in :mod:`shardwrite.journal.rundir`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from crc32c import crc32c

from shardwrite.errors import JournalError, StoreError
from shardwrite.journal.facts import parse_facts, sealed
from shardwrite.journal.lease import identity, live_holders
from shardwrite.journal.rundir import RunDirectory, dump, held, remove
from shardwrite.stores import PosixStore, is_there, make_directories, read_file, write_file
from shardwrite.target import Target, check_surroundings, check_target

__all__ = ["begin_run", "differences", "facts_of", "find_run", "interrupted_end", "probe"]

_MAX_TRIES = 8


def find_run(target: Target) -> RunDirectory | None:
    """The run that was begun beside an array and has not ended.

    Raises
    ------
    JournalError
        If ``plan.json`` is not one of ours.
    """
    path = target.run_path / "plan.json"
    data = read_file(path)
    if data is None:
        return None
    try:
        found = RunDirectory(target, parse_facts(data, is_update=bool(target.update)))
    except ValueError as error:
        raise JournalError(f"{path} is no whole plan ({error}); remove {target.run_path} after a look", path=str(path)) from error
    if is_there(found.taken_path):
        found.remove_taken()  # what a crash left to do
        return None
    if not is_there(found.path):
        found.remove_ended()
        return None
    return found


def facts_of(target: Target) -> dict[str, Any]:
    """What ``plan.json`` says; nothing where there is none, or where `find_run` would say what is wrong with it."""
    data = read_file(target.run_path / "plan.json")
    try:
        return {} if data is None else parse_facts(data, is_update=bool(target.update))
    except ValueError:
        return {}


def interrupted_end(target: Target) -> str:
    """Name of a run that was interrupted in step 6; else nothing."""
    run = str(facts_of(target).get("run", ""))
    return "" if any(is_there(target.run_path / f"{state}-{run}") for state in ("run", "taken")) else run


def begin_run(
    target: Target, plan: Mapping[str, Any], document: str, *, mode: str, restart: bool, durability: str
) -> tuple[RunDirectory, bool]:
    """Steps 1 and 2, or the run that is there already.

    Parameters
    ----------
    target : Target
        Where the array goes.
    plan : mapping
        The plan as a dictionary, with its ``digest``.
    document : str
        The array's metadata.
    mode : str
        See :func:`shardwrite.to_sharded_zarr`; looked at only where a run begins.
    restart : bool
        Take away what was begun.
    durability : str
        Of the run's own files.

    Returns
    -------
    run : RunDirectory
        The run.
    is_new : bool
        Whether it has just begun.

    Raises
    ------
    SpecError
        If something stands in the array's place.
    JournalError
        If another plan was begun there, naming what differs, or who is at it.
    """
    check_surroundings(target)
    for _ in range(_MAX_TRIES):
        found = find_run(target)
        if found is None:
            check_target(target, mode)
            made = _create(target, plan, document, durability)
            if made is not None:
                return made, True
        elif restart:
            found.start_over()
            restart = False
        elif found.digest == plan["digest"]:
            return found, False
        else:
            _refuse_other(found, plan)
    raise JournalError(f"runs begin and end in {target.run_path} all the time", path=str(target.run_path))


def _create(target: Target, plan: Mapping[str, Any], document: str, durability: str) -> RunDirectory | None:
    """A new run, or None where another process was first."""
    facts = sealed(
        {
            **plan,
            "run": uuid.uuid4().hex[:12],
            "replaces": is_there(target.path) and plan["mode"] != "r+",
            "durability": durability,
            "begun_by": identity(),
            "document_crc32c": crc32c(document.encode()),
        }
    )
    made = RunDirectory(target, facts)
    attempt = uuid.uuid4().hex
    draft = made.path / "plan.json"
    is_claimed = False
    try:
        make_directories(made.path, durability)
        write_file(made.path / "zarr.json", document.encode(), durability=durability, attempt=attempt)
        write_file(draft, dump(facts), durability=durability, attempt=attempt)
        try:
            os.link(draft, target.run_path / "plan.json")  # atomic, and fails where one is
        except FileExistsError:
            remove(made.path)
            return None
        is_claimed = True
        if durability != "none":
            PosixStore(target.run_path).sync_parents(target.run_path / "plan.json", set())
    except OSError as error:
        made.take_back(is_claimed=is_claimed)
        message = f"store={str(target.path)!r}: cannot write beside it: {error}; give a directory that can be written to"
        raise StoreError(message, key=str(made.path), errno=error.errno) from error
    return made


def _refuse_other(found: RunDirectory, plan: Mapping[str, Any]) -> None:
    holders = live_holders(found.path)
    if holders:
        raise held(found, holders[0])
    changed = differences(found.facts.get("identity"), plan.get("identity"))
    raise JournalError(
        f"another plan was begun for {found.target.path} and has not ended; it differs in {'; '.join(changed)}. Run it again as it "
        "was to finish it, or start over with restart=True (--restart), which takes its shards away",
        path=str(found.target.run_path),
        differences=changed,
    )


def differences(old: Any, new: Any, at: str = "") -> list[str]:
    """Fields in which two documents differ, with both values, shortened."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        found = []
        for name in [*old, *(name for name in new if name not in old)]:
            found += differences(old.get(name), new.get(name), f"{at}.{name}" if at else str(name))
        return found
    if old == new:
        return []
    return [f"{at}: {_short(old)} there, {_short(new)} now"]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def probe(path: str, token: str) -> tuple[str, int | None] | None:
    """Write a file beside a token that the client left, and say what went wrong; run on every worker before a run.

    Returns
    -------
    (str, int or None) or None
        Message and error number; None where all is well.
    """
    store = PosixStore(path)
    leaf = f"probe-{uuid.uuid4().hex}"
    try:
        with store.transaction("none", uuid.uuid4().hex) as transaction:
            writer = transaction.create(leaf)
            writer.write([b"probe"])
            writer.finish()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(Path(path) / leaf)
        if not is_there(Path(path) / token):
            return f"{path} is another directory here than for the client", None
    except OSError as error:
        return f"{path} is missing here" if error.errno == errno.ENOENT else str(error), error.errno
    return None

"""Reading journals back: what is committed, what cannot be taken on trust, and what dead tasks have left lying about."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shardwrite.format.metadata import ArrayMetadata
from shardwrite.grid import Box
from shardwrite.journal.lease import identity, live_holders
from shardwrite.journal.ledger import Ledger
from shardwrite.journal.records import Beginning, Entry, parse_lines
from shardwrite.journal.rundir import RunDirectory, discard_ends, drivers_in
from shardwrite.stores import (
    TEMPORARY_SUFFIX,
    PosixStore,
    as_store_error,
    listed,
    read_blocks,
    read_limit,
    remove_state,
)
from shardwrite.target import Target

__all__ = [
    "History",
    "Replay",
    "discard",
    "drivers_on",
    "histories",
    "replay",
    "shards_of",
    "stale_temporaries",
    "sweep",
    "sweep_listed",
    "unended",
]

_NBYTES_PER_SHARD = 4096  # of a journal: a task of one shard takes two lines of a few hundred bytes, and may be run again
_LATEST = 2.0**40  # seconds


@dataclass(slots=True)
class Replay:
    """What the journals of a run say.

    Attributes
    ----------
    ledger : Ledger
        What is committed.
    untrusted : set of int
        Ranks in it that a power cut may have taken: committed at level ``"none"``, and not in this boot of this host.
    unended : list of Beginning
        Tasks of dead processes that did not end; their temporaries may be there.
    n_bad_lines : int
        Lines that are torn or do not match their checksum.
    n_journals : int
        Files.
    n_redone : int
        Shards that more than one line commits.
    lost_boot : bool
        Whether the run began, or a journal was written, in another boot or on another host, so that lines may be lost.
    """

    ledger: Ledger
    untrusted: set[int] = field(default_factory=set)
    unended: list[Beginning] = field(default_factory=list)
    n_bad_lines: int = 0
    n_journals: int = 0
    n_redone: int = 0
    lost_boot: bool = False


@dataclass(slots=True)
class _File:
    """One journal, parsed."""

    driver: str
    process: str
    job: str
    begun: float
    changed: float
    is_trusted: bool
    is_of_this_boot: bool
    entries: list[Entry] = field(default_factory=list)
    unended: list[Beginning] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    n_bad_lines: int = 0


def replay(
    run: RunDirectory, metadata: ArrayMetadata, driver: str = "", *, looking: bool = False
) -> Replay:
    """Read the journals of a run.

    Parameters
    ----------
    run : RunDirectory
        The run.
    metadata : ArrayMetadata
        Of what the run writes.
    driver : str
        Read only what was written on behalf of this driver.
    looking : bool
        Write nothing; see `live_holders`.
    """
    grid = metadata.grid
    found = Replay(Ledger(grid))
    files = list(_parsed(_journals(run, driver), grid.n_shards))
    alive = drivers_of(
        run, looking=looking
    )  # only now: whoever has begun to write by then has a lease
    for file in sorted(files, key=lambda f: f.is_trusted):  # what is trusted comes last, and wins
        for entry in file.entries:
            found.n_redone += int(found.ledger.is_done[list(entry.shards)].sum())
            found.ledger.enter(entry, file.process)
            if file.is_trusted:
                found.untrusted.difference_update(entry.shards)
            else:
                found.untrusted.update(entry.shards)
        found.n_bad_lines += file.n_bad_lines
        if file.driver not in alive:
            found.unended += file.unended
            found.lost_boot |= not file.is_of_this_boot
    begun_by = run.facts.get("begun_by")
    found.lost_boot |= not (
        isinstance(begun_by, dict) and begun_by.get("boot") == identity()["boot"]
    )
    found.n_journals = len(files)
    return found


def _parsed(journals: Iterable[Path], n_shards: int) -> Iterator[_File]:
    """Journals, one by one, without those that are gone."""
    for path in journals:
        with (
            as_store_error(str(path), "cannot read"),
            contextlib.suppress(FileNotFoundError),
        ):  # the run ended meanwhile
            yield _parse(path, n_shards)


def _parse(path: Path, n_shards: int) -> _File:
    lines = parse_lines(read_blocks(path, read_limit() + n_shards * _NBYTES_PER_SHARD))
    head = next(lines, None) or {}
    said = head.get("writer")
    writer: dict[str, Any] = said if isinstance(said, dict) else {}
    boot = identity()["boot"]
    is_of_this_boot = bool(boot) and writer.get("boot") == boot
    changed = path.stat().st_mtime
    file = _File(
        driver=str(head.get("driver", "")),
        process=f"{writer.get('host', '?')}:{writer.get('pid', '?')}",
        job=str(writer.get("job", "")),
        begun=_time(head.get("begun"), changed),
        changed=changed,
        is_trusted=is_of_this_boot or head.get("durability") in ("full", "batch"),
        is_of_this_boot=is_of_this_boot,
        n_bad_lines=0 if head else 1,
    )
    begun: dict[str, Beginning] = {}
    for line in lines:
        if line is None:
            file.n_bad_lines += 1
            continue
        try:
            if "begins" in line:
                beginning = Beginning.from_dict(line)
                begun[beginning.attempt] = beginning
            elif "failed" in line:
                file.failures.append(str(line["failed"]))
            else:
                entry = Entry.from_dict(line, n_shards)
                if not entry.more:
                    begun.pop(entry.attempt, None)
                file.entries.append(entry)
        except ValueError:
            file.n_bad_lines += 1
    file.unended = list(begun.values())
    return file


def _time(said: Any, otherwise: float) -> float:
    return float(said) if isinstance(said, float | int) and 0 <= said < _LATEST else otherwise


@dataclass(frozen=True, slots=True)
class History:
    """What one process has committed.

    Attributes
    ----------
    driver : str
        On whose behalf.
    process : str
        Host and pid.
    job : str
        Of the scheduler, for people; empty where there is none.
    shards : list of int
        Ranks in the order of their commits.
    seconds : float
        From the first line to the last, by the clocks of its host and of the file system.
    failures : list of str
        Causes that ended what it did; see `cause_of`.
    n_unended : int
        Tasks that it began to commit and did not end.
    """

    driver: str
    process: str
    job: str
    shards: list[int]
    seconds: float
    failures: list[str]
    n_unended: int


def histories(run: RunDirectory, metadata: ArrayMetadata) -> list[History]:
    """What each process that has committed something did, while and after it lives."""
    found = []
    for file in _parsed(_journals(run), metadata.grid.n_shards):
        shards = [rank for entry in file.entries for rank in entry.shards]
        seconds = max(0.0, file.changed - file.begun)
        found.append(
            History(
                file.driver,
                file.process,
                file.job,
                shards,
                seconds,
                file.failures,
                len(file.unended),
            )
        )
    return found


def sweep(run: RunDirectory, metadata: ArrayMetadata, found: Replay, *, may_list: bool) -> int:
    """Remove what dead processes have left: temporaries by their names, and part files.

    The array is listed only where journals may have lost the names: after a power cut, or on another host; and never by the
    many processes that write a part each.

    Returns
    -------
    int
        Files removed.
    """
    all_parts = listed(run.path, "parts-")
    drivers = drivers_in(run.path)
    alive = drivers_of(run)  # only now, as in `replay`
    for parts in all_parts:
        if parts.name.removeprefix("parts-") not in alive:
            remove_state(parts)
    discard_ends(run.target, [driver for driver in drivers if driver not in alive])
    store = PosixStore(run.target.path)
    if may_list and (found.lost_boot or found.n_bad_lines):
        return sweep_listed(run.target.path, lambda: drivers_on(run.target))
    return discard(store, metadata, found.unended)


def unended(run: RunDirectory, metadata: ArrayMetadata, own_journals: str = "") -> list[Beginning]:
    """Tasks that have begun and not ended, but for those in journals whose names begin like this."""
    others = [
        path for path in _journals(run) if not (own_journals and path.name.startswith(own_journals))
    ]
    return [
        beginning for file in _parsed(others, metadata.grid.n_shards) for beginning in file.unended
    ]


def discard(store: PosixStore, metadata: ArrayMetadata, beginnings: Iterable[Beginning]) -> int:
    """Remove the temporaries of tasks; how many there were."""
    n_removed = 0
    for beginning in beginnings:
        for index in shards_of(beginning, metadata):
            n_removed += store.discard_temporary(metadata.shard_key(index), beginning.attempt)
    return n_removed


def _journals(run: RunDirectory, driver: str = "") -> list[Path]:
    return listed(run.path, f"journal-{driver}-" if driver else "journal-", ".jsonl")


def shards_of(beginning: Beginning, metadata: ArrayMetadata) -> Iterable[tuple[int, ...]]:
    """Positions of the shards of a task, as far as they are in the grid."""
    counts = metadata.grid.counts
    if not len(beginning.start) == len(beginning.stop) == len(counts):
        return []
    start = tuple(max(0, a) for a in beginning.start)
    stop = tuple(min(b, n) for b, n in zip(beginning.stop, counts, strict=True))
    elements = [
        (a * s, min(b * s, n))
        for a, b, s, n in zip(start, stop, metadata.grid.shards, metadata.grid.shape, strict=True)
    ]
    if any(a >= b for a, b in elements):
        return []
    return metadata.grid.shards_in(
        Box(tuple(a for a, _ in elements), tuple(b for _, b in elements))
    )


def drivers_of(run: RunDirectory, *, looking: bool = False) -> set[str]:
    """Names of the processes that work on a run now."""
    return {str(holder["driver"]) for holder in live_holders(run.path, looking=looking)}


def drivers_on(target: Target, *, looking: bool = False) -> set[str]:
    """Names of the processes that work on any run on an array."""
    paths = [
        path
        for run_target in (target, *target.others)
        for path in listed(run_target.run_path, "run-")
    ]
    return {
        str(holder["driver"]) for path in paths for holder in live_holders(path, looking=looking)
    }


def _raise(error: OSError) -> None:
    """What `os.walk` would pass over, but for a directory that is gone."""
    if not isinstance(error, FileNotFoundError):
        raise error


def sweep_listed(array: Path, drivers_alive: Callable[[], set[str]]) -> int:
    """Remove every temporary under an array but those of living drivers; links are not followed.

    Parameters
    ----------
    array : path
        Where to look.
    drivers_alive : callable
        Says who is alive, once the temporaries are known.

    Returns
    -------
    int
        Files removed.
    """
    n_removed = 0
    for path in stale_temporaries(array, drivers_alive):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
            n_removed += 1
    return n_removed


def stale_temporaries(array: Path, drivers_alive: Callable[[], set[str]]) -> list[Path]:
    """Temporaries under an array of drivers that are not alive; see `sweep_listed`."""
    found = []
    for directory, _, leaves in os.walk(array, onerror=_raise, followlinks=False):
        found += [
            Path(directory) / leaf
            for leaf in leaves
            if leaf.startswith(".") and leaf.endswith(TEMPORARY_SUFFIX)
        ]
    alive = drivers_alive()
    return [
        path
        for path in found
        if f".{path.name.removesuffix(TEMPORARY_SUFFIX)}".split(".")[-2] not in alive
    ]

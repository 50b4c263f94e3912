"""Replay of a run's journals.

It tells which shards are committed, which of these must be checked first, and which temporary files
dead processes have left behind.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.codecs.documents import JSON
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.journal import lease
from shardwrite.journal.documents import discard_ends
from shardwrite.journal.lease import file_system_time, live_holders, work_files
from shardwrite.journal.ledger import Ledger, from_runs
from shardwrite.journal.lines import Beginning, Checked, Entry, Head, parse_lines, shards_of
from shardwrite.journal.rundir import RunDirectory, is_resumed
from shardwrite.place.target import Target
from shardwrite.stores.base import Store
from shardwrite.stores.looking import as_store_error, listed, read_blocks, read_limit
from shardwrite.stores.removal import remove_state

# Room in a journal for each shard. A task of one shard writes two lines of a few hundred bytes, and
# it may run more than once.
_NBYTES_PER_SHARD = 4096

# How long a shard that was checked need not be checked again before a run in parts ends
_CHECK_SECONDS = 86400.0


@dataclass(slots=True)
class Replay:
    """Content of all journals of a run."""

    ledger: Ledger  # committed shards
    # Ranks of committed shards that a power cut may have destroyed: they were committed at level
    # ``"none"``, on another host or before this host was last started
    untrusted: set[int] = field(default_factory=set)
    # Tasks of dead processes that did not end. Their temporary files may still exist.
    unended: list[Beginning] = field(default_factory=list)
    # Number of lines that are torn, do not match their checksum, or are not valid
    n_bad_lines: int = 0
    # Number of times that a line commits a shard which an earlier line has committed
    n_redone: int = 0
    # Whether lines may be lost: the run began on another host or before this host was last started,
    # or a dead process wrote its journal there or then. Or its journals come from a bucket, where
    # the last lines may be missing.
    lost_boot: bool = False


@dataclass(slots=True)
class JournalFile:
    """Content of one journal file."""

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
    checked: list[Checked] = field(default_factory=list)
    n_bad_lines: int = 0


def replay(
    run: RunDirectory,
    metadata: ArrayMetadata,
    driver: str = "",
    *,
    looking: bool = False,
    files: Sequence[JournalFile] | None = None,
    among: Sequence[Path] | None = None,
) -> Replay:
    """Read the journals of a run, as far as they tell of one of its arrays.

    - `files`: what `journals` has read; read now by default.
    - `among`: directories whose journals are read; by default, all in which processes work.
    """
    grid = metadata.grid
    found = Replay(Ledger(grid))
    if files is None:
        files = journals(run, grid.n_shards, driver, among=among)
    # The leases are read after the journals: each driver whose journal was read, and which is still
    # alive, has a lease by now. Nobody asks for the lease of a process that has left nothing.
    asks = any(file.unended or not file.is_of_this_boot for file in files)
    alive = drivers_of(run, looking=looking, among=among) if asks else set()
    # Trusted journals come last, so that their entries replace those of the others.
    for file in sorted(files, key=lambda f: f.is_trusted):
        for entry in file.entries:
            if entry.output != run.number:
                continue
            if not entry.fits(grid.n_shards):
                found.n_bad_lines += 1
                continue
            found.n_redone += int(found.ledger.is_done[list(entry.shards)].sum())
            found.ledger.enter(entry, file.process)
            if file.is_trusted:
                found.untrusted.difference_update(entry.shards)
            else:
                found.untrusted.update(entry.shards)
        found.n_bad_lines += file.n_bad_lines
        if file.driver not in alive:
            found.unended += [begun for begun in file.unended if begun.output == run.number]
            found.lost_boot |= not file.is_of_this_boot
    begun_by = run.record.begun_by
    found.lost_boot |= begun_by is None or begun_by.boot != lease.boot_id()
    found.lost_boot |= is_resumed(run.target, run.run)
    return found


def journals(
    run: RunDirectory,
    n_shards: int,
    driver: str = "",
    *,
    but: str = "",
    among: Sequence[Path] | None = None,
) -> list[JournalFile]:
    """Read the journals of a run, with the lines about all of its arrays.

    - `n_shards`: number of shards of the array, or of the part of it that the run writes.
    - `driver`: read only those that were written for this driver.
    - `but`: prefix of the names of journals that are left out; empty for none.
    - `among`: as in `replay`.
    """
    paths = journals_of(run, driver, among)
    files = []
    for path in paths:
        if but and path.name.startswith(but):
            continue
        # A journal disappears if the run ends meanwhile.
        with as_store_error(str(path), "cannot read"), contextlib.suppress(FileNotFoundError):
            files.append(_parse(run, path, n_shards))
    return files


def lines_of(run: RunDirectory, path: Path, n_shards: int) -> Iterator[dict[str, JSON] | None]:
    """Lines of a journal, as `parse_lines` gives them, within a limit for the size of the file."""
    together = run.record.together
    n = n_shards if together is None else together.n_shards
    return parse_lines(read_blocks(path, read_limit() + n * _NBYTES_PER_SHARD))


def _parse(run: RunDirectory, path: Path, n_shards: int) -> JournalFile:
    lines = lines_of(run, path, n_shards)
    first = next(lines, None)
    head = Head.from_dict(first or {})
    writer, boot = head.writer, lease.boot_id()
    is_of_this_boot = bool(boot) and writer.boot == boot
    changed = path.stat().st_mtime
    file = JournalFile(
        driver=head.driver or path.name.split("-")[1],  # if the first line is damaged
        process=f"{writer.host or '?'}:{writer.pid or '?'}",
        job=writer.job or "",
        begun=changed if head.begun is None else head.begun,
        changed=changed,
        is_trusted=is_of_this_boot or head.durability in ("full", "batch"),
        is_of_this_boot=is_of_this_boot,
        n_bad_lines=0 if first else 1,
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
            elif "checked" in line:
                file.checked.append(Checked.from_dict(line))
            elif "failed" in line:
                file.failures.append(str(line["failed"]))
            else:
                entry = Entry.parsed(line)
                if not entry.more:
                    begun.pop(entry.attempt, None)
                file.entries.append(entry)
        except ValueError:
            file.n_bad_lines += 1
    file.unended = list(begun.values())
    return file


def checked_before(
    run: RunDirectory, ledger: Ledger, files: Iterable[JournalFile], *, deep: bool
) -> npt.NDArray[np.float64]:
    """When each shard was last found to be what the ledger says; 0 if that was not within a day.

    - `deep`: only looks that decoded inner chunks, on this host since it was last started.
    - Returns: times when looks began, by the clock of the file system of the run.
    """
    found = np.zeros(ledger.grid.n_shards)
    told = [file for file in files if file.checked and (file.is_of_this_boot or not deep)]
    now = file_system_time(run.shared) if told else 0.0
    for line in (line for file in told for line in file.checked):
        is_recent = 0 <= now - line.since <= _CHECK_SECONDS
        if line.output != run.number or line.deep < deep or not is_recent:
            continue
        with contextlib.suppress(ValueError):  # ranks of no shards here
            ranks = from_runs(line.checked, ledger.grid.n_shards)
            if ledger.checksum(ranks) == line.facts_crc32c:
                found[ranks] = np.maximum(found[ranks], line.since)
    return found


def sweep_run(
    run: RunDirectory, targets: Sequence[Target], among: Sequence[Path] | None = None
) -> None:
    """Remove part files of dead processes, and what is left where they wrote documents.

    - `targets`: arrays of the run, of which these may be documents.
    - `among`: directories of the run in which files are looked for; by default, all.
    """
    there = work_files(run.shared, among=among)
    all_parts = [path for path in there if path.name.startswith("parts-")]
    drivers = [path.stem.removeprefix("lease-") for path in there if path.name.startswith("lease-")]
    if all_parts or drivers:
        # Read after the listings, for the same reason as in `replay`
        alive = drivers_of(run, among=among)
        for parts in all_parts:
            if parts.name.removeprefix("parts-") not in alive:
                remove_state(parts)
        discard_ends(targets, [driver for driver in drivers if driver not in alive])


def sweep(run: RunDirectory, metadata: ArrayMetadata, found: Replay, *, may_list: bool) -> int:
    """Remove the temporary files of tasks of dead processes.

    They are removed by name. The array is listed only if journals may have lost names,
    after a power cut or where another host has written.

    - `may_list`: whether the array may be listed. The processes of a job array, which write one
      part each, never list it, because there can be many of them.
    """
    if may_list and (found.lost_boot or found.n_bad_lines):
        return run.place.sweep(lambda: drivers_on(run.target))
    return discard(run.store, metadata, found.unended) if found.unended else 0


def unended(files: Iterable[JournalFile], number: int) -> list[Beginning]:
    """Tasks on one array of a run that have begun and not ended."""
    return [begun for file in files for begun in file.unended if begun.output == number]


def begun(run: RunDirectory, metadata: ArrayMetadata) -> list[Beginning]:
    """All tasks that have begun, ended or not.

    No other shards were touched, unless a power cut or a torn line has lost names; see
    `Replay.lost_boot` and `Replay.n_bad_lines`.
    """
    found = []
    for path in journals_of(run):
        with as_store_error(str(path), "cannot read"), contextlib.suppress(FileNotFoundError):
            for line in lines_of(run, path, metadata.grid.n_shards):
                if line is not None and "begins" in line:
                    with contextlib.suppress(ValueError):  # `Replay.n_bad_lines` counts it
                        found.append(Beginning.from_dict(line))
    return [beginning for beginning in found if beginning.output == run.number]


def discard(store: Store, metadata: ArrayMetadata, beginnings: Iterable[Beginning]) -> int:
    """Remove the temporary files of tasks, and return how many there were."""
    n_removed = 0
    for beginning in beginnings:
        for index in shards_of(beginning, metadata):
            n_removed += store.discard_temporary(metadata.shard_key(index), beginning.attempt)
    return n_removed


def journals_of(
    run: RunDirectory, driver: str = "", among: Sequence[Path] | None = None
) -> list[Path]:
    """Paths of the journals of a run, or of those that were written for a driver.

    - `among`: as in `replay`.
    """
    prefix = f"journal-{driver}-" if driver else "journal-"
    return work_files(run.shared, prefix, ".jsonl", among)


def drivers_of(
    run: RunDirectory, *, looking: bool = False, among: Sequence[Path] | None = None
) -> set[str]:
    """Names of the drivers that work on a run now. `looking` is as in `live_holders`.

    - `among`: directories whose leases are read; by default, all.
    """
    return {holder.driver for holder in live_holders(run.shared, looking=looking, among=among)}


def drivers_on(target: Target, *, looking: bool = False) -> set[str]:
    """Names of the drivers that work on any run on an array. `looking` is as in `live_holders`."""
    paths = [
        path
        for run_target in (target, *target.others)
        for path in listed(run_target.run_path, "run-")
    ]
    if target.home is not None:
        paths += listed(target.home, "run-")
    return {holder.driver for path in paths for holder in live_holders(path, looking=looking)}

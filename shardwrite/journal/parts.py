"""What a process of a job array reads and leaves when it writes a part of a run.

A job array may have thousands of processes that begin at the same moment. So a process looks only
at what it needs, and the number of its steps does not depend on the number of the others. In
italics is what a crash leaves after each step:

1. Look at the directory beside the array, and read ``plan.json``. List ``run-<run>/``, and read
   ``zarr.json`` in it. All must belong to users who are trusted. *Nothing.*
2. Make ``run-<run>/in-<count>-parts/<index>/``, the directory of the part. *An empty directory,
   which goes with the run.*
3. Take a lease and leave a token there. *A lease of a dead process.*
4. If the directory was there before, read its journals, and remove the temporary files of dead
   processes that they name. Read the journals of others only if there are some in ``run-<run>/``,
   or if parts of another number were written. *As before step 4.*
5. Commit shards, and enter them into a journal there. *Shards that the next attempt at this part
   finds in the journal.*

What dead processes have left in other parts is removed by the next attempt at these, or by
`finalize`, which reads the journals of all parts. A token lies in the directory of the run in any
case, so that a renaming of that directory stops all processes.
"""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

from shardwrite._dataclass import dataclass
from shardwrite.errors import RunEndedError
from shardwrite.format.node import DOCUMENT
from shardwrite.journal.begin import begun_run, has_lost_array, has_receipt
from shardwrite.journal.lease import is_cut, part_name
from shardwrite.journal.rundir import RunDirectory, RunView
from shardwrite.journal.trust import TrustedDirectory
from shardwrite.place.target import Target
from shardwrite.stores.directories import copy_rights
from shardwrite.stores.looking import as_store_error, listed


@dataclass(frozen=True, slots=True)
class PartDirectory:
    """Where a process works that writes a part of a run."""

    path: Path
    # With journals that may tell of shards of the part
    journal_directories: tuple[Path, ...]


def run_of_part(target: Target) -> RunDirectory | None:
    """Find the run of which this process is about to write a part, as far as it goes on.

    - Returns: None if there is no run that makes an array, or none that goes on. What is left of
      such a run was not looked at.
    - Raises UntrustedStateError if what is read is not trusted.
    """
    beside = TrustedDirectory.at(target, target.run_path)
    data = None if beside is None else beside.read("plan.json")
    if beside is None or data is None:
        return None
    run = begun_run(target, data)
    view = _view_of(run, beside) if run.makes_array else None
    if view is None:
        return None
    run = replace(run, view=view)
    return None if has_lost_array(run) or has_receipt(run) else run


def _view_of(run: RunDirectory, beside: TrustedDirectory) -> RunView | None:
    """What a run's directory holds; None if the run is over."""
    above: TrustedDirectory | None = beside
    if run.home is not None:
        home = TrustedDirectory.at(run.target, run.home.parent)
        above = None if home is None else home.directory(run.home.name)
    found = None if above is None else above.listing(run.shared.name)
    if found is None:
        return None
    directory, names = found
    own = directory if run.path == run.shared else directory.directory(run.path.name)
    document = None if own is None else own.read(DOCUMENT)
    return None if document is None else RunView(directory, names, document)


def enter_part(run: RunDirectory, index: int, count: int) -> PartDirectory:
    """Make the directory of a part, or find what an earlier attempt has left in it.

    - `run`: what `run_of_part` has found.
    - Raises RunEndedError if the run has ended meanwhile.
    """
    view, path = run.view, run.shared / part_name(index, count)
    if view is None:
        raise ValueError("nothing was seen of the run")
    cut = path.parent.name
    others = [name for name in view.names if name != cut and is_cut(name)]
    journal_directories = [part for name in sorted(others) for part in listed(run.shared / name)]
    if any(name.startswith("journal-") for name in view.names):
        journal_directories.append(run.shared)
    view.directory.check_entries([*others, *(n for n in view.names if n.startswith("journal-"))])
    with as_store_error(str(path), "cannot make"):
        try:
            is_new = _make(path, view.directory)
        except FileNotFoundError as error:
            raise RunEndedError("another process has ended this run", path=str(run.path)) from error
    above = view.directory.directory(cut)
    if above is not None and not is_new:
        above.check_entries([path.name])
        journal_directories.append(path)
    return PartDirectory(path, tuple(journal_directories))


def _make(path: Path, above: TrustedDirectory) -> bool:
    """Make the directory of a part; False if it is there.

    Where other users may write into the run's directory, they may write into this one, too.
    """
    is_shared = bool(above.mode & (stat.S_IWGRP | stat.S_IWOTH))

    def make(directory: Path) -> bool:
        try:
            os.mkdir(directory, 0o700 if is_shared else above.mode & 0o777)
        except FileExistsError:
            return False
        if is_shared:
            copy_rights(above.path, directory)
        return True

    try:
        return make(path)
    except FileNotFoundError:  # the first part of so many
        make(path.parent)
        return make(path)

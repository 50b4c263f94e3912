"""The directory beside an array while it is written: ``<array>.shardwrite/``.

``plan.json``
    The plan, its digest, the name of the run, and who began it.
``run-<run>/``
    All that belongs to the run: ``zarr.json`` until it is published, a ``journal-*.jsonl`` for each process that commits,
    a ``lease-*.json`` for each that drives, ``parts-*/`` with encoded units, ``replaced/`` with the array that stood there before.
    Its existence is what allows a task to commit: renaming it away stops every straggler.

The order of effects of a run, and what a crash after each leaves behind:

1. Look at what stands in the array's place; refuse, or go on. *Nothing has changed.*
2. Make ``run-<run>/`` with the metadata, and link ``plan.json`` into place; whoever comes second finds it and joins, or is refused.
   *An empty run; the array is untouched. From here on the same command goes on with this run.*
3. With ``mode="w"``, rename the old array to ``run-<run>/replaced``. *No array.*
4. Commit shards, and enter each task's into the journal. *Shards without metadata: no reader sees an array.*
5. Publish ``zarr.json``, then bring consolidated metadata of the groups above up to date. *The array, whole.*
6. Leave a receipt in the array, rename ``run-<run>/`` to ``ended-<run>/``, remove it, unlink ``plan.json``. *The array; the same
   command does what is left of this step.*

Starting over takes the run's shards away instead: ``run-<run>/`` becomes ``taken-<run>/``, the unpublished array goes into it, both
are removed, and ``plan.json`` after them.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from crc32c import crc32c

from shardwrite.errors import JournalError, SpecError, StoreError
from shardwrite.journal.lease import is_stale, live_holders
from shardwrite.journal.lock import exclusive
from shardwrite.journal.receipt import Receipt
from shardwrite.journal.redo import recover_changes
from shardwrite.stores import PosixStore, as_store_error, is_there, listed, make_directories, read_file, read_json, write_file
from shardwrite.target import RECEIPT_NAME, UPDATES, Target, shape_at, shape_of

__all__ = ["RunDirectory", "dump", "held", "remove"]


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The run that stands beside one array.

    Attributes
    ----------
    target : Target
        The array.
    facts : dict
        What ``plan.json`` says.
    """

    target: Target
    facts: dict[str, Any]

    @property
    def run(self) -> str:
        """Name of the run."""
        return str(self.facts["run"])

    @property
    def digest(self) -> str:
        """Of its plan."""
        return str(self.facts["digest"])

    @property
    def path(self) -> Path:
        """All that belongs to the run; it is current as long as this exists."""
        return self.target.run_path / f"run-{self.run}"

    @property
    def ended_path(self) -> Path:
        """What becomes of it at the end."""
        return self.target.run_path / f"ended-{self.run}"

    @property
    def taken_path(self) -> Path:
        """What becomes of it where another run takes its place."""
        return self.target.run_path / f"taken-{self.run}"

    @property
    def document(self) -> dict[str, Any]:
        """The array's metadata; what is not the run's is refused, because it would be published."""
        path = self.path / "zarr.json"
        found, seal = read_json(path), self.facts.get("document_crc32c")
        is_ours = seal is None or crc32c(read_file(path) or b"") == seal  # an older version has left none
        if not isinstance(found, dict) or not is_ours:
            raise JournalError(
                f"{path} is not what the run was begun with; remove {self.target.run_path} after a look", path=str(path)
            )
        shape_of(found, path)
        return found

    @property
    def has_ended(self) -> bool:
        """Whether it is known to be over; storage that cannot tell leaves it standing, so that its own error is what people see."""
        try:
            return not is_there(self.path)
        except StoreError:
            return False

    def parts(self, driver: str) -> Path:
        """Directory for the encoded units of a driver's tasks."""
        return self.path / f"parts-{driver}"

    def make_room(self, durability: str) -> None:
        """Step 3; any number of processes may do it, in any order, and only what stood there before the run is moved.

        The name ``replaced`` is taken once and stays taken, so that a second rename fails, whenever it comes.
        """
        replaced = self.path / "replaced"
        if self.facts["replaces"] and not is_there(replaced):
            with _losing(errno.ENOTEMPTY, errno.EEXIST):  # another process was first
                try:
                    os.rename(self.target.path, replaced)
                except FileNotFoundError:  # gone since the run began; take the name
                    nothing = self.path / f"nothing-{uuid.uuid4().hex}"
                    nothing.mkdir()  # no parents: where the run is gone, it must not come back
                    (nothing / "was-there").mkdir()
                    os.rename(nothing, replaced)
        make_directories(self.target.path, durability)

    def publish(self, durability: str, driver: str) -> None:
        """Step 5, taken by a driver."""
        document = self.document
        attempt = f"{driver}.end"
        for group in self.target.groups:
            if not is_there(group / "zarr.json"):
                new = {"zarr_format": 3, "node_type": "group", "attributes": {}}
                write_file(group / "zarr.json", dump(new), durability=durability, attempt=attempt)
        write_file(self.target.path / "zarr.json", dump(document), durability=durability, attempt=attempt)
        self._consolidate(document, durability, attempt)

    def grow(self, to: Sequence[int], durability: str, driver: str) -> None:
        """Step 5 of an update: the array's shape, where that has become larger. Under the lock of `ending`."""
        before = shape_at(self.target.path)
        if len(before) != len(to):
            raise JournalError(f"{self.target.path} is not the array that this run was begun for", path=str(self.target.path))
        shape = [max(sizes) for sizes in zip(before, to, strict=True)]
        if shape != before:
            document = {**read_json(self.target.path / "zarr.json"), "shape": shape}
            attempt = f"{driver}.end"
            write_file(self.target.path / "zarr.json", dump(document), durability=durability, attempt=attempt)
            self._consolidate(document, durability, attempt)

    def ending(self) -> contextlib.AbstractContextManager[None]:
        """Held while an update changes what the array has one of: its metadata and its receipt."""
        return exclusive(replace(self.target, update="").run_path / "lock-end.json", self.path)

    def _consolidate(self, document: Mapping[str, Any], durability: str, attempt: str) -> None:
        """Put the array into the consolidated metadata of every group above that has some."""
        for group in self.target.path.parents:
            if not is_there(group / "zarr.json"):
                return
            metadata = read_json(group / "zarr.json")
            if not isinstance(metadata, dict) or metadata.get("node_type") != "group":
                return
            consolidated = metadata.get("consolidated_metadata")
            if consolidated:
                if not isinstance(consolidated, dict) or not isinstance(consolidated.get("metadata"), dict):
                    message, remedy = "does not hold consolidated metadata", "consolidate the group again, or remove it"
                    raise SpecError(message, field="consolidated_metadata", value=str(group / "zarr.json"), remedy=remedy)
                relative = self.target.path.relative_to(group)
                for parent in [p for p in relative.parents if p != Path()]:
                    below = read_json(group / parent / "zarr.json")
                    consolidated["metadata"].setdefault(parent.as_posix(), below)
                consolidated["metadata"][relative.as_posix()] = document
                write_file(group / "zarr.json", dump(metadata), durability=durability, attempt=attempt)

    def leave(self, receipt: Receipt, durability: str, driver: str) -> None:
        """Step 6, taken by a driver: the receipt."""
        write_file(self.target.path / RECEIPT_NAME, receipt.encode(), durability=durability, attempt=f"{driver}.end")

    def end(self) -> None:
        """Step 6, the rest."""
        with contextlib.suppress(FileNotFoundError):  # another process was first
            os.rename(self.path, self.ended_path)
        self.remove_ended()

    def remove_ended(self) -> None:
        """What is left of a run that has ended, on the way in or out; ``plan.json`` goes last, so that this is found again."""
        with as_store_error(str(self.ended_path), "cannot remove"):
            discard_ends(self.target, listed(self.ended_path, "lease-", ".json"))
            remove(self.ended_path)
            discard_drafts(self.target, self.path)
            (self.target.run_path / "plan.json").unlink(missing_ok=True)
            remove_empty(self.target)

    def take_back(self, *, is_claimed: bool) -> None:
        """End a run that has changed nothing yet; an error here must not hide the one that led here.

        Parameters
        ----------
        is_claimed : bool
            Whether ``plan.json`` names it, so that others may have joined.
        """
        with contextlib.suppress(OSError):
            if is_claimed:
                os.rename(self.path, self.ended_path)
                self.remove_ended()
            else:
                remove(self.path)
                remove_empty(self.target)

    def start_over(self) -> None:
        """Take a run and its shards away; what it was to replace and has not yet moved stays.

        Raises
        ------
        JournalError
            If a process works on it.
        """
        holders = live_holders(self.path)
        if holders:
            raise held(self, holders[0])
        with as_store_error(str(self.path), "cannot take away"), contextlib.suppress(FileNotFoundError):
            os.rename(self.path, self.taken_path)
        self.remove_taken()

    def remove_taken(self) -> None:
        """What is left of a run that was taken away; shards amid a change are made whole first."""
        with as_store_error(str(self.taken_path), "cannot remove"):
            recover_changes(self.taken_path, PosixStore(self.target.path))
            is_in_place = self.facts.get("mode") == "r+"
            untouched = is_in_place or (self.facts["replaces"] and not is_there(self.taken_path / "replaced"))
            if not untouched and is_there(self.target.path):
                with _losing(errno.ENOENT):  # another process was first
                    os.rename(self.target.path, self.taken_path / f"array-{uuid.uuid4().hex}")
            remove(self.taken_path)
        self.remove_ended()


def discard_drafts(target: Target, but: Path | None = None) -> None:
    """Remove what processes have left that died before their run began, and the directory if that was all."""
    for draft in listed(target.run_path, "run-"):
        if draft != but and is_stale(draft):
            remove(draft)
    if but is None:
        remove_empty(target)


def remove_empty(target: Target) -> None:
    """The directory beside the array goes with its last run."""
    beside = replace(target, update="").run_path
    for emptied in (target.run_path, beside / UPDATES, beside):
        with contextlib.suppress(OSError):  # another run has begun there; or it stays, and does no harm
            emptied.rmdir()


def discard_ends(target: Target, leases: Sequence[Path]) -> None:
    """Remove the temporaries of drivers that died in steps 5 and 6, whose leases tell their names."""
    for lease in leases:
        driver = lease.stem.removeprefix("lease-")
        for directory in (target.path, *target.groups):
            for name in ("zarr.json", RECEIPT_NAME):
                PosixStore(directory).discard_temporary(name, f"{driver}.end")


@contextlib.contextmanager
def _losing(*numbers: int) -> Any:
    """Pass over the errors that say another process was first."""
    try:
        yield
    except OSError as error:
        if error.errno not in numbers:
            raise


def remove(directory: Path) -> None:
    """Remove a tree, which another process may be removing too."""

    def failed(_: object, __: str, error: Any) -> None:
        if not isinstance(error[1], FileNotFoundError):
            raise error[1]

    shutil.rmtree(directory, onerror=failed)


def dump(document: Mapping[str, Any]) -> bytes:
    """A document of the run as it is stored."""
    return json.dumps(document, indent=2).encode()


def held(found: RunDirectory, holder: Mapping[str, Any]) -> JournalError:
    """The error that names who is at a run."""
    job = f", job {holder['job']}" if holder.get("job") else ""
    who = f"host {holder.get('host', 'unknown')}, pid {holder.get('pid', 'unknown')}{job}"
    return JournalError(
        f"{found.target.path} is being written by another plan: {who}; last sign of life {holder['age_seconds']:.0f} s ago. "
        "Wait for it, or end that process first",
        path=str(found.target.run_path),
        holder=dict(holder),
    )

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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shardwrite.errors import JournalError, RunEndedError, StoreError
from shardwrite.journal.lease import is_stale
from shardwrite.journal.lock import Claim, exclusive
from shardwrite.journal.receipt import Receipt
from shardwrite.journal.writer import ensure_current
from shardwrite.stores import PosixStore, is_there, listed, make_directories, read_json, write_file
from shardwrite.target import RECEIPT_NAME, UPDATES, Target

__all__ = ["RunDirectory", "discard_drafts", "discard_ends", "dump", "groups_above", "held", "losing", "remove", "remove_empty"]


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The run that stands beside one array.

    Attributes
    ----------
    target : Target
        The array.
    facts : dict
        What ``plan.json`` says.
    state : {"run", "ended", "taken"}
        What its directory is called: as long as it stands, after its end, or after another run
        has taken its place.
    """

    target: Target
    facts: dict[str, Any]
    state: str = "run"

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
        """All that belongs to the run; in the state ``run``, it is current as long as this exists."""
        return self.target.run_path / f"{self.state}-{self.run}"

    def is_in(self, state: str) -> bool:
        """Whether the run is in a state."""
        return is_there(replace(self, state=state).path)

    @property
    def document(self) -> dict[str, Any]:
        """The array's metadata."""
        found: dict[str, Any] = read_json(self.path / "zarr.json")
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
            with losing(errno.ENOTEMPTY, errno.EEXIST):  # another process was first
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
        for group in self.target.groups:
            if not is_there(group / "zarr.json"):
                self._write(
                    group / "zarr.json", dump({"zarr_format": 3, "node_type": "group", "attributes": {}}), durability, driver
                )
        self._write(self.target.path / "zarr.json", dump(document), durability, driver)
        self._consolidate(document, durability, driver)

    def _write(self, path: Path, data: bytes, durability: str, driver: str) -> None:
        """Write a document, if the run still stands right before it becomes visible."""

        def check() -> None:
            if self.state == "run":
                ensure_current(str(self.path), driver)
            elif not is_there(self.path):
                raise RunEndedError("another process has settled this run", path=str(self.path))

        write_file(path, data, durability=durability, attempt=f"{driver}.end", guard=check)

    def grow(self, to: Sequence[int], durability: str, driver: str) -> None:
        """Step 5 of an update: the array's shape, where that has become larger. Under the lock of `ending`."""
        current = read_json(self.target.path / "zarr.json")
        shape = [max(sizes) for sizes in zip(current["shape"], to, strict=True)]
        if shape != current["shape"]:
            document = {**current, "shape": shape}
            self._write(self.target.path / "zarr.json", dump(document), durability, driver)
            self._consolidate(document, durability, driver)

    def ending(self) -> contextlib.AbstractContextManager[Claim]:
        """Held while an update changes what the array has one of: its metadata and its receipt."""
        return exclusive(replace(self.target, update="").run_path / "claim-end", self.path)

    def _consolidate(self, document: Mapping[str, Any], durability: str, driver: str) -> None:
        """Put the array into the consolidated metadata of every group above that has some."""
        for group in groups_above(self.target):
            metadata = read_json(group / "zarr.json")
            if metadata.get("node_type") != "group":
                return
            consolidated = metadata.get("consolidated_metadata")
            if consolidated:
                relative = self.target.path.relative_to(group)
                for parent in [p for p in relative.parents if p != Path()]:
                    below = read_json(group / parent / "zarr.json")
                    consolidated["metadata"].setdefault(parent.as_posix(), below)
                consolidated["metadata"][relative.as_posix()] = document
                self._write(group / "zarr.json", dump(metadata), durability, driver)

    def leave(self, receipt: Receipt, durability: str, driver: str) -> None:
        """Step 6, taken by a driver: the receipt."""
        self._write(self.target.path / RECEIPT_NAME, receipt.encode(), durability, driver)


def groups_above(target: Target) -> Iterator[Path]:
    """Directories above an array that hold metadata, the nearest first."""
    for group in target.path.parents:
        if not is_there(group / "zarr.json"):
            return
        yield group


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
        for directory in dict.fromkeys((target.path, *target.groups, *groups_above(target))):
            for name in ("zarr.json", RECEIPT_NAME):
                PosixStore(directory).discard_temporary(name, f"{driver}.end")


@contextlib.contextmanager
def losing(*numbers: int) -> Iterator[None]:
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

"""The directory beside an array while it is written: ``<array>.shardwrite/``.

``plan.json``
    The plan, its digest, the name of the run, and who began it.
``draft-<run>,<process>/``
    A run that a process is about to begin; the name tells which process, so that what a dead one has left is known at once.
``run-<run>/``
    All that belongs to the run: ``zarr.json`` until it is published, a ``journal-*.jsonl`` for each process that commits,
    a ``lease-*.json`` for each that drives, ``parts-*/`` with encoded units, ``replaced/`` with the array that stood there before.
    Its existence is what allows a task to commit: renaming it away stops every straggler.

The order of effects of a run, and what a crash after each leaves behind:

1. Look at what stands in the array's place; refuse, or go on. *Nothing has changed.*
2. Make a draft with metadata and plan, rename it to ``run-<run>/``, and link ``plan.json`` into place;
   whoever comes second finds it and joins, or is refused. *An empty run; the array is untouched. From here
   on the same command goes on with this run.*
3. With ``mode="w"``, rename the old array to ``run-<run>/replaced``. *No array.*
4. Commit shards, and enter each task's into the journal. *Shards without metadata: no reader sees an array.*
5. Publish ``zarr.json``, then bring consolidated metadata of the groups above up to date. *The array, whole.*
6. Leave a receipt in the array, rename ``run-<run>/`` to ``ended-<run>/``, settle what others have begun, move
   ``plan.json`` into it, and remove it. *The array; the same command does what is left of this step.*

Starting over takes the run's shards away instead: ``run-<run>/`` becomes ``taken-<run>/``, the unpublished array and ``plan.json``
go into it, and it is removed. :mod:`shardwrite.journal.takeover` has the steps of both ends.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from crc32c import crc32c

from shardwrite.errors import JournalError, RunEndedError, SpecError, StoreError
from shardwrite.journal.facts import parse_facts
from shardwrite.journal.lease import CLOCK, is_alive, is_left_behind
from shardwrite.journal.lock import Claim, exclusive
from shardwrite.journal.receipt import Receipt
from shardwrite.journal.writer import ensure_current
from shardwrite.stores import (
    PosixStore,
    Proof,
    is_there,
    listed,
    make_directories,
    make_directory,
    parse_document,
    parse_json,
    read_file,
    read_json,
    read_there,
    remove_state,
    rights_of,
    set_aside,
    write_file,
)
from shardwrite.target import RECEIPT_NAME, UPDATES, Target, shape_at, shape_of

__all__ = [
    "RunDirectory",
    "discard_drafts",
    "discard_ends",
    "dump",
    "groups_above",
    "held",
    "losing",
    "remove_empty",
    "run_in",
]

_OLD_LOCK = "lock-end.json"  # what the first version held where `RunDirectory.ending` holds a claim


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
    def makes_array(self) -> bool:
        """Whether the array is this run's, and not one that was there before and is updated or repaired."""
        return self.facts.get("mode") != "r+"

    @property
    def path(self) -> Path:
        """All that belongs to the run; in the state ``run``, it is current as long as this exists."""
        return self.target.run_path / f"{self.state}-{self.run}"

    def is_in(self, state: str) -> bool:
        """Whether the run is in a state."""
        return is_there(replace(self, state=state).path)

    @property
    def document(self) -> dict[str, Any]:
        """The array's metadata; what is not the run's is refused, because it would be published."""
        path = self.path / "zarr.json"
        data, seal = read_there(path), self.facts.get("document_crc32c")
        found = parse_document(data, path)
        is_ours = seal is None or crc32c(data) == seal  # an older version has left none
        if not isinstance(found, dict) or not is_ours:
            raise JournalError(
                f"{path} is not what the run was begun with. Move {self.target.run_path} away after a look, and keep it: it may "
                "hold an array that was being replaced, or what is needed to undo a change",
                path=str(path),
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

    def proof(self, keys: Callable[[], Collection[str]] = tuple) -> Proof:
        """What the run's own plan says to be the run's; nothing where its directory holds no plan.

        Parameters
        ----------
        keys : callable
            Keys of the shards that may go.
        """
        for path in (
            self.path / "plan.json",
            self.path / "plan-moved.json",
            self.target.run_path / "plan.json",
        ):
            data = read_file(path)
            with contextlib.suppress(ValueError):  # a plan that is torn proves nothing
                entry = parse_facts(data or b"", is_update=bool(self.target.update))
                if entry["run"] == self.run:
                    return Proof(self.path, entry, keys)
        return Proof(self.path, {})

    def make_room(self, durability: str) -> None:
        """Step 3; any number of processes may do it, in any order, and only what stood there before the run is moved.

        The name ``replaced`` is taken once and stays taken, so that a second rename fails, whenever it comes. The array's new
        directory has the mode and group of the old one.
        """
        replaced = self.path / "replaced"
        if self.facts["replaces"] and not is_there(replaced):
            with losing(errno.ENOTEMPTY, errno.EEXIST):  # another process was first
                try:
                    set_aside(self.target.path, "", self.proof(), replaced.name)
                except FileNotFoundError:  # gone since the run began; take the name
                    nothing = self.path / f"nothing-{uuid.uuid4().hex}"
                    nothing.mkdir()  # no parents: where the run is gone, it must not come back
                    (nothing / "was-there").mkdir()
                    os.rename(nothing, replaced)
        if self.facts["replaces"] and not is_there(self.target.path):
            fresh = self.path / f"fresh-{uuid.uuid4().hex}"
            make_directory(fresh, rights_of(replaced))
            with losing(errno.ENOTEMPTY, errno.EEXIST):
                os.rename(fresh, self.target.path)
        make_directories(self.target.path, durability)

    def publish(self, durability: str, driver: str) -> None:
        """Step 5, taken by a driver."""
        document = self.document
        for group in self.target.groups:
            if not is_there(group / "zarr.json"):
                self._write(
                    group / "zarr.json",
                    dump({"zarr_format": 3, "node_type": "group", "attributes": {}}),
                    durability,
                    driver,
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
        before = shape_at(self.target.path)
        if len(before) != len(to):
            raise JournalError(
                f"{self.target.path} is not the array that this run was begun for",
                path=str(self.target.path),
            )
        shape = [max(sizes) for sizes in zip(before, to, strict=True)]
        if shape != before:
            document = {**read_json(self.target.path / "zarr.json"), "shape": shape}
            self._write(self.target.path / "zarr.json", dump(document), durability, driver)
            self._consolidate(document, durability, driver)

    def ending(self) -> contextlib.AbstractContextManager[Claim]:
        """Held while an update changes what the array has one of: its metadata and its receipt."""
        return exclusive(replace(self.target, update="").run_path / "claim-end", self.path)

    def _consolidate(self, document: Mapping[str, Any], durability: str, driver: str) -> None:
        """Put the array into the consolidated metadata of every group above that has some."""
        for group in groups_above(self.target):
            metadata = read_json(group / "zarr.json")
            if not isinstance(metadata, dict) or metadata.get("node_type") != "group":
                return
            consolidated = metadata.get("consolidated_metadata")
            if consolidated:
                if not isinstance(consolidated, dict) or not isinstance(
                    consolidated.get("metadata"), dict
                ):
                    message, remedy = (
                        "does not hold consolidated metadata",
                        "consolidate the group again, or remove it",
                    )
                    raise SpecError(
                        message,
                        field="consolidated_metadata",
                        value=str(group / "zarr.json"),
                        remedy=remedy,
                    )
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


def discard_drafts(target: Target) -> None:
    """Remove what dead processes have left: drafts of runs that never began, files made to ask for the time, and old locks."""
    plan = target.run_path / "plan.json"
    for draft in [*listed(target.run_path, "draft-"), *listed(target.run_path, "run-")]:
        if (
            is_left_behind(draft) and draft.name != f"run-{run_in(plan)}"
        ):  # in this order: the dead begin nothing
            remove_state(draft)
    claims = listed(target.run_path, "claim-")
    for clock in [clock for place in (target.run_path, *claims) for clock in listed(place, CLOCK)]:
        clock.unlink(missing_ok=True)
    for claim in claims:
        with contextlib.suppress(OSError):  # somebody holds it, or will take it over
            claim.rmdir()
    lock = replace(target, update="").run_path / _OLD_LOCK
    held_by = read_file(lock)
    if held_by is not None and not is_alive(lock, held_by):
        lock.unlink(missing_ok=True)


def run_in(plan: Path) -> str:
    """Name of the run that a ``plan.json`` tells of; nothing where it is torn, or not there."""
    try:
        return str(parse_json(read_file(plan) or b"{}")["run"])
    except (ValueError, KeyError, TypeError):
        return ""


def remove_empty(target: Target) -> None:
    """The directory beside the array goes with its last run."""
    beside = replace(target, update="").run_path
    for emptied in (target.run_path, beside / UPDATES, beside):
        with contextlib.suppress(
            OSError
        ):  # another run has begun there; or it stays, and does no harm
            emptied.rmdir()


def drivers_in(directory: Path) -> list[str]:
    """Names of the drivers whose leases lie in the directory of a run."""
    return [lease.stem.removeprefix("lease-") for lease in listed(directory, "lease-", ".json")]


def discard_ends(target: Target, drivers: Iterable[str]) -> None:
    """Remove the temporaries of drivers that died in steps 5 and 6."""
    for driver in drivers:
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

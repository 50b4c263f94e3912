"""What a place is: where the documents and objects of one array lie.

An array lies in a directory (`place.directory`) or in a store (`place.objects`). The journal and
the operations know only this protocol. The state of a run is not part of it: that lies in a
directory of its own, which `place.target` names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from shardwrite.stores import Proof, Store

RUN_SUFFIX = ".shardwrite"
RECEIPT_NAME = "shardwrite-receipt.json"
REPORT_NAME = "shardwrite-report.json"
MARK_NAME = "shardwrite-run.json"
STATE_PREFIX = "shardwrite-run/"
"""Prefix of the objects that hold the state of a run in a bucket, inside the array."""
QUARANTINE_PREFIX = "shardwrite-quarantine/"
"""Prefix of copies of bad shards in a bucket, inside the array."""


class Owner(Protocol):
    """A run, as a place sees it: it may set the old array aside, or take its own away."""

    @property
    def run(self) -> str:
        """Name of the run."""

    @property
    def path(self) -> Path:
        """Directory of the run."""

    def proof(self, keys: Callable[[], Collection[str]] = tuple) -> Proof:
        """Proof of which data are the run's own."""

    def alone(self) -> AbstractContextManager[Callable[[], None]]:
        """Let one process of the run at a time into the block.

        The value is a function that raises once the process is no longer alone, or the run is over.
        """

    def check_held(self) -> None:
        """Raise if another process may have ended or settled the run, without asking a service."""


class Place(Protocol):
    """Place of an array or a group."""

    @property
    def label(self) -> str:
        """Text that names the place in messages and results: its path, if it has one."""

    @property
    def array_name(self) -> str:
        """Name of the place in ``plan.json``: a run goes on only where it is the same."""

    @property
    def name(self) -> str:
        """Path inside the store; empty for the store itself."""

    @property
    def rights_like(self) -> Path | None:
        """Directory whose mode and group the directory of a run takes, if there is one."""

    @property
    def store(self) -> Store:
        """Store of the array's objects."""

    @property
    def local_path(self) -> Path | None:
        """Directory of this machine in which the objects lie, if it is known."""

    @property
    def groups(self) -> Sequence[Place]:
        """Groups above the array inside the store, outermost first."""

    @property
    def nodes_above(self) -> Sequence[Place]:
        """Nodes above the array inside the store, none of which may be an array, outermost first.

        A format that keeps no documents of groups has no `groups`, but it has these.
        """
        return self.groups

    @property
    def hierarchy(self) -> str:
        """Text that names the kind of hierarchy, if groups have no documents in it; else empty."""
        return ""

    def arrays_in_hierarchy(self) -> Iterator[str]:
        """Names of the arrays in such a hierarchy."""
        return iter(())

    def check_new(self, layout: str | None) -> None:  # noqa: ARG002
        """Refuse a new array that does not fit where it is to lie.

        - `layout`: see `place.target.resolve_place`.
        """
        return

    @property
    def tree_path(self) -> Path | None:
        """Directory of all that lies here, if it can be converted in its place."""
        return None

    @property
    def default_run_dir(self) -> Path | None:
        """Directory for the state of runs where a user has named none; None if there is none."""
        return None

    def groups_above(self) -> Iterator[Place]:
        """Groups above that have a document, nearest first, up to the first gap."""

    def name_in(self, group: Place) -> str:
        """Name of this place inside a group that `groups_above` has given."""

    def member(self, name: str) -> Place:
        """Place of a node inside this group."""

    def kind(self) -> str:
        """Kind of what stands there."""

    def is_link(self) -> bool:
        """Whether it is a symbolic link."""

    def is_mount_point(self) -> bool:
        """Whether another file system is mounted there."""

    def is_occupied(self) -> bool:
        """Whether anything stands there, be it an empty directory."""

    def kind_for_group(self) -> str:
        """As `kind`, but ``"nothing"`` also where a group can be made of what stands there."""

    def array_around(self) -> str | None:
        """Label of an array that contains this place; None if there is none."""

    def node_inside(self) -> str | None:
        """Label of a node that lies inside this array; None if there is none."""

    def has_object(self, key: str) -> bool:
        """Whether an object that can be read stands at the key of a shard."""

    def has_something(self, key: str) -> bool:
        """Whether something of which a copy can be kept stands at the key of a shard."""

    def has(self, leaf: str) -> bool:
        """Whether there is a document or a receipt of this name."""

    def read(self, leaf: str) -> bytes | None:
        """Content of a document or a receipt; None if it is missing."""

    def write(
        self,
        leaf: str,
        data: bytes,
        *,
        durability: str,
        attempt: str,
        guard: Callable[[], None] | None = None,
    ) -> None:
        """Write a document or a receipt.

        - Raises StoreError if it cannot be written. Its `errno` is ESTALE if another process has
          changed it meanwhile, in a store that can tell.
        """

    def discard(self, leaf: str, attempt: str) -> None:
        """Remove the temporary that an attempt of `write` has left behind, if there is one."""

    def make_room(self, run: Owner, durability: str, *, replaces: bool) -> None:
        """Set the old array aside, or remove it, and make a place for the new one.

        Any number of processes of a run may do this, in any order. What the run has written is
        never taken for the old array.
        """

    def clear(self, run: Owner, keys: Collection[str]) -> None:
        """Remove what is left of the old array, right before the new one is published."""

    def take_away(self, run: Owner) -> None:
        """Remove the array that a run was making, and put back the old one, if it was set aside."""

    def check_mark(self, run: Owner) -> None:
        """Verify that what stands there is still what the run has written."""

    def remove_mark(self, run: Owner) -> None:
        """Remove what marks the array as that of the run, at the end of the run."""

    def unknown_run(self) -> str:
        """Message about a run that makes the array, and whose state is not known here."""

    def stale_temporaries(self, drivers_alive: Callable[[], set[str]]) -> Collection[str]:
        """List the array, and find the temporaries of drivers that are not alive.

        - `drivers_alive`: gives the names of the living drivers. It is called after the array was
          listed.
        """

    def sweep(self, drivers_alive: Callable[[], set[str]]) -> int:
        """Remove `stale_temporaries`, and return how many there were."""

    def make_directories(self, keys: Iterable[str], durability: str) -> None:
        """Make the directories of some objects before many processes need them."""

    def keep_copy(self, key: str, copy: Path, durability: str) -> None:
        """Copy an object to a new file of this machine."""


def names_above(name: str) -> list[str]:
    """Names of the groups above a node, outermost first; the first is that of the store itself."""
    parts = name.split("/")[:-1]
    return ["/".join(parts[:n]) for n in range(len(parts) + 1)] if name else []

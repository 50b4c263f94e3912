"""The directory beside an array while it is written: ``<array>.shardwrite/``.

``plan.json``
    The plan, its digest, the name of the run, and who began it.
``draft-<run>,<process>/``
    A run that a process is about to begin. The name identifies the process, so the draft of a dead
    process is recognised at once.
``run-<run>/``
    Everything that belongs to the run: ``zarr.json``; a ``journal-*.jsonl`` for each process that
    commits; a ``lease-*.json`` for each driver; ``parts-*/`` with encoded units; ``replaced/`` with
    the array that stood there before. A task may commit only while this directory exists, so
    renaming it stops all stragglers. What processes of a job array have of these lies in
    ``in-<count>-parts/<index>/``; see :mod:`shardwrite.journal.parts`.

A run on several arrays has its directory in ``<root>.shardwrite/together/``, beside the root of
their hierarchy. In it, each array has a directory ``0/``, ``1/``, ... with its ``zarr.json``, its
``plan.json`` and what it replaces. Each step below is then taken for all arrays before the next.

The steps of a run in order, and in italics what a crash after each step leaves behind:

1. Look at what stands in the array's place, and refuse it or go on. *Nothing has changed.*
2. Make a draft with metadata and plan, rename it to ``run-<run>/``, and link ``plan.json`` into
   place. A second process finds ``plan.json``, and joins the run or is refused. *An empty run; the
   array is untouched. From here on, the same command continues this run. If some of several arrays
   have no link yet, it makes those.*
3. Take the old array out of the consolidated metadata of the groups above, where readers would go
   on to find it. *The old array, which these groups do not list.* With ``mode="w"``, rename it to
   ``run-<run>/replaced``. *No array.* If it is to stay until the new one is whole, this step is
   left out, tasks write in ``run-<run>/array-new``, and step 5 ends with what
   :mod:`shardwrite.journal.handover` describes. *The old array.*
4. Commit shards, and enter those of each task into the journal. *Shards without metadata, so that
   readers find no array.*
5. Publish ``zarr.json``. Then make the groups above that are missing, nearest first, and update
   the consolidated metadata of all groups above. *The complete array.*
6. Leave a receipt in the array, rename ``run-<run>/`` to ``ended-<run>/``, settle what other
   processes have begun, move ``plan.json`` into the directory, and remove it. *The complete array;
   the same command does the rest of this step.*

Starting over removes the run and its shards instead: ``run-<run>/`` becomes ``taken-<run>/``, the
unpublished array and ``plan.json`` are moved into it, and it is removed. An old array in
``replaced/`` gets its name back before. The steps of both ends are listed in
:mod:`shardwrite.journal.takeover`.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from crc32c import crc32c

from shardwrite._dataclass import dataclass
from shardwrite.codecs.documents import Document
from shardwrite.errors import JournalError, RunEndedError, SpecError, StoreError
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.node import DOCUMENT, group_document, has_manifest, layout_in
from shardwrite.grid import Box
from shardwrite.journal.documents import (
    DocumentChange,
    all_listed,
    alone_in_store,
    consolidate,
    dump,
    list_again,
    replace_document,
    wait_for_others,
    withdraw,
)
from shardwrite.journal.lease import CLOCK, is_left_behind, live_holders
from shardwrite.journal.lines import ensure_current
from shardwrite.journal.plan_record import RunRecord
from shardwrite.journal.process import Holder
from shardwrite.journal.receipt import Receipt, is_written
from shardwrite.journal.trust import TrustedDirectory, require_trusted_run
from shardwrite.place.base import MARKED, RECEIPT_NAME, REPORT_NAME, Place, shape_of
from shardwrite.place.directory import Directory, run_in
from shardwrite.place.target import COMPACTION, UPDATES, Target, missing_document, target_at
from shardwrite.records import OtherVersionError
from shardwrite.stores.base import Store
from shardwrite.stores.directories import STAGED
from shardwrite.stores.looking import (
    is_there,
    listed,
    parse_document,
    read_file,
    read_there,
)
from shardwrite.stores.posix import NO_ROOM, write_files
from shardwrite.stores.removal import Proof, remove_state

if TYPE_CHECKING:
    from shardwrite.journal.lock import Claim
    from shardwrite.journal.state_work import Fence, SharedFence, Work
    from shardwrite.place.objects import InStore
    from shardwrite.stores.whole import WholeStore

_CLAIM_OF_END = "claim-end"
"""Name of the claim on changing an array's document or receipt, beside the array."""


@lru_cache(maxsize=2**14)  # it is asked for at every step, for each of the arrays of a run
def _joined(path: Path, to: str) -> Path:
    """The path of what lies at a relative path from a directory."""
    return Path(os.path.normpath(path / to))


@dataclass(frozen=True, slots=True)
class RunView:
    """What a process has seen of a run of which it writes a part."""

    directory: TrustedDirectory  # directory of the run
    names: frozenset[str]  # of all that it holds
    document: bytes  # metadata document of the array


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """A run on one array, and its directory."""

    target: Target  # the array, or the update of it, that the run writes
    record: RunRecord  # content of ``plan.json``
    # Prefix of the directory's name: ``"run"`` while the run goes on, ``"ended"`` after it has
    # finished, ``"taken"`` after it was given up or another run has taken its place
    state: str = "run"
    # What this process has seen of the run, if it only writes a part of it
    view: RunView | None = field(default=None, compare=False, repr=False)
    # Metadata document, if this process has begun the run
    begun_with: bytes | None = field(default=None, compare=False, repr=False)
    # Driver in whose name this process writes documents, and durability level that was asked for;
    # see `written_by`
    driver: str = field(default="", compare=False, repr=False)
    durability: str | None = field(default=None, compare=False, repr=False)

    def written_by(self, driver: str, durability: str | None = None) -> RunDirectory:
        """The run, of which this process writes documents in the name of a driver.

        - `durability`: durability level that was asked for; that of the configuration by default.
        """
        return replace(self, driver=driver, durability=durability)

    @property
    def level(self) -> str:
        """Durability level at which this process writes documents."""
        return self.target.durability(self.durability)

    @property
    def run(self) -> str:
        """Name of the run."""
        return self.record.run

    @property
    def digest(self) -> str:
        """Digest of the run's plan."""
        return self.record.digest

    @property
    def makes_array(self) -> bool:
        """Whether the run makes the array, rather than updating or repairing an existing one."""
        return self.record.makes_array

    @property
    def replaces_array(self) -> bool:
        """Whether the run replaces an array, as ``mode="w"`` asks for it."""
        return self.record.mode == "w" and self.record.replaces

    @property
    def can_put_back(self) -> bool:
        """Whether the run replaces an array that can be as it was before.

        Where the store cannot rename, the new array is written over the old one.
        """
        is_whole = isinstance(self.target.place, Directory) or not is_there(self.path / "replaced")
        return self.replaces_array and is_whole

    @property
    def is_written_over(self) -> bool:
        """Whether objects of an old array stay until the new one is published, as in a bucket."""
        return self.replaces_array and not self.can_put_back

    @property
    def place(self) -> Place:
        """Where the run writes: the place of its array, unless it builds that aside."""
        if not self.record.aside:
            return self.target.place
        from shardwrite.journal.handover import built_in  # of arrays that are replaced

        return built_in(self, self.target)

    @property
    def writes_in(self) -> Place:
        """Where tasks of a process that joins the run now may write."""
        if not self.record.aside:
            return self.target.place
        from shardwrite.journal.handover import written_in  # of arrays that are replaced

        return written_in(self, self.target)

    @property
    def store(self) -> Store:
        """Store of the objects that the run writes."""
        return self.place.store

    @property
    def is_aside(self) -> bool:
        """Whether the run builds its array aside, and readers still find another one, or none."""
        return self.record.aside and self.place != self.target.place

    @property
    def is_closed(self) -> bool:
        """Whether another process is about to hand over an array that is built aside, or has."""
        if not self.record.aside:
            return False
        from shardwrite.journal.handover import is_closed  # of arrays that are replaced

        return is_closed(self)

    @property
    def is_handed_over(self) -> bool:
        """Whether an array that is built aside has its name."""
        if not self.record.aside:
            return False
        from shardwrite.journal.handover import is_handed_over  # of arrays that are replaced

        return is_handed_over(self, self.target)

    @property
    def is_written(self) -> bool:
        """Whether the run has left its receipt in the array, which may still be built aside."""
        return is_written(self.place, self.run)

    @property
    def keeps_values(self) -> bool:
        """Whether the run changes no value of the array, because it only moves bytes."""
        return self.target.update == COMPACTION

    @property
    def home(self) -> Path | None:
        """Directory that holds the run's own, if the run writes several arrays."""
        together = self.record.together
        if together is None:
            return None
        return _joined(self.target.run_path, together.home)

    @property
    def shared(self) -> Path:
        """Directory of the run, with its leases, journals and part files."""
        return (self.home or self.target.run_path) / f"{self.state}-{self.run}"

    @property
    def path(self) -> Path:
        """Directory of what the run keeps for this array: that of the run, if it writes no other.

        A run in the state ``"run"`` is current as long as this exists.
        """
        together = self.record.together
        return self.shared if together is None else self.shared / str(together.number)

    @property
    def number(self) -> int:
        """Number of this array among those of the run."""
        return 0 if self.record.together is None else self.record.together.number

    def output(self, number: int) -> RunDirectory | None:
        """The run on another array that it writes; None if nothing of it is left to settle."""
        own = self.record.together
        if own is None or number == own.number:
            return self
        record = record_in(self.shared / str(number) / "plan.json")
        if record is None or record.together is None:
            return None
        other = record.together
        place = self.target.place.sibling(own.name, other.name)
        run_path = _joined(self.shared.parent, other.state)
        target = replace(self.target, place=place).with_run_path(run_path)
        require_trusted_run(target, self.shared, str(number), [str(number)])
        return replace(self, target=target, record=record, view=None, begun_with=None)

    def outputs(
        self, but: Collection[int] = (), known: Collection[RunDirectory] = ()
    ) -> Iterator[RunDirectory]:
        """The run on each of its arrays but some, as far as it is not settled.

        The last one comes first, as it is published last.

        - `known`: the run on some of them, which are not looked up.
        """
        together = self.record.together
        n = 1 if together is None else together.n_arrays
        there = {one.number: replace(one, state=self.state) for one in known}
        numbers = (number for number in range(n - 1, -1, -1) if number not in but)
        return filter(None, (there.get(number) or self.output(number) for number in numbers))

    @property
    def document_path(self) -> Path:
        """File with the metadata document of the array that the run writes."""
        return self.path / DOCUMENT

    def is_in(self, state: str) -> bool:
        """Whether the run is in the given state: its directory has the prefix of that state."""
        return is_there(replace(self, state=state).path)

    @property
    def document(self) -> Document:
        """Metadata document of the array, as it was when the run began."""
        path = self.document_path
        data = self.begun_with if self.view is None else self.view.document
        if data is None:
            try:
                data = read_there(path)
            except StoreError as error:
                if error.errno != errno.EINVAL:  # else it is no file
                    raise
        # Nobody is told to remove a torn one: a run without it is given up with all that it keeps.
        if data is None or crc32c(data) != self.record.document_crc32c:
            raise JournalError(
                f"{path} is not what the run was begun with. Move {self.target.run_path} away "
                "after a look, and keep it: it may hold an array that was being replaced, or what "
                "is needed to undo a change",
                path=str(path),
            )
        found: Document = parse_document(data, path)
        shape_of(found, str(path))
        return found

    @property
    def has_ended(self) -> bool:
        """Whether the run is known to be over.

        It is False if storage cannot tell, so that users see the error of the storage.
        """
        try:
            return not is_there(self.path)
        except StoreError:
            return False

    def parts(self, driver: str) -> Path:
        """Directory for the part files of a driver's tasks, which hold encoded units."""
        return self.shared / f"parts-{driver}"

    def staged(self, number: int) -> Target:
        """Where an array lies with values that the run keeps until its end; see `runs.staged`."""
        if self.target.in_store:
            return target_at(cast("InStore", self.target.place).staged(self.run, number))
        return target_at(Directory(self.path / STAGED / str(number)))

    def remove_staged(self) -> None:
        """Remove these arrays, as far as they do not go with the directory of the run."""
        if self.target.in_store and self.record.identity.staged is not None:
            cast("InStore", self.target.place).remove_staged(self)

    def proof(self, keys: Callable[[], Collection[str]] = tuple) -> Proof:
        """Proof of which data are the run's own and may be removed; see `proof_in`."""
        return proof_in(self.path, self.target, self.run, keys)

    def make_room(self, plain: set[object]) -> None:
        """Take step 3: set the old array aside and make a place for the new one.

        Any number of processes may do this, in any order; see :meth:`Place.make_room`.

        - `plain`: `Target.above` of arrays that no group lists, and for which this was done. What
          is above others in the same groups is not looked at again, and their new entries are not
          synced. This array's is added.

        - Raises RunEndedError if another process has taken the run over.
        """
        if not self.makes_array:
            if self.is_marked:
                with self._told_of_takeover():
                    self.target.place.make_room(self, self.level, replaces=False, is_new=False)
            return
        if self.record.aside:
            if not self.record.replaces:
                return  # it was made with the directory of the run
            from shardwrite.journal.handover import make_new  # of arrays that are replaced

            with self._told_of_takeover():
                make_new(self, self.target, self.level, self._may_write_again)
            return
        above, level = self.target.above, self.level
        replaces = self.record.replaces
        is_new = not replaces and not self.target.recovers
        with self._told_of_takeover():
            if above is not None and above in plain:
                # An old array that is set aside has no other name until that is durable.
                level = level if replaces else "none"
            elif not self.withdraw(self._is_unpublished):
                plain.add(above)
            self.target.place.make_room(self, level, replaces=replaces, is_new=is_new)
            if self.target.leaves_marks:
                self._mark_new(is_new=is_new)

    def _mark_new(self, *, is_new: bool) -> None:
        """Leave the mark of a run in the array that it writes where readers may find it."""
        place = self.target.directory
        if not place.put_mark(self, self.record.durability):
            return
        unknown = place.unknown_run()
        told = "" if unknown is None else f"{unknown.told}; {unknown.remedy}"
        if is_new and place.has(DOCUMENT):
            told = f"another call has written {place.label} since the run {self.run} was begun"
        if told:
            place.remove_mark(self)
            raise JournalError(told, path=str(self.target.run_path))

    def _may_write_again(self) -> bool:
        """Whether tasks may write again to an array that a process was about to hand over.

        Without durability, shards may be missing although others were handed over.
        """
        if any(holder.driver != self.driver for holder in live_holders(self.shared)):
            return False
        if self.record.durability == "none" or not self.is_written:
            return True
        return not any(one.is_handed_over for one in self.outputs())

    def _is_unpublished(self) -> bool:
        """Whether the run has not published its array yet; an older one may stand there."""
        is_old = self.record.replaces and not is_there(self.path / "replaced")
        return is_old or not self.target.place.has(DOCUMENT)

    @contextlib.contextmanager
    def alone(self, *, puts: bool = True) -> Iterator[Callable[[], None]]:
        """See :meth:`Owner.alone`."""
        from shardwrite.journal.lock import exclusive  # where processes may meet

        with exclusive(self.path / "claim-room", self.path) as claim:

            def check() -> None:
                claim.check()
                self.check_held()

            confirm(self.target, puts=puts, in_group=not puts)
            yield check

    def check_held(self) -> None:
        """See :meth:`Owner.check_held`."""
        self._check_there()
        ensure_held(self.target)

    def check_alone(self) -> None:
        """See :meth:`Owner.check_alone`."""
        if not self.target.in_store or self.target.is_kept_elsewhere:
            refuse_unfinished(self.target.place, "Finish it by the call that it was begun with")
        if not self.makes_array:
            self._check_shape_before()

    def _check_shape_before(self) -> None:
        """Refuse an update of an array that has another shape than when the run was begun."""
        begun_with, document = self.document, self.target.document
        shape, axis = list(begun_with["shape"]), self.record.identity.append_axis
        if self.record.length is not None:
            shape[axis or 0] = self.record.length
        found, label = shape_of(document, self.target.label), self.target.label
        changed = f"the shape of {label} from {shape} to {found}" if found != shape else ""
        if not changed and layout_in(document) != layout_in(begun_with):
            changed = f"the layout of {label}"
        if changed:
            raise JournalError(
                f"another call has changed {changed} since the run {self.run} was begun, which "
                "changes the array, too. Make this call again, after abandon if that run has not "
                "ended",
                path=str(self.target.run_path),
            )

    @property
    def keeper(self) -> Mapping[str, str]:
        """See :attr:`Owner.keeper`."""
        state, together = self.target.state, self.record.together
        if state is None or not self.target.is_kept_elsewhere:
            return {}
        # The only new array of a call may be kept with others, of a run that was begun before.
        name = self.target.name if together is None else together.name
        root = cast("InStore", self.target.place).whole_name.removesuffix(name)
        found = {"array": name, "keeper": state.place.whole_name.removeprefix(root)}
        return found if self.makes_array else {**found, "mode": self.record.mode}

    @property
    def is_marked(self) -> bool:
        """Whether a mark in the array tells of the run, so that others find its state, or stop."""
        return self.makes_array or self.target.is_kept_elsewhere

    @property
    def may_have_mark(self) -> bool:
        """Whether the run may have left a mark in the array, in a directory or elsewhere."""
        if isinstance(self.target.place, Directory):
            is_plain = self.record.replaces or not self.record.aside
            return is_plain and self.target.leaves_marks
        return self.is_marked

    @property
    def lacks_mark(self) -> bool:
        """Whether an update has no mark in the array yet, without which it changes nothing."""
        return self.is_marked and not self.makes_array and not is_there(self.path / MARKED)

    def clear(self, keys: Collection[str]) -> None:
        """Remove what is left of an old array, but these keys; see :meth:`Place.clear`."""
        if self.record.replaces:
            self.check_mark()
            self.target.place.clear(self, keys)

    def check_mark(self) -> None:
        """Verify that what stands at the target is still what this run has written.

        - Raises RunEndedError if another process has taken the run over, which may have removed it.
        """
        with self._told_of_takeover():
            self.target.place.check_mark(self)

    @contextlib.contextmanager
    def _told_of_takeover(self) -> Iterator[None]:
        """Report an end or a takeover as such, and not as the missing objects that it has left."""
        try:
            yield
        except JournalError:
            self._check_there()
            confirm(self.target)
            raise

    def publish(
        self, listed: DocumentChange = lambda same: same, documents: Documents | None = None
    ) -> Document:
        """Take the first part of step 5: publish the array's metadata, and return it.

        - `documents`: takes it, to write it with others.
        - Raises RunEndedError if the run has ended meanwhile.
        """
        self.check_mark()
        document = listed(self.document)
        write = self._write if documents is None else partial(documents.add, self)
        write(self.place, DOCUMENT, dump(document))
        return document

    def publish_groups(
        self,
        document: Document,
        groups: Mapping[str, Document],
        others: Sequence[tuple[Place, Document]] = (),
    ) -> None:
        """Make the groups above that are missing, nearest first, and have all list the array.

        - `document`: the array's, as it was published.
        - `groups`: documents of groups by their paths in the store. Others have no attributes.
        - `others`: more arrays of the run in the same groups, with their documents.

        - Raises RunEndedError if the run has ended meanwhile.
        """
        self.make_groups(groups)
        self.consolidate(document, others)

    def make_groups(self, groups: Mapping[str, Document]) -> None:
        """Make the groups above that are missing, nearest first; see `publish_groups`."""
        for group in reversed(self.target.place.groups):
            while not group.has(DOCUMENT) and group.kind_for_group() != "v2 group":
                made = groups.get(group.name) or group_document()
                if self._replace(group, None, made):
                    break

    def _write(self, place: Place, leaf: str, data: bytes) -> None:
        """Write a document, unless the run has ended right before the document becomes visible."""
        try:
            place.write(
                leaf,
                data,
                durability=self.level,
                attempt=f"{self.driver}.end",
                guard=partial(self._check_current, in_group=True),
            )
        except StoreError as error:
            if error.errno == errno.ESTALE:
                confirm(self.target)  # another process may have taken the run over
            raise

    def write_files(self, files: Collection[tuple[Path, bytes]]) -> None:
        """Write new documents of arrays of the run in directories; see `Documents`."""
        write_files(
            files,
            durability=self.level,
            attempt=f"{self.driver}.end",
            guard=partial(self._check_current, in_group=True),
            is_fresh=True,
        )

    def _check_current(self, *, in_group: bool = False) -> None:
        """Refuse to go on if another process has ended or settled the run, or taken it over.

        - `in_group`: see `confirm`.
        """
        self._check_there(self.driver)
        confirm(self.target, in_group=in_group)

    def _check_there(self, driver: str = "") -> None:
        """Refuse to go on if the directory of the run is gone, or the driver's token."""
        if self.state == "run" and driver:
            ensure_current(str(self.shared), driver)
        elif not is_there(self.path):
            raise RunEndedError("another process has ended this run", path=str(self.path))

    @property
    def is_listed_with_others(self) -> bool:
        """Whether groups above list the array when the run has changed others, too; `list_again`.

        Readers of such a group see the new length of all of them, or the old one.
        """
        return self.record.together is not None and not self.makes_array

    def list_before(self, part: ArrayMetadata, region: Box) -> None:
        """List the inner chunks that a run may write, before it commits anything.

        Chunks outside of the array are left out; those that the run adds to it are listed as soon
        as the shape of the array has them. Nothing is done if the array keeps no manifest.

        - Raises RunEndedError if the run has ended meanwhile.
        """
        if has_manifest(part.document):
            with self.ending():
                self.change(partial(all_listed, part, region))

    def change(self, make: DocumentChange) -> None:
        """Change the array's document, unless it stays the same, and that in groups above.

        Changes that others make meanwhile are kept. The caller holds the claim of `ending`.
        Groups are left to the caller if the array `is_listed_with_others`.

        - `make`: returns the new document, given the one that is there. It may be called more than
          once.
        - Raises RunEndedError if the run has ended meanwhile.
        """
        place = self.target.place
        known = place.last(DOCUMENT)  # is replaced if it still stands there
        for n_tries in itertools.count(1):
            data, known = (place.read(DOCUMENT), None) if known is None else (known, known)
            if data is None:
                self.check_held()  # another process may have ended the run to replace the array
                raise missing_document(place)
            before = parse_document(data, f"{place.label}/{DOCUMENT}")
            document = make(before)
            is_same = document == before
            if is_same and known is not None:
                known = None  # nothing would be put over it
                continue
            if is_same or self._replace(place, data, document):
                break
            known = None
            wait_for_others(place, n_tries)
        if self.is_listed_with_others:
            return
        # A process that was killed may have left the groups above as they were.
        identity = self.record.identity
        may_grow = identity.append_axis is not None or identity.stream
        if not is_same or may_grow or has_manifest(document):
            self.consolidate(document)

    def ending(self) -> contextlib.AbstractContextManager[Claim]:
        """Claim to hold while changing the array's metadata or receipt.

        All updates of the array share this one claim.
        """
        from shardwrite.journal.lock import exclusive  # where processes may meet

        return exclusive(self.target.beside / _CLAIM_OF_END, self.path)

    def consolidate(
        self, document: Document, others: Sequence[tuple[Place, Document]] = ()
    ) -> None:
        """Add the array to the consolidated metadata of each group above that has such metadata.

        - `others`: more arrays in the same groups, with their documents.
        """
        consolidate(self.target.place, {"": document}.copy, self._replace, others)

    def list_again(self, targets: Sequence[Target]) -> None:
        """Have all groups above list arrays of the run as they are now; see `documents`."""
        list_again(targets, self._replace)

    def withdraw(
        self, is_due: Callable[[], bool] = lambda: True, others: Sequence[Place] = ()
    ) -> bool:
        """Take the array out of the consolidated metadata of all groups above, if they have such.

        - `is_due`: says whether it must go, and is asked right before.
        - `others`: more arrays in the same groups, which go with it if it is listed.
        """
        return withdraw(self.target.place, self._replace, is_due, others)

    def _replace(self, place: Place, old: bytes | None, new: Document) -> bool:
        """Write a document of a group, unless another process has changed it.

        - `old`: the document that the new one is made from; None if there was none.
        - Returns: False if the document is not `old` any more; nothing is written then.
        """
        check = partial(self._check_current, in_group=True)
        with alone_in_store(place, self.target.beside.parent):
            return replace_document(place, old, new, self.level, f"{self.driver}.end", check)

    def write_receipt(
        self, receipt: Receipt, report: bytes | None = None, documents: Documents | None = None
    ) -> None:
        """Take the first part of step 6: write the receipt, and a report of the run before it.

        - `documents`: takes them, to write them with others.
        - Raises RunEndedError if the run has ended meanwhile.
        """
        write = self._write if documents is None else partial(documents.add, self)
        place = self.place
        if report is not None:
            write(place, REPORT_NAME, report)
        write(place, RECEIPT_NAME, receipt.encode())

    def close(self) -> None:
        """Have tasks write no more to an array that was built aside, and whose receipt is there.

        - Raises RunEndedError if the run has ended meanwhile.
        """
        from shardwrite.journal.handover import close  # of arrays that are replaced

        self._check_current()
        with self._told_of_takeover():
            close(self, self.level)

    def give_name(self, others: Sequence[Place] | None) -> bool:
        """Let an array that was built aside have its name, after this process wrote its receipt.

        It takes `others`, and returns and raises, what `hand_over` does.
        """
        from shardwrite.journal.handover import give_name  # of such arrays

        if others is not None:
            self._check_current()
        try:
            with self._told_of_takeover():
                leave = partial(self.withdraw, others=others or ())
                return give_name(self, self.target, self.level, None if others is None else leave)
        except StoreError as error:
            if error.errno == errno.ENOENT:
                self._check_there()
            raise

    def hand_over(self, others: Sequence[Place] | None) -> bool:
        """Let an array that was built aside take the place of the old one, after its receipt.

        - `others`: more arrays of the run in the same groups, which are handed over, too; None if
          this process took this array out of their metadata together with another one.
        - Returns: whether it took the array, and the others, out of that metadata.
        - Raises RunEndedError if the run has ended meanwhile.
        """
        if self.record.aside:
            from shardwrite.journal.handover import give_name_if_whole, hand_over

            self._check_current()
            name = hand_over if self.record.replaces else give_name_if_whole
            with self._told_of_takeover():
                leave = partial(self.withdraw, others=others or ())
                return name(self, self.target, self.level, None if others is None else leave)
        return False


_N_DOCUMENTS, _NBYTES_OF_DOCUMENTS = 64, 2**24  # that are written together, at most


class Documents:
    """Documents and receipts of new arrays in directories that are written together.

    One look at the run counts for all of them. Their temporaries are there by then, and whoever
    takes the run over removes these. So each document is written in time, or not at all.
    """

    def __init__(self) -> None:
        self._waiting: dict[
            tuple[Path, str, str], tuple[RunDirectory, list[tuple[Path, bytes]]]
        ] = {}

    def add(self, run: RunDirectory, place: Place, leaf: str, data: bytes) -> None:
        """Take a document of an array of a run; see `RunDirectory.publish`."""
        key = run.shared, run.level, run.driver
        _, files = self._waiting.setdefault(key, (run, []))
        files.append((cast("Directory", place).path / leaf, data))
        if len(files) == _N_DOCUMENTS or sum(len(d) for _, d in files) > _NBYTES_OF_DOCUMENTS:
            del self._waiting[key]
            run.write_files(files)

    def write(self) -> None:
        """Write those that wait.

        - Raises RunEndedError if the run has ended meanwhile.
        """
        waiting, self._waiting = self._waiting, {}
        for run, files in waiting.values():
            run.write_files(files)


def proof_in(
    path: Path, target: Target, run: str, keys: Callable[[], Collection[str]] = tuple
) -> Proof:
    """Proof of which data are a run's own and may be removed, from the run's own plan.

    The plan is looked for in the run's directory, and in its place beside that directory. Without
    a whole plan of this run, the proof covers nothing.
    """
    for plan in (
        path / "plan.json",
        path / "plan-moved.json",
        target.run_path / "plan.json",
    ):
        record = record_in(plan, is_update=bool(target.update))
        if record is not None and record.run == run:
            entry = {"run": record.run, "mode": record.mode, "array": record.array}
            return Proof(path, entry, keys)
    return Proof(path, {})


def discard_drafts(target: Target) -> None:
    """Remove what dead processes have left beside an array.

    This covers drafts of runs that never began, clock files, and empty claims.
    """
    plan, there = target.run_path / "plan.json", listed(target.run_path)
    for draft in (path for path in there if path.name.startswith(("draft-", "run-"))):
        # The plan is read last, since a process that is dead by then begins nothing any more.
        if is_left_behind(draft) and draft.name != f"run-{run_in(plan)}":
            remove_state(draft)
    claims = [path for path in there if path.name.startswith("claim-")]
    clocks = [path for path in there if path.name.startswith(CLOCK)]
    for clock in [*clocks, *(clock for claim in claims for clock in listed(claim, CLOCK))]:
        clock.unlink(missing_ok=True)
    for claim in claims:
        with contextlib.suppress(OSError):  # another process holds it, or will take it over
            claim.rmdir()


def other_version(target: Target, plan: Path, error: OtherVersionError) -> JournalError:
    """Error for a plan that another version of this package has written."""
    return JournalError(
        f"{plan} was written by {error.version} version of shardwrite ({error}). Nothing was "
        f"changed. Install that version to finish the run on {target.label} or to give it up",
        path=str(plan),
    )


def refuse_other_version(target: Target, path: Path) -> None:
    """Refuse to remove the directory of a run that another version of this package has begun."""
    for plan in (path / "plan.json", path / "plan-moved.json"):
        try:
            RunRecord.from_json(read_file(plan) or b"", is_update=bool(target.update))
        except OtherVersionError as error:
            raise other_version(target, plan, error) from error
        except ValueError:
            continue  # the run has no plan any more, or a torn one


def run_at(path: str) -> str:
    """Name of the run in whose directory a path lies; empty if it lies in none."""
    found = (part for part in reversed(Path(path).parts) if part.startswith("run-"))
    return next(found, "").removeprefix("run-")


def record_in(plan: Path, *, is_update: bool = False) -> RunRecord | None:
    """Record of a run in a ``plan.json``; None if the file is torn or missing."""
    try:
        return RunRecord.from_json(read_file(plan) or b"", is_update=is_update)
    except ValueError:
        return None


def remove_empty(target: Target) -> bool:
    """Remove the directory beside an array, if no run is left in it; whether that was at once."""
    beside = target.beside
    # This fails if another run has begun there. A directory that stays does no harm.
    for emptied in (target.run_path, beside / UPDATES):
        with contextlib.suppress(OSError):
            emptied.rmdir()
            if emptied == beside:
                remove_around(target)
                return True
    _drop_last_claim(beside)
    with contextlib.suppress(OSError):
        beside.rmdir()
        remove_around(target)
    return False


def remove_around(target: Target) -> None:
    """Remove the directories around that beside an array, if nothing else is in them."""
    with contextlib.suppress(OSError):
        for emptied in target.state_around(target.beside):
            emptied.rmdir()


def remove_empty_home(home: Path | None, target: Target) -> None:
    """Remove the directory of runs that write several arrays, if no run is left in it."""
    for emptied in () if home is None else (home, home.parent, *target.state_around(home.parent)):
        with contextlib.suppress(OSError):  # another run has begun there, or it is gone
            emptied.rmdir()


def _drop_last_claim(beside: Path) -> None:
    """Remove the claim of a dead process if nothing else is left beside an array.

    To take it over needs room. On a full disk it stays, and the next call removes it.
    """
    claim = beside / _CLAIM_OF_END
    if not is_there(claim) or any(
        path != claim and not path.name.startswith("draft-") for path in listed(beside)
    ):
        return
    from shardwrite.journal.lock import drop_claim  # where processes may meet

    try:
        drop_claim(claim)
    except StoreError as error:
        if error.errno not in (*NO_ROOM, errno.ENOENT):  # another process has removed it
            raise


def drivers_in(there: Iterable[Path]) -> list[str]:
    """Names of the drivers that have a lease among the files of a run."""
    return [
        path.stem.removeprefix("lease-")
        for path in there
        if path.name.startswith("lease-") and path.suffix == ".json"
    ]


def held(found: RunDirectory, holder: Holder) -> JournalError:
    """Error that says which process works on a run."""
    return holder.error(found.target.label, "another plan", str(found.target.run_path))


# ---- What every run asks of the lease of its array: who holds it, and whether it goes on
# Only a run whose state lies in a bucket has such a lease (`journal.state_work`). For others
# nothing is done, and nothing is loaded.


@contextlib.contextmanager
def holding(*targets: Target) -> Iterator[None]:
    """Hold the leases of all targets whose run state lies in their bucket.

    Other targets need none. A lease that this process holds already is shared.
    """
    holders = [target.holder for target in targets if target.in_store]
    with contextlib.ExitStack() as stack:
        # Of two calls that take some of the same leases, neither waits for the other for ever.
        for holder in sorted(holders, key=lambda holder: holder.beside.name):
            from shardwrite.journal.state_work import held  # for states in buckets

            stack.enter_context(held(holder))
        yield


def in_one_state(targets: Sequence[Target], *, begins: bool = False) -> list[Target]:
    """The same targets; those of one hierarchy in a bucket have their run state in one place.

    - `begins`: look for runs that make them and have their state elsewhere.
    """
    if not any(target.in_store for target in targets):
        return list(targets)
    from shardwrite.journal import state_work  # for states in buckets

    return state_work.in_one_state(targets, begins=begins)


def located(target: Target) -> Target:
    """The target with its run state where a run on several arrays keeps it, if one writes it."""
    if not target.in_store:
        return target
    from shardwrite.journal import state_work  # for states in buckets

    return state_work.located(target)


def check_held(target: Target, *, makes_array: bool) -> None:
    """Refuse to begin a run where its state would lie in this process alone.

    - `makes_array`: whether the run would make the array. A mark then keeps others away.
    - Raises RunEndedError if another process has taken the lease over.
    """
    if target.in_store:
        work = _bucket_work(target)
        if work is None:
            refuse_in_store(target)
        else:
            work.check()
    elif not makes_array:
        refuse_unfinished(target.place, "Finish it by the same call without run_dir")


def refuse_unfinished(place: Place, remedy: str) -> None:
    """Refuse to go on if a run whose state lies in the bucket of an array has not ended."""
    if not place.store.keeps_state:
        return
    from shardwrite.journal.state_lease import read_lease  # for buckets

    found = read_lease(cast("WholeStore", place.store))
    if found is not None and (found[0].holder or found[0].state):
        raise JournalError(
            f"a run on {place.label} keeps its state in the bucket, and has not ended. {remedy}",
            path=place.label,
        )


def refuse_in_store(
    target: Target, why: str = "this operation cannot keep the state of its run in the bucket"
) -> None:
    """Refuse an operation that cannot keep its state in a bucket."""
    if target.in_store:
        raise SpecError(
            why,
            field="run_dir",
            value=None,
            remedy="give a directory that all processes of the run see, such as "
            'run_dir="/scratch/me/runs", or set shardwrite.run-dir in the configuration of dask',
        )


def confirm(target: Target, *, puts: bool = True, in_group: bool = False) -> None:
    """Put all of the run state into the bucket, and verify that this process holds the lease.

    Nothing is done for targets whose run state lies in a directory.

    - `puts`: whether the state is put; else only the lease counts.
    - `in_group`: whether a look at the lease within the last second is enough; see `begin_group`.
    - Raises RunEndedError if another process has taken the lease over.
    """
    work = _bucket_work(target)
    if work is not None:
        work.confirm(puts=puts, in_group=in_group)


def begin_group(target: Target) -> None:
    """Have the first of several documents look at the lease in the bucket.

    Those that are put right after it go by that look, for a second at most, and by the deadline of
    the lease. That is as good as a look before each. Nobody takes the lease before its deadline,
    and the clock of that goes on while this process is frozen. Shards are put by the deadline
    alone. And after no look is it certain that the process goes on at once: so each document is put
    over the version that was seen there, or over none (`place.seen`).
    """
    work = _bucket_work(target)
    if work is not None:
        work.begin_group()


def fence_of(target: Target) -> Fence | None:
    """The way from tasks to the lease in the bucket; None if the run state lies in a directory."""
    work = _bucket_work(target)
    return None if work is None else work.fence


def shared_fence_of(target: Target, directory: str = "") -> SharedFence | None:
    """The way from tasks to a run of which nobody will hold the lease; else as `fence_of`."""
    if not target.in_store:
        return None
    from shardwrite.journal.state_work import SharedFence, store_of  # for states in buckets

    return SharedFence(store_of(target), directory, target.label)


def ensure_held(target: Target) -> None:
    """Verify that no other process can have taken the lease over, without asking the service.

    - Raises RunEndedError if another process has taken the lease over.
    """
    work = _bucket_work(target)
    if work is not None:
        work.check()
        if work.is_late:
            raise StoreError(
                f"the lease of {target.label} could not be renewed in time, so another process may "
                "have taken it over; make the same call again",
                key=str(target.run_path),
                errno=errno.ETIMEDOUT,
            )


def is_resumed(target: Target, run: str) -> bool:
    """Whether a run was there already when this process took the lease."""
    work = _bucket_work(target)
    return work is not None and run in work.resumed


def _bucket_work(target: Target) -> Work | None:
    """What this process does on the run state of a target in a bucket; None for any other."""
    if not target.in_store:
        return None
    from shardwrite.journal.state_work import current_work  # for states in buckets

    return current_work(target)

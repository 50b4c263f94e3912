"""An array in a store that is no directory, such as memory or a store of zarr-python.

Such a store cannot rename. So the new array is written over the old one. The old document and
receipt are first overwritten by a document that hides the array. Right before the new document is
published, the objects are removed that the new array does not have. No key is removed that this run
puts again, because a network may repeat a removal late. An array that is taken back is removed
object by object. One process does so at a time, and before each object it looks whether the run
still goes on.

The state of a run lies elsewhere, and does not notice if somebody empties the store, or writes
there by another run. So a run that makes an array puts a mark there first, an object with its own
name, which stays until the run ends. Without its mark a run neither goes on nor removes anything.
"""

from __future__ import annotations

import errno
import json
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from shardwrite._dataclass import dataclass
from shardwrite.errors import JournalError, StoreError
from shardwrite.format.node import DOCUMENT, DOCUMENTS_OF_V2, kind_of_document
from shardwrite.place.base import (
    MARK_NAME,
    MARKED,
    QUARANTINE_PREFIX,
    RECEIPT_NAME,
    STATE_PREFIX,
    Over,
    Owner,
    Place,
    UnknownRun,
    names_above,
)
from shardwrite.place.seen import UNKNOWN, Key, Seen, SeenObject
from shardwrite.stores.base import (
    Capability,
    Store,
    Transaction,
    changed_meanwhile,
    is_plain_key,
    open_there,
)
from shardwrite.stores.directories import STAGED, make_directories
from shardwrite.stores.looking import as_store_error, is_there, parse_json, read_limit
from shardwrite.stores.posix import write_file
from shardwrite.stores.removal import EXCLUSIVE_SCOPE

_HIDDEN = json.dumps(
    {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": {"shardwrite": "no group: an array is being replaced here"},
    }
).encode()
"""What stands in the place of a document or a receipt of an array that is being replaced."""
_TURN, _N_TURNS = b"\n", 64
"""Each document that replaces another one ends in one more line break than that, up to so many."""
_NODES = (DOCUMENT, MARK_NAME, *DOCUMENTS_OF_V2)
"""What tells that a node lies there, or will."""
_HIDEABLE = (DOCUMENT, RECEIPT_NAME)


# The first request for an object gives at least so many bytes of it.
_SMALL_NBYTES = 4096


def _content(leaf: str, data: bytes | None) -> bytes | None:
    """Content of an object; None if it is missing, or hides an array that is being replaced."""
    if data is None or leaf not in _HIDEABLE:
        return data
    data = data.rstrip(_TURN)
    return None if data == _HIDDEN else data


def _n_turns(data: bytes) -> int:
    return len(data) - len(data.rstrip(_TURN))


def _after(data: bytes, old: bytes | None) -> bytes | None:
    """The bytes of a document that replaces another one; None if it is the same document."""
    if old is None:
        return data
    data = data.rstrip(_TURN)
    if old.rstrip(_TURN) == data:
        return None
    return data + (_n_turns(old) + 1) % _N_TURNS * _TURN


def _mark_of(run: Owner) -> bytes:
    facts = {"run": run.run, "state": str(run.path.parent), **run.keeper}
    return json.dumps(facts).encode()


@dataclass(frozen=True, slots=True)
class Mark:
    """What the mark of a run says; all is empty if there is none."""

    run: str = ""  # name of the run; ``"?"`` if the mark does not tell
    state: str = ""  # directory of its state
    # If the state lies in a bucket inside another array of the same hierarchy: paths in it of this
    # array and of the other one
    array: str = ""
    keeper: str = ""
    mode: str = ""  # ``"r+"`` if the run changes the array, together with others


@dataclass(frozen=True, slots=True)
class InStore(Place):
    """An array in a store."""

    base: Store  # the store as a whole
    name: str = ""  # path of the array inside the store; empty if the store itself is the array
    lost_run: str = ""  # run whose state is lost, so that another run may replace its mark
    # What the call has seen that this place was made for, and others of it
    seen: Seen = field(default_factory=Seen, compare=False, repr=False)

    @property
    def label(self) -> str:
        """See :class:`Place`."""
        url = self.store.url
        return f"{self.name or '/'} in {self.base!r}" if url is None else url

    @property
    def array_name(self) -> str:
        """See :class:`Place`."""
        return f"/{self.name}"

    @property
    def store(self) -> Store:
        """See :attr:`Place.store`."""
        return self.base.at(self.name) if self.name else self.base

    @property
    def local_path(self) -> Path | None:
        """See :attr:`Place.local_path`."""
        store = self.store
        root = store.local_root
        return None if root is None else root / getattr(store, "prefix", "")

    def sibling(self, own: str, other: str) -> InStore:
        """See :meth:`Place.sibling`."""
        base, name = self.base, self.name
        if not f"/{name}".endswith(f"/{own}"):
            base, name = self.base.whole()[0], self.whole_name
        return InStore(base, name.removesuffix(own) + other, seen=self.seen)

    @property
    def top(self) -> InStore | None:
        """See :attr:`Place.top`."""
        if not self.name or type(self) is not InStore:
            return None
        return InStore(self.base, seen=self.seen)

    @property
    def groups(self) -> Sequence[InStore]:
        """See :attr:`Place.groups`."""
        return [InStore(self.base, name, seen=self.seen) for name in names_above(self.name)]

    def groups_above(self) -> Iterator[InStore]:
        """See :meth:`Place.groups_above`; those above the store count, too, if they may be read."""
        for group in reversed(self.groups):
            if not group.has(DOCUMENT):
                return
            yield group
        top, path = self.base.whole()
        for name in reversed(names_above(path)):
            group = InStore(top, name, seen=self.seen)
            if not self._sees(group):
                return
            yield group

    def _sees(self, group: InStore) -> bool:
        """Whether a group above the store has a document that the user's keys may read."""
        try:
            return group.has(DOCUMENT)
        except StoreError as error:
            if error.errno != errno.EACCES:
                raise
            self.has(DOCUMENT)  # keys that have expired are an error
            return False

    def name_in(self, group: Place) -> str:
        """See :meth:`Place.name_in`."""
        above = group.whole_name if isinstance(group, InStore) else ""
        return self.whole_name.removeprefix(above).lstrip("/")

    @property
    def whole_name(self) -> str:
        """Path from the top of the storage."""
        return "/".join(filter(None, (self.base.whole()[1], self.name)))

    def member(self, name: str) -> InStore:
        """See :meth:`Place.member`."""
        return InStore(self.base, f"{self.name}/{name}" if self.name else name, seen=self.seen)

    def kind(self) -> str:
        """See :meth:`Place.kind`."""
        kind = self._node_kind()
        return kind or ("other" if self.store.lists and self.is_occupied() else "nothing")

    def _node_kind(self) -> str | None:
        """Kind of the node that stands there; None if there is none."""
        of_array, of_group = DOCUMENTS_OF_V2
        if self.has(of_array):
            return "v2"
        data = self.read(DOCUMENT)
        if data is None:
            return "v2 group" if self.has(of_group) else None
        try:
            return kind_of_document(parse_json(data))
        except ValueError:
            return "torn"

    def is_occupied(self) -> bool:
        """See :meth:`Place.is_occupied`."""
        is_occupied = any(True for _ in self._keys())
        for leaf in () if is_occupied else (*_HIDEABLE, MARK_NAME):
            self._note(leaf, None, None)
        return is_occupied

    def kind_for_group(self) -> str:
        """See :meth:`Place.kind_for_group`: other objects are not in the way, and not listed."""
        if self.has(MARK_NAME):
            return "array"  # or will be one
        return self._node_kind() or "nothing"

    def array_around(self) -> str | None:
        """See :meth:`Place.array_around`."""
        return next(
            (node.label for node in self.nodes_above if node.kind_for_group() in ("array", "v2")),
            None,
        )

    def node_inside(self) -> str | None:
        """See :meth:`Place.node_inside`."""
        for key in self._keys():
            name, _, leaf = key.rpartition("/")
            if name and leaf in _NODES:
                return self.member(name).label
        return None

    def has_object(self, key: str) -> bool:
        """See :meth:`Place.has_object`."""
        return self.store.version(key) is not None

    def has(self, leaf: str) -> bool:
        """See :meth:`Place.has`."""
        key = self._key(leaf) if self.compares and self.seen.is_remembering else None
        if key is not None and (known := self.seen.read(key)) is not None:
            return _content(leaf, known.data) is not None
        if leaf not in _HIDEABLE:
            is_there = None if key is None else self.seen.is_there(key)
            if is_there is None:
                is_there = self.store.version(leaf) is not None
                if key is not None:
                    self.seen.note_there(key, is_there)
            return is_there
        reader = self.store.open(leaf)
        if reader is None:
            self._note(leaf, None, None)
            return False
        with reader:
            if reader.nbytes >= (len(_HIDDEN) + _N_TURNS if key is None else _SMALL_NBYTES):
                return True
            data = bytes(reader.read(0, reader.nbytes))
        self._note(leaf, data, reader.version)
        return _content(leaf, data) is not None

    def read(self, leaf: str) -> bytes | None:
        """See :meth:`Place.read`."""
        if self.compares and (known := self.seen.read(self._key(leaf))) is not None:
            return _content(leaf, known.data)
        reader = self.store.open(leaf)
        if reader is None:
            self._note(leaf, None, None)
            return None
        with reader:
            if reader.nbytes > read_limit():
                raise StoreError(
                    f"{leaf!r} has {reader.nbytes:,} bytes, and at most {read_limit():,} are read",
                    key=leaf,
                    errno=errno.EFBIG,
                )
            data = bytes(reader.read(0, reader.nbytes))
        self._note(leaf, data, reader.version)
        return _content(leaf, data)

    @property
    def compares(self) -> bool:
        """See :attr:`Place.compares`."""
        return type(self) is InStore and Capability.CONDITIONAL in self.base.capabilities

    def _key(self, leaf: str) -> Key:
        top, path = self.base.whole()  # by which all places of a call name the same object
        return top.token, "/".join(filter(None, (path, self.name, leaf)))

    def _note(self, leaf: str, data: bytes | None, version: Any) -> None:
        """Note what stands there of a document, or that there is none."""
        if self.compares:
            self.seen.note(self._key(leaf), SeenObject(data, version))

    def forget(self) -> None:
        """See :meth:`Place.forget`."""
        if self.compares:
            self.seen.forget(*map(self._key, (*_HIDEABLE, *_NODES)))

    def last(self, leaf: str) -> bytes | None:
        """See :meth:`Place.last`."""
        known = self.seen.last(self._key(leaf)) if self.compares else None
        return None if known is None else _content(leaf, known.data)

    def read_if_there(self, leaf: str) -> bytes | None:
        """See :meth:`Place.read_if_there`; one request tells both."""
        return self.read(leaf)

    def write(
        self,
        leaf: str,
        data: bytes,
        *,
        durability: str,
        attempt: str,
        guard: Callable[[], None] | None = None,
        over: Over | None = None,
    ) -> None:
        """See :meth:`Place.write`.

        A process that is frozen after the guard replaces nothing that others write meanwhile, where
        the store can prevent it. Nor does a request that the network repeats late: no document has
        the bytes of the last ones that stood there, whose versions such requests expect.

        What stands there is not looked at if this call has seen it before. The service refuses the
        request if that has changed, and then it is looked at.
        """
        store, version = self.store, None
        is_conditional = Capability.CONDITIONAL in store.capabilities
        if is_conditional and leaf not in _HIDEABLE:
            version = store.version(leaf)
        elif is_conditional:
            known = self.seen.last(self._key(leaf)) if self.compares else None
            if known is not None and (over is None or over.data == _content(leaf, known.data)):
                try:
                    whole = _after(data, known.data)
                    if whole is not None:
                        self.put(leaf, whole, (known.version,), durability, attempt, guard)
                        return
                except StoreError as error:
                    if error.errno != errno.ESTALE:
                        raise
            if self.compares:
                self.seen.drop(self._key(leaf))  # what stands there may be another document
            old = store.open(leaf)
            if old is not None:
                data = data.rstrip(_TURN)
                with old:
                    version, start = old.version, max(0, old.nbytes - len(data) - _N_TURNS)
                    if over is not None:
                        start = 0
                    end = bytes(old.read(start, old.nbytes - start))
                if end.rstrip(_TURN) == data and start == 0:
                    if guard is not None:
                        guard()
                    return  # another process has put it
                if over is not None and _content(leaf, end) != over.data:
                    raise changed_meanwhile(leaf)
                data += (_n_turns(end) + 1) % _N_TURNS * _TURN
            elif over is not None and over.data is not None:
                raise changed_meanwhile(leaf)
        self.put(leaf, data, (version,) if is_conditional else None, durability, attempt, guard)

    def put(
        self,
        leaf: str,
        data: bytes,
        expected: tuple[Any] | None,
        durability: str,
        attempt: str,
        guard: Callable[[], None] | None,
    ) -> None:
        """Put a document, if `expected` is given over this version only."""
        with self.store.transaction(durability, attempt, guard) as transaction:
            writer = transaction.create(leaf)
            writer.write([data])
            if expected is not None:
                writer.expect(*expected)
            writer.finish()
        self._note(leaf, data, UNKNOWN)

    def discard(self, leaf: str, attempt: str) -> None:
        """See :meth:`Place.discard`."""
        self.store.discard_temporary(leaf, attempt)

    def make_room(self, run: Owner, durability: str, *, replaces: bool, is_new: bool) -> None:
        """See :meth:`Place.make_room`.

        The directory ``replaced`` in the run's directory says that the old array is being hidden,
        and ``replaced/all`` that it is hidden. New shards are written only after that.
        """
        marked, begun = run.path / MARKED, run.path / "replaced"
        if not is_there(marked) or (replaces and not is_there(begun / "all")):
            # The run is in the bucket. That another array has its mark is found out again.
            with run.alone(puts=False) as check:
                if is_there(marked):
                    self.check_mark(run)
                else:
                    self._put_mark(run, durability, check, is_new=is_new)
                    marked.mkdir()
                if replaces:
                    self._refuse_inside()
                    begun.mkdir(exist_ok=True)
        if replaces and not is_there(begun / "all"):
            with run.alone() as check:  # `replaced` is in the bucket before anything is hidden
                self.check_mark(run)
                for leaf in _HIDEABLE:
                    if self.has(leaf):
                        self._hide(run, leaf, durability, check)
                (begun / "all").mkdir()

    def _hide(self, run: Owner, leaf: str, durability: str, check: Callable[[], None]) -> None:
        """Put something in the place of a document that is no document of an array."""
        if self.store.commits_later:  # where nobody sees what happens before a commit
            with self._removing(run, [leaf], check) as transaction:
                transaction.remove(leaf)
            return
        attempt = f"{uuid.uuid4().hex}.0"
        self.write(leaf, _HIDDEN, durability=durability, attempt=attempt, guard=check)
        self.forget()

    def clear(self, run: Owner, keys: Collection[str]) -> None:
        """See :meth:`Place.clear`; ``cleared`` in the directory of the run says that it is done."""
        cleared = run.path / "cleared"
        if is_there(run.path / "replaced") and not is_there(cleared):
            with run.alone() as check:
                if not is_there(cleared):
                    self._remove_all(run, check, but={*_HIDEABLE, MARK_NAME, *keys})
                    cleared.mkdir()

    def take_away(self, run: Owner) -> None:
        """See :meth:`Place.take_away`; without the mark of the run, everything stays."""
        self.forget()
        if self._marked_by() == run.run:
            with run.alone() as check:
                self._remove_all(run, check, last=MARK_NAME)

    def check_mark(self, run: Owner) -> None:
        """See :meth:`Place.check_mark`."""
        found = self._marked_by()
        if found != run.run:
            who = f"run {found} writes there now" if found else "somebody has removed it"
            raise JournalError(
                f"what run {run.run} has written to {self.label} is not there any more: {who}. "
                "Start over with restart=True, which removes nothing of others",
                path=str(run.path),
            )

    def remove_mark(self, run: Owner) -> None:
        """See :meth:`Place.remove_mark`."""
        self.forget()
        if self._marked_by() == run.run or self._has_torn_mark(run):
            with self._removing(run, [MARK_NAME], run.check_held) as transaction:
                transaction.remove(MARK_NAME)
            self.forget()
            self.store.discard_scope(MARK_NAME, EXCLUSIVE_SCOPE)  # of calls that were killed

    def staged(self, run: str, number: int) -> InStore:
        """Place of an array with values that a run keeps until its end.

        It lies among the state of the runs, but is no part of their logs.
        """
        return InStore(self.store.at(f"{STATE_PREFIX}{STAGED}-{run}/{number}"))

    def remove_staged(self, run: Owner) -> None:
        """Remove all arrays that `staged` names, and the state of the runs that write them."""
        keys = frozenset(self.store.list_keys(f"{STATE_PREFIX}{STAGED}-{run.run}/"))
        with self._removing(run, keys, run.check_held) as transaction:
            for key in sorted(keys):
                transaction.remove(key)

    def unknown_run(self, known: Collection[str] = ()) -> UnknownRun | None:
        """See :meth:`Place.unknown_run`."""
        mark = self.mark
        return None if mark.run in ("", self.lost_run, *known) else self._unknown(mark)

    def _unknown(self, mark: Mark) -> UnknownRun:
        if mark.mode == "r+":
            return UnknownRun(
                mark.run,
                False,
                f"run {mark.run} changes {self.label} together with others, and its state lies in "
                f"{self.sibling(mark.array, mark.keeper).label}: make the call that it was begun "
                "with, or give it up with abandon (shardwrite abandon)",
                f"if its state is lost, remove {MARK_NAME}, and look at the array with verify",
            )
        if mark.keeper:
            told = (
                f"run {mark.run} writes {self.label} together with others, and its state lies in "
                f"{self.sibling(mark.array, mark.keeper).label}: make the call that it was begun "
                "with, for all of them or for some"
            )
        else:
            told = (
                f"run {mark.run} writes {self.label}, and its state is not where this call looks "
                "for it: make the call that it was begun with, with the same run_dir or none"
            )
        return UnknownRun(
            mark.run,
            True,
            told,
            f"if its state is lost, remove {MARK_NAME} and what that run has written, and write "
            "the array again, or call recover (shardwrite recover)",
        )

    def foreign(self, is_shard: Callable[[str], bool]) -> Iterator[str]:
        """See :meth:`Place.foreign`."""
        return (key for key in self._keys() if key != MARK_NAME and not is_shard(key))

    def _keys(self) -> Iterator[str]:
        """Keys of all objects but those that hold the state of a run, and copies of bad shards."""
        others = (STATE_PREFIX, QUARANTINE_PREFIX)
        return (key for key in self.store.list_keys() if not key.startswith(others))

    def _put_mark(
        self, run: Owner, durability: str, check: Callable[[], None], *, is_new: bool
    ) -> None:
        data = _mark_of(run)
        check()
        # Of two runs that begin at once with different directories, one stops here.
        can_create = Capability.EXCLUSIVE in self.store.capabilities
        is_put = can_create and self.store.create_new(MARK_NAME, data)
        self.forget()  # what was read before the mark may be out of date
        mark = Mark() if is_put or self._has_torn_mark(run) else self.mark
        if mark.run not in ("", run.run, self.lost_run):
            unknown = self._unknown(mark)
            raise JournalError(f"{unknown.told}; {unknown.remedy}", path=str(run.path))
        if not is_put:
            attempt = f"{uuid.uuid4().hex}.0"
            self.write(MARK_NAME, data, durability=durability, attempt=attempt, guard=check)
        try:
            run.check_alone()
            # Without the lease of this array, another call may have written it before the mark. And
            # `marked` is in the state before such a run publishes anything itself.
            if is_new and (run.keeper or not mark.run):
                self._refuse_published(run)
            self._note(MARK_NAME, data, UNKNOWN)
        except JournalError:
            self.remove_mark(run)  # it would keep the other run from going on
            raise

    def _refuse_published(self, run: Owner) -> None:
        """Refuse to go on if an array stands there, which is not the run's."""
        if self.has(DOCUMENT):
            raise JournalError(
                f"another call has written {self.label} since the run {run.run} was begun, which "
                "writes it, too. Make this call again with restart=True",
                path=str(run.path),
            )

    def _marked_by(self) -> str:
        """Name of the run that has put its mark there; empty if there is no mark."""
        return self.mark.run

    @property
    def mark(self) -> Mark:
        """What the mark says that a run has put there."""
        data = self.read(MARK_NAME)
        if data is None:
            return Mark()
        try:
            found = parse_json(data)
            names = ("state", "array", "keeper", "mode")
            others = {name: str(found.get(name, "")) for name in names}
            mark = Mark(str(found["run"]), **others)
        except (ValueError, LookupError, TypeError, AttributeError):
            return Mark("?")
        is_whole = is_plain_key(mark.keeper) and f"/{self.whole_name}".endswith(f"/{mark.array}")
        return mark if is_whole else replace(mark, array="", keeper="")

    def _has_torn_mark(self, run: Owner) -> bool:
        """Whether only the beginning of the run's mark is there.

        In a store whose puts are not whole, a put that failed leaves that, and nobody has gone on.
        """
        data, whole = self.read(MARK_NAME), _mark_of(run)
        return data is not None and data != whole and whole.startswith(data)

    def _remove_all(
        self,
        run: Owner,
        check: Callable[[], None],
        *,
        but: Collection[str] = (),
        last: str = "",
    ) -> None:
        """Remove all objects but some, while `check` does not raise."""
        self._refuse_inside()
        keys = frozenset(self._keys()).difference(but)
        with self._removing(run, keys, check) as transaction:
            first = {DOCUMENT: 0, RECEIPT_NAME: 1, last: 3}
            for key in sorted(keys, key=lambda key: (first.get(key, 2), key)):
                transaction.remove(key)
        self.forget()

    def _refuse_inside(self) -> None:
        """Refuse to remove anything of an array that another node lies in."""
        inside = self.node_inside()
        if inside is not None:
            raise StoreError(
                f"nothing of {self.label} is removed, because another array or group stands inside "
                f"it, {inside}. Move that away, and make the same call again",
                key=self.name,
                errno=errno.ENOTEMPTY,
            )

    def _removing(
        self, run: Owner, keys: Collection[str], check: Callable[[], None]
    ) -> Transaction:
        """Transaction that may remove some objects."""
        proof = run.proof(lambda: keys)
        return self.store.transaction("none", f"{uuid.uuid4().hex}.0", check, proof=proof)

    def keep_copy(self, key: str, copy: Path, durability: str) -> None:
        """See :meth:`Place.keep_copy`."""
        reader = open_there(self.store, key)
        with reader, as_store_error(str(copy), "cannot keep a copy as"):
            make_directories(copy.parent, durability)
            data = reader.read(0, reader.nbytes)
            write_file(copy, data, durability=durability, attempt=f"{uuid.uuid4().hex}.0")

"""Sessions of Icechunk as stores: a commit shows all that was written, and nothing is seen before.

Icechunk takes the chunks of an array only when the array exists. So the document of an array is put
first (`commits_later`). Other objects than documents and chunks are refused. So the mark and the
receipt of a run are kept aside, in the memory of this process, and are never committed.

Threads of one process write into the session itself. In other processes, each task writes into a
fork of its own. What it has changed comes back with its report, and is merged. These forks are
copies of one that has the document. Forks that made the array themselves would each make another.
"""

from __future__ import annotations

import contextlib
import errno
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Self

from shardwrite.errors import (
    ConflictError,
    ShardwriteError,
    SpecError,
    StoreError,
    not_installed,
)
from shardwrite.stores.base import Capability, require, token_of
from shardwrite.stores.removal import Proof
from shardwrite.stores.whole import WholeTransaction
from shardwrite.stores.zarr_store import Kind, ZarrStore

_DOCUMENT = "zarr.json"
# Keys that Icechunk takes: documents, and chunks of the default encoding.
_TAKEN = re.compile(rf"(?:(?P<node>.+)/)?(?:{re.escape(_DOCUMENT)}|c(?:/\d+)*)")
_OWN_PREFIX = "shardwrite-"


class _Shared:
    """What the parts of a store share.

    - `aside`: objects that Icechunk does not take, by name.
    - `base`: state of the fork of which other processes get copies. It is made when it is needed.
    """

    def __init__(self, session: Any, given: Any, base: Any) -> None:
        self.session = session
        self.given = given
        self.aside: dict[str, bytes] = {}
        self.base = base
        self._changed = threading.Condition()
        self._n_changing = 0
        self._is_written = base is not None

    @contextlib.contextmanager
    def changing(self, name: str) -> Iterator[None]:
        """Let this thread change an object, while a call writes."""
        with self._changed:
            if not self._is_written:
                message = f"{name!r} is not changed: no call writes to this session now"
                raise StoreError(message, key=name, errno=errno.ECANCELED)
            self._n_changing += 1
        try:
            yield
        finally:
            with self._changed:
                self._n_changing -= 1
                self._changed.notify_all()

    def begin(self) -> None:
        """Note that a call writes to the session now."""
        with _lock:
            if any(other.given == self.given for other in _written):
                raise SpecError(
                    "another call writes to this session now",
                    field="store",
                    value=type(self.given).__name__,
                    remedy="wait for it, or give each call a session of its own",
                )
            _written.add(self)
        self._is_written = True

    def end(self) -> None:
        """Wait for threads that change something, and let none begin again."""
        with _lock:
            _written.discard(self)
        with self._changed:
            self._is_written = False
            self._changed.wait_for(lambda: self._n_changing == 0)


_lock = threading.Lock()
_written: weakref.WeakSet[_Shared] = weakref.WeakSet()
"""Sessions that calls write to now."""


class SessionStore(ZarrStore):
    """Documents and chunks in a session of Icechunk.

    - `session`: the session. A call that writes uses `to_write` instead.
    """

    commits_later = True
    knows_ends = False

    def __init__(self, session: Any, given: Any = None, base: Any = None) -> None:
        capabilities = {Capability.ATOMIC, Capability.DURABLE}
        if session.read_only or _is_fork(session):
            capabilities.add(Capability.SHARED)
        super().__init__(session.store, capabilities)
        self._shared = _Shared(session, session if given is None else given, base)
        self._is_helper = base is not None

    @classmethod
    def to_write(cls, session: Any, *, for_processes: bool) -> Self:
        """The store of a call that writes, and that ends with `commit` or `discard`."""
        _check_writable(session)
        store = cls(_fork_of(session) if for_processes else session, session)
        store.begin()
        return store

    def begin(self) -> None:
        """Let the store be changed until `commit` or `discard`."""
        self._shared.begin()

    def state(self) -> Any:
        """State of the fork, with what was changed in it."""
        return self._shared.session.__getstate__()

    def __reduce__(self) -> tuple[Any, ...]:
        require(self, Capability.SHARED, field="store", value="Session")
        if self._shared.session.read_only:
            return _reader, (self._zarr, self.prefix)
        base = self._shared.base
        if base is None:
            base = self._shared.base = self.state()
        return _helper, (base, self.prefix)

    @property
    def is_in_memory(self) -> bool:
        """See :attr:`Store.is_in_memory`: what is not committed ends with this process."""
        return not self._shared.session.read_only

    @property
    def owner(self) -> object:
        """See :attr:`Store.owner`."""
        return self._shared

    @property
    def token(self) -> str:
        """See :attr:`Store.token`; who reads a session that is written has the same."""
        mine = self._shared
        if mine.session.read_only:  # a snapshot never changes
            return f"icechunk:{mine.session.snapshot_id}/{self.prefix}"
        with _lock:
            same = [other for other in _written if other.session == mine.session]
        return f"{token_of(same[0] if same else mine)}/{self.prefix}"

    def __repr__(self) -> str:
        branch, snapshot = self._shared.given.branch, self._shared.given.snapshot_id
        where = f"snapshot {snapshot}" if branch is None else f"branch {branch!r}"
        return f"{where} of an Icechunk repository" + (f"/{self.prefix}" if self.prefix else "")

    def prepare(self) -> None:
        """See :meth:`Store.prepare`."""
        self._has_node("")

    def check_new_key(self, key: str) -> None:
        """See :meth:`Store.check_new_key`."""
        if not _TAKEN.fullmatch(key):
            raise SpecError(
                "makes other keys than Icechunk takes, which are such as c/0/1",
                field="chunk_key_encoding",
                value=key,
                remedy="leave it out",
            )

    def take(self, changes: Any) -> None:
        """See :meth:`Store.take`."""
        with self._shared.changing(self.prefix), _told(self, "merge what a task has changed in"):
            self._shared.session.merge(_fork_in(changes))

    @property
    def has_changes(self) -> bool:
        """Whether there is something to commit."""
        return bool(self._shared.session.has_uncommitted_changes)

    def commit(self, message: str) -> str:
        """Commit what was written, and return the id of the snapshot.

        - Raises ConflictError if another writer has moved the branch.
        """
        import icechunk

        self._shared.end()
        session = self._shared.given
        with _told(self, "commit to"):
            if session is not self._shared.session:
                session.merge(self._shared.session)
            try:
                return str(session.commit(message))
            except icechunk.ConflictError as error:
                raise ConflictError(
                    f"another writer has committed to {self!r} meanwhile, so nothing is "
                    "published. The session keeps what was written: call "
                    "session.rebase(icechunk.ConflictDetector()), and then session.commit(...)",
                    branch=session.branch,
                    expected=error.expected_parent,
                    found=error.actual_parent,
                ) from error

    def discard(self) -> None:
        """Leave the session as it was before the call."""
        self._shared.end()
        if self._shared.given is self._shared.session:
            self._shared.given.discard_changes()
        else:
            self._shared.given.merge()  # so that its next commit does not warn of a fork

    def transaction(
        self,
        durability: str,
        attempt: str,
        guard: Callable[[], None] | None = None,
        *,
        proof: Proof | None = None,
        is_fresh: bool = False,
    ) -> WholeTransaction:
        """See :meth:`Store.transaction`."""
        if not self._is_helper:
            return super().transaction(durability, attempt, guard, proof=proof, is_fresh=is_fresh)
        own = _helper(self._shared.base, self.prefix)
        return _InFork(own, guard, proof, is_fresh=is_fresh)

    def read_object(self, name: str, start: int = 0, stop: int | None = None) -> memoryview | None:
        """See :meth:`ZarrStore.read_object`."""
        if name in self._shared.aside:
            return memoryview(self._shared.aside[name])[start:stop]
        parts = _TAKEN.fullmatch(name)
        if parts is None:
            return None
        node, data, error = parts["node"] or "", None, None
        try:
            data = super().read_object(name, start, stop)
        except StoreError as raised:
            error = raised
        # Of a document that it cannot read, Icechunk says that there is none.
        if data is None and (error or name.endswith(_DOCUMENT)) and self._has_node(node):
            raise error or StoreError(f"cannot read {name!r}", key=name, errno=errno.EIO)
        return data

    def put_object(self, name: str, data: bytearray | bytes) -> None:
        """See :meth:`WholeStore.put_object`."""
        with self._shared.changing(name):
            if any(part.startswith(_OWN_PREFIX) for part in name.split("/")):
                self._shared.aside[name] = bytes(data)
                return
            if not self._is_helper:
                self._shared.base = None
            super().put_object(name, data)

    def remove_object(self, name: str) -> None:
        """See :meth:`WholeStore.remove_object`."""
        with self._shared.changing(name):
            parts = _TAKEN.fullmatch(name)
            if self._shared.aside.pop(name, None) is not None or parts is None:
                return
            try:
                super().remove_object(name)
            except StoreError:
                if self._has_node(parts["node"] or ""):
                    raise

    def list_names(self, prefix: str) -> Iterator[str]:
        """See :meth:`WholeStore.list_names`."""

        async def listed(kind: Kind) -> list[str]:
            above, found = prefix.rstrip("/"), []
            chunks = _TAKEN.fullmatch(above)
            while above and not await _is_node(kind, above):
                above = above.rpartition("/")[0]
            is_inside = above == prefix.rstrip("/") or (chunks and above == (chunks["node"] or ""))
            async for name in kind.store.list_prefix(above):
                if name.startswith(prefix):
                    found.append(name)
                elif not is_inside and not name.endswith(_DOCUMENT):
                    break  # documents come first, and these are chunks of other arrays
            return found

        names = [*self._run(prefix, "list", listed), *self._shared.aside]
        return (name for name in names if name.startswith(prefix))

    def _has_node(self, node: str) -> bool:
        """Whether an array or a group exists."""
        return self._run(node, "look for", lambda kind: _is_node(kind, node))


async def _is_node(kind: Kind, node: str) -> bool:
    """Whether an array or a group exists; this raises if the storage does not tell."""
    return await kind.store.exists(f"{node}/{_DOCUMENT}" if node else _DOCUMENT)


class _InFork(WholeTransaction):
    """A transaction of a task that has a fork of its own."""

    store: SessionStore

    def changes(self) -> Any:
        """See :meth:`Transaction.changes`."""
        return self.store.state()


def _helper(state: Any, prefix: str) -> SessionStore:
    """The store of tasks in another process."""
    return SessionStore(_fork_in(state), base=state).at(prefix.removesuffix("/"))


def _reader(store: Any, prefix: str) -> SessionStore:
    """The store of a session that only reads, in another process."""
    return SessionStore(store.session).at(prefix.removesuffix("/"))


def _is_fork(session: Any) -> bool:
    return type(session).__name__ == "ForkSession"


def _fork_of(session: Any) -> Any:
    """A fork of a session, which other processes can use."""
    fork = session.fork()
    try:
        SessionStore(fork).prepare()
    except StoreError as error:
        session.merge()  # so that its next commit does not warn of a fork
        raise SpecError(
            "other processes do not reach its repository, which may lie in memory",
            field="store",
            value="Session",
            remedy="use dask's threads, or a repository in a directory or a bucket",
        ) from error
    return fork


def _fork_in(state: Any) -> Any:
    """The fork that has a state."""
    try:
        from icechunk.session import ForkSession
    except ImportError:
        raise not_installed("icechunk", "icechunk", field="store", value="Session") from None
    fork = ForkSession.__new__(ForkSession)
    fork.__setstate__(state)
    return fork


def _check_writable(session: Any) -> None:
    """Refuse a session that cannot be committed, or has changes that are not the call's."""
    wrong = None
    if _is_fork(session):
        wrong = "a fork, which cannot be committed", "give the session that it was forked from"
    elif session.read_only:
        remedy = 'give a new one, such as repository.writable_session("main")'
        wrong = "a session that only reads, as each does after its commit", remedy
    elif session.has_uncommitted_changes:
        remedy = "call session.discard_changes(), or session.commit(...) and give a new session"
        wrong = "a session with changes, which would become part of this commit", remedy
    if wrong is not None:
        raise SpecError(wrong[0], field="store", value=type(session).__name__, remedy=wrong[1])


@contextlib.contextmanager
def _told(store: SessionStore, doing: str) -> Iterator[None]:
    """Turn what Icechunk raises into a `StoreError`."""
    try:
        yield
    except ShardwriteError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise StoreError(f"cannot {doing} {store!r}: {reason}", errno=errno.EIO) from error

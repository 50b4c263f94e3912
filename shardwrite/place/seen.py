"""What one call has seen of the places that it writes to, so that its later steps need not ask.

A call looks at the same documents when it plans, looks what stands there, begins a run, and
publishes. In a bucket each look is a request. So places of a call share a `Seen`, and these are its
rules:

- Inside a block of `remembering`, what was read is not read again. The block begins with nothing,
  and ends before tasks run. Its steps follow each other at once. They only plan, or this process
  holds the lease of the run, so that no other process takes part in it.
- A step that must know what others have done meanwhile calls `forget` first. It is the step that
  follows a claim, such as the mark of a run: what was read before the claim may be out of date.
- Nothing is removed because of what is remembered, and no array is refused because of what stands
  in its place. Whoever does so looks again first.
- What was seen last is also known beyond the block, with its version. Only a put goes by it, and
  names that version: the service refuses it if another one stands there, and then it is read anew.

Only stores that compare versions remember (`CONDITIONAL`). In a directory the steps of a run may be
those of several processes, and each of them reads what it goes by. While a call finds out where
arrays and their state lie, it looks once at what lies above several of them. A directory in which
it would look for many names is listed.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from shardwrite._dataclass import dataclass
from shardwrite.codecs.documents import Document
from shardwrite.errors import StoreError
from shardwrite.format.node import DOCUMENT
from shardwrite.stores.looking import is_file, names_in

Key = tuple[str, str]
"""A store, by its token, and the path of an object in it."""

FEW = 8
"""Names in a directory that are looked at one by one. For more, the directory is listed once."""

UNKNOWN = object()
"""Version of what this process has put, which the service does not tell."""


@dataclass(frozen=True, slots=True)
class SeenObject:
    """An object as it stood there."""

    data: bytes | None  # None if there is none
    version: Any  # as its store tells; None if there is none


class Seen:
    """What one call has seen. It does not travel to other processes."""

    def __init__(self) -> None:
        self._told: dict[tuple[Callable[[Path], bool], Path], bool] = {}  # see `once`
        self._n_asked = Counter[Path]()  # how often names in a directory were asked for
        self._names: dict[Path, frozenset[str] | None] = {}  # see `may_stand`
        # Document of the hierarchy of 2022 that each store holds, by the token of the store
        self.hierarchies: dict[str, Document | None] = {}
        self._n_blocks = 0
        self._last: dict[Key, SeenObject] = {}
        self._is_there: dict[Key, bool] = {}
        self._fresh: set[Key] = set()  # those of `_last` that are not read again

    def __reduce__(self) -> tuple[Any, ...]:
        return Seen, ()

    def once(self, ask: Callable[[Path], bool], path: Path) -> bool:
        """What a function tells of a path, as it has told first."""
        key = ask, path
        if key not in self._told:
            self._told[key] = ask(path)
        return self._told[key]

    def has_document(self, directory: Path) -> bool:
        """Whether a directory is a node of Zarr v3, as the call has seen it first."""
        return self.once(self._looks_for_document, directory)

    def _looks_for_document(self, directory: Path) -> bool:
        return self.may_stand(directory) and is_file(directory / DOCUMENT)

    def may_stand(self, path: Path) -> bool:
        """Whether something may stand at a path: False if a list of its directory lacks it."""
        directory = path.parent
        if directory not in self._names:
            self._n_asked[directory] += 1
            if self._n_asked[directory] <= FEW:
                return True
            self._names[directory] = _names_in(directory)
        names = self._names[directory]
        return names is None or path.name in names

    @contextlib.contextmanager
    def remembering(self) -> Iterator[None]:
        """Have what is read inside the block read once."""
        if not self._n_blocks:
            self.forget()
        self._n_blocks += 1
        try:
            yield
        finally:
            self._n_blocks -= 1
            if not self._n_blocks:
                self.forget()

    @property
    def is_remembering(self) -> bool:
        """Whether a block goes on."""
        return bool(self._n_blocks)

    def forget(self, *keys: Key) -> None:
        """Have objects read again: these, or all."""
        if keys:
            self._fresh.difference_update(keys)
        else:
            self._fresh.clear()
        for key in keys or tuple(self._is_there):
            self._is_there.pop(key, None)

    def read(self, key: Key) -> SeenObject | None:
        """What was read of an object in this block; None if it must be read."""
        return self._last[key] if self._n_blocks and key in self._fresh else None

    def last(self, key: Key) -> SeenObject | None:
        """What was seen of an object at any time; None if it or its version is not known."""
        found = self._last.get(key)
        return None if found is None or found.version is UNKNOWN else found

    def note(self, key: Key, found: SeenObject) -> None:
        """Note what stands there now."""
        self._last[key] = found
        self._fresh.add(key)

    def drop(self, key: Key) -> None:
        """Note that what was seen of an object does not stand there any more."""
        self._last.pop(key, None)
        self._fresh.discard(key)

    def is_there(self, key: Key) -> bool | None:
        """Whether there is an object that is not read, if this block has looked."""
        return self._is_there.get(key) if self._n_blocks else None

    def note_there(self, key: Key, is_there: bool) -> None:
        """Note whether there is an object that is not read."""
        self._is_there[key] = is_there


def _names_in(directory: Path) -> frozenset[str] | None:
    """Names in a directory; None if they cannot be listed, as without the right to do so."""
    try:
        return frozenset(names_in(directory))
    except StoreError:
        return None

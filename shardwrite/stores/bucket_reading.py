"""Reading of objects in a bucket by ranges, with as few requests as possible.

The first request for an object takes its last bytes. The answer says how large the object is and
which version it is, and the bytes hold the index of a shard, so one more request reads an inner
chunk. Azure cannot be asked for last bytes. There, the first request takes the first bytes, which
are all of a small object, and the second one the last bytes. All later requests ask for the same
version: what was replaced meanwhile is an error.
"""

from __future__ import annotations

import errno
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from shardwrite.errors import StoreError
from shardwrite.stores.base import ObjectReader

_FIRST_TAIL_NBYTES, _MOST_TAIL_NBYTES = 2**16, 2**22
_KEPT_NBYTES = 2**26
Version = tuple[int, str | None, str | None]
"""Size of an object in bytes, its ETag, and the version or generation that its service names."""


def version_from(found: Any) -> Version:
    """Version of an object, from what obstore tells of it."""
    tag, version = found["e_tag"], found["version"]
    return int(found["size"]), tag, version if tag or version else str(found["last_modified"])


@dataclass(frozen=True, slots=True)
class Seen:
    """What one request has told of an object."""

    version: Version  # size, ETag and version
    tail: Any = b""  # the last bytes of the object


class Tails:
    """How many bytes are read from the ends of objects; in a store that is only read, these bytes.

    - `keeps`: whether the last bytes of objects are kept, up to 64 MiB in all.
    """

    def __init__(self, *, keeps: bool = False) -> None:
        self.nbytes = _FIRST_TAIL_NBYTES
        self.keeps = keeps
        self._kept: OrderedDict[str, Seen] = OrderedDict()
        self._total = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return _tails, (self.keeps,)

    def wanted(self, nbytes: int) -> None:
        """Note that a reader needed the last `nbytes` bytes, so that the next object gives them."""
        self.nbytes = max(self.nbytes, min(nbytes, _MOST_TAIL_NBYTES))

    def find(self, name: str) -> Seen | None:
        """What is kept of an object."""
        with self._lock:
            if name in self._kept:
                self._kept.move_to_end(name)
            return self._kept.get(name)

    def keep(self, name: str, seen: Seen) -> None:
        """Keep what was seen of an object, and forget what was not used for the longest time."""
        if not self.keeps:
            return
        with self._lock:
            self._drop(name)
            self._kept[name] = seen
            self._total += len(seen.tail)
            while self._total > _KEPT_NBYTES:
                self._drop(next(iter(self._kept)))

    def forget(self, name: str) -> None:
        """Forget an object, which has changed."""
        with self._lock:
            self._drop(name)

    def _drop(self, name: str) -> None:
        dropped = self._kept.pop(name, None)
        if dropped is not None:
            self._total -= len(dropped.tail)


def _tails(keeps: bool) -> Tails:
    return Tails(keeps=keeps)


Get = Callable[[str, int, int, Version], bytes | None]
"""Reads a range of one version of an object; None if that version is not there any more."""
Look = Callable[[str], Version | None]
"""Asks for the version of an object; None if it is missing."""


class BucketReader(ObjectReader):
    """An object of which ranges are read as they are asked for.

    - `is_kept`: whether that was kept from earlier. Then the service is asked at least once, at the
      latest when the reader is closed, whether the object is still the same.
    """

    def __init__(
        self, name: str, seen: Seen, tails: Tails, get: Get, look: Look, *, is_kept: bool = False
    ) -> None:
        self._name, self._seen, self._tails = name, seen, tails
        self._get, self._look = get, look
        self._is_asked = not is_kept
        self.version = seen.version
        self.nbytes = seen.version[0]

    def read(self, offset: int, nbytes: int) -> bytes:
        """See :meth:`ObjectReader.read`."""
        tail = self._seen.tail  # which another thread may replace
        end, start = offset + nbytes, self.nbytes - len(tail)
        if end > self.nbytes:
            message = f"{self._name!r} ends at byte {self.nbytes}"
            raise StoreError(message, key=self._name, errno=errno.EIO)
        if offset >= start or not nbytes:
            return bytes(memoryview(tail)[offset - start : end - start])
        if end == self.nbytes and offset and nbytes <= _MOST_TAIL_NBYTES:
            return self._ending(nbytes)
        return self._asked(offset, end)

    def _ending(self, nbytes: int) -> bytes:
        """The last bytes, of which more are read and kept if the next reader may want them."""
        self._tails.wanted(nbytes)
        tail = self._asked(max(0, self.nbytes - self._tails.nbytes), self.nbytes)
        self._seen = Seen(self.version, tail)
        if len(tail) < self.nbytes:
            self._tails.keep(self._name, self._seen)
        return tail[len(tail) - nbytes :]

    def _asked(self, start: int, end: int) -> bytes:
        """A range, as the service gives it."""
        data = self._get(self._name, start, end, self.version)
        if data is None:
            raise self._changed()
        self._is_asked = True
        if len(data) != end - start:
            message = f"{len(data)} of {end - start} bytes of {self._name!r} were answered"
            raise StoreError(message, key=self._name, errno=errno.EIO)
        return data

    def _changed(self) -> StoreError:
        """The error for another version, after what was kept is forgotten."""
        self._tails.forget(self._name)
        return StoreError(
            f"{self._name!r} was replaced or removed while it was read",
            key=self._name,
            errno=errno.ESTALE,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if not self._is_asked and not any(exc_info):
            self._is_asked = True
            if self._look(self._name) != self.version:
                raise self._changed()

"""Modification of an object in place.

This is not atomic. The caller keeps a record from which the object can be repaired after a crash.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from typing import Any

from shardwrite.errors import StoreError
from shardwrite.stores.allocation import reserve_blocks
from shardwrite.stores.descriptors import pwrite_all
from shardwrite.stores.reading import as_store_error, open_plain, version_in

__all__ = ["PosixEditor"]


class PosixEditor:
    """A file that is modified in place; see :class:`~shardwrite.stores.base.ObjectEditor`."""

    def __init__(self, key: str, path: str | os.PathLike[str]) -> None:
        self._key = key
        with as_store_error(key, "cannot open"):
            self._fd = open_plain(path, os.O_RDWR)

    def write_at(self, offset: int, data: Any) -> None:
        """See :meth:`ObjectEditor.write_at`."""
        with as_store_error(self._key, "cannot write"):
            pwrite_all(self._fd, data, offset)

    def check_version(self, version: Any) -> None:
        """See :meth:`ObjectEditor.check_version`."""
        with as_store_error(self._key, "cannot look at"):
            found = os.fstat(self._fd)
        if version_in(found) != version:
            raise StoreError(
                f"{self._key!r} was changed by another writer meanwhile",
                key=self._key,
                errno=errno.ESTALE,
            )

    def reserve(self, spans: Iterable[tuple[int, int]]) -> None:
        """See :meth:`ObjectEditor.reserve`."""
        with as_store_error(self._key, "cannot reserve room in"):
            begun = end = 0
            for start, stop in sorted(spans):
                if start > end:
                    reserve_blocks(self._fd, begun, end)
                    begun = start
                end = max(end, stop)
            reserve_blocks(self._fd, begun, end)

    def cut(self, nbytes: int) -> None:
        """See :meth:`ObjectEditor.cut`."""
        with as_store_error(self._key, "cannot cut back"):
            os.ftruncate(self._fd, nbytes)

    def sync(self) -> None:
        """See :meth:`ObjectEditor.sync`."""
        with as_store_error(self._key, "cannot sync"):
            os.fsync(self._fd)

    def __enter__(self) -> PosixEditor:
        return self

    def __exit__(self, *exc_info: object) -> None:
        fd, self._fd = self._fd, -1
        if exc_info[0] is None:
            with as_store_error(self._key, "cannot close"):
                os.close(fd)
        else:
            os.close(fd)

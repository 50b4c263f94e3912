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


class PosixEditor:
    """A file that is modified in place; see :class:`~shardwrite.stores.base.ObjectEditor`."""

    def __init__(self, key: str, path: str | os.PathLike[str]) -> None:
        self._key = key
        self._only_appends = False
        with as_store_error(key, "cannot open"):
            try:
                self._fd = open_plain(path, os.O_RDWR)
            except PermissionError as error:
                if error.errno != errno.EPERM:
                    raise
                self._fd = open_plain(path, os.O_WRONLY | os.O_APPEND)  # see `chattr +a`
                self._only_appends = True

    def write_at(self, offset: int, data: Any) -> None:
        """See :meth:`ObjectEditor.write_at`; where the system only appends, it must be the end."""
        with as_store_error(self._key, "cannot write"):
            if self._only_appends and offset != os.fstat(self._fd).st_size:
                raise self._no_append()
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
            nbytes = os.fstat(self._fd).st_size
            sequence = sorted(spans)
            if self._only_appends and sequence and sequence[0][0] < nbytes:
                raise self._no_append()
            begun = end = 0
            try:
                for start, stop in sequence:
                    if start > end:
                        reserve_blocks(self._fd, begun, end)
                        begun = start
                    end = max(end, stop)
                reserve_blocks(self._fd, begun, end)
            except BaseException:
                self.cut(nbytes)  # gives back what was reserved
                raise

    def cut(self, nbytes: int) -> None:
        """See :meth:`ObjectEditor.cut`."""
        with as_store_error(self._key, "cannot cut back"):
            if self._only_appends and os.fstat(self._fd).st_size <= nbytes:
                return
            os.ftruncate(self._fd, nbytes)

    def _no_append(self) -> StoreError:
        return StoreError(
            f"the system lets only append to {self._key!r}, and this would write into it. Give "
            "strategy=AppendOnly(in_place=True) if the index lies at the end, or let the file be "
            "written to (chattr -a)",
            key=self._key,
            errno=errno.EPERM,
        )

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

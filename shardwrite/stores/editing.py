"""Changing an object where it stands. Not atomic: who does it keeps a record, from which a crash can be mended."""

from __future__ import annotations

import errno
import os
from typing import Any

from shardwrite.errors import StoreError
from shardwrite.stores.reading import as_store_error, open_plain, version_in

__all__ = ["PosixEditor"]


class PosixEditor:
    """See :class:`~shardwrite.stores.base.ObjectEditor`."""

    def __init__(self, key: str, path: str | os.PathLike[str]) -> None:
        self._key = key
        with as_store_error(key, "cannot open"):
            self._fd = open_plain(path, os.O_RDWR)

    def read(self, offset: int, nbytes: int) -> bytes:
        """See :meth:`ObjectEditor.read`."""
        parts = []
        with as_store_error(self._key, "cannot read"):
            nbytes = min(nbytes, os.fstat(self._fd).st_size - offset)
            while nbytes > 0:
                part = os.pread(self._fd, nbytes, offset)
                if not part:
                    break
                parts.append(part)
                offset, nbytes = offset + len(part), nbytes - len(part)
        return b"".join(parts)

    def write_at(self, offset: int, data: Any) -> None:
        """See :meth:`ObjectEditor.write_at`."""
        view = memoryview(data)
        with as_store_error(self._key, "cannot write"):
            while view:
                n = os.pwrite(self._fd, view, offset)
                view, offset = view[n:], offset + n

    def check_version(self, version: Any) -> None:
        """See :meth:`ObjectEditor.check_version`."""
        with as_store_error(self._key, "cannot look at"):
            found = os.fstat(self._fd)
        if version_in(found) != version:
            raise StoreError(f"{self._key!r} was changed by another writer meanwhile", key=self._key, errno=errno.ESTALE)

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

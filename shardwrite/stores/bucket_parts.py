"""Objects of a bucket that are too large for one request: how they are written, and what is left.

An object grows in memory up to a limit, `shardwrite.bucket.put-limit`. What is larger is uploaded
in parts, one after the other. The first part waits until the object is complete, since an index at
the start is known last. So a writer holds the limit and two parts, whatever the size of the object.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from shardwrite.config.table import PUT_LIMIT
from shardwrite.config.values import value_of
from shardwrite.errors import SpecError, StoreError
from shardwrite.stores.base import ObjectReader
from shardwrite.stores.bucket_kinds import KINDS, NOTHING, Kind
from shardwrite.stores.bucket_s3 import S3Uploads
from shardwrite.stores.bucket_uploads import (
    ANY,
    MOST_NBYTES,
    MOST_PARTS,
    MOST_PUT_NBYTES,
    Condition,
    Upload,
    Uploads,
    part_nbytes_for,
)
from shardwrite.stores.capabilities import Capability
from shardwrite.stores.files import COPIED_NBYTES
from shardwrite.stores.whole_transaction import Room, WholeTransaction, WholeWriter, view_of

_open: set[str] = set()
_lock = threading.Lock()


def put_limit() -> int:
    """Largest object that is put in one request, in bytes."""
    return min(value_of(PUT_LIMIT), MOST_PUT_NBYTES)


def check_size(kind: Kind, most_nbytes: int, head_nbytes: int) -> None:
    """Refuse shards that are too large for a kind of store, before a run."""
    is_s3 = kind.scheme == "s3"
    allowed = MOST_NBYTES if is_s3 else kind.most_nbytes
    if most_nbytes > allowed or (is_s3 and head_nbytes > MOST_PUT_NBYTES):
        how = "an upload in parts" if is_s3 else "one request"
        raise SpecError(
            f"a shard may take {most_nbytes:,} bytes, and {how} takes at most {allowed:,}",
            field="shards",
            value=most_nbytes,
            remedy="give smaller shards, or compression_ratio= if all shards will be so much "
            "smaller than that",
        )


def cannot_replace(where: str, most_nbytes: int) -> SpecError:
    """Error of an update of large shards, where uploads are completed without conditions."""
    return SpecError(
        f"shards of up to {most_nbytes:,} bytes are uploaded in parts, and this service then "
        "replaces an object whatever stands there (CONDITIONAL)",
        field="store",
        value=where,
        remedy="set shardwrite.bucket.put-limit to more than that, at most 5 GiB, so that shards "
        "are put in one request; or write the array again, with smaller shards; or give "
        "exclusive=True if nobody else writes to this array meanwhile",
    )


class InParts:
    """Uploads in parts into the bucket of a store; they are shared by all parts of the store.

    - `where`: URL of the store for messages, without credentials.
    """

    def __init__(self, store: Any, endpoint: str, where: str) -> None:
        self._given = store, endpoint, where
        self._uploads: Uploads | None = None
        self._pid = 0

    @property
    def uploads(self) -> Uploads:
        """What begins and ends uploads; made when it is first needed."""
        with _lock:
            if self._uploads is None or self._pid != os.getpid():
                self._uploads, self._pid = S3Uploads(*self._given), os.getpid()
            return self._uploads

    def begin(self, name: str, metadata: Mapping[str, str] = NOTHING) -> Upload:
        """Begin an upload, which counts as open in this process."""
        upload = self.uploads.begin(name, KINDS["S3Store"].metadata(metadata))
        with _lock:
            _open.add(upload.id)
        return upload

    def forget(self, upload: Upload) -> None:
        """Say that an upload was completed or aborted, or is left to others."""
        with _lock:
            _open.discard(upload.id)

    def abort(self, upload: Upload) -> None:
        """Abort an upload."""
        try:
            self.uploads.abort(upload)
        finally:
            self.forget(upload)

    def found(self, prefix: str) -> list[Upload]:
        """Uploads below a prefix that this process has not open."""
        listed = list(self.uploads.found(prefix))
        with _lock:
            return [upload for upload in listed if upload.id not in _open]

    def keeps_conditions(self, name: str, put: Callable[[], str | None]) -> bool | None:
        """Try whether a service completes uploads on conditions.

        None if that did not become clear: the service may have refused, or another process may
        have taken object or upload for left over.
        """
        tag = put()
        upload = self.begin(name)
        try:
            tags = [self.uploads.put_part(upload, 1, b"1")]
            # Whoever ignores the conditions makes the object of the upload at the first attempt.
            for condition in ((None,), ('"0123456789abcdef0123456789abcdef"',)):
                if self.uploads.complete(upload, tags, condition):
                    return False
            return self.uploads.complete(upload, tags, (tag,)) or None
        except StoreError:
            return None
        finally:
            self.abort(upload)


class PartedWriter(WholeWriter):
    """An object that grows in memory, and is uploaded in parts once it is too large for that.

    - `completes_if`: function that tells whether the service completes uploads on conditions.
    """

    is_exclusive = False

    def __init__(
        self,
        transaction: WholeTransaction,
        key: str,
        in_parts: InParts,
        completes_if: Callable[[InParts], bool],
    ) -> None:
        super().__init__(transaction, key)
        self._name = transaction.store.prefix + key
        self._in_parts = in_parts
        self._completes_if = completes_if
        most_nbytes, head_nbytes = transaction.bound
        self._part_nbytes = part_nbytes_for(min(most_nbytes, MOST_NBYTES), head_nbytes)
        self._limit = max(put_limit(), self._part_nbytes)
        self._upload: Upload | None = None
        self._first = bytearray()
        self._tags: list[str] = []
        self._start = 0  # of what is in memory, besides the first part

    def write(self, buffers: Sequence[Any]) -> int:
        """See :meth:`ObjectWriter.write`."""
        n_written = 0
        for buffer in buffers:
            view = memoryview(buffer)
            if view.nbytes:
                self._append(view.cast("B"))
            n_written += view.nbytes
        return n_written

    def _append(self, view: memoryview) -> None:
        """Append bytes, and send what does not fit into memory."""
        data = self._open_data()
        while True:
            room = (self._limit if self._upload is None else self._part_nbytes) - len(data)
            data += view[:room]
            self._data = data
            view = view[room:]
            if not view:
                return
            grown = bytearray(data.view) if isinstance(data, Room) else data
            data = self._data = self._sent(grown)

    def take(self, data: memoryview) -> None:
        """Write a whole object, of which no more than two parts are in memory at a time."""
        self._limit = self._part_nbytes
        self.write([data])

    def _sent(self, data: bytearray) -> bytearray:
        """Send whole parts of what is in memory, and return the rest."""
        size = self._part_nbytes
        if self._upload is not None:
            self._start += size
            self._put_part(data)
            return bytearray()
        self._upload = self._in_parts.begin(self._name, self._metadata)
        self._first, self._tags = data[:size], [""]
        whole = range(size, len(data) - size + 1, size)
        for at in whole:
            self._put_part(data[at : at + size])
        self._start = size * (1 + len(whole))
        return data[self._start :]

    def _put_part(self, data: bytearray) -> None:
        """Put the next part after the first one."""
        number = len(self._tags) + 1
        if number > MOST_PARTS:
            raise StoreError(
                f"{self._key!r} needs more than {MOST_PARTS:,} parts of {self._part_nbytes:,} "
                "bytes; give smaller shards",
                key=self._key,
                errno=errno.EFBIG,
            )
        upload = cast("Upload", self._upload)
        self._tags.append(self._in_parts.uploads.put_part(upload, number, data))

    def write_at(self, offset: int, data: bytes) -> None:
        """See :meth:`ObjectWriter.write_at`."""
        held = [(self._start, self._open_data())]
        if self._upload is not None:
            held.append((0, self._first))
        for start, kept in held:
            if start <= offset and offset + len(data) <= start + len(kept):
                view_of(kept)[offset - start : offset - start + len(data)] = data
                return
        raise StoreError(
            f"bytes {offset}+{len(data)} of {self._key!r} were sent already; "
            'give index_location="end"',
            key=self._key,
            errno=errno.EOPNOTSUPP,
        )

    def skip(self, nbytes: int) -> None:
        """See :meth:`ObjectWriter.skip`."""
        zeros = memoryview(bytes(min(nbytes, COPIED_NBYTES)))
        for start in range(0, nbytes, COPIED_NBYTES):
            self._append(zeros[: nbytes - start])

    def copy(self, reader: ObjectReader, offset: int, nbytes: int) -> None:
        """See :meth:`ObjectWriter.copy`."""
        piece = nbytes if nbytes <= self._limit else self._part_nbytes
        for start in range(0, nbytes, max(1, piece)):
            self.write([reader.read(offset + start, min(piece, nbytes - start))])

    def finish(self, guard: Callable[[], None] | None = None) -> None:
        """See :meth:`ObjectWriter.finish`."""
        if self._upload is None:
            super().finish(guard)
            return
        self._transaction.check(guard)
        data = self._open_data()
        self._put_part(data)
        uploads, upload = self._in_parts.uploads, self._upload
        self._tags[0] = uploads.put_part(upload, 1, self._first)
        condition = self._condition()
        self._transaction.check(guard)
        if not uploads.complete(upload, self._tags, condition):
            raise StoreError(
                f"{self._key!r} was changed by another writer meanwhile",
                key=self._key,
                errno=errno.ESTALE,
            )
        self._in_parts.forget(upload)
        self._upload, self._data, self._first = None, None, bytearray()
        self._transaction.committed.add(self._key)

    def _condition(self) -> Condition:
        """What must stand there when the upload is completed.

        Without an expectation, it is what stands there now. Another process may have put that after
        it has taken over, which the guard tells. It is called after this.
        """
        transaction = self._transaction
        knows_any = Capability.CONDITIONAL in transaction.store.capabilities
        is_conditional = knows_any and self._completes_if(self._in_parts)
        if self._expected is not None:
            if not is_conditional:
                if self.is_exclusive:
                    return ANY
                raise StoreError(
                    f"{self._key!r} is uploaded in parts, and this service completes uploads "
                    "whatever stands there; give exclusive=True if nobody else "
                    "writes to this array meanwhile",
                    key=self._key,
                    errno=errno.EOPNOTSUPP,
                )
            (version,) = self._expected
        elif is_conditional:
            version = transaction.store.version_of_object(self._name)
        else:
            return ANY
        return (None if version is None else version[1],)

    def abort(self) -> None:
        """See :meth:`ObjectWriter.abort`."""
        super().abort()
        self._first = bytearray()
        upload, self._upload = self._upload, None
        if upload is not None:
            # An error here must not hide the first one. The end of the run aborts what is left.
            with contextlib.suppress(StoreError):
                self._in_parts.abort(upload)

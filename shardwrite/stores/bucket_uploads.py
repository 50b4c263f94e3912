"""Uploads of large objects in parts: what a service does, and how large the parts are.

An upload is begun, its parts are numbered and put in any order, and then it is completed: from that
moment on, readers see the object, whole. What is neither completed nor aborted stays with the
service, is seen by no reader, and costs money. So whoever begins an upload ends it, and what
processes have left that were killed is listed and aborted.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from shardwrite.errors import StoreError

MOST_PUT_NBYTES = 5 * 2**30
"""Largest object that S3 takes in one request, and largest part of an upload, in bytes."""
MOST_NBYTES = 5 * 2**40
"""Largest object that is uploaded in parts, in bytes."""
MOST_PARTS = 10_000
"""Most parts of an upload."""
# S3 wants at least 5 MiB in each part but the last one.
_PART_NBYTES = 16 * 2**20
_STEP = 2**20

Condition = tuple[str | None] | None
"""What must stand there: the object with an ETag; nothing, with None for it; or `ANY`."""
ANY: Condition = None
"""Condition that always holds."""


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload that was begun."""

    name: str  # name of the object
    id: str  # name that the service has given to the upload
    # Text among the metadata of the object that no other upload has; empty if it is not known
    mark: str = ""


class Uploads(Protocol):
    """Uploads into one bucket. Several threads may use it at a time.

    All methods raise a StoreError if the service refuses. If an upload is gone, its `errno` is
    ESTALE.
    """

    def begin(self, name: str, metadata: Mapping[str, str]) -> Upload:
        """Begin an upload, of an object with these metadata."""

    def put_part(self, upload: Upload, number: int, data: bytes | bytearray) -> str:
        """Put the part of a number from 1 on, and return its ETag. It may be put again."""

    def complete(self, upload: Upload, tags: Sequence[str], condition: Condition) -> bool:
        """Make an object of the parts, and return whether it stands there now.

        It does not if the condition did not hold. If the answer was lost, the object that stands
        there is looked at.

        - `condition`: what must stand there before, in a service that knows conditions.
        """

    def abort(self, upload: Upload) -> None:
        """Give an upload up, and remove its parts. An upload that is gone is no error."""

    def found(self, prefix: str) -> Iterator[Upload]:
        """List uploads that were begun and not ended, to names that begin with a prefix."""


def part_nbytes_for(most_nbytes: int, head_nbytes: int = 0) -> int:
    """Size of the parts of an object.

    All parts have this size but the last one, which is smaller.

    - `head_nbytes`: bytes at the beginning that are known last. They lie in the first part.

    Examples
    --------
    >>> part_nbytes_for(2**30) // 2**20, part_nbytes_for(5 * 2**40) // 2**20
    (16, 525)
    """
    wanted = max(-(-most_nbytes // MOST_PARTS), head_nbytes, _PART_NBYTES)
    nbytes = -(-wanted // _STEP) * _STEP
    if most_nbytes > MOST_NBYTES or nbytes > MOST_PUT_NBYTES:
        raise StoreError(
            f"an object of {most_nbytes:,} bytes is too large: at most {MOST_NBYTES:,} are "
            "uploaded in parts; give smaller shards",
            errno=errno.EFBIG,
        )
    return nbytes


def held_nbytes(most_nbytes: int, head_nbytes: int, put_limit: int) -> int:
    """Memory that an object takes while it is written, in bytes, at most.

    - `put_limit`: largest object that is put in one request, in bytes. A larger one is uploaded in
      parts, of which the first one and the last one are in memory.

    Examples
    --------
    >>> held_nbytes(2**26, 0, 2**27) // 2**20, held_nbytes(2**40, 0, 2**27) // 2**20
    (64, 338)
    """
    if most_nbytes <= put_limit:
        return most_nbytes
    part = part_nbytes_for(most_nbytes, head_nbytes)
    limit = max(put_limit, part)
    return most_nbytes if most_nbytes <= limit else limit + 2 * part

"""A ZIP file as a store: the Zarr hierarchy that was packed into it.

Names, places and sizes of all members are checked when the file is opened, so before anything is
written. Members that were stored as they are, are read as ranges of the file. Members that were
deflated are inflated piece by piece, and never beyond the size that they claim. That size is
compared with what the metadata of the array allow.
"""

from __future__ import annotations

import os
import struct
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from shardwrite.errors import CorruptShardError
from shardwrite.format.node import DOCUMENT, DOCUMENTS_OF_V2, kind_of_document
from shardwrite.sources.inflated import Inflated
from shardwrite.sources.zip_directory import HEADER_NBYTES, Directory, read_directory, refused
from shardwrite.stores import Told, open_plain, parse_json, pread_all, read_limit
from shardwrite.stores.inside import Contents, InsideStore, Member, Ranges

_HEADER = struct.Struct("<4s22xHH")
_MAGIC = b"PK\x03\x04"
_MAX_SHOWN = 3

ReadFile = Callable[[int, int], bytes]


class ZippedStore(InsideStore):
    """The members of a ZIP file that hold a Zarr hierarchy of format 2 or 3."""

    def look_through(self) -> Contents:
        """See :meth:`InsideStore.look_through`."""
        return _Archive(str(self.path))


@dataclass(frozen=True, slots=True)
class _Stored:
    """A member whose bytes stand in the file as they are; a whole one is checked."""

    key: str
    read_member: ReadFile
    nbytes: int
    crc: int

    def read(self, offset: int, nbytes: int) -> bytes:
        """See :class:`Ranges`."""
        data = self.read_member(offset, nbytes)
        if nbytes == self.nbytes and zlib.crc32(data) != self.crc:
            raise CorruptShardError("its CRC-32 in the ZIP file does not fit", key=self.key)
        return data


def _ranges(directory: Directory, name: str, read: ReadFile) -> Ranges:
    """Bytes of a member, after a look at its header.

    - Raises CorruptShardError if the header is not that of the member.
    """
    row, raw_name = directory.table[directory.rows[name]], directory.raw_name(name)
    start, end, nbytes = int(row["start"]), int(row["end"]), int(row["nbytes"])
    head = read(start, HEADER_NBYTES + len(raw_name))
    magic, n_name, n_extra = _HEADER.unpack_from(head)
    if magic != _MAGIC or n_name != len(raw_name) or head[HEADER_NBYTES:] != raw_name:
        raise CorruptShardError("something else stands in the ZIP file there", key=name)
    offset = start + HEADER_NBYTES + n_name + n_extra
    if offset + nbytes > end:
        raise CorruptShardError("it overlaps another member of the ZIP file", key=name)

    def read_member(at: int, n: int) -> bytes:
        return read(offset + at, n)

    size, crc = int(row["size"]), int(row["crc"])
    if row["is_deflated"]:
        return Inflated(name, read_member, nbytes, size, crc)
    return _Stored(name, read_member, size, crc)


class _Archive(Contents):
    """Members of a ZIP file."""

    left_out = ()

    def __init__(self, path: str) -> None:
        self._directory = read_directory(path)
        self._names = sorted(self._directory.rows)
        fd = open_plain(path)
        try:
            self._nodes = list(self._found_nodes(lambda at, n: pread_all(fd, at, n)))
        finally:
            os.close(fd)
        if not self._nodes:
            raise refused(
                "a ZIP file without a Zarr array or group: it has no zarr.json, .zarray or .zgroup",
                path,
                "give a ZIP file with an array or a group",
            )

    def _found_nodes(self, read: ReadFile) -> Iterator[tuple[str, str]]:
        """Names and kinds of all nodes, each after the group above it; none inside of arrays."""
        leaves = (DOCUMENT, *DOCUMENTS_OF_V2)
        found: dict[str, set[str]] = {}
        for name in self._names:
            node, _, leaf = name.rpartition("/")
            if leaf in leaves:
                found.setdefault(node, set()).add(leaf)
        array = None
        for node in sorted(found, key=lambda node: node.split("/") if node else []):
            if array is not None and (not array or node.startswith(f"{array}/")):
                continue
            kind = self._kind(node, found[node], read)
            array = node if kind == "array" else array
            yield node, kind

    def _kind(self, node: str, leaves: set[str], read: ReadFile) -> str:
        """Kind of a node; an array if its document is torn, which is told when it is opened."""
        if DOCUMENT not in leaves:
            return "array" if DOCUMENTS_OF_V2[0] in leaves else "group"
        name = f"{node}/{DOCUMENT}".lstrip("/")
        member = _ranges(self._directory, name, read)
        if member.nbytes > read_limit():
            return "array"
        try:
            found = kind_of_document(parse_json(member.read(0, member.nbytes)))
        except ValueError:
            return "array"
        return "array" if found == "torn" else found

    def find(self, name: str) -> Member | bytes | None:
        """See :meth:`Contents.find`."""
        row = self._directory.rows.get(name)
        if row is None:
            return None
        size = int(self._directory.table[row]["size"])
        return Member(0, size, ranges=lambda read: _ranges(self._directory, name, read))

    def names(self, prefix: str) -> Iterator[str]:
        """See :meth:`Contents.names`."""
        for at in range(bisect_left(self._names, prefix), len(self._names)):
            if not self._names[at].startswith(prefix):
                return
            yield self._names[at]

    def nodes(self) -> Iterator[tuple[str, str]]:
        """See :meth:`Contents.nodes`."""
        yield from self._nodes

    def told(self, name: str) -> Told:
        """See :meth:`Contents.told`."""
        below = f"{name}/" if name else ""
        found = [again for again in self._directory.again if again.startswith(below)]
        shown = ", ".join(repr(again) for again in found[:_MAX_SHOWN])
        more = f" and {len(found) - _MAX_SHOWN:,} more" if len(found) > _MAX_SHOWN else ""
        note = f"the ZIP file has members of the same name, of which the last counts: {shown}{more}"
        return Told((note,) if found else ())

    def check_sizes(self, prefix: str, most_of: Callable[[str], int | None]) -> None:
        """See :meth:`Contents.check_sizes`.

        Only deflated members are looked at. Others are no larger than the file.
        """
        for name in self.names(prefix):
            row = self._directory.table[self._directory.rows[name]]
            if not row["is_deflated"]:
                continue
            most, size = most_of(name.removeprefix(prefix)), int(row["size"])
            if most is not None and size > most:
                raise CorruptShardError(
                    f"is said to inflate to {size:,} bytes where at most {most:,} can be", key=name
                )

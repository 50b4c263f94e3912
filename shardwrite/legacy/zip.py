"""ZIP files as stores: the Zarr hierarchy that was packed into one.

Names, places and sizes of all members are checked when the file is opened, so before anything is
written. Readers of ZIP files disagree on what they make of odd members. A file that has some is
refused, so that nobody reads here what another program does not see there.

Members that were stored as they are, are read as ranges of the file. Members that were deflated are
inflated piece by piece, and never beyond the size that they claim. That size is compared with what
the metadata of the array allow. The first read looks through all bytes: it compares their number
and their CRC-32 with what is claimed, and stops at the first byte too many. Where there are many
bytes, it keeps the state of the decompressor now and then. Later reads begin at the last state
before their range.
"""

from __future__ import annotations

import os
import stat
import struct
import zipfile
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.codecs.stages import Ranges
from shardwrite.errors import CorruptShardError, SpecError, StoreError
from shardwrite.format.node import DOCUMENT, DOCUMENTS_OF_V2, kind_of_document
from shardwrite.sources.inside import Contents, InsideStore, Member
from shardwrite.stores.base import CopyLimits, check_key
from shardwrite.stores.looking import open_plain, parse_json, pread_all, read_limit

_BLOCK_NBYTES = 2**18  # read from the file at a time

_PIECE_NBYTES = 2**20  # inflated at a time

_KEPT_NBYTES = 2**23  # kept as they are, if there are no more

_STEP_NBYTES, _N_STATES = 2**22, 32  # between states that are kept, and about how many


# ---- Deflated members, of which ranges are read


@dataclass(frozen=True, slots=True)
class _State:
    """A decompressor, the number of bytes that it has made, and of those that it was given."""

    n_made: int
    n_given: int
    decompressor: Any


class Inflated:
    """Bytes that are inflated as they are read.

    - `read_deflated`: function of an offset and a number of bytes that reads the deflated bytes.
    - `crc`: CRC-32 of the bytes.
    """

    def __init__(
        self,
        key: str,
        read_deflated: Callable[[int, int], bytes],
        n_deflated: int,
        nbytes: int,
        crc: int,
    ) -> None:
        self.nbytes = nbytes
        self._key, self._read, self._n_deflated, self._crc = key, read_deflated, n_deflated, crc
        self._states: list[_State] = []
        self._kept = b""
        self._kept_from = 0
        self._last: _State | None = None

    def read(self, offset: int, nbytes: int) -> bytes:
        """Read `nbytes` bytes from byte `offset` on.

        - Raises CorruptShardError if the bytes are not those that were deflated.
        """
        if not self._states:
            self._look_through()
        end = offset + nbytes
        if not self._kept_from <= offset <= end <= self._kept_from + len(self._kept):
            self._inflate(offset, end)
        return self._kept[offset - self._kept_from : end - self._kept_from]

    def _look_through(self) -> None:
        """Inflate all bytes once, and check them."""
        self._states = [_State(0, 0, zlib.decompressobj(-zlib.MAX_WBITS))]
        step = max(_STEP_NBYTES, self.nbytes // _N_STATES)
        crc, kept = 0, []
        for piece, state in self._pieces(self._states[0]):
            crc = zlib.crc32(piece, crc)
            if self.nbytes <= _KEPT_NBYTES:
                kept.append(piece)
            elif state.n_made - self._states[-1].n_made >= step:
                self._states.append(_copied(state))
            n_left = self._n_deflated - state.n_given + len(state.decompressor.unused_data)
            if state.n_made > self.nbytes or (state.decompressor.eof and n_left):
                raise self._corrupt("it holds more than it claims")
        if state.n_made != self.nbytes:
            raise self._corrupt(f"it holds {state.n_made:,} bytes and claims {self.nbytes:,}")
        if crc != self._crc:
            raise self._corrupt("its CRC-32 in the ZIP file does not fit")
        self._kept = b"".join(kept)

    def _inflate(self, offset: int, end: int) -> None:
        """Inflate and keep all bytes of a range."""
        last = self._last
        if last is not None and self._kept_from <= offset <= last.n_made:
            start, kept, first = last, [self._kept[offset - self._kept_from :]], offset
        else:
            start = next(state for state in reversed(self._states) if state.n_made <= offset)
            if last is not None and start.n_made < last.n_made <= offset:
                start = last
            kept, first = [], start.n_made
        self._last = start
        for piece, state in self._pieces(start) if start.n_made < end else ():
            self._last = state
            if kept or state.n_made > offset:
                first = first if kept else state.n_made - len(piece)
                kept.append(piece)
            if state.n_made >= end:
                break
        if not kept:
            first = self._last.n_made
        self._kept, self._kept_from = b"".join(kept), first

    def _pieces(self, state: _State) -> Iterator[tuple[bytes, _State]]:
        """Pieces of the bytes after a state, each with the state after it."""
        decompressor = _copied(state).decompressor
        n_made, n_given = state.n_made, state.n_given
        given = decompressor.unconsumed_tail
        while not decompressor.eof:
            if not given and n_given < self._n_deflated:
                given = self._read(n_given, min(_BLOCK_NBYTES, self._n_deflated - n_given))
                n_given += len(given)
            was_given = bool(given)
            try:
                piece = decompressor.decompress(given, _PIECE_NBYTES)
            except zlib.error as error:
                raise self._corrupt(f"it cannot be inflated: {error}") from error
            given = decompressor.unconsumed_tail
            if not piece and not was_given and not decompressor.eof:
                raise self._corrupt("its deflated bytes end too early")
            n_made += len(piece)
            yield piece, _State(n_made, n_given, decompressor)

    def _corrupt(self, why: str) -> CorruptShardError:
        return CorruptShardError(why, key=self._key)


def _copied(state: _State) -> _State:
    return _State(state.n_made, state.n_given, state.decompressor.copy())


# ---- The directory: names, places and sizes of the members


HEADER_NBYTES = 30  # before the name of each member, at least

_UTF8 = 0x800  # flags of a member

_ENCRYPTED = 0x1 | 0x40 | 0x2000

_MOST_INFLATED = 1032  # bytes that one deflated byte can become

_METHODS = {9: "deflate64", 12: "bzip2", 14: "lzma", 93: "zstd", 95: "xz"}

# A row for each member. Its header begins at ``start``, and its bytes must have ended at ``end``.
# It has ``nbytes`` in the file, and claims ``size`` and ``crc``. It may be ``is_deflated``. Its
# name is in UTF-8 if ``is_utf8``, and else in code page 437.
_ROW = np.dtype(
    [
        ("start", "<i8"),
        ("end", "<i8"),
        ("nbytes", "<i8"),
        ("size", "<i8"),
        ("crc", "<u4"),
        ("is_deflated", "?"),
        ("is_utf8", "?"),
    ]
)


def refused(why: str, value: str, remedy: str) -> SpecError:
    """Error about a ZIP file that cannot be a source."""
    return SpecError(why, field="src", value=value, remedy=remedy)


def _check(member: zipfile.ZipInfo) -> None:
    """Refuse a member that cannot be an object or a directory of a Zarr hierarchy."""
    name = member.orig_filename
    kind = stat.S_IFMT(member.external_attr >> 16)
    try:
        check_key(name.removesuffix("/"))
    except StoreError as error:
        raise refused(
            "a name in the ZIP file that is not a relative path of plain names",
            name,
            "do not trust the file; pack the hierarchy anew",
        ) from error
    if "\\" in name:
        why, remedy = "a name with a backslash in the ZIP file", "pack the hierarchy with slashes"
    elif member.flag_bits & _ENCRYPTED:
        why, remedy = "an encrypted member of the ZIP file", "unpack it, and give the directory"
    elif kind not in (0, stat.S_IFREG, stat.S_IFDIR) or (
        kind == stat.S_IFDIR and not name.endswith("/")
    ):
        why = "a member of the ZIP file that is a link, or no file at all"
        remedy = "pack the files themselves"
    elif member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        method = _METHODS.get(member.compress_type, f"method {member.compress_type}")
        why = f"a member of the ZIP file that is compressed by {method}"
        remedy = "unpack it, or pack it without compression (zip -0)"
    elif _lies(member):
        why = (
            f"a member of the ZIP file that claims {member.file_size:,} bytes, which its "
            f"{member.compress_size:,} bytes cannot hold"
        )
        remedy = "do not trust the file; pack the hierarchy anew"
    else:
        return
    raise refused(why, name, remedy)


def _lies(member: zipfile.ZipInfo) -> bool:
    """Whether a member cannot have the size that it claims."""
    if member.compress_type == zipfile.ZIP_STORED:
        return member.file_size != member.compress_size
    return member.file_size > member.compress_size * _MOST_INFLATED


def _table(members: Sequence[zipfile.ZipInfo], path: str) -> npt.NDArray[np.void]:
    """Places of members, after a check that no two overlap."""
    nbytes_of_file = os.stat(path).st_size
    table = np.zeros(len(members), _ROW)
    least = np.zeros(len(members), np.int64)
    for row, member in enumerate(members):
        is_utf8 = bool(member.flag_bits & _UTF8)
        start, nbytes = member.header_offset, member.compress_size
        n_name = len(member.orig_filename.encode("utf-8" if is_utf8 else "cp437"))
        if start < 0 or start + HEADER_NBYTES + n_name + nbytes > nbytes_of_file:
            raise refused(
                "a member of the ZIP file that lies beyond its end",
                member.orig_filename,
                "check whether the file was copied as a whole",
            )
        is_deflated = member.compress_type == zipfile.ZIP_DEFLATED
        table[row] = (start, 0, nbytes, member.file_size, member.CRC, is_deflated, is_utf8)
        least[row] = start + HEADER_NBYTES + n_name + nbytes
    order = np.argsort(table["start"], kind="stable")
    table["end"][order] = np.append(table["start"][order][1:], nbytes_of_file)
    overlapping = np.flatnonzero(least > table["end"])
    if len(overlapping):
        raise refused(
            "a member of the ZIP file that overlaps another one",
            members[int(overlapping[0])].orig_filename,
            "do not trust the file; pack the hierarchy anew",
        )
    return table


def _check_again(name: str, two: npt.NDArray[np.void]) -> None:
    """Refuse a second member of a name, unless it was appended later, as zarr-python does it."""
    if name.endswith("/"):
        return
    is_same = two["size"][0] == two["size"][1] and two["crc"][0] == two["crc"][1]
    if not is_same and two["start"][0] > two["start"][1]:
        raise refused(
            "a name that two members of the ZIP file have, of which the directory lists the newer "
            "one first",
            name,
            "do not trust the file; pack the hierarchy anew",
        )


# ---- The store


_HEADER = struct.Struct("<4s22xHH")

_MAGIC = b"PK\x03\x04"

_MAX_SHOWN = 3

ReadFile = Callable[[int, int], bytes]


class ZippedStore(InsideStore):
    """The members of a ZIP file that hold a Zarr hierarchy of format 2 or 3."""

    def look_through(self) -> Contents:
        """See :meth:`InsideStore.look_through`."""
        return _Archive(str(self.local_path))


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


class _Archive(Contents):
    """Members of a ZIP file."""

    left_out = ()

    def __init__(self, path: str) -> None:
        try:
            with zipfile.ZipFile(path) as archive:
                members = archive.infolist()
        except (zipfile.BadZipFile, NotImplementedError, UnicodeError) as error:
            raise refused(
                f"not a whole ZIP file: {error}",
                path,
                "close the store that writes it, or check the file",
            ) from error
        for member in members:
            _check(member)
        self._table = _table(members, path)
        self._rows: dict[str, int] = {}  # row of each member by its name
        self._again: dict[str, None] = {}  # names that several have, of which the last one counts
        for row, member in enumerate(members):
            name = member.orig_filename
            if name in self._rows:
                _check_again(name, self._table[[self._rows[name], row]])
                self._again[name] = None
            if not name.endswith("/"):
                self._rows[name] = row
        self._offsets: dict[str, int] = {}  # of members whose headers were looked at
        self._names = sorted(self._rows)
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

    def _ranges(self, name: str, read: ReadFile) -> Ranges:
        """Bytes of a member, after a look at its header.

        - Raises CorruptShardError if the header is not that of the member.
        """
        row = self._table[self._rows[name]]
        if name not in self._offsets:
            self._offsets[name] = self._offset(name, row, read)
        offset = self._offsets[name]

        def read_member(start: int, n: int) -> bytes:
            return read(offset + start, n)

        nbytes, size, crc = int(row["nbytes"]), int(row["size"]), int(row["crc"])
        if row["is_deflated"]:
            return Inflated(name, read_member, nbytes, size, crc)
        return _Stored(name, read_member, size, crc)

    def _offset(self, name: str, row: npt.NDArray[np.void], read: ReadFile) -> int:
        """Where the bytes of a member begin, after a look at its header."""
        raw_name = name.encode("utf-8" if row["is_utf8"] else "cp437")
        start, end, nbytes = int(row["start"]), int(row["end"]), int(row["nbytes"])
        head = read(start, HEADER_NBYTES + len(raw_name))
        magic, n_name, n_extra = _HEADER.unpack_from(head)
        if magic != _MAGIC or n_name != len(raw_name) or head[HEADER_NBYTES:] != raw_name:
            raise CorruptShardError("something else stands in the ZIP file there", key=name)
        offset = start + HEADER_NBYTES + n_name + n_extra
        if offset + nbytes > end:
            raise CorruptShardError("it overlaps another member of the ZIP file", key=name)
        return int(offset)

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
        member = self._ranges(name, read)
        if member.nbytes > read_limit():
            return "array"
        try:
            kind = kind_of_document(parse_json(member.read(0, member.nbytes)))
        except ValueError:
            return "array"
        return "array" if kind == "torn" else kind

    def find(self, name: str) -> Member | bytes | None:
        """See :meth:`Contents.find`."""
        if name not in self._rows:
            return None
        size = int(self._table[self._rows[name]]["size"])
        return Member(0, size, ranges=partial(self._ranges, name))

    def names(self, prefix: str) -> Iterator[str]:
        """See :meth:`Contents.names`."""
        for number in range(bisect_left(self._names, prefix), len(self._names)):
            if not self._names[number].startswith(prefix):
                return
            yield self._names[number]

    def nodes(self) -> Iterator[tuple[str, str]]:
        """See :meth:`Contents.nodes`."""
        yield from self._nodes

    def copy_limits(self, name: str) -> CopyLimits:
        """See :meth:`Contents.copy_limits`."""
        below = f"{name}/" if name else ""
        names = [again for again in self._again if again.startswith(below)]
        shown = ", ".join(map(repr, names[:_MAX_SHOWN]))
        more = f" and {len(names) - _MAX_SHOWN:,} more" if len(names) > _MAX_SHOWN else ""
        note = f"the ZIP file has members of the same name, of which the last counts: {shown}{more}"
        return CopyLimits((note,) if names else ())

    def check_sizes(self, prefix: str, most_of: Callable[[str], int | None]) -> None:
        """See :meth:`Contents.check_sizes`.

        Only deflated members are looked at. Others are no larger than the file.
        """
        for name in self.names(prefix):
            row = self._table[self._rows[name]]
            if not row["is_deflated"]:
                continue
            most, size = most_of(name.removeprefix(prefix)), int(row["size"])
            if most is not None and size > most:
                raise CorruptShardError(
                    f"is said to inflate to {size:,} bytes where at most {most:,} can be", key=name
                )

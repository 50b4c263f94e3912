"""The directory of a ZIP file: names, places and sizes of its members, after a check of them all.

Readers of ZIP files disagree on what they make of odd members. A file that has some is refused, so
that nobody reads here what another program does not see there.
"""

from __future__ import annotations

import os
import stat
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardwrite.errors import SpecError, StoreError
from shardwrite.stores import check_key

HEADER_NBYTES = 30  # before the name of each member, at least
_UTF8 = 0x800  # flags of a member
_ENCRYPTED = 0x1 | 0x40 | 0x2000
_MOST_INFLATED = 1032  # bytes that one deflated byte can become
_METHODS = {9: "deflate64", 12: "bzip2", 14: "lzma", 93: "zstd", 95: "xz"}
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


@dataclass(frozen=True, slots=True)
class Directory:
    """Members of a ZIP file."""

    rows: dict[str, int]  # row of each member by its name
    # A row for each member. Its header begins at ``start``, and its bytes must have ended at
    # ``end``. It has ``nbytes`` in the file, and claims ``size`` and ``crc``. It may be
    # ``is_deflated``. Its name is in UTF-8 if ``is_utf8``, and else in code page 437.
    table: npt.NDArray[np.void]
    again: tuple[str, ...]  # names that several members have, of which the last one counts

    def raw_name(self, name: str) -> bytes:
        """The name of a member as it stands in the file."""
        return name.encode("utf-8" if self.table[self.rows[name]]["is_utf8"] else "cp437")


def refused(why: str, value: str, remedy: str) -> SpecError:
    """Error about a ZIP file that cannot be a source."""
    return SpecError(why, field="src", value=value, remedy=remedy)


def read_directory(path: str) -> Directory:
    """Read the directory of a ZIP file, and check all of its members."""
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
    table = _table(members, path)
    rows: dict[str, int] = {}
    again: dict[str, None] = {}
    for row, member in enumerate(members):
        name = member.orig_filename
        if name in rows:
            _check_again(name, table[[rows[name], row]])
            again[name] = None
        if not name.endswith("/"):
            rows[name] = row
    return Directory(rows, table, tuple(again))


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

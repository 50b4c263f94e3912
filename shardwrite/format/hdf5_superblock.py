"""The superblock of an HDF5 file, and how its end-of-file address is raised.

A library of HDF5 that opens a file for writing cuts it off at that address. So a file that gets the
index of a shard at its end also gets a higher address.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from shardwrite.format.hdf5_file import SIGNATURE

LONGEST = 64
"""Bytes that are enough to parse a superblock of any version."""

_VERSION_AT, _ADDRESS_NBYTES = 8, 8
# By version: places of the sizes of addresses, of the base address and of the end-of-file address.
_PLACES = {0: (13, 24, 40), 1: (13, 28, 44), 2: (9, 12, 28), 3: (9, 12, 28)}
_FLAGS_AT, _CHECKSUM_AT, _CHECKSUM_NBYTES = 11, 44, 4
_MASK = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Superblock:
    """The fixed part of a superblock."""

    version: int  # its version, from 0 to 3
    # Base address, which is the offset of the superblock in the file: the size of the user block,
    # in bytes
    base: int
    end: int  # end-of-file address: the offset in the file behind all that HDF5 knows of
    # Whether a program has opened the file for writing and not closed it, as far as the version
    # tells
    is_open: bool
    _data: bytes

    def raised(self, end: int) -> tuple[int, bytes, bytes]:
        """Bytes of the file that change if the end-of-file address becomes another."""
        at = _PLACES[self.version][2]
        stop = at + _ADDRESS_NBYTES
        data = bytearray(self._data)
        data[at:stop] = struct.pack("<Q", end)
        if self.version >= 2:
            stop = _CHECKSUM_AT + _CHECKSUM_NBYTES
            data[_CHECKSUM_AT:stop] = struct.pack("<I", lookup3(bytes(data[:_CHECKSUM_AT])))
        return self.base + at, self._data[at:stop], bytes(data[at:stop])


def parse_superblock(data: bytes, offset: int) -> Superblock:
    """Parse the superblock that stands at an offset of a file.

    - `data`: `LONGEST` bytes of the file from there on, or all that it has.
    """
    if len(data) < LONGEST or not data.startswith(SIGNATURE):
        raise ValueError("there is no superblock of HDF5")
    version = data[_VERSION_AT]
    if version not in _PLACES:
        raise ValueError(f"a superblock of version {version}, which is not known here")
    sizes_at, base_at, end_at = _PLACES[version]
    if data[sizes_at] != _ADDRESS_NBYTES:
        raise ValueError(f"addresses of {data[sizes_at]} bytes, where 8 are usual")
    if version >= 2:
        (checksum,) = struct.unpack_from("<I", data, _CHECKSUM_AT)
        if checksum != lookup3(data[:_CHECKSUM_AT]):
            raise ValueError("the checksum of the superblock is wrong")
    (base,), (end,) = (
        struct.unpack_from("<Q", data, base_at),
        struct.unpack_from("<Q", data, end_at),
    )
    if base != offset:
        raise ValueError(f"a base address of {base}, where the superblock stands at byte {offset}")
    return Superblock(version, base, end, version >= 2 and data[_FLAGS_AT] != 0, bytes(data))


def lookup3(data: bytes) -> int:
    """Checksum of HDF5's metadata: the hash ``lookup3`` by Bob Jenkins, with the first value 0.

    Examples
    --------
    >>> hex(lookup3(b"Four score and seven years ago"))
    '0x17770551'
    """
    a = b = c = (0xDEADBEEF + len(data)) & _MASK
    n_blocks = max(0, (len(data) - 1) // 12)
    for at in range(0, 12 * n_blocks, 12):
        x, y, z = struct.unpack_from("<3I", data, at)
        a, b, c = _mixed((a + x) & _MASK, (b + y) & _MASK, (c + z) & _MASK)
    rest = data[12 * n_blocks :]
    if not rest:
        return c
    x, y, z = struct.unpack("<3I", rest.ljust(12, b"\0"))
    return _ended((a + x) & _MASK, (b + y) & _MASK, (c + z) & _MASK)


def _mixed(a: int, b: int, c: int) -> tuple[int, int, int]:
    """State of the hash after one block."""
    for turn in (4, 6, 8, 16, 19, 4):
        a = (a - c) & _MASK ^ _rotated(c, turn)
        c = (c + b) & _MASK
        a, b, c = b, c, a
    return a, b, c


def _ended(a: int, b: int, c: int) -> int:
    """Hash after the last block."""
    for turn in (14, 11, 25, 16, 4, 14, 24):
        c = ((c ^ b) - _rotated(b, turn)) & _MASK
        a, b, c = b, c, a
    return b


def _rotated(value: int, turn: int) -> int:
    return (value << turn | value >> (32 - turn)) & _MASK

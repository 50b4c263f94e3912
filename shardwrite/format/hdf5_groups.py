"""Search for a dataset by its name in a file of HDF5, and for its first chunk, without the library.

The library takes half a millisecond to open a file. This looks only at the few structures on the
way to one name. They are a superblock of version 0, object headers of version 1, groups with a
table of symbols or with a few links, and trees of chunks. Files that shardwrite writes have these,
and so do most others. All other files are left to the library, as is everything that does not look
as expected.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from shardwrite.codecs.stages import Buffer
from shardwrite.format.hdf5_file import SIGNATURE
from shardwrite.grid import Shape

Read = Callable[[int, int], Buffer]
"""Reads a number of bytes at a place in the file; fewer if the file ends there."""

_SUPERBLOCK = struct.Struct("<8sB4xBBx8xQ8xQQ8xQ")
_SIZES = (0, 8, 8)  # version of the superblock, bytes of an address, bytes of a length
_NOWHERE = 2**64 - 1
_HEADER = struct.Struct("<BxH4xI4x")
_MESSAGE = struct.Struct("<HH4x")
_LINK, _LAYOUT, _CONTINUATION, _SYMBOL_TABLE = 0x06, 0x08, 0x10, 0x11
_LINK_HEAD, _BYTE, _ADDRESS = struct.Struct("<BB"), struct.Struct("<B"), struct.Struct("<Q")
_SET_OF_NAME = 0x10  # flag of a link: the set of characters of its name is told
# Version and class of a layout, and where its tree of chunks and its shape are.
_CHUNKED, _TREE_AT, _SHAPE_AT = (3, 2), 3, 11
_MOST_LEVELS = 32
_TABLE = struct.Struct("<QQ")
_NODE = struct.Struct("<4sBBH16x")
_SYMBOLS = struct.Struct("<4sBxH")
_SYMBOL = struct.Struct("<QQ24x")
_HEAP = struct.Struct("<4sB3xQ8xQ")
_MOST_NBYTES = 65536  # of one structure


class _OtherError(Exception):
    """The file has a structure that is left to the library."""


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A chunk of a dataset."""

    position: Shape  # its position in the dataset, in elements
    offset: int  # its first byte in the object, and its size
    nbytes: int


def first_chunk(read: Read, start: int, name: str, chunks: Shape) -> StoredChunk | None:
    """The first stored chunk of the dataset of this name, if its chunks have this shape.

    - `start`: place of the signature of HDF5.
    - Returns: None also where only the library can tell.
    """
    try:
        found = _parsed(_SUPERBLOCK, read(start, _SUPERBLOCK.size))
        signature, *sizes, base, end, driver, header = found
        if signature != SIGNATURE or tuple(sizes) != _SIZES or base != start or driver != _NOWHERE:
            return None
        places = _Places(read, start, end)
        for part in name.encode().split(b"/"):
            header = places.member(header, part)
        return places.first_chunk(header, chunks)
    except _OtherError:
        return None


class _Places:
    """Structures of a file, by their addresses."""

    def __init__(self, read: Read, start: int, end: int) -> None:
        self._read, self._start, self._end = read, start, end

    def member(self, header: int, name: bytes) -> int:
        """Address of the object header of a member of a group."""
        for kind, message in self._messages(header):
            if kind == _SYMBOL_TABLE:
                tree, heap = _parsed(_TABLE, message)
                return self._in_table(tree, heap, name)
            if kind == _LINK:
                found, address = _link(message)
                if found == name:
                    return address
        raise _OtherError

    def first_chunk(self, header: int, chunks: Shape) -> StoredChunk | None:
        """The first chunk of an object that is a dataset with chunks of a shape."""
        for kind, layout in self._messages(header):
            if kind == _LAYOUT:
                # Behind the shape of a chunk stands the size of an element.
                if layout[: len(_CHUNKED) + 1] != bytes((*_CHUNKED, len(chunks) + 1)):
                    return None
                if _parsed(struct.Struct(f"<{len(chunks)}I"), layout[_SHAPE_AT:]) != chunks:
                    return None
                (tree,) = _parsed(_ADDRESS, layout[_TREE_AT:])
                return self._leftmost(tree, len(chunks))
        return None

    def _leftmost(self, tree: int, n_axes: int) -> StoredChunk:
        """The first chunk in a tree."""
        form = struct.Struct(f"<I4x{n_axes}Q8xQ")  # size, position, place
        for _ in range(_MOST_LEVELS):
            mark, kind, level, _ = _parsed(_NODE, self._at(tree, _NODE.size))
            if (mark, kind) != (b"TREE", 1):
                raise _OtherError
            nbytes, *position, tree = _parsed(form, self._at(tree + _NODE.size, form.size))
            if not level:
                return StoredChunk(tuple(position), self._start + tree, nbytes)
        raise _OtherError

    def _in_table(self, tree: int, heap: int, name: bytes) -> int:
        """Address of a member of a group with a symbol table."""
        mark, version, nbytes, names = _parsed(_HEAP, self._at(heap, _HEAP.size))
        if (mark, version) != (b"HEAP", 0):
            raise _OtherError
        text = self._at(names, nbytes)
        for at, found in self._symbols(tree):
            if text[at : at + len(name) + 1] == name + b"\0":
                return found
        raise _OtherError

    def _symbols(self, tree: int) -> Iterator[tuple[int, int]]:
        """Places of names in the heap, and addresses of object headers, of all members."""
        mark, kind, level, n_nodes = _parsed(_NODE, self._at(tree, _NODE.size))
        if (mark, kind, level) != (b"TREE", 0, 0):
            raise _OtherError
        entries = self._at(tree + _NODE.size, 16 * n_nodes)
        for _, node in _TABLE.iter_unpack(entries):
            mark, version, n_symbols = _parsed(_SYMBOLS, self._at(node, _SYMBOLS.size))
            if (mark, version) != (b"SNOD", 1):
                raise _OtherError
            yield from _SYMBOL.iter_unpack(self._at(node + _SYMBOLS.size, _SYMBOL.size * n_symbols))

    def _messages(self, header: int) -> Iterator[tuple[int, bytes]]:
        """Kinds and contents of the messages in an object header."""
        version, n_messages, nbytes = _parsed(_HEADER, self._at(header, _HEADER.size))
        if version != 1:
            raise _OtherError
        messages, at = self._at(header + _HEADER.size, nbytes), 0
        further: list[tuple[int, int]] = []
        for _ in range(n_messages):
            if at == len(messages) and further:
                messages, at = self._at(*further.pop(0)), 0
            kind, size = _parsed(_MESSAGE, messages[at:])
            at += _MESSAGE.size + size
            message = messages[at - size : at]
            if kind == _CONTINUATION:
                further.append(_parsed(_TABLE, message))
            else:
                yield kind, message

    def _at(self, address: int, nbytes: int) -> bytes:
        """Bytes at an address."""
        if nbytes > _MOST_NBYTES or address + nbytes > self._end:
            raise _OtherError
        found = bytes(self._read(self._start + address, nbytes))
        if len(found) != nbytes:
            raise _OtherError
        return found


def _parsed(form: struct.Struct, data: Buffer) -> tuple[Any, ...]:
    """Numbers at the start of some bytes."""
    if len(data) < form.size:
        raise _OtherError
    return form.unpack_from(data)


def _link(message: bytes) -> tuple[bytes, int]:
    """Name and address in a message about a hard link."""
    version, flags = _parsed(_LINK_HEAD, message)
    at = _LINK_HEAD.size
    if version != 1 or flags & ~_SET_OF_NAME:  # the name has less than 256 bytes
        raise _OtherError
    at += 1 if flags else 0
    (size,) = _parsed(_BYTE, message[at:])
    at += _BYTE.size
    (address,) = _parsed(_ADDRESS, message[at + size :])
    return message[at : at + size], address

"""Keys of chunks and of the shards that hold them, as the storage transformer of 2022 maps them.

The key of a shard is that of a chunk with each number divided by the number of chunks in a shard
along that axis, and rounded down. What stands around the numbers stays as it is.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from shardwrite.errors import SpecError
from shardwrite.grid import Shape, ravel, unravel

_NUMBER = "(?:0|[1-9][0-9]{0,18})"
_DIRECTORY = re.compile(rf"(?P<head>(?:.*/)?c/?)(?P<numbers>{_NUMBER}(?:/{_NUMBER})*)/", re.DOTALL)
_MOST_CHUNKS = 2**31


@dataclass(frozen=True, slots=True)
class ChunkPlace:
    """Where a chunk lies."""

    shard: str  # key of its shard
    rank: int  # number of the chunk in its shard, in row-major order


def check_extensions(found: Any) -> None:
    """Refuse extensions that a reader of a document must understand."""
    extensions = [] if found is None else found
    if not isinstance(extensions, list) or any(
        not isinstance(one, dict) or one.get("must_understand") is not False for one in extensions
    ):
        raise SpecError(
            "a reader must understand them, and none is known here",
            field="extensions",
            value=found,
            remedy="read it with a program that knows them",
        )


def checked_counts(value: object) -> Shape:
    """Numbers of chunks in a shard along each axis, from what a user or a document gives.

    Integers of numpy and arrays of them are accepted, too.
    """
    given = value.tolist() if isinstance(value, np.ndarray | np.integer) else value
    given = [given] if type(given) is int else given
    items = given if isinstance(given, list | tuple) else (0,)
    is_good = all(type(n) is int or isinstance(n, np.integer) for n in items)
    counts = tuple(map(int, items)) if is_good else (0,)
    if min(counts, default=1) < 1 or math.prod(counts) > _MOST_CHUNKS:
        raise SpecError(
            "not numbers of chunks in a shard",
            field="chunks_per_shard",
            value=value,
            remedy=f"give an integer of 1 or more for each axis, {_MOST_CHUNKS:,} chunks at most",
        )
    return counts


@dataclass(frozen=True)
class ChunkKeys:
    """Keys of the chunks below a path.

    A chunk key ends in ``c/0/1``, ``c.0.1``, ``c0/1`` or ``c0.1``, with one number for each axis.
    """

    # Path of the array, or of a group of arrays with the same number of axes; empty for all
    path: str
    counts: Shape  # numbers of chunks in a shard along each axis

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        if not self.counts:
            return re.compile(r"(?P<head>(?:.*/)?c)(?P<numbers>)", re.DOTALL)
        more = len(self.counts) - 1
        slashes = f"{_NUMBER}(?:/{_NUMBER}){{{more}}}"
        dots = rf"{_NUMBER}(?:\.{_NUMBER}){{{more}}}"
        tails = "|".join(
            rf"(?P<head{n}>(?:.*/)?c{mark})(?P<numbers{n}>{numbers})"
            for n, (mark, numbers) in enumerate((("/?", slashes), (r"\.?", dots)))
        )
        return re.compile(tails, re.DOTALL)

    def _parts(self, key: str) -> tuple[str, str, list[int]] | None:
        """What stands before the numbers, the separator, and the numbers; None for other keys."""
        if self.path and not key.startswith(f"{self.path}/"):
            return None
        found = self._pattern.fullmatch(key)
        if found is None:
            return None
        if not self.counts:
            return key, "", []
        which = 0 if found["head0"] is not None else 1
        numbers, separator = found[f"numbers{which}"], "/."[which]
        head = found[f"head{which}"]
        if self.path and not head.startswith(f"{self.path}/"):  # the numbers are names in the path
            return None
        return head, separator, [int(n) for n in numbers.split(separator)]

    def is_of_grid(self, key: str) -> bool:
        """Whether a key has the form of those of chunks and of shards."""
        return self._parts(key) is not None

    def place(self, key: str) -> ChunkPlace | None:
        """Where the chunk with a key lies; None if the key is that of no chunk."""
        parts = self._parts(key)
        if parts is None:
            return None
        head, separator, numbers = parts
        pairs = [divmod(n, c) for n, c in zip(numbers, self.counts, strict=True)]
        shard = separator.join(str(number) for number, _ in pairs)
        return ChunkPlace(head + shard, ravel([within for _, within in pairs], self.counts))

    def chunk_key(self, shard: str, rank: int) -> str:
        """Key of a chunk of a shard, from the key of the shard."""
        parts = self._parts(shard)
        if parts is None:
            raise SpecError(
                "not the key of a shard", field="key", value=shard, remedy="give one of the array"
            )
        head, separator, numbers = parts
        within = unravel(rank, self.counts)
        chunk = (n * c + i for n, c, i in zip(numbers, self.counts, within, strict=True))
        return head + separator.join(map(str, chunk))

    def directory_below(self, directory: str) -> str | None:
        """Directory of the shards that hold the chunks in a directory.

        - Returns: None if the directory ends before the numbers of a chunk.
        """
        found = _DIRECTORY.fullmatch(directory)
        if found is None or not found["head"].startswith(f"{self.path}/" if self.path else ""):
            return None
        numbers = [int(n) for n in found["numbers"].split("/")]
        if len(numbers) >= len(self.counts):
            return None
        shard = (n // c for n, c in zip(numbers, self.counts, strict=False))
        return f"{found['head']}{'/'.join(map(str, shard))}/"

    def holds_chunks(self, name: str) -> bool:
        """Whether an object or directory of the store below is a shard, or may hold shards."""
        return self.is_of_grid(name) or self.directory_below(f"{name}/") is not None

    def directories(self, prefix: str) -> tuple[str, ...]:
        """Directories of the store below that hold all keys with a beginning, and their shards.

        Stores of directories take each prefix for a directory, some of them for one outside of the
        store, or fail below an object. So these are empty or end in a slash, have no empty names
        and no ``..``, and lie below no chunk.
        """
        directory = ""
        for name in prefix.split("/")[:-1]:
            if name in ("", ".", "..") or self.is_of_grid(directory + name):
                break
            directory += f"{name}/"
        below = self.directory_below(directory)
        return (directory,) if below in (None, directory) else (directory, str(below))

    def is_whole(self, prefix: str) -> bool:
        """Whether the keys that begin so are all in one directory below, and no others are."""
        return self.directories(prefix) == (prefix,) and self.directory_below(prefix) is None

    def is_begun(self, key: str, prefix: str) -> bool:
        """Whether a key below begins with a prefix; of a shard, whether all its chunks do."""
        parts = self._parts(key)
        return (key if parts is None else parts[0]).startswith(prefix)

    def may_hold(self, shard: str, prefix: str) -> bool:
        """Whether a key is that of a shard, and some of its chunks may begin with a prefix."""
        parts = self._parts(shard)
        if parts is None or not prefix.startswith(parts[0]):
            return False
        head, separator, numbers = parts
        given = prefix.removeprefix(head).split(separator)[:-1] if separator else ()
        return len(given) < max(1, len(numbers)) and all(
            re.fullmatch(_NUMBER, g) and int(g) // c == n
            for g, c, n in zip(given, self.counts, numbers, strict=False)
        )

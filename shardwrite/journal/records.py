"""The lines of a journal: JSON, each behind a crc32c of it.

The first line of a file says who writes it. Before a task commits anything, a line says under which name its temporaries
will be, so that they can be swept without a listing; after it, a line says what it committed. Fields of that line are
columns, one value a shard, because a line for every small shard would cost more than the shard's own bytes. A task that
commits much, or for long, writes several such lines. All but the last say that more follows; the last ends the task, and
may be empty. What ends a process's work before its time is said, too, for people who ask how far a run is; nothing depends
on that line.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from crc32c import crc32c

from shardwrite.stores import parse_json, read_limit

__all__ = ["Beginning", "Entry", "cause_of", "encode_line", "parse_lines"]

_LARGEST = 2**63


@dataclass(frozen=True, slots=True)
class Entry:
    """What one task committed, or a part of that.

    Attributes
    ----------
    attempt : str
        Name of the attempt, as in the names of its temporaries.
    shards : tuple of int
        Row-major ranks in the shard grid.
    nbytes : tuple of int
        Bytes of each shard's object; 0 where the shard is empty by design and has none.
    index_crcs : tuple of int
        crc32c of each shard's index table, as little-endian pairs of uint64; 0 where it has none.
    n_chunks : tuple of int
        Inner chunks of each that hold data.
    seconds : float
        Since the start of the task.
    peak_nbytes : int
        Most memory that the process has had resident so far.
    more : bool
        Whether the task goes on, and its temporaries may be there. A line without this field ends its task.
    """

    attempt: str
    shards: tuple[int, ...]
    nbytes: tuple[int, ...]
    index_crcs: tuple[int, ...]
    n_chunks: tuple[int, ...]
    seconds: float
    peak_nbytes: int
    more: bool = False

    def to_dict(self) -> dict[str, Any]:
        """As it stands in a line."""
        found = {
            field.name: getattr(self, field.name) for field in fields(self)
        }  # `asdict` would copy every number
        if not self.more:
            del found["more"]
        return found

    @classmethod
    def from_dict(cls, found: Mapping[str, Any], n_shards: int) -> Entry:
        """From a line, checked.

        Raises
        ------
        ValueError
            If a field is missing or cannot be right.
        """
        columns = [found.get(name) for name in ("shards", "nbytes", "index_crcs", "n_chunks")]
        lists: list[list[int]] = [
            c for c in columns if isinstance(c, list) and all(type(v) is int and v >= 0 for v in c)
        ]
        if len(lists) < len(columns) or len({len(c) for c in lists}) != 1:
            raise ValueError("columns are missing, or not of one length")
        if any(rank >= n_shards for rank in lists[0]):
            raise ValueError(f"there are only {n_shards} shards")
        if any(n >= 2**63 for n in lists[1] + lists[3]) or any(crc >= 2**32 for crc in lists[2]):
            raise ValueError("numbers are too large")
        if found.get("more", False) not in (False, True):
            raise ValueError("whether more follows is neither true nor false")
        shards, nbytes, index_crcs, n_chunks = (tuple(column) for column in lists)
        seconds, peak_nbytes = found.get("seconds", 0.0), found.get("peak_nbytes", 0)
        if (
            not isinstance(seconds, int | float)
            or not -_LARGEST < seconds < _LARGEST
            or type(peak_nbytes) is not int
        ):
            raise ValueError("no times or sizes")
        return cls(
            attempt=str(found.get("attempt", "")),
            shards=shards,
            nbytes=nbytes,
            index_crcs=index_crcs,
            n_chunks=n_chunks,
            seconds=float(seconds),
            peak_nbytes=peak_nbytes,
            more=bool(found.get("more", False)),
        )


@dataclass(frozen=True, slots=True)
class Beginning:
    """A task that is about to commit.

    Attributes
    ----------
    attempt : str
        Name of the attempt.
    start, stop : tuple of int
        The box of its shards in the shard grid.
    """

    attempt: str
    start: tuple[int, ...]
    stop: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """As it stands in a line."""
        return {"attempt": self.attempt, "begins": [list(self.start), list(self.stop)]}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Beginning:
        """From a line, checked.

        Raises
        ------
        ValueError
            If a field is missing or cannot be right.
        """
        attempt, corners = found.get("attempt"), found.get("begins")
        if not isinstance(attempt, str) or "/" in attempt or "\0" in attempt:
            raise ValueError("no name of an attempt")  # it becomes part of a path
        if (
            not isinstance(corners, list)
            or len(corners) != 2
            or not all(_are_positions(corner) for corner in corners)
        ):
            raise ValueError("no box of shards")
        start, stop = corners
        return cls(attempt, tuple(start), tuple(stop))


def _are_positions(found: Any) -> bool:
    return isinstance(found, list) and all(
        type(n) is int and -_LARGEST < n < _LARGEST for n in found
    )


def cause_of(error: BaseException) -> str:
    """What a line says of an error: its class, and the system's name of its number.

    Examples
    --------
    >>> cause_of(OSError(28, "No space left on device")), cause_of(ValueError("x"))
    ('OSError ENOSPC', 'ValueError')
    """
    number = getattr(error, "errno", None)
    return f"{type(error).__name__} {errno.errorcode.get(number, '') if isinstance(number, int) else ''}".strip()


def encode_line(fields: Mapping[str, Any]) -> bytes:
    """A line, its checksum first and a newline last."""
    text = json.dumps(fields, separators=(",", ":")).encode()
    return b"%08x %s\n" % (crc32c(text), text)


def parse_lines(blocks: Iterable[bytes]) -> Iterator[dict[str, Any] | None]:
    """Lines in turn; None for one that is torn or whose checksum differs.

    Losing a line costs work that is done again, never a shard.

    Parameters
    ----------
    blocks : iterable of bytes
        A file, cut anywhere.
    """
    for line in _lines(blocks):
        try:
            fields = (
                parse_json(line[9:])
                if line[8:9] == b" " and int(line[:8], 16) == crc32c(line[9:])
                else None
            )
        except ValueError:
            fields = None
        yield fields if isinstance(fields, dict) else None


def _lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Lines that hold anything; the beginning alone stands for one that is too long to be read."""
    limit = read_limit()
    held: list[bytes] = []
    for block in blocks:
        first, *others = block.split(b"\n")
        if sum(map(len, held)) <= limit:
            held.append(first)
        for line in others:
            yield from filter(None, [b"".join(held)])
            held = [line]
    yield from filter(None, [b"".join(held)])

"""The lines of a journal: JSON documents, each preceded by its crc32c.

A journal file holds four kinds of lines:

- The first line, a `Head`, names the process that writes the file.
- Before a task commits anything, a `Beginning` gives the name that its temporary files will have.
  They can then be removed by name, without listing the array.
- After a task has committed shards, an `Entry` lists them. Its fields are columns with one value
  for each shard, because a line for each small shard would cost more than the shard's own bytes.
  A task that commits many bytes, or runs for long, writes several entries. All but the last say
  that more follow; the last one ends the task and may list no shards.
- A line with the field ``failed`` gives the error that ended a process's work early. It is only
  shown to users; nothing else depends on it.

Every line but the first has the field ``at``: seconds since the first line, by a clock that is
never set back. Only reports depend on it. Lines of older versions do not have it.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields

from crc32c import crc32c

from shardwrite.codecs.documents import JSON
from shardwrite.journal.process import Process
from shardwrite.stores import parse_json, read_limit

_LARGEST = 2**63
_LATEST = 2.0**40  # latest time that a journal can plausibly give, in seconds since 1970


@dataclass(frozen=True, slots=True)
class Head:
    """First line of a journal file."""

    writer: Process  # the process that writes the file
    driver: str  # name of the driver on whose behalf it writes
    durability: str  # durability level of the commits
    # Time of the first line by the clock of the process's host, in seconds since 1970. None if the
    # file does not tell a plausible one.
    begun: float | None

    def to_dict(self) -> dict[str, JSON]:
        """Fields of the journal line."""
        return {
            "writer": self.writer.to_dict(),
            "driver": self.driver,
            "durability": self.durability,
            "begun": self.begun,
        }

    @classmethod
    def from_dict(cls, found: Mapping[str, JSON]) -> Head:
        """Parse the fields of a journal line; a field of a wrong type counts as not known."""
        writer, driver = found.get("writer"), found.get("driver", "")
        durability, begun = found.get("durability"), found.get("begun")
        return cls(
            Process.from_dict(writer) if isinstance(writer, dict) else Process(),
            str(driver),
            durability if isinstance(durability, str) else "",
            float(begun) if isinstance(begun, float | int) and 0 <= begun < _LATEST else None,
        )


@dataclass(frozen=True, slots=True)
class Entry:
    """Shards that a task has committed: all of them, or those since its previous entry."""

    attempt: str  # name of the attempt, which is part of the names of its temporary files
    shards: tuple[int, ...]  # row-major ranks of the shards in the shard grid
    # Size of each shard's object in bytes; 0 if the shard is empty by design and has no object
    nbytes: tuple[int, ...]
    # crc32c of each shard's index table, as little-endian pairs of uint64; 0 if the shard has no
    # index
    index_crcs: tuple[int, ...]
    n_chunks: tuple[int, ...]  # number of inner chunks that hold data, for each shard
    seconds: float  # time since the start of the task, in seconds
    # Peak of the memory that the run has taken in the process so far, in bytes above what the
    # process had when the run began; see `host.memory`
    peak_nbytes: int
    # Whether the task goes on, so that its temporary files may exist. A line without this field
    # ends its task.
    more: bool = False
    # Time for which the task's thread was computing since the start of the task, in seconds. None
    # if an older version has written the line.
    cpu_seconds: float | None = None

    def to_dict(self) -> dict[str, JSON]:
        """Fields of the journal line."""
        # `asdict` would copy every number.
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        if not self.more:
            del found["more"]
        if self.cpu_seconds is None:
            del found["cpu_seconds"]
        return found

    @classmethod
    def from_dict(cls, found: Mapping[str, JSON], n_shards: int) -> Entry:
        """Parse and check the fields of a journal line.

        - `n_shards`: number of shards in the grid; every rank must be below it.
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
            cpu_seconds=_duration(found.get("cpu_seconds")),
        )


@dataclass(frozen=True, slots=True)
class Beginning:
    """Note that a task is about to commit shards."""

    attempt: str  # name of the attempt
    start: tuple[int, ...]  # half-open box of the task's shards, as positions in the shard grid
    stop: tuple[int, ...]

    def to_dict(self) -> dict[str, JSON]:
        """Fields of the journal line."""
        return {"attempt": self.attempt, "begins": [list(self.start), list(self.stop)]}

    @classmethod
    def from_dict(cls, found: Mapping[str, JSON]) -> Beginning:
        """Parse and check the fields of a journal line."""
        attempt, corners = found.get("attempt"), found.get("begins")
        # The name becomes part of a path.
        if not isinstance(attempt, str) or "/" in attempt or "\0" in attempt:
            raise ValueError("no name of an attempt")
        if (
            not isinstance(corners, list)
            or len(corners) != 2
            or not all(_are_positions(corner) for corner in corners)
        ):
            raise ValueError("no box of shards")
        start, stop = corners
        return cls(attempt, tuple(start), tuple(stop))


def _are_positions(found: JSON) -> bool:
    return isinstance(found, list) and all(
        type(n) is int and -_LARGEST < n < _LARGEST for n in found
    )


def time_in(line: Mapping[str, JSON]) -> float | None:
    """Seconds from the first line of a journal to another line; None if the line does not tell."""
    return _duration(line.get("at"))


def _duration(found: JSON) -> float | None:
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    return float(found) if is_number and 0 <= found < _LATEST else None  # type: ignore[arg-type, operator]


def cause_of(error: BaseException) -> str:
    """Short text for an error: its class, and the symbolic name of its error number if it has one.

    Examples
    --------
    >>> cause_of(OSError(28, "No space left on device")), cause_of(ValueError("x"))
    ('OSError ENOSPC', 'ValueError')
    """
    number = getattr(error, "errno", None)
    return (
        f"{type(error).__name__} "
        f"{errno.errorcode.get(number, '') if isinstance(number, int) else ''}"
    ).strip()


def encode_line(fields: Mapping[str, JSON]) -> bytes:
    """Bytes of a journal line: checksum in hexadecimal, space, JSON text and newline."""
    text = json.dumps(fields, separators=(",", ":")).encode()
    return b"%08x %s\n" % (crc32c(text), text)


def parse_lines(blocks: Iterable[bytes]) -> Iterator[dict[str, JSON] | None]:
    """Parse the lines of a journal file.

    A lost line only means that some shards are written again; no shard is lost.

    - Yields: fields of the line. None if the line is torn, its checksum differs, or it is not a
      JSON object.
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
    """Lines that are not empty, without their newlines.

    Of a line that exceeds the read limit, only the beginning is kept, so its checksum differs.
    """
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

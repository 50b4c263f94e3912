"""What calls return: facts, and the text that is made of them; and numbers in words."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar

from shardwrite._dataclass import dataclass
from shardwrite.errors import printable
from shardwrite.seams import resolve

ABOVE = "above what it had when the run began"
"""Which memory of a process plans, results and reports mean."""

Rows = Sequence[tuple[str, str]]
"""Pairs of a name and a text, which may have several lines."""


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of an array, in elements."""

    name: str  # name of the axis
    extent: int  # extent of the array
    shard: int  # extent of a shard
    chunk: int  # extent of an inner chunk
    n_shards: int  # number of shards along the axis


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts about one object, of which text and HTML are made."""

    title: str  # name of the kind of object, such as ``plan``
    subject: str = ""  # name of the object itself, such as the path of an array
    headline: Rows = ()  # the most important numbers, each with the words that follow it
    axes: Sequence[Axis] = ()  # axes of the array
    problems: Rows = ()  # faults, which are shown in red; each has a name and a text
    notes: Rows = ()  # remarks; each has a name and a text
    rows: Rows = ()  # rows of the table of all other facts
    drawing: str = ""  # HTML to show below the table. It is not escaped.


def human(nbytes: float) -> str:
    """Format a number of bytes in decimal units.

    Examples
    --------
    >>> human(2_147_483_648)
    '2.15 GB'
    >>> human(999_960)
    '1 MB'
    """
    nbytes = min(nbytes, 1e300)  # a larger integer may not fit into a float
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(nbytes) < 999.5:  # larger values would be rounded to 1000
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.4g} PB"


def duration(seconds: float) -> str:
    """Format a duration. A short one is not rounded to zero.

    Examples
    --------
    >>> duration(0.00042), duration(3.14159), duration(125), duration(7322)
    ('0.42 ms', '3.14 s', '2 min 5 s', '2 h 2 min')
    """
    if 0 < seconds < 0.01:
        return f"{1000 * seconds:.2g} ms"
    if seconds < 100:
        return f"{seconds:.2f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"


def rounded(seconds: float) -> float:
    """Seconds to the millisecond; only 0 becomes 0.

    Examples
    --------
    >>> rounded(3.14159), rounded(0.00042), rounded(0.0)
    (3.142, 0.001, 0.0)
    """
    return max(0.001, round(seconds, 3)) if seconds else 0.0


def counted(number: int, noun: str) -> str:
    """Format a number of things.

    Examples
    --------
    >>> counted(1, "file"), counted(2000, "file"), counted(2, "process")
    ('1 file', '2,000 files', '2 processes')
    """
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{number:,} {noun if number == 1 else plural}"


def table_text(title: str, rows: Rows) -> str:
    """Format a table of two columns as text.

    `rows` are pairs of a name and a cell. A cell may have several lines. Control characters,
    such as a name can have, are spelt out.
    """
    width = max(len(name) for name, _ in rows)
    lines = [title]
    for name, cell in rows:
        for number, line in enumerate(cell.split("\n")):
            lines.append(f"  {name if number == 0 else '':<{width}}  {line}")
    return printable("\n".join(lines))


def card_of(facts: Facts) -> str:
    """Make HTML of facts, as notebooks show it."""
    card: str = resolve("view", "card")(facts)
    return card


def _fields_of(value: Any) -> Mapping[str, Any]:
    return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}


def _plain(value: Any) -> Any:
    """A value as JSON can hold it."""
    if isinstance(value, Result):
        return value.to_dict()
    if is_dataclass(value):
        return _fields_of(value)
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


class Result(ABC):
    """Base of what calls return, which is shown as text and in notebooks."""

    __slots__ = ()

    _derived: ClassVar[tuple[str, ...]] = ()  # properties that are told after the fields

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, and what follows from them, as values that JSON can hold."""
        return {**_fields_of(self), **{name: getattr(self, name) for name in self._derived}}

    def to_json(self, indent: int | None = 2) -> str:
        """Return the facts of :meth:`to_dict` as JSON text.

        Parameters
        ----------
        indent : int or None
            Spaces of each level, or None for one line.
        """
        return json.dumps(self.to_dict(), indent=indent)

    @abstractmethod
    def facts(self) -> Facts:
        """Return what is shown of the result.

        Returns
        -------
        Facts
            Its title and headline, its problems and notes, and the rows of its table.
        """

    def __str__(self) -> str:
        facts = self.facts()
        return table_text(facts.title, [*facts.rows, *facts.notes, *facts.problems])

    def _repr_html_(self) -> str:
        return card_of(self.facts())

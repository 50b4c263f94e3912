"""Kinds of settings: how a value is written in a configuration, and what it becomes."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Generic, TypeVar

T = TypeVar("T")
S = TypeVar("S")
_SUFFIXES = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}
_DURATIONS = {"": 1, "ms": 1e-3, "s": 1, "m": 60, "min": 60, "h": 3600}


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """Kind of a setting."""

    label: str  # name of the kind, for the reference
    remedy: str  # what to give, for the message that refuses a wrong value
    # Function that turns a value of the configuration into a value of this kind. It raises
    # ValueError or TypeError if the value is wrong.
    parse: Callable[[Any], T]


def as_nbytes(value: object) -> int:
    """Number of bytes of a size such as ``"256MB"``, ``"1.5 GiB"`` or 1000.

    Fractions of a byte are cut off.

    Examples
    --------
    >>> as_nbytes("1.5 KiB"), as_nbytes(100)
    (1536, 100)
    """
    nbytes = 0
    if isinstance(value, str):
        nbytes = _nbytes_of(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        nbytes = value
    if nbytes < 1:
        raise ValueError(f"{value!r} is not a positive number of bytes")
    return nbytes


@functools.lru_cache
def _nbytes_of(size: str) -> int:
    """Number of bytes, or 0 if the text is no size."""
    match = re.fullmatch(
        r"\s*(\d{1,1000}(?:\.\d{1,1000})?)\s*([kmgt]i?)?b?\s*", size, re.IGNORECASE
    )
    return int(Fraction(match[1]) * _SUFFIXES[(match[2] or "").lower()]) if match else 0


def _seconds(value: object) -> float:
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([a-z]*)\s*", value)
        if not match or match[2] not in _DURATIONS:
            raise ValueError(f"{value!r} is no time")
        value = float(match[1]) * _DURATIONS[match[2]]
    return _number(value)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{value!r} is not positive")
    return float(value)


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{value!r} is not a positive integer")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"{value!r} is no text")
    return value


def _auto_nbytes(value: object) -> str:
    if value == "auto":
        return "auto"
    if not isinstance(value, str):
        raise TypeError("a number could be meant as an extent in elements")
    return f"{as_nbytes(value)}B"


def _mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise TypeError("no mapping of names")
    return dict(value)


def _codecs(value: object) -> Any:
    is_list = isinstance(value, list | tuple) and all(
        isinstance(one, str | dict) and one for one in value
    )
    if not (is_list or (isinstance(value, str | dict) and value)):
        raise TypeError(f"{value!r} names no codecs")
    return list(value) if isinstance(value, list | tuple) else value


def _pauses(value: object) -> tuple[float, ...]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"{value!r} is no list")
    return tuple(0.0 if _is_zero(one) else _seconds(one) for one in value)


def _is_zero(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and value == 0


size = Kind("size", 'give for instance "32 MiB"', as_nbytes)
auto_nbytes = Kind("size or auto", 'give "auto", or a size in bytes such as "256MB"', _auto_nbytes)
seconds = Kind("time", "give a positive number of seconds", _seconds)
positive = Kind("number", "give a positive number", _number)
count = Kind("integer", "give an integer, 1 or more", _count)
flag = Kind("true or false", "give true or false", _flag)
text = Kind("text", "give a text", _text)
codecs = Kind(
    "codecs", 'give "auto", the name of a codec, or a list of codecs as in zarr.json', _codecs
)
mapping = Kind("mapping", "give names and values", _mapping)
pauses = Kind("list of times", "give a list of seconds, such as [0.05, 0.2, 0.8]", _pauses)


def one_of(*choices: str) -> Kind[str]:
    """Kind of a setting that is one of some words."""

    def parse(value: object) -> str:
        if not isinstance(value, str) or value not in choices:
            raise ValueError(f"{value!r} is no choice")
        return value

    return Kind(", ".join(choices), f"use one of {list(choices)}", parse)


def or_null(kind: Kind[S]) -> Kind[S | None]:
    """Kind of a setting that may be null, too."""

    def parse(value: object) -> S | None:
        return None if value is None else kind.parse(value)

    return Kind(f"{kind.label}, or null", f"{kind.remedy}, or null", parse)

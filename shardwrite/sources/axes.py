"""Names of axes and the length of a step along each, in the words that viewers read."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence

from shardwrite.codecs.documents import JSON

_PREFIXES = {
    "": "",
    "d": "deci",
    "c": "centi",
    "m": "milli",
    "µ": "micro",
    "\u03bc": "micro",
    "u": "micro",
    "n": "nano",
    "p": "pico",
    "f": "femto",
    "a": "atto",
    "z": "zepto",
    "y": "yocto",
    "h": "hecto",
    "k": "kilo",
    "M": "mega",
    "G": "giga",
    "T": "tera",
    "P": "peta",
    "E": "exa",
    "Z": "zetta",
    "Y": "yotta",
}
_OTHERS = {
    "Å": "angstrom",
    "in": "inch",
    "ft": "foot",
    "yd": "yard",
    "mi": "mile",
    "pc": "parsec",
    "min": "minute",
    "h": "hour",
    "d": "day",
    "sec": "second",
    "msec": "millisecond",
    "usec": "microsecond",
    "micron": "micrometer",
    "microns": "micrometer",
}
UNITS = {
    f"{short}{unit}": f"{prefix}{name}"
    for unit, name in (("m", "meter"), ("s", "second"))
    for short, prefix in _PREFIXES.items()
} | _OTHERS
"""Symbols of units of length and time, and their names in UDUNITS and in OME-Zarr."""

_NAMES = {name: name for name in UNITS.values()}


def dimension_units(steps: Iterable[tuple[float, str] | None]) -> dict[str, JSON]:
    """Attribute ``dimension_units``, as tensorstore and Neuroglancer read it.

    - `steps`: for each axis, the length of a step and its unit, or None if it is unknown. A unit
      that is neither a length nor a time counts as unknown, because Neuroglancer opens no array
      that has one.
    - Returns: the attribute; empty if no step is known.

    Examples
    --------
    >>> dimension_units([None, (0.5, "µm"), (2, "s"), (1, "pixel")])
    {'dimension_units': [None, '0.5 micrometer', '2.0 second', None]}
    """
    units = [None if step is None else _quantity(*step) for step in steps]
    return {"dimension_units": [*units]} if any(units) else {}


def _quantity(step: float, unit: str) -> str | None:
    name = {**_NAMES, **UNITS}.get(unit.strip())
    is_known = name is not None and math.isfinite(step) and step > 0
    return f"{float(step)!r} {name}" if is_known else None


def unique_names(names: Sequence[str | None]) -> tuple[str | None, ...] | None:
    """Names of axes, without those that occur twice; None if none is left.

    Examples
    --------
    >>> unique_names(["t", "x", None, "x"]), unique_names([None])
    (('t', None, None, None), None)
    """
    found = tuple(name if names.count(name) == 1 else None for name in names)
    return found if any(found) else None


def tell_left_out(path: str, reasons: Iterable[str]) -> None:
    """Warn of what a file says and the new array will not."""
    for reason in reasons:
        warnings.warn(f"{path}: {reason}", stacklevel=3)

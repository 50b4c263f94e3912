"""Types of the values that options take."""

from __future__ import annotations

import contextlib
import json
import math
import re
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from shardwrite.errors import SpecError

if TYPE_CHECKING:

    class Value(click.ParamType[Any]):
        """Base of types of options. click's own takes a parameter from click 8.4 on."""

else:
    Value = click.ParamType


_WHOLE = re.compile(r"-?[0-9]{1,30}")  # Python reads no number of more than 4300 digits
_ZSTD = '[{"name": "zstd", "configuration": {"level": 3}}]'


def _axis_of(name: str) -> Any:
    """Key of an axis in a mapping of sizes: its name or number, or the rest of the axes."""
    if name == "...":
        return ...
    return int(name) if _WHOLE.fullmatch(name) else name


class Sizes(Value):
    """Option type for sizes: ``64``, ``64,64,32``, ``t=8,...=-1``, ``256MB``, ``auto``."""

    name = "sizes"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: ARG002 (click's signature)
        """Return integers, as one, a tuple or a mapping, or None; the planner reads other text."""
        if value == "none":
            return None
        parts = str(value).split(",")
        if all("=" in part for part in parts):
            named = (part.partition("=") for part in parts)
            return {
                _axis_of(name.strip()): int(size) if _WHOLE.fullmatch(size) else size
                for name, _, size in named
            }
        if all(_WHOLE.fullmatch(part.strip()) for part in parts):
            sizes = tuple(int(part) for part in parts)
            return sizes if len(sizes) > 1 else sizes[0]
        return value


class Extents(Sizes):
    """Option type for a shape in elements: ``64`` or ``64,64,32``."""

    name = "extents"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return one integer or a tuple of integers."""
        found = super().convert(value, param, ctx)
        if not isinstance(found, int | tuple):
            numbers = re.findall(r"[0-9]+", str(value)) or ["64", "64", "32"]
            self.fail(f"{value!r} is no shape; give for instance {','.join(numbers)}", param, ctx)
        return found


class Numbers(Value):
    """Option type for numbers: ``4,4,40`` or ``0.5,0.5,2``."""

    name = "numbers"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return a tuple of numbers, whole ones as integers."""
        if not isinstance(value, str):
            return value
        try:
            found = [float(part) for part in value.split(",")]
        except ValueError:
            self.fail(f"{value!r} is no list of numbers; give for instance 4,4,40", param, ctx)
        return tuple(int(one) if one.is_integer() else one for one in found)


class Json(Value):
    """Option type for codecs: JSON, a codec's name, ``auto``, or ``none``."""

    name = "json"

    def __init__(self, example: str = _ZSTD) -> None:
        self._example = example

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value of JSON, None for ``none``, or the name itself."""
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except ValueError as error:
            if value.lstrip().startswith(("[", "{", '"')):
                example = f"give for instance '{self._example}'"
                self.fail(f"{value!r} is no JSON: {error}; {example}", param, ctx)
        return None if value == "none" else value


class OneCodec(Json):
    """Option type for one codec: its name, or a JSON object of its name and its configuration."""

    def __init__(self) -> None:
        super().__init__('{"name": "bytes", "configuration": {"endian": "big"}}')

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value of JSON, or the name itself."""
        is_json = isinstance(value, str) and value.lstrip().startswith(("[", "{", '"'))
        return super().convert(value, param, ctx) if is_json else value


def fill_of(text: str, dtype: np.dtype[Any]) -> Any:
    """Fill value of a dtype from the text of an option.

    Integers may have any number of digits, and ``0x``. In hexadecimal, floats are given by their
    bits, as in ``zarr.json``; so a NaN keeps its payload. Complex numbers are written as ``1+2j``
    or as two parts, ``[1, "NaN"]``. For text the option is taken as it is.

    Examples
    --------
    >>> fill_of("9007199254740993", np.dtype("int64")), fill_of("0xff", np.dtype("uint8"))
    (9007199254740993, 255)
    >>> fill_of("true", np.dtype(bool)), fill_of("1.5", np.dtype("U3"))
    (True, '1.5')
    """
    words = text.strip()
    try:
        if dtype.kind == "b":
            return {"true": True, "false": False, "1": True, "0": False}[words.lower()]
        if dtype.kind in "iu":
            return _integer(words)
        if dtype.kind == "f":
            return _float(words, dtype)
        if dtype.kind == "c":
            return _complex(words, dtype)
        if dtype.kind in "mM":
            return _time(words, dtype)
        return text.encode() if dtype.kind == "S" else text
    except (InvalidOperation, KeyError, OverflowError, TypeError, ValueError):
        raise SpecError(
            f"is no {dtype}",
            field="fill_value",
            value=text,
            remedy=f"give {_EXAMPLES.get(dtype.kind, 'a value of the dtype')}",
        ) from None


_EXAMPLES = {
    "b": "true or false",
    "i": "an integer, such as -1 or 0xff",
    "u": "an integer of 0 or more, such as 255 or 0xff",
    "f": "a number such as 0.5, nan, -inf, or its bits in hexadecimal",
    "c": 'a number such as 1+2j, or [1, "NaN"]',
    "M": "a time such as 2020-01-31, NaT, or a number of its units",
    "m": "a number of its units, or NaT",
}


def _integer(words: str) -> int:
    if words.lower().lstrip("+-").startswith("0x"):
        return int(words, 16)
    with contextlib.suppress(ValueError):
        return int(words)
    found = Decimal(words) if words.isascii() else Decimal("nan")
    if not found.is_finite() or found.adjusted() > 30 or found != int(found):
        raise ValueError(words)
    return int(found)


def _float(words: str, dtype: np.dtype[Any]) -> Any:
    if words.lower().startswith("0x"):
        digits = words[2:]
        if len(digits) != 2 * dtype.itemsize:
            raise ValueError(f"{2 * dtype.itemsize} digits are the bits of a {dtype}")
        native = dtype.newbyteorder("=")
        return np.array(int(digits, 16), dtype=f"u{dtype.itemsize}").view(native)[()]
    found = float(words)
    if math.isinf(found) and "inf" not in words.lower():
        raise OverflowError(words)
    return found


def _complex(words: str, dtype: np.dtype[Any]) -> Any:
    part = np.dtype(f"f{dtype.itemsize // 2}")
    if not words.startswith("["):
        return complex(words.replace(" ", ""))
    real, imaginary = (_float(str(word), part) for word in json.loads(words))
    return np.array([real, imaginary], dtype=part).view(dtype.newbyteorder("="))[0]


def _time(words: str, dtype: np.dtype[Any]) -> Any:
    if words.lower() == "nat":
        return dtype.type("NaT", np.datetime_data(dtype))
    with contextlib.suppress(ValueError):
        return dtype.type(int(words), np.datetime_data(dtype))
    if dtype.kind == "m":
        raise ValueError(words)
    time = np.datetime64(words)  # what the dtype cannot hold of it is refused with the document
    if np.isnat(time):
        raise ValueError("no text")
    return time


class Names(Value):
    """Option type for names of axes, such as ``time,y,x``. An axis may have none: ``time,,x``."""

    name = "names"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: ARG002 (click's signature)
        """Return a tuple of names, with None for an axis without a name."""
        if not isinstance(value, str):
            return value
        return tuple(name.strip() or None for name in value.split(","))


class Attributes(Json):
    """Option type for attributes: an object of JSON."""

    def __init__(self) -> None:
        super().__init__('{"units": "K"}')

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the object as a dictionary."""
        found = super().convert(value, param, ctx)
        if isinstance(value, str) and not isinstance(found, dict):
            self.fail(f"{value!r} is no object; give for instance '{self._example}'", param, ctx)
        return found

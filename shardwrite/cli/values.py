"""Types of the values that options take."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import click

__all__ = ["Attributes", "Json", "Names", "Scalar", "Sizes", "Value"]

if TYPE_CHECKING:

    class Value(click.ParamType[Any]):
        """Base of types of options. click's own takes a parameter from click 8.4 on."""

else:
    Value = click.ParamType


class Sizes(Value):
    """Option type for sizes: ``64``, ``64,64,32``, ``256MB``, ``auto`` or ``none``."""

    name = "sizes"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: ARG002 (click's signature)
        """Return one integer, a tuple of integers, or None; other text is left for the planner."""
        if value == "none":
            return None
        parts = str(value).split(",")
        if all(part.strip().lstrip("-").isdigit() for part in parts):
            sizes = tuple(int(part) for part in parts)
            return sizes if len(sizes) > 1 else sizes[0]
        return value


class Json(Value):
    """Option type for codecs: JSON, a codec's name, ``auto``, or ``none``."""

    name = "json"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: ARG002 (click's signature)
        """Return the value of JSON, None for ``none``, ``auto`` itself, or a list of one codec."""
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except ValueError:
            return (
                None
                if value == "none"
                else value
                if value == "auto"
                else [{"name": value, "configuration": {}}]
            )


class Scalar(Value):
    """Option type for a fill value: ``5``, ``0.5``, ``nan``, ``true`` or a text."""

    name = "scalar"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: ARG002 (click's signature)
        """Return a bool, an integer, a float or the text, the first of these that fits.

        Integers may have any number of digits.
        """
        if str(value).lower() in ("true", "false"):
            return str(value).lower() == "true"
        for kind in (int, float):
            with contextlib.suppress(ValueError):
                return kind(value)
        return value


class Names(Value):
    """Option type for names of axes, such as ``time,y,x``. An axis may have none: ``time,,x``."""

    name = "names"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: ARG002 (click's signature)
        """Return a tuple of names, with None for an axis without a name."""
        if not isinstance(value, str):
            return value
        return tuple(name.strip() or None for name in value.split(","))


class Attributes(Value):
    """Option type for attributes: an object of JSON."""

    name = "json"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the object as a dictionary."""
        if not isinstance(value, str):
            return value
        try:
            found = json.loads(value)
        except ValueError as error:
            self.fail(f"{value!r} is no JSON: {error}", param, ctx)
        if not isinstance(found, dict):
            self.fail(f'{value!r} is no object; give for instance {{"units": "K"}}', param, ctx)
        return found

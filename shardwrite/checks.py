"""Checks of values that callers give. Each refusal names the argument, and what it takes."""

from __future__ import annotations

from collections.abc import Collection
from numbers import Integral, Real
from typing import Any, TypeGuard

from shardwrite.errors import SpecError


def is_whole(value: object, least: int | None = None, most: int | None = None) -> TypeGuard[int]:
    """Whether a value is a whole number of any type, within limits; True and False are none."""
    return (
        not isinstance(value, bool)
        and isinstance(value, Integral)
        and (least is None or int(value) >= least)
        and (most is None or int(value) <= most)
    )


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a real number of any type; True and False are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def plain(value: Any) -> float | None:
    """A number of any type as one of Python, which does not overflow; None stays None."""
    if value is None:
        return None
    return int(value) if is_whole(value) else float(value)


def whole(field: str, value: Any, what: str, least: int = 1, most: int | None = None) -> int:
    """A whole number, which `what` calls ``a number of threads`` or the like."""
    if not is_whole(value, least, most):
        limits = f"{least} or more" if most is None else f"a whole number from {least} to {most:,}"
        raise SpecError(f"not {what}", field=field, value=value, remedy=f"give {limits}")
    return int(value)


def share(field: str, value: Any) -> float:
    """A number from 0 to 1."""
    if not is_number(value) or not 0 <= value <= 1:
        remedy = "give a number from 0 to 1"
        raise SpecError("not a share", field=field, value=value, remedy=remedy)
    return value


def one_value(field: str, value: Any) -> None:
    """Refuse an array where one value is wanted: it is neither true nor false."""
    if getattr(value, "ndim", None):
        raise SpecError(
            "an array, and not one value",
            field=field,
            value=type(value).__name__,
            remedy="give one value",
        )


def flag(field: str, value: Any) -> bool:
    """True or False, of Python or numpy."""
    if isinstance(value, bool):
        return value
    import numpy as np  # which takes long, for what is no bool of Python

    if not isinstance(value, np.bool_):
        raise SpecError("not a bool", field=field, value=value, remedy="give True or False")
    return bool(value)


def choice(
    field: str, value: Any, allowed: Collection[Any], *, what: str = "choice", untold: Any = ()
) -> None:
    """Refuse what is none of some values, of which None and the `untold` ones are not told.

    The values are texts, None, True and False. A 1 is not True, and a 0 is not False.
    """
    if not any(value is one or (isinstance(value, str) and value == one) for one in allowed):
        told = [one for one in allowed if one is not None and one not in untold]
        remedy = f"use one of {told}"
        raise SpecError(f"no such {what}", field=field, value=value, remedy=remedy)

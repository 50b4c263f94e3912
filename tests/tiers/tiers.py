"""Which cases of a test run by default, and which in the long tier only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings


def some(values: Iterable[Any], *quick: Any) -> list[Any]:
    """Parameters of a test, of which those that are not `quick` run in the long tier only."""
    values = list(values)
    assert all(value in values for value in quick), "a quick case is none of the cases"
    return [pytest.param(v, marks=() if v in quick else pytest.mark.long) for v in values]


def tried(n: int, drawn: Callable[[Any], Any], check: Callable[..., None]) -> Callable[..., None]:
    """A test that makes a check with `n` examples, which `drawn`, made by `given`, draws."""
    more = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
    return settings(max_examples=n, **more)(drawn(check))
